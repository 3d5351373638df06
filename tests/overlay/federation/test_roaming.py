"""Clients that roam between clusters: nothing missed, nothing twice (G63 to G67)."""

from typing import Any

import pytest

from m4cast.overlay.federation.contract import ClientArrived, FederationSettings, UnwantRows
from m4cast.overlay.federation.messages import UnitWant
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.sim.federation.hierarchies import build, f3
from m4cast.overlay.sim.federation.roamers import Roamer, Roamers
from tests.overlay.federation.federations import PLENTY, Clients, machine
from tests.overlay.federation.test_answers import TWO_LEVELS
from tests.overlay.federation.test_interest import summary


class Roaming:
    """A federation of two super-clusters, with clients that roam."""

    def __init__(self, **settings: Any) -> None:
        chosen = FederationSettings(top=2, links_max=PLENTY, **settings)
        self.world = build(TWO_LEVELS, chosen, by_name=True)
        self.clients = Clients(self.world)
        self.roamers = Roamers(self.world, self.clients.checks)

    def client(self, site: str, name: str = "ann", where: str = "amount > 5") -> Roamer:
        client = self.roamers.add(name, UnitWant("t", parse(where)))
        self.arrive(client, site)
        self.clients.confirm()
        return client

    def arrive(self, client: Roamer, site: str) -> None:
        self.roamers.arrive(client, self.world.sites[site])

    def publish(self, site: str, amount: int = 9) -> None:
        event = self.clients.publish(site, "t", summary(amount=amount), is_quiet=False)
        self.roamers.published(self.clients.checks.published[event])

    def settle(self) -> None:
        checks, roamers = self.clients.checks, self.roamers
        assert self.world.run_until(
            lambda: not (roamers.missing() or roamers.unreleased() or checks.unconfirmed()), 60_000, 100
        ), (roamers.missing(), roamers.unreleased(), checks.unconfirmed())


@pytest.mark.parametrize(("origin", "target"), [("a.1", "a.2"), ("a.1", "b.1"), ("b.1", "d.1")])
def test_a_client_roams_while_batches_are_published(origin: str, target: str) -> None:
    """Inside the cluster, to another one, to another super-cluster; publishers in all of them."""
    run = Roaming()
    client = run.client(origin)
    for number in range(40):
        if number == 10:
            run.arrive(client, target)
        run.publish(("a.1", "b.1", "c.1", "d.1")[number % 4], amount=9 if number % 3 else 1)
        run.world.run(7)
    run.settle()
    assert len(client.had) == len(client.expected) == 26, "none that it does not want"
    assert "ann" not in machine(run.world, origin).interest.clients, "the unit that it left has withdrawn"


def test_the_old_unit_withdraws_when_the_new_one_is_confirmed() -> None:
    """G64: while the level that covers both is not confirmed, the old node gets what the new one may miss."""
    run = Roaming()
    client = run.client("a.1")
    run.world.stall("d.1", "c.1")
    run.world.stall("c.1", "a.2")
    run.arrive(client, "d.1")
    run.world.run(2_000)
    assert "ann" in machine(run.world, "a.1").interest.clients
    run.publish("b.1")
    run.world.run(2_000)
    assert not client.had
    run.world.resume("d.1", "c.1")
    run.world.resume("c.1", "a.2")
    run.settle()
    assert len(client.had) == 1


def test_a_client_that_was_away_gets_all_that_it_missed_elsewhere() -> None:
    """G65, G66: its node even restarts meanwhile, and nodes remember a quarter of the batches that it misses."""
    run = Roaming(events_max=8)
    client = run.client("b.1")
    run.roamers.leave(client)
    for number in range(30):
        run.publish("d.1")
        run.world.run(50)
        if number == 10:
            run.world.crash(run.world.sites["b.1"])
        if number == 20:
            run.world.start(run.world.sites["b.1"])
    run.world.run(10_000)
    assert not client.had
    assert all(len(machine(run.world, site).routing.events) <= 8 for site in run.world.sites)
    run.arrive(client, "c.1")
    run.settle()
    assert len(client.had) == 30


@pytest.mark.parametrize("victim", ["a.1", "d.1", "a.2"])
def test_whichever_side_fails_midway(victim: str) -> None:
    """G64: the old node, the new one, a gatekeeper between them."""
    run = Roaming()
    client = run.client("a.1")
    for number in range(60):
        if number == 20:
            run.arrive(client, "d.1")
        if number == 21:
            run.world.crash(run.world.sites[victim])
        if number == 50:
            run.world.start(run.world.sites[victim])
        run.publish("b.1" if number % 2 else "c.1")
        run.world.run(100)
    run.settle()
    assert len(client.expected) >= 40 and not run.roamers.missing()


def test_what_was_on_its_way_to_the_old_node_follows() -> None:
    """A batch that left before the want was known at the new node, and arrives after the old one has withdrawn."""
    run = Roaming()
    client = run.client("b.1")
    run.world.stall("a.1", "b.1")
    run.publish("d.1")
    run.world.run(1_000)
    run.arrive(client, "a.1")
    run.world.run(1_000)
    run.world.resume("a.1", "b.1")
    run.settle()
    assert len(client.had) == 1


def test_an_old_incarnation_is_refused() -> None:
    """G63."""
    run = Roaming()
    client = run.client("a.1")
    run.arrive(client, "d.1")
    run.settle()
    run.arrive(client, "d.1")
    arrived = ClientArrived("ann", 2, client.want, ())
    run.world.feed(run.world.sites["d.1"], arrived)
    assert [(site, each.incarnation) for site, each in run.world.refused] == [("d.1", 3)]
    run.world.feed(run.world.sites["a.1"], arrived)
    assert [(site, each.incarnation) for site, each in run.world.refused[1:]] == [("a.1", 2)], "also where it was"


def test_who_returns_to_its_node_announces_nothing() -> None:
    run = Roaming()
    client = run.client("a.1")
    run.world.run(5_000)
    before = run.clients.checks.items["WantsNews"]
    run.roamers.leave(client)
    run.world.run(1_000)
    run.arrive(client, "a.1")
    run.world.run(3_000)
    assert run.clients.checks.items["WantsNews"] == before


def test_the_devices_of_a_client_roam_apart() -> None:
    """G67: each has its own want and its own position; together they have what the client wants."""
    run = Roaming()
    phone, desk = run.client("a.1", "ann/phone", "amount > 7"), run.client("b.1", "ann/desk", "amount < 8")
    run.arrive(phone, "d.1")
    for amount in range(10):
        run.publish("c.1", amount)
        run.world.run(100)
    run.settle()
    assert len(phone.had) == 2 and len(desk.had) == 8


def test_a_client_that_moves_on_before_it_was_released() -> None:
    """Round a ring of nodes, faster than wants are confirmed; on F3, through all levels."""
    world = build(f3(), FederationSettings(top=3, links_max=PLENTY), by_name=True)
    clients = Clients(world)
    roamers = Roamers(world, clients.checks)
    client = roamers.add("ann", UnitWant("t"))
    roamers.arrive(client, world.sites["c.6"])
    clients.confirm()
    ring = ("a.1", "g.1", "i.1", "z.2", "c.6", "l.1", "g.1")
    for number in range(70):
        if number % 10 == 0:
            roamers.arrive(client, world.sites[ring[number // 10]])
        event = clients.publish(("b.1", "m.2", "x.1")[number % 3], "t", is_quiet=False)
        roamers.published(clients.checks.published[event])
        world.run(3)
    assert world.run_until(lambda: not roamers.missing() and not roamers.unreleased(), 60_000), roamers.unreleased()
    assert len(client.had) == 70
    wanted = [site for site in world.sites if "ann" in machine(world, site).interest.clients]
    assert wanted == ["g.1"], "one node is left that wants it"


def test_a_client_that_wants_nothing_any_longer_is_forgotten() -> None:
    """Unless the node that it came from has not released it."""
    run = Roaming()
    run.arrive(run.client("a.1"), "b.1")
    federation = machine(run.world, "b.1")
    federation.roaming.drop("ann")
    assert "ann" in federation.roaming.clients
    run.settle()
    federation.handle(UnwantRows("ann"), federation.vertex.now_ms)
    assert "ann" not in federation.roaming.clients
