"""Membership: a few whole nodes that join, clash, restart, leave and lose each other, in any order of messages."""

from itertools import combinations

import pytest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.protocol.effects import Leave, Left, Recovered, Wake
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.messages import (
    ConnectionRequestResp,
    DiameterEstimateStmt,
    EdgeSearchCall,
    NeighboursStmt,
    PortConnectionCall,
    PortSearchStmt,
)
from tests.overlay.protocol.node_pump import Pump
from tests.overlay.protocol.stream_parts import contact, node_id

JOIN_MS = 5_000


def joined(names: str, degree: int = 4, seed: int | None = None) -> Pump:
    """These nodes, started one after the other, with the first one as portal."""
    cluster = ClusterConfig(
        degree=degree, heartbeat_interval_ms=5_000, heartbeat_timeout_ms=15_000, beacon_interval_ms=20_000
    )
    pump = Pump(portals=names[0], cluster=cluster, seed=seed)
    for name in names:
        pump.start(name)
        pump.run(JOIN_MS)
    return pump


def all_links(names: str) -> set[str]:
    return set(map("".join, combinations(sorted(names), 2)))


def degrees(pump: Pump) -> list[int]:
    return sorted(len(pump.names(name)) for name in pump.nodes)


# ---- joining


def test_the_first_node_is_full_alone() -> None:
    pump = joined("a")
    assert pump.nodes["a"].membership.state is State.FULL
    assert pump.links() == set()


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde"])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_up_to_degree_and_one_nodes_are_a_complete_graph(names: str, seed: int | None) -> None:
    pump = joined(names, seed=seed)
    assert pump.links() == all_links(names)
    assert all(node.membership.state is State.FULL for node in pump.nodes.values())
    assert [resp.expected_holes for _, _, resp in pump.sent(ConnectionRequestResp)] == [3, 2, 1, 0][: len(names) - 1]
    assert pump.sent(EdgeSearchCall) == [], "no walks: nobody has to give up an edge"


@pytest.mark.parametrize("seed", range(8))
def test_the_sixth_node_is_put_into_the_middle_of_two_edges(seed: int) -> None:
    """Figure 3: K5 becomes the octahedron, the only 4-regular graph of six nodes."""
    pump = joined("abcdef", seed=seed)
    links = pump.links()
    assert degrees(pump) == [4] * 6
    assert len(links) == 12
    pinned = all_links("abcde") - links
    assert len(pinned) == 2
    assert not set("".join(pinned)) - set(pump.names("f"))
    assert len(set("".join(pinned))) == 4, "two edges without a common end"


@pytest.mark.parametrize("degree", [3, 4, 5, 6])
def test_every_degree_makes_a_regular_graph(degree: int) -> None:
    pump = joined("abcdefghij", degree, seed=degree)
    pump.run(120_000)
    assert degrees(pump) == [degree] * 10


def test_with_an_odd_degree_and_an_odd_number_one_node_is_short_by_one_until_the_next_comes() -> None:
    pump = joined("abcdefg", degree=3)
    pump.run(120_000)
    assert degrees(pump) == [2, 3, 3, 3, 3, 3, 3]
    pump.start("h")
    pump.run(120_000)
    assert degrees(pump) == [3] * 8


@pytest.mark.parametrize("seed", range(5))
def test_newcomers_that_come_at_the_same_time_all_get_in(seed: int) -> None:
    pump = joined("abcde", seed=seed)
    for name in "fghi":
        pump.start(name)
    pump.run(120_000)
    assert degrees(pump) == [4] * 9


# ---- clashes


@pytest.mark.parametrize("seed", range(30))
def test_two_that_court_each_other_get_one_link(seed: int) -> None:
    pump = Pump(["a", "b"], seed=seed)
    a, b = pump.nodes["a"], pump.nodes["b"]
    a.membership.links.court(b.me, 0)
    b.membership.links.court(a.me, 0)
    pump.feed("a", Wake())
    pump.feed("b", Wake())
    pump.settle()
    assert pump.links() == {"ab"}
    for node in (a, b):
        assert node.membership.table.courting == {}
        assert len(node.calls) == 1, "no call is left over"
    assert len(pump.sent(PortConnectionCall)) <= 2


@pytest.mark.parametrize("seed", range(20))
def test_all_that_court_each_other_get_one_link_per_pair(seed: int) -> None:
    pump = Pump(["a", "b", "c", "d"], seed=seed)
    for name, node in pump.nodes.items():
        for other in pump.nodes.values():
            if other is not node:
                node.membership.links.court(other.me, 0)
        pump.feed(name, Wake())
    pump.settle()
    assert pump.links() == all_links("abcd")
    assert all(node.membership.table.courting == {} for node in pump.nodes.values())
    assert all(len(node.calls) == 3 for node in pump.nodes.values())


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("names", ["ab", "abcde", "abcdefg"])
def test_a_restarted_node_replaces_its_old_links(names: str, silent: bool) -> None:
    """Silent: its neighbours do not know yet that it was away when it calls again."""
    pump = joined(names)
    last = names[-1]
    pump.kill(last, silent=silent)
    pump.start(last, recovered=Recovered(node_id(last), incarnation=2))
    pump.run(60_000)
    assert degrees(pump) == [min(4, len(names) - 1)] * len(names)
    pump.links()
    for node in pump.nodes.values():
        neighbour = node.membership.table.neighbours.get(node_id(last))
        assert neighbour is None or neighbour.incarnation == 2


# ---- leaving and failing


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_of_a_leaver_pair_up(seed: int) -> None:
    pump = joined("abcdefgh", seed=seed)
    left = pump.names("h")
    before = pump.links()
    pump.log.clear()
    pump.feed("h", Leave())
    assert len(pump.came_out("h", Left)) == 1
    pump.settle()
    possible = all_links(left) - before
    disjoint = any(not set(one) & set(other) for one, other in combinations(possible, 2))
    made = pump.links() - before
    assert made <= possible
    assert len(made) == (2 if disjoint else min(1, len(possible)))
    pump.run(60_000)
    assert degrees(pump) == [4] * 7


def test_a_leave_from_a_complete_graph_leaves_a_complete_graph() -> None:
    pump = joined("abcde")
    pump.feed("c", Leave())
    pump.run(60_000)
    assert pump.links() == all_links("abde")
    assert all(node.membership.diameter.estimate == 1 for node in pump.nodes.values())


def test_a_small_channel_that_shrinks_to_one_and_grows_again() -> None:
    pump = joined("abcdef")
    for name in "fedcb":
        pump.feed(name, Leave())
        pump.run(30_000)
        assert degrees(pump) == [min(4, len(pump.nodes) - 1)] * len(pump.nodes)
    for name in "bcdef":
        pump.start(name, recovered=Recovered(node_id(name), incarnation=2))
        pump.run(JOIN_MS)
    assert degrees(pump) == [4] * 6


@pytest.mark.parametrize("silent", [True, False])
def test_holes_of_a_failed_node_are_filled(silent: bool) -> None:
    pump = joined("abcdefghi")
    pump.kill("d", silent=silent)
    pump.run(60_000)
    assert degrees(pump) == [4] * 8


def test_neighbours_with_empty_ports_are_repaired() -> None:
    """Two holed nodes that are neighbours already: an edge of others is given to them."""
    pump = joined("abcdefghij")
    a = pump.nodes["a"]
    b = pump.names("a")[0]
    other = next(name for name in pump.names("a") if name not in pump.names(b) and name != b)
    theirs = next(name for name in pump.names(b) if name not in pump.names("a") and name != "a" and name != other)
    pump.log.clear()
    a.membership.links.drop(a.membership.table.neighbours[node_id(other)], "test", pump.now_ms)
    pump.feed("a", Wake())
    node_b = pump.nodes[b]
    node_b.membership.links.drop(node_b.membership.table.neighbours[node_id(theirs)], "test", pump.now_ms)
    pump.feed(b, Wake())
    pump.run(120_000)
    assert degrees(pump) == [4] * 10


def test_a_hole_that_nobody_can_fill_is_searched_for_more_and_more_rarely() -> None:
    pump = joined("abcdefg", degree=3)
    pump.run(600_000)
    pump.log.clear()
    pump.run(600_000)
    rounds = {(here, search.search) for here, _, search in pump.sent(PortSearchStmt) if search.hops == 1}
    assert 0 < len(rounds) <= 3 * 600_000 // 45_000


# ---- telling


def test_everybody_knows_its_neighbours_neighbours() -> None:
    pump = joined("abcdefgh")
    for node in pump.nodes.values():
        for peer, neighbour in node.membership.table.neighbours.items():
            theirs = pump.nodes[pump.name_of(peer)].membership.table.neighbours
            assert neighbour.its_neighbours is not None
            assert set(neighbour.its_neighbours) == set(theirs)


def test_an_unchanged_list_is_not_announced() -> None:
    pump = joined("abcdef")
    pump.run(60_000)
    pump.log.clear()
    pump.run(60_000)
    assert pump.sent(NeighboursStmt) == []
    assert pump.sent(PortSearchStmt) == []
    assert pump.sent(EdgeSearchCall) == []


def test_the_diameter_is_told_on_but_not_back_and_is_1_in_a_complete_graph() -> None:
    pump = joined("abcdefgh")
    a = pump.nodes["a"]
    for node in pump.nodes.values():
        node.membership.diameter.estimate = 1
    pump.log.clear()
    a.membership.assess_distance(4)
    pump.feed("a", Wake())
    pump.settle()
    assert all(node.membership.diameter.estimate == 4 for node in pump.nodes.values())
    told = [(here, there) for here, there, _ in pump.sent(DiameterEstimateStmt)]
    assert len(told) == len(set(told)) <= 2 * len(pump.links())
    a.membership.assess_distance(a.membership.diameter.cap() + 1)
    assert a.membership.diameter.estimate == 4
    small = joined("abcd")
    small.nodes["a"].membership.assess_distance(3)
    assert small.nodes["a"].membership.diameter.estimate == 1


def test_a_newcomer_hears_of_the_diameter_and_of_the_others() -> None:
    pump = joined("abcdefgh")
    for node in pump.nodes.values():
        node.membership.diameter.estimate = 5
    pump.start("i")
    pump.settle()
    newcomer = pump.nodes["i"]
    assert newcomer.membership.diameter.estimate == 5
    assert {entry.address for entry in newcomer.roster.entries()} == {contact(name).address for name in pump.nodes}
