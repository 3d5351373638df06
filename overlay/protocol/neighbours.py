"""The table of neighbours: who is linked, which holes are promised, which edges are on hold.

`holes = degree - neighbours`. A hole is *promised* while this node courts somebody (`courting`) or waits for the
far end of an edge it was given (`pending`); only what is left is free. An edge is *reserved* while a walk that may
take it is under way, so that no edge is pinned twice.

Neighbours send each other their lists of neighbours on every change. That makes the regime a local, exact fact: when
every neighbour's closed neighbourhood equals this node's, the component is a complete graph and there are no other
nodes to find (the patents infer it from the estimated diameter, which can be wrong).
"""

from dataclasses import dataclass, field
from enum import Enum

from m4cast.overlay.ids import Contact, NodeId

PAIRING_EXACT_MAX = 10
"""Up to this many neighbours a leaver finds the best pairing by trying all; above, greedily."""


class State(Enum):
    """SEEKING: no neighbour yet. PARTIAL: fewer than it needs. FULL: on the channel."""

    SEEKING = "seeking"
    PARTIAL = "partial"
    FULL = "full"


@dataclass(slots=True)
class Neighbour:
    contact: Contact
    conn: int
    incarnation: int
    heard_at_ms: int
    its_neighbours: tuple[NodeId, ...] | None = None
    """The neighbours that it lists itself; None until that list has arrived."""


@dataclass(slots=True)
class NeighbourTable:
    me: NodeId
    degree: int
    neighbours: dict[NodeId, Neighbour] = field(default_factory=dict)
    courting: dict[NodeId, int] = field(default_factory=dict)
    """Nodes this one asked to be neighbours -> connection of that call."""
    pending: dict[NodeId, NodeId] = field(default_factory=dict)
    """Far ends of accepted edges that have not called yet -> the near end."""
    proposing: dict[NodeId, int] = field(default_factory=dict)
    """Requesters of a walk that ended here and to whom an edge is being offered -> connection of that call."""
    reserved: dict[NodeId, int] = field(default_factory=dict)
    """Neighbours whose edge a walk has on hold -> number of that search."""

    def holes(self) -> int:
        return self.degree - len(self.neighbours)

    def free_holes(self) -> int:
        return self.degree - len(self.neighbours) - len(self.courting) - len(self.pending)

    def has_room_for(self, node_id: NodeId) -> bool:
        """A free hole, or one that is promised to this node. (A merge may have taken what was promised.)"""
        return self.free_holes() > 0 or (node_id in self.pending and self.holes() > 0)

    def knows(self, node_id: NodeId) -> bool:
        """Linked to it, or about to be."""
        return (
            node_id in self.neighbours
            or node_id in self.courting
            or node_id in self.pending
            or node_id in self.proposing
        )

    def complete(self) -> bool:
        """The component is a complete graph of at most degree + 1 nodes: exact, from the neighbours' own lists."""
        mine = {self.me, *self.neighbours}
        for node_id, neighbour in self.neighbours.items():
            theirs = neighbour.its_neighbours
            if theirs is None or len(theirs) + 1 != len(mine) or {node_id, *theirs} != mine:
                return False
        return True

    def with_hole(self) -> Neighbour | None:
        """A neighbour that has a hole too: the patents' neighbours with empty ports."""
        for neighbour in self.neighbours.values():
            if neighbour.its_neighbours is not None and len(neighbour.its_neighbours) < self.degree:
                return neighbour
        return None

    def are_linked(self, a: NodeId, b: NodeId) -> bool:
        """True if the neighbours a and b are neighbours of each other, by the list of either."""
        a_says = self.neighbours[a].its_neighbours or ()
        b_says = self.neighbours[b].its_neighbours or ()
        return b in a_says or a in b_says

    def pairing(self) -> tuple[Contact, ...]:
        """The neighbours in an order whose consecutive pairs are not linked yet, as far as possible: the list of a
        planned leave (figure 5A: A-I and E-F is the only way)."""
        ids = list(self.neighbours)
        pairs = self._best_pairs(ids) if len(ids) <= PAIRING_EXACT_MAX else self._greedy_pairs(ids)
        ordered = [node_id for pair in pairs for node_id in pair]
        rest = [node_id for node_id in ids if node_id not in ordered]
        return tuple(self.neighbours[node_id].contact for node_id in ordered + rest)

    def _best_pairs(self, ids: list[NodeId]) -> list[tuple[NodeId, NodeId]]:
        if len(ids) < 2:
            return []
        first, rest = ids[0], ids[1:]
        best = self._best_pairs(rest)
        for other in rest:
            if 2 * (len(best) + 1) > len(ids) + 1:
                break
            if not self.are_linked(first, other):
                found = [(first, other), *self._best_pairs([node_id for node_id in rest if node_id != other])]
                if len(found) > len(best):
                    best = found
        return best

    def _greedy_pairs(self, ids: list[NodeId]) -> list[tuple[NodeId, NodeId]]:
        pairs = []
        left = list(ids)
        while left:
            first = left.pop(0)
            for other in left:
                if not self.are_linked(first, other):
                    pairs.append((first, other))
                    left.remove(other)
                    break
        return pairs
