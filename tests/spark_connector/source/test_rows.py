"""The source by its own methods, as Spark calls them, with real nodes: offsets, replays, data loss, leases."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructType

from m4cast.cluster.local import LocalCluster
from m4cast.spark_connector import offsets
from m4cast.spark_connector.columns import merged, spark_schema
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import METADATA, parse, read_options
from m4cast.spark_connector.source.rows import BatchReader, StreamReader, schema_of
from m4cast.spark_connector.source_filter import SourceFilter
from tests.processes.clusters import until

ALL = ReadAllAvailable()
SCHEMA = spark_schema(merged([("", pa.schema([("id", pa.int64())]))], METADATA))


def stream(nodes: str, **options: str) -> StreamReader:
    return stream_of(SCHEMA, nodes=nodes, **options)


def stream_of(schema: StructType, **options: str) -> StreamReader:
    return StreamReader(read_options(parse(options), streaming=True), schema, drop_others=False)


def planned(reader: StreamReader, start: Any, limit: Any = ALL) -> dict[str, Any]:
    """The end of the next micro-batch, by way of the checkpoint."""
    end: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(json.loads(json.dumps(start)), limit)))
    return end


def rows_of(reader: StreamReader, start: Any, end: Any) -> pa.Table:
    batches = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
    return pa.Table.from_batches(batches)


def numbers(first: int, until_: int) -> list[dict[str, int]]:
    return [{"id": number} for number in range(first, until_)]


@pytest.fixture
def doors(nodes: str) -> tuple[str, str]:
    first, second = nodes.split(",")
    return first, second


# ---- filters


def test_a_filtered_range_is_the_same_each_time_and_an_offset_passes_over_what_does_not_match(
    topic: str, doors: tuple[str, str], cluster: LocalCluster
) -> None:
    written = cluster.channel("n1").publish(topic, numbers(0, 20), acks=1)[0]
    for first in range(20, 100, 20):
        (written,) = cluster.channel("n1").publish(topic, numbers(first, first + 20), acks=1)
    reader = stream(",".join(doors), topic=topic, where="id IN (3, 50, 51, 99)", startingOffsets="earliest")
    start = reader.initialOffset()
    end = planned(reader, start)
    assert offsets.without_skips(end) == {topic: {written.origin: 101}} == reader.reportLatestOffset()
    assert planned(reader, end) == end
    for nodes in (*doors, ",".join(doors)):
        other = stream(nodes, topic=topic, minPartitions="7", where="id > 1000")  # the offset's filter counts
        found = rows_of(other, start, end)
        assert list(zip(*found.select(["id", "_sequence"]).to_pydict().values(), strict=True)) == [
            (3, 4),
            (50, 51),
            (51, 52),
            (99, 100),
        ]
    cluster.channel("n1").publish(topic, numbers(100, 200), acks=1)
    beyond = planned(reader, end)
    assert beyond[topic] == {written.origin: 201}
    assert [batch for partition in reader.partitions(end, beyond) for batch in reader.read(partition)] == []


def test_another_filter_is_logged_and_one_that_stays_is_not(
    topic: str, nodes: str, cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.channel("n1").publish(topic, numbers(0, 3))
    reader = stream(nodes, topic=topic, where="id > 5", startingOffsets="earliest")
    end = planned(reader, reader.initialOffset())
    assert not caplog.records
    cluster.channel("n1").publish(topic, numbers(3, 6))
    after = planned(stream(nodes, topic=topic, where="id > 6"), end)
    (record,) = caplog.records
    assert "where was changed from 'id > 5' to 'id > 6'" in record.getMessage()
    assert offsets.filter_of(after) == SourceFilter("id > 6")


# ---- what a micro-batch takes


def test_without_news_an_offset_stays_and_news_move_it(topic: str, nodes: str, cluster: LocalCluster) -> None:
    reader = stream(nodes, topic=topic)
    start = reader.initialOffset()
    assert start == {} == planned(reader, start) == planned(reader, start)
    (first,) = cluster.channel("n1").publish(topic, numbers(0, 3))
    end = planned(reader, start)
    assert end == {topic: {first.origin: 4}} == reader.reportLatestOffset() == planned(reader, end)
    (second,) = cluster.channel("n2").publish(topic, numbers(3, 5), acks=1)
    assert planned(reader, end) == {topic: {first.origin: 4, second.origin: 3}}
    assert rows_of(reader, end, planned(reader, end))["id"].to_pylist() == [3, 4]


def test_a_pattern_takes_topics_as_they_come(topic: str, nodes: str, cluster: LocalCluster) -> None:
    reader = stream(nodes, topicPattern=f"{topic}-[ab]")
    start = reader.initialOffset()
    assert planned(reader, start) == start == {}
    for letter in "abc":
        cluster.channel("n1").publish(f"{topic}-{letter}", numbers(0, 1))
    assert sorted(planned(reader, start)) == [f"{topic}-a", f"{topic}-b"]


def test_few_rows_wait_for_more_but_not_for_ever(topic: str, nodes: str, cluster: LocalCluster) -> None:
    patient = stream(nodes, topic=topic, minRowsPerTrigger="5", maxTriggerDelay="1h")
    hasty = stream(nodes, topic=topic, minRowsPerTrigger="5", maxTriggerDelay="0ms")
    ending = stream(nodes, topic=topic, minRowsPerTrigger="5")
    (written,) = cluster.channel("n1").publish(topic, numbers(0, 3))
    everything = {topic: {written.origin: 4}}
    assert planned(patient, {}) == {}
    assert planned(hasty, {}) == everything
    ending.prepareForTriggerAvailableNow()
    assert planned(ending, {}) == everything
    cluster.channel("n1").publish(topic, numbers(3, 5))
    assert planned(patient, {}) == {topic: {written.origin: 6}}
    cluster.channel("n1").publish(topic, numbers(5, 9))
    assert planned(patient, {topic: {written.origin: 6}}) == {topic: {written.origin: 6}}, "it waits anew"


def test_a_target_of_now_is_not_moved_by_what_comes(topic: str, nodes: str, cluster: LocalCluster) -> None:
    reader = stream(nodes, topic=topic, maxRowsPerTrigger="2")
    (written,) = cluster.channel("n1").publish(topic, numbers(0, 3))
    reader.prepareForTriggerAvailableNow()
    cluster.channel("n1").publish(topic, numbers(3, 9))
    ends: list[dict[str, Any]] = [{}]
    while (end := planned(reader, ends[-1], reader.getDefaultReadLimit())) != ends[-1]:
        ends.append(end)
    assert ends[1:] == [{topic: {written.origin: 3}}, {topic: {written.origin: 4}}]


def test_small_batches_come_together(topic: str, nodes: str, cluster: LocalCluster) -> None:
    for number in range(5):
        cluster.channel("n1").publish(topic, numbers(number, number + 1))
    reader = stream(nodes, topic=topic)
    (partition,) = reader.partitions({}, planned(reader, {}))
    (rows,) = reader.read(partition)
    assert rows.column("id").to_pylist() == [0, 1, 2, 3, 4] and rows.column("_sequence").to_pylist() == [1, 2, 3, 4, 5]


def test_rows_travel_compressed_if_asked_for(topic: str, nodes: str, cluster: LocalCluster) -> None:
    cluster.channel("n1").publish(topic, numbers(0, 5_000))
    plain = stream(nodes, topic=topic)
    end = planned(plain, {})
    for codec in ("lz4", "zstd"):
        assert rows_of(stream(nodes, topic=topic, compression=codec), {}, end).equals(rows_of(plain, {}, end))


# ---- the same rows again


def test_a_range_is_the_same_each_time_on_each_node_and_after_a_restart(
    topic: str, doors: tuple[str, str], nodes: str, cluster: LocalCluster
) -> None:
    for name in ("n1", "n2"):
        for first in (0, 10, 20):
            cluster.channel(name).publish(topic, numbers(first, first + 10), acks=1)
    until(lambda: cluster.channel("n1").frontier(topic) == cluster.channel("n2").frontier(topic), "both have all")
    origins = cluster.channel("n1").frontier(topic)[topic]
    start, end = {topic: dict.fromkeys(origins, 4)}, {topic: dict.fromkeys(origins, 28)}
    cut = {"topic": topic, "maxRowsPerPartition": "7"}
    tables = [rows_of(stream(door, **cut), start, end) for door in (doors[0], doors[0], doors[1], nodes)]
    cluster.kill("n2")
    cluster.start("n2")
    tables.append(rows_of(stream(doors[1], **cut), start, end))
    assert tables[0].num_rows == 2 * 24
    assert all(table.equals(tables[0]) for table in tables)


def test_an_offset_of_one_node_goes_on_at_another_that_is_behind(
    topic: str, doors: tuple[str, str], cluster: LocalCluster
) -> None:
    cluster.channel("n1").publish(topic, numbers(0, 5), acks=1)
    here = stream(doors[0], topic=topic)
    start = planned(here, {})
    cluster.kill("n2")
    cluster.channel("n1").publish(topic, numbers(5, 10))
    end = planned(here, start)
    cluster.start("n2")
    there = stream(doors[1], topic=topic)
    assert rows_of(there, start, end)["id"].to_pylist() == [5, 6, 7, 8, 9]
    behind = {topic: {origin: position + 100 for origin, position in end[topic].items()}}
    assert planned(there, behind) == behind, "an offset never goes back"


# ---- what is gone


@pytest.fixture
def gone(topic: str, cluster: LocalCluster) -> str:
    """Rows 1-10 of an origin that nobody keeps, 11-12 that are there; who wrote them."""
    channel = cluster.channel("n1")
    (written,) = channel.publish(topic, numbers(0, 10), acks=1)
    for name in cluster.names():
        cluster.channel(name).delete_topic(topic)
    channel.publish(topic, numbers(10, 12), acks=1)
    return written.origin


def test_rows_that_are_gone_fail_the_plan_by_name(topic: str, nodes: str, gone: str) -> None:
    with pytest.raises(ConnectorError, match=rf"M4CAST_DATA_LOSS.*{topic}.*{gone}: no node keeps rows 4 to 10 "):
        planned(stream(nodes, topic=topic), {topic: {gone: 4}})


def test_rows_that_are_passed_over_are_in_the_offset(topic: str, nodes: str, gone: str) -> None:
    reader = stream(nodes, topic=topic, failOnDataLoss="false", maxRowsPerTrigger="1")
    start = {topic: {gone: 4}}
    end = planned(reader, start, reader.getDefaultReadLimit())
    assert end == {topic: {gone: 12}, "": {topic: {gone: [4, 11]}}}
    for _ in range(2):
        assert rows_of(reader, start, end)["_sequence"].to_pylist() == [11]
    last = planned(reader, end, reader.getDefaultReadLimit())
    assert last == {topic: {gone: 13}} == planned(reader, last)
    assert rows_of(reader, end, last)["_sequence"].to_pylist() == [12]


def test_a_task_passes_over_what_went_after_the_plan(topic: str, nodes: str, gone: str) -> None:
    end = {topic: {gone: 13}}
    reader = stream(nodes, topic=topic, failOnDataLoss="false")
    assert rows_of(reader, {topic: {gone: 4}}, end)["_sequence"].to_pylist() == [11, 12]
    with pytest.raises(ConnectorError, match=rf"M4CAST_DATA_LOSS.*{gone}: rows 4 to 10 "):
        rows_of(stream(nodes, topic=topic), {topic: {gone: 4}}, end)


def test_a_node_that_is_away_may_have_the_rows(topic: str, nodes: str, gone: str) -> None:
    reader = stream(f"{nodes},127.0.0.1:1", topic=topic, failOnDataLoss="false")
    assert planned(reader, {topic: {gone: 4}}) == {topic: {gone: 13}}


# ---- nodes that keep different parts


@pytest.fixture
def trimmed(topic: str, cluster: LocalCluster) -> str:
    """Rows 1-12 of an origin; n1 keeps only 11 and 12, n2 all of them; who wrote them."""
    channel = cluster.channel("n1")
    (written,) = channel.publish(topic, numbers(0, 10), acks=1)
    channel.delete_topic(topic)
    channel.publish(topic, numbers(10, 12), acks=1)
    return written.origin


@pytest.mark.parametrize("edge", [{"startingOffsets": "earliest"}, {"startingTimestamp": "0"}])
def test_a_stream_begins_with_what_any_listed_node_keeps(
    topic: str, nodes: str, trimmed: str, edge: dict[str, str]
) -> None:
    for listed in (nodes, ",".join(reversed(nodes.split(",")))):
        reader = stream(listed, topic=topic, **edge)
        start = reader.initialOffset()
        assert start == {topic: {trimmed: 1}}
        assert rows_of(reader, start, planned(reader, start))["id"].to_pylist() == list(range(12))


@pytest.mark.parametrize("edge", [{}, {"startingTimestamp": "0"}])
def test_a_batch_has_what_any_listed_node_keeps(topic: str, nodes: str, trimmed: str, edge: dict[str, str]) -> None:
    assert batch_ids(nodes=nodes, topic=topic, **edge) == list(range(12))
    assert batch_ids(nodes=nodes, topicPattern=topic, **edge) == list(range(12))


def test_columns_are_those_that_any_listed_node_has(topic: str, nodes: str, cluster: LocalCluster) -> None:
    channel = cluster.channel("n1")
    channel.publish(topic, [{"id": 0, "old": "x"}], acks=1)
    channel.delete_topic(topic)
    channel.publish(topic, [{"id": 1}], acks=1)
    cluster.kill("n1")  # what it has removed it does not know any more
    cluster.start("n1")
    given = {"nodes": nodes, "topic": topic, "startingOffsets": "earliest"}
    schema = schema_of(read_options(parse(given), streaming=True))
    assert schema.names == ["id", "old", *METADATA]
    reader = stream_of(schema, **given)
    start = reader.initialOffset()
    rows = rows_of(reader, start, planned(reader, start))
    assert rows.select(["id", "old"]).to_pylist() == [{"id": 0, "old": "x"}, {"id": 1, "old": None}]


def test_columns_come_from_the_nodes_that_answer(
    topic: str, doors: tuple[str, str], nodes: str, cluster: LocalCluster
) -> None:
    cluster.kill("n2")
    try:
        cluster.channel("n1").publish(topic, numbers(0, 1))
        for listed in (nodes, f"{doors[1]},{doors[0]}"):
            assert schema_of(read_options(parse({"nodes": listed, "topic": topic}), streaming=True)) == SCHEMA
    finally:
        cluster.start("n2")
    with pytest.raises(ConnectorError, match=rf"M4CAST_UNKNOWN_TOPIC.*{topic}-x"):
        schema_of(read_options(parse({"nodes": nodes, "topic": f"{topic}-x"}), streaming=True))


def test_of_a_node_that_is_away_nothing_is_planned(
    topic: str, doors: tuple[str, str], trimmed: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert batch_ids(nodes=f"127.0.0.1:1,{doors[0]}", topic=topic) == [10, 11]
    assert "127.0.0.1:1" in caplog.text, "it is said that rows may be missing"


def batch_ids(**options: str) -> list[int]:
    reader = BatchReader(read_options(parse(options), streaming=False), SCHEMA, drop_others=False)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return [number for batch in batches for number in batch.column("id").to_pylist()]


# ---- rows that are kept


def test_a_lease_is_renewed_by_itself_and_holds_retention_back(cluster: LocalCluster, topic: str) -> None:
    """The node has a neighbour: one that is alone trusts its clock slowly, and takes a minute to let a lease expire."""
    channel, door = cluster.channel("n1"), cluster.node("n1").door
    held, free = f"{topic}-held", f"{topic}-free"
    for each in (held, free):
        channel.publish(each, numbers(0, 10))
        channel.set_retention(each, max_bytes=0)
    reader = stream(door, topic=held, reader=topic, leaseMs="1000")
    end = planned(reader, {})
    expiries = set()

    def is_renewed() -> bool:
        (lease,) = [lease for lease in channel.readers() if lease["reader"] == topic]
        expiries.add(lease["expires_at_ms"])
        return len(expiries) > 3

    until(is_renewed, "it was renewed more often than it would have lasted, while nothing was asked")
    until(lambda: channel.earliest(free) == channel.frontier(free), "what nobody holds is gone")
    assert rows_of(reader, {}, end)["id"].to_pylist() == list(range(10))
    reader.stop()
    until(lambda: channel.earliest(held) == channel.frontier(held), "it is not renewed any more")


# ---- columns


def test_a_topic_of_another_schema_stops_a_pattern_and_nothing_is_lost(
    topic: str, nodes: str, cluster: LocalCluster
) -> None:
    channel = cluster.channel("n1")
    channel.publish(f"{topic}-a", numbers(0, 2))
    pattern = {"topicPattern": f"{topic}-.*"}
    reader = stream(nodes, **pattern)
    start = planned(reader, {})
    channel.publish(f"{topic}-b", [{"id": 2, "more": "x"}])
    end = planned(reader, start)
    with pytest.raises(ConnectorError, match=r"M4CAST_NEW_COLUMNS.*more"):
        rows_of(reader, start, end)
    assert rows_of(stream(nodes, **pattern, onNewColumns="ignore"), start, end)["id"].to_pylist() == [2]
    options = read_options(parse({"nodes": nodes, **pattern}), streaming=True)
    again = stream_of(schema_of(options), nodes=nodes, **pattern)
    assert rows_of(again, start, end).select(["id", "more"]).to_pylist() == [{"id": 2, "more": "x"}]


def test_topics_that_contradict_each_other_are_named_and_raw_batches_are_not_opened(
    topic: str, nodes: str, cluster: LocalCluster
) -> None:
    channel = cluster.channel("n1")
    channel.publish(f"{topic}-a", numbers(0, 2))
    given = {"nodes": nodes, "topicPattern": f"{topic}-.*"}
    reader = stream(**given)
    start = planned(reader, {})
    channel.publish(f"{topic}-b", [{"id": "two"}])
    end = planned(reader, start)
    with pytest.raises(ConnectorError, match=r"M4CAST_COLUMN_TYPE.*'id' is string"):
        rows_of(reader, start, end)
    with pytest.raises(ConnectorError, match=rf"M4CAST_SCHEMA_CONFLICT.*'id' is int64 in '{topic}-a'"):
        schema_of(read_options(parse(given), streaming=True))
    options = read_options(parse({**given, "read": "raw"}), streaming=True)
    raw = StreamReader(options, schema_of(options), drop_others=False)
    assert rows_of(raw, {}, end)["_topic"].to_pylist() == [f"{topic}-a", f"{topic}-b"]


def test_origins_that_contradict_each_other_are_named_and_a_schema_reads_both(
    topic: str, nodes: str, cluster: LocalCluster
) -> None:
    staged = {
        name: cluster.channel(name).stage(topic, [{"id": value}])  # neither knows of the other yet
        for name, value in (("n1", 1), ("n2", "two"))
    }
    origins = [cluster.channel(name).commit(ids, acks=1)[0].origin for name, ids in staged.items()]
    given = {"nodes": nodes, "topic": topic}
    with pytest.raises(ConnectorError) as refused:
        schema_of(read_options(parse(given), streaming=True))
    assert refused.value.id == "M4CAST_SCHEMA_CONFLICT" and "column 'id' is" in refused.value.problem
    assert all(origin in refused.value.problem for origin in origins)
    end = {topic: dict.fromkeys(origins, 2)}
    as_text = StructType().add("id", StringType()).add("_origin", StringType())
    assert sorted(rows_of(stream_of(as_text, **given), {}, end)["id"].to_pylist()) == ["1", "two"]
