"""Single rows of 100 bytes, sent one by one in one DoPut to a real node with fsync, with acks until every row is
covered: as a record batch each, and by the client's publisher, which packs them; both beside a Flight server that
discards a record batch for each row."""

import json
import os
import threading

from pyarrow import flight

from m4cast.overlay.client import Channel
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch
from tests.bench.references import ROW_BYTES, batch_of_rows, bench_cluster, discarding_server, flight_client, pids

SINGLE_ROWS = 100_000


def measure(bench: Bench) -> None:
    rows = bench.of(SINGLE_ROWS, 30_000)
    with discarding_server() as null, bench_cluster(1) as cluster:
        door, nodes = cluster.node("n1").door, pids(cluster)
        discarded = Side(
            "null Flight server", lambda watch: _put(null.door, rows, watch, covered=False), null.processes
        )
        for what, ours in (
            ("a record batch each", Side("m4cast", lambda watch: _put(door, rows, watch, covered=True), nodes)),
            ("Channel.publisher", Side("m4cast", lambda watch: _send(Channel([door]), rows, watch), nodes)),
        ):
            bench.compare(
                f"acknowledged, {what}", "rows/s", ours, discarded, amount=rows, gb=rows * ROW_BYTES / 1e9, rounds=3
            )


def _send(channel: Channel, rows: int, watch: Watch) -> None:
    row = {"v": os.urandom(ROW_BYTES)}
    with watch, channel.publisher("packed") as publisher:
        for _ in range(rows):
            publisher.send(row)
    assert publisher.acked == rows


def _put(door: str, rows: int, watch: Watch, *, covered: bool) -> None:
    row = batch_of_rows(1)
    with flight_client(door, {}) as client:
        writer, acks = client.do_put(flight.FlightDescriptor.for_path("rows"), row.schema)
        last = {"rows": 0}

        def listen() -> None:
            while (message := acks.read()) is not None:
                last.update(json.loads(message.to_pybytes()))

        listener = threading.Thread(target=listen)
        with watch:
            listener.start()
            for _ in range(rows):
                writer.write_batch(row)
            writer.done_writing()
            listener.join()
        writer.close()
    assert not covered or last["rows"] == rows, last
