"""Connectivity: finding a weak place of the graph, and an edge to swap that mends it (PROTOCOL.md 4.10).

The graph should fall apart only when `degree` nodes are lost. Joins keep as many *links* between any two parts, but in
a small graph, or when newcomers pin each other's edges, fewer *nodes* can separate it. Beacons give every node the
whole graph, so each node looks for itself whether there are `degree` paths from it to another node that share no node
on the way. If not, fewer than `degree` nodes separate the two (Menger). Each of the two then has a neighbour on its own
side of the cut, and swapping these two edges gives two paths past the weak place.

Each node looks at a few others with every beacon, until it has looked at all since the graph last changed.
Cost: one look is `degree` breadth-first searches: 0.2 ms at 20 nodes, 8 ms at 1,000.
"""

from collections.abc import Callable, Mapping
from random import Random

from m4cast.overlay.ids import NodeId
from m4cast.overlay.value import value

Graph = dict[NodeId, list[NodeId]]
NeighbourLists = Mapping[NodeId, tuple[NodeId, ...]]
Ways = dict[NodeId, tuple[NodeId, NodeId]]
"""Node -> those before and after it on the one way that goes through it."""
Step = tuple[NodeId, bool]
"""A node that is entered (False) or left (True)."""
LOOKS_PER_BEACON = 2
"""Others looked at with each beacon; guess. A weak place has two sides, and any look across shows it."""
UNHEARD_PART = 20
"""If more than one in this many nodes is not heard, the graph is not known well enough to be looked at; guess."""
SMALL_NODES = 32
"""Up to this many nodes swaps are tried on a copy of the graph first; each takes up to 4 looks per node."""
SWAPS_TRIED_MAX = 16


@value
class Weakness:
    """`other` is behind too few nodes. My edge to `partner`, for one of its edges to `give_up`, mends it."""

    other: NodeId
    partner: NodeId
    give_up: tuple[NodeId, ...]


class Connectivity:
    def __init__(self, me: NodeId, degree: int, random: Random) -> None:
        self._me = me
        self._degree = degree
        self._random = random
        self._looked_at_change = -1
        self._left: list[NodeId] = []

    def look(
        self, ask_lists: Callable[[int], NeighbourLists], mine: list[NodeId], change: int, now_ms: int
    ) -> Weakness | None:
        """The next few looks. `ask_lists` gives the neighbours of all others by their own word, `change` counts its
        changes."""
        if change != self._looked_at_change:
            self._looked_at_change = change
            lists = ask_lists(now_ms)
            self._left = [node_id for node_id in lists if node_id not in mine]
            self._random.shuffle(self._left)
        elif not self._left:
            return None
        else:
            lists = ask_lists(now_ms)
        graph = united(lists, self._me, mine)
        if (len(graph) - 1 - len(lists)) * UNHEARD_PART > len(lists):
            return None
        for _ in range(min(LOOKS_PER_BEACON, len(self._left))):
            other = self._left.pop()
            found = self._look_at(graph, other)
            if found is not None:
                return found
        return None

    def _look_at(self, graph: Graph, other: NodeId) -> Weakness | None:
        if other not in graph or self._me in graph[other]:
            return None
        near = near_side(graph, self._me, other, self._degree)
        if near is None:
            return None
        far = near_side(graph, other, self._me, self._degree) or set()
        swaps = [
            (node_id, theirs)
            for node_id in graph[self._me]
            for theirs in graph[other]
            if node_id != theirs and theirs not in graph[node_id]
        ]
        self._random.shuffle(swaps)
        swaps.sort(key=lambda swap: (swap[0] not in near) + (swap[1] not in far))
        if not swaps:
            return None
        # Where one swap is not enough, the one across is the best that can be done now.
        chosen = swaps[0]
        if len(graph) <= SMALL_NODES:
            chosen = next((swap for swap in swaps[:SWAPS_TRIED_MAX] if self._mends(graph, other, *swap)), chosen)
        return Weakness(other, chosen[0], (chosen[1],))

    def _mends(self, graph: Graph, other: NodeId, partner: NodeId, theirs: NodeId) -> bool:
        """True if no weak place is left around the four ends after the swap. In a graph of few nodes most swaps only
        move it: seven nodes whose gaps are a triangle and a square stay so, unless an edge into the cut is taken."""
        after = {node_id: list(neighbours) for node_id, neighbours in graph.items()}
        for a, b in ((self._me, partner), (other, theirs)):
            after[a].remove(b)
            after[b].remove(a)
        for a, b in ((self._me, other), (partner, theirs)):
            after[a].append(b)
            after[b].append(a)
        return not any(
            near_side(after, end, node_id, self._degree)
            for end in (self._me, other, partner, theirs)
            for node_id in after
            if node_id != end and node_id not in after[end]
        )


def united(lists: NeighbourLists, me: NodeId, mine: list[NodeId]) -> Graph:
    """The graph of all edges that either end lists: a late beacon may then hide a weak place for a while, but does not
    invent one. Nodes that others list, and that have sent no list themselves, are included."""
    graph: Graph = {me: []}
    for node_id in lists:
        graph[node_id] = []
    for node_id, neighbours in (*lists.items(), (me, tuple(mine))):
        for other in neighbours:
            if other not in graph[node_id]:
                graph[node_id].append(other)
                graph.setdefault(other, []).append(node_id)
    return graph


def near_side(graph: Graph, start: NodeId, end: NodeId, degree: int) -> set[NodeId] | None:
    """The nodes on the start's side of a cut of fewer than `degree` nodes that separates it from the end; None when
    there are `degree` ways that share no node, or as many as either has neighbours. They must not be neighbours.

    Augmenting paths, each node used at most once (Ford and Fulkerson).
    """
    wanted = min(degree, len(graph[start]), len(graph[end]))
    # Through each common neighbour there is a way that no other one needs; only the rest has to be found.
    via: Ways = {node_id: (start, end) for node_id in graph[start] if node_id in graph[end]}
    for _ in range(wanted - len(via)):
        reached = _augment(graph, start, end, via)
        if reached is not None:
            return reached
    return None


def _augment(graph: Graph, start: NodeId, end: NodeId, via: Ways) -> set[NodeId] | None:
    """Find one way more and take it into `via` (None), or return the nodes that can be left when there is none.

    A node on a way can, once it is entered, only be gone back from along that way, unless it was come back to itself.
    """
    before: dict[Step, Step] = {}
    queue: list[Step] = [(start, True)]
    seen = {(start, True)}
    for node_id, leaves in queue:
        onward: list[Step] = []
        if leaves:
            onward += [(other, False) for other in graph[node_id] if other != start]
            if node_id in via:
                onward.append((node_id, False))
        elif node_id in via:
            previous = via[node_id][0]
            if previous != start:
                onward.append((previous, True))
        else:
            onward.append((node_id, True))
        for step in onward:
            if step in seen:
                continue
            seen.add(step)
            before[step] = (node_id, leaves)
            if step == (end, False):
                _take(before, start, end, via)
                return None
            queue.append(step)
    return {node_id for node_id, leaves in seen if leaves}


def _take(before: dict[Step, Step], start: NodeId, end: NodeId, via: Ways) -> None:
    """Combine the way that was found with those in `via`: arcs that it goes along backwards vanish."""
    arcs: dict[tuple[NodeId, NodeId], None] = {}
    for node_id, (previous_id, after_id) in via.items():
        arcs[previous_id, node_id] = arcs[node_id, after_id] = None
    step = (end, False)
    while step != (start, True):
        previous = before[step]
        if previous[0] != step[0]:
            if previous[1]:  # left previous, entered this one
                arcs[previous[0], step[0]] = None
            else:  # back along the way that came from step to previous
                arcs.pop((step[0], previous[0]), None)
        step = previous
    after_of: dict[NodeId, NodeId] = {}
    firsts = []
    for tail, head in arcs:
        if tail == start:
            firsts.append(head)
        else:
            after_of[tail] = head
    via.clear()
    for first in firsts:
        previous_id, node_id = start, first
        while node_id != end:
            via[node_id] = (previous_id, after_of[node_id])
            previous_id, node_id = node_id, after_of[node_id]
