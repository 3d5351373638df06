"""Web doors for the nodes of a test, and clients that speak plain HTTP to them."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m4cast.overlay.door.access.tokens import Tokens
from m4cast.overlay.door.flight import FlightDoor
from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.services import Services
from m4cast.overlay.door.web.door import WebDoor
from m4cast.overlay.door.web.limits import WebLimits
from tests.overlay.door.served import Served, serving
from tests.overlay.net.running import TIMEOUT_S, settled, start_node


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class WebServed:
    """`served`, with a web door for each node."""

    def __init__(self, served: Served, limits: WebLimits | None, tokens: str, origins: tuple[str, ...]) -> None:
        self.served = served
        self.doors: list[WebDoor] = []
        self._settings = (Tokens(tokens) if tokens else None, origins, limits)

    async def open(self) -> None:
        for node, flight in zip(self.served.nodes, self.served.doors, strict=True):
            self.doors.append(WebDoor(node.driver, flight.services, *self._settings))
            await self.doors[-1].open("127.0.0.1:0")

    async def restart(self, at: int) -> None:
        """Reset every connection of a door, as a crash does, and serve at the same address again."""
        node, flight, address = self.served.nodes[at], self.served.doors[at], self.doors[at].address
        await self.doors[at].cut()
        self.doors[at] = WebDoor(node.driver, flight.services, *self._settings)
        await self.doors[at].open(address)

    async def restart_node(self, at: int, folder: Path) -> None:
        """Stop a node with its doors, and start it again over its store, at the same addresses."""
        served = self.served
        node, web = served.nodes[at], self.doors[at].address
        portals = tuple(other.address for other in served.nodes if other is not node)
        listen = node.address
        await self.doors[at].stop()
        await served.doors[at].stop()
        await node.stop()
        served.nodes[at] = node = await start_node(folder, node.name, portals, listen)
        await settled(served.nodes)
        served.doors[at] = FlightDoor(node.driver, Services(node.driver, node.store, DoorLimits()))
        self.doors[at] = WebDoor(node.driver, served.doors[at].services, *self._settings)
        await self.doors[at].open(web)

    async def stop(self) -> None:
        while self.doors:
            await self.doors.pop().stop()

    async def cut(self) -> None:
        """End the web doors alone."""
        while self.doors:
            await self.doors.pop().cut()

    @property
    def address(self) -> str:
        return self.doors[0].address

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        at: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        host, _, port = self.doors[at].address.rpartition(":")
        if tls is None:
            connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
        else:
            connection = http.client.HTTPSConnection(host, int(port), timeout=TIMEOUT_S, context=tls)
        try:
            connection.request(method, path, body, dict(headers or {}))
            reply = connection.getresponse()
            return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, content_type: str = "application/json", **headers: str) -> Answer:
        written = body if isinstance(body, bytes | str) else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, written, {"Content-Type": content_type, **named})

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@contextmanager
def web_serving(
    folder: Path,
    count: int,
    limits: WebLimits | None = None,
    *,
    tokens: str = "",
    origins: tuple[str, ...] = (),
    door_limits: DoorLimits | None = None,
    **more: Any,
) -> Iterator[WebServed]:
    with serving(folder, count, door_limits, tokens=tokens, **more) as served:
        web = WebServed(served, limits, tokens, origins)
        try:
            served.run(web.open())
            yield web
        finally:
            served.run(web.stop())
