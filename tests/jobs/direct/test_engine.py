"""The direct engine: tables equal to those of Spark, through kills and changes of the engine."""

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from m4cast.cli import main
from m4cast.cluster.local import LocalCluster
from m4cast.jobs import maintain
from m4cast.jobs.direct import engine, shared_feed
from m4cast.jobs.direct.data_file import DataFile
from m4cast.jobs.direct.engine import EngineChoice
from m4cast.jobs.direct.layout import FileLayout
from m4cast.jobs.direct.shared_feed import SharedFeed
from m4cast.jobs.direct.table_log import TableLog
from m4cast.jobs.feeds.feed import FeedFailedError, started
from m4cast.jobs.ingest import ENGINES, Engine, Filled, Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.table import Table

AT = datetime(1969, 7, 20, 20, 17, 40, 123_456, tzinfo=UTC)


def rows(first: int, count: int) -> pa.Table:
    """All kinds of values, some of them null."""
    numbers = list(range(first, first + count))
    inner = pa.struct([("xy", pa.int32()), ("z", pa.list_(pa.string()))])
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "small": pa.array([number % 7 for number in numbers], pa.int8()),
            "wide": pa.array([2**63 + number for number in numbers], pa.uint64()),
            "fine?": pa.array([number % 2 == 0 for number in numbers]),
            "total (EUR)": pa.array([number / 3 if number % 5 else None for number in numbers]),
            "price": pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(9, 2)),
            "huge": pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(38, 2)),
            "what": pa.array([f"tea {number % 3}" if number % 4 else None for number in numbers]),
            "bytes": pa.array([bytes([number % 256]) for number in numbers]),
            "day": pa.array([date(1500, 1, 1 + number % 28) for number in numbers]),
            "at": pa.array([AT.replace(second=number % 60) for number in numbers], pa.timestamp("us", "UTC")),
            "local": pa.array([AT.replace(tzinfo=None) for _ in numbers], pa.timestamp("us")),
            "http": pa.array([{"xy": number, "z": ["a", None]} if number % 2 else None for number in numbers], inner),
            "many": pa.array([[{"xy": 1, "z": []}, None] for _ in numbers], pa.list_(inner)),
            "by name": pa.array([[("k", {"xy": number})] for number in numbers], pa.map_(pa.string(), inner)),
        }
    )


@pytest.fixture
def plan(nodes: str, topic: str, folder: str) -> Ingest:
    access = {"nodes": nodes}
    return Ingest(access, folder, (topic,), kinds=("events",), max_rows=40, engine="direct")


@pytest.fixture
def events(topic: str) -> Table:
    return events_table(topic, StructType())


def filled_by(spark: SparkSession, plan: Ingest) -> Filled:
    (filled,) = run(spark, plan).tables
    return filled


def assert_once(spark: SparkSession, plan: Ingest, table: Table, count: int) -> None:
    found = TableFolder(spark, plan.tables).read(table)
    assert (found.count(), found.select("_origin", "_sequence").distinct().count()) == (count, count)


def test_both_engines_make_equal_tables(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, events: Table
) -> None:
    plans = [replace(plan, tables=f"{plan.tables}/{name}", engine=name) for name in ENGINES[::-1]]
    for first in (0, 100):
        cluster.channel("n1").publish(topic, rows(first, 100), acks=1)
        filled = [filled_by(spark, each) for each in plans]
        assert [(each.rows, each.micro_batches, each.behind) for each in filled] == [(100, 3, 0)] * 2
        assert [each.engine for each in filled] == ["spark", "direct"]
        for each in plans:  # what follows is in the change feed
            name = events.quoted(each.tables)
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")

    def of_both(look: Any) -> list[Any]:
        return [look(TableFolder(spark, each.tables)) for each in plans]

    def all_of(frame: DataFrame) -> Sequence[Any]:
        return sorted(frame.collect(), key=lambda row: row["id"])

    by_spark, by_tasks = of_both(lambda tables: tables.read(events))
    assert by_spark.schema == by_tasks.schema
    assert all_of(by_spark) == all_of(by_tasks)
    assert by_tasks.count() == 200

    for condition in ("_sequence > 150", "_sequence = 41", "_origin = 'f'", "_published_at < TIMESTAMP '2020-01-01'"):
        files = [len(rows.where(condition).inputFiles()) for rows in (by_spark, by_tasks)]
        assert files[0] == files[1], condition
    before = of_both(lambda tables: tables.read_at(events, 2))
    assert all_of(before[0]) == all_of(before[1])
    assert before[1].count() == 80
    changes = of_both(lambda tables: tables.changes(replace(events, columns=wide(tables, events)), 4, 7))
    assert all_of(changes[0]) == all_of(changes[1])
    assert changes[1].count() == 100

    def history(tables: TableFolder) -> list[tuple[Any, ...]]:
        found = spark.sql(f"DESCRIBE HISTORY {events.quoted(tables.folder)}").collect()
        return [(row["version"], row["operation"]) for row in found]

    assert len(set(map(tuple, of_both(history)))) == 1
    assert [named_in_history(spark, each, events) for each in plans] == [
        [(query_of(spark, each, events), rows) for rows in (40, 40, 20) * 2] for each in plans
    ]


def named_in_history(spark: SparkSession, plan: Ingest, table: Table) -> list[tuple[str, int]]:
    """The query and the number of rows of each commit. Those of Kernel have them in `engineInfo` alone."""
    found = spark.sql(f"DESCRIBE HISTORY {table.quoted(plan.tables)}").where("operation = 'STREAMING UPDATE'")
    named = []
    for row in found.orderBy("version").collect():
        about = re.fullmatch(r"Kernel-\S+/m4cast ingest query (\S+), micro-batch \d+, (\d+) rows", row["engineInfo"])
        query, rows = about.groups() if about else (row["operationParameters"]["queryId"], None)
        named.append((str(query), int(rows or row["operationMetrics"]["numOutputRows"])))
    return named


def query_of(spark: SparkSession, plan: Ingest, table: Table) -> str:
    """The query's id, as its checkpoint has it."""
    checkpoint = plan.shared_checkpoint if plan.engine == "direct" else plan.checkpoint(table)
    return str(json.loads(Path(checkpoint, "metadata").read_text())["id"])


def wide(tables: TableFolder, table: Table) -> Any:
    found = tables.read(table).schema
    payload = StructType([field for field in found if field.name not in table.schema.names])
    return events_table("any", payload).columns


def test_spark_sees_files_and_no_rows(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, events: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = [{"id": number, "photo": os.urandom(200_000)} for number in range(80)]
    cluster.channel("n1").publish(topic, payload[:50], acks=1)
    cluster.channel("n2").publish(topic, payload[50:], acks=1)
    queries = []

    def noted(*given: Any) -> Any:
        queries.append(started(*given))
        return queries[-1]

    sizes: list[int] = []
    commit = SharedFeed._commit_topic

    def measured(self: SharedFeed, name: str, reports: Sequence[Any], query: str, micro_batch: int) -> bool:
        sizes.append(len(repr(reports)))
        return commit(self, name, reports, query, micro_batch)

    monkeypatch.setattr(shared_feed, "started", noted)
    monkeypatch.setattr(SharedFeed, "_commit_topic", measured)
    assert filled_by(spark, replace(plan, max_rows=None)).rows == 80
    assert [int(progress.numInputRows) for progress in queries[0].recentProgress] == [1], "a file for both streams"
    assert 0 < sum(sizes) < 10_000, "16 MB were published"
    assert_once(spark, plan, events, 80)


@pytest.mark.parametrize("where", [SharedFeed, TableLog], ids=["killed", "refused"])
def test_ended_between_writing_and_committing(
    spark: SparkSession,
    cluster: LocalCluster,
    plan: Ingest,
    topic: str,
    events: Table,
    monkeypatch: pytest.MonkeyPatch,
    where: type,
) -> None:
    """The driver is killed, or the table cannot be written to."""
    cluster.channel("n1").publish(topic, rows(0, 50), acks=1)

    def ended(*_: object) -> bool:
        raise OSError("killed")

    monkeypatch.setattr(where, "_commit_topic" if where is SharedFeed else "append", ended)
    with pytest.raises(FeedFailedError):
        run(spark, plan)
    monkeypatch.undo()
    (unused,) = Path(events.path(plan.tables)).glob("*.parquet")
    assert filled_by(spark, plan).rows == 50
    assert_once(spark, plan, events, 50)

    long_ago = time.time() - 8 * 24 * 3_600
    os.utime(unused, (long_ago, long_ago))
    (done,) = maintain.run(spark, plan.tables)
    assert done.files_vacuumed == 1
    assert not unused.exists()
    assert_once(spark, plan, events, 50)


def test_a_table_changes_engines_as_often_as_wanted(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, events: Table
) -> None:
    """Neither engine repeats what the other has committed, even if that was killed before Spark noted it."""
    engines: list[tuple[Engine, Engine]] = [("direct", "spark"), ("spark", "direct"), ("direct", "spark")]
    for number, (one, other) in enumerate(engines, 1):
        cluster.channel("n1").publish(topic, rows(number * 50, 50), acks=1)
        assert filled_by(spark, replace(plan, engine=one)).rows == 50
        checkpoint = plan.shared_checkpoint if one == "direct" else plan.checkpoint(events)
        last = max(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        assert not filled_by(spark, replace(plan, engine=other)).rows
        assert_once(spark, plan, events, number * 50)


def test_columns_that_are_gained_are_added_before_the_rows(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, events: Table
) -> None:
    channel = cluster.channel("n1")
    channel.publish(topic, [{"id": 1, "in": {"a": 1}}], acks=1)
    run(spark, plan)
    channel.publish(topic, [{"id": 2, "in": {"a": 2}, "new": "x"}], acks=1)
    run(spark, plan)
    found = TableFolder(spark, plan.tables).read(events).orderBy("id").select("id", "in.a", "new")
    assert [tuple(row) for row in found.collect()] == [(1, 1, None), (2, 2, "x")]


def test_fields_in_columns_may_have_any_name(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, events: Table
) -> None:
    inner = {"a.b": 1, "c d": {"e`f": "x"}}
    cluster.channel("n1").publish(topic, [{"id": 1, "in": inner, "many": [inner]}], acks=1)
    run(spark, plan)
    (found,) = TableFolder(spark, plan.tables).read(events).collect()
    assert found["in"].asDict(recursive=True) == inner
    assert [each.asDict(recursive=True) for each in found["many"]] == [inner]


def test_a_table_that_is_changed_meanwhile_is_written_again(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str, events: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.channel("n1").publish(topic, [{"id": 1, "what": "tea"}], acks=1)
    append = TableLog.append

    def changed(self: TableLog, files: Sequence[DataFile], layout: FileLayout, query: str, number: int) -> bool:
        monkeypatch.undo()
        spark.sql(f"ALTER TABLE {events.quoted(plan.tables)} DROP COLUMN what")
        return append(self, files, layout, query, number)

    monkeypatch.setattr(TableLog, "append", changed)
    filled = filled_by(spark, plan)
    assert (filled.rows, filled.restarts) == (1, 1)
    assert [row["what"] for row in TableFolder(spark, plan.tables).read(events).collect()] == ["tea"]


def test_spark_fills_what_the_direct_engine_cannot(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topic: str
) -> None:
    cluster.channel("n1").publish(topic, pa.table({"clock": pa.array([1], pa.time64("us"))}), acks=1)
    with pytest.raises(M4castError, match=r"direct engine cannot fill .*'clock' has times of day.* leave out --engine"):
        run(spark, plan)
    filled = filled_by(spark, replace(plan, engine=None))
    assert (filled.rows, filled.engine) == (1, "spark")
    assert filled.engine_reason == "column 'clock' has times of day, which Spark converts to text"


def test_a_folder_that_python_cannot_write_to_is_filled_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "place_of", lambda spark, folder: ("s3a", "/lake/events/orders"))
    tables = TableFolder(cast(SparkSession, None), "s3a://lake")
    table = events_table("orders", StructType())
    reason = "its folder is on s3a, and Python writes to mounted file systems only"
    assert engine.chosen_engine(tables, table, None) == EngineChoice("spark", reason)
    assert engine.chosen_engine(tables, table, "spark") == EngineChoice("spark")
    with pytest.raises(M4castError, match=f"cannot fill events/orders: {reason}; leave out --engine, or use"):
        engine.chosen_engine(tables, table, "direct")


def test_a_codec_that_arrow_lacks_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "place_of", lambda spark, folder: ("file", "/lake/events/orders"))
    monkeypatch.setattr(engine, "codec_of", lambda spark: "lzo")
    choice = engine.chosen_engine(TableFolder(cast(SparkSession, None), "/lake"), events_table("o", StructType()), None)
    assert choice == EngineChoice("spark", "Arrow does not support spark.sql.parquet.compression.codec = lzo")


def test_a_file_that_the_driver_does_not_see_is_refused(tmp_path: Path) -> None:
    layout = FileLayout(folder=str(tmp_path), columns=StructType(), statistics=(), codec="snappy")
    file = DataFile(name="x.parquet", rows=1, bytes=3, modified_at_ms=0, statistics="{}")
    (tmp_path / file.name).write_bytes(b"123")
    engine.check_visible(layout, file)
    for other in (replace(file, name="y.parquet"), replace(file, bytes=4)):
        with pytest.raises(M4castError, match=r"^\[M4CAST_FOLDER_NOT_SHARED\] a worker wrote .*\.parquet, but"):
            engine.check_visible(layout, other)


def test_the_engine_is_shown(spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, folder: str) -> None:
    cluster.channel("n1").publish(topic, [{"id": 1}], acks=1)
    words = ["ingest", "--node", nodes, "--tables", folder, "--topic", topic, "--only", "events"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[-1] == "direct"
    result = CliRunner().invoke(main, [*words, "--engine", "spark"])
    assert result.stdout.splitlines()[1].split()[-1] == "spark"
    result = CliRunner().invoke(main, [*words, "--engine", "direct", "--raw"])
    assert result.exit_code == 2
    assert "--raw needs the engine spark: remove --engine" in result.output
