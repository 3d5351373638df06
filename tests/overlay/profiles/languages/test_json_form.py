"""The language `json`: exact, prefix, suffix, all, any, not."""

import json
from typing import Any

import pytest

from m4cast.overlay.profiles.condition import (
    DEPTH_MAX,
    PATH_MAX,
    TERMS_MAX,
    TEXT_BYTES_MAX,
    FilterError,
    terms_of,
    text_of,
)
from m4cast.overlay.profiles.languages.json_form import condition_of, parse


@pytest.mark.parametrize(
    ("content", "canonical"),
    [
        ({"exact": {"country": "PL"}}, "`country` = 'PL'"),
        ({"exact": {"country": ["PL", "DE"], "n": 5}}, "`country` IN ('DE', 'PL') AND `n` = 5"),
        ({"exact": {"a": None}}, "`a` IS NULL"),
        ({"exact": {"a": [None, 1.5, True]}}, "`a` IN (1.5, TRUE) OR `a` IS NULL"),
        ({"not": {"exact": {"a": [None, 1]}}}, "`a` != 1 AND `a` IS NOT NULL"),
        ({"not": {"exact": {"a": 1, "b": 2}}}, "`a` != 1 OR `b` != 2"),
        ({"exact": [["a", "b.c"], 5]}, "`a`.`b.c` = 5"),
        ({"prefix": {"name": "50%"}}, "`name` LIKE '50\\\\%%'"),
        ({"not": {"suffix": {"name": ".pdf"}}}, "`name` NOT LIKE '%.pdf'"),
        (
            {"all": [{"exact": {"a": 1}}, {"any": [{"exact": {"b": 2}}, {"prefix": {"c": "x"}}]}]},
            "`a` = 1 AND (`b` = 2 OR `c` LIKE 'x%')",
        ),
        ({"not": {"all": [{"exact": {"a": 1}}, {"not": {"exact": {"b": 2}}}]}}, "`a` != 1 OR `b` = 2"),
        ({"all": []}, "TRUE"),
        ({"any": []}, "FALSE"),
    ],
)
def test_what_an_object_means(content: Any, canonical: str) -> None:
    assert text_of(condition_of(content)) == canonical
    assert text_of(parse(json.dumps(content))) == canonical


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ('{"exact": {"a": 1}', 18, "this is not JSON"),
        ('{"exact": }', 10, "this is not JSON"),
        ("[]", 0, "must be an object with one of exact"),
        ("5", 0, "must be an object"),
        ('{"exact": {"a": 1}, "all": []}', 0, "must be an object with one"),
        ('{"like": {"a": 1}}', 0, "'like' is no filter"),
        ('{"exact": {}}', 0, "must have an object of columns"),
        ('{"exact": {"": 1}}', 0, "a column needs a name"),
        ('{"exact": [[], 1]}', 0, "1 to 32 names"),
        ('{"exact": {"a": []}}', 0, "an empty list"),
        ('{"exact": {"a": {"b": 1}}}', 0, "type dict cannot be compared"),
        ('{"exact": {"a": 1, "a": 2}}', 0, "stands twice"),
        ('{"prefix": {"a": 5}}', 0, "must be a text"),
        ('{"prefix": {"a": ""}}', 0, "must be a text, and not empty"),
        ('{"all": {"exact": {"a": 1}}}', 0, "must have a list"),
        ('{"exact": {"a": "\\ud800"}}', 0, "half of a surrogate pair"),
        ('{"exact": {"a": 1e999}}', None, ""),
        ("[" * 2_000, 96, "nested deeper than 32"),
    ],
)
def test_a_refusal_names_the_place(text: str, place: int | None, problem: str) -> None:
    if place is None:
        assert text_of(parse(text)) == "`a` = double('inf')"
        return
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert problem in caught.value.problem and caught.value.position == place, str(caught.value)


def test_numbers_are_as_exact_as_they_are_written() -> None:
    written = '{"exact": {"a": [12345678901234567.89, 1.50, -0.0, 2e3]}}'
    assert text_of(parse(written)) == "`a` IN (0, 1.5, 12345678901234567.89, 2000)"


def test_the_limit_of_depth() -> None:
    def nested(depth: int) -> Any:
        return {"exact": {"a": 1}} if depth == 1 else {"not": nested(depth - 1)}

    assert condition_of(nested(DEPTH_MAX)) == parse(json.dumps(nested(DEPTH_MAX)))
    with pytest.raises(FilterError, match="nested deeper than 32"):
        condition_of(nested(DEPTH_MAX + 1))


def test_the_limit_of_bytes() -> None:
    assert text_of(parse('{"exact": {"a": 1}}'.ljust(TEXT_BYTES_MAX))) == "`a` = 1"
    with pytest.raises(FilterError, match="the filter has 4097 bytes, at most 4096"):
        parse('{"exact": {"a": 1}}'.ljust(TEXT_BYTES_MAX + 1))


def test_the_limit_of_terms() -> None:
    def prefixes(count: int) -> str:
        return json.dumps({"prefix": {f"c{at}": "x" for at in range(count)}})

    assert len(list(terms_of(parse(prefixes(TERMS_MAX))))) == TERMS_MAX
    with pytest.raises(FilterError, match="more than 256 terms"):
        parse(prefixes(TERMS_MAX + 1))


def test_the_limit_of_names_in_a_path() -> None:
    assert text_of(condition_of({"exact": [["a"] * PATH_MAX, 1]})).count("a") == PATH_MAX
    with pytest.raises(FilterError, match="1 to 32 names"):
        condition_of({"exact": [["a"] * (PATH_MAX + 1), 1]})
