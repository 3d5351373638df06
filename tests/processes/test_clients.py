"""Clients whose access points are killed (-9) under load, some with their disks, and their own processes, too.

Each gets every row in order: once if it was not killed, or keeps its position with what it has processed; at least once
if its process is back with key and credential alone.
"""

import json
import os
import random
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from tests.processes import client_group
from tests.processes.clusters import TIMEOUT_S, running_cluster
from tests.processes.load import KeyedPublisher, publishing

ROWS_BETWEEN = 500
DISK_EVERY = 3
"""In one of so many rounds the disk of the node that is killed is deleted."""


def wait_until_moved(cluster: LocalCluster, lost: str, clients: int) -> None:
    """Wait until no client that has key and credential alone is attached to a node that was lost with its disk. If its
    process were killed before that, it could not come back: what its access point knew is gone. Those that keep their
    position (even numbers) can."""
    deadline = time.monotonic() + 2 * TIMEOUT_S
    wanted = {f"client-{number}" for number in range(1, clients, 2)}
    while True:
        nodes = {row["key"]: row["node"] for row in cluster.channel("n1").clients()}
        left = sorted(key for key in wanted if nodes.get(key, lost) == lost)
        if not left:
            return
        assert time.monotonic() < deadline, f"{left} are nowhere, or still at {lost}"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("rounds", "nodes", "groups", "clients"), [(3, 4, 1, 4), pytest.param(30, 9, 5, 40, marks=pytest.mark.soak)]
)
def test_clients_outlive_their_access_points(
    tmp_path: Path, rounds: int, nodes: int, groups: int, clients: int
) -> None:
    """`clients`: of each group, which is a process. In one of three rounds, a group is killed, misses rows, and is
    started again. `M4CAST_SEED` chooses what is killed, and how many rows come in between."""
    seed = int(os.environ.get("M4CAST_SEED") or random.randrange(1 << 30))
    print(f"seed {seed}")
    rng = random.Random(seed)
    with running_cluster(tmp_path / "cluster", nodes) as cluster, ExitStack() as processes:
        publisher = KeyedPublisher("load", cluster.channel("n1"), seed, pace_s=0.2)
        doors = [cluster.node(name).door for name in cluster.names()]

        def start(group: int) -> "subprocess.Popen[str]":
            numbers = list(range(group * clients, (group + 1) * clients))
            process = client_group.start(doors, numbers, tmp_path)
            processes.callback(process.kill)
            return process

        started = [start(group) for group in range(groups)]
        with publishing(publisher):
            for number in range(rounds):
                print(f"round {number}: {publisher.rows} rows", flush=True)
                publisher.wait_for_more(rng.randrange(ROWS_BETWEEN))
                victim = rng.choice(cluster.names()[1:])
                cluster.kill(victim)
                if number % DISK_EVERY == 1:
                    shutil.rmtree(cluster.store(victim))
                    wait_until_moved(cluster, victim, groups * clients)
                publisher.wait_for_more(rng.randrange(ROWS_BETWEEN))
                cluster.start(victim)
                if number % DISK_EVERY == 2:
                    killed = rng.randrange(groups)
                    started[killed].kill()
                    started[killed].communicate(timeout=TIMEOUT_S)
                    publisher.wait_for_more(rng.randrange(ROWS_BETWEEN))
                    started[killed] = start(killed)
        outcomes = []
        for group in started:
            said, _ = group.communicate(f"{publisher.rows - 1}\n", timeout=2 * TIMEOUT_S)
            outcomes += json.loads(said)
        assert len(outcomes) == groups * clients
        for outcome in outcomes:
            assert (outcome["error"], outcome["rows"]) == (None, publisher.rows), outcome
        sessions = [outcome["session"] for outcome in outcomes]
        restarts = sum(outcome["restarts"] for outcome in outcomes)
        repeated = [outcome["repeated"] for outcome in outcomes]
        print(f"{publisher.rows} rows; sessions {sessions}; {restarts} restarts, repeated {repeated}")
        assert max(sessions) > 1
        assert restarts == clients * (rounds // DISK_EVERY)
