"""Bytes on links: selective topics beside broadcast ones, in simulated channels of whole nodes.

python -m tests.bench.selective [nodes] [bytes of a batch]        prints the tables of docs/SELECTIVE.md

100 topics, each published at one node and wanted at three others, a batch each. Every frame that is sent while the rows
travel counts with its size on the wire, whatever it is for: batches, statements, acknowledgements, beacons, heartbeats.
Batches over `push_bytes_max` are pulled when they are broadcast. Smaller ones are pushed; pulled, they would cost about
a copy per node, and what else broadcast sends. The last two columns compare with pulled broadcast: rows with a copy per
node, and all bytes with all bytes.
"""

import sys
from random import Random

from m4cast.overlay.protocol.effects import CreateTopic, Publish, Staged, Subscribe, Wish
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame
from m4cast.overlay.protocol.wire.frame import wire_bytes
from m4cast.overlay.protocol.wire.routed import routed_bytes
from m4cast.overlay.protocol.wire.selective import RoutedFrame, WireFrame
from m4cast.overlay.sim.places import End, Observer, Place
from m4cast.overlay.sim.world import World, node_config

TOPICS = 100
WANTED_AT = 3
BATCH_BYTES = 10_000
TRAVEL_MS = 20_000


class LinkBytes(Observer):
    def __init__(self) -> None:
        self.total = 0
        self.rows = 0
        """Of these, in frames that carry batches."""

    def sent(self, end: End, message: WireFrame) -> None:
        size = routed_bytes(message) if isinstance(message, RoutedFrame) else wire_bytes(message)
        self.total += size
        if isinstance(message.content if isinstance(message, RoutedFrame) else message, Batch | BatchFrame):
            self.rows += size


def grown(nodes: int) -> World:
    world = World(1)
    for number in range(nodes):
        world.start(world.add(node_config(number, (0,))))
        world.run(world.now_ms + 200)
    world.run(world.now_ms + 10_000)
    return world


def measured(nodes: int, keepers: int | None, payload: bytes) -> LinkBytes:
    """The cost of the rows; `keepers` None: the topics are broadcast."""
    world = grown(nodes)
    places = list(world.places.values())
    if keepers is not None:
        for attempt in range(2):  # the first one makes nodes report their versions
            for number in range(TOPICS if attempt else 1):
                world.feed(places[number % nodes], CreateTopic(number + 1, f"t{number}", keepers))
            world.run(world.now_ms + 5_000)
    for number in range(TOPICS):
        others = [place for at, place in enumerate(places) if at != number % nodes]
        for taker in Random(number).sample(others, WANTED_AT):
            world.feed(taker, Subscribe(1_000 + number, (Wish(f"w{number}", f"t{number}"),)))
    world.run(world.now_ms + 10_000)
    if keepers is not None:  # with a stream's first batch keepers are chosen, and registrations learn where they begin
        _publish(world, places, payload)
    counted = LinkBytes()
    world.watch(counted)
    _publish(world, places, payload)
    return counted


def _publish(world: World, places: list[Place], payload: bytes) -> None:
    for number in range(TOPICS):
        staged = Staged(f"t{number}", 10, 1, payload)
        world.feed(places[number % len(places)], Publish(10_000 + number, (staged,)))
        world.run(world.now_ms + 20)
    world.run(world.now_ms + TRAVEL_MS)


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    payload = b"." * (int(sys.argv[2]) if len(sys.argv) > 2 else BATCH_BYTES)
    is_pulled = len(payload) > node_config(0, ()).push_bytes_max
    least = (nodes - 1) * TOPICS * len(payload)
    print(f"{nodes} nodes, {TOPICS} topics, each wanted at {WANTED_AT}, a batch of {len(payload):,} bytes each")
    print("| spread | MB on links | of these, rows | rows, of a copy per node | all, of pulled broadcast |")
    print("| --- | --- | --- | --- | --- |")
    pulled = 0
    broadcast = f"broadcast, {'pulled' if is_pulled else 'pushed'}"
    for name, keepers in ((broadcast, None), ("selective, no keepers", 0), ("selective, 2 keepers", 2)):
        found = measured(nodes, keepers, payload)
        if keepers is None:
            pulled = found.total if is_pulled else least + found.total - found.rows
        shares = f"{found.rows / least:.2f} | {found.total / pulled:.2f}"
        print(f"| {name} | {found.total / 1e6:.1f} | {found.rows / 1e6:.1f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
