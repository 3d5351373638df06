"""Metrics of a run, its cost and its deliveries, counted by watching the world (an `Observer`).

Counting sees every message, so it is cheap: one addition per send, and a look-up per output of which only a few kinds
lead further. Nothing here judges; `scenarios.py` compares the numbers with what a scenario promises.

A *join* lasts from the start of a place to its first `Trace("full")`; founding the channel is no join. A *repair* lasts
from the first pull that a node sends for a batch until it hands that batch to its disk; batches that were announced to
it one by one are not repairs, since they are pulled on purpose. What a node has received is judged by its own
deliveries (`Delivered`) and, after a restart, by what is on its disk.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import ceil
from typing import NamedTuple

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    AppendBatch,
    Delivered,
    InsertBatch,
    Output,
    Published,
    Range,
    Refused,
    StartStream,
    Trace,
)
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How, Skip
from m4cast.overlay.protocol.wire.messages import AnnounceStmt, BeaconStmt, Heartbeat, PullCall
from m4cast.overlay.protocol.wire.selective import RoutedFrame, WireFrame
from m4cast.overlay.sim.places import End, Observer, Place
from m4cast.overlay.sim.world import World

NOT_CONTROL = (BatchFrame, Heartbeat, BeaconStmt)
"""Payload, and what flows though nothing happens."""

_Missing = tuple[str, StreamId, int]
"""The address of a place, and the stream and first sequence of a batch it has not got."""


class Join(NamedTuple):
    address: str
    ms: int


class GapRepair(NamedTuple):
    """The duration of a gap, and the round trip of the link that was asked first."""

    ms: int
    round_trip_ms: int


class Acceptance(NamedTuple):
    """A publish that was acknowledged, and where."""

    address: str
    ranges: tuple[Range, ...]


def percentile(values: Iterable[int], percent: float) -> int | None:
    """The smallest value that this share of the values does not exceed; None when there are none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] if ordered else None


class Metrics(Observer):
    outputs = (Delivered, Append, Trace, Published, Refused)

    def __init__(self, world: World) -> None:
        self.sent_by_kind: defaultdict[type, int] = defaultdict(int)
        self.remote_deliveries = 0
        self.hops_total = 0
        self.hops_max = 0
        self.duplicates = 0
        self.out_of_order = 0
        self.joins: list[Join] = []
        self.repairs: list[GapRepair] = []
        self.accepted: dict[int, Acceptance] = {}
        """Accepted publishes, by the number of their request."""
        self.refused: dict[int, str] = {}
        """Number of the request -> code."""
        self.routed_copies = 0
        """Batches of selective topics, a copy for each link that they crossed."""
        self._world = world
        self._joining: dict[str, int] = {}  # address -> start of the node there
        self._next: defaultdict[str, dict[StreamId, int]] = defaultdict(dict)  # address -> what it was handed so far
        self._skips: defaultdict[str, list[Skip]] = defaultdict(list)
        self._inserted: dict[StreamId, set[tuple[str, int]]] = {}  # selective -> (address, first sequence) it was at
        self._announced: set[_Missing] = set()
        self._pulled: dict[_Missing, tuple[int, int]] = {}  # -> first asked at, round trip of that link
        self._outputs: dict[type, Callable[[Place, Output], None]] = {
            Delivered: self._delivered,  # type: ignore[dict-item]  # each is only called with its own type
            Append: self._append,  # type: ignore[dict-item]
            Trace: self._trace,  # type: ignore[dict-item]
            Published: self._published,  # type: ignore[dict-item]
            Refused: self._refused,  # type: ignore[dict-item]
        }

    # ---- sums

    @property
    def payload_copies(self) -> int:
        return self.sent_by_kind[BatchFrame] + self.routed_copies

    @property
    def announcements(self) -> int:
        return self.sent_by_kind[AnnounceStmt]

    def control_messages(self) -> dict[str, int]:
        """Numbers of control messages by kind, without payload, heartbeats and beacons."""
        return {kind.__name__: count for kind, count in self.sent_by_kind.items() if kind not in NOT_CONTROL}

    def control_total(self) -> int:
        return sum(count for kind, count in self.sent_by_kind.items() if kind not in NOT_CONTROL)

    def frontier(self, address: str) -> dict[StreamId, int]:
        """The sequence after the last one that was handed over at this place, for each stream."""
        return self._next[address]

    def has(self, address: str, rows: Range) -> bool:
        """All these rows were delivered at this place, as rows and not as a skip."""
        if self._next[address].get(rows.stream, 1) < rows.next_sequence:
            return False
        return not any(
            skip.stream == rows.stream
            and skip.first_sequence < rows.next_sequence
            and skip.last_sequence >= rows.first_sequence
            for skip in self._skips[address]
        )

    # ---- what the world shows

    def started(self, place: Place) -> None:
        self._joining[place.address] = self._world.now_ms
        logs = place.disk.content.logs
        self._next[place.address] = {stream: log.next for stream, log in logs.items()}
        self._skips[place.address] = [skip for log in logs.values() for skip in log.skips]

    def stopped(self, place: Place) -> None:
        self._joining.pop(place.address, None)
        self._pulled = {key: asked for key, asked in self._pulled.items() if key[0] != place.address}
        self._announced = {key for key in self._announced if key[0] != place.address}

    def sent(self, end: End, message: WireFrame) -> None:
        kind = type(message)
        self.sent_by_kind[kind] += 1
        if kind is PullCall:
            assert isinstance(message, PullCall)
            key = (end.place.address, StreamId(message.origin, message.topic), message.first_sequence)
            self._pulled.setdefault(key, (self._world.now_ms, 2 * end.latency_ms))
        elif kind is AnnounceStmt:
            assert isinstance(message, AnnounceStmt)
            stream = StreamId(message.origin, message.topic)
            if self._next[end.other.place.address].get(stream, 1) <= message.first_sequence:
                self._announced.add((end.other.place.address, stream, message.first_sequence))
        elif kind is RoutedFrame:
            assert isinstance(message, RoutedFrame)
            self.routed_copies += isinstance(message.content, Batch)

    def output(self, place: Place, output: Output) -> None:
        self._outputs[type(output)](place, output)

    def _delivered(self, place: Place, delivered: Delivered) -> None:
        record = delivered.delivery
        frontier = self._next[place.address]
        expected = frontier.get(record.stream, 1)
        if record.stream in self._inserted and not isinstance(record, Skip) and record.how is not How.PUBLISHED:
            # Batches of selective streams come in any order, and not all of them. One that comes again, because it was
            # registered for once more, is not written and not delivered again.
            arrived = (place.address, record.first_sequence)
            if arrived in self._inserted[record.stream]:
                return
            self._inserted[record.stream].add(arrived)
        elif record.first_sequence < expected:
            self.duplicates += 1
        elif record.first_sequence > expected:
            self.out_of_order += 1
        frontier[record.stream] = max(expected, record.last_sequence + 1)
        if isinstance(record, Skip):
            self._skips[place.address].append(record)
        elif record.how is not How.PUBLISHED:
            self.remote_deliveries += 1
            self.hops_total += record.hops
            self.hops_max = max(self.hops_max, record.hops)

    def _append(self, place: Place, append: Append) -> None:
        for write in append.writes:
            if isinstance(write, StartStream):
                self._next[place.address].setdefault(write.stream, write.first_sequence)
            elif isinstance(write, InsertBatch):
                self._inserted.setdefault(write.batch.stream, set())
            elif isinstance(write, AppendBatch) and (self._pulled or self._announced):
                key = (place.address, write.batch.stream, write.batch.first_sequence)
                asked = self._pulled.pop(key, None)
                if key in self._announced:
                    self._announced.remove(key)
                elif asked is not None:
                    asked_at_ms, round_trip_ms = asked
                    self.repairs.append(GapRepair(self._world.now_ms - asked_at_ms, round_trip_ms))

    def _trace(self, place: Place, trace: Trace) -> None:
        if trace.name == "founded":
            self._joining.pop(place.address, None)
        elif trace.name == "full":
            started_at_ms = self._joining.pop(place.address, None)
            if started_at_ms is not None:
                self.joins.append(Join(place.address, self._world.now_ms - started_at_ms))

    def _published(self, place: Place, published: Published) -> None:
        self.accepted[published.request] = Acceptance(place.address, published.ranges)

    def _refused(self, place: Place, refused: Refused) -> None:
        self.refused[refused.request] = refused.code
