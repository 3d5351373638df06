"""Selective topics at a node that wants rows, has none of its own, and is started on an older copy of its store: nobody
can tell by its streams. Rows that it had acknowledged come back, and nothing that was said to the life that the copy
knows nothing of counts for what it wants now."""

import pytest

from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.protocol.effects import Publish, Subscribe, Unsubscribe, Wish
from m4cast.overlay.sim.disk import Content, Disk
from m4cast.overlay.sim.places import Place
from tests.simulation.test_selective_nodes import TOPIC, Channel, covered, held, node_of, staged, stream_of


def channel_with_reader(seed: int) -> tuple[Channel, Place, Place]:
    """A publisher, and a node that has its first row."""
    channel = Channel(5, seed)
    origin, reader = channel.places[0], channel.places[-1]
    channel.create(origin, keepers=0)
    channel.subscribe(reader, "country = 'A'")
    channel.run(2_000)
    channel.publish(origin, "A")
    channel.run(2_000)
    assert held(reader) == ["A"]
    return channel, origin, reader


def restart(channel: Channel, place: Place, copy: Content | None = None) -> None:
    """Kill the node, and start it at once: nobody misses it. `copy`: on this store."""
    channel.world.crash(place, silent=False)
    if copy is not None:
        place.disk = Disk(copy.node_id)
        place.disk.content = copy
    channel.world.start(place)


def lacking_rows(channel: Channel, origin: Place, reader: Place, value: str) -> list[int]:
    """The rows of this value that the reader was told to have, and that are not there."""
    stream = stream_of(origin)
    ends = channel.watch.covered.get((reader.name, f"w/country = '{value}'"), {})
    there = {batch.first_sequence for batch in reader.disk.content.logs[stream].batches}
    batches = (batch for batch in origin.disk.content.logs[stream].batches if bytes(batch.content) == value.encode())
    firsts = [batch.first_sequence for batch in batches if batch.first_sequence not in there]
    return [first for first in firsts if first < ends.get(stream.origin, 1)]


def publish_while_it_registers(channel: Channel, origin: Place, reader: Place, value: str) -> None:
    """The node was just started on the copy. Rows of this value and of B are published, and it registers C."""
    wish = Wish("w/country = 'C'", TOPIC, parse("country = 'C'"))
    channel.world.feed(reader, Subscribe(7_777, (wish,)))
    for number in range(100):
        channel.world.feed(origin, Publish(8_000 + number, (staged((value + "B")[number % 2]),)))
        channel.run(3)
        lacking = lacking_rows(channel, origin, reader, value)
        assert not lacking, f"covered, and not there: {lacking}"
    end = origin.disk.content.logs[stream_of(origin)].next
    assert channel.world.run_until(lambda: covered(channel, [reader], f"country = '{value}'", origin, end), 60_000)
    assert not lacking_rows(channel, origin, reader, value) and held(reader).count(value) > 40
    assert reader.rollbacks == 1


@pytest.mark.parametrize("seed", [1, 5])
def test_what_was_stated_for_a_registration_that_the_copy_lacks_counts_for_no_other_one(seed: int) -> None:
    """It registers something else before it hears of itself, and so has as many versions of its entry behind it."""
    channel, origin, reader = channel_with_reader(seed)
    copy = reader.disk.content.copy()
    channel.subscribe(reader, "country = 'B'")
    channel.run(2_000)
    restart(channel, reader, copy)
    publish_while_it_registers(channel, origin, reader, "C")


@pytest.mark.parametrize("seed", [1, 5])
def test_what_was_stated_when_a_registration_had_been_given_up_does_not_count_for_it(seed: int) -> None:
    channel, origin, reader = channel_with_reader(seed)
    copy = reader.disk.content.copy()
    channel.subscribe(reader, "country = 'B'")
    channel.ask(reader, lambda request: Unsubscribe(request, ("w/country = 'A'",)))
    channel.run(2_000)
    restart(channel, reader, copy)
    publish_while_it_registers(channel, origin, reader, "A")


def test_a_copy_from_before_the_last_restart_is_noticed_although_the_incarnation_is_the_same() -> None:
    """Else others take its beacons for old ones, for as long as the life lasted that the copy knows nothing of."""
    channel, origin, reader = channel_with_reader(1)
    copy = reader.disk.content.copy()
    restart(channel, reader)
    channel.run(300_000)
    lost = node_of(reader).incarnation
    restart(channel, reader, copy)
    assert node_of(reader).incarnation == lost
    channel.run(2_000)
    channel.publish(origin, "A")
    assert channel.world.run_until(lambda: held(reader) == ["A", "A"], 10_000)
    assert reader.rollbacks == 1


def test_rows_that_were_acknowledged_and_are_not_in_the_copy_come_back_although_the_stream_is_silent() -> None:
    channel, origin, reader = channel_with_reader(1)
    copy = reader.disk.content.copy()
    channel.publish(origin, "A")
    channel.run(10_000)
    assert held(reader) == ["A", "A"]
    restart(channel, reader, copy)
    assert held(reader) == ["A"]
    assert channel.world.run_until(lambda: held(reader) == ["A", "A"], 10_000)
    assert not reader.rollbacks, "the same is registered in both"
