"""Facts about a graph of nodes and links: regular, connected, how far apart, how many cuts it survives.

Distances are found for all nodes at once: each node has a number whose bits are the nodes it has reached, and one
round unites it with its neighbours' numbers. That takes a second at 20,000 nodes. Connectivity is networkx's work
and is computed only for as many nodes as take it a second or two, since it grows with their square.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from m4cast.overlay.errors import M4castError

if TYPE_CHECKING:
    import networkx

EDGE_CONNECTIVITY_NODES_MAX = 1_000
VERTEX_CONNECTIVITY_NODES_MAX = 200

Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class GraphFacts:
    nodes: int
    edges: int
    degree_min: int
    degree_max: int
    connected: bool
    edge_connectivity: int | None
    """Number of links whose loss splits it; None: not computed. (Same below, with nodes.)"""
    vertex_connectivity: int | None
    eccentricity_max: int
    """The longest of the shortest ways; of the farthest pair that can reach each other, if not all can."""


def edges_when_settled(nodes: int, degree: int) -> int:
    """Complete up to degree + 1 nodes; then regular, with one node one short when both numbers are odd."""
    return nodes * (nodes - 1) // 2 if nodes <= degree + 1 else nodes * degree // 2


def graph_facts(nodes: Sequence[str], edges: Sequence[Edge]) -> GraphFacts:
    degrees = dict.fromkeys(nodes, 0)
    for a, b in edges:
        degrees[a] += 1
        degrees[b] += 1
    connected, eccentricity_max = _spread(nodes, edges)
    edge_connectivity, vertex_connectivity = _connectivity(nodes, edges)
    return GraphFacts(
        nodes=len(nodes),
        edges=len(edges),
        degree_min=min(degrees.values(), default=0),
        degree_max=max(degrees.values(), default=0),
        connected=connected,
        eccentricity_max=eccentricity_max,
        edge_connectivity=edge_connectivity,
        vertex_connectivity=vertex_connectivity,
    )


def _spread(nodes: Sequence[str], edges: Sequence[Edge]) -> tuple[bool, int]:
    """(connected, largest distance of two nodes that reach each other)"""
    place = {node: index for index, node in enumerate(nodes)}
    near: list[list[int]] = [[] for _ in nodes]
    for a, b in edges:
        near[place[a]].append(place[b])
        near[place[b]].append(place[a])
    reached = [1 << index for index in range(len(nodes))]
    rounds = 0
    while True:
        onward = []
        for index, neighbours in enumerate(near):
            union = reached[index]
            for neighbour in neighbours:
                union |= reached[neighbour]
            onward.append(union)
        if onward == reached:
            break
        reached = onward
        rounds += 1
    everybody = (1 << len(nodes)) - 1
    return all(each == everybody for each in reached), rounds


def _connectivity(nodes: Sequence[str], edges: Sequence[Edge]) -> tuple[int | None, int | None]:
    if len(nodes) < 2:
        return 0, 0
    if len(nodes) > EDGE_CONNECTIVITY_NODES_MAX:
        return None, None
    graph = as_networkx(nodes, edges)
    import networkx

    vertex_connectivity = (
        int(networkx.node_connectivity(graph)) if len(nodes) <= VERTEX_CONNECTIVITY_NODES_MAX else None
    )
    return int(networkx.edge_connectivity(graph)), vertex_connectivity


def as_networkx(nodes: Sequence[str], edges: Sequence[Edge]) -> "networkx.Graph[str]":
    need_networkx()
    import networkx

    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    return graph


def need_networkx() -> None:
    """Raise an error that people can act on, before a long run rather than after it."""
    try:
        import networkx  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise M4castError(
            "facts about the graph need networkx, which is not installed: pip install m4cast[sim]"
        ) from error
