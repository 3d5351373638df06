"""Dissemination: what travels between nodes, and how a node that lacks something gets it (guarantees 2, 4, 7).

Composes the machines of this room over the node's holdings. Receiving: `Ordering`, `Pulling`, `Searching` and
`Inquiries`, which share `Sources` and `Backlogs`. Sending: `Spreading`, `Pruning` and `Holders`. Mending: `Repair` and
`Filling`. `Past` watches for others that know more of this node's own streams than its store does. A peer's mistake is
a `RemoteProtocolError`, raised before anything has changed.
"""

from collections.abc import Callable
from typing import assert_never

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import NodeId, StreamId, is_of_lineage
from m4cast.overlay.protocol.calls import Call, Candidate
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Append, ImportBatch, ImportBegin, Recovered, Send
from m4cast.overlay.protocol.floods import Floods
from m4cast.overlay.protocol.holdings import BUCKETS, Holdings, Stream
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.streams.filling import Filling
from m4cast.overlay.protocol.streams.hold_back import Backlogs
from m4cast.overlay.protocol.streams.holders import Holders, HoldFor
from m4cast.overlay.protocol.streams.inquiries import Inquiries, Inquiry
from m4cast.overlay.protocol.streams.ordering import DUPLICATE, Ordering, OrderingEvent
from m4cast.overlay.protocol.streams.past import Past
from m4cast.overlay.protocol.streams.pruning import Pruning
from m4cast.overlay.protocol.streams.pulling import Pulling
from m4cast.overlay.protocol.streams.repair import Repair
from m4cast.overlay.protocol.streams.searching import Searching
from m4cast.overlay.protocol.streams.sources import Sources
from m4cast.overlay.protocol.streams.spreading import Spreading
from m4cast.overlay.protocol.streams.timers import (
    FrontierDue,
    HolderSearchDue,
    PullTimeout,
    RepairDue,
    StreamTimer,
    WantDue,
)
from m4cast.overlay.protocol.wire.batch import BatchFrame, How
from m4cast.overlay.protocol.wire.messages import (
    ENTRIES_PER_MESSAGE,
    HELD_VERSION,
    AckEntry,
    AckStmt,
    AnnounceStmt,
    FrontierStmt,
    Heartbeat,
    HeldCall,
    HeldEntry,
    HeldResp,
    HolderFoundStmt,
    HoldingsStmt,
    PruneStmt,
    PullCall,
    PullResp,
    RosterEntry,
    SummaryStmt,
)

HELPERS_MAX = 8
"""Other nodes than neighbours that serve this one at a time; guess. Raising it speeds up catch-up from far."""
EXCHANGE_LOOK_MS = 500
"""While a new neighbour has not reported its holdings, nothing is given up; looked at again after this."""


class Dissemination:
    def __init__(
        self,
        context: Context,
        recovered: Recovered,
        holdings: Holdings,
        floods: Floods,
        recover: Callable[[Append], Append],
        emit: Callable[[OrderingEvent], None],
    ) -> None:
        self.backlogs = Backlogs(context)
        self.sources = Sources(context)
        self.ordering = Ordering(context, holdings, self.backlogs, recover, emit)
        self.searching = Searching(context, self.backlogs, self.sources)
        self.pulling = Pulling(context, holdings, self.backlogs, self.sources, self.ordering, self.searching)
        self.inquiries = Inquiries(context)
        self.spreading = Spreading(context, holdings, self._are_linked)
        self.pruning = Pruning(context, holdings, self.spreading.links)
        self.filling = Filling(context, holdings, self.sources.ask_if_idle)
        self.repair = Repair(context, holdings, self.sources.ids, self.sources.ask_if_idle, self.searching.flood)
        self.holders = Holders(context, holdings, floods, self.spreading, self.repair)
        self.past = Past(context, recovered, holdings)
        self.exchanged_once = False
        self.acks_due: dict[int, dict[str, AckEntry]] = {}
        """Connection to an origin -> topic -> what is acknowledged."""
        self._me = context.me.node_id
        self._baselined = bool(recovered.streams) or context.config.start_from == "earliest"
        self.holdings = holdings
        self._context = context
        self._calls = context.calls
        self._out = context.out

    def founded(self) -> None:
        """This node founded the channel: there is no past to begin after."""
        self._baselined = True

    def missing_former_stream(self, reported: dict[StreamId, int]) -> tuple[StreamId, int] | None:
        """The first former stream that is not complete, and up to where it has to come; None when all are. After a
        rollback, publisher keys are complete when the former streams are. `reported`: how far other nodes have them.
        A stream with two histories cannot become complete and is not waited for."""
        wanted = dict(reported)
        for stream in self.holdings.streams.values():
            if self.past.is_former(stream.id.origin):
                wanted[stream.id] = max(wanted.get(stream.id, 1), stream.claimed_next)
        return next(((stream_id, upto) for stream_id, upto in wanted.items() if self.lacks(stream_id, upto)), None)

    def lacks(self, stream_id: StreamId, next_sequence: int) -> bool:
        """True if rows below `next_sequence` are still to come."""
        stream = self.holdings.get(stream_id)
        return stream is None or (stream.durable_next < next_sequence and not stream.forked)

    def pull_on(self, call: Call, reported: dict[StreamId, int], now_ms: int) -> bool:
        """Pull on this call what its node has (`reported`) and this one lacks; False when there is nothing to pull, or
        no room for one more source."""
        assert call.peer is not None
        node_id = call.peer.node_id
        wanted = {stream_id: upto for stream_id, upto in reported.items() if self.lacks(stream_id, upto)}
        is_full = len(self.sources) >= self._context.table.degree + HELPERS_MAX
        if not wanted or is_full or self.sources.conn(node_id) is not None:
            return False
        self.sources.up(node_id, call.conn, is_neighbour=False)
        for stream_id, next_sequence in wanted.items():
            self._on_claim(call.conn, node_id, stream_id, 1, next_sequence, now_ms)
        return True

    def _are_linked(self, origin: NodeId, neighbour: NodeId) -> bool:
        """True if the origin is a neighbour of my neighbour, by that one's own word."""
        known = self._context.table.neighbours.get(neighbour)
        return known is not None and origin in (known.its_neighbours or ())

    # ---- links and calls

    def link_up(self, neighbour: Neighbour) -> None:
        node_id = neighbour.contact.node_id
        self.sources.up(node_id, neighbour.conn)
        self.spreading.link_up(node_id, neighbour.conn)
        for stream in self.holdings.streams.values():
            if stream.id.origin == node_id:  # it may wait for this acknowledgement, whoever brought the rows
                self.persisted(stream)

    def connection_down(self, node_id: NodeId, conn: int, now_ms: int) -> None:
        self.spreading.down(conn)
        self.acks_due.pop(conn, None)
        if self.sources.conn(node_id) == conn:
            self.pulling.source_down(node_id, now_ms)
            self.filling.source_down(node_id)

    def inquiry_ready(self, call: Call, inquiry: Inquiry, now_ms: int) -> None:
        """A node that may keep what is missing was called: pull from it. Its answer is the answer to the inquiry."""
        assert call.peer is not None
        node_id = call.peer.node_id
        if call.version < HELD_VERSION:
            self.inquiries.cannot_say(inquiry, now_ms)
            self._calls.close(call.conn)
            return
        if self.sources.conn(node_id) is None:
            self.sources.up(node_id, call.conn, is_neighbour=False)
        for stream_id in list(inquiry.streams):
            stream = self.holdings.open(stream_id)
            stream.correct_claim(node_id, stream.next, stream.next + 1)
            self.pulling.want(stream, node_id, now_ms)

    def call_over(self, call: Call, now_ms: int) -> None:
        if isinstance(call.purpose, Inquiry):
            for stream_id in self.inquiries.call_over(call, now_ms):
                self.searching.look_soon(stream_id, now_ms)
        if isinstance(call.purpose, HoldFor):
            self.holders.call_over(call, call.purpose)
        if call.peer is not None:
            self.connection_down(call.peer.node_id, call.conn, now_ms)

    # ---- messages

    def on_heartbeat(self, sender: Neighbour, beat: Heartbeat, now_ms: int) -> None:
        self._context.clocks.heard(sender.contact.node_id, beat.clock_ms, now_ms)
        self.spreading.on_heartbeat(sender.conn, beat.frontier_digest)

    def on_announce(self, sender: Neighbour, announced: AnnounceStmt, now_ms: int) -> None:
        node_id, stream_id = sender.contact.node_id, StreamId(announced.origin, announced.topic)
        self._on_claim(sender.conn, node_id, stream_id, 1, announced.next_sequence, now_ms)
        self.filling.offered(node_id, stream_id, announced.first_sequence, announced.next_sequence)

    def on_frontier(self, sender: Neighbour, frontier: FrontierStmt, now_ms: int) -> None:
        for entry in frontier.entries:
            stream_id = StreamId(entry.origin, entry.topic)
            self._on_claim(sender.conn, sender.contact.node_id, stream_id, 1, entry.next, now_ms)

    def on_pull(self, sender: Neighbour, pull: PullCall, _now_ms: int) -> None:
        if not self.spreading.on_pull(sender.conn, pull):
            raise RemoteProtocolError("too many pulls at once")

    def on_prune(self, sender: Neighbour, prune: PruneStmt, _now_ms: int) -> None:
        self.pruning.on_prune(sender.conn, StreamId(prune.origin, prune.topic))

    def on_summary(self, sender: Neighbour, summary: SummaryStmt, beacon: RosterEntry | None) -> None:
        """`beacon`: the last one of the sender."""
        if len(summary.digests) != BUCKETS:
            raise RemoteProtocolError(f"a summary has {BUCKETS} digests, not {len(summary.digests)}")
        incarnation = max(sender.incarnation, beacon.incarnation if beacon else 0)
        self.spreading.on_summary(sender.conn, summary, incarnation, beacon.origin_batch if beacon else 0)

    # ---- messages on calls between a holder and the one who searched for it

    def on_holder_batch(self, call: Call, frame: BatchFrame, now_ms: int) -> None:
        assert call.peer is not None
        # A holder that has become a neighbour meanwhile may still be sending here what it was asked for here.
        if self.sources.conn(call.peer.node_id) is None:
            raise RemoteProtocolError("batches come from neighbours, or from holders that were asked")
        self._calls.extend(call, now_ms)
        self._take_batch(call.conn, call.peer.node_id, frame, now_ms)

    def on_requester_pull(self, call: Call, pull: PullCall, now_ms: int) -> None:
        assert call.peer is not None
        if call.purpose is None and call.version >= HELD_VERSION:
            self.spreading.serve_on(call.peer.node_id, call.conn)
        if not self.spreading.on_pull(call.conn, pull):
            raise RemoteProtocolError("pulls are for neighbours, or for calls of a holder")
        self._calls.extend(call, now_ms)

    def on_requester_heartbeat(self, call: Call, _: Heartbeat, now_ms: int) -> None:
        if not self.spreading.serves(call.conn):
            raise RemoteProtocolError("heartbeats are for neighbours, or for calls of a holder")
        self._calls.extend(call, now_ms)  # what was asked for is still on its way

    def on_holder_answer(self, call: Call, resp: PullResp, now_ms: int) -> None:
        assert call.peer is not None
        self._pull_answered(call.peer.node_id, resp, now_ms)
        self._inquiry_answered(call, resp, now_ms)

    def _inquiry_answered(self, call: Call, resp: PullResp, now_ms: int) -> None:
        assert call.peer is not None
        node_id = call.peer.node_id
        if resp.served_next > resp.first_sequence:
            self._calls.extend(call, now_ms)
            return
        self.inquiries.answered(node_id, StreamId(resp.origin, resp.topic), resp.first_sequence, now_ms)
        done = self.inquiries.done_on(node_id)
        over = self._calls.get(done) if done is not None else None
        if over is not None:
            self._calls.close(over.conn)
            self.call_over(over, now_ms)

    def on_held_call(self, conn: int, call: HeldCall, asker: RosterEntry | None, *, knew: bool) -> None:
        """Report what this node has of the asker's streams. `asker`: its last beacon; `knew`: this node has heard of
        it before its present incarnation."""
        entries = [
            HeldEntry(stream.id.origin, stream.id.topic, stream.held_from(), stream.durable_next, stream.next)
            for stream in self.holdings.streams.values()
            if stream.next > 1 and any(is_of_lineage(stream.id.origin, origin) for origin in call.origins)
        ]
        known = (knew, asker.incarnation if asker else 0, asker.origin_batch if asker else 0)
        for start in range(0, max(len(entries), 1), ENTRIES_PER_MESSAGE):
            part = tuple(entries[start : start + ENTRIES_PER_MESSAGE])
            last = start + ENTRIES_PER_MESSAGE >= len(entries)
            self._out.append(Send(conn, HeldResp(*known, part, last)))

    def on_batch(self, sender: Neighbour, frame: BatchFrame, now_ms: int) -> None:
        """The hot path; see `tests/bench/hot_path.py`."""
        self._take_batch(sender.conn, sender.contact.node_id, frame, now_ms)

    def _take_batch(self, conn: int, sender: NodeId, frame: BatchFrame, now_ms: int) -> None:
        batch = frame.batch
        if batch.stream.origin == self._me and self.past.is_behind(batch.stream, batch.next_sequence):
            return
        self.spreading.peer_has(conn, batch.stream, batch.next_sequence)
        if self.repair.damaged:
            self.repair.received(batch, sender, now_ms)
        if self.filling.asked:
            self.filling.received(frame, sender, now_ms)
        receipt = self.ordering.receive(frame, sender, now_ms)
        self.pulling.received(receipt, batch, sender, now_ms)
        if frame.how is How.PUSHED:
            self.pruning.pushed_here(conn, batch.stream, is_duplicate=receipt is DUPLICATE)

    # ---- streams of other channels (PROTOCOL.md 22)

    def import_batch(self, imported: ImportBatch, now_ms: int) -> None:
        """A gateway brought a batch. Only the next one of its stream is taken: the gatekeeper holds back others, since
        what lies before them cannot be pulled from anybody here."""
        batch = imported.frame.batch
        if self.holdings.open(batch.stream).next == batch.first_sequence:
            receipt = self.ordering.receive(imported.frame, imported.sender, now_ms)
            self.pulling.received(receipt, batch, imported.sender, now_ms)

    def import_begin(self, begin: ImportBegin, now_ms: int) -> None:
        stream = self.holdings.open(begin.stream)
        if stream.next != begin.first or begin.upto <= begin.first:
            return
        if stream.next == 1:
            self.ordering.start_at([(stream.id, begin.upto)])
        else:
            self.ordering.skip(stream, self.backlogs.of(stream.id), begin.upto, now_ms)
        self.spreading.skipped(stream, now_ms)

    def _on_claim(
        self, conn: int, node_id: NodeId, stream_id: StreamId, low: int, next_sequence: int, now_ms: int
    ) -> None:
        if stream_id.origin == self._me and self.past.is_behind(stream_id, next_sequence):
            return
        stream = self.holdings.open(stream_id)
        self.spreading.peer_has(conn, stream_id, next_sequence)
        stream.claim(node_id, low, next_sequence)
        if stream.claimed_next > stream.next:
            self.pulling.want(stream, node_id, now_ms)

    def on_pull_answer(self, sender: Neighbour, resp: PullResp, now_ms: int) -> None:
        self._pull_answered(sender.contact.node_id, resp, now_ms)

    def _pull_answered(self, sender: NodeId, resp: PullResp, now_ms: int) -> None:
        self.pulling.answered(resp, sender, now_ms)
        if self.repair.damaged:
            stream_id = StreamId(resp.origin, resp.topic)
            self.repair.answered(stream_id, resp.first_sequence, sender, resp.served_next, now_ms)
        if self.filling.asked:
            stream_id = StreamId(resp.origin, resp.topic)
            self.filling.answered(stream_id, resp.first_sequence, sender, resp.served_next, resp.next)

    # ---- the store's word

    def durable(self, token: int, now_ms: int) -> None:
        """An append of this node is durable, whosever it is."""
        if self.ordering.durable(token) and self.backlogs.for_disk:
            self.pulling.disk_caught_up(now_ms)
        if self.repair.damaged and (place := self.repair.durable(token)) is not None:
            self.spreading.repaired(*place)  # the batch can be offered and served again
        if self.filling.appends and (filled := self.filling.durable(token)) is not None:
            stream, batch = filled
            self.spreading.announce(batch)  # whoever has the same skip may have the rows from here
            self.persisted(stream)

    def failed(self, token: int, now_ms: int) -> None:
        """This append and all later ones failed."""
        self.pulling.disk_failed(now_ms)
        self.ordering.failed(token, now_ms)
        self.repair.failed(token, now_ms)
        self.filling.failed(token)

    def on_holdings(self, sender: Neighbour, holdings: HoldingsStmt, origin_batch: int, now_ms: int) -> None:
        seen = (holdings.your_incarnation, holdings.your_origin_batch)
        if self.past.shows_rollback(sender.contact.address, *seen, origin_batch):
            return
        starts = [
            (stream_id, entry.next)
            for entry in holdings.entries
            if not self._baselined
            and entry.origin != self._me  # of those it would be a rollback
            and not self.past.is_former(entry.origin)  # what this node published itself is never somebody else's past
            and self.holdings.get(stream_id := StreamId(entry.origin, entry.topic)) is None
        ]
        if starts:  # new here with `start_from = latest`: begin where the first neighbour is
            self.ordering.start_at(starts)
        node_id, conn = sender.contact.node_id, sender.conn
        for entry in holdings.entries:
            self._on_claim(conn, node_id, StreamId(entry.origin, entry.topic), entry.low, entry.next, now_ms)
            if self.past.rolled_back:
                return
        self.spreading.on_holdings(conn, holdings.entries, holdings.last, now_ms)
        if holdings.last:
            self._baselined = self.exchanged_once = True
            self.filling.exchanged(node_id)

    # ---- acknowledgements to origins

    def persisted(self, stream: Stream) -> None:
        """More of the stream is on disk: acknowledge it to the origin, if that is a neighbour."""
        origin = self._context.table.neighbours.get(stream.id.origin)
        if origin is not None:
            word = AckEntry(stream.id.topic, stream.held_from(), stream.durable_next)
            self.acks_due.setdefault(origin.conn, {})[stream.id.topic] = word

    def send_acks(self) -> None:
        """Called at the end of each input."""
        for conn, words in self.acks_due.items():
            entries = tuple(words.values())
            for start in range(0, len(entries), ENTRIES_PER_MESSAGE):
                self._out.append(Send(conn, AckStmt(entries[start : start + ENTRIES_PER_MESSAGE])))
        self.acks_due.clear()

    # ---- holders beyond the neighbours

    def on_holder_found(self, call: Call, found: HolderFoundStmt, now_ms: int) -> None:
        assert call.peer is not None
        node_id = call.peer.node_id
        stream_id = StreamId(found.origin, found.topic)
        is_repaired = bool(self.repair.damaged) and self.repair.wants(stream_id)
        wanted = self.searching.is_searched(stream_id) or is_repaired
        source = self.sources.conn(node_id)
        if wanted and source is None and len(self.sources) < self._context.table.degree + HELPERS_MAX:
            source = call.conn
            self.sources.up(node_id, source, is_neighbour=False)
        if wanted:
            self.searching.holder_found(self.holdings.streams[stream_id], found.low, found.next)
            # Also when there is no room for one more source: the rows are not lost, and the search goes on.
            self._on_claim(source or call.conn, node_id, stream_id, found.low, found.next, now_ms)
        if is_repaired and source is not None:
            self.repair.holder_found(stream_id, now_ms)
        if source != call.conn:
            self.call_over(call, now_ms)
            self._calls.close(call.conn)

    # ---- time

    def timer(self, timer: StreamTimer, expected: Callable[[int], list[Candidate]], now_ms: int) -> None:
        """`expected`: the nodes that have not left the channel."""
        match timer:
            case PullTimeout(stream_id, first):
                self.pulling.expired(stream_id, first, now_ms)
            case WantDue(stream_id):
                self.pulling.want_again(stream_id, now_ms)
            case HolderSearchDue(stream_id):
                self._search_over(self.holdings.streams[stream_id], expected, now_ms)
            case RepairDue(stream_id, first):
                self.repair.timer(stream_id, first, now_ms)
            case FrontierDue(conn):
                self.spreading.send_frontier(conn, now_ms)
            case _:
                assert_never(timer)

    def _search_over(self, stream: Stream, expected: Callable[[int], list[Candidate]], now_ms: int) -> None:
        before = stream.next
        self.pulling.search_over(
            stream, lambda stream, now_ms: self._look_again_at(stream, expected(now_ms), now_ms), now_ms
        )
        if stream.next != before:
            self.spreading.skipped(stream, now_ms)
        if not self.searching.is_searched(stream.id):
            self.inquiries.forget(stream.id)

    def _look_again_at(self, stream: Stream, expected: list[Candidate], now_ms: int) -> int | None:
        """Return the earliest time at which the next row of the stream may be given up; None: now. What neighbours have
        is known from their holdings; all other nodes are asked."""
        if not self.spreading.all_exchanged():
            return now_ms + EXCHANGE_LOOK_MS
        others = [each for each in expected if each.contact.node_id not in self._context.table.neighbours]
        return self.inquiries.look_again_at(stream.id, stream.next, others, now_ms)
