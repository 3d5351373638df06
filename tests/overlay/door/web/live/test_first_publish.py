"""The first publish of a topic on a connection goes by a thread; what follows it is gathered, if that is possible, and
in any case published in its order."""

from typing import Any

import pytest

from m4cast.overlay.door.web.live.connection import LiveConnection
from m4cast.overlay.door.web.live.shares import OpenPublish
from tests.overlay.door.web.doors import WebServed
from tests.overlay.door.web.live.test_connection import Talk, run, talking
from tests.overlay.door.web.test_posts import rows_of

COUNT = 40


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of publishes that threads sent at a time."""
    seen: list[int] = []
    was = LiveConnection._send_all

    def noted(self: LiveConnection, taken: list[OpenPublish]) -> Any:
        seen.append(len(taken))
        return was(self, taken)

    monkeypatch.setattr(LiveConnection, "_send_all", noted)
    return seen


async def outcomes(talk: Talk, count: int) -> list[tuple[int, str]]:
    heard: list[tuple[int, str]] = []
    while len(heard) < count:
        said = await talk.hear()
        if said["type"] == "acked":
            heard += [(publish["id"], "acked") for publish in said["publishes"]]
        else:
            heard.append((said["id"], said["code"]))
    return heard


def test_what_follows_the_first_publish_needs_no_thread(pair: WebServed, sent: list[int]) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            for number in range(1, COUNT + 1):
                await talk.say(type="publish", id=number, topic="first", rows=[{"id": number}])
            assert await outcomes(talk, COUNT) == [(number, "acked") for number in range(1, COUNT + 1)]

    run(work)
    assert sent[0] == 1 and sum(sent) < COUNT / 4
    assert [row["id"] for row in rows_of(pair, "first")] == list(range(1, COUNT + 1))


def test_what_cannot_be_gathered_follows_by_the_threads(pair: WebServed, sent: list[int]) -> None:
    """It waits for no other answer than the first, and threads take all that waits."""

    async def work() -> None:
        async with talking(pair) as talk:
            for number in range(1, COUNT + 1):
                await talk.say(type="publish", id=number, topic="first-nested", rows=[{"id": {"a": number}}])
            assert await outcomes(talk, COUNT) == [(number, "acked") for number in range(1, COUNT + 1)]

    run(work)
    assert sent[0] == 1 and sum(sent) == COUNT and len(sent) < COUNT
    assert [row["id"]["a"] for row in rows_of(pair, "first-nested")] == list(range(1, COUNT + 1))


def test_a_first_publish_that_is_refused_holds_up_nothing(pair: WebServed) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            await talk.say(type="publish", id=1, topic="refused-first", rows=[{"_sequence": 1}])
            for number in (2, 3):
                await talk.say(type="publish", id=number, topic="refused-first", rows=[{"id": number}])
            (first, *rest) = await outcomes(talk, 3)
            assert first[0] == 1 and first[1] != "acked" and rest == [(2, "acked"), (3, "acked")]

    run(work)
    assert [row["id"] for row in rows_of(pair, "refused-first")] == [2, 3]
