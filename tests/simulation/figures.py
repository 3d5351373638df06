"""Worlds whose graph is given: the patents' figures as fixtures.

`linked_world` makes the wanted links by the protocol's own means. Each node starts without portals, so it founds a
channel of its own and is fully connected, with nobody. Then one end of each wanted edge courts the other, as it would
after a port search: dial, hello, port-connection call and answer. All do so at the same instant, and a link is made
in under 50 ms, long before the first node looks for somebody to fill a hole. In a regular graph there is then none to
fill; where holes are to stay, a long `search_wait_ms` keeps their owners quiet.

`end_walk` hands over the last step of a random walk on a chosen edge; what follows (offer, proposal, pinning) is the
machines' own.

Nodes are called by capital letters, edges by two of them in alphabetical order.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.effects import Append, Delivered, Output, Publish, Send, Staged, Wake
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.batch import BatchFrame, Delivery
from m4cast.overlay.protocol.wire.messages import EdgeSearchCall
from m4cast.overlay.protocol.wire.selective import WireFrame
from m4cast.overlay.sim.graph import GraphFacts, graph_facts
from m4cast.overlay.sim.places import End, Network, Observer, Place
from m4cast.overlay.sim.world import World
from tests.overlay.protocol.append_parts import batches_of

FIGURE_1 = ["AE", "AF", "AG", "AH", "BC", "BD", "BF", "BI", "CD", "CE", "CI", "DE", "DG", "EH", "FG", "FH", "GI", "HI"]
ROUND_MS = 10
EQUAL_DELAYS = Network(latency_ms=(ROUND_MS, ROUND_MS), jitter_ms=0)
LINK_MS = 100
"""In this time a link is made, and an edge pinned."""
QUIET_MS = 60_000
"""As `search_wait_ms`: nobody looks for neighbours in the first half minute."""


# ---- names


def address(letter: str) -> str:
    return f"{letter.lower()}:7400"


def place_of(world: World, letter: str) -> Place:
    return world.places[address(letter)]


def node_of(world: World, letter: str) -> Node:
    node = place_of(world, letter).node
    assert node is not None, f"{letter} is down"
    return node


def links(world: World) -> set[str]:
    """The edges of the world now."""
    return {"".join(sorted(a[0] + b[0])).upper() for a, b in world.edges()}


def facts(world: World) -> GraphFacts:
    return graph_facts([place.address for place in world.up()], world.edges())


# ---- building


def start_alone(world: World, letter: str, *, holes_stay: bool = False) -> Place:
    """A node that founds a channel of its own."""
    config = NodeConfig(name=letter.lower(), listen=address(letter))
    place = world.add(replace(config, search_wait_ms=QUIET_MS) if holes_stay else config)
    world.start(place)
    return place


def linked_world(
    edges: Iterable[str],
    seed: int = 1,
    network: Network = EQUAL_DELAYS,
    *,
    holes_stay: bool = False,
) -> World:
    """A world with exactly these edges, in which everybody has heard of everybody. See the module's docstring."""
    world = World(seed, network=network)
    wanted = list(edges)
    for letter in sorted({letter for edge in wanted for letter in edge}):
        start_alone(world, letter, holes_stay=holes_stay)
    world.run(LINK_MS)
    for edge in wanted:
        node_of(world, edge[0]).membership.links.court(node_of(world, edge[1]).me, world.now_ms)
    for place in world.up():
        world.feed(place, Wake())  # performs what courting put out
    world.run(world.now_ms + LINK_MS)
    assert links(world) == set(wanted)
    world.run(world.now_ms + 2 * world.cluster.beacon_interval_ms)  # two beacons of everybody
    assert links(world) == set(wanted), "the graph did not stay as it was made"
    return world


def end_walk(world: World, requester: str, edge: str, search: int) -> None:
    """A walk for `requester` takes its last step on this edge, to the end named first, which will offer it. Does what
    `Membership._forward_walk` does, with the neighbour chosen."""
    sender = node_of(world, edge[1])
    wanted = node_of(world, requester).me
    end = sender.membership.table.neighbours[node_of(world, edge[0]).me.node_id]
    sender.membership.table.reserved[end.contact.node_id] = search
    sender._context.out.append(Send(end.conn, EdgeSearchCall(wanted, wanted, search, distance=0, steps_left=32)))
    world.feed(place_of(world, edge[1]), Wake())


def pin(world: World, newcomer: str, *edges: str) -> None:
    """The newcomer joins by pinning these edges, both at the same time."""
    start_alone(world, newcomer)
    world.run(world.now_ms + LINK_MS)
    for search, edge in enumerate(edges, start=1_000):
        end_walk(world, newcomer, edge, search)
    world.run(world.now_ms + LINK_MS)


# ---- publishing and watching


def publish(world: World, place: Place, request: int = 1, payload: bytes = b"x" * 100) -> None:
    world.feed(place, Publish(request, (Staged("default", 1, 1, payload),)))


@dataclass
class Copies(Observer):
    """Counts copies of batches by directed link, and sees when the first left and the last one new was taken."""

    world: World
    by_link: Counter[tuple[str, str]] = field(default_factory=Counter)
    first_sent_ms: int | None = None
    taken_by: set[str] = field(default_factory=set)
    last_taken_ms: int = 0
    hops_max: int = 0

    def sent(self, end: End, message: WireFrame) -> None:
        if isinstance(message, BatchFrame):
            self.by_link[end.place.name, end.other.place.name] += 1
            if self.first_sent_ms is None:
                self.first_sent_ms = self.world.now_ms

    def output(self, place: Place, output: Output) -> None:
        if isinstance(output, Append) and batches_of(output) and self.first_sent_ms is not None:
            self.taken_by.add(place.name)
            self.last_taken_ms = self.world.now_ms
        if isinstance(output, Delivered) and isinstance(output.delivery, Delivery):
            self.hops_max = max(self.hops_max, output.delivery.hops)

    @property
    def rounds(self) -> float:
        assert self.first_sent_ms is not None
        return (self.last_taken_ms - self.first_sent_ms) / ROUND_MS


def flood(world: World, origin: Place, request: int = 1) -> Copies:
    """Publish one small batch and watch it until nothing moves any more."""
    copies = Copies(world)
    world.watch(copies)
    publish(world, origin, request)
    world.run(world.now_ms + 2_000)
    return copies


M = TypeVar("M")


@dataclass
class Heard(Observer, Generic[M]):
    """Keeps the messages of one kind that were sent: (from, to, message)."""

    kind: type[M]
    messages: list[tuple[str, str, M]] = field(default_factory=list)

    def sent(self, end: End, message: WireFrame) -> None:
        if isinstance(message, self.kind):
            self.messages.append((end.place.name, end.other.place.name, message))

    def between(self, sender: str, receiver: str) -> list[M]:
        return [message for here, there, message in self.messages if (here, there) == (sender, receiver)]
