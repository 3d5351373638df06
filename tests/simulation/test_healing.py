"""Failures that only look like ones, what a big failure leaves of a channel, and how it becomes whole and strong
again."""

from itertools import combinations

import networkx
import pytest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.protocol.effects import Output, Publish, Shutdown, Staged, Trace, Wake
from m4cast.overlay.sim.checkers import unsettled, unsettled_graph
from m4cast.overlay.sim.graph import graph_facts
from m4cast.overlay.sim.places import Network, Observer, Place
from m4cast.overlay.sim.run import ScenarioPlan, ScenarioRun, settled
from m4cast.overlay.sim.world import World, node_config
from tests.simulation.figures import facts, linked_world


def settled_world(nodes: int, cluster: ClusterConfig, network: Network, seed: int = 1) -> World:
    world = World(seed, cluster, network)
    for index in range(nodes):
        world.start(world.add(node_config(index, (0, 1))))
        world.run(world.now_ms + 500)
    assert world.run_until(lambda: not unsettled_graph(world), 60_000)
    return world


def test_a_batch_that_takes_longer_than_any_time_out_arrives_once() -> None:
    """10 s on each link, against time-outs of 2 and 5 s: what is on its way is neither silence nor a failed pull."""
    world = settled_world(3, ClusterConfig(), Network(bytes_per_ms=100))
    edges = world.edges()
    world.feed(world.up()[0], Publish(1, (Staged("t", 1, 1, bytes(1_000_000)),)))
    assert world.run_until(lambda: not unsettled(world) and bool(world.up()[2].disk.content.logs), 60_000)
    assert world.edges() == edges
    assert all(place.node is not None and place.node.dissemination.ordering.duplicates == 0 for place in world.up())


@pytest.mark.parametrize("seed", range(5))
def test_a_fragment_that_knows_of_others_finds_them(seed: int) -> None:
    """Two neighbours are cut off from the rest, which goes on without them. Beacons are too rare to tell."""
    cluster = ClusterConfig(beacon_interval_ms=3_600_000)
    world = settled_world(12, cluster, Network(), seed)
    pair = world.random.choice(world.edges())
    for address in pair:
        for end in list(world.places[address].ends.values()):
            if end.other.place.address not in pair:
                world.cables.break_connection(end)
    world.run(world.now_ms + 10)
    assert "the graph is not connected" in unsettled_graph(world)
    assert world.run_until(lambda: not unsettled_graph(world), 30_000)


# ---- any degree - 1 nodes


def assert_any_crashes_leave_one_piece(world: World, crashes: int) -> None:
    """Every way to take so many nodes out of the graph as it is."""
    nodes = [place.address for place in world.up()]
    near: dict[str, list[str]] = {address: [] for address in nodes}
    for a, b in world.edges():
        near[a].append(b)
        near[b].append(a)
    for gone in combinations(nodes, crashes):
        left = [address for address in nodes if address not in gone]
        seen, todo = {left[0]}, [left[0]]
        while todo:
            fresh = [other for other in near[todo.pop()] if other not in seen and other not in gone]
            seen.update(fresh)
            todo += fresh
        assert len(seen) == len(left), f"without {gone} it falls apart"


def strength(world: World) -> int | None:
    return graph_facts([place.address for place in world.up()], world.edges()).vertex_connectivity


@pytest.mark.parametrize("degree", [3, 4, 5, 6])
def test_up_to_12_nodes_survive_any_crash_of_one_less_than_their_neighbours(degree: int) -> None:
    """The graph is strong as soon as it has been mended, which takes no longer than three beacons."""
    for nodes in range(degree + 2, 13):
        for seed in (1, 2):
            run = ScenarioRun(ScenarioPlan("grow", nodes, degree, seed))
            assert run.join(nodes)
            one_short = degree % 2 and nodes % 2  # one node has a neighbour less, who need not be missed
            wanted = degree - one_short
            mended = run.world.run_until(
                lambda run=run, wanted=wanted: strength(run.world) == wanted,  # type: ignore[misc]
                3 * run.world.cluster.beacon_interval_ms,
            )
            assert mended, f"{nodes} nodes, degree {degree}, seed {seed}: {strength(run.world)}"
            assert_any_crashes_leave_one_piece(run.world, wanted - 1)


def test_seven_weak_nodes_become_strong() -> None:
    """About every sixth graph of 7 nodes falls apart without three of them; most swaps would leave it so."""
    weak = 0
    for seed in range(15):
        run = ScenarioRun(ScenarioPlan("grow", 7, 4, seed))
        assert run.join(7)
        weak += strength(run.world) == 3
        mended = run.world.run_until(
            lambda run=run: strength(run.world) == 4,  # type: ignore[misc]
            3 * run.world.cluster.beacon_interval_ms,
        )
        assert mended and settled(run.world), f"seed {seed}"
    assert weak > 0


# ---- large failures and split networks


def together(world: World) -> bool:
    return graph_facts([place.address for place in world.up()], world.edges()).connected and settled(world)


def crashed(nodes: int, share: float, seed: int, passive_max: int) -> ScenarioRun:
    """A channel of which a part crashed at once; beacons are as often as in a real one."""
    run = ScenarioRun(ScenarioPlan("rejoin", nodes, seed=seed), passive_max=passive_max)
    assert run.join(nodes)
    for place in run.random.sample(run.world.up(), int(nodes * share)):
        run.world.crash(place, silent=True)
    return run


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_what_a_mass_crash_leaves_comes_together(share: float) -> None:
    run = crashed(100, share, seed=1, passive_max=1_024)
    survivors = run.world.up()
    for _ in range(run.plan.messages):
        run.publish()
    assert run.world.run_until(lambda: together(run.world), 120_000)
    assert run.deliver(survivors) == 1
    assert run.metrics.duplicates == run.metrics.out_of_order == 0


def test_without_a_passive_list_the_pieces_stay_apart() -> None:
    run = crashed(100, 0.8, seed=1, passive_max=0)
    assert not run.world.run_until(lambda: together(run.world), 120_000)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (3, 3), (9, 3), (10, 10), (4, 4, 4)])
def test_a_split_network_heals_whatever_the_sizes_of_its_parts(sizes: tuple[int, ...]) -> None:
    """The run takes five minutes, with batches published on all sides."""
    run = ScenarioRun(ScenarioPlan("partition", sum(sizes), seed=3))
    assert run.join(sum(sizes))
    places = run.world.up()
    parts, rest = [], list(places)
    run.random.shuffle(rest)
    for size in sizes[1:]:
        parts.append([rest.pop() for _ in range(size)])
    run.world.split(*parts)
    run.publish_during(200_000)
    run.run_for(300_000)
    run.world.mend()
    assert run.world.run_until(lambda: together(run.world), 60_000)
    assert run.world.run_until(lambda: not unsettled(run.world), 10_000)
    assert run.deliver(places) == 1
    assert all(place.started == 1 for place in places), "nobody was restarted"


def test_halves_are_joined_by_as_many_links_as_a_node_has_without_a_common_node() -> None:
    """Swaps of one merge have different ends. Two merges that begin at once may share one; then a later swap makes up
    for it, and the seam is as strong as the graph."""
    run = ScenarioRun(ScenarioPlan("partition", 30, degree=6, seed=1))
    assert run.join(30)
    half = run.random.sample(run.world.up(), 15)
    names = {place.address for place in half}
    run.world.split(half)
    run.run_for(40_000)
    run.world.mend()

    def links_without_a_common_node() -> int:
        seam = networkx.Graph([edge for edge in run.world.edges() if (edge[0] in names) != (edge[1] in names)])
        return len(networkx.max_weight_matching(seam, maxcardinality=True))

    assert run.world.run_until(lambda: links_without_a_common_node() >= 6, 60_000, step_ms=100)


def test_a_word_that_a_node_failed_is_refuted() -> None:
    """One end of a link says that the other failed, which lives on: everybody hears it again, and nobody calls it."""
    world = settled_world(12, ClusterConfig(), Network())
    accuser, accused = world.up()[:2]
    assert accuser.node is not None and accused.node is not None
    accuser.node.liveness.accuse(accused.node.me, world.now_ms)
    world.feed(accuser, Wake())
    hearing = [place.node for place in world.up() if place.node is not None and place is not accused]
    world.run(world.now_ms + 1_000)
    assert all(node.roster.hears(accused.node.me.node_id, world.now_ms) for node in hearing)
    assert accused.node.roster.own.counter > 0
    assert not unsettled_graph(world)


def test_a_crash_is_known_everywhere_before_beacons_are_missed() -> None:
    world = settled_world(12, ClusterConfig(), Network())
    victim = world.up()[-1]
    assert victim.node is not None
    lost = victim.node.me.node_id
    world.crash(victim, silent=False)
    world.run(world.now_ms + 1_000)
    assert not any(place.node.roster.hears(lost, world.now_ms) for place in world.up() if place.node is not None)


class Swaps(Observer):
    def __init__(self) -> None:
        self.made = 0

    def output(self, place: Place, output: Output) -> None:
        self.made += isinstance(output, Trace) and output.name == "swapped"


def test_flips_go_on_without_ever_breaking_the_graph() -> None:
    run = ScenarioRun(ScenarioPlan("grow", 24), flip_interval_ms=2_000)
    swaps = Swaps()
    run.world.watch(swaps)
    assert run.join(24)
    for _ in range(100):
        run.run_for(100)
        assert "the graph is not connected" not in unsettled_graph(run.world)
    assert swaps.made > 20


def test_flips_make_a_long_graph_round() -> None:
    """A ring of 24 in which everybody has the two next on each side is 6 long; a random graph of that size is not."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWX"
    pairs = [(at, (at + step) % 24) for at in range(24) for step in (1, 2)]
    world = linked_world(sorted("".join(sorted((letters[a], letters[b]))) for a, b in pairs))
    assert facts(world).eccentricity_max == 6
    for _ in range(10):
        for place in world.up():
            assert place.node is not None
            place.node.lookout.flip(world.now_ms)
            world.feed(place, Wake())
            world.run(world.now_ms + 200)
    assert world.run_until(lambda: settled(world), 10_000)
    assert facts(world).eccentricity_max <= 4


# ---- all of it at once


def test_the_word_that_shuts_the_channel_down_reaches_everybody_and_it_comes_back_whole() -> None:
    """Rows are published until the last moment: none is lost, since each is on the disk of its node."""
    run = ScenarioRun(ScenarioPlan("grow", 16, messages=40))
    assert run.join(16)
    places = run.world.up()
    run.publish_all(gap_ms=2)
    run.world.feed(places[11], Shutdown())
    assert run.world.run_until(lambda: not run.world.up(), 10_000), [place.name for place in run.world.up()]
    for place in places:
        run.world.start(place)
    assert run.world.run_until(lambda: not unsettled(run.world), 60_000)
    assert run.deliver(places) == 1
    assert run.metrics.duplicates == run.metrics.out_of_order == 0


# ---- portals


def test_disjoint_sets_of_portals_make_two_channels_until_a_node_knows_both() -> None:
    """The patents' limit: nobody in one of them has ever heard of the other."""
    world = World(1)
    for index, portals in enumerate([(0,), (1,), (0,), (1,), (0,), (1,)]):
        world.start(world.add(node_config(index, portals)))
    world.run(120_000)
    assert "the graph is not connected" in unsettled_graph(world)
    assert len(world.edges()) == 6, "two complete graphs of three"
    world.start(world.add(node_config(6, (0, 1))))
    assert world.run_until(lambda: not unsettled_graph(world), 120_000)
