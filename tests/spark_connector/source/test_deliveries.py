"""Delivery records as a source: the arithmetic of their offsets, and real nodes through Spark."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import DeliveryRange
from m4cast.spark_connector.offsets import StreamName
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.source.deliveries import DeliveryStream, joined, records_ahead
from m4cast.spark_connector.source.rows import schema_of
from tests.processes.clusters import running_cluster, until

TIMEOUT_S = 120
A, B, C = (letter * 32 for letter in "abc")


def test_a_log_that_is_met_joins_the_offset_before_it_is_read() -> None:
    start = {"deliveries": {A: 5, C: 9}}
    ranges = {A: DeliveryRange(A, 2, 8), B: DeliveryRange(B, 3, 7)}
    assert joined(start, ranges) == {"deliveries": {A: 5, B: 3, C: 9}}
    assert records_ahead(start, ranges) == {StreamName("deliveries", A): 3}
    assert records_ahead(joined(start, ranges), ranges) == {
        StreamName("deliveries", A): 3,
        StreamName("deliveries", B): 4,
    }


def test_an_offset_never_goes_back() -> None:
    assert records_ahead({"deliveries": {A: 9}}, {A: DeliveryRange(A, 1, 5)}) == {}
    assert joined({"deliveries": {A: 9}}, {A: DeliveryRange(A, 1, 5)}) == {"deliveries": {A: 9}}


def batch(spark: SparkSession, nodes: str, **options: str) -> DataFrame:
    return spark.read.format("m4cast").options(nodes=nodes, read="deliveries", **options).load()


def follow(spark: SparkSession, nodes: str, folder: Path, **options: str) -> list[Row]:
    """All there is now, into the table of that folder; what is in it then."""
    stream = spark.readStream.format("m4cast").options(nodes=nodes, read="deliveries", **options).load()
    query = (
        stream.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"), format="parquet")
    )
    assert query.awaitTermination(TIMEOUT_S)
    return spark.read.parquet(str(folder / "table")).orderBy("node", "delivery").collect()


def of_topic(rows: list[Row], topic: str) -> Counter[str]:
    return Counter(row.node for row in rows if row.topic == topic)


def test_a_batch_is_the_log_of_one_node_or_of_all_that_it_knows(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster
) -> None:
    first, second = nodes.split(",")
    (written,) = cluster.channel("n1").publish(topic, [{"id": 1}, {"id": 2}], acks=1)
    until(lambda: topic in cluster.channel("n2").topics(), "it has come to the other node")
    (row,) = batch(spark, nodes).where(f"topic = '{topic}'").collect()
    assert (row.node, row.origin, row.first_sequence, row.last_sequence) == ("n1", written.origin, 1, 2)
    assert (row.kind, row.how, row.hops, row.row_count) == ("batch", "published", 0, 2)
    for only in ({"nodes": second}, {"nodes": nodes, "of": "n2"}):
        (row,) = batch(spark, **only).where(f"topic = '{topic}'").collect()
        assert row.node == "n2" and row.how in ("pushed", "pulled") and row.hops > 0
    rows = batch(spark, first, of="all", minPartitions="4").collect()
    assert of_topic(rows, topic) == {"n1": 1, "n2": 1}, "the other node was found through the first"
    for name in ("n1", "n2"):
        numbers = [row.delivery for row in rows if row.node == name]
        assert numbers == list(range(1, 1 + len(numbers)))
    with pytest.raises(PySparkException, match=r"M4CAST_UNKNOWN_NODE.*n1, n2"):
        batch(spark, nodes, of="n9").collect()


def test_one_nodes_log_goes_on_with_that_node(topic: str, nodes: str, cluster: LocalCluster) -> None:
    first, second = nodes.split(",")
    cluster.channel("n1").publish(topic, [{"id": 1}], acks=1)

    def stream(doors: str) -> DeliveryStream:
        options = read_options(parse({"nodes": doors, "read": "deliveries"}), streaming=True)
        return DeliveryStream(options, schema_of(options))

    start = stream(first).initialOffset()
    (node_id,) = start["deliveries"]
    assert node_id == cluster.channel("n1").status()["node_id"]
    cluster.channel("n1").publish(topic, [{"id": 2}], acks=1)
    elsewhere = stream(f"{second},{first}")
    elsewhere.prepareForTriggerAvailableNow()
    end = elsewhere.latestOffset(start, ReadAllAvailable())
    assert list(end["deliveries"]) == [node_id] and end["deliveries"][node_id] > start["deliveries"][node_id]
    tables = []
    for reader in (elsewhere, stream(second)):
        batches = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
        tables.append(pa.Table.from_batches(batches))
    assert tables[0].equals(tables[1]), "found through another node, it tells the same"
    assert (topic, 2) in zip(*(tables[0][name].to_pylist() for name in ("topic", "first_sequence")), strict=True)


def test_a_stream_reads_every_record_once_over_restarts(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    for number in range(3):
        cluster.channel("n1").publish(topic, [{"id": number}], acks=1)
    options = {"of": "all", "startingOffsets": "earliest", "maxRowsPerTrigger": "5"}
    rows = follow(spark, nodes, tmp_path, **options)
    for number in range(3):
        cluster.channel("n2").publish(topic, [{"id": number}], acks=1)
    rows = follow(spark, nodes, tmp_path, **options)
    assert of_topic(rows, topic) == {"n1": 6, "n2": 6}
    for name in ("n1", "n2"):
        numbers = [row.delivery for row in rows if row.node == name]
        assert numbers == list(range(1, 1 + len(numbers)))


def test_a_node_that_is_away_is_read_when_it_is_back_and_a_new_one_from_its_first_record(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with running_cluster(tmp_path / "cluster", 2) as cluster:
        door, other = (cluster.node(name).door for name in ("n1", "n2"))
        cluster.channel("n1").publish(topic, [{"id": 1}], acks=1)
        options = {"of": "all", "startingOffsets": "earliest"}
        assert of_topic(follow(spark, door, tmp_path, **options), topic) == {"n1": 1, "n2": 1}
        cluster.kill("n2")
        cluster.channel("n1").publish(topic, [{"id": 2}])
        assert of_topic(follow(spark, door, tmp_path, **options), topic) == {"n1": 2, "n2": 1}
        with pytest.raises(PySparkException, match=rf"M4CAST_UNREACHABLE.*n2.*{other}.*failOnDataLoss"):
            batch(spark, door, of="all").collect()
        assert of_topic(batch(spark, door, of="all", failOnDataLoss="false").collect(), topic) == {"n1": 2}
        cluster.start("n2")
        cluster.add()
        for name in ("n2", "n3"):
            until(lambda name=name: _has(cluster, name, topic, 3), f"{name} has caught up")  # type: ignore[misc]
        until(lambda: len(cluster.channel("n1").topology()["nodes"]) == 3, "n1 has heard of n3")
        rows = follow(spark, door, tmp_path, **options)
        assert {row.node: row.incarnation for row in rows} == {"n1": 1, "n2": 2, "n3": 1}
        spans = {(row.node, row.first_sequence, row.last_sequence) for row in rows if row.topic == topic}
        assert {(node, 2, 2) for node in ("n1", "n2", "n3")} <= spans


def _has(cluster: LocalCluster, name: str, topic: str, until_sequence: int) -> bool:
    frontier = cluster.channel(name).frontier(topic)
    return until_sequence in frontier.get(topic, {}).values()
