"""The web door: serves clients by HTTP and WebSocket, on the node's own loop.

    door = WebDoor(driver, services, tokens)     # on the driver's loop, once it has started
    await door.open("127.0.0.1:7700")
    ...
    await door.stop()                            # before the store is closed

It is a transport and nothing else, as `flight` is: `services` performs the calls, `actions` lists the actions, so
rights, quotas, refusals and metrics are the same at both. It uses the node's certificates, if it has any. With tokens,
every request shows one; without, TLS clients show a certificate of the cluster and may do everything.

Handlers wait on the loop and work on threads (`workers`). What they do on the loop is bounded: the head of a request,
up to 32 KiB of posted JSON (`bodies`), some hundred rows from memory for all who follow a topic (`fresh`).
"""

import json
import logging
from collections.abc import Callable
from functools import partial

from aiohttp import web

from m4cast.overlay.door.access.tokens import Tokens
from m4cast.overlay.door.actions import ACTIONS, UNKNOWN, act
from m4cast.overlay.door.console.files import PAGE, file_answer
from m4cast.overlay.door.http.connections import ConnectionLimits
from m4cast.overlay.door.http.metrics import NodeCollector
from m4cast.overlay.door.http.server import HttpServer
from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.quotas import CallQuota
from m4cast.overlay.door.services import Services
from m4cast.overlay.door.web.bodies import BodyQuota
from m4cast.overlay.door.web.calls import Gate, WebCall, json_answer, json_of_answer
from m4cast.overlay.door.web.following.follower import Bell
from m4cast.overlay.door.web.following.tails import tail
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.live.connection import live
from m4cast.overlay.door.web.openapi import description
from m4cast.overlay.door.web.posts import post
from m4cast.overlay.door.web.query import Query, topic_of
from m4cast.overlay.door.web.reads import rows
from m4cast.overlay.door.web.routes import ROUTES
from m4cast.overlay.door.web.workers import Workers
from m4cast.overlay.errors import M4castError
from m4cast.overlay.net.driver import Driver

log = logging.getLogger("m4cast.door")

BODY_AHEAD_BYTES = 1 << 20
"""The number of bytes of a body that may arrive before its handler begins: the loop reads 256 KiB at once, and aiohttp
then pauses."""
ACTION_BYTES_MAX = 4 << 20
METRICS_COVER_ALL = "metrics count all rows"
ACTION_THREADS = 8
"""Actions may wait, for a commit or a drain, so they have threads of their own."""


class WebDoor:
    """`address` is where it serves, once it is open."""

    def __init__(
        self,
        driver: Driver,
        services: Services,
        tokens: Tokens | None = None,
        origins: tuple[str, ...] = (),
        limits: WebLimits | None = None,
        timeout_s: float = DoorLimits().timeout_ms / 1000,
        *,
        collector: NodeCollector | None = None,
    ) -> None:
        self.limits = limits = limits or WebLimits()
        self.services = services
        self._timeout_s = timeout_s
        self._gate = Gate(services, tokens, origins)
        self._workers = Workers(limits.threads, limits.waiting_max, "web")
        self._actors = Workers(ACTION_THREADS, limits.waiting_max, "web-action")
        self._bodies = BodyQuota(limits)
        self._streams = CallQuota(limits.streams_max)
        self._bell = Bell(services.frontiers, lambda: driver.node.me.node_id)
        driver.store_side.appended = self._bell.fresh.appended
        services.store.before_commits(self._bell.fresh.committing)
        driver.watchers.append(self._bell.watch)
        services.topics.selective.covered = self._bell.ring
        self._description = json_of_answer(description())
        self._collector = collector or NodeCollector(driver, services.store, services.node, services.calls, timeout_s)
        application = web.Application(middlewares=[self._gate.middleware])
        for route in ROUTES.values():
            path = route.path.replace("{file}", "{file:.+}")  # those of the console have folders
            application.router.add_route(route.method, path, getattr(self, f"_{route.handler}"))
        tls = driver.tls
        self._server = HttpServer(
            application,
            ConnectionLimits(
                connections_max=limits.connections_max,
                asking_ms=limits.asking_ms,
                handshake_ms=limits.handshake_ms,
                head_bytes_max=limits.head_bytes_max,
            ),
            driver.refusals.add,
            None if tls is None else partial(tls.web, verifies_clients=tokens is None),
            body_ahead_bytes=BODY_AHEAD_BYTES,
        )
        self._scheme = "http" if tls is None else "https"

    @property
    def address(self) -> str:
        return self._server.address

    async def open(self, listen: str) -> None:
        try:
            await self._server.open(listen)
        except M4castError as error:
            raise M4castError(f"{error} for `web`") from None
        log.info("clients are answered at %s://%s/", self._scheme, self.address)

    async def stop(self) -> None:
        """Take no more requests, and end those in progress, of all transports of these services."""
        self.services.close()
        await self.services.ended()
        await self.cut()

    async def cut(self) -> None:
        """End this transport alone."""
        self._bell.close()
        await self._server.stop()
        for workers in (self._workers, self._actors):
            workers.close()

    # ---- the handlers of `routes`

    async def _post(self, request: web.Request) -> web.StreamResponse:
        call = await self._gate.call(request, "post", self._workers)
        return await post(request, call, self._bodies, self._timeout_s)

    async def _rows(self, request: web.Request) -> web.StreamResponse:
        return await rows(request, await self._gate.call(request, "rows", self._workers), self.limits)

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        call = await self._gate.call(request, "tail", self._workers)
        return await tail(request, call, self._bell, self._streams, self.limits)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        call = await self._gate.call(request, "live", self._workers)
        return await live(request, call, self._bell, self._streams, self._bodies, self.limits)

    async def _topics(self, request: web.Request) -> web.StreamResponse:
        return await self._act(request, "topics", {})

    async def _topic(self, request: web.Request) -> web.StreamResponse:
        return await self._act(request, "topic", {"topic": topic_of(request)})

    async def _frontier(self, request: web.Request) -> web.StreamResponse:
        query = Query(request, "frontier")
        body: dict[str, object] = {"topic": topic_of(request)}
        asked = {"at_ms": query.whole("at_ms", 0, 2**62), **{name: query.text(name) for name in ("where", "language")}}
        body |= {name: found for name, found in asked.items() if found is not None}
        return await self._act(request, "frontier", body)

    async def _explain(self, request: web.Request) -> web.StreamResponse:
        query = Query(request, "explain")
        asked = {"where": query.text("where"), "language": query.text("language")}
        return await self._act(request, "explain", {"topic": topic_of(request), **asked})

    async def _topology(self, request: web.Request) -> web.StreamResponse:
        return await self._act(request, "topology", {"root": Query(request, "topology").text("root")})

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return await self._act(request, "status", {})

    async def _subscriptions(self, request: web.Request) -> web.StreamResponse:
        return await self._act(request, "subscriptions", {})

    async def _readers(self, request: web.Request) -> web.StreamResponse:
        return await self._act(request, "readers", {})

    async def _clients(self, request: web.Request) -> web.StreamResponse:
        after = Query(request, "clients").text("after") or ""
        return await self._act(request, "clients", {"after": after, "waiting": True})

    async def _units(self, request: web.Request) -> web.StreamResponse:
        return await self._act(request, "units", {})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        Query(request, "metrics")
        call = await self._gate.call(request, "metrics", self._actors)
        call.check(lambda: call.caller.rights.require_all("read"))
        call.check(lambda: call.caller.rights.require_no_filter(METRICS_COVER_ALL))
        return await self._performed(call, self._collector.as_json)

    async def _action(self, request: web.Request) -> web.StreamResponse:
        Query(request, "action")
        name = request.match_info["action"]
        call = await self._gate.call(request, name if name in ACTIONS else UNKNOWN, self._actors)
        async with self._bodies.received(request, call, ACTION_BYTES_MAX) as pieces:
            return await self._performed(call, lambda: act(self.services, name, b"".join(pieces), call.caller))

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        Query(request, "openapi")
        (await self._gate.call(request, "openapi", self._actors)).ended()
        return json_answer(self._description)

    async def _console(self, request: web.Request) -> web.StreamResponse:
        """It holds nothing of the channel, so everybody may have it; what it shows, it asks for with a token."""
        Query(request, "console")
        return file_answer(request, PAGE)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        Query(request, "file")
        return file_answer(request, request.match_info["file"])

    async def _act(self, request: web.Request, action: str, body: dict[str, object]) -> web.StreamResponse:
        """An action as a resource."""
        Query(request, action)
        call = await self._gate.call(request, action, self._actors)
        written = json.dumps(body).encode()
        return await self._performed(call, lambda: act(self.services, action, written, call.caller))

    async def _performed(self, call: WebCall, work: Callable[[], object]) -> web.StreamResponse:
        """The result of some work, which becomes JSON on the same thread: lists of nodes, streams or deliveries can be
        megabytes."""
        body = await call.run(lambda: json_of_answer(work()))
        call.ended()
        return json_answer(body)
