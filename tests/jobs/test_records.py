"""Ingest of what audits need: delivery records of all nodes, who was on the channel, and who wanted what."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from m4cast.cluster.local import LocalCluster
from m4cast.jobs.feeds import record_feeds
from m4cast.jobs.feeds.feed import FeedFailedError
from m4cast.jobs.feeds.record_feeds import InterestMerge, RecordMerges, RosterMerge, _merged, options_of
from m4cast.jobs.ingest import ENGINES, Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.interest import INTEREST
from m4cast.schemas.tables.roster import ROSTER
from m4cast.spark_connector.options import parse, read_options


def test_every_delivery_record_and_every_node_is_there_once(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, folder: str
) -> None:
    plan = Ingest({"nodes": nodes}, folder, kinds=("deliveries", "roster"))
    tables = TableFolder(spark, folder)
    for number in range(3):
        cluster.channel("n1").publish(topic, [{"id": number}], acks=1)
        run(spark, plan)
        if number == 1:
            shutil.rmtree(plan.checkpoints)

    def recorded(name: str) -> list[dict[str, Any]]:
        said = cluster.channel(name).deliveries().select(["delivery", "node", "origin", "topic", "last_sequence"])
        return [row for row in said.to_pylist() if row["topic"] == topic]

    wanted = [row for name in cluster.names() for row in recorded(name)]
    found = tables.read(DELIVERIES).where(f"topic = '{topic}'").select(*wanted[0])
    assert [row.asDict() for row in found.orderBy("node", "delivery").collect()] == wanted
    assert tables.read(DELIVERIES).count() == tables.read(DELIVERIES).dropDuplicates([*DELIVERIES.key]).count()

    members = tables.read(ROSTER).where("to_at IS NULL").select("name", "node_id").collect()
    wanted_members = {(name, cluster.channel(name).status()["node_id"]) for name in cluster.names()}
    assert {(row["name"], row["node_id"]) for row in members} == wanted_members
    assert tables.read(ROSTER).count() == tables.read(ROSTER).dropDuplicates([*ROSTER.key]).count()


def test_both_engines_make_equal_tables_of_deliveries(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, folder: str
) -> None:
    """The same, even when one continues what the other began, which was killed before Spark noted its last
    micro-batch."""
    plans = [
        Ingest({"nodes": nodes}, f"{folder}/{name}", kinds=("deliveries",), max_rows=5_000, engine=name)
        for name in ENGINES
    ]
    for number in range(2):
        cluster.channel("n1").publish(topic, [{"id": number}], acks=1)
        for plan in plans:
            (filled,) = run(spark, plan).tables
            assert filled.engine == plan.engine and filled.rows
        (plans[0], plans[1]) = (replace(plan, engine=ENGINES[1 - at]) for at, plan in enumerate(plans))
        for plan in plans:
            last = max(Path(plan.checkpoint(DELIVERIES), "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            last.unlink()
    tables = [TableFolder(spark, plan.tables).read(DELIVERIES) for plan in plans]
    assert tables[0].schema == tables[1].schema
    both = [sorted(map(tuple, table.where(f"topic = '{topic}'").collect())) for table in tables]
    assert both[0] == both[1] and len(both[0]) == 4
    for table in tables:
        assert table.count() == table.dropDuplicates([*DELIVERIES.key]).count()


def test_interest_is_merged_when_it_changes(
    spark: SparkSession, cluster: LocalCluster, nodes: str, topic: str, folder: str
) -> None:
    plan = Ingest({"nodes": nodes}, folder, kinds=("interest",))
    one, two = cluster.channel("n1"), cluster.channel("n2")
    epoch = one.register(topic, "id > 3")["epoch"]
    two.register(topic)
    InterestMerge(spark, plan).merge()
    one.unregister(topic, "id > 3")
    one.register(topic, "id > 3")
    run(spark, plan)
    tables = TableFolder(spark, folder)
    version = tables.version(INTEREST)[1]
    run(spark, plan)
    assert tables.version(INTEREST)[1] == version, "nothing is committed when nothing has changed"
    found = tables.read(INTEREST).where(f"topic = '{topic}'").orderBy("node", "number").collect()
    assert [(row["node"], row["condition"], row["until_at"] is None) for row in found] == [
        ("n1", "id > 3", False),
        ("n1", "id > 3", True),
        ("n2", None, True),
    ]
    assert found[0]["epoch"] == epoch < found[1]["epoch"]
    assert found[0]["first_read_at"] < found[0]["read_at"], "its end was read later than its begin"
    assert found[1]["first_read_at"] == found[1]["read_at"]
    one.unregister(topic, "id > 3")
    two.unregister(topic)


def test_records_that_are_gone_can_be_passed_over_as_rows_can() -> None:
    given = {"failondataloss": "false", "onNewColumns": "ignore"}
    options = options_of(Ingest({"nodes": "h:1"}, "/tables", options=given), "earliest")
    assert read_options(parse(options), streaming=True).fail_on_data_loss is False


def test_where_two_rosters_differ_the_earlier_begin_and_a_known_end_are_kept() -> None:
    heard = {"node_id": "a", "incarnation": 1, "from_at": 5, "to_at": None, "reason": None, "name": "n1"}
    assert _merged(None, heard, 9) == {**heard, "read_at": 9}
    known = {**heard, "from_at": 3, "to_at": 7, "reason": "left", "name": "old", "read_at": 1}
    assert _merged(known, heard, 9) == {**known, "name": "n1", "read_at": 9}
    again = {**heard, "from_at": 2, "to_at": 8, "reason": "restarted"}
    assert _merged(known, again, 9) == {**again, "read_at": 9}


def test_a_failing_merge_ends_ingest_and_nothing_is_merged_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_feeds, "FIRST_MERGE_S", 0.0)

    def failing(self: RosterMerge, *, is_last: bool = False) -> None:
        raise FeedFailedError("roster: no")

    monkeypatch.setattr(RosterMerge, "merge", failing)
    merges = RecordMerges(None, Ingest({"nodes": "h:1"}, "/tables", kinds=("roster",), continuous=True))  # type: ignore[arg-type]  # Spark is not used
    merges._thread.join(30)
    for use in (merges.check, merges.finish):
        with pytest.raises(FeedFailedError, match="roster: no"):
            use()
