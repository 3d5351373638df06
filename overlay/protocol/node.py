"""The node: composes the machines of all rooms, and routes inputs, messages, timers and events to them.

`outputs = node.handle(input, now_ms)`; the driver performs the outputs in order. Handlers run to completion, never
wait and never fail because of a peer: what a peer does wrong costs it its connection and changes nothing else
(guarantee 8). Machines of different rooms do not know each other. What one of them has to tell the others comes back
here as an event (`NeighbourUp`, `Accepted`, ...); what takes several of them is done by a composer.

Reason: the file is long because the tables and their imports are a third of it. They stay beside the handlers that take
several rooms, which nobody but the node may call.

    Context         what all machines share: identity, settings, timers, outputs, calls, neighbours
    Membership      Links, Joining, Edges, Holes, Swaps, Merging: who is a neighbour
    Roster          who else is on the channel
    Dissemination   Ordering, Spreading, Repair, Past: what travels
    Publishing      CommitMachine, Acks: what this node adds to it
    Selection       composer: Interest, Routing, Selective: who wants what, and rows that go to them alone
    Connections     composer: what begins and ends with a connection
    Arrival         composer: from the start of this node until it may publish
    Liveness        composer: heartbeats, beacons, failures
    Lookout         composer: other components, weak places of the graph
    Departure       composer: when it goes

Three tables say what is handled where: inputs, messages and timers. Every kind of input, message and timer is in one of
them. A message that is not allowed where it came, on a link or on another call, is a violation by the peer.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, assert_never, get_args

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol import effects
from m4cast.overlay.protocol.arrival import Arrival
from m4cast.overlay.protocol.calls import Call, Calls, CallTimeout
from m4cast.overlay.protocol.clocks import Clocks
from m4cast.overlay.protocol.connections import Connections
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.departure import Departure, LeaveDue
from m4cast.overlay.protocol.effects import Append, Input, Left, Output, Recovered, RolledBack, Trace, WakeAt
from m4cast.overlay.protocol.finding.seeking import SeekDue
from m4cast.overlay.protocol.floods import Floods
from m4cast.overlay.protocol.holdings import Holdings
from m4cast.overlay.protocol.interest.interest import Interest
from m4cast.overlay.protocol.interest.timers import ActiveAskDue, ActiveMergeDue, InterestDue, InterestSweepDue
from m4cast.overlay.protocol.liveness import HeartbeatDue, Liveness
from m4cast.overlay.protocol.lookout import FlipDue, Lookout
from m4cast.overlay.protocol.membership.links import BecameFull, Isolated, LinkEvent, NeighbourDown, NeighbourUp
from m4cast.overlay.protocol.membership.membership import Membership
from m4cast.overlay.protocol.membership.timers import MembershipTimer
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.publishing.publishing import Publishing, PublishingTimer
from m4cast.overlay.protocol.roster.roster import BeaconDue, Roster
from m4cast.overlay.protocol.selection.recovery import broadcast_part
from m4cast.overlay.protocol.selection.selection import Selection
from m4cast.overlay.protocol.selective.selective import SelectiveTimer
from m4cast.overlay.protocol.streams.dissemination import Dissemination
from m4cast.overlay.protocol.streams.ordering import Accepted, OrderingEvent, Persisted
from m4cast.overlay.protocol.streams.timers import StreamTimer
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.protocol.wire import messages
from m4cast.overlay.protocol.wire.batch import BatchFrame, How
from m4cast.overlay.protocol.wire.interest import (
    InterestAskStmt,
    InterestDigestStmt,
    InterestNewsStmt,
    InterestVersionsStmt,
)
from m4cast.overlay.protocol.wire.selective import KEEPERS_MAX, RoutedFrame, WireFrame


class Handling(NamedTuple):
    """The handler of one kind of message. None: such a message is a violation there."""

    on_link: Callable[[Neighbour, Any, int], None] | None
    """It came from a neighbour, on its link."""
    on_call: Callable[[Call, Any, int], None] | None
    """It came on a connection that is not a link."""
    by_caller: bool = False
    """True if only the node that dialled a call may send it there: a node that is called and wants something dials."""


class Node:
    def __init__(self, recovered: Recovered, cluster: ClusterConfig, config: NodeConfig, random: Random) -> None:
        me = Contact(recovered.node_id, config.advertised)
        context = Context(me, recovered.incarnation, cluster, config, random)
        self.over = False
        """Left, or found to be rolled back: nothing more comes out."""
        self._context = context
        self._events: deque[LinkEvent | OrderingEvent] = deque()
        self._durable_token = 0
        self._failed_through = 0
        self._wake_at: int | None = None
        floods = Floods(context)
        flooded = broadcast_part(recovered)
        self.holdings = Holdings(flooded.streams)
        self.membership = Membership(context, floods, self._events.append)
        self.roster = Roster(context, recovered)
        self.dissemination = Dissemination(context, flooded, self.holdings, floods, self._recover, self._events.append)
        self.publishing = Publishing(context, recovered, self.holdings, self.dissemination.spreading.spread)
        self.arrival = Arrival(context, recovered, self.membership, self.roster, self.dissemination, self.publishing)
        self.selection = Selection(
            context, recovered, self.roster, self.publishing, self.dissemination.past.heard_own_interest
        )
        self.liveness = Liveness(
            context, self.membership, self.roster, self.dissemination, self.publishing, self.selection
        )
        self.interest.hooks.activated = self.liveness.version_wanted
        self.connections = Connections(
            context, self.membership, self.roster, self.dissemination, self.arrival, self.liveness
        )
        self.lookout = Lookout(context, self.membership, self.roster)
        self.departure = Departure(context.timers)
        self._inputs = self._input_table()
        self._messages = self._message_table()
        self._timers = self._timer_table()

    def _recover(self, append: Append) -> Append:
        return self.publishing.commits.recover(append)

    @property
    def me(self) -> Contact:
        return self._context.me

    @property
    def incarnation(self) -> int:
        return self._context.incarnation

    @property
    def interest(self) -> Interest:
        return self.selection.interest

    @property
    def calls(self) -> Calls:
        return self._context.calls

    @property
    def clocks(self) -> Clocks:
        return self._context.clocks

    # ---- the one verb

    def handle(self, event: Input, now_ms: int) -> list[Output]:
        if self.over:
            return []
        self._inputs[type(event)](event, now_ms)
        if self._events:
            self._run_events(now_ms)
        out = self._context.out
        if self.dissemination.past.rolled_back:
            out.append(RolledBack(self.dissemination.past.rolled_back))
            self.over = True
        else:
            self._end_of_input(now_ms)
        outputs = list(out)
        out.clear()
        return outputs

    def _end_of_input(self, now_ms: int) -> None:
        """Run what waits for the end of an input. Most inputs produce no follow-up work, so each check is guarded."""
        if self.publishing.queue:
            self.publishing.run_queue(now_ms)
        if self.dissemination.acks_due:
            self.dissemination.send_acks()
        if self.membership.links.list_changed:
            self.membership.flush()
        if self.departure.begun and self.departure.is_due(
            self._handed_over, not self._context.table.neighbours, now_ms
        ):
            self._leave(now_ms)
            return
        wake_at = self._context.timers.next_at()
        if wake_at is not None and wake_at != self._wake_at:
            self._context.out.append(WakeAt(wake_at))
        self._wake_at = wake_at

    # ---- the tables

    def _input_table(self) -> dict[type[Input], Callable[[Any, int], None]]:
        publishing, spreading = self.publishing, self.dissemination.spreading
        return {
            effects.Received: self._received,
            effects.Wake: self._wake,
            effects.Durable: self._durable,
            effects.AppendFailed: self._append_failed,
            effects.RangeRead: lambda read, _: spreading.range_read(read.token, read.batches, read.following),
            effects.Damaged: self._damaged,
            effects.Trimmed: self._trimmed,
            effects.SelectedRead: self.selection.read,
            effects.TimesFound: self.selection.found,
            effects.StoreFull: lambda store, _: setattr(publishing, "store_full", store.is_full),
            effects.Connected: lambda end, now_ms: self.calls.connected(end.conn, now_ms, end.peer_name),
            effects.Disconnected: self.connections.disconnected,
            effects.DialFailed: self.connections.disconnected,
            effects.FrameProgress: self.connections.frame_progress,
            effects.LinkBlocked: self._link_blocked,
            effects.LinkReady: self._link_ready,
            effects.Publish: self._publish,
            effects.Commit: self._publish,
            effects.Stage: publishing.stage,
            effects.Abort: publishing.abort,
            effects.RemoveKey: publishing.remove_key,
            effects.Disown: publishing.disown,
            effects.Subscribe: self.interest.subscribe,
            effects.Unsubscribe: self.interest.unsubscribe,
            effects.CreateTopic: self.selection.create_topic,
            effects.WaitActive: self.selection.confirmations.wait,
            effects.AnnounceClients: self.interest.announce_clients,
            effects.Restore: self.dissemination.filling.restore,
            effects.ImportBatch: self.dissemination.import_batch,
            effects.ImportBegin: self.dissemination.import_begin,
            effects.OpenGates: self.selection.open_gates,
            effects.CameAcross: self.selection.came_across,
            effects.Forget: self._forget,
            effects.ClockSet: lambda clock, _: setattr(self.clocks, "offset_ms", clock.offset_ms),
            effects.Start: self._start,
            effects.Drain: lambda drain, _: setattr(self.departure, "draining", drain.begin),
            effects.Leave: lambda _, now_ms: self.departure.leave(now_ms),
            effects.Shutdown: lambda _, now_ms: self._shut_down(None, messages.ShutdownStmt(self.me), now_ms),
        }

    def _message_table(self) -> dict[type[WireFrame], Handling]:
        arrival, connections, liveness = self.arrival, self.connections, self.liveness
        members, streams = self.membership, self.dissemination
        return {
            BatchFrame: Handling(streams.on_batch, streams.on_holder_batch),
            messages.Hello: Handling(None, connections.on_hello),
            messages.RefusedStmt: Handling(connections.on_link_refused, connections.on_refused),
            messages.Heartbeat: Handling(streams.on_heartbeat, streams.on_requester_heartbeat),
            # Arriving
            messages.SeekingConnectionCall: Handling(None, arrival.on_seeking_call, by_caller=True),
            messages.SeekingConnectionResp: Handling(None, arrival.on_seeking_answer),
            messages.ConnectedStmt: Handling(None, arrival.on_connected),
            messages.ConnectionRequestCall: Handling(None, arrival.on_connection_request, by_caller=True),
            messages.ConnectionRequestResp: Handling(None, arrival.on_connection_answer),
            messages.HeldCall: Handling(arrival.on_neighbours_held_call, arrival.on_held_call, by_caller=True),
            messages.HeldResp: Handling(arrival.on_neighbours_held_answer, arrival.on_held_answer),
            messages.HoldingsStmt: Handling(arrival.on_holdings, None),
            # The graph
            messages.PortConnectionCall: Handling(None, members.joining.on_port_connection, by_caller=True),
            messages.PortConnectionResp: Handling(None, members.joining.on_answer),
            messages.EdgeProposalCall: Handling(None, members.edges.on_proposal, by_caller=True),
            messages.EdgeProposalResp: Handling(None, members.edges.on_answer),
            messages.MergeCall: Handling(None, members.merging.on_merge, by_caller=True),
            messages.MergeResp: Handling(None, members.merging.on_answer),
            messages.SwapCall: Handling(None, members.swaps.on_swap, by_caller=True),
            messages.SwapResp: Handling(None, members.on_swap_answer),
            messages.EdgeSearchCall: Handling(self._meeting(members.edges.on_search), None),
            messages.EdgeSearchResp: Handling(members.edges.on_response, None),
            messages.PortSearchStmt: Handling(self._meeting(members.on_port_search), None),
            messages.NeighboursStmt: Handling(members.on_neighbours, None),
            messages.DiameterEstimateStmt: Handling(members.on_diameter, None),
            messages.DisconnectStmt: Handling(members.joining.on_disconnect, None),
            messages.DropStmt: Handling(members.on_drop, None),
            messages.ApartStmt: Handling(self._on_apart, None),
            # Which nodes are present
            messages.BeaconStmt: Handling(liveness.on_beacon, None),
            messages.FailedStmt: Handling(liveness.on_failed, None),
            messages.AbsentStmt: Handling(liveness.on_absent, None),
            messages.ShutdownStmt: Handling(self._shut_down, None),
            # Rows
            messages.SummaryStmt: Handling(self._on_summary, None),
            messages.AnnounceStmt: Handling(streams.on_announce, None),
            messages.FrontierStmt: Handling(streams.on_frontier, None),
            messages.PruneStmt: Handling(streams.on_prune, None),
            messages.PullCall: Handling(streams.on_pull, streams.on_requester_pull),
            messages.PullResp: Handling(streams.on_pull_answer, streams.on_holder_answer),
            messages.HolderSearchStmt: Handling(streams.holders.on_search, None),
            messages.HolderFoundStmt: Handling(None, streams.on_holder_found),
            messages.AckStmt: Handling(self.publishing.on_ack, None),
            # Who wants what
            InterestDigestStmt: Handling(self.interest.on_digest, None),
            InterestVersionsStmt: Handling(self.interest.on_versions, None),
            InterestAskStmt: Handling(self.interest.on_ask, None),
            InterestNewsStmt: Handling(self.interest.on_news, None),
            RoutedFrame: Handling(self.selection.routing.on_frame, None),
        }

    def _timer_table(self) -> dict[type[Timer], Callable[[Any, int], None]]:
        return {
            **dict.fromkeys(get_args(MembershipTimer), self.membership.timer),
            **dict.fromkeys(get_args(StreamTimer), self._stream_timer),
            **dict.fromkeys(get_args(PublishingTimer), self.publishing.timer),
            **dict.fromkeys(get_args(SelectiveTimer), self.selection.timer),
            CallTimeout: self.connections.timed_out,
            HeartbeatDue: self._heartbeat,
            BeaconDue: self._beacon,
            SeekDue: lambda _, now_ms: self.arrival.seek(now_ms),
            FlipDue: self.lookout.flip_due,
            InterestDue: lambda _, now_ms: self.interest.due(now_ms),
            InterestSweepDue: lambda _, now_ms: self.liveness.sweep_interest(now_ms),
            ActiveAskDue: lambda _, now_ms: self.selection.confirmations.ask_due(now_ms),
            ActiveMergeDue: lambda _, now_ms: self.selection.confirmations.merge_due(now_ms),
            LeaveDue: lambda _, now_ms: None,  # looked at after every input
        }

    # ---- inputs

    def _start(self, _: effects.Start, now_ms: int) -> None:
        self.liveness.start(now_ms)
        self.publishing.start(now_ms)
        self.dissemination.past.start(now_ms)
        self.lookout.start(now_ms)
        self.selection.start(now_ms)
        self.arrival.seek(now_ms)

    def _wake(self, _: effects.Wake, now_ms: int) -> None:
        self._wake_at = None
        while (timer := self._context.timers.pop_due(now_ms)) is not None:
            self._timers[type(timer)](timer, now_ms)
            self._run_events(now_ms)

    def _durable(self, durable: effects.Durable, now_ms: int) -> None:
        for token in range(self._durable_token + 1, durable.token + 1):
            self.dissemination.durable(token, now_ms)
            self.publishing.durable(token, now_ms)
            if self.selection.interest.is_active:
                self.selection.durable(token, now_ms)
        self._durable_token = max(self._durable_token, durable.token)

    def _append_failed(self, failed: effects.AppendFailed, now_ms: int) -> None:
        # A later report of the same failure is an echo: the first undid all that was asked for till then.
        if failed.token > self._failed_through:
            self._failed_through = self._context.last_token
            self.publishing.failed(failed.token, failed.reason, now_ms)
            self.dissemination.failed(failed.token, now_ms)
            self.selection.failed(failed.token, failed.reason, now_ms)

    def _link_blocked(self, link: effects.LinkBlocked, _now_ms: int) -> None:
        self.dissemination.spreading.blocked(link.conn)
        if self.interest.is_active:
            self.selection.blocked(link.conn)

    def _link_ready(self, link: effects.LinkReady, now_ms: int) -> None:
        self.dissemination.spreading.ready(link.conn, now_ms)
        if self.interest.is_active:
            self.selection.ready(link.conn)

    def _damaged(self, damaged: effects.Damaged, now_ms: int) -> None:
        if not self.selection.damaged(damaged, now_ms):
            self.dissemination.repair.found(damaged, now_ms)

    def _trimmed(self, trimmed: effects.Trimmed, _now_ms: int) -> None:
        if self.holdings.get(trimmed.stream) is not None:
            self.holdings.trim(trimmed.stream, trimmed.low)

    def _forget(self, forget: effects.Forget, _now_ms: int) -> None:
        if not self.selection.answers.forget(forget.request):
            self.publishing.forget(forget.request)

    def _handed_over(self) -> bool:
        return self.publishing.handed_over() and self.selection.is_handed_over(1)

    def is_drained(self) -> bool:
        """True if no client waits for an answer, and own rows of selective topics are handed over."""
        return self.publishing.is_idle() and self.selection.is_handed_over(KEEPERS_MAX)

    def _publish(self, request: effects.Publish | effects.Commit, now_ms: int) -> None:
        why = self.why_no_publishes()
        if why is None and self.publishing.commits.spreads:
            why = self.selection.why_no_publish(request, now_ms)
        if why is not None:
            self._context.out.append(effects.Refused(request.request, *why))
        else:
            self.publishing.take(request)

    def why_no_publishes(self) -> tuple[str, str] | None:
        """Code and detail of the refusal that every publish meets now; None when they are taken."""
        if (refusal := self.departure.why_no_publishes() or self.publishing.why_full()) is not None:
            return refusal
        if (unready := self.arrival.why_not_ready()) is not None:
            return "not-ready", unready
        return None

    # ---- events

    def _run_events(self, now_ms: int) -> None:
        while self._events:
            event = self._events.popleft()
            match event:
                case Accepted(stream, frame):
                    self.dissemination.spreading.spread(stream, frame, now_ms)
                    if frame.how is How.PUSHED:
                        self.membership.assess_distance(frame.hops)
                case Persisted(stream):
                    self.dissemination.persisted(stream)
                case NeighbourUp(neighbour):
                    self._neighbour_up(neighbour, now_ms)
                case NeighbourDown(neighbour, why):
                    self._neighbour_down(neighbour, why, now_ms)
                case BecameFull():
                    self._context.out.append(Trace("full", ()))
                    self.arrival.seeking.notify_fellows(now_ms)
                    self.liveness.first_beacon(now_ms)
                case Isolated():
                    self.arrival.seek_soon(now_ms)
                case _:
                    assert_never(event)

    def _neighbour_up(self, neighbour: Neighbour, now_ms: int) -> None:
        self.arrival.seeking.stop()
        self.roster.passive.meet(neighbour.contact, now_ms)
        self.publishing.acks.neighbour_up(neighbour.contact.node_id, now_ms)
        self.dissemination.link_up(neighbour)
        self.liveness.neighbour_up(neighbour, now_ms)
        if self.interest.is_active:
            self.interest.link_up(neighbour)
            self.liveness.beacon_soon(now_ms)
        self._context.out.append(Trace("neighbour-up", (("peer", neighbour.contact.address),)))

    def _neighbour_down(self, neighbour: Neighbour, why: str, now_ms: int) -> None:
        node_id = neighbour.contact.node_id
        self.publishing.acks.neighbour_down(node_id, is_gone=not self.roster.is_present(node_id, now_ms))
        self.dissemination.connection_down(node_id, neighbour.conn, now_ms)
        self.dissemination.past.connection_over(neighbour.conn, now_ms)
        self.liveness.neighbour_down(neighbour, why, now_ms)
        if self.interest.is_active:
            self.selection.link_down(neighbour)
            self.liveness.beacon_soon(now_ms)

    # ---- connections

    def _received(self, received: effects.Received, now_ms: int) -> None:
        call = self._context.calls.get(received.conn)
        if call is None:
            return
        message = received.message
        handling = self._messages[type(message)]
        try:
            if call.is_link:
                assert call.peer is not None
                neighbour = self._context.table.neighbours[call.peer.node_id]
                neighbour.heard_at_ms = now_ms
                if handling.on_link is None:
                    raise RemoteProtocolError(f"{type(message).__name__} is not for a link")
                handling.on_link(neighbour, message, now_ms)
                return
            if call.peer is None and not isinstance(message, messages.Hello | messages.RefusedStmt):
                raise RemoteProtocolError("the first message must be a hello")
            if call.purpose is not None and handling.by_caller:
                raise RemoteProtocolError(f"{type(message).__name__} is for the one who called")
            if handling.on_call is None:
                raise RemoteProtocolError(f"{type(message).__name__} is for neighbours only")
            handling.on_call(call, message, now_ms)
        except RemoteProtocolError as error:
            self.calls.refuse(call, "protocol", str(error))
            self.connections.over(call, "violation", now_ms)
            return
        if self.calls.get(call.conn) is None:
            # Whoever closed it was not necessarily the one who wanted something of it.
            self.connections.forget(call, now_ms)

    # ---- what takes machines of several rooms

    def _meeting(self, handle: Callable[[Neighbour, Any, int], None]) -> Callable[[Neighbour, Any, int], None]:
        """The message names a node that the passive list may remember."""

        def met(sender: Neighbour, search: messages.EdgeSearchCall | messages.PortSearchStmt, now_ms: int) -> None:
            self.roster.passive.meet(search.requester, now_ms)
            handle(sender, search, now_ms)

        return met

    def _on_apart(self, _sender: Neighbour, apart: messages.ApartStmt, now_ms: int) -> None:
        self.membership.merging.on_apart(apart, self.roster.hears, now_ms)

    def _on_summary(self, sender: Neighbour, summary: messages.SummaryStmt, _now_ms: int) -> None:
        self.dissemination.on_summary(sender, summary, self.roster.as_seen(sender.contact.node_id))

    def _stream_timer(self, timer: StreamTimer, now_ms: int) -> None:
        self.dissemination.timer(timer, self.roster.expected, now_ms)

    def _heartbeat(self, due: HeartbeatDue, now_ms: int) -> None:
        self._context.timers.set(due, now_ms + self._context.cluster.heartbeat_interval_ms)
        self.lookout.look_beyond(now_ms)
        self.lookout.look_for_absent(now_ms)
        self.liveness.heartbeat(now_ms)

    def _beacon(self, _: BeaconDue, now_ms: int) -> None:
        self.liveness.beacon(now_ms)
        self.arrival.ask_again(now_ms)
        self.lookout.look_for_strangers(self.arrival.seeking.portals, now_ms)
        self.lookout.look_for_weakness(now_ms)

    def _shut_down(self, sender: Neighbour | None, word: messages.ShutdownStmt, now_ms: int) -> None:
        """The channel is being shut down: pass the first word on, and go."""
        if self.departure.shut_down(now_ms):
            self._context.out.append(Trace("shutdown", (("asked-of", word.requester.address),)))
            self.membership.links.send_all(word, but=sender)
            self.membership.links.leaving = True

    def _leave(self, now_ms: int) -> None:
        if self.departure.of_channel:
            self.membership.links.drop_all()
        else:
            self.liveness.beacon(now_ms, leaving=True)
            self.membership.joining.leave()
        self._run_events(now_ms)
        self._context.out.append(Left())
        self.over = True
