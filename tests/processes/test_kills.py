"""Nodes that are killed (-9) under publishing load, and what was acknowledged."""

import random
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from tests.processes.clusters import TIMEOUT_S, paused, process_of, running_cluster, until
from tests.processes.load import KeyedPublisher, Publisher, UnkeyedPublisher, publishing
from tests.processes.reading import (
    assert_acknowledged,
    assert_delivered,
    assert_recorded_once,
    common_frontier,
    rows_at,
)

NODES = 5
ROWS_BETWEEN_MAX = 3_000
"""A kill comes after a random number of rows since the last restart, below this."""


def kill_in_rounds(cluster: LocalCluster, rounds: int, seed: int) -> list[Publisher]:
    """Several clients at several nodes publish, while random nodes are killed at random moments and come back."""
    rng = random.Random(seed)
    publishers: list[Publisher] = [
        KeyedPublisher("keyed", cluster.channel("n1"), seed),
        KeyedPublisher("keyed-too", cluster.channel("n3"), seed + 1, acks=1),
        UnkeyedPublisher("unkeyed", cluster.channel("n2"), seed + 2),
        UnkeyedPublisher("unkeyed-too", cluster.channel("n3"), seed + 3),
    ]
    with publishing(*publishers):
        for _ in range(rounds):
            watched = rng.choice(publishers)
            watched.wait_for_more(rng.randrange(ROWS_BETWEEN_MAX))
            victim = rng.choice(cluster.names())
            cluster.kill(victim)
            cluster.start(victim)
        for publisher in publishers:
            publisher.wait_for_more(1)
    return publishers


def node_ids(cluster: LocalCluster) -> list[str]:
    return [str(cluster.channel(name).status()["node_id"]) for name in cluster.names()]


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_what_was_acknowledged_is_everywhere_once_and_in_order(tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with running_cluster(tmp_path / "cluster", NODES) as cluster:
        ids = node_ids(cluster)
        publishers = kill_in_rounds(cluster, rounds, seed)
        assert_delivered(cluster, *publishers)
        print({each.topic: (each.rows, each.repeats) for each in publishers}, "rows, repeats")
        assert node_ids(cluster) == ids, "nothing leaves a node before it is on its disk: a crash is no rollback"
        cluster.kill(*cluster.names())
        for name in cluster.names():
            assert_recorded_once(cluster, name)


def test_acks_outlive_the_publishing_node_and_its_disk(tmp_path: Path) -> None:
    """While all others are stopped nothing is acknowledged; then one alone is there to do so, and the publishing node
    dies at that very ack."""
    with running_cluster(tmp_path / "cluster", NODES) as cluster:
        channel, process = cluster.channel("n2"), process_of(cluster, "n2")
        publisher = KeyedPublisher("kept", channel, acks=1)
        publisher.publish_one(20)
        with ExitStack() as stopped:
            for name in ("n3", "n4", "n5"):
                stopped.enter_context(paused(cluster, name))
            with paused(cluster, "n1"), ThreadPoolExecutor(1) as pool:
                published = pool.submit(publisher.publish_one, 1_000)
                until(lambda: list(channel.frontier("kept")["kept"].values()) == [1_021], "they are on its own disk")
                assert not published.done(), "acknowledged by nobody"
                process_of(cluster, "n1").send(signal.SIGCONT)
                published.result(TIMEOUT_S)
            process.send(signal.SIGKILL)
            assert process.wait(TIMEOUT_S)
            shutil.rmtree(cluster.store("n2"))
        others = cluster.running()
        assert others == ["n1", "n3", "n4", "n5"]
        end = common_frontier(cluster, ["kept"])
        for name in others:
            assert_acknowledged(rows_at(cluster, name, "kept", end), publisher, name)
