"""The connectivity graph (A5 to A8) against brute force: G24, G26, G27, G28."""

from random import Random

import pytest

from m4cast.overlay.federation.graph import ConnectivityGraph, Edge, UnitPath, edge_of
from m4cast.overlay.federation.units import Unit, UnitId

TOP = 3
VERTEX = Unit(0, UnitId(b"v"))


def random_graph(random: Random) -> tuple[ConnectivityGraph, dict[Edge, list[int]]]:
    """A graph of a few units of each level, and its edges with the extra costs of the connections behind them."""
    units = [VERTEX, *(Unit(level, UnitId(bytes([level, number]))) for level in range(TOP + 1) for number in range(3))]
    graph, edges = ConnectivityGraph(VERTEX, TOP), dict[Edge, list[int]]()
    for _ in range(random.randint(6, 22)):
        one, other = random.sample(units, 2)
        edge = edge_of(one, other, max(one.level, other.level))
        extra = random.choice((0, 0, 0, 3, 8))
        graph.put(edge, random.randbytes(4), extra)
        edges.setdefault(edge, []).append(extra)
    return graph, edges


def brute_force(edges: dict[Edge, list[int]], avoided: tuple[Unit, ...]) -> dict[Unit, tuple[int, int, int]]:
    """The best cost, number of edges and negated link count of every path whose levels never fall."""
    best: dict[Unit, tuple[int, int, int]] = {}

    def walk(unit: Unit, cost: int, steps: int, links: int, seen: tuple[Unit, ...]) -> None:
        found = (cost, steps, -links)
        if unit not in best or found < best[unit]:
            best[unit] = found
        for edge, extras in edges.items():
            if unit in (edge.low, edge.high):
                other = edge.other(unit)
                if other.level >= unit.level and other not in seen and other not in avoided:
                    more = edge.low.level + edge.high.level + min(extras)
                    walk(other, cost + more, steps + 1, min(links, len(extras)), (*seen, other))

    walk(VERTEX, 0, 0, 1 << 30, (VERTEX,))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_paths_are_those_of_brute_force(seed: int) -> None:
    random = Random(seed)
    graph, edges = random_graph(random)
    units = sorted({unit for edge in edges for unit in (edge.low, edge.high)} - {VERTEX})
    avoided = tuple(random.sample(units, min(2, len(units))))
    for closed in ((), avoided):
        expected = brute_force(edges, closed)
        for unit in units:
            path = graph.path(unit, closed)
            if unit in closed:
                continue
            assert (path and path[:3]) == expected.get(unit)
            if path is not None:
                levels = [next(each.level for each in (VERTEX, *units) if each.id == step) for step in path.units]
                assert levels == sorted(levels) and not {each.id for each in closed} & set(path.units)


def test_a_change_leaves_the_levels_below_it_alone() -> None:
    graph, _ = random_graph(Random(3))
    units = [graph.units(level) for level in range(TOP + 1)]
    paths = {unit: graph.path(unit) for level in units for unit in level}
    computed = list(graph.computed)
    extra = edge_of(VERTEX, Unit(2, UnitId(b"new")), 2)
    graph.put(extra, b"c", 0)
    assert graph.path(Unit(2, UnitId(b"new"))) == UnitPath(2, 1, -1, (VERTEX.id, UnitId(b"new")))
    graph.remove(extra, b"c")
    assert {unit: graph.path(unit) for level in units for unit in level} == paths
    assert graph.computed[:2] == computed[:2] and graph.computed[2] > computed[2]


def test_an_edge_is_as_dear_as_its_cheapest_connection() -> None:
    graph = ConnectivityGraph(VERTEX, TOP)
    edge = edge_of(VERTEX, Unit(1, UnitId(b"a")), 1)
    graph.put(edge, b"slow", 8)
    assert [(cost, count) for _, cost, count in graph.edges()] == [(9, 1)]
    graph.put(edge, b"idle", 0)
    assert [(cost, count) for _, cost, count in graph.edges()] == [(1, 2)]
    graph.remove(edge, b"idle")
    graph.remove(edge, b"slow")
    assert not list(graph.edges()) and graph.path(Unit(1, UnitId(b"a"))) is None
