"""Profiles: one id for one filter, in whatever language."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pytest

from m4cast.overlay.profiles import (
    EVERYTHING,
    FilterError,
    UnknownLanguageError,
    mask,
    narrowed,
    parse,
    profile_of,
)
from m4cast.overlay.profiles.condition import TEXT_BYTES_MAX, ColumnRef, Compare, Condition, all_of
from m4cast.overlay.profiles.literals import number, text


def test_one_filter_has_one_id_in_every_language() -> None:
    profiles = [
        parse("b = 2 AND a = 1"),
        parse("`a` = 1.0 AND (b = 2)"),
        parse('{"exact": {"a": 1, "b": 2}}', "json"),
        profile_of(parse("a = 1 AND b = 2").condition),
    ]
    assert {(profile.id, profile.text) for profile in profiles} == {(profiles[0].id, "`a` = 1 AND `b` = 2")}
    assert parse("size = 5", "diet").id == parse("size = 5").id
    assert [profile.language for profile in profiles] == ["sql", "sql", "json", "sql"]
    assert all(profile.version == 1 for profile in profiles)
    assert parse("a = 1").id != parse("a = 2").id


def test_ids_are_the_same_everywhere_and_for_ever() -> None:
    assert parse("country = 'PL' AND amount > 100").id.hex() == "3f7459c01cda3ba23b31ab571d960cd8"


def test_a_language_or_version_that_is_not_here_is_named() -> None:
    for language, version in (("cobol", None), ("sql", 2), ("diet", 0)):
        with pytest.raises(
            UnknownLanguageError, match=f"'{language}' version .* is unknown here; known are sql 1, diet 1, json 1"
        ):
            parse("a = 1", language, version)


def test_everything_is_the_empty_filter() -> None:
    assert parse("TRUE").id == parse("", "diet").id == EVERYTHING.id


def test_a_condition_made_by_hand_has_limits_too() -> None:
    wide = all_of(Compare(ColumnRef((f"c{at}",)), "=", number("1")) for at in range(257))
    with pytest.raises(FilterError, match="more than 256 terms"):
        profile_of(wide)


def test_a_condition_made_by_hand_must_fit_into_a_text() -> None:
    def named(count: int) -> Condition:
        return Compare(ColumnRef(("s",)), "=", text("x" * count))

    assert len(profile_of(named(TEXT_BYTES_MAX - 8)).text) == TEXT_BYTES_MAX
    with pytest.raises(FilterError, match="has 4097 bytes as text, at most 4096"):
        profile_of(named(TEXT_BYTES_MAX - 7))


def test_a_profile_keeps_what_was_written() -> None:
    assert parse(" b=2 AND a=1").written == " b=2 AND a=1" and parse("size = 3", "diet").written == "size = 3"
    made = profile_of(parse("b=2 AND a=1").condition)
    assert made.written == made.text == "`a` = 1 AND `b` = 2"


def test_sqlglot_is_imported_by_the_first_sql_text() -> None:
    program = (
        "import sys; from m4cast.overlay.profiles import parse; "
        "parse('size = 5', 'diet'); early = 'sqlglot' in sys.modules; "
        "parse('a = 1'); sys.exit(early or 'sqlglot' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_version_of_sqlglot_is_pinned_and_the_one_that_is_tested() -> None:
    """Its next version may read a filter in another way."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in ("node", "sim"):
        assert f"sqlglot=={metadata.version('sqlglot')}" in project["optional-dependencies"][extra]


def test_a_narrowed_profile_wants_what_both_want_and_may_be_longer_than_what_is_written() -> None:
    assert narrowed(parse("a = 1"), parse("b = 2 AND a = 1")).id == parse("a = 1 AND b = 2").id
    assert narrowed(EVERYTHING, parse("a = 1")).id == parse("a = 1").id
    long = [parse(f"{column} IN ({', '.join(map(str, range(700)))})") for column in "ab"]
    both = narrowed(*long)
    assert len(both.text) > TEXT_BYTES_MAX
    batch = pa.record_batch({"a": [1, 1, 1000], "b": [1, 1000, 1]})
    assert mask(both.condition, batch).tolist() == [True, False, False]
