"""The node: composes the machines of this room and routes inputs, messages and timers to them.

`outputs = node.handle(input, now_ms)`; the driver performs the outputs in order. Handlers run to completion, never
wait and never fail because of a peer: what a peer does wrong costs it its connection and changes nothing else
(guarantee 8). Machines do not know each other; what one of them has to tell the others comes back here as an event
(`NeighbourUp`, `Accepted`, ...).

    Calls           connections, hello
    Seeking         portals
    Membership      Links, Joining, Edges, Holes: who is a neighbour
    Roster          beacons
    Past            whether its store is the latest word about its own rows
    PassiveList     where to find others when the neighbours are gone
    Lookout         other components, weak places of the graph
    Dissemination   Ordering, Spreading, Repair: what travels
    Publishing      CommitMachine, Acks: what this node adds to it
    Departure       when it goes
"""

from collections import deque
from random import Random
from typing import assert_never

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.calls import Call, CallTimeout
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.departure import Departure, LeaveDue
from m4cast.overlay.protocol.effects import (
    Abort,
    Append,
    AppendFailed,
    ClockSet,
    Commit,
    Connected,
    Damaged,
    DialFailed,
    Disconnected,
    Disown,
    Drain,
    Durable,
    Forget,
    Input,
    Leave,
    Left,
    LinkBlocked,
    LinkReady,
    Output,
    Progress,
    Publish,
    RangeRead,
    Received,
    Recovered,
    Refused,
    RemoveKey,
    RolledBack,
    Send,
    Shutdown,
    Stage,
    Start,
    StoreFull,
    Trace,
    Trimmed,
    Wake,
    WakeAt,
)
from m4cast.overlay.protocol.finding.seeking import Seek, SeekDue, Seeking, Tell
from m4cast.overlay.protocol.floods import Floods
from m4cast.overlay.protocol.holdings import Holdings, Stream
from m4cast.overlay.protocol.lookout import Lookout
from m4cast.overlay.protocol.membership.links import BecameFull, Isolated, LinkEvent, NeighbourDown, NeighbourUp
from m4cast.overlay.protocol.membership.membership import Membership
from m4cast.overlay.protocol.membership.merging import Merge
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.publishing.publishing import KeySweepDue, Publishing, StageSweepDue, WindowDue
from m4cast.overlay.protocol.roster.passive_list import PassiveList
from m4cast.overlay.protocol.roster.roster import BeaconDue, Roster
from m4cast.overlay.protocol.streams.dissemination import Dissemination, HoldFor
from m4cast.overlay.protocol.streams.inquiries import Inquiry
from m4cast.overlay.protocol.streams.ordering import Accepted, OrderingEvent, Persisted
from m4cast.overlay.protocol.streams.past import ORIGINS_MAX, Ask, Past
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.protocol.wire.batch import BatchFrame, How
from m4cast.overlay.protocol.wire.messages import (
    HELD_VERSION,
    AbsentStmt,
    AckStmt,
    ApartStmt,
    BeaconStmt,
    ConnectedStmt,
    ConnectionRequestCall,
    ConnectionRequestResp,
    EdgeProposalCall,
    EdgeSearchCall,
    FailedStmt,
    Heartbeat,
    HeldCall,
    HeldResp,
    Hello,
    HolderSearchStmt,
    HoldingsStmt,
    MergeCall,
    Message,
    PortConnectionCall,
    PortSearchStmt,
    RefusedStmt,
    RosterEntry,
    SeekingConnectionCall,
    SeekingConnectionResp,
    ShutdownStmt,
    SwapCall,
)
from m4cast.overlay.value import value

STORE_FULL = ("store-full", "this node's store is nearly full: keep less, give it more room, or publish elsewhere")
PROMPT_BEACON_NODES = 64
"""In channels up to this size a newcomer's first beacon goes out at once; in larger ones at its turn."""
QUESTIONS = (
    SeekingConnectionCall,
    ConnectionRequestCall,
    EdgeProposalCall,
    PortConnectionCall,
    MergeCall,
    SwapCall,
    HeldCall,
)
"""What a caller asks. Who is called and wants something of the caller calls itself."""
LOST = ("broken", "silent", "violation")
"""Ways to lose a neighbour that may mean that it failed."""
ALONE_SEEK_ROUNDS = 5
"""A founder that is alone asks for others again after this many `seek_retry_ms`."""


@value
class Check:
    """Purpose of a call: is this neighbour, which was lost, still there?"""

    contact: Contact


@value
class HeartbeatDue(Timer):
    """Send heartbeats, and look for neighbours that are silent."""


@value
class FlipDue(Timer):
    """Mix the graph by one random swap."""


class Node:
    def __init__(self, recovered: Recovered, cluster: ClusterConfig, config: NodeConfig, random: Random) -> None:
        context = Context(Contact(recovered.node_id, config.advertised), recovered.incarnation, cluster, config, random)
        self.me = me = context.me
        self.incarnation = recovered.incarnation
        self.over = False
        """Left, or found to be rolled back: nothing more comes out."""
        self._cluster = cluster
        self._config = config
        self._random = random
        self._out = context.out
        self._events: deque[LinkEvent | OrderingEvent] = deque()
        self._context = context
        self._durable_token = 0
        self._failed_through = 0
        self._wake_at: int | None = None
        self._founded = False
        self._has_former_ids = bool(recovered.former_ids)
        self._knew_others = any(not entry.leaving for entry in recovered.roster)
        self._store_full = False
        self._refuted_at_ms = 0

        self.timers = context.timers
        self.clocks = context.clocks
        self.calls = context.calls
        self.holdings = Holdings(recovered.streams)
        self.seeking = Seeking(context)
        floods = Floods(context)
        self.membership = Membership(context, floods, self._events.append)
        own = RosterEntry(
            node_id=me.node_id,
            incarnation=recovered.incarnation,
            counter=0,
            address=me.address,
            door=config.advertised_door,
            name=config.name,
            site=config.site,
            origin_batch=recovered.origin_batch,
            leaving=False,
            beacon_interval_ms=cluster.beacon_interval_ms,
            neighbours=(),
        )
        self.roster = Roster(context, own, recovered.roster)
        self.passive = PassiveList(me.node_id, config.passive_max, random)
        self.lookout = Lookout(context, self.membership, self.roster, self.passive)
        self.departure = Departure(self.timers)
        self.past = Past(context, recovered)
        self.dissemination = Dissemination(
            context, recovered, self.holdings, floods, self._recover, self._events.append
        )
        self.publishing = Publishing(context, recovered, self.holdings, self.dissemination.spreading.spread)

    def _recover(self, append: Append) -> Append:
        return self.publishing.commits.recover(append)

    # ---- the one verb

    def handle(self, event: Input, now_ms: int) -> list[Output]:
        if self.over:
            return []
        self._dispatch(event, now_ms)
        if self._events:
            self._run_events(now_ms)
        if self.dissemination.rolled_back:
            self._out.append(RolledBack(self.dissemination.rolled_back))
            self.over = True
        else:
            self._end_of_input(now_ms)
        outputs = list(self._out)
        self._out.clear()
        return outputs

    def _end_of_input(self, now_ms: int) -> None:
        """What waits for the end of an input. Most inputs leave nothing of it, so nobody is asked for nothing."""
        if self.publishing.queue:
            self.publishing.run_queue(now_ms)
        if self.dissemination.acks_due:
            self.dissemination.tell_acks()
        if self.membership.links.list_changed:
            self.membership.flush()
        if self.departure.begun and self.departure.is_due(
            self.publishing.handed_over, not self.membership.table.neighbours, now_ms
        ):
            self._leave(now_ms)
            return
        wake_at = self.timers.next_at()
        if wake_at is not None and wake_at != self._wake_at:
            self._out.append(WakeAt(wake_at))
        self._wake_at = wake_at

    def _dispatch(self, event: Input, now_ms: int) -> None:
        match event:
            case Received():
                self._received(event.conn, event.message, now_ms)
            case Wake():
                self._wake_at = None
                while (timer := self.timers.pop_due(now_ms)) is not None:
                    self._timer(timer, now_ms)
                    self._run_events(now_ms)
            case Durable(token):
                for each in range(self._durable_token + 1, token + 1):
                    self.dissemination.ordering.durable(each, now_ms)
                    if self.dissemination.repair.damaged:
                        self.dissemination.repaired(each)
                    if self.dissemination.filling.appends:
                        self.dissemination.filled(each)
                    self.publishing.durable(each, now_ms)
                self._durable_token = max(self._durable_token, token)
            case RangeRead(token, batches, following):
                self.dissemination.spreading.range_read(token, batches, following)
            case Connected(conn, peer_name):
                self.calls.connected(conn, now_ms, peer_name)
            case Disconnected(conn) | DialFailed(conn):
                call = self.calls.lost(conn)
                if call is not None:
                    self._call_over(call, "broken", now_ms)
            case Progress(conn):
                self._on_progress(conn, now_ms)
            case LinkBlocked(conn):
                self.dissemination.spreading.blocked(conn)
            case LinkReady(conn):
                self.dissemination.spreading.ready(conn, now_ms)
            case Publish() | Commit():
                self._take_publish(event)
            case Stage():
                if self._store_full:
                    self._out.append(Refused(event.request, *STORE_FULL))
                else:
                    self.publishing.stage(event, now_ms)
            case Abort():
                self.publishing.abort(event, now_ms)
            case RemoveKey():
                self.publishing.remove_key(event, now_ms)
            case Disown():
                self.publishing.disown(event, now_ms)
            case Forget(request):
                self.publishing.forget(request)
            case AppendFailed(token, reason):
                # A later report of the same failure is an echo: the first undid all that was asked for till then.
                if token > self._failed_through:
                    self._failed_through = self._context.last_token
                    self.publishing.failed(token, reason, now_ms)
                    self.dissemination.ordering.failed(token, now_ms)
                    self.dissemination.repair.failed(token, now_ms)
                    self.dissemination.filling.failed(token)
            case Damaged():
                self.dissemination.repair.found(event, now_ms)
            case ClockSet(offset_ms):
                self.clocks.offset_ms = offset_ms
            case StoreFull(is_full):
                self._store_full = is_full
            case Trimmed(stream_id, low):
                stream = self.holdings.open(stream_id)
                stream.low = max(stream.low, low)
            case Start():
                self._start(now_ms)
            case Drain(begin):
                self.departure.draining = begin
            case Leave():
                self.departure.leave(now_ms)
            case Shutdown():
                self._on_shutdown(None, ShutdownStmt(self.me), now_ms)
            case _:
                assert_never(event)

    def _start(self, now_ms: int) -> None:
        interval_ms = self._cluster.heartbeat_interval_ms
        self.timers.set(HeartbeatDue(), now_ms + self._random.randrange(interval_ms) + 1)
        self.roster.start(now_ms)
        for entry in self.roster.members():
            if not entry.leaving:
                self.passive.meet(Contact(entry.node_id, entry.address), now_ms)
        self.publishing.start(now_ms)
        self.past.start(now_ms)
        if self._config.flip_interval_ms:
            self.timers.set(FlipDue(), now_ms + self._random.randrange(self._config.flip_interval_ms) + 1)
        self._seek(now_ms)

    def _timer(self, timer: Timer, now_ms: int) -> None:
        match timer:
            case HeartbeatDue():
                self._heartbeat(now_ms)
            case CallTimeout(conn):
                call = self.calls.get(conn)
                if call is not None:
                    self.calls.close(conn)
                    self._call_over(call, "timed out", now_ms)
            case SeekDue():
                self._seek(now_ms)
            case BeaconDue():
                self._beacon(now_ms, leaving=False)
                if self._has_former_ids:
                    self._fetch_former(now_ms)
                if self.past.lacks_proof:
                    self.past.ask_all_again([each.contact for each in self.roster.expected(now_ms)], now_ms)
                self.lookout.look_for_strangers(self.seeking.portals, now_ms)
                self.lookout.look_for_weakness(now_ms)
            case FlipDue():
                self.timers.set(FlipDue(), now_ms + self._config.flip_interval_ms)
                self.lookout.flip(now_ms)
            case StageSweepDue():
                self.publishing.sweep(now_ms)
            case KeySweepDue():
                self.publishing.sweep_keys(now_ms)
            case LeaveDue() | WindowDue():
                pass  # looked at after every input
            case _:
                handled = self.dissemination.timer(timer, self.roster.expected, now_ms) or self.membership.timer(
                    timer, now_ms
                )
                assert handled, timer

    def _run_events(self, now_ms: int) -> None:
        while self._events:
            event = self._events.popleft()
            match event:
                case Accepted():
                    self._accepted(event.stream, event.frame, now_ms)
                case Persisted():
                    self.dissemination.persisted(event.stream)
                case NeighbourUp(neighbour):
                    self.seeking.stop()
                    self.passive.meet(neighbour.contact, now_ms)
                    self.publishing.acks.neighbour_up(neighbour.contact.node_id, now_ms)
                    self.dissemination.link_up(neighbour)
                    self._tell_absent(neighbour, self.roster.absentees(now_ms))
                    if self.past.is_asking and (call := self.calls.get(neighbour.conn)) is not None:
                        self.past.linked(call)
                    self._out.append(Trace("neighbour-up", (("peer", neighbour.contact.address),)))
                case NeighbourDown(neighbour, why):
                    node_id = neighbour.contact.node_id
                    is_gone = not self.roster.is_present(node_id, now_ms)
                    self.publishing.acks.neighbour_down(node_id, is_gone=is_gone)
                    self.dissemination.connection_down(node_id, neighbour.conn, now_ms)
                    self.past.connection_over(neighbour.conn, now_ms)
                    self.clocks.forget(node_id)
                    if self.roster.get(node_id) is None:  # it never told the channel of itself: nobody to find again
                        self.passive.forget(node_id)
                    self._out.append(Trace("neighbour-down", (("peer", neighbour.contact.address), ("why", why))))
                    if why in LOST and not self.membership.leaving:
                        self.calls.dial(neighbour.contact.address, Check(neighbour.contact), now_ms, neighbour.contact)
                case BecameFull():
                    self._out.append(Trace("full", ()))
                    self.seeking.tell_fellows(now_ms)
                    self._first_beacon(now_ms)
                case Isolated():
                    self.timers.set_sooner(SeekDue(), now_ms + self._random.randrange(100) + 1)
                case _:
                    assert_never(event)

    def _accepted(self, stream: Stream, frame: BatchFrame, now_ms: int) -> None:
        self.dissemination.spreading.spread(stream, frame, now_ms)
        if frame.how is How.PUSHED:
            self.membership.assess_distance(frame.hops)

    # ---- connections

    def _call_over(self, call: Call, why: str, now_ms: int) -> None:
        """The connection is gone: forget what it was for."""
        if call.is_link:
            assert call.peer is not None
            neighbour = self.membership.table.neighbours.get(call.peer.node_id)
            if neighbour is not None and neighbour.conn == call.conn:
                self.membership.links.lost(neighbour, why, now_ms)
            return
        if isinstance(call.purpose, Check):
            self._accuse(call.purpose.contact, now_ms)
        self._forget_call(call, now_ms)

    def _forget_call(self, call: Call, now_ms: int) -> None:
        """A call is over: what hung on it and is not done is not done for good. The second time changes nothing."""
        self.dissemination.call_over(call, now_ms)
        self.past.connection_over(call.conn, now_ms)
        if isinstance(call.purpose, Seek) and self.seeking.call_failed(call, now_ms, self._knew_others):
            self._found(now_ms)
        self.membership.call_failed(call, now_ms)

    def _on_progress(self, conn: int, now_ms: int) -> None:
        call = self.calls.get(conn)
        if call is None or call.peer is None:
            return
        self.dissemination.ordering.progress(call.peer.node_id, now_ms)
        if call.is_link:
            self.membership.table.neighbours[call.peer.node_id].heard_at_ms = now_ms
        else:
            self.calls.extend(call, now_ms)

    def _received(self, conn: int, message: Message | BatchFrame, now_ms: int) -> None:
        call = self.calls.get(conn)
        if call is None:
            return
        try:
            if call.is_link:
                assert call.peer is not None
                neighbour = self.membership.table.neighbours[call.peer.node_id]
                neighbour.heard_at_ms = now_ms
                self._on_link(neighbour, message, now_ms)
                return
            if isinstance(message, Hello):
                self._on_hello(call, message, now_ms)
            elif call.peer is None and not isinstance(message, RefusedStmt):
                raise RemoteProtocolError("the first message must be a hello")
            else:
                self._on_call(call, message, now_ms)
        except RemoteProtocolError as error:
            self.calls.refuse(call, "protocol", str(error))
            self._call_over(call, "violation", now_ms)
            return
        if self.calls.get(conn) is None:
            # Whoever closed it was not necessarily the one who wanted something of it.
            self._forget_call(call, now_ms)

    def _on_hello(self, call: Call, hello: Hello, now_ms: int) -> None:
        known = self.roster.get(hello.node_id)
        if not self.calls.hello(call, hello, known.name if known else ""):
            self._call_over(call, "refused", now_ms)
            return
        if self.past.is_asking and call.peer is not None and not isinstance(call.purpose, Ask):
            self.past.met(call.peer, now_ms)
        if isinstance(call.purpose, Seek):
            self.seeking.call_ready(call)
        elif isinstance(call.purpose, Check):
            self.calls.close(call.conn)  # it lives
        elif isinstance(call.purpose, Tell):
            self.seeking.tell(call)
        elif isinstance(call.purpose, HoldFor):
            self.dissemination.call_ready(call, call.purpose)
        elif isinstance(call.purpose, Inquiry):
            self.dissemination.inquiry_ready(call, call.purpose, now_ms)
        elif isinstance(call.purpose, Ask):
            self.past.call_ready(call, now_ms)
        elif call.purpose is not None:
            self.membership.call_ready(call, now_ms)

    def _on_call(self, call: Call, message: Message | BatchFrame, now_ms: int) -> None:
        """A message on a connection that is not a neighbour link."""
        if call.purpose is not None and isinstance(message, QUESTIONS):
            raise RemoteProtocolError(f"{type(message).__name__} is for the one who called")
        match message:
            case RefusedStmt(reason, detail):
                self._out.append(Trace("was-refused", (("reason", reason), ("detail", detail))))
                call.is_at_odds = reason != "self"
                self.calls.close(call.conn)
                self._call_over(call, "refused", now_ms)
            case SeekingConnectionCall(seeking, depth):
                self._on_seeking_call(call, seeking, depth, now_ms)
            case SeekingConnectionResp():
                self._on_seeking_answer(call, message, now_ms)
            case ConnectedStmt():
                assert call.peer is not None
                self.calls.close(call.conn)
                if self.membership.state is State.SEEKING and not self.membership.leaving:
                    self.seeking.told(call.peer, now_ms)
            case ConnectionRequestResp(roster=roster):
                assert call.peer is not None
                self.seeking.request_answered(call)
                if self.membership.table.courting.get(call.peer.node_id) == call.conn:  # else nobody asked for it
                    for entry in roster:
                        self.roster.heard(entry, now_ms, second_hand=True)
                        if not entry.leaving and entry.node_id != self.me.node_id:
                            contact = Contact(entry.node_id, entry.address)
                            self.passive.meet(contact, now_ms)
                            if self.past.is_asking:
                                self.past.heard_of(contact, now_ms)
                    self._update_population()
                self.membership.handle_call(call, message, (), now_ms)
            case HeldCall():
                self._on_held_call(call, message)
            case HeldResp():
                if not isinstance(call.purpose, Ask):
                    raise RemoteProtocolError("HeldResp answers what was not asked")
                self._on_held_resp(call, message, now_ms)
            case ConnectionRequestCall():
                self.membership.handle_call(call, message, self.roster.entries(), now_ms)
            case BatchFrame():
                self.dissemination.handle_call(call, message, now_ms)
            case _:
                handled = self.dissemination.handle_call(call, message, now_ms) or self.membership.handle_call(
                    call, message, (), now_ms
                )
                if not handled:
                    raise RemoteProtocolError(f"{type(message).__name__} is for neighbours only")

    def _on_link(self, sender: Neighbour, message: Message | BatchFrame, now_ms: int) -> None:
        """A message from a neighbour."""
        if self.dissemination.handle_link(sender, message, self.roster.get, now_ms):
            return
        match message:
            case AckStmt():
                self.publishing.acks.acked(sender.contact.node_id, message.entries, now_ms)
            case HoldingsStmt():
                self.dissemination.on_holdings(sender, message, self.publishing.origin_batch, now_ms)
                if message.last and self.past.is_asking:
                    self.past.exchanged(sender.contact.node_id, now_ms)
            case HeldCall() | HeldResp():
                call = self.calls.get(sender.conn)
                assert call is not None
                if isinstance(message, HeldCall):
                    self._on_held_call(call, message)
                elif self.past.has_asked_on(sender.conn) or self.publishing.acks.former_origins():
                    self._on_held_resp(call, message, now_ms)
            case BeaconStmt():
                self._on_beacon(sender, message.entry, message.hops, now_ms)
            case HolderSearchStmt():
                self.dissemination.on_holder_search(sender, message, now_ms)
            case RefusedStmt(reason, detail):
                self._out.append(Trace("was-refused", (("reason", reason), ("detail", detail))))
                self.membership.links.silent(sender, now_ms)
            case FailedStmt():
                self._on_failed(sender, message, now_ms)
            case AbsentStmt():
                self._on_absent(sender, message, now_ms)
            case ShutdownStmt():
                self._on_shutdown(sender, message, now_ms)
            case ApartStmt():
                self.membership.merging.on_apart(message, self.roster.hears, now_ms)
            case BatchFrame():
                raise AssertionError("batches are for dissemination")
            case _:
                if isinstance(message, (EdgeSearchCall, PortSearchStmt)):
                    self.passive.meet(message.requester, now_ms)
                if not self.membership.handle_link(sender, message, now_ms):
                    raise RemoteProtocolError(f"{type(message).__name__} is not for a link")

    # ---- seeking

    def _seek(self, now_ms: int) -> None:
        if self.membership.table.neighbours or self.membership.leaving:
            return
        if self.seeking.begin(self.passive.addresses(), now_ms):
            self._found(now_ms)

    def _on_seeking_call(self, call: Call, seeking: bool, depth: int, now_ms: int) -> None:
        """Routine 15."""
        assert call.peer is not None
        full = self.membership.state is State.FULL and not self.membership.leaving
        hears = self.roster.hears(call.peer.node_id, now_ms)
        self._out.append(Send(call.conn, SeekingConnectionResp(full, hears, self.seeking.depth)))
        if seeking and not full and not self.membership.leaving:
            self.seeking.met(call.peer, depth)

    def _on_seeking_answer(self, call: Call, answer: SeekingConnectionResp, now_ms: int) -> None:
        if isinstance(call.purpose, Merge):
            self.membership.merging.on_probe(call, answer, now_ms)
            return
        ask, found = self.seeking.answered(call, answer, now_ms, self._knew_others)
        if ask:
            self.membership.joining.request(call)
        if found:
            self._found(now_ms)

    def _found(self, now_ms: int) -> None:
        self.seeking.stop()
        self.dissemination.found()
        self.membership.links.become_full()
        self._out.append(Trace("alone" if self._founded else "founded", ()))
        self._founded = True
        # Alone is not for ever: others may be on the channel that could not be reached just now.
        self.timers.set(SeekDue(), now_ms + ALONE_SEEK_ROUNDS * self._config.seek_retry_ms)

    # ---- publishing

    def _take_publish(self, event: Publish | Commit) -> None:
        why = self.why_no_publishes()
        if why is not None:
            self._out.append(Refused(event.request, *why))
        else:
            self.publishing.take(event)

    def why_no_publishes(self) -> tuple[str, str] | None:
        """Code and detail of the refusal that every publish meets now; None when they are taken."""
        if (leaving := self.departure.why_no_publishes()) is not None:
            return leaving
        if self._store_full:
            return STORE_FULL
        if (unready := self._why_not_ready()) is not None:
            return "not-ready", unready
        return None

    def _why_not_ready(self) -> str | None:
        """A store that was rolled back must hear of it before it numbers anything: a number is never used twice.
        Alone, only a node that never knew another may start."""
        if not (self.dissemination.exchanged_once or (self._founded and not self._knew_others)):
            return "this node has not exchanged frontiers with the channel yet: try again"
        if (unproven := self.past.why_unproven()) is not None:
            return unproven
        return self._why_not_whole() if self._has_former_ids else None

    def _why_not_whole(self) -> str | None:
        """After a rollback the rows that this node published before have to come back first: they say which keyed
        commits were made."""
        spreading = self.dissemination.spreading
        if self.membership.state is not State.FULL or not spreading.all_exchanged():
            return "this node's store was older than the channel, and it has not heard yet what is missing: try again"
        near = self.membership.table.neighbours  # what these have is known by their links
        told = self.past.former_streams(lambda node_id: node_id in near or self.roster.has_gone(node_id))
        missing = self.dissemination.missing_former_stream(told)
        if missing is None:
            return None
        (_, topic), next_sequence = missing
        return (
            f"this node's store was older than the channel, and its former rows of topic {topic!r} have not come back "
            f"up to {next_sequence - 1} yet: try again"
        )

    def _on_held_call(self, call: Call, message: HeldCall) -> None:
        assert call.peer is not None
        node_id = call.peer.node_id
        knew = self.roster.knew(node_id, call.incarnation) or any(self.roster.get(each) for each in message.origins[1:])
        self.dissemination.on_held_call(call.conn, message, self.roster.get(node_id), knew=knew)

    def _on_held_resp(self, call: Call, resp: HeldResp, now_ms: int) -> None:
        assert call.peer is not None
        who = call.peer.address
        if not self.dissemination.is_past(who, resp.incarnation, resp.origin_batch, self.publishing.origin_batch):
            self.dissemination.check_own(resp.entries)
            self.publishing.acks.held(call.peer.node_id, resp.entries)
            self.past.answered(call, resp, now_ms)
            if isinstance(call.purpose, Ask) and resp.last:
                told = self.past.former_at(call.peer.node_id)
                if not self.dissemination.pull_on(call, told, now_ms):
                    self.calls.close(call.conn)

    def _fetch_former(self, now_ms: int) -> None:
        """Former rows come from neighbours as everything does. Where these do not have them (they have another history
        of the stream, it may be), those who do are asked again."""
        for node_id in self.past.former_holders:
            entry = self.roster.get(node_id)
            is_near = node_id in self.membership.table.neighbours
            if entry is None or is_near or self.roster.has_gone(node_id):
                continue
            if any(self.dissemination.lacks(*each) for each in self.past.former_at(node_id).items()):
                self.past.ask_again(Contact(node_id, entry.address), now_ms)

    # ---- beacons, heartbeats, leaving

    def _heartbeat(self, now_ms: int) -> None:
        self.timers.set(HeartbeatDue(), now_ms + self._cluster.heartbeat_interval_ms)
        self.lookout.look_beyond(now_ms)
        self.lookout.look_for_absent(now_ms)
        beat = Heartbeat(self.holdings.digest, max(now_ms + self.clocks.offset_ms, 0))
        for neighbour in list(self.membership.table.neighbours.values()):
            if now_ms - neighbour.heard_at_ms > self._cluster.heartbeat_timeout_ms:
                self.membership.links.silent(neighbour, now_ms)
            else:
                self._out.append(Send(neighbour.conn, beat))
        if former := self.publishing.acks.former_origins():
            for neighbour in self.membership.table.neighbours.values():
                link = self.calls.get(neighbour.conn)
                if link is not None and link.version >= HELD_VERSION:
                    self._out.append(Send(neighbour.conn, HeldCall((self.me.node_id, *former[: ORIGINS_MAX - 1]))))
        for conn in self.dissemination.ordering.busy_helpers():  # else they would take a long transfer for silence
            self._out.append(Send(conn, beat))

    def _first_beacon(self, now_ms: int) -> None:
        self._update_population()
        if self.roster.population() <= PROMPT_BEACON_NODES:
            self.timers.set(BeaconDue(), now_ms)
        else:
            self.timers.set(BeaconDue(), now_ms + self._random.randrange(self.roster.interval_ms()))

    def _beacon(self, now_ms: int, *, leaving: bool) -> None:
        neighbours = tuple(self.membership.table.neighbours)
        entry = self.roster.beacon(self.publishing.origin_batch, neighbours, leaving, now_ms)
        self.membership.links.send_all(BeaconStmt(entry, 1))

    def _on_beacon(self, sender: Neighbour, entry: RosterEntry, hops: int, now_ms: int) -> None:
        if entry.node_id == self.me.node_id:
            if entry.incarnation > self.incarnation:
                self.dissemination.rolled_back = f"a beacon of this node tells of incarnation {entry.incarnation}"
        elif self.roster.heard(entry, now_ms):
            if entry.leaving:
                self.passive.forget(entry.node_id)
                self.publishing.acks.gone(entry.node_id)
            else:
                self.passive.meet(Contact(entry.node_id, entry.address), now_ms)
                if self.past.is_asking:
                    self.past.heard_of(Contact(entry.node_id, entry.address), now_ms)
            self._update_population()
            self.membership.assess_distance(hops)
            self.membership.links.send_all(BeaconStmt(entry, min(hops + 1, 255)), but=sender)

    def _accuse(self, lost: Contact, now_ms: int) -> None:
        """A neighbour was lost, and a call to it failed, too."""
        entry = self.roster.get(lost.node_id)
        if entry is not None:
            self._on_failed(None, FailedStmt(entry.node_id, entry.incarnation, entry.counter), now_ms)

    def _on_failed(self, sender: Neighbour | None, word: FailedStmt, now_ms: int) -> None:
        if word.node_id == self.me.node_id:
            interval_ms = self._cluster.heartbeat_interval_ms
            if word.incarnation == self.incarnation and now_ms - self._refuted_at_ms >= interval_ms:
                self._refuted_at_ms = now_ms
                self._beacon(now_ms, leaving=False)
        elif self.roster.failed(word.node_id, word.incarnation, word.counter, now_ms):
            self._out.append(Trace("failed", (("node", word.node_id.hex()),)))
            self.publishing.acks.gone(word.node_id)
            self._update_population()
            self.membership.links.send_all(word, but=sender)

    def _tell_absent(self, neighbour: Neighbour, absent: tuple[RosterEntry, ...]) -> None:
        """Rows that only these keep must not be given up by a node that has never heard of them."""
        link = self.calls.get(neighbour.conn)
        if absent and link is not None and link.version >= HELD_VERSION:
            self._out.append(Send(neighbour.conn, AbsentStmt(absent)))

    def _on_absent(self, sender: Neighbour, word: AbsentStmt, now_ms: int) -> None:
        news = self.roster.told_absent(word.entries, now_ms)
        for entry in news:
            contact = Contact(entry.node_id, entry.address)
            self.passive.meet(contact, now_ms)
            if self.past.is_asking:
                self.past.heard_of(contact, now_ms)
        for neighbour in list(self.membership.table.neighbours.values()):
            if neighbour is not sender:
                self._tell_absent(neighbour, news)

    def _update_population(self) -> None:
        self.membership.diameter.resize(self.roster.population())

    def _on_shutdown(self, sender: Neighbour | None, word: ShutdownStmt, now_ms: int) -> None:
        """The channel is being shut down: pass the first word on, and go."""
        if self.departure.shut_down(now_ms):
            self._out.append(Trace("shutdown", (("asked-of", word.requester.address),)))
            self.membership.links.send_all(word, but=sender)
            self.membership.links.leaving = True

    def _leave(self, now_ms: int) -> None:
        if self.departure.of_channel:
            self.membership.links.drop_all()
        else:
            self._beacon(now_ms, leaving=True)
            self.membership.joining.leave()
        self._run_events(now_ms)
        self._out.append(Left())
        self.over = True
