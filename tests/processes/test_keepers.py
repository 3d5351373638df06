"""Keepers of selective topics, between processes that are killed: what one acknowledged reaches all who want it."""

import shutil
import time
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError, UnreachableError
from tests.processes.clusters import running_cluster, until

COUNTRIES = ("PL", "DE")
POLISH = "country = 'PL'"
RETRIED = ("not-ready", "too-few-nodes", "timeout")


class NumberedRows:
    """Publishes numbered rows, one a batch, and remembers those that were acknowledged by a keeper."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._next = 0
        self.acknowledged: list[int] = []

    def publish(self) -> None:
        number, self._next = self._next, self._next + 1
        row = {"n": number, "country": COUNTRIES[number % len(COUNTRIES)]}
        try:
            self._channel.publish("kept", [row], acks=1)
        except RefusedError as error:
            if error.code not in RETRIED:
                raise
        except UnreachableError:
            pass  # nobody knows whether it was published
        else:
            self.acknowledged.append(number)

    def publish_until(self, count: int) -> None:
        until(lambda: self._count() >= count, f"{count} rows are acknowledged")

    def _count(self) -> int:
        self.publish()
        return len(self.acknowledged)


def wanted(rows: NumberedRows) -> set[int]:
    return {number for number in rows.acknowledged if number % len(COUNTRIES) == 0}


def seen_at(channel: Channel) -> list[int]:
    try:
        found = channel.read("kept", where=POLISH)
    except (RefusedError, UnreachableError):
        return []
    return found["n"].to_pylist() if found.num_rows else []


def keepers_of(cluster: LocalCluster, origin: str) -> list[str]:
    """The nodes that keep the streams of an origin, as a node that is up shows them."""
    names = {cluster.channel(name).status()["node_id"]: name for name in cluster.running()}
    shown = cluster.channel(cluster.running()[-1]).subscriptions()["registrations"]
    kept = [each for each in shown if each["where"] == f"origin = '{origin}'"]
    return sorted(names[each["node_id"]] for each in kept if each["node_id"] in names)


def prepared(cluster: LocalCluster, *takers: str) -> NumberedRows:
    """n1 publishes, with two keepers; these nodes want some of it, and everybody knows."""
    cluster.channel("n1").create_topic("kept", keepers=2, route_by=["country"])
    for name in takers:
        channel = cluster.channel(name)
        channel.register("kept", POLISH, start="earliest")
        assert channel.active("kept", POLISH, timeout_s=60).is_active
    return NumberedRows(cluster.channel("n1", timeout_s=10))


def check(cluster: LocalCluster, rows: NumberedRows, *takers: str) -> None:
    """Everything that was acknowledged and is wanted is there, once and in order."""
    for name in takers:
        channel = cluster.channel(name)
        until(lambda channel=channel: set(seen_at(channel)) >= wanted(rows), f"all wanted rows at {name}")  # type: ignore[misc]
        found = seen_at(channel)
        assert found == sorted(set(found)), f"{name}: once, and in order"


def test_what_a_keeper_has_survives_the_origin_and_a_keeper(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", 5) as cluster:
        rows = prepared(cluster, "n5")
        rows.publish_until(20)
        origin = cluster.channel("n1").status()["node_id"]
        until(lambda: len(keepers_of(cluster, origin)) == 2, "two keepers")
        killed = keepers_of(cluster, origin)[0]
        cluster.kill(killed)
        rows.publish_until(40)
        cluster.kill("n1")  # right after the last acknowledgement
        shutil.rmtree(cluster.store("n1"))
        takers = [name for name in ("n4", "n5") if name != killed]
        check(cluster, rows, *takers)  # also one that reads for the first time


@pytest.mark.soak
def test_keepers_that_are_killed_and_replaced_under_load_lose_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", 7) as cluster:
        rows = prepared(cluster, "n6", "n7")
        rows.publish_until(50)
        origin = cluster.channel("n1").status()["node_id"]
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            until(lambda: len(keepers_of(cluster, origin)) >= 2, "two keepers")
            killed = next((name for name in keepers_of(cluster, origin) if name not in ("n6", "n7")), None)
            if killed is not None:
                cluster.kill(killed)
            rows.publish_until(len(rows.acknowledged) + 200)
            if killed is not None:
                cluster.start(killed)
        cluster.kill("n1")
        shutil.rmtree(cluster.store("n1"))
        check(cluster, rows, "n6", "n7")
