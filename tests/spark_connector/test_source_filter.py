"""The filter of a read: what is refused because `.filter()` could select other rows, and that offsets contain it."""

import json

import pytest
from pyspark.sql import types as t
from pyspark.sql.types import StructField, StructType

from m4cast.spark_connector import offsets
from m4cast.spark_connector.columns import RESERVED
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import StreamName
from m4cast.spark_connector.options import ReadOptions, parse, read_options
from m4cast.spark_connector.source_filter import SourceFilter, check_columns

A = "a" * 32
COLUMNS = StructType(
    [
        StructField("id", t.LongType()),
        StructField("price", t.DoubleType()),
        StructField("ratio", t.FloatType()),
        StructField("total", t.DecimalType(10, 2)),
        StructField("what", t.StringType()),
        StructField("name", t.StringType("UTF8_LCASE")),
        StructField("raw", t.BinaryType()),
        StructField("is_paid", t.BooleanType()),
        StructField("day", t.DateType()),
        StructField("at", t.TimestampType()),
        StructField("local", t.TimestampNTZType()),
        StructField("clock", t.TimeType()),
        StructField("parts", t.ArrayType(t.IntegerType())),
        StructField("place", StructType().add("city", t.StringType()).add("zip", t.IntegerType())),
    ]
)


def check(where: str, language: str = "sql", *, is_complete: bool = True) -> None:
    row_filter = SourceFilter(where, language)  # type: ignore[arg-type]  # a parameter of the test
    check_columns(row_filter, COLUMNS, made=RESERVED, is_complete=is_complete)


@pytest.mark.parametrize(
    "where",
    [
        "id = 5 AND price > 1.5 AND total IN (1, 2.5) OR id > 1e3",
        "what = 'tea' OR what LIKE 't%' OR lower(what) = 'tea' OR words(what, 'green tea') OR what IS NULL",
        "raw = X'00FF' AND is_paid AND NOT (is_paid = FALSE)",
        "day = '2026-01-31' AND day < DATE '2026-02-01'",
        "at > '2026-01-31 12:00:00Z' AND at <= TIMESTAMP '2026-01-31 12:00:00+01:00'",
        "local > '2026-01-31 12:00:00' AND local >= '2026-01-31' AND local <> DATE '2026-01-31'",
        "clock < TIME '12:30:00' AND parts IS NOT NULL AND place.city = 'Oslo' AND place.zip > 5",
        "price = double('NaN')",
        "ratio IN (16777216, 16777218, 16777217.5, 0.1, 1e39) OR price = 16777217",
        "name IS NOT NULL",
        "TRUE",
    ],
)
def test_constants_of_the_type_of_their_column_are_accepted(where: str) -> None:
    check(where)


@pytest.mark.parametrize(
    ("where", "problem", "fix"),
    [
        ("id = '5'", "compares id (bigint) with '5'", "without quotes"),
        ("price < 'NaN'", "compares price (double) with 'NaN'", "without quotes"),
        ("ratio > 16777217", "compares ratio (float) with 16777217", "a number that a float holds"),
        ("name = 'tea'", "compares name (string collate UTF8_LCASE) with 'tea'", "only IS NULL"),
        ("what = 5", "compares what (string) with 5", "a text, in quotes"),
        ("what IN ('a', 5)", "compares what (string) with 5", "a text, in quotes"),
        ("is_paid = 'true'", "compares is_paid (boolean) with 'true'", "TRUE or FALSE"),
        ("raw = 'abc'", "compares raw (binary) with 'abc'", "X'00FF'"),
        ("id LIKE '5%'", "searches for text in id (bigint)", "a constant"),
        ("words(raw, 'tea')", "searches for text in raw (binary)", "a constant"),
        ("lower(id) = 'a'", "searches for text in id (bigint)", "a constant"),
        ("day < '2026-01-31 12:00:00'", "compares day (date) with", "a date alone"),
        ("day = TIMESTAMP '2026-01-31'", "compares day (date) with", "a date alone"),
        ("at > '2026-01-31 12:00:00'", "compares at (timestamp) with", "add its zone"),
        ("at > TIMESTAMP '2026-01-31 12:00:00'", "compares at (timestamp) with", "add its zone"),
        ("at > timestamp'2026-01-31'", "compares at (timestamp) with", "add its zone"),
        ("at > '2026-01-31 12:00Z'", "compares at (timestamp) with", "add its seconds"),
        ("at > TIMESTAMP '2026-01-31 12:00 +01:00'", "compares at (timestamp) with", "add its seconds"),
        ("at > DATE '2026-01-31'", "compares at (timestamp) with", "add its zone"),
        ("at > DATE '2026-01-31 00:00:00Z'", "compares at (timestamp) with", "add its zone"),
        ("at > 'soon'", "compares at (timestamp) with 'soon'", "add its zone"),
        ("at > 5", "compares at (timestamp) with 5", "write a time"),
        ("local > '2026-01-31 12:00:00Z'", "compares local (timestamp_ntz) with", "without a zone"),
        ("local > TIMESTAMP '2026-01-31 12:00:00'", "compares local (timestamp_ntz) with", "without a zone"),
        ("clock < '12:30'", "compares clock (time(6)) with '12:30'", "TIME '12:30:00'"),
        ("parts = 5", "compares parts (array<int>) with 5", "IS NULL"),
        ("place = 'Oslo'", "compares place (struct<city:string,zip:int>) with 'Oslo'", "IS NULL"),
        ("place.ctiy = 'Oslo'", "names place.ctiy, which does not exist", "did you mean city?"),
        ("id.x = 5", "names id.x, but id is no struct", "a column or a member"),
        ("WHAT = 'tea'", "names WHAT, which does not exist", "did you mean what? Upper and lower case differ"),
        ("qqqqqqqq = 1", "names qqqqqqqq, which does not exist", "columns are id, price"),
        ("_sequence > 5", "names _sequence, which is a column of the channel", "startingOffsets"),
    ],
)
def test_what_spark_could_understand_differently_is_refused(where: str, problem: str, fix: str) -> None:
    with pytest.raises(ConnectorError) as caught:
        check(where)
    assert caught.value.id == "M4CAST_BAD_OPTION"
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_a_filter_in_json_has_the_same_rules() -> None:
    check('{"exact": {"what": ["tea", null], "id": 5}}', "json")
    with pytest.raises(ConnectorError, match=r"compares id \(bigint\) with 'tea'"):
        check('{"exact": {"id": "tea"}}', "json")


def test_columns_outside_of_a_chosen_schema_are_not_known() -> None:
    check("another = 5 AND id = 5", is_complete=False)
    with pytest.raises(ConnectorError, match=r"place\.ctiy, which does not exist"):
        check("place.ctiy = 'Oslo'", is_complete=False)
    with pytest.raises(ConnectorError, match="names _topic, which is a column of the channel"):
        check("_topic = 'orders'", is_complete=False)


def read(**more: str) -> ReadOptions:
    return read_options(parse({"nodes": "a:1", "topic": "orders", **more}), streaming=True)


def test_the_options_are_parsed_when_the_frame_is_made_and_the_place_is_named() -> None:
    assert read().row_filter is None
    assert read(where="id > 5").row_filter == SourceFilter("id > 5", "sql")
    assert read(where="size < 5", whereLanguage="DIET").row_filter == SourceFilter("size < 5", "diet")
    with pytest.raises(ConnectorError, match=r"^\[M4CAST_BAD_OPTION\] option where = 'id > 5 AND \(x'.*at character "):
        read(where="id > 5 AND (x")
    with pytest.raises(ConnectorError, match="language json"):
        read(where="id > 5", whereLanguage="json")
    with pytest.raises(ConnectorError, match="at most 4096"):
        read(where=f"id > 5 {' ' * 4096}")


@pytest.mark.parametrize(
    ("more", "error_id"),
    [
        ({"whereLanguage": "sql"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"where": "id > 5", "read": "raw"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"where": "id > 5", "whereLanguage": "xpath"}, "M4CAST_BAD_OPTION"),
        ({"where": " "}, "M4CAST_BAD_OPTION"),
    ],
)
def test_options_that_do_not_go_together_are_refused(more: dict[str, str], error_id: str) -> None:
    with pytest.raises(ConnectorError) as caught:
        read(**more)
    assert caught.value.id == error_id


def test_an_offset_contains_the_filter_beside_frontier_and_skips() -> None:
    row_filter = SourceFilter("what = 'tea'")
    skips = {StreamName("t", A): (4, 11)}
    plain = offsets.with_skips({"t": {A: 12}}, skips)
    offset = json.loads(json.dumps(offsets.with_filter(plain, row_filter)))
    assert offset[""][""] == {"where": "what = 'tea'", "whereLanguage": "sql"}
    assert offsets.filter_of(offset) == row_filter
    assert offsets.skips_of(offset) == skips and offsets.without_skips(offset) == {"t": {A: 12}}
    assert offsets.filter_of(plain) is None and offsets.with_filter(plain, None) == plain


def test_the_limit_of_bytes() -> None:
    assert read(where="id > 5".ljust(4_096)).row_filter is not None
    with pytest.raises(ConnectorError, match="4097 bytes, at most 4096"):
        read(where="id > 5".ljust(4_097))
