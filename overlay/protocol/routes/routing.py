"""Routing: routed frames over the links of this node, its own and those that it passes on (PROTOCOL.md, 17 and 18.2).

The graph is that of the last beacons, without nodes and links that do not have routed frames, and with this node's
links as they are now. It is looked at again when a beacon changed it or a link did, and at least every second, since
nodes fall silent. A frame travels along the tree of its speaker, one copy per link. What has no way, too many hops
behind it, or a link whose queue is full, is dropped and counted: routed frames may be lost, and whoever misses one asks
for it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Send
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.routes.trees import RouteGraph, hop_limit
from m4cast.overlay.protocol.wire.batch import Batch, How
from m4cast.overlay.protocol.wire.routed import DESTINATIONS_MAX, routed_bytes
from m4cast.overlay.protocol.wire.selective import ROUTED_VERSION, Destination, RoutedFrame, RoutedMessage

GRAPH_AGE_MS = 1_000
"""A graph older than this is looked at again; guess."""
DROPPED = ("no-route", "hops", "blocked")
"""Why a frame, or a part of its destinations, is not passed on."""


class Beacons(Protocol):
    """The graph by the last beacon of each node."""

    changes: int
    """Counts what changes it."""

    def graph(self, now_ms: int, version: int = 0) -> dict[NodeId, tuple[NodeId, ...]]: ...


@dataclass(slots=True)
class LinkLoad:
    """The traffic to a neighbour in routed frames."""

    frames: int = 0
    bytes: int = 0


class Routing:
    def __init__(self, context: Context, beacons: Beacons, arrived: Callable[[RoutedFrame, int], None]) -> None:
        """`arrived` takes frames of which this node is a destination."""
        self._context = context
        self._me = context.me.node_id
        self._beacons = beacons
        self._arrived = arrived
        self.saw_batch: Callable[[NodeId, int], None] = lambda origin, origin_batch: None
        """Is told, of each batch that comes by, its origin and how many batches that had numbered by then."""
        self._graph = RouteGraph({})
        self._lists: dict[NodeId, tuple[NodeId, ...]] = {}
        self._of: tuple[int, tuple[NodeId, ...]] | None = None
        """The inputs that the graph was made from: changes of the roster, and own links."""
        self._looked_at_ms = 0
        self._blocked: dict[int, None] = {}
        """Connections whose queues are full."""
        self.frames = Counter({"sent": 0, "relayed": 0, "arrived": 0})
        self.dropped = Counter(dict.fromkeys(DROPPED, 0))
        self.loads: dict[NodeId, LinkLoad] = {}
        """The loads, by neighbour."""

    # ---- the graph

    def graph(self, now_ms: int) -> RouteGraph:
        links = tuple(sorted(filter(self._is_able, self._context.table.neighbours)))
        of = (self._beacons.changes, links)
        if of != self._of or now_ms - self._looked_at_ms >= GRAPH_AGE_MS:
            self._of, self._looked_at_ms = of, now_ms
            lists = self._beacons.graph(now_ms, ROUTED_VERSION)
            for node_id in links:  # one whose first beacon has not come is there all the same
                lists.setdefault(node_id, ())
            for node_id, others in lists.items():
                if self._me in others and node_id not in links:
                    lists[node_id] = tuple(other for other in others if other != self._me)
            lists[self._me] = links
            if lists != self._lists:
                self._lists, self._graph = lists, RouteGraph(lists)
        return self._graph

    def _is_able(self, node_id: NodeId) -> bool:
        link = self._context.calls.get(self._context.table.neighbours[node_id].conn)
        return link is not None and link.version >= ROUTED_VERSION

    # ---- links

    def blocked(self, conn: int) -> None:
        self._blocked[conn] = None

    def ready(self, conn: int) -> None:
        self._blocked.pop(conn, None)

    def link_down(self, neighbour: Neighbour) -> None:
        self._blocked.pop(neighbour.conn, None)
        self.loads.pop(neighbour.contact.node_id, None)

    # ---- frames

    def send(self, content: Batch | RoutedMessage, destinations: Iterable[Destination], now_ms: int) -> None:
        """Send to these nodes, in as many frames as it takes."""
        ordered = sorted(destinations)
        how = How.PUSHED if isinstance(content, Batch) else How.PUBLISHED
        for start in range(0, len(ordered), DESTINATIONS_MAX):
            part = tuple(ordered[start : start + DESTINATIONS_MAX])
            self.send_frame(RoutedFrame(self._me, part, content, how=how), now_ms)

    def send_frame(self, frame: RoutedFrame, now_ms: int) -> None:
        """Send a frame of this node's own."""
        self.frames["sent"] += 1
        self._pass_on(frame, now_ms)

    def on_frame(self, sender: Neighbour, frame: RoutedFrame, now_ms: int) -> None:
        """A neighbour sent or passed on a frame."""
        if not self._is_able(sender.contact.node_id):
            raise RemoteProtocolError("routed frames are not in the protocol version of this link")
        if isinstance(frame.content, Batch):
            self.saw_batch(frame.content.stream.origin, frame.content.origin_batch)
        if self._pass_on(frame, now_ms):
            self.frames["arrived"] += 1
            self._arrived(frame, now_ms)

    def _pass_on(self, frame: RoutedFrame, now_ms: int) -> bool:
        """Send a copy over each link that leads to destinations; whether this node is one of them."""
        graph = self.graph(now_ms)
        by_id = {destination.node_id: destination for destination in frame.destinations}
        split = graph.split(frame.speaker, self._me, by_id)
        self.dropped["no-route"] += len(split.unreachable)
        if split.onward and frame.hops >= hop_limit(graph.tree(frame.speaker).depth()):
            self.dropped["hops"] += len(split.onward)
            return split.is_here
        for via, to in split.onward.items():
            onward = tuple(by_id[node_id] for node_id in to)
            self._send_over(via, replace(frame, destinations=onward, hops=frame.hops + 1))
        return split.is_here

    def _send_over(self, via: NodeId, frame: RoutedFrame) -> None:
        conn = self._context.table.neighbours[via].conn
        if conn in self._blocked:
            self.dropped["blocked"] += 1
            return
        if frame.speaker != self._me:
            self.frames["relayed"] += 1
        load = self.loads.setdefault(via, LinkLoad())
        load.frames += 1
        load.bytes += routed_bytes(frame)
        self._context.out.append(Send(conn, frame))
