"""Routing at one node: over which links frames go, what is dropped and why, and when the graph is looked at again."""

from dataclasses import dataclass, field, replace

import pytest

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.effects import Output
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.routes.routing import GRAPH_AGE_MS, Routing
from m4cast.overlay.protocol.routes.trees import hop_limit
from m4cast.overlay.protocol.wire.messages import PortConnectionCall
from m4cast.overlay.protocol.wire.routed import DESTINATIONS_MAX
from m4cast.overlay.protocol.wire.selective import ROUTED_VERSION, Destination, KeepCall, RoutedFrame
from tests.overlay.protocol.node_pump import Host, hello
from tests.overlay.protocol.stream_parts import node_id, sends, take

KEEP = KeepCall(True)


@dataclass
class Graph:
    """The graph that beacons show: a - x, b - y."""

    lists: dict[str, str] = field(default_factory=lambda: {"a": "mx", "b": "my", "x": "a", "y": "b"})
    changes: int = 1
    looks: int = 0

    def graph(self, now_ms: int, version: int = 0) -> dict[NodeId, tuple[NodeId, ...]]:
        assert version == ROUTED_VERSION
        self.looks += 1
        return {node_id(name): tuple(map(node_id, others)) for name, others in self.lists.items()}


class Router:
    """Node m between a and b; a third neighbour, c, does not have routed frames."""

    def __init__(self) -> None:
        self.host = Host()
        for name, version in (("a", ROUTED_VERSION), ("b", ROUTED_VERSION), ("c", ROUTED_VERSION - 1)):
            self.host.connect(name)
            self.host.say(name, replace(hello(name), version_max=version))
            self.host.say(name, PortConnectionCall())
        self.graph = Graph()
        self.arrived: list[RoutedFrame] = []
        self.context = self.node._context
        self.routing = Routing(self.context, self.graph, lambda frame, now_ms: self.arrived.append(frame))
        take(self.context.out)

    @property
    def node(self) -> Node:
        return self.host.node

    def neighbour(self, name: str) -> Neighbour:
        return self.node.membership.table.neighbours[node_id(name)]

    def sent(self) -> dict[str, str]:
        """Neighbour -> the destinations of the frame that it was sent."""
        names = {conn: name for name, conn in self.host.conns.items()}
        outputs: list[Output] = take(self.context.out)
        return {names[conn]: shown(frame) for conn, frame in sends(outputs, RoutedFrame)}


def shown(frame: RoutedFrame) -> str:
    return "".join(sorted(each.node_id.rstrip(b"\0")[:1].decode() for each in frame.destinations))


def to(names: str) -> list[Destination]:
    return [Destination(node_id(name), 0, 0) for name in names]


def test_one_copy_goes_over_each_link_that_leads_to_destinations() -> None:
    router = Router()
    router.routing.send(KEEP, to("axy"), 0)
    assert router.sent() == {"a": "ax", "b": "y"}
    router.routing.send(KEEP, to("b"), 0)
    assert router.sent() == {"b": "b"}
    assert (router.routing.frames["sent"], router.routing.frames["relayed"]) == (2, 0)


def test_who_has_no_routed_frames_is_sent_none_and_may_not_send_any() -> None:
    router = Router()
    router.routing.send(KEEP, to("c"), 0)
    assert router.sent() == {} and router.routing.dropped["no-route"] == 1
    with pytest.raises(RemoteProtocolError, match="protocol version"):
        router.routing.on_frame(router.neighbour("c"), RoutedFrame(node_id("c"), tuple(to("m")), KEEP), 0)


def test_a_frame_of_another_node_is_taken_and_passed_on_along_its_tree() -> None:
    router = Router()
    router.routing.on_frame(router.neighbour("a"), RoutedFrame(node_id("x"), tuple(to("my")), KEEP, hops=1), 0)
    assert [frame.hops for frame in router.arrived] == [1]
    assert [frame.hops for _, frame in sends(router.context.out, RoutedFrame)] == [2]
    assert router.sent() == {"b": "y"}
    assert router.routing.frames == {"sent": 0, "relayed": 1, "arrived": 1}


def test_a_frame_that_is_for_others_does_not_arrive_here() -> None:
    router = Router()
    router.routing.on_frame(router.neighbour("a"), RoutedFrame(node_id("x"), tuple(to("y")), KEEP), 0)
    assert router.arrived == [] and router.sent() == {"b": "y"}


def test_a_frame_with_too_many_hops_arrives_and_goes_no_further() -> None:
    router = Router()
    limit = hop_limit(router.routing.graph(0).tree(node_id("x")).depth())
    for hops in (limit - 1, limit):
        frame = RoutedFrame(node_id("x"), tuple(to("my")), KEEP, hops=hops)
        router.routing.on_frame(router.neighbour("a"), frame, 0)
    assert len(router.arrived) == 2
    assert router.routing.frames["relayed"] == 1 and router.routing.dropped["hops"] == 1


def test_a_link_whose_queue_is_full_is_sent_nothing_until_it_is_ready() -> None:
    router = Router()
    conn = router.host.conns["a"]
    router.routing.blocked(conn)
    router.routing.send(KEEP, to("ab"), 0)
    assert router.sent() == {"b": "b"} and router.routing.dropped["blocked"] == 1
    router.routing.ready(conn)
    router.routing.send(KEEP, to("a"), 0)
    assert router.sent() == {"a": "a"}
    assert router.routing.loads[node_id("a")].frames == 1


def test_more_destinations_than_a_frame_has_room_for_go_in_several() -> None:
    router = Router()
    many = [Destination(NodeId(number.to_bytes(16, "big")), 0, 0) for number in range(DESTINATIONS_MAX + 1)]
    router.routing.send(KEEP, many, 0)
    assert router.routing.frames["sent"] == 2
    assert router.routing.dropped["no-route"] == len(many), "nobody knows them"


def test_the_graph_is_looked_at_again_when_a_beacon_changed_it_and_every_second() -> None:
    router = Router()
    for now_ms in (0, GRAPH_AGE_MS - 1):
        router.routing.graph(now_ms)
    assert router.graph.looks == 1
    router.graph.lists["z"], router.graph.lists["x"] = "x", "az"
    router.routing.graph(GRAPH_AGE_MS)
    assert router.graph.looks == 2
    router.routing.send(KEEP, to("z"), GRAPH_AGE_MS)
    assert router.sent() == {"a": "z"}
    router.graph.changes += 1
    router.routing.graph(GRAPH_AGE_MS + 1)
    assert router.graph.looks == 3


def test_own_links_are_as_they_are_and_not_as_beacons_say() -> None:
    """x says that it is a neighbour of m, which knows better."""
    router = Router()
    router.graph.lists = {"x": "m"}
    router.routing.send(KEEP, to("axb"), 0)
    assert router.sent() == {"a": "a", "b": "b"} and router.routing.dropped["no-route"] == 1
