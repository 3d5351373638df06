"""Conditions are canonical: one filter, one tree, one text."""

from itertools import permutations
from random import Random

import pytest

from m4cast.overlay.profiles.condition import (
    ALWAYS,
    DEPTH_MAX,
    NEVER,
    TERMS_MAX,
    AllOf,
    AnyOf,
    ColumnRef,
    Compare,
    Condition,
    FilterError,
    IsNull,
    all_of,
    any_of,
    check_limits,
    columns_of,
    one_of,
    terms_of,
    text_of,
)
from m4cast.overlay.profiles.languages.sql import parse
from m4cast.overlay.profiles.literals import number
from tests.overlay.profiles.profile_parts import LITERALS, random_condition

A, B, C = (Compare(ColumnRef((name,)), ">", number("1")) for name in "abc")


def test_order_and_nesting_do_not_matter() -> None:
    spellings: list[Condition] = [all_of([all_of([x, y]), z]) for x, y, z in permutations((A, B, C))]
    assert set(spellings) == {AllOf((A, B, C))}
    assert {any_of([x, any_of([y, z, x])]) for x, y, z in permutations((A, B, C))} == {AnyOf((A, B, C))}


def test_constants_are_folded() -> None:
    assert all_of([]) == all_of([ALWAYS]) == ALWAYS and any_of([]) == any_of([NEVER]) == NEVER
    assert all_of([A, ALWAYS]) == A and all_of([A, NEVER]) == NEVER
    assert any_of([A, NEVER]) == A and any_of([A, ALWAYS]) == ALWAYS


def test_equal_literals_are_one() -> None:
    assert one_of(ColumnRef(("a",)), [number("1"), number("1.0"), number("10e-1")]) == Compare(
        ColumnRef(("a",)), "=", number("1")
    )
    assert one_of(ColumnRef(("a",)), []) == NEVER
    assert one_of(ColumnRef(("a",)), [], negated=True) == IsNull(ColumnRef(("a",)), is_negated=True)


def test_every_literal_is_read_back() -> None:
    for literal in LITERALS:
        term = Compare(ColumnRef(("a",)), "<", literal)
        assert parse(text_of(term)) == term, literal


def test_canonical_text_is_read_back() -> None:
    random = Random(1)
    for _ in range(300):
        condition = random_condition(random)
        assert parse(text_of(condition)) == condition, text_of(condition)


def test_columns_and_terms() -> None:
    condition = parse("a.b = 1 AND (c > 2 OR lower(c) = 'x') AND `d.e` IS NULL")
    assert columns_of(condition) == (("a", "b"), ("c",), ("d.e",))
    assert len(list(terms_of(condition))) == 4


def test_limits_of_terms_and_depth_hold_for_conditions_from_anywhere() -> None:
    def wide(count: int) -> Condition:
        return all_of(Compare(ColumnRef((f"c{at}",)), ">", number("1")) for at in range(count))

    def deep(depth: int) -> Condition:
        term: Condition = Compare(ColumnRef(("c0",)), ">", number("1"))
        for at in range(1, depth):
            other = Compare(ColumnRef((f"c{at}",)), ">", number("1"))
            term = all_of([term, other]) if at % 2 else any_of([term, other])
        return term

    check_limits(wide(TERMS_MAX))
    check_limits(deep(DEPTH_MAX))
    with pytest.raises(FilterError, match="more than 256 terms"):
        check_limits(wide(TERMS_MAX + 1))
    with pytest.raises(FilterError, match="nested deeper than 32"):
        check_limits(deep(DEPTH_MAX + 1))
