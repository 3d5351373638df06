"""The HTTP server of both doors: aiohttp's application, behind a listener and a crowd with limits.

    server = HttpServer(application, limits, refused)
    await server.open("127.0.0.1:7600")
    ...
    await server.stop()

aiohttp is the library: its parser is compiled, and it serves HTTP/1.1, WebSocket and TLS on any asyncio loop. What it
lacks, limits on connections and on the time of a request, is in `connections`.
"""

import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from m4cast.overlay.door.http.connections import SERVER, ConnectionLimits, Crowd, HttpConnection, connection_of
from m4cast.overlay.errors import M4castError
from m4cast.overlay.net.listener import Listener

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STOP_S = 1.0
"""The time that requests in progress may take when the server stops. Guess."""


class HttpServer:
    """Made and used on one loop. `context`: TLS of each new connection; None for plain HTTP."""

    def __init__(
        self,
        application: web.Application,
        limits: ConnectionLimits,
        refused: Callable[[str, str], None],
        context: Callable[[], ssl.SSLContext] | None = None,
        *,
        body_ahead_bytes: int = 0,
    ) -> None:
        self.address = ""
        self._crowd = Crowd(limits, refused, body_ahead_bytes=body_ahead_bytes)
        application.middlewares.insert(0, self._admit)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=STOP_S)
        self._limits = limits
        self._listener = Listener(
            self._accept,
            HttpConnection.abort,
            lambda reason, detail: refused(f"http-{reason}", detail),
            context,
            limits.handshake_ms / 1000,
            strangers_max=limits.connections_max,
        )
        self._crowd.introduced = self._listener.known

    async def open(self, listen: str) -> None:
        """Serve at `host:port`; with port 0 at any free one. `address` says where."""
        await self._runner.setup()
        host, _, port = listen.rpartition(":")
        try:
            bound = await self._listener.open_first(host.strip("[]"), [int(port)])
        except OSError as error:
            await self._runner.cleanup()
            detail = error.strerror or error
            raise M4castError(f"cannot serve HTTP at {listen}: {detail}; choose another address") from error
        self.address = f"{host}:{bound}"

    async def stop(self) -> None:
        """Close all connections and free the port."""
        await self._listener.close()
        await self._runner.cleanup()

    def _accept(self) -> HttpConnection:
        return HttpConnection(self._runner.server, self._crowd, self._limits)

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = connection_of(request)
        if not self._crowd.begin(connection, request):
            answer = web.Response(status=503, text="this node has too many connections: repeat the request later\n")
            answer.force_close()
            return answer
        try:
            answered = await handler(request)
        except web.HTTPException as error:  # aiohttp's own: no such path, no such method
            allowed = {name: value for name, value in error.headers.items() if name == "Allow"}
            answered = web.Response(status=error.status, text=f"{error.status} {error.reason}\n", headers=allowed)
        if self._limits.requests_max == 1:
            answered.force_close()
        answered.headers["Server"] = SERVER
        connection.phase = "taking"
        await answered.prepare(request)
        await answered.write_eof()
        connection.end()
        return answered
