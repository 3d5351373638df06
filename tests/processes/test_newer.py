"""A cluster that is upgraded node by node: one node is newer than the others."""

from pathlib import Path

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.ids import NodeId, StreamId
from tests.processes.clusters import node_alone, running_cluster, stop_in_order, until
from tests.processes.load import KeyedPublisher
from tests.processes.newer_node import EXTENSION
from tests.processes.reading import assert_acknowledged, assert_delivered, common_frontier, open_store, rows_at


def test_a_newer_node_joins_and_works_both_ways(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", 4) as cluster:
        stop_in_order(cluster, "n4")
        with node_alone(cluster, "n4", "-m", "tests.processes.newer_node"):
            until(lambda: neighbours(cluster) == 3, "the newer node has its neighbours")
            # Small batches are pushed, large ones are announced and pulled; acks go both ways.
            newer = KeyedPublisher("of-the-newer", cluster.channel("n4"), acks=3)
            older = KeyedPublisher("of-the-older", cluster.channel("n1"), acks=3)
            for count in (1, 20, 1_000):
                newer.publish_one(count)
                older.publish_one(count)
            end = common_frontier(cluster, ["of-the-newer", "of-the-older"])
            for publisher in (newer, older):
                assert_acknowledged(rows_at(cluster, "n4", publisher.topic, end), publisher, "n4")
            assert_delivered(cluster, newer, older)
            assert neighbours(cluster) == 3
        cluster.kill("n1")
        said = newer.acknowledged[0]
        stream = StreamId(NodeId(bytes.fromhex(said.origin)), newer.topic)
        store = open_store(cluster, "n1")
        try:
            batches = store.read_range(stream, 1, newer.rows + 1, 1 << 30)
        finally:
            store.close()
        assert [batch.extensions for batch in batches] == [(EXTENSION,)] * 3, "kept byte for byte, under the checksum"


def neighbours(cluster: LocalCluster) -> int:
    """The number of n4's neighbours, as these report it."""
    address = cluster.node("n4").listen
    told = [cluster.channel(name).status()["neighbours"] for name in cluster.running()]
    return sum(neighbour["address"] == address for each in told for neighbour in each)
