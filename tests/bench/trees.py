"""Copies and load on trees, counted in graphs of the protocol's own code: the same on every machine.

python -m tests.bench.trees [largest number of nodes]      prints the table of docs/SCALE.md
"""

import sys
from collections import Counter
from random import Random

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.routes.trees import RouteGraph
from tests.bench.interest import SIZES
from tests.overlay.protocol.interest.spread import regular

LARGEST = 1_024


def node_id(number: int) -> NodeId:
    """Ids are random, as hashes that break ties expect."""
    return NodeId(Random(number).randbytes(16))


def graph_of(edges: list[tuple[int, int]]) -> RouteGraph:
    lists: dict[NodeId, list[NodeId]] = {}
    for one, other in edges:
        lists.setdefault(node_id(one), []).append(node_id(other))
        lists.setdefault(node_id(other), []).append(node_id(one))
    return RouteGraph(lists)


def measured(nodes: int) -> tuple[str, ...]:
    """Every node sends one message to all others."""
    edges = regular(nodes, Random(nodes))
    graph = graph_of(edges)
    loads: Counter[frozenset[NodeId]] = Counter({frozenset((node_id(a), node_id(b))): 0 for a, b in edges})
    copies, depths = 0, []
    for root in graph.neighbours:
        tree = graph.tree(root)
        copies += len(tree.parent)
        depths.append(tree.depth())
        loads.update(frozenset(link) for link in tree.parent.items())
    flooded = 2 * len(edges) - nodes + 1
    mean = loads.total() / len(edges)
    facts = (nodes, copies // nodes, flooded, f"{flooded * nodes / copies:.2f}", max(depths))
    return (*(f"{fact:,}" if isinstance(fact, int) else fact for fact in facts), f"{max(loads.values()) / mean:.2f}")


def main() -> None:
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else LARGEST
    print("| nodes | copies along a tree | copies of a flood | ratio | hops, at most | busiest link, of the mean |")
    print("| --- | --- | --- | --- | --- | --- |")
    for nodes in (size for size in (8, 16, *SIZES[1:]) if size <= largest):
        print("|", " | ".join(measured(nodes)), "|", flush=True)


if __name__ == "__main__":
    main()
