"""Floods: which flooded searches have passed through this node, so that each is passed on once.

A search floods over a number of hops. Its requester counts its searches from its incarnation on, so a kind of search,
the requester and the number name one flood. The memory is bounded (`seen_searches_max`): the oldest is forgotten.
"""

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.wire.messages import INCARNATION_SHIFT, HolderSearchStmt, PortSearchStmt

Flood = PortSearchStmt | HolderSearchStmt


def first_search(incarnation: int) -> int:
    """The number from which a node counts its searches: none repeats a number from before its restart."""
    return incarnation << INCARNATION_SHIFT


class Floods:
    def __init__(self, context: Context) -> None:
        self._me = context.me.node_id
        self._max = context.config.seen_searches_max
        self._seen: dict[tuple[type[Flood], NodeId, int], None] = {}

    def is_new(self, search: Flood) -> bool:
        """True if this is the first copy of somebody else's search; it is remembered."""
        key = (type(search), search.requester.node_id, search.search)
        if search.requester.node_id == self._me or key in self._seen:
            return False
        if len(self._seen) >= self._max:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = None
        return True
