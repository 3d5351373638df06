"""Swaps: two edges exchange their ends, so that nobody's number of neighbours changes (PROTOCOL.md 4.9).

    a - b                a   b
              becomes    |   |
    c - d                c   d

a asks c; each of them instructs its old neighbour whom to court instead, as at the end of a walk that pinned their edge
(routine 29). One mechanism serves three needs: it joins two components, it mends a weak place of the graph, and along a
path a-b-c-d, which it cannot disconnect, it mixes the graph.
"""

from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send, Trace
from m4cast.overlay.protocol.membership.links import Links
from m4cast.overlay.protocol.membership.timers import ReservationTimeout
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.wire.messages import DropStmt, EdgeSearchResp, SwapCall, SwapResp
from m4cast.overlay.value import value

NO_SEARCH = 0
"""Walks are counted from 1: an edge that a swap takes is no walk's."""


@value
class Mend:
    """Purpose of a call: swap my edge to `partner` for one to any of `give_up`."""

    partner: NodeId
    give_up: tuple[NodeId, ...]


class Swaps:
    def __init__(self, context: Context, links: Links) -> None:
        self._links = links
        self._table = context.table
        self._config = context.config
        self._random = context.random
        self._calls = context.calls
        self._timers = context.timers
        self._out = context.out
        self._offered: dict[int, NodeId] = {}
        """Connection of a call on which a swap was asked for -> the neighbour that it would give up."""

    # ---- asking

    def mend(self, contact: Contact, partner: NodeId, give_up: tuple[NodeId, ...], now_ms: int) -> None:
        if not self._table.knows(contact.node_id) and partner not in self._table.reserved:
            purpose = Mend(partner, give_up)
            self._table.courting[contact.node_id] = self._calls.dial(contact.address, purpose, now_ms, contact)

    def mend_ready(self, call: Call, purpose: Mend, now_ms: int) -> None:
        if not self.ask(call, purpose.partner, purpose.give_up, (), now_ms):
            self._links.court_over(call, now_ms)
            self._calls.close(call.conn)

    def ask(
        self, call: Call, partner: NodeId, give_up: tuple[NodeId, ...], keep: tuple[NodeId, ...], now_ms: int
    ) -> bool:
        """Offer the edge to `partner`; False when it cannot be offered now."""
        neighbour = self._table.neighbours.get(partner)
        if neighbour is None or partner in self._table.reserved or self._links.leaving:
            return False
        self._offered = {conn: each for conn, each in self._offered.items() if self._calls.get(conn) is not None}
        self._table.reserved[partner] = -call.conn  # no walk has this number
        self._timers.set(ReservationTimeout(partner), now_ms + 2 * self._config.call_timeout_ms)
        self._offered[call.conn] = partner
        self._out.append(Send(call.conn, SwapCall(neighbour.contact, give_up, keep)))
        return True

    def offered(self, call: Call) -> NodeId | None:
        """The neighbour that was offered on this call."""
        return self._offered.get(call.conn)

    def call_failed(self, call: Call) -> None:
        """The call is over: the edge is free again."""
        partner = self._offered.pop(call.conn, None)
        if partner is not None and self._table.reserved.get(partner) == -call.conn:
            del self._table.reserved[partner]

    def on_answer(self, call: Call, resp: SwapResp, now_ms: int) -> bool:
        """True when the swap is made."""
        assert call.peer is not None
        partner = self._offered.get(call.conn)
        self.call_failed(call)
        asked = partner is not None and self._table.courting.get(call.peer.node_id) == call.conn
        if not asked or not resp.accepted or self._links.leaving:
            self._links.court_over(call, now_ms)
            self._calls.close(call.conn)
            return False
        assert partner is not None
        del self._table.courting[call.peer.node_id]
        neighbour = self._table.neighbours.get(partner)
        if neighbour is not None and self._table.holes() == 0:
            self._give_up(neighbour, resp.given_up[0] if resp.given_up else None, call, now_ms)
        elif self._table.holes() > 0:
            self._links.add(call, now_ms)
        else:
            self._calls.close(call.conn)
            return False
        self._out.append(Trace("swapped", (("peer", call.peer.address),)))
        return True

    # ---- being asked

    def on_swap(self, call: Call, swap: SwapCall, now_ms: int) -> None:
        links = self._links
        willing = links.is_eligible(call, now_ms, State.FULL)
        spare = self._spare(swap) if willing and self._table.holes() == 0 else None
        if not willing or (spare is None and self._table.holes() == 0):
            self._out.append(Send(call.conn, SwapResp(False, (), ())))
            self._calls.close(call.conn)
            return
        others = tuple(
            neighbour.contact
            for node_id, neighbour in self._table.neighbours.items()
            if neighbour is not spare and node_id not in swap.keep
        )
        given_up = (spare.contact,) if spare is not None else ()
        self._out.append(Send(call.conn, SwapResp(True, given_up, others)))
        if spare is None:
            links.add(call, now_ms)
        else:
            self._give_up(spare, swap.partner, call, now_ms)

    def _spare(self, swap: SwapCall) -> Neighbour | None:
        """A neighbour that can be linked to the caller's partner instead of this node."""
        partner = swap.partner.node_id
        spare = [
            neighbour
            for node_id, neighbour in self._table.neighbours.items()
            if node_id not in self._table.reserved
            and node_id != partner
            and node_id not in swap.keep
            and (not swap.give_up or node_id in swap.give_up)
            and neighbour.its_neighbours is not None
            and partner not in neighbour.its_neighbours
        ]
        return self._random.choice(spare) if spare else None

    def _give_up(self, neighbour: Neighbour, instead: Contact | None, call: Call, now_ms: int) -> None:
        """The call becomes a link in place of this one, whose other end courts `instead`."""
        stmt = DropStmt() if instead is None else EdgeSearchResp(NO_SEARCH, True, instead)
        self._out.append(Send(neighbour.conn, stmt))
        self._links.replace(neighbour, call, "swapped", now_ms)
