"""Examples of docs/FILTERS.md are accepted, its limits are those of the code, and its checklist names tests."""

import re
from pathlib import Path

import pytest

from m4cast.overlay.profiles import condition, literals, parse
from m4cast.overlay.profiles.boxes import BOXES_MAX
from m4cast.overlay.profiles.patterns import FLOATING_MAX, GENERAL_MAX
from m4cast.overlay.profiles.profile import ID_BYTES, LANGUAGES
from m4cast.overlay.profiles.summary import TEXT_BYTES_MAX, VALUES_MAX
from m4cast.overlay.profiles.summary_bytes import ENCODED_BYTES_MAX

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "FILTERS.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("fence", ["sql", "json"])
def test_examples_are_accepted(fence: str) -> None:
    blocks = re.findall(rf"```{fence}\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        for line in block.strip().splitlines():
            assert parse(line, fence).text
    inline = re.search(r"`(\{\"exact\": \[\[.*?)`", PAGE)
    assert inline is not None and parse(inline[1], "json").text == "`address`.`city` = 'Oslo'"
    thesis = re.search(r"```text\n(type = .*)\n```", PAGE)
    assert thesis is not None and parse(thesis[1], "diet").text.startswith("`key` IN")


def test_limits_are_those_of_the_code() -> None:
    said = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE))
    assert said["text of a filter"] == f"{condition.TEXT_BYTES_MAX:,} bytes"
    assert said["its canonical text"] == f"{condition.CANONICAL_BYTES_MAX:,} bytes"
    assert said["terms (tests of a column)"] == str(condition.TERMS_MAX)
    assert said["nesting of AND, OR, NOT, parentheses"] == str(condition.DEPTH_MAX)
    assert said["names in a nested column"] == str(condition.PATH_MAX)
    patterns = "a LIKE pattern, unless its only wildcards are a `%` at its ends"
    assert said[patterns] == f"{GENERAL_MAX} characters, and {FLOATING_MAX} `_` after a `%`"
    power = literals.EXPONENT_MAX
    number = f"{literals.DIGITS_MAX} significant digits, powers of ten from -{power} to {power}"
    assert said["a number"] == number
    for named in (
        f"{ID_BYTES} bytes",
        f"at most {ENCODED_BYTES_MAX // 1024} KB",
        f"at most {VALUES_MAX}",
        f"at {TEXT_BYTES_MAX} bytes",
    ):
        assert named in PAGE
    assert f"more than {BOXES_MAX} alternatives" in PAGE
    assert all(f"| `{name}` {version} |" in PAGE for name, version in LANGUAGES)


def test_the_checklist_names_tests_that_exist() -> None:
    """`::name` is in the file that was named before it; `...` stands for the rest of a name."""
    missing, file = [], ""
    named = re.findall(r"`([^`\s]*)::([^`\s]+)`", PAGE.partition("\n## Checklist\n")[2])
    assert len(named) > 100
    for path, name in named:
        file = path or file
        source = (ROOT / ("" if file.startswith("tests/") else "tests/overlay") / file).read_text(encoding="utf-8")
        begin = f"\ndef test_{name}(".replace("...(", "")
        if begin not in source:
            missing.append(f"{file}::{name}")
    assert missing == []
