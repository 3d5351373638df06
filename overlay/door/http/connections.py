"""HTTP connections: aiohttp's, with a limit on everything that a client could use to wear out the node.

A connection is a *stranger* until its first request (`overlay/net/listener` limits those), and then in one of three
phases: it asks (its client sends the head of a request, or rests between two), it is answered, or it takes its answer.
`Crowd` counts the connections that have sent a request. Beyond `connections_max` it closes the one that has rested
longest, or else the one that has been taking its answer for longest; while all are being answered, the new one is
refused. So idle and slow clients never keep others out (guarantees 7 and 8).

A head has a time (`asking_ms`) and a size (`head_bytes_max`). Requests that are sent while one is answered are limited
in number. Bodies are limited by the handlers that read them.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from aiohttp import web

log = logging.getLogger("m4cast.door")

Phase = Literal["asking", "answering", "taking"]
READ_AHEAD_BYTES = 64 << 10
"""The number of bytes of a body that are read before its handler takes them. aiohttp reads up to twice as much."""

SERVER = "m4cast"
REQUESTS_AHEAD_MAX = 16
"""Requests of one connection that wait while one is answered. Clients rarely send any ahead. Guess."""
LINGER_S = 1.0
"""The time for which the rest of a refused body is read and dropped, so that the client gets its answer. Guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    connections_max: int
    """Connections that have sent a request, and as many that have not. Raising it costs a file and some 20 KB each,
    with TLS 60 KB."""
    asking_ms: int
    """The time that a client may take to send the head of a request, from the connection or the last answer on. Higher:
    idle connections stay open for longer."""
    head_bytes_max: int
    """The head of a request: its line and all of its fields."""
    requests_max: int = 0
    """Requests of one connection. 0: any number. With 1, `asking_ms` covers the answer as well."""
    handshake_ms: int = 5_000
    """The time that a TLS handshake may take."""


class HttpConnection(web.RequestHandler):
    """One client's connection, with what `Crowd` needs to know of it."""

    __slots__ = ("_crowd", "_deadline", "_late_at", "_unasked_bytes", "is_upgraded", "phase", "request", "requests")

    def __init__(self, manager: Any, crowd: "Crowd", limits: ConnectionLimits) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.asking_ms / 1000,
            logger=_QUIET,
            access_log=_NO_LOG,
            max_line_size=limits.head_bytes_max,
            max_field_size=limits.head_bytes_max,
            lingering_time=LINGER_S,
            read_bufsize=READ_AHEAD_BYTES,
            auto_decompress=False,
        )
        self._crowd = crowd
        self.phase: Phase = "asking"
        self.request: web.BaseRequest | None = None
        """The request that is being answered."""
        self.requests = 0
        self.is_upgraded = False
        """It speaks WebSocket, as its handler says."""
        self._unasked_bytes = 0
        """The number of bytes that it has sent since the last answer."""
        self._deadline: asyncio.TimerHandle | None = None
        self._late_at: float | None = None
        """The time by which it has to have sent its request, on the loop's clock; None: no limit."""

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.watch()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_watching()
        self._crowd.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.phase == "asking":
            self._unasked_bytes += len(data)
            if self._unasked_bytes > self._crowd.limits.head_bytes_max + self._crowd.body_ahead_bytes:
                self._crowd.refuse(self, "http-oversize", "the head of a request is too long")
                return
        super().data_received(data)
        if len(self._messages) > REQUESTS_AHEAD_MAX:  # aiohttp's own queue, which has no limit
            self._crowd.refuse(self, "http-oversize", f"more than {REQUESTS_AHEAD_MAX} requests ahead of their answers")

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called for every piece of a body that is taken. aiohttp then parses nothing once more, which takes as long as
        parsing a small request, even if reading was never paused."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Count a request that is not HTTP."""
        if exc is not None and status == HTTPStatus.BAD_REQUEST:
            self._crowd.count("http-malformed", "bytes that are not a request")
        answer = super().handle_error(request, status, exc, message)
        answer.headers["Server"] = SERVER
        return answer

    def given_up(self) -> None:
        """Called when the request is abandoned before it was processed."""

    # ---- called by the crowd

    def begin(self, request: web.BaseRequest) -> None:
        self.request = request
        self.requests += 1
        self.phase = "answering"
        self._unasked_bytes = 0
        if self._crowd.limits.requests_max != 1:
            self.unwatch()

    def end(self) -> None:
        self.phase = "asking"
        if self._crowd.limits.requests_max != 1:
            self.watch()

    def watch(self) -> None:
        """Give a request `asking_ms` from now on. A timer that is already running checks again then: most requests need
        no new one."""
        self._late_at = self._loop.time() + self._crowd.limits.asking_ms / 1000
        if self._deadline is None:
            self._deadline = self._loop.call_at(self._late_at, self._look)

    def unwatch(self) -> None:
        """It has any time. The timer is left to find that out."""
        self._late_at = None

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look(self) -> None:
        self._deadline = None
        if self._late_at is None:
            return
        if self._loop.time() < self._late_at:
            self._deadline = self._loop.call_at(self._late_at, self._look)
        else:
            self._late()

    def _late(self) -> None:
        if self.requests and self.phase == "asking" and not self._unasked_bytes:
            self.force_close()  # it rested, which is no offence
        else:
            self._crowd.refuse(self, "http-slow", "a request or an answer that took too long")

    def abort(self) -> None:
        """End it now, without sending what is queued."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()


class Crowd:
    """The connections of one server. `refused` gets reason and detail of those that are turned away."""

    def __init__(
        self, limits: ConnectionLimits, refused: Callable[[str, str], None], *, body_ahead_bytes: int = 0
    ) -> None:
        self.limits = limits
        self.body_ahead_bytes = body_ahead_bytes
        """The number of bytes of a body that may arrive together with its head; 0 where requests have none."""
        self.count = refused
        self._known: dict[HttpConnection, None] = {}  # in the order of their first requests
        self.introduced: Callable[[HttpConnection], object] = lambda connection: None
        """Called with a connection that has sent its first request, or has ended."""

    def begin(self, connection: HttpConnection, request: web.Request) -> bool:
        """A request has arrived. Returns whether it is answered."""
        if connection not in self._known:
            self.introduced(connection)
            if len(self._known) >= self.limits.connections_max and not self._close_one():
                self.count("http-crowd", f"more than {self.limits.connections_max} connections at a time")
                return False
            self._known[connection] = None
        connection.begin(request)
        return True

    def refuse(self, connection: HttpConnection, reason: str, detail: str) -> None:
        self.count(reason, detail)
        connection.abort()

    def lost(self, connection: HttpConnection) -> None:
        self._known.pop(connection, None)
        self.introduced(connection)

    def _close_one(self) -> bool:
        for phase in ("asking", "taking"):
            for connection in self._known:
                if connection.phase == phase and not connection.is_upgraded:
                    del self._known[connection]
                    if phase == "taking":
                        self.count("http-crowd", "the connection that has been taking its answer for longest")
                    connection.abort()
                    return True
        return False


def connection_of(request: web.BaseRequest) -> HttpConnection:
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    return connection


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """aiohttp logs what clients do wrong as errors. Nobody may fill the log from outside: here it is for debugging."""

    def log(self, level: int, msg: object, *args: object, **named: Any) -> None:
        super().log(logging.DEBUG, msg, *args, **named)


_QUIET: Any = _Quiet(log, {})
_NO_LOG: Any = None
