"""The patents' figures and numbers, shown by the machines themselves in small worlds."""

from collections import Counter
from itertools import combinations

import pytest

from m4cast.overlay.protocol.effects import Delivered, Leave, Output, Received, Trace
from m4cast.overlay.protocol.roster import connectivity
from m4cast.overlay.protocol.streams.pruning import PRUNE_AFTER
from m4cast.overlay.protocol.wire.batch import BatchFrame
from m4cast.overlay.protocol.wire.messages import ConnectionRequestResp, EdgeProposalCall, EdgeProposalResp
from m4cast.overlay.protocol.wire.selective import WireFrame
from m4cast.overlay.sim.places import End, Observer, Place
from m4cast.overlay.sim.run import ScenarioPlan, ScenarioRun, settled
from m4cast.overlay.sim.world import World
from tests.simulation.figures import (
    EQUAL_DELAYS,
    FIGURE_1,
    LINK_MS,
    Heard,
    end_walk,
    facts,
    flood,
    linked_world,
    links,
    node_of,
    pin,
    place_of,
    publish,
    start_alone,
)

SETTLE_MS = 60_000


def complete(letters: str) -> list[str]:
    return [a + b for a, b in combinations(letters, 2)]


def grown(nodes: int, degree: int = 4, seed: int = 1) -> ScenarioRun:
    run = ScenarioRun(ScenarioPlan("grow", nodes, degree, seed), network=EQUAL_DELAYS)
    assert run.join(nodes)
    return run


# ---- figure 1 and the count of copies


def test_figure_1_has_diameter_2_and_survives_any_three_nodes() -> None:
    figure = facts(linked_world(FIGURE_1))
    assert (figure.nodes, figure.edges, figure.degree_min, figure.degree_max) == (9, 18, 4, 4)
    assert figure.eccentricity_max == 2
    assert figure.vertex_connectivity == figure.edge_connectivity == 4


@pytest.mark.parametrize("origin", "ABCDEFGHI")
def test_a_batch_costs_28_copies_in_figure_1_and_takes_2_rounds(origin: str) -> None:
    world = linked_world(FIGURE_1)
    copies = flood(world, place_of(world, origin))
    assert sum(copies.by_link.values()) == 28
    assert max(copies.by_link.values()) == 1, "at most one copy per directed link"
    assert copies.hops_max == copies.rounds == 2


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        pytest.param(complete("AB"), 1, id="pair"),
        pytest.param(complete("ABC"), 4, id="K3"),
        pytest.param(complete("ABCD"), 9, id="K4"),
        pytest.param(complete("ABCDE"), 16, id="K5"),
        pytest.param(["AB", "BC", "CD", "DE"], 4, id="chain"),
        pytest.param(["AB", "AC", "AD", "AE"], 4, id="star"),
        pytest.param(["AB", "BC", "CD", "DE", "EF", "AF"], 7, id="ring"),
        pytest.param([edge for edge in complete("ABCDEF") if edge not in ("AD", "BE", "CF")], 19, id="octahedron"),
    ],
)
def test_copies_are_2e_minus_n_plus_1_in_any_graph(edges: list[str], expected: int) -> None:
    world = linked_world(edges, holes_stay=True)
    graph = facts(world)
    for request, origin in enumerate(world.up(), start=1):
        copies = flood(world, origin, request)
        assert sum(copies.by_link.values()) == 2 * graph.edges - graph.nodes + 1 == expected
        assert max(copies.by_link.values()) == 1
        assert copies.rounds <= graph.eccentricity_max


@pytest.mark.parametrize(
    ("nodes", "degree", "expected"), [(5, 4, 16), (9, 4, 28), (20, 4, 61), (20, 3, 41), (21, 6, 106)]
)
def test_copies_in_a_grown_graph(nodes: int, degree: int, expected: int) -> None:
    run = grown(nodes, degree)
    graph = facts(run.world)
    for request, origin in enumerate(run.world.up(), start=1):
        copies = flood(run.world, origin, request)
        assert sum(copies.by_link.values()) == 2 * graph.edges - graph.nodes + 1 == expected
        assert max(copies.by_link.values()) == 1
        assert copies.hops_max <= graph.eccentricity_max
        assert copies.rounds <= graph.eccentricity_max


@pytest.mark.parametrize("edges", [FIGURE_1, complete("ABCDE")], ids=["figure 1", "K5"])
def test_a_stream_that_lasts_costs_one_copy_per_delivery(edges: list[str]) -> None:
    """Duplicates are pruned away; what is left is a tree."""
    world = linked_world(edges)
    origin = place_of(world, "A")
    for request in range(1, 2 * PRUNE_AFTER):
        flood(world, origin, request)
    copies = flood(world, origin, 2 * PRUNE_AFTER)
    assert sum(copies.by_link.values()) == len(world.up()) - 1


def test_when_a_branch_of_a_pruned_stream_breaks_the_nodes_behind_it_have_the_rest_within_a_second() -> None:
    world = linked_world(FIGURE_1)
    origin = place_of(world, "A")
    copies = [flood(world, origin, request) for request in range(1, 2 * PRUNE_AFTER)][-1]
    via = Counter(sender for sender, _ in copies.by_link if sender != origin.name).most_common(1)[0][0]
    assert copies.by_link.keys() > {(origin.name, via)}
    world.crash(place_of(world, via.upper()), silent=True)
    before = world.now_ms
    last = flood(world, origin, 2 * PRUNE_AFTER)
    assert last.taken_by == {place.name for place in world.up() if place is not origin}
    assert last.last_taken_ms - before <= 1_000


def test_alone_a_publish_sends_nothing() -> None:
    world = World(1, network=EQUAL_DELAYS)
    copies = flood(world, start_alone(world, "A"))
    assert not copies.by_link


# ---- joins: figures 4A, 4B, 4C


def figure_4a() -> World:
    world = linked_world(FIGURE_1)
    pin(world, "J", "CD", "EH")
    world.run(world.now_ms + 5_000)
    return world


FIGURE_4A = (set(FIGURE_1) - {"CD", "EH"}) | {"CJ", "DJ", "EJ", "HJ"}


def test_figure_4a() -> None:
    world = figure_4a()
    assert links(world) == FIGURE_4A
    assert facts(world).eccentricity_max == 2
    assert facts(world).vertex_connectivity == 4


@pytest.mark.parametrize(
    ("pinned", "diameter"), [pytest.param(("BC", "EJ"), 3, id="4B"), pytest.param(("DG", "EJ"), 2, id="4C")]
)
def test_figures_4b_and_4c(pinned: tuple[str, str], diameter: int) -> None:
    world = figure_4a()
    pin(world, "K", *pinned)
    ends = {letter + "K" for edge in pinned for letter in edge}
    assert links(world) == (FIGURE_4A - set(pinned)) | ends
    world.run(world.now_ms + SETTLE_MS)
    assert links(world) == (FIGURE_4A - set(pinned)) | ends, "it stays"
    assert facts(world).eccentricity_max == diameter
    assert facts(world).vertex_connectivity == 4


class Pinned(Observer):
    """The edges that requesters took, in order: (near end, far end, requester)."""

    def __init__(self, world: World) -> None:
        self.taken: list[tuple[str, str, str]] = []
        self._names = {node_of(world, letter).me.node_id: letter for letter in "ABCDEFGHIJK"}
        self._offered: dict[tuple[str, str], str] = {}

    def sent(self, end: End, message: WireFrame) -> None:
        here, there = end.place.name.upper(), end.other.place.name.upper()
        if isinstance(message, EdgeProposalCall):
            self._offered[here, there] = self._names[message.neighbour.node_id]
        elif isinstance(message, EdgeProposalResp) and message.accepted:
            self.taken.append((there, self._offered[there, here], here))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("CD", "DC", id="from both ends"),
        pytest.param("DC", "DC", id="from one end"),
        pytest.param("DC", "DE", id="at one node"),
        pytest.param("DC", "ED", id="on a path"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_two_walks_never_pin_one_edge_twice(first: str, second: str, seed: int) -> None:
    """Two newcomers' walks end on the same edge, or on two edges of one node, at the same time."""
    world = linked_world(FIGURE_1, seed)
    for letter in "JK":
        start_alone(world, letter)
    pinned = Pinned(world)
    world.watch(pinned)
    world.run(world.now_ms + LINK_MS)
    end_walk(world, "J", first, search=1_000)
    end_walk(world, "K", second, search=1_001)
    world.run(world.now_ms + LINK_MS)
    for edge in (first, second):
        takers = [requester for near, far, requester in pinned.taken if {near, far} == set(edge)]
        assert len(takers) <= 1, f"{edge} was taken by {takers}"
    # Whoever came too late goes on searching, and both get their neighbours.
    assert world.run_until(lambda: settled(world), SETTLE_MS)
    assert facts(world).degree_min == 4 and facts(world).nodes == 11


# ---- the small regime


class JoinOrder(Observer):
    def __init__(self) -> None:
        self.full: list[str] = []

    def output(self, place: Place, output: Output) -> None:
        if isinstance(output, Trace) and output.name == "full":
            self.full.append(place.name)


@pytest.mark.parametrize("degree", [3, 4, 6])
def test_up_to_degree_plus_1_nodes_are_a_complete_graph_joining_one_by_one(degree: int) -> None:
    run = ScenarioRun(ScenarioPlan("grow", degree + 1, degree))
    order = JoinOrder()
    run.world.watch(order)
    for nodes in range(1, degree + 2):
        run.start_another()
        assert run.world.run_until(lambda: settled(run.world), SETTLE_MS)
        assert facts(run.world).edges == nodes * (nodes - 1) // 2
        assert facts(run.world).degree_min == nodes - 1
    assert order.full == [f"n{index}" for index in range(degree + 1)], "each is full once, the first one with nobody"


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("gap_ms", [0, 1, 10, 30])
def test_racing_joins_end_in_the_complete_graph(nodes: int, gap_ms: int) -> None:
    """Six nodes are the first of the large regime, so the border is raced across too."""
    for seed in range(12):
        run = ScenarioRun(ScenarioPlan("grow", nodes, 4, seed))
        assert run.join(nodes, gap_ms), f"seed {seed}: {run.world.edges()}"
        assert run.world.now_ms < SETTLE_MS, f"seed {seed}"


def test_expected_holes_are_3_2_1_0_for_the_second_to_the_fifth() -> None:
    run = ScenarioRun(ScenarioPlan("grow", 6))
    heard = Heard(ConnectionRequestResp)
    run.world.watch(heard)
    for _ in range(6):
        run.start_another()
        assert run.settle()
    assert [(to, message.expected_holes, message.ready) for _, to, message in heard.messages] == [
        ("n1", 3, True),
        ("n2", 2, True),
        ("n3", 1, True),
        ("n4", 0, True),
        ("n5", 0, False),  # large regime: the portal has no hole, walks find the edges
    ]


def test_the_sixth_node_makes_the_octahedron() -> None:
    run = grown(6)
    assert facts(run.world).edges == 12
    missing = set(combinations(sorted(run.world.places), 2)) - set(run.world.edges())
    assert len({node for edge in missing for node in edge}) == 6, "three pairs that are not linked share no node"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("how", ["leave", "crash"])
def test_shrink_from_6_to_1_and_regrow(how: str, seed: int) -> None:
    """Leave in any order. Without a portal the last one cannot found the channel again: it seeks until one is back."""
    run = ScenarioRun(ScenarioPlan("grow", 6, 4, seed))
    assert run.join(6)
    world = run.world
    places = list(world.places.values())
    portals = places[:3]
    run.random.shuffle(places)

    def whole() -> bool:
        return settled(world) or not any(place.up for place in portals)

    for place in places[1:]:
        if how == "leave":
            world.feed(place, Leave())
            assert world.run_until(lambda place=place: not place.up, 10_000)  # type: ignore[misc]
        else:
            world.crash(place, silent=seed % 2 == 0)
        assert world.run_until(whole, SETTLE_MS), f"{len(world.up())} are left: {world.edges()}"
    for place in places[1:]:
        world.start(place)
        assert world.run_until(whole, SETTLE_MS), f"{len(world.up())} are back: {world.edges()}"
    assert facts(world).edges == 12


# ---- the strict mode: no link to the portal


@pytest.mark.parametrize("strict", [True, False])
def test_a_strict_portal_does_not_become_the_neighbour_of_those_it_brings_in(strict: bool) -> None:
    """The setting matters from the sixth node on. Without it, some of so many walks end at an edge of the portal they
    began at."""
    linked = 0
    for seed in range(5):
        run = ScenarioRun(ScenarioPlan("grow", 20, 4, seed), strict_portal=strict)
        heard = Heard(ConnectionRequestResp)
        run.world.watch(heard)
        for count in range(20):
            run.start_another()
            run.run_for(2_500)  # the portal's walks are over; a newcomer with holes searches for itself after 3 s
            if count >= 5:
                portal, newcomer, _ = heard.messages[-1]
                assert newcomer == f"n{count}"
                names = {frozenset(place.split(":")[0] for place in edge) for edge in run.world.edges()}
                linked += frozenset((portal.replace("n", "h"), newcomer.replace("n", "h"))) in names
            assert run.settle()
    assert (linked > 0) is not strict


# ---- leaving and failing: figures 5A and 5C


@pytest.mark.parametrize("seed", range(5))
def test_figure_5a_the_leavers_neighbours_pair_up_in_the_only_possible_way(seed: int) -> None:
    world = linked_world(FIGURE_1, seed)
    world.feed(place_of(world, "H"), Leave())
    world.run(world.now_ms + LINK_MS)
    expected = {edge for edge in FIGURE_1 if "H" not in edge} | {"AI", "EF"}
    assert links(world) == expected
    assert facts(world).eccentricity_max == 2
    assert facts(world).vertex_connectivity == 4


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "reset"])
@pytest.mark.parametrize("seed", range(8))
def test_figure_5c_after_a_crash_the_graph_is_regular_again(seed: int, silent: bool) -> None:
    """H's neighbours A, E, F, I have a hole each; A-E is an edge already, so is A-F: searches alone may not do."""
    world = linked_world(FIGURE_1, seed)
    world.crash(place_of(world, "H"), silent=silent)
    patience_ms = world.cluster.heartbeat_timeout_ms + world.cluster.heartbeat_interval_ms if silent else 0
    assert world.run_until(lambda: settled(world), patience_ms + 15_000)
    graph = facts(world)
    assert (graph.nodes, graph.edges, graph.degree_min, graph.degree_max) == (8, 16, 4, 4)
    assert graph.connected


def test_figure_5e_a_complete_graph_does_not_look_for_more() -> None:
    """K5 less one is K4: one hole each, which is no problem."""
    world = linked_world(complete("ABCDE"))
    world.crash(place_of(world, "E"), silent=False)
    world.run(world.now_ms + 1_000)
    assert links(world) == set(complete("ABCD"))
    searches = Heard(object)
    world.watch(searches)
    world.run(world.now_ms + SETTLE_MS)
    kinds = {type(message).__name__ for _, _, message in searches.messages}
    assert kinds <= {"Heartbeat", "BeaconStmt"} | MERGE_PROBE, kinds


FIGURE_5F = ["AB", "AC", "AD", "AX", "BC", "BD", "BX", "CE", "CF", "DG", "DH", "EF", "EH", "EX", "FG", "FH", "GH", "GX"]


@pytest.mark.parametrize("seed", range(5))
def test_figure_5f_two_with_the_same_neighbours_in_a_larger_graph_are_repaired(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A and B have the same neighbours and a hole each when X fails, as if there were four nodes; there are eight."""
    monkeypatch.setattr(connectivity, "LOOKS_PER_BEACON", 0)  # else the graph, which is weak there, is mended before
    world = linked_world(FIGURE_5F, seed)
    world.crash(place_of(world, "X"), silent=False)
    assert world.run_until(lambda: settled(world), 30_000)
    graph = facts(world)
    assert (graph.nodes, graph.edges, graph.degree_min, graph.connected) == (8, 16, 4, True)


MERGE_PROBE = {"Hello", "SeekingConnectionCall", "SeekingConnectionResp"}
"""The crashed node is called now and then, in case it lives on in another component."""


# ---- the newcomer's example


class Deliveries(Observer):
    def __init__(self, name: str) -> None:
        self.name = name
        self.sequences: list[int] = []

    def output(self, place: Place, output: Output) -> None:
        if place.name == self.name and isinstance(output, Delivered):
            self.sequences.append(output.delivery.first_sequence)


@pytest.mark.parametrize("order", [(4, 5, 3), (5, 4, 3), (3, 5, 4), (5, 3, 4, 3, 5)])
def test_4_5_then_3_are_delivered_as_3_4_5(order: tuple[int, ...]) -> None:
    """O - M - Z: M has 1 and 2, then gets 4 and 5, then 3; it passes them on to Z, and delivers them, in order."""
    world = linked_world(["MO", "MZ"], holes_stay=True)
    origin, middle = place_of(world, "O"), place_of(world, "M")
    passed_on, middle_hands, newcomer_hands = Heard(BatchFrame), Deliveries("m"), Deliveries("z")
    world.watch(passed_on, middle_hands, newcomer_hands)
    for request in (1, 2):
        publish(world, origin, request)
    world.run(world.now_ms + 200)

    # What O sends from now on does not arrive by itself, but is kept, and handed to M in the wanted order.
    (link,) = origin.ends.values()
    link.silent = True
    for request in (3, 4, 5):
        publish(world, origin, request)
        world.run(world.now_ms + 10)
    frames = passed_on.between("o", "m")
    assert [frame.batch.first_sequence for frame in frames] == [1, 2, 3, 4, 5]
    link.silent = False
    for sequence in order:
        world.feed(middle, Received(link.other.conn, frames[sequence - 1]))
    world.run(world.now_ms + 1_000)

    assert [frame.batch.first_sequence for frame in passed_on.between("m", "z")] == [1, 2, 3, 4, 5]
    assert middle_hands.sequences == newcomer_hands.sequences == [1, 2, 3, 4, 5]
