"""Claims of CONTRIBUTING about tools: hooks check what `make lint` checks, subjects are short, releases are checked."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT


def test_hooks_are_the_checks_of_make_lint() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    checks = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert [entry for entry in re.findall(r"entry: (.*)", hooks) if entry.startswith(".venv/")] == checks
    assert re.findall(r"repo: (.*)", hooks) == ["local"], "hooks download nothing"


@pytest.mark.parametrize(("length", "code"), [(72, 0), (73, 1)])
def test_long_subjects_are_refused(tmp_path: Path, length: int, code: int) -> None:
    message = tmp_path / "message"
    message.write_text(
        "# a comment of git, which may be as long as it likes, and is no part of the message\n" + "x" * length
    )
    assert subprocess.run([ROOT / ".ci" / "subject", message], check=False, capture_output=True).returncode == code


CHECKED_SINCE = datetime(2026, 11, 19, 8, tzinfo=UTC)
"""Older commits have a few subjects that are longer, and stay as they are."""


def long_subjects(repository: Path, since: datetime) -> list[str]:
    """Those of commits written since then. A shallow clone has fewer commits; where there is no git, there are none."""
    git = shutil.which("git")
    if git is None or not (repository / ".git").exists():
        return []
    command = [git, "-C", str(repository), "log", "--no-merges", "--format=%aI %s"]
    log = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    commits = [line.partition(" ")[::2] for line in log.splitlines()]
    return [subject for at, subject in commits if datetime.fromisoformat(at) >= since and len(subject) > 72]


def test_subjects_of_new_commits_are_short() -> None:
    assert long_subjects(ROOT, CHECKED_SINCE) == []


def test_a_long_subject_that_passed_by_the_hook_is_found(tmp_path: Path) -> None:
    git = [
        "git",
        "-C",
        str(tmp_path),
        "-c",
        "user.name=n",
        "-c",
        "user.email=n@example.org",
        "-c",
        "commit.gpgSign=false",
    ]
    subprocess.run([*git, "init", "--quiet"], check=True)
    before, after = CHECKED_SINCE - timedelta(days=1), CHECKED_SINCE + timedelta(days=1)
    for at, length in ((before, 90), (after, 72), (after, 73)):
        commit = ["commit", "--quiet", "--no-verify", "--allow-empty", "--date", at.isoformat(), "-m", "x" * length]
        subprocess.run([*git, *commit], check=True)
    assert long_subjects(tmp_path, CHECKED_SINCE) == ["x" * 73]
    assert long_subjects(tmp_path / "no-repository", CHECKED_SINCE) == []


def test_pages_name_the_version_that_is_built() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md")
    wheels = re.findall(rf"{name}-(\d[^-\s']*)-py3-none-any\.whl", text)
    extras = re.findall(r"\.whl\[([\w,]+)\]", text)
    assert len(wheels) >= 2
    assert set(wheels) == {version}
    assert {extra for each in extras for extra in each.split(",")} <= set(project["optional-dependencies"])
    assert set(re.findall(r"this is version (\S+?)\.?\s", text)) == {version}


def test_the_changelog_has_the_version_and_what_comes_next() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", version]


def test_a_wheel_with_symlinks_is_no_release(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("m4cast/overlay")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "m4cast-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(link, "../overlay")
    (tmp_path / "m4cast-0.1.0.tar.gz").touch()
    checked = subprocess.run(
        [sys.executable, ROOT / ".ci" / "check_release.py", tmp_path], check=False, capture_output=True, text=True
    )
    assert checked.returncode == 1 and "contains symlinks: ['m4cast/overlay']" in checked.stderr
