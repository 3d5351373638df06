"""The simulated world: virtual time, nodes, connections and disks, moved by one heap of events.

Time is whole milliseconds. Nothing here knows the protocol: the world performs the outputs of nodes and feeds them
inputs. Connections are in `cables.py`, disks in `disk.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any, get_args

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import StreamId, heir_of, new_node_id
from m4cast.overlay.protocol.effects import (
    Append,
    AppendFailed,
    ClockSet,
    Close,
    Dial,
    Durable,
    FindTimes,
    Input,
    Left,
    Output,
    RangeRead,
    ReadRange,
    ReadSelected,
    RolledBack,
    RosterChanged,
    Send,
    Start,
    Trimmed,
    Wake,
    WakeAt,
)
from m4cast.overlay.protocol.finding.port_order import LISTEN_TRIES, port_order
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.sim.cables import Cables
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.sim.places import Network, Observer, Place

_HOOKS = ("started", "stopped", "sent", "synced", "handled")


class World:
    def __init__(
        self,
        seed: int,
        cluster: ClusterConfig | None = None,
        network: Network | None = None,
        *,
        wire: bool = False,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.random = Random(seed)
        self.cluster = cluster or ClusterConfig()
        self.network = network or Network()
        self.now_ms = 0
        self.places: dict[str, Place] = {}
        """Places by address."""
        self.hooks: dict[str, list[Callable[..., None]]] = {name: [] for name in _HOOKS}
        self._output_hooks: dict[type, list[Callable[[Place, Any], None]]] = {kind: [] for kind in get_args(Output)}
        self.events = 0
        self.cables = Cables(self, wire=wire)
        self._trace = trace
        self._heap: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self._part: dict[str, int] = {}
        """While the network is split: address -> number of its part, 0 for those not named."""
        self._last_split: tuple[dict[str, int], int] = {}, 0
        """The parts of the last split that is over, and when it ended."""
        self._perform: dict[type, Callable[[Place, Output], None]] = {
            Send: self.cables.send,  # type: ignore[dict-item]  # each is only called with its own type
            Dial: self.cables.dial,  # type: ignore[dict-item]
            Close: self.cables.close,  # type: ignore[dict-item]
            WakeAt: self._wake_at,  # type: ignore[dict-item]
            Append: self._append,  # type: ignore[dict-item]
            ReadRange: self._read,  # type: ignore[dict-item]
            ReadSelected: self._read_selected,  # type: ignore[dict-item]
            FindTimes: self._read_selected,  # type: ignore[dict-item]
            RosterChanged: self._roster_changed,  # type: ignore[dict-item]
            RolledBack: self._rolled_back,  # type: ignore[dict-item]
            Left: self._left,  # type: ignore[dict-item]
        }

    def watch(self, *observers: Observer) -> None:
        """Call the observers for everything from now on, each only for the hooks that it defines."""
        for observer in observers:
            for name in _HOOKS:
                if getattr(type(observer), name) is not getattr(Observer, name):
                    self.hooks[name].append(getattr(observer, name))
            if type(observer).output is not Observer.output:
                for kind in observer.outputs:
                    self._output_hooks[kind].append(observer.output)

    def _see(self, hook: str, *what: Any) -> None:
        for call in self.hooks[hook]:
            call(*what)

    # ---- time

    def at(self, at_ms: int, action: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heappush(self._heap, (at_ms, self._count, action, arguments))

    def after(self, delay_ms: int, action: Callable[..., None], *arguments: object) -> None:
        self.at(self.now_ms + delay_ms, action, *arguments)

    def run(self, until_ms: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            self.now_ms, _, action, arguments = heappop(heap)
            action(*arguments)
        self.now_ms = max(self.now_ms, until_ms)

    def run_until(self, condition: Callable[[], bool], bound_ms: int, step_ms: int = 100) -> bool:
        """Run until the condition holds, looked at every step; False when the bound came first."""
        end_ms = self.now_ms + bound_ms
        while not condition():
            if self.now_ms >= end_ms:
                return False
            self.run(min(self.now_ms + step_ms, end_ms))
        return True

    def log(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now_ms:>8} {text}")

    # ---- places

    def add(self, config: NodeConfig) -> Place:
        host, _, port = config.listen.rpartition(":")
        if port == "0":
            ordered = (f"{host}:{each}" for each in port_order(self.cluster, LISTEN_TRIES))
            config = replace(config, listen=next(address for address in ordered if address not in self.places))
        place = Place(config.name, config, Disk(new_node_id(self.random)))
        assert place.address not in self.places, place.address
        self.places[place.address] = place
        return place

    def start(self, place: Place) -> None:
        assert place.node is None
        place.started += 1
        place.will_return = True
        place.started_at_ms = self.now_ms
        place.wake_at_ms = -1
        place.busy_until_ms = place.failures = 0
        place.node = Node(place.disk.open(), self.cluster, place.config, Random(self.random.randrange(1 << 62)))
        self.log(f"{place.name} started, incarnation {place.node.incarnation}")
        self._see("started", place)
        if place.trouble.clock_offset_ms:
            self.feed(place, ClockSet(place.trouble.clock_offset_ms))
        self.feed(place, Start())

    def crash(self, place: Place, *, silent: bool) -> None:
        """Kill the node. Silent: the host is gone, and its connections stay open at the other ends; else they are
        reset."""
        self.log(f"{place.name} crashed{' silently' if silent else ''}")
        for append in place.disk.crash(self.random):
            self._see("synced", place, append)
        self._stop(place, silent=silent)

    def _stop(self, place: Place, *, silent: bool) -> None:
        place.node = None
        place.started += 1
        place.stopped_at_ms = self.now_ms
        place.paused = False
        place.inbox.clear()
        for end in list(place.ends.values()):
            end.gone = True
            end.silent = True
            if not silent:
                self.cables.notify_other(end, self.now_ms)
        place.ends.clear()
        self._see("stopped", place)

    def pause(self, place: Place) -> None:
        self.log(f"{place.name} paused")
        place.paused = True

    def resume(self, place: Place) -> None:
        if place.paused:
            self.log(f"{place.name} resumed")
            place.paused = False
            place.resumed_at_ms = self.now_ms
            self._work(place)

    def set_clock(self, place: Place, offset_ms: int) -> None:
        """Set the clock on the wall, whether a node is up or not. It shows no time before the world began."""
        self.log(f"{place.name} has its clock set to {offset_ms:+} ms")
        place.trouble.clock_offset_ms = max(offset_ms, -self.now_ms)
        self.feed(place, ClockSet(place.trouble.clock_offset_ms))

    def damage(self, place: Place, stream: StreamId, first_sequence: int) -> None:
        """A batch on disk becomes unreadable; that is noticed when it is read."""
        self.log(f"{place.name} has {stream.topic} {first_sequence} damaged")
        place.disk.content.logs[stream].damaged[first_sequence] = None

    def read_damaged(self, place: Place) -> None:
        """A client reads, at this place's door, whatever is damaged there."""
        found = [(stream, first) for stream, log in place.disk.content.logs.items() for first in log.damaged]
        for stream, first in found:
            if (damage := place.disk.damage(stream, first)) is not None:
                self.feed(place, damage)

    def trim(self, place: Place, stream_index: int, keep_rows: int) -> None:
        """Retention at one place: keep about the last rows of one stream."""
        logs = place.disk.content.logs
        stream = list(logs)[stream_index % len(logs)]
        low = place.disk.trim(stream, max(1, logs[stream].next - keep_rows))
        self.feed(place, Trimmed(stream, low))

    def split(self, *parts: list[Place]) -> None:
        """The network falls apart: whatever goes from one of these parts to another, or to the rest, vanishes."""
        self.log(f"the network is split into {[len(part) for part in parts]} and the rest")
        self._part = {place.address: number for number, part in enumerate(parts, start=1) for place in part}
        for place in self.places.values():
            for end in place.ends.values():
                if self.are_apart(place, end.other.place):
                    end.silent = True

    def mend(self) -> None:
        """The network is whole again; connections that were cut stay dead until an end notices."""
        self.log("the network is whole")
        self._last_split = self._part, self.now_ms
        self._part = {}

    def are_apart(self, a: Place, b: Place) -> bool:
        return _in_two(self._part, a, b)

    def were_apart(self, a: Place, b: Place, since_ms: int) -> bool:
        """True if they are apart, or were when the last split ended, at that time or later."""
        parts, ended_ms = self._last_split
        return self.are_apart(a, b) or (ended_ms >= since_ms and _in_two(parts, a, b))

    # ---- inputs

    def feed(self, place: Place, event: Input) -> None:
        self.deliver(place, place.started, event)

    def deliver(self, place: Place, started: int, event: Input) -> None:
        node = place.node
        if node is None or place.started != started:
            return
        if place.paused or place.inbox or self.now_ms < place.busy_until_ms:
            # What waits is handled in order: a slow node is late, not confused.
            if not place.inbox and not place.paused:
                self.at(place.busy_until_ms, self._work, place)
            place.inbox.append((started, event))
            return
        self._handle(place, node, event)

    def _work(self, place: Place) -> None:
        """Handle what waits, one input every `slow_ms`."""
        while place.inbox and not place.paused:
            if self.now_ms < place.busy_until_ms:
                self.at(place.busy_until_ms, self._work, place)
                return
            started, event = place.inbox.popleft()
            if place.node is not None and place.started == started:
                self._handle(place, place.node, event)

    def _handle(self, place: Place, node: Node, event: Input) -> None:
        place.busy_until_ms = self.now_ms + place.trouble.slow_ms
        self.events += 1
        traced = self._trace is not None
        if traced:
            self.log(f"{place.name} <- {event}")
        outputs = node.handle(event, self.now_ms)
        if isinstance(event, AppendFailed):
            place.failures -= 1
        for output in outputs:
            if traced:
                self.log(f"{place.name} -> {output}")
            kind = type(output)
            for see in self._output_hooks[kind]:
                see(place, output)
            perform = self._perform.get(kind)
            if perform is not None:
                perform(place, output)
        for see in self.hooks["handled"]:
            see(place, event)

    # ---- time and disk, as outputs

    def _wake_at(self, place: Place, wake: WakeAt) -> None:
        place.wake_at_ms = wake.at_ms
        self.at(max(wake.at_ms, self.now_ms), self._wake, place, place.started, wake.at_ms)

    def _wake(self, place: Place, started: int, at_ms: int) -> None:
        if place.wake_at_ms == at_ms and place.started == started:
            self.deliver(place, started, Wake())

    def _append(self, place: Place, append: Append) -> None:
        if place.trouble.disk_full or place.failures:
            place.failures += 1
            self.after(1, self.deliver, place, place.started, AppendFailed(append.token, "disk full"))
            return
        place.disk.waiting.append(append)
        if not place.disk.syncing:
            self._sync(place)

    def _sync(self, place: Place) -> None:
        place.disk.syncing = len(place.disk.waiting)
        low, high = self.network.fsync_ms
        self.after(self.random.randint(low, high) + place.trouble.fsync_slow_ms, self._synced, place, place.started)

    def _synced(self, place: Place, started: int) -> None:
        if place.started != started:
            return
        synced = place.disk.sync_done()
        for append in synced:
            self._see("synced", place, append)
        if place.disk.waiting:
            self._sync(place)
        self.deliver(place, started, Durable(synced[-1].token))

    def _read(self, place: Place, read: ReadRange) -> None:
        self.after(1, self._read_done, place, place.started, read)

    def _read_done(self, place: Place, started: int, read: ReadRange) -> None:
        batches = place.disk.read(read.stream, read.first_sequence, read.next_sequence, read.bytes_max)
        damage = None if batches else place.disk.damage(read.stream, read.first_sequence)
        if damage is not None:
            self.deliver(place, started, damage)
        following = 0 if damage is None else damage.next_sequence
        self.deliver(place, started, RangeRead(read.token, batches, following))

    def _read_selected(self, place: Place, asked: ReadSelected | FindTimes) -> None:
        self.after(1, self._selected_done, place, place.started, asked)

    def _selected_done(self, place: Place, started: int, asked: ReadSelected | FindTimes) -> None:
        disk = place.disk
        if isinstance(asked, FindTimes):
            self.deliver(place, started, disk.find_times(asked))
            return
        found = disk.read_selected(asked)
        if (damage := disk.damage(asked.stream, found.read_next)) is not None:
            self.deliver(place, started, damage)
        self.deliver(place, started, found)

    def _roster_changed(self, place: Place, changed: RosterChanged) -> None:
        place.disk.content.roster[changed.entry.node_id] = changed.entry

    def _rolled_back(self, place: Place, rolled_back: RolledBack) -> None:
        """Do as the node says: a new identity over the same store, after what was under way is synced."""
        self.log(f"{place.name} rolled back: {rolled_back.detail}")
        place.rollbacks += 1
        self.after(0, self._reopen, place, place.started)

    def _reopen(self, place: Place, started: int) -> None:
        if place.started == started:
            self.crash(place, silent=False)
            node_id = place.disk.content.node_id
            place.disk.take_new_identity(heir_of(node_id, self.now_ms, self.random.randbytes(4)))
            self.start(place)

    def _left(self, place: Place, left: Left) -> None:
        self.log(f"{place.name} left")
        self.after(0, self._leave_done, place, place.started)

    def _leave_done(self, place: Place, started: int) -> None:
        if place.started == started:
            place.disk.crash(self.random)
            place.will_return = False
            self._stop(place, silent=False)

    # ---- looking

    def up(self) -> list[Place]:
        return [place for place in self.places.values() if place.up]

    def edges(self) -> list[tuple[str, str]]:
        """Links that both ends have, by address, each once."""
        by_id = {place.disk.content.node_id: place for place in self.up()}
        found = []
        for place in self.up():
            assert place.node is not None
            for node_id, neighbour in place.node.membership.table.neighbours.items():
                other = by_id.get(node_id)
                end = place.ends.get(neighbour.conn)
                if other is None or end is None or other.node is None or not place.address < other.address:
                    continue
                back = other.node.membership.table.neighbours.get(place.node.me.node_id)
                if back is not None and end.other.conn == back.conn:
                    found.append((place.address, other.address))
        return found


def node_config(index: int, portals: tuple[int, ...], **settings: object) -> NodeConfig:
    """The configuration of the simulated node of this number."""
    base = NodeConfig(
        name=f"n{index}", listen=address_of(index), portals=tuple(address_of(portal) for portal in portals)
    )
    return replace(base, **settings)  # type: ignore[arg-type]  # checked by the dataclass itself


def address_of(index: int) -> str:
    return f"h{index}:7400"


def _in_two(parts: dict[str, int], a: Place, b: Place) -> bool:
    return bool(parts) and parts.get(a.address, 0) != parts.get(b.address, 0)
