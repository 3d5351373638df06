"""Single rows through the door: record batches of one row (100 bytes) in one DoPut, acknowledged by a node with fsync,
beside a null Flight server that reads and discards them. Client and server are two processes on this machine. CPU is
microseconds per row.
"""

import json
import multiprocessing
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.door.flight import DoorLimits
from tests.overlay.door.served import serving

ROWS = 200_000
ROUNDS = 3
ROW = pa.record_batch({"n": [1], "text": ["x" * 92]})


def measure() -> list[dict[str, object]]:
    """Servers take turns, so that whatever else the machine does meets both."""
    servers: dict[str, Callable[[Connection], None]] = {"null": _null, "node": _node}
    best: dict[str, dict[str, object]] = {}
    for _ in range(ROUNDS):
        for name, serve in servers.items():
            row = _round(name, serve)
            if name not in best or row["rows/s"] > best[name]["rows/s"]:  # type: ignore[operator]
                best[name] = row
    return list(best.values())


def _round(name: str, serve: Callable[[Connection], None]) -> dict[str, object]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    process.start()
    try:
        client = flight.connect(f"grpc://{ours.recv()}", generic_options=[("grpc.use_local_subchannel_pool", 1)])
        _publish(client, 2_000)  # connections and caches are warm
        ours.send("cpu")
        server_cpu_s, own_cpu_s = ours.recv(), time.process_time()
        elapsed_s = _publish(client, ROWS)
        ours.send("cpu")
        return {
            "server": name,
            "rows/s": round(ROWS / elapsed_s),
            "client CPU": round((time.process_time() - own_cpu_s) / ROWS * 1e6, 1),
            "server CPU": round((ours.recv() - server_cpu_s) / ROWS * 1e6, 1),
        }
    finally:
        ours.send("end")
        process.join()


def _publish(client: Any, rows: int) -> float:
    """Seconds until every row is acknowledged. Acks are listened to while rows are written."""
    writer, acks = client.do_put(flight.FlightDescriptor.for_path("single"), ROW.schema)
    acknowledged = 0

    def listen() -> None:
        nonlocal acknowledged
        while (ack := acks.read()) is not None:
            acknowledged = json.loads(ack.to_pybytes())["rows"]

    listening = threading.Thread(target=listen)
    listening.start()
    started = time.perf_counter()
    for _ in range(rows):
        writer.write_batch(ROW)
    writer.done_writing()
    listening.join()
    elapsed_s = time.perf_counter() - started
    writer.close()
    assert acknowledged == rows, f"{acknowledged} of {rows} acknowledged"
    return elapsed_s


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _answer(pipe: Connection, address: str) -> None:
    pipe.send(address)
    while pipe.recv() == "cpu":
        pipe.send(_cpu_s())


class _Null(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        rows = 0
        while True:
            try:
                rows += reader.read_chunk().data.num_rows
            except StopIteration:
                break
        writer.write(json.dumps({"rows": rows}).encode())


def _null(pipe: Connection) -> None:
    server = _Null("grpc://127.0.0.1:0")
    _answer(pipe, f"127.0.0.1:{server.port}")
    server.shutdown()


def _node(pipe: Connection) -> None:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), 1, DoorLimits()) as served:
        _answer(pipe, served.addresses[0])
