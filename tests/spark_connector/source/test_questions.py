"""Tables and queries as batch sources, by the methods that Spark calls, with real nodes."""

from typing import Any

import pyarrow as pa
import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.provider import M4castDataSource


def rows_of(**options: str) -> pa.Table:
    """All rows, and the partitions that they are read by, as a task gets them."""
    source = M4castDataSource(options)
    reader = source.reader(source.schema())
    partitions = list(reader.partitions())
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def partitions_of(**options: str) -> list[Any]:
    source = M4castDataSource(options)
    return [partition.value for partition in source.reader(source.schema()).partitions()]


def test_a_table_is_read_as_it_stands(topic: str, nodes: str, cluster: LocalCluster) -> None:
    channel = cluster.channel("n1")
    writer = channel.table_writer(topic, "ann")
    writer.put({"a": {"price": 1}, "b": {"price": 2}, "c": {"price": 3}})
    writer.put({"a": {"price": 10}})
    writer.remove(["c"], acks=1)
    found = rows_of(nodes=nodes, topic=topic, read="table")
    assert sorted(zip(found["_name"].to_pylist(), found["price"].to_pylist(), strict=True)) == [("a", 10), ("b", 2)]
    assert found["_topic"].to_pylist() == [topic] * 2
    few = rows_of(nodes=nodes, topic=topic, read="table", where="price < 5")
    assert few["_name"].to_pylist() == ["b"], "a stood at 1 once"


def test_a_topic_that_is_no_table_is_refused(topic: str, nodes: str, cluster: LocalCluster) -> None:
    cluster.channel("n1").publish(topic, [{"id": 1}])
    with pytest.raises(ConnectorError, match="is no table"):
        rows_of(nodes=nodes, topic=topic, read="table")


def test_a_query_has_a_partition_for_each_node_that_answers(topic: str, nodes: str, cluster: LocalCluster) -> None:
    for name, first in (("n1", 0), ("n2", 100)):
        cluster.channel(name).publish(topic, [{"id": number} for number in range(first, first + 10)], acks=1)
    planned = partitions_of(nodes=nodes, topic=topic, scope="channel")
    doors = {name: cluster.node(name).door for name in ("n1", "n2")}
    assert sorted(asked[0] for asked, _ in planned) == sorted(doors.values())
    assert all(set(asked) == set(doors.values()) for asked, _ in planned), "the others are asked if it is lost"
    assert [(span.first, span.next) for _, spans in planned for span, _ in spans] == [(1, 11), (1, 11)]
    found = rows_of(nodes=nodes, topic=topic, scope="channel")
    assert sorted(found["id"].to_pylist()) == [*range(10), *range(100, 110)]
    few = rows_of(nodes=nodes, topic=topic, scope="channel", where="id IN (3, 104)")
    assert sorted(few["id"].to_pylist()) == [3, 104]


def test_a_query_of_a_table_has_the_rows_that_stand(topic: str, nodes: str, cluster: LocalCluster) -> None:
    here, there = cluster.channel("n1"), cluster.channel("n2")
    ann = here.table_writer(topic, "ann", session=1)
    ann.put({name: {"price": 1} for name in "abcd"}, acks=1)
    ann.put({"a": {"price": 10}}, acks=1)
    moved = there.table_writer(topic, "ann", session=2)
    moved.put({"b": {"price": 10}}, acks=1)
    moved.remove(["c"], acks=1)
    found = rows_of(nodes=nodes, topic=topic, scope="channel")
    assert dict(zip(found["_name"].to_pylist(), found["price"].to_pylist(), strict=True)) == {"a": 10, "b": 10, "d": 1}
    assert set(found["_topic"].to_pylist()) == {topic}
    few = rows_of(nodes=nodes, topic=topic, scope="channel", where="price < 5")
    assert few["_name"].to_pylist() == ["d"], "the others stood at 1 once"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scope": "channel", "startingOffsets": "earliest"}, "startingOffsets has no effect with scope"),
        ({"scope": "channel", "read": "raw"}, "scope has no effect with read = raw"),
        ({"read": "table", "startingOffsets": "earliest"}, "startingOffsets has no effect with read = table"),
        ({"read": "table", "metadata": "_node"}, "metadata has no effect with read = table"),
        ({"scope": "world"}, "scope"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConnectorError, match=said):
        read_options(parse({"nodes": "h:1", "topic": "t", **options}), streaming=False)


@pytest.mark.parametrize("options", [{"scope": "channel"}, {"read": "table"}])
def test_neither_is_a_stream(options: dict[str, str]) -> None:
    with pytest.raises(ConnectorError, match=r"spark\.read|only for batch reads"):
        read_options(parse({"nodes": "h:1", "topic": "t", **options}), streaming=True)
    with pytest.raises(ConnectorError, match="no topic"):
        read_options(parse({"nodes": "h:1", **options}), streaming=False)
