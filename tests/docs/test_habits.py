"""What CONTRIBUTING says of tools: hooks check what `make lint` checks, subjects are short, releases are checked."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT


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
