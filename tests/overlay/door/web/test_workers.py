"""The threads of the web door: one client has its share, and no more waiting than it may."""

import asyncio
import threading

import pytest

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.web.workers import Workers
from tests.overlay.net.running import TIMEOUT_S


def test_one_client_uses_half_of_the_threads_and_others_are_served() -> None:
    async def work() -> None:
        workers = Workers(4, 8, "test")
        go_on = threading.Event()
        begun: list[str] = []

        def block() -> None:
            begun.append("greedy")
            go_on.wait(TIMEOUT_S)

        greedy = [asyncio.ensure_future(workers.run("greedy", block)) for _ in range(8)]
        assert await asyncio.wait_for(workers.run("modest", lambda: "served"), TIMEOUT_S) == "served"
        assert begun == ["greedy"] * 2
        with pytest.raises(Refusal, match="8 requests in progress"):
            await workers.run("greedy", block)
        streamed = asyncio.ensure_future(workers.run("greedy", lambda: "late", is_limited=False))
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*greedy), TIMEOUT_S)
        assert await asyncio.wait_for(streamed, TIMEOUT_S) == "late"
        assert await workers.run("greedy", lambda: "again") == "again"
        workers.close()
        with pytest.raises(Refusal, match="stopping"):
            await workers.run("greedy", block)

    asyncio.run(work())


def test_a_client_that_goes_away_keeps_its_thread_until_the_work_is_done() -> None:
    async def work() -> None:
        workers = Workers(2, 8, "test")
        begun, go_on = threading.Event(), threading.Event()

        def block() -> None:
            begun.set()
            go_on.wait(TIMEOUT_S)

        gone = asyncio.ensure_future(workers.run("client", block))
        await asyncio.to_thread(begun.wait, TIMEOUT_S)
        gone.cancel()
        waiting = asyncio.ensure_future(workers.run("client", lambda: "done"))
        assert await workers.run("other", lambda: "free") == "free"
        assert not waiting.done()
        go_on.set()
        assert await asyncio.wait_for(waiting, TIMEOUT_S) == "done"
        workers.close()

    asyncio.run(work())
