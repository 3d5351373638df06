"""Trees, paths and splits against the fixtures of P2P-DIET (F1 to F3b) and its claims P60 to P66."""

from collections import Counter, deque
from random import Random

import pytest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.routes.trees import TREES_MAX, RouteGraph, hop_limit

Edges = list[tuple[int, int]]
G: Edges = [(1, 2), (2, 3), (1, 4), (1, 5), (4, 6), (5, 6)]
"""F3: the smallest graph that fits the figures 4.1 and 4.2."""


def n(number: int) -> NodeId:
    return NodeId(number.to_bytes(16, "big"))


def number(node_id: NodeId) -> int:
    return int.from_bytes(node_id, "big")


def graph(edges: Edges, without: tuple[int, ...] = ()) -> RouteGraph:
    lists: dict[NodeId, list[NodeId]] = {}
    for one, other in edges:
        lists.setdefault(n(one), []).append(n(other))
        lists.setdefault(n(other), []).append(n(one))
    return RouteGraph({node_id: others for node_id, others in lists.items() if number(node_id) not in without})


def broadcast(edges: Edges, root: int, known: dict[int, RouteGraph] | None = None, limit: int = 99) -> Counter[int]:
    """Deliveries at each node, when every node passes on by its own graph; `known`: graphs that differ."""
    everybody = graph(edges)
    got: Counter[int] = Counter()
    destinations = tuple(node_id for node_id in everybody.neighbours if node_id != n(root))
    todo = deque([(root, destinations, 0)])
    copies = 0
    while todo:
        at, wanted, hops = todo.popleft()
        split = (known or {}).get(at, everybody).split(n(root), n(at), wanted)
        got[at] += split.is_here
        for via, rest in split.onward.items():
            if hops < limit and via in everybody.neighbours[n(at)]:
                copies += 1
                todo.append((number(via), rest, hops + 1))
    got[-1] = copies
    return got


def random_edges(random: Random) -> Edges:
    count = random.randint(4, 14)
    edges = {(i, random.randrange(i)) for i in range(1, count)}
    for _ in range(count):
        one, other = random.sample(range(count), 2)
        if (other, one) not in edges:
            edges.add((one, other))
    return sorted(edges)


def test_unicast() -> None:
    """F1, P60: 6 to 2 goes over 4 or 5, which are equally near; without 4 it goes over 5; a neighbour is one hop."""
    paths = [number(each) for each in graph(G).path(n(6), n(2))]
    assert paths in ([6, 4, 1, 2], [6, 5, 1, 2])
    assert [number(each) for each in graph(G, without=(4,)).path(n(6), n(2))] == [6, 5, 1, 2]
    assert graph(G).path(n(2), n(3)) == [n(2), n(3)]
    assert graph(G).path(n(2), n(2)) == [n(2)]
    parted = graph(G, without=(1,))
    assert parted.path(n(2), n(6)) == []
    assert [number(each) for each in parted.path(n(4), n(5))] == [4, 6, 5]
    assert graph(G).path(n(9), n(2)) == []


@pytest.mark.parametrize(
    ("root", "weights"),
    [
        (1, [0, 1, 2, 1, 1, 2]),
        (2, [1, 0, 1, 2, 2, 3]),
        (3, [2, 1, 0, 3, 3, 4]),
        (4, [1, 2, 3, 0, 2, 1]),
        (5, [1, 2, 3, 2, 0, 1]),
        (6, [2, 3, 4, 1, 1, 0]),
    ],
)
def test_weights_and_broadcast(root: int, weights: list[int]) -> None:
    """F2, F3, P61: weights are those of a breadth-first search; each node once, N - 1 = 5 copies."""
    tree = graph(G).tree(n(root))
    assert [tree.hops[n(each)] for each in range(1, 7)] == weights
    got = broadcast(G, root)
    assert got.pop(-1) == 5
    assert got == {each: int(each != root) for each in range(1, 7)}


def test_send_nodes_of_the_figure() -> None:
    """F2: root 2 sends to 1 and 3, 1 to 4 and 5, and one of these to 6."""
    children = {number(each): [number(to) for to in below] for each, below in graph(G).tree(n(2)).children().items()}
    assert children[2] == [1, 3]
    assert children[1] == [4, 5]
    assert sorted(children[4] + children[5]) == [6]
    assert children[3] == children[6] == []


def test_ends_of_better_parents() -> None:
    """F3a, F3b, P62: what the messages of the thesis end in, whatever the delays of links."""
    triangle = [(1, 2), (2, 3), (1, 3)]
    children = graph(triangle).tree(n(1)).children()
    assert {number(each): [number(to) for to in below] for each, below in children.items()} == {1: [2, 3], 2: [], 3: []}
    tree = graph([*triangle, (3, 4)]).tree(n(1))
    assert tree.children()[n(3)] == [n(4)]
    assert tree.hops[n(4)] == 2


@pytest.mark.parametrize("seed", range(100))
def test_random_graphs(seed: int) -> None:
    """P61: BFS weights, each node once, over every root."""
    edges = random_edges(Random(seed))
    whole = graph(edges)
    for root in whole.neighbours:
        tree = whole.tree(root)
        for node_id, parent in tree.parent.items():
            assert parent in whole.neighbours[node_id]
            assert tree.hops[node_id] == tree.hops[parent] + 1
            assert tree.hops[node_id] == 1 + min(tree.hops[each] for each in whole.neighbours[node_id])
        got = broadcast(edges, number(root))
        assert got.pop(-1) == len(whole.neighbours) - 1
        assert got == {number(each): int(each != root) for each in whole.neighbours}


def test_multicast_shares_hops() -> None:
    """3 and 4 can be reached over 1 or 2 each, 5 over 2 alone: all of them go over 2. From 6 to 8, 7 is a member."""
    shared = [(0, 1), (0, 2), (1, 3), (2, 3), (1, 4), (2, 4), (2, 5), (0, 6), (0, 7), (6, 8), (7, 8)]
    for root in range(9, 40):  # whatever its hash says
        whole = graph([*shared, (root, 0)])
        assert whole.split(n(root), n(0), (n(3), n(4), n(5))).onward == {n(2): (n(3), n(4), n(5))}
        assert whole.split(n(root), n(0), (n(8), n(7))).onward == {n(7): (n(8), n(7))}
        assert whole.split(n(root), n(0), (n(8), n(6))).onward == {n(6): (n(8), n(6))}
        assert whole.path(n(root), n(8))[2] == next(iter(whole.split(n(root), n(0), (n(8),)).onward))


@pytest.mark.parametrize("seed", range(20))
def test_multicast_takes_shortest_paths_and_no_more_copies_than_the_tree(seed: int) -> None:
    random = Random(seed)
    whole = graph(random_edges(random))
    shared = along_the_tree = 0
    for root in whole.neighbours:
        members = random.sample(sorted(whole.neighbours), min(3, len(whole.neighbours)))
        tree = whole.tree(root)
        along_the_tree += len({node for to in members for node in tree.path(to)[1:]})
        under_way = [(root, tuple(members), 0)]
        reached = []
        while under_way:
            at, to, hops = under_way.pop()
            split = whole.split(root, at, to)
            if split.is_here:
                reached.append(at)
                assert hops == tree.hops[at]
            under_way += [(via, onward, hops + 1) for via, onward in split.onward.items()]
            shared += len(split.onward)
        assert sorted(reached) == sorted(members)
    assert shared <= along_the_tree


def test_multicast_reaches_members_and_costs_no_more_than_their_paths() -> None:
    """P63: 3 and 6 of root 2; relays that are no members take nothing."""
    whole = graph(G)
    split = whole.split(n(2), n(2), (n(3), n(6)))
    assert split == (False, {n(3): (n(3),), n(1): (n(6),)}, ())
    relay = whole.split(n(2), n(1), (n(6),))
    assert (relay.is_here, len(relay.onward)) == (False, 1)
    end = whole.split(n(2), n(6), (n(6), n(6)))
    assert end == (True, {}, ())
    assert whole.split(n(2), n(1), (n(9),)).unreachable == (n(9),)


def test_who_is_not_on_the_roots_way_sends_along_its_own() -> None:
    """Node 3 is no relay from root 1 to 6 by its own graph, and yet it has the message."""
    assert graph(G).split(n(1), n(3), (n(6),)).onward == {n(2): (n(6),)}
    assert graph(G).split(n(9), n(4), (n(6),)).onward == {n(6): (n(6),)}  # the root is not known here


def test_roots_use_different_links() -> None:
    """P64: over all roots, the busiest link of a regular graph has less than three times its share."""
    random = Random(7)
    edges = [(i, j) for i in range(5) for j in range(i)]
    for new in range(5, 64):
        taken: set[int] = set()
        while len(taken) < 4:
            at = random.randrange(len(edges))
            one, other = edges[at]
            if new not in (one, other) and not taken & {one, other}:
                edges[at] = (one, new)
                edges.append((other, new))
                taken |= {one, other}
    whole = graph(edges)
    load: Counter[frozenset[NodeId]] = Counter()
    for root in whole.neighbours:
        load.update(frozenset(pair) for pair in whole.tree(root).parent.items())
    share = 64 * 63 / len(edges)
    assert len(load) == len(edges)
    assert max(load.values()) < 3 * share


@pytest.mark.parametrize("seed", range(50))
def test_graphs_that_differ_cost_a_copy_or_a_pull_never_an_endless_walk(seed: int) -> None:
    """P65, P66: some nodes have not heard of the last one or two changes. Hops are limited, so it ends; a node may be
    missed, and pulls."""
    random = Random(seed)
    edges = random_edges(random)
    lost = random.sample(sorted({end for edge in edges for end in edge}), 2)
    alive = [edge for edge in edges if not set(edge) & set(lost)]
    nodes = sorted({end for edge in alive for end in edge})
    if len(nodes) < 2:
        return
    old = {each: graph(edges) if random.random() < 0.5 else graph(edges, without=(lost[0],)) for each in nodes}
    known = {each: old[each] if random.random() < 0.5 else graph(alive) for each in nodes}
    limit = hop_limit(graph(alive).diameter())
    got = broadcast(alive, nodes[0], known, limit)
    assert got.pop(-1) <= limit * len(nodes)
    again = broadcast(alive, nodes[0], None, limit)  # all have heard: everybody that can be reached gets it, once
    again.pop(-1)
    reached = graph(alive).tree(n(nodes[0])).hops
    assert again == {each: int(n(each) in reached and each != nodes[0]) for each in again}


def test_an_edge_counts_if_either_end_reports_it_and_trees_are_bounded() -> None:
    whole = RouteGraph({n(1): (n(2), n(9), n(1)), n(2): (), n(3): (n(2),)})
    assert whole.neighbours == {n(1): (n(2),), n(2): (n(1), n(3)), n(3): (n(2),)}
    line = graph([(i, i + 1) for i in range(200)])
    for root in line.neighbours:
        line.tree(root)
    assert len(line._trees) == TREES_MAX
    assert line.diameter() == 200
    assert hop_limit(3) == 10
