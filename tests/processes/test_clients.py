"""Clients whose access points are killed (-9) under load: each gets every row once, and in order."""

import random
import threading
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Client
from tests.processes.clusters import TIMEOUT_S, running_cluster
from tests.processes.load import KeyedPublisher, publishing

NODES = 4
CLIENTS = 4
ROWS_BETWEEN = 500


class Follower(threading.Thread):
    """A client that takes notifications until it has the last row."""

    def __init__(self, number: int, cluster: LocalCluster) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        doors = [cluster.node(name).door for name in cluster.names()]
        first = 1 + number % (NODES - 1)  # not the publisher's
        self.client = Client.new(doors[first:] + doors[:first], key=f"client-{number}", timeout_s=TIMEOUT_S / 2)
        self.client.subscribe("load", "number >= 0" if number % 2 else None, start="earliest")
        self.client.subscribe("load", "number < 500", name="few")
        self.numbers: list[int] = []
        self.last: int | None = None
        """The last row there will be, once that is known."""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self.last is None or not self.numbers or self.numbers[-1] < self.last:
                for rows in self.client.notifications(idle_s=0.5):
                    self.numbers.extend(rows.column("number").to_pylist())
            self.client.disconnect()
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.soak)])
def test_clients_outlive_their_access_points(tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with running_cluster(tmp_path / "cluster", NODES) as cluster:
        publisher = KeyedPublisher("load", cluster.channel("n1"), seed, pace_s=0.2)
        followers = [Follower(number, cluster) for number in range(CLIENTS)]
        for follower in followers:
            follower.start()
        with publishing(publisher):
            for _ in range(rounds):
                publisher.wait_for_more(rng.randrange(ROWS_BETWEEN))
                victim = rng.choice(cluster.names()[1:])
                cluster.kill(victim)
                publisher.wait_for_more(rng.randrange(ROWS_BETWEEN))
                cluster.start(victim)
        for follower in followers:
            follower.last = publisher.rows - 1
        for follower in followers:
            follower.join(TIMEOUT_S)
            assert follower.error is None, f"{follower.name}: {follower.error}"
            assert follower.numbers == list(range(publisher.rows)), follower.name
        print(f"{publisher.rows} rows; sessions {[follower.client.memory.session for follower in followers]}")
        assert max(follower.client.memory.session for follower in followers) > 1
