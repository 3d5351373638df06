"""One connection between gatekeepers: frames in, frames out, with a queue and a pace.

Batches are paced by the gateway's limit in bytes per second; control messages that were queued before them go first,
since order matters on a link. What waits can be taken back (`unsend`).
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from m4cast.overlay.config.federation import GatewayConfig
from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.net.gateways.frames import decode, encode
from m4cast.overlay.net.gateways.messages import CarriedCopy, GatewayHello, GatewayMessage
from m4cast.overlay.protocol.wire.batch import Batch

_LENGTH = struct.Struct("<I")
CLOSE_S = 2.0
"""The time that a link that is being closed may take to send what it has."""


class _Queued(NamedTuple):
    message: GatewayMessage
    batch: Batch | bytes | None
    size: int
    at_s: float


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
        self.delay_s = 0.0
        """The time for which the last message waited."""
        self.changed: Callable[[], None] = lambda: None
        """Called when something was sent."""
        self._reader = reader
        self._writer = writer
        self._frame_bytes_max = frame_bytes_max
        self._queue: deque[_Queued] = deque()
        self._waiting = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None

    # ---- out

    def start(self) -> None:
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_all())

    def send(self, message: GatewayMessage, batch: Batch | bytes | None = None) -> None:
        size = 0 if batch is None else len(batch) if isinstance(batch, bytes) else len(batch.content)
        self._queue.append(_Queued(message, batch, size, time.monotonic()))
        self.queued_bytes += size
        self._waiting.set()

    def unsend(self, numbers: tuple[int, ...]) -> None:
        """Drop copies with these numbers that still wait."""
        gone = set(numbers)
        kept = [
            each for each in self._queue if not (isinstance(each.message, CarriedCopy) and each.message.number in gone)
        ]
        self._queue = deque(kept)
        self.queued_bytes = sum(each.size for each in kept)

    async def _send_all(self) -> None:
        limit = 0 if self.gateway is None else self.gateway.bytes_per_s_max
        free_at_s = 0.0
        try:
            while True:
                await self._waiting.wait()
                if not self._queue:
                    self._waiting.clear()
                    continue
                if limit and (wait_s := free_at_s - time.monotonic()) > 0:
                    await asyncio.sleep(max(wait_s, 0.001))
                    continue  # what is next may have been taken back
                queued = self._queue.popleft()
                self.queued_bytes -= queued.size
                pieces = encode(queued.message, queued.batch)
                size = sum(map(len, pieces))
                if limit and queued.size:
                    free_at_s = max(time.monotonic(), free_at_s) + size / limit
                self._writer.writelines(pieces)
                self.sent_bytes += size
                self.delay_s = time.monotonic() - queued.at_s
                if queued.size or not self._queue:
                    await self._writer.drain()
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
