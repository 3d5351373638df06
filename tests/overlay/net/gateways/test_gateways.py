"""Two and three real channels joined by gateways, on loopback: what crosses, what does not, and in which form."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from m4cast.overlay.federation.contract import AddressHeard, FederationInput
from m4cast.overlay.federation.messages import AdditionRefused, EventCopy, UnitHello
from m4cast.overlay.federation.units import Unit, UnitId, UnitRecord
from m4cast.overlay.ids import NodeId, StreamId, heir_of
from m4cast.overlay.net.certificates import make_ca, make_node_certificate
from m4cast.overlay.net.gateways.finding import FoundRows
from m4cast.overlay.net.gateways.imports import Imports
from m4cast.overlay.net.gateways.wire import frames
from m4cast.overlay.net.gateways.wire.frames import event_of, hop_part
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.frame import seal
from tests.overlay.net.gateways.federated import Channels, Member, gates, gateway, until
from tests.overlay.net.running import TIMEOUT_S


def run(folder: Path, scenario: Callable[[Channels], Awaitable[None]]) -> None:
    async def whole() -> None:
        channels = Channels(folder)
        try:
            await scenario(channels)
        finally:
            await channels.stop()

    asyncio.run(whole())


def test_an_imported_topic_comes_whole_and_byte_equal_and_nothing_else_does(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        a1, a2 = await channels.add("a", 2)
        b1, b2 = await channels.add("b", 2)
        await a2.running.publish("orders", b"before there was a gateway")
        await a1.open_gate(gates(gateway("b", exports=("orders", "unwanted"))))
        await b1.open_gate(gates(gateway("a", address=a1.gate, imports=("orders", "secret"))))
        for number in range(20):
            await a2.running.publish("orders", b"%d" % number, rows=1 + number % 3)
            await a2.running.publish("secret", b"never exported")
            await a2.running.publish("unwanted", b"never imported")
            await b2.running.publish("local", b"of b alone")
        stream = StreamId(a2.node_id, "orders")
        await until(lambda: len(b2.rows("orders")) == 21)
        assert b2.rows("orders") == a1.rows("orders")
        assert [(each, each.checksum) for each in b2.batches(stream)] == [
            (each, each.checksum) for each in a2.batches(stream)
        ]
        for member in (b1, b2):
            assert not member.rows("secret") and not member.rows("unwanted")
        assert not a1.rows("local")
        (link,) = b1.keeper.links.links.values()
        assert link.hello.channel == "m4cast/a"
        assert a1.node_id not in b1.running.driver.node.membership.table.neighbours

    run(tmp_path, scenario)


def test_gatekeepers_that_fall_and_return_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """Two gatekeepers on each side, a gateway between each pair; one after the other is away while rows are
    published."""

    async def scenario(channels: Channels) -> None:
        a = await channels.add("a", 3)
        b = await channels.add("b", 3)
        to_b, to_a = gateway("b", exports=("orders",)), {"imports": ("orders",)}
        await a[0].open_gate(gates(to_b))
        await a[1].open_gate(gates(to_b, join=a[0].gate))
        await b[0].open_gate(gates(gateway("a", address=a[0].gate, **to_a)))
        await b[1].open_gate(gates(gateway("a", address=a[1].gate, **to_a), join=b[0].gate))
        gatekeepers = [a[0], a[1], b[0], b[1]]
        await until(lambda: all(len(each.keeper.links.links) == 2 for each in gatekeepers))
        published = 0
        for gone in gatekeepers:
            config = gone.config
            assert config is not None
            await gone.close_gate()
            for member in (a[1], a[2]):
                for _ in range(5):
                    await member.running.publish("orders", b"%d" % published)
                    published += 1
            await gone.open_gate(config)
            await a[2].running.publish("orders", b"%d" % published)
            published += 1
        for member in b:
            await until(lambda member=member: len(member.rows("orders")) >= published)  # type: ignore[misc]
            for origin in (a[1].node_id, a[2].node_id):
                here = [row[1:] for row in member.rows("orders") if row[0] == origin]
                there = [row[1:] for row in a[2].rows("orders") if row[0] == origin]
                assert here == there

    run(tmp_path, scenario)


def a_batch(stream: StreamId) -> Batch:
    """One that its origin never published."""
    return seal(
        Batch(
            stream=stream,
            incarnation=1,
            first_sequence=100,
            row_count=1,
            origin_batch=900,
            schema_id=1,
            published_at_ms=1,
            publisher="",
            position="",
            part=0,
            parts=1,
            previous_checksum=7,
            payload=b"not of this channel",
        )
    )


def test_foreign_rows_of_an_own_origin_are_dropped_and_nobody_rolls_back(tmp_path: Path) -> None:
    """H44: of another node of the channel, and of an id that the gatekeeper itself once had."""

    async def scenario(channels: Channels) -> None:
        (a1, a2), (b1,) = await channels.add("a", 2), await channels.add("b", 1)
        before = (a1.node_id, a2.node_id)
        await a1.open_gate(gates(gateway("b", imports=("orders",))))
        await b1.open_gate(gates(gateway("a", address=a1.gate, exports=("orders",))))
        await until(lambda: bool(a1.keeper.links.links) and bool(b1.keeper.links.links))
        own, former = a2.node_id, heir_of(a1.node_id, 1_000, b"once")
        (link,) = b1.keeper.links.links.values()
        for number, origin in enumerate((own, former), start=1):
            forged = a_batch(StreamId(origin, "orders"))
            link.send(hop_part(EventCopy(number, event_of(forged), (), 0, ()), 1, None), forged)
        await until(lambda: a1.keeper.counts["own-origin"] == 2)
        await b1.running.publish("orders", b"of b1")
        await until(lambda: a2.rows("orders") == [(b1.node_id, 1, 1)])
        assert (a1.node_id, a2.node_id) == before

    run(tmp_path, scenario)


def test_rows_pass_through_a_channel_only_where_its_rules_say_so(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a1,), (b1,), (c1,) = [await channels.add(name, 1) for name in "abc"]
        await a1.open_gate(gates(gateway("b", exports=("orders", "open"))))
        passes = {"transits": ("open",)}
        await b1.open_gate(
            gates(
                gateway("a", address=a1.gate, imports=("orders", "open"), **passes),
                gateway("c", exports=("orders", "open"), **passes),
            )
        )
        await c1.open_gate(gates(gateway("b", address=b1.gate, imports=("orders", "open"))))
        await until(lambda: c1.keeper.active.get("import:orders") == 2)  # everywhere
        for number in range(5):
            await a1.running.publish("orders", b"%d" % number)
            await a1.running.publish("open", b"%d" % number)
        await b1.running.publish("orders", b"of b1")
        await until(lambda: len(c1.rows("open")) == 5 and len(b1.rows("orders")) == 6)
        await until(lambda: b1.keeper.counts["withheld"] >= 5)
        await until(lambda: bool(c1.rows("orders")))
        assert c1.rows("orders") == [(b1.node_id, 1, 1)]

    run(tmp_path, scenario)


async def low_found(member: Member, stream: StreamId) -> int:
    """The first row of a stream that anybody beyond the gateways says it keeps; 0: none."""
    answers: list[FoundRows | None] = []
    member.keeper.finding.find(stream, 1, 0, answers.append)
    await until(lambda: bool(answers))
    (found,) = answers
    return 0 if found is None else found.low


def test_a_channel_forbids_another_to_pass_its_rows_on_whatever_that_ones_rules_say(tmp_path: Path) -> None:
    """The ban is in the hop part, and survives a restart; rows that are looked for are not given either (H46)."""

    async def scenario(channels: Channels) -> None:
        (a1,), (b1,), (c1,) = [await channels.add(name, 1) for name in "abc"]
        topics = ("secret", "open")
        await a1.running.publish("secret", b"before there was a gateway")
        await a1.open_gate(gates(gateway("b", exports=topics, no_transit=("secret",))))
        passes = {"transits": topics}
        b_rules = gates(gateway("a", address=a1.gate, imports=topics, **passes), gateway("c", **passes))
        await b1.open_gate(b_rules)
        await a1.running.publish("secret", b"0")
        await until(lambda: len(b1.rows("secret")) == 2)
        config = a1.config
        assert config is not None
        await a1.close_gate()
        await b1.close_gate()
        await b1.open_gate(b_rules)  # what it knows of the ban is on its disk
        await c1.open_gate(gates(gateway("b", address=b1.gate, imports=topics)))
        await until(lambda: bool(c1.keeper.links.links))
        assert await low_found(c1, StreamId(a1.node_id, "secret")) == 0
        await a1.open_gate(config)
        await until(lambda: c1.keeper.active.get("import:secret") == 2)
        for number in range(5):
            await a1.running.publish("secret", b"%d" % number)
            await a1.running.publish("open", b"%d" % number)
        await until(lambda: len(c1.rows("open")) == 5 and len(b1.rows("secret")) == 7)
        await until(lambda: b1.keeper.counts["withheld"] >= 5)
        assert [await low_found(c1, StreamId(a1.node_id, topic)) for topic in topics] == [0, 1]
        assert not c1.rows("secret")

    run(tmp_path, scenario)


def test_a_gateway_has_trust_anchors_of_its_own(tmp_path: Path) -> None:
    """A channel is let in with certificates of its own CA. Another CA's are refused, even if that is trusted for the
    gateway with another channel."""

    async def scenario(channels: Channels) -> None:
        certs = {name: tmp_path / f"certs-{name}" for name in ("a", "b", "c")}
        for name, folder in certs.items():
            folder.mkdir()
            make_ca(folder)
            make_node_certificate(folder, "a1" if name == "a" else "b1")

        def files(name: str, node: str) -> dict[str, str]:
            own = {"tls_ca": "ca.crt", "tls_cert": f"{node}.crt", "tls_key": f"{node}.key"}
            return {setting: str(certs[name] / file) for setting, file in own.items()}

        ca = {name: str(folder / "ca.crt") for name, folder in certs.items()}
        (a1,) = await channels.add("a", 1, **files("a", "a1"))
        (b1,) = await channels.add("b", 1, **files("b", "b1"))
        exports = {"exports": ("orders",)}
        both = (gateway("b", ca=ca["b"], **exports), gateway("c", ca=ca["c"], **exports))
        await a1.open_gate(gates(*both), **files("a", "a1"))
        to_a = gates(gateway("a", address=a1.gate, ca=ca["a"], imports=("orders",)))
        await b1.open_gate(to_a, **files("b", "b1"))
        await a1.running.publish("orders", b"for b")
        await until(lambda: len(b1.rows("orders")) == 1)
        (link,) = a1.keeper.links.links.values()
        assert link.peer_name == "b1"
        others = Channels(tmp_path / "others")
        try:
            (poser,) = await others.add("b", 1, **files("c", "b1"))
            await poser.open_gate(to_a, **files("c", "b1"))
            await until(lambda: a1.running.driver.refused["gateway"] > 0)
            await until(lambda: "cannot be reached" in poser.keeper.places.failure)
            assert list(a1.keeper.links.links.values()) == [link] and not poser.keeper.links.links
        finally:
            await others.stop()

    run(tmp_path, scenario)


def test_a_node_of_another_channel_is_no_member_by_whatever_it_says_of_itself(tmp_path: Path) -> None:
    """A link without a request, whose hello names this channel's own unit: members are told what is inside."""

    async def scenario(channels: Channels) -> None:
        (a1,), (b1,) = await channels.add("a", 1), await channels.add("b", 1)
        await a1.open_gate(gates(gateway("b", exports=("orders",))))
        await b1.open_gate(gates(gateway("a", address=a1.gate)))
        await until(lambda: bool(a1.keeper.links.links))
        _, *above = a1.keeper.machine.vertex.own_records()
        for node in (UnitId(b1.node_id), UnitId(bytes(16))):
            poser = await b1.keeper.links._connect(a1.gate, is_call=False)
            assert poser is not None
            poser.send(UnitHello((UnitRecord(Unit(0, node), above[0].unit.id, 9, 1, "b:1"), *above), bytes(8)))
            with suppress(EOFError):
                async with asyncio.timeout(TIMEOUT_S):
                    while True:
                        await poser.receive()
            poser.abort()
        assert a1.running.driver.refused["gateway"] == 2
        assert not a1.keeper._fellows() and len(a1.keeper.links.links) == 1

    run(tmp_path, scenario)


def test_a_call_that_makes_no_sense_is_refused_and_a_gatekeeper_that_cannot_go_on_stops(tmp_path: Path) -> None:
    """Instead of going on without a part of itself."""

    async def scenario(channels: Channels) -> None:
        (a1,), (b1,) = await channels.add("a", 1), await channels.add("b", 1)
        await a1.open_gate(gates(gateway("b", exports=("orders",))))
        await b1.open_gate(gates(gateway("a", address=a1.gate)))
        await until(lambda: bool(a1.keeper.links.links))
        feed = a1.keeper.feed

        def broken(event: FederationInput) -> None:
            if isinstance(event, AddressHeard):
                raise KeyError("made up")
            feed(event)

        a1.keeper.feed = broken  # type: ignore[method-assign]
        b1.keeper.links.call(a1.gate, AdditionRefused(1, "why"))
        await until(lambda: a1.running.driver.refused["gateway"] == 1)
        assert len(a1.keeper.links.links) == 1 and a1.keeper.links._strangers == 0

        def lost(stream: StreamId) -> None:
            raise ValueError("cannot happen")

        a1.keeper.exports._export = lost  # type: ignore[assignment]
        await a1.running.publish("orders", b"1")
        async with asyncio.timeout(TIMEOUT_S):
            await a1.running.driver.stopped.wait()

    run(tmp_path, scenario)


def test_rows_that_wait_are_dropped_at_the_start_if_their_topic_is_imported_no_longer() -> None:
    dropped: list[tuple[StreamId, int]] = []
    here, gone = StreamId(NodeId(bytes(16)), "orders"), StreamId(NodeId(bytes(16)), "former")
    kept: Any = SimpleNamespace(
        imported=lambda: [a_batch(here), a_batch(gone)], drop_import=lambda *row: dropped.append(row)
    )
    side: Any = SimpleNamespace(held=lambda stream: None)
    imports = Imports(side, kept, SimpleNamespace(), {"orders": 0}, lambda: False, lambda: None)  # type: ignore[arg-type]
    imports.start(NodeId(bytes(16)))
    assert dropped == [(gone, 100)] and list(imports._streams) == [here]


def test_a_stranger_may_send_no_more_than_a_hello(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a1,) = await channels.add("a", 1)
        await a1.open_gate(gates(gateway("b", exports=("orders",))))
        host, _, port = a1.gate.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write((frames.HELLO_BYTES_MAX + 1).to_bytes(4, "little"))
        async with asyncio.timeout(TIMEOUT_S):
            assert b"at most 4096 are read" in await reader.read()  # without waiting for the rest
        writer.close()
        assert a1.running.driver.refused["gateway"] == 1

    run(tmp_path, scenario)
