"""The client for asyncio: the same promises, and no row is lost to a task that was cancelled."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from m4cast.aio import Client
from m4cast.overlay.errors import LocalProtocolError
from tests.overlay.client.roaming.test_client import IDLE_S, SECRET, publish
from tests.overlay.door.served import Served, serving, told_doors
from tests.overlay.net.running import TIMEOUT_S


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("async"), 2, settings=told_doors(2)) as served:
        yield served


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(2 * TIMEOUT_S):
            await work()

    asyncio.run(limited())


def client_of(served: Served, key: str, at: int = 0, timeout_s: float = 20, **settings: Any) -> Client:
    nodes = served.addresses[at:] + served.addresses[:at]
    return Client(nodes, key=key, credential=SECRET, timeout_s=timeout_s, **settings)


async def got(client: Client) -> list[int]:
    return [n async for rows in client.notifications(idle_s=IDLE_S) for n in rows.column("n").to_pylist()]


async def first_of(client: Client) -> list[int] | None:
    """The first rows that come; None: the wait ended without any."""
    async for rows in client.notifications():
        found: list[int] = rows.column("n").to_pylist()
        return found
    return None


def send(served: Served, topic: str, first: int, count: int) -> None:
    publish(served, topic, first, count, acks=1)


def test_a_client_leaves_misses_rows_and_returns_elsewhere(served: Served) -> None:
    async def work() -> None:
        async with client_of(served, "leaver", create=True) as client:
            await client.subscribe("leaving", "n >= 5")
            await asyncio.to_thread(send, served, "leaving", 0, 10)
            assert await got(client) == [5, 6, 7, 8, 9]
        await asyncio.to_thread(send, served, "leaving", 10, 3)
        async with client_of(served, "leaver", at=1) as client:
            assert (client.node, client.profiles) == (served.addresses[1], {"default": ("leaving", "n >= 5")})
            assert await got(client) == [10, 11, 12]

    run(work)


def test_rows_that_come_for_a_cancelled_task_are_given_to_the_next(served: Served) -> None:
    async def work() -> None:
        async with client_of(served, "cancelled", create=True) as client:
            await client.subscribe("cancelled")
            waiting = asyncio.create_task(first_of(client))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            with pytest.raises(LocalProtocolError, match="waits for rows"):
                await client.acknowledge()
            await asyncio.to_thread(send, served, "cancelled", 0, 3)
            assert (await first_of(client) or [])[0] == 0

    run(work)


def test_a_wait_that_a_cancelled_task_left_ends_when_the_next_one_wants(served: Served) -> None:
    async def work() -> None:
        async with client_of(served, "impatient", create=True, timeout_s=1) as client:
            await client.subscribe("impatient")
            waiting = asyncio.create_task(first_of(client))  # for ever
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert await got(client) == []

    run(work)


def test_what_was_not_acknowledged_comes_again(served: Served) -> None:
    async def work() -> None:
        async with client_of(served, "manual", create=True, acknowledge="manual") as client:
            await client.subscribe("manual")
            await asyncio.to_thread(send, served, "manual", 0, 2)
            assert await got(client) == [0, 1]
            await client.acknowledge()
            await asyncio.to_thread(send, served, "manual", 2, 2)
            assert await got(client) == [2, 3]
        async with client_of(served, "manual", at=1) as client:
            assert await got(client) == [2, 3]
            waiting = asyncio.create_task(first_of(client))
            await asyncio.sleep(0)
            await client.disconnect()  # ends the wait
            assert await waiting is None
            await client.connect()

    run(work)


def test_rows_that_an_error_met_come_again(served: Served) -> None:
    async def work() -> None:
        client = client_of(served, "failing", create=True)

        async def fail() -> None:
            async with client:
                await client.subscribe("failing")
                await asyncio.to_thread(send, served, "failing", 0, 2)
                assert await first_of(client) == [0, 1]
                raise InterruptedError

        with pytest.raises(InterruptedError):
            await fail()
        await asyncio.to_thread(send, served, "failing", 2, 2)
        async with client:
            assert await got(client) == [0, 1, 2, 3]

    run(work)
