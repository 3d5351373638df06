"""The Python snippets of `docs/CLIENT.md` run, in their order, against two nodes."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.overlay.door.served import serving, told_doors

DOCUMENT = Path(__file__).parents[3] / "docs" / "CLIENT.md"


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    snippets = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(snippets) == text.count("\n```") / 2 > 5
    names: dict[str, Any] = {}
    with serving(tmp_path, 2, settings=told_doors(2)) as served:
        monkeypatch.setenv("M4CAST_NODE", ",".join(served.addresses))
        for snippet in snippets:
            line = text.count("\n", 0, snippet.start()) + 1
            exec(compile("\n" * line + snippet[1], str(DOCUMENT), "exec"), names)
        names["channel"].close()
