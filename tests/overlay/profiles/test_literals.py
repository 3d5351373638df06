"""Literals: numbers within limits, and what each means to columns of each kind."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from m4cast.overlay.profiles.condition import FilterError, Kind
from m4cast.overlay.profiles.literals import (
    DIGITS_MAX,
    EXPONENT_MAX,
    FLOAT_NAN,
    number,
    number_of,
    of_python,
    readings,
    text,
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5", 5),
        ("5.0", 5),
        ("-0.0", 0),
        ("1.50", Decimal("1.5")),
        ("1e3", 1000),
        (".5", Decimal("0.5")),
        ("5.", 5),
        ("+7", 7),
    ],
)
def test_one_number_has_one_value(written: str, expected: object) -> None:
    found = number_of(written)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize("written", ["", "x", "1e", "--1", "1_000", "0x1", "NaN", "inf", " 5", "\u0665"])
def test_what_is_no_number(written: str) -> None:
    assert number_of(written) is None


def test_limits_of_digits_and_powers() -> None:
    for within in ("7" * DIGITS_MAX, f"1e{EXPONENT_MAX}", f"1e-{EXPONENT_MAX}", "7" + "0" * DIGITS_MAX):
        assert number(within).value == Decimal(within), "zeros at the end are no digits"
    for beyond in ("7" * (DIGITS_MAX + 1), f"1e{EXPONENT_MAX + 1}", f"1e-{EXPONENT_MAX + 1}", "1e999999999"):
        with pytest.raises(FilterError, match="write a shorter one"):
            number(beyond)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("5", {Kind.TEXT: "5", Kind.BYTES: b"5", Kind.EXACT: 5, Kind.FLOAT: (False, 5.0)}),
        ("true", {Kind.TEXT: "true", Kind.BYTES: b"true", Kind.BOOLEAN: True}),
        ("12:30", {Kind.TEXT: "12:30", Kind.BYTES: b"12:30", Kind.CLOCK: 45_000_000_000}),
        ("1970-01-02", {Kind.TEXT: "1970-01-02", Kind.BYTES: b"1970-01-02", Kind.MOMENT: 86_400_000_000}),
        ("NaN", {Kind.TEXT: "NaN", Kind.BYTES: b"NaN", Kind.EXACT: Decimal("Infinity"), Kind.FLOAT: FLOAT_NAN}),
        ("é", {Kind.TEXT: "é", Kind.BYTES: "é".encode()}),
    ],
)
def test_what_a_text_means_to_columns_of_each_kind(content: str, expected: dict[Kind, object]) -> None:
    assert readings(text(content)) == expected


def test_what_other_literals_mean() -> None:
    assert readings(number("0.1")) == {Kind.EXACT: Decimal("0.1"), Kind.FLOAT: (False, 0.1)}
    assert readings(number("1e309"))[Kind.FLOAT] == (False, float("inf"))
    for content, kinds in ((True, {Kind.BOOLEAN}), (b"x", {Kind.BYTES}), (datetime(2026, 1, 1), {Kind.MOMENT})):
        literal = of_python(content)
        assert literal is not None and set(readings(literal)) == kinds


def test_values_of_python() -> None:
    zoned = of_python(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    assert zoned is not None and zoned.value == 0
    assert zoned == of_python(datetime(1970, 1, 1, tzinfo=UTC)) == of_python(datetime(1970, 1, 1))
    assert of_python(None) is None


@pytest.mark.parametrize(
    "odd",
    [{"a": 1}, object(), [1], 10**5000, timedelta(1), datetime.min.replace(tzinfo=timezone(timedelta(hours=2)))],
    ids=["dict", "object", "list", "huge", "duration", "before year 1"],
)
def test_values_that_no_column_is_compared_with(odd: Any) -> None:
    with pytest.raises(FilterError):
        of_python(odd)
