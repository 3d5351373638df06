"""Casts that change no value, and those that would."""

import datetime
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from m4cast.schemas.casts import exact_cast, kindred_cast, says_same

DAY = datetime.datetime(2026, 1, 2)

MAP_32, MAP_64 = (pa.map_(pa.string(), pa.struct([("a", each)])) for each in (pa.int32(), pa.int64()))

CHANGED: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([1.239]), pa.decimal128(10, 2)),
    (pa.array([0.1]), pa.float32()),
    (pa.array([1e300]), pa.float32()),
    (pa.array([2**53 + 1]), pa.float64()),
    (pa.array([2**24 + 1]), pa.float32()),
    (pa.array([Decimal("9007199254740993")]), pa.float64()),
    (pa.array([Decimal("0.1")]), pa.float32()),
    (pa.array([0.5]), pa.int64()),
    (pa.array([5]), pa.timestamp("us")),
    (pa.array([1]), pa.bool_()),
    (pa.array(["9007199254740993"]), pa.float64()),
    (pa.array(["1e400"]), pa.float64()),
    (pa.array(["1e-400"]), pa.float64()),
    (pa.array(["0.1"]), pa.float32()),
    (pa.array(["1.239"]), pa.decimal128(10, 2)),
    (pa.array(["2e-234"]), pa.decimal128(10, 2)),
    (pa.array([2e-234]), pa.decimal128(10, 2)),
    (pa.array(["0.5"]), pa.int64()),
    (pa.array(["2026-01-02T00:00:00Z"]), pa.timestamp("us")),
    (pa.array([["0.1"]]), pa.list_(pa.float32())),
    (pa.array([{"a": "9007199254740993"}]), pa.struct([("a", pa.float64())])),
    (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
    (pa.array([[("k", 0.1)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32())),
]

KEPT: list[tuple[list[Any], pa.DataType, pa.DataType, list[Any]]] = [
    ([0.1, 1e-7, 19.99], pa.float64(), pa.decimal128(38, 20), [Decimal("0.1"), Decimal("1e-7"), Decimal("19.99")]),
    ([0.5, math.inf, None], pa.float64(), pa.float32(), [0.5, math.inf, None]),
    ([Decimal("19.99")], pa.decimal128(10, 2), pa.float64(), [19.99]),
    ([Decimal("12.00")], pa.decimal128(4, 2), pa.int8(), [12]),
    ([2**53, -5], pa.int64(), pa.float64(), [2.0**53, -5.0]),
    (["0.1", "0.10000000000000001", "1e22", "inf"], pa.string(), pa.float64(), [0.1, 0.1, 1e22, math.inf]),
    (["0.5", "7"], pa.string(), pa.float32(), [0.5, 7.0]),
    (["1.5e1", None], pa.string(), pa.decimal128(4, 1), [Decimal(15), None]),
    (["2026-01-02T01:00:00+01:00"], pa.string(), pa.timestamp("us", "UTC"), [DAY.replace(tzinfo=datetime.UTC)]),
    (
        [{"a": 1, "b": None}],
        pa.struct([("a", pa.int64()), ("b", pa.int64())]),
        pa.struct([("a", pa.int8())]),
        [{"a": 1}],
    ),
    ([[1, None], None, []], pa.list_(pa.int32()), pa.list_(pa.int64()), [[1, None], None, []]),
    ([[("k", {"a": 1})], None, []], MAP_32, MAP_64, [[("k", {"a": 1})], None, []]),
    ([[1, 2], None], pa.list_(pa.int32()), pa.list_(pa.int8(), 2), [[1, 2], None]),
    ([[1, 2], None], pa.list_(pa.int32(), 2), pa.list_(pa.decimal128(3, 1)), [[1, 2], None]),
    ([5, None], pa.int64(), pa.decimal128(3, 1), [Decimal(5), None]),
    ([None], pa.string(), pa.struct([("a", pa.int8())]), [None]),
]


@pytest.mark.parametrize(("values", "type_"), CHANGED, ids=range(len(CHANGED)))
def test_a_cast_that_would_change_a_value_is_refused(values: pa.Array, type_: pa.DataType) -> None:
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        exact_cast(values, type_)


@pytest.mark.parametrize(("values", "before", "type_", "after"), KEPT, ids=range(len(KEPT)))
def test_a_cast_that_changes_nothing_is_made(
    values: list[Any], before: pa.DataType, type_: pa.DataType, after: list[Any]
) -> None:
    cast = exact_cast(pa.array([None, *values], before).slice(1), type_)
    assert cast.type == type_ and cast.to_pylist() == after
    assert exact_cast(pa.array([math.nan]), pa.float32()).to_pylist()[0] != 0


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("0.1", True),
        ("0.10000000000000001", True),
        ("0.1000000000000000055511151231257827", True),
        ("0.100000000000000000000", True),
        ("0.1000000000000000000001", False),
        ("9007199254740992", True),
        ("9007199254740993", False),
        ("2305843009213693950", False),
        ("123456789012345680000", True),
        ("0", True),
        ("0.000", True),
        ("5e-324", True),
        ("1e-400", False),
        ("1e400", False),
        ("1e309", False),
    ],
)
def test_a_double_says_what_was_written_if_its_digits_are_the_same(text: str, is_same: bool) -> None:
    assert says_same(Decimal(text), float(text)) is is_same


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (pa.array([1]), pa.string()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([True]), pa.int64()),
        (pa.array([{"a": "1"}]), pa.struct([("a", pa.int64())])),
        (pa.array([[1]]), pa.list_(pa.string())),
        (pa.array([{"a": 1}]), pa.list_(pa.int64())),
        (pa.array(["x"]), pa.binary()),
        (pa.array([DAY], pa.timestamp("us")), pa.timestamp("us", "UTC")),
    ],
    ids=range(8),
)
def test_values_of_one_kind_do_not_become_another(values: pa.Array, type_: pa.DataType) -> None:
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        kindred_cast(values, type_)
    assert kindred_cast(pa.array([{"a": None}]), pa.struct([("a", pa.int8())])).to_pylist() == [{"a": None}]
