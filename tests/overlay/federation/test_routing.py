"""Batches between units: duplicates, what a copy carries, and what happens when gatekeepers die or units part.
G29, G48 to G53, G60, G68 to G70."""

from dataclasses import replace
from random import Random

import pytest

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.federation import interest, wants
from m4cast.overlay.federation.contract import (
    DeliverEvent,
    FederationRecovered,
    FederationSettings,
    LinkHeard,
    LinkOpened,
    SendLink,
    WantRows,
)
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.messages import (
    CarriedCharge,
    Charge,
    ChargeKind,
    EventAck,
    EventCopy,
    EventId,
    LinkMessage,
    Turn,
    UnitEvent,
    UnitHello,
    UnitWant,
)
from m4cast.overlay.federation.units import Unit, UnitId, founding_records
from m4cast.overlay.sim.federation.hierarchies import HierarchyPlan, build, pairs
from m4cast.overlay.sim.federation.sizes import size_bytes
from m4cast.overlay.sim.federation.world import FederationSite, FederationWatcher
from tests.overlay.federation.federations import PLENTY, Clients, machine, new_f3_world
from tests.overlay.federation.test_interest import square

ME, PUBLISHER = UnitId(b"m" * 16), b"p" * 16


class OneNode:
    """A machine with links to A and B, which hand it copies; it wants everything on topic t."""

    def __init__(self, events_max: int = 64) -> None:
        random = Random(1)
        self.machine = Federation(
            FederationRecovered(ME, 1, "me"), FederationSettings(top=1, events_max=events_max), random, now_ms=0
        )
        self.machine.start()
        cluster = self.machine.vertex.own_records()[0].parent
        for conn, name in ((1, b"A"), (2, b"B")):
            own, *_ = founding_records(UnitId(name * 16), 1, name.decode(), random)
            records = (replace(own, parent=cluster, number=conn), *self.machine.vertex.own_records()[1:])
            self.machine.handle(LinkOpened(conn), 0)
            self.machine.handle(LinkHeard(conn, UnitHello(records, bytes([conn]) * 8)), 0)
        self.machine.handle(WantRows("w", UnitWant("t")), 0)
        self._number = {1: 0, 2: 0}
        self._turns = 0

    def copy(self, conn: int, event: EventId, at_ms: int = 0) -> list[EventId]:
        """A copy comes, charged with being brought here; what is delivered."""
        self._number[conn] += 1
        self._turns += 1
        charge = CarriedCharge(Charge(ChargeKind.UNIT, Unit(0, ME)), Turn(self._turns, UnitId(b"x" * 16)))
        copy = EventCopy(self._number[conn], UnitEvent(event, "t", None), self.machine.vertex.chain, 0, (charge,))
        outputs = self.machine.handle(LinkHeard(conn, copy), at_ms)
        assert SendLink(conn, EventAck(self._number[conn])) in outputs, "also of a duplicate"
        return [output.event.id for output in outputs if isinstance(output, DeliverEvent)]


def numbered(*sequences: int, incarnation: int = 1) -> list[EventId]:
    return [EventId(PUBLISHER, incarnation, 1, sequence) for sequence in sequences]


def test_f12_two_relays_hand_over_the_same_stream() -> None:
    node = OneNode()
    events = dict(zip(range(1, 6), numbered(1, 2, 3, 4, 5), strict=True))
    arrivals = [(1, "A", 1), (2, "B", 1), (3, "B", 2), (4, "A", 2), (4, "B", 3), (5, "A", 3), (7, "A", 4)]
    arrivals += [(8, "A", 5), (8, "B", 4), (9, "B", 5)]
    taken = [
        (at, relay, number) for at, relay, number in arrivals if node.copy(1 if relay == "A" else 2, events[number], at)
    ]
    assert taken == [(1, "A", 1), (3, "B", 2), (4, "B", 3), (7, "A", 4), (8, "A", 5)]


def test_f13_f14_what_was_overtaken_is_not_lost() -> None:
    """Ids are remembered, not the last one: so late ones count, with a new incarnation (F14) and without (F13)."""
    node = OneNode()
    old, new = numbered(1, 2, 3), numbered(4, 5, incarnation=2)
    assert [each for event in (*new, *old, *new, *old) for each in node.copy(1, event)] == [*new, *old]
    later = numbered(14, 15, 11, 12, 13)
    assert [each for event in later for each in node.copy(2, event)] == later


def test_a_restart_remembers_what_was_delivered() -> None:
    world, clients = square()
    clients.want("b.1", "t")
    clients.confirm()
    event = clients.publish("b.1", "t")
    world.crash(world.sites["b.1"])
    world.start(world.sites["b.1"])
    world.run(5_000)
    assert clients.takers(event) == ["b.1"], "once: the checkers raise if it comes again"


def test_batches_beyond_the_limit_are_forgotten() -> None:
    node = OneNode(events_max=4)
    events = numbered(*range(1, 11))
    for event in events:
        assert node.copy(1, event) == [event]
    assert len(node.machine.routing.events) == 4 and not node.copy(1, events[-1])
    assert node.copy(2, events[0]) == [events[0]], "the limit: what comes much later is delivered again"


def test_a_link_begins_with_one_hello() -> None:
    node = OneNode()
    node.machine.handle(LinkOpened(3), 0)
    with pytest.raises(RemoteProtocolError, match="EventAck before UnitHello"):
        node.machine.handle(LinkHeard(3, EventAck(1)), 0)
    with pytest.raises(RemoteProtocolError, match="once, with levels 0 to 1"):
        node.machine.handle(LinkHeard(3, UnitHello((), b"n" * 8)), 0)
    with pytest.raises(RemoteProtocolError, match="once, with levels 0 to 1"):
        node.machine.handle(LinkHeard(1, UnitHello(node.machine.vertex.own_records(), b"n" * 8)), 0)


def test_what_a_copy_carries_falls_at_each_crossing() -> None:
    """G49, G50, G51 on F3: nothing below the level of the link, no charge for a unit that it was issued in."""
    world = new_f3_world()
    clients = Clients(world)
    for site in ("b.3", "g.1", "l.1", "z.2", "t.1"):
        clients.want(site, "t")
    clients.confirm()
    crossings = []
    sent = clients.checks.sent

    def watch(site: object, other: object, message: object) -> None:
        if isinstance(message, EventCopy):
            name, far = getattr(site, "name", ""), getattr(other, "name", "")
            crossings.append((clients.checks.level(clients.checks.chain(name), far), message))
        sent(site, other, message)  # type: ignore[arg-type]

    clients.checks.sent = watch  # type: ignore[method-assign]
    event = clients.publish("c.6", "t")
    world.run(1_000)
    own = machine(world, "c.6").vertex.units()
    assert clients.takers(event) == ["b.3", "g.1", "l.1", "t.1", "z.2"]
    assert {level for level, _ in crossings} == {0, 1, 2, 3}
    for level, copy in crossings:
        assert copy.served_from >= level and copy.served_from + len(copy.served) == 4
        assert all(unit.level >= level for each in copy.charges for unit in each.trail)
        assert all(each.charge.unit.level >= level for each in copy.charges)
        assert not [each for each in copy.charges if each.charge.kind is ChargeKind.UNIT and each.charge.unit in own]
        assert len(copy.charges) <= 8 and all(len(each.trail) <= 8 for each in copy.charges)


def test_routing_information_is_bounded_and_falls_with_the_level() -> None:
    """G51, in bytes, everybody on F3 wanting everything. In general: at most 64 charges per level that are left, each
    with at most 64 units per level in its trail."""
    world = new_f3_world()
    clients = Clients(world)
    for site in sorted(world.sites):
        clients.want(site, "t")
    clients.confirm()
    most: dict[int, int] = {}

    class Sizes(FederationWatcher):
        def sent(self, site: FederationSite, other: FederationSite, message: LinkMessage) -> None:
            if isinstance(message, EventCopy):
                level = clients.checks.level(clients.checks.chain(site.name), other.name)
                most[level] = max(most.get(level, 0), size_bytes(message) - size_bytes(message.event))

    world.watchers.append(Sizes())
    for origin in ("c.6", "z.2", "l.1"):
        clients.publish(origin, "t")
        world.run(1_000)
    assert sorted(most) == [0, 1, 2, 3] and most[0] >= most[1] >= most[2] >= most[3]
    assert most[0] <= 512 and most[3] <= 256, most


def test_copies_follow_the_number_of_takers() -> None:
    """G53: on F3, the flood would be 216 copies each time."""
    world = new_f3_world()
    clients = Clients(world)
    sites = sorted(world.sites)
    for share, topic in ((1, "all"), (4, "quarter"), (20, "few")):
        for site in sites[::share]:
            clients.want(site, topic, name=topic)
    clients.confirm()
    events = [clients.publish("c.6", topic) for topic in ("all", "quarter", "few", "none")]
    world.run(3_000)
    copies = [clients.checks.copies[event] for event in events]
    assert copies == sorted(copies, reverse=True) and copies[0] < 216 and copies[3] <= 4


# ---- failures


@pytest.mark.parametrize("victim", ["a.1", "a.2", "b.1", "b.2"])
def test_any_one_gatekeeper_may_die(victim: str) -> None:
    """G68: of two gateways between two clusters, with three more nodes that publish and want."""
    plan = HierarchyPlan(
        {"a.1": ("a",), "a.2": ("a",), "a.3": ("a",), "b.1": ("b",), "b.2": ("b",), "b.3": ("b",)},
        pairs("a.1-a.2 a.1-a.3 a.2-a.3 b.1-b.2 b.1-b.3 b.2-b.3 a.1-b.1 a.2-b.2"),
    )
    world = build(plan, FederationSettings(top=1, links_max=PLENTY))
    clients = Clients(world)
    clients.want("b.3", "t")
    clients.confirm()
    events = []
    for number in range(30):
        if number == 10:
            world.crash(world.sites[victim])
        events.append(clients.publish("a.3", "t", is_quiet=False))
        world.run(20)
    world.run(20_000)
    assert clients.checks.order["b.3"] == sorted(clients.checks.order["b.3"]) == events


def test_without_any_gateway_batches_wait_for_its_repair() -> None:
    """G69."""
    world, clients = square()
    clients.want("b.1", "t")
    clients.confirm()
    world.crash(world.sites["b.2"])
    world.cut_between("a.1", "b.1")
    world.run(10_000)
    events = [clients.publish("a.2", "t", is_quiet=False) for _ in range(5)]
    world.run(60_000)
    assert not any(map(clients.takers, events))
    world.crash(world.sites["a.2"])
    world.start(world.sites["a.2"])
    world.mend_between("a.1", "b.1")
    world.run(20_000)
    assert [clients.takers(event) for event in events] == [["b.1"]] * 5


def test_what_has_no_way_is_left_as_it_is_until_there_is_one() -> None:
    """Else a unit that is out of reach would cost its neighbours a row on the disk per batch and second."""
    world, clients = square()
    clients.want("b.1", "t")
    clients.confirm()
    gateways = [(here, there) for here in ("a.1", "a.2") for there in ("b.1", "b.2")]
    for ends in gateways:
        world.cut_between(*ends)
    world.run(30_000)
    events = [clients.publish("a.1", "t", is_quiet=False) for _ in range(5)]
    world.run(30_000)
    before = {site: dict(site.kept) for site in world.sites.values()}
    world.run(30_000)
    for event in events:
        held = [site for site in before if ("event", event) in site.kept]
        assert held and all(site.kept["event", event] is before[site]["event", event] for site in held)
    for ends in gateways:
        world.mend_between(*ends)
    world.run(20_000)
    assert [clients.takers(event) for event in events] == [["b.1"]] * 5


@pytest.mark.parametrize(
    ("cut", "inside", "outside"),
    [
        ([("c.4", "c.6"), ("c.5", "c.6")], "c.6", "c.4"),
        ([("a.2", "c.4")], "c.6", "b.3"),
        ([("c.5", "d.2"), ("b.2", "h.2"), ("a.1", "i.3")], "c.6", "d.1"),
        ([("a.1", "i.3"), ("g.3", "n.3"), ("e.3", "o.3")], "c.6", "l.1"),
    ],
    ids=["node", "cluster", "super-cluster", "top"],
)
def test_a_partition_at_each_level_heals(cut: list[tuple[str, str]], inside: str, outside: str) -> None:
    """G70: both sides go on by themselves; what they published for each other arrives afterwards."""
    world = new_f3_world()
    clients = Clients(world)
    for site in (inside, outside):
        clients.want(site, "t")
    clients.confirm()
    for ends in cut:
        world.cut_between(*ends)
    world.run(10_000)
    events = [clients.publish(site, "t", is_quiet=False) for site in (inside, outside)]
    world.run(20_000)
    assert [clients.takers(event) for event in events] == [[inside], [outside]], "each side by itself"
    for ends in cut:
        world.mend_between(*ends)
    world.run(30_000)
    assert [clients.takers(event) for event in events] == [sorted((inside, outside))] * 2
    assert not any(world.partitions.values()) and not clients.checks.leaks()


@pytest.mark.parametrize("topics", [10, 1_000])
def test_a_batch_meets_the_wants_of_its_own_topic_alone(topics: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """G44: matching at clients and holders does not grow with what is wanted of other topics."""
    world, clients = square()
    for number in range(topics):
        clients.want("b.1", f"t{number}", name=f"w{number}")
    clients.want("b.1", UnitWant("u"), name="first")
    clients.want("b.1", UnitWant("t3"), name="first")
    clients.confirm()
    compared: list[UnitWant] = []

    def counted(want: UnitWant, event: UnitEvent, matched: dict[bytes, bool]) -> bool:
        compared.append(want)
        return original(want, event, matched)

    original = wants.may_want
    for module in (wants, interest):
        monkeypatch.setattr(module, "may_want", counted)
    event = clients.publish("a.1", "t3")
    world.run(500)
    assert clients.takers(event) == ["b.1"] and {want.topic for want in compared} == {"t3"}
    assert clients.takers(clients.publish("b.1", "u")) == [], "that want was replaced"
    clients.unwant("b.1", "first")
    clients.unwant("b.1", "w3")
    world.run(500)
    assert clients.takers(clients.publish("a.1", "t3")) == []
