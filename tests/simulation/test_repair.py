"""A node that every copy of a batch missed asks for it as soon as anything shows it, and has it within two round
trips of the link it asked."""

from dataclasses import dataclass, field

import pytest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.protocol.effects import Append, Output, Publish, Staged
from m4cast.overlay.protocol.wire.messages import HolderFoundStmt, PullCall
from m4cast.overlay.protocol.wire.selective import WireFrame
from m4cast.overlay.sim.checkers import unsettled, unsettled_graph
from m4cast.overlay.sim.places import End, Network, Observer, Place
from m4cast.overlay.sim.world import World, node_config
from tests.overlay.protocol.append_parts import batches_of

NODES = 9
ROUNDS = 40


@dataclass
class Repairs(Observer):
    """Round trips from the first question for a sequence until its batch is there."""

    world: World
    asked: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    round_trips: list[float] = field(default_factory=list)

    def sent(self, end: End, message: WireFrame) -> None:
        if isinstance(message, PullCall):
            key = (end.place.name, message.topic, message.first_sequence)
            self.asked.setdefault(key, (self.world.now_ms, 2 * end.latency_ms))

    def output(self, place: Place, output: Output) -> None:
        if isinstance(output, Append):
            for batch in batches_of(output):
                asked = self.asked.pop((place.name, batch.stream.topic, batch.first_sequence), None)
                if asked is not None:
                    self.round_trips.append((self.world.now_ms - asked[0]) / asked[1])


def settled_world(seed: int) -> World:
    world = World(seed, ClusterConfig(), Network(latency_ms=(5, 60), jitter_ms=0))
    for index in range(NODES):
        world.start(world.add(node_config(index, (0,))))
        world.run(world.now_ms + 500)
    assert world.run_until(lambda: not unsettled_graph(world), 60_000)
    return world


def publish(world: World, place: Place, request: int) -> None:
    world.feed(place, Publish(request, (Staged("t", 1, 1, b"row"),)))


def incoming(place: Place) -> list[End]:
    assert place.node is not None
    return [place.ends[neighbour.conn].other for neighbour in place.node.membership.table.neighbours.values()]


@pytest.mark.parametrize("cut", ["queue-full", "lost"])
def test_a_missed_batch_is_there_within_two_round_trips(cut: str) -> None:
    world = settled_world(seed=1)
    repairs = Repairs(world)
    world.watch(repairs)
    places = world.up()
    for round_number in range(ROUNDS):
        origin, victim = world.random.sample(places, 2)
        for end in incoming(victim):
            if cut == "queue-full":
                world.cables.block(end, 400)
            else:
                end.silent = True
        publish(world, origin, 2 * round_number)
        world.run(world.now_ms + 400)
        for end in incoming(victim):
            if cut == "lost":
                end.silent = False
        publish(world, origin, 2 * round_number + 1)
        world.run(world.now_ms + 2_000)
        assert not unsettled(world), "the batch has to be everywhere by now"
    assert len(repairs.round_trips) >= ROUNDS
    assert not repairs.asked
    repairs.round_trips.sort()
    assert repairs.round_trips[int(0.99 * len(repairs.round_trips))] <= 2


def test_the_last_batch_of_all_is_not_lost_either() -> None:
    """No later batch could show the gap: heartbeats do."""
    world = settled_world(seed=2)
    origin, victim = world.random.sample(world.up(), 2)
    for end in incoming(victim):
        end.silent = True
    publish(world, origin, 1)
    world.run(world.now_ms + 400)
    for end in incoming(victim):
        end.silent = False
    assert world.run_until(lambda: not unsettled(world), 4 * world.cluster.heartbeat_interval_ms)


@dataclass
class Holders(Observer):
    """The nodes that said that they keep what another one searches for."""

    found: list[str] = field(default_factory=list)

    def sent(self, end: End, message: WireFrame) -> None:
        if isinstance(message, HolderFoundStmt):
            self.found.append(end.place.name)


def test_a_holder_that_is_no_neighbour_sends_for_longer_than_a_call_lasts() -> None:
    """Only one other node has the first of the rows that a node missed, and each takes it 16 s to send. Heartbeats tell
    it that they are waited for: it does not hang up, and is not searched for again."""
    world = settled_world(seed=3)
    holders = Holders()
    world.watch(holders)
    origin, away, holder = world.up()[:3]
    world.crash(away, silent=False)
    world.run(world.now_ms + 1_000)
    for request in range(3):
        world.feed(origin, Publish(request, (Staged("t", 1, 1, bytes(8_000_000)),)))
        world.run(world.now_ms + 1_000)
    publish(world, origin, 3)
    world.run(world.now_ms + 1_000)
    assert not unsettled(world)
    for place in world.up():
        if place is not holder:
            world.trim(place, 0, keep_rows=1)
    world.network = Network(latency_ms=(5, 60), jitter_ms=0, bytes_per_ms=500)
    world.start(away)
    logs = away.disk.content.logs
    assert world.run_until(lambda: bool(logs) and next(iter(logs.values())).next == 5, 120_000)
    (log,) = logs.values()
    assert (log.low, len(log.batches), log.skips) == (1, 4, [])
    assert holders.found == [holder.name]
