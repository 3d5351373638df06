"""Delta's log, written with Kernel: once for each micro-batch, beside other writers, and only what fits the table."""

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from m4cast.jobs.direct.data_file import DataFile, written_files
from m4cast.jobs.direct.engine import layout_of
from m4cast.jobs.direct.layout import FileLayout
from m4cast.jobs.direct.table_log import TableLog, TableLogError
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.roster import ROSTER
from m4cast.schemas.tables.table import Table
from m4cast.spark_connector.columns import arrow_schema

EVENTS = events_table("orders/eu", StructType([StructField("id", LongType()), StructField("a.b", LongType())]))
ORIGIN = "0" * 32
ROWS = 10


class Written:
    """A table, its log, and files for it: each with the next ten rows of one stream."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.tables = TableFolder(spark, folder)
        self.tables.ensure(EVENTS)
        self.path = EVENTS.path(folder)
        self.log = TableLog(spark, self.path)
        columns, statistics, _ = self.log.form()
        self.layout = FileLayout(folder=self.path, columns=columns, statistics=statistics, codec="snappy")
        self._numbers = self._count()

    def _count(self) -> Iterator[int]:
        yield from range(1, 1 << 20, ROWS)

    def file(self) -> DataFile:
        first = next(self._numbers)
        at = datetime(2026, 3, 1, tzinfo=UTC)
        place = {"_topic": "orders/eu", "_origin": ORIGIN, "_published_at": at, "a.b": None}
        rows = [{**place, "_sequence": number, "id": number} for number in range(first, first + ROWS)]
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(self.layout.columns))
        (file,) = written_files(self.layout, [batch])
        return file

    def append(self, query: str, micro_batch: int, files: int = 1) -> bool:
        return self.log.append([self.file() for _ in range(files)], self.layout, query, micro_batch)

    def sequences(self) -> list[int]:
        return sorted(row[0] for row in self.tables.read(EVENTS).select("_sequence").collect())


@pytest.fixture
def written(spark: SparkSession, folder: str) -> Written:
    return Written(spark, folder)


def test_a_micro_batch_is_accepted_once(written: Written) -> None:
    assert not written.log.has("q", 0)
    assert written.append("q", 0, files=2)
    assert written.log.has("q", 0) and not written.log.has("q", 1) and not written.log.has("other", 0)
    assert not written.append("q", 0), "a replay"
    assert written.append("q", 3) and not written.append("q", 2)
    assert written.append("other", 0)
    assert written.sequences() == [*range(1, 21), *range(31, 41), *range(51, 61)]


def test_history_has_the_operation_and_files_are_skipped_by_their_statistics(
    written: Written, spark: SparkSession
) -> None:
    for number in range(3):
        written.append("q", number)
    found = written.tables.read(EVENTS)
    assert len(found.inputFiles()) == 3
    assert len(found.where("_sequence > 25").inputFiles()) == 1
    assert not found.where("_origin = 'f'").inputFiles()
    assert not found.where("_published_at > TIMESTAMP '2026-03-02'").inputFiles()
    last: Any = spark.sql(f"DESCRIBE HISTORY {EVENTS.quoted(written.tables.folder)} LIMIT 1").collect()[0]
    assert (last["version"], last["operation"]) == (3, "STREAMING UPDATE")
    assert last["engineInfo"].endswith("m4cast ingest query q, micro-batch 2, 10 rows")


def test_many_commits_make_checkpoints_that_spark_reads(written: Written) -> None:
    for number in range(52):
        written.append("q", number)
    assert list(Path(written.path).glob("_delta_log/*.checkpoint*.parquet"))
    assert written.sequences() == list(range(1, 521))
    assert written.log.has("q", 51) and not written.append("q", 51)


def test_kernel_commits_when_others_have_and_when_it_has_to(
    written: Written, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commits, in between, are written without it."""
    name = EVENTS.quoted(written.tables.folder)
    beside = TableLog(spark, written.path)
    for number in range(2):
        written.append("q", number)
    beside.append([written.file()], written.layout, "other", 0)
    for number in range(2, 4):
        written.append("q", number)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refused)
        written.append("q", 4)
    written.append("q", 5)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES (delta.enableInCommitTimestamps = true)")
    for number in range(6, 8):
        written.append("q", number)
    history = spark.sql(f"DESCRIBE HISTORY {name}").orderBy("version").collect()
    wrote = ["Kernel" if row["engineInfo"].startswith("Kernel") else row["engineInfo"].split("/")[0] for row in history]
    quick = "m4cast ingest query q, micro-batch {}, 10 rows"
    by_turns = [quick.format(1), "Kernel", "Kernel", quick.format(3), "Kernel", quick.format(5)]
    assert wrote == ["Kernel", "Kernel", *by_turns, "Apache-Spark", "Kernel", "Kernel"]
    assert written.sequences() == list(range(1, 91))
    assert not [path for path in Path(written.path, "_delta_log").iterdir() if path.suffix not in (".json", ".crc")]


def refused(*_: object) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def test_two_writers_of_one_micro_batch_commit_it_once(written: Written) -> None:
    """As two ingests do that share a checkpoint: both have written the files when they commit."""
    files = [[written.file()], [written.file()]]
    together = threading.Barrier(2)

    def commit(mine: list[DataFile]) -> bool:
        together.wait(60)
        return written.log.append(mine, written.layout, "q", 0)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(commit, files)) == [False, True]
    assert len(written.sequences()) == ROWS


def test_writers_and_maintenance_race_and_every_row_is_there_once(written: Written, spark: SparkSession) -> None:
    name = EVENTS.quoted(written.tables.folder)
    files = [[written.file() for _ in range(6)] for _ in range(2)]
    done = threading.Event()

    def append(writer: int) -> None:
        for number, file in enumerate(files[writer]):
            assert written.log.append([file], written.layout, f"q{writer}", number)

    def maintain() -> None:
        number = 0
        while number < 2 or not done.is_set():
            spark.sql(f"OPTIMIZE {name}").collect()
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('x' = '{number}')")
            number += 1

    with ThreadPoolExecutor(3) as pool:
        maintaining = pool.submit(maintain)
        try:
            list(pool.map(append, range(2)))
        finally:
            done.set()
        maintaining.result()
    assert written.sequences() == list(range(1, 121))


def test_files_of_a_changed_table_are_refused(written: Written, spark: SparkSession) -> None:
    spark.sql(f"ALTER TABLE {EVENTS.quoted(written.tables.folder)} RENAME COLUMN id TO number")
    assert written.append("q", 0), "files know columns by names that never change"
    spark.sql(f"ALTER TABLE {EVENTS.quoted(written.tables.folder)} DROP COLUMN `a.b`")
    with pytest.raises(TableLogError, match=r"^\[M4CAST_TABLE_CHANGED\] the columns of .*orders%2Feu were changed"):
        written.append("q", 1)


def test_a_table_that_kernel_cannot_write_is_said(written: Written, spark: SparkSession) -> None:
    assert written.log.why_not() is None
    name = EVENTS.quoted(written.tables.folder)
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (_sequence > 0)")
    written.log.refresh()
    why_not = written.log.why_not()
    assert why_not is not None and "checkConstraints" in why_not
    with pytest.raises(TableLogError, match=r"^\[M4CAST_COMMIT_FAILED\] .*checkConstraints"):
        written.append("q", 0)


def test_a_table_with_partitions_gets_a_file_for_each_value(spark: SparkSession, folder: str) -> None:
    tables = TableFolder(spark, folder)
    tables.ensure(DELIVERIES)
    log = TableLog(spark, DELIVERIES.path(folder))
    layout = layout_of(tables, DELIVERIES, log)
    schema = arrow_schema(layout.columns)
    rows = [
        {field.name: _value(field, number) for field in schema} | {"delivery": number, "kind": kind, "hops": None}
        for number, kind in enumerate(("batch", "skip", "batch"), 1)
    ]
    files = list(written_files(layout, [pa.RecordBatch.from_pylist(rows, schema=schema)]))
    assert [(file.partition, file.rows) for file in files] == [("batch", 2), ("skip", 1)]
    assert log.why_not() == "it is partitioned" and log.why_not(("kind",)) is None
    assert log.append(files, layout, "q", 0)
    found = tables.read(DELIVERIES)
    assert [row.asDict() for row in found.orderBy("delivery").collect()] == [
        {name: row[name].replace(tzinfo=None) if isinstance(row[name], datetime) else row[name] for name in row}
        for row in rows
    ]
    assert len(found.where("kind = 'skip'").inputFiles()) == 1
    assert len(found.where("delivery = 3").inputFiles()) == 1


def _value(field: pa.Field, number: int) -> Any:
    if pa.types.is_timestamp(field.type):
        return datetime(2026, 3, number, tzinfo=UTC)
    if pa.types.is_binary(field.type):
        return b"%d" % number
    return f"{field.name} {number}" if pa.types.is_string(field.type) else number


# ---- new tables


@pytest.mark.parametrize("table", [EVENTS, DELIVERIES, ROSTER], ids=lambda table: table.name)
def test_a_table_is_created_as_spark_creates_it(spark: SparkSession, folder: str, table: Table) -> None:
    """But for its comment, and for features that Spark adds without using them. A second attempt leaves it alone."""
    ours, sparks = TableFolder(spark, f"{folder}/ours"), TableFolder(spark, f"{folder}/sparks")
    for _ in range(2):
        assert TableLog(spark, table.path(ours.folder)).create(table)
    ours.ensure(table)
    spark.sql(table.create_statement(sparks.folder))
    details = [
        spark.sql(f"DESCRIBE DETAIL {table.quoted(each.folder)}").collect()[0].asDict() for each in (ours, sparks)
    ]
    for name in ("partitionColumns", "clusteringColumns", "properties"):
        assert details[0][name] == details[1][name], name
    assert set(details[0]["tableFeatures"]) <= set(details[1]["tableFeatures"])
    assert ours.read(table).schema == sparks.read(table).schema
    described = [spark.sql(f"DESCRIBE TABLE {table.quoted(each.folder)}").collect() for each in (ours, sparks)]
    assert described[0] == described[1], "with the comments of columns"
    assert ours.version(table)[1] == 0
