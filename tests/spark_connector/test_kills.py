"""A publishing query whose driver, Python workers and access point are killed (-9): every row once, in order, none
missing; and a receipt for each. A query beside it, which reads by a filter, has exactly the rows that match, once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.errors import M4castError
from m4cast.schemas.receipt import Receipt
from tests.processes.clusters import running_cluster, until
from tests.spark_connector.publishing_query import BATCH_ROWS, numbers, selected

TIMEOUT_S = 300
"""A JVM may take a minute to start where others are at work, too."""
BATCHES_BETWEEN_MAX = 4
"""A kill comes after so many further micro-batches at most, and a random while."""
WHILE_S_MAX = 1.0


class PublishingQuery:
    """The program in its own processes, started again whenever it is gone."""

    def __init__(self, cluster: LocalCluster, topic: str, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.topic = topic
        self.starts = 0
        self._channel = cluster.channel("n1", timeout_s=5)
        self._settings = {"nodes": cluster.node("n1").door, "topic": topic, "folder": str(folder)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **more: int) -> None:
        self.starts += 1
        settings = json.dumps({**self._settings, **more})
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark_connector.publishing_query", settings],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # all that it starts can be ended together
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def batches(self) -> int:
        """Published so far."""
        try:
            streams = self._channel.frontier(self.topic).get(self.topic, {})
        except M4castError:  # before the first one, or while the node is away
            return 0
        return sum(until - 1 for until in streams.values()) // BATCH_ROWS

    def wait_for(self, batches: int) -> None:
        """Wait until so many are published; start it again if an earlier kill has ended it."""

        def are_there() -> bool:
            if not self.is_running:
                self.start()
            return self.batches() >= batches

        until(are_there, f"{batches} micro-batches:\n{self.log_tail()}", TIMEOUT_S)

    def wait_for_end(self) -> None:
        until(lambda: not self.is_running, f"the query ends:\n{self.log_tail()}", TIMEOUT_S)

    def kill_driver(self) -> None:
        """The program and its JVM, nothing else: workers may go on for a while."""
        assert self._process is not None
        jvms = [pid for pid, words in self._processes().items() if "SparkSubmit" in words]
        for pid in (self._process.pid, *jvms):
            _kill(pid)
        self._process.wait(TIMEOUT_S)

    def kill_worker(self, rng: random.Random) -> None:
        """One of the Python processes in which tasks stage, or the one in which the driver commits."""
        workers = [pid for pid, words in self._processes().items() if "-m pyspark." in words]
        if workers:
            _kill(rng.choice(sorted(workers)))

    def _processes(self) -> dict[int, str]:
        """Those of this start, with their command lines."""
        assert self._process is not None
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self._process.pid:
                try:
                    session = (folder / "stat").read_text().rpartition(")")[2].split()[3]
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:  # gone
                    continue
                if int(session) == self._process.pid:
                    found[int(folder.name)] = words
        return found

    def end(self) -> None:
        """The rows in order, after what was killed has been made good."""
        (self.folder / "enough").touch()
        if not self.is_running:
            self.start()
        self.wait_for_end()
        assert self._process is not None and self._process.returncode == 0, self.log_tail()

    def close(self) -> None:
        if self._process is not None:
            for pid in (*self._processes(), self._process.pid):
                _kill(pid)

    def log_tail(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace")[-3_000:] if log.exists() else ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def publishing_query(cluster: LocalCluster, topic: str, folder: Path) -> Iterator[PublishingQuery]:
    query = PublishingQuery(cluster, topic, folder)
    try:
        yield query
    finally:
        query.close()


def assert_once_in_order(cluster: LocalCluster, query: PublishingQuery) -> int:
    """The rows are the same at both nodes; and the receipts agree with them."""
    end = cluster.channel("n1").frontier(query.topic)
    rows = sum(until - 1 for until in end[query.topic].values())
    assert rows % BATCH_ROWS == 0, f"{rows} rows: a part of a micro-batch"
    for name in cluster.names():
        found = cluster.channel(name, timeout_s=60).read(query.topic, end=end)["number"].to_numpy()
        assert np.array_equal(found, numbers(rows // BATCH_ROWS)), "not every row once, in order"
    receipts = [Receipt.from_json(path.read_text()) for path in (query.folder / "receipts").glob("receipt-*.json")]
    ranges = sorted((stream.first_sequence, stream.last_sequence) for each in receipts for stream in each.streams)
    assert [first for first, _ in ranges] == [1, *(last + 1 for _, last in ranges[:-1])], "a receipt for each row"
    assert sum(last - first + 1 for first, last in ranges) == rows
    return rows


def assert_selected_once(query: PublishingQuery, rows_min: int) -> None:
    """All that matches up to the last committed offset, by the log of Spark's file sink: files of micro-batches that
    were not finished are not in it. (A last micro-batch may be published while the program ends.)"""
    checkpoint = query.folder / "reading"
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    (until,) = json.loads((checkpoint / "offsets" / str(last)).read_text().splitlines()[-1])[query.topic].values()
    assert until - 1 >= rows_min
    log = query.folder / "selected" / "_spark_metadata"
    names = {  # every tenth file of the log, `9.compact`, repeats those before it
        json.loads(line)["path"]
        for file in log.iterdir()
        if file.name.partition(".")[0].isdigit()
        for line in file.read_text().splitlines()[1:]
    }
    found = [pq.read_table(name.removeprefix("file://"))["number"].to_numpy() for name in names]
    assert np.array_equal(np.sort(np.concatenate(found)), np.sort(selected(until - 1)))


@pytest.mark.parametrize("moments", [4, pytest.param(32, marks=pytest.mark.soak)])
def test_whatever_is_killed_every_row_is_published_once_in_order(tmp_path: Path, moments: int) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    print(f"seed {seed}")
    kinds = ["node", "worker", "driver", "after commit"]  # each as often; the last two need a new start
    with (
        running_cluster(tmp_path / "cluster", 2) as cluster,
        publishing_query(cluster, "numbers", tmp_path / "query") as query,
    ):
        for moment in range(moments):
            kind = kinds[moment % len(kinds)]
            done = query.batches()
            if kind == "after commit":
                query.start(die_after=done + rng.randrange(BATCHES_BETWEEN_MAX))
                query.wait_for_end()
                continue
            query.wait_for(done + rng.randrange(1, BATCHES_BETWEEN_MAX))
            time.sleep(rng.uniform(0, WHILE_S_MAX))  # so that the moment has nothing to do with what is published
            if kind == "node":
                cluster.kill("n1")
                cluster.start("n1")
            elif kind == "worker":
                query.kill_worker(rng)
            else:
                query.kill_driver()
        query.wait_for(query.batches() + 1)
        done = query.batches()
        query.end()
        rows = assert_once_in_order(cluster, query)
        assert_selected_once(query, done * BATCH_ROWS)
        print(f"{rows} rows, {moments} kills, {query.starts} starts")
