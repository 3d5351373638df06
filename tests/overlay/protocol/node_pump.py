"""Whole nodes without a driver: one that is fed by hand (`Host`), and a few that talk to each other (`Pump`).

Time passes only when asked to. The pump delivers what is under way in the order it was sent, or in a random order
that keeps each connection's own; it refuses outputs that no driver could perform.
"""

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import TypeVar

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.effects import (
    Append,
    Close,
    Connected,
    Dial,
    DialFailed,
    Disconnected,
    Durable,
    Input,
    Left,
    Output,
    RangeRead,
    ReadRange,
    Received,
    Recovered,
    Send,
    Start,
    Wake,
    WakeAt,
)
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.messages import (
    Hello,
    HoldingsStmt,
    PortConnectionCall,
    PortConnectionResp,
    Setting,
    SummaryStmt,
)
from m4cast.overlay.protocol.wire.selective import WireFrame
from tests.overlay.protocol.append_parts import batches_of
from tests.overlay.protocol.stream_parts import contact, node_id, of, sends

T = TypeVar("T")
CLUSTER = ClusterConfig()


def settings_of(cluster: ClusterConfig) -> tuple[Setting, ...]:
    return tuple(Setting(key, str(value)) for key, value in cluster.settings().items())


def hello(name: str, incarnation: int = 1, cluster: ClusterConfig = CLUSTER) -> Hello:
    return Hello(1, 1, node_id(name), incarnation, contact(name).address, settings_of(cluster))


def dialled(outputs: Sequence[Output], name: str) -> int:
    """The connection on which somebody was dialled."""
    (dial,) = [dial for dial in of(outputs, Dial) if dial.address == contact(name).address]
    return dial.conn


class Host:
    """Node m, alone on its channel; everybody else is played by the test."""

    def __init__(
        self, recovered: Recovered | None = None, config: NodeConfig | None = None, *, start: bool = True, seed: int = 1
    ) -> None:
        self.now_ms = 0
        self.node = Node(
            recovered or Recovered(node_id("m"), incarnation=1),
            CLUSTER,
            config or NodeConfig(name="m", listen="m:7400"),
            Random(seed),
        )
        self.conns: dict[str, int] = {}
        self._conn = 0
        self._wake_at_ms: int | None = None
        self.last_token = 0
        if start:
            self.feed(Start())
            self.wait(1)

    def feed(self, event: Input) -> list[Output]:
        outputs = self.node.handle(event, self.now_ms)
        for output in outputs:
            if isinstance(output, WakeAt):
                self._wake_at_ms = output.at_ms
            if isinstance(output, Append):
                self.last_token = output.token
        return outputs

    def wait(self, for_ms: int) -> list[Output]:
        """Let time pass; everything that comes out meanwhile."""
        end_ms = self.now_ms + for_ms
        outputs: list[Output] = []
        while self._wake_at_ms is not None and self._wake_at_ms <= end_ms and not self.node.over:
            self.now_ms, self._wake_at_ms = max(self.now_ms, self._wake_at_ms), None
            outputs += self.feed(Wake())
        self.now_ms = end_ms
        return outputs

    def say(self, name: str, message: WireFrame) -> list[Output]:
        """A peer sends something on its connection."""
        return self.feed(Received(self.conns[name], message))

    def connect(self, name: str) -> int:
        self._conn += 2
        self.conns[name] = self._conn
        self.feed(Connected(self._conn))
        return self._conn

    def call(self, name: str, incarnation: int = 1) -> int:
        """A peer calls and sends its hello."""
        conn = self.connect(name)
        self.say(name, hello(name, incarnation))
        return conn

    def answered(self, outputs: Sequence[Output], name: str) -> list[Output]:
        """A peer that was dialled answers and sends its hello."""
        self.conns[name] = dialled(outputs, name)
        self.feed(Connected(self.conns[name]))
        return self.say(name, hello(name))

    def link(self, name: str, incarnation: int = 1, *, exchange: bool = True) -> int:
        """A peer becomes a neighbour; both have nothing, and say so."""
        conn = self.call(name, incarnation)
        answers = sends(self.say(name, PortConnectionCall()), PortConnectionResp)
        assert answers == [(conn, PortConnectionResp(True))]
        if exchange:
            self.say(name, SummaryStmt(tuple(self.node.holdings.digests)))
            self.say(name, HoldingsStmt((), 1, 0, last=True))
        return conn

    def sync(self) -> list[Output]:
        """All that was asked for is on disk."""
        return self.feed(Durable(self.last_token))


def linked(names: str = "ab") -> Host:
    """Node m with these neighbours, who have nothing."""
    host = Host()
    for name in names:
        host.link(name)
    return host


Lane = tuple[str, int]
"""Where something arrives: a node and one of its connections (0: its disk)."""


class Pump:
    """Some nodes, by name; each answers at the address of its name. Disks are quick and never fail."""

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        portals: Sequence[str] = (),
        cluster: ClusterConfig = CLUSTER,
        seed: int | None = None,
        settings: dict[str, int] | None = None,
    ) -> None:
        """Deliver everything that is under way; with a seed, in a random order."""
        self.cluster = cluster
        self.now_ms = 0
        self.nodes: dict[str, Node] = {}
        self.log: list[tuple[str, str, WireFrame]] = []
        """All messages that were sent: (from, to, message)."""
        self.outputs: list[tuple[str, Output]] = []
        self._portals = tuple(contact(name).address for name in portals)
        self._settings = settings or {}
        self._random = None if seed is None else Random(seed)
        self._lanes: dict[Lane, deque[Input]] = {}
        self._order: deque[Lane] = deque()
        self._ends: dict[Lane, Lane] = {}
        self._accepted = 0
        self._logs: dict[str, list[Batch]] = {}
        self._wake_at_ms: dict[str, int] = {}
        for name in names:
            self.start(name)
            self.settle()

    # ---- nodes

    def start(self, name: str, *, recovered: Recovered | None = None, portals: Sequence[str] | None = None) -> Node:
        addresses = self._portals if portals is None else tuple(contact(each).address for each in portals)
        config = NodeConfig(name=name, listen=contact(name).address, portals=addresses, **self._settings)  # type: ignore[arg-type]  # whole numbers
        recovered = recovered or Recovered(node_id(name), incarnation=1)
        self.nodes[name] = Node(recovered, self.cluster, config, Random(name))
        self.feed(name, Start())
        return self.nodes[name]

    def kill(self, name: str, *, silent: bool = False) -> None:
        """Stop the node. Silent: nobody is told."""
        del self.nodes[name]
        self._wake_at_ms.pop(name, None)
        for end in [end for end in self._ends if end[0] == name]:
            self._hang_up(end, tell=not silent)

    def feed(self, name: str, event: Input) -> None:
        for output in self.nodes[name].handle(event, self.now_ms):
            self.outputs.append((name, output))
            self._perform(name, output)

    # ---- time and order

    def settle(self) -> None:
        """Deliver all that is under way; no time passes."""
        while self._order:
            self._deliver()

    def run(self, for_ms: int) -> None:
        """Let time pass, delivering at once whatever is sent."""
        end_ms = self.now_ms + for_ms
        self.settle()
        while self._wake_at_ms:
            name = min(self._wake_at_ms, key=lambda each: self._wake_at_ms[each])
            if self._wake_at_ms[name] > end_ms:
                break
            self.now_ms = max(self.now_ms, self._wake_at_ms.pop(name))
            self.feed(name, Wake())
            self.settle()
        self.now_ms = end_ms

    def _deliver(self) -> None:
        if self._random is not None:
            self._random.shuffle(self._order)
        lane = self._order.popleft()
        event = self._lanes[lane].popleft()
        if isinstance(event, Received | Connected) and lane not in self._ends:
            return
        if isinstance(event, Disconnected):
            self._ends.pop(lane, None)
        if lane[0] in self.nodes:
            self.feed(lane[0], event)

    def _put(self, lane: Lane, event: Input) -> None:
        self._lanes.setdefault(lane, deque()).append(event)
        self._order.append(lane)

    # ---- what a driver does

    def _perform(self, name: str, output: Output) -> None:
        match output:
            case Dial(conn, address):
                other = address.removesuffix(":7400")
                if other in self.nodes:
                    self._accepted += 2
                    here, there = (name, conn), (other, self._accepted)
                    self._ends[here], self._ends[there] = there, here
                    self._put(there, Connected(there[1]))
                    self._put(here, Connected(conn))
                else:
                    self._put((name, conn), DialFailed(conn))
            case Send(conn, message):
                end = (name, conn)
                assert end in self._ends, f"{name} sends {message} on connection {conn}, which it has closed"
                self.log.append((name, self._ends[end][0], message))
                self._put(self._ends[end], Received(self._ends[end][1], message))
            case Close(conn):
                self._hang_up((name, conn), tell=True)
            case WakeAt(at_ms):
                self._wake_at_ms[name] = at_ms
            case Append(token):
                self._logs.setdefault(name, []).extend(batches_of(output))
                self._put((name, 0), Durable(token))
            case ReadRange(token, stream, first, next_sequence):
                batches = [batch for batch in self._logs[name] if batch.stream == stream]
                found = tuple(batch for batch in batches if first <= batch.first_sequence < next_sequence)
                self._put((name, 0), RangeRead(token, found))
            case Left():
                self.kill(name)
            case _:
                pass

    def _hang_up(self, end: Lane, *, tell: bool) -> None:
        other = self._ends.pop(end, None)
        if other in self._ends and tell:
            self._put(other, Disconnected(other[1]))

    # ---- looking

    def names(self, name: str) -> str:
        """The neighbours of a node, sorted."""
        return "".join(sorted(self.name_of(each) for each in self.nodes[name].membership.table.neighbours))

    def name_of(self, wanted: NodeId) -> str:
        return wanted[:8].rstrip(b"\0").decode()

    def links(self) -> set[str]:
        """Links that both ends have on the same connection, as two letters."""
        found = set()
        for name, node in self.nodes.items():
            for other, neighbour in node.membership.table.neighbours.items():
                there = self._ends.get((name, neighbour.conn))
                back = self.nodes[there[0]].membership.table.neighbours.get(node.me.node_id) if there else None
                assert there is not None and back is not None and there == (self.name_of(other), back.conn), (
                    f"{name} has a link to {self.name_of(other)} that its other end has not"
                )
                found.add("".join(sorted((name, there[0]))))
        return found

    def sent(self, kind: type[T]) -> list[tuple[str, str, T]]:
        """All messages of one kind: (from, to, message)."""
        return [(here, there, message) for here, there, message in self.log if isinstance(message, kind)]

    def came_out(self, name: str, kind: type[T]) -> list[T]:
        return [output for who, output in self.outputs if who == name and isinstance(output, kind)]
