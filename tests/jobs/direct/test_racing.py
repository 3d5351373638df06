"""Ingests that race for one topic: each row is in its table once, and who comes second is refused."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from m4cast.cluster.local import LocalCluster
from m4cast.jobs.feeds.feed import FeedFailedError, FeedState
from m4cast.jobs.feeds.table_locks import TableInUseError
from m4cast.jobs.ingest import Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.overlay.errors import M4castError
from m4cast.schemas.tables.events import events_table

TIMEOUT_S = 240.0


@pytest.fixture
def plans(nodes: str, topic: str, folder: str) -> list[Ingest]:
    """The same choice of topics, another one that has the topic as well, and another engine."""
    plan = Ingest({"nodes": nodes}, folder, (topic,), kinds=("events",), max_rows=10)
    return [plan, plan, replace(plan, topics=(), topic_pattern=f"{topic}.*"), replace(plan, engine="spark")]


def publish(cluster: LocalCluster, topic: str, ids: range) -> None:
    cluster.channel("n1").publish(topic, [{"id": number} for number in ids], acks=1)


def assert_once(spark: SparkSession, plan: Ingest, topic: str, ids: range) -> None:
    found = TableFolder(spark, plan.tables).read(events_table(topic, StructType()))
    assert sorted(row["id"] for row in found.collect()) == list(ids)


def test_ingests_that_start_at_once(
    spark: SparkSession, cluster: LocalCluster, plans: list[Ingest], topic: str
) -> None:
    publish(cluster, topic, range(40))

    def rows_of(plan: Ingest) -> int:
        try:
            return run(spark, plan).tables[0].rows
        except M4castError as error:
            if "[M4CAST_TABLE_IN_USE] another ingest" not in str(error):
                raise
            return 0

    with ThreadPoolExecutor(len(plans)) as pool:
        assert sum(pool.map(rows_of, plans)) == 40
    assert_once(spark, plans[0], topic, range(40))
    publish(cluster, topic, range(40, 45))
    assert [rows_of(plan) for plan in plans[1:3]] == [5, 0]
    assert_once(spark, plans[0], topic, range(45))


def test_an_ingest_beside_one_that_goes_on(
    spark: SparkSession, cluster: LocalCluster, plans: list[Ingest], topic: str
) -> None:
    publish(cluster, topic, range(10))
    stop = threading.Event()
    refused: list[str] = []

    def look(states: Sequence[FeedState]) -> None:
        rows = sum(state.rows for state in states)
        if rows == 10 and not refused:
            publish(cluster, topic, range(10, 20))
            with pytest.raises(TableInUseError, match=r"the same choice of topics is filling .*: stop it or wait"):
                run(spark, plans[1])
            for other in plans[2:]:
                with pytest.raises(
                    FeedFailedError, match=rf"filling events/{topic} in .* leave this table out"
                ) as error:
                    run(spark, other)
                refused.append(str(error.value))
        elif rows == 20:
            stop.set()

    watchdog = threading.Timer(TIMEOUT_S, stop.set)
    watchdog.start()
    try:
        (filled,) = run(spark, replace(plans[0], continuous=True, interval_s=0), stop=stop, on_progress=look).tables
    finally:
        watchdog.cancel()
    assert (filled.rows, len(refused)) == (20, 2)
    assert [run(spark, plan).tables[0].rows for plan in plans[2:]] == [0, 0], "who was refused can go on afterwards"
    assert_once(spark, plans[0], topic, range(20))
