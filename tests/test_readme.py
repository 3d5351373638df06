"""The README's example runs and does what it says; and it leaves nothing out."""

import re
from pathlib import Path

import pytest

from m4cast.cli import SUBCOMMANDS
from m4cast.overlay.sim.scenarios import SCENARIOS

README = Path(__file__).parent.parent / "README.md"


def test_the_example_founds_a_channel(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
    assert "founded" in capsys.readouterr().out


def test_every_command_scenario_and_page_is_named() -> None:
    text = README.read_text(encoding="utf-8")
    (table,) = re.findall(r"\| command \| what it does \|\n(.*?)\n\n", text, re.DOTALL)
    commands = " ".join(line.split("|")[1] for line in table.splitlines())
    assert [name for name in SUBCOMMANDS if f"`{name}" not in commands] == []
    assert [name for name in SCENARIOS if f"`{name}`" not in text] == []
    pages = [page.name for page in (README.parent / "docs").glob("*.md")]
    assert [page for page in pages if f"| `docs/{page}` |" not in text] == []


def test_links_of_the_readme_and_of_the_pages_lead_somewhere() -> None:
    for page in (README, *(README.parent / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
