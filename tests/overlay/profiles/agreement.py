"""Random filters on which engines agree, and what another engine makes of them."""

from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.condition import ColumnRef, Condition, IsNull, Like, all_of, any_of, compare, one_of
from m4cast.overlay.profiles.patterns import like_pattern
from tests.overlay.profiles.profile_parts import OPERATORS

MOMENTS = [datetime(2026, 1, 1), datetime(2026, 1, 1, 12, 30), datetime(2026, 6, 30, 23, 59, 59, 1)]
TEXTS = ["", "a", "ab", "abc", "b%", "Zürich", "x_y\\z", "it's", "line\nbreak", "5"]
NUMBERS: list[Any] = [0, 1, -1, 5, 127, 2**31 - 1, Decimal("0.1"), Decimal("4.5"), Decimal("-1.25"), Decimal("5.00")]
FLOATS = [0.0, -0.0, 0.1, 0.5, 4.5, -1.25, 5.0, 1e300, float("inf"), float("-inf"), float("nan")]

TYPED: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
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
}
"""By column: its type, its values, and what it is compared with."""
PATTERNS = ["%", "a%", "%c", "%b%", "a_c", "_", "x\\_y\\\\%", "b\\%", "Z_rich", "", "%a%b%", "%\n%"]


def agreement_batch(random: Random, rows: int) -> pa.RecordBatch:
    """Rows of every type that all engines have, and a struct of two of them."""
    arrays = {
        name: pa.array([None if random.random() < 0.2 else random.choice(values) for _ in range(rows)], type_)
        for name, (type_, values, _) in TYPED.items()
    }
    members = [None if random.random() < 0.2 else {"x": random.choice([None, 1, 5]), "t": "abc"} for _ in range(rows)]
    arrays["st"] = pa.array(members, pa.struct([("x", pa.int64()), ("t", pa.string())]))
    return pa.record_batch(arrays)


def agreed_condition(random: Random, depth: int, columns: list[str]) -> Condition:
    if depth and random.random() < 0.7:
        parts = [agreed_condition(random, depth - 1, columns) for _ in range(random.randint(2, 3))]
        return all_of(parts) if random.random() < 0.5 else any_of(parts)
    name = random.choice([*columns, "st"])
    column, pool = (ColumnRef(("st", "x")), NUMBERS) if name == "st" else (ColumnRef((name,)), TYPED[name][2])
    chosen = [literal for each in random.choices(pool, k=3) if (literal := literals.of_python(each)) is not None]
    negated = random.random() < 0.4
    match random.randrange(6):
        case 0:
            return IsNull(column, negated)
        case 1:
            return one_of(column, chosen, negated=negated)
        case 2 if name == "s":
            return Like(column, like_pattern(random.choice(PATTERNS)), negated)
        case _:
            return compare(column, random.choice(OPERATORS), chosen[0])
