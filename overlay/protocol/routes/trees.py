"""Shortest-path trees over the graph of the channel, and how a message to some of its nodes travels along them.

Beacons carry neighbour lists, so every node has the graph, and computes the tree of any root without a message (the
thesis builds each tree by messages: P2P-DIET A13 to A16; its results are the tests here). An edge counts if either end
reports it. All edges are equal, so the tree is one of shortest paths. Where several parents are equally near the root,
a hash of (root, node, parent) chooses: each root has a tree of its own, and the load spreads over all links.

A message to one node (unicast) or to all (broadcast, N - 1 copies) is sent along the tree of the node that it comes
from. One to several (multicast) also takes shortest paths, those of them that share the most hops. Whoever passes it on
splits the destinations by the next node on their way, one copy per link (`split`), by shortest paths from itself: so
nodes whose graphs differ for a moment still make progress. Hops are limited (`hop_limit`), so nothing circulates.

Cost: a tree is a breadth-first search; a split looks at the neighbours of each node on the way of a destination.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import NodeId

TREES_MAX = 64
"""Trees of one graph that are kept; the oldest goes. Guess: the roots that send at one time."""


class RouteTree(NamedTuple):
    """The shortest paths from a root to every node that it reaches."""

    root: NodeId
    hops: dict[NodeId, int]
    parent: dict[NodeId, NodeId]
    """The predecessor of every node but the root on its path."""

    def children(self) -> dict[NodeId, list[NodeId]]:
        """The nodes that each node passes a broadcast on to, in order of their ids."""
        found: dict[NodeId, list[NodeId]] = {node_id: [] for node_id in self.hops}
        for node_id in sorted(self.parent):
            found[self.parent[node_id]].append(node_id)
        return found

    def depth(self) -> int:
        """The distance of the farthest node from the root, in hops."""
        return max(self.hops.values(), default=0)

    def path(self, to: NodeId) -> list[NodeId]:
        """The path from the root to this node, both included; empty if it cannot be reached."""
        if to not in self.hops:
            return []
        path = [to]
        while path[-1] != self.root:
            path.append(self.parent[path[-1]])
        return path[::-1]


class RouteSplit(NamedTuple):
    """The way one node passes on a message to several."""

    is_here: bool
    """The node is a destination itself."""
    onward: dict[NodeId, tuple[NodeId, ...]]
    """Neighbour -> the destinations that are reached through it."""
    unreachable: tuple[NodeId, ...]


class RouteGraph:
    """The graph as one node knows it: immutable, since a change makes another one."""

    def __init__(self, lists: Mapping[NodeId, Iterable[NodeId]]) -> None:
        """`lists`: the neighbours of each node. A node that is only listed by others is not in the graph: it is gone,
        or has not reported yet."""
        linked: dict[NodeId, dict[NodeId, None]] = {node_id: {} for node_id in sorted(lists)}
        for node_id, others in linked.items():
            for other in lists[node_id]:
                if other in linked and other != node_id:
                    others[other] = linked[other][node_id] = None
        self.neighbours = {node_id: tuple(sorted(others)) for node_id, others in linked.items()}
        self._trees: dict[NodeId, RouteTree] = {}

    def tree(self, root: NodeId) -> RouteTree:
        tree = self._trees.get(root)
        if tree is None:
            if len(self._trees) >= TREES_MAX:
                del self._trees[next(iter(self._trees))]
            tree = self._trees[root] = self._grown(root)
        return tree

    def _grown(self, root: NodeId) -> RouteTree:
        hops: dict[NodeId, int] = {root: 0} if root in self.neighbours else {}
        parent: dict[NodeId, NodeId] = {}
        ahead = list(hops)
        for node_id in ahead:  # grows during the loop
            for other in self.neighbours[node_id]:
                if other not in hops:
                    hops[other] = hops[node_id] + 1
                    ahead.append(other)
        for node_id in ahead[1:]:
            near = [other for other in self.neighbours[node_id] if hops[other] == hops[node_id] - 1]
            parent[node_id] = min(near, key=_order_of_parents(root, node_id))
        return RouteTree(root, hops, parent)

    def path(self, start: NodeId, to: NodeId) -> list[NodeId]:
        """The nodes on the way, both ends included; empty if there is none."""
        return self.tree(start).path(to)

    def split(self, root: NodeId, at: NodeId, destinations: Iterable[NodeId]) -> RouteSplit:
        """Return how the node `at` passes on a message of this root: its own part taken out, the rest by next node."""
        wanted = dict.fromkeys(destinations)
        is_here = at in wanted
        wanted.pop(at, None)
        hops = self.tree(at).hops
        parent = self._shared(root, hops, [to for to in wanted if to in hops])
        onward: dict[NodeId, list[NodeId]] = {}
        for to in wanted:
            following = to
            while hops.get(following, 1) > 1:
                following = parent[following]
            if to in hops:
                onward.setdefault(following, []).append(to)
        unreachable = tuple(to for to in wanted if to not in hops)
        return RouteSplit(is_here, {via: tuple(to) for via, to in onward.items()}, unreachable)

    def _shared(self, root: NodeId, hops: Mapping[NodeId, int], destinations: list[NodeId]) -> dict[NodeId, NodeId]:
        """The predecessors on shortest paths to these destinations, from the farthest on: nodes that the message goes
        to anyhow, then those that serve the most."""
        needed: dict[int, dict[NodeId, None]] = {}
        for to in destinations:
            needed.setdefault(hops[to], {})[to] = None
        parent: dict[NodeId, NodeId] = {}
        for level in range(max(needed, default=0), 1, -1):
            nearer = needed.setdefault(level - 1, {})
            left: dict[NodeId, list[NodeId]] = {}
            for node_id in needed[level]:
                near = [other for other in self.neighbours[node_id] if hops[other] == level - 1]
                served = [other for other in near if other in nearer]
                if served:
                    parent[node_id] = min(served, key=_order_of_parents(root, node_id))
                else:
                    left[node_id] = near
            while left:
                serves: dict[NodeId, list[NodeId]] = {}
                for node_id, near in left.items():
                    for other in near:
                        serves.setdefault(other, []).append(node_id)
                best = min(serves, key=lambda each: (-len(serves[each]), _least_order(root, serves[each], each)))
                nearer[best] = None
                for node_id in serves[best]:
                    parent[node_id] = best
                    del left[node_id]
        return parent

    def diameter(self) -> int:
        """The hops between the two nodes that are farthest from each other. Costs a tree per node."""
        return max((max(self._grown(root).hops.values()) for root in self.neighbours), default=0)


def _order_of_parents(root: NodeId, node_id: NodeId) -> Callable[[NodeId], int]:
    return lambda parent: xxh3_64_intdigest(root + node_id + parent)


def _least_order(root: NodeId, nodes: Iterable[NodeId], parent: NodeId) -> int:
    return min(_order_of_parents(root, node_id)(parent) for node_id in nodes)


def hop_limit(depth: int) -> int:
    """After so many hops on a tree of this depth a message is dropped: its way changed faster than it travelled."""
    return 2 * depth + 4
