"""One query for many topics: the trouble of one is its own, and nobody's rows are lost or doubled by it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from m4cast.cluster.local import LocalCluster
from m4cast.jobs.direct import engine, shared_feed
from m4cast.jobs.direct.layout import FileLayout
from m4cast.jobs.direct.shared_feed import SharedFeed
from m4cast.jobs.direct.table_log import TableLog
from m4cast.jobs.feeds.feed import FeedFailedError, started
from m4cast.jobs.ingest import Filled, Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.table import Table


@pytest.fixture
def topics(topic: str) -> tuple[str, str, str]:
    return f"{topic}-a", f"{topic}-b", f"{topic}-c"


@pytest.fixture
def plan(nodes: str, topics: tuple[str, ...], folder: str) -> Ingest:
    return Ingest({"nodes": nodes}, folder, topics, kinds=("events",))


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """That are started meanwhile."""
    found: list[Any] = []

    def noted(*given: Any) -> Any:
        found.append(started(*given))
        return found[-1]

    monkeypatch.setattr(shared_feed, "started", noted)
    return found


def filled_by(spark: SparkSession, plan: Ingest) -> list[Filled]:
    return list(run(spark, plan).tables)


def assert_once(spark: SparkSession, plan: Ingest, topic: str, ids: range) -> None:
    found = TableFolder(spark, plan.tables).read(events_table(topic, StructType()))
    assert sorted(row["id"] for row in found.collect()) == list(ids)


def publish(cluster: LocalCluster, topics: tuple[str, ...], ids: range) -> None:
    for name in topics:
        cluster.channel("n1").publish(name, [{"id": number} for number in ids])


def without(topic: str, monkeypatch: pytest.MonkeyPatch, folder: str | None) -> None:
    """The topic's files go to this folder, which does not exist; None: there is no layout for them."""
    layout_of = engine.layout_of

    def layout(tables: TableFolder, table: Table, log: TableLog) -> FileLayout:
        found = layout_of(tables, table, log)
        if table.name != events_table(topic, StructType()).name:
            return found
        if folder is None:
            raise OSError("the table cannot be read")
        return replace(found, folder=folder)

    monkeypatch.setattr(shared_feed, "layout_of", layout)


def test_all_topics_share_a_query_and_a_poisoned_one_stops_only_itself(
    spark: SparkSession,
    cluster: LocalCluster,
    plan: Ingest,
    topics: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    queries: list[Any],
) -> None:
    publish(cluster, topics, range(10))
    with monkeypatch.context() as patch:
        without(topics[1], patch, "/no/such/folder")
        with pytest.raises(FeedFailedError, match=rf"^events/{topics[1]}: [^;]*/no/such/folder[^;]*$"):
            run(spark, plan)
    assert len(queries) == 1
    for name in (topics[0], topics[2]):
        assert_once(spark, plan, name, range(10))
    publish(cluster, topics, range(10, 15))
    assert {each.table: each.rows for each in filled_by(spark, plan)} == {
        f"events/{topics[0]}": 5,
        f"events/{topics[1]}": 15,
        f"events/{topics[2]}": 5,
    }
    assert len(queries) == 2
    for name in topics:
        assert_once(spark, plan, name, range(15))


def test_a_micro_batch_is_repeated_though_a_table_is_not_ready(
    spark: SparkSession,
    cluster: LocalCluster,
    plan: Ingest,
    topics: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver is killed before it commits, and does not get the layout of one table when it is back."""
    publish(cluster, topics, range(10))
    run(spark, plan)
    publish(cluster, topics, range(10, 20))

    def killed(*_: object) -> bool:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(SharedFeed, "_commit_topic", killed)
        with pytest.raises(FeedFailedError, match=r"^events: .*killed"):
            run(spark, plan)
    with monkeypatch.context() as patch:
        without(topics[1], patch, None)
        with pytest.raises(FeedFailedError, match=rf"^events/{topics[1]}: the table cannot be read$"):
            run(spark, plan)
    assert_once(spark, plan, topics[0], range(20))
    assert_once(spark, plan, topics[1], range(10))
    run(spark, plan)
    for name in topics:
        assert_once(spark, plan, name, range(20))


def test_a_topic_moves_from_one_choice_of_topics_to_another(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topics: tuple[str, ...]
) -> None:
    publish(cluster, topics, range(10))
    run(spark, plan)
    alone = replace(plan, topics=topics[:1])
    for number in (1, 2):
        publish(cluster, topics, range(10 * number, 10 * number + 10))
        assert [each.rows for each in filled_by(spark, alone if number == 1 else plan)] in ([10], [10, 20, 20])
    for name in topics:
        assert_once(spark, plan, name, range(30))


def test_the_checkpoint_of_a_query_for_one_topic_is_continued(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topics: tuple[str, ...]
) -> None:
    """Those of earlier versions are like those of the engine `spark`. Rows that were deleted since do not come back."""
    publish(cluster, topics, range(10))
    run(spark, replace(plan, engine="spark"))
    table = events_table(topics[0], StructType())
    assert Path(plan.checkpoint(table)).exists()
    spark.sql(f"DELETE FROM {table.quoted(plan.tables)}")
    publish(cluster, topics, range(10, 12))
    assert [(each.rows, each.engine) for each in filled_by(spark, plan)] == [(2, "direct")] * 3
    assert_once(spark, plan, topics[0], range(10, 12))
    for name in topics[1:]:
        assert_once(spark, plan, name, range(12))
    assert not Path(plan.checkpoint(table)).exists()


def test_rows_are_filtered_by_the_nodes(
    spark: SparkSession, cluster: LocalCluster, plan: Ingest, topics: tuple[str, ...]
) -> None:
    """By one condition for all topics, and then by one for each, the same rows for both engines."""
    publish(cluster, topics, range(10))
    plan = replace(plan, options={"where": "id >= 3"})
    assert [each.rows for each in filled_by(spark, plan)] == [7, 7, 7]
    publish(cluster, topics, range(3))
    publish(cluster, topics, range(10, 20))
    plan = replace(plan, options={}, where={topics[0]: "id >= 10", topics[1]: "id >= 10 AND id < 15"})
    assert [each.rows for each in filled_by(spark, plan)] == [10, 5, 13]
    assert_once(spark, plan, topics[0], range(3, 20))
    assert_once(spark, plan, topics[1], range(3, 15))
    by_spark = replace(plan, engine="spark", topics=topics[1:2], tables=f"{plan.tables}/spark")
    assert [each.rows for each in filled_by(spark, by_spark)] == [5]
    with pytest.raises(FeedFailedError, match=r"M4CAST_.*no_such"):
        run(spark, replace(plan, options={"where": "no_such = 1"}))
