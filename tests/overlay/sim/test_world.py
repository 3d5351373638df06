"""The simulated world: time, connections that keep their order or fail, hosts that crash, pause and are slow, disks."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.protocol.effects import (
    Append,
    AppendFailed,
    Close,
    Connected,
    Dial,
    DialFailed,
    Disconnected,
    Durable,
    FrameProgress,
    Input,
    Left,
    LinkBlocked,
    LinkReady,
    Output,
    RangeRead,
    ReadRange,
    Received,
    RolledBack,
    RosterChanged,
    Send,
    Start,
    Trimmed,
    Wake,
    WakeAt,
)
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.messages import Heartbeat
from m4cast.overlay.protocol.wire.selective import WireFrame
from m4cast.overlay.sim.places import End, Network, Observer, Place
from m4cast.overlay.sim.world import World, address_of, node_config
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, entry, node_id, pushed, stream_id

S = stream_id()
STILL = Network(latency_ms=(10, 10), jitter_ms=0, fsync_ms=(5, 5))


class Puppet(Node):
    """Does nothing by itself; remembers what it was told and when."""

    incarnation = 1

    def __init__(self) -> None:
        self.heard: list[tuple[int, Input]] = []
        self.next: list[Output] = []

    def handle(self, event: Input, now_ms: int) -> list[Output]:
        self.heard.append((now_ms, event))
        outputs, self.next = self.next, []
        return outputs


def world_of(count: int = 2, network: Network = STILL, seed: int = 1, *, wire: bool = False) -> World:
    """Places n0, n1, ... with puppets in them."""
    world = World(seed, network=network, wire=wire)
    for index in range(count):
        start(world, world.add(node_config(index, ())))
    return world


def start(world: World, place: Place) -> None:
    """Like `World.start`, but with a puppet."""
    place.started += 1
    place.wake_at_ms = -1
    place.node = Puppet()


def place(world: World, index: int) -> Place:
    return world.places[address_of(index)]


def puppet(world: World, index: int) -> Puppet:
    node = place(world, index).node
    assert isinstance(node, Puppet)
    return node


def do(world: World, index: int, *outputs: Output) -> None:
    """The puppet puts these out."""
    puppet(world, index).next = list(outputs)
    world.feed(place(world, index), Start())


def heard(world: World, index: int, kind: type[Input] | None = None) -> list[tuple[int, Input]]:
    """The inputs of a puppet since the last call (besides being made to do things)."""
    node = puppet(world, index)
    found: list[tuple[int, Input]] = []
    for at_ms, event in node.heard:
        if not isinstance(event, Start) and (kind is None or isinstance(event, kind)):
            found.append((at_ms, event))
    node.heard.clear()
    return found


def connected(world: World) -> End:
    """n0 dialled n1 on connection 1, which has number 2 there; the end at n0."""
    do(world, 0, Dial(1, address_of(1)))
    world.run(world.now_ms + 100)
    assert [event for _, event in heard(world, 0)] == [Connected(1)]
    assert [event for _, event in heard(world, 1)] == [Connected(2)]
    return place(world, 0).ends[1]


def beats(world: World, index: int) -> list[int]:
    """Numbers of the heartbeats that arrived, in order."""
    found = []
    for _, event in heard(world, index, Received):
        assert isinstance(event, Received) and isinstance(event.message, Heartbeat)
        found.append(event.message.frontier_digest)
    return found


def beat(number: int, conn: int = 1) -> Send:
    return Send(conn, Heartbeat(number))


# ---- time


def test_things_happen_in_the_order_of_their_times_and_then_of_their_asking() -> None:
    world = World(1)
    seen: list[tuple[int, str]] = []
    for at_ms, what in ((20, "b"), (10, "a"), (20, "c"), (31, "d")):
        world.at(at_ms, lambda what: seen.append((world.now_ms, what)), what)
    world.run(30)
    assert seen == [(10, "a"), (20, "b"), (20, "c")]
    assert world.now_ms == 30
    world.after(0, lambda: seen.append((world.now_ms, "e")))
    world.run(31)
    assert seen[3:] == [(30, "e"), (31, "d")]


def test_running_until_something_holds_has_a_bound() -> None:
    world = World(1)
    world.at(250, lambda: None)
    assert world.run_until(lambda: world.now_ms >= 250, bound_ms=1_000)
    assert world.now_ms == 300
    assert not world.run_until(lambda: False, bound_ms=1_050)
    assert world.now_ms == 1_350


def test_a_node_is_woken_at_the_time_it_wished_last() -> None:
    world = world_of(1)
    do(world, 0, WakeAt(50))
    do(world, 0, WakeAt(80))
    world.run(200)
    assert heard(world, 0) == [(80, Wake())]
    do(world, 0, WakeAt(10))
    world.run(300)
    assert heard(world, 0) == [(200, Wake())], "a time that has passed is now"


# ---- connections


def test_the_dialler_knows_that_it_is_connected_before_it_hears_anything() -> None:
    world = world_of()
    puppet(world, 1).next = [beat(7, conn=2)]
    do(world, 0, Dial(1, address_of(1)))
    world.run(100)
    assert heard(world, 1) == [(10, Connected(2))]
    assert heard(world, 0) == [(20, Connected(1)), (20, Received(1, Heartbeat(7)))]


def test_accepted_connections_have_even_numbers_of_their_own() -> None:
    world = world_of()
    do(world, 0, Dial(1, address_of(1)), Dial(3, address_of(1)))
    world.run(100)
    assert sorted(place(world, 1).ends) == [2, 4]


def test_a_dial_to_an_unused_address_fails() -> None:
    world = world_of()
    world.crash(place(world, 1), silent=True)
    do(world, 0, Dial(1, address_of(1)), Dial(3, "nowhere:1"))
    world.run(100)
    assert heard(world, 0) == [(20, DialFailed(1)), (20, DialFailed(3))]


def test_a_dial_to_one_who_goes_down_meanwhile_fails() -> None:
    world = world_of()
    do(world, 0, Dial(1, address_of(1)))
    world.crash(place(world, 1), silent=True)
    world.run(100)
    assert heard(world, 0) == [(20, DialFailed(1))]


@pytest.mark.parametrize("seed", range(5))
def test_each_direction_of_a_connection_keeps_its_order(seed: int) -> None:
    world = world_of(network=Network(latency_ms=(5, 50), jitter_ms=40), seed=seed)
    connected(world)
    for number in range(30):
        do(world, 0, beat(number), beat(number + 100))
        do(world, 1, beat(number, conn=2))
        world.run(world.now_ms + 3)
    world.run(world.now_ms + 1_000)
    assert beats(world, 1) == [n for number in range(30) for n in (number, number + 100)]
    assert beats(world, 0) == list(range(30))


def test_a_message_takes_its_latency_and_jitter() -> None:
    world = world_of(network=Network(latency_ms=(10, 10), jitter_ms=5))
    connected(world)
    times = set()
    for _ in range(50):
        sent_ms = world.now_ms
        do(world, 0, beat(1))
        world.run(sent_ms + 100)
        ((at_ms, _),) = heard(world, 1)
        times.add(at_ms - sent_ms)
    assert times == set(range(10, 16))


def test_a_close_is_heard_by_the_other_after_all_that_was_sent_and_not_by_oneself() -> None:
    world = world_of(network=Network(latency_ms=(10, 10), jitter_ms=20))
    connected(world)
    do(world, 0, *(beat(number) for number in range(5)), Close(1), beat(9))
    world.run(world.now_ms + 100)
    events = [event for _, event in heard(world, 1)]
    assert events == [*(Received(2, Heartbeat(number)) for number in range(5)), Disconnected(2)]
    assert heard(world, 0) == []
    assert place(world, 0).ends == place(world, 1).ends == {}


def test_what_is_sent_to_one_who_has_closed_vanishes() -> None:
    world = world_of()
    connected(world)
    do(world, 1, beat(1, conn=2))
    do(world, 0, Close(1))
    world.run(world.now_ms + 100)
    assert beats(world, 0) == []


def test_a_cut_connection_loses_what_is_under_way_and_both_are_told() -> None:
    world = world_of()
    end = connected(world)
    do(world, 0, beat(1))
    do(world, 1, beat(2, conn=2))
    world.cables.break_connection(end)
    world.run(world.now_ms + 100)
    assert [event for _, event in heard(world, 0)] == [Disconnected(1)]
    assert [event for _, event in heard(world, 1)] == [Disconnected(2)]


def test_a_half_open_connection_is_dead_in_one_direction_and_nobody_is_told() -> None:
    world = world_of()
    end = connected(world)
    world.cables.half_open(end)
    do(world, 0, beat(1))
    do(world, 1, beat(2, conn=2))
    world.run(world.now_ms + 10_000)
    assert heard(world, 1) == []
    assert beats(world, 0) == [2]


def test_a_stalled_connection_is_late_and_loses_nothing() -> None:
    world = world_of()
    world.cables.stall(connected(world), 500)
    begin_ms = world.now_ms
    do(world, 0, beat(1), beat(2))
    do(world, 1, beat(3, conn=2))
    world.run(begin_ms + 509)
    assert (beats(world, 1), beats(world, 0)) == ([], [3])
    world.run(begin_ms + 510)
    assert beats(world, 1) == [1, 2]


def test_a_blocked_end_is_told_and_told_when_it_is_ready() -> None:
    world = world_of()
    end = connected(world)
    begin_ms = world.now_ms
    world.cables.block(end, 40)
    world.cables.block(end, 10)  # it is blocked already
    world.run(begin_ms + 100)
    assert heard(world, 0) == [(begin_ms, LinkBlocked(1)), (begin_ms + 40, LinkReady(1))]
    assert heard(world, 1) == []
    world.cables.block(end, 40)
    world.run(begin_ms + 200)
    assert len(heard(world, 0)) == 2, "and again"


def test_an_end_that_goes_away_while_it_is_blocked_hears_no_more_of_it() -> None:
    world = world_of()
    end = connected(world)
    world.cables.block(end, 40)
    world.run(world.now_ms + 1)
    do(world, 0, Close(1))
    world.run(world.now_ms + 100)
    assert [event for _, event in heard(world, 0)] == [LinkBlocked(1)]


def test_bandwidth_makes_a_message_take_its_time_and_a_long_queue_blocks() -> None:
    network = Network(latency_ms=(10, 10), jitter_ms=0, bytes_per_ms=10)
    world = World(1, network=network)
    for index in range(2):
        start(world, world.add(node_config(index, (), link_queue_bytes_max=10_000)))
    connected(world)
    begin_ms = world.now_ms
    do(world, 0, Send(1, pushed(chain(1, size=9_000)[0])))
    world.run(begin_ms + 60_000)
    ((at_ms, _),) = heard(world, 1)
    assert 900 <= at_ms - begin_ms - 10 <= 930, "about 9,100 bytes at 10 a millisecond"
    assert heard(world, 0) == []
    begin_ms = world.now_ms
    do(world, 0, *(Send(1, pushed(chain(1, size=9_000)[0])) for _ in range(2)))
    world.run(begin_ms + 60_000)
    assert [event for _, event in heard(world, 0)] == [LinkBlocked(1), LinkReady(1)]
    (first_ms, _), (second_ms, _) = heard(world, 1, Received)
    assert 1_800 <= second_ms - begin_ms - 10 <= 1_860
    assert second_ms - first_ms > 850


def test_a_large_message_on_a_slow_connection_shows_progress() -> None:
    world = world_of(network=Network(latency_ms=(10, 10), jitter_ms=0, bytes_per_ms=10))
    connected(world)
    do(world, 0, Send(1, pushed(chain(1, size=45_000)[0])))
    world.run(world.now_ms + 60_000)
    events = heard(world, 1)
    assert [type(event) for _, event in events] == [FrameProgress] * (len(events) - 1) + [Received]
    assert len(events) >= 4
    assert all(later - earlier <= 1_100 for (earlier, _), (later, _) in pairwise(events))


def test_over_the_wire_what_arrives_is_equal_but_not_the_same() -> None:
    world = world_of(wire=True)
    connected(world)
    message = pushed(chain(1)[0])
    do(world, 0, Send(1, message))
    world.run(world.now_ms + 100)
    ((_, event),) = heard(world, 1)
    assert event == Received(2, message)
    assert event.message is not message


# ---- hosts


@pytest.mark.parametrize("silent", [True, False])
def test_a_crash_resets_the_connections_unless_the_host_is_gone(silent: bool) -> None:
    world = world_of()
    connected(world)
    do(world, 1, beat(1, conn=2))
    begin_ms = world.now_ms
    world.crash(place(world, 1), silent=silent)
    world.run(begin_ms + 10_000)
    assert heard(world, 0) == ([] if silent else [(begin_ms + 1, Disconnected(1))])
    assert not place(world, 1).up


def test_what_was_meant_for_the_node_before_the_crash_does_not_reach_the_next() -> None:
    world = world_of()
    connected(world)
    do(world, 0, beat(1), Dial(3, address_of(1)))
    do(world, 1, WakeAt(world.now_ms + 5), append_of(1), ReadRange(1, S, 1, 2, 9))
    world.crash(place(world, 1), silent=True)
    start(world, place(world, 1))
    world.run(world.now_ms + 1_000)
    assert [event for _, event in heard(world, 1)] == [Connected(4)], "only the dial reaches the new one"


def test_a_paused_host_catches_up_in_order() -> None:
    world = world_of()
    connected(world)
    world.pause(place(world, 1))
    for number in range(3):
        do(world, 0, beat(number))
        world.run(world.now_ms + 100)
    assert beats(world, 1) == []
    world.resume(place(world, 1))
    assert beats(world, 1) == [0, 1, 2]
    do(world, 0, beat(3))
    world.run(world.now_ms + 100)
    assert beats(world, 1) == [3]


def test_a_paused_host_that_crashes_forgets_what_waited_and_comes_back_awake() -> None:
    world = world_of()
    connected(world)
    world.pause(place(world, 1))
    do(world, 0, beat(1))
    world.run(world.now_ms + 100)
    world.crash(place(world, 1), silent=True)
    start(world, place(world, 1))
    do(world, 0, Dial(3, address_of(1)))
    world.run(world.now_ms + 100)
    assert [event for _, event in heard(world, 1)] == [Connected(4)]


def test_a_slow_host_takes_one_input_at_a_time_in_order() -> None:
    world = world_of()
    connected(world)
    place(world, 1).trouble.slow_ms = 30
    begin_ms = world.now_ms
    do(world, 0, *(beat(number) for number in range(4)))
    world.run(begin_ms + 60)
    do(world, 0, beat(4))
    world.run(begin_ms + 1_000)
    events = heard(world, 1, Received)
    assert [at_ms - begin_ms for at_ms, _ in events] == [10, 40, 70, 100, 130]
    assert [event for _, event in events] == [Received(2, Heartbeat(number)) for number in range(5)]


def test_a_node_that_left_is_stopped_and_one_that_was_rolled_back_gets_a_new_identity() -> None:
    world = world_of()
    connected(world)
    do(world, 1, Left())
    world.run(world.now_ms + 100)
    assert not place(world, 1).up
    assert [event for _, event in heard(world, 0)] == [Disconnected(1)]
    old = place(world, 0).disk.content.node_id
    do(world, 0, RolledBack("old"))
    world.run(world.now_ms + 1)
    content = place(world, 0).disk.content
    assert content.former_ids == (old,)
    assert content.node_id != old
    assert place(world, 0).up
    assert place(world, 0).rollbacks == 1


def test_word_about_the_roster_is_kept() -> None:
    world = world_of()
    do(world, 0, RosterChanged(entry("x")))
    assert place(world, 0).disk.open().roster == (entry("x"),)


# ---- disks


def test_an_append_is_durable_after_a_sync_and_those_that_wait_share_the_next() -> None:
    world = world_of()
    batches = chain(4)
    for token, batch in enumerate(batches[:3], start=1):
        do(world, 0, append_of(token, batches=(batch,)))
    world.run(3)
    do(world, 0, append_of(4, batches=(batches[3],)))
    world.run(100)
    assert heard(world, 0) == [(5, Durable(1)), (10, Durable(4))]
    assert place(world, 0).disk.content.logs[S].next == 5


def test_a_slow_disk_is_slow() -> None:
    world = world_of()
    place(world, 0).trouble.fsync_slow_ms = 500
    do(world, 0, append_of(1))
    world.run(1_000)
    assert heard(world, 0) == [(505, Durable(1))]


def test_a_full_disk_fails_an_append_and_all_that_are_asked_for_before_the_node_heard() -> None:
    world = world_of()
    batches = chain(3)
    do(world, 0, append_of(1, batches=(batches[0],)))
    place(world, 0).trouble.disk_full = True
    do(world, 0, append_of(2, batches=(batches[1],)))
    place(world, 0).trouble.disk_full = False
    do(world, 0, append_of(3, batches=(batches[2],)))
    world.run(100)
    failed = [event for _, event in heard(world, 0, AppendFailed)]
    assert failed == [AppendFailed(2, "disk full"), AppendFailed(3, "disk full")]
    assert place(world, 0).disk.content.logs[S].next == 2, "what was asked for before is durable"
    do(world, 0, append_of(4, batches=(batches[1],)))
    world.run(200)
    assert heard(world, 0) == [(105, Durable(4))]


def test_reads_see_what_is_durable() -> None:
    world = world_of()
    batches = chain(2)
    do(world, 0, append_of(1, batches=tuple(batches)))
    world.run(100)
    do(world, 0, ReadRange(7, S, 2, 3, 100))
    world.run(200)
    assert heard(world, 0, RangeRead) == [(101, RangeRead(7, (batches[1],)))]


def test_trimmed_rows_are_reported_to_the_node() -> None:
    world = world_of()
    do(world, 0, append_of(1, batches=tuple(chain(5))))
    world.run(100)
    heard(world, 0)
    world.trim(place(world, 0), stream_index=0, keep_rows=2)
    assert heard(world, 0) == [(100, Trimmed(S, 4))]


# ---- watching


@dataclass
class Witness(Observer):
    seen: list[str] = field(default_factory=list)

    def started(self, place: Place) -> None:
        self.seen.append(f"started {place.name}")

    def stopped(self, place: Place) -> None:
        self.seen.append(f"stopped {place.name}")

    def sent(self, end: End, message: WireFrame) -> None:
        self.seen.append(f"sent {end.place.name}-{end.other.place.name} {type(message).__name__}")

    def synced(self, place: Place, append: Append) -> None:
        self.seen.append(f"synced {append.token}")

    def output(self, place: Place, output: Output) -> None:
        self.seen.append(f"output {type(output).__name__}")

    def handled(self, place: Place, event: Input) -> None:
        self.seen.append(f"handled {type(event).__name__}")


def test_an_observer_sees_everything() -> None:
    world = world_of()
    witness = Witness()
    world.watch(witness)
    connected(world)
    witness.seen.clear()
    do(world, 0, beat(1), append_of(1))
    assert witness.seen == ["output Send", "sent n0-n1 Heartbeat", "output Append", "handled Start"]
    witness.seen.clear()
    world.run(world.now_ms + 100)
    assert witness.seen == ["synced 1", "handled Durable", "handled Received"]
    witness.seen.clear()
    world.crash(place(world, 0), silent=True)
    assert witness.seen == ["stopped n0"]
    world.start(place(world, 0))
    assert witness.seen[:2] == ["stopped n0", "started n0"]


def test_what_a_crash_left_on_disk_is_seen_as_synced() -> None:
    seen = set()
    for seed in range(20):
        world = world_of(seed=seed)
        witness = Witness()
        world.watch(witness)
        do(world, 0, append_of(1), append_of(2))
        witness.seen.clear()
        world.crash(place(world, 0), silent=True)
        seen.add(tuple(witness.seen[:-1]))
    assert seen == {(), ("synced 1",), ("synced 1", "synced 2")}


def test_a_link_counts_when_both_ends_have_it_on_the_same_connection() -> None:
    world = World(1, ClusterConfig())
    for index in range(3):
        world.start(world.add(node_config(index, (0,))))
    world.run(20_000)
    addresses = sorted(world.places)
    assert world.edges() == [(addresses[0], addresses[1]), (addresses[0], addresses[2]), (addresses[1], addresses[2])]
    node = place(world, 1).node
    assert node is not None
    del node.membership.table.neighbours[place(world, 0).disk.content.node_id]
    assert world.edges() == [(addresses[0], addresses[2]), (addresses[1], addresses[2])]


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    def trace(seed: int) -> list[str]:
        lines: list[str] = []
        world = World(seed, trace=lines.append)
        for index in range(5):
            world.start(world.add(node_config(index, (0,))))
        world.run(5_000)
        return lines

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


def test_places_have_addresses_of_their_own() -> None:
    world = World(1)
    made = world.add(node_config(3, (0, 1)))
    assert made.config == NodeConfig(name="n3", listen="h3:7400", portals=("h0:7400", "h1:7400"))
    assert not made.up
    with pytest.raises(AssertionError):
        world.add(node_config(3, ()))
    assert node_id("x") not in {place.disk.content.node_id for place in world.places.values()}
