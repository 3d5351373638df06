"""Imports: rows of other channels, into this one.

A batch that the federation delivered here is on disk before anything else happens to it, and waits until it is the next
of its stream; then the node spreads it as a stream of a foreign origin. Several gatekeepers may do so: duplicates fall
out by stream and sequence. What is missing is looked for beyond the gateways (`finding`): rows that came another way
and are late, rows from before the import, the end of an idle stream. Only what nobody keeps becomes a skip (H43).
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.gateways.channel_side import ChannelSide
from m4cast.overlay.net.gateways.finding import FoundRows, StreamFinding
from m4cast.overlay.net.gateways.kept import KeptRows
from m4cast.overlay.net.gateways.wire.messages import StreamHead
from m4cast.overlay.protocol.wire.batch import Batch

GAP_S, GAP_S_MAX = 0.3, 30.0
"""The time for which missing rows may still arrive by themselves, before they are looked for. Guess."""
WAITING_BYTES_MAX = 64 << 20
"""Batches that wait for those before them; beyond it they are dropped and looked for later. Raising it costs memory."""
PULL_BYTES = 4 << 20


@dataclass(slots=True)
class _Stream:
    waiting: dict[int, tuple[Batch, int, NodeId]] = field(default_factory=dict)
    """Waiting batches by first sequence: batch, gateways crossed, the gatekeeper that it came from."""
    head_next: int = 1
    """The next sequence of the stream, as far as is known."""
    look_at_s: float | None = None
    """The time at which missing rows are looked for."""
    wait_s: float = GAP_S
    is_searched: bool = False
    searched_from: int = 1


class Imports:
    """`topics`: what is imported -> the time with which streams begin. `is_parted`: a unit cannot be reached."""

    def __init__(
        self,
        side: ChannelSide,
        kept: KeptRows,
        finding: StreamFinding,
        topics: dict[str, int],
        is_parted: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        """The number of batches by outcome: taken, duplicate, own-origin, not-imported, dropped."""
        self._side = side
        self._kept = kept
        self._finding = finding
        self._topics = topics
        self._is_parted = is_parted
        self._changed = changed
        self._streams: dict[StreamId, _Stream] = {}
        self._waiting_bytes = 0

    def start(self, me: NodeId) -> None:
        for batch in self._kept.imported():
            if batch.stream.topic in self._topics:
                self._add(batch, 1, me)
            else:  # it was imported before the last restart
                self._kept.drop_import(batch.stream, batch.first_sequence)
        for stream in list(self._streams):
            self.push(stream)

    # ---- what comes

    def delivered(self, batch: Batch, hops: int, sender: NodeId) -> None:
        """The federation delivered a batch: a row of it is kept with the federation's own."""
        stream = batch.stream
        if self._side.is_own(stream.origin):
            self.counts["own-origin"] += 1
            return
        if stream.topic not in self._topics:
            self.counts["not-imported"] += 1
            return
        held = self._side.held(stream)
        if held is not None and batch.next_sequence <= held.durable_next:
            self.counts["duplicate"] += 1
            return
        if self._waiting_bytes + len(batch.content) > WAITING_BYTES_MAX:
            self.counts["dropped"] += 1
            self._note_end(stream, batch.next_sequence)
            return
        if self._add(batch, hops, sender):
            self._kept.keep_import(batch)

    def _add(self, batch: Batch, hops: int, sender: NodeId) -> bool:
        stream = self._streams.setdefault(batch.stream, _Stream())
        if batch.first_sequence in stream.waiting:
            self.counts["duplicate"] += 1
            return False
        stream.waiting[batch.first_sequence] = (batch, hops, sender)
        self._waiting_bytes += len(batch.content)
        self._note_end(batch.stream, batch.next_sequence)
        return True

    def head(self, head: StreamHead) -> None:
        """The channel of a stream says how far it goes."""
        if head.topic in self._topics and not self._side.is_own(head.origin):
            stream = StreamId(head.origin, head.topic)
            self._note_end(stream, head.next)
            self.push(stream)

    def _note_end(self, stream_id: StreamId, next_sequence: int) -> None:
        stream = self._streams.setdefault(stream_id, _Stream())
        stream.head_next = max(stream.head_next, next_sequence)

    # ---- to the node

    def push(self, stream_id: StreamId) -> None:
        """Hand over what is next, and see whether something is missing."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        before = self._next(stream_id)
        while (next_sequence := self._next(stream_id)) in stream.waiting and self._may_begin(stream_id, next_sequence):
            batch, hops, sender = stream.waiting[next_sequence]
            if not self._side.hand_over(batch, hops, sender):
                break
            self.counts["taken"] += 1
        self._drop_done(stream_id, stream)
        next_sequence = self._next(stream_id)
        if next_sequence >= stream.head_next:
            stream.look_at_s, stream.wait_s = None, GAP_S
        elif stream.look_at_s is None or next_sequence > before:
            stream.look_at_s = time.monotonic() + GAP_S

    def _may_begin(self, stream_id: StreamId, next_sequence: int) -> bool:
        """An import that begins with a time finds its first row first."""
        return next_sequence > 1 or not self._topics.get(stream_id.topic)

    def _next(self, stream_id: StreamId) -> int:
        held = self._side.held(stream_id)
        return 1 if held is None else held.next

    def _drop_done(self, stream_id: StreamId, stream: _Stream) -> None:
        """Rows of batches that are in the log now."""
        held = self._side.held(stream_id)
        if held is None:
            return
        for first in [first for first, each in stream.waiting.items() if each[0].next_sequence <= held.durable_next]:
            batch, _, _ = stream.waiting.pop(first)
            self._waiting_bytes -= len(batch.content)
            self._kept.drop_import(stream_id, first)
            self._changed()

    def durable(self, stream_id: StreamId) -> None:
        """More of the stream is on disk."""
        if stream_id in self._streams:
            self.push(stream_id)

    # ---- what is missing

    def look(self) -> None:
        now_s = time.monotonic()
        for stream_id, stream in self._streams.items():
            if self._is_due(stream, now_s):
                self.push(stream_id)  # the node may have shed something
                if self._is_due(stream, now_s):
                    self._search(stream_id, stream, now_s)

    @staticmethod
    def _is_due(stream: _Stream, now_s: float) -> bool:
        return stream.look_at_s is not None and now_s >= stream.look_at_s and not stream.is_searched

    def _search(self, stream_id: StreamId, stream: _Stream, now_s: float) -> None:
        stream.look_at_s = now_s + stream.wait_s
        stream.wait_s = min(2 * stream.wait_s, GAP_S_MAX)
        stream.is_searched = True
        first = stream.searched_from = self._next(stream_id)
        begin_ms = self._topics.get(stream_id.topic, 0) if first == 1 else 0
        self._finding.find(stream_id, first, begin_ms, partial(self._found, stream_id))

    def _found(self, stream_id: StreamId, found: FoundRows | None) -> None:
        """The answer of all who could be asked; None: not all of them answered."""
        stream = self._streams[stream_id]
        stream.is_searched = False
        if found is None:
            return
        first = self._next(stream_id)
        if first != found.asked:
            self.push(stream_id)
            return
        if found.low == 0:
            if stream.waiting and not self._is_parted():
                self._side.begin_at(stream_id, first, min(stream.waiting))
                self.push(stream_id)
            return
        begin = max(found.low, found.first)
        if begin > first:
            if self._is_parted():
                return
            self._side.begin_at(stream_id, first, begin)
        stream.is_searched = True
        until = min((each for each in stream.waiting if each > begin), default=found.next)
        self._finding.pull(found, begin, max(until, begin + 1), PULL_BYTES)

    def pulled(self, batch: Batch, sender: NodeId) -> None:
        """A batch that was looked for."""
        if batch.stream in self._streams and not self._side.is_own(batch.stream.origin):
            self._side.hand_over(batch, 1, sender)

    def pull_over(self, stream_id: StreamId) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.is_searched = False
        self.push(stream_id)
        if self._next(stream_id) > stream.searched_from and stream.look_at_s is not None:
            stream.wait_s, stream.look_at_s = GAP_S, time.monotonic()  # there may be more where this came from
