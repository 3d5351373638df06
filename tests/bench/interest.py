"""Figures of the interest machine: hops, copies and bytes, counted in lock step. They are the same on every machine.

python -m tests.bench.interest [largest number of nodes]     prints the tables of docs/SCALE.md
"""

import gc
import sys
import tracemalloc
from random import Random

from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.protocol.effects import Wish
from m4cast.overlay.protocol.wire.frame import decode, encode, wire_bytes
from tests.overlay.protocol.interest.mesh import Mesh, wish
from tests.overlay.protocol.interest.spread import (
    DEGREE,
    bytes_of_change,
    eccentricity,
    filled,
    hops_after_crashes,
    hops_of_change,
    regular,
)
from tests.simulation.test_active import ActiveWatch, channel, node_of, wait

SIZES = (8, 64, 512, 1_024, 4_096, 8_192)
REGISTRATIONS = (10, 100, 1_000, 10_000, 100_000)
CRASHES = 20
"""Changes during which nodes crash, up to so many nodes; one in larger graphs."""
LARGEST_CRASHED = 1_024
REMEMBERED = 10_000
"""Items whose memory is measured."""


def hops(largest: int) -> None:
    print("| nodes | changes | hops to equal views, mean | most | eccentricity | copies / node | after 3 crashes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for count in (size for size in SIZES if size <= largest):
        random = Random(count)
        edges = regular(count, random)
        mesh = Mesh(edges)
        origins = [random.randrange(count) for _ in range(100 if count <= 1_024 else 10)]
        found, wide = [], []
        for number, origin in enumerate(origins):
            found.append(hops_of_change(mesh, origin, f"t{number}"))
            wide.append(eccentricity(edges, origin))
        assert all(hops_ <= most for hops_, most in zip(found, wide, strict=True))
        copies = mesh.copies / len(origins) / count
        after, bound = _after_crashes(edges, random)
        mean = sum(found) / len(found)
        facts = (
            f"{count:,}",
            len(origins),
            f"{mean:.1f}",
            max(found),
            max(wide),
            f"{copies:.2f}",
            f"{after} of {bound}",
        )
        print("|", " | ".join(map(str, facts)), "|")


def _after_crashes(edges: list[tuple[int, int]], random: Random) -> tuple[int, int]:
    """The most hops of changes during which nodes crash, and the farthest that the survivors are away; each time no
    more than that."""
    count, most = max(map(max, edges)) + 1, (0, 0)
    for _ in range(CRASHES if count <= LARGEST_CRASHED else 1):
        origin = random.randrange(count)
        crashed = frozenset(random.sample([each for each in range(count) if each != origin], DEGREE - 1))
        bound = eccentricity(edges, origin, crashed)
        after = hops_after_crashes(Mesh(edges), origin, crashed)
        assert after <= bound, f"{after} hops from {origin} without {sorted(crashed)}, which is {bound} away"
        most = max(most, (after, bound))
    return most


def bytes_per_change() -> None:
    print("\n| registrations | bytes of one more, on all links of 16 nodes | copies |")
    print("| --- | --- | --- |")
    for total in REGISTRATIONS:
        mesh = filled(total)
        print(f"| {total:,} | {bytes_of_change(mesh):,} | {mesh.copies} |")


def reconnect() -> None:
    mesh = filled(100_000)
    one, other = mesh.edges[0]
    mesh.cut(one, other)
    mesh.bytes = mesh.copies = 0
    mesh.join(one, other)
    mesh.run()
    print(f"\nreconnect, 100,000 equal registrations: {mesh.bytes:,} bytes in {mesh.copies} messages")
    pair = Mesh([(0, 1)], registrations_max=200_000)
    pair[0].subscribe(*(wish(f"r{i}", f"t{i}") for i in range(100_000)))
    pair.run()
    for changes in (1, 70):  # remembered, and not remembered any more
        pair.cut(0, 1)
        for number in range(changes):
            pair[0].subscribe(wish(f"x{changes}-{number % 10}", f"x{changes}-{number}"))
        pair[0].unsubscribe(*(f"x{changes}-{number}" for number in range(10)))
        pair[0].subscribe(*(wish(f"n{changes}-{number}", f"n{changes}-{number}") for number in range(10)))
        pair[0].out()
        pair.bytes = pair.copies = 0
        pair.join(0, 1)
        pair.run()
        assert pair.agree()
        how = "changes remembered" if changes == 1 else "buckets compared"
        print(f"reconnect, 10 of 100,000 of one node differ ({how}): {pair.bytes:,} bytes in {pair.copies} messages")


def ratio() -> None:
    """Bytes of an item with its topic as a hash and as its name, for names of 30 bytes."""
    pair = Mesh([(0, 1)])
    pair[0].subscribe(*(Wish(f"r{i}", f"{i:030}", parse("x > 1")) for i in range(256)))
    pair.run()
    hashed = sum(wire_bytes(message) for _, _, message in pair.sent) / 256
    print(f"\nan item: {hashed:.0f} bytes; with names of 30 bytes in place of hashes {hashed - 8 + 31:.0f}")


def threshold() -> None:
    waits = "ms that a change waits there, at most"
    print(f"\n| interest_changes_max | messages for 64 changes at one of 16 nodes | {waits} |")
    print("| --- | --- | --- |")
    for most in (1, 4, 16, 64):
        settings = {"interest_changes_max": most, "interest_quiet_ms": 3_600_000, "interest_delay_ms": 200}
        mesh = Mesh(regular(16, Random(16)), **settings)
        longest, waiting = 0, []
        for now_ms in range(0, 640, 10):
            mesh[3].subscribe(wish(f"r{now_ms}", f"t{now_ms}"), now_ms=now_ms)
            waiting.append(now_ms)
            before = mesh.copies
            mesh.run(now_ms)
            if mesh.copies > before:
                longest, waiting = max(longest, now_ms - waiting[0]), []
        for now_ms in range(640, 2_000, 10):
            mesh.run(now_ms)
        assert mesh.agree()
        print(f"| {most} | {mesh.copies:,} | {longest} |")


def active() -> None:
    """The time until a registration is active, in simulated channels, and its cost."""
    print("\n| nodes | diameter | link, one way | active after, mean of 10 | longest | messages / node |")
    print("| --- | --- | --- | --- | --- | --- |")
    for nodes in (12, 32, 64):
        world = channel(nodes)
        low, high = world.network.latency_ms
        diameter = node_of(world.up()[0]).selection.routing.graph(world.now_ms).diameter()
        watch = ActiveWatch(world)
        took = []
        for number in range(10):
            begun_ms = wait(world, world.up()[number], 100 + number)
            world.run(world.now_ms + 10_000)
            answer, at_ms = watch.answers[100 + number]
            assert not answer.missing and len(answer.confirmed) == nodes - 1
            took.append(at_ms - begun_ms)
        messages = watch.copies.total() / 10 / nodes
        mean = sum(took) / len(took)
        print(f"| {nodes} | {diameter} | {low} to {high} ms | {mean:.0f} ms | {max(took)} ms | {messages:.1f} |")


def memory() -> None:
    """Measures what a node keeps of items that another one has registered, each under a topic of its own."""
    pair = Mesh([(0, 1)])
    pair[0].subscribe(*(wish(f"r{number}", f"t{number}", f"n = {number}") for number in range(REMEMBERED)))
    pair.run()
    frames = [encode(message) for number, _, message in pair.sent if number == 0]
    other, node = Mesh([(0, 1)]).members.values()
    gc.collect()
    tracemalloc.start()
    try:
        for frame in frames:
            node.take(other, decode(frame))  # type: ignore[arg-type]  # news and what belongs to it
            node.out()
        node.changes.clear()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(node.interest.view.entries[other.node_id].items) == REMEMBERED
    print(f"\nan item of the view, with a condition of one column: {held / REMEMBERED:.0f} bytes of memory")


def main() -> None:
    hops(int(sys.argv[1]) if len(sys.argv) > 1 else SIZES[-1])
    bytes_per_change()
    reconnect()
    ratio()
    threshold()
    memory()
    active()


if __name__ == "__main__":
    main()
