"""Beginnings of registrations: with the earliest rows, at a time, or at a position (PROTOCOL.md, 18.3, R7)."""

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.wire.selective import SelectPullCall
from m4cast.overlay.sim.selective.places import SelectivePlace
from m4cast.overlay.sim.selective.world import SETTINGS, SelectiveWorld
from tests.overlay.protocol.selective.test_schedules import (
    A,
    B,
    channel,
    coverage,
    is_batch_to,
    publish,
    rows,
    stream_of,
)

APART_MS = SETTINGS.clock_skew_ms + 500
"""Rows that are this far apart are told apart by time, whatever clocks show."""


def published(world: SelectiveWorld, origin: SelectivePlace) -> list[int]:
    """Rows 1 to 4, and when each was published."""
    at_ms = []
    for _ in range(4):
        at_ms.append(world.now_ms)
        publish(world, origin, "A")
        world.run(APART_MS)
    return at_ms


def test_a_registration_from_a_time_is_filled_from_there() -> None:
    world = channel()
    origin, taker, _ = world.places
    at_ms = published(world, origin)
    name = world.subscribe(taker, "t", A, from_ms=at_ms[2] + SETTINGS.clock_skew_ms)
    world.run(3_000)
    assert (rows(taker, stream_of(origin)), sorted(taker.content.logs[stream_of(origin)])) == ("AA", [3, 4])
    assert coverage(taker, name, stream_of(origin)) == 5


def test_one_from_a_time_is_filled_though_the_node_follows_the_stream() -> None:
    world = channel()
    origin, taker, _ = world.places
    world.subscribe(taker, "t", "`country` = 'B'")
    world.run(500)
    at_ms = published(world, origin)
    world.subscribe(taker, "t", A, from_ms=at_ms[1] + SETTINGS.clock_skew_ms)
    world.run(3_000)
    assert sorted(taker.content.logs[stream_of(origin)]) == [2, 3, 4]


def test_a_time_that_has_not_come_means_now() -> None:
    """Rows that are published before it, by whatever clock, arrive as well."""
    world = channel()
    origin, taker, _ = world.places
    world.subscribe(taker, "t", A, from_ms=world.now_ms + 1_000_000)
    world.run(500)
    publish(world, origin, "A")
    world.run(3_000)
    assert rows(taker, stream_of(origin)) == "A"


def test_a_registration_at_a_position_begins_there_and_elsewhere_with_the_first_row() -> None:
    world = channel()
    origin, taker, other = world.places
    publish(world, origin, "AAAA")
    publish(world, other, "AA")
    name = world.subscribe(taker, "t", A, positions={origin.content.node_id: 3})
    world.crash(taker)  # before or after it is durable: it is made again, or begins where it did
    world.run(500)
    world.start(taker)
    if name not in taker.content.wants:
        world.subscribe(taker, "t", A, positions={origin.content.node_id: 3})
    world.run(5_000)
    assert sorted(taker.content.logs[stream_of(origin)]) == [3, 4]
    assert sorted(taker.content.logs[stream_of(other)]) == [1, 2]
    world.crash(taker)
    world.start(taker)
    world.run(500)
    assert (coverage(taker, name, stream_of(origin)), coverage(taker, name, stream_of(other))) == (5, 3)


def test_a_position_behind_the_end_is_reached() -> None:
    """Acknowledgements do not go past the end: the origin would wait for it without end."""
    world = channel()
    origin, taker, _ = world.places
    publish(world, origin, "AA")
    world.subscribe(taker, "t", A, positions={origin.content.node_id: 4})
    world.run(3_000)
    assert origin.machine is not None
    assert origin.machine.speaking.is_level(taker.content.node_id)
    publish(world, origin, "AA")
    world.run(3_000)
    assert sorted(taker.content.logs[stream_of(origin)]) == [3, 4], "others are not told of positions"
    assert origin.machine.speaking.is_level(taker.content.node_id)


def test_a_position_of_a_stream_that_nobody_has_heard_of_is_none() -> None:
    world = channel()
    origin, taker, _ = world.places
    world.subscribe(taker, "t", A, positions={NodeId(bytes(16)): 7})
    world.run(500)
    publish(world, origin, "A")
    world.run(3_000)
    assert rows(taker, stream_of(origin)) == "A"


def test_a_position_beyond_the_end_of_a_stream_acknowledges_nothing_that_did_not_come() -> None:
    """Its node is sent rows before it, as any that reaches back: others do not know where it begins."""
    world = channel()
    origin, taker, _ = world.places
    publish(world, origin, "A")
    world.run(2_000)
    name = world.subscribe(taker, "t", A, positions={origin.content.node_id: 10})
    world.run(2_000)
    world.loses = is_batch_to(taker)
    publish(world, origin, "A")
    world.loses = lambda frame: isinstance(frame.content, SelectPullCall)
    world.run(2_000)
    batch, _ = world.checks.published[stream_of(origin)][2]
    assert origin.machine is not None
    assert not origin.machine.is_acked(batch, 1)
    world.loses = lambda frame: False
    world.run(5_000)
    assert origin.machine.is_acked(batch, 1)
    assert (rows(taker, stream_of(origin)), coverage(taker, name, stream_of(origin))) == ("A", 3)


def test_a_position_beyond_the_end_begins_where_the_stream_was_known_to_end() -> None:
    """The first statements to the registration are lost, together with a batch."""
    world = channel()
    origin, taker, _ = world.places
    former = world.subscribe(taker, "t", B)
    world.run(500)
    publish(world, origin, "B")
    world.run(2_000)
    world.register(taker, removed=[former])
    world.run(500)
    world.loses = lambda frame: frame.destinations[0].node_id == taker.content.node_id
    name = world.subscribe(taker, "t", A, positions={origin.content.node_id: 10})
    world.run(50)
    publish(world, origin, "A")
    world.run(2_000)
    assert rows(taker, stream_of(origin)) == "B"
    world.loses = lambda frame: False
    world.run(5_000)
    assert (rows(taker, stream_of(origin)), coverage(taker, name, stream_of(origin))) == ("BA", 3)


def test_a_begin_of_a_registration_that_is_being_replaced_is_not_that_of_its_successor() -> None:
    """The successor has the same id, and is on its way to the disk."""
    world = channel()
    origin, taker, _ = world.places
    publish(world, origin, "AAA")
    world.run(2_000)
    world.loses = lambda frame: frame.destinations[0].node_id == taker.content.node_id
    name = world.subscribe(taker, "t", A, positions={origin.content.node_id: 10})
    world.run(500)
    world.loses = lambda frame: False
    world.sync_ms = (300, 300)
    world.subscribe(taker, "t", A, from_ms=0)
    world.sync_ms = (1, 10)
    publish(world, origin, "A")
    world.run(5_000)
    assert (rows(taker, stream_of(origin)), coverage(taker, name, stream_of(origin))) == ("AAAA", 5)
