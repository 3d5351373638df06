"""Streams through Spark: published once and read once, over restarts, replays and other nodes."""

import json
import os
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Client

TIMEOUT_S = 120


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def drop(inbox: Path, first: int, until: int) -> None:
    """A file with rows; each is a micro-batch. Spark takes the oldest first, and two of one moment in any order."""
    new = inbox.parent / f"{first:09}.json"
    new.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(first, until)))
    os.utime(new, (1_700_000_000 + first,) * 2)
    new.rename(inbox / new.name)


def files(spark: SparkSession, inbox: Path) -> DataFrame:
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", "1").json(str(inbox))


def run(df: DataFrame, format_: str, checkpoint: Path, **options: str) -> StreamingQuery:
    """All there is now."""
    stream = df.writeStream.format(format_).option("checkpointLocation", str(checkpoint)).options(**options)
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    return query


def ids(cluster: LocalCluster, topic: str, name: str = "n1") -> list[int]:
    found: list[int] = cluster.channel(name).read(topic).column("id").to_pylist()
    return found


def source(spark: SparkSession, nodes: str, **options: str) -> DataFrame:
    return spark.readStream.format("m4cast").options(nodes=nodes, startingOffsets="earliest", **options).load()


def test_what_is_published_is_read_once_over_restarts_and_nodes(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, inbox: Path, tmp_path: Path
) -> None:
    first, second = nodes.split(",")
    publisher, reader, table = tmp_path / "publisher", tmp_path / "reader", tmp_path / "table"
    drop(inbox, 0, 50)
    drop(inbox, 50, 100)
    run(files(spark, inbox), "m4cast", publisher, nodes=nodes, topic=topic, acks="1")
    assert ids(cluster, topic) == list(range(100))

    query = run(source(spark, first, topic=topic, maxRowsPerTrigger="40"), "parquet", reader, path=str(table))
    assert [progress.numInputRows for progress in query.recentProgress] == [40, 40, 20]
    assert query.recentProgress[0].sources[0].latestOffset is not None

    drop(inbox, 100, 130)
    run(files(spark, inbox), "m4cast", publisher, nodes=nodes, topic=topic, acks="1")
    run(source(spark, second, topic=topic), "parquet", reader, path=str(table))
    rows = spark.read.parquet(str(table)).orderBy("_sequence").collect()
    assert [(row.id, row._sequence) for row in rows] == [(number, number + 1) for number in range(130)]


def test_a_replayed_micro_batch_is_not_published_again(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, inbox: Path, checkpoint: Path
) -> None:
    drop(inbox, 0, 10)
    drop(inbox, 10, 20)
    run(files(spark, inbox), "m4cast", checkpoint, nodes=nodes, topic=topic)
    # As if the driver had died after the node's commit and before Spark's.
    for log in (checkpoint / "commits" / "1", checkpoint / "commits" / ".1.crc"):
        log.unlink(missing_ok=True)
    drop(inbox, 20, 30)
    query = run(files(spark, inbox), "m4cast", checkpoint, nodes=nodes, topic=topic)
    assert [progress.batchId for progress in query.recentProgress if progress.numInputRows] == [1, 2]
    assert ids(cluster, topic) == list(range(30))


def test_a_sink_id_belongs_to_one_query_until_it_is_taken_over(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, inbox: Path, checkpoint: Path
) -> None:
    drop(inbox, 0, 10)
    query = run(files(spark, inbox), "m4cast", checkpoint, nodes=nodes, topic=topic, sinkId=topic)
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match=rf"M4CAST_SINK_TAKEN.*takeover.*{query.id}/0"):
        run(files(spark, inbox), "m4cast", checkpoint, nodes=nodes, topic=topic, sinkId=topic)
    assert ids(cluster, topic) == list(range(10))

    (inbox / f"{0:09}.json").unlink()
    shutil.rmtree(checkpoint)
    drop(inbox, 10, 20)
    taking = {"sinkId": topic, "takeover": f"{query.id}/0"}
    for _ in range(2):  # afterwards the option may stay
        run(files(spark, inbox), "m4cast", checkpoint, nodes=nodes, topic=topic, **taking)
        drop(inbox, 20, 30)
    assert ids(cluster, topic) == list(range(30))


def test_of_two_queries_under_one_sink_id_one_publishes(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, inbox: Path, tmp_path: Path
) -> None:
    for first in range(0, 60, 10):
        drop(inbox, first, first + 10)
    options = {"nodes": nodes, "topic": topic, "sinkId": topic}
    queries = [
        files(spark, inbox)
        .writeStream.format("m4cast")
        .options(**options, checkpointLocation=str(tmp_path / f"checkpoint-{number}"))
        .trigger(availableNow=True)
        .start()
        for number in range(2)
    ]
    refused = []
    for query in queries:
        try:
            assert query.awaitTermination(TIMEOUT_S)
        except StreamingQueryException as error:
            refused.append(str(error))
    assert len(refused) == 1 and "M4CAST_SINK_TAKEN" in refused[0]
    assert ids(cluster, topic) == list(range(60))


def test_topics_of_a_pattern_appear_without_a_new_query(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, checkpoint: Path, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    channel = cluster.channel("n1")
    channel.publish(f"{topic}-a", [{"id": 1}])
    pattern = {"topicPattern": f"{topic}-.*", "reader": topic}
    run(source(spark, nodes, **pattern), "parquet", checkpoint, path=table)
    cluster.channel("n2").publish(f"{topic}-a", [{"id": 2}], acks=1)
    channel.publish(f"{topic}-b", [{"id": 3}])
    run(source(spark, nodes, maxBytesPerTrigger="1", **pattern), "parquet", checkpoint, path=table)
    rows = spark.read.parquet(table).collect()
    assert sorted((row.id, row._topic[-1], row._sequence) for row in rows) == [(1, "a", 1), (2, "a", 1), (3, "b", 1)]
    assert len({row._origin for row in rows}) == 2
    for name in cluster.names():
        (lease,) = [each for each in cluster.channel(name).readers() if each["reader"] == topic]
        assert lease["live"] and f"{topic}-a" in lease["frontier"], "rows are kept for it at every node"


def test_new_columns_end_a_stream_by_name_and_a_restart_reads_them(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, checkpoint: Path, tmp_path: Path
) -> None:
    channel = cluster.channel("n1")
    channel.publish(topic, [{"id": 1}])
    planned = source(spark, nodes, topic=topic)
    channel.publish(topic, [{"id": 2, "more": "x"}])
    with pytest.raises(StreamingQueryException) as failed:
        run(planned, "parquet", checkpoint, path=str(tmp_path / "table"))
    said = str(failed.value).splitlines()
    at = next(number for number, line in enumerate(said) if "[M4CAST_NEW_COLUMNS]" in line)
    assert at <= 4 and "restart the query" in said[at], "not behind the connector's frames"
    run(source(spark, nodes, topic=topic), "parquet", checkpoint, path=str(tmp_path / "table"))
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("id").collect()
    assert [(row.id, row.more) for row in rows] == [(1, None), (2, "x")]


def test_a_micro_batch_without_rows_moves_on(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, inbox: Path, checkpoint: Path
) -> None:
    for first in (0, 10, 20):
        drop(inbox, first, first + 10)
    run(files(spark, inbox).where("id < 10 or id >= 20"), "m4cast", checkpoint, nodes=nodes, topic=topic)
    assert ids(cluster, topic) == [*range(10), *range(20, 30)]


def test_only_append_is_published(spark: SparkSession, nodes: str, topic: str, inbox: Path, checkpoint: Path) -> None:
    counted = files(spark, inbox).groupBy().count()
    drop(inbox, 0, 10)
    for mode, error in (("update", "does not support Update mode"), ("complete", "M4CAST_APPEND_ONLY")):
        options = {"nodes": nodes, "topic": topic, "checkpointLocation": str(checkpoint)}
        stream = counted.writeStream.format("m4cast").outputMode(mode).options(**options).trigger(availableNow=True)
        with pytest.raises(PySparkException, match=error):
            stream.start().awaitTermination(TIMEOUT_S)


def test_a_stream_goes_on_when_its_access_point_comes_back(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, inbox: Path, checkpoint: Path
) -> None:
    options = {"nodes": nodes, "topic": topic, "checkpointLocation": str(checkpoint)}
    drop(inbox, 0, 10)
    query = files(spark, inbox).writeStream.format("m4cast").options(**options).start()
    try:
        query.processAllAvailable()
        cluster.kill("n1")
        drop(inbox, 10, 20)
        cluster.start("n1")
        query.processAllAvailable()
    finally:
        query.stop()
    assert ids(cluster, topic) == list(range(20))


def test_a_client_s_notifications_are_read_once_over_restarts_replays_and_nodes(
    spark: SparkSession, nodes: str, topic: str, cluster: LocalCluster, checkpoint: Path, tmp_path: Path
) -> None:
    first, second = nodes.split(",")
    secret, table = "a-secret-of-this-test", tmp_path / "table"
    client = Client([first], key=topic, credential=secret)
    client.connect(create=True)
    client.subscribe(topic, "id < 40", start="earliest")
    client.subscribe(topic, "id >= 30", name="more", start="earliest")
    client.disconnect()
    cluster.channel("n1").publish(topic, [{"id": number} for number in range(50)], acks=1)

    def run_at(door: str) -> StreamingQuery:
        options = {"nodes": door, "client": topic, "credential": secret, "maxRowsPerTrigger": "20"}
        notifications = spark.readStream.format("m4cast").options(**options).load()
        return run(notifications, "parquet", checkpoint, path=str(table))

    assert [progress.numInputRows for progress in run_at(first).recentProgress] == [20, 20, 10]
    for log in (checkpoint / "commits" / "2", checkpoint / "commits" / ".2.crc"):  # as if the driver had died
        log.unlink(missing_ok=True)
    cluster.channel("n2").publish(topic, [{"id": number} for number in range(50, 60)], acks=1)
    again = run_at(f"{second},{first}")
    assert [progress.numInputRows for progress in again.recentProgress if progress.numInputRows] == [10]
    assert sorted(row.id for row in spark.read.parquet(str(table)).collect()) == list(range(60))
    assert sum(client.saved().frontier[topic].values()) >= 50, "the access point knows what is finished"
