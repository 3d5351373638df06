"""Files that a query skips by their statistics: none that has a row for it, whatever the values."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from m4cast.jobs.direct.data_file import DataFile, written_files
from m4cast.jobs.direct.engine import layout_of
from m4cast.jobs.direct.quick_commit import log_of, path_of
from m4cast.jobs.direct.table_log import TableLog
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.events import events_table
from m4cast.spark_connector.columns import arrow_schema

LAST = "\U0010ffff"
TIMES = (
    datetime(1, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(2026, 3, 1, 0, 0, 0, 1_999),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
)
NAN, INFINITE = float("nan"), float("inf")
COLUMNS: dict[str, tuple[DataType, tuple[Any, ...]]] = {
    "n": (LongType(), (-(2**63), 0, 2**53 + 1, 2**63 - 1)),
    "small": (ByteType(), (-128, 127)),
    "x": (DoubleType(), (NAN, -0.0, -INFINITE, 1.5)),
    "price": (DecimalType(9, 2), (Decimal("-1.23"), Decimal("9999999.99"))),
    "what": (
        StringType(),
        ("", "\0", "z" * 33, "z" * 32 + LAST + "a", "é" * 40, "\ud7ff" * 33, "\ue000" * 33, LAST * 33, "x" * 5_000),
    ),
    "bytes": (BinaryType(), (b"", b"\xff" * 40)),
    "is": (BooleanType(), (True, False)),
    "day": (DateType(), (date(1, 1, 1), date(1582, 10, 10), date(9999, 12, 31))),
    "at": (TimestampType(), TIMES),
    "local": (TimestampNTZType(), TIMES),
}
PAYLOAD = StructType(
    [
        *(StructField(name, type_) for name, (type_, _) in COLUMNS.items()),
        StructField("in", StructType([StructField("n", LongType()), StructField("what", StringType())])),
    ]
)
INNER = (None, {"n": None, "what": None}, {"n": 1, "what": "z" * 33}, {"n": -1})
MIXED = 6
"""Files with several rows, beside those with one."""


def rows() -> Iterator[list[dict[str, Any]]]:
    """Those of each file."""
    longest = max(len(values) for _, values in COLUMNS.values())
    single = [
        {
            **{name: values[at] if at < len(values) else None for name, (_, values) in COLUMNS.items()},
            "in": INNER[at % len(INNER)],
        }
        for at in range(longest + 1)
    ]
    yield from ([row] for row in single)
    for number in range(MIXED):
        yield single[number : number + 3]


def conditions(names: Collection[str]) -> Iterator[tuple[str, Column]]:
    for name in names:
        yield from about(name, *COLUMNS[name])
    yield from about("in.n", LongType(), (1, -1))
    yield from about("in.what", StringType(), ("z" * 33,))
    yield "in IS NULL", F.col("in").isNull()


def about(name: str, type_: DataType, values: tuple[Any, ...]) -> Iterator[tuple[str, Column]]:
    yield f"{name} IS NULL", F.col(name).isNull()
    yield f"{name} IS NOT NULL", F.col(name).isNotNull()
    for value in values:
        literal = F.lit(value) if isinstance(value, str | bytes) else F.lit(str(value)).cast(type_)
        yield f"{name} = {value!r}", F.col(name) == literal


@pytest.mark.parametrize(
    "names", [("what", "local"), pytest.param(tuple(COLUMNS), marks=pytest.mark.soak)], ids=["few", "all"]
)
def test_no_file_is_skipped_that_has_a_row(spark: SparkSession, folder: str, names: tuple[str, ...]) -> None:
    """With statistics of all columns, by commits of Kernel and others."""
    table = events_table("orders", PAYLOAD)
    properties = {name: text for name, text in table.properties.items() if name != "delta.dataSkippingStatsColumns"}
    table = replace(table, properties={**properties, "delta.dataSkippingNumIndexedCols": "-1"})
    tables = TableFolder(spark, folder)
    tables.ensure(table)
    log = TableLog(spark, table.path(folder))
    layout = layout_of(tables, table, log)
    assert len(layout.statistics) > len(COLUMNS)
    place = {"_topic": "orders", "_origin": "0" * 32, "_published_at": datetime(2026, 3, 1, tzinfo=UTC)}
    found = list(rows())
    for micro_batch, mine in enumerate((found[::2], found[1::2])):
        files: list[DataFile] = []
        for number, each in enumerate(mine):
            batch = [{**row, **place, "_sequence": number} for row in each]
            files += written_files(layout, [pa.RecordBatch.from_pylist(batch, schema=arrow_schema(layout.columns))])
        assert log.append(files, layout, "q", micro_batch)
        committed = path_of(log_of(layout), log.version()).read_text()
        assert ('"engineInfo":"Kernel-' in committed) == (micro_batch == 1)
        spark.sql(f"ALTER TABLE {table.quoted(folder)} SET TBLPROPERTIES ('x' = '{micro_batch}')")

    every = dict(conditions(names))
    matches = [F.coalesce(condition, F.lit(False)).alias(f"c{at}") for at, condition in enumerate(every.values())]
    events = tables.read(table)
    looked = events.select("_metadata.file_name", *matches).collect()
    read = 0
    for at, (name, condition) in enumerate(every.items()):
        wanted = {row["file_name"] for row in looked if row[f"c{at}"]}
        got = {path.rpartition("/")[2] for path in events.where(condition).inputFiles()}
        assert wanted, name
        assert wanted <= got, name
        read += len(got)
    assert read < len(every) * len(found) * 0.6, "most are skipped"
