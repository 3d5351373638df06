"""One query for many topics: the trouble of one is its own, and nobody's rows are lost or doubled by it."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from m4cast.cluster.local import LocalCluster
from m4cast.jobs.direct import engine, shared_feed
from m4cast.jobs.direct.layout import FileLayout
from m4cast.jobs.direct.shared_feed import FedTopic, SharedFeed
from m4cast.jobs.direct.table_log import TableLog
from m4cast.jobs.feeds import feed
from m4cast.jobs.feeds.event_feeds import EventFeeds
from m4cast.jobs.feeds.feed import FeedFailedError, FeedState, started
from m4cast.jobs.ingest import Filled, Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.table import Table

TIMEOUT_S = 240.0


@pytest.fixture
def topics(topic: str) -> tuple[str, str, str]:
    return f"{topic}-a", f"{topic}-b", f"{topic}-c"


@pytest.fixture
def plan(nodes: str, topics: tuple[str, ...], folder: str) -> Ingest:
    return Ingest({"nodes": nodes}, folder, topics, kinds=("events",))


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The queries that are started meanwhile."""
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
        cluster.channel("n1").publish(name, [{"id": number} for number in ids], acks=1)


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


def test_a_poisoned_topic_of_a_continuous_ingest_recovers_once_it_is_mended(
    spark: SparkSession,
    cluster: LocalCluster,
    plan: Ingest,
    topics: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    queries: list[Any],
) -> None:
    """There is a file in place of its table for a while. The query goes on, and the other topics with it."""
    monkeypatch.setattr(feed, "AGAIN_S", 0.5)
    place, away = Path(events_table(topics[1], StructType()).path(plan.tables)), Path(plan.tables, "away")
    stop = threading.Event()
    steps: list[str] = []

    def look(states: Sequence[FeedState]) -> None:
        rows = [next((each.rows for each in states if each.table == f"events/{name}"), 0) for name in topics]
        reasons = [each.error for each in states if each.error is not None]
        match len(steps), rows:
            case 0, [10, 10, 10]:
                place.rename(away)
                place.write_text("not a table")
                publish(cluster, topics, range(10, 20))
                steps.append("poisoned")
            case 1, [20, 10, 20] if reasons:
                publish(cluster, topics, range(20, 30))
                steps.append("the others have gone on")
            case 2, [30, 10, 30] if reasons:
                place.unlink()
                away.rename(place)
                steps.append("mended")
            case 3, [30, 30, 30] if not reasons:
                stop.set()

    watchdog = threading.Timer(TIMEOUT_S, stop.set)
    watchdog.start()
    publish(cluster, topics, range(10))
    try:
        run(spark, replace(plan, continuous=True, interval_s=0), stop=stop, on_progress=look)
    finally:
        watchdog.cancel()
    assert len(steps) == 3 and len(queries) == 1, steps
    for name in topics:
        assert_once(spark, plan, name, range(30))


@pytest.mark.parametrize("moment", ["at the end of its micro-batch", "after it", "at the end of the run"])
def test_a_commit_that_another_writer_replaces_is_repeated(
    spark: SparkSession,
    cluster: LocalCluster,
    plan: Ingest,
    topics: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """The other writer replaces it by a version that it was about to write, as Delta does on a local disk."""
    publish(cluster, topics, range(10))
    table = events_table(topics[1], StructType())
    log = Path(table.path(plan.tables)) / "_delta_log"
    replaced: list[Path] = []

    def replace_last() -> None:
        newest = max(log.glob("*.json"))
        another = log / ".another"
        another.write_text('{"commitInfo":{"timestamp":1,"operation":"OPTIMIZE","operationParameters":{}}}\n')
        another.rename(newest)
        replaced.append(newest)

    append, commit, stop = TableLog.append, SharedFeed._commit, SharedFeed.stop

    def appended(self: TableLog, files: Any, layout: FileLayout, query: str, micro_batch: int) -> bool:
        done = append(self, files, layout, query, micro_batch)
        if layout.folder == str(log.parent) and not replaced and moment == "at the end of its micro-batch":
            replace_last()
        return done

    def committed(self: SharedFeed, reports: Any, micro_batch: int) -> None:
        commit(self, reports, micro_batch)
        has_rows = any('"add"' in version.read_text() for version in log.glob("*.json"))
        if not replaced and has_rows and moment == "after it":  # the topic may join with a later micro-batch
            replace_last()

    def stopped(self: SharedFeed) -> None:
        if moment == "at the end of the run":
            replace_last()
        stop(self)

    monkeypatch.setattr(TableLog, "append", appended)
    monkeypatch.setattr(SharedFeed, "_commit", committed)
    monkeypatch.setattr(SharedFeed, "stop", stopped)
    run(spark, plan)
    assert replaced
    for name in topics:
        assert_once(spark, plan, name, range(10))
    assert TableFolder(spark, plan.tables).version(table)[1] == int(replaced[0].stem) + 1


def test_the_backlog_is_noted_when_spark_reports_about_the_last_micro_batch() -> None:
    """A moment after its commit: the report that is there until then is of an earlier one."""
    shared = SharedFeed.__new__(SharedFeed)
    topic = FedTopic("orders")
    shared._lock, shared._topics, shared._uncounted = threading.RLock(), {"orders": topic}, 7
    end, latest = '{"orders": {"f0": 5}}', '{"orders": {"f0": 8}}'

    def reported(number: int | None) -> Any:
        source = SimpleNamespace(endOffset=end, latestOffset=latest)
        report = None if number is None else SimpleNamespace(batchId=number, sources=[source])
        return SimpleNamespace(lastProgress=report)

    for number, behind in ((None, None), (6, None), (7, 3)):
        shared._count(reported(number))
        assert topic.behind == behind


@pytest.mark.parametrize(
    ("trouble", "moment"),
    [
        ("its table cannot be read", "before Delta's commits"),
        ("it has not joined yet", "after them"),
        pytest.param("its table cannot be read", "after them", marks=pytest.mark.soak),
        pytest.param("it has not joined yet", "before Delta's commits", marks=pytest.mark.soak),
    ],
)
def test_a_micro_batch_is_repeated_though_a_table_is_not_ready(
    spark: SparkSession,
    cluster: LocalCluster,
    plan: Ingest,
    topics: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    moment: str,
) -> None:
    """The driver is killed before it commits, or before Spark does, and one topic takes no part when it is back."""
    publish(cluster, topics, range(10))
    run(spark, plan)
    publish(cluster, topics, range(10, 20))
    commit = SharedFeed._commit_topic

    def killed(self: SharedFeed, name: str, *given: Any) -> bool:
        if moment == "after them":
            assert commit(self, name, *given)
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(SharedFeed, "_commit_topic", killed)
        with pytest.raises(FeedFailedError, match=r"^events: .*killed"):
            run(spark, plan)
    with monkeypatch.context() as patch:
        if trouble == "it has not joined yet":
            patch.setattr(EventFeeds, "_topics_now", lambda feeds: (topics[0], topics[2]))
            run(spark, plan)
        else:
            without(topics[1], patch, None)
            with pytest.raises(FeedFailedError, match=rf"^events/{topics[1]}: the table cannot be read$"):
                run(spark, plan)
    assert_once(spark, plan, topics[0], range(20))
    assert_once(spark, plan, topics[1], range(10 if moment == "before Delta's commits" else 20))
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
    """One condition for all topics, and then one for each, select the same rows with both engines."""
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
