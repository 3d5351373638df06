"""Nodes that come late: one that was away, and those of a new channel. The soak form prints how long it took."""

import time
from pathlib import Path

import pytest

from m4cast.local_cluster import LocalCluster
from tests.bench.references import lmdb_mb_per_s, socket_mb_per_s
from tests.processes.clusters import running_cluster, until
from tests.processes.load import KeyedPublisher
from tests.processes.reading import assert_delivered, assert_recorded_once

BATCH_ROWS = 10_000
ROW_PAYLOAD_BYTES = 112
"""Of a row: its number, an offset, and 100 bytes of text."""
REFERENCE_MB = 600


@pytest.mark.parametrize("megabytes", [50, pytest.param(1_000, marks=pytest.mark.soak)])
def test_a_node_that_was_away_catches_up(tmp_path: Path, megabytes: int) -> None:
    is_long = megabytes > 50
    with running_cluster(tmp_path / "cluster", 3) as cluster:
        cluster.kill("n3")
        publisher = KeyedPublisher("missed", cluster.channel("n1"), acks=1)
        for _ in range(megabytes * 1_000_000 // (BATCH_ROWS * ROW_PAYLOAD_BYTES)):
            publisher.publish_one(BATCH_ROWS)
        disk, wire = (lmdb_mb_per_s(REFERENCE_MB), socket_mb_per_s(REFERENCE_MB)) if is_long else (0.0, 0.0)
        cluster.start("n3")
        began, rows_began = time.perf_counter(), rows_at_n3(cluster)
        until(lambda: rows_at_n3(cluster) == publisher.rows, "n3 has all rows", 120)
        seconds = time.perf_counter() - began
        if is_long:
            speed = (publisher.rows - rows_began) * ROW_PAYLOAD_BYTES / seconds / 1e6
            ratio = speed / min(disk, wire)
            print(f"catch-up: {speed:.0f} MB/s; LMDB {disk:.0f}, socket {wire:.0f}: {ratio:.2f} of the slower")
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
