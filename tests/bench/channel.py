"""MB/s of 100-byte rows in batches of 10,000 through real nodes with fsync, against references in the same run. "One
node": DoPut until all is acknowledged, against the slower of a Flight server that discards and a bare LMDB loop. "Five
nodes": until all five have all rows on disk, summed over their stores, against one bare LMDB loop; "copies" are payload
sends per remote delivery. "Catch-up": a node that was away, against the slower of a socket and LMDB in a new file."""

import re
import time
import urllib.request
from statistics import median

from pyarrow import flight

from m4cast.local_cluster import LocalCluster
from tests.bench.references import (
    BATCH_BYTES,
    KEPT,
    ROWS,
    anonymous_mb,
    batch_of_rows,
    bench_cluster,
    cpu_s,
    discarding_server,
    flight_client,
    lmdb_mb_per_s,
    socket_mb_per_s,
)
from tests.processes.clusters import process_of

ROUNDS = 3
BATCHES = 600
CATCH_UP_BATCHES = 1_000
WARM = 900
"""Batches before the clock starts, so that files have their size and memory is there."""
POLL_S = 0.01


def measure() -> list[dict[str, object]]:
    return [
        _compare("one node", 1, tls=False),
        _compare("five nodes", 5, tls=False),
        _compare("five nodes, TLS", 5, tls=True),
        _catch_up(),
    ]


def _compare(what: str, nodes: int, *, tls: bool) -> dict[str, object]:
    ours: list[float] = []
    reference: list[float] = []
    with discarding_server() as null, bench_cluster(nodes, tls=tls, retention_bytes=KEPT * BATCH_BYTES) as cluster:
        rows = _Rows(cluster)
        rows.publish(WARM)
        for _ in range(ROUNDS):
            bare = lmdb_mb_per_s(BATCHES)
            reference.append(min(bare, _put(null, {}, BATCHES)) if nodes == 1 else bare)
            ours.append(nodes * rows.publish(BATCHES))
        return {
            "what": what,
            "MB/s": round(median(ours)),
            "of rounds": f"{min(ours):,.0f} .. {max(ours):,.0f}",
            "reference": round(median(reference)),
            "ratio": round(median(our / bare for our, bare in zip(ours, reference, strict=True)), 2),
            "copies": rows.copies() if nodes > 1 else "",
            "CPU s/GB": rows.cpu_per_gb(),
            "RssAnon MB": rows.anonymous(),
        }


def _catch_up() -> dict[str, object]:
    with bench_cluster(2) as cluster:
        cluster.kill("n2")
        _put(cluster.node("n1").door, {}, CATCH_UP_BATCHES)
        disk, wire = lmdb_mb_per_s(CATCH_UP_BATCHES, growing=True), socket_mb_per_s(BATCHES)
        cluster.start("n2")
        started = time.perf_counter()
        first = _delivered(cluster, "n2")
        while _delivered(cluster, "n2") < CATCH_UP_BATCHES * ROWS:
            time.sleep(POLL_S)
        speed = (CATCH_UP_BATCHES * ROWS - first) / ROWS * BATCH_BYTES / (time.perf_counter() - started) / 1e6
        reference = min(disk, wire)
        return {
            "what": "catch-up of 1 GB",
            "MB/s": round(speed),
            "of rounds": "1",
            "reference": round(reference),
            "ratio": round(speed / reference, 2),
            "copies": "",
            "CPU s/GB": "",
            "RssAnon MB": " ".join(f"{anonymous_mb(process_of(cluster, name).pid):.0f}" for name in cluster.names()),
        }


class _Rows:
    """Publishes at the first node, and looks at what that costs."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._pids = [process_of(cluster, name).pid for name in cluster.names()]
        self._published = 0
        self._measured = 0
        self._cpu = [0.0] * len(self._pids)

    def publish(self, batches: int) -> float:
        """MB/s until every node has everything on disk."""
        before = [cpu_s(pid) for pid in self._pids]
        started = time.perf_counter()
        _put(self._cluster.node("n1").door, self._cluster.credentials(), batches)
        self._published += batches
        for name in self._cluster.names():
            while _delivered(self._cluster, name) < self._published * ROWS:
                time.sleep(POLL_S)
        elapsed = time.perf_counter() - started
        self._cpu = [cpu_s(pid) - was for pid, was in zip(self._pids, before, strict=True)]
        self._measured = batches
        return batches * BATCH_BYTES / elapsed / 1e6

    def cpu_per_gb(self) -> str:
        return " ".join(f"{cpu / (self._measured * BATCH_BYTES) * 1e9:.1f}" for cpu in self._cpu)

    def anonymous(self) -> str:
        return " ".join(f"{anonymous_mb(pid):.0f}" for pid in self._pids)

    def copies(self) -> float:
        sent = delivered = 0.0
        for name in self._cluster.names():
            metrics = _metrics(self._cluster.node(name).http)
            sent += sum(value for key, value in metrics.items() if key.startswith("m4cast_sent_batches_total"))
            delivered += sum(
                value
                for key, value in metrics.items()
                if key.startswith("m4cast_delivered_batches_total") and "published" not in key
            )
        return round(sent / delivered, 3)


def _put(door: str, credentials: dict[str, str], batches: int) -> float:
    """MB/s of one DoPut until its end: of a node, until all is acknowledged."""
    rows = batch_of_rows()
    with flight_client(door, credentials) as client:
        started = time.perf_counter()
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("bench"), rows.schema)
        for _ in range(batches):
            writer.write_batch(rows)
        writer.close()
        return batches * BATCH_BYTES / (time.perf_counter() - started) / 1e6


def _delivered(cluster: LocalCluster, name: str) -> int:
    frontier = cluster.channel(name).frontier()
    return sum(until - 1 for origins in frontier.values() for until in origins.values())


def _metrics(http: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        text = answer.read().decode()
    return {key: float(value) for key, value in re.findall(r"^([a-z0-9_]+(?:\{.*?\})?) (\S+)$", text, re.MULTILINE)}
