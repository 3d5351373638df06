"""Followers that are cut off at random moments, by events and by WebSocket, while nodes restart: every row once."""

import asyncio
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.door.web.events import EventSource
from tests.overlay.door.web.live.test_connection import talking
from tests.overlay.net.running import TIMEOUT_S

CUTS = 100
RESTART_EVERY = 25


class Published:
    """Rows of both nodes, numbered by each."""

    def __init__(self, web: WebServed) -> None:
        self._web = web
        self.counts = [0, 0]

    def some(self, chance: random.Random) -> None:
        at = chance.randrange(2)
        rows = [{"at": at, "id": self.counts[at] + number} for number in range(chance.randrange(1, 4))]
        answer = self._web.ask("POST", "/topics/resume", json.dumps(rows), {"Content-Type": "application/json"}, at=at)
        assert answer.status == 200, answer.body
        self.counts[at] += len(rows)

    def check(self, seen: list[dict[str, Any]], how: str) -> None:
        for at in range(2):
            assert [row["id"] for row in seen if row["at"] == at] == list(range(self.counts[at])), how


class LiveReader:
    """Resumes as docs/HTTP.md says: the position of `subscribed`, with each `next` in the place of its origin."""

    def __init__(self, web: WebServed) -> None:
        self._web = web
        self.position: dict[str, int] | None = None
        self.seen: list[dict[str, Any]] = []

    async def some(self, at: int, frames: int, *, early: bool) -> None:
        """A connection that is cut off after so many frames, at the latest."""
        start = "earliest" if self.position is None else self.text
        async with talking(self._web, at) as talk:
            await talk.say(type="subscribe", id="s", topic="resume", credit=1_000, early=early, **{"from": start})
            said = await talk.hear()
            parts = [] if said["position"] == "-" else said["position"].split(",")
            self.position = {origin: int(until) for origin, until in (part.split(":") for part in parts)}
            for _ in range(frames):
                said = await talk.hear()
                self.seen += said["rows"]
                self.position[said["origin"]] = said["next"]
            talk.socket._response.connection.transport.abort()  # type: ignore[union-attr]

    @property
    def text(self) -> str:
        assert self.position is not None
        return ",".join(f"{origin}:{until}" for origin, until in self.position.items()) or "-"


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
