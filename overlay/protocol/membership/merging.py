"""Merging: two components that do not hear each other become one channel again (PROTOCOL.md 7).

Two nodes that are on the channel and receive no beacons of each other are in different components. One swap of an edge
here for an edge there joins the components by two links. `degree / 2` swaps whose ends are all different join them by
`degree` links that share no node, so that the seam is as strong as the rest: after each swap a walk asks a random node
of this component to make the next one.
"""

from collections.abc import Callable

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send
from m4cast.overlay.protocol.membership.diameter import Diameter
from m4cast.overlay.protocol.membership.links import Links
from m4cast.overlay.protocol.membership.swaps import Swaps
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.wire.messages import (
    ApartStmt,
    DropStmt,
    MergeCall,
    MergeResp,
    SeekingConnectionCall,
    SeekingConnectionResp,
    SwapResp,
)
from m4cast.overlay.value import value

WALK_SLACK_STEPS = 32
"""Steps of an `ApartStmt` beyond its distance, while it looks for a node that can swap; guess."""


@value
class Merge:
    """Purpose of a call: join another component, if it is one."""

    surely_apart: bool = False
    """It is another component if this one is complete: then this one has no other nodes."""
    known_apart: bool = False
    """It is another component: another node here found out."""
    taken: tuple[NodeId, ...] = ()
    """Ends of the swaps that were made so far."""
    swaps_left: int = 0
    """The number of swaps that follow this one."""


class Merging:
    def __init__(self, context: Context, links: Links, swaps: Swaps, diameter: Diameter) -> None:
        self._links = links
        self._table = context.table
        self._swaps = swaps
        self._diameter = diameter
        self._random = context.random
        self._calls = context.calls
        self._out = context.out

    # ---- asking

    def merge_with(self, address: str, now_ms: int, *, surely_apart: bool = False) -> None:
        merge = Merge(surely_apart=surely_apart, swaps_left=self._table.degree // 2 - 1)
        self._calls.dial(address, merge, now_ms)

    def call_ready(self, call: Call) -> None:
        assert call.peer is not None
        if self._table.knows(call.peer.node_id):
            self._calls.close(call.conn)
        else:
            self._table.courting[call.peer.node_id] = call.conn
            self._out.append(Send(call.conn, SeekingConnectionCall(seeking=False, depth=0)))

    def on_probe(self, call: Call, resp: SeekingConnectionResp, now_ms: int) -> None:
        """The silent node answered. There are two components if neither receives the other's beacons. A recent beacon
        proves nothing if this component has been cut off since and is complete."""
        merge = call.purpose
        assert isinstance(merge, Merge)
        apart = not resp.hears_you or merge.known_apart or (merge.surely_apart and self._table.complete())
        if not (resp.full and apart and not self._links.leaving and self._ask(call, merge, now_ms)):
            self._links.court_over(call, now_ms)
            self._calls.close(call.conn)

    def _ask(self, call: Call, merge: Merge, now_ms: int) -> bool:
        """A node with a hole gives up nobody; others swap."""
        if self._table.holes() > 0:
            self._out.append(Send(call.conn, MergeCall()))
            return True
        free = [each for each in self._table.neighbours if each not in (*self._table.reserved, *merge.taken)]
        return bool(free) and self._swaps.ask(call, self._random.choice(free), (), merge.taken, now_ms)

    def on_answer(self, call: Call, answer: MergeResp, now_ms: int) -> None:
        if not self._links.is_won(call, Merge, answer.accepted, now_ms):
            return
        if self._make_room(now_ms):
            self._links.add(call, now_ms)
        else:
            self._calls.close(call.conn)

    def swapped(self, call: Call, merge: Merge, given_up: NodeId, resp: SwapResp) -> None:
        """One seam is made; send for the next one."""
        assert call.peer is not None
        if merge.swaps_left > 0 and resp.given_up and resp.others:
            mine = (self._links.me.node_id, given_up, call.peer.node_id, resp.given_up[0].node_id)
            distance = 2 * self._diameter.estimate
            apart = ApartStmt(
                resp.others, (*merge.taken, *mine), merge.swaps_left, distance, distance + WALK_SLACK_STEPS
            )
            self._pass_on(apart, distance, but=call.peer.node_id)

    # ---- being asked

    def on_merge(self, call: Call, _: MergeCall, now_ms: int) -> None:
        accepted = self._links.is_eligible(call, now_ms, State.FULL) and self._make_room(now_ms)
        self._out.append(Send(call.conn, MergeResp(accepted)))
        if accepted:
            self._links.add(call, now_ms)
        else:
            self._calls.close(call.conn)

    def _make_room(self, now_ms: int) -> bool:
        """Give up a neighbour if there is no hole; False when every edge is on hold."""
        if self._table.holes() > 0:
            return True
        free = [n for node_id, n in self._table.neighbours.items() if node_id not in self._table.reserved]
        if not free:
            return False
        neighbour = self._random.choice(free)
        self._out.append(Send(neighbour.conn, DropStmt()))
        self._links.drop(neighbour, "merged", now_ms)
        return True

    # ---- the walk to the next swap

    def on_apart(self, apart: ApartStmt, hears: Callable[[NodeId, int], bool], now_ms: int) -> None:
        if apart.distance > 0:
            self._pass_on(apart, apart.distance - 1)
            return
        # A node that receives their beacons is in their component: the walk crossed the first seam.
        beyond = [
            contact
            for contact in apart.beyond
            if not hears(contact.node_id, now_ms) and not self._table.knows(contact.node_id)
        ]
        free = [each for each in self._table.neighbours if each not in (*self._table.reserved, *apart.taken)]
        me = self._links.me.node_id
        able = self._links.state is State.FULL and not self._links.leaving and me not in apart.taken
        if able and beyond and free and self._table.holes() == 0:
            contact = self._random.choice(beyond)
            merge = Merge(known_apart=True, taken=apart.taken, swaps_left=apart.swaps_left - 1)
            self._calls.dial(contact.address, merge, now_ms, contact)
        else:
            self._pass_on(apart, 0)

    def _pass_on(self, apart: ApartStmt, distance: int, but: NodeId | None = None) -> None:
        fit: list[Neighbour] = [neighbour for node_id, neighbour in self._table.neighbours.items() if node_id != but]
        if fit and apart.steps_left > 0:
            onward = ApartStmt(apart.beyond, apart.taken, apart.swaps_left, distance, apart.steps_left - 1)
            self._out.append(Send(self._random.choice(fit).conn, onward))
