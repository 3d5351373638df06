"""One TCP or TLS connection of a node: bytes in, messages out; messages in, bytes out.

Reads go into one buffer that all connections of a node share (each read is handled before the next), and from there
through `FrameReader`, which has a maximum for every frame (guarantee 8); the rest of a large frame is read directly to
its place. Small frames that are sent in one turn of the loop leave in one write. The transport's own queue is bounded:
past `queue_bytes_max` the owner is notified by `blocked`, and by `ready` when half of it is sent (guarantee 7).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from m4cast.overlay import heap
from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.net.listener import CLOSE_TIMEOUT_S
from m4cast.overlay.protocol.wire.batch import Payload
from m4cast.overlay.protocol.wire.frame import HELLO_FRAME_BYTES_MAX
from m4cast.overlay.protocol.wire.frame_reader import FrameReader
from m4cast.overlay.protocol.wire.selective import WireFrame

PROGRESS_S = 1.0
"""Interval between reports of a frame that is still arriving."""
PROGRESS_BYTES = 1024
"""Less than this since the last report is no progress: a peer that trickles counts as silent. Guess."""
READ_BYTES = 64 * 1024
"""Read at once while no large frame is under way. Higher: more of a large frame is copied, since more arrives together
with its beginning; lower: more reads of small frames. By its profile, 256 KB cost a relay about 2 % of its CPU."""


class Owner(Protocol):
    """Is notified of what happens on a connection."""

    def connection_made(self, connection: "Connection") -> None: ...
    def messages_received(self, connection: "Connection", messages: list[WireFrame]) -> None: ...
    def progress(self, connection: "Connection") -> None: ...
    def malformed(self, connection: "Connection", error: RemoteProtocolError) -> None: ...
    def blocked(self, connection: "Connection") -> None: ...
    def ready(self, connection: "Connection") -> None: ...
    def connection_lost(self, connection: "Connection") -> None:
        """The connection has ended; `connection.closed` is set if this side closed it."""


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self, owner: Owner, buffer: memoryview, frame_bytes_max: int, queue_bytes_max: int, number: int
    ) -> None:
        self.number = number
        """The connection's number, as the node knows it; the owner numbers accepted ones."""
        self.closed = False
        self.error: Exception | None = None
        """Why it ended, if it was not closed in order."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._queue_bytes_max = queue_bytes_max
        self._reader = FrameReader(frame_bytes_max, first_frame_bytes_max=HELLO_FRAME_BYTES_MAX, allocate=heap.unset)
        self._view = buffer
        self._transport: asyncio.Transport | None = None
        self._dropping: asyncio.TimerHandle | None = None
        self._unsent: list[Payload] = []
        self._progress_s = 0.0
        self._reads_direct = False
        self._unreported_bytes = 0

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._queue_bytes_max, low=self._queue_bytes_max // 2)
        self._owner.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        space = self._reader.space()
        self._reads_direct = space is not None
        return self._view if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        try:
            messages = self._reader.filled(nbytes) if self._reads_direct else self._reader.feed(self._view[:nbytes])
        except RemoteProtocolError as error:
            self._owner.malformed(self, error)
            return
        if messages:
            self._unreported_bytes = 0
            self._owner.messages_received(self, messages)
            return
        self._unreported_bytes += nbytes
        if self._unreported_bytes >= PROGRESS_BYTES and (now_s := time.monotonic()) - self._progress_s >= PROGRESS_S:
            self._progress_s = now_s
            self._unreported_bytes = 0
            self._owner.progress(self)

    def pause_writing(self) -> None:
        self._owner.blocked(self)

    def resume_writing(self) -> None:
        self._owner.ready(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.gone.done():
            return
        self.error = exc
        if self._dropping is not None:
            self._dropping.cancel()
        self._owner.connection_lost(self)
        self.closed = True
        self.gone.set_result(None)

    # ---- called by the owner

    @property
    def peer_address(self) -> str:
        name = self._transport.get_extra_info("peername") if self._transport else None
        return f"{name[0]}:{name[1]}" if name else "?"

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The peer's certificate, verified; None without TLS."""
        return self._transport.get_extra_info("peercert") if self._transport else None

    @property
    def queued_bytes(self) -> int:
        """Bytes handed to the transport and not yet accepted by the network."""
        return 0 if self.closed or self._transport is None else self._transport.get_write_buffer_size()

    def send(self, pieces: tuple[Payload, ...], flush_later: Callable[["Connection"], None]) -> None:
        """Queue a frame; `flush_later` is called once in a turn for a connection that has something to flush."""
        if self.closed:
            return
        if not self._unsent:
            flush_later(self)
        self._unsent += pieces

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and not self.closed and self._transport is not None:
            self._transport.writelines(unsent)

    def close(self) -> None:
        """Send what is queued, then close. The owner gets no more messages. What the peer does not accept in time is
        dropped: if the peer is cut off, the network would keep it, and its memory, for a quarter of an hour."""
        if self.closed:
            return
        self.flush()
        self.closed = True
        if self._transport is not None:
            self._transport.close()
            self._dropping = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def given_up(self) -> None:
        """The attempt to make it failed or was cancelled. If it was made already, uvloop closes it without reporting
        that."""
        if self._transport is not None:
            self.connection_lost(None)

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
