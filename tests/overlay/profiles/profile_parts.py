"""Batches with a column of every type, and random conditions on them."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.condition import (
    ColumnRef,
    Condition,
    IsNull,
    Like,
    Literal,
    Operator,
    Words,
    all_of,
    any_of,
    compare,
    one_of,
)
from m4cast.overlay.profiles.patterns import like_pattern

NAN = float("nan")
TEXTS = ["", "a", "ab", "abc", "b%", "Zürich", "load network", "Load-Balance, network", "5", "5.0", "zz" * 40, "x_y\\z"]
MOMENTS = [
    datetime(2026, 1, 1),
    datetime(2026, 1, 1, 12, 30),
    datetime(1969, 12, 31, 23, 59, 59, 1),
    datetime(9999, 1, 1),
]
NUMBERS = [0, 1, -1, 2, 5, 127, -128, 500, 2**31 - 1, -(2**31)]
LARGE = [2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 0.1, 0.5, 1.0, -1.5, 5.0, 1e300, float("inf"), float("-inf"), NAN]
DECIMALS = [Decimal("0.10"), Decimal("0.50"), Decimal("5.00"), Decimal("-1.25"), Decimal("99999.99")]

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "b": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [0, 1, -1, 5, 127, -128]),
    "i32": (pa.int32(), NUMBERS),
    "i64": (pa.int64(), [*NUMBERS, *LARGE]),
    "u64": (pa.uint64(), [0, 1, 5, 2**53 + 1, 2**63, 2**64 - 1]),
    "f16": (pa.float16(), [0.0, 0.5, 1.0, -1.5, NAN]),
    "f32": (pa.float32(), [0.0, 0.1, 0.5, 1.0, -1.5, 5.0, NAN, float("inf")]),
    "f64": (pa.float64(), FLOATS),
    "d9": (pa.decimal128(9, 2), DECIMALS),
    "d38": (pa.decimal128(38, 2), [*DECIMALS, Decimal(10**35)]),
    "d76": (pa.decimal256(76, 4), [*DECIMALS, Decimal(10**70)]),
    "d32": (pa.decimal32(7, 2), [Decimal("0.10"), Decimal("5.00"), Decimal("-1.25")]),
    "hundreds": (pa.decimal128(5, -2), [Decimal(0), Decimal(500), Decimal(-12_300), Decimal(9_999_900)]),
    "s": (pa.string(), TEXTS),
    "y": (pa.binary(), [*(text.encode() for text in TEXTS), b"\xff\xfe", b"ab\xff"]),
    "fixed": (pa.binary(2), [b"ab", b"\xff\xfe", b"zz"]),
    "day": (pa.date32(), [each.date() for each in MOMENTS]),
    "day64": (pa.date64(), [each.date() for each in MOMENTS]),
    "ts": (pa.timestamp("us"), MOMENTS),
    "tsz": (pa.timestamp("us", "UTC"), [each.replace(tzinfo=UTC) for each in MOMENTS]),
    "tm": (pa.time64("us"), [time(0), time(12, 30), time(23, 59, 59, 999_999)]),
    "dur": (pa.duration("us"), [timedelta(seconds=1)]),
    "st": (pa.struct([("x", pa.int64()), ("t", pa.string())]), [{"x": 5, "t": "abc"}, {"x": None, "t": "a"}]),
    "l": (pa.list_(pa.field("element", pa.int64())), [[1], []]),
    "m": (pa.map_(pa.string(), pa.int64()), [[("k", 1)]]),
    "none": (pa.null(), [None]),
}
PATHS = [*((name,) for name in COLUMNS), ("st", "x"), ("st", "t"), ("absent",), ("st", "absent")]
LITERALS: list[Literal] = [
    literal
    for each in (
        *(True, False, *NUMBERS, *LARGE, *FLOATS, *DECIMALS, Decimal("0.1"), Decimal("4.5"), 10**70),
        *(*TEXTS, "true", "2026-01-01", "2026-01-01 12:30:00", "12:30", "load"),
        *(*MOMENTS, date(2026, 1, 1), time(12, 30), b"ab", b"\xff\xfe"),
    )
    if (literal := literals.of_python(each)) is not None
]
PATTERNS = ["%", "a%", "ab%", "%c", "%a%", "a_c", "_", "%network%", "x\\_y%", "b\\%", "Z_rich", "", "%a%b%"]
WORDS = ["load", "network", "balance", "zürich", "a", "x", "z"]
OPERATORS: list[Operator] = ["=", "!=", "<", "<=", ">", ">="]


def random_batch(random: Random, rows: int, names: tuple[str, ...] = tuple(COLUMNS)) -> pa.RecordBatch:
    """Rows of values that literals often hit, with nulls; one column in ten has only nulls, one in ten none."""
    arrays = {}
    for name in names:
        type_, values = COLUMNS[name]
        share = random.choice([0.0, 1.0, *[0.2] * 8])
        chosen = [None if random.random() < share else random.choice(values) for _ in range(rows)]
        arrays[name] = pa.array(chosen, type_)
    return pa.record_batch(arrays)


def random_term(random: Random, paths: list[tuple[str, ...]] = PATHS, pool: list[Literal] = LITERALS) -> Condition:
    column = ColumnRef(random.choice(paths), is_lowered=random.random() < 0.05)
    negated = random.random() < 0.4
    match random.randrange(8):
        case 0:
            return IsNull(column, negated)
        case 1:
            return Like(column, like_pattern(random.choice(PATTERNS)), negated)
        case 2 if not column.is_lowered:
            words = tuple(sorted({random.choice(WORDS) for _ in range(random.randint(1, 3))}))
            return Words(column, words, len(words) > 1 and random.random() < 0.5, negated)
        case 3:
            return one_of(column, random.choices(pool, k=random.randint(1, 4)), negated=negated)
        case _:
            return compare(column, random.choice(OPERATORS), random.choice(pool))


def random_condition(
    random: Random,
    depth: int = 3,
    paths: list[tuple[str, ...]] = PATHS,
    pool: list[Literal] = LITERALS,
) -> Condition:
    if depth == 0 or random.random() < 0.3:
        return random_term(random, paths, pool)
    parts = [random_condition(random, depth - 1, paths, pool) for _ in range(random.randint(2, 3))]
    return all_of(parts) if random.random() < 0.5 else any_of(parts)
