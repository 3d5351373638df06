"""Checkers: each passes on a world as it should be and raises on a violation made by hand."""

from dataclasses import replace

import pytest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.calls import ABSENT_PATIENCE_MS, CALLS_MAX
from m4cast.overlay.protocol.effects import Delivered, Publish, Published, Range, Staged, Trace, Wake
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.sim.checkers import (
    Durability,
    ExactlyOnce,
    GraphSafety,
    Memory,
    Numbers,
    Order,
    Violation,
    unsettled,
    unsettled_graph,
    unsettled_logs,
)
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.sim.places import Network, Place
from m4cast.overlay.sim.world import World, address_of, node_config
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, contact, node_id, stream_id

S = stream_id()


def world_of(count: int = 3, degree: int = 4) -> World:
    """A channel of so many nodes that has settled."""
    world = World(1, ClusterConfig(degree=degree), Network(latency_ms=(5, 5), jitter_ms=0))
    for index in range(count):
        world.start(world.add(node_config(index, (0,))))
        world.run(world.now_ms + 5_000)
    assert world.run_until(lambda: not unsettled(world), 60_000)
    return world


def place_of(world: World, index: int = 0) -> Place:
    return world.places[address_of(index)]


def node_of(place: Place) -> Node:
    assert place.node is not None
    return place.node


def store(place: Place, *batches: Batch) -> None:
    """Put batches on a disk, past everything."""
    place.disk.waiting.append(append_of(1, batches=batches))
    place.disk.syncing = 1
    place.disk.sync_done()


def delivery(first: int, last: int, stream: StreamId = S) -> Delivered:
    return Delivered(Delivery(stream, first, last, 0, 0, 1, How.PUSHED, None))


def skip(first: int, last: int) -> Skip:
    return Skip(S, first, last, SkipReason.EXPIRED, node_id("m"))


def lone_place() -> tuple[World, Place]:
    world = World(1)
    place = world.add(node_config(0, (0,)))
    world.start(place)
    return world, place


# ---- the graph


def test_too_many_neighbours_are_seen() -> None:
    world = world_of(3)
    place = place_of(world)
    GraphSafety().handled(place, Wake())
    table = node_of(place).membership.table
    neighbour = next(iter(table.neighbours.values()))
    for number in range(2):
        table.neighbours[node_id(f"x{number}")] = neighbour
    GraphSafety().handled(place, Wake())
    table.neighbours[node_id("x3")] = neighbour
    with pytest.raises(Violation, match="graph: n0 has 5 neighbours"):
        GraphSafety().handled(place, Wake())


def test_a_node_that_is_its_own_neighbour_is_seen() -> None:
    place = place_of(world_of(2))
    table = node_of(place).membership.table
    table.neighbours[table.me] = next(iter(table.neighbours.values()))
    with pytest.raises(Violation, match="its own neighbour"):
        GraphSafety().handled(place, Wake())


# ---- numbers


def test_two_batches_under_one_number_are_seen_wherever_they_are_stored() -> None:
    _, place = lone_place()
    numbers = Numbers()
    batches = chain(2)
    for batch in (batches[0], batches[0], batches[1]):
        numbers.synced(place, append_of(1, batches=(batch,)))
    with pytest.raises(Violation, match=r"numbers: n0 stores another .*/t 2 than"):
        numbers.synced(place, append_of(2, batches=(chain(2, mark=b"x")[1],)))


@pytest.mark.parametrize("other_has_it", [True, False])
def test_a_number_may_be_used_again_only_if_nobody_who_can_be_asked_has_the_first_row(other_has_it: bool) -> None:
    world, place = rolled_back_world(None)
    mine = StreamId(place.disk.content.node_id, "t")
    first, again = chain(1, stream=mine)[0], chain(1, stream=mine, mark=b"x")[0]
    if other_has_it:
        store(place_of(world, 1), first)
    numbers = Numbers(world)
    numbers.synced(place_of(world, 1), append_of(1, batches=(first,)))
    if other_has_it:
        with pytest.raises(Violation, match="stores another"):
            numbers.synced(place, append_of(1, batches=(again,)))
    else:
        numbers.synced(place, append_of(1, batches=(again,)))
        numbers.synced(place_of(world, 1), append_of(2, batches=(again,)))  # received, not numbered
    assert list(numbers.forked) == [mine]


def test_a_fork_that_is_none_must_not_be_reported() -> None:
    world, place = lone_place()
    numbers = Numbers(world)
    report = Trace("fork", (("origin", S.origin.hex()), ("topic", S.topic)))
    with pytest.raises(Violation, match="reports a fork of t that there is not"):
        numbers.output(place, report)
    numbers.forked[S] = None
    numbers.output(place, report)
    assert list(numbers.reports) == [(place.address, S)]


def test_equal_numbers_of_other_streams_are_no_matter() -> None:
    _, place = lone_place()
    numbers = Numbers()
    for stream in (S, stream_id("o", "u"), stream_id("p")):
        numbers.synced(place, append_of(1, batches=tuple(chain(1, stream=stream))))


# ---- order


class Watched:
    """A place with a checker of order, and batches that its origin has stored."""

    def __init__(self, batches: list[Batch]) -> None:
        self.world, self.place = lone_place()
        self.numbers = Numbers()
        self.order = Order(self.world, self.numbers)
        self.order.started(self.place)
        self.numbers.synced(self.place, append_of(1, batches=tuple(batches)))
        store(self.place, *batches)

    def deliver(self, first: int, last: int) -> None:
        self.order.output(self.place, delivery(first, last))


def test_deliveries_that_follow_each_other_are_as_they_should_be() -> None:
    watched = Watched(chain(3, rows=2))
    for first in (1, 3, 5):
        watched.deliver(first, first + 1)


@pytest.mark.parametrize(
    ("first", "words"), [(1, "1 again, 5 was next"), (3, "3 again, 5 was next"), (7, "7 past a hole, 5 was next")]
)
def test_a_repeat_and_a_hole_are_seen(first: int, words: str) -> None:
    watched = Watched(chain(4, rows=2))
    watched.deliver(1, 2)
    watched.deliver(3, 4)
    with pytest.raises(Violation, match=f"delivery: n0 .*/t: {words}"):
        watched.deliver(first, first + 1)


def test_a_delivery_that_the_origin_never_stored_is_seen() -> None:
    watched = Watched(chain(1))
    watched.deliver(1, 1)
    with pytest.raises(Violation, match="2 was never stored by its origin"):
        watched.deliver(2, 2)
    watched = Watched(chain(1, rows=3))
    with pytest.raises(Violation, match="1 was never stored by its origin"):
        watched.deliver(1, 2)


def test_a_delivery_before_the_disk_is_seen() -> None:
    watched = Watched(chain(1))
    watched.numbers.synced(watched.place, append_of(2, batches=(chain(2)[1],)))
    watched.deliver(1, 1)
    with pytest.raises(Violation, match="2 before it is on disk"):
        watched.deliver(2, 2)


def test_a_start_in_the_middle_is_where_deliveries_begin() -> None:
    watched = Watched([])
    batches = chain(4)
    watched.numbers.synced(watched.place, append_of(1, batches=tuple(batches)))
    start = append_of(1, starts=((S, 4),), batches=(batches[3],))
    watched.place.disk.waiting.append(start)
    watched.place.disk.syncing = 1
    watched.place.disk.sync_done()
    watched.order.synced(watched.place, start)
    watched.deliver(4, 4)


def test_what_was_delivered_and_is_gone_after_a_restart_is_seen() -> None:
    watched = Watched(chain(2))
    watched.deliver(1, 1)
    watched.deliver(2, 2)
    watched.order.started(watched.place)
    log = watched.place.disk.content.logs[S]
    log.batches.pop()
    log.next = 2
    with pytest.raises(Violation, match="durability: n0 delivered t to 3 and lost it"):
        watched.order.started(watched.place)


def test_a_restart_goes_on_where_the_store_is_and_another_store_begins_anew() -> None:
    watched = Watched(chain(2))
    watched.deliver(1, 1)
    watched.order.started(watched.place)
    with pytest.raises(Violation, match="2 again, 3 was next"):
        watched.deliver(2, 2)
    watched.place.disk = Disk(watched.place.disk.content.node_id)
    watched.order.started(watched.place)
    store(watched.place, *chain(2))
    watched.deliver(1, 1)


@pytest.mark.parametrize("kept", [True, False])
def test_a_skip_of_what_somebody_reachable_keeps_is_seen(kept: bool) -> None:
    world = world_of(2)
    order = Order(world, Numbers())
    here, there = place_of(world, 0), place_of(world, 1)
    for place in (here, there):
        order.started(place)
    store(there, *chain(3))
    if not kept:
        there.disk.trim(S, 3)
        order.output(here, Delivered(skip(1, 2)))
        return
    with pytest.raises(Violation, match=r"skip of 1, which \['n1'\] keep"):
        order.output(here, Delivered(skip(1, 2)))


@pytest.mark.parametrize(
    ("away_ms", "will_return", "is_seen"),
    [(ABSENT_PATIENCE_MS - 1, True, True), (ABSENT_PATIENCE_MS, True, False), (1, False, False)],
)
def test_what_a_node_keeps_that_will_soon_be_back_must_not_be_skipped(
    away_ms: int, will_return: bool, is_seen: bool
) -> None:
    world = world_of(2)
    order = Order(world, Numbers())
    here, there = place_of(world, 0), place_of(world, 1)
    order.started(here)
    store(there, *chain(3))
    world.crash(there, silent=True)
    there.will_return = will_return
    world.now_ms += away_ms
    if is_seen:
        with pytest.raises(Violation, match=r"skip of 1, which \['n1'\] keep"):
            order.output(here, Delivered(skip(1, 2)))
    else:
        order.output(here, Delivered(skip(1, 2)))


def test_after_a_skip_deliveries_go_on_behind_it() -> None:
    watched = Watched([])
    watched.numbers.synced(watched.place, append_of(1, batches=tuple(chain(4))))
    watched.order.output(watched.place, Delivered(skip(1, 3)))
    with pytest.raises(Violation, match="3 again, 4 was next"):
        watched.deliver(3, 3)


# ---- durability


def published(place: Place, next_sequence: int, request: int = 7) -> Published:
    stream = StreamId(place.disk.content.node_id, "t")
    return Published(request, (Range(stream, 1, next_sequence),))


def test_an_answer_before_the_own_disk_is_seen() -> None:
    _, place = lone_place()
    durability = Durability()
    mine = chain(1, stream=StreamId(place.disk.content.node_id, "t"))
    with pytest.raises(Violation, match="answered t before it is on its disk"):
        durability.output(place, published(place, 2))
    store(place, *mine)
    durability.synced(place, append_of(1, batches=tuple(mine)))
    durability.output(place, published(place, 2))
    with pytest.raises(Violation, match="answered t before it is on its disk"):
        durability.output(place, published(place, 3))


@pytest.mark.parametrize(("holders", "seen"), [(0, True), (1, True), (2, False)])
def test_an_answer_with_too_few_acks_is_seen(holders: int, seen: bool) -> None:
    world = World(1)
    places = [world.add(node_config(index, ())) for index in range(4)]
    durability = Durability(acks={7: 2})
    mine = chain(2, stream=StreamId(places[0].disk.content.node_id, "t"))
    for place in places[: holders + 1]:
        store(place, *mine)
        durability.synced(place, append_of(1, batches=tuple(mine)))
    durability.synced(places[3], append_of(1, batches=(mine[0],)))  # not all of it
    if seen:
        with pytest.raises(Violation, match=f"answered with {holders} of 2 acks"):
            durability.output(places[0], published(places[0], 3))
    else:
        durability.output(places[0], published(places[0], 3))


def test_a_disk_that_is_lost_later_does_not_take_an_ack_back() -> None:
    world = World(1)
    places = [world.add(node_config(index, ())) for index in range(2)]
    durability = Durability(acks={7: 1})
    mine = chain(1, stream=StreamId(places[0].disk.content.node_id, "t"))
    for place in places:
        store(place, *mine)
        durability.synced(place, append_of(1, batches=tuple(mine)))
    places[1].disk = Disk(node_id("new"))
    durability.output(places[0], published(places[0], 2))


# ---- memory


@pytest.mark.parametrize(
    ("what", "words"),
    [("held", "holds 33554433 bytes back"), ("undurable", "67108865 bytes waiting"), ("calls", "577 calls")],
)
def test_too_much_memory_is_seen(what: str, words: str) -> None:
    _, place = lone_place()
    node, config = node_of(place), place.config
    ordering, backlogs = node.dissemination.ordering, node.dissemination.backlogs
    backlogs.held_bytes = config.hold_back_bytes_max
    ordering.undurable_bytes = config.undurable_bytes_max
    while len(node.calls) < CALLS_MAX + 64:
        node.calls.dial(contact("x").address, "test", 0)
    Memory().handled(place, Wake())
    match what:
        case "held":
            backlogs.held_bytes += 1
        case "undurable":
            ordering.undurable_bytes += 1
        case "calls":
            node.calls.dial(contact("x").address, "test", 0)
    with pytest.raises(Violation, match=f"memory: n0 .*{words}"):
        Memory().handled(place, Wake())


@pytest.mark.parametrize("what", ["backlogs.held_bytes", "ordering.undurable_bytes"])
def test_memory_that_is_given_back_twice_is_seen(what: str) -> None:
    _, place = lone_place()
    machine, _, name = what.partition(".")
    setattr(getattr(node_of(place).dissemination, machine), name, -1)
    with pytest.raises(Violation, match="memory"):
        Memory().handled(place, Wake())


# ---- exactly once


def keyed(stream: StreamId, first: int, position: str = "1", part: int = 0, parts: int = 1) -> Batch:
    batch = chain(first, stream=stream)[-1]
    return seal(replace(batch, checksum=0, publisher="k", position=position, part=part, parts=parts))


def test_a_commit_that_is_stored_twice_is_seen() -> None:
    _, place = lone_place()
    once = ExactlyOnce(Numbers())
    mine = StreamId(place.disk.content.node_id, "t")
    first = keyed(mine, 1)
    for batch in (first, first, keyed(mine, 2, "2", 0, 2), keyed(mine, 3, "2", 1, 2)):
        once.synced(place, append_of(1, batches=(batch,)))
    with pytest.raises(Violation, match="part 0 of k 1 is at 1 and at 4"):
        once.synced(place, append_of(2, batches=(keyed(mine, 4),)))


def test_batches_without_a_key_may_be_repeated() -> None:
    _, place = lone_place()
    once = ExactlyOnce(Numbers())
    once.synced(place, append_of(1, batches=tuple(chain(3, stream=StreamId(place.disk.content.node_id, "t")))))
    assert once.parts == {}


def rolled_back_world(other_has: Batch | None) -> tuple[World, Place]:
    """Two nodes; the first was restarted after the second, and asks it what it has."""
    world = world_of(2)
    here, there = place_of(world, 0), place_of(world, 1)
    world.crash(here, silent=False)
    if other_has is not None:
        store(there, other_has)
    world.run(world.now_ms + 10)
    world.start(here)
    return world, here


@pytest.mark.parametrize("other_has_it", [True, False])
def test_a_forgotten_commit_may_be_repeated_only_if_nobody_who_can_be_asked_has_it_whole(other_has_it: bool) -> None:
    old = StreamId(node_id("old"), "t")
    first = keyed(old, 1)
    world, place = rolled_back_world(first if other_has_it else None)
    once = ExactlyOnce(Numbers(world))
    once.synced(place, append_of(1, batches=(first,)))
    again = append_of(2, batches=(keyed(StreamId(place.disk.content.node_id, "t"), 1),))
    if other_has_it:
        with pytest.raises(Violation, match="part 0 of k 1 is at 1 and at 1"):
            once.synced(place, again)
    else:
        once.synced(place, again)


def test_a_commit_that_was_answered_is_there_with_all_its_parts() -> None:
    _, place = lone_place()
    once = ExactlyOnce(Numbers())
    with pytest.raises(Violation, match="k 1 was answered, parts all are missing"):
        once.check_whole("k", "1")
    once.synced(place, append_of(1, batches=(keyed(S, 1, part=0, parts=3), keyed(S, 3, part=2, parts=3))))
    with pytest.raises(Violation, match=r"k 1 was answered, parts \[1\] are missing"):
        once.check_whole("k", "1")
    once.synced(place, append_of(1, batches=(keyed(S, 2, part=1, parts=3),)))
    once.check_whole("k", "1")


# ---- liveness


@pytest.mark.parametrize(("count", "degree"), [(1, 4), (3, 4), (6, 4), (7, 3)])
def test_a_settled_channel_owes_nothing(count: int, degree: int) -> None:
    assert unsettled(world_of(count, degree)) == []


def test_a_node_that_is_not_on_the_channel_is_complained_about() -> None:
    world = world_of(3)
    node_of(place_of(world, 1)).membership.links.state = State.PARTIAL
    assert unsettled(world) == unsettled_graph(world) == ["n1 is not on the channel"]


def test_a_link_with_one_end_and_the_hole_it_leaves_are_complained_about() -> None:
    world = world_of(3)
    node = node_of(place_of(world, 1))
    del node.membership.table.neighbours[place_of(world, 2).disk.content.node_id]
    one, two = address_of(1), address_of(2)
    assert unsettled_graph(world) == ["n2 has a link that its other end has not", f"holes at ['{one}', '{two}']"]


def test_with_an_odd_degree_and_an_odd_number_one_hole_is_no_complaint_but_two_are() -> None:
    world = world_of(7, degree=3)
    a, b = world.edges()[0]
    for here, there in ((a, b), (b, a)):
        table = node_of(world.places[here]).membership.table
        del table.neighbours[world.places[there].disk.content.node_id]
    assert any("holes at" in complaint for complaint in unsettled_graph(world))


def test_a_graph_in_two_parts_is_complained_about() -> None:
    world = world_of(2)
    for index in (0, 1):
        node_of(place_of(world, index)).membership.table.neighbours.clear()
    assert "the graph is not connected" in unsettled_graph(world)


def test_a_log_that_is_behind_is_complained_about() -> None:
    world = world_of(3)
    world.feed(place_of(world, 0), Publish(1, (Staged("t", 2, 1, b"x"),)))
    world.run(world.now_ms + 1_000)
    assert unsettled_logs(world) == []
    log = place_of(world, 2).disk.content.logs[StreamId(place_of(world, 0).disk.content.node_id, "t")]
    log.next = 1
    (complaint,) = unsettled_logs(world)
    assert complaint.startswith("n2 has ") and complaint.endswith("/t to 1, others to 3")
    place_of(world, 2).disk.content.logs.clear()
    assert unsettled(world) == unsettled_logs(world) == [complaint]
    world.crash(place_of(world, 2), silent=True)
    assert unsettled_logs(world) == [], "who is down owes nothing"
