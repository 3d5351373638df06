"""Ingest of what audits need: delivery records of all nodes, and who was on the channel."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from m4cast.cluster.local import LocalCluster
from m4cast.jobs.feeds.record_feeds import options_of
from m4cast.jobs.ingest import ENGINES, Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.deliveries import DELIVERIES
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


def test_records_that_are_gone_can_be_passed_over_as_rows_can() -> None:
    given = {"failondataloss": "false", "onNewColumns": "ignore"}
    options = options_of(Ingest({"nodes": "h:1"}, "/tables", options=given), "earliest")
    assert read_options(parse(options), streaming=True).fail_on_data_loss is False
