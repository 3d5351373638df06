"""Roster and interest as sources: all of it once, then what changes; a micro-batch that is replayed is the same."""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from m4cast.cluster.local import LocalCluster
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.source.changing_records import INTEREST, ROSTER, ChangingStream
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

        reader = ChangingStream(ROSTER, read_options(parse(given), streaming=True), StructType())
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


def test_interest_is_what_each_node_wants_and_wanted(spark: SparkSession, nodes: str, cluster: LocalCluster) -> None:
    first, _ = nodes.split(",")
    one, two = cluster.channel("n1"), cluster.channel("n2")
    one.register("wanted", "id > 1")
    two.register("wanted")
    given = {"nodes": first, "read": "interest", "of": "all"}
    columns = ("node", "condition", "epoch", "until_at")

    def wanted() -> list[tuple[object, ...]]:
        rows = spark.read.format("m4cast").options(**given).load().where("topic = 'wanted'").select(*columns)
        return sorted(map(tuple, rows.collect()), key=str)

    (of_one, of_two) = wanted()
    assert (of_one[:2], of_two[:2]) == (("n1", "id > 1"), ("n2", None))
    reader = ChangingStream(INTEREST, read_options(parse(given), streaming=True), StructType())
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert {record["node"] for record in end["records"]} == {"n1", "n2"}
    one.unregister("wanted", "id > 1")
    changed = end

    def has_ended() -> bool:
        nonlocal changed
        changed = reader.latestOffset(end, ReadAllAvailable())
        return bool(changed != end)

    until(has_ended, "the end shows as a changed record")
    assert [(each["node"], each["until_at"] is not None) for each in changed["records"]] == [("n1", True)]
    assert [each[3] is not None for each in wanted()] == [True, False]
    two.unregister("wanted")
