"""The most that one step of the node's loop does, whatever clients send. Work is counted, not timed, since times depend
on what else the machine does."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from m4cast.overlay.door.publish import gathering
from m4cast.overlay.door.publish.gathering import Gatherer, PlainColumns
from m4cast.overlay.door.web import posts
from m4cast.overlay.door.web.bodies import INLINE_BYTES
from m4cast.overlay.door.web.following import fresh, tails
from m4cast.overlay.door.web.following.follower import EVENT_STREAMS_MAX
from m4cast.overlay.door.web.live import connection, messages
from m4cast.overlay.door.web.live.shares import FRAME_ROWS, ROW_BYTES, SHARE
from tests.overlay.door.publish.test_gathering import opened
from tests.overlay.door.web.doors import WebServed
from tests.overlay.door.web.events import EventSource
from tests.overlay.door.web.live.test_connection import Talk, run, talking
from tests.overlay.door.web.test_loop import NODES

AT_MOST = {
    "bytes": SHARE * ROW_BYTES + INLINE_BYTES,
    "parsed": SHARE + INLINE_BYTES // 8,
    "frames": SHARE // FRAME_ROWS,
    "fitted": gathering.VALUES_MAX,
    "encoded": 2 * gathering.VALUES_MAX,
    "told": gathering.PUBLISHES_MAX,
    "streams": EVENT_STREAMS_MAX,
    "written": fresh.ROWS_MAX * fresh.ROW_VALUES,
}


class Steps:
    """The work that was done on the nodes' loop: the most in one step, of each kind."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self._step: Counter[str] = Counter()

    def begin(self) -> None:
        self._step.clear()

    def add(self, kind: str, count: int) -> None:
        if threading.current_thread().name == NODES:
            self._step[kind] += count
            self.most[kind] = max(self.most[kind], self._step[kind])

    def check(self, *did: str) -> None:
        """All work is within its limit, and there was some of these kinds."""
        for kind, count in self.most.items():
            assert count <= AT_MOST[kind], f"{kind}: {count} in one step"
        assert set(did) <= set(self.most), self.most


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    counted = Steps()
    ran = asyncio.Handle._run

    def step(self: asyncio.Handle) -> Any:
        if threading.current_thread().name == NODES:
            counted.begin()
        return ran(self)

    def watch(owner: Any, name: str, work: Callable[..., dict[str, int]]) -> None:
        was = getattr(owner, name)

        def noted(*given: Any, **named: Any) -> Any:
            for kind, count in work(*given).items():
                counted.add(kind, count)
            return was(*given, **named)

        monkeypatch.setattr(owner, name, noted)

    monkeypatch.setattr(asyncio.Handle, "_run", step)
    watch(connection, "message_of", lambda frame: {"bytes": len(frame), "parsed": frame.count("{"), "frames": 1})
    watch(posts, "plain_rows", lambda body, _: {"bytes": len(body)})
    watch(posts, "rows_of", lambda body, *_: {"bytes": len(body)})
    watch(PlainColumns, "fit", lambda self, rows: {"fitted": len(rows) * len(self._types)})
    watch(PlainColumns, "rows", lambda _, taken: {"encoded": sum(len(c) for each in taken for c in each)})
    watch(Gatherer, "_tell", lambda _, taken, __: {"told": len(taken)})
    watch(fresh, "dicts_of", lambda rows: {"written": rows.num_rows * (rows.num_columns + 4)})
    watch(messages, "_arrow_frames", lambda _, few: {"written": sum(each.rows.count * 5 for each in few)})
    watch(tails, "position_around", lambda at, _: {"streams": len(at)})
    return counted


ROWS = [{"id": 1}] * 4_000


def test_a_body_of_many_rows(pair: WebServed, steps: Steps) -> None:
    opened(pair, "steps-body")
    for rows in (ROWS[: INLINE_BYTES // 9], ROWS):
        body = json.dumps(rows, separators=(",", ":")).encode()
        assert (len(body) <= INLINE_BYTES) == (rows is not ROWS)
        assert pair.post("/topics/steps-body", body).status == 200
    steps.check("bytes", "fitted", "encoded")


@contextmanager
def stalled(web: WebServed) -> Iterator[None]:
    """The loop does nothing meanwhile: what clients send arrives together."""
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(30)

    web.served.loop.call_soon_threadsafe(wait)
    assert begun.wait(30)
    try:
        yield
    finally:
        go_on.set()


async def answered(talk: Talk, last: int) -> None:
    while (await talk.hear())["id"] != last:
        pass


@pytest.mark.parametrize("rows", [1, 900], ids=["single", "large"])
def test_frames_that_arrive_together(pair: WebServed, steps: Steps, rows: int) -> None:
    topic = f"steps-together-{rows}"
    opened(pair, topic)
    count = max(1_000 // rows, 20)

    async def work() -> None:
        async with talking(pair) as talk:
            with stalled(pair):
                for number in range(1, count + 1):
                    await talk.say(type="publish", id=number, topic=topic, rows=ROWS[:1] * rows)
            await answered(talk, count)

    run(work)
    steps.check("frames", "fitted", "encoded", "told")


def test_a_frame_that_a_thread_has_parsed(pair: WebServed, steps: Steps) -> None:
    opened(pair, "steps-parsed")

    async def work() -> None:
        async with talking(pair) as talk:
            await talk.say(type="publish", id=1, topic="steps-parsed", rows=ROWS[:1] * 50_000)
            await answered(talk, 1)

    run(work)
    steps.check()


def test_publishes_that_wait_for_the_first_of_their_topic(pair: WebServed, steps: Steps) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            for number in range(1, 200):
                await talk.say(type="publish", id=number, topic="steps-waiting", rows=ROWS[:1] * 800)
            await answered(talk, 199)

    run(work)
    steps.check("bytes", "fitted", "encoded")


def test_single_rows_of_many_connections(pair: WebServed, steps: Steps) -> None:
    opened(pair, "steps-many")

    async def client() -> None:
        async with talking(pair) as talk:
            for number in range(1, 101):
                await talk.say(type="publish", id=number, topic="steps-many", rows=ROWS[:1])
            await answered(talk, 100)

    async def work() -> None:
        await asyncio.gather(*(client() for _ in range(16)))

    run(work)
    steps.check("frames", "encoded", "told")


def test_credits_that_arrive_together(pair: WebServed, steps: Steps) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            await talk.say(type="subscribe", id="s", topic="steps-credit")
            assert (await talk.hear())["type"] == "subscribed"
            with stalled(pair):
                for _ in range(2_000):
                    await talk.say(type="credit", id="s", frames=1)
            await talk.say(type="publish", id=1, topic="steps-credit", rows=ROWS[:1])
            await answered(talk, 1)

    run(work)
    steps.check("frames")


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_rows_for_as_many_followers_as_share_the_loop(pair: WebServed, steps: Steps, form: str) -> None:
    topic = f"steps-followers-{form}"
    opened(pair, topic)

    async def work() -> None:
        async with asyncio.TaskGroup() as group, talking(pair) as talk:
            ready = asyncio.Semaphore(0)

            async def follow() -> None:
                async with talking(pair, at=1) as follower:
                    await follower.say(type="subscribe", id="s", topic=topic, credit=1_000, format=form)
                    assert (await follower.hear())["type"] == "subscribed"
                    seen = 0
                    for count in (0, 1_000, 20):
                        while seen < count:
                            seen += len((await follower.hear())["rows"])
                        seen -= count
                        ready.release()

            async def all_are_ready() -> None:
                for _ in range(fresh.FOLLOWERS_MAX):
                    await ready.acquire()

            for _ in range(fresh.FOLLOWERS_MAX):
                group.create_task(follow())
            await all_are_ready()
            await talk.say(type="publish", id=1, topic=topic, rows=ROWS[:1_000])
            await all_are_ready()  # a follower that lags reads on, on a thread, also what is in memory by then
            for number in range(2, 22):
                await talk.say(type="publish", id=number, topic=topic, rows=ROWS[:1])
            await answered(talk, 21)

    run(work)
    steps.check("written")
    assert steps.most["written"] <= AT_MOST["written"] // fresh.FOLLOWERS_MAX, "all are woken together"


def test_events_with_positions_of_many_streams(pair: WebServed, steps: Steps) -> None:
    """A position names the streams from which a client continues, whether there are such or not."""
    opened(pair, "steps-streams")
    own = pair.served.nodes[0].driver.node.me.node_id.hex()
    position = ",".join([f"{own}:1", *(f"{number:032x}:1" for number in range(1, 1_000))])
    tail = EventSource(pair.address, "/topics/steps-streams/tail", last_id=position)
    events = tail.events()
    assert json.loads(next(event for event in events if event.data).data)["id"] == 0
    for number in range(1, 30):
        assert pair.post("/topics/steps-streams", {"id": number}).status == 200
    assert [json.loads(next(events).data)["id"] for _ in range(1, 30)] == list(range(1, 30))
    steps.check("told")
    assert not steps.most["streams"]
