"""A gatekeeper that lives, and that its cluster buries (guarantee 14): what it matched in doubt is matched again.

a.1 loses its cluster, while what b.1 sends to it stands still and nothing of its own is unacknowledged: so it goes on
as a gatekeeper. Meanwhile b.2 wants something, which is confirmed without it.
"""

import pytest

from m4cast.overlay.federation.contract import FederationSettings, KeptEvent
from m4cast.overlay.federation.messages import WantsAck
from m4cast.overlay.sim.federation.hierarchies import HierarchyPlan, build, pairs
from m4cast.overlay.sim.federation.world import FederationWorld
from tests.overlay.federation.federations import PLENTY, Clients, machine

PLAN = HierarchyPlan(
    {"a.1": ("a",), "a.2": ("a",), "a.3": ("a",), "b.1": ("b",), "b.2": ("b",)},
    pairs("a.1-a.2 a.2-a.3 b.1-b.2 a.1-b.1 a.2-b.2"),
)


def buried(settings: FederationSettings | None = None) -> tuple[FederationWorld, Clients]:
    """What b.2 wants is confirmed everywhere, and a.1 has not heard of it."""
    world = build(PLAN, settings or FederationSettings(top=1, links_max=PLENTY), by_name=True)
    clients = Clients(world)
    clients.publish("a.1", "t")
    world.run(2_000)
    assert world.quenched["a.1", "t"], "nobody wants it yet"
    world.stall("b.1", "a.1")
    world.cut_between("a.1", "a.2")
    world.run(12_000)
    clients.want("b.2", "t")
    clients.confirm()
    assert not machine(world, "a.1").gateways.burials
    return world, clients


def doubted(world: FederationWorld) -> int:
    """The needs that a.1 has to carry out again."""
    return sum(map(len, machine(world, "a.1").routing.doubted.values()))


def test_what_a_buried_gatekeeper_matched_arrives_when_its_cluster_is_back() -> None:
    world, clients = buried()
    events = [clients.publish("a.1", "t", is_quiet=False) for _ in range(2)]
    world.run(5_000)
    assert not any(map(clients.takers, events)) and doubted(world) == 4, "for its cluster, and for the federation"
    world.cut_between("a.1", "b.1")
    world.mend_between("a.1", "a.2")
    world.run(20_000)
    assert [clients.takers(event) for event in events] == [["b.2"]] * 2
    assert not machine(world, "a.1").gateways.burials, "that gateway is gone: nobody told it"
    events_kept = [kept for kept in world.sites["a.1"].kept.values() if isinstance(kept, KeptEvent)]
    assert not doubted(world) and not any(kept.event for kept in events_kept)


def test_what_a_buried_gatekeeper_matched_arrives_when_it_hears_of_that() -> None:
    """Its cluster is still out of reach."""
    world, clients = buried()
    event = clients.publish("a.1", "t", is_quiet=False)
    world.run(2_000)
    world.resume("b.1", "a.1")
    world.run(4_000)
    assert clients.takers(event) == ["b.2"] and machine(world, "a.1").gateways.burials


def test_what_it_publishes_as_soon_as_it_hears_arrives_at_once() -> None:
    """Announcers have not told it yet what it missed."""
    world, clients = buried()
    world.resume("b.1", "a.1")
    assert world.run_until(lambda: bool(machine(world, "a.1").gateways.burials), 1_000, 0)
    event = clients.publish("a.1", "t", is_quiet=False)
    world.run(500)
    assert clients.takers(event) == ["b.2"]


def test_what_a_buried_gatekeeper_matched_outlives_its_crash() -> None:
    world, clients = buried()
    event = clients.publish("a.1", "t", is_quiet=False)
    world.run(2_000)
    world.crash(world.sites["a.1"])
    world.mend_between("a.1", "a.2")
    world.start(world.sites["a.1"])
    world.run(20_000)
    assert clients.takers(event) == ["b.2"] and not doubted(world)


def test_who_asks_is_answered_only_as_a_gatekeeper() -> None:
    """Else it would take what it is told for up to date, and not be told of the next change."""
    world, _ = buried()
    gates, announcer = machine(world, "a.1").gateways.own_gates(2), machine(world, "b.2")
    announced = announcer.interest.announced[1]
    announcer.interest.acknowledged(WantsAck(announcer.vertex.chain, 1, gates, announced.version, active=0))
    assert gates and not announcer.vertex.out and not any(gate in announced.active for gate in gates)


@pytest.mark.parametrize("absent_ms", [60_000, 600_000])
def test_the_last_of_several_gatekeepers_goes_on(absent_ms: int) -> None:
    """It keeps what it matched, and sends nothing of it again, until its cluster is back, or is forgotten."""
    world = build(PLAN, FederationSettings(top=1, links_max=PLENTY, absent_ms=absent_ms), by_name=True)
    clients = Clients(world)
    clients.want("b.2", "t")
    clients.confirm()
    for site in ("a.2", "a.3"):
        world.crash(world.sites[site])
    world.run(10_000)
    events = [clients.publish("a.1", "t", is_quiet=False) for _ in range(5)]
    world.run(1_000)
    assert [clients.takers(event) for event in events] == [["b.2"]] * 5 and doubted(world) == 10
    copies = [clients.checks.copies[event] for event in events]
    world.run(100_000)
    assert doubted(world) == (0 if absent_ms == 60_000 else 10)
    assert [clients.checks.copies[event] for event in events] == copies
    for site in ("a.2", "a.3"):
        world.start(world.sites[site])
    world.run(20_000)
    assert not doubted(world) and [clients.takers(event) for event in events] == [["b.2"]] * 5
