"""One connection between gatekeepers: frames in, frames out, with a queue and a pace.

Batches are paced by the gateway's limit in bytes per second, and keep their order with all that counts them: copies,
their numbers, pulls and routed frames. Everything else is small, in an order of its own, and passes what waits: an
acknowledgement or a want does not wait behind a batch. What waits can be taken back (`unsend`).
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from m4cast.overlay.config.federation import GatewayConfig
from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.net.gateways.wire.frames import decode, encode
from m4cast.overlay.net.gateways.wire.messages import (
    AcrossFrame,
    CarriedCopy,
    GatewayHello,
    GatewayMessage,
    PulledBatch,
    StreamPullResp,
    WithheldCopy,
)
from m4cast.overlay.protocol.wire.batch import Batch

_LENGTH = struct.Struct("<I")
CLOSE_S = 2.0
"""The time that a link that is being closed may take to send what it has."""
URGENT_MAX = 65_536
"""Small messages that wait for a peer that takes nothing; beyond it the link is cut. Guess. Raising it costs memory."""
_WITHIN_CHANNEL = GatewayConfig()
"""The limits of links that have no [[gateway]]."""
_IN_ORDER = (CarriedCopy, WithheldCopy, PulledBatch, StreamPullResp, AcrossFrame)
"""Batches, and what must not pass them: acknowledgements of copies are cumulative, and the end of a pull ends it."""


class _Queued(NamedTuple):
    message: GatewayMessage
    batch: Batch | bytes | None
    size: int
    at_s: float


class _SendQueue:
    """Messages that wait for a link, in two orders."""

    def __init__(self) -> None:
        self.urgent: deque[_Queued] = deque()
        self.in_order: deque[_Queued] = deque()
        self.leaving: _Queued | None = None
        """The message that the connection has not taken in whole yet."""
        self._more = asyncio.Event()
        self._fewer = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self.urgent or self.in_order)

    def put(self, queued: _Queued) -> None:
        (self.in_order if isinstance(queued.message, _IN_ORDER) else self.urgent).append(queued)
        self._more.set()

    def take(self, wait_s: float) -> _Queued | None:
        """The message that leaves next, if batches have to wait for so long."""
        queue = self.urgent or (self.in_order if wait_s <= 0 else None)
        self.leaving = queue.popleft() if queue else None
        self._fewer.set()
        return self.leaving

    async def more(self, wait_s: float) -> None:
        """Wait until more comes, or batches have waited for so long."""
        self._more.clear()
        try:
            async with asyncio.timeout(wait_s if self.in_order else None):
                await self._more.wait()
        except TimeoutError:
            pass

    async def fewer(self) -> None:
        """Wait until something has left, or the link is over."""
        self._fewer.clear()
        await self._fewer.wait()

    def wake(self) -> None:
        self._fewer.set()

    def oldest_s(self) -> float | None:
        first = [queue[0] for queue in (self.urgent, self.in_order) if queue]
        return min((each.at_s for each in (*first, self.leaving) if each is not None), default=None)


class GatewayLink:
    """`frame_bytes_max` limits what is read. `gateway` has the rules; None: a link inside the channel."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, conn: int, frame_bytes_max: int
    ) -> None:
        self.conn = conn
        self.hello: GatewayHello
        """The peer's; set once it has come."""
        self.gateway: GatewayConfig | None = None
        self.dialled = ""
        """The address that was dialled; empty: the peer dialled."""
        self.peer_name = ""
        self.queued_bytes = 0
        self.sent_bytes = 0
        self.sent_batches = 0
        self.sent_rows = 0
        self.received_batches = 0
        self.received_bytes = 0
        self.withheld = 0
        self.changed: Callable[[], None] = lambda: None
        """Called when something was sent."""
        self.pulls = 0
        """Pulls that this link asked for, and that wait for their turn."""
        self._turn = asyncio.Lock()
        self._reader = reader
        self._writer = writer
        self._frame_bytes_max = frame_bytes_max
        self._queue = _SendQueue()
        self._sender: asyncio.Task[None] | None = None

    # ---- out

    def start(self) -> None:
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_all())

    def send(self, message: GatewayMessage, batch: Batch | bytes | None = None) -> None:
        size = 0 if batch is None else len(batch) if isinstance(batch, bytes) else len(batch.content)
        if len(self._queue.urgent) >= URGENT_MAX:
            self.cut()
            return
        self._queue.put(_Queued(message, batch, size, time.monotonic()))
        self.queued_bytes += size

    @property
    def is_full(self) -> bool:
        """True if no more batches may wait for it in memory."""
        return self.queued_bytes > (self.gateway or _WITHIN_CHANNEL).queue_bytes_max

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Pulls take turns, each when half the queue is free: the other half is for batches that are new."""
        self.pulls += 1
        try:
            async with self._turn:
                while 2 * self.queued_bytes > (self.gateway or _WITHIN_CHANNEL).queue_bytes_max and not self.is_over:
                    await self._queue.fewer()
                yield
        finally:
            self.pulls -= 1

    def unsend(self, numbers: tuple[int, ...]) -> None:
        """Drop copies with these numbers that still wait."""
        gone = set(numbers)
        kept = [
            each
            for each in self._queue.in_order
            if not (isinstance(each.message, CarriedCopy) and each.message.number in gone)
        ]
        self._queue.in_order = deque(kept)
        self.queued_bytes = sum(each.size for each in kept)
        self._queue.wake()

    @property
    def delay_s(self) -> float:
        """The time for which the oldest message has waited that the connection has not taken; 0 if there is none."""
        oldest_s = self._queue.oldest_s()
        return 0.0 if oldest_s is None else time.monotonic() - oldest_s

    @property
    def waits_from(self) -> int:
        """The number of the first copy that waits for its turn; 0: none does, or the connection takes nothing."""
        if self._queue.leaving is not None:
            return 0
        numbers = (each.message.number for each in self._queue.in_order if isinstance(each.message, CarriedCopy))
        return next(numbers, 0)

    async def _send_all(self) -> None:
        limit = 0 if self.gateway is None else self.gateway.bytes_per_s_max
        free_at_s = 0.0
        try:
            while True:
                wait_s = free_at_s - time.monotonic()
                queued = self._queue.take(wait_s)
                if queued is None:
                    await self._queue.more(wait_s)
                    continue  # what was next may have been taken back
                self.queued_bytes -= queued.size
                pieces = encode(queued.message, queued.batch)
                size = sum(map(len, pieces))
                if limit and queued.size:
                    free_at_s = max(time.monotonic(), free_at_s) + size / limit
                self._writer.writelines(pieces)
                self.sent_bytes += size
                if queued.size or not self._queue.urgent:
                    await self._writer.drain()
                self._queue.leaving = None
                self.changed()
        except (OSError, RuntimeError):
            self._writer.close()

    async def close(self) -> None:
        """Send what waits, as far as the peer takes it in time, and close."""
        try:
            async with asyncio.timeout(CLOSE_S):
                while self._queue and self._sender is not None and not self._sender.done():
                    await asyncio.sleep(0.01)
                await self._writer.drain()
        except (TimeoutError, OSError, RuntimeError):
            pass
        self.abort()

    def abort(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
        self._writer.close()
        self._queue.wake()

    def cut(self) -> None:
        """End the link at once, without what waits: the peer takes nothing."""
        self._writer.transport.abort()

    @property
    def is_over(self) -> bool:
        return self._writer.is_closing()

    # ---- in

    async def receive(self, bytes_max: int = 0) -> tuple[Any, memoryview]:
        """The next message, and the bytes behind its hop part. `RemoteProtocolError`, `OSError` or `EOFError` when
        there is none."""
        size = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))[0]
        if size > (bytes_max or self._frame_bytes_max):
            raise RemoteProtocolError(f"a frame of {size} bytes: at most {bytes_max or self._frame_bytes_max} are read")
        content = await self._reader.readexactly(size)
        self.received_bytes += size
        return decode(content)

    def certificate(self) -> tuple[dict[str, Any] | None, bytes]:
        """The peer's certificate, verified, and its DER; without TLS None and nothing."""
        tls = self._writer.get_extra_info("ssl_object")
        if tls is None:
            return None, b""
        return tls.getpeercert(), tls.getpeercert(binary_form=True) or b""

    @property
    def peer(self) -> str:
        """The other end, for people."""
        return f"{self.hello.channel} {self.hello.address}"

    @property
    def peer_address(self) -> str:
        name = self._writer.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "?"
