"""The node: composes the machines of this room and routes inputs, messages and timers to them.

`outputs = node.handle(input, now_ms)`; the driver performs the outputs in order. Handlers run to completion, never
wait and never fail because of a peer: what a peer does wrong costs it its connection and changes nothing else
(guarantee 8). Sub-machines do not know each other; what one of them has to tell the others comes back here as an
event (`NeighbourUp`, `Accepted`, ...).

                 Calls   connections, hello
               Seeking   portals                      \\
            Membership   neighbours, holes, edges      >  who is linked
                Roster   beacons                      /
              Ordering   receive, hold back, pull     \\
             Spreading   push, announce, serve         >  what travels
         CommitMachine   numbers, keys                 |
                  Acks   other nodes' disks           /
"""

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import assert_never

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import Contact, NodeId, StreamId
from m4cast.overlay.protocol.acks import Acks
from m4cast.overlay.protocol.batch import BatchFrame, How
from m4cast.overlay.protocol.calls import Call, Calls
from m4cast.overlay.protocol.commit import CommitMachine, Committed, Outcome
from m4cast.overlay.protocol.commit_limits import CommitLimits
from m4cast.overlay.protocol.effects import (
    Abort,
    AppendFailed,
    Commit,
    Connected,
    Delivered,
    DialFailed,
    Disconnected,
    Durable,
    Input,
    Leave,
    Left,
    LinkBlocked,
    LinkReady,
    Output,
    Publish,
    Range,
    RangeRead,
    Received,
    Recovered,
    Refused,
    RolledBack,
    Send,
    Stage,
    Start,
    Trace,
    Trimmed,
    Wake,
    WakeAt,
)
from m4cast.overlay.protocol.frame import seal
from m4cast.overlay.protocol.holdings import BUCKETS, Holdings, Stream
from m4cast.overlay.protocol.membership import (
    BecameFull,
    Isolated,
    Membership,
    MembershipEvent,
    Merge,
    NeighbourDown,
    NeighbourUp,
)
from m4cast.overlay.protocol.messages import (
    ENTRIES_PER_MESSAGE,
    AckEntry,
    AckStmt,
    AnnounceStmt,
    BeaconStmt,
    ConnectionRequestResp,
    FrontierStmt,
    Heartbeat,
    Hello,
    HolderFoundStmt,
    HolderSearchStmt,
    HoldingsStmt,
    Message,
    PullCall,
    PullResp,
    RefusedStmt,
    RosterEntry,
    SeekingConnectionCall,
    SeekingConnectionResp,
    SummaryStmt,
)
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.ordering import Accepted, Ordering, OrderingEvent, Persisted
from m4cast.overlay.protocol.roster import Roster
from m4cast.overlay.protocol.seeking import Seek, Seeking
from m4cast.overlay.protocol.spreading import Spreading
from m4cast.overlay.protocol.timers import TimerKey, Timers

LEAVE_DRAIN_MS = 5_000
"""How long a leaving node waits for one other node to have its own rows on disk; guess."""
PROMPT_BEACON_NODES = 64
"""In channels up to this size a newcomer's first beacon goes out at once; in larger ones at its turn."""
STAGE_SWEEP_MS = 60_000
HELPERS_MAX = 8
"""Calls on which other nodes than neighbours serve this one, and as many the other way."""


@dataclass(frozen=True, slots=True)
class HoldFor:
    """Purpose of a call: I keep what you search for; pull it from me."""

    search: int
    stream_id: StreamId


class Node:
    def __init__(self, recovered: Recovered, cluster: ClusterConfig, config: NodeConfig, random: Random) -> None:
        self.me = Contact(recovered.node_id, config.advertised)
        self.incarnation = recovered.incarnation
        self.over = False
        """Left, or found to be rolled back: nothing more comes out."""
        self._cluster = cluster
        self._config = config
        self._random = random
        self._out: list[Output] = []
        self._events: deque[MembershipEvent | OrderingEvent] = deque()
        self._wake_at: int | None = None
        self._token = 0
        self._durable_token = 0
        self._failed_through = 0
        self._read_token = 0
        self._helpers_calling = 0
        self._founded = False
        self._exchanged_once = False
        self._knew_others = any(not entry.leaving for entry in recovered.roster)
        self._baselined = bool(recovered.streams) or config.start_from == "earliest"
        self._former_ids = recovered.former_ids
        self._leave_deadline_ms: int | None = None
        self._unacked: dict[int, dict[str, AckEntry]] = {}  # connection to an origin -> topic -> word due to it
        self._queue: deque[Publish | Commit] = deque()

        self.timers = Timers()
        self.holdings = Holdings(recovered.streams)
        self.calls = Calls(self.me, recovered.incarnation, cluster, config.call_timeout_ms, self.timers, self._out)
        self.membership = Membership(
            self.me, cluster, config, random, self.calls, self.timers, self._out, self._events.append
        )
        self.seeking = Seeking(self.me.address, config, random, self.calls, self.timers, self._out)
        own = RosterEntry(
            node_id=self.me.node_id,
            incarnation=recovered.incarnation,
            counter=0,
            address=self.me.address,
            name=config.name,
            site=config.site,
            origin_batch=recovered.origin_batch,
            leaving=False,
            beacon_interval_ms=cluster.beacon_interval_ms,
            neighbours=(),
        )
        self.roster = Roster(own, recovered.roster, cluster, self.timers, random, self._out)
        limits = CommitLimits(batch_bytes_max=cluster.batch_bytes_max, stage_expire_ms=config.stage_expire_ms)
        self.commits = CommitMachine(recovered, limits, seal=seal, next_token=self._next_token)
        self.ordering = Ordering(
            self.me,
            self.holdings,
            config,
            random,
            self.timers,
            self._next_token,
            self.commits.recover,
            self._out,
            self._events.append,
        )
        self.spreading = Spreading(self.holdings, config, self.timers, self._next_read_token, self._out)
        self.acks = Acks(self.me.node_id, config.publish_window_bytes, self._out)
        self.origin_batch = recovered.origin_batch

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _next_read_token(self) -> int:
        self._read_token += 1
        return self._read_token

    # ---- the one verb

    def handle(self, event: Input, now_ms: int) -> list[Output]:
        if self.over:
            return []
        self._dispatch(event, now_ms)
        if self._events:
            self._run_events(now_ms)
        if not self.over:
            if self._queue:
                self._publish_queued(now_ms)
            if self._unacked:
                self._tell_acks()
            self.membership.flush()
            if self._leave_deadline_ms is not None:
                self._try_leave(self._leave_deadline_ms, now_ms)
            wake_at = self.timers.next_at()
            if wake_at is not None and wake_at != self._wake_at:
                self._out.append(WakeAt(wake_at))
            self._wake_at = wake_at
        outputs = list(self._out)
        self._out.clear()
        return outputs

    def _dispatch(self, event: Input, now_ms: int) -> None:
        match event:
            case Received(conn, message):
                self._received(conn, message, now_ms)
            case Wake():
                self._wake_at = None
                while (key := self.timers.pop_due(now_ms)) is not None:
                    self._timer(key, now_ms)
                    self._run_events(now_ms)
            case Durable(token):
                self._durable(token, now_ms)
            case RangeRead(token, batches):
                self.spreading.range_read(token, batches)
            case Connected(conn):
                self.calls.connected(conn, now_ms)
            case Disconnected(conn) | DialFailed(conn):
                self._lost(conn, now_ms)
            case LinkBlocked(conn):
                self.spreading.blocked(conn)
            case LinkReady(conn):
                self.spreading.ready(conn, now_ms)
            case Publish() | Commit():
                self._take_publish(event)
            case Stage():
                self._perform(self.commits.stage(event, now_ms), now_ms)
            case Abort():
                self._perform(self.commits.abort(event), now_ms)
            case AppendFailed(token, reason):
                if (
                    token > self._failed_through
                ):  # else an echo: the first report undid all that was asked for till then
                    self._failed_through = self._token
                    self._perform(self.commits.failed(token, reason), now_ms)
                    self.ordering.failed(token, now_ms)
            case Trimmed(stream_id, low):
                stream = self.holdings.open(stream_id)
                stream.low = max(stream.low, low)
            case Start():
                self._start(now_ms)
            case Leave():
                if self._leave_deadline_ms is None:
                    self._leave_deadline_ms = now_ms + LEAVE_DRAIN_MS
                    self.timers.set(("leave",), self._leave_deadline_ms)
            case _:
                assert_never(event)

    def _start(self, now_ms: int) -> None:
        self.roster.start(now_ms)
        interval_ms = self._cluster.heartbeat_interval_ms
        self.timers.set(("heartbeat",), now_ms + self._random.randrange(interval_ms) + 1)
        self.timers.set(("stages",), now_ms + STAGE_SWEEP_MS)
        self._seek(now_ms)

    def _timer(self, key: TimerKey, now_ms: int) -> None:
        match key:
            case ("heartbeat",):
                self._heartbeat(now_ms)
            case ("pull", stream_id, first):
                assert isinstance(stream_id, StreamId) and isinstance(first, int)
                self.ordering.pull_expired(stream_id, first, now_ms)
            case ("want", stream_id):
                assert isinstance(stream_id, StreamId)
                self.ordering.wanted(stream_id, now_ms)
            case ("holder", stream_id):
                assert isinstance(stream_id, StreamId)
                before = self.holdings.streams[stream_id].next
                self.ordering.holder_search_over(stream_id, now_ms)
                if self.holdings.streams[stream_id].next != before:
                    self.spreading.skipped(self.holdings.streams[stream_id], now_ms)
            case ("frontier", conn):
                assert isinstance(conn, int)
                self.spreading.send_frontier(conn)
            case ("call", conn):
                assert isinstance(conn, int)
                call = self.calls.get(conn)
                if call is not None:
                    self._call_failed(call, now_ms)
                    self.calls.close(conn)
            case ("seek",):
                self._seek(now_ms)
            case ("beacon",):
                self._beacon(now_ms, leaving=False)
                address = self.roster.silent_address(self._config.portals, now_ms)
                if address is not None and self.membership.state is State.FULL:
                    self.membership.merge_with(address, now_ms)
            case ("stages",):
                self.timers.set(("stages",), now_ms + STAGE_SWEEP_MS)
                self._perform(self.commits.expire(now_ms), now_ms)
            case ("leave",) | ("window",):
                pass  # looked at after every input
            case _:
                handled = self.membership.timer(key, now_ms)
                assert handled, key

    # ---- connections

    def _lost(self, conn: int, now_ms: int) -> None:
        call = self.calls.lost(conn)
        if call is None:
            return
        if call.is_link:
            assert call.peer is not None
            neighbour = self.membership.table.neighbours.get(call.peer.node_id)
            if neighbour is not None and neighbour.conn == conn:
                self.membership.link_lost(neighbour, "broken", now_ms)
        else:
            self._call_failed(call, now_ms)

    def _call_failed(self, call: Call, now_ms: int) -> None:
        self.membership.call_failed(call, now_ms)
        if isinstance(call.purpose, Seek) and self.seeking.call_failed(call, now_ms, self._knew_others):
            self._found(now_ms)
        if isinstance(call.purpose, HoldFor):
            self._helpers_calling -= 1
        self.spreading.down(call.conn)
        if call.peer is not None and self.ordering.source_conn(call.peer.node_id) == call.conn:
            self.ordering.source_down(call.peer.node_id, now_ms)

    def _violation(self, call: Call, detail: str, now_ms: int) -> None:
        """The peer broke the protocol: hang up, and forget it as if it had failed."""
        self.calls.refuse(call, "protocol", detail)
        if call.is_link:
            assert call.peer is not None
            neighbour = self.membership.table.neighbours.get(call.peer.node_id)
            if neighbour is not None and neighbour.conn == call.conn:
                self.membership.link_lost(neighbour, "violation", now_ms)
        else:
            self._call_failed(call, now_ms)

    def _received(self, conn: int, message: Message | BatchFrame, now_ms: int) -> None:
        call = self.calls.get(conn)
        if call is None:
            return
        if call.is_link:
            assert call.peer is not None
            neighbour = self.membership.table.neighbours[call.peer.node_id]
            neighbour.heard_at_ms = now_ms
            self._on_link(call, neighbour, message, now_ms)
        elif isinstance(message, Hello):
            if not self.calls.hello(call, message):
                self._call_failed(call, now_ms)
            elif call.purpose is not None:
                self._call_ready(call, now_ms)
        elif call.peer is None:
            self._violation(call, "the first message must be a hello", now_ms)
        else:
            self._on_call(call, message, now_ms)

    def _call_ready(self, call: Call, now_ms: int) -> None:
        assert call.peer is not None
        if isinstance(call.purpose, Seek):
            self.seeking.call_ready(call)
        elif isinstance(call.purpose, HoldFor):
            stream_id = call.purpose.stream_id
            stream = self.holdings.open(stream_id)
            self.spreading.serve_on(call.peer.node_id, call.conn)
            found = HolderFoundStmt(call.purpose.search, stream_id.origin, stream_id.topic, stream.low, stream.next)
            self._out.append(Send(call.conn, found))
        else:
            self.membership.call_ready(call, now_ms)

    def _on_call(self, call: Call, message: Message | BatchFrame, now_ms: int) -> None:
        """A message on a connection that is not a neighbour link."""
        assert call.peer is not None
        match message:
            case SeekingConnectionCall():
                full = self.membership.state is State.FULL and not self.membership.leaving
                hears = self.roster.hears(call.peer.node_id, now_ms)
                self._out.append(Send(call.conn, SeekingConnectionResp(full, hears)))
            case SeekingConnectionResp():
                if isinstance(call.purpose, Merge):
                    self.membership.on_merge_probe(call, message, now_ms)
                else:
                    ask, found = self.seeking.answered(call, message, now_ms, self._knew_others)
                    if ask:
                        self.membership.request_connection(call)
                    if found:
                        self._found(now_ms)
            case RefusedStmt(reason, detail):
                self._out.append(Trace("was-refused", (("reason", reason), ("detail", detail))))
                self._call_failed(call, now_ms)
                self.calls.close(call.conn)
            case HolderFoundStmt():
                self._on_holder_found(call, message, now_ms)
            case BatchFrame():
                if self.ordering.source_conn(call.peer.node_id) == call.conn:
                    self.calls.extend(call, now_ms)
                    self._on_batch(call.conn, call.peer.node_id, message, now_ms)
                else:
                    self._violation(call, "batches come from neighbours, or from holders that were asked", now_ms)
            case PullCall():
                self.calls.extend(call, now_ms)
                if not self.spreading.on_pull(call.conn, message):
                    self._violation(call, "pulls are for neighbours, or for calls of a holder", now_ms)
            case PullResp():
                self.ordering.pull_answered(message, call.peer.node_id, now_ms)
            case ConnectionRequestResp(roster=roster):
                for entry in roster:
                    self.roster.heard(entry, now_ms, second_hand=True)
                self._update_population()
                self.membership.handle_call(call, message, (), now_ms)
            case _:
                if not self.membership.handle_call(call, message, self.roster.entries(), now_ms):
                    self._violation(call, f"{type(message).__name__} is for neighbours only", now_ms)

    def _on_link(self, call: Call, sender: Neighbour, message: Message | BatchFrame, now_ms: int) -> None:
        """A message from a neighbour. Batches first: they are the hot path."""
        node_id = sender.contact.node_id
        match message:
            case BatchFrame():
                self._on_batch(sender.conn, node_id, message, now_ms)
            case Heartbeat(digest):
                self.spreading.on_heartbeat(sender.conn, digest)
            case AckStmt(entries):
                self.acks.acked(node_id, entries, now_ms)
            case AnnounceStmt(origin, topic, _, next_sequence, _):
                self._on_claim(sender.conn, node_id, StreamId(origin, topic), 1, next_sequence, now_ms)
            case FrontierStmt(entries):
                for entry in entries:
                    stream_id = StreamId(entry.origin, entry.topic)
                    self._on_claim(sender.conn, node_id, stream_id, 1, entry.next, now_ms)
            case PullCall():
                if not self.spreading.on_pull(sender.conn, message):
                    self._violation(call, "too many pulls at once", now_ms)
            case PullResp():
                self.ordering.pull_answered(message, node_id, now_ms)
            case SummaryStmt(digests):
                if len(digests) != BUCKETS:
                    self._violation(call, f"a summary has {BUCKETS} digests, not {len(digests)}", now_ms)
                else:
                    known = self.roster.get(node_id)
                    self.spreading.on_summary(
                        sender.conn,
                        message,
                        max(sender.incarnation, known.incarnation if known else 0),
                        known.origin_batch if known else 0,
                    )
            case HoldingsStmt():
                self._on_holdings(sender, message, now_ms)
            case BeaconStmt(entry, hops):
                self._on_beacon(sender, entry, hops, now_ms)
            case HolderSearchStmt():
                self._on_holder_search(sender, message, now_ms)
            case RefusedStmt(reason, detail):
                self._out.append(Trace("was-refused", (("reason", reason), ("detail", detail))))
                self.membership.link_silent(sender, now_ms)
            case _:
                if not self.membership.handle_link(sender, message, now_ms):
                    self._violation(call, f"{type(message).__name__} is not for a link", now_ms)

    # ---- events of the machines

    def _run_events(self, now_ms: int) -> None:
        while self._events and not self.over:
            event = self._events.popleft()
            match event:
                case Accepted(stream, frame):
                    self.spreading.spread(stream, frame, now_ms)
                case Persisted(stream):
                    self._persisted(stream)
                case NeighbourUp(neighbour):
                    node_id = neighbour.contact.node_id
                    self.seeking.stop()
                    self.ordering.source_up(node_id, neighbour.conn)
                    self.acks.neighbour_up(node_id, now_ms)
                    self.spreading.link_up(node_id, neighbour.conn)
                    for stream in self.holdings.streams.values():
                        if stream.id.origin == node_id:  # it may wait for this word, whoever brought the rows
                            self._persisted(stream)
                    self._out.append(Trace("neighbour-up", (("peer", neighbour.contact.address),)))
                case NeighbourDown(neighbour, why):
                    node_id = neighbour.contact.node_id
                    self.spreading.down(neighbour.conn)
                    self.acks.neighbour_down(node_id)
                    self._unacked.pop(neighbour.conn, None)
                    if self.ordering.source_conn(node_id) == neighbour.conn:
                        self.ordering.source_down(node_id, now_ms)
                    self._out.append(Trace("neighbour-down", (("peer", neighbour.contact.address), ("why", why))))
                case BecameFull():
                    self._out.append(Trace("full", ()))
                    self._first_beacon(now_ms)
                case Isolated():
                    self.timers.set_sooner(("seek",), now_ms + self._random.randrange(100) + 1)
                case _:
                    assert_never(event)

    # ---- seeking

    def _seek(self, now_ms: int) -> None:
        if self.membership.table.neighbours or self.membership.leaving:
            return
        if self.seeking.begin(self.roster.addresses(), now_ms):
            self._found(now_ms)

    def _found(self, now_ms: int) -> None:
        self.seeking.stop()
        self._founded = True
        self._baselined = True
        self.membership.found_channel()
        self._out.append(Trace("founded", ()))
        # Alone is not for ever: others may be on the channel that could not be reached just now.
        self.timers.set(("seek",), now_ms + 5 * self._config.seek_retry_ms)

    # ---- batches

    def _on_batch(self, conn: int, sender: NodeId, frame: BatchFrame, now_ms: int) -> None:
        stream_id = frame.batch.stream
        if stream_id.origin == self.me.node_id and self._ahead_of_me(stream_id, frame.batch.next_sequence):
            return
        self.spreading.peer_has(conn, stream_id, frame.batch.next_sequence)
        stream = self.holdings.get(stream_id)
        new = stream is None or frame.batch.next_sequence > stream.next
        self.ordering.receive(frame, sender, now_ms)
        if new and frame.how is How.PUSHED:
            self.membership.assess_distance(frame.hops)

    def _on_claim(
        self, conn: int, node_id: NodeId, stream_id: StreamId, low: int, next_sequence: int, now_ms: int
    ) -> None:
        if stream_id.origin == self.me.node_id and self._ahead_of_me(stream_id, next_sequence):
            return
        stream = self.holdings.open(stream_id)
        self.spreading.peer_has(conn, stream_id, next_sequence)
        stream.claim(node_id, low, next_sequence)
        if stream.claimed_next > stream.next:
            self.ordering.want(stream, node_id, now_ms)

    def _ahead_of_me(self, stream_id: StreamId, next_sequence: int) -> bool:
        """Somebody has more of my own stream than I remember having numbered."""
        stream = self.holdings.get(stream_id)
        if next_sequence <= (stream.next if stream else 1):
            return False
        self._rolled_back(f"another node has {stream_id.topic!r} up to {next_sequence - 1}, this store not")
        return True

    def _rolled_back(self, detail: str) -> None:
        self._out.append(RolledBack(detail))
        self.over = True

    def _on_holdings(self, sender: Neighbour, holdings: HoldingsStmt, now_ms: int) -> None:
        if holdings.your_incarnation > self.incarnation or holdings.your_origin_batch > self.origin_batch:
            self._rolled_back(
                f"{sender.contact.address} has seen incarnation {holdings.your_incarnation} and "
                f"{holdings.your_origin_batch} batches of this node; this store knows {self.incarnation} and "
                f"{self.origin_batch}"
            )
            return
        starts = [
            (stream_id, entry.next)
            for entry in holdings.entries
            if not self._baselined and self.holdings.get(stream_id := StreamId(entry.origin, entry.topic)) is None
        ]
        if starts:  # new here with `start_from = latest`: begin where the first neighbour is
            self.ordering.start_at(starts)
        for entry in holdings.entries:
            self._on_claim(
                sender.conn, sender.contact.node_id, StreamId(entry.origin, entry.topic), entry.low, entry.next, now_ms
            )
            if self.over:
                return
        self.spreading.on_holdings(sender.conn, holdings.entries, holdings.last, now_ms)
        if holdings.last:
            self._baselined = True
            self._exchanged_once = True

    def _durable(self, token: int, now_ms: int) -> None:
        for each in range(self._durable_token + 1, token + 1):
            self.ordering.durable(each)
            self._perform(self.commits.durable(each), now_ms)
        self._durable_token = max(self._durable_token, token)

    def _persisted(self, stream: Stream) -> None:
        """Tell the origin, if it is a neighbour, how far its stream is on this disk."""
        origin = self.membership.table.neighbours.get(stream.id.origin)
        if origin is not None:
            word = AckEntry(stream.id.topic, stream.held_from(), stream.durable_next)
            self._unacked.setdefault(origin.conn, {})[stream.id.topic] = word

    def _tell_acks(self) -> None:
        for conn, words in self._unacked.items():
            entries = tuple(words.values())
            for start in range(0, len(entries), ENTRIES_PER_MESSAGE):
                self._out.append(Send(conn, AckStmt(entries[start : start + ENTRIES_PER_MESSAGE])))
        self._unacked.clear()

    # ---- holders beyond the neighbours

    def _on_holder_search(self, sender: Neighbour, search: HolderSearchStmt, now_ms: int) -> None:
        # Numbers of holder searches and port searches are counted apart: negative ones are the former.
        if not self.membership.first_sight(search.requester.node_id, -search.search):
            return
        if search.hops < search.hops_max:
            onward = HolderSearchStmt(
                search.requester,
                search.search,
                search.origin,
                search.topic,
                search.sequence,
                search.hops + 1,
                search.hops_max,
            )
            for neighbour in self.membership.table.neighbours.values():
                if neighbour is not sender:
                    self._out.append(Send(neighbour.conn, onward))
        stream = self.holdings.get(StreamId(search.origin, search.topic))
        if (
            stream is not None
            and stream.first_held_from(search.sequence) == search.sequence < stream.next
            and search.requester.node_id not in self.membership.table.neighbours
            and self._helpers_calling < HELPERS_MAX
        ):
            self._helpers_calling += 1
            purpose = HoldFor(search.search, stream.id)
            self.calls.dial(search.requester.address, purpose, now_ms, search.requester)

    def _on_holder_found(self, call: Call, found: HolderFoundStmt, now_ms: int) -> None:
        assert call.peer is not None
        node_id = call.peer.node_id
        wanted = self.ordering.wants(StreamId(found.origin, found.topic))
        if (
            not wanted
            or self.ordering.source_conn(node_id) is not None
            or self.ordering.source_count() >= (self._cluster.degree + HELPERS_MAX)
        ):
            self._call_failed(call, now_ms)
            self.calls.close(call.conn)
            return
        self.ordering.source_up(node_id, call.conn)
        self._on_claim(call.conn, node_id, StreamId(found.origin, found.topic), found.low, found.next, now_ms)

    # ---- publishing

    def _take_publish(self, event: Publish | Commit) -> None:
        if self._leave_deadline_ms is not None:
            self._refuse(event, "leaving", "this node leaves the channel: publish at another one")
        elif not self._may_publish():
            self._refuse(event, "not-ready", "this node has not exchanged frontiers with the channel yet: try again")
        elif len(self._queue) >= self._config.publish_queue_max:
            self._refuse(event, "busy", "too many publishes wait for the neighbours' disks: slow down, try again")
        else:
            self._queue.append(event)

    def _refuse(self, event: Publish | Commit, code: str, detail: str) -> None:
        self._out.append(Refused(event.request, code, detail))

    def _may_publish(self) -> bool:
        """A store that was rolled back must hear of it before it numbers anything (design: a number is never used
        twice). Alone, only a node that never knew another may start."""
        if self._former_ids and not self._has_former_streams():
            return False
        return self._exchanged_once or (self._founded and not self._knew_others)

    def _has_former_streams(self) -> bool:
        """After a rollback, the keys of publishers are complete when the old streams are."""
        return all(
            stream.durable_next >= stream.claimed_next
            for stream in self.holdings.streams.values()
            if stream.id.origin in self._former_ids
        )

    def _publish_queued(self, now_ms: int) -> None:
        while self._queue:
            if not self.acks.has_room(now_ms):
                self.timers.set_sooner(("window",), now_ms + 100)
                return
            event = self._queue.popleft()
            if isinstance(event, Publish):
                self._perform(self.commits.publish(event, now_ms), now_ms)
            else:
                self._perform(self.commits.commit(event, now_ms), now_ms)

    def _perform(self, outcomes: list[Outcome], now_ms: int) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Committed):
                self._committed(outcome, now_ms)
            else:
                self._out.append(outcome)

    def _committed(self, committed: Committed, now_ms: int) -> None:
        """Own batches are on this disk: only now may they leave."""
        for batch, delivery in zip(committed.batches, committed.deliveries, strict=True):
            stream = self.holdings.open(batch.stream)
            self.holdings.advance(stream, batch.next_sequence, batch.checksum)
            stream.durable_next = batch.next_sequence
            stream.durable_checksum = batch.checksum
            self.origin_batch = batch.origin_batch
            self._out.append(Delivered(delivery))
            self.acks.published(batch, now_ms)
            self.spreading.spread(stream, BatchFrame(batch, 0, How.PUBLISHED), now_ms)
        for answer in committed.answers:
            self.acks.answer_when_acked(answer.request, answer.acks, answer.ranges)

    # ---- beacons, heartbeats, leaving

    def _heartbeat(self, now_ms: int) -> None:
        self.timers.set(("heartbeat",), now_ms + self._cluster.heartbeat_interval_ms)
        beat = Heartbeat(self.holdings.digest)
        for neighbour in list(self.membership.table.neighbours.values()):
            if now_ms - neighbour.heard_at_ms > self._cluster.heartbeat_timeout_ms:
                self.membership.link_silent(neighbour, now_ms)
            else:
                self._out.append(Send(neighbour.conn, beat))

    def _first_beacon(self, now_ms: int) -> None:
        self._update_population()
        if self.roster.population() <= PROMPT_BEACON_NODES:
            self.timers.set(("beacon",), now_ms)
        else:
            self.timers.set(("beacon",), now_ms + self._random.randrange(self.roster.interval_ms()))

    def _beacon(self, now_ms: int, *, leaving: bool) -> None:
        neighbours = tuple(self.membership.table.neighbours)
        entry = self.roster.beacon(self.origin_batch, neighbours, leaving, now_ms)
        statement = BeaconStmt(entry, 1)
        for neighbour in self.membership.table.neighbours.values():
            self._out.append(Send(neighbour.conn, statement))

    def _on_beacon(self, sender: Neighbour, entry: RosterEntry, hops: int, now_ms: int) -> None:
        if entry.node_id == self.me.node_id:
            if entry.incarnation > self.incarnation:
                self._rolled_back(f"a beacon of this node tells of incarnation {entry.incarnation}")
            return
        if not self.roster.heard(entry, now_ms):
            return
        self._update_population()
        self.membership.assess_distance(hops)
        onward = BeaconStmt(entry, hops + 1)
        for neighbour in self.membership.table.neighbours.values():
            if neighbour is not sender:
                self._out.append(Send(neighbour.conn, onward))

    def _update_population(self) -> None:
        self.membership.population = self.roster.population()

    def _try_leave(self, deadline_ms: int, now_ms: int) -> None:
        own = tuple(
            Range(stream.id, 1, stream.next)
            for stream in self.holdings.streams.values()
            if stream.id.origin == self.me.node_id and stream.next > 1
        )
        handed_over = not own or self.acks.somebody_has(own)
        if (handed_over and not self.acks.waiting_count()) or now_ms >= deadline_ms:
            self._beacon(now_ms, leaving=True)
            self.membership.leave()
            self._out.append(Left())
            self.over = True
