"""The Python reference is what the docstrings say; after a change, `python docs/api.py` writes it again."""

import runpy

import m4cast
from tests.docs.pages import DOCS


def test_the_reference_is_that_of_the_docstrings() -> None:
    written = runpy.run_path(str(DOCS / "api.py"))["page"]()
    assert (DOCS / "API.md").read_text(encoding="utf-8") == written, "run python docs/api.py"


def test_every_public_name_has_an_entry_with_a_text() -> None:
    page = (DOCS / "API.md").read_text(encoding="utf-8")
    for name in m4cast.__all__:
        if not name.startswith("__"):
            _, found, after = page.partition(f"\n## m4cast.{name}\n")
            text = after.partition("\n## ")[0]
            assert found and len(text.split()) > 8, f"m4cast.{name} has no docstring"
