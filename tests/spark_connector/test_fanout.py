"""Fan-out from pipelines: once for each name and batch, over replays; never two of one name in a batch."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import m4cast
from m4cast.cluster.local import LocalCluster
from m4cast.spark_connector.errors import ConnectorError
from tests.spark_connector.test_stream import TIMEOUT_S, drop, files, ids


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def test_a_batch_of_a_name_is_published_once(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster
) -> None:
    for _ in range(2):
        m4cast.fanout(spark.range(3), topic=topic, name=topic, nodes=nodes.split(","), batch_id=5, acks=1)
    m4cast.fanout(spark.range(3, 5), topic=topic, name=topic, nodes=nodes, batch_id=6)
    with pytest.raises(PySparkException, match="M4CAST_CHECKPOINT_BEHIND"):
        m4cast.fanout(spark.range(9), topic=topic, name=topic, nodes=nodes, batch_id=4)
    assert ids(cluster, topic) == [0, 1, 2, 3, 4]


def test_a_number_is_needed_outside_of_a_stream(spark: SparkSession, nodes: str, topic: str) -> None:
    with pytest.raises(ConnectorError, match=r"M4CAST_FANOUT.*batch_id"):
        m4cast.fanout(spark.range(3), topic=topic, name=topic, nodes=nodes)


def test_micro_batches_fan_out_once_over_replays(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, inbox: Path, checkpoint: Path
) -> None:
    """The function fails after its fan-out; the next run does the batch again."""
    fails = {1}

    def each(batch: DataFrame, batch_id: int) -> None:
        m4cast.fanout(batch, topic=topic, name=topic, nodes=nodes)
        topics = batch.withColumn("_topic", F.concat(F.lit(f"{topic}-"), F.col("id") % 2))
        m4cast.fanout(topics, name=f"{topic}-parity", nodes=nodes)
        if batch_id in fails:
            fails.remove(batch_id)
            raise RuntimeError("after the fan-out")

    def run() -> None:
        stream = files(spark, inbox).writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
        assert stream.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)

    for first in (0, 10, 20):
        drop(inbox, first, first + 10)
    with pytest.raises(StreamingQueryException, match="after the fan-out"):
        run()
    run()
    assert ids(cluster, topic) == list(range(30))
    assert ids(cluster, f"{topic}-1") == list(range(1, 30, 2))


def test_one_name_twice_in_a_batch_is_an_error(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, inbox: Path, checkpoint: Path
) -> None:
    def each(batch: DataFrame, batch_id: int) -> None:
        m4cast.fanout(batch.where("id < 5"), topic=topic, name=topic, nodes=nodes)
        m4cast.fanout(batch.where("id >= 5"), topic=topic, name=topic, nodes=nodes, batch_id=batch_id)

    drop(inbox, 0, 10)
    stream = files(spark, inbox).writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    with pytest.raises(StreamingQueryException, match=r"M4CAST_FANOUT.*its own name"):
        stream.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)
    assert ids(cluster, topic) == [0, 1, 2, 3, 4]
