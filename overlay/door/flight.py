"""The Flight server: turns the calls of Arrow Flight into requests, and their results and refusals into answers.

    door = FlightDoor(driver, services, "127.0.0.1:7401")     # on the driver's loop, once it has started
    ...
    await door.stop()                                         # before the store is closed

It is a transport and nothing else: `services` performs the calls, `actions` lists the actions.

The door uses the node's certificates, if it has any. With tokens, every call shows one, and its rights are checked
(`tokens`); without, TLS clients show a certificate of the cluster and may do everything.
"""

import asyncio
import json
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.door import requests
from m4cast.overlay.door.access.rights import EVERYTHING, Caller, Rights
from m4cast.overlay.door.access.tokens import Tokens
from m4cast.overlay.door.actions import ACTIONS, UNKNOWN, act
from m4cast.overlay.door.fields import frontier_json
from m4cast.overlay.door.refusals import Refusal, as_json
from m4cast.overlay.door.services import Services, TopicContent
from m4cast.overlay.errors import ConfigError
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.refusals import REFUSALS, FlightError

log = logging.getLogger("m4cast.door")
T = TypeVar("T")

STOP_S = 2.0
"""The time for which a closing door waits for its calls to end; guess."""
TOKEN = "token"
"""The name of the middleware that checks a call's token."""
SCHEME = "bearer "


class FlightDoor(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Serves as soon as it is made. `address` is where."""

    def __init__(
        self, driver: Driver, services: Services, listen: str = "127.0.0.1:0", tokens: Tokens | None = None
    ) -> None:
        self.services = services
        host, _, _ = listen.rpartition(":")
        protection: dict[str, Any] = _tls_of(driver, verify_clients=tokens is None) if driver.tls else {}
        self._has_tokens = tokens is not None
        if tokens is not None:
            protection["middleware"] = {TOKEN: TokenCheck(tokens, self.services.node.count_refusal)}
        super().__init__(f"{'grpc+tls' if driver.tls else 'grpc'}://{listen}", **protection)
        self.address = f"{host}:{self.port}"
        log.info("clients are answered at %s", self.address)

    async def stop(self) -> None:
        """Take no more calls and end those in progress. Flight cannot end a call that waits for its client's next
        batch: after `STOP_S` it is left to end with its client."""
        self.services.close()
        await self.services.ended()
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def shut_down() -> None:
            self.shutdown()
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any longer
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=shut_down, name="door-shutdown", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), STOP_S)

    # ---- the calls of Flight

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        caller = self._caller(context)

        def put() -> None:
            self.services.put(requests.parse_put(*_parts(descriptor)), reader, writer, caller)

        self._answer("put", put)
        self.services.calls.ended("put", "ok")

    def do_get(self, context: Any, ticket: Any) -> Any:
        caller = self._caller(context)
        open_calls = self.services.open_calls

        def read() -> tuple[pa.Schema, Iterator[Any], Any]:
            open_calls.begin(caller.name)
            try:
                get = self.services.parsed(partial(requests.parse_get, ticket.ticket), caller)
                compression = get.compression if isinstance(get, requests.Get) else None
                return *self.services.read(get, caller), pa.ipc.IpcWriteOptions(compression=compression)
            except BaseException:
                open_calls.end(caller.name)
                raise

        schema, pieces, options = self._answer("get", read)
        answered = self._pieces(pieces)
        # The call is over when nobody holds its rows any more, even if none was ever taken.
        weakref.finalize(answered, open_calls.end, caller.name)
        return flight.GeneratorStream(schema, answered, options)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        rights = self._rights(context)
        for topic in self._answer("list", lambda: self.services.readable(requests.parse_criteria(criteria), rights)):
            content = self._answer("list", lambda topic=topic: self.services.content(topic, rights))  # type: ignore[misc]
            yield _flight_info(topic, content)
        self.services.calls.ended("list", "ok")

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        info = self._answer("info", lambda: self._described(context, descriptor))
        self.services.calls.ended("info", "ok")
        return info

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """The columns that GetFlightInfo returns."""
        try:
            info = self._answer("schema", lambda: self._described(context, descriptor))
        except flight.FlightError as error:
            raise SchemaError(str(error)) from None
        self.services.calls.ended("schema", "ok")
        return flight.SchemaResult(info.schema)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        def refuse() -> None:
            detail = "the door does not support DoExchange: publish with DoPut, read with DoGet"
            raise Refusal("not-implemented", detail)

        self._answer("exchange", refuse)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [(action.name, action.about) for action in ACTIONS.values()]

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        caller = self._caller(context)
        body = action.body.to_pybytes() if action.body else b""
        call = action.type if action.type in ACTIONS else UNKNOWN
        answer = self._answer(call, lambda: act(self.services, action.type, body, caller))
        self.services.calls.ended(call, "ok")
        yield flight.Result(json.dumps(answer).encode())

    # ---- what they share

    def _described(self, context: Any, descriptor: Any) -> Any:
        topic = requests.parse_flight(*_parts(descriptor))
        return _flight_info(topic, self.services.content(topic, self._rights(context)))

    def _caller(self, context: Any) -> Caller:
        """Quotas count clients by the name of their token, or else by the address they call from."""
        rights = self._rights(context)
        address: str = context.peer()
        return Caller(rights.name if self._has_tokens else address.rpartition(":")[0], rights, context.is_cancelled)

    def _rights(self, context: Any) -> Rights:
        if not self._has_tokens:
            return EVERYTHING
        rights: Rights = context.get_middleware(TOKEN).rights
        return rights

    def _pieces(self, pieces: Iterator[Any]) -> Iterator[Any]:
        """The same, with errors as Flight sends them."""
        while True:
            try:
                piece = self._answer("get", lambda: next(pieces))
            except StopIteration:
                self.services.calls.ended("get", "ok")
                return
            try:
                yield piece
            except GeneratorExit:
                self.services.calls.ended("get", "cancelled")
                raise

    def _answer(self, call: str, function: Callable[[], T]) -> T:
        try:
            return self.services.answer(call, function, flight.FlightError)
        except Refusal as refusal:
            raise as_flight_error(refusal) from None


def _flight_info(topic: str, content: TopicContent) -> Any:
    ticket = {"topic": topic, "start": frontier_json(content.start), "end": frontier_json(content.end)}
    endpoint = flight.FlightEndpoint(json.dumps(ticket).encode(), [])
    return flight.FlightInfo(content.schema, flight.FlightDescriptor.for_path(topic), [endpoint], content.rows, -1)


def _tls_of(driver: Driver, *, verify_clients: bool) -> dict[str, Any]:
    """The certificates in the form that Flight takes. (It reads them once: a door uses new ones when its node
    restarts.)"""
    assert driver.tls is not None
    try:
        ca, cert, key = (path.read_bytes() for path in (driver.tls.ca, driver.tls.cert, driver.tls.key))
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from error
    verifying = {"verify_client": True, "root_certificates": ca} if verify_clients else {}
    return {"tls_certificates": [(cert, key)], **verifying}


def _parts(descriptor: Any) -> tuple[list[bytes] | None, bytes | None]:
    return descriptor.path, descriptor.command


# ---- tokens


class TokenHolder(flight.ServerMiddleware):  # type: ignore[misc]
    """Accompanies a call that showed a valid token."""

    def __init__(self, rights: Rights) -> None:
        self.rights = rights


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Ends calls without a valid token before any of their content is read."""

    def __init__(self, tokens: Tokens, refused: Callable[[Refusal], None]) -> None:
        self._tokens = tokens
        self._refused = refused

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> TokenHolder:
        shown = headers.get("authorization") or [""]
        secret = shown[0] if len(shown) == 1 and isinstance(shown[0], str) else ""
        rights = None
        if secret.lower().startswith(SCHEME):
            rights = self._tokens.rights_of(secret[len(SCHEME) :])
        if rights is None:
            what = "an unknown token" if secret else "no token"
            refusal = Refusal("unauthenticated", f"{what}: send the header `authorization: Bearer <secret>`")
            self._refused(refusal)
            raise as_flight_error(refusal)
        return TokenHolder(rights)


# ---- refusals

FLIGHT_ERRORS: dict[FlightError, type[Exception]] = {
    "server": flight.FlightServerError,
    "unavailable": flight.FlightUnavailableError,
    "timed out": flight.FlightTimedOutError,
    "cancelled": flight.FlightCancelledError,
    "unauthenticated": flight.FlightUnauthenticatedError,
    "unauthorized": flight.FlightUnauthorizedError,
    "internal": flight.FlightInternalError,
}


class SchemaError(OSError):
    """The error that GetSchema raises: it is the only call whose Flight errors pyarrow does not turn into answers. For
    it, pyarrow sends the text of any exception, followed by its traceback if that can be formatted. This one's cannot:
    the client gets the text."""

    @property
    def __cause__(self) -> BaseException | None:
        raise AttributeError("not to be formatted")

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        """`raise ... from` has nothing to keep here."""


def as_flight_error(refusal: Refusal) -> Exception:
    """Its text is `code: detail`, its extra info the same as JSON, and its type what the table says."""
    kind = FLIGHT_ERRORS[REFUSALS[refusal.code].flight or "internal"]
    return kind(f"{refusal.code}: {refusal.detail}", json.dumps(as_json(refusal)).encode())
