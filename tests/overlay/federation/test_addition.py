"""Additions (A2, A3): who is let in, where, and what stays as it was when somebody is not. G1, G3 to G13, H47."""

from dataclasses import replace

import pytest

from m4cast.overlay.federation.contract import FederationInput, FederationSettings, JoinUnit, LeaveUnit, MergeUnit
from m4cast.overlay.federation.units import GONE, UNITS_MAX, Unit, UnitId, UnitRecord, members
from m4cast.overlay.sim.federation.hierarchies import HierarchyPlan, ask, build
from m4cast.overlay.sim.federation.world import FederationWorld
from tests.overlay.federation.federations import PLENTY, machine

TWO_CLUSTERS = HierarchyPlan(
    {"a.1": ("a", "S"), "a.2": ("a", "S"), "b.1": ("b", "S")}, (("a.1", "a.2"), ("a.1", "b.1"))
)

HALVES = FederationSettings(top=1, links_max=(64,) * 8)


def world_of(plan: HierarchyPlan = TWO_CLUSTERS, **settings: object) -> FederationWorld:
    return build(plan, replace(FederationSettings(top=plan.top, links_max=PLENTY), **settings))  # type: ignore[arg-type]


def refused(world: FederationWorld, name: str, request: FederationInput) -> str:
    """The reason why a request is refused; the node has no more links, and no other place, than before."""
    site = world.sites[name]
    before = (machine(world, name).vertex.chain, len(site.ends))
    failed = len(world.failures)
    world.feed(site, request)
    assert world.run_until(lambda: len(world.failures) > failed, 60_000)
    assert (machine(world, name).vertex.chain, len(site.ends)) == before
    return world.failures[-1][1].reason


def newcomers(world: FederationWorld, count: int) -> list[str]:
    names = [f"n{number}" for number in range(count)]
    for name in names:
        world.add(name)
    return names


def full(world: FederationWorld, name: str, level: int) -> None:
    """The node takes no more links of this level."""
    vertex = machine(world, name).vertex
    limits = list(vertex.settings.links_max)
    limits[level] = len(vertex.links_of(level))
    vertex.settings = replace(vertex.settings, links_max=tuple(limits))


def test_a_newcomer_becomes_a_member_of_the_cluster_that_it_asks() -> None:
    world = world_of()
    newcomers(world, 1)
    ask(world, "n0", JoinUnit(1, "a.2"))
    assert machine(world, "n0").vertex.chain[1:] == machine(world, "a.1").vertex.chain[1:]
    assert machine(world, "n0").vertex.numbers()[-1] == 2, "the least number that is free"
    assert list(world.sites["n0"].links_to) == ["a.2"]


def test_a_node_without_room_has_another_member_take_the_newcomer() -> None:
    world = world_of()
    newcomers(world, 1)
    full(world, "a.1", 0)
    ask(world, "n0", JoinUnit(1, "a.1"))
    assert list(world.sites["n0"].links_to) == ["a.2"]


def test_a_full_cluster_redirects_to_its_neighbours() -> None:
    world = world_of()
    newcomers(world, 1)
    full(world, "a.1", 0)
    full(world, "a.2", 0)
    ask(world, "n0", JoinUnit(1, "a.2"))
    assert list(world.sites["n0"].links_to) == ["b.1"]
    assert machine(world, "n0").vertex.chain[1] == machine(world, "b.1").vertex.chain[1]


def test_without_room_anywhere_nothing_stays() -> None:
    world = world_of()
    newcomers(world, 1)
    for name in ("a.1", "a.2", "b.1"):
        full(world, name, 0)
    assert refused(world, "n0", JoinUnit(1, "a.1")) == "no cluster has room"


def test_a_host_that_is_refused() -> None:
    world = world_of(hosts_refused=("n",))
    newcomers(world, 1)
    assert refused(world, "n0", JoinUnit(1, "a.1")) == "a.1 refuses hosts like n0"


@pytest.mark.parametrize("bits", [0, 8, -1])
def test_bits_that_mean_nothing(bits: int) -> None:
    world = world_of()
    newcomers(world, 1)
    assert "set some, of levels 0 to 2" in refused(world, "n0", JoinUnit(bits, "a.1"))


def test_a_member_that_is_also_a_gatekeeper() -> None:
    """`11`: a member of the cluster, and a gateway from there to another cluster."""
    world = world_of()
    newcomers(world, 1)
    ask(world, "n0", JoinUnit(0b11, "a.1"))
    world.run(2_000)
    assert sorted(link.level for link in machine(world, "n0").vertex.ready_links()) == [0, 1]
    assert list(world.sites["n0"].links_to) == ["a.1", "b.1"]


def test_a_gatekeeper_to_a_unit_lives_in_another_one() -> None:
    """`110`: a gateway of level 2 to the addressee's super-cluster, and one of level 1 inside the other."""
    units = {"a.1": ("a", "S"), "b.1": ("b", "S"), "c.1": ("c", "T"), "d.1": ("d", "T")}
    world = world_of(HierarchyPlan(units, (("a.1", "b.1"), ("c.1", "d.1"), ("a.1", "c.1"))))
    newcomers(world, 1)
    ask(world, "n0", JoinUnit(0b110, "a.1"))
    world.run(2_000)
    vertex = machine(world, "n0").vertex
    assert vertex.chain[2] == machine(world, "c.1").vertex.chain[2], "it lives in T"
    assert sorted(link.level for link in vertex.ready_links()) == [0, 1, 2]
    assert [link.address for link in vertex.links_of(2)] == ["a.1"]


def test_a_gateway_that_nobody_has_room_for_leaves_no_trace() -> None:
    world = world_of()
    newcomers(world, 1)
    full(world, "a.1", 1)
    full(world, "a.2", 1)
    assert "has room for a gateway of level 1" in refused(world, "n0", JoinUnit(0b10, "a.1"))
    assert "a link to a.1 would be of level 0, not 1" in refused(world_of(), "a.2", JoinUnit(0b10, "a.1"))


def test_thresholds_hold_under_concurrent_requests() -> None:
    world = world_of(links_max=(3, 1, 1, 1, 1, 1, 1, 1))
    names = newcomers(world, 12)
    for name in names:
        world.feed(world.sites[name], JoinUnit(1, "a.1"))
    world.run(60_000)
    for name in world.sites:
        assert len(machine(world, name).vertex.links_of(0)) <= 3
    inside = [name for name in names if machine(world, name).vertex.has_joined]
    numbers = [machine(world, name).vertex.numbers() for name in ("a.1", "a.2", "b.1", *inside)]
    assert len(inside) >= 6 and len(set(numbers)) == len(numbers), "addresses are unique"


@pytest.mark.parametrize(("bits", "granted"), [(0b10, 2), (0b11, 8), (0b110, 2)])
def test_thresholds_of_gateways_hold_under_concurrent_requests(bits: int, granted: int) -> None:
    """G10 at levels above 0, looked at all the time; who is refused has no link."""
    units = {"a.1": ("a", "S"), "b.1": ("b", "S"), "c.1": ("c", "T"), "d.1": ("d", "T")}
    limits = (4, 3, 3, 2, 1, 1, 1, 1)
    plan = HierarchyPlan(units, (("a.1", "b.1"), ("c.1", "d.1"), ("a.1", "c.1")))
    world = world_of(plan, links_max=limits)
    names = newcomers(world, 12)
    for name in names:
        world.feed(world.sites[name], JoinUnit(bits, "a.1"))
    for _ in range(300):
        world.run(200)
        for name in world.sites:
            counts = [len(machine(world, name).vertex.links_of(level)) for level in range(3)]
            assert all(count <= most for count, most in zip(counts, limits, strict=False)), f"{name}: {counts}"
    inside = [name for name in names if machine(world, name).vertex.has_joined]
    assert len(inside) == granted
    assert not [name for name in names if name not in inside and machine(world, name).vertex.ready_links()]


@pytest.mark.parametrize(
    ("level", "request_", "reason"),
    [
        (0, JoinUnit(1, "b.1"), "no cluster has room"),
        (1, MergeUnit(1, "b.1"), "the unit of level 2 has 64 units"),
        (2, MergeUnit(2, "b.1"), "the unit of level 3 has 64 units"),
    ],
)
def test_the_65th_unit_is_refused_at_every_level(level: int, request_: FederationInput, reason: str) -> None:
    """G1: nodes, clusters and super-clusters."""
    world = world_of()
    for name in ("a.1", "a.2", "b.1"):
        vertex = machine(world, name).vertex
        parent = vertex.unit(level + 1).id
        for number in range(len(members(vertex.records.values(), level, parent)), UNITS_MAX):
            unit = Unit(level, UnitId((1_000 + number).to_bytes(16, "big")))
            vertex.records[unit] = UnitRecord(unit, parent, number, 1, f"x{number}")
        full(world, name, 0)
    newcomers(world, 1)
    assert refused(world, "n0", request_) == reason


# ---- units


def test_only_one_node_adds_its_unit_and_only_at_its_level() -> None:
    world = world_of()
    for name in ("n0", "n1"):
        world.add(name)
    ask(world, "n1", JoinUnit(1, "n0"))
    ask(world, "n0", MergeUnit(1, "b.1"))
    assert machine(world, "n1").vertex.chain[2:] == machine(world, "b.1").vertex.chain[2:], "all of the unit moves"
    assert machine(world, "n1").vertex.numbers() == (0, 2, 1), "its inner number stays"
    assert "part of a federation already" in refused(world, "n1", MergeUnit(1, "a.1"))
    assert "level 3" in refused(world, "n1", MergeUnit(3, "a.1"))
    assert "level 0" in refused(world, "n1", MergeUnit(0, "a.1"))


def test_a_merge_whose_link_does_not_come_is_taken_back() -> None:
    world = world_of()
    newcomers(world, 1)
    site = world.sites["n0"]
    before = machine(world, "n0").vertex.chain
    world.feed(site, MergeUnit(1, "b.1"))
    assert world.run_until(lambda: machine(world, "n0").vertex.chain != before, 1_000, 1)
    world.crash(world.sites["b.1"])
    assert world.run_until(lambda: bool(world.failures), 60_000)
    assert machine(world, "n0").vertex.chain == before and machine(world, "n0").vertex.is_synced


def test_two_units_with_one_number_get_two() -> None:
    """H47: two halves of a cluster let a newcomer in each."""
    units = {"a.1": ("a",), "a.2": ("a",)}
    world = world_of(HierarchyPlan(units, (("a.1", "a.2"),)))
    newcomers(world, 2)
    world.cut_between("a.1", "a.2")
    world.run(1_000)
    ask(world, "n0", JoinUnit(1, "a.1"))
    ask(world, "n1", JoinUnit(1, "a.2"))
    assert machine(world, "n0").vertex.numbers() == machine(world, "n1").vertex.numbers()
    world.mend_between("a.1", "a.2")
    world.run(5_000)
    numbers = {name: machine(world, name).vertex.numbers() for name in world.sites}
    assert len(set(numbers.values())) == 4
    greater = max(("n0", "n1"), key=lambda name: world.sites[name].unit.id)
    assert numbers[greater] == (0, 3), "the one with the smaller id keeps its own"


def test_two_halves_of_forty_nodes_become_one_cluster_of_eighty() -> None:
    """H47: the limit of 64 refuses newcomers, never those that were let in; each gets a number of its own."""
    world = build(HierarchyPlan({"a.1": ("a",), "a.2": ("a",)}, (("a.1", "a.2"),)), HALVES)
    world.cut_between("a.1", "a.2")
    world.run(1_000)
    for half in ("a.1", "a.2"):
        for number in range(39):
            world.add(f"{half}.{number}")
            world.feed(world.sites[f"{half}.{number}"], JoinUnit(1, half))
    world.run(5_000)
    before = {name: machine(world, name).vertex.numbers() for name in world.sites}
    assert len(set(before.values())) < 80, "some numbers were given twice"
    world.mend_between("a.1", "a.2")
    world.run(20_000)
    after = {machine(world, name).vertex.numbers() for name in world.sites}
    vertex = machine(world, "a.2.38").vertex
    assert len(after) == len(members(vertex.records.values(), 0, vertex.unit(1).id)) == 80
    newcomers(world, 1)
    assert refused(world, "n0", JoinUnit(1, "a.1")) == "no cluster has room"


def test_a_node_that_leaves_is_not_missed() -> None:
    world = world_of()
    world.feed(world.sites["a.2"], LeaveUnit())
    world.run(5_000)
    known = machine(world, "a.1").vertex.records[world.sites["a.2"].unit]
    assert known.number == GONE
    assert not [units for (site, _), units in world.partitions.items() if units and site != "a.2"]
