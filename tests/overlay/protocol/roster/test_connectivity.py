"""Weak places of a graph: found where they are, nowhere else, and mended by the swap that is proposed."""

from random import Random

import networkx
import pytest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.roster.connectivity import Connectivity, Graph, near_side, united


def name(number: int) -> NodeId:
    return NodeId(number.to_bytes(16, "big"))


def as_graph(graph: "networkx.Graph[int]") -> Graph:
    return {name(node): [name(other) for other in graph[node]] for node in graph}


def some_graph(seed: int) -> "networkx.Graph[int]":
    random = Random(seed)
    nodes, degree = random.randint(6, 14), random.choice((3, 4, 5))
    graph: networkx.Graph[int]
    if seed % 2:
        graph = networkx.gnp_random_graph(nodes, random.uniform(0.2, 0.6), seed=seed)
    else:
        graph = networkx.random_regular_graph(degree, nodes + nodes * degree % 2, seed=seed)
    return graph


@pytest.mark.parametrize("degree", [3, 4, 5])
def test_as_many_ways_as_networkx_finds(degree: int) -> None:
    weak = 0
    for seed in range(300):
        graph = some_graph(seed)
        a, b = Random(seed).sample(range(len(graph)), 2)
        if graph.has_edge(a, b):
            continue
        ways = len(list(networkx.node_disjoint_paths(graph, a, b))) if networkx.has_path(graph, a, b) else 0
        side = near_side(as_graph(graph), name(a), name(b), degree)
        wanted = min(degree, graph.degree[a], graph.degree[b])
        assert (side is None) == (ways >= wanted), seed
        if side is not None:
            weak += 1
            inside = {node for node in graph if name(node) in side}
            cut = {other for node in inside for other in graph[node]} - inside
            assert len(cut) == ways
            assert a in inside and b not in inside | cut
    assert weak > 5, "there were weak ones among them"


def two_cliques(size: int, bridges: int) -> "networkx.Graph[int]":
    """Two complete parts that hang together by a few nodes."""
    graph: networkx.Graph[int] = networkx.complete_graph(size)
    graph.update(networkx.relabel_nodes(networkx.complete_graph(size), lambda node: node + size))
    for bridge in range(bridges):
        graph.remove_edge(2 * bridge, 2 * bridge + 1)
        graph.remove_edge(size + 2 * bridge, size + 2 * bridge + 1)
        graph.add_edge(2 * bridge, size + 2 * bridge)
        graph.add_edge(2 * bridge + 1, size + 2 * bridge + 1)
    return graph


def seven_that_only_an_edge_into_the_cut_mends() -> "networkx.Graph[int]":
    return networkx.complement(networkx.disjoint_union(networkx.cycle_graph(3), networkx.cycle_graph(4)))


WEAK = {
    "two parts of five": (two_cliques(5, 1), 4),
    "two parts of seven": (two_cliques(7, 1), 6),
    "seven": (seven_that_only_an_edge_into_the_cut_mends(), 4),
}


@pytest.mark.parametrize("case", WEAK)
def test_swaps_of_those_who_look_mend_the_graph(case: str) -> None:
    """Every node looks in turn, and what it proposes is done."""
    graph, degree = WEAK[case]
    graph = graph.copy()
    assert networkx.node_connectivity(graph) < degree
    lookers = {node: Connectivity(name(node), degree, Random(node)) for node in graph}
    for turn in range(40):
        for node, looker in lookers.items():
            told = {name(other): tuple(map(name, graph[other])) for other in graph if other != node}
            found = looker.look(lambda now_ms, told=told: told, list(map(name, graph[node])), turn, 0)  # type: ignore[misc]
            if found is not None:
                other, partner, theirs = (
                    int.from_bytes(each, "big") for each in (found.other, found.partner, found.give_up[0])
                )
                graph.remove_edges_from([(node, partner), (other, theirs)])
                assert not graph.has_edge(node, other) and not graph.has_edge(partner, theirs)
                graph.add_edges_from([(node, other), (partner, theirs)])
    assert networkx.node_connectivity(graph) == degree
    assert {graph.degree[node] for node in graph} == {degree}


def test_a_strong_graph_is_left_alone_and_not_looked_at_for_ever() -> None:
    graph = networkx.random_regular_graph(4, 30, seed=3)
    assert networkx.node_connectivity(graph) == 4
    told = {name(node): tuple(map(name, graph[node])) for node in graph if node}
    asked = []

    def ask(now_ms: int) -> dict[NodeId, tuple[NodeId, ...]]:
        asked.append(now_ms)
        return told

    looker = Connectivity(name(0), 4, Random(1))
    for now_ms in range(100):
        assert looker.look(ask, list(map(name, graph[0])), 1, now_ms) is None
    assert 5 < len(asked) < 30, "until all others had been looked at"
    looker.look(ask, list(map(name, graph[0])), 2, 100)
    assert asked[-1] == 100, "and again when something has changed"


def test_an_edge_is_there_if_either_end_tells_of_it() -> None:
    told = {name(1): (name(2), name(9)), name(2): (), name(3): (name(0),)}
    graph = united(told, name(0), [name(1)])
    assert {node: sorted(others) for node, others in graph.items()} == {
        name(0): [name(1), name(3)],
        name(1): [name(0), name(2), name(9)],
        name(2): [name(1)],
        name(3): [name(0)],
        name(9): [name(1)],
    }


def test_a_graph_of_which_too_many_nodes_have_not_told_is_not_looked_at() -> None:
    graph, degree = WEAK["two parts of five"]
    mine = list(map(name, graph[0]))
    told = {name(node): tuple(map(name, graph[node])) for node in graph if node}
    found = [Connectivity(name(0), degree, Random(seed)).look(lambda _: told, mine, 1, 0) for seed in range(20)]
    assert any(found)
    told.pop(name(9))
    assert not any(Connectivity(name(0), degree, Random(seed)).look(lambda _: told, mine, 1, 0) for seed in range(20))
