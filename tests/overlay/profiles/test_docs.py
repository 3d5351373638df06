"""What docs/FILTERS.md shows is accepted, and the limits it lists are those of the code."""

import re
from pathlib import Path

import pytest

from m4cast.overlay.profiles import condition, literals, parse
from m4cast.overlay.profiles.boxes import BOXES_MAX
from m4cast.overlay.profiles.profile import ID_BYTES, LANGUAGES
from m4cast.overlay.profiles.summary import TEXT_BYTES_MAX, VALUES_MAX
from m4cast.overlay.profiles.summary_bytes import ENCODED_BYTES_MAX

PAGE = (Path(__file__).parents[3] / "docs" / "FILTERS.md").read_text(encoding="utf-8")


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
