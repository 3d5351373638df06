"""Hold-back, and backlogs: what each stream lacks here, and what is being done about it. One record per stream.

A stream without a record lacks nothing and never did: most are like that, and their batches are accepted as they come.
`Ordering` holds back batches that came too early, `Pulling` asks for what is missing, `Searching` looks for holders:
all of them work on the same record.

Hold-back is bounded (guarantee 7): the batch that is farthest from being accepted makes room first, and the next one
wanted needs no room in it.
"""

from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Trace
from m4cast.overlay.protocol.wire.batch import BatchFrame


@dataclass(slots=True)
class EarlyBatch:
    """A batch that came before those that it follows."""

    frame: BatchFrame
    sender: NodeId
    received_at_ms: int


@dataclass(slots=True)
class Pull:
    """A range that was asked for: `first .. next - 1`."""

    first: int
    next: int
    source: NodeId


@dataclass(slots=True)
class Search:
    """A search for whoever keeps the next wanted row of a stream."""

    attempts: int = 0
    flood_at_ms: int = 0
    """The time at which the channel is searched again."""
    look_at_ms: int | None = None
    """The time at which to check whether the row may be given up, as far as that is known."""
    has_found: bool = False
    """The last flood brought a holder: whatever becomes of that, the row is not lost."""


@dataclass(slots=True)
class Backlog:
    early: dict[int, EarlyBatch] = field(default_factory=dict)
    """Batches that are held back, by first sequence."""
    gap: int = 0
    """The farthest batch that came before those that it follows; 0: all came in order."""
    pulls: dict[int, Pull] = field(default_factory=dict)
    """Ranges that were asked for, by first sequence."""
    tried: list[NodeId] = field(default_factory=list)
    """Sources that failed the next wanted sequence."""
    waits_at: int = 0
    """The next wanted sequence, while it is left to its origin to push it; 0: it is not."""
    waits_since_ms: int = 0
    search: Search | None = None
    """The search for the next wanted sequence."""
    damaged: int = 0
    """The row that a holder has and cannot read."""

    def advanced(self) -> None:
        """The next wanted sequence is another one now."""
        self.tried.clear()
        self.search = None


class Backlogs:
    def __init__(self, context: Context) -> None:
        self._bytes_max = context.config.hold_back_bytes_max
        self._out = context.out
        self._records: dict[StreamId, Backlog] = {}
        self.for_disk: dict[StreamId, None] = {}
        """Streams of which nothing is asked for until the disk has caught up."""
        self.held_bytes = 0
        """Payload that is held back."""
        self.gaps_open = 0
        """Streams of which a batch came and rows before it have not."""
        self.gaps_opened = 0
        self.gaps_repaired = 0

    def get(self, stream_id: StreamId) -> Backlog | None:
        return self._records.get(stream_id)

    def of(self, stream_id: StreamId) -> Backlog:
        backlog = self._records.get(stream_id)
        if backlog is None:
            backlog = self._records[stream_id] = Backlog()
        return backlog

    # ---- hold-back

    def hold_back(self, stream_id: StreamId, entry: EarlyBatch) -> bool:
        """Keep the batch until those before it are here; False when there is no room for it."""
        early = self.of(stream_id).early
        first = entry.frame.batch.first_sequence
        size = len(entry.frame.batch.payload)
        while early and self.held_bytes + size > self._bytes_max and max(early) > first:
            self._drop(early, max(early))
            self._trace_shed(stream_id)
        if self.held_bytes + size > self._bytes_max:
            self._trace_shed(stream_id)
            return False
        early[first] = entry
        self.held_bytes += size
        return True

    def _trace_shed(self, stream_id: StreamId) -> None:
        self._out.append(Trace("shed", (("reason", "hold-back"), ("topic", stream_id.topic))))

    def _drop(self, early: dict[int, EarlyBatch], first: int) -> EarlyBatch:
        entry = early.pop(first)
        self.held_bytes -= len(entry.frame.batch.payload)
        return entry

    def take(self, backlog: Backlog, first: int) -> EarlyBatch:
        """The batch is next now, and is held back no longer."""
        return self._drop(backlog.early, first)

    def take_overtaken(self, backlog: Backlog, next_sequence: int) -> list[EarlyBatch]:
        """Batches that begin below `next_sequence`: they are of another history, or were accepted from elsewhere."""
        overtaken = [first for first in backlog.early if first < next_sequence]
        return [self._drop(backlog.early, first) for first in overtaken]

    def drop_all(self, stream_id: StreamId) -> None:
        backlog = self._records.get(stream_id)
        if backlog is not None:
            for first in list(backlog.early):
                self._drop(backlog.early, first)

    # ---- gaps

    def open_gap(self, stream_id: StreamId, sequence: int) -> None:
        backlog = self.of(stream_id)
        if not backlog.gap:
            self.gaps_open += 1
            self.gaps_opened += 1
        backlog.gap = max(sequence, backlog.gap)

    def close_gap(self, backlog: Backlog, next_sequence: int, *, repaired: bool) -> None:
        """Everything below `next_sequence` is here, or is skipped: then the gap is closed, but not repaired."""
        if backlog.gap and backlog.gap <= next_sequence:
            backlog.gap = 0
            self.gaps_open -= 1
            self.gaps_repaired += repaired
