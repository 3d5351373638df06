"""Spreading: the sending half of dissemination (guarantees 2, 4, 7).

Each link keeps one number per stream, `announced_next`: every batch below it was pushed or announced on this link, one
by one, or the peer has shown that it has it. A batch is sent on a link exactly when it is the next to be announced
there. Small batches and a node's own are pushed (the patents' flood); large ones of others are announced and pulled, so
that each delivery costs little more than one copy of the payload. Thus each link carries each stream in order. A peer
that lags (it has just linked, or its queue was full) is not chased: it receives one coalesced frontier and pulls at its
own pace. When a pull reaches the end, `announced_next` is level again and pushing resumes. Nothing waits for a slow
peer, and nothing is buffered for it.

Where the peer has pruned a stream (`pruning.py`), frontiers, sent a little later, replace the pushes. A peer that pulls
it all the same is pushed to again.

At link-up both ends exchange digests of their frontiers, then the holdings that differ. This replaces the patents'
queue for newcomers (4, 5, 3 -> 3, 4, 5): the newcomer asks for what it lacks, in order. Heartbeats carry the digest as
well; if two differ while nothing moves, the same exchange starts, which repairs the loss of a last batch.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import ReadRange, Send, Trace
from m4cast.overlay.protocol.holdings import BUCKETS, ORIGIN_PATIENCE_MS, Holdings, Stream
from m4cast.overlay.protocol.streams.timers import FrontierDue
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How, StoredPayload, Traffic
from m4cast.overlay.protocol.wire.messages import (
    ENTRIES_PER_MESSAGE,
    AnnounceStmt,
    FrontierEntry,
    FrontierStmt,
    HoldingEntry,
    HoldingsStmt,
    PullCall,
    PullResp,
    SummaryStmt,
)

FRONTIER_DELAY_MS = 20
"""The time for which a frontier waits for others to join it; guess. Raising it delays a lagging peer and saves small
messages."""
PRUNED_DELAY_MS = 100
"""The time for which a frontier waits where a stream is pruned; guess. Raising it delays the repair of a broken branch,
lowering it fetches batches twice that are on their way."""
PULLS_WAITING_MAX = 64
"""Pulls of one connection that wait while another is served; more are a violation. A correct peer stays well below (see
`PULLS_PER_SOURCE_MAX` in sources); guess. Raising it costs memory for peers that do not."""
HOPS_MAX = 255


@dataclass(slots=True)
class Link:
    """The peer at the other end of a link (or of a call on which pulls are served)."""

    node_id: NodeId
    conn: int
    exchanged: bool = False
    announced_next: dict[StreamId, int] = field(default_factory=dict)
    lagging: dict[StreamId, None] = field(default_factory=dict)
    """Streams of which not every batch was announced: the next frontier names them."""
    pruned: dict[StreamId, None] = field(default_factory=dict)
    """Streams that the peer has sooner from elsewhere."""
    duplicates: dict[StreamId, int] = field(default_factory=dict)
    """Pushes in a row that brought nothing new."""
    blocked: bool = False
    waiting: deque[PullCall] = field(default_factory=deque)
    reading: bool = False
    ahead: tuple[StreamId, tuple[Batch, ...]] | None = None
    """Read ahead: a peer that pulls one window usually pulls the next one too."""
    last_digests: tuple[int, int] = (0, 0)
    """(theirs, mine) at the last heartbeat."""


class Spreading:
    def __init__(self, context: Context, holdings: Holdings, are_linked: Callable[[NodeId, NodeId], bool]) -> None:
        self._holdings = holdings
        self._are_linked = are_linked
        self._config = context.config
        self._timers = context.timers
        self._out = context.out
        self._tokens = 0
        self.links: dict[int, Link] = {}
        """Neighbour links by connection."""
        self._recent: dict[tuple[StreamId, int], BatchFrame] = {}  # announced; stream and first sequence
        self._recent_bytes = 0
        self.pushed = Traffic()
        self.served = Traffic()
        """Copies sent because they were asked for by a pull."""
        self._served: dict[int, Link] = {}  # links, and calls on which pulls are served
        self._reads: dict[int, tuple[Link, PullCall | None]] = {}
        self._unreadable: dict[StreamId, tuple[int, int]] = {}  # the batch that was last found damaged

    # ---- links

    def link_up(self, node_id: NodeId, conn: int) -> None:
        self.links[conn] = self._served[conn] = Link(node_id, conn)
        self.send_summary(conn)

    def serve_on(self, node_id: NodeId, conn: int) -> None:
        """Serve pulls on a call that is not a link."""
        self._served.setdefault(conn, Link(node_id, conn))

    def serves(self, conn: int) -> bool:
        return conn in self._served

    def down(self, conn: int) -> None:
        self.links.pop(conn, None)
        self._served.pop(conn, None)
        self._timers.cancel(FrontierDue(conn))

    def send_summary(self, conn: int) -> None:
        self._out.append(Send(conn, SummaryStmt(tuple(self._holdings.digests))))

    def on_summary(self, conn: int, summary: SummaryStmt, your_incarnation: int, your_origin_batch: int) -> None:
        link = self.links[conn]
        pairs = zip(self._holdings.digests, summary.digests, strict=True)
        differ = {bucket for bucket, (mine, theirs) in enumerate(pairs) if mine != theirs}
        if len(differ) < BUCKETS:
            for stream in self._holdings.streams.values():
                if stream.key % BUCKETS not in differ:
                    link.announced_next[stream.id] = stream.next
        entries = self._holdings.entries(differ) if differ else []
        for start in range(0, max(len(entries), 1), ENTRIES_PER_MESSAGE):
            part = tuple(entries[start : start + ENTRIES_PER_MESSAGE])
            last = start + ENTRIES_PER_MESSAGE >= len(entries)
            self._out.append(Send(conn, HoldingsStmt(part, your_incarnation, your_origin_batch, last)))

    def on_holdings(self, conn: int, entries: tuple[HoldingEntry, ...], last: bool, now_ms: int) -> None:
        link = self.links[conn]
        for entry in entries:
            self.peer_has(conn, StreamId(entry.origin, entry.topic), entry.next)
        if last:
            link.exchanged = True
            if link.lagging:
                self._timers.set_sooner(FrontierDue(conn), now_ms)

    def peer_has(self, conn: int, stream_id: StreamId, next_sequence: int) -> None:
        """The peer showed that it has everything below: nothing of that has to be announced."""
        link = self._served.get(conn)
        if link is not None and link.announced_next.get(stream_id, 1) < next_sequence:
            link.announced_next[stream_id] = next_sequence

    def all_exchanged(self) -> bool:
        return all(link.exchanged for link in self.links.values())

    def on_heartbeat(self, conn: int, digest: int) -> None:
        link = self.links[conn]
        digests = (digest, self._holdings.digest)
        if digests[0] != digests[1] and digests == link.last_digests:
            self._out.append(Trace("digests-differ", ()))
            self.send_summary(conn)
        link.last_digests = digests

    # ---- passing batches on

    def spread(self, stream: Stream, frame: BatchFrame, now_ms: int) -> None:
        """Push or announce a batch that was just accepted (or made durable by its origin) on every link. Costs two
        look-ups and one output per link."""
        batch = frame.batch
        onward: BatchFrame | None = None
        # What was committed from the stage is not in memory: it is announced, and read for whoever pulls it.
        in_memory = not isinstance(batch.payload, StoredPayload)
        is_own = frame.how is How.PUBLISHED
        # Every neighbour would pull it from its origin, which announces it first: the origin may as well push.
        pushed = in_memory and (is_own or len(batch.payload) <= self._config.push_bytes_max)
        if not pushed and in_memory and self.links:
            self._keep(frame)
        for link in self.links.values():
            announced_next = link.announced_next.get(stream.id, 1)
            if announced_next >= batch.next_sequence:
                continue
            from_origin = not is_own and self._are_linked(stream.id.origin, link.node_id)
            is_pruned = pushed and not is_own and stream.id in link.pruned
            is_left_to_others = is_pruned or (from_origin and not pushed)
            if not link.exchanged or link.blocked or announced_next != batch.first_sequence or is_left_to_others:
                # What the origin pushes there itself need not be announced; a later frontier shows that it is here.
                delay_ms = ORIGIN_PATIENCE_MS if from_origin else PRUNED_DELAY_MS if is_pruned else FRONTIER_DELAY_MS
                self._lag(link, stream.id, now_ms, delay_ms)
                continue
            link.announced_next[stream.id] = batch.next_sequence
            if pushed:
                if onward is None:
                    onward = BatchFrame(batch, min(frame.hops + 1, HOPS_MAX), How.PUSHED)
                self._out.append(Send(link.conn, onward))
                self.pushed.count(batch)
            else:
                self._out.append(
                    Send(
                        link.conn,
                        AnnounceStmt(
                            stream.id.origin,
                            stream.id.topic,
                            batch.first_sequence,
                            batch.next_sequence,
                            len(batch.payload),
                        ),
                    )
                )

    def announce(self, batch: Batch) -> None:
        """Rows that were skipped here have turned up: others may lack them, too."""
        stream_id = batch.stream
        announced = AnnounceStmt(
            stream_id.origin, stream_id.topic, batch.first_sequence, batch.next_sequence, len(batch.payload)
        )
        for link in self.links.values():
            if link.exchanged:
                self._out.append(Send(link.conn, announced))

    def _keep(self, frame: BatchFrame) -> None:
        """Keep in memory what was announced: several neighbours are about to pull it."""
        batch = frame.batch
        key = (batch.stream, batch.first_sequence)
        if key in self._recent:  # it comes again after the disk failed
            return
        self._recent[key] = frame
        self._recent_bytes += len(batch.payload)
        while self._recent_bytes > self._config.recent_bytes_max:
            oldest = self._recent.pop(next(iter(self._recent)))
            self._recent_bytes -= len(oldest.batch.payload)

    def _kept_from(self, stream_id: StreamId, first: int) -> list[BatchFrame]:
        frames: list[BatchFrame] = []
        while (frame := self._recent.get((stream_id, first))) is not None:
            frames.append(frame)
            first = frame.batch.next_sequence
        return frames

    def _lag(self, link: Link, stream_id: StreamId, now_ms: int, delay_ms: int = FRONTIER_DELAY_MS) -> None:
        if link.blocked:
            self._out.append(Trace("shed", (("reason", "link-queue"), ("topic", stream_id.topic))))
        if stream_id not in link.lagging:
            link.lagging[stream_id] = None
            if link.exchanged and not link.blocked:
                self._timers.set_sooner(FrontierDue(link.conn), now_ms + delay_ms)

    def skipped(self, stream: Stream, now_ms: int) -> None:
        """The stream advanced past a skip: peers that are not level receive its frontier."""
        for link in self.links.values():
            if link.announced_next.get(stream.id, 1) < stream.next:
                self._lag(link, stream.id, now_ms)

    def send_frontier(self, conn: int, now_ms: int) -> None:
        """Send the frontiers of streams in which the peer lags; what exceeds one message follows in the next."""
        link = self.links.get(conn)
        if link is None or link.blocked or not link.exchanged:
            return
        entries = []
        for stream_id in list(link.lagging)[:ENTRIES_PER_MESSAGE]:
            del link.lagging[stream_id]
            stream = self._holdings.streams[stream_id]
            if link.announced_next.get(stream_id, 1) < stream.next:
                entries.append(FrontierEntry(stream_id.origin, stream_id.topic, stream.next))
        if entries:
            self._out.append(Send(conn, FrontierStmt(tuple(entries))))
        if link.lagging:
            self._timers.set_sooner(FrontierDue(conn), now_ms + FRONTIER_DELAY_MS)

    def blocked(self, conn: int) -> None:
        if conn in self._served:
            self._served[conn].blocked = True

    def ready(self, conn: int, now_ms: int) -> None:
        link = self._served.get(conn)
        if link is None:
            return
        link.blocked = False
        if link.lagging:
            self._timers.set_sooner(FrontierDue(conn), now_ms)
        self._serve_waiting(link)

    # ---- serving pulls

    def on_pull(self, conn: int, call: PullCall) -> bool:
        """False when this connection has too many pulls waiting."""
        link = self._served.get(conn)
        if link is None or len(link.waiting) >= PULLS_WAITING_MAX:
            return False
        link.waiting.append(call)
        link.pruned.pop(StreamId(call.origin, call.topic), None)  # its other way was not enough
        self._serve_waiting(link)
        return True

    def _serve_waiting(self, link: Link) -> None:
        while link.waiting and not link.blocked and not link.reading:
            self._serve(link, link.waiting.popleft())

    def _serve(self, link: Link, call: PullCall) -> None:
        stream = self._holdings.get(StreamId(call.origin, call.topic))
        first = call.first_sequence
        if stream is None:
            self._answer(link, call, first, 1, 1)
        elif first >= stream.next:  # not yet; `low` must not say that what comes before is kept no more
            self._answer(link, call, first, stream.low, stream.next)
        elif stream.first_held_from(first) != first:
            self._answer(link, call, first, stream.first_held_from(first), stream.next)
        elif frames := self._kept_from(stream.id, first):
            self._send_batches(link, call, stream, frames)
        elif link.ahead is not None and link.ahead[0] == stream.id and link.ahead[1][0].first_sequence == first:
            self._send_read(link, call, stream, link.ahead[1])
        elif first >= stream.durable_next:
            self._send_batches(link, call, stream, [f for f in stream.undurable if f.batch.next_sequence > first])
        else:
            upto = min(call.next_sequence, stream.durable_next)
            self._read(link, call, stream.id, first, upto, min(call.bytes_max, self._config.pull_window_bytes))

    def _read(
        self, link: Link, call: PullCall | None, stream_id: StreamId, first: int, upto: int, bytes_max: int
    ) -> None:
        """Read a window, for a call or ahead of one."""
        self._tokens += 1
        self._reads[self._tokens] = (link, call)
        link.reading = True
        link.ahead = None
        self._out.append(ReadRange(self._tokens, stream_id, first, upto, bytes_max))

    def cannot_read(self, stream_id: StreamId, sequence: int) -> bool:
        """True if the row was found damaged on disk. Offering it again and again would keep others from giving it
        up."""
        first, following = self._unreadable.get(stream_id, (0, 0))
        return first <= sequence < following

    def repaired(self, stream_id: StreamId, first: int) -> None:
        """The batch that was found damaged can be read again."""
        if self._unreadable.get(stream_id, (0, 0))[0] == first:
            del self._unreadable[stream_id]

    def range_read(self, token: int, batches: tuple[Batch, ...], following: int = 0) -> None:
        link, call = self._reads.pop(token, (None, None))
        if link is None or self._served.get(link.conn) is not link:
            return
        link.reading = False
        if call is None:
            link.ahead = (batches[0].stream, batches) if batches else None
        else:
            stream = self._holdings.streams[StreamId(call.origin, call.topic)]
            if batches:
                self._send_read(link, call, stream, batches)
            else:  # retention was faster, or it is damaged
                if following:
                    self._unreadable[stream.id] = (call.first_sequence, following)
                low = max(stream.low, following, call.first_sequence + 1)
                served_next = 0 if following else call.first_sequence  # 0: it is kept here and cannot be read
                self._answer(link, call, served_next, low, stream.next)
        self._serve_waiting(link)

    def _send_read(self, link: Link, call: PullCall, stream: Stream, batches: tuple[Batch, ...]) -> None:
        """Send what was read, and read on while it travels."""
        link.ahead = None
        self._send_batches(link, call, stream, [BatchFrame(batch, 0, How.PULLED) for batch in batches])
        following = batches[-1].next_sequence
        upto = min(call.next_sequence, stream.durable_next)
        if following < upto and not link.waiting:
            self._read(link, None, stream.id, following, upto, self._config.pull_window_bytes)

    def _send_batches(self, link: Link, call: PullCall, stream: Stream, frames: list[BatchFrame]) -> None:
        bytes_max = min(call.bytes_max, self._config.pull_window_bytes)
        served = call.first_sequence
        sent_bytes = 0
        for frame in frames:
            batch = frame.batch
            # The first one may begin before what was asked for: then the two nodes have different histories of the
            # stream, and the one that asks has to see it.
            if not batch.first_sequence <= served < min(batch.next_sequence, call.next_sequence):
                break
            if sent_bytes and sent_bytes + len(batch.payload) > bytes_max:
                break
            self._out.append(Send(link.conn, BatchFrame(batch, min(frame.hops + 1, HOPS_MAX), How.PULLED)))
            self.served.count(batch)
            served = batch.next_sequence
            sent_bytes += len(batch.payload)
        if link.announced_next.get(stream.id, 1) < served:
            link.announced_next[stream.id] = served
        self._answer(link, call, served, stream.low, stream.next)

    def _answer(self, link: Link, call: PullCall, served_next: int, low: int, next_sequence: int) -> None:
        self._out.append(
            Send(
                link.conn,
                PullResp(call.origin, call.topic, call.first_sequence, served_next, low, next_sequence),
            )
        )
