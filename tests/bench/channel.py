"""MB/s of 100-byte rows, in batches of 10,000 at real nodes with fsync. "One node": DoPut until all are acknowledged,
beside a Flight server that discards and a bare LMDB loop. "Five nodes": until all five have all rows on disk, summed
over their stores, beside one bare LMDB loop; "copies" are payload sends per remote delivery. "Catch-up": a node that
was away, beside LMDB in a new file and a socket."""

import re
import urllib.request
from contextlib import nullcontext

from pyarrow import flight

from m4cast.cluster.local import LocalCluster
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch
from tests.bench.references import (
    BATCH_BYTES,
    KEPT,
    ROWS,
    bare_lmdb,
    batch_of_rows,
    bench_cluster,
    delivered_rows,
    discarding_server,
    flight_client,
    pids,
    socket_copy,
    until_delivered,
)

ROUNDS = 3
BATCHES = 600
CATCH_UP_ROUNDS = 2
CATCH_UP_BATCHES = 1_000
WARM = 900
"""Batches before the clock starts, so that files have their size and memory is there."""


def measure(bench: Bench) -> None:
    _one_node(bench)
    _five_nodes(bench, tls=False)
    if not bench.quick:
        _five_nodes(bench, tls=True)
        _catch_up(bench)


def _one_node(bench: Bench) -> None:
    batches = bench.of(BATCHES, 200)
    with discarding_server() as null, bench_cluster(1, retention_bytes=KEPT * BATCH_BYTES) as cluster:
        rows = Rows(cluster)
        rows.publish(bench.of(WARM, 300))

        def discard(watch: Watch) -> None:
            with watch:
                put(null.door, {}, batches)

        bench.compare(
            "one node",
            "MB/s",
            Side("m4cast", lambda watch: rows.publish(batches, watch), pids(cluster)),
            Side("null Flight server", discard, null.processes),
            bare_lmdb(batches),
            amount=batches * BATCH_BYTES / 1e6,
            gb=batches * BATCH_BYTES / 1e9,
            rounds=ROUNDS,
        )


def _five_nodes(bench: Bench, *, tls: bool) -> None:
    batches = bench.of(BATCHES, 200)
    with bench_cluster(5, tls=tls, retention_bytes=KEPT * BATCH_BYTES) as cluster:
        rows = Rows(cluster)
        rows.publish(bench.of(WARM, 300))

        def publish(watch: Watch) -> float:
            rows.publish(batches, watch)
            return 5 * batches * BATCH_BYTES / watch.seconds / 1e6

        what = f"five nodes{', TLS' if tls else ''}"
        ours = Side("m4cast", publish, pids(cluster))
        bench.compare(what, "MB/s", ours, bare_lmdb(batches), gb=batches * BATCH_BYTES / 1e9, rounds=ROUNDS)
        bench.fact(what=what, copies=rows.copies())


def _catch_up(bench: Bench) -> None:
    with bench_cluster(2) as cluster:
        rows = Rows(cluster)

        def come_back(watch: Watch) -> float:
            cluster.kill("n2")
            rows.publish(CATCH_UP_BATCHES, names=("n1",))
            cluster.start("n2")
            watch.add("n2", pids(cluster)["n2"])
            with watch:
                missing = rows.published - delivered_rows(cluster, "n2")
                until_delivered(cluster, rows.published)
            return missing / ROWS * BATCH_BYTES / watch.seconds / 1e6

        bench.compare(
            "catch-up of 1 GB",
            "MB/s",
            Side("m4cast", come_back, {"n1": pids(cluster)["n1"]}),
            bare_lmdb(CATCH_UP_BATCHES, growing=True, group=4),
            socket_copy(CATCH_UP_BATCHES),
            gb=CATCH_UP_BATCHES * BATCH_BYTES / 1e9,
            rounds=CATCH_UP_ROUNDS,
            warm_rounds=0,
        )


class Rows:
    """Publishes at the first node."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.published = 0

    def publish(self, batches: int, watch: Watch | None = None, names: tuple[str, ...] = ()) -> None:
        """Wait until these nodes, or all, have everything on disk."""
        with watch or nullcontext():
            put(self._cluster.node("n1").door, self._cluster.credentials(), batches)
            self.published += batches * ROWS
            until_delivered(self._cluster, self.published, names)

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


def put(door: str, credentials: dict[str, str], batches: int, topic: str = "bench") -> None:
    """One DoPut until its end: at a node, until all is acknowledged."""
    rows = batch_of_rows()
    with flight_client(door, credentials) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path(topic), rows.schema)
        for _ in range(batches):
            writer.write_batch(rows)
        writer.close()


def _metrics(http: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        text = answer.read().decode()
    return {key: float(value) for key, value in re.findall(r"^([a-z0-9_]+(?:\{.*?\})?) (\S+)$", text, re.MULTILINE)}
