"""Web calls: who makes a request, and how its result or refusal is answered. One middleware for every path.

In this order, before a byte of a body is read: a page of a foreign origin is refused (browsers say which page it is),
then a request without a valid token, in the header `Authorization` and nowhere else. A handler then has a `WebCall`,
whose `run` does work on the threads of the door, and may raise `Refusal`, which becomes JSON `{"code", "detail"}` with
the status of `overlay/refusals.py`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aiohttp import web

from m4cast.overlay.door.access.rights import EVERYTHING, Caller, Rights
from m4cast.overlay.door.access.tokens import Tokens
from m4cast.overlay.door.refusals import Refusal, as_json, internal
from m4cast.overlay.door.services import Services
from m4cast.overlay.door.web.workers import Workers
from m4cast.overlay.refusals import PASSING, REFUSALS

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SCHEME = "bearer "
TOKENS_CLIENT = "(the file of tokens)"
"""The client on whose behalf tokens are read. No token and no address has a name of this form."""
STREAMS = ("tail", "live")
"""Calls that last. They are limited in number; all of a client's may want a thread when one row arrives."""
RETRY_S = 1
"""The delay before repeating a request that was refused for a reason that passes."""
PREFLIGHT_S = 600
CONSOLE_FILES = "/console/"
"""They hold nothing of the channel, and browsers name an origin when a page loads its own modules."""
CORS_HEADERS = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID"
CORS_METHODS = "GET, HEAD, POST"


class NeverRaised(Exception):
    """This transport has no error of its own for a client that has disconnected: its handlers are cancelled."""


@dataclass(frozen=True, slots=True)
class WebCall:
    """One request, its client, and where its work is done."""

    name: str
    """The name under which the call is counted."""
    caller: Caller
    services: Services
    workers: Workers

    async def run(self, work: Callable[[], T]) -> T:
        """Do it on a thread. A refusal is counted there."""
        counted = partial(self.services.answer, self.name, work, NeverRaised)
        return await self.workers.run(self.caller.name, counted, is_limited=self.name not in STREAMS)

    def check(self, look: Callable[[], T]) -> T:
        """Do it here and now: it takes no time. A refusal is counted."""
        return self.services.answer(self.name, look, NeverRaised)

    def ended(self, outcome: str = "ok") -> None:
        self.services.calls.ended(self.name, outcome)


class Gate:
    """Admits requests. Without tokens, clients have shown a certificate of the cluster, or the node is unprotected."""

    def __init__(self, services: Services, tokens: Tokens | None, origins: tuple[str, ...]) -> None:
        self._services = services
        self._tokens = tokens
        self._origins = origins

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        try:
            if origin is not None and origin not in self._origins and not request.path.startswith(CONSOLE_FILES):
                detail = f"pages of {origin[:200]!r} may not use this door: add it to web_origins, or use no browser"
                raise self._counted(Refusal("forbidden", detail))
            if request.method == "OPTIONS" and origin is not None:
                return _allowing(web.Response(status=204), origin, preflight=True)
            answer = await handler(request)
        except Refusal as refusal:
            answer = refused(refusal)
        except asyncio.CancelledError:
            raise
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client has disconnected") from error
            answer = refused(internal(error))
        if origin in self._origins and not answer.prepared:
            _allowing(answer, origin or "")
        return answer

    async def call(self, request: web.Request, name: str, workers: Workers) -> WebCall:
        if self._tokens is not None and self._tokens.is_stale:  # with many filters in it, reading it takes long
            await workers.run(TOKENS_CLIENT, self._tokens.refresh)
        rights = self._rights(request)
        address = request.remote or "?"
        transport = request.transport

        def is_cancelled() -> bool:
            return transport is None or transport.is_closing()

        client = address if self._tokens is None else rights.name
        return WebCall(name, Caller(client, rights, is_cancelled), self._services, workers)

    def _rights(self, request: web.Request) -> Rights:
        if self._tokens is None:
            return EVERYTHING
        shown = request.headers.getall("Authorization", [])
        secret = shown[0] if len(shown) == 1 else ""
        rights = None
        if secret.lower().startswith(SCHEME):
            rights = self._tokens.known_rights_of(secret[len(SCHEME) :])
        if rights is None:
            what = "an unknown token" if secret else "no token"
            detail = f"{what}: send the header `Authorization: Bearer <secret>`"
            raise self._counted(Refusal("unauthenticated", detail))
        return rights

    def _counted(self, refusal: Refusal) -> Refusal:
        with suppress(Refusal):
            self._services.node.count_refusal(refusal)
        return refusal


def refused(refusal: Refusal, more: Mapping[str, object] | None = None) -> web.Response:
    answer = web.json_response({**as_json(refusal), **(more or {})}, status=REFUSALS[refusal.code].http)
    if refusal.code == "unauthenticated":
        answer.headers["WWW-Authenticate"] = "Bearer"
    if refusal.code in PASSING:
        answer.headers["Retry-After"] = str(RETRY_S)
    return answer


def json_of_answer(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def json_answer(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _allowing(answer: web.StreamResponse, origin: str, *, preflight: bool = False) -> web.StreamResponse:
    answer.headers["Access-Control-Allow-Origin"] = origin
    answer.headers["Vary"] = "Origin"
    answer.headers["Access-Control-Expose-Headers"] = "M4cast-Next, M4cast-Rows, Retry-After"
    if preflight:
        answer.headers["Access-Control-Allow-Methods"] = CORS_METHODS
        answer.headers["Access-Control-Allow-Headers"] = CORS_HEADERS
        answer.headers["Access-Control-Max-Age"] = str(PREFLIGHT_S)
    return answer
