"""The Markdown pages of the repository and their fenced snippets."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *DOCS.rglob("*.md"),
    ]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One fenced block of a page; `line` is that of its fence."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets_of(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    return [Snippet(page, text.count("\n", 0, fence.start()) + 1, fence[1], fence[2]) for fence in FENCE.finditer(text)]


def prose_of(page: Path) -> str:
    """The text of a page without its snippets."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))
