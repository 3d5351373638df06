"""Latency of single rows of 100 bytes, open loop, at 100, 1,000 and 10,000 rows/s: from when a row was due to when its
reader has it. m4cast: five nodes with fsync before a row leaves its origin, sender and reader at different nodes; the
sender is the client's publisher, or a plain Flight client that makes a record batch of each row. NATS: three servers,
sender and subscriber at different ones: a JetStream with three replicas (R3), with one (R1), and core, which stores
nothing. The comparison is by p99; the table below has the other percentiles (medians of rounds), how late the sender
was itself, how late rows were delivered at the farthest of the five nodes, by the nodes' own records, and how long an
fsync takes."""

import asyncio
import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

import pyarrow as pa
import pyarrow.compute as pc

from m4cast.overlay.client import Channel
from tests.bench import nats_server
from tests.bench.comparison import Bench, Missing, Side
from tests.bench.machine import sync_times_ms
from tests.bench.open_loop import WARM_S
from tests.bench.processes import Watch
from tests.bench.references import bench_cluster, pids

RATES = (100, 1_000, 10_000)
SECONDS = 5
ROUNDS = 3
BARS = {1_000: 1.0}
TIMEOUT_S = 120.0
FIGURES = ("p50", "p99", "p99.9", "sender p99")
"""The last is how late the sender was itself: it is in the others."""


def measure(bench: Bench) -> None:
    why = nats_server.missing()
    with tempfile.TemporaryDirectory() as folder, bench_cluster(5) as cluster:
        at, to = cluster.node("n1").door, cluster.node("n5").door
        doors = [cluster.node(name).door for name in cluster.names()]
        ours = _Path("m4cast, 5 nodes", "m4cast", at, to, pids(cluster), doors=doors)
        plain = _Path("m4cast, plain Flight", "flight", at, to, pids(cluster), doors=doors)
        if why is not None:
            _compare(bench, ours, [plain], [Missing("NATS", why)])
            return
        with nats_server.running_servers(Path(folder), 3) as servers:
            first, last = servers[0].address, servers[-1].address
            processes = {server.name: server.pid for server in servers}
            how = "sync always" if servers[0].syncs else "no sync before the ack"
            theirs = [
                _Path(f"JetStream R3, {how}", "jetstream", first, last, processes, replicas=3),
                _Path(f"JetStream R1, {how}", "jetstream", first, last, processes, replicas=1),
                _Path("NATS core", "core", first, last, processes),
                plain,
            ]
            _compare(bench, ours, theirs, [])


def _compare(bench: Bench, ours: "_Path", theirs: list["_Path"], missing: list[Missing]) -> None:
    for rate in RATES if not bench.quick else RATES[1:2]:
        paths = [ours, *theirs]
        sides = [Side(path.name, path.work(rate, bench.of(SECONDS, 3)), path.processes) for path in paths]
        bench.compare(
            f"p99 at {rate:,} rows/s",
            "ms",
            *sides,
            *missing,
            better="lower",
            bar=BARS.get(rate),
            rounds=ROUNDS,
            warm_rounds=0,
        )
        for path in paths:
            for who, rounds in ((path.name, path.seen), (f"{path.name}: at the farthest", path.farthest)):
                if rounds:
                    seen = {f"{name} ms": round(median(each[name] for each in rounds), 2) for name in FIGURES}
                    bench.fact(**{"rows/s": rate, "who": who, **seen})
                    rounds.clear()
        cuts = quantiles(sync_times_ms(), n=1_000)
        synced = {"p50 ms": round(cuts[499], 2), "p99 ms": round(cuts[989], 2), "p99.9 ms": round(cuts[998], 2)}
        bench.fact(**{"rows/s": rate, "who": "fsync of 4 KB, alone", **synced, "sender p99 ms": 0.0})


class _Path:
    """Run a sender at one place and a receiver at another; `doors` of all nodes, for m4cast."""

    def __init__(
        self,
        name: str,
        system: str,
        at: str,
        to: str,
        processes: Mapping[str, int],
        *,
        replicas: int = 0,
        doors: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.processes = processes
        self.seen: list[dict[str, float]] = []
        self.farthest: list[dict[str, float]] = []
        """Of ours: until the last node had a row."""
        self._doors = doors
        self._system = system
        self._at = at
        self._to = to
        self._replicas = replicas

    def work(self, rate: int, seconds: int, warm_s: int = WARM_S) -> Callable[[Watch], float]:
        def run(watch: Watch) -> float:
            topic = f"latency-{uuid.uuid4().hex[:8]}"
            if self._replicas:
                asyncio.run(nats_server.make_stream(self._at, topic, self._replicas))
            words = [sys.executable, "-m", "tests.bench.open_loop"]
            rest = [topic, str(rate), str(warm_s + seconds), str(warm_s)]
            with watch:
                receiver = subprocess.Popen(
                    [*words, "receive", self._system, self._to, *rest], stdout=subprocess.PIPE, text=True
                )
                watch.add("receiver", receiver.pid)
                assert receiver.stdout is not None and receiver.stdout.readline() == "ready\n"
                sender = subprocess.Popen(
                    [*words, "send", self._system, self._at, *rest], stdout=subprocess.PIPE, text=True
                )
                watch.add("sender", sender.pid)
                received, _ = receiver.communicate(timeout=TIMEOUT_S)
                sent, _ = sender.communicate(timeout=TIMEOUT_S)
                assert sender.returncode == 0 and receiver.returncode == 0
            sender_p99 = {"sender p99": json.loads(sent)["p99"]}
            self.seen.append({**json.loads(received), **sender_p99})
            if self._doors:
                late_ms = delivered_late_ms(self._doors, topic)[rate * warm_s :]
                cuts = quantiles(late_ms, n=1_000)
                self.farthest.append({"p50": cuts[499], "p99": cuts[989], "p99.9": cuts[998], **sender_p99})
            return self.seen[-1]["p99"]

        return run


def delivered_late_ms(doors: Sequence[str], topic: str) -> list[float]:
    """The time from when each row was due to when the last of the nodes had it, in order: as they recorded it,
    in whole milliseconds of the one clock that they share."""
    rows = Channel(doors[:1]).read(topic, start="earliest")
    due_ms = [due_ns / 1e6 for due_ns in rows["due_ns"].to_pylist()]
    last_ms = [0.0] * len(due_ms)
    for door in doors:
        records = Channel([door]).deliveries()
        records = records.filter(pc.equal(records["topic"], topic))
        assert pc.sum(records["row_count"]).as_py() == len(due_ms), f"{door} has not got all rows"
        came_ms = pc.divide(pc.cast(records["delivered_at"], pa.int64()), 1_000).to_pylist()
        ranges = zip(records["first_sequence"].to_pylist(), records["last_sequence"].to_pylist(), came_ms, strict=True)
        for first, last, came in ranges:
            for at in range(first - 1, last):
                last_ms[at] = max(last_ms[at], came)
    return [last - due for last, due in zip(last_ms, due_ms, strict=True)]
