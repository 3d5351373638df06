"""Joining and leaving: how a node gets its first neighbours, and how it leaves in order.

Small regime (at most `degree` nodes, a complete graph): a portal with a hole takes the newcomer itself, and the
newcomer's port search brings it every other node that has one. Large regime: the portal starts one random walk per
pair of the newcomer's holes (routine 16; the regime is decided before the newcomer is taken).
"""

from collections.abc import Callable

from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send
from m4cast.overlay.protocol.membership.diameter import Diameter
from m4cast.overlay.protocol.membership.links import Court, Links
from m4cast.overlay.protocol.membership.timers import HoleSearchDue, PendingTimeout
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.wire.messages import (
    ConnectionRequestCall,
    ConnectionRequestResp,
    DisconnectStmt,
    PortConnectionCall,
    PortConnectionResp,
    RosterEntry,
)


class Joining:
    def __init__(
        self,
        context: Context,
        links: Links,
        diameter: Diameter,
        start_walk: Callable[[Contact, Contact, int], None],
    ) -> None:
        self._links = links
        self._table = context.table
        self._diameter = diameter
        self._start_walk = start_walk
        self._config = context.config
        self._calls = context.calls
        self._timers = context.timers
        self._out = context.out

    # ---- being brought in

    def request(self, call: Call) -> None:
        """This node seeks, and the callee is on the channel: ask it for neighbours."""
        assert call.peer is not None
        if self._table.knows(call.peer.node_id):
            self._calls.close(call.conn)
            return
        self._table.courting[call.peer.node_id] = call.conn
        self._out.append(Send(call.conn, ConnectionRequestCall(self._table.holes())))

    def on_request(self, call: Call, holes: int, roster: tuple[RosterEntry, ...], now_ms: int) -> None:
        assert call.peer is not None
        peer, links, table = call.peer, self._links, self._table
        known = table.neighbours.get(peer.node_id)
        if known is not None:  # a node that asks to join has no links: the one from here to it is dead
            links.drop(known, "asks again", now_ms)
        if links.state is not State.FULL or links.leaving or not links.gives_way(peer.node_id):
            self._calls.refuse(call, "busy", "this node is not on the channel itself now: ask another portal")
            return
        small = table.complete() and table.holes() > 0
        ready = table.has_room_for(peer.node_id) and (small or not self._config.strict_portal)
        expected = table.holes() - 1 if small else table.degree % 2
        self._out.append(Send(call.conn, ConnectionRequestResp(expected, self._diameter.estimate, ready, roster)))
        if ready:
            links.add(call, now_ms)
            holes -= 1
        if not (small and ready):
            for _ in range(min(holes, table.degree) // 2):
                self._start_walk(peer, peer, now_ms)

    def on_response(self, call: Call, resp: ConnectionRequestResp, now_ms: int) -> None:
        assert call.peer is not None
        if self._table.courting.get(call.peer.node_id) != call.conn:
            self._calls.close(call.conn)
            return
        del self._table.courting[call.peer.node_id]
        self._diameter.take_over(resp.diameter)
        self._links.expected_holes = max(0, min(resp.expected_holes, self._table.degree - 1))
        if not resp.ready:
            # Walks are under way for this node: they get some time before it searches on its own.
            self._timers.set(HoleSearchDue(), now_ms + self._config.walk_timeout_ms)
            self._calls.close(call.conn)
        elif self._table.free_holes() > 0:
            self._links.add(call, now_ms)
            self._timers.set_sooner(HoleSearchDue(), now_ms)  # routine 1617: now those with a hole court me
        else:
            self._calls.close(call.conn)

    # ---- courting

    def on_port_connection(self, call: Call, _: PortConnectionCall, now_ms: int) -> None:
        """Routine 20."""
        assert call.peer is not None
        is_eligible = self._links.is_eligible(call, now_ms, State.PARTIAL, State.FULL)
        accepted = is_eligible and self._table.has_room_for(call.peer.node_id)
        self._out.append(Send(call.conn, PortConnectionResp(accepted)))
        if accepted:
            self._links.add(call, now_ms)
        else:
            self._calls.close(call.conn)

    def on_answer(self, call: Call, answer: PortConnectionResp, now_ms: int) -> None:
        """The answer to a proposal of this node to be neighbours."""
        if not self._links.is_won(call, Court, answer.accepted, now_ms):
            return
        if self._table.holes() > 0:
            self._links.add(call, now_ms)
        else:  # a merge took the hole that was promised
            self._calls.close(call.conn)

    # ---- leaving

    def leave(self) -> None:
        """Send each neighbour the list by which they pair up, and close the links."""
        self._links.leaving = True
        self._links.send_all(DisconnectStmt(self._table.pairing()))
        self._links.drop_all()

    def on_disconnect(self, sender: Neighbour, word: DisconnectStmt, now_ms: int) -> None:
        """The listed nodes pair up: first with second, third with fourth. The even one calls, the odd one keeps a
        hole."""
        listed = word.neighbours
        ids = [contact.node_id for contact in listed]
        me = self._links.me.node_id
        place = ids.index(me) if me in ids else len(ids)
        partner = listed[place ^ 1] if place < len(ids) and place ^ 1 < len(ids) else None
        if partner is not None and not self._table.knows(partner.node_id) and not self._links.leaving:
            if place % 2 == 0:
                self._links.court(partner, now_ms)
            else:
                self._table.pending[partner.node_id] = partner.node_id
                self._timers.set(PendingTimeout(partner.node_id), now_ms + self._config.walk_timeout_ms)
        self._links.drop(sender, "left", now_ms)
