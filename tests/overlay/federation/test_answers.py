"""Answers to publishers: quenching, and addressees that nobody knows (G56)."""

import pyarrow as pa
import pytest

from m4cast.overlay.federation.contract import FederationSettings, PublishEvent
from m4cast.overlay.federation.messages import EventId, UnitEvent, UnitWant
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.profiles.summary import Summary, summarise
from m4cast.overlay.sim.federation.hierarchies import HierarchyPlan, build, pairs
from m4cast.overlay.sim.federation.world import FederationWorld
from tests.overlay.federation.federations import PLENTY, Clients, machine
from tests.overlay.federation.test_interest import square, summary


def mail_to(*clients: str) -> Summary:
    return summarise(pa.record_batch({"to": list(clients)}), [("to",)])


TWO_LEVELS = HierarchyPlan(
    {"a.1": ("a", "S"), "a.2": ("a", "S"), "b.1": ("b", "S"), "c.1": ("c", "T"), "d.1": ("d", "T")},
    pairs("a.1-a.2 a.1-b.1 c.1-d.1 a.2-c.1"),
)


def two_levels() -> tuple[FederationWorld, Clients]:
    world = build(TWO_LEVELS, FederationSettings(top=2, links_max=PLENTY), by_name=True)
    return world, Clients(world)


def test_a_publisher_that_nobody_listens_to_sends_nothing() -> None:
    world, clients = two_levels()
    world.run(1_000)
    first = clients.publish("b.1", "t")
    world.run(1_000)
    assert clients.checks.copies[first] > 0 and world.quenched == {("b.1", "t"): True}
    later = [clients.publish("b.1", "t") for _ in range(5)]
    other = clients.publish("b.1", "u")
    world.run(1_000)
    assert [clients.checks.copies[event] for event in later] == [0] * 5
    assert clients.checks.copies[other] > 0, "another topic is another matter"


@pytest.mark.parametrize("taker", ["a.1", "d.1", "b.1"])
def test_a_want_anywhere_ends_it_before_it_is_confirmed(taker: str) -> None:
    """Publish in the cluster beside, in the other super-cluster, and at the publisher itself."""
    world, clients = two_levels()
    clients.publish("b.1", "t")
    world.run(1_000)
    assert world.quenched["b.1", "t"]
    clients.want(taker, UnitWant("t", parse("amount > 5")))
    clients.confirm()
    assert world.quenched["b.1", "t"] is (taker == "b.1"), "its own clients get it without being sent anything"
    event = clients.publish("b.1", "t", summary(amount=9))
    world.run(1_000)
    assert clients.takers(event) == [taker]
    clients.unwant(taker)
    world.run(1_000)
    clients.publish("b.1", "t")
    world.run(1_000)
    assert world.quenched["b.1", "t"], "told again when nobody wants it any more"


def test_no_want_is_confirmed_before_the_publisher_has_heard() -> None:
    world, clients = two_levels()
    clients.publish("b.1", "t")
    world.run(1_000)
    world.stall("a.1", "b.1")
    clients.want("d.1", "t")
    world.run(2_500)
    assert [unit.level for unit in clients.checks.confirmed["d.1", "w"]] == [0, 1, 2], "not in the whole federation"
    world.resume("a.1", "b.1")
    clients.confirm()
    event = clients.publish("b.1", "t")
    world.run(1_000)
    assert clients.takers(event) == ["d.1"]


@pytest.mark.parametrize(("taker", "publisher"), [("a.1", "a.2"), ("c.1", "d.1")])
def test_a_holder_that_wants_something_itself_tells_the_publisher_first(taker: str, publisher: str) -> None:
    """What it announces to itself is held at once."""
    world, clients = two_levels()
    clients.publish(publisher, "t")
    world.run(2_000)
    assert world.quenched[publisher, "t"]
    world.delay_ms = (100, 100)
    clients.want(taker, "t")
    for _ in range(50):
        world.run(5)
        clients.publish(publisher, "t", is_quiet=False)
    world.run(5_000)
    published = clients.checks.published.values()
    assert any(each.expected for each in published) and not clients.checks.missing()


def test_a_publisher_that_is_gone_does_not_keep_wants_from_being_confirmed_for_ever() -> None:
    """Its cluster is still there, so that nobody is out of reach."""
    sites = {**TWO_LEVELS.units, "b.2": ("b", "S")}
    plan = HierarchyPlan(sites, (*TWO_LEVELS.links, ("b.1", "b.2")))
    settings = FederationSettings(top=2, links_max=PLENTY, absent_ms=60_000)
    world = build(plan, settings, by_name=True)
    clients = Clients(world)
    clients.publish("b.2", "t")
    world.run(2_000)
    assert world.quenched["b.2", "t"]
    world.crash(world.sites["b.2"])
    world.run(10_000)
    clients.want("d.1", "t")
    world.run(30_000)
    assert clients.checks.unconfirmed(), "it may answer yet"
    clients.confirm(60_000)


def test_that_a_topic_is_quiet_is_not_believed_after_it_was_overtaken() -> None:
    """It waits on a link that stands still; that somebody wants the topic takes another way."""
    plan = HierarchyPlan(
        {"a.1": ("a",), "b.1": ("b",), "b.2": ("b",), "b.3": ("b",)}, pairs("a.1-b.1 b.1-b.2 b.1-b.3 b.2-b.3")
    )
    world = build(plan, FederationSettings(top=1, links_max=PLENTY), by_name=True)
    clients = Clients(world)
    world.stall("b.1", "b.2")
    clients.publish("b.2", "t", is_quiet=False)
    world.run(6_000)
    clients.want("a.1", "t")
    clients.confirm()
    world.resume("b.1", "b.2")
    world.run(1_000)
    events = [clients.publish("b.2", "t", is_quiet=False) for _ in range(3)]
    world.run(5_000)
    assert [clients.takers(event) for event in events] == [["a.1"]] * 3
    clients.unwant("a.1")
    world.run(15_000)
    clients.publish("b.2", "t")
    world.run(2_000)
    assert world.quenched["b.2", "t"], "it is believed again"


def test_a_publisher_that_was_out_of_reach_when_somebody_wanted_something_hears_of_it() -> None:
    """It may not have noticed that it was."""
    world, clients = two_levels()
    clients.publish("b.1", "t")
    world.run(2_000)
    holder = machine(world, "a.2").answers
    assert (2, "t") in holder.told
    world.cut_between("a.1", "b.1")
    clients.want("a.1", "t")
    world.run(5_000)
    assert (2, "t") in holder.told
    world.mend_between("a.1", "b.1")
    world.run(5_000)
    assert (2, "t") not in holder.told and not clients.checks.unconfirmed()


def test_a_publisher_that_has_not_noticed_that_it_is_out_of_reach_is_waited_for() -> None:
    """The cluster in between falls into two: its gatekeeper cannot reach the publisher, to which it seems whole."""
    world, clients = two_levels()
    clients.publish("b.1", "t")
    world.run(2_000)
    world.cut_between("a.1", "a.2")
    clients.want("d.1", "t")
    world.run(5_000)
    assert world.quenched["b.1", "t"]
    assert [unit.level for unit in clients.checks.confirmed["d.1", "w"]] == [0, 1, 2], "not in the whole federation"
    world.mend_between("a.1", "a.2")
    clients.confirm()
    event = clients.publish("b.1", "t", is_quiet=False)
    world.run(1_000)
    assert clients.takers(event) == ["d.1"]


def test_the_word_of_a_gatekeeper_ends_with_its_gateway() -> None:
    world, clients = two_levels()
    clients.publish("b.1", "t")
    world.run(1_000)
    world.cut_between("a.2", "c.1")
    world.run(1_000)
    assert not world.quenched["b.1", "t"]
    world.mend_between("a.2", "c.1")
    clients.want("d.1", "t")
    clients.confirm()
    event = clients.publish("b.1", "t", is_quiet=False)
    world.run(1_000)
    assert clients.takers(event) == ["d.1"]


def test_mail_reaches_those_that_it_names_and_the_others_are_told_of() -> None:
    """G55, G56."""
    world, clients = square()
    for site, client in (("b.2", "ann"), ("a.2", "bob"), ("b.1", "eve")):
        clients.want(site, UnitWant("mail", parse(f"to = '{client}'")), name=client)
    clients.confirm()
    origin = world.sites["a.1"]
    for sequence, to in enumerate((("ann", "bob"), ("ann", "zoe", "tom"), ("zoe",)), start=1):
        event = UnitEvent(EventId(origin.unit.id, 9, 1, sequence), "mail", mail_to(*to), b"", to)
        clients.checks.publish(origin, event, is_quiet=True)
        world.feed(origin, PublishEvent(event))
        world.run(1_000)
    taken = [clients.takers(EventId(origin.unit.id, 9, 1, sequence)) for sequence in (1, 2, 3)]
    assert taken == [["a.2", "b.2"], ["b.2"], []]
    assert [(name, each.event.sequence, each.clients) for name, each in world.unknown] == [
        ("a.1", 2, ("zoe", "tom")),
        ("a.1", 3, ("zoe",)),
    ]


def test_nobody_is_called_unknown_while_somebody_is_silent() -> None:
    """A gatekeeper that has just restarted does not know yet who is there."""
    world, clients = square()
    clients.want("b.1", UnitWant("mail", parse("to = 'ann'")), name="ann")
    clients.confirm()
    world.crash(world.sites["b.1"])
    world.run(3_000)
    site = world.sites["a.1"]
    event = UnitEvent(EventId(site.unit.id, 9, 1, 1), "mail", summary(to="ann"), b"", ("ann",))
    clients.checks.publish(site, event)
    world.feed(site, PublishEvent(event))
    world.run(3_000)
    assert not world.unknown
    world.start(world.sites["b.1"])
    world.run(20_000)
    assert clients.takers(event.id) == ["b.1"] and not machine(world, "a.1").answers.is_quenched("mail")
