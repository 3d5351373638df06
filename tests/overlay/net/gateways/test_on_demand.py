"""Selective topics across gateways: rows come where somebody wants them, and coverage proves that none is missing."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from m4cast.overlay.client import Channel
from m4cast.overlay.federation.units import UnitId
from m4cast.overlay.ids import StreamId
from m4cast.overlay.net.gateways.finding import FoundRows
from m4cast.overlay.net.gateways.wire.messages import AcrossFrame
from m4cast.overlay.profiles import summary_bytes
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.profiles.summary import summarise
from m4cast.overlay.protocol.effects import CreateTopic, Publish, Published, Refused, Staged, Subscribe, Wish
from m4cast.overlay.protocol.selective.contract import keep_id
from m4cast.overlay.protocol.selective.demand import KEEPS_HASH
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Batch, Extension
from m4cast.overlay.protocol.wire.interest import InterestItem
from m4cast.overlay.protocol.wire.routed import decode_routed, encode_routed
from m4cast.overlay.protocol.wire.selective import BeginCall, Destination, RoutedFrame, SelectPullCall, SelectPullResp
from tests.overlay.net.gateways.federated import Channels, Member, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run
from tests.overlay.net.running import TIMEOUT_S

TOPIC = "ticks"


def tick(country: str) -> Staged:
    """One row, with its summary, as a door makes it."""
    batch = pa.RecordBatch.from_pydict({"country": [country]})
    summary = summary_bytes.encode(summarise(batch, [("country",)]))
    extension = Extension(SUMMARY_EXTENSION, must_understand=False, value=summary)
    return Staged(TOPIC, 1, 1, country.encode(), extensions=(extension,))


async def make_topic(member: Member) -> None:
    """Make the topic, once all nodes of the channel have stated their version."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            answer = await member.running.driver.request(lambda request: CreateTopic(request, TOPIC, 0))
            if not isinstance(answer, Refused):
                return
            assert answer.code == "old-nodes", answer
            await asyncio.sleep(0.05)


async def publish(member: Member, country: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            answer = await member.running.driver.request(lambda request: Publish(request, (tick(country),)))
            if isinstance(answer, Published):
                return
            assert isinstance(answer, Refused) and answer.code == "not-ready", answer
            await asyncio.sleep(0.05)


async def subscribe(member: Member, where: str, *, earliest: bool = False) -> None:
    wish = Wish("mine", TOPIC, await asyncio.to_thread(parse, where), earliest)
    await member.running.driver.request(lambda request: Subscribe(request, (wish,)))


def test_batches_that_nobody_wants_are_asked_about_once_for_the_whole_channel(tmp_path: Path) -> None:
    """Three nodes want the same rows; between two of these lie others, ten times."""

    async def scenario(channels: Channels) -> None:
        (a1,), (b1, b2, b3) = await channels.add("a", 1), await channels.add("b", 3)
        await make_topic(a1)
        await a1.open_gate(gates(gateway("b", exports=(TOPIC,))))
        await b1.open_gate(gates(gateway("a", address=a1.gate, on_demand=(TOPIC,))))
        for member in (b1, b2, b3):
            await subscribe(member, "country = 'PL'")
        await until(lambda: any(level == 2 for level in b1.keeper.active.values()))
        stream, questions, answer = StreamId(a1.node_id, TOPIC), [], a1.keeper.finding.frame_here

        def counted(message: AcrossFrame, frame: bytes) -> None:
            questions.append(message)
            answer(message, frame)

        for number in range(11):
            for country in ("DE", "DE", "PL"):
                await publish(a1, country)
            end = 3 * number + 4
            for member in (b1, b2, b3):
                await until(lambda member=member, end=end: covered(member, stream) == end)  # type: ignore[misc]
            a1.keeper.finding.frame_here = counted  # the beginning of the stream is behind us
        assert 10 <= len(questions) < 20, "by the gatekeeper, and not by each node again"

    run(tmp_path, scenario)


def covered(member: Member, stream: StreamId) -> int:
    return member.running.driver.node.selection.coverage("mine").get(stream, 0)


def test_selective_rows_cross_where_they_are_wanted_and_the_rest_is_covered(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        a1, a2 = await channels.add("a", 2)
        b1, b2 = await channels.add("b", 2)
        (c1,) = await channels.add("c", 1)
        await make_topic(a2)
        await publish(a2, "PL")  # before anybody wants it
        await a1.open_gate(gates(gateway("b", exports=(TOPIC,)), gateway("c", exports=(TOPIC,))))
        await b1.open_gate(gates(gateway("a", address=a1.gate, on_demand=(TOPIC,))))
        await c1.open_gate(gates(gateway("a", address=a1.gate, on_demand=(TOPIC,))))
        await subscribe(b2, "country = 'PL'", earliest=True)
        await until(lambda: any(level == 2 for level in b1.keeper.active.values()))
        for number in range(40):
            await publish(a2, "PL" if number % 4 == 0 else "DE")
        stream = StreamId(a2.node_id, TOPIC)
        await until(lambda: covered(b2, stream) == 42)
        here = [(each[1], each[2]) for each in sorted(b2.rows(TOPIC), key=lambda row: row[1])]
        assert here == [(sequence, sequence) for sequence in (1, *range(2, 42, 4))]
        assert len(b2.rows(TOPIC)) == 11
        there = {each.first_sequence: each for each in a2.batches(stream)}
        for batch in b2.running.store.read_range(stream, 2, 3, 1 << 20):
            assert (batch, batch.checksum) == (there[2], there[2].checksum)
        assert not c1.rows(TOPIC)
        (to_c,) = [link for link in a1.keeper.links.links.values() if link.hello.channel == "m4cast/c"]
        assert to_c.sent_rows == 0
        (to_b,) = [link for link in a1.keeper.links.links.values() if link.hello.channel == "m4cast/b"]
        assert 10 <= to_b.sent_rows <= 11, "what matched; the first row was asked for, or came as an event, too"

    run(tmp_path, scenario)


def test_rows_that_nobody_outside_wants_stay_at_their_origin_until_somebody_does(tmp_path: Path) -> None:
    """Quenched: the gatekeeper gets none of them, and sends nothing; what was published meanwhile is fetched."""

    async def scenario(channels: Channels) -> None:
        a1, a2 = await channels.add("a", 2)
        b1, b2 = await channels.add("b", 2)
        await make_topic(a2)
        await a1.open_gate(gates(gateway("b", exports=(TOPIC,))))
        await b1.open_gate(gates(gateway("a", address=a1.gate, on_demand=(TOPIC,))))
        await until(lambda: bool(a1.keeper.links.links))
        kept = keep_id(a2.node_id)
        rows = a1.running.driver.node.interest.registrations.rows
        await until(lambda: kept in rows)
        await publish(a2, "PL")
        await until(lambda: kept not in rows)
        assert a1.keeper.view()["quiet"] == [TOPIC]
        channel = Channel([await a2.open_door()])
        await until_told(channel, is_quiet=True)
        here = len(a1.rows(TOPIC))
        frontier = a2.running.driver.node.interest.view
        await until(lambda: not any(kept_of(item) for item in frontier.entries[a1.node_id].items.values()))
        for number in range(20):
            await publish(a2, "PL" if number % 4 == 0 else "DE")
        assert len(a1.rows(TOPIC)) == here
        (to_b,) = a1.keeper.links.links.values()
        assert to_b.sent_rows == 0
        await subscribe(b2, "country = 'PL'", earliest=True)
        stream = StreamId(a2.node_id, TOPIC)
        await until(lambda: covered(b2, stream) == 22)
        assert sorted(row[1] for row in b2.rows(TOPIC)) == [1, 2, 6, 10, 14, 18]
        assert a1.keeper.view()["quiet"] == []
        await until_told(channel, is_quiet=False)

    run(tmp_path, scenario)


def test_the_way_to_one_stream_is_the_way_to_no_other(tmp_path: Path) -> None:
    """Rules are held against the stream that was found. Neither a question nor an answer on that way may be of another
    one: rows that are not exported stay here, and nothing is believed of the own streams."""

    async def scenario(channels: Channels) -> None:
        (a1,), (b1,) = await channels.add("a", 1), await channels.add("b", 1)
        await make_topic(a1)
        await publish(a1, "PL")
        await a1.running.publish("secret", b"not for b")
        await a1.open_gate(gates(gateway("b", exports=(TOPIC,))))
        await b1.open_gate(gates(gateway("a", address=a1.gate, on_demand=(TOPIC,))))
        found: list[FoundRows | None] = []
        ways: list[AcrossFrame] = []
        answer = a1.keeper.finding.frame_here

        def noted(message: AcrossFrame, frame: bytes) -> None:
            ways.append(message)
            answer(message, frame)

        a1.keeper.finding.frame_here = noted
        await until(lambda: bool(b1.keeper.links.links))
        b1.keeper.finding.find(StreamId(a1.node_id, TOPIC), 1, 0, found.append)
        await until(lambda: bool(found))
        assert found[0] is not None
        to_a = (Destination(a1.node_id, 0, 0),)
        call = SelectPullCall(1, a1.node_id, "secret", 1, 2, 1, 0, (), 1 << 20)
        answers: list[bytes] = []
        b1.keeper.finding.frame_here = lambda message, frame: answers.append(frame)
        for content in (call, BeginCall(2, a1.node_id, "secret", (0,), are_named=False)):
            b1.keeper.finding.send_frame(found[0].ask, encode_routed(RoutedFrame(b1.node_id, to_a, content)))
        await until(lambda: a1.running.driver.refusals.counts["gateway"] == 2)
        allowed = replace(call, call=3, topic=TOPIC)
        b1.keeper.finding.send_frame(found[0].ask, encode_routed(RoutedFrame(b1.node_id, to_a, allowed)))
        await until(lambda: len(answers) == 2)
        row, rest = (decode_routed(each).content for each in answers)
        assert isinstance(row, Batch) and isinstance(rest, SelectPullResp)
        assert row.stream.topic == rest.topic == TOPIC

        b1.keeper.finding.frame_here = b1.keeper.demanded.frame_here
        said = SelectPullResp(1, b1.node_id, "local", 1, 100, 1, 100, is_whole=True, is_fork=False, batches=())
        forged = encode_routed(RoutedFrame(a1.node_id, (Destination(b1.node_id, 0, 0),), said))
        a1.keeper.finding.send_back(UnitId(ways[0].asker), ways[0].ask, forged)
        await until(lambda: b1.running.driver.refusals.counts["gateway"] == 1)

    run(tmp_path, scenario)


async def until_told(channel: Channel, *, is_quiet: bool) -> None:
    """Wait until the origin reports whether other channels want anything of the topic."""
    async with asyncio.timeout(TIMEOUT_S):
        while (await asyncio.to_thread(channel.describe, TOPIC))["is_quiet"] != is_quiet:
            await asyncio.sleep(0.05)


def kept_of(item: InterestItem) -> bool:
    return item.topic_hash == KEEPS_HASH
