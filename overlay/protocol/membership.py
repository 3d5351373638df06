"""Membership: how a node becomes and stays one of an m-regular graph (guarantee 1; seed-swan 1.5-1.8, 1.10).

Small regime (at most `degree` nodes, a complete graph): a portal with a hole takes the newcomer itself, and a
flooded port search brings it every other node that has one. Large regime: the portal starts one random walk per
pair of the newcomer's holes; the node where a walk ends offers the edge on which it came (u-v), the newcomer Z
takes it, and u-v becomes u-Z-v. Every old node keeps its degree.

A link exists exactly as long as its connection. It is agreed by one question and one answer, and every answer is
given at once, so nobody waits for anybody who waits: what clashes is refused, and whoever is refused tries again
later. When two nodes ask each other, the question of the smaller id stands.

Holes are filled in this order: a port search over few hops, then over more, then over all; then by an edge: two
holes of one node by a walk for itself, one hole each of two nodes that are neighbours already ("neighbours with
empty ports") by a walk for the pair, which turns an edge u-v into a-u and b-v. Such an edge always exists in a
graph of degree + 2 nodes or more (PROTOCOL.md, holes).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log
from random import Random

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.calls import Call, Calls
from m4cast.overlay.protocol.effects import Output, Send, Trace
from m4cast.overlay.protocol.messages import (
    ConnectionRequestCall,
    ConnectionRequestResp,
    DiameterEstimateStmt,
    DisconnectStmt,
    DropStmt,
    EdgeProposalCall,
    EdgeProposalResp,
    EdgeSearchCall,
    EdgeSearchResp,
    MergeCall,
    MergeResp,
    Message,
    NeighboursStmt,
    PortConnectionCall,
    PortConnectionResp,
    PortSearchStmt,
    RosterEntry,
    SeekingConnectionCall,
    SeekingConnectionResp,
)
from m4cast.overlay.protocol.neighbours import Neighbour, NeighbourTable, State
from m4cast.overlay.protocol.timers import TimerKey, Timers

SEARCH_RINGS = (2, 5, 255)
"""Hops of the successive port searches. After a mass failure somebody with a hole is two hops away (measured), so
the whole channel is flooded only by a hole that is alone."""
WALK_SLACK_STEPS = 32
"""Steps a walk may take beyond its distance while it looks for an edge that can be offered; guess."""
HOLES_BACKOFF_MS_MAX = 60_000
"""A hole that nobody can fill (odd degree, odd N) is searched for this seldom; guess."""
DIAMETER_MAX = 64


@dataclass(frozen=True, slots=True)
class Court:
    """Purpose of a call: be my neighbour, I have a hole."""

    contact: Contact


@dataclass(frozen=True, slots=True)
class Propose:
    """Purpose of a call: offer the edge to `neighbour` to the requester of `walk`."""

    walk: EdgeSearchCall
    neighbour: NodeId


@dataclass(frozen=True, slots=True)
class Merge:
    """Purpose of a call: join another component, if it is one."""


@dataclass(frozen=True, slots=True)
class NeighbourUp:
    neighbour: Neighbour


@dataclass(frozen=True, slots=True)
class NeighbourDown:
    neighbour: Neighbour
    why: str


@dataclass(frozen=True, slots=True)
class BecameFull:
    pass


@dataclass(frozen=True, slots=True)
class Isolated:
    """The last neighbour is gone: seek the channel again."""


MembershipEvent = NeighbourUp | NeighbourDown | BecameFull | Isolated


class Membership:
    def __init__(
        self,
        me: Contact,
        cluster: ClusterConfig,
        config: NodeConfig,
        random: Random,
        calls: Calls,
        timers: Timers,
        out: list[Output],
        tell: Callable[[MembershipEvent], None],
    ) -> None:
        self.me = me
        self.state = State.SEEKING
        self.table = NeighbourTable(me.node_id, cluster.degree)
        self.diameter = 1
        self.population = 1
        """How many nodes the roster knows: caps the diameter estimate."""
        self.leaving = False
        self._cluster = cluster
        self._config = config
        self._random = random
        self._calls = calls
        self._timers = timers
        self._out = out
        self._tell = tell
        self._expected_holes = 0
        self._search = 0
        self._seen_searches: dict[tuple[NodeId, int], None] = {}
        self._proposing: dict[NodeId, int] = {}  # requester -> connection of the proposal
        self._ring = 0
        self._rounds = 0
        self._list_changed = False

    # ---- links

    def _add(self, call: Call, now_ms: int) -> None:
        assert call.peer is not None and not call.is_link
        peer = call.peer
        assert peer.node_id not in self.table.neighbours and self.table.holes() > 0
        self.table.courting.pop(peer.node_id, None)
        self.table.pending.pop(peer.node_id, None)
        neighbour = Neighbour(peer, call.conn, call.incarnation, now_ms)
        self.table.neighbours[peer.node_id] = neighbour
        self._calls.promote(call)
        self._list_changed = True
        self._tell(NeighbourUp(neighbour))
        if self.state is State.SEEKING:
            self.state = State.PARTIAL
            self._timers.set(("full",), now_ms + 2 * self._config.walk_timeout_ms)
        self._check_full()
        if self.table.free_holes() > 0:
            self._timers.set_sooner(("holes",), now_ms + self._jitter(self._config.search_wait_ms))

    def _remove(self, neighbour: Neighbour, why: str, now_ms: int) -> None:
        node_id = neighbour.contact.node_id
        del self.table.neighbours[node_id]
        self.table.reserved.pop(node_id, None)
        for far, near in list(self.table.pending.items()):
            if near == node_id:  # who brought the far end is gone; so is its word that it comes
                del self.table.pending[far]
        self._list_changed = True
        self._tell(NeighbourDown(neighbour, why))
        self._rounds = self._ring = 0
        if not self.table.neighbours:
            if not self.leaving:
                self.state = State.SEEKING
                self._tell(Isolated())
        else:
            self._timers.set_sooner(("holes",), now_ms + self._jitter(50))

    def _drop_link(self, neighbour: Neighbour, why: str, now_ms: int) -> None:
        self._remove(neighbour, why, now_ms)
        self._calls.close(neighbour.conn)

    def _check_full(self) -> None:
        if self.state is State.FULL or not self.table.neighbours:
            return
        if self.table.holes() <= self._expected_holes or self.table.complete():
            self._become_full()

    def _become_full(self) -> None:
        if self.state is not State.FULL:
            self.state = State.FULL
            self._timers.cancel(("full",))
            self._tell(BecameFull())

    def found_channel(self) -> None:
        """I am the first: fully connected, with nobody."""
        self._become_full()

    def link_lost(self, neighbour: Neighbour, why: str, now_ms: int) -> None:
        self._out.append(Trace("link-lost", (("peer", neighbour.contact.address), ("why", why))))
        self._remove(neighbour, why, now_ms)

    def link_silent(self, neighbour: Neighbour, now_ms: int) -> None:
        self.link_lost(neighbour, "silent", now_ms)
        self._calls.close(neighbour.conn)

    def flush(self) -> None:
        """At the end of each input: tell a changed list of neighbours once, however many changes made it."""
        if self._list_changed:
            self._list_changed = False
            statement = NeighboursStmt(tuple(self.table.neighbours))
            for neighbour in self.table.neighbours.values():
                self._out.append(Send(neighbour.conn, statement))
            if self.table.complete():
                self.diameter = 1

    def _jitter(self, span_ms: int) -> int:
        return span_ms // 2 + self._random.randrange(span_ms // 2 + 1)

    # ---- calls that I made

    def call_ready(self, call: Call, now_ms: int) -> bool:
        """The peer said hello on a call that membership dialled; False when the purpose is not ours."""
        match call.purpose:
            case Court():
                message: Message = PortConnectionCall()
            case Propose(walk, neighbour):
                linked = self.table.neighbours.get(neighbour)
                if linked is None:
                    self._call_over(call, now_ms)
                    return True
                message = EdgeProposalCall(walk.search, linked.contact, walk.partner.node_id)
            case Merge():
                assert call.peer is not None
                if self.table.knows(call.peer.node_id) or call.peer.node_id in self._proposing:
                    self._calls.close(call.conn)
                    return True
                self.table.courting[call.peer.node_id] = call.conn
                message = SeekingConnectionCall()
            case _:
                return False
        self._out.append(Send(call.conn, message))
        return True

    def call_failed(self, call: Call, now_ms: int) -> None:
        """A call ended before its purpose was reached: not answered, timed out, or the peer hung up."""
        match call.purpose:
            case Court(contact):
                if self.table.courting.get(contact.node_id) == call.conn:
                    del self.table.courting[contact.node_id]
                    self._timers.set_sooner(("holes",), now_ms + self._jitter(self._config.search_wait_ms))
            case Propose(walk, neighbour):
                if self._proposing.get(walk.requester.node_id) == call.conn:
                    del self._proposing[walk.requester.node_id]
                    self._edge_refused(walk, neighbour, search_on=False, now_ms=now_ms)
            case _:
                if call.peer is not None and self.table.courting.get(call.peer.node_id) == call.conn:
                    del self.table.courting[call.peer.node_id]

    def _call_over(self, call: Call, now_ms: int) -> None:
        self.call_failed(call, now_ms)
        self._calls.close(call.conn)

    def _court(self, contact: Contact, now_ms: int) -> None:
        self.table.courting[contact.node_id] = self._calls.dial(contact.address, Court(contact), now_ms, contact)

    def _gives_way(self, peer: NodeId) -> bool:
        """We ask each other at the same moment: the smaller id's question stands. True when mine is withdrawn."""
        mine = self.table.courting.get(peer)
        if mine is None:
            return True
        if self.me.node_id < peer:
            return False
        del self.table.courting[peer]
        self._calls.close(mine)
        return True

    def _forget_stale(self, call: Call, now_ms: int) -> bool:
        """A neighbour that calls as a stranger in a later incarnation has restarted: its old link is dead."""
        assert call.peer is not None
        old = self.table.neighbours.get(call.peer.node_id)
        if old is None:
            return True
        if call.incarnation > old.incarnation:
            self._drop_link(old, "restarted", now_ms)
            return True
        return False

    # ---- external messages

    def handle_call(self, call: Call, message: Message, roster: tuple[RosterEntry, ...], now_ms: int) -> bool:
        """A message on a call that is not a link; False when it is not for membership."""
        match message:
            case ConnectionRequestCall(holes):
                self._on_connection_request(call, holes, roster, now_ms)
            case ConnectionRequestResp():
                self._on_connection_response(call, message, now_ms)
            case PortConnectionCall():
                self._on_port_connection(call, now_ms)
            case PortConnectionResp(accepted):
                self._on_answer(call, accepted, Court, now_ms)
            case EdgeProposalCall():
                self._on_edge_proposal(call, message, now_ms)
            case EdgeProposalResp(accepted, search_on):
                self._on_edge_answer(call, accepted, search_on, now_ms)
            case MergeCall():
                self._on_merge(call, now_ms)
            case MergeResp(accepted):
                self._on_answer(call, accepted, Merge, now_ms)
            case _:
                return False
        return True

    def request_connection(self, call: Call) -> None:
        """I am seeking and `call` answered that it is on the channel: ask it to bring me in."""
        assert call.peer is not None
        if self.table.knows(call.peer.node_id):
            self._calls.close(call.conn)
            return
        self.table.courting[call.peer.node_id] = call.conn
        self._out.append(Send(call.conn, ConnectionRequestCall(self.table.degree - len(self.table.neighbours))))

    def _on_connection_request(self, call: Call, holes: int, roster: tuple[RosterEntry, ...], now_ms: int) -> None:
        """Routine 16. The regime is decided before the caller is taken (8.1)."""
        assert call.peer is not None
        peer = call.peer
        known = self.table.neighbours.get(peer.node_id)
        if known is not None:  # who asks to be brought in has no links: mine to it is dead, it just does not know
            self._drop_link(known, "asks again", now_ms)
        if self.state is not State.FULL or self.leaving or not self._gives_way(peer.node_id):
            self._calls.refuse(call, "busy", "this node is not on the channel itself now: ask another portal")
            return
        small = self.table.complete() and self.table.holes() > 0
        ready = self.table.has_room_for(peer.node_id)
        expected = self.table.holes() - 1 if small else self.table.degree % 2
        self._out.append(Send(call.conn, ConnectionRequestResp(expected, self.diameter, ready, roster)))
        if ready:
            self._add(call, now_ms)
            holes -= 1
        if not (small and ready):
            for _ in range(min(holes, self.table.degree) // 2):
                self._start_walk(peer, peer, now_ms)

    def _on_connection_response(self, call: Call, resp: ConnectionRequestResp, now_ms: int) -> None:
        assert call.peer is not None
        if self.table.courting.pop(call.peer.node_id, None) != call.conn:
            self._calls.close(call.conn)
            return
        self.diameter = max(1, min(resp.diameter, DIAMETER_MAX))
        self._expected_holes = max(0, min(resp.expected_holes, self.table.degree - 1))
        if resp.ready and self.table.free_holes() > 0:
            self._add(call, now_ms)
            if not self.table.complete():
                self._timers.set_sooner(("holes",), now_ms)  # routine 1617: now those with a hole court me
        else:
            self._calls.close(call.conn)
        # Walks are under way for me: give them time before I search on my own.
        if not resp.ready:
            self._timers.set(("holes",), now_ms + self._config.walk_timeout_ms)

    def _on_port_connection(self, call: Call, now_ms: int) -> None:
        """Routine 20."""
        assert call.peer is not None
        peer = call.peer.node_id
        accepted = (
            self._forget_stale(call, now_ms)
            and not self.leaving
            and self.state is not State.SEEKING
            and peer not in self._proposing
            and self._gives_way(peer)
            and self.table.has_room_for(peer)
        )
        self._out.append(Send(call.conn, PortConnectionResp(accepted)))
        if accepted:
            self._add(call, now_ms)
        else:
            self._calls.close(call.conn)

    def _on_answer(self, call: Call, accepted: bool, purpose: type[Court] | type[Merge], now_ms: int) -> None:
        """The answer to my question to be neighbours."""
        assert call.peer is not None
        if not isinstance(call.purpose, purpose) or self.table.courting.get(call.peer.node_id) != call.conn:
            self._calls.close(call.conn)
            return
        if not accepted or self.leaving:
            self._call_over(call, now_ms)
            return
        del self.table.courting[call.peer.node_id]
        if self.table.holes() <= 0 and purpose is Merge:
            self._give_up_one(now_ms)
        if self.table.holes() > 0:
            self._add(call, now_ms)
        else:
            self._calls.close(call.conn)

    # ---- edge pinning

    def _start_walk(self, requester: Contact, partner: Contact, now_ms: int) -> None:
        self._search += 1
        distance = 2 * self.diameter
        walk = EdgeSearchCall(requester, partner, self._search, distance, distance + WALK_SLACK_STEPS)
        self._forward_walk(walk, distance, now_ms)

    def _forward_walk(self, walk: EdgeSearchCall, distance: int, now_ms: int) -> None:
        """Routine 18: to a random neighbour. Who may receive the end of the walk reserves the edge to it."""
        if walk.steps_left <= 0 or not self.table.neighbours:
            self._out.append(Trace("walk-ended", (("search", walk.search),)))
            return
        neighbour = self._random.choice(list(self.table.neighbours.values()))
        node_id = neighbour.contact.node_id
        if distance == 0 and (
            node_id in self.table.reserved or node_id in (walk.requester.node_id, walk.partner.node_id)
        ):
            distance = 1  # the toggle of 2805: this edge cannot be the last one
        if distance == 0:
            self.table.reserved[node_id] = walk.search
            self._timers.set(("reserved", node_id), now_ms + 2 * self._config.walk_timeout_ms)
        self._out.append(
            Send(
                neighbour.conn,
                EdgeSearchCall(walk.requester, walk.partner, walk.search, distance, walk.steps_left - 1),
            )
        )

    def _on_edge_search(self, sender: Neighbour, walk: EdgeSearchCall, now_ms: int) -> None:
        """Routine 28."""
        if walk.distance > 0:
            self._forward_walk(walk, walk.distance - 1, now_ms)
        elif self._can_offer(sender, walk):
            self._propose(sender, walk, now_ms)
        else:
            self._out.append(Send(sender.conn, EdgeSearchResp(walk.search, False, walk.partner)))
            self._forward_walk(walk, walk.steps_left % 2, now_ms)

    def _can_offer(self, sender: Neighbour, walk: EdgeSearchCall) -> bool:
        """The edge to `sender` can become requester-me and partner-sender."""
        asking = (walk.requester.node_id, walk.partner.node_id)
        far = sender.contact.node_id
        return (
            not self.leaving
            and self.me.node_id not in asking
            and far not in asking
            and far not in self.table.reserved
            and not self.table.knows(walk.requester.node_id)
            and walk.requester.node_id not in self._proposing
            and sender.its_neighbours is not None
            and walk.partner.node_id not in sender.its_neighbours
        )

    def _propose(self, sender: Neighbour, walk: EdgeSearchCall, now_ms: int) -> None:
        far = sender.contact.node_id
        self.table.reserved[far] = walk.search
        self._timers.set(("reserved", far), now_ms + 2 * self._config.walk_timeout_ms)
        purpose = Propose(walk, far)
        self._proposing[walk.requester.node_id] = self._calls.dial(
            walk.requester.address, purpose, now_ms, walk.requester
        )

    def _on_edge_proposal(self, call: Call, proposal: EdgeProposalCall, now_ms: int) -> None:
        """Routine 19: take the edge if it serves, and say so at once."""
        assert call.peer is not None
        near, far = call.peer.node_id, proposal.neighbour.node_id
        for_me_twice = proposal.partner == self.me.node_id
        wanted = self.table.free_holes() >= (2 if for_me_twice else 1) and not self.leaving
        clash = not self._forget_stale(call, now_ms) or self.table.knows(near) or near == far
        if for_me_twice:
            clash = clash or self.table.knows(far) or far == self.me.node_id
        accepted = wanted and not clash
        self._out.append(Send(call.conn, EdgeProposalResp(accepted, wanted and clash)))
        if not accepted:
            self._calls.close(call.conn)
            return
        if for_me_twice:
            self.table.pending[far] = near
            self._timers.set(("pending", far), now_ms + self._config.walk_timeout_ms)
        self._add(call, now_ms)

    def _on_edge_answer(self, call: Call, accepted: bool, search_on: bool, now_ms: int) -> None:
        """Second half of routine 28: the requester's word about the edge I offered."""
        assert call.peer is not None
        if (
            not isinstance(call.purpose, Propose)
            or self._proposing.pop(call.purpose.walk.requester.node_id, None) != call.conn
        ):
            self._calls.close(call.conn)
            return
        walk, far = call.purpose.walk, call.purpose.neighbour
        if not accepted:
            self._calls.close(call.conn)
            self._edge_refused(walk, far, search_on, now_ms)
            return
        neighbour = self.table.neighbours.get(far)
        if call.peer.node_id in self.table.neighbours or self.leaving:
            self._calls.close(call.conn)
            self._edge_refused(walk, far, False, now_ms)
            return
        if neighbour is not None:
            self._out.append(Send(neighbour.conn, EdgeSearchResp(walk.search, True, walk.partner)))
            # The new link replaces the old one in the same step, so the node is never without both.
            self._replace(neighbour, call, now_ms)
        elif self.table.free_holes() > 0:
            self._add(call, now_ms)
        else:
            self._calls.close(call.conn)

    def _replace(self, old: Neighbour, call: Call, now_ms: int) -> None:
        node_id = old.contact.node_id
        del self.table.neighbours[node_id]
        self.table.reserved.pop(node_id, None)
        self._tell(NeighbourDown(old, "pinned"))
        self._calls.close(old.conn)
        self._add(call, now_ms)

    def _edge_refused(self, walk: EdgeSearchCall, far: NodeId, search_on: bool, now_ms: int) -> None:
        if self.table.reserved.get(far) == walk.search:
            del self.table.reserved[far]
        neighbour = self.table.neighbours.get(far)
        if neighbour is not None:
            self._out.append(Send(neighbour.conn, EdgeSearchResp(walk.search, False, walk.partner)))
        if search_on:
            self._forward_walk(walk, walk.steps_left % 2, now_ms)

    def _on_edge_response(self, sender: Neighbour, resp: EdgeSearchResp, now_ms: int) -> None:
        """Routine 29: my edge to the sender was taken (court the partner now) or is free again."""
        node_id = sender.contact.node_id
        if self.table.reserved.get(node_id) == resp.search:
            del self.table.reserved[node_id]
        if not resp.accepted:
            return
        partner = resp.partner
        court = (
            partner.node_id != self.me.node_id
            and not self.table.knows(partner.node_id)
            and partner.node_id not in self._proposing
            and not self.leaving
        )
        if court:
            self._court(partner, now_ms)
        self._drop_link(sender, "pinned", now_ms)

    # ---- port search

    def _flood_port_search(self, hops_max: int) -> None:
        self._search += 1
        statement = PortSearchStmt(self.me, self._search, 1, hops_max)
        for neighbour in self.table.neighbours.values():
            self._out.append(Send(neighbour.conn, statement))

    def first_sight(self, requester: NodeId, search: int) -> bool:
        """Whether this flooded search is new here; remembers a bounded number of them."""
        key = (requester, search)
        if requester == self.me.node_id or key in self._seen_searches:
            return False
        if len(self._seen_searches) >= self._config.seen_searches_max:
            del self._seen_searches[next(iter(self._seen_searches))]
        self._seen_searches[key] = None
        return True

    def _on_port_search(self, sender: Neighbour, search: PortSearchStmt, now_ms: int) -> None:
        """Routine 26."""
        if not self.first_sight(search.requester.node_id, search.search):
            return
        self.assess_distance(search.hops)
        if search.hops < search.hops_max:
            onward = PortSearchStmt(search.requester, search.search, search.hops + 1, search.hops_max)
            for neighbour in self.table.neighbours.values():
                if neighbour is not sender:
                    self._out.append(Send(neighbour.conn, onward))
        requester = search.requester.node_id
        if (
            self.table.free_holes() > 0
            and not self.leaving
            and not self.table.knows(requester)
            and requester not in self._proposing
        ):
            self._court(search.requester, now_ms)

    # ---- diameter

    def diameter_cap(self) -> int:
        """Late first copies over slow links overstate the diameter (measured: 14 for 6 at N = 100)."""
        reach = ceil(log(max(self.population, 2)) / log(self.table.degree - 1))
        return min(DIAMETER_MAX, 2 * reach + 2)

    def assess_distance(self, hops: int) -> None:
        """A first copy came over this many hops: the diameter is at least about that."""
        if hops > self.diameter and hops <= self.diameter_cap() and not self.table.complete():
            self._raise_diameter(hops, None)

    def _raise_diameter(self, diameter: int, sender: Neighbour | None) -> None:
        self.diameter = diameter
        for neighbour in self.table.neighbours.values():
            if neighbour is not sender:
                self._out.append(Send(neighbour.conn, DiameterEstimateStmt(diameter)))

    # ---- internal messages

    def handle_link(self, sender: Neighbour, message: Message, now_ms: int) -> bool:
        """A message from a neighbour; False when it is not for membership."""
        match message:
            case NeighboursStmt(neighbours):
                sender.its_neighbours = neighbours
                self._check_full()
                if self.table.complete():
                    self.diameter = 1
                elif self.table.free_holes() > 0:
                    self._timers.set_sooner(("holes",), now_ms + self._jitter(self._config.search_wait_ms))
            case EdgeSearchCall():
                self._on_edge_search(sender, message, now_ms)
            case EdgeSearchResp():
                self._on_edge_response(sender, message, now_ms)
            case PortSearchStmt():
                self._on_port_search(sender, message, now_ms)
            case DiameterEstimateStmt(diameter):
                if self.diameter < diameter <= self.diameter_cap() and not self.table.complete():
                    self._raise_diameter(diameter, sender)
            case DisconnectStmt(neighbours):
                self._on_disconnect(sender, neighbours, now_ms)
            case DropStmt():
                self._drop_link(sender, "dropped", now_ms)
            case _:
                return False
        return True

    # ---- leaving

    def leave(self) -> None:
        """Tell each neighbour, with the list by which they pair up, and hang up."""
        self.leaving = True
        statement = DisconnectStmt(self.table.pairing())
        for neighbour in list(self.table.neighbours.values()):
            self._out.append(Send(neighbour.conn, statement))
            self._tell(NeighbourDown(neighbour, "left"))
            self._calls.close(neighbour.conn)
        self.table.neighbours.clear()
        self._list_changed = False

    def _on_disconnect(self, sender: Neighbour, listed: tuple[Contact, ...], now_ms: int) -> None:
        """First with second, third with fourth; the even one calls, the odd one keeps its hole for it."""
        ids = [contact.node_id for contact in listed]
        partner: Contact | None = None
        calls = False
        if self.me.node_id in ids:
            place = ids.index(self.me.node_id)
            if place ^ 1 < len(ids):
                partner, calls = listed[place ^ 1], place % 2 == 0
        if partner is not None and not self.table.knows(partner.node_id) and not self.leaving:
            if calls and partner.node_id not in self._proposing:
                self._court(partner, now_ms)
            elif not calls:
                self.table.pending[partner.node_id] = partner.node_id
                self._timers.set(("pending", partner.node_id), now_ms + self._config.walk_timeout_ms)
        self._drop_link(sender, "left", now_ms)

    # ---- components that do not hear each other

    def merge_with(self, address: str, now_ms: int) -> None:
        self._calls.dial(address, Merge(), now_ms)

    def on_merge_probe(self, call: Call, resp: SeekingConnectionResp, now_ms: int) -> None:
        """The silent node answered. Only when neither hears the other are there two components."""
        if resp.full and not resp.hears_you and not self.leaving:
            self._out.append(Send(call.conn, MergeCall()))
        else:
            self._call_over(call, now_ms)

    def _on_merge(self, call: Call, now_ms: int) -> None:
        assert call.peer is not None
        peer = call.peer.node_id
        accepted = (
            self._forget_stale(call, now_ms)
            and self.state is State.FULL
            and not self.leaving
            and peer not in self._proposing
            and self._gives_way(peer)
        )
        if accepted and self.table.holes() <= 0:
            self._give_up_one(now_ms)
        accepted = accepted and self.table.holes() > 0
        self._out.append(Send(call.conn, MergeResp(accepted)))
        if accepted:
            self._add(call, now_ms)
        else:
            self._calls.close(call.conn)

    def _give_up_one(self, now_ms: int) -> None:
        free = [n for node_id, n in self.table.neighbours.items() if node_id not in self.table.reserved]
        if free:
            neighbour = self._random.choice(free)
            self._out.append(Send(neighbour.conn, DropStmt()))
            self._drop_link(neighbour, "merged", now_ms)

    # ---- time

    def timer(self, key: TimerKey, now_ms: int) -> bool:
        match key:
            case ("holes",):
                self._fill_holes(now_ms)
            case ("full",):
                if self.state is State.PARTIAL:
                    self._become_full()  # 2208/2209: more neighbours were expected than there are
            case ("pending", node_id):
                assert isinstance(node_id, bytes)
                if self.table.pending.pop(NodeId(node_id), None) is not None:
                    self._timers.set_sooner(("holes",), now_ms)
            case ("reserved", node_id):
                assert isinstance(node_id, bytes)
                self.table.reserved.pop(NodeId(node_id), None)
            case _:
                return False
        return True

    def _fill_holes(self, now_ms: int) -> None:
        if self.leaving or not self.table.neighbours:
            return
        free = self.table.free_holes()
        if free <= 0 or self.table.complete():
            self._ring = self._rounds = 0
            return
        if self._ring < len(SEARCH_RINGS):
            self._flood_port_search(SEARCH_RINGS[self._ring])
            self._ring += 1
            wait_ms = self._config.search_wait_ms * self._ring
        else:
            self._ring = 0
            self._walk_for_holes(free, now_ms)
            wait_ms = min(self._config.walk_timeout_ms << min(self._rounds, 8), HOLES_BACKOFF_MS_MAX)
            self._rounds += 1
        self._timers.set(("holes",), now_ms + self._jitter(wait_ms) + wait_ms // 2)

    def _walk_for_holes(self, free: int, now_ms: int) -> None:
        for _ in range(free // 2):
            self._start_walk(self.me, self.me, now_ms)
        if free == 1:
            partner = self.table.with_hole()
            if partner is not None and self.me.node_id < partner.contact.node_id:
                self._start_walk(self.me, partner.contact, now_ms)
