"""Clusters of real processes for tests: quick to notice a failure, and gone afterwards, whatever happened."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from m4cast.cluster.detached_process import DetachedProcess
from m4cast.cluster.local import LocalCluster
from m4cast.cluster.plan import Setting
from tests.processes.warm_nodes import WarmCluster

TIMEOUT_S = 60.0
POLL_S = 0.02
QUICK = {"heartbeat_interval_ms": 200, "heartbeat_timeout_ms": 3_000, "beacon_interval_ms": 500}


@contextmanager
def running_cluster(folder: Path, nodes: int, **node_settings: Setting) -> Iterator[LocalCluster]:
    with up(WarmCluster.make(folder, nodes, cluster_settings=QUICK, node_settings=node_settings)) as cluster:
        yield cluster


@contextmanager
def up(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """While it is up."""
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.kill(*cluster.running())


def process_of(cluster: LocalCluster, name: str) -> DetachedProcess:
    process = cluster.process(name)
    assert process is not None, f"{name} does not run:\n{cluster.log(name).read_text()[-2000:]}"
    return process


def stop_in_order(cluster: LocalCluster, name: str) -> None:
    """SIGTERM, and wait until it has left."""
    process = process_of(cluster, name)
    process.send(signal.SIGTERM)
    assert process.wait(TIMEOUT_S), f"{name} does not leave"


@contextmanager
def paused(cluster: LocalCluster, name: str) -> Iterator[None]:
    """SIGSTOP, then SIGCONT."""
    process = process_of(cluster, name)
    process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send(signal.SIGCONT)


@contextmanager
def node_alone(cluster: LocalCluster, name: str, *program: str) -> Iterator[None]:
    """A node of the cluster that need not find anybody; `program`: what runs it in place of `m4cast node`."""
    words = [sys.executable, *(program or ("-m", "m4cast", "node"))]
    folder = cluster.folder / name
    with cluster.log(name).open("ab") as log:
        process = subprocess.Popen(
            [*words, "--conf", str(folder / "node.toml"), "--dir", str(folder / "store")], stderr=log
        )
    try:
        yield
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


def until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(POLL_S)
