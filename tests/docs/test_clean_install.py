"""The wheel in an environment that has nothing else, as a new user has it: installed by the commands of the quickstart,
with its dependencies from the package index that this machine uses; then the steps of the page that need no Spark."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, Snippet, snippets_of
from tests.docs.walkthrough import Walkthrough
from tests.test_packaging import built

__all__ = ["built"]  # the fixture
TIMEOUT_S = 900


def parts() -> tuple[Snippet, list[Snippet]]:
    """The commands that install, and the snippets that follow, up to those of Spark."""
    page = DOCS / "QUICKSTART.md"
    spark = page.read_text("utf-8").partition("\n## 5.")[0].count("\n")
    install, *rest = (each for each in snippets_of(page) if each.line < spark)
    return install, rest


@pytest.mark.soak  # it downloads Spark, half a gigabyte
def test_the_quickstart_installs_the_wheel_and_runs_a_channel(built: Path, tmp_path: Path) -> None:
    install, rest = parts()
    work = tmp_path / "work"
    (work / "dist").mkdir(parents=True)
    for wheel in built.rglob("*.whl"):
        shutil.copy(wheel, work / "dist")
    subprocess.run(["bash", "-euc", install.text], cwd=work, check=True, timeout=TIMEOUT_S)
    environment = work / "m4cast-env"
    page = Walkthrough(tmp_path / "page", working=work, python=environment / "bin" / "python")
    try:
        for snippet in rest:
            if snippet.language == "python":
                (work / "snippet.py").write_text(snippet.text, encoding="utf-8")
                page.run_one(Snippet(snippet.page, snippet.line, "console", "$ python snippet.py\n"))
            else:
                page.run_one(snippet)
        where = Snippet(DOCS / "QUICKSTART.md", 0, "console", "$ python -c 'import m4cast; print(m4cast.__file__)'\n")
        page.run_one(Snippet(where.page, 0, "console", where.text + f"{environment}...\n"))
        assert len(page.ran) >= 8
    finally:
        subprocess.run(shlex.split(f"{environment}/bin/m4cast cluster down"), cwd=work, check=True, timeout=60)
