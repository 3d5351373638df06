"""Wants of units, and their confirmations: G36, G38 to G43, G46, G55, G57, H42, H50."""

import pyarrow as pa
import pytest

from m4cast.overlay.federation.contract import FederationSettings, MergeUnit
from m4cast.overlay.federation.messages import RoutedNote, UnitWant, WantsNews
from m4cast.overlay.federation.wants import maximal
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.profiles.summary import Summary, summarise
from m4cast.overlay.sim.federation.hierarchies import HierarchyPlan, ask, build
from m4cast.overlay.sim.federation.world import FederationWorld
from tests.overlay.federation.federations import PLENTY, Clients, machine, name_of, new_f3_world

SQUARE = HierarchyPlan(
    {"a.1": ("a",), "a.2": ("a",), "b.1": ("b",), "b.2": ("b",)},
    (("a.1", "a.2"), ("b.1", "b.2"), ("a.1", "b.1"), ("a.2", "b.2")),
)
"""Two clusters with two gateways."""


def square(absent_ms: int = 600_000) -> tuple[FederationWorld, Clients]:
    world = build(SQUARE, FederationSettings(top=1, links_max=PLENTY, absent_ms=absent_ms), by_name=True)
    return world, Clients(world)


def summary(**row: object) -> Summary:
    batch = pa.record_batch({name: [value] for name, value in row.items()})
    return summarise(batch, [(name,) for name in row])


def held_at(world: FederationWorld, site: str, level: int) -> dict[str, list[str]]:
    """Sub-unit -> topics that its announcers say it wants."""
    found: dict[str, list[str]] = {}
    for entry in machine(world, site).interest.held[level].values():
        found.setdefault(name_of(entry.unit.id), []).extend(topic for topic, _ in entry.wants)
    return {unit: sorted(set(topics)) for unit, topics in found.items()}


def test_all_gatekeepers_hold_the_same_and_nothing_stays() -> None:
    """G36, G39 on F3: at every level, at every holder; after all is withdrawn, nothing."""
    world = new_f3_world()
    clients = Clients(world)
    for number, site in enumerate(("c.4", "b.3", "g.1", "l.1", "z.2", "c.6")):
        clients.want(site, f"t{number % 3}")
    clients.confirm()
    for level in range(1, 5):
        by_unit: dict[bytes, list[dict[str, list[str]]]] = {}
        for site in world.sites:
            if machine(world, site).gateways.holds(level):
                by_unit.setdefault(machine(world, site).vertex.unit(level).id, []).append(held_at(world, site, level))
        assert len(by_unit) == [26, 11, 4, 1][level - 1]
        assert all(each == tables[0] for tables in by_unit.values() for each in tables)
    assert held_at(world, "a.1", 4)["SSC-A"] == ["t0", "t1", "t2"]
    for site in ("c.4", "b.3", "g.1", "l.1", "z.2", "c.6"):
        clients.unwant(site)
    world.run(5_000)
    assert not [site for site in world.sites for level in range(1, 5) if any(held_at(world, site, level).values())]


def test_a_change_goes_to_the_gatekeepers_concerned_and_no_further() -> None:
    """G38: a want that the cluster has already is told inside it, and nowhere else."""
    world = new_f3_world()
    clients = Clients(world)
    clients.want("c.4", "t")
    clients.confirm()
    world.run(5_000)
    announced = []
    sent = clients.checks.sent

    def watch(site: object, other: object, message: object) -> None:
        if isinstance(message, RoutedNote) and isinstance(message.body, WantsNews) and message.body.joined:
            announced.append((message.body.level, name_of(message.body.announcer[0]), getattr(other, "name", "")))
        sent(site, other, message)  # type: ignore[arg-type]

    clients.checks.sent = watch  # type: ignore[method-assign]
    clients.want("c.6", UnitWant("t", parse("amount > 3")))
    clients.confirm()
    assert announced == [(0, "c.6", "c.4")]


def test_a_level_is_confirmed_by_all_gatekeepers_and_seen_by_one_batch() -> None:
    """X20, G43: one of two gatekeepers does not hear of the want; a batch through the other proves nothing."""
    world, clients = square()
    world.stall("a.1", "b.1")
    world.stall("a.2", "b.2")
    clients.want("a.1", "t")
    world.run(1_000)
    assert [unit.level for unit in clients.checks.confirmed["a.1", "w"]] == [0, 1], "the other cluster does not know"
    world.resume("a.1", "b.1")
    world.run(500)
    event = clients.publish("b.1", "t", is_quiet=False)
    world.run(200)
    assert clients.takers(event) == ["a.1"] and clients.checks.seen["a.1", "w"] == 2
    world.resume("a.2", "b.2")
    clients.confirm()
    assert [unit.level for unit in clients.checks.confirmed["a.1", "w"]] == [0, 1, 2]


def test_a_holder_that_does_not_know_that_it_was_replaced_still_has_to_confirm() -> None:
    """b.1 holds what S wants for lack of gatekeepers of level 2. When b.2 becomes one, b.1 does not hear of it, and
    goes on matching what d.1 publishes."""
    units = {"a.1": ("a", "S"), "b.1": ("b", "S"), "b.2": ("b", "S"), "d.1": ("d", "S")}
    plan = HierarchyPlan(units, (("b.1", "b.2"), ("a.1", "b.2"), ("b.1", "d.1")))
    world = build(plan, FederationSettings(top=2, links_max=PLENTY), by_name=True)
    clients = Clients(world)
    world.run(3_000)
    world.stall("b.2", "b.1")
    world.add("c.1")
    ask(world, "c.1", MergeUnit(2, "b.2"))
    clients.want("a.1", "t")
    world.run(1_500)
    assert [unit.level for unit in clients.checks.confirmed["a.1", "w"]] == [0, 1]
    world.resume("b.2", "b.1")
    clients.confirm()
    event = clients.publish("d.1", "t")
    world.run(500)
    assert clients.takers(event) == ["a.1"]


def test_wants_of_a_node_that_is_down_stay() -> None:
    """G66: what was published meanwhile waits for it; after `absent_ms` it does not."""
    world, clients = square(absent_ms=60_000)
    clients.want("b.2", "t")
    clients.confirm()
    world.crash(world.sites["b.2"])
    world.run(20_000)
    event = clients.publish("a.1", "t", is_quiet=False)
    world.run(10_000)
    assert not clients.takers(event)
    world.start(world.sites["b.2"])
    world.run(20_000)
    assert clients.takers(event) == ["b.2"], "without subscribing again (G71)"
    world.crash(world.sites["b.2"])
    world.run(90_000)
    late = clients.publish("a.1", "t", is_quiet=False)
    world.run(5_000)
    assert [hits for _, _, hits in clients.checks.matchings[late] if hits] == [], "forgotten (H50)"


def test_interest_does_not_keep_itself_alive() -> None:
    """H42: three clusters in a ring."""
    plan = HierarchyPlan({"a": ("A",), "b": ("B",), "c": ("C",)}, (("a", "b"), ("b", "c"), ("a", "c")))
    world = build(plan, FederationSettings(top=1, links_max=PLENTY))
    clients = Clients(world)
    clients.want("a", "t")
    clients.confirm()
    clients.unwant("a")
    world.run(5_000)
    assert all(not entry.wants for site in "abc" for entry in machine(world, site).interest.held[2].values())


def test_profiles_and_mail() -> None:
    """G55: a batch goes where a profile may match its summary; mail is a batch that names its takers."""
    world, clients = square()
    clients.want("a.2", UnitWant("orders", parse("country = 'PL' AND amount > 5")))
    clients.want("b.1", UnitWant("orders", parse("country = 'PL'")))
    clients.want("b.2", UnitWant("mail", parse("to = 'ann'")), name="ann")
    clients.want("a.2", UnitWant("mail", parse("to = 'bob'")), name="bob")
    clients.confirm()
    sent = [
        clients.publish("a.1", "orders", summary(country="PL", amount=3)),
        clients.publish("a.1", "orders", summary(country="PL", amount=9)),
        clients.publish("a.1", "orders", summary(country="DE", amount=9)),
        clients.publish("a.1", "mail", summary(to="ann")),
        clients.publish("a.1", "mail", summary(to="nobody")),
    ]
    world.run(1_000)
    assert [clients.takers(event) for event in sent] == [["b.1"], ["a.2", "b.1"], [], ["b.2"], []]


def test_a_lone_cluster_needs_no_gatekeeper() -> None:
    """G57, X19."""
    plan = HierarchyPlan(dict.fromkeys(("1", "2", "3"), ("a", "s")), (("1", "2"), ("2", "3")))
    world = build(plan, FederationSettings(top=2, links_max=PLENTY))
    clients = Clients(world)
    clients.want("3", "t")
    clients.confirm()
    event = clients.publish("1", "t")
    world.run(500)
    assert clients.takers(event) == ["3"]


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        (["a > 1", "a > 2", "a > 1"], ["a > 1"]),
        (["a > 2", "b = 1", ""], [""]),
        (["a > 2", "b = 1"], ["a > 2", "b = 1"]),
    ],
)
def test_only_maximal_wants_are_announced(texts: list[str], kept: list[str]) -> None:
    found = maximal(UnitWant("t", parse(text) if text else None) for text in texts)
    assert sorted(want.profile.written if want.profile else "" for want in found) == kept
