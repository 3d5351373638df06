"""Schedules in which several of those that once broke the rules of selective topics come together (SELECTIVE.md)."""

from dataclasses import replace

from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.protocol.effects import KeyMove, Leave, Output, Publish, Published, Refused, Subscribe, Wish
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.sim.places import Place
from tests.simulation.test_selective_nodes import (
    TOPIC,
    Channel,
    batches_at,
    covered,
    held,
    keepers_of,
    node_of,
    staged,
    stream_of,
)


def test_an_origin_rolls_back_while_a_keeper_is_replaced_and_a_registration_begins_at_a_time() -> None:
    """H9, H15 and H30: the one who could tell where it begins is no node any longer, of the two who keep the stream one
    is gone, and the one in its place has nothing yet."""
    channel = Channel(7, clock_skew_ms=0)
    origin, *others = channel.places
    channel.create(origin, keepers=2)
    channel.publish(origin, "A")
    channel.run(10_000)
    copy = origin.disk.content.copy()
    for values in ("A", "B"):
        channel.publish(origin, values, acks=2)
        channel.run(2_000)
    from_ms = channel.world.now_ms
    moved = (KeyMove("job", None, "1"),)

    def publish() -> Output:
        return channel.ask(origin, lambda request: Publish(request, (staged("A"), staged("B")), moved, acks=1))

    assert isinstance(publish(), Published)
    channel.run(2_000)
    old, end = stream_of(origin), origin.disk.content.logs[stream_of(origin)].next
    gone, kept = keepers_of(channel, origin)
    reader = next(place for place in others if place not in (gone, kept))
    for place in (gone, origin):
        channel.world.crash(place, silent=True)
    origin.disk = Disk(copy.node_id)
    origin.disk.content = copy
    channel.world.start(origin)
    wish = Wish("w/A", TOPIC, parse("country = 'A'"), from_ms=from_ms)
    channel.ask(reader, lambda request: Subscribe(request, (wish,)))
    while not isinstance(repeated := publish(), Published):
        assert isinstance(repeated, Refused) and repeated.code == "not-ready" and channel.world.now_ms < 300_000
        channel.run(500)
    assert {rows.stream for rows in repeated.ranges} == {old}, "the keyed commit is not made again"
    assert isinstance(channel.publish(origin, "A", acks=1), Published)

    def is_covered() -> bool:
        coverage = node_of(reader).selection.coverage("w/A")
        return coverage.get(old, 1) == end and coverage.get(stream_of(origin), 1) == 2

    assert channel.world.run_until(is_covered, 120_000)
    there = [batch.first_sequence for batch in reader.disk.content.logs[old].batches]
    assert there == sorted(set(there)) and 4 in there, "the row that was published at that time"
    assert len(batches_at(reader, origin)) == 1


def test_an_origin_that_leaves_hands_over_what_a_registration_is_being_filled_with() -> None:
    """H19 and H24: without keepers nobody else has the rows that were published before."""
    channel = Channel(6)
    origin, reader, *_ = channel.places
    channel.create(origin, keepers=0)
    for values in "ABAABA":
        channel.publish(origin, values)
    channel.run(2_000)
    stream = stream_of(origin)
    reader.trouble.fsync_slow_ms = 300
    wish = Wish("w/country = 'A'", TOPIC, parse("country = 'A'"), earliest=True)
    channel.world.feed(reader, Subscribe(9_999, (wish,)))
    entries = node_of(origin).interest.view.entries
    assert channel.world.run_until(lambda: stream_of(reader).origin in entries, 10_000, 1)
    channel.world.feed(origin, Leave())
    assert channel.world.run_until(lambda: not origin.up, 60_000)
    assert channel.world.run_until(lambda: held(reader) == ["A"] * 4, 60_000)
    assert channel.world.run_until(lambda: node_of(reader).selection.coverage(wish.id).get(stream) == 7, 60_000)


def test_relays_that_restart_under_batches_beyond_the_window_cost_no_row_and_no_order() -> None:
    """H19 and H56: what they had in hand is lost with them, and the window does not wait for it without end."""
    channel = Channel(9, publish_window_bytes=4_096)
    origin, *others = channel.places
    near = node_of(origin).membership.table.neighbours
    reader = next(place for place in others if node_of(place).me.node_id not in near)
    relays = [place for place in others if node_of(place).me.node_id in near]
    channel.create(origin, keepers=0)
    channel.subscribe(reader, None)
    channel.run(3_000)
    down: list[Place] = []
    for number in range(60):
        rows = replace(staged("A"), payload=number.to_bytes(1) * 2_000)
        channel.world.feed(origin, Publish(20_000 + number, (rows,)))
        if number % 5 == 0:
            down.append(relays[number // 5 % len(relays)])
            channel.world.crash(down[-1], silent=number % 2 == 0)
        if number % 5 == 2:
            channel.world.start(down.pop())
        channel.run(40)
    assert channel.world.run_until(lambda: len(channel.watch.answers) > 0 and len(held_numbers(reader)) == 60, 60_000)
    assert held_numbers(reader) == sorted(held_numbers(reader))
    assert covered(channel, [reader], None, origin, 61)


def held_numbers(place: Place) -> list[int]:
    return [bytes(batch.content)[0] for log in place.disk.content.logs.values() for batch in log.batches]
