"""Facts about graphs that are known from the books, and the same ones by networkx."""

from itertools import combinations

import networkx
import pytest

from m4cast.overlay.sim import graph as graph_module
from m4cast.overlay.sim.graph import as_networkx, edges_when_settled, graph_facts


@pytest.mark.parametrize(
    ("nodes", "degree", "edges"),
    [(0, 4, 0), (1, 4, 0), (2, 4, 1), (5, 4, 10), (6, 4, 12), (9, 4, 18), (4, 3, 6), (5, 3, 7), (7, 5, 17), (8, 5, 20)],
)
def test_edges_of_a_settled_graph(nodes: int, degree: int, edges: int) -> None:
    assert edges_when_settled(nodes, degree) == edges


@pytest.mark.parametrize(("nodes", "degree"), [(10, 3), (50, 4), (60, 5), (200, 4)])
def test_a_regular_graph_as_networkx_sees_it(nodes: int, degree: int) -> None:
    graph: networkx.Graph[int] = networkx.random_regular_graph(degree, nodes, seed=nodes)
    facts = graph_facts([str(node) for node in graph], [(str(a), str(b)) for a, b in graph.edges])
    assert (facts.nodes, facts.edges, facts.degree_min, facts.degree_max) == (
        nodes,
        nodes * degree // 2,
        degree,
        degree,
    )
    assert facts.connected == networkx.is_connected(graph)
    assert facts.eccentricity_max == networkx.diameter(graph)
    assert facts.edge_connectivity == networkx.edge_connectivity(graph)
    assert facts.vertex_connectivity == networkx.node_connectivity(graph)


def test_pieces() -> None:
    facts = graph_facts(list("ABCDEF"), [("A", "B"), ("B", "C"), ("C", "D"), ("E", "F")])
    assert not facts.connected
    assert facts.eccentricity_max == 3, "the farthest pair that can reach each other"
    assert facts.edge_connectivity == facts.vertex_connectivity == 0
    assert (facts.degree_min, facts.degree_max) == (1, 2)


def test_two_complete_graphs_with_one_node_in_common() -> None:
    edges = [*combinations("ABCD", 2), *combinations("DEFG", 2)]
    facts = graph_facts(list("ABCDEFG"), edges)
    assert facts.vertex_connectivity == 1
    assert facts.edge_connectivity == 3


@pytest.mark.parametrize("nodes", [0, 1])
def test_graphs_of_no_node_and_of_one(nodes: int) -> None:
    facts = graph_facts(["A"][:nodes], [])
    assert facts.connected
    assert facts.eccentricity_max == facts.degree_max == facts.edges == facts.edge_connectivity == 0


@pytest.mark.parametrize(("nodes", "edge", "vertex"), [(8, 2, 2), (9, 2, None), (12, 2, None), (13, None, None)])
def test_connectivity_is_computed_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, nodes: int, edge: int | None, vertex: int | None
) -> None:
    monkeypatch.setattr(graph_module, "VERTEX_CONNECTIVITY_NODES_MAX", 8)
    monkeypatch.setattr(graph_module, "EDGE_CONNECTIVITY_NODES_MAX", 12)
    names = [str(index) for index in range(nodes)]
    ring = [(names[index - 1], names[index]) for index in range(nodes)]
    facts = graph_facts(names, ring)
    assert (facts.edge_connectivity, facts.vertex_connectivity) == (edge, vertex)
    assert facts.eccentricity_max == nodes // 2


def test_as_networkx_keeps_nodes_without_links() -> None:
    graph = as_networkx(["A", "B"], [])
    assert set(graph) == {"A", "B"}
