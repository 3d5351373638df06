"""A topic's columns as Spark's, and rows projected to them."""

import math
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from m4cast.overlay.door.rows import payload, table_rows
from m4cast.spark_connector import columns
from m4cast.spark_connector.columns import CHANNEL_TYPES, arrow_schema, merged, projected, spark_schema
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.option_values import CHANNEL_COLUMNS

INT = pa.schema([("a", pa.int64())])


def test_columns_of_topics_are_merged_with_those_of_the_channel_last() -> None:
    one = pa.schema([("a", pa.int64()), ("n", pa.null()), ("_topic", pa.string())])
    other = pa.schema([("b", pa.string()), ("n", pa.int32()), ("_topic", pa.string())])
    assert merged([("x", one), ("y", other)], ["_sequence", "_topic"]) == pa.schema(
        [("a", pa.int64()), ("n", pa.int32()), ("b", pa.string()), ("_sequence", pa.int64()), ("_topic", pa.string())]
    )


def test_a_conflict_names_column_types_and_topics() -> None:
    with pytest.raises(ConnectorError, match=r"M4CAST_SCHEMA_CONFLICT.*'a' is int64 in 'x' and string in 'y'"):
        merged([("x", INT), ("y", pa.schema([("a", pa.string())]))], [])


def test_types_that_spark_has_not_got_become_wider_ones() -> None:
    types = {
        "uint8": pa.uint8(),
        "uint16": pa.uint16(),
        "uint32": pa.uint32(),
        "uint64": pa.uint64(),
        "date64": pa.date64(),
        "nested": pa.struct([("list", pa.list_(pa.uint8(), 2)), ("map", pa.map_(pa.string(), pa.uint16()))]),
    }
    found = spark_schema(pa.schema(list(types.items())))
    assert found.simpleString() == (
        "struct<uint8:smallint,uint16:int,uint32:bigint,uint64:decimal(20,0),date64:date,"
        "nested:struct<list:array<smallint>,map:map<string,int>>>"
    )
    nested = {"list": [1, 255], "map": [("k", 65_535)]}
    values = [[255, None], [65_535, None], [2**32 - 1, None], [2**64 - 1, None], [0, None], [nested, None]]
    arrays = [pa.array(each, type_) for each, type_ in zip(values, types.values(), strict=True)]
    wanted = arrow_schema(found)
    rows = projected(pa.RecordBatch.from_arrays(arrays, list(types)), wanted, {}, drop_others=False)
    assert rows.schema.equals(wanted)
    assert rows.column(3).to_pylist() == [2**64 - 1, None]
    assert rows.column(5).to_pylist() == [nested, None]


SPARK_TYPES = [
    t.BooleanType(),
    t.ByteType(),
    t.ShortType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
    t.DecimalType(38, 18),
    t.DecimalType(1, 0),
    t.StringType(),
    t.BinaryType(),
    t.DateType(),
    t.TimeType(),
    t.TimestampType(),
    t.TimestampNTZType(),
    t.DayTimeIntervalType(),
    t.NullType(),
]
NESTED = [
    t.ArrayType(t.ArrayType(t.TimestampType())),
    t.MapType(
        t.StringType(), t.StructType().add("a", t.DecimalType(10, 2)).add("b", t.ArrayType(t.TimestampNTZType()))
    ),
    t.StructType().add("a", t.MapType(t.LongType(), t.BinaryType())).add("b", t.StructType().add("c", t.DateType())),
]


@pytest.mark.parametrize("type_", [*SPARK_TYPES, *NESTED, *(t.ArrayType(each) for each in SPARK_TYPES)], ids=str)
def test_a_type_that_is_published_is_the_type_that_is_read(type_: t.DataType) -> None:
    sent = arrow_schema(t.StructType().add("a", type_))
    kept = payload.canonical_schema(sent)
    planned = spark_schema(merged([("", kept)], []))
    assert planned["a"].dataType == type_
    rows = payload.canonical_rows(pa.RecordBatch.from_arrays([pa.nulls(2, sent.field(0).type)], schema=sent), kept)
    assert projected(rows, arrow_schema(planned), {}, drop_others=False).schema == arrow_schema(planned)


def test_a_type_without_any_form_in_spark_is_named() -> None:
    with pytest.raises(ConnectorError, match=r"M4CAST_UNSUPPORTED_TYPE.*'wide' has the Arrow type decimal256"):
        spark_schema(pa.schema([("wide", pa.decimal256(50, 2))]))


def test_columns_that_rows_lack_are_null_and_the_order_is_the_plans() -> None:
    wanted = pa.schema([("b", pa.string()), ("a", pa.int64())])
    rows = projected(pa.RecordBatch.from_pydict({"a": [1, 2]}), wanted, {}, drop_others=False)
    assert rows.to_pydict() == {"b": [None, None], "a": [1, 2]}


def test_a_column_that_came_later_is_refused_or_dropped() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1], "new": [2]})
    with pytest.raises(ConnectorError, match=r"M4CAST_NEW_COLUMNS.*: new: restart.*onNewColumns"):
        projected(rows, INT, {}, drop_others=False)
    assert projected(rows, INT, {}, drop_others=True).to_pydict() == {"a": [1]}


def test_a_type_of_the_users_is_cast_only_without_loss() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1, 300]})
    assert projected(rows, pa.schema([("a", pa.int16())]), {}, drop_others=True).to_pydict() == {"a": [1, 300]}
    with pytest.raises(ConnectorError, match=r"M4CAST_COLUMN_TYPE.*'a' is int64"):
        projected(rows, pa.schema([("a", pa.int8())]), {}, drop_others=True)


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LOSSY: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([1.239]), pa.decimal128(10, 2)),
    (pa.array([Decimal("1.50")]), pa.int64()),
    (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
    (pa.array([1.123456789]), pa.float32()),
    (pa.array([MOMENT], pa.timestamp("us", "UTC")), pa.date32()),
    (pa.array(["9007199254740993"]), pa.float64()),
    (pa.array([5]), pa.bool_()),
    (pa.array([10**12]), pa.timestamp("us", "UTC")),
    (pa.array([[1.5], [1.123456789]]), pa.list_(pa.float32())),
    (pa.array([{"a": 1.239}]), pa.struct([("a", pa.decimal128(10, 2))])),
    (pa.array([[("k", 1.123456789)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32())),
]


@pytest.mark.parametrize(("values", "type_"), LOSSY, ids=lambda each: str(getattr(each, "type", each)))
def test_a_cast_that_changes_values_is_refused(values: pa.Array, type_: pa.DataType) -> None:
    rows = pa.RecordBatch.from_arrays([values], ["a"])
    with pytest.raises(ConnectorError, match=r"M4CAST_COLUMN_TYPE.*'a' is"):
        projected(rows, pa.schema([("a", type_)]), {}, drop_others=True)


LOSSLESS: list[tuple[list[Any], pa.DataType, pa.DataType, list[Any]]] = [
    ([1.5, float("inf"), None], pa.float64(), pa.float32(), [1.5, float("inf"), None]),
    ([1.25], pa.float64(), pa.decimal128(10, 2), [Decimal("1.25")]),
    ([19.99, 0.35], pa.float64(), pa.decimal128(10, 2), [Decimal("19.99"), Decimal("0.35")]),
    ([Decimal("12.00")], pa.decimal128(4, 2), pa.int64(), [12]),
    ([Decimal("19.99")], pa.decimal128(10, 2), pa.float64(), [19.99]),
    ([time(1, 2, 3)], pa.time64("us"), pa.string(), ["01:02:03.000000"]),
    (["007"], pa.string(), pa.int64(), [7]),
    ([255], pa.uint8(), pa.int16(), [255]),
    ([[1, None], None, []], pa.list_(pa.int32()), pa.list_(pa.int64()), [[1, None], None, []]),
    ([{"a": 1}, None], pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
    ([[("k", 1)]], pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [[("k", 1)]]),
]


@pytest.mark.parametrize(("values", "before", "type_", "after"), LOSSLESS, ids=str)
def test_a_cast_that_keeps_values_is_made(
    values: list[Any], before: pa.DataType, type_: pa.DataType, after: list[Any]
) -> None:
    cut = pa.RecordBatch.from_arrays([pa.array([None, *values], before)], ["a"]).slice(1)
    assert projected(cut, pa.schema([("a", type_)]), {}, drop_others=True).column("a").to_pylist() == after


def test_a_number_that_is_none_stays_none() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [float("nan")]})
    (found,) = projected(rows, pa.schema([("a", pa.float32())]), {}, drop_others=True).column("a").to_pylist()
    assert math.isnan(found)


def test_a_column_without_a_type_is_new_when_it_has_one() -> None:
    untyped, typed = pa.RecordBatch.from_pydict({"a": pa.nulls(1)}), pa.RecordBatch.from_pydict({"a": [1]})
    nothing, planned = pa.schema([]), pa.schema([("a", pa.null())])
    assert projected(untyped, nothing, {}, drop_others=False).num_columns == 0, "it says nothing yet"
    assert projected(untyped, planned, {}, drop_others=False).to_pydict() == {"a": [None]}
    with pytest.raises(ConnectorError, match=r"M4CAST_NEW_COLUMNS.*: a: restart"):
        projected(typed, planned, {}, drop_others=False)
    assert projected(typed, planned, {}, drop_others=True).to_pydict() == {"a": [None]}


def test_nulls_in_a_column_that_allows_none_are_refused() -> None:
    rows = pa.RecordBatch.from_pydict({"a": pa.array([1, None])})
    with pytest.raises(ConnectorError, match="contains nulls"):
        projected(rows, pa.schema([pa.field("a", pa.int64(), nullable=False)]), {}, drop_others=True)


WHERE = {
    "topic": "orders",
    "origin": "a" * 32,
    "next": 13,
    "published_at_ms": 1_700_000_000_123,
    "delivered_at_ms": 1_700_000_000_456,
    "hops": 2,
    "node_id": "b" * 32,
    "channel": "m4cast/default",
}


def test_the_channels_columns_are_made_from_what_the_node_says_of_the_batch() -> None:
    wanted = pa.schema([("a", pa.int64()), *CHANNEL_TYPES.items()])
    rows = projected(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), wanted, WHERE, drop_others=False)
    assert rows.schema == wanted
    *_, last = rows.to_pylist()
    assert last.pop("_published_at").timestamp() == 1_700_000_000.123
    assert last.pop("_delivered_at").timestamp() == 1_700_000_000.456
    assert last == {
        "a": 3,
        "_channel": "m4cast/default",
        "_topic": "orders",
        "_origin": "a" * 32,
        "_sequence": 12,
        "_key": None,
        "_headers": None,
        "_hops": 2,
        "_node": "b" * 32,
    }
    many = columns.REPEATED_ROWS + 1
    rows = projected(pa.RecordBatch.from_pydict({"a": range(many)}), wanted, WHERE, drop_others=False)
    assert rows.column("_topic").to_pylist() == ["orders"] * many


def test_what_a_publisher_says_is_not_made() -> None:
    rows = pa.RecordBatch.from_pydict({"_key": ["k"], "_headers": [[{"key": "h", "value": b"v"}]]})
    wanted = pa.schema([(name, CHANNEL_TYPES[name]) for name in ("_key", "_headers")])
    assert projected(rows, wanted, WHERE, drop_others=False).to_pydict() == {
        "_key": [b"k"],
        "_headers": [[{"key": "h", "value": b"v"}]],
    }


def test_the_types_are_those_of_the_door() -> None:
    assert columns.RAW == payload.RAW
    assert {field.name: field.type for field in payload.SYSTEM_FIELDS}.items() <= CHANNEL_TYPES.items()
    # To Spark, the columns of a table are columns of the rows like others.
    assert {name: CHANNEL_TYPES[name] for name in columns.PUBLISHERS} | table_rows.TYPES == payload.MEANT
    assert columns.RESERVED == payload.RESERVED
    assert tuple(CHANNEL_TYPES) == CHANNEL_COLUMNS
