"""Ingest of what audits need: delivery records of all nodes, who was on the channel, and who wanted what."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from m4cast.cluster.local import LocalCluster
from m4cast.jobs.feeds.record_feeds import merge_interest, options_of
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
    """Also when one continues what the other began, though it was killed before Spark noted its last micro-batch."""
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
    merge_interest(spark, plan)
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
