"""The connectivity graph of one node: its links, the links between units beside its own, their costs, and paths.

A vertex sees its own cluster node by node, the clusters of its super-cluster as one graph node each, the super-clusters
beside it likewise, and so on: a few hundred edges, whatever the size of the federation (A5). An edge costs the sum of
the levels of its ends, plus what is told of its load (A6). A path starts at the vertex and never goes to a lower level:
what lies inside another unit is for that unit to know (A7).

Paths are compared by cost, then by their number of edges (links inside a cluster cost nothing, so that without it nodes
would send a batch in circles), then by their least link count, then by unit ids.

The cache (A8) holds, per set of units to avoid, the paths to all units. A change of an edge of a level-l connection
drops what was computed for units of levels >= l, and leaves the levels below untouched: their paths never use it.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from m4cast.overlay.federation.units import Unit, UnitId
from m4cast.overlay.value import value

CACHED_MAX = 256
"""Sets of avoided units whose paths are kept; guess. More: memory; fewer: paths are computed again."""


@value
class Edge:
    """Two graph nodes, the lower one first, and the level of the connections between them."""

    low: Unit
    high: Unit
    level: int

    def base_cost(self) -> int:
        """Table 1 of GES."""
        return self.low.level + self.high.level

    def other(self, end: Unit) -> Unit:
        return self.high if end == self.low else self.low


def edge_of(one: Unit, other: Unit, level: int) -> Edge:
    return Edge(min(one, other), max(one, other), level)


class UnitPath(NamedTuple):
    """The best way to a unit. Compared as paths are preferred."""

    cost: int
    edges: int
    less_links: int
    """The least number of connections behind an edge of the path, negated: more is better."""
    units: tuple[UnitId, ...]

    def next_hop(self) -> UnitId:
        """The vertex itself, if that is where the path leads."""
        return self.units[1] if self.edges else self.units[0]


Avoided = tuple[Unit, ...]


class ConnectivityGraph:
    """Edges with their connections, and the paths from the vertex."""

    def __init__(self, vertex: Unit, top: int) -> None:
        self.vertex = vertex
        self._top = top
        self._connections: dict[Edge, dict[bytes, int]] = {}
        """Edge -> id of each connection that may be used -> its extra cost."""
        self._weights: dict[Edge, tuple[int, int]] = {}
        """Edge -> its cost and its link count."""
        self._at: dict[Unit, dict[Unit, Edge]] = {}
        self._cache: dict[Avoided, dict[int, dict[Unit, UnitPath]]] = {}
        """Avoided units -> level of the target -> paths."""
        self.computed = [0] * (top + 1)
        """The number of times that the paths to units of each level were computed."""

    # ---- edges

    def put(self, edge: Edge, connection: bytes, extra: int) -> None:
        """Note that the connection is one of this edge, and that its use costs so much more."""
        connections = self._connections.get(edge)
        if connections is None:
            connections = self._connections[edge] = {}
            for end in (edge.low, edge.high):
                self._at.setdefault(end, {})[edge.other(end)] = edge
        if connections.get(connection) != extra:
            connections[connection] = extra
            self._weigh(edge)

    def remove(self, edge: Edge, connection: bytes) -> None:
        connections = self._connections.get(edge)
        if connections is None or connections.pop(connection, None) is None:
            return
        if not connections:
            del self._connections[edge]
            for end in (edge.low, edge.high):
                del self._at[end][edge.other(end)]
                if not self._at[end]:
                    del self._at[end]
        self._weigh(edge)

    def _weigh(self, edge: Edge) -> None:
        """The edge is new, gone, or costs something else. The extra counts only if every connection of it has
        one."""
        connections = self._connections.get(edge)
        if connections is None:
            del self._weights[edge]
        else:
            self._weights[edge] = (edge.base_cost() + min(connections.values()), len(connections))
        for by_level in self._cache.values():
            for stale in [each for each in by_level if each >= edge.level]:
                del by_level[stale]

    def edges(self) -> Iterator[tuple[Edge, int, int]]:
        """Each edge with its cost and its link count."""
        return ((edge, *self._weights[edge]) for edge in sorted(self._connections, key=_order))

    def up_links(self, unit: Unit) -> list[Unit]:
        """L_UL: the ends of its edges to units of its own level and below."""
        return sorted(other for other in self._at.get(unit, ()) if other.level <= unit.level)

    def down_links(self, unit: Unit) -> list[Unit]:
        """L_D: the ends of its edges to units of higher levels."""
        return sorted(other for other in self._at.get(unit, ()) if other.level > unit.level)

    # ---- paths

    def path(self, target: Unit, avoided: Avoided = ()) -> UnitPath | None:
        """The best way to the unit that enters none of the avoided ones; None if there is none."""
        if avoided:
            best = self.path(target)
            if best is None or not any(unit.id in best.units for unit in avoided):
                return best  # the best of all ways is the best of those allowed
        by_level = self._cache.get(avoided)
        if by_level is None:
            if len(self._cache) >= CACHED_MAX:
                del self._cache[next(iter(self._cache))]
            by_level = self._cache[avoided] = {}
        if target.level not in by_level:
            self._compute(target.level, avoided, by_level)
        return by_level[target.level].get(target)

    def _compute(self, level: int, avoided: Avoided, by_level: dict[int, dict[Unit, UnitPath]]) -> None:
        """Paths to units up to this level, as many as are not there: those of lower levels are not touched."""
        self.computed[level] += 1
        heap: list[tuple[int, int, int, tuple[UnitId, ...], Unit]] = [
            (0, 0, -UNLIMITED, (self.vertex.id,), self.vertex)
        ]
        closed: dict[Unit, None] = dict.fromkeys(avoided)
        paths = by_level[level] = {}
        weights = self._weights
        while heap:
            cost, edges, less_links, units, unit = heappop(heap)
            if unit in closed:
                continue
            closed[unit] = None
            from_level = unit.level
            if from_level == level:
                paths[unit] = UnitPath(cost, edges, less_links, units)
            for other, edge in self._at.get(unit, {}).items():
                if from_level <= other.level <= level and other not in closed:
                    more, links = weights[edge]
                    heappush(heap, (cost + more, edges + 1, max(less_links, -links), (*units, other.id), other))

    def nearest(self, targets: Iterable[Unit], avoided: Avoided = ()) -> UnitPath | None:
        """The best of the ways to these units."""
        found = (self.path(target, avoided) for target in targets)
        return min((each for each in found if each is not None), default=None)

    def units(self, level: int) -> list[Unit]:
        """Graph nodes of a level, the vertex aside."""
        return sorted(unit for unit in self._at if unit.level == level and unit != self.vertex)


UNLIMITED = 1 << 30


def _order(edge: Edge) -> tuple[int, Unit, Unit]:
    return edge.level, edge.low, edge.high
