"""The cost of the hot path in counts, which do not depend on the machine.

    python -m tests.bench.hot_path           # the figures now, beside those that are committed
    python -m tests.bench.hot_path --write   # commit to them: hot_path.json

Two real nodes with real doors and stores, in one process. A client publishes batch after batch at one of them, each
when the one before is delivered at the other, and then reads them there. Counted is, for each batch: calls of Python
functions of ours, by room, on all threads (client, door, loop, writer); frames and bytes that the nodes send each
other; commits (each is one fsync) and pages by which the stores grow; and what Python holds at most, by the payload's
size: how often the payload is copied. Each figure is the median over the batches; of reads, the least of several.
Forwarding is counted in a simulated channel of twenty nodes, where all that is counted is the same in every run.
"""

import json
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from m4cast.overlay.client import Channel
from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.door.publish.puts import PutService
from m4cast.overlay.door.read.reading import Reading
from m4cast.overlay.net.connection import Connection
from m4cast.overlay.sim.run import ScenarioPlan, ScenarioRun
from tests.overlay.door.served import Served, serving

FIGURES = Path(__file__).with_name("hot_path.json")
ROOMS = {
    "client": "m4cast/overlay/client/",
    "door": "m4cast/overlay/door/",
    "protocol": "m4cast/overlay/protocol/",
    "net": "m4cast/overlay/net/",
    "store": "m4cast/overlay/store/",
}
"""Where the code is imported from. The tests that serve the nodes have folders of the same names."""
READING_ROOMS = ("client", "door", "store")
SIZES = {"10 rows": 10, "10,000 rows": 10_000}
ROW_BYTES = 100
SILENT = ClusterConfig(heartbeat_interval_ms=60_000, heartbeat_timeout_ms=300_000, beacon_interval_ms=60_000)
"""Nothing is said but what belongs to a batch."""
FORWARD_NODES = 20
FORWARD_BATCHES = 50
BATCHES = 21
WARM_BATCHES = 6
"""Schemas are agreed on, links know each other, and the stores reuse pages by then."""
READS = 9
"""Passes over the same rows, of which the least counts: now and then a pass includes work that the store still does for
the last publish."""


class Calls:
    """Counts calls of our functions, by room, on every thread that it is told of."""

    def __init__(self) -> None:
        self.by_room: Counter[str] = Counter()
        self._rooms: dict[object, str | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._rooms:
            path = code.co_filename
            self._rooms[code] = next((room for room, folder in ROOMS.items() if folder in path), None)
        room = self._rooms[code]
        if room is not None:
            self.by_room[room] += 1


class Wire:
    """Counts what nodes send each other."""

    def __init__(self) -> None:
        self.frames = 0
        self.sent_bytes = 0


def counted_send(wire: Wire) -> Callable[..., None]:
    """Replaces `Connection.send`."""
    send = Connection.send

    def counted(self: Connection, pieces: tuple[bytes, ...], flush_later: Callable[[Connection], None]) -> None:
        wire.frames += 1
        wire.sent_bytes += sum(map(len, pieces))
        send(self, pieces, flush_later)

    return counted


@contextmanager
def counting(calls: Calls, wire: Wire) -> Iterator[None]:
    """Threads that are started meanwhile are counted, and so are the door's, which are not Python's own."""
    put, read = PutService.put, Reading.read

    def counted_put(self: PutService, *arguments: Any) -> None:
        sys.setprofile(calls)
        put(self, *arguments)

    def counted_read(self: Reading, *arguments: Any) -> Any:
        sys.setprofile(calls)
        schema, pieces = read(self, *arguments)
        return schema, counted_pieces(pieces)

    def counted_pieces(pieces: Iterator[Any]) -> Iterator[Any]:
        while True:
            sys.setprofile(calls)  # each piece is asked for by a thread that Python has not seen before
            try:
                piece = next(pieces)
            except StopIteration:
                return
            yield piece

    with (
        patch.object(PutService, "put", counted_put),
        patch.object(Reading, "read", counted_read),
        patch.object(Connection, "send", counted_send(wire)),
    ):
        threading.setprofile(calls)
        sys.setprofile(calls)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        figures = {**_counts(Path(folder) / "counted"), **_copies(Path(folder) / "traced"), **_forwarding()}
    return {name: round(value, 2) for name, value in figures.items() if value}


def _counts(folder: Path) -> dict[str, float]:
    calls, wire = Calls(), Wire()
    figures: dict[str, float] = {}
    with counting(calls, wire), serving(folder, 2, settings=lambda _: {"cluster": SILENT}) as served:
        look = _looker(served, calls, wire)
        for size, rows in SIZES.items():
            steps = [_differences(look, publish) for publish in _publishes(served, rows)]
            figures |= _medians(f"publish {size}", steps[WARM_BATCHES:])
            read = partial(Channel([served.addresses[1]]).read, _topic(rows))
            read()
            passes = [_differences(look, read) for _ in range(READS)]
            least = {room: min(seen[f"calls, {room}"] for seen in passes) for room in READING_ROOMS}
            figures |= {f"read {size}: calls, {room}": calls / len(steps) for room, calls in least.items()}
    return figures


def _looker(served: Served, calls: Calls, wire: Wire) -> Callable[[], dict[str, float]]:
    def look() -> dict[str, float]:
        infos = [node.store._env.info() for node in served.nodes]
        return {
            **{f"calls, {room}": calls.by_room[room] for room in ROOMS},
            "frames": wire.frames,
            "bytes": wire.sent_bytes,
            "commits": sum(info["last_txnid"] for info in infos),
            "pages": sum(info["last_pgno"] for info in infos),
        }

    return look


def _differences(look: Callable[[], dict[str, float]], action: Callable[[], object]) -> dict[str, float]:
    before = look()
    action()
    return {name: value - before[name] for name, value in look().items()}


def _medians(step: str, seen: list[dict[str, float]]) -> dict[str, float]:
    return {f"{step}: {name}": median(each[name] for each in seen) for name in seen[0]}


def _topic(rows: int) -> str:
    return f"rows-{rows}"


def _publishes(served: Served, rows: int) -> Iterator[Callable[[], None]]:
    """Each publishes a batch at the first node, until it is on the disks of both."""
    table = pa.table({"v": pa.array([bytes(ROW_BYTES)] * rows)})
    channel = Channel([served.addresses[0]])
    receiver = served.nodes[1]

    def publish() -> None:
        wanted = len(receiver.deliveries) + 1
        channel.publish(_topic(rows), table, acks=1)
        served.run(receiver.until_delivered(wanted))

    for _ in range(WARM_BATCHES + BATCHES):
        yield publish


def _copies(folder: Path) -> dict[str, float]:
    """Apart from the counts: tracing calls would be traced, too."""
    rows = SIZES["10,000 rows"]
    peaks: list[float] = []
    with serving(folder, 2, settings=lambda _: {"cluster": SILENT}) as served:
        tracemalloc.start()
        try:
            for publish in _publishes(served, rows):
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                publish()
                peaks.append((tracemalloc.get_traced_memory()[1] - before) / (rows * ROW_BYTES))
        finally:
            tracemalloc.stop()
    return {"publish 10,000 rows: Python memory / payload": median(peaks[WARM_BATCHES:])}


def _forwarding() -> dict[str, float]:
    """The counts, including what else such a channel sends and does meanwhile: heartbeats, beacons,
    acknowledgements."""
    run = ScenarioRun(ScenarioPlan("grow", FORWARD_NODES, seed=1, messages=FORWARD_BATCHES))
    assert run.join(FORWARD_NODES)
    calls, sent, delivered = Calls(), sum(run.metrics.sent_by_kind.values()), run.metrics.remote_deliveries
    sys.setprofile(calls)
    try:
        run.publish_all()
        assert run.deliver(run.world.up()) == 1
    finally:
        sys.setprofile(None)
    delivered = run.metrics.remote_deliveries - delivered
    return {
        "forward: frames": (sum(run.metrics.sent_by_kind.values()) - sent) / delivered,
        "forward: calls, protocol": calls.by_room["protocol"] / delivered,
    }


def main() -> None:
    figures = measure()
    committed = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    for name, value in figures.items():
        print(f"{name:45} {value:12,.2f} {committed.get(name, 0):12,.2f}")
    if sys.argv[1:] == ["--write"]:
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
