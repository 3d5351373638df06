"""Nodes that are killed (-9) under publishing load, and what was acknowledged."""

import random
import shutil
import signal
from pathlib import Path

import pytest

from m4cast.local_cluster import LocalCluster
from tests.processes.clusters import TIMEOUT_S, process_of, running_cluster
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


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_what_was_acknowledged_is_everywhere_once_and_in_order(tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with running_cluster(tmp_path / "cluster", NODES) as cluster:
        publishers = kill_in_rounds(cluster, rounds, seed)
        assert_delivered(cluster, *publishers)
        print({each.topic: (each.rows, each.repeats) for each in publishers}, "rows, repeats")
        cluster.kill(*cluster.names())
        for name in cluster.names():
            assert_recorded_once(cluster, name)


def test_acks_outlive_the_publishing_node_and_its_disk(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", NODES) as cluster:
        publisher = KeyedPublisher("kept", cluster.channel("n2"), acks=1)
        process = process_of(cluster, "n2")
        for count in (1, 20, 50_000):  # the last takes others a while to fetch
            publisher.publish_one(count)
        process.send(signal.SIGKILL)
        assert process.wait(TIMEOUT_S)
        shutil.rmtree(cluster.store("n2"))
        others = [name for name in cluster.names() if name != "n2"]
        assert cluster.running() == others
        end = common_frontier(cluster, ["kept"])
        for name in others:
            assert_acknowledged(rows_at(cluster, name, "kept", end), publisher, name)
