"""Finding the channel by the order of its ports: one channel from a crowd, what the shuffle spreads, and the limits."""

from collections import Counter

import pytest

from m4cast.overlay.config import ClusterConfig, PortalShuffle
from m4cast.overlay.protocol.effects import Output, Trace
from m4cast.overlay.protocol.finding.port_order import port_order
from m4cast.overlay.protocol.wire.messages import ConnectedStmt, EdgeSearchCall, SeekingConnectionCall
from m4cast.overlay.protocol.wire.selective import WireFrame
from m4cast.overlay.sim.checkers import unsettled_graph
from m4cast.overlay.sim.places import End, Observer, Place
from m4cast.overlay.sim.run import ScenarioPlan, ScenarioRun
from m4cast.overlay.sim.scenarios import broken_promises, by_ports, empty_ports, simulate
from m4cast.overlay.sim.world import World, node_config
from tests.simulation.figures import Heard

ORDER = port_order(ClusterConfig(), 8)
CROWD = 40


def started(*nodes: tuple[int, tuple[str, ...], dict[str, object]], run_ms: int = 120_000) -> World:
    """Nodes (number, portal hosts, settings) that start at once."""
    world = World(1)
    for index, hosts, settings in nodes:
        world.start(world.add(by_ports(index, hosts, **settings)))
    world.run(run_ms)
    return world


def test_nodes_of_a_host_take_the_first_free_ports_of_the_order() -> None:
    world = World(1)
    taken = [world.add(by_ports(index, ("p0",), listen="p0:0")).address for index in range(3)]
    assert taken == [f"p0:{port}" for port in ORDER[:3]]


@pytest.mark.parametrize("seed", range(6))
def test_a_crowd_that_knows_the_same_hosts_makes_one_channel(seed: int) -> None:
    """Seekers that meet do not link, but who gets in tells the others."""
    run = ScenarioRun(ScenarioPlan("portals", 12, seed=seed))
    told = Heard(ConnectedStmt)
    run.world.watch(told)
    run.configure = by_ports
    assert run.join(12, gap_ms=0)
    assert told.messages
    assert run.world.now_ms < 30_000


class FirstCalls(Observer):
    """The port at which each node was first asked for the channel."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}

    def sent(self, end: End, message: WireFrame) -> None:
        if isinstance(message, SeekingConnectionCall):
            self.asked.setdefault(end.place.name, end.other.place.address)


@pytest.mark.parametrize(("shuffle", "at_most"), [("off", 1.0), ("weighted", 0.65), ("first-8", 0.3)])
def test_a_shuffled_crowd_does_not_call_the_same_node_first(shuffle: PortalShuffle, at_most: float) -> None:
    """One portal host with eight nodes, and forty that come at the same instant."""
    run = ScenarioRun(ScenarioPlan("portals", 48))
    run.configure = lambda index: by_ports(
        index, ("p0",), portal_shuffle=shuffle, **({"listen": "p0:0"} if index < 8 else {})
    )
    assert run.join(8)
    first = FirstCalls()
    run.world.watch(first)
    run.join(CROWD, gap_ms=0)
    ((_, most),) = Counter(first.asked.values()).most_common(1)
    assert most <= at_most * CROWD
    assert (most == CROWD) is (shuffle == "off")


# ---- limits: the patents' own


def test_disjoint_sets_of_portal_hosts_make_two_channels() -> None:
    world = started(*((index, (("p0",), ("q0",))[index % 2], {}) for index in range(8)))
    assert unsettled_graph(world)[-1] == "the graph is not connected"
    assert len(world.edges()) == 12, "two complete graphs of four"


def test_who_searches_less_deep_than_the_port_lies_finds_nobody() -> None:
    """The first of two nodes of the host is gone; the second answers at the second port."""
    world = started((0, ("p0",), {"listen": "p0:0"}), (1, ("p0",), {"listen": "p0:0"}), run_ms=10_000)
    world.crash(world.places[f"p0:{ORDER[0]}"], silent=False)
    for index, depth in ((5, 1), (6, 2)):
        world.start(world.add(by_ports(index, ("p0",), portal_depth=depth)))
    world.run(world.now_ms + 30_000)
    assert unsettled_graph(world)[0] == "n5 is not on the channel"
    assert len(world.edges()) == 1


# ---- neighbours with empty ports


@pytest.mark.parametrize("scenario", ["portals", "empty-ports"])
@pytest.mark.parametrize("degree", [3, 4, 5])
def test_scenarios_keep_their_promises(scenario: str, degree: int) -> None:
    assert broken_promises(simulate(ScenarioPlan(scenario, 12, degree, messages=40))) == []


def test_neighbours_with_empty_ports_come_about_and_are_mended_by_a_walk_for_both() -> None:
    run = ScenarioRun(ScenarioPlan("empty-ports", 12, messages=0))
    walks = Heard(EdgeSearchCall)
    run.world.watch(walks)
    empty_ports(run)
    assert not unsettled_graph(run.world)
    assert any(walk.requester != walk.partner for _, _, walk in walks.messages)


# ---- portals that disagree


class Founders(Observer):
    """The founders of channels, and the nodes that were refused with the reasons."""

    outputs = (Trace,)

    def __init__(self) -> None:
        self.names: list[str] = []
        self.refused: Counter[tuple[str, object]] = Counter()

    def output(self, place: Place, output: Output) -> None:
        assert isinstance(output, Trace)
        if output.name == "founded":
            self.names.append(place.name)
        elif output.name == "refused":
            self.refused[place.name, dict(output.detail)["reason"]] += 1


def two_portals(seed: int, gap_ms: int, other: ClusterConfig) -> tuple[World, Founders]:
    """Each is told of both; the second has these settings."""
    world, founders = World(seed), Founders()
    world.watch(founders)
    world.start(world.add(node_config(0, (0, 1))))
    world.run(gap_ms)
    world.cluster = other
    world.start(world.add(node_config(1, (0, 1))))
    world.run(world.now_ms + 60_000)
    return world, founders


@pytest.mark.parametrize("gap_ms", [0, 1, 20, 5_000])
@pytest.mark.parametrize("seed", range(4))
def test_two_portals_that_agree_found_one_channel(seed: int, gap_ms: int) -> None:
    world, founders = two_portals(seed, gap_ms, ClusterConfig())
    assert len(founders.names) == 1
    assert len(world.edges()) == 1


@pytest.mark.parametrize("gap_ms", [0, 5_000])
def test_a_portal_that_is_refused_by_another_does_not_found_a_channel_of_its_own(gap_ms: int) -> None:
    world, founders = two_portals(1, gap_ms, ClusterConfig(degree=6))
    assert founders.names == ["n0"]
    assert founders.refused["n1", "settings"] > 3, "it tries again, and says why it is not let in"
    first, second = world.up()
    assert first.node is not None and second.node is not None
    assert second.node.why_no_publishes() is not None
    assert first.node.why_no_publishes() is None, "what was there before goes on"
    world.crash(first, silent=False)
    world.run(world.now_ms + 30_000)
    assert founders.names == ["n0", "n1"], "nobody is there who disagrees"


def test_a_node_of_another_channel_at_a_portals_address_does_not_matter() -> None:
    _, founders = two_portals(1, 0, ClusterConfig(channel_instance="other"))
    assert founders.names == ["n0", "n1"] or founders.names == ["n1", "n0"]
