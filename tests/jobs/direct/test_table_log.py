"""Delta's log, written with Kernel: once for each micro-batch, beside other writers, and only what fits the table."""

import errno
import os
import shutil
import subprocess
import sys
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
    assert (last["version"], last["operation"], last["isBlindAppend"]) == (3, "STREAMING UPDATE", False)
    assert last["engineInfo"].endswith("m4cast ingest query q, micro-batch 2, 10 rows")
    assert last["operationParameters"] == {"outputMode": "Append", "queryId": "q", "epochId": "2"}
    assert (last["operationMetrics"]["numAddedFiles"], last["operationMetrics"]["numOutputRows"]) == ("1", "10")
    spark.sql(f"ALTER TABLE {EVENTS.quoted(written.tables.folder)} SET TBLPROPERTIES ('x' = 'y')")
    written.append("q", 3)
    by_kernel: Any = spark.sql(f"DESCRIBE HISTORY {EVENTS.quoted(written.tables.folder)} LIMIT 1").collect()[0]
    assert by_kernel["engineInfo"].startswith("Kernel") and not by_kernel["isBlindAppend"]
    assert by_kernel["engineInfo"].endswith("m4cast ingest query q, micro-batch 3, 10 rows")


def test_a_query_that_is_back_goes_on_after_its_last_micro_batch(written: Written, spark: SparkSession) -> None:
    """The micro-batches in its log are found before anything is written without Kernel."""
    written.append("q", 3)
    back = TableLog(spark, written.path)
    for micro_batch in (2, 3):
        assert not back.append([written.file()], written.layout, "q", micro_batch)
    assert back.append([written.file()], written.layout, "q", 4)
    late = TableLog(spark, written.path)
    late.form()
    written.append("other", 0)
    assert not late.append([written.file()], written.layout, "q", 4), "its version is taken, and Kernel looks again"
    assert written.sequences() == [*range(1, 11), *range(31, 41), *range(41, 51)]


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
    by_other = "m4cast ingest query other, micro-batch 0, 10 rows"
    by_turns = [quick.format(1), by_other, "Kernel", quick.format(3), "Kernel", quick.format(5)]
    assert wrote == ["Kernel", quick.format(0), *by_turns, "Apache-Spark", "Kernel", "Kernel"]
    assert written.sequences() == list(range(1, 91))
    assert not [path for path in Path(written.path, "_delta_log").iterdir() if path.suffix not in (".json", ".crc")]


@pytest.mark.parametrize("writer", ["quick", "Kernel"])
@pytest.mark.parametrize("found", ["at once", "by the next commit"])
def test_a_commit_whose_version_is_replaced_is_repeated(
    written: Written, spark: SparkSession, writer: str, found: str
) -> None:
    """A writer on Hadoop that has looked for the version before can replace it."""
    written.append("q", 0)
    if writer == "Kernel":
        spark.sql(f"ALTER TABLE {EVENTS.quoted(written.tables.folder)} SET TBLPROPERTIES ('x' = 'y')")
    written.append("q", 1, files=2)
    version = written.log.version()
    assert ("Kernel-" in version_path(written, version).read_text()) == (writer == "Kernel")
    replace_version(version_path(written, version))
    if found == "at once":
        for _ in range(2):
            written.log.confirm()
        assert written.sequences() == list(range(1, 31))
    assert written.append("q", 2)
    written.log.confirm()
    assert written.sequences() == list(range(1, 41))
    assert not written.append("q", 2) and not TableLog(spark, written.path).append([], written.layout, "q", 1)


def test_a_table_in_place_of_a_removed_one_does_not_get_its_last_commit(written: Written, spark: SparkSession) -> None:
    for number in range(2):
        written.append("q", number)
    shutil.rmtree(written.path)
    written.tables.ensure(EVENTS)
    for number in range(2):
        spark.sql(f"ALTER TABLE {EVENTS.quoted(written.tables.folder)} SET TBLPROPERTIES ('x' = '{number}')")
    written.log.confirm()
    assert written.sequences() == []


def test_a_table_that_begins_with_rows_is_not_new(written: Written, spark: SparkSession, tmp_path: Path) -> None:
    """As a clone does. The name of its folder has to be the path on the disk."""
    place = tmp_path / "a clone, 100% %2F"
    assert written.log.is_new()
    written.append("q", 0)
    spark.sql(f"CREATE TABLE delta.`{place}` SHALLOW CLONE {EVENTS.quoted(written.tables.folder)}")
    assert TableLog(spark, str(place)).version() == 0
    assert not TableLog(spark, str(place)).is_new()


@pytest.mark.parametrize("known", ["by its commit", "by a look"])
def test_a_table_in_place_of_a_removed_one_gets_no_files_of_that(
    written: Written, spark: SparkSession, known: str
) -> None:
    """Though it has as many versions: columns of the same names have others in files, and rows would be null."""
    if known == "by its commit":
        written.append("q", 0)
    else:
        spark.sql(f"ALTER TABLE {EVENTS.quoted(written.tables.folder)} SET TBLPROPERTIES ('x' = 'y')")
        written.log.version()
    shutil.rmtree(written.path)
    written.tables.ensure(EVENTS)
    spark.sql(f"ALTER TABLE {EVENTS.quoted(written.tables.folder)} SET TBLPROPERTIES ('x' = 'y')")
    with pytest.raises(TableLogError, match=r"^\[M4CAST_TABLE_CHANGED\]"):
        written.append("q", 1)
    assert written.sequences() == []


def test_commits_of_kernel_are_on_the_disk(written: Written, spark: SparkSession, synced: set[Path]) -> None:
    spark.sql(f"ALTER TABLE {EVENTS.quoted(written.tables.folder)} SET TBLPROPERTIES ('x' = 'y')")
    written.log.form()
    spark.sql(f"ALTER TABLE {EVENTS.quoted(written.tables.folder)} SET TBLPROPERTIES ('x' = 'z')")
    written.append("q", 0)
    version = version_path(written, written.log.version())
    assert "Kernel-" in version.read_text()
    assert {version, version.parent} <= synced


def version_path(written: Written, version: int) -> Path:
    return Path(written.path, "_delta_log", f"{version:020}.json")


def replace_version(version: Path) -> None:
    """Replace it by one that changes nothing."""
    another = version.with_name(".another")
    another.write_text('{"commitInfo":{"timestamp":1,"operation":"OPTIMIZE","operationParameters":{}}}\n')
    another.rename(version)


def refused(*_: object) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def test_two_writers_of_one_micro_batch_commit_it_once(written: Written) -> None:
    """Commit as two ingests do that share a checkpoint: both have written the files when they commit."""
    files = [[written.file()], [written.file()]]
    together = threading.Barrier(2)

    def commit(mine: list[DataFile]) -> bool:
        together.wait(60)
        return written.log.append(mine, written.layout, "q", 0)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(commit, files)) == [False, True]
    assert len(written.sequences()) == ROWS


def test_writers_and_maintenance_race_and_every_row_is_there_once(written: Written, spark: SparkSession) -> None:
    """Most commits of the first writer are made without Kernel."""
    name = EVENTS.quoted(written.tables.folder)
    files = [[written.file() for _ in range(count)] for count in (300, 6)]
    done = threading.Event()

    def append(writer: int) -> None:
        log = TableLog(spark, written.path)
        for number, file in enumerate(files[writer]):
            assert log.append([file], written.layout, f"q{writer}", number)
        log.confirm()

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
    assert written.sequences() == list(range(1, 3_061))
    assert quick_commits(written) > 200


def quick_commits(written: Written) -> int:
    logged = Path(written.path, "_delta_log").glob("*.json")
    return sum('"engineInfo":"m4cast ingest query' in path.read_text() for path in logged)


@pytest.mark.soak
def test_a_writer_beside_maintenance_in_another_process(written: Written, spark: SparkSession) -> None:
    """Spark there looks for a version, and renames its file to it, while this process commits all the time."""
    words = [sys.executable, "-m", "m4cast", "maintain", "--tables", written.tables.folder]
    count = 0
    for _ in range(3):
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as maintaining:
            while maintaining.poll() is None:
                assert written.append("q", count)
                count += 1
            assert maintaining.stdout is not None
            assert maintaining.returncode == 0, maintaining.stdout.read()[-3000:]
    written.log.confirm()
    assert written.sequences() == list(range(1, count * ROWS + 1))
    assert quick_commits(written) > 1_000
    history = spark.sql(f"DESCRIBE HISTORY {EVENTS.quoted(written.tables.folder)}")
    assert history.where("operation = 'OPTIMIZE'").count() >= 1


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


def test_a_table_that_asks_more_of_files_is_left_to_spark(written: Written, spark: SparkSession) -> None:
    """When it is chosen, and when it begins to ask meanwhile. What Kernel does itself is no reason."""
    assert written.append("q", 0)
    assert written.log.why_not(written=["_origin"]) == "rows lack column '_topic', which is NOT NULL"
    name = EVENTS.quoted(written.tables.folder)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES (delta.enableRowTracking = true)")
    assert written.append("q", 1)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.feature.materializePartitionColumns' = 'supported')")
    with pytest.raises(TableLogError, match=r"^\[M4CAST_COMMIT_FAILED\] .* it has the feature materializePartitionC"):
        written.append("q", 2)
    assert written.log.why_not() == "it has the feature materializePartitionColumns"
    assert written.sequences() == list(range(1, 21))


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
