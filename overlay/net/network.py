"""The connections of a node: dialled, accepted, sent on, closed. Each is a number to the node.

Numbers of dialled connections come from the node (odd), those of accepted ones are given here (even). What happens on a
connection becomes an input of the node. A connection that the node has closed is forgotten at once, and open until what
was sent is flushed.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.net.connection import READ_BYTES, Connection
from m4cast.overlay.net.listener import CLOSE_TIMEOUT_S, Listener
from m4cast.overlay.net.refusals import Refusals
from m4cast.overlay.net.tls import peer_name, tls_of
from m4cast.overlay.protocol.effects import (
    Connected,
    DialFailed,
    Disconnected,
    FrameProgress,
    Input,
    LinkBlocked,
    LinkReady,
    Received,
)
from m4cast.overlay.protocol.wire.batch import BatchFrame, Payload
from m4cast.overlay.protocol.wire.frame import (
    BATCH_OVERHEAD_BYTES,
    CONTROL_FRAME_BYTES_MAX,
    EXTENSIONS_BYTES_MAX,
    encode,
    encode_parts,
)
from m4cast.overlay.protocol.wire.routed import LIST_BYTES_MAX, routed_parts
from m4cast.overlay.protocol.wire.selective import RoutedFrame, WireFrame

log = logging.getLogger("m4cast.node")


class InputSink(Protocol):
    """Takes inputs for the node."""

    def feed(self, event: Input) -> None: ...
    def feed_all(self, events: Sequence[Input]) -> None: ...


class NodeNetwork:
    """`flush_later` is called with a connection that has something to flush once the input under way is handled."""

    def __init__(
        self,
        sink: InputSink,
        flush_later: Callable[[Connection], None],
        refusals: Refusals,
        cluster: ClusterConfig,
        config: NodeConfig,
    ) -> None:
        self.tls = tls_of(config)
        """The node's certificates; None for a node without."""
        self.federation: Callable[[], dict[str, Any]] = dict
        """The report of the gatekeeper beside this node; empty if there is none."""
        self.trace: Callable[[StreamId, int, Callable[[dict[str, Any]], None]], None] | None = None
        """Asks the gatekeeper beside this node for the way of a row."""
        self._sink = sink
        self._flush_later = flush_later
        self._refusals = refusals
        self._call_timeout_s = config.call_timeout_ms / 1000
        self._listener = Listener(
            self._new_connection,
            self._cut_off,
            refusals.add,
            self.tls.server if self.tls else None,
            handshake_s=self._call_timeout_s,
        )
        self._by_number: dict[int, Connection] = {}
        self._open: dict[Connection, None] = {}  # also those that the node has closed already
        self._accepted = 0
        """The last number given to an accepted connection."""
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._closing = False
        self._read_buffer = memoryview(bytearray(READ_BYTES))
        batch_bytes_max = cluster.batch_bytes_max + BATCH_OVERHEAD_BYTES + EXTENSIONS_BYTES_MAX
        self._frame_bytes_max = LIST_BYTES_MAX + max(CONTROL_FRAME_BYTES_MAX, batch_bytes_max)
        self._queue_bytes_max = config.link_queue_bytes_max
        self._encoded: tuple[WireFrame | None, tuple[Payload, ...]] = (None, ())
        """The last message that was sent, with its pieces."""

    # ---- called by the driver

    async def listen(self, host: str, ports: Sequence[int]) -> int:
        """Listen on the first of these ports that is free; returns it."""
        return await self._listener.open_first(host, ports)

    def send(self, conn: int, message: WireFrame) -> None:
        """A message that goes to several connections is encoded once: it is the same object each time."""
        connection = self._by_number.get(conn)
        if connection is None:
            return
        if self._encoded[0] is not message:
            pieces: tuple[Payload, ...]
            if isinstance(message, BatchFrame):
                pieces = encode_parts(message)
            elif isinstance(message, RoutedFrame):
                pieces = routed_parts(message)
            else:
                pieces = (encode(message),)
            self._encoded = (message, pieces)
        connection.send(self._encoded[1], self._flush_later)

    def dial(self, conn: int, address: str) -> None:
        self._dialling[conn] = asyncio.get_running_loop().create_task(self._dial(conn, address))

    def close(self, conn: int) -> None:
        task = self._dialling.pop(conn, None)
        if task is not None:
            task.cancel()
        connection = self._by_number.pop(conn, None)
        if connection is not None:
            if self._listener.known(connection):
                detail = f"{connection.peer_address} sent no hello in time, or there are too many calls"
                self._refusals.add("no-hello", detail)
            connection.close()

    def close_all(self) -> None:
        """Close what the node knows of; it counts from 1 again."""
        for conn in (*self._by_number, *self._dialling):
            self.close(conn)

    def queued_bytes(self, conn: int) -> int:
        """Bytes that wait to be sent on a connection."""
        connection = self._by_number.get(conn)
        return 0 if connection is None else connection.queued_bytes

    async def stop(self) -> None:
        """Close everything, and wait until it is closed."""
        self._closing = True
        await self._listener.close()
        dialling = list(self._dialling.values())
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        for connection in list(self._open):
            connection.close()
        if self._open:  # Each is gone after CLOSE_TIMEOUT_S; a node stops even if the loop never reports that.
            await asyncio.wait([connection.gone for connection in self._open], timeout=2 * CLOSE_TIMEOUT_S)

    # ---- called by connections

    def connection_made(self, connection: Connection) -> None:
        self._open[connection] = None
        if self._closing:
            connection.abort()
            return
        name = peer_name(connection.certificate)
        if self.tls is not None and not name:
            self._refusals.add("not-a-node", f"the certificate of {connection.peer_address} is not a node's")
            self._listener.known(connection)
            connection.abort()
            if connection.number in self._dialling:
                self._sink.feed(DialFailed(connection.number))
            return
        self._by_number[connection.number] = connection
        self._sink.feed(Connected(connection.number, name))

    def messages_received(self, connection: Connection, messages: list[WireFrame]) -> None:
        number = connection.number
        self._listener.known(connection)  # The first message is a hello, or it ends the connection.
        self._sink.feed_all([Received(number, message) for message in messages])

    def progress(self, connection: Connection) -> None:
        self._sink.feed(FrameProgress(connection.number))

    def malformed(self, connection: Connection, error: RemoteProtocolError) -> None:
        self._refusals.add("malformed", f"{connection.peer_address} is cut off: {error}")
        self._listener.known(connection)
        self._cut_off(connection)

    def blocked(self, connection: Connection) -> None:
        self._sink.feed(LinkBlocked(connection.number))

    def ready(self, connection: Connection) -> None:
        self._sink.feed(LinkReady(connection.number))

    def connection_lost(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        self._listener.known(connection)
        if not connection.closed:
            if isinstance(connection.error, ssl.SSLError):  # In TLS 1.3 the dialler learns late that it is refused.
                log.warning("%s ended the link: %s", connection.peer_address, connection.error)
            self._forget(connection)

    # ---- inside

    def _new_connection(self) -> Connection:
        self._accepted += 2
        return self._connection(self._accepted)

    def _connection(self, number: int) -> Connection:
        return Connection(self, self._read_buffer, self._frame_bytes_max, self._queue_bytes_max, number)

    async def _dial(self, conn: int, address: str) -> None:
        host, _, port = address.rpartition(":")
        connection = self._connection(conn)
        tls: dict[str, Any] = {}
        if self.tls is not None:
            tls = {"ssl": self.tls.client(), "ssl_shutdown_timeout": CLOSE_TIMEOUT_S}
        dialled = False
        try:
            async with asyncio.timeout(self._call_timeout_s):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: connection, host.strip("[]"), int(port), **tls)
            dialled = True
        except (OSError, TimeoutError) as error:
            log.debug("cannot reach %s: %s", address, error)
            if isinstance(error, ssl.SSLError):
                self._refusals.add("tls", f"{address}, which was called: {error}")
            self._sink.feed(DialFailed(conn))
        finally:
            if self._dialling.get(conn) is asyncio.current_task():
                del self._dialling[conn]
            if not dialled:
                connection.given_up()

    def _cut_off(self, connection: Connection) -> None:
        connection.abort()
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        if self._by_number.pop(connection.number, None) is not None:
            self._sink.feed(Disconnected(connection.number))
