"""Single rows of 100 bytes through real nodes with fsync. "Acknowledged": rows sent one by one in one DoPut, with
cumulative acks until every row is covered: as a record batch each, against a Flight server that discards these, and
by the client's publisher, which packs them. "Delivery": rows published open loop at 1,000/s at one of five nodes (all
are neighbours) and tailed at another; times in ms from when a row was due to be written to when its reader has it,
beside the time of an fsync of 4 KB."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from statistics import median, quantiles
from typing import Any

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client import Channel
from tests.bench.references import batch_of_rows, bench_cluster, discarding_server, flight_client

ROUNDS = 3
SINGLE_ROWS = 100_000
RATE = 1_000
SECONDS = 10
WARM_SECONDS = 6
"""The clients import what they need with their first rows, and the nodes then have that backlog."""
SYNCS = 200


def measure() -> list[dict[str, object]]:
    return [*_acknowledged(), _delivery()]


def _acknowledged() -> Iterator[dict[str, object]]:
    plain: list[float] = []
    packed: list[float] = []
    reference: list[float] = []
    with discarding_server() as null, bench_cluster(1) as cluster:
        door = cluster.node("n1").door
        for _ in range(ROUNDS):
            reference.append(_put_single_rows(null, covered=False))
            plain.append(_put_single_rows(door, covered=True))
            packed.append(_send_single_rows(Channel([door])))
    for what, speeds in (("a record batch each", plain), ("Channel.publisher", packed)):
        yield {
            "what": f"acknowledged rows/s, one DoPut, {what}",
            "value": f"{median(speeds):,.0f}",
            "of rounds": f"{min(speeds):,.0f} .. {max(speeds):,.0f}",
            "reference": f"{median(reference):,.0f} rows/s discarded",
        }


def _send_single_rows(channel: Channel) -> float:
    row = {"v": os.urandom(100)}
    started = time.perf_counter()
    with channel.publisher("packed") as publisher:
        for _ in range(SINGLE_ROWS):
            publisher.send(row)
    elapsed = time.perf_counter() - started
    assert publisher.acked == SINGLE_ROWS
    return SINGLE_ROWS / elapsed


def _put_single_rows(door: str, *, covered: bool) -> float:
    row = batch_of_rows(1)
    with flight_client(door, {}) as client:
        writer, acks = client.do_put(flight.FlightDescriptor.for_path("rows"), row.schema)
        last = {"rows": 0}

        def listen() -> None:
            while (message := acks.read()) is not None:
                last.update(json.loads(message.to_pybytes()))

        listener = threading.Thread(target=listen)
        started = time.perf_counter()
        listener.start()
        for _ in range(SINGLE_ROWS):
            writer.write_batch(row)
        writer.done_writing()
        listener.join()
        elapsed = time.perf_counter() - started
        writer.close()
    assert not covered or last["rows"] == SINGLE_ROWS, last
    return SINGLE_ROWS / elapsed


def _delivery() -> dict[str, object]:
    """Publisher and reader are processes of their own: neither waits for the other's interpreter."""
    with bench_cluster(5) as cluster:
        publisher = subprocess.Popen([sys.executable, "-m", "tests.bench.rows", cluster.node("n1").door])
        try:
            late_ms = _late_ms(cluster.node("n5").door)
        finally:
            publisher.wait()
        cuts = quantiles(late_ms, n=1_000)
        sync_ms = _sync_ms()
        return {
            "what": f"delivery at n5, {RATE} rows/s",
            "value": f"p50 {cuts[499]:.1f}, p99 {cuts[989]:.1f}, p99.9 {cuts[998]:.1f} ms",
            "of rounds": f"{len(late_ms):,} rows",
            "reference": f"fsync p50 {median(sync_ms):.2f}, p99 {quantiles(sync_ms, n=100)[98]:.2f} ms",
        }


def _publish_open_loop(door: str) -> None:
    """Rows carry the time at which they were due, so a publisher that is held up does not hide it."""
    with flight_client(door, {}) as client:
        schema = pa.schema([("due_ns", pa.int64()), ("v", pa.binary())])
        writer, acks = client.do_put(flight.FlightDescriptor.for_path("latency"), schema)

        def listen() -> None:
            while acks.read() is not None:
                pass

        listener = threading.Thread(target=listen)
        listener.start()
        filler = os.urandom(92)
        started_ns = time.time_ns()
        for number in range(RATE * (WARM_SECONDS + SECONDS)):
            due_ns = started_ns + number * 1_000_000_000 // RATE
            while (left_ns := due_ns - time.time_ns()) > 0:
                time.sleep(left_ns / 1e9)
            writer.write_batch(pa.record_batch([pa.array([due_ns]), pa.array([filler])], schema=schema))
        writer.done_writing()
        listener.join()
        writer.close()


def _late_ms(door: str) -> list[float]:
    """How late each row came, after the warm-up. A tail ends before the first rows of a topic, and is asked again."""
    late_ns: list[int] = []
    rows_due = RATE * (WARM_SECONDS + SECONDS)
    at: dict[str, dict[str, int]] = {}
    with flight_client(door, {}) as client:
        while len(late_ns) < rows_due:
            ticket = {"topic": "latency", "start": at, "idle_ms": 5_000}
            reader: Any = client.do_get(flight.Ticket(json.dumps(ticket).encode()))
            while len(late_ns) < rows_due:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    break
                now_ns = time.time_ns()
                where = json.loads(chunk.app_metadata.to_pybytes())
                at.setdefault(where["topic"], {})[where["origin"]] = where["next"]
                late_ns += (now_ns - due for due in chunk.data.column("due_ns").to_pylist())
            reader.cancel()
    return [late / 1e6 for late in late_ns[RATE * WARM_SECONDS :]]


def _sync_ms() -> list[float]:
    page = os.urandom(4096)
    taken: list[float] = []
    with tempfile.TemporaryFile() as file:
        for _ in range(SYNCS):
            started = time.perf_counter()
            os.pwrite(file.fileno(), page, 0)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - started) * 1e3)
    return taken


if __name__ == "__main__":
    _publish_open_loop(sys.argv[1])
