"""A node whose store is put back to an older copy: it must notice, take a new id, and lose and repeat nothing."""

import shutil
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError, UnreachableError
from tests.processes.clusters import node_alone, running_cluster, stop_in_order, until
from tests.processes.load import KeyedPublisher, rows_of
from tests.processes.reading import assert_acknowledged, assert_delivered, common_frontier, rows_at

NOTICED = "this store is older than the channel"
ALONE = {"n1": "founded the channel", "n3": "no portal answers"}
"""What a node says when it finds nobody: n1 is a portal, n3 is not."""


def refusal(channel: Channel) -> str:
    """The reason why a publish is refused; empty if it is not, and while the node does not answer yet."""
    try:
        channel.publish("early", rows_of(0, 1))
    except UnreachableError:
        return "unreachable"
    except RefusedError as error:
        return error.code
    return ""


def roll_back(cluster: LocalCluster, name: str, copy: Path, publisher: KeyedPublisher) -> None:
    """Its store is copied, goes on with what is acknowledged by another node, and is put back."""
    stop_in_order(cluster, name)
    shutil.copytree(cluster.store(name), copy)
    cluster.start(name)
    for count in (20, 1_000, 1):
        publisher.publish_one(count)
    cluster.kill(*cluster.names())
    shutil.rmtree(cluster.store(name))
    copy.rename(cluster.store(name))


@pytest.mark.parametrize("name", ["n1", "n3"])
def test_a_rolled_back_node_takes_a_new_id_and_nothing_is_lost_or_repeated(tmp_path: Path, name: str) -> None:
    others = [other for other in ("n1", "n2", "n3") if other != name]
    with running_cluster(tmp_path / "cluster", 3) as cluster:
        channel = cluster.channel(name)
        publisher = KeyedPublisher("orders", channel, acks=1)
        publisher.publish_one(20)
        old_id = channel.status()["node_id"]
        roll_back(cluster, name, tmp_path / "copy", publisher)
        log_start = cluster.log(name).stat().st_size

        with node_alone(cluster, name):
            until(lambda: ALONE[name] in log_since(cluster, name, log_start), "it finds nobody")
            until(lambda: refusal(channel) != "unreachable", "its door is open")
            assert refusal(channel) == "not-ready", "alone, it cannot know which numbers are free"
            assert NOTICED not in log_since(cluster, name, log_start)

            cluster.start(*others)
            until(lambda: NOTICED in log_since(cluster, name, log_start), "it hears that its store is older")
            last = publisher.acknowledged[-1]
            again = publisher.repeat_last()
            assert [(rows.origin, rows.first, rows.next) for rows in again] == [(last.origin, last.first, last.next)]
            assert channel.status()["node_id"] != old_id
            publisher.publish_one(20)
            assert publisher.acknowledged[-1].origin == channel.status()["node_id"]
            assert {said.origin for said in publisher.acknowledged[:-1]} == {old_id}
            end = common_frontier(cluster, ["orders"])
            assert_acknowledged(rows_at(cluster, name, "orders", end), publisher, name)
            assert_delivered(cluster, publisher)


def log_since(cluster: LocalCluster, name: str, start: int) -> str:
    return cluster.log(name).read_bytes()[start:].decode()
