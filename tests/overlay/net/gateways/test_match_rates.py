"""Bytes on a real gateway by the share of batches that somebody beyond it wants: proportional, and none for none.

Batches are large here: what the takers' channel asks about each run of batches that it does not get is the same for
small ones (docs/FEDERATION.md, "Bytes on real gateways").
"""

import asyncio
from pathlib import Path

import pyarrow as pa

from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import summary_bytes
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.profiles.summary import summarise
from m4cast.overlay.protocol.effects import CreateTopic, Publish, Refused, Staged, Subscribe, Wish
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Extension
from tests.overlay.net.gateways.federated import Channels, Member, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.running import TIMEOUT_S

RATES = (100, 50, 25, 10, 5, 0)
BATCHES = 20
BATCH_BYTES = 60_000
TOLERANCE = 0.1


def topic_of(rate: int) -> str:
    return f"match-{rate}"


async def accepted(member: Member, request: type[CreateTopic] | type[Publish], *settings: object) -> None:
    """Wait until the node is ready for it."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            answer = await member.running.driver.request(lambda number: request(number, *settings))  # type: ignore[arg-type]
            if not isinstance(answer, Refused):
                return
            assert answer.code in ("old-nodes", "not-ready"), answer
            await asyncio.sleep(0.02)


def staged(topic: str, part: int) -> Staged:
    summary = summary_bytes.encode(summarise(pa.RecordBatch.from_pydict({"part": [part]}), [("part",)]))
    extension = Extension(SUMMARY_EXTENSION, must_understand=False, value=summary)
    return Staged(topic, 1, 1, bytes(BATCH_BYTES), extensions=(extension,))


def test_bytes_over_a_gateway_follow_the_match_rate(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a1,), (b1,), (c1,) = [await channels.add(name, 1) for name in "abc"]
        topics = tuple(map(topic_of, RATES))
        await a1.open_gate(gates(gateway("b", exports=topics), gateway("c", exports=topics)))
        for member in (b1, c1):
            await member.open_gate(gates(gateway("a", address=a1.gate, on_demand=topics)))
        for topic in topics:
            await accepted(a1, CreateTopic, topic, 0)
        wishes = tuple(Wish(topic_of(rate), topic_of(rate), parse(f"part < {rate}")) for rate in RATES)
        await b1.running.driver.request(lambda request: Subscribe(request, wishes))
        await until(lambda: list(b1.keeper.active.values()) == [2] * len(RATES))
        (to_b,) = [link for link in a1.keeper.links.links.values() if link.hello.channel == "m4cast/b"]
        (to_c,) = [link for link in a1.keeper.links.links.values() if link.hello.channel == "m4cast/c"]
        rows: dict[int, int] = {}
        sent: dict[int, int] = {}
        for rate in RATES:
            topic, before = topic_of(rate), (to_b.sent_rows, to_b.sent_bytes)
            for number in reversed(range(BATCHES)):
                part = number * 100 // BATCHES
                arrived = len(b1.rows(topic)) + (part < rate)
                await accepted(a1, Publish, (staged(topic, part),))
                await until(lambda topic=topic, arrived=arrived: len(b1.rows(topic)) >= arrived)  # type: ignore[misc]
            stream = StreamId(a1.node_id, topic)
            await until(lambda topic=topic, stream=stream: covered(b1, topic, stream) == BATCHES + 1)  # type: ignore[misc]
            rows[rate], sent[rate] = to_b.sent_rows - before[0], to_b.sent_bytes - before[1]
        assert rows == {rate: BATCHES * rate // 100 for rate in RATES}
        assert to_c.sent_rows == 0, "nobody wants anything there"
        for rate in RATES[:-1]:
            share = sent[100] * rate / 100
            assert abs(sent[rate] - share) <= TOLERANCE * share, (rate, sent)
        assert sent[0] < BATCH_BYTES, "what is said without a batch"

    run(tmp_path, scenario)


def covered(member: Member, topic: str, stream: StreamId) -> int:
    return member.running.driver.node.selection.coverage(topic).get(stream, 0)
