"""Holes: finding new neighbours for those that are missing (the patents' routines 21, 26).

A port search floods over few hops, then over more, then over all; a node that has a hole too courts the searcher. The
holes that are left are filled by edges: two holes of one node by a walk for itself, one hole each of two nodes that are
neighbours already ("neighbours with empty ports") by a walk for the pair, which turns an edge u-v into a-u and b-v.
Such an edge always exists in a graph of degree + 2 nodes or more (PROTOCOL.md, holes). In a complete graph of few nodes
there is no other node to find, and nothing is searched.
"""

from collections.abc import Callable

from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.floods import Floods, first_search
from m4cast.overlay.protocol.membership.links import Links
from m4cast.overlay.protocol.membership.timers import HoleSearchDue
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.wire.messages import PortSearchStmt

SEARCH_RINGS = (2, 5, 255)
"""Hops of the successive port searches. After a mass failure another node with a hole is two hops away (measured), so
only a single hole floods the whole channel."""
BACKOFF_MS_MAX = 60_000
"""The longest pause between searches for a hole that cannot be filled (odd degree, odd N); guess."""


class Holes:
    def __init__(
        self, context: Context, links: Links, floods: Floods, start_walk: Callable[[Contact, Contact, int], None]
    ) -> None:
        self._links = links
        self._table = context.table
        self._start_walk = start_walk
        self._config = context.config
        self._timers = context.timers
        self._floods = floods
        self._searches = first_search(context.incarnation)
        self._ring = 0
        self._rounds = 0
        self._losses = 0

    def fill(self, now_ms: int) -> None:
        """The next step of the search, if there is anything to search for."""
        if self._links.leaving or not self._table.neighbours:
            return
        free = self._table.free_holes()
        if free <= 0 or self._table.complete():
            self._ring = self._rounds = 0
            return
        if self._losses != self._links.losses:
            self._losses = self._links.losses
            self._ring = self._rounds = 0
        if self._ring == 0 and free == 1 and self._table.degree % 2:
            self._ring = 1  # the odd hole of every newcomer: filled from nearby, newcomers would huddle together
        if self._ring < len(SEARCH_RINGS):
            self._searches += 1
            self._links.send_all(PortSearchStmt(self._links.me, self._searches, 1, SEARCH_RINGS[self._ring]))
            self._ring += 1
            wait_ms = self._config.search_wait_ms * self._ring
        else:
            self._ring = 0
            self._walk(free, now_ms)
            wait_ms = min(self._config.walk_timeout_ms << min(self._rounds, 8), BACKOFF_MS_MAX)
            self._rounds += 1
        self._timers.set(HoleSearchDue(), now_ms + self._links.jitter(wait_ms) + wait_ms // 2)

    def _walk(self, free: int, now_ms: int) -> None:
        me = self._links.me
        for _ in range(free // 2):
            self._start_walk(me, me, now_ms)
        if free == 1:
            partner = self._table.with_hole()
            if partner is not None and me.node_id < partner.contact.node_id:
                self._start_walk(me, partner.contact, now_ms)

    def on_port_search(self, sender: Neighbour, search: PortSearchStmt, now_ms: int) -> bool:
        """Routine 26. False for a further copy."""
        if not self._floods.is_new(search):
            return False
        if search.hops < search.hops_max:
            onward = PortSearchStmt(search.requester, search.search, search.hops + 1, search.hops_max)
            self._links.send_all(onward, but=sender)
        if self._table.free_holes() > 0 and not self._links.leaving and not self._table.knows(search.requester.node_id):
            self._links.court(search.requester, now_ms)
        return True
