"""Clients of real processes that roam between channels under load: each gets every row once, in order."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from m4cast.cluster.federation import LocalFederation
from m4cast.overlay.client import Client
from tests.processes.clusters import TIMEOUT_S, until
from tests.processes.load import KeyedPublisher, publishing
from tests.processes.test_federation import running_federation

CHANNELS = ("north", "south")
SECRET = "a-secret-of-this-test"


def write_pair(path: Path) -> Path:
    lines = []
    for name, other in (CHANNELS, reversed(CHANNELS)):
        lines += ["[[channel]]", f"name = {json.dumps(name)}", "nodes = 2"]
        lines += [f"exports = {json.dumps([f'of-{name}'])}", f"imports = {json.dumps([f'of-{other}'])}"]
    for number in (1, 2):
        lines += ["[[gateway]]", f'from = "south.{number}"', f'to = "north.{number}"']
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


class Wanderer:
    """A client that moves to another channel after each few batches."""

    def __init__(self, doors: list[list[str]], number: int, seed: int) -> None:
        self._doors, self._random = doors, random.Random(seed + number)
        self.client = Client(doors[number % 2][0], key=f"w{number}", credential=SECRET, timeout_s=TIMEOUT_S)
        self.had: dict[str, list[int]] = {f"of-{name}": [] for name in CHANNELS}
        self.moves = 0
        self.client.connect(create=True)
        for topic in self.had:
            self.client.subscribe(topic, name=topic, start="earliest")

    def wander(self, is_over: Event, rows: dict[str, int]) -> None:
        """Wait until it has all rows that there are in the end."""
        at = 0
        while not (is_over.is_set() and all(len(self.had[topic]) >= count for topic, count in rows.items())):
            left = self._random.randrange(1, 6)
            for batch in self.client.notifications(idle_s=0.2):
                for topic, number in zip(batch["_topic"].to_pylist(), batch["number"].to_pylist(), strict=True):
                    self.had[topic].append(number)
                left -= 1
                if left <= 0:
                    break
            if not is_over.is_set():
                at = 1 - at
                self.client.move(self._random.choice(self._doors[at]))
                self.moves += 1


def is_let_go(federation: LocalFederation, wanderers: list[Wanderer]) -> bool:
    """Each client is in one channel, and nowhere else."""
    where: dict[str, int] = {}
    for cluster in federation.clusters.values():
        for row in cluster.channel("n1").clients():
            where[row["key"]] = where.get(row["key"], 0) + 1
    return where == {each.client.key: 1 for each in wanderers}


@pytest.mark.parametrize(("clients", "rounds"), [(6, 4), pytest.param(50, 10, marks=pytest.mark.soak)])
def test_clients_roam_between_channels_under_load(tmp_path: Path, clients: int, rounds: int) -> None:
    """`rounds`: of moves, so many for each client."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with running_federation(tmp_path / "federation", write_pair(tmp_path / "pair.toml")) as (federation, _):
        clusters = [federation.clusters[name] for name in CHANNELS]
        doors = [[cluster.node(name).door for name in cluster.names()] for cluster in clusters]
        publishers = [
            KeyedPublisher(f"of-{name}", cluster.channel("n2"), seed + at, pace_s=0.25)
            for at, (name, cluster) in enumerate(zip(CHANNELS, clusters, strict=True))
        ]
        wanderers = [Wanderer(doors, number, seed) for number in range(clients)]
        is_over, rows = Event(), dict[str, int]()
        with ThreadPoolExecutor(clients) as pool:
            with publishing(*publishers):
                running = [pool.submit(each.wander, is_over, rows) for each in wanderers]
                until(
                    lambda: all(each.moves >= rounds for each in wanderers) or any(walk.done() for walk in running),
                    "moves",
                    TIMEOUT_S * rounds,
                )
            rows |= {each.topic: each.rows for each in publishers}
            is_over.set()
            for walk in running:
                walk.result(2 * TIMEOUT_S)
        for each in wanderers:
            assert each.had == {topic: list(range(count)) for topic, count in rows.items()}, each.client.key
            assert not each.client.dropped
        until(lambda: is_let_go(federation, wanderers), "each client in one channel")
        print(rows, "rows", sum(each.moves for each in wanderers), "moves")
