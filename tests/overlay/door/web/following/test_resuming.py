"""Followers that are cut off at random moments, by events and by WebSocket, while nodes restart: every row once."""

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from m4cast.overlay.door.web.live import messages
from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.door.web.events import EventSource
from tests.overlay.door.web.live.test_connection import Talk, talking
from tests.overlay.net.running import TIMEOUT_S

CUTS = 100
RESTART_EVERY = 25


class Published:
    """Rows of both nodes, numbered by each."""

    def __init__(self, web: WebServed, rows_max: int = 3) -> None:
        self._web = web
        self._rows_max = rows_max
        self.counts = [0, 0]

    def some(self, chance: random.Random) -> None:
        at = chance.randrange(2)
        rows = [{"at": at, "id": self.counts[at] + number} for number in range(chance.randrange(1, self._rows_max + 1))]
        answer = self._web.ask("POST", "/topics/resume", json.dumps(rows), {"Content-Type": "application/json"}, at=at)
        assert answer.status == 200, answer.body
        self.counts[at] += len(rows)

    def check(self, seen: list[dict[str, Any]], how: str) -> None:
        for at in range(2):
            assert [row["id"] for row in seen if row["at"] == at] == list(range(self.counts[at])), how

    @contextmanager
    def more_and_more(self, chance: random.Random) -> Iterator[None]:
        """A thread publishes meanwhile."""
        stopped = threading.Event()

        def publish() -> None:
            while not stopped.is_set():
                self.some(chance)

        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publish)
            try:
                yield
            finally:
                stopped.set()
        publishing.result()


class LiveReader:
    """Resumes as docs/HTTP.md says: the position of `subscribed`, with each `next` in the place of its origin."""

    def __init__(self, web: WebServed) -> None:
        self._web = web
        self.position: dict[str, int] | None = None
        self.seen: list[dict[str, Any]] = []
        self.frames = 0

    async def some(self, at: int, frames: int, *, early: bool) -> None:
        """A connection that is cut off after so many frames, at the latest."""
        async with talking(self._web, at) as talk:
            await self._begin(talk, "json", early=early)
            for _ in range(frames):
                self._take(await talk.hear())
            talk.socket._response.connection.transport.abort()  # type: ignore[union-attr]

    async def follow(self, socket: aiohttp.ClientWebSocketResponse, form: str, *, early: bool) -> None:
        """Take frames until the connection ends: then `EOFError`."""
        talk = Talk(socket)
        await self._begin(talk, form, early=early)
        while True:
            self._take(await talk.hear())

    async def rest(self, rows: int) -> None:
        """A connection that is not cut, until it has seen so many rows."""
        async with talking(self._web) as talk:
            await self._begin(talk, "json", early=False)
            while len(self.seen) < rows:
                self._take(await talk.hear())

    async def _begin(self, talk: Talk, form: str, *, early: bool) -> None:
        start = "earliest" if self.position is None else self.text
        head = {"id": "s", "topic": "resume", "credit": 1_000, "early": early, "format": form, "from": start}
        await talk.say(type="subscribe", **head)
        said = await talk.hear()
        parts = [] if said["position"] == "-" else said["position"].split(",")
        self.position = {origin: int(until) for origin, until in (part.split(":") for part in parts)}

    def _take(self, said: dict[str, Any]) -> None:
        assert self.position is not None
        self.seen += said["rows"]
        self.position[said["origin"]] = said["next"]
        self.frames += 1

    @property
    def text(self) -> str:
        assert self.position is not None
        return ",".join(f"{origin}:{until}" for origin, until in self.position.items()) or "-"


class Scissors:
    """A place between readers and doors. It ends each connection after some bytes from the door: mostly in the middle
    of a frame."""

    def __init__(self) -> None:
        self.address = ""
        self.to = ""
        self.left = 0
        self.cut = 0
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        try:
            async with server:
                yield
        finally:
            for writer in self._writers:
                writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.to.rpartition(":")
        from_door, to_door = await asyncio.open_connection(host, int(port))
        self._writers += [writer, to_door]

        async def ask() -> None:
            while piece := await reader.read(65_536):
                to_door.write(piece)

        asking = asyncio.get_running_loop().create_task(ask())
        with suppress(ConnectionError):
            while piece := await from_door.read(max(self.left, 1)):
                writer.write(piece[: self.left])
                self.left -= len(piece)
                if self.left <= 0:
                    self.cut += 1
                    await writer.drain()
                    break
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        writer.close()  # what it has written arrives
        to_door.transport.abort()


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_a_websocket_that_is_cut_in_the_middle_of_frames_gets_every_row_once(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While rows are published at both nodes: what is found at a time takes several frames."""
    monkeypatch.setattr(messages, "JSON_ROWS", 50)
    chance = random.Random(form)

    async def one(scissors: Scissors, live: LiveReader) -> None:
        scissors.to, scissors.left = chance.choice(web.doors).address, int(300 * 100 ** chance.random())
        with suppress(aiohttp.ClientError, ConnectionError, EOFError):
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"http://{scissors.address}/live") as socket,
            ):
                await live.follow(socket, form, early=chance.randrange(2) == 0)

    async def work(live: LiveReader) -> None:
        scissors = Scissors()
        async with scissors.open():
            for _ in range(CUTS):
                await limited(one(scissors, live))
            assert scissors.cut == CUTS
        assert live.frames > CUTS // 2

    with web_serving(tmp_path, 2) as web:
        published = Published(web, rows_max=60)
        published.some(chance)
        live = LiveReader(web)
        with published.more_and_more(random.Random(1)):
            asyncio.run(work(live))
        asyncio.run(limited(live.rest(sum(published.counts))))
        published.check(live.seen, form)


def test_followers_that_are_cut_while_nodes_restart_get_every_row_once_and_in_order(tmp_path: Path) -> None:
    chance = random.Random(22)
    with web_serving(tmp_path, 2) as web:
        published = Published(web)
        published.some(chance)
        tail = EventSource(web.address, "/topics/resume/tail?from=earliest")
        by_events: list[dict[str, Any]] = []
        live = LiveReader(web)
        for cut in range(1, CUTS + 1):
            published.some(chance)
            tail.address = chance.choice(web.doors).address
            wanted = sum(published.counts) - len(by_events)
            by_events += rows_of(islice(tail.events(cut_after=chance.randrange(1, 1_500)), wanted))
            if sum(published.counts) > len(live.seen):
                asyncio.run(limited(live.some(chance.randrange(2), chance.randrange(2), early=cut % 2 == 0)))
            if cut % RESTART_EVERY == 0:
                web.served.run(web.restart_node(chance.randrange(2), tmp_path))
        while len(by_events) < sum(published.counts):
            by_events += rows_of(islice(tail.events(), sum(published.counts) - len(by_events)))
        while len(live.seen) < sum(published.counts):
            asyncio.run(limited(live.some(chance.randrange(2), 1, early=True)))
        published.check(by_events, "events")
        published.check(live.seen, "live")


def rows_of(events: Iterator[Any]) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in events]


async def limited(work: Any) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await work
