"""Speaking: an origin's batches and statements to those who want them, until they acknowledge (rules R1, R2, R6).

Per destination and stream there is a *run*: `sent` is the end of the last batch sent or range stated. A batch goes to
those who want it, each with the statement that nothing else for it lies since `sent`. Who is sent nothing is covered by
a `CoverStmt` later. A run begins at the stream's next sequence when the destination's entry becomes known, and begins
anew when a registration joins in it. It is in memory alone: to forget one costs a pull, to guess one loses rows.

Keepers speak for absent origins by the same means, with empty statements at the end of what they have.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.selective.contract import SelectiveOutput, SelectiveSettings
from m4cast.overlay.protocol.selective.demand import Demand
from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.protocol.wire.batch import Batch, How
from m4cast.overlay.protocol.wire.routed import DESTINATIONS_MAX
from m4cast.overlay.protocol.wire.selective import (
    CoverEntry,
    CoverStmt,
    Destination,
    RoutedFrame,
    RoutedMessage,
    SelectAckStmt,
)
from m4cast.overlay.value import value

ENTRIES_MAX = 256
"""The maximum number of entries of one cover or acknowledgement."""
JOIN_DELAY_MS = 20
"""After this a new registration is stated: several that join together share a message. Guess."""
COVER_WAIT_MAX_MS = 60_000


@value
class CoverDue(Timer):
    """State what is not acknowledged."""


@dataclass(slots=True)
class DestinationRun:
    sent: int
    begun: int = 0
    """The position at which it began: what was published before may not be wanted there, although it matches."""
    known: int = 0
    """The position at which the first of the runs began that this one continues: what was published since is wanted."""
    acked: int = 0
    acked_version: int = 0
    """The version of the entry that the last acknowledgement was for."""
    due_ms: int = 0
    wait_ms: int = 0


@dataclass(slots=True)
class SpokenStream:
    """A stream that this node states: its own, or one that it keeps for an absent origin."""

    next: int = 1
    checksum: int = 0
    runs: dict[NodeId, DestinationRun] = field(default_factory=dict)
    unlevel: dict[NodeId, None] = field(default_factory=dict)
    """Those who have not acknowledged `next`."""


def route(
    out: list[SelectiveOutput], speaker: NodeId, destinations: list[Destination], content: RoutedMessage | Batch
) -> None:
    """Send to these nodes, in as many frames as it takes."""
    destinations.sort()
    for start in range(0, len(destinations), DESTINATIONS_MAX):
        part = tuple(destinations[start : start + DESTINATIONS_MAX])
        out.append(RoutedFrame(speaker, part, content, how=How.PUSHED if isinstance(content, Batch) else How.PUBLISHED))


class Speaking:
    def __init__(
        self, me: NodeId, demand: Demand, settings: SelectiveSettings, timers: Timers, out: list[SelectiveOutput]
    ) -> None:
        self._me = me
        self._demand = demand
        self._settings = settings
        self._timers = timers
        self._out = out
        self.streams: dict[StreamId, SpokenStream] = {}
        self.acks_taken = 0

    # ---- streams

    def open(self, stream_id: StreamId, next_sequence: int, checksum: int, now_ms: int) -> None:
        """Speak for this stream from here on; or its end has moved."""
        stream = self.streams.get(stream_id)
        if stream is None:
            stream = self.streams[stream_id] = SpokenStream(next_sequence, checksum)
            self._begin(stream_id, self._demand.interested(*stream_id), now_ms)
        elif next_sequence > stream.next:
            stream.next, stream.checksum = next_sequence, checksum
            for node_id in stream.runs:
                self._unlevel(stream, node_id, now_ms, self._settings.cover_ms)

    def close(self, stream_id: StreamId) -> None:
        self.streams.pop(stream_id, None)

    def published(self, batch: Batch, now_ms: int) -> list[NodeId]:
        """An own batch is durable: send it to those who want it, whose ids are returned."""
        stream = self.streams.get(batch.stream)
        if stream is None:
            self.open(batch.stream, batch.first_sequence, batch.previous_checksum, now_ms)
            stream = self.streams[batch.stream]
        assert stream.next == batch.first_sequence, "batches are sent in the order of their numbers"
        destinations = []
        for node_id in self._demand.takers(batch):
            run = stream.runs.get(node_id)
            if node_id == self._me or run is None:
                continue
            destinations.append(Destination(node_id, run.sent, self._demand.versions[node_id]))
            run.sent = batch.next_sequence
        stream.next, stream.checksum = batch.next_sequence, batch.checksum
        route(self._out, self._me, destinations, batch)
        for node_id in stream.runs:
            self._unlevel(stream, node_id, now_ms, self._settings.cover_ms)
        return [each.node_id for each in destinations]

    def passed(self, batch: Batch, now_ms: int) -> None:
        """An own batch is durable and is not sent: runs begin anew behind it, since nothing may be stated about it."""
        stream = self.streams.get(batch.stream)
        if stream is None:
            self.open(batch.stream, batch.first_sequence, batch.previous_checksum, now_ms)
            stream = self.streams[batch.stream]
        stream.next, stream.checksum = batch.next_sequence, batch.checksum
        for node_id, run in stream.runs.items():
            run.sent = batch.next_sequence
            self._unlevel(stream, node_id, now_ms, JOIN_DELAY_MS)

    # ---- who wants what

    def joined(self, node_id: NodeId, is_for: Iterable[StreamId], now_ms: int) -> None:
        """Something joined in the node's entry: its runs in these streams begin anew."""
        if node_id == self._me:
            return
        for stream_id in is_for:
            self._begin(stream_id, (node_id,), now_ms)

    def restarted(self, node_id: NodeId, now_ms: int) -> None:
        """The node has another life, perhaps on an older copy of its store: what it acknowledged may be gone."""
        for stream in self.streams.values():
            run = stream.runs.get(node_id)
            if run is not None:
                run.acked = run.acked_version = 0
                self._unlevel(stream, node_id, now_ms, JOIN_DELAY_MS)

    def left(self, node_id: NodeId) -> None:
        """Something left in the node's entry, or the node is absent: drop the runs that nothing is wanted for."""
        for stream_id, stream in self.streams.items():
            if node_id in stream.runs and node_id not in self._demand.interested(*stream_id):
                del stream.runs[node_id]
                stream.unlevel.pop(node_id, None)

    def _begin(self, stream_id: StreamId, nodes: Iterable[NodeId], now_ms: int) -> None:
        stream = self.streams[stream_id]
        for node_id in nodes:
            if node_id != self._me:
                before = stream.runs.get(node_id)
                run = stream.runs[node_id] = DestinationRun(stream.next)
                run.begun, run.known = stream.next, before.known if before is not None else stream.next
                self._unlevel(stream, node_id, now_ms, JOIN_DELAY_MS)

    def _unlevel(self, stream: SpokenStream, node_id: NodeId, now_ms: int, delay_ms: int) -> None:
        run = stream.runs[node_id]
        if stream.next == 1 or run.acked >= stream.next:
            return
        if node_id not in stream.unlevel or run.due_ms > now_ms + delay_ms:
            run.due_ms = now_ms + delay_ms
        run.wait_ms = self._settings.cover_ms
        stream.unlevel[node_id] = None
        self._timers.set_sooner(CoverDue(), run.due_ms)

    # ---- covers

    def covers_due(self, now_ms: int) -> None:
        """State what is due; those to whom the same is stated share a message."""
        entries: dict[tuple[NodeId, NodeId], list[CoverEntry]] = {}
        next_due_ms: int | None = None
        for stream_id, stream in self.streams.items():
            for node_id in stream.unlevel:
                run = stream.runs[node_id]
                if run.due_ms <= now_ms:
                    self._state(stream_id, stream, run, entries.setdefault((stream_id.origin, node_id), []), now_ms)
                next_due_ms = run.due_ms if next_due_ms is None else min(next_due_ms, run.due_ms)
        groups: dict[tuple[NodeId, tuple[CoverEntry, ...]], list[Destination]] = {}
        for (origin, node_id), stated in entries.items():
            for start in range(0, len(stated), ENTRIES_MAX):
                group = groups.setdefault((origin, tuple(stated[start : start + ENTRIES_MAX])), [])
                group.append(Destination(node_id, 0, self._demand.versions[node_id]))
        for (origin, part), destinations in groups.items():
            route(self._out, self._me, destinations, CoverStmt(origin, part))
        if next_due_ms is not None:
            self._timers.set_sooner(CoverDue(), next_due_ms)

    def hurry(self, node_id: NodeId, now_ms: int) -> None:
        """State at once what is due later: the node waits for it."""
        waiting = [stream.runs[node_id] for stream in self.streams.values() if node_id in stream.unlevel]
        for run in waiting:
            run.due_ms = min(run.due_ms, now_ms)
        if waiting:
            self.covers_due(now_ms)

    def _state(
        self, stream_id: StreamId, stream: SpokenStream, run: DestinationRun, entries: list[CoverEntry], now_ms: int
    ) -> None:
        first = run.sent if stream_id.origin == self._me else stream.next
        entries.append(CoverEntry(stream_id.topic, first, stream.next, stream.checksum))
        run.sent = stream.next
        run.due_ms = now_ms + run.wait_ms
        run.wait_ms = min(2 * run.wait_ms, COVER_WAIT_MAX_MS)

    # ---- acknowledgements

    def entry_changed(self, node_id: NodeId, before: int | None, version: int, concerned: Collection[StreamId]) -> None:
        """A node's entry has another version. What it acknowledged of streams that the change does not concern counts
        for that version, too; and acknowledgements by a version that was not known yet count now."""
        for stream_id, stream in self.streams.items():
            run = stream.runs.get(node_id)
            if run is not None and stream_id not in concerned and run.acked_version == before:
                run.acked_version = version
        self.acks_taken += 1

    def on_ack(self, sender: NodeId, ack: SelectAckStmt) -> None:
        if ack.version < self._demand.versions.get(sender, ack.version + 1):
            return  # of an entry that wanted less
        self.acks_taken += 1
        for topic, next_sequence in ack.entries:
            stream = self.streams.get(StreamId(ack.origin, topic))
            run = stream.runs.get(sender) if stream is not None else None
            if stream is None or run is None or next_sequence > stream.next:
                continue
            run.acked = max(run.acked, next_sequence)
            run.acked_version = ack.version
            if run.acked >= stream.next:
                stream.unlevel.pop(sender, None)

    def holders(self, batch: Batch) -> list[NodeId]:
        """The nodes that have acknowledged this batch, by the entry that is known of them: its keepers, and those that
        it was sent to. Others have everything that they want, and may want only what comes later."""
        stream = self.streams.get(batch.stream)
        if stream is None:
            return []
        keepers = self._demand.keepers(batch.stream.origin)
        level = self.level_at(batch.stream, batch.next_sequence)
        sent = [each for each in level if each in keepers or stream.runs[each].begun <= batch.first_sequence]
        takers = dict.fromkeys(self._demand.takers(batch)) if sent else {}
        return [node_id for node_id in sent if node_id in takers]

    def known(self, stream_id: StreamId, node_id: NodeId, end: int, *, by_the_present_run: bool) -> int:
        """Return the position from which this node knew of that one's registrations, the latest or all of them; `end`
        if it does not. A registration begins there or earlier, whatever clocks show."""
        stream = self.streams.get(stream_id)
        run = stream.runs.get(node_id) if stream is not None else None
        return end if run is None else min(run.begun if by_the_present_run else run.known, end)

    def acked_by(self, node_id: NodeId) -> dict[str, int]:
        """Return how far the node has acknowledged this node's own topics."""
        return {
            stream_id.topic: stream.runs[node_id].acked
            for stream_id, stream in self.streams.items()
            if stream_id.origin == self._me and node_id in stream.runs
        }

    def level_at(self, stream_id: StreamId, next_sequence: int) -> list[NodeId]:
        """The nodes that have acknowledged the stream up to here, by the entry that is known of them."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return []
        return [
            node_id
            for node_id, run in stream.runs.items()
            if run.acked >= next_sequence and run.acked_version == self._demand.versions.get(node_id)
        ]

    def is_level(self, node_id: NodeId) -> bool:
        """True if the node has acknowledged all of this node's own streams."""
        own = [stream for stream_id, stream in self.streams.items() if stream_id.origin == self._me]
        return all(node_id in stream.runs and node_id not in stream.unlevel for stream in own)
