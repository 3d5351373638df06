"""The roster as a source: all of it once, then what changes; a micro-batch that is replayed is the same."""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from m4cast.cluster.local import LocalCluster
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.source.roster import RosterStream
from tests.processes.clusters import running_cluster, until

TIMEOUT_S = 120


def test_a_batch_is_the_roster_as_one_node_or_all_have_heard(
    spark: SparkSession, nodes: str, cluster: LocalCluster
) -> None:
    first, second = nodes.split(",")
    until(lambda: cluster.channel("n1").roster().num_rows == cluster.channel("n2").roster().num_rows, "both heard")
    ids = {name: cluster.channel(name).status()["node_id"] for name in cluster.names()}
    rows = spark.read.format("m4cast").options(nodes=first, read="roster").load().where("to_at is null").collect()
    assert {row.name: row.node_id for row in rows} == ids
    assert {row.name: row.door for row in rows} == {"n1": first, "n2": second}
    assert {row.heard_by for row in rows} == {ids["n1"]}
    everybody = spark.read.format("m4cast").options(nodes=first, read="roster", of="all").load()
    assert {row.heard_by for row in everybody.collect()} == set(ids.values())


def test_a_stream_gives_everything_and_then_what_changes(spark: SparkSession, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", 2) as cluster:
        given = {"nodes": cluster.node("n1").door, "read": "roster"}
        until(lambda: cluster.channel("n1").roster().num_rows == 2, "n1 has heard of n2")
        stream = spark.readStream.format("m4cast").options(**given).load()
        query = (
            stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"), format="parquet")
        )
        assert query.awaitTermination(TIMEOUT_S)
        rows = spark.read.parquet(str(tmp_path / "table")).collect()
        assert sorted((row.name, row.incarnation, row.to_at) for row in rows) == [("n1", 1, None), ("n2", 1, None)]

        reader = RosterStream(read_options(parse(given), streaming=True), StructType())
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert {record["name"] for record in end["records"]} == {"n1", "n2"}
        cluster.kill("n2")
        cluster.start("n2")
        seen: set[tuple[str, int, str | None]] = set()

        def has_restarted() -> bool:
            nonlocal end
            end = reader.latestOffset(end, ReadAllAvailable())
            seen.update((record["name"], record["incarnation"], record["reason"]) for record in end["records"])
            return {("n2", 1, "restarted"), ("n2", 2, None)} <= seen

        until(has_restarted, "the restart shows as two changed records")
        (partition,) = reader.partitions(start, end)
        assert partition.value == end["records"], "a replay needs no node"
