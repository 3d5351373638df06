"""Positions from which a key is moved, rows that cannot be published, and what the driver does with what tasks have
staged."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructType

from m4cast.cluster.local import LocalCluster
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import WriteOptions, parse, write_options
from m4cast.spark_connector.sink import writers
from m4cast.spark_connector.sink.writers import BatchWriter, StagedRows, Staging, StreamWriter, check_columns, expected
from tests.processes.clusters import until
from tests.processes.memory import MemoryWatch


def options(**more: str) -> WriteOptions:
    return write_options(parse({"nodes": "a:1", **more}))


def test_a_key_goes_from_where_its_query_left_it() -> None:
    assert expected(None, "q", 0, options()) is None
    assert expected("q/4", "q", 5, options()) == "q/4"
    assert expected("q/4", "q", 9, options()) == "q/4", "micro-batches without partitions do not move it"


def test_a_replayed_micro_batch_is_left_to_the_node() -> None:
    assert expected("q/5", "q", 5, options()) is None


def test_an_older_checkpoint_is_refused() -> None:
    with pytest.raises(ConnectorError, match=r"M4CAST_CHECKPOINT_BEHIND.*query published, 6"):
        expected("q/6", "q", 5, options())


def test_another_querys_key_is_refused_with_the_fix() -> None:
    with pytest.raises(ConnectorError, match=r'M4CAST_SINK_TAKEN.*option\("takeover", "p/6"\)'):
        expected("p/6", "q", 7, options(sinkId="s"))


def test_a_takeover_is_of_the_very_position() -> None:
    assert expected("p/6", "q", 0, options(sinkId="s", takeover="p/6")) == "p/6"
    assert expected("q/0", "q", 1, options(sinkId="s", takeover="p/6")) == "q/0"
    with pytest.raises(ConnectorError, match="M4CAST_SINK_TAKEN"):
        expected("p/7", "q", 0, options(sinkId="s", takeover="p/6"))


@pytest.mark.parametrize(
    "name", ["_origin", "_sequence", "_published_at", "_channel", "_node", "_m4cast_x", "_Sequence", "_TOPIC", "_Key"]
)
def test_columns_of_the_channel_cannot_be_published(name: str) -> None:
    schema = StructType().add("a", LongType()).add(name, LongType())
    with pytest.raises(ConnectorError, match=rf"M4CAST_RESERVED_COLUMN.*{name}"):
        check_columns(schema, options(topic="t"))


def test_a_topic_is_needed() -> None:
    check_columns(StructType().add("a", LongType()).add("_topic", LongType()), options())
    check_columns(StructType().add("a", LongType()), options(topic="t"))
    with pytest.raises(ConnectorError, match="M4CAST_NO_TOPIC"):
        check_columns(StructType().add("a", LongType()), options())
    with pytest.raises(ConnectorError, match="M4CAST_NO_TOPIC"):
        check_columns(StructType().add("_topic", LongType()), options(topic="t"))


def test_keys_and_headers_have_their_types() -> None:
    header = StructType().add("key", StringType()).add("value", BinaryType())
    for key in (StringType(), BinaryType()):
        check_columns(StructType().add("_key", key).add("_headers", ArrayType(header)), options(topic="t"))
    with pytest.raises(ConnectorError, match=r"M4CAST_COLUMN_TYPE.*_key.*bigint.*cast it to binary or string"):
        check_columns(StructType().add("_key", LongType()), options(topic="t"))
    with pytest.raises(ConnectorError, match=r"M4CAST_COLUMN_TYPE.*_headers.*array<struct<key:string,value:binary>>"):
        check_columns(StructType().add("_headers", header), options(topic="t"))


def test_keys_travel_as_binary(cluster: LocalCluster, nodes: str, topic: str) -> None:
    given = options(nodes=nodes, topic=topic)
    staging = Staging(given)
    staging.add(pa.RecordBatch.from_pydict({"_key": ["a", None], "id": [1, 2]}))
    staging.add(pa.RecordBatch.from_pydict({"_key": [b"b"], "id": [3]}))
    staging.flush()
    BatchWriter(given).commit([StagedRows(tuple(staging.stage_ids), 0, None)])
    assert cluster.channel("n1").read(topic)["_key"].to_pylist() == [b"a", None, b"b"]


def staged(given: WriteOptions, *ids: int, query: str = "q") -> StagedRows:
    """The message that a task leaves for the driver."""
    staging = Staging(given)
    staging.add(pa.RecordBatch.from_pydict({"id": list(ids)}))
    staging.flush()
    return StagedRows(tuple(staging.stage_ids), 0, query, dict(staging.bytes_by_topic))


def published(cluster: LocalCluster, topic: str) -> list[int]:
    found: list[int] = cluster.channel("n1").read(topic).column("id").to_pylist()
    return found


def test_an_abort_after_the_commit_destroys_nothing(cluster: LocalCluster, nodes: str, topic: str) -> None:
    given = options(nodes=nodes, topic=topic, sinkId=topic)
    writer, message = StreamWriter(given), staged(given, 1, 2)
    writer.commit([message], 0)
    writer.abort([message, None], 0)
    assert published(cluster, topic) == [1, 2]


def test_a_commit_after_the_abort_fails(cluster: LocalCluster, nodes: str, topic: str) -> None:
    given = options(nodes=nodes, topic=topic, sinkId=topic)
    writer, message = StreamWriter(given), staged(given, 1, 2)
    writer.abort([message], 0)
    with pytest.raises(ConnectorError, match="M4CAST_STAGE_LOST"):
        writer.commit([message], 0)
    writer.commit([staged(given, 1, 2)], 0)
    assert published(cluster, topic) == [1, 2]


def test_micro_batches_are_published_once_in_the_order_of_partitions(
    cluster: LocalCluster, nodes: str, topic: str
) -> None:
    given = options(nodes=nodes, topic=topic, sinkId=topic)
    later, earlier = replace(staged(given, 3, 4), partition=1), staged(given, 1, 2)
    StreamWriter(given).commit([later, earlier], 0)
    StreamWriter(given).commit([], 1)
    for _ in range(2):  # replayed, staged anew
        StreamWriter(given).commit([staged(given, 5)], 2)
    with pytest.raises(ConnectorError, match="M4CAST_CHECKPOINT_BEHIND"):
        StreamWriter(given).commit([staged(given, 1)], 1)
    with pytest.raises(ConnectorError, match="M4CAST_SINK_TAKEN"):
        StreamWriter(given).commit([staged(given, 6, query="p")], 3)
    assert published(cluster, topic) == [1, 2, 3, 4, 5]


def everything(cluster: LocalCluster, topic: str) -> list[int]:
    """The rows of all origins that both nodes have."""
    for name in cluster.names():
        until(lambda name=name: cluster.channel(name).frontier(topic) == cluster.channel().frontier(topic), "both")  # type: ignore[misc]
    return sorted(published(cluster, topic))


@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_a_micro_batch_is_published_once_also_when_the_nodes_are_listed_in_another_order(
    cluster: LocalCluster, nodes: str, topic: str, tmp_path: Path, kind: str
) -> None:
    first, second = nodes.split(",")
    common = {"topic": topic, "sinkId": topic, "acks": "1", "receipts": str(tmp_path)}
    one, other = options(nodes=f"{first},{second}", **common), options(nodes=f"{second},{first}", **common)

    def commit(given: WriteOptions, batch_id: int, *ids: int) -> None:
        message = staged(given, *ids)
        if kind == "stream":
            StreamWriter(given).commit([message], batch_id)
        else:
            BatchWriter(replace(given, batch_id=batch_id)).commit([message])

    commit(one, 0, 1, 2)
    (receipt,) = tmp_path.iterdir()
    before = json.loads(receipt.read_text())["streams"]
    receipt.unlink()
    commit(other, 0, 1, 2)  # as after a crash between the node's commit and Spark's
    assert json.loads(receipt.read_text())["streams"] == before, "the receipt is of the first time"
    commit(other, 1, 3)
    commit(other, 1, 3)
    commit(one, 1, 3)  # and back
    commit(one, 2, 4)
    commit(one, 3, 5)
    commit(other, 3, 5)
    with pytest.raises(ConnectorError, match="M4CAST_CHECKPOINT_BEHIND"):
        commit(other, 2, 4)
    assert everything(cluster, topic) == [1, 2, 3, 4, 5]


def test_a_node_that_may_have_published_is_not_passed_over(cluster: LocalCluster, nodes: str, topic: str) -> None:
    first, _ = nodes.split(",")
    given = options(nodes=f"{first},127.0.0.1:1", topic=topic, sinkId=topic, timeoutMs="300")
    with pytest.raises(ConnectorError, match=rf"M4CAST_UNREACHABLE.*published through 127.0.0.1:1.*list {first} alone"):
        StreamWriter(given).commit([staged(given, 1)], 0)
    assert topic not in cluster.channel().topics()
    alone = options(nodes=first, topic=topic, sinkId=topic)
    StreamWriter(alone).commit([staged(alone, 1)], 0)
    StreamWriter(given).commit([staged(given, 2)], 1)  # its key is known to be at the first
    BatchWriter(replace(given, sink_id=None)).commit([staged(given, 3)])
    assert published(cluster, topic) == [1, 2, 3]


def test_a_key_that_was_left_behind_at_a_node_that_was_not_listed_is_found(
    cluster: LocalCluster, nodes: str, topic: str
) -> None:
    first, second = nodes.split(",")
    common = {"topic": topic, "sinkId": topic, "acks": "1"}
    for batch_id, door in enumerate((first, second)):
        given = options(nodes=door, **common)
        StreamWriter(given).commit([staged(given, batch_id)], batch_id)
    both = options(nodes=nodes, **common)
    StreamWriter(both).commit([staged(both, 1)], 1)
    StreamWriter(both).commit([staged(both, 2)], 2)
    assert everything(cluster, topic) == [0, 1, 2]


def test_a_batch_write_that_is_committed_again_is_there_once(cluster: LocalCluster, nodes: str, topic: str) -> None:
    given = options(nodes=nodes, topic=topic)
    writer, message = BatchWriter(given), staged(given, 1, 2)
    for _ in range(2):  # an answer that was lost
        writer.commit([message])
    writer.abort([message])
    BatchWriter(given).commit([staged(given, 3)])
    BatchWriter(given).commit([StagedRows((), 0, None)])
    assert published(cluster, topic) == [1, 2, 3]
    named = options(nodes=nodes, topic=topic, sinkId=topic)
    StreamWriter(named).commit([staged(named, 4)], 0)
    with pytest.raises(ConnectorError, match="M4CAST_SINK_TAKEN"):
        BatchWriter(named).commit([staged(named, 5)])


def test_rows_of_many_topics_keep_their_order(cluster: LocalCluster, nodes: str, topic: str) -> None:
    given = options(nodes=nodes)
    staging = Staging(given)
    for first in (0, 1_000):
        numbers = list(range(first, first + 1_000))
        topics = [f"{topic}-{number % 20}" for number in numbers]
        staging.add(pa.RecordBatch.from_pydict({"_topic": topics, "id": numbers}))
    staging.flush()
    BatchWriter(given).commit([StagedRows(tuple(staging.stage_ids), 0, None)])
    for number in range(20):
        assert published(cluster, f"{topic}-{number}") == list(range(number, 2_000, 20))
    assert staging.bytes_by_topic[f"{topic}-0"] == 100 * 8


def test_more_than_fits_in_memory_passes_through(cluster: LocalCluster, nodes: str, topic: str) -> None:
    """A task that publishes 400 MB holds a small part of it, and so does the node."""
    given = options(nodes=nodes, topic=topic)
    text = pa.array(["x" * 1_000] * 8_000)
    before = pa.total_allocated_bytes()
    most = 0
    with MemoryWatch(cluster, "n1"):
        staging = Staging(given)
        for number in range(50):
            rows = pa.RecordBatch.from_arrays([pa.array([number] * 8_000), text], ["id", "text"])
            staging.add(rows)
            most = max(most, pa.total_allocated_bytes() - before)
        staging.flush()
        BatchWriter(given).commit([StagedRows(tuple(staging.stage_ids), 0, None)])
    assert most < 4 * writers.FLUSH_BYTES
    (held,) = cluster.channel("n1").frontier(topic)[topic].values()
    assert held == 400_001


def test_a_task_stages_before_it_holds_too_much(
    cluster: LocalCluster, nodes: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "FLUSH_BYTES", 1_000)
    given = options(nodes=nodes, topic=topic, batchBytes="1024")
    staging = Staging(given)
    staging.add(pa.RecordBatch.from_pydict({"id": list(range(1_000))}))
    assert len(staging.stage_ids) > 1, "no flush was asked for"
    staging.add(pa.RecordBatch.from_pydict({"id": [1_000]}))
    staging.flush()
    BatchWriter(given).commit([StagedRows(tuple(staging.stage_ids), 0, None)])
    assert published(cluster, topic) == list(range(1_001))
