"""`/live` as a client sees it: publishes and their acknowledgements, subscriptions, credits, cuts, refusals."""

import asyncio
import gc
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.live.connection import SUBSCRIPTIONS_MAX
from m4cast.overlay.door.web.live.messages import message_of
from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.door.web.test_posts import arrow_bytes, rows_of
from tests.overlay.net.running import TIMEOUT_S


class Talk:
    """One connection, and what it has heard."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, **message: Any) -> None:
        await self.socket.send_str(json.dumps(message))

    async def hear(self) -> dict[str, Any]:
        message = await self.socket.receive(TIMEOUT_S)
        if message.type == aiohttp.WSMsgType.BINARY:
            size = int.from_bytes(message.data[:4], "big")
            table = pa.ipc.open_stream(message.data[4 + size :]).read_all()
            return {**json.loads(message.data[4 : 4 + size]), "rows": table.to_pylist()}
        if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR):
            raise EOFError(f"the connection has ended: {message}")
        assert message.type == aiohttp.WSMsgType.TEXT, message
        heard: dict[str, Any] = json.loads(message.data)
        return heard

    async def refused(self, code: str) -> dict[str, Any]:
        said = await self.hear()
        assert (said["type"], said["code"]) == ("refused", code), said
        return said


@asynccontextmanager
async def talking(web: WebServed, at: int = 0, **options: Any) -> AsyncIterator[Talk]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://{web.doors[at].address}/live", **options) as socket,
    ):
        yield Talk(socket)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await work()

    asyncio.run(limited())


def test_a_subscription_may_end_before_it_begins(pair: WebServed) -> None:
    """Both messages arrive together."""

    async def work() -> None:
        async with talking(pair) as talk:
            for _ in range(20):
                await talk.say(type="subscribe", id="s", topic="live-ended", credit=1)
                await talk.say(type="unsubscribe", id="s")
            await talk.say(type="publish", id=1, topic="live-ended", rows=[{"id": 1}])
            while (await talk.hear())["type"] != "acked":
                pass

    run(work)
    gc.collect()  # warns of what was never awaited


# ---- publishing


def test_publishes_are_acknowledged_in_order_and_together(pair: WebServed) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            for number in range(1, 51):
                await talk.say(type="publish", id=number, topic="live", rows=[{"id": number}, {"id": -number}])
            acked: list[int] = []
            while len(acked) < 50:
                said = await talk.hear()
                acked += [publish["id"] for publish in said["publishes"]]
                assert (said["type"], said["id"]) == ("acked", acked[-1])
            assert acked == list(range(1, 51))

    run(work)
    assert [row["id"] for row in rows_of(pair, "live")] == [row for number in range(1, 51) for row in (number, -number)]


def test_arrow_frames_keys_and_acks(pair: WebServed) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            head = json.dumps({"type": "publish", "id": 1, "topic": "live-arrow", "acks": 1}).encode()
            stream = arrow_bytes(pa.table({"id": [1, 2]}))
            await talk.socket.send_bytes(len(head).to_bytes(4, "big") + head + stream)
            (publish,) = (await talk.hear())["publishes"]
            assert publish["ranges"][0]["next"] == 3
            for number in (2, 3):
                await talk.say(type="publish", id=number, topic="live-arrow", rows=[{"id": 3}], key="live", next="1")
            ranges: list[Any] = []
            while len(ranges) < 2:
                ranges += [each["ranges"] for each in (await talk.hear())["publishes"]]
            assert ranges[0] == ranges[1]

    run(work)
    assert [row["id"] for row in rows_of(pair, "live-arrow")] == [1, 2, 3]


def test_publishes_that_share_a_batch_have_ranges_of_their_own(pair: WebServed) -> None:
    """Rows are numbered in the order of the publishes, whichever shared a batch, and a bad one is refused alone."""

    async def work() -> None:
        async with talking(pair) as talk:
            await talk.say(type="publish", id=1, topic="live-shared", rows=[{"id": 0}])
            assert (await talk.hear())["id"] == 1
            for number in range(2, 42):
                rows = [{"id": "x"}] if number == 20 else [{"id": number}] * (number % 3 + 1)
                await talk.say(type="publish", id=number, topic="live-shared", rows=rows)
            ranges: dict[int, list[Any]] = {}
            refused: list[int] = []
            while len(ranges) + len(refused) < 40:
                said = await talk.hear()
                if said["type"] == "refused":
                    refused.append(said["id"])
                else:
                    ranges.update({each["id"]: each["ranges"] for each in said["publishes"]})
            assert refused == [20]
            assert sorted(ranges) == [number for number in range(2, 42) if number != 20]
            at = 2
            for number in sorted(ranges):
                (own,) = ranges[number]
                assert (own["first"], own["next"]) == (at, at + number % 3 + 1)
                at = own["next"]

    run(work)
    expected = [0] + [number for number in range(2, 42) if number != 20 for _ in range(number % 3 + 1)]
    assert [row["id"] for row in rows_of(pair, "live-shared")] == expected


def test_a_refused_publish_does_not_stop_the_others(pair: WebServed) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            await talk.say(type="publish", id=1, topic="live-mixed", rows=[{"id": 1}])
            assert (await talk.hear())["id"] == 1
            await talk.say(type="publish", id=2, topic="live-mixed", rows=[{"id": "x"}])
            await talk.say(type="publish", id=3, topic="live-mixed", rows=[{"id": 3}])
            assert (await talk.refused("bad-request"))["id"] == 2
            said = await talk.hear()
            assert (said["type"], said["id"]) == ("acked", 3)

    run(work)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("nonsense", "JSON"),
        ('{"type": "dance"}', "publish, subscribe"),
        ('{"type": "publish", "topic": "t", "rows": []}', "id is missing"),
        ('{"type": "publish", "id": 1, "topic": "t", "rows": [], "ack": 1}', "'ack'"),
        ('{"type": "subscribe", "topic": "t"}', "id is missing"),
        ('{"type": "credit", "id": "s"}', "frames is missing"),
        (b"\x00\x00\x00\x02{}", "binary frame must be a publish"),
        (b"\x00\xff\xff\xff{}", "length of its head"),
    ],
)
def test_what_is_no_message_ends_the_connection(pair: WebServed, message: Any, words: str) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            await (talk.socket.send_str if isinstance(message, str) else talk.socket.send_bytes)(message)
            assert words in (await talk.refused("bad-request"))["detail"]
            assert (await talk.socket.receive(TIMEOUT_S)).type == aiohttp.WSMsgType.CLOSE

    run(work)


def test_a_message_that_makes_no_sense_is_refused_by_its_id(pair: WebServed) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            for message, words in (
                ({"type": "publish", "id": 1, "topic": "t", "rows": [1]}, "rows must be"),
                ({"type": "subscribe", "id": "s", "topic": "t", "from": "x"}, "origin:next"),
                ({"type": "subscribe", "id": "s", "topic": "t", "format": "xml"}, "json or arrow"),
            ):
                await talk.say(**message)
                said = await talk.refused("bad-request")
                assert said["id"] == message["id"] and words in said["detail"]

    run(work)


def test_whatever_a_frame_has_it_is_a_message_or_refused() -> None:
    chance = random.Random(4)
    words = [
        "{",
        "}",
        '"type":',
        '"publish"',
        '"subscribe"',
        ",",
        '"id":',
        "1",
        "null",
        '"topic":',
        '"t"',
        '"rows":',
        "[]",
    ]
    codes: set[str] = set()
    for _ in range(5_000):
        text = "".join(chance.choice(words) for _ in range(chance.randrange(14)))
        for frame in (text, chance.randbytes(chance.randrange(40)), len(text).to_bytes(4, "big") + text.encode()):
            try:
                message_of(frame)
            except Refusal as refusal:
                codes.add(refusal.code)
    assert codes == {"bad-request"}


DAMAGED = 1_000


def test_damaged_arrow_frames_are_published_or_refused_and_nothing_else(pair: WebServed) -> None:
    """Good frames with some bytes changed, taken out or put in, mostly behind their heads."""
    chance = random.Random(9)
    table = pa.table(
        {
            "id": [1, 2, 3],
            "text": ["a", None, "\u00e9"],
            "list": [[1], [], None],
            "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
            "in": [{"a": 1.5}, {"a": None}, None],
        }
    )
    stream = arrow_bytes(table)
    codes: Counter[str] = Counter()

    def frame(number: int) -> bytes:
        head = json.dumps({"type": "publish", "id": number, "topic": f"damaged-{number}"}).encode()
        good = len(head).to_bytes(4, "big") + head
        body = bytearray(stream)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(body))
            match chance.randrange(4):
                case 0 | 1:
                    body[at] ^= 1 << chance.randrange(8)
                case 2:
                    del body[at : at + chance.randrange(1, 20)]
                case _:
                    body[at:at] = chance.randbytes(chance.randrange(1, 9))
            body = body or bytearray(b" ")
        whole = bytearray(good + body)
        if chance.randrange(20) == 0:
            whole[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        return bytes(whole)

    async def some(numbers: Iterator[int]) -> None:
        """Send frames on one connection, until it is ended because of one that is no message."""
        async with talking(pair) as talk:
            for number in numbers:
                await talk.socket.send_bytes(frame(number))
                said = await talk.socket.receive(TIMEOUT_S)
                if said.type != aiohttp.WSMsgType.TEXT:
                    codes["ended"] += 1
                    return
                message = json.loads(said.data)
                codes[message.get("code", message["type"])] += 1
                if message["type"] == "refused" and message["id"] is None:
                    return

    async def work() -> None:
        numbers = iter(range(1, DAMAGED + 1))
        while (left := next(numbers, None)) is not None:
            await some(chain([left], numbers))

    run(work)
    assert set(codes) <= {"acked", "bad-request", "bad-rows", "bad-schema", "ended", "reserved-column", "too-large"}, (
        codes
    )
    assert codes["acked"] and codes["bad-request"], codes
    assert pair.get("/status").status == 200


def test_ids_must_rise_and_frames_have_a_maximum(tmp_path: Path) -> None:
    async def work() -> None:
        async with talking(web) as talk:
            await talk.say(type="publish", id=5, topic="t", rows=[{"id": 1}])
            assert (await talk.hear())["type"] == "acked"
            await talk.say(type="publish", id=5, topic="t", rows=[{"id": 1}])
            assert "ids must rise" in (await talk.refused("bad-request"))["detail"]
        async with talking(web) as talk:
            await talk.socket.send_str("x" * 10_001)
            assert (await talk.socket.receive(TIMEOUT_S)).data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG

    with web_serving(tmp_path, 1, WebLimits(frame_bytes_max=10_000)) as web:
        run(work)


def test_more_publishes_than_the_window_wait_and_are_all_acknowledged(tmp_path: Path) -> None:
    async def work() -> None:
        async with talking(web) as talk:
            for number in range(1, 201):
                await talk.say(type="publish", id=number, topic="t", rows=[{"id": number}])
            while (await talk.hear())["id"] < 200:
                pass

    with web_serving(tmp_path, 1, WebLimits(window_frames=3)) as web:
        run(work)
        assert [row["id"] for row in rows_of(web, "t")] == list(range(1, 201))


def test_unanswered_publishes_have_a_limit_in_bytes(tmp_path: Path) -> None:
    """A connection with so many is not read, and one that is larger than the window goes alone."""
    text = "x" * 1_000
    most = 0

    async def work() -> None:
        nonlocal most
        async with talking(web) as talk:
            for number in range(1, 41):
                rows = [{"id": number, "text": text * (10 if number == 20 else 1)}]
                await talk.say(type="publish", id=number, topic="t", rows=rows)
            while (heard := await talk.hear())["id"] < 40:
                assert heard["type"] == "acked"

    with web_serving(tmp_path, 1, WebLimits(window_bytes=3_500)) as web:
        bodies = web.doors[0]._bodies
        take = bodies.take

        def noted(client: str, size: int) -> None:
            nonlocal most
            take(client, size)
            most = max(most, bodies._taken.total())

        bodies.take = noted  # type: ignore[method-assign]
        run(work)
        assert [row["id"] for row in rows_of(web, "t")] == list(range(1, 41))
        assert 10_000 < most < 11_000, "the large one, and nothing beside it"
        assert not bodies._taken, "all of it is given back"


def test_publishes_of_all_connections_share_the_memory_of_bodies(tmp_path: Path) -> None:
    """Frames beyond the limit are refused in their turn. Nothing is held for a connection that has gone."""

    async def work() -> None:
        bodies = web.doors[0]._bodies
        async with talking(web) as talk, talking(web) as other:
            for somebody in ("one", "another"):
                bodies.take(somebody, 4_500)
            await talk.say(type="publish", id=1, topic="t", rows=[{"id": 1, "text": "x" * 2_000}])
            assert (await talk.refused("busy"))["id"] == 1
            await talk.say(type="publish", id=2, topic="t", rows=[{"id": 2, "text": ""}])
            assert (await talk.hear())["type"] == "acked"
            for somebody in ("one", "another"):
                bodies.give_back(somebody, 4_500)
            for number, each in enumerate((talk, other), 3):
                await each.say(type="publish", id=number, topic="t", rows=[{"id": number, "text": "x" * 2_000}])
                assert (await each.hear())["type"] == "acked"
            await talk.say(type="publish", id=9, topic="t", acks=1, rows=[{"id": 9, "text": ""}])
            await talk.refused("too-few-nodes")
        assert not bodies._taken

    with web_serving(tmp_path, 1, WebLimits(bodies_bytes_max=10_000)) as web:
        run(work)


def test_a_connection_has_a_limited_number_of_subscriptions(pair: WebServed) -> None:
    async def work() -> None:
        async with talking(pair) as talk:
            for number in range(SUBSCRIPTIONS_MAX):
                await talk.say(type="subscribe", id=f"s{number}", topic="live-many", credit=1)
            for _ in range(SUBSCRIPTIONS_MAX):
                assert (await talk.hear())["type"] == "subscribed"
            await talk.say(type="unsubscribe", id="s0")
            await talk.say(type="subscribe", id="again", topic="live-many", credit=1)
            assert (await talk.hear())["type"] == "subscribed"
            await talk.say(type="subscribe", id="too many", topic="live-many", credit=1)
            assert f"{SUBSCRIPTIONS_MAX} subscriptions" in (await talk.refused("busy"))["detail"]

    run(work)


# ---- subscriptions


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_rows_arrive_as_long_as_there_is_credit(pair: WebServed, form: str) -> None:
    topic = f"live-{form}-credit"

    async def work() -> None:
        async with talking(pair) as talk:
            await talk.say(type="subscribe", id="s", topic=topic, credit=1, format=form, **{"from": "earliest"})
            assert await talk.hear() == {"type": "subscribed", "id": "s", "position": "-"}
            for number in (1, 2):
                await talk.say(type="publish", id=number, topic=topic, rows=[{"id": number}])
            heard: list[dict[str, Any]] = []
            while not {("acked", 2), ("rows", "s")} <= {(each["type"], each["id"]) for each in heard}:
                heard.append(await talk.hear())
            (rows,) = [each for each in heard if each["type"] == "rows"]
            first = [row["id"] for row in rows["rows"]]
            assert first in ([1], [1, 2]) and rows["next"] == first[-1] + 1
            await talk.say(type="publish", id=3, topic=topic, rows=[{"id": 3}])
            assert (await talk.hear())["type"] == "acked", "there is no credit left"
            await talk.say(type="credit", id="s", frames=10)
            seen: list[int] = []
            while 3 not in seen:
                seen += [row["id"] for row in (await talk.hear())["rows"]]
            assert first + seen == [1, 2, 3]
            await talk.say(type="unsubscribe", id="s")
            await talk.say(type="publish", id=4, topic=topic, rows=[{"id": 4}])
            assert (await talk.hear())["type"] == "acked"

    run(work)


def test_a_refused_subscription_is_said_and_the_connection_goes_on(pair: WebServed) -> None:
    pair.post("/topics/live-gone", {"id": 1})
    pair.post("/actions/topic-delete", {"topic": "live-gone"})

    async def work() -> None:
        async with talking(pair) as talk:
            await talk.say(type="subscribe", id="s", topic="live-gone", credit=1, **{"from": "-"})
            assert (await talk.hear())["type"] == "subscribed"
            assert (await talk.refused("missing"))["id"] == "s"
            await talk.say(type="subscribe", id="s", topic="live-gone", credit=1, on_missing="skip", **{"from": "-"})
            assert (await talk.hear())["type"] == "subscribed"

    run(work)


def test_what_is_no_handshake_is_refused(pair: WebServed) -> None:
    answer = pair.get("/live")
    assert (answer.status, answer.json["code"]) == (400, "bad-request")


def test_pages_of_other_origins_get_no_websocket(pair: WebServed) -> None:
    async def work() -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            async with talking(pair, origin="https://evil.example"):
                pass
        assert error.value.status == 403

    run(work)
