"""Dissemination: what travels between nodes, and how a node that lacks something gets it (guarantees 2, 4, 7).

Composes `Ordering` (the receiving half), `Spreading` (the sending half) and `Repair` (of damaged batches) over the
node's holdings, routes messages to them, watches for others who know more of this node's own streams than it does
itself (a store that was rolled back), and finds holders beyond the neighbours. A peer's mistake is a
`RemoteProtocolError`, raised before anything has changed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import NodeId, StreamId, is_of_lineage
from m4cast.overlay.protocol.calls import Call, Candidate
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Append, Recovered, Send
from m4cast.overlay.protocol.floods import Floods
from m4cast.overlay.protocol.holdings import BUCKETS, Holdings, Stream
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.streams.filling import Filling
from m4cast.overlay.protocol.streams.inquiries import Inquiries, Inquiry
from m4cast.overlay.protocol.streams.ordering import Ordering, OrderingEvent
from m4cast.overlay.protocol.streams.repair import Repair
from m4cast.overlay.protocol.streams.spreading import Spreading
from m4cast.overlay.protocol.streams.timers import FrontierDue, HolderSearchDue, PullTimeout, RepairDue, WantDue
from m4cast.overlay.protocol.timers import Timer
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
    HolderSearchStmt,
    HoldingsStmt,
    Message,
    PruneStmt,
    PullCall,
    PullResp,
    RosterEntry,
    SummaryStmt,
)

HELPERS_MAX = 8
"""Other nodes than neighbours that serve this one at a time; guess. Raising it speeds up catch-up from far."""
HELPED_MAX = 64
"""Nodes other than neighbours that this one serves at a time; guess. Past it, it does not answer searches."""
EXCHANGE_LOOK_MS = 500
"""While a new neighbour has not told what it has, nothing is given up; looked at again after this."""


@dataclass(slots=True)
class HoldFor:
    """Purpose of a call: I keep what you search for; pull it from me. One call serves all searches of a node."""

    requester: NodeId
    found: list[tuple[int, StreamId]]
    """(search, stream) to tell about when the call is ready."""


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
        self._clocks = context.clocks
        self.ordering = Ordering(context, holdings, recover, emit)
        self.spreading = Spreading(context, holdings, self._are_linked)
        self.inquiries = Inquiries(context)
        self.filling = Filling(context, holdings, self._pull_fill)
        self.repair = Repair(
            context, holdings, self.ordering.source_ids, self.ordering.pull_again, self.ordering.search_holder
        )
        self.rolled_back = ""
        """Not empty: this store is older than what another node has of it; says how that is known."""
        self.exchanged_once = False
        self.acks_due: dict[int, dict[str, AckEntry]] = {}
        """Connection to an origin -> topic -> word for it."""
        self._me = context.me.node_id
        self._incarnation = recovered.incarnation
        self._former_ids = recovered.former_ids
        self._baselined = bool(recovered.streams) or context.config.start_from == "earliest"
        self._holdings = holdings
        self._floods = floods
        self._table = context.table
        self._calls = context.calls
        self._out = context.out
        self._helped: dict[NodeId, tuple[HoldFor, int]] = {}  # requester -> purpose and connection of the call

    def found(self) -> None:
        """This node founded the channel: there is no past to begin after."""
        self._baselined = True

    def missing_former_stream(self, told: dict[StreamId, int]) -> tuple[StreamId, int] | None:
        """After a rollback, the keys of publishers are complete when the former streams are. The first that is not, by
        the word of the neighbours or of others (`told`), and up to where it has to come. What has two histories cannot
        become whole; that is reported, and not waited for."""
        wanted = dict(told)
        for stream in self._holdings.streams.values():
            if self._is_former(stream.id.origin):
                wanted[stream.id] = max(wanted.get(stream.id, 1), stream.claimed_next)
        return next(((stream_id, upto) for stream_id, upto in wanted.items() if self.lacks(stream_id, upto)), None)

    def lacks(self, stream_id: StreamId, next_sequence: int) -> bool:
        """Whether rows below are still to come."""
        stream = self._holdings.get(stream_id)
        return stream is None or (stream.durable_next < next_sequence and not stream.forked)

    def pull_on(self, call: Call, told: dict[StreamId, int], now_ms: int) -> bool:
        """Pull on this call what its node has (`told`) and is still to come; False when there is nothing to pull, or
        no room for one more source."""
        assert call.peer is not None
        node_id = call.peer.node_id
        wanted = {stream_id: upto for stream_id, upto in told.items() if self.lacks(stream_id, upto)}
        is_full = self.ordering.source_count() >= self._table.degree + HELPERS_MAX
        if not wanted or is_full or self.ordering.source_conn(node_id) is not None:
            return False
        self.ordering.source_up(node_id, call.conn, is_neighbour=False)
        for stream_id, next_sequence in wanted.items():
            self._on_claim(call.conn, node_id, stream_id, 1, next_sequence, now_ms)
        return True

    def _is_former(self, origin: NodeId) -> bool:
        """Whether this node had that id before it was rolled back, known to its store or not."""
        return origin in self._former_ids or (origin != self._me and is_of_lineage(origin, self._me))

    def _are_linked(self, origin: NodeId, neighbour: NodeId) -> bool:
        """Whether the origin is a neighbour of my neighbour, by that one's own word."""
        known = self._table.neighbours.get(neighbour)
        return known is not None and origin in (known.its_neighbours or ())

    # ---- links and calls

    def link_up(self, neighbour: Neighbour) -> None:
        node_id = neighbour.contact.node_id
        self.ordering.source_up(node_id, neighbour.conn)
        self.spreading.link_up(node_id, neighbour.conn)
        for stream in self._holdings.streams.values():
            if stream.id.origin == node_id:  # it may wait for this word, whoever brought the rows
                self.persisted(stream)

    def connection_down(self, node_id: NodeId, conn: int, now_ms: int) -> None:
        self.spreading.down(conn)
        self.acks_due.pop(conn, None)
        if self.ordering.source_conn(node_id) == conn:
            self.ordering.source_down(node_id, now_ms)
            self.filling.source_down(node_id)

    def call_ready(self, call: Call, purpose: HoldFor) -> None:
        assert call.peer is not None
        self.spreading.serve_on(call.peer.node_id, call.conn)
        for search, stream_id in purpose.found:
            self._say_found(call.conn, search, stream_id)
        purpose.found.clear()

    def _say_found(self, conn: int, search: int, stream_id: StreamId) -> None:
        stream = self._holdings.open(stream_id)
        found = HolderFoundStmt(search, stream_id.origin, stream_id.topic, stream.low, stream.next)
        self._out.append(Send(conn, found))

    def inquiry_ready(self, call: Call, inquiry: Inquiry, now_ms: int) -> None:
        """A node that may keep what is missing was called: pull it from there. Its answer is the inquiry's."""
        assert call.peer is not None
        node_id = call.peer.node_id
        if call.version < HELD_VERSION:
            self.inquiries.cannot_say(inquiry, now_ms)
            self._calls.close(call.conn)
            return
        if self.ordering.source_conn(node_id) is None:
            self.ordering.source_up(node_id, call.conn, is_neighbour=False)
        for stream_id in list(inquiry.streams):
            stream = self._holdings.open(stream_id)
            stream.correct_claim(node_id, stream.next, stream.next + 1)
            self.ordering.want(stream, node_id, now_ms)

    def call_over(self, call: Call, now_ms: int) -> None:
        if isinstance(call.purpose, Inquiry):
            for stream_id in self.inquiries.call_over(call, now_ms):
                self.ordering.look_soon(stream_id, now_ms)
        if isinstance(call.purpose, HoldFor):
            _, conn = self._helped.get(call.purpose.requester, (None, 0))
            if conn == call.conn:
                del self._helped[call.purpose.requester]
        if call.peer is not None:
            self.connection_down(call.peer.node_id, call.conn, now_ms)

    # ---- messages

    def handle_link(
        self,
        sender: Neighbour,
        message: Message | BatchFrame,
        known: Callable[[NodeId], RosterEntry | None],
        now_ms: int,
    ) -> bool:
        """A message from a neighbour; False when it is not for dissemination. Batches first: the hot path."""
        node_id, conn = sender.contact.node_id, sender.conn
        match message:
            case BatchFrame():
                self.on_batch(conn, node_id, message, now_ms)
            case Heartbeat():
                self._clocks.heard(node_id, message.clock_ms, now_ms)
                self.spreading.on_heartbeat(conn, message.frontier_digest)
            case AnnounceStmt():
                stream_id = StreamId(message.origin, message.topic)
                self._on_claim(conn, node_id, stream_id, 1, message.next_sequence, now_ms)
                self.filling.offered(node_id, stream_id, message.first_sequence, message.next_sequence)
            case FrontierStmt(entries):
                for entry in entries:
                    self._on_claim(conn, node_id, StreamId(entry.origin, entry.topic), 1, entry.next, now_ms)
            case PullCall():
                if not self.spreading.on_pull(conn, message):
                    raise RemoteProtocolError("too many pulls at once")
            case PullResp():
                self._on_pull_answer(message, node_id, now_ms)
            case PruneStmt(origin, topic):
                self.spreading.on_prune(conn, StreamId(origin, topic))
            case SummaryStmt(digests):
                if len(digests) != BUCKETS:
                    raise RemoteProtocolError(f"a summary has {BUCKETS} digests, not {len(digests)}")
                beacon = known(node_id)
                incarnation = max(sender.incarnation, beacon.incarnation if beacon else 0)
                self.spreading.on_summary(conn, message, incarnation, beacon.origin_batch if beacon else 0)
            case _:
                return False
        return True

    def handle_call(self, call: Call, message: Message | BatchFrame, now_ms: int) -> bool:
        """A message on a call that is not a link: between a holder and the one who searched for it."""
        assert call.peer is not None
        node_id = call.peer.node_id
        match message:
            case BatchFrame():
                # A holder that has become a neighbour meanwhile may still be sending here what it was asked for here.
                if self.ordering.source_conn(node_id) is None:
                    raise RemoteProtocolError("batches come from neighbours, or from holders that were asked")
                self._calls.extend(call, now_ms)
                self.on_batch(call.conn, node_id, message, now_ms)
            case PullCall():
                if call.purpose is None and call.version >= HELD_VERSION:
                    self.spreading.serve_on(node_id, call.conn)
                if not self.spreading.on_pull(call.conn, message):
                    raise RemoteProtocolError("pulls are for neighbours, or for calls of a holder")
                self._calls.extend(call, now_ms)
            case Heartbeat():
                if not self.spreading.serves(call.conn):
                    raise RemoteProtocolError("heartbeats are for neighbours, or for calls of a holder")
                self._calls.extend(call, now_ms)  # what was asked for is on its way yet
            case PullResp():
                self._on_pull_answer(message, node_id, now_ms)
                self._inquiry_answered(call, message, now_ms)
            case HolderFoundStmt():
                self._on_holder_found(call, message, now_ms)
            case _:
                return False
        return True

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
        """Somebody wants to know what this node has of its streams. `asker`: its last beacon; `knew`: this node has
        heard of it before its present incarnation."""
        entries = [
            HeldEntry(stream.id.origin, stream.id.topic, stream.held_from(), stream.durable_next, stream.next)
            for stream in self._holdings.streams.values()
            if stream.next > 1 and any(is_of_lineage(stream.id.origin, origin) for origin in call.origins)
        ]
        known = (knew, asker.incarnation if asker else 0, asker.origin_batch if asker else 0)
        for start in range(0, max(len(entries), 1), ENTRIES_PER_MESSAGE):
            part = tuple(entries[start : start + ENTRIES_PER_MESSAGE])
            last = start + ENTRIES_PER_MESSAGE >= len(entries)
            self._out.append(Send(conn, HeldResp(*known, part, last)))

    def is_past(self, who: str, incarnation: int, origin_batch: int, own_batches: int) -> bool:
        """Whether somebody has seen more of this node than its store knows: then the store was rolled back."""
        if incarnation <= self._incarnation and origin_batch <= own_batches:
            return False
        self.rolled_back = (
            f"{who} has seen incarnation {incarnation} and {origin_batch} batches of this node; this store knows "
            f"{self._incarnation} and {own_batches}"
        )
        return True

    def check_own(self, entries: tuple[HeldEntry, ...]) -> None:
        """Whether somebody has more of this node's own streams than its store."""
        for entry in entries:
            if entry.origin == self._me:
                self._ahead_of_me(StreamId(entry.origin, entry.topic), entry.next)

    def on_batch(self, conn: int, sender: NodeId, frame: BatchFrame, now_ms: int) -> None:
        batch = frame.batch
        if batch.stream.origin == self._me and self._ahead_of_me(batch.stream, batch.next_sequence):
            return
        self.spreading.peer_has(conn, batch.stream, batch.next_sequence)
        if self.repair.damaged:
            self.repair.received(batch, sender, now_ms)
        if self.filling.asked:
            self.filling.received(frame, sender, now_ms)
        duplicates = self.ordering.duplicates
        self.ordering.receive(frame, sender, now_ms)
        if frame.how is How.PUSHED:
            self.spreading.pushed_here(conn, batch.stream, is_duplicate=self.ordering.duplicates > duplicates)

    def _on_claim(
        self, conn: int, node_id: NodeId, stream_id: StreamId, low: int, next_sequence: int, now_ms: int
    ) -> None:
        if stream_id.origin == self._me and self._ahead_of_me(stream_id, next_sequence):
            return
        stream = self._holdings.open(stream_id)
        self.spreading.peer_has(conn, stream_id, next_sequence)
        stream.claim(node_id, low, next_sequence)
        if stream.claimed_next > stream.next:
            self.ordering.want(stream, node_id, now_ms)

    def _on_pull_answer(self, resp: PullResp, sender: NodeId, now_ms: int) -> None:
        self.ordering.pull_answered(resp, sender, now_ms)
        if self.repair.damaged:
            stream_id = StreamId(resp.origin, resp.topic)
            self.repair.answered(stream_id, resp.first_sequence, sender, resp.served_next, now_ms)
        if self.filling.asked:
            stream_id = StreamId(resp.origin, resp.topic)
            self.filling.answered(stream_id, resp.first_sequence, sender, resp.served_next, resp.next)

    def repaired(self, token: int) -> None:
        """An append is durable: perhaps one that repairs a batch, which can be offered and served again then."""
        place = self.repair.durable(token)
        if place is not None:
            self.spreading.repaired(*place)

    def _pull_fill(self, node_id: NodeId, stream_id: StreamId, first: int, next_sequence: int) -> bool:
        if self.ordering.source_conn(node_id) is None:
            return False
        return self.ordering.pull_again(node_id, stream_id, first, next_sequence)

    def filled(self, token: int) -> None:
        """An append is durable: perhaps one that fills a skip. Whoever has the same skip may have the rows from here,
        and the origin may count this disk."""
        found = self.filling.durable(token)
        if found is not None:
            stream, batch = found
            self.spreading.announce(batch)
            self.persisted(stream)

    def _ahead_of_me(self, stream_id: StreamId, next_sequence: int) -> bool:
        """Somebody has more of my own stream than I remember having numbered."""
        stream = self._holdings.get(stream_id)
        if next_sequence <= (stream.next if stream else 1):
            return False
        self.rolled_back = f"another node has {stream_id.topic!r} up to {next_sequence - 1}, this store has not"
        return True

    def on_holdings(self, sender: Neighbour, holdings: HoldingsStmt, origin_batch: int, now_ms: int) -> None:
        seen = (holdings.your_incarnation, holdings.your_origin_batch)
        if self.is_past(sender.contact.address, *seen, origin_batch):
            return
        starts = [
            (stream_id, entry.next)
            for entry in holdings.entries
            if not self._baselined
            and entry.origin != self._me  # of those it would be a rollback
            and not self._is_former(entry.origin)  # what this node published itself is never somebody else's past
            and self._holdings.get(stream_id := StreamId(entry.origin, entry.topic)) is None
        ]
        if starts:  # new here with `start_from = latest`: begin where the first neighbour is
            self.ordering.start_at(starts)
        node_id, conn = sender.contact.node_id, sender.conn
        for entry in holdings.entries:
            self._on_claim(conn, node_id, StreamId(entry.origin, entry.topic), entry.low, entry.next, now_ms)
            if self.rolled_back:
                return
        self.spreading.on_holdings(conn, holdings.entries, holdings.last, now_ms)
        if holdings.last:
            self._baselined = self.exchanged_once = True
            self.filling.exchanged(node_id)

    # ---- word to origins

    def persisted(self, stream: Stream) -> None:
        """More of the stream is on disk: tell the origin, if it is a neighbour."""
        origin = self._table.neighbours.get(stream.id.origin)
        if origin is not None:
            word = AckEntry(stream.id.topic, stream.held_from(), stream.durable_next)
            self.acks_due.setdefault(origin.conn, {})[stream.id.topic] = word

    def tell_acks(self) -> None:
        """At the end of each input."""
        for conn, words in self.acks_due.items():
            entries = tuple(words.values())
            for start in range(0, len(entries), ENTRIES_PER_MESSAGE):
                self._out.append(Send(conn, AckStmt(entries[start : start + ENTRIES_PER_MESSAGE])))
        self.acks_due.clear()

    # ---- holders beyond the neighbours

    def on_holder_search(self, sender: Neighbour, search: HolderSearchStmt, now_ms: int) -> None:
        """Pass the first copy of somebody's search on, and offer what is here."""
        if not self._floods.is_new(search):
            return
        if search.hops < search.hops_max:
            onward = replace(search, hops=search.hops + 1)
            for neighbour in self._table.neighbours.values():
                if neighbour is not sender:
                    self._out.append(Send(neighbour.conn, onward))
        self.offer(search, now_ms)

    def offer(self, search: HolderSearchStmt, now_ms: int) -> None:
        """Also to a neighbour: one that searches did not hear of it on the link, which may be dead in one direction."""
        requester = search.requester.node_id
        stream_id = StreamId(search.origin, search.topic)
        stream = self._holdings.get(stream_id)
        if (
            stream is None
            or stream.first_held_from(search.sequence) != search.sequence
            or search.sequence >= stream.next
            or self.spreading.cannot_read(stream_id, search.sequence)
            or self.repair.is_damaged(stream_id, search.sequence)
        ):
            return
        if requester in self._helped:
            purpose, conn = self._helped[requester]
            if self.spreading.serves(conn):
                self._say_found(conn, search.search, stream.id)
            else:
                purpose.found.append((search.search, stream.id))
        elif len(self._helped) < HELPED_MAX:
            purpose = HoldFor(requester, [(search.search, stream.id)])
            conn = self._calls.dial(search.requester.address, purpose, now_ms, search.requester)
            self._helped[requester] = (purpose, conn)

    def _on_holder_found(self, call: Call, found: HolderFoundStmt, now_ms: int) -> None:
        assert call.peer is not None
        node_id = call.peer.node_id
        stream_id = StreamId(found.origin, found.topic)
        is_repaired = bool(self.repair.damaged) and self.repair.wants(stream_id)
        wanted = self.ordering.wants(stream_id) or is_repaired
        source = self.ordering.source_conn(node_id)
        if wanted and source is None and self.ordering.source_count() < self._table.degree + HELPERS_MAX:
            source = call.conn
            self.ordering.source_up(node_id, source, is_neighbour=False)
        if wanted:
            self.ordering.holder_found(self._holdings.streams[stream_id], found.low, found.next)
            # Also when there is no room to pull from it now: the rows are not lost, and the search goes on.
            self._on_claim(source or call.conn, node_id, stream_id, found.low, found.next, now_ms)
        if is_repaired and source is not None:
            self.repair.holder_found(stream_id, now_ms)
        if source != call.conn:
            self.call_over(call, now_ms)
            self._calls.close(call.conn)

    # ---- time

    def timer(self, timer: Timer, expected: Callable[[int], list[Candidate]], now_ms: int) -> bool:
        """False when the timer is not of dissemination. `expected`: the nodes that have not left the channel."""
        match timer:
            case PullTimeout(stream_id, first):
                self.ordering.pull_expired(stream_id, first, now_ms)
            case WantDue(stream_id):
                self.ordering.wanted(stream_id, now_ms)
            case HolderSearchDue(stream_id):
                stream = self._holdings.streams[stream_id]
                before = stream.next
                self.ordering.holder_search_over(
                    stream_id, lambda stream, now_ms: self._look_again_at(stream, expected(now_ms), now_ms), now_ms
                )
                if stream.next != before:
                    self.spreading.skipped(stream, now_ms)
                if not self.ordering.wants(stream_id):
                    self.inquiries.forget(stream_id)
            case RepairDue(stream_id, first):
                self.repair.timer(stream_id, first, now_ms)
            case FrontierDue(conn):
                self.spreading.send_frontier(conn, now_ms)
            case _:
                return False
        return True

    def _look_again_at(self, stream: Stream, expected: list[Candidate], now_ms: int) -> int | None:
        """When the next row of the stream may be given up, at the earliest; None: now. What neighbours have is known
        by their holdings; all others are asked."""
        if not self.spreading.all_exchanged():
            return now_ms + EXCHANGE_LOOK_MS
        others = [each for each in expected if each.contact.node_id not in self._table.neighbours]
        return self.inquiries.look_again_at(stream.id, stream.next, others, now_ms)
