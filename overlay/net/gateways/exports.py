"""Exports: the rows of this channel's own streams, out of its log into the federation.

Several gatekeepers of a channel share the streams: of those that export a stream and can be reached, the one with the
greatest hash does it, and tells the others how far it is; one that takes over goes on from there. So a batch may be
handed over twice, which is one event all the same, and never not at all.

An idle stream's *head* is handed over in place of a batch, less and less often: whoever wants the stream finds that it
is there, or that it lacks its end, and fetches it from the log.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from m4cast.overlay.federation.units import UnitId
from m4cast.overlay.ids import StreamId
from m4cast.overlay.net.gateways.channel_side import ChannelSide
from m4cast.overlay.net.gateways.kept import KeptRows
from m4cast.overlay.net.gateways.rules import GatewayRules
from m4cast.overlay.net.gateways.wire.messages import ExportedStmt, ExportedStream, StreamHead
from m4cast.overlay.protocol.wire.batch import Batch

READ_BYTES = 1 << 20
HEAD_S, HEAD_S_MAX = 0.5, 60.0
"""The time for which a stream is idle before its head is sent, at first and at most. Guess. Higher: idle streams are
found later by nodes that begin to want them; lower: more messages without rows."""
HEADS_AT_ONCE = 256
ENTRIES_MAX = 1_000


@dataclass(slots=True)
class _Idle:
    at_s: float
    wait_s: float


class Exports:
    """`publish` hands a batch or a head to the machine; `is_full`: too much is under way; `fellows`: gatekeepers of the
    channel that can be reached."""

    def __init__(
        self,
        side: ChannelSide,
        rules: GatewayRules,
        kept: KeptRows,
        me: UnitId,
        publish: Callable[[Batch | StreamHead], None],
        fellows: Callable[[], list[UnitId]],
    ) -> None:
        self.is_full: Callable[[], bool] = lambda: False
        self.positions: dict[StreamId, int] = {}
        self.batches = 0
        self._side = side
        self._rules = rules
        self._kept = kept
        self._me = me
        self._publish = publish
        self._fellows = fellows
        self._theirs: dict[UnitId, dict[StreamId, None]] = {}
        """Streams that other gatekeepers of the channel export."""
        self._dirty: dict[StreamId, None] = {}
        self._work = asyncio.Event()
        self._idle: dict[StreamId, _Idle] = {}
        self._announced: dict[StreamId, int] = {}
        self._selective: dict[StreamId, None] = {}
        """Streams whose coverage may rise without a batch."""

    def start(self) -> None:
        self.positions = self._kept.exported()
        for stream in self._side.streams():
            if self._exports(stream):
                held = self._side.held(stream)
                if held is not None:  # what was there before is found by its head
                    self.positions.setdefault(stream, held.durable_next)
                self.delivered(stream)

    def delivered(self, stream: StreamId) -> None:
        """More of a stream is on disk."""
        if stream in self.positions or self._exports(stream):
            self._mark(stream)
            if self._side.is_selective(stream):
                self._selective[stream] = None

    def wanted(self, topics: set[str]) -> None:
        """Note that these are wanted from now on: heads are sent soon."""
        for stream, idle in self._idle.items():
            if stream.topic in topics:
                idle.at_s, idle.wait_s = time.monotonic() + HEAD_S, HEAD_S

    def again(self) -> None:
        """There is room, or another gatekeeper came or went."""
        self._work.set()

    def _mark(self, stream: StreamId) -> None:
        self._dirty[stream] = None
        self._idle[stream] = _Idle(time.monotonic() + HEAD_S, HEAD_S)
        self._work.set()

    def _exports(self, stream: StreamId) -> bool:
        return self._rules.exported(stream.topic) and self._side.is_own(stream.origin)

    def _is_mine(self, stream: StreamId) -> bool:
        others = (each for each in self._fellows() if stream in self._theirs.get(each, ()))
        return max((self._me, *others), key=lambda each: _weight(stream, each)) == self._me

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            for stream in list(self._dirty):
                if self.is_full():
                    break
                if self._is_mine(stream) and await self._export(stream):
                    self._dirty.pop(stream, None)

    async def _export(self, stream: StreamId) -> bool:
        """Hand over what is new of a stream; whether all of it is."""
        while not self.is_full():
            held = self._side.held(stream)
            position = self.positions.get(stream, 1)
            if held is None or position >= held.durable_next:
                return True
            batches, read_next = await self._side.read(stream, position, held.durable_next, READ_BYTES)
            for batch in batches:
                self._advance(stream, batch.next_sequence)
                self.batches += 1
                self._publish(batch)
            self._advance(stream, max(read_next, position + (not batches)))
        self._work.set()
        await asyncio.sleep(0.005)  # acknowledgements wake it as well
        return False

    def _advance(self, stream: StreamId, next_sequence: int) -> None:
        if next_sequence > self.positions.get(stream, 1):
            self.positions[stream] = next_sequence
            self._kept.keep_export(stream, next_sequence)

    def look(self) -> None:
        """Hand over heads that are due, and try again what was another gatekeeper's."""
        now_s, count = time.monotonic(), 0
        for stream, idle in self._idle.items():
            if idle.at_s > now_s or count >= HEADS_AT_ONCE:
                continue
            idle.at_s = now_s + idle.wait_s
            idle.wait_s = min(2 * idle.wait_s, HEAD_S_MAX)
            head = self._side.head(stream)
            if head is not None and self._is_mine(stream):
                count += 1
                self._publish(head)
        for stream in self._selective:
            held = self._side.held(stream)
            if held is not None and held.durable_next > self.positions.get(stream, 1):
                self._dirty[stream] = None
        if self._dirty:
            self._work.set()

    # ---- other gatekeepers of the channel

    def statements(self, *, all_of_them: bool = False) -> list[ExportedStmt]:
        """Return the positions of streams, for the other gatekeepers: what is new since the last time, or
        everything."""
        now = {stream: self.positions.get(stream, 1) for stream in self._idle}
        news = now if all_of_them else {stream: at for stream, at in now.items() if self._announced.get(stream) != at}
        self._announced.update(news)
        entries = [ExportedStream(stream.origin, stream.topic, at) for stream, at in news.items()]
        return [ExportedStmt(tuple(entries[at : at + ENTRIES_MAX])) for at in range(0, len(entries), ENTRIES_MAX)]

    def heard(self, fellow: UnitId, stmt: ExportedStmt) -> None:
        theirs = self._theirs.setdefault(fellow, {})
        for entry in stmt.entries:
            stream = StreamId(entry.origin, entry.topic)
            theirs[stream] = None
            self._advance(stream, entry.next)


def _weight(stream: StreamId, gatekeeper: UnitId) -> bytes:
    return blake2b(stream.origin + stream.topic.encode() + gatekeeper, digest_size=8).digest()
