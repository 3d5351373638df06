"""Cables: the connections of a simulated world, and what goes wrong on them.

A connection is FIFO in each direction until it breaks, stalls or goes half-open. Each message takes a latency drawn for
its connection plus jitter, and, where a bandwidth is set, its share of it. A send queue longer than the node's limit is
reported to it as `LinkBlocked`, as a real driver would.
"""

from typing import TYPE_CHECKING

from m4cast.overlay.protocol.effects import (
    Close,
    Connected,
    Dial,
    DialFailed,
    Disconnected,
    FrameProgress,
    LinkBlocked,
    LinkReady,
    Received,
    Send,
)
from m4cast.overlay.protocol.wire import frame
from m4cast.overlay.protocol.wire.frame_reader import FrameReader
from m4cast.overlay.protocol.wire.routed import encode_routed, routed_bytes
from m4cast.overlay.protocol.wire.selective import RoutedFrame, WireFrame
from m4cast.overlay.sim.places import End, Place

if TYPE_CHECKING:
    from m4cast.overlay.sim.world import World

FRAME_BYTES_MAX = 1 << 26
PROGRESS_MS = 1_000
LOST_DIAL_MS = 5_000
"""The time after which a dial into another part of a split network is given up."""


class Cables:
    def __init__(self, world: "World", *, wire: bool) -> None:
        """`wire`: every message goes through the real codec, both ways."""
        self._world = world
        self._wire = wire
        self._coded: tuple[object, WireFrame] | None = None
        """The last message that went through the codec, and what came out of it."""

    def _latency(self) -> int:
        low, high = self._world.network.latency_ms
        return self._world.random.randint(low, high)

    def dial(self, place: Place, dial: Dial) -> None:
        latency_ms = self._latency()
        target = self._world.places.get(dial.address)
        if target is not None and self._world.are_apart(place, target):
            self._world.after(LOST_DIAL_MS, self._world.deliver, place, place.started, DialFailed(dial.conn))
        elif target is None or not target.up:
            self._world.after(2 * latency_ms, self._world.deliver, place, place.started, DialFailed(dial.conn))
        else:
            self._world.after(latency_ms, self._accept, place, place.started, dial.conn, target, latency_ms)

    def _accept(self, place: Place, started: int, conn: int, target: Place, latency_ms: int) -> None:
        if place.started != started:
            return
        if not target.up or self._world.are_apart(place, target):
            self._world.after(latency_ms, self._world.deliver, place, started, DialFailed(conn))
            return
        target.accepted += 2
        near, far = End(place, conn, started), End(target, target.accepted, target.started)
        near.other, far.other = far, near
        near.latency_ms = far.latency_ms = latency_ms
        place.ends[conn] = near
        target.ends[far.conn] = far
        near.arrives_ms = self._world.now_ms
        far.arrives_ms = self._world.now_ms + latency_ms
        # In this order: the dialler knows that it is connected before it hears anything.
        self._world.at(self._world.now_ms + latency_ms, self._world.deliver, place, started, Connected(conn))
        self._world.deliver(target, target.started, Connected(far.conn))

    def send(self, place: Place, send: Send) -> None:
        end = place.ends.get(send.conn)
        if end is None:
            return
        message = send.message
        for see in self._world.hooks["sent"]:
            see(end, message)
        if self._wire:
            message = self._through_codec(message)
        if end.silent or end.other.gone:
            return
        network = self._world.network
        start_ms = max(self._world.now_ms, end.stalled_until_ms)
        sending_ms = 0
        if network.bytes_per_ms:
            size = routed_bytes(message) if isinstance(message, RoutedFrame) else frame.wire_bytes(message)
            sending_ms = size // network.bytes_per_ms
            start_ms = end.free_ms = max(start_ms, end.free_ms) + sending_ms
            self._check_queue(end)
        arrives_ms = start_ms + end.latency_ms
        if network.jitter_ms:
            arrives_ms += self._world.random.randrange(network.jitter_ms + 1)
        end.arrives_ms = max(arrives_ms, end.arrives_ms)
        self._world.at(end.arrives_ms, self._arrive, end, message)
        for before_ms in range(PROGRESS_MS, sending_ms, PROGRESS_MS):
            self._world.at(end.arrives_ms - before_ms, self._progress, end)

    def _through_codec(self, message: WireFrame) -> WireFrame:
        """Encodes and decodes a message. One that goes to all neighbours is one value and is encoded once."""
        if self._coded is None or self._coded[0] is not message:
            data = encode_routed(message) if isinstance(message, RoutedFrame) else frame.encode(message)
            (decoded,) = FrameReader(FRAME_BYTES_MAX).feed(data)
            self._coded = (message, decoded)
        return self._coded[1]

    def _arrive(self, end: End, message: WireFrame) -> None:
        other = end.other
        if not other.gone and not end.silent:
            self._world.deliver(other.place, other.incarnation, Received(other.conn, message))

    def _progress(self, end: End) -> None:
        """Part of a large frame has arrived."""
        other = end.other
        if not other.gone and not end.silent:
            self._world.deliver(other.place, other.incarnation, FrameProgress(other.conn))

    def _check_queue(self, end: End) -> None:
        """Bytes that wait for the transmitter, against the node's limit."""
        queued_ms = end.free_ms - self._world.now_ms
        limit_ms = end.place.config.link_queue_bytes_max // self._world.network.bytes_per_ms
        if queued_ms > limit_ms and not end.blocked:
            self.block(end, queued_ms // 2)

    def block(self, end: End, for_ms: int) -> None:
        """The send queue at this end is full for a while."""
        if not end.blocked and not end.gone:
            end.blocked = True
            self._world.after(0, self._world.deliver, end.place, end.incarnation, LinkBlocked(end.conn))
            self._world.after(max(for_ms, 1), self._unblock, end)

    def _unblock(self, end: End) -> None:
        end.blocked = False
        if not end.gone:
            self._world.deliver(end.place, end.incarnation, LinkReady(end.conn))

    def close(self, place: Place, close: Close) -> None:
        end = place.ends.pop(close.conn, None)
        if end is not None:
            end.gone = True
            self.notify_other(end, end.arrives_ms)

    def notify_other(self, end: End, at_ms: int) -> None:
        """The other end hears that the connection is closed, after all that was sent before."""
        other = end.other
        if not other.gone and not self._world.are_apart(end.place, other.place):
            self._world.at(max(at_ms, self._world.now_ms) + 1, self._lost, other)

    def _lost(self, end: End) -> None:
        if not end.gone:
            end.gone = True
            end.place.ends.pop(end.conn, None)
            self._world.deliver(end.place, end.incarnation, Disconnected(end.conn))

    def break_connection(self, end: End) -> None:
        """Cut it: what is in flight is lost, and both ends are notified."""
        for each in (end, end.other):
            each.silent = True
            self._world.after(1, self._lost, each)

    def half_open(self, end: End) -> None:
        """Drops everything sent from here from now on; neither end is notified."""
        end.silent = True

    def stall(self, end: End, for_ms: int) -> None:
        end.stalled_until_ms = self._world.now_ms + for_ms
