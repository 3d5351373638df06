"""Filters are code from strangers: whatever the text, it is parsed or refused with the place named."""

import string
import sys
from collections.abc import Callable
from random import Random
from types import FrameType

import pytest

from m4cast.overlay.profiles.condition import Condition, FilterError, check_limits, text_of
from m4cast.overlay.profiles.languages import canonical, diet, json_form, sql

TOKENS = [
    *("a", "b", "`x y`", "a.b", "lower(a)", "1", "-2.5", "1e3", "'t'", "'%a%'", '"q"', "NULL", "TRUE", "X'00'"),
    *("=", "<", ">=", "<=>", "!=", "AND", "OR", "NOT", "(", ")", ",", "IN", "IN (1, 2)", "BETWEEN 1 AND 2", "LIKE"),
    *("IS NULL", "IS NOT NULL", "ESCAPE '#'", "words(a, 'x')", "any_words(a, 'x y')", "DATE '2026-01-01'", "::", ";"),
    *("SELECT", "CASE", "WHEN", "END", "*", "+", "-", "[", "]", "{", "}", "@", "$1", "?", ":x", "--", "/*", "*/"),
    *("INTERVAL 1 DAY", "CAST(a AS int)", "EXISTS", "OVER", "WITH", "FROM", "a -> b", "||", "DIV", "0x1", "1L", "\\"),
]
DIET = [
    "type",
    "=",
    "pdf",
    "OR",
    "AND",
    ";",
    "title",
    "contains",
    "x",
    "size",
    "<",
    ">",
    "4",
    "10",
    "desired_client",
    "-",
]
VALID = [
    "country = 'PL' AND amount > 100",
    "NOT (a IN (1, 2, 3) OR b LIKE 'x%') AND words(title, 'load network')",
    "ts BETWEEN TIMESTAMP '2026-01-01' AND TIMESTAMP '2026-02-01 12:00:00Z' OR k = X'00FF'",
]


def hostile(random: Random) -> str:
    match random.randrange(6):
        case 0 | 1:
            return " ".join(random.choice(TOKENS) for _ in range(random.randint(1, 25)))
        case 2:
            text = list(random.choice(VALID))
            for _ in range(random.randint(1, 4)):
                at = random.randrange(len(text))
                text[at : at + random.randint(0, 2)] = random.choice(string.printable)
            return "".join(text)
        case 3:
            return "".join(
                chr(random.randrange(1, random.choice([128, 0x3000, 0x110000]))) for _ in range(random.randint(0, 60))
            )
        case 4:
            opened = random.choice(
                ["(", "NOT ", "-", "[", "{", "CASE WHEN ", "a AND (", "lower(", "f(", '{"not":', "'"]
            )
            return opened * random.choice([10, 31, 33, 200, 1_000]) + random.choice(["a = 1", "", ")" * 40])
        case _:
            return " ".join(random.choice(DIET) for _ in range(random.randint(1, 20)))


def parsed_or_refused(parse: Callable[[str], Condition], text: str) -> Condition | FilterError:
    try:
        return parse(text)
    except FilterError as error:
        return error


def try_all(seed: int, count: int) -> tuple[int, int]:
    random = Random(seed)
    parsed = refused = 0
    for _ in range(count):
        text = hostile(random)
        for language in (sql, diet, json_form):
            answer = parsed_or_refused(language.parse, text)
            if isinstance(answer, FilterError):
                refused += 1
                assert answer.position is not None and 0 <= answer.position <= len(text), (text, str(answer))
                assert answer.problem
            else:
                parsed += 1
                check_limits(answer)
                assert sql.parse(text_of(answer)) == answer, text
    return parsed, refused


@pytest.mark.parametrize("seed", range(4))
def test_hostile_texts_are_parsed_or_refused_with_the_place(seed: int) -> None:
    parsed, refused = try_all(seed, 2_500)
    assert parsed > 50 and refused > 5_000


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_hostile_texts_at_length(seed: int) -> None:
    try_all(seed, 2_500)


def steps_of(parse: Callable[[str], Condition], text: str) -> int:
    """The calls of functions, Python's and C's, that a parse takes: as many every time, on any machine."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    parsed_or_refused(parse, text)  # what is imported, made or remembered once
    sys.setprofile(count)
    try:
        parsed_or_refused(parse, text)
    finally:
        sys.setprofile(None)
    return steps


GROWING: dict[str, Callable[[int], str]] = {
    "terms": lambda size: " AND ".join(f"a{at} = {at}" for at in range(size // 16)),
    "alternatives of one column": lambda size: " OR ".join(f"a = {at}" for at in range(size // 16)),
    "a list": lambda size: f"a IN ({', '.join(map(str, range(size // 6)))})",
    "a text": lambda size: f"a = '{'x' * size}'",
    "quotes": lambda size: f"a = '{chr(39) * 2 * (size // 2)}'",
    "a pattern": lambda size: f"a LIKE '{'%a' * (size // 2)}'",
    "words": lambda size: f"words(a, '{' '.join(f'w{at}' for at in range(size // 6))}')",
    "names": lambda size: f"`{'n' * size}` = 1",
    "digits": lambda size: f"a = {'1' * size}",
    "parentheses": lambda size: " OR ".join("((((a = 1))))" for _ in range(size // 20)),
    "negations": lambda size: " AND ".join("NOT (NOT (a < 1))" for _ in range(size // 24)),
    "nothing that is allowed": lambda size: "@" * size,
    "what is not closed": lambda size: "(" * 20 + "'" + "x" * size,
}


@pytest.mark.parametrize("what", GROWING)
def test_parsing_takes_steps_in_proportion_to_the_text(what: str) -> None:
    """Four times the text, up to the limit of 4,096 bytes: at most five times the steps."""
    short, long = (GROWING[what](size) for size in (1_000, 4_000))
    assert len(short) < len(long) <= 4_096
    for language in (sql, diet, json_form, canonical):
        before, after = steps_of(language.parse, short), steps_of(language.parse, long)
        assert after <= 5 * before + 200, (language.__name__, before, after)


def test_nesting_of_any_depth_is_refused() -> None:
    for opened in ("(", "NOT ", "- ", "lower(", "f(", "a IN (", "NOT (", "[", "{", '{"not":', '{"all":[', "CASE WHEN "):
        for language in (sql, diet, json_form):
            with pytest.raises(FilterError):
                language.parse((opened * 4_000)[:4_000])
