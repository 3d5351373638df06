"""What the channel is measured against, in the same run: a Flight server that discards, a bare LMDB loop, a socket."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
from pyarrow import flight

from m4cast.local_cluster import LocalCluster, Setting

ROWS = 10_000
ROW_BYTES = 100
BATCH_BYTES = ROWS * ROW_BYTES
GROUP = 4
"""Batches in one transaction: as many bytes as the store's group."""
KEPT = 200
WARM = 600
"""Batches before the clock starts: the file has its size by then, and its pages are used again."""


def batch_of_rows(rows: int = ROWS) -> pa.RecordBatch:
    data = os.urandom(rows * ROW_BYTES)
    return pa.record_batch({"v": pa.array([data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES)])})


def lmdb_mb_per_s(batches: int, *, growing: bool = False) -> float:
    """One process writes batches as values, fsynced in groups, and deletes what is past the newest `KEPT`; or keeps
    all, in a file that grows from nothing."""
    value = os.urandom(BATCH_BYTES)
    warm, kept = (0, batches) if growing else (WARM, KEPT)
    with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, map_size=4 << 30) as env:
        started = 0.0
        for at in range(0, warm + batches, GROUP):
            if at == warm:
                started = time.perf_counter()
            with env.begin(write=True) as txn:
                for number in range(at, at + GROUP):
                    txn.put(number.to_bytes(8, "big"), value)
                    if number >= kept:
                        txn.delete((number - kept).to_bytes(8, "big"))
        return batches * BATCH_BYTES / (time.perf_counter() - started) / 1e6


def socket_mb_per_s(batches: int) -> float:
    """One process sends through loopback to another thread, which takes it and discards it."""
    value = os.urandom(BATCH_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def take() -> None:
            taker, _ = server.accept()
            with taker:
                buffer = bytearray(1 << 20)
                while taker.recv_into(buffer):
                    pass
            done.set()

        threading.Thread(target=take, daemon=True).start()
        started = time.perf_counter()
        with socket.create_connection(server.getsockname()) as giver:
            for _ in range(batches):
                giver.sendall(value)
        done.wait()
        return batches * BATCH_BYTES / (time.perf_counter() - started) / 1e6


class DiscardingServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            pass


@contextmanager
def discarding_server() -> Iterator[str]:
    """The address of one, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.references"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
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


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def anonymous_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1000
    raise AssertionError("this kernel does not tell RssAnon")


if __name__ == "__main__":
    server = DiscardingServer("grpc://127.0.0.1:0")
    print(f"127.0.0.1:{server.port}", flush=True)
    server.serve()
