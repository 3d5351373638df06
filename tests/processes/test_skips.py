"""Rows that only one node keeps, and that node is away for a moment: a newcomer waits for it and skips nothing."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from tests.processes.clusters import node_alone, paused, running_cluster, until
from tests.processes.load import KeyedPublisher

TOPIC = "orders"
HOLDER, NEWCOMER = "n3", "n4"


@contextmanager
def only_the_holder_keeps(folder: Path) -> Iterator[tuple[LocalCluster, KeyedPublisher]]:
    """Four nodes. The rows are published at n1; n3 keeps all of them, n1 and n2 the last ones only, and n4 has an empty
    store and does not run."""
    with running_cluster(folder, 4) as cluster:
        publisher = KeyedPublisher(TOPIC, cluster.channel("n1"), acks=1)
        for _ in range(5):
            publisher.publish_one(20)
        until(lambda: rows_at(cluster, HOLDER) == publisher.rows, "n3 has all rows")
        for name in ("n1", "n2"):
            cluster.channel(name).delete_topic(TOPIC)
        publisher.publish_one(20)
        until(lambda: rows_at(cluster, HOLDER) == publisher.rows, "n3 has the last ones, too")
        cluster.kill(NEWCOMER)
        shutil.rmtree(cluster.store(NEWCOMER))
        yield cluster, publisher


def rows_at(cluster: LocalCluster, name: str) -> int:
    return sum(stream["next"] - 1 for stream in cluster.channel(name).describe(TOPIC)["streams"].values())


def stopped_for_12_s(cluster: LocalCluster) -> None:
    with paused(cluster, HOLDER):
        pass_time(12)


def restarted_after_15_s(cluster: LocalCluster) -> None:
    cluster.kill(HOLDER)
    pass_time(15)
    cluster.start(HOLDER)


def late_in_a_common_restart(cluster: LocalCluster) -> None:
    cluster.kill("n1", "n2", HOLDER)
    cluster.start("n1", "n2")
    pass_time(15)
    cluster.start(HOLDER)


def pass_time(seconds: float) -> None:
    """Waits for a while, because the test is that nothing happens: there is no event to wait for."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, "time passes")


@pytest.mark.soak
@pytest.mark.parametrize("away", [stopped_for_12_s, restarted_after_15_s, late_in_a_common_restart])
def test_what_a_node_keeps_that_is_away_for_a_moment_is_not_skipped(
    tmp_path: Path, away: Callable[[LocalCluster], None]
) -> None:
    with only_the_holder_keeps(tmp_path / "cluster") as (cluster, publisher), node_alone(cluster, NEWCOMER):
        away(cluster)
        until(lambda: TOPIC in cluster.channel(NEWCOMER).topics(), "n4 knows the topic")
        until(lambda: rows_at(cluster, NEWCOMER) == publisher.rows, "n4 has all rows")
        channel = cluster.channel(NEWCOMER)
        kinds = channel.deliveries().column("kind").to_pylist()
        assert "skip" not in kinds
        assert channel.read(TOPIC, start="earliest").num_rows == publisher.rows
