"""The Python reference is what the docstrings say; after a change, `python docs/api.py` writes it again."""

import runpy

import m4cast
import m4cast.aio
from tests.docs.pages import DOCS


def test_the_reference_is_that_of_the_docstrings() -> None:
    written = runpy.run_path(str(DOCS / "api.py"))["page"]()
    assert (DOCS / "API.md").read_text(encoding="utf-8") == written, "run python docs/api.py"


def test_every_public_name_has_an_entry_with_a_text() -> None:
    page = (DOCS / "API.md").read_text(encoding="utf-8")
    names = [f"m4cast.{name}" for name in m4cast.__all__] + [f"m4cast.aio.{name}" for name in m4cast.aio.__all__]
    for name in names:
        if "__" not in name:
            _, found, after = page.partition(f"\n## {name}\n")
            text = after.partition("\n## ")[0]
            assert found and len(text.split()) > 8, f"{name} has no docstring"


def test_every_member_has_a_text() -> None:
    """A sentence of its own, beside its signature."""
    members = (DOCS / "API.md").read_text(encoding="utf-8").split("\n### ")[1:]
    bare = []
    for member in members:
        name, *lines = member.partition("\n## ")[0].splitlines()
        if not any(line.strip() and not line.startswith("    ") for line in lines):
            bare.append(name)
    assert len(members) > 100 and bare == []
