"""The asynchronous client against real nodes: publishing, reading, following through cuts and restarts of doors."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp.web
import pyarrow as pa
import pytest

from m4cast.aio import Channel, Tail
from m4cast.overlay.client.live import link
from m4cast.overlay.client.live.async_channel import plain_json
from m4cast.overlay.client.tables import table_of
from m4cast.overlay.errors import LocalProtocolError, RefusedError, UnreachableError
from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.net.running import TIMEOUT_S
from tests.security.attackers import Certificates
from tests.security.test_doors import SECRETS, TOKENS

CUTS = 100


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServed]:
    with web_serving(tmp_path_factory.mktemp("aio"), 2) as web:
        yield web


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(2 * TIMEOUT_S):
            await work()

    asyncio.run(limited())


def doors(web: WebServed) -> list[str]:
    return [door.address for door in web.doors]


async def limited_to(tail: Tail, count: int) -> AsyncIterator[pa.RecordBatch]:
    """Its record batches, until they have so many rows."""
    async for rows in tail:
        yield rows
        count -= rows.num_rows
        if count <= 0:
            return


async def first_ids(channel: Channel, topic: str, count: int, start: str = "earliest") -> list[int]:
    seen: list[int] = []
    async for rows in channel.tail(topic, start):
        seen += rows.column("id").to_pylist()
        if len(seen) >= count:
            break
    return seen


def test_what_is_published_is_read_and_followed(pair: WebServed) -> None:
    async def work() -> None:
        async with Channel(doors(pair)) as channel:
            (orders,) = await channel.publish("orders", [{"id": 1}, {"id": 2}], acks=1)
            assert (orders.topic, orders.first, orders.next) == ("orders", 1, 3)
            assert (await channel.read("orders"))["id"].to_pylist() == [1, 2]
            many = await asyncio.gather(*(channel.publish("orders", [{"id": number}]) for number in range(3, 50)))
            assert sorted(rows.first for (rows,) in many) == list(range(3, 50))
            assert await first_ids(channel, "orders", 49) == list(range(1, 50))
            assert (await channel.read("orders", where="id < 3"))["id"].to_pylist() == [1, 2]
            chosen = channel.tail("orders", "earliest", where="id > 47")
            assert [rows.column("id").to_pylist() async for rows in limited_to(chosen, 2)] in ([[48], [49]], [[48, 49]])
            assert "orders" in await channel.act("topics")
            assert (await channel.act("topic", {"topic": "orders"}))["rows"] == 49

    run(work)


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1, "part": 1.0, "text": "x", "is": True}],
        [{"id": 1, "text": None}, {"id": -(2**63), "text": '\u00e9 \U0001f600 " \\ud'}],
        [{"id": 1}, {"text": "other columns"}],
        [{"id": 1, "part": 0.1}, {"id": 2, "part": 1e300}],
        [{"bytes": b"x", "at": datetime(2026, 1, 31, tzinfo=UTC), "only": None}],
        [{"mixed": 1}, {"mixed": 1.5}],
        [{"id": number} for number in range(1_000)],
        [{"list": [1, 2], "object": {"a": 1}}],
    ],
    ids=range(8),
)
def test_rows_have_the_same_types_whichever_way_they_are_sent(pair: WebServed, rows: list[dict[str, Any]]) -> None:
    """Few plain rows are sent as JSON: what is read is what Arrow makes of the rows."""

    async def work() -> None:
        async with Channel(doors(pair)) as channel:
            topic = f"types-{uuid.uuid4()}"
            await channel.publish(topic, rows)
            read = await channel.read(topic)
            wanted = table_of(rows)
            assert read.select(wanted.column_names).to_pylist() == wanted.to_pylist()
            assert [read.schema.field(field.name).type for field in wanted.schema] == wanted.schema.types

    run(work)


def test_which_rows_are_sent_as_json() -> None:
    assert plain_json([{"id": 1, "text": None}, {"id": None, "text": "x"}]) is not None
    others: list[Any] = [
        [],
        [{}],
        [{"id": 2**63}],
        [{"part": float("nan")}],
        [{"text": "\ud800"}],
        [{"only": None}],
        [{1: 2}],
    ]
    for rows in others:
        assert plain_json(rows) is None, rows
    assert plain_json([{"text": "x" * (32 << 10)}]) is None


def test_a_key_makes_it_exactly_once(pair: WebServed) -> None:
    async def work() -> None:
        async with Channel(doors(pair)) as channel:
            first, again = [await channel.publish("keyed", [{"id": 1}], key="aio", next=1) for _ in range(2)]
            assert first == again
            with pytest.raises(RefusedError, match="wrong-position"):
                await channel.publish("keyed", [{"id": 2}], key="aio", expect=7, next=8)

    run(work)


def test_errors_are_those_of_the_client(pair: WebServed) -> None:
    async def work() -> None:
        async with Channel(doors(pair)) as channel:
            with pytest.raises(RefusedError) as error:
                await channel.publish("t", [{"_sequence": 1}])
            assert error.value.code == "reserved-column"
            with pytest.raises(RefusedError, match="unknown-topic"):
                await channel.read("never")
            with pytest.raises(RefusedError, match="bad-request"):
                await first_ids(channel, "t", 1, "yesterday")
        async with Channel("127.0.0.1:1") as nowhere:
            for call in (nowhere.publish("t", [{"id": 1}]), nowhere.read("t"), first_ids(nowhere, "t", 1)):
                with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
                    await call

    run(work)
    for given in ({"nodes": ""}, {"nodes": "h"}, {"nodes": "h:1", "timeout_s": 0}, {"nodes": "h:1", "cert": "x"}):
        with pytest.raises(LocalProtocolError):
            Channel(**given)


def test_tokens_and_certificates(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    (tmp_path / "tokens.toml").write_text(TOKENS)

    async def work() -> None:
        async with Channel(doors(web), token=SECRETS["all"], ca=str(certificates.ca)) as channel:
            await channel.publish("orders", [{"id": 1}])
            assert await first_ids(channel, "orders", 1) == [1]
        async with Channel(doors(web), token=SECRETS["reader"], ca=str(certificates.ca)) as reader:
            assert (await reader.read("orders")).num_rows == 1
            with pytest.raises(RefusedError, match="forbidden"):
                await reader.publish("orders", [{"id": 1}])
            with pytest.raises(RefusedError, match="forbidden"):
                await first_ids(reader, "secret", 1)
        async with Channel(doors(web), token="no such token", ca=str(certificates.ca)) as stranger:
            with pytest.raises(RefusedError, match="unauthenticated"):
                await stranger.publish("orders", [{"id": 1}])

    tokens = f"file:{tmp_path / 'tokens.toml'}"
    with web_serving(tmp_path, 1, tokens=tokens, settings=certificates.settings) as web:
        run(work)


def test_a_tail_that_is_cut_at_random_moments_gets_every_row_once_and_in_order(pair: WebServed) -> None:
    """Its connection is reset while rows are published, and it continues at either node."""
    chance = random.Random(5)
    published = 0

    async def work() -> None:
        nonlocal published
        async with Channel(doors(pair)) as channel, Channel(doors(pair)[::-1]) as follower:
            tail = follower.tail("cut", "earliest")
            seen: list[int] = []

            async def follow() -> None:
                async for rows in tail:
                    seen.extend(rows.column("id").to_pylist())
                    if len(seen) >= 3 * CUTS:
                        return

            following = asyncio.get_running_loop().create_task(follow())
            for _ in range(CUTS):
                await channel.publish("cut", [{"id": published + number} for number in range(3)])
                published += 3
                while tail.position is None and not following.done():  # a tail that never began reports lost nodes
                    await asyncio.sleep(0)
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                for link in follower._links.values():
                    transport = link._socket.get_extra_info("socket")
                    if transport is not None and not link.is_lost:
                        link._socket._response.connection.transport.abort()  # type: ignore[union-attr]
            await following
            assert seen == list(range(published))
            assert tail.position is not None

    run(work)


Live = Callable[[aiohttp.web.Request], Awaitable[aiohttp.web.WebSocketResponse]]


@asynccontextmanager
async def pretended(live: Live) -> AsyncIterator[str]:
    """A node that is nothing but this handler of `/live`."""
    application = aiohttp.web.Application()
    application.router.add_get("/live", live)
    runner = aiohttp.web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    try:
        await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def vanishing(*, answers: bool) -> AsyncIterator[tuple[str, list[str]]]:
    """A node that never closes a connection: it answers handshakes and subscribes, and vanishes then, or before. With
    what it has heard."""
    heard: list[str] = []
    forever = asyncio.Event()

    async def live(request: aiohttp.web.Request) -> aiohttp.web.WebSocketResponse:
        heard.append("connected")
        socket = aiohttp.web.WebSocketResponse(autoping=False)
        if answers:
            await socket.prepare(request)
            heard.append((await socket.receive_json())["type"])
            await socket.send_json({"type": "subscribed", "id": "tail-1", "position": "-"})
        await forever.wait()
        return socket

    async with pretended(live) as address:
        try:
            yield address, heard
        finally:
            forever.set()


def test_a_tail_leaves_a_node_that_vanished(pair: WebServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """No end of the connection is seen: its pings have no answer."""
    monkeypatch.setattr(link, "HEARTBEAT_S", 0.4)

    async def work() -> None:
        async with vanishing(answers=True) as (silent, heard), Channel([silent, *doors(pair)]) as channel:
            async with Channel(doors(pair)) as publisher:
                await publisher.publish("vanished", [{"id": 1}])
            assert await first_ids(channel, "vanished", 1) == [1]
            assert heard[:2] == ["connected", "subscribe"]

    run(work)


def test_a_node_that_does_not_answer_connections_is_tried_once_for_all(
    pair: WebServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "CONNECT_S", 0.5)

    async def work() -> None:
        async with vanishing(answers=False) as (silent, heard), Channel([silent, *doors(pair)]) as channel:
            await asyncio.gather(*(channel.publish("connecting", [{"id": number}]) for number in range(20)))
            assert heard == ["connected"]
            assert sorted(await first_ids(channel, "connecting", 20)) == list(range(20))
        async with vanishing(answers=False) as (silent, _), Channel(silent) as nowhere:
            with pytest.raises(UnreachableError, match=r"no connection within 0\.5 s"):
                await nowhere.publish("connecting", [{"id": 1}])

    run(work)


def test_a_node_that_does_not_answer_connections_keeps_nobody_from_others(pair: WebServed) -> None:
    async def work() -> None:
        async with vanishing(answers=False) as (silent, _), Channel([silent, *doors(pair)]) as channel:
            opening = asyncio.get_running_loop().create_task(channel._link(silent))
            other = await channel._link(channel.nodes[1])
            assert not other.is_lost and not opening.done()
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)

    run(work)


def test_an_answer_to_a_tail_that_was_given_up_changes_nothing() -> None:
    """It and the tail's last message cross each other."""
    heard: list[str] = []
    range_ = {"topic": "t", "origin": "0" * 32, "first": 1, "next": 2}

    async def live(request: aiohttp.web.Request) -> aiohttp.web.WebSocketResponse:
        socket = aiohttp.web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            said = message.json()
            heard.append(said["type"])
            if said["type"] == "unsubscribe":
                await socket.send_json({"type": "subscribed", "id": said["id"], "position": "-"})
            if said["type"] == "publish":
                await socket.send_json({"type": "acked", "id": 1, "publishes": [{"id": 1, "ranges": [range_]}]})
        return socket

    async def work() -> None:
        async with pretended(live) as address, Channel(address) as channel:
            following = asyncio.get_running_loop().create_task(first_ids(channel, "t", 1))
            while "subscribe" not in heard:
                await asyncio.sleep(0)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            (published,) = await channel.publish("t", [{"id": 1}])
            assert published.next == 2
        assert heard == ["subscribe", "unsubscribe", "publish"]

    run(work)


def test_a_tail_and_a_publisher_outlive_the_doors_that_are_restarted(tmp_path: Path) -> None:
    async def work() -> None:
        async with Channel(doors(web)) as channel:
            following = asyncio.get_running_loop().create_task(first_ids(channel, "restart", 30))
            for number in range(30):
                if number % 10 == 5:
                    at = number // 10 % 2
                    await asyncio.to_thread(web.served.run, web.restart(at))
                while True:
                    try:
                        moved = {"key": "restart", "expect": number or None, "next": number + 1}
                        await channel.publish("restart", [{"id": number}], **moved)  # type: ignore[arg-type]
                        break
                    except UnreachableError:
                        pass
            assert await following == list(range(30))

    with web_serving(tmp_path, 2) as web:
        run(work)
