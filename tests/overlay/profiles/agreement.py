"""Random filters on which engines agree, as they are written: with NOT where our own trees have none, and `<=>`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from random import Random
from typing import Any, Literal

import pyarrow as pa

from m4cast.overlay.profiles import condition as tree
from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.condition import ColumnRef, Condition, IsNull, Like, compare, one_of
from m4cast.overlay.profiles.patterns import like_pattern
from tests.overlay.profiles.profile_parts import OPERATORS

MOMENTS = [datetime(2026, 1, 1), datetime(2026, 1, 1, 12, 30), datetime(2026, 6, 30, 23, 59, 59, 1)]
TIMES = [time(0), time(12, 30), time(12, 30, 0, 1), time(23, 59, 59, 999_999)]
TEXTS = ["", "a", "ab", "abc", "AB", "b%", "Zürich", "zÜRICH", "x_y\\z", "it's", "line\nbreak", "5"]
NUMBERS: list[Any] = [0, 1, -1, 5, 127, 2**31 - 1, Decimal("0.1"), Decimal("4.5"), Decimal("-1.25"), Decimal("5.00")]
FLOATS = [0.0, -0.0, 0.1, 0.5, 4.5, -1.25, 5.0, 1e300, float("inf"), float("-inf"), float("nan")]

Typed = Mapping[str, tuple[pa.DataType, list[Any], list[Any]]]
"""By column: its type, its values, and what it is compared with."""
TYPED: Typed = {
    "b": (pa.bool_(), [True, False], [True, False]),
    "i8": (pa.int8(), [0, 1, -1, 5, 127, -128], NUMBERS),
    "i16": (pa.int16(), [0, 1, -1, 5, 2**15 - 1, -(2**15)], NUMBERS),
    "i32": (pa.int32(), [0, 1, -1, 5, 2**31 - 1], NUMBERS),
    "i64": (pa.int64(), [0, 1, -1, 5, 2**53 + 1, 2**63 - 1], [*NUMBERS, 2**53, 2**53 + 1]),
    "f32": (pa.float32(), [each for each in FLOATS if each != 1e300], [*NUMBERS, float("nan"), float("inf")]),
    "f64": (pa.float64(), FLOATS, [*NUMBERS, float("nan"), float("inf")]),
    "d9": (pa.decimal128(9, 2), [Decimal("0.10"), Decimal("4.50"), Decimal("-1.25"), Decimal("5.00")], NUMBERS),
    "d38": (pa.decimal128(38, 2), [Decimal("0.10"), Decimal("4.50"), Decimal(10**35)], NUMBERS),
    "s": (pa.string(), TEXTS, TEXTS),
    "y": (pa.binary(), [b"", b"ab", b"\xff\xfe"], [b"", b"ab", b"\xff\xfe", b"a"]),
    "day": (pa.date32(), [each.date() for each in MOMENTS], [*MOMENTS, MOMENTS[0].date()]),
    "ts": (pa.timestamp("us"), MOMENTS, MOMENTS),
    "tsz": (pa.timestamp("us", "UTC"), [each.replace(tzinfo=UTC) for each in MOMENTS], MOMENTS),
    "tm": (pa.time64("us"), TIMES, TIMES),
}
UNSIGNED: Typed = {
    "u8": (pa.uint8(), [0, 1, 5, 127, 255], NUMBERS),
    "u16": (pa.uint16(), [0, 1, 5, 2**16 - 1], NUMBERS),
    "u32": (pa.uint32(), [0, 1, 5, 2**31 - 1, 2**32 - 1], [*NUMBERS, 2**32 - 1]),
    "u64": (pa.uint64(), [0, 1, 5, 2**53 + 1, 2**63, 2**64 - 1], [*NUMBERS, 2**53, 2**53 + 1, 2**63, 2**64 - 1]),
}
"""Spark has no such types."""
PATTERNS = ["%", "a%", "%c", "%b%", "a_c", "_", "x\\_y\\\\%", "b\\%", "Z_rich", "", "%a%b%", "%\n%"]


@dataclass(frozen=True, slots=True)
class NullSafe:
    """`<=>`, which is never UNKNOWN; None: NULL."""

    column: ColumnRef
    literal: tree.Literal | None


@dataclass(frozen=True, slots=True)
class Negated:
    of: "Written"


@dataclass(frozen=True, slots=True)
class Joined:
    word: Literal["AND", "OR"]
    parts: "list[Written]"


Written = Condition | NullSafe | Negated | Joined
"""A filter as somebody writes it: terms, and what joins them."""


def written_text(written: Written, term: Callable[[Condition | NullSafe], str]) -> str:
    """The text of a filter, in the words of an engine."""
    match written:
        case Joined(word, parts):
            return "(" + f" {word} ".join(written_text(part, term) for part in parts) + ")"
        case Negated(of):
            return f"NOT ({written_text(of, term)})"
        case _:
            return term(written)


def spark_text(written: Written) -> str:
    def term(of: Condition | NullSafe) -> str:
        if not isinstance(of, NullSafe):
            return tree.text_of(of)
        column = tree.text_of(IsNull(of.column)).removesuffix(" IS NULL")
        return f"{column} <=> {tree.literal_text(of.literal) if of.literal else 'NULL'}"

    return written_text(written, term)


def agreement_batch(random: Random, rows: int, typed: Typed = TYPED) -> pa.RecordBatch:
    """Rows of these types, and a struct of two."""
    arrays = {
        name: pa.array([None if random.random() < 0.2 else random.choice(values) for _ in range(rows)], type_)
        for name, (type_, values, _) in typed.items()
    }
    members = [None if random.random() < 0.2 else {"x": random.choice([None, 1, 5]), "t": "abc"} for _ in range(rows)]
    arrays["st"] = pa.array(members, pa.struct([("x", pa.int64()), ("t", pa.string())]))
    return pa.record_batch(arrays)


def agreed_filter(random: Random, depth: int, typed: Typed = TYPED) -> Written:
    if depth and random.random() < 0.7:
        joined: Written = Joined(
            "AND" if random.random() < 0.5 else "OR",
            [agreed_filter(random, depth - 1, typed) for _ in range(random.randint(2, 3))],
        )
        return Negated(joined) if random.random() < 0.3 else joined
    found = _agreed_term(random, typed)
    return Negated(found) if random.random() < 0.1 else found


def _agreed_term(random: Random, typed: Typed) -> Condition | NullSafe:
    name = random.choice([*typed, "st"])
    column, pool = (ColumnRef(("st", "x")), NUMBERS) if name == "st" else (ColumnRef((name,)), typed[name][2])
    if name == "s" and random.random() < 0.3:
        column = ColumnRef((name,), is_lowered=True)
    chosen = [literal for each in random.choices(pool, k=3) if (literal := literals.of_python(each)) is not None]
    negated = random.random() < 0.4
    match random.randrange(7):
        case 0:
            return IsNull(column, negated)
        case 1:
            return one_of(column, chosen, negated=negated)
        case 2 if name == "s":
            return Like(column, like_pattern(random.choice(PATTERNS)), negated)
        case 3:
            return NullSafe(column, chosen[0] if random.random() < 0.8 else None)
        case _:
            return compare(column, random.choice(OPERATORS), chosen[0])
