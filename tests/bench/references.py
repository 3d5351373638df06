"""References that the channel is measured against, in the same run: a Flight server that discards, a bare LMDB loop, a
socket."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
from pyarrow import flight

from m4cast.cluster.local import LocalCluster
from m4cast.cluster.plan import Setting
from m4cast.overlay import heap
from tests.bench.comparison import Side
from tests.bench.processes import Watch

ROWS = 10_000
ROW_BYTES = 100
BATCH_BYTES = ROWS * ROW_BYTES
GROUP = 12
"""Batches in one transaction: as many bytes as the store's group."""
KEPT = 200
WARM = 600
"""Batches before the clock starts: the file has its size by then, and its pages are used again."""
TIMEOUT_S = 180.0
POLL_S = 0.01


def batch_of_rows(rows: int = ROWS) -> pa.RecordBatch:
    data = os.urandom(rows * ROW_BYTES)
    return pa.record_batch({"v": pa.array([data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES)])})


def bare_lmdb(batches: int, *, growing: bool = False, group: int = GROUP) -> Side:
    """One process writes batches as values, fsynced in groups, and deletes what is past the newest `KEPT`; or keeps
    all, in a file that grows from nothing. MB/s. Its malloc keeps what it frees, as a node's does: else groups of this
    size take new pages each time, and it is half as fast."""
    value = os.urandom(BATCH_BYTES)
    warm, kept = (0, batches) if growing else (WARM, KEPT)

    def write(env: lmdb.Environment, first: int, last: int) -> None:
        for at in range(first, last, group):
            with env.begin(write=True) as txn:
                for number in range(at, min(at + group, last)):
                    txn.put(number.to_bytes(8, "big"), value)
                    if number >= kept:
                        txn.delete((number - kept).to_bytes(8, "big"))

    def work(watch: Watch) -> float:
        heap.recycle()
        with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, map_size=4 << 30) as env:
            write(env, 0, warm)
            with watch:
                write(env, warm, warm + batches)
        return batches * BATCH_BYTES / watch.seconds / 1e6

    return Side("bare LMDB, new file" if growing else "bare LMDB", work)


def socket_copy(batches: int) -> Side:
    """One process sends through loopback to another thread, which takes it and discards it. MB/s."""
    value = os.urandom(BATCH_BYTES)

    def take(server: socket.socket, done: threading.Event) -> None:
        taker, _ = server.accept()
        with taker:
            buffer = bytearray(1 << 20)
            while taker.recv_into(buffer):
                pass
        done.set()

    def work(watch: Watch) -> float:
        with socket.create_server(("127.0.0.1", 0)) as server:
            done = threading.Event()
            threading.Thread(target=take, args=(server, done), daemon=True).start()
            with watch, socket.create_connection(server.getsockname()) as giver:
                for _ in range(batches):
                    giver.sendall(value)
                giver.shutdown(socket.SHUT_WR)
                assert done.wait(TIMEOUT_S)
        return batches * BATCH_BYTES / watch.seconds / 1e6

    return Side("socket copy", work)


class DiscardingServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            pass


@dataclass(frozen=True, slots=True)
class NullServer:
    door: str
    processes: dict[str, int]


@contextmanager
def discarding_server() -> Iterator[NullServer]:
    """One in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.references"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield NullServer(process.stdout.readline().strip(), {"server": process.pid})
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def flight_client(door: str, credentials: dict[str, str]) -> Any:
    """A plain one, without our client's comfort; `credentials`: none, or paths of `ca`, `cert` and `key`."""
    if not credentials:
        return flight.connect(f"grpc://{door}")
    ca, cert, key = (Path(credentials[name]).read_bytes() for name in ("ca", "cert", "key"))
    return flight.connect(f"grpc+tls://{door}", tls_root_certs=ca, cert_chain=cert, private_key=key)


@contextmanager
def bench_cluster(nodes: int, *, tls: bool = False, **node_settings: Setting) -> Iterator[LocalCluster]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster.make(Path(folder) / "cluster", nodes, tls=tls, node_settings=node_settings)
        cluster.up()
        try:
            yield cluster
        finally:
            cluster.down()


def pids(cluster: LocalCluster) -> dict[str, int]:
    """The processes of its running nodes, by name."""
    return {name: process.pid for name in cluster.names() if (process := cluster.process(name)) is not None}


def delivered_rows(cluster: LocalCluster, name: str) -> int:
    """Rows of all topics that a node has on its disk."""
    frontier = cluster.channel(name).frontier()
    return sum(until - 1 for origins in frontier.values() for until in origins.values())


def until_delivered(cluster: LocalCluster, rows: int, names: Sequence[str] = ()) -> None:
    """Wait until these nodes, or all, have so many."""
    deadline = time.monotonic() + TIMEOUT_S
    for name in names or cluster.names():
        while (count := delivered_rows(cluster, name)) < rows:
            assert time.monotonic() < deadline, f"{name} has {count} of {rows} rows after {TIMEOUT_S:g} s"
            time.sleep(POLL_S)


if __name__ == "__main__":
    server = DiscardingServer("grpc://127.0.0.1:0")
    print(f"127.0.0.1:{server.port}", flush=True)
    server.serve()
