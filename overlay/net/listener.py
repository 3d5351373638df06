"""The listener: accepts connections, and limits how many strangers may wait at a time.

A stranger is an accepted connection that has not introduced itself: its handshake is not finished, or it is silent. (A
node sends a hello, an HTTP client a request.) Beyond `strangers_max` the one that has waited longest is cut off. So a
crowd of connections costs no more memory or files than that many, and a peer is admitted as long as it takes less time
than the crowd needs to displace it (guarantee 7).
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

CLOSE_TIMEOUT_S = 5.0
"""Time that a connection which is being closed may take to send its remaining data."""

log = logging.getLogger("m4cast.node")

STRANGERS_MAX = 256
"""Guess. Raising it costs about 300 KB of address space and one file each; with TLS a handshake is some 2 ms of CPU."""
BACKLOG = 1_024
"""Connections that the system queues until they are accepted."""
NO_FILES_PAUSE_S = 0.1


class Incoming(Protocol):
    """A connection's protocol, as far as the listener knows it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def given_up(self) -> None:
        """Its handshake failed or was cancelled."""


C = TypeVar("C", bound=Incoming)


class Listener(Generic[C]):
    """`accept` makes a connection's protocol, `cut_off` ends one that is established, `refused` gets reason and detail
    when one is turned away. `context` is asked for the TLS of each connection; None for plain TCP."""

    def __init__(
        self,
        accept: Callable[[], C],
        cut_off: Callable[[C], None],
        refused: Callable[[str, str], None],
        context: Callable[[], ssl.SSLContext] | None,
        handshake_s: float,
        *,
        strangers_max: int = STRANGERS_MAX,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._accept = accept
        self._cut_off = cut_off
        self._refused = refused
        self._context = context
        self._strangers_max = strangers_max
        self._handshake_s = handshake_s
        self._sockets: list[socket.socket] = []
        self._closed = False
        self._welcomes: dict[C, asyncio.Task[None]] = {}
        self._strangers: dict[C, None] = {}  # the one that waits longest is the first

    async def open_first(self, host: str, ports: Sequence[int]) -> int:
        """Listen on the first of these ports that is free (0: any), and return it."""
        for port in ports[:-1]:
            try:
                return await self._open(host, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                self._close_sockets()  # those of the host's other addresses, where the port was free
        return await self._open(host, ports[-1])

    async def _open(self, host: str, port: int) -> int:
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            where = (address[0], port, *address[2:])
            listening = socket.create_server(where, family=family, backlog=BACKLOG)
            listening.setblocking(False)
            self._sockets.append(listening)
            port = listening.getsockname()[1]
        for listening in self._sockets:
            self._loop.add_reader(listening, self._take_in, listening)
        return port

    async def close(self) -> None:
        self._closed = True
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        await asyncio.sleep(0)  # Every welcome has begun then, and owns its socket when it is cancelled.
        welcomes = list(self._welcomes.values())
        for welcome in welcomes:
            welcome.cancel()
        await asyncio.gather(*welcomes, return_exceptions=True)
        self._close_sockets()

    def _close_sockets(self) -> None:
        while self._sockets:
            self._sockets.pop().close()

    def known(self, connection: C) -> bool:
        """The connection has introduced itself or has ended: it is no longer a stranger. Returns whether it was one."""
        return self._strangers.pop(connection, self) is None

    def _take_in(self, listening: socket.socket) -> None:
        """Accept one connection. Only one at a time, so that an endless crowd does not block the loop. (Not by
        `sock_accept`: a connection that it has accepted when it is cancelled is lost, and never closed.)"""
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:  # too many open files, or the peer has left already
            self._refused("accept", str(error))
            self._drop_oldest()
            self._loop.remove_reader(listening)
            self._loop.call_later(NO_FILES_PAUSE_S, self._go_on, listening)
            return
        accepted.setblocking(False)
        connection = self._accept()
        self._strangers[connection] = None
        self._welcomes[connection] = self._loop.create_task(self._welcome(accepted, connection))
        if len(self._strangers) > self._strangers_max:
            self._drop_oldest()

    def _go_on(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening, self._take_in, listening)

    async def _welcome(self, accepted: socket.socket, connection: C) -> None:
        welcomed = False
        try:
            tls: dict[str, Any] = {}
            if self._context is not None:
                tls = {
                    "ssl": self._context(),
                    "ssl_handshake_timeout": self._handshake_s,
                    "ssl_shutdown_timeout": CLOSE_TIMEOUT_S,
                }
            await self._loop.connect_accepted_socket(lambda: cast(asyncio.BaseProtocol, connection), accepted, **tls)
            welcomed = True
        except (ConnectionResetError, BrokenPipeError):  # The peer left by itself.
            self.known(connection)
        except OSError as error:  # asyncio reports a time-out as ConnectionAbortedError.
            self.known(connection)
            self._refused("tls" if isinstance(error, ssl.SSLError) else "handshake", str(error))
        finally:
            del self._welcomes[connection]
            if not welcomed:
                connection.given_up()

    def _drop_oldest(self) -> None:
        if not self._strangers:
            return
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        self._refused("crowd", f"more than {self._strangers_max} connections that have not introduced themselves")
        welcome = self._welcomes.get(oldest)
        if welcome is not None:
            welcome.cancel()
        else:
            self._cut_off(oldest)
