"""Canonical texts: read back as what was printed, refused if anything else would print them."""

from random import Random

import pytest

from m4cast.overlay.profiles import FilterError, UnknownLanguageError, parse, profile_of, read
from m4cast.overlay.profiles.condition import (
    ALWAYS,
    CANONICAL_BYTES_MAX,
    NEVER,
    AllOf,
    ColumnRef,
    Compare,
    Condition,
    IsNull,
    Like,
    all_of,
    any_of,
    text_of,
)
from m4cast.overlay.profiles.languages import canonical, sql
from m4cast.overlay.profiles.languages.canonical import facts_of, facts_text
from m4cast.overlay.profiles.literals import number, text
from m4cast.overlay.profiles.patterns import FLOATING_MAX, GENERAL_MAX
from m4cast.overlay.profiles.profile import canonical_condition
from tests.overlay.profiles.profile_parts import random_condition

NOT_CANONICAL = [
    *("", " ", "a = 1", "`a`=1", "`a` = 1 ", " `a` = 1", "`a` = 1.0", "`a` = 01", "`a` = +1", "`a` = 1e3", "1 = `a`"),
    *("`a` == 1", "`a` <> 1", "`a` <=> 1", "`a` = NULL", "`a`", "`a` != TRUE", "NOT `a` = 1", "not words(`a`, 'b')"),
    *("(`a` = 1)", "((`a` = 1 OR `b` = 2)) AND `c` = 3", "`b` = 1 AND `a` = 1", "`a` = 1 AND `a` = 1"),
    *("`a` = 1 OR `a` = 2", "`a` = 1 OR `a` IN (2, 3)", "`a` = 1 AND (`b` = 1 AND `c` = 2)"),
    *("TRUE AND `a` = 1", "`a` = 1 OR FALSE", "(TRUE)", "true", "`a` = 1 AND", "`a` = 1 OR `b` = 2 AND `c` = 3"),
    *("`a` IN ()", "`a` IN (1)", "`a` IN (2, 1)", "`a` IN (1, 1)", "`a` IN (1,2)", "`a` BETWEEN 1 AND 2"),
    *("`a` LIKE 'x%%'", "`a` LIKE '\\\\x'", "`a` LIKE 'x' ESCAPE '#'", '`a` = "x"', "`a` = 'it''s'", "`a` = '\\n'"),
    *("words(`a`, 'b a')", "words(`a`, 'A')", "words(`a`, '')", "any_words(`a`, 'b')", "words(lower(`a`), 'b')"),
    *("`a` = X'0'", "`a` = X'0f'", "`a` = DATE '2026-01-01'", "`a` = TIMESTAMP '2026-01-01'", "`a` = TIME '12:30'"),
    *("`a` = TIME '99:00:00'", "`a` = double('x')", "`a` = double('-NaN')", "`a` = double('1')", "``= 1", "`` = 1"),
    *("LOWER(`a`) = 'x'", "lower(`a`)", "`a`. `b` = 1", "`a` IS NULL;", "`a` = 1 -- b", "`a` = 1\n", "`a\0` = 1"),
]


def test_what_is_printed_is_read_back() -> None:
    random = Random(20)
    for _ in range(1_500):
        condition = random_condition(random)
        assert canonical.parse(text_of(condition)) == condition
    for condition in (ALWAYS, NEVER, Compare(ColumnRef(("a`b", ".", "'")), "=", text("it's \\ `` \n \U0001f600"))):
        assert canonical.parse(text_of(condition)) == condition


@pytest.mark.parametrize("written", NOT_CANONICAL)
def test_only_what_is_printed_is_taken(written: str) -> None:
    with pytest.raises(FilterError) as refused:
        canonical.parse(written)
    assert refused.value.position is not None and 0 <= refused.value.position <= len(written)


def test_a_damaged_text_is_refused_or_means_what_sql_means_by_it() -> None:
    random = Random(21)
    taken = 0
    for _ in range(2_000):
        written = list(text_of(random_condition(random, depth=2)))
        at = random.randrange(len(written))
        written[at : at + random.randint(0, 2)] = random.choice("`'\\()=<>!,. ANDORINTUXx019-E")
        try:
            condition = canonical.parse("".join(written))
        except FilterError:
            continue
        taken += 1
        assert text_of(condition) == "".join(written)
        assert sql.parse("".join(written)) == condition
    assert taken > 25


def nested(depth: int) -> Condition:
    condition: Condition = IsNull(ColumnRef(("a",)))
    for at in range(depth - 1):
        condition = (any_of if at % 2 else all_of)([condition, IsNull(ColumnRef((f"c{at}",)))])
    return condition


def test_limits() -> None:
    assert canonical.parse(text_of(nested(32))) == nested(32)
    with pytest.raises(FilterError, match="nested deeper than 32"):
        canonical.parse(text_of(nested(33)))
    for opened in ("(", "words(", "lower(", "`a` IN (", "NOT ", "`a` = 1 AND (", "'", "`"):
        with pytest.raises(FilterError):
            canonical.parse((opened * CANONICAL_BYTES_MAX)[:CANONICAL_BYTES_MAX])
    terms = [IsNull(ColumnRef((f"c{at:03}",))) for at in range(257)]
    assert canonical.parse(text_of(all_of(terms[:256]))) == all_of(terms[:256])
    with pytest.raises(FilterError, match="more than 256 terms"):
        canonical.parse(text_of(AllOf(tuple(terms))))
    long = Compare(ColumnRef(("s",)), "=", text("x" * (CANONICAL_BYTES_MAX - 8)))
    assert canonical.parse(text_of(long)) == long
    with pytest.raises(FilterError, match="has 16385 bytes, at most 16384"):
        canonical.parse(text_of(Compare(long.column, "=", text("x" * (CANONICAL_BYTES_MAX - 7)))))
    names = tuple(f"n{at}" for at in range(33))
    assert canonical.parse(text_of(IsNull(ColumnRef(names[:32])))) == IsNull(ColumnRef(names[:32]))
    with pytest.raises(FilterError, match="1 to 32 names"):
        canonical.parse(text_of(IsNull(ColumnRef(names))))
    pattern = "%a" * (GENERAL_MAX // 2)
    assert canonical.parse(f"`s` LIKE '{pattern}'") == Like(ColumnRef(("s",)), pattern)
    for longer in (pattern + "%", "%" + "_" * (FLOATING_MAX + 1) + "a"):
        with pytest.raises(FilterError, match="LIKE pattern has"):
            canonical.parse(f"`s` LIKE '{longer}'")
        assert canonical_condition(f"`s` LIKE '{longer}'", "sql", 1) == ALWAYS  # as another node may still send it


def test_a_filter_that_nodes_cannot_tell_each_other_is_refused() -> None:
    large = [f"{at}e35" for at in range(100, 510)]  # 38 digits each, written out
    assert len(parse(f"a IN ({', '.join(large[:409])})").text) <= CANONICAL_BYTES_MAX
    with pytest.raises(FilterError, match="has 16407 bytes as text, at most 16384"):
        parse(f"a IN ({', '.join(large)})")
    wide = profile_of(parse(f"a IN ({', '.join(map(str, range(800)))})").condition, CANONICAL_BYTES_MAX)
    assert read(wide.text) == wide


def test_a_profile_is_read_as_it_is_told() -> None:
    profile = parse("b=2 AND a=1")
    told = read(profile.text)
    assert (told.id, told.text, told.condition) == (profile.id, profile.text, profile.condition)
    for language, version in (("diet", 1), ("json", 1), ("sql", 2), ("future", 1)):
        with pytest.raises(UnknownLanguageError):
            read("`a` = 1", language, version)


def test_facts_are_read_back_and_nothing_else_is_a_fact() -> None:
    facts: dict[str, str | int] = {"topic": "o'clock \\", "needed": 17, "route_by": ""}
    assert facts_of(facts_text(facts)) == facts
    assert facts_of("`a` = 1") == {"a": 1}
    for other in (
        "",
        "a = 1",
        "`a` > 1",
        "`a` = 1 OR `b` = 2",
        "`a` IS NULL",
        "`a`.`b` = 1",
        "lower(`a`) = 'x'",
        "TRUE",
    ):
        assert facts_of(other) == {}
    assert facts_of(text_of(all_of([Compare(ColumnRef(("a",)), "=", number(each)) for each in "12"]))) == {}


def test_people_are_shown_names_as_they_write_them() -> None:
    assert canonical.readable("`price` > 5") == "price > 5"
    shown = "`a b` = '`x` `y`' AND `in` = 'it\\'s `z`' AND n.`m``` = 1"
    assert canonical.readable("`a b` = '`x` `y`' AND `in` = 'it\\'s `z`' AND `n`.`m``` = 1") == shown
    random = Random(22)
    for _ in range(300):
        written = text_of(random_condition(random, depth=2))
        assert parse(canonical.readable(written)).text == written
