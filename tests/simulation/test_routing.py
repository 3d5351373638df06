"""Routed frames between the nodes of a channel: each destination once, one copy per link of the tree, nothing over
links or through nodes that do not have them."""

from collections import Counter
from collections.abc import Iterable

import pytest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol import calls
from m4cast.overlay.protocol.effects import LinkBlocked, LinkReady, Subscribe, Wake, Wish
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.routes.trees import hop_limit
from m4cast.overlay.protocol.wire.selective import ROUTED_VERSION, Destination, KeepCall, RoutedFrame, WireFrame
from m4cast.overlay.sim.places import End, Observer, Place
from m4cast.overlay.sim.world import World, node_config

NODES = 12


class Traveller(Observer):
    """Counts routed frames on links, and where they arrive."""

    def __init__(self, world: World) -> None:
        self.copies: Counter[tuple[str, str]] = Counter()
        self.arrived: Counter[str] = Counter()
        self.hops: list[int] = []
        world.watch(self)
        for place in world.places.values():
            node_of(place).selection.contents[KeepCall] = self._taker(place.name)

    def _taker(self, name: str):  # type: ignore[no-untyped-def]  # a handler of the table
        def take(frame: RoutedFrame, content: KeepCall, now_ms: int) -> None:
            self.arrived[name] += 1
            self.hops.append(frame.hops)

        return take

    def sent(self, end: End, message: WireFrame) -> None:
        if isinstance(message, RoutedFrame):
            self.copies[end.place.name, end.other.place.name] += 1


def node_of(place: Place) -> Node:
    assert place.node is not None
    return place.node


def neighbours(place: Place) -> dict[NodeId, Neighbour]:
    return node_of(place).membership.table.neighbours


def channel(*, old: Iterable[int] = (), wants: bool = True) -> World:
    """Twelve nodes; those that are `old` speak version 3."""
    world = World(5, wire=True)
    for number in range(NODES):
        with pytest.MonkeyPatch.context() as patch:
            if number in old:
                patch.setattr(calls, "PROTOCOL_VERSION_MAX", 3)
            world.start(world.add(node_config(number, (0,))))
        world.run(world.now_ms + 300)
    world.run(world.now_ms + 5_000)
    if wants:
        world.feed(world.up()[0], Subscribe(1, (Wish("a", "t"),)))
    world.run(world.now_ms + 5_000)
    return world


def send(world: World, place: Place, to: Iterable[NodeId]) -> None:
    node_of(place).selection.routing.send(KeepCall(True), [Destination(each, 0, 0) for each in to], world.now_ms)
    world.feed(place, Wake())  # performs what was put out
    world.run(world.now_ms + 1_000)


def ids(places: Iterable[Place]) -> list[NodeId]:
    return [node_of(place).me.node_id for place in places]


def test_a_multicast_reaches_each_destination_once_over_the_tree() -> None:
    world = channel()
    first, *others = world.up()
    travel = Traveller(world)
    send(world, first, ids(others))
    assert travel.arrived == {place.name: 1 for place in others}
    assert travel.copies.total() == NODES - 1, "a broadcast over the tree costs a copy per node"
    graph = node_of(first).selection.routing.graph(world.now_ms)
    assert max(travel.hops) == graph.tree(node_of(first).me.node_id).depth()
    loads = [load for place in world.up() for load in node_of(place).selection.routing.loads.values()]
    assert sum(load.frames for load in loads) == NODES - 1 and all(load.bytes > 0 for load in loads)


def test_a_unicast_takes_the_shortest_way_and_relays_keep_nothing() -> None:
    world = channel()
    first = world.up()[0]
    routing = node_of(first).selection.routing
    tree = routing.graph(world.now_ms).tree(node_of(first).me.node_id)
    far = max(tree.hops, key=lambda node_id: tree.hops[node_id])
    travel = Traveller(world)
    send(world, first, [far])
    assert travel.hops == [tree.hops[far]] and travel.copies.total() == tree.hops[far] > 1
    relays = [place for place in world.up() if node_of(place).selection.routing.frames["relayed"]]
    assert len(relays) == tree.hops[far] - 1


def test_nothing_travels_over_links_or_through_nodes_of_an_older_version() -> None:
    old = (3, 4, 5)
    world = channel(old=old)
    places = world.up()
    outdated = [places[number].name for number in old]
    first = places[0]
    travel = Traveller(world)
    send(world, first, ids(places[1:]))
    assert not any(name in outdated for link in travel.copies for name in link)
    reached = node_of(first).selection.routing.graph(world.now_ms).tree(node_of(first).me.node_id).hops
    assert travel.arrived == {place.name: 1 for place in places[1:] if node_of(place).me.node_id in reached}
    assert node_of(first).selection.routing.dropped["no-route"] == NODES - len(reached) >= len(old)


def test_a_routed_frame_over_an_older_link_is_a_violation() -> None:
    world = channel(old=(1,))
    receiver = world.up()[1]
    sender = next(place for place in world.up() if node_of(receiver).me.node_id in neighbours(place))
    neighbour = neighbours(sender)[node_of(receiver).me.node_id]
    frame = RoutedFrame(node_of(sender).me.node_id, (Destination(node_of(receiver).me.node_id, 0, 0),), KeepCall(True))
    node_of(sender).selection.routing._send_over(neighbour.contact.node_id, frame)
    world.feed(sender, Wake())
    world.run(world.now_ms + 200)
    assert node_of(receiver).me.node_id not in neighbours(sender)


def test_what_is_blocked_is_dropped_and_counted() -> None:
    world = channel()
    first, *others = world.up()
    routing = node_of(first).selection.routing
    conns = [neighbour.conn for neighbour in node_of(first).membership.table.neighbours.values()]
    for conn in conns:
        world.feed(first, LinkBlocked(conn))
    travel = Traveller(world)
    send(world, first, ids(others))
    assert not travel.copies and routing.dropped["blocked"] == len(conns)
    for conn in conns:
        world.feed(first, LinkReady(conn))
    send(world, first, ids(others))
    assert travel.arrived.total() == NODES - 1


def test_a_frame_that_went_too_far_is_dropped() -> None:
    world = channel()
    first, *others = world.up()
    routing = node_of(first).selection.routing
    limit = hop_limit(routing.graph(world.now_ms).tree(node_of(first).me.node_id).depth())
    destinations = tuple(sorted(Destination(each, 0, 0) for each in ids(others)))
    travel = Traveller(world)
    for hops, expected in ((limit, 0), (limit - 1, 1)):
        routing.send_frame(RoutedFrame(node_of(first).me.node_id, destinations, KeepCall(True), hops), world.now_ms)
        world.feed(first, Wake())
        world.run(world.now_ms + 1_000)
        assert (travel.copies.total() > 0) is bool(expected)
    assert routing.dropped["hops"] > 0


def test_beacons_state_a_version_only_while_somebody_wants_something() -> None:
    for wants in (False, True):
        world = channel(wants=wants)
        for place in world.up():
            graph = node_of(place).roster.graph(world.now_ms, ROUTED_VERSION)
            assert len(graph) == (NODES - 1 if wants else 0)
