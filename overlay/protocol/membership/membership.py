"""Membership: how a node becomes and stays one of an m-regular graph (guarantee 1).

Composes `Links` (who is a neighbour), `Joining` (being brought in, leaving), `Edges` (walks and edge pinning), `Holes`
(searching for what is missing), `Swaps` (edges exchange their ends) and `Merging` (components become one), and routes
calls and timers to them. The idea, in short: a newcomer is put into the middle of random edges, so every old node keeps
its degree; a node that lacks a neighbour searches for another node that lacks one too.
"""

from collections.abc import Callable
from typing import assert_never

from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send
from m4cast.overlay.protocol.floods import Floods
from m4cast.overlay.protocol.membership.diameter import Diameter
from m4cast.overlay.protocol.membership.edges import Edges, Propose
from m4cast.overlay.protocol.membership.holes import Holes
from m4cast.overlay.protocol.membership.joining import Joining
from m4cast.overlay.protocol.membership.links import Court, LinkEvent, Links
from m4cast.overlay.protocol.membership.merging import Merge, Merging
from m4cast.overlay.protocol.membership.swaps import Mend, Swaps
from m4cast.overlay.protocol.membership.timers import (
    FullTimeout,
    HoleSearchDue,
    MembershipTimer,
    PendingTimeout,
    ReservationTimeout,
)
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.wire.messages import (
    DiameterEstimateStmt,
    DropStmt,
    NeighboursStmt,
    PortConnectionCall,
    PortSearchStmt,
    SwapResp,
)


class Membership:
    def __init__(self, context: Context, floods: Floods, emit: Callable[[LinkEvent], None]) -> None:
        self._out = context.out
        self.table = context.table
        self.links = Links(context, emit)
        self.diameter = Diameter(context.cluster.degree)
        self.edges = Edges(context, self.links, self.diameter)
        self.holes = Holes(context, self.links, floods, self.edges.start_walk)
        self.joining = Joining(context, self.links, self.diameter, self.edges.start_walk)
        self.swaps = Swaps(context, self.links)
        self.merging = Merging(context, self.links, self.swaps, self.diameter)

    @property
    def state(self) -> State:
        return self.links.state

    @property
    def leaving(self) -> bool:
        return self.links.leaving

    # ---- calls

    def call_ready(self, call: Call, now_ms: int) -> None:
        """The peer said hello on a call that membership dialled."""
        match call.purpose:
            case Court():
                self._out.append(Send(call.conn, PortConnectionCall()))
            case Propose():
                self.edges.call_ready(call, call.purpose, now_ms)
            case Merge():
                self.merging.call_ready(call)
            case Mend():
                self.swaps.mend_ready(call, call.purpose, now_ms)
            case _:
                raise AssertionError(call.purpose)

    def call_failed(self, call: Call, now_ms: int) -> None:
        """A call ended before its purpose was reached: not answered, timed out, or the peer hung up."""
        if isinstance(call.purpose, Propose):
            self.edges.call_failed(call, call.purpose, now_ms)
        else:
            self.swaps.call_failed(call)
            self.links.court_over(call, now_ms)

    def on_swap_answer(self, call: Call, resp: SwapResp, now_ms: int) -> None:
        given_up = self.swaps.offered(call)
        if self.swaps.on_answer(call, resp, now_ms) and isinstance(call.purpose, Merge) and given_up is not None:
            self.merging.swapped(call, call.purpose, given_up, resp)

    # ---- messages from neighbours

    def on_neighbours(self, sender: Neighbour, listed: NeighboursStmt, now_ms: int) -> None:
        sender.its_neighbours = listed.neighbours
        self.links.check_full()
        if self.table.complete():
            self.diameter.estimate = 1
        elif self.table.free_holes() > 0:
            self.links.search_soon(now_ms)

    def on_port_search(self, sender: Neighbour, search: PortSearchStmt, now_ms: int) -> None:
        if self.holes.on_port_search(sender, search, now_ms):
            self.assess_distance(search.hops)

    def on_diameter(self, sender: Neighbour, estimate: DiameterEstimateStmt, _now_ms: int) -> None:
        self.assess_distance(estimate.diameter, sender)

    def on_drop(self, sender: Neighbour, _: DropStmt, now_ms: int) -> None:
        self.links.drop(sender, "dropped", now_ms)

    def assess_distance(self, hops: int, sender: Neighbour | None = None) -> None:
        """A first copy travelled this many hops, here or to a neighbour: the diameter is at least about that."""
        if not self.table.complete() and self.diameter.rises_to(hops):
            self.links.send_all(DiameterEstimateStmt(hops), but=sender)

    def flush(self) -> None:
        """Called at the end of each input."""
        if self.links.flush() and self.table.complete():
            self.diameter.estimate = 1

    # ---- time

    def timer(self, timer: MembershipTimer, now_ms: int) -> None:
        match timer:
            case HoleSearchDue():
                self.holes.fill(now_ms)
            case FullTimeout():
                if self.state is State.PARTIAL:
                    self.links.become_full()  # 2208/2209: more neighbours were expected than there are
            case PendingTimeout(node_id):
                if self.table.pending.pop(node_id, None) is not None:
                    self.links.search_soon(now_ms)
            case ReservationTimeout(node_id):
                self.table.reserved.pop(node_id, None)
            case _:
                assert_never(timer)
