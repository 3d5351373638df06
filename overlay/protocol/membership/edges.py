"""Edges: random walks that find an edge to pin (the patents' routines 18, 19, 28, 29).

A walk of twice the diameter ends at a random node u, which offers the edge to the neighbour v the walk came from.
The requester takes it: u-v becomes u-requester and v-partner, in steps that keep every other node's degree. The
partner is the requester itself in a join (u-Z-v), another node in the repair of two neighbours that both have a
hole. Whoever passes on the last step of a walk reserves that edge, so that no edge is pinned twice.
"""

from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send, Trace
from m4cast.overlay.protocol.membership.diameter import Diameter
from m4cast.overlay.protocol.membership.links import Links
from m4cast.overlay.protocol.membership.timers import PendingTimeout, ReservationTimeout
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.wire.messages import EdgeProposalCall, EdgeProposalResp, EdgeSearchCall, EdgeSearchResp
from m4cast.overlay.value import value

WALK_SLACK_STEPS = 32
"""Steps a walk may take beyond its distance while it looks for an edge that can be offered; guess."""
INTRODUCED_MAX = 1_024
"""Walks that a strict portal remembers; a walk takes seconds."""


@value
class Propose:
    """Purpose of a call: offer the edge to `neighbour` to the requester of `walk`."""

    walk: EdgeSearchCall
    neighbour: NodeId


class Edges:
    def __init__(self, context: Context, links: Links, diameter: Diameter) -> None:
        self._links = links
        self._table = context.table
        self._diameter = diameter
        self._config = context.config
        self._random = context.random
        self._calls = context.calls
        self._timers = context.timers
        self._out = context.out
        self._walks = 0
        self._introduced: dict[tuple[NodeId, int], None] = {}
        """Walks that this node started for others, as a strict portal: it keeps its own edges out of them."""

    # ---- walking

    def start_walk(self, requester: Contact, partner: Contact, now_ms: int) -> None:
        self._walks += 1
        distance = 2 * self._diameter.estimate
        walk = EdgeSearchCall(requester, partner, self._walks, distance, distance + WALK_SLACK_STEPS)
        if self._config.strict_portal and requester != self._links.me:
            if len(self._introduced) >= INTRODUCED_MAX:
                del self._introduced[next(iter(self._introduced))]
            self._introduced[requester.node_id, self._walks] = None
        self._forward(walk, distance, now_ms)

    def _forward(self, walk: EdgeSearchCall, distance: int, now_ms: int) -> None:
        """Routine 18: pass the walk to a random neighbour. If it may end there, the edge to that neighbour is
        reserved."""
        if walk.steps_left <= 0 or not self._table.neighbours:
            self._out.append(Trace("walk-ended", (("search", walk.search),)))
            return
        neighbour = self._random.choice(list(self._table.neighbours.values()))
        node_id = neighbour.contact.node_id
        asking = (walk.requester.node_id, walk.partner.node_id)
        if distance == 0 and (node_id in self._table.reserved or node_id in asking or self._introduces(walk)):
            distance = 1  # the toggle of 2805: this edge cannot be the last one
        if distance == 0:
            self._reserve(node_id, walk.search, now_ms)
        onward = EdgeSearchCall(walk.requester, walk.partner, walk.search, distance, walk.steps_left - 1)
        self._out.append(Send(neighbour.conn, onward))

    def _introduces(self, walk: EdgeSearchCall) -> bool:
        return (walk.requester.node_id, walk.search) in self._introduced

    def _reserve(self, node_id: NodeId, search: int, now_ms: int) -> None:
        self._table.reserved[node_id] = search
        self._timers.set(ReservationTimeout(node_id), now_ms + 2 * self._config.walk_timeout_ms)

    def on_search(self, sender: Neighbour, walk: EdgeSearchCall, now_ms: int) -> None:
        """Routine 28."""
        if walk.distance > 0:
            self._forward(walk, walk.distance - 1, now_ms)
        elif self._can_offer(sender, walk):
            far = sender.contact.node_id
            self._reserve(far, walk.search, now_ms)
            requester = walk.requester
            conn = self._calls.dial(requester.address, Propose(walk, far), now_ms, requester)
            self._table.proposing[requester.node_id] = conn
        else:
            self._out.append(Send(sender.conn, EdgeSearchResp(walk.search, False, walk.partner)))
            self._forward(walk, walk.steps_left % 2, now_ms)

    def _can_offer(self, sender: Neighbour, walk: EdgeSearchCall) -> bool:
        """The edge to `sender` can become requester-me and partner-sender."""
        asking = (walk.requester.node_id, walk.partner.node_id)
        far = sender.contact.node_id
        return (
            not self._links.leaving
            and self._links.me.node_id not in asking
            and far not in asking
            and not self._introduces(walk)
            and far not in self._table.reserved
            and not self._table.knows(walk.requester.node_id)
            and sender.its_neighbours is not None
            and walk.partner.node_id not in sender.its_neighbours
        )

    # ---- proposing

    def call_ready(self, call: Call, purpose: Propose, now_ms: int) -> None:
        linked = self._table.neighbours.get(purpose.neighbour)
        if linked is None:
            self.call_failed(call, purpose, now_ms)
            self._calls.close(call.conn)
        else:
            walk = purpose.walk
            self._out.append(Send(call.conn, EdgeProposalCall(walk.search, linked.contact, walk.partner.node_id)))

    def call_failed(self, call: Call, purpose: Propose, now_ms: int) -> None:
        requester = purpose.walk.requester.node_id
        if self._table.proposing.get(requester) == call.conn:
            del self._table.proposing[requester]
            self._refused(purpose, search_on=False, now_ms=now_ms)

    def on_proposal(self, call: Call, proposal: EdgeProposalCall, now_ms: int) -> None:
        """Routine 19: accept the edge if it is wanted, and answer at once."""
        assert call.peer is not None
        me, near, far = self._links.me.node_id, call.peer.node_id, proposal.neighbour.node_id
        for_me_twice = proposal.partner == me
        wanted = self._table.free_holes() >= (2 if for_me_twice else 1) and not self._links.leaving
        clash = not self._links.forget_stale(call, now_ms) or self._table.knows(near) or near == far
        if for_me_twice:
            clash = clash or self._table.knows(far) or far == me
        accepted = wanted and not clash
        self._out.append(Send(call.conn, EdgeProposalResp(accepted, wanted and clash)))
        if not accepted:
            self._calls.close(call.conn)
            return
        if for_me_twice:
            self._table.pending[far] = near
            self._timers.set(PendingTimeout(far), now_ms + self._config.walk_timeout_ms)
        self._links.add(call, now_ms)

    def on_answer(self, call: Call, answer: EdgeProposalResp, now_ms: int) -> None:
        """Second half of routine 28: the requester accepts or refuses the edge that was offered."""
        assert call.peer is not None
        purpose = call.purpose
        if not isinstance(purpose, Propose) or self._table.proposing.get(call.peer.node_id) != call.conn:
            self._calls.close(call.conn)
            return
        del self._table.proposing[call.peer.node_id]
        far = self._table.neighbours.get(purpose.neighbour)
        if not answer.accepted or self._links.leaving or self._table.knows(call.peer.node_id):
            self._calls.close(call.conn)
            self._refused(purpose, answer.search_on and not answer.accepted, now_ms)
        elif far is not None:
            self._out.append(Send(far.conn, EdgeSearchResp(purpose.walk.search, True, purpose.walk.partner)))
            self._links.replace(far, call, "pinned", now_ms)
        elif self._table.free_holes() > 0:
            self._links.add(call, now_ms)
        else:
            self._calls.close(call.conn)

    def _refused(self, purpose: Propose, search_on: bool, now_ms: int) -> None:
        walk, far = purpose.walk, purpose.neighbour
        if self._table.reserved.get(far) == walk.search:
            del self._table.reserved[far]
        neighbour = self._table.neighbours.get(far)
        if neighbour is not None:
            self._out.append(Send(neighbour.conn, EdgeSearchResp(walk.search, False, walk.partner)))
        if search_on:
            self._forward(walk, walk.steps_left % 2, now_ms)

    def on_response(self, sender: Neighbour, resp: EdgeSearchResp, now_ms: int) -> None:
        """Routine 29: my edge to the sender was taken (court the partner now) or is free again."""
        node_id = sender.contact.node_id
        if self._table.reserved.get(node_id) == resp.search:
            del self._table.reserved[node_id]
        if not resp.accepted:
            return
        partner = resp.partner
        if partner.node_id != self._links.me.node_id and not self._table.knows(partner.node_id):
            self._links.court(partner, now_ms)
        self._links.drop(sender, "pinned", now_ms)
