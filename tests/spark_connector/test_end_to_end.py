"""The same program on a standalone cluster (a master and two workers) and on Spark Connect, in processes of its own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from m4cast.cluster.local import LocalCluster
from tests.processes.clusters import running_cluster, until
from tests.spark_connector.end_to_end import EXECUTOR_KILLS, HEAVY_ROWS

TIMEOUT_S = 600
HOSTS = ("127.0.0.1", "localhost")
"""Of the workers. Spark starts no speculative copy of a task on the host of the first."""
ENVIRONMENT = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def channel_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path / "cluster", 2) as cluster:
        yield cluster


def outcome(cluster: LocalCluster, folder: Path, **spark: str) -> dict[str, Any]:
    folder.mkdir()
    nodes = ",".join(cluster.node(name).door for name in cluster.names())
    settings = json.dumps({"nodes": nodes, "folder": str(folder), **spark})
    words = [sys.executable, "-m", "tests.spark_connector.end_to_end", settings]
    done = subprocess.run(
        words, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-6_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def assert_all_there(found: dict[str, Any]) -> None:
    assert found["batch"] == list(range(100))
    assert found["stream"] == list(range(60))
    assert found["read"] == [[number, number + 1] for number in range(60)]
    assert found["fanned"] == [*range(60), *range(80, 90)]
    assert found["partitions"] == 2
    assert found["refused"], "one name twice in a batch"
    assert [number for number, _ in found["retried"]] == list(range(1_000))
    assert {attempt for number, attempt in found["retried"] if 250 <= number < 500} == {1}, "the attempt that won"


def test_a_standalone_cluster_publishes_and_reads(channel_cluster: LocalCluster, tmp_path: Path) -> None:
    with standalone_cluster(tmp_path / "spark") as master:
        found = outcome(channel_cluster, tmp_path / "program", master=master)
    assert_all_there(found)
    assert found["executors"] == len(HOSTS)
    assert found["ingested"] == {"engines": ["direct"], "ids": list(range(100))}
    assert found["despite_kills"] == {"killed": EXECUTOR_KILLS, "ids": list(range(HEAVY_ROWS))}
    assert found["overtaken"] and found["speculated"] == list(range(1_000)), "two attempts of a task staged its rows"


def test_spark_connect_publishes_and_reads(channel_cluster: LocalCluster, tmp_path: Path) -> None:
    assert_all_there(outcome(channel_cluster, tmp_path / "program", remote="local[2,3]"))


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and its workers from the installed package; its address."""
    folder.mkdir()
    started: list[subprocess.Popen[bytes]] = []
    try:
        log = folder / "master.log"
        started.append(_spawn(log, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"))
        address = ""

        def is_up() -> bool:
            nonlocal address
            found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
            address = found[1] if found else ""
            return bool(found)

        until(is_up, "the master is up")
        for number, host in enumerate(HOSTS):
            words = (
                "--host",
                host,
                "--webui-port",
                "0",
                "--cores",
                "1",
                "--memory",
                "600m",
                "--work-dir",
                str(folder / f"w{number}"),
            )
            started.append(_spawn(folder / f"worker-{number}.log", "worker.Worker", *words, address))
        until(lambda: log.read_text().count("Registering worker") == len(HOSTS), "the workers are there")
        yield address
    finally:
        for process in reversed(started):
            process.terminate()  # a worker ends its executors
        for process in started:
            process.wait(30)


def _spawn(log: Path, what: str, *words: str) -> subprocess.Popen[bytes]:
    spark_class = Path(pyspark.__path__[0]) / "bin" / "spark-class"
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(spark_class), f"org.apache.spark.deploy.{what}", *words],
            env={**os.environ, **ENVIRONMENT},
            stdout=file,
            stderr=file,
        )
