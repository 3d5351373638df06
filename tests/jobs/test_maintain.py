"""Maintenance: old rows go, small files become few, and nothing else changes."""

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from m4cast.cli import main
from m4cast.cluster.local import LocalCluster
from m4cast.jobs import ingest
from m4cast.jobs.feeds.feed import FeedState
from m4cast.jobs.ingest import Ingest
from m4cast.jobs.maintain import _delete, _vacuumed, keep_days_of, run
from m4cast.jobs.table_folder import CHANGES_MAX, TableFolder
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.events import events_table
from tests.jobs.frames import deliveries_frame
from tests.jobs.scenarios import scenario

TIMEOUT_S = 240.0
EVENTS = events_table("orders/eu", StructType([StructField("id", LongType())]))


@pytest.fixture(scope="module")
def maintained(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with one table, written in four pieces, one row in each of ten days."""
    folder = str(tmp_path_factory.mktemp("maintained"))
    tables = TableFolder(spark, folder)
    tables.ensure(EVENTS)
    now = datetime.now(UTC)
    for piece in range(4):
        rows = spark.range(10).select(
            F.lit("orders/eu").alias("_topic"),
            F.lit("0" * 32).alias("_origin"),
            (F.col("id") + 1 + piece * 10).alias("_sequence"),
            (F.lit(now - timedelta(hours=1)) - F.make_dt_interval(F.col("id").cast("int"))).alias("_published_at"),
            "id",
        )
        tables.append(EVENTS, rows)
    return folder


def test_old_rows_go_and_small_files_become_few(spark: SparkSession, maintained: str) -> None:
    names: list[str] = []
    (done,) = run(spark, maintained, keep_days={"events": 5}, on_table=names.append)
    assert names == ["events/orders%2Feu"]
    assert done.rows_deleted == 20
    assert done.files < done.files_before
    assert done.files_vacuumed == 0, "what was replaced just now may be in use"
    left = TableFolder(spark, maintained).read(EVENTS)
    assert sorted(row["id"] for row in left.collect()) == sorted([0, 1, 2, 3, 4] * 4)

    result = CliRunner().invoke(main, ["maintain", "--tables", maintained, "--json"])
    assert result.exit_code == 0, result.output
    (again,) = json.loads(result.stdout)["tables"]
    assert (again["rows_deleted"], again["files_before"], again["files"]) == (0, done.files, done.files)


def test_rows_are_ingested_once_while_tables_are_maintained(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, folder: str
) -> None:
    """Old rows are deleted, files merged and properties set while each micro-batch is a commit of another writer."""
    plan = Ingest({"nodes": nodes}, folder, (topic,), kinds=("events",), continuous=True, interval_s=0)
    table = events_table(topic, StructType([StructField("id", LongType())]))
    tables = TableFolder(spark, folder)
    channel = cluster.channel("n1")
    channel.publish(topic, [{"id": number} for number in range(10)])
    stop = threading.Event()
    deleted: list[int] = []

    def publish() -> None:
        for first in range(10, 110, 10):
            channel.publish(topic, [{"id": number} for number in range(first, first + 10)])

    def look(states: Sequence[FeedState]) -> None:
        rows = sum(state.rows for state in states)
        if rows >= 10 and not deleted:
            long_ago = F.lit(datetime.now(UTC) - timedelta(days=9)).alias("_published_at")
            old = [
                F.lit(topic).alias("_topic"),
                F.lit("f" * 32).alias("_origin"),
                F.lit(1).cast("long").alias("_sequence"),
            ]
            tables.append(table, spark.range(7).select(*old, long_ago, "id"))
            publishing = threading.Thread(target=publish)
            publishing.start()
            for _ in range(2):
                deleted.extend(done.rows_deleted for done in run(spark, folder, keep_days={"events": 5}))
            publishing.join()
        if rows == 110:
            stop.set()

    watchdog = threading.Timer(TIMEOUT_S, stop.set)
    watchdog.start()
    try:
        ingest.run(spark, plan, stop=stop, on_progress=look)
    finally:
        watchdog.cancel()
    assert deleted == [7, 0]
    assert sorted(row["id"] for row in tables.read(table).collect()) == list(range(110))


def test_what_is_left_of_a_nodes_delivery_records_has_no_hole(spark: SparkSession, folder: str) -> None:
    """n1's clock was turned back behind its second record; n2's never was."""
    tables = TableFolder(spark, folder)
    tables.ensure(DELIVERIES)
    now = datetime.now(UTC)
    ages_days = {"n1": (9, 1, 8, 0), "n2": (9, 8, 1, 0)}
    one = scenario(0).records[0]
    records = [
        replace(one, node_id=node, delivery=number, delivered_at=now - timedelta(days=days))
        for node, ages in ages_days.items()
        for number, days in enumerate(ages, 1)
    ]
    tables.append(DELIVERIES, deliveries_frame(spark, [(0, record) for record in records]).drop("scenario"))
    (done,) = run(spark, folder, keep_days={"deliveries": 5})
    assert done.rows_deleted == 3
    left = {(row["node_id"], row["delivery"]) for row in tables.read(DELIVERIES).collect()}
    assert left == {("n1", 2), ("n1", 3), ("n1", 4), ("n2", 3), ("n2", 4)}


class Contended:
    """A session in which a number of deletes meet a concurrent append."""

    def __init__(
        self, conflicts: int, error: str = "[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict"
    ) -> None:
        self._conflicts = conflicts
        self._error = error

    def sql(self, statement: str) -> "Contended":
        assert statement == "DELETE FROM t WHERE old"
        self._conflicts -= 1
        if self._conflicts >= 0:
            raise PySparkRuntimeError(self._error)
        return self

    def collect(self) -> list[tuple[int]]:
        return [(7,)]


def test_a_delete_that_meets_an_append_is_repeated() -> None:
    assert _delete(cast(SparkSession, Contended(CHANGES_MAX - 1)), "t", "old") == 7
    with pytest.raises(M4castError, match="t: rows were appended during each of 10 attempts to delete old ones"):
        _delete(cast(SparkSession, Contended(CHANGES_MAX)), "t", "old")
    with pytest.raises(PySparkRuntimeError, match="the disk is full"):
        _delete(cast(SparkSession, Contended(1, "the disk is full")), "t", "old")


def test_replaced_files_are_kept_as_long_as_was_asked(spark: SparkSession, maintained: str) -> None:
    """A file that no version needs, ten days old: kept by 11 days, removed by 9, whatever was asked before."""
    left_over = Path(EVENTS.path(maintained)) / "part-left-over.parquet"
    ten_days_ago_s = time.time() - 10 * 86_400
    for hours, is_kept in ((9 * 24, False), (11 * 24, True), (9 * 24, False)):
        left_over.write_bytes(b"no version needs it")
        os.utime(left_over, (ten_days_ago_s, ten_days_ago_s))
        (done,) = run(spark, maintained, vacuum_hours=hours)
        assert left_over.exists() == is_kept, f"{hours} hours"
        assert done.files_vacuumed == (0 if is_kept else 1)
    name = EVENTS.quoted(maintained)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('x' = 'another commit')")
    assert [_vacuumed(spark, name, versions) for versions in (0, 1, 2)] == [0, 0, 1]
    before = TableFolder(spark, maintained).version(EVENTS)
    run(spark, maintained, vacuum_hours=40 * 24)
    shown = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
    assert shown["delta.logRetentionDuration"] == shown["delta.deletedFileRetentionDuration"]
    assert TableFolder(spark, maintained).version(EVENTS) > before


def test_what_is_not_there_is_said(spark: SparkSession, maintained: str, folder: str) -> None:
    with pytest.raises(M4castError, match=f"{folder} contains no table: give the folder that ingest writes to"):
        run(spark, folder)
    with pytest.raises(M4castError, match=r"contains no table eventz: use one of events/orders%2Feu"):
        run(spark, maintained, keep_days={"eventz": 5})
    for hours in (1, float("nan"), float("inf")):
        with pytest.raises(M4castError, match=f"vacuum_hours = {hours:g} is not allowed: give 168 to 876000"):
            run(spark, maintained, vacuum_hours=hours)


@pytest.mark.parametrize(
    ("table", "days"), [("events/a", 30), ("events/b", 90), ("deliveries", 7), ("roster", None), ("eventsx", None)]
)
def test_the_nearest_name_says_how_long_rows_are_kept(table: str, days: float | None) -> None:
    assert keep_days_of(table, {"events": 90, "events/a": 30, "deliveries": 7}) == days


@pytest.mark.parametrize("days", ["0", "-1", "x", "nan", "inf", "1e9"])
def test_days_are_a_number(days: str, folder: str) -> None:
    result = CliRunner().invoke(main, ["maintain", "--tables", folder, "--keep", f"events={days}"])
    assert result.exit_code == 2
    assert "is not a number of days: give more than 0" in result.output
