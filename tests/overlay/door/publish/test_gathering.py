"""Small publishes that are gathered on the loop: rows, types, refusals and order are those that a thread would give."""

import asyncio
import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.publish import gathering
from m4cast.overlay.door.publish.coalescing import Encoder
from m4cast.overlay.door.publish.gathering import GatheredRows, Gatherer, PlainColumns
from m4cast.overlay.door.quotas import ByteQuota
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import Put
from m4cast.overlay.door.web.bodies import plain_rows, rows_of
from m4cast.overlay.door.web.workers import Workers
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Publish, Published, Range, Staged
from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.door.web.live.test_connection import run, talking
from tests.overlay.door.web.test_posts import arrow_bytes
from tests.overlay.door.web.test_posts import rows_of as published

KNOWN = pa.schema([("whole", pa.int64()), ("short", pa.int32()), ("part", pa.float64()), ("text", pa.string())])
VALUES: dict[str, list[str]] = {
    "whole": ["0", "-7", "9223372036854775807", "9223372036854775808", "1.5", "1.0", "true", "null", '"7"', "1e2"],
    "short": ["3", "-1", "null", "2147483648"],
    "part": ["1.5", "2", "-0.0", "9007199254740993", "0.1000000000000000055", "1e400", "NaN", "1e-7", "null", "true"],
    "text": ['"a"', '"\\u00e9"', '"\\ud800"', '""', "null", "5", '"2026-01-31T12:00:00Z"', '"a \\": b"', "{}", "[]"],
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServed]:
    with web_serving(tmp_path_factory.mktemp("gathering"), 1) as served:
        yield served


def bodies(count: int) -> Iterator[bytes]:
    """Rows as clients write them: mostly good, in any order, with names that are missing, unknown or there twice."""
    chance = random.Random(22)
    for _ in range(count):
        is_odd = chance.random() < 0.5
        rows = []
        for _ in range(chance.randrange(1, 4)):
            names = chance.sample(list(VALUES), 3 if is_odd and chance.random() < 0.1 else 4)
            if is_odd and chance.random() < 0.1:
                names.append(chance.choice([*VALUES, "more"]))
            picked = [(name, chance.choice(VALUES.get(name, ["1"])[: None if is_odd else 2])) for name in names]
            rows.append("{" + ", ".join(f'"{name}": {value}' for name, value in picked) + "}")
        yield ("[" + ",".join(rows) + "]").encode()


def test_rows_that_are_gathered_are_those_that_a_thread_would_publish() -> None:
    """Every gathered row has the values that Arrow's own reader finds; and most good rows are gathered."""
    columns = PlainColumns(KNOWN)
    headers = {"Content-Type": "application/json"}
    taken = refused = 0
    for body in bodies(600):
        rows = plain_rows(body, headers, has_doubles=columns.has_doubles)
        values = columns.fit(rows) if rows else None
        found = columns.rows([values]).to_pylist() if values is not None else None
        try:
            read = rows_of(body, headers, lambda: KNOWN)
            slow = [row for batch in read.batches for row in batch.to_pylist()]
        except Refusal:
            assert found is None, body
            refused += 1
            continue
        if found is not None:
            taken += 1
            wanted = [{name: row.get(name) for name in KNOWN.names} for row in slow]
            assert [signed(row) for row in found] == [signed(row) for row in wanted], body
    assert taken > 250 and refused > 150


@pytest.mark.parametrize("type_", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()], ids=str)
def test_numbers_beyond_their_column_are_left_to_the_threads(type_: pa.DataType) -> None:
    """One that Arrow refuses would refuse all that is gathered with it."""
    columns = PlainColumns(pa.schema([("whole", type_)]))
    bits = type_.bit_width
    least, most = (0, 2**bits - 1) if str(type_).startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for taken in ([least], [most], [None], [least, None, most]):
        values = columns.fit([{"whole": each} for each in taken])
        assert values is not None and columns.rows([values])["whole"].to_pylist() == taken
    for refused in (least - 1, most + 1):
        assert columns.fit([{"whole": 0}, {"whole": None}, {"whole": refused}]) is None


def test_half_a_surrogate_pair_is_left_to_the_threads() -> None:
    columns = PlainColumns(pa.schema([("text", pa.string())]))
    assert columns.fit([{"text": "\U0001f600"}, {"text": None}, {"text": "\x00"}]) is not None
    for half in ("\ud83d", "\ude00"):
        assert columns.fit([{"text": half}]) is None
    assert columns.fit([{"text": "\ud83d"}, {"text": "\ude00"}]) is None


class Node:
    """A node that answers publishes of rows that it can encode: none if one of them is `bad`."""

    def __init__(self) -> None:
        self.rows = 0
        self.encoded: list[int] = []
        self.is_stopped = False

    def __call__(self, rows: pa.RecordBatch) -> Staged:
        values = rows.column(0).to_pylist()
        self.encoded.append(len(values))
        if "bad" in values:
            raise Refusal("too-large", "bad")
        return Staged("t", len(values), 1, b"", 0)

    def request_here(self, make: Callable[[int], Publish]) -> "asyncio.Future[Published]":
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        (staged,) = make(1).payloads
        first, self.rows = self.rows + 1, self.rows + staged.row_count
        answer.set_result(Published(1, (Range(StreamId(NodeId(bytes(16)), "t"), first, self.rows + 1),)))
        return answer


async def gathered(node: Node, rows: list[list[dict[str, Any]]]) -> list[Any]:
    """The answers to these publishes."""
    schema = pa.schema([("text", pa.string())])
    encode = cast(Encoder, SimpleNamespace(topic="t", schema=schema, batch_bytes_max=1 << 20))
    gatherer = Gatherer(encode, 0, cast(NodeHandle, node), ByteQuota(1 << 30), 60.0, ExitStack())
    gatherer._encode = cast(Encoder, node)
    outcomes: dict[int, Any] = {}
    for at, each in enumerate(rows):
        values = gatherer.columns.fit(each)
        assert values is not None
        tell = partial(outcomes.__setitem__, at)
        assert gatherer.add(GatheredRows(values, len(each), sum(len(row["text"]) for row in each), "me", tell))
    while len(outcomes) < len(rows):
        await asyncio.sleep(0)
    return [outcomes[at] for at in range(len(rows))]


def test_a_refused_publish_costs_those_gathered_with_it_a_few_batches() -> None:
    """Not one for each of them: all are made on the loop."""
    node = Node()
    outcomes = asyncio.run(gathered(node, [[{"text": "bad" if at == 37 else "good"}] for at in range(128)]))
    assert isinstance(outcomes.pop(37), Refusal)
    assert [outcome.first_sequence for outcome in outcomes] == list(range(1, 128))
    assert len(node.encoded) <= 1 + 2 * 7 and sum(node.encoded) <= 128 + 2 * 128


def test_what_gathers_is_bounded_by_publishes_and_values_too() -> None:
    node = Node()
    asyncio.run(gathered(node, [[{"text": ""}]] * (2 * gathering.PUBLISHES_MAX + 1)))
    assert node.encoded == [gathering.PUBLISHES_MAX, gathering.PUBLISHES_MAX, 1]
    node = Node()
    asyncio.run(gathered(node, [[{"text": ""}] * 1_024] * 17))
    assert node.encoded == [gathering.VALUES_MAX, 1_024]
    wide = PlainColumns(pa.schema([(f"c{at}", pa.bool_()) for at in range(gathering.COLUMNS_MAX + 1)]))
    assert not wide.are_plain


def signed(row: dict[str, Any]) -> list[Any]:
    """Its values, with -0.0 apart from 0.0, and floats apart from integers."""
    return [(type(value), value, math.copysign(1, value) if isinstance(value, float) else 0) for value in row.values()]


def test_small_publishes_need_no_thread(node: WebServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds once a topic was published to, and for its followers as well."""
    names = opened(node, "no-thread")
    ran: list[str] = []
    was = Workers.run

    async def counted(self: Workers, client: str, work: Any, *, is_limited: bool = True) -> Any:
        ran.append(client)
        return await was(self, client, work, is_limited=is_limited)

    async def work() -> None:
        async with talking(node) as talk, talking(node) as follower:
            await follower.say(type="subscribe", id="s", topic="no-thread", credit=1_000)
            assert (await follower.hear())["type"] == "subscribed"
            monkeypatch.setattr(Workers, "run", counted)
            for number in range(1, 21):
                await talk.say(type="publish", id=number, topic="no-thread", rows=[dict.fromkeys(names, number)])
                assert (await talk.hear())["id"] == number
            seen: list[int] = []
            while len(seen) < 20:
                seen += [row["id"] for row in (await follower.hear())["rows"]]
            assert seen == list(range(1, 21))

    run(work)
    assert node.post("/topics/no-thread", {"id": 21}).status == 200
    assert ran == []


def test_publishes_keep_their_order_whichever_way_they_go(node: WebServed) -> None:
    """Gathered ones, Arrow, other columns, other acks and keys, on one connection."""
    opened(node, "ways")
    chance = random.Random(7)
    count = 300

    async def work() -> None:
        async with talking(node) as talk:
            for number in range(1, count + 1):
                await say(talk, number, chance.choice(["plain", "plain", "plain", "arrow", "wider", "key", "patient"]))
            acked: list[int] = []
            while len(acked) < count:
                said = await talk.hear()
                assert said["type"] == "acked", said
                acked += [publish["id"] for publish in said["publishes"]]
            assert acked == list(range(1, count + 1))

    async def say(talk: Any, number: int, way: str) -> None:
        head: dict[str, Any] = {"type": "publish", "id": number, "topic": "ways"}
        match way:
            case "arrow":
                written = json.dumps(head).encode()
                stream = arrow_bytes(pa.table({"id": [number]}))
                await talk.socket.send_bytes(len(written).to_bytes(4, "big") + written + stream)
            case "wider":
                await talk.say(**head, rows=[{"id": number, "more": "x"}])
            case "key":
                await talk.say(**head, rows=[{"id": number}], key=f"ways-{number}", next="1")
            case "patient":
                await talk.say(**head, rows=[{"id": number}], timeout_ms=60_000)
            case _:
                await talk.say(**head, rows=[{"id": number}])

    run(work)
    assert [row["id"] for row in published(node, "ways")][1:] == list(range(1, count + 1))


def test_a_gathered_publish_does_not_overtake_one_that_a_thread_has_sent(node: WebServed) -> None:
    """Rows with other columns linger at the door, to be coalesced with those of another client."""
    opened(node, "overtaking")
    head = {"type": "publish", "topic": "overtaking"}

    async def others(number: int = 0) -> None:
        async with talking(node) as talk:
            while True:
                number += 1
                await talk.say(**head, id=number, rows=[{"id": -number, "more": "x"}])
                await talk.hear()

    async def work() -> None:
        publishing = asyncio.create_task(others())
        async with talking(node) as talk:
            for number in range(1, 61, 2):
                await talk.say(**head, id=number, rows=[{"id": number, "more": "x"}])
                await talk.say(**head, id=number + 1, rows=[{"id": number + 1}])
                while (await talk.hear())["id"] <= number:
                    pass
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)

    run(work)
    assert [row["id"] for row in published(node, "overtaking") if row["id"] > 0] == list(range(1, 61))


def test_publishes_with_other_acks_keep_their_order(tmp_path: Path) -> None:
    """Each number of acks has a gatherer of its own."""
    with web_serving(tmp_path, 2) as pair:
        for acks in (0, 1):
            assert pair.post(f"/topics/acks?acks={acks}", {"id": -acks}).status == 200
            until(pair, lambda acks=acks: gatherer(pair, "acks", acks) is not None)  # type: ignore[misc]

        async def work() -> None:
            async with talking(pair) as talk:
                for number in range(1, 101):
                    await talk.say(type="publish", id=number, topic="acks", acks=number % 2, rows=[{"id": number}])
                while (await talk.hear())["id"] < 100:
                    pass

        run(work)
        assert [row["id"] for row in published(pair, "acks")][2:] == list(range(1, 101))


def test_connections_share_batches_and_each_has_its_own_ranges(node: WebServed) -> None:
    opened(node, "shared")
    ranges: dict[int, tuple[int, int]] = {}

    async def client(number: int) -> None:
        async with talking(node) as talk:
            for at in range(1, 41):
                await talk.say(type="publish", id=at, topic="shared", rows=[{"id": 100 * number + at}] * (at % 3 + 1))
            heard = 0
            while heard < 40:
                for publish in (await talk.hear())["publishes"]:
                    (own,) = publish["ranges"]
                    ranges[100 * number + publish["id"]] = (own["first"], own["next"])
                    heard += 1

    async def work() -> None:
        await asyncio.gather(*(client(number) for number in range(1, 6)))

    run(work)
    rows = node.get("/topics/shared/rows").lines[1:]
    for row in rows:
        first, after = ranges[row["id"]]
        assert first <= row["_sequence"] < after
    assert sum(after - first for first, after in ranges.values()) == len(rows)
    store = node.served.nodes[0].store
    (stream,) = (stream for stream in store.streams() if stream.topic == "shared")
    assert len(store.read_range(stream, 1, len(rows) + 2, 1 << 30)) < len(ranges) / 2


def test_a_publish_that_does_not_fit_is_refused_alone(node: WebServed) -> None:
    """It shares a batch with good ones."""
    opened(node, "alone")

    async def work() -> None:
        async with talking(node) as talk:
            for number in range(1, 10):
                await talk.say(
                    type="publish", id=number, topic="alone", rows=[{"id": 2**63 if number == 5 else number}]
                )
            outcomes: dict[int, str] = {}
            while len(outcomes) < 9:
                said = await talk.hear()
                if said["type"] == "refused":
                    assert "'id'" in said["detail"] and "int64" in said["detail"], said
                    outcomes[said["id"]] = "refused"
                else:
                    outcomes |= {publish["id"]: "acked" for publish in said["publishes"]}
            assert [number for number, outcome in sorted(outcomes.items()) if outcome == "refused"] == [5]

    run(work)
    assert [row["id"] for row in published(node, "alone")][1:] == [1, 2, 3, 4, 6, 7, 8, 9]


def test_publishes_beyond_the_quota_wait_on_the_threads(tmp_path: Path) -> None:
    """No row is refused or lost because of it."""
    with web_serving(tmp_path, 1, door_limits=DoorLimits(queue_bytes_max=4_000)) as small:
        opened(small, "quota")

        async def work() -> None:
            async with talking(small) as talk:
                for number in range(1, 101):
                    row = {"id": number}
                    await talk.say(type="publish", id=number, topic="quota", rows=[row] * 30)
                while (await talk.hear())["id"] < 100:
                    pass

        run(work)
        assert [row["id"] for row in published(small, "quota")][1:] == [n for n in range(1, 101) for _ in range(30)]


def test_a_gatherer_that_is_not_used_lets_go_of_its_schema(node: WebServed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "UNUSED_S", 0.01)
    opened(node, "unused")
    until(node, lambda: gatherer(node, "unused") is None)
    agreement = node.served.doors[0].services.publishing._agreement
    until(node, lambda: "unused" not in agreement._agreed)
    assert node.post("/topics/unused", {"id": 2}).status == 200


def gatherer(web: WebServed, topic: str, acks: int | None = None) -> Gatherer | None:
    return web.served.doors[0].services.publishing.gatherer(Put(topic=topic, acks=acks))


def opened(web: WebServed, topic: str) -> list[str]:
    """Publish a row, so that the topic's next ones are gathered."""
    assert web.post(f"/topics/{topic}", {"id": 0}).status == 200
    until(web, lambda: gatherer(web, topic) is not None)
    return ["id"]


def until(web: WebServed, condition: Callable[[], bool]) -> None:
    web.served.run(web.served.nodes[0].until(condition))
