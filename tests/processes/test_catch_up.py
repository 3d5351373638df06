"""Nodes that come late: one that was away, and those of a new channel. How fast they
are is for `python -m tests.bench channel`."""

import time
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from tests.processes.clusters import running_cluster, until
from tests.processes.load import KeyedPublisher
from tests.processes.reading import assert_delivered, assert_recorded_once

BATCH_ROWS = 10_000
ROW_PAYLOAD_BYTES = 112
"""Of a row: its number, an offset, and 100 bytes of text."""


@pytest.mark.parametrize("megabytes", [50, pytest.param(1_000, marks=pytest.mark.soak)])
def test_a_node_that_was_away_catches_up(tmp_path: Path, megabytes: int) -> None:
    with running_cluster(tmp_path / "cluster", 3) as cluster:
        cluster.kill("n3")
        publisher = KeyedPublisher("missed", cluster.channel("n1"), acks=1)
        for _ in range(megabytes * 1_000_000 // (BATCH_ROWS * ROW_PAYLOAD_BYTES)):
            publisher.publish_one(BATCH_ROWS)
        cluster.start("n3")
        until(lambda: rows_at_n3(cluster) == publisher.rows, "n3 has all rows", 120)
        assert_delivered(cluster, publisher)
        cluster.kill("n3")
        assert_recorded_once(cluster, "n3")


def rows_at_n3(cluster: LocalCluster) -> int:
    origins = cluster.channel("n3").frontier("missed").get("missed", {})
    return sum(origins.values()) - len(origins)


@pytest.mark.soak
def test_nine_nodes_and_one_more(tmp_path: Path) -> None:
    cluster = LocalCluster.make(tmp_path / "cluster", 9)
    try:
        began = time.perf_counter()
        cluster.up()
        up_s, began = time.perf_counter() - began, time.perf_counter()
        cluster.add()
        print(f"nine nodes are up after {up_s:.1f} s, one more after {time.perf_counter() - began:.1f} s")
        sights = cluster.look()
        assert [len(sight.status["neighbours"]) for sight in sights] == [4] * 10
    finally:
        cluster.kill(*cluster.running())
