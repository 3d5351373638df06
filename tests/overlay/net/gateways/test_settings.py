"""Settings of gateways that limit them, on loopback: what waits, and that it comes in the end."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from m4cast.overlay.federation.contract import WantRows
from m4cast.overlay.federation.gateways import EXTRA_MAX
from m4cast.overlay.federation.messages import UnitWant
from m4cast.overlay.federation.vertex import UnitLink
from m4cast.overlay.net.gateways import gatekeeper
from m4cast.overlay.net.gateways.exports import READ_BYTES
from m4cast.overlay.protocol.wire.batch import Skip
from tests.overlay.net.gateways.federated import Channels, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run

BATCH_BYTES = 600_000
QUEUE_BYTES = 1 << 20
SLOW = {"bytes_per_s_max": 10_000}
"""A minute for each batch."""
PACED_BATCHES, PACED_BYTES = 10, 50_000
PACED = {"bytes_per_s_max": 100_000}
"""Half a second for each of these, longer for all than an acknowledgement may take."""


@pytest.mark.parametrize(
    ("rules", "settings"),
    [({"queue_bytes_max": QUEUE_BYTES}, {}), ({"queue_bytes_max": 1 << 30}, {"in_flight_max": 2})],
)
def test_a_slow_gateway_lets_batches_wait_in_the_log(
    tmp_path: Path, rules: dict[str, Any], settings: dict[str, Any]
) -> None:
    """The first batch is sent, a few wait in memory, the rest is not read; without the limit all of them come."""

    async def scenario(channels: Channels) -> None:
        (a1,), (b1,) = await channels.add("a", 1), await channels.add("b", 1)
        to_b = {"exports": ("orders",)}
        await a1.open_gate(gates(gateway("b", **to_b, **rules, **SLOW), **settings))
        await b1.open_gate(gates(gateway("a", address=a1.gate, imports=("orders",))))
        await until(lambda: b1.keeper.active.get("import:orders") == 2)
        for number in range(10):
            await a1.running.publish("orders", bytes([number]) * BATCH_BYTES)
        await until(lambda: len(b1.rows("orders")) == 1)
        await until(a1.keeper._is_full)
        (link,) = a1.keeper.links.links.values()
        # The queue may be exceeded by what is read at a time, which is whole batches.
        assert 0 < link.queued_bytes <= QUEUE_BYTES + READ_BYTES + BATCH_BYTES and a1.keeper.exports.batches <= 5
        assert len(b1.rows("orders")) == 1, "the second one waits for its turn"
        config = a1.config
        assert config is not None
        await a1.close_gate()
        await a1.open_gate(gates(gateway("b", **to_b), listen=config.listen))
        await until(lambda: len(b1.rows("orders")) == 10)
        assert b1.rows("orders") == a1.rows("orders")

    run(tmp_path, scenario)


def test_pulls_of_many_streams_wait_for_their_turn_at_a_slow_gateway(tmp_path: Path) -> None:
    """What was there before the gateway is looked for, stream by stream: all at once it would be in memory whole."""

    async def scenario(channels: Channels) -> None:
        (a1,), (b1,) = await channels.add("a", 1), await channels.add("b", 1)
        topics = tuple(f"orders{number}" for number in range(8))
        for topic in topics:
            await a1.running.publish(topic, bytes(BATCH_BYTES))
        await a1.open_gate(gates(gateway("b", exports=topics, queue_bytes_max=QUEUE_BYTES, **SLOW)))
        await b1.open_gate(gates(gateway("a", address=a1.gate, imports=topics)))
        await until(lambda: any(link.pulls == 6 for link in a1.keeper.links.links.values()))
        (link,) = a1.keeper.links.links.values()
        assert link.queued_bytes <= BATCH_BYTES + QUEUE_BYTES and link.sent_batches == 2
        config = a1.config
        assert config is not None
        await a1.close_gate()
        await a1.open_gate(gates(gateway("b", exports=topics), listen=config.listen))
        await until(lambda: all(len(b1.rows(topic)) == 1 for topic in topics))

    run(tmp_path, scenario)


def test_all_batches_come_under_a_limit_once_and_wants_do_not_wait_for_them(tmp_path: Path) -> None:
    """The last batch waits for longer than acknowledgements may take: its link is not suspected for that, so nothing is
    taken back and sent again. What b begins to want meanwhile is known everywhere before the batches have come."""

    async def scenario(channels: Channels) -> None:
        (a1,), (b1,) = await channels.add("a", 1), await channels.add("b", 1)
        await a1.open_gate(gates(gateway("b", exports=("orders", "more"), **PACED)))
        to_a = {"address": a1.gate, "imports": ("orders",)}
        await b1.open_gate(gates(gateway("a", **to_a)))
        await until(lambda: b1.keeper.active.get("import:orders") == 2)
        suspected: list[UnitLink] = []
        for number in range(PACED_BATCHES):
            await a1.running.publish("orders", bytes([number]) * PACED_BYTES)
        b1.keeper.feed(WantRows("import:more", UnitWant("more")))
        await until(lambda: b1.keeper.active.get("import:more") == 2)
        assert len(b1.rows("orders")) < PACED_BATCHES

        def is_there() -> bool:
            suspected.extend(link for link in a1.keeper.machine.vertex.ready_links() if link.is_suspected)
            return len(b1.rows("orders")) == PACED_BATCHES

        await until(is_there)
        (link,) = a1.keeper.links.links.values()
        assert link.sent_batches == PACED_BATCHES and not suspected
        assert b1.rows("orders") == a1.rows("orders")

    run(tmp_path, scenario)


def test_the_cost_of_a_paced_link_rises_with_what_waits_and_falls_when_nothing_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G25 on a real gateway: a second for each batch; the cost is that of the oldest one that waits."""
    monkeypatch.setattr(gatekeeper, "LOOK_S", 0.02)
    seconds = {"bytes_per_s_max": BATCH_BYTES}

    async def scenario(channels: Channels) -> None:
        (a1,), (b1,) = await channels.add("a", 1), await channels.add("b", 1)
        await a1.open_gate(gates(gateway("b", exports=("orders",), **seconds)))
        vertex = a1.keeper.machine.vertex
        vertex.settings = replace(vertex.settings, check_ms=100)
        await b1.open_gate(gates(gateway("a", address=a1.gate, imports=("orders",))))
        await until(lambda: b1.keeper.active.get("import:orders") == 2)
        (link,) = vertex.ready_links()
        found = [link.extra]

        def costs(extra: int) -> bool:
            found.append(link.extra)
            return found[-1] == extra

        assert costs(0), "an idle link costs nothing more"
        for number in range(4):
            await a1.running.publish("orders", bytes([number]) * BATCH_BYTES)
        await until(lambda: costs(EXTRA_MAX))
        assert found == sorted(found) and len(b1.rows("orders")) < 4
        found.clear()
        await until(lambda: costs(0))
        assert found == sorted(found, reverse=True) and len(b1.rows("orders")) == 4

    run(tmp_path, scenario)


def test_a_gatekeeper_refuses_addresses_that_its_settings_name(tmp_path: Path) -> None:
    """The refusal is told to the newcomer, leaves no trace, and another gatekeeper may let it in."""

    async def scenario(channels: Channels) -> None:
        (a1, a2), (b1,) = await channels.add("a", 2), await channels.add("b", 1)
        to_b = gateway("b", exports=("orders",))
        await a1.open_gate(gates(to_b, hosts_refused=("10.2.", "127.0.0.")))
        await a2.open_gate(gates(to_b, hosts_refused=("10.2.",)))
        await b1.open_gate(gates(gateway("a", address=a1.gate, imports=("orders",))))
        await until(lambda: bool(b1.keeper.places.failure))
        assert b1.keeper.places.failure == f"{a1.gate} refuses hosts like {b1.gate}"
        assert not a1.keeper.links.links and not b1.keeper.links.links
        config = b1.config
        assert config is not None
        await b1.close_gate()
        await b1.open_gate(gates(gateway("a", address=a2.gate, imports=("orders",)), listen=config.listen))
        await until(lambda: b1.keeper.active.get("import:orders") == 2)
        assert [link.hello.address for link in b1.keeper.links.links.values()] == [a2.gate]

    run(tmp_path, scenario)


@pytest.mark.parametrize("first", ["late", "earliest"])
def test_gatekeepers_whose_imports_begin_differently_leave_no_gap(tmp_path: Path, first: str) -> None:
    """H43: whichever of b's gatekeepers has its gateway first decides where the stream begins. What is below was never
    promised, and the other one does not bring it; what is above comes once, and none of it becomes a skip."""

    async def scenario(channels: Channels) -> None:
        (a1,), (b1, b2) = await channels.add("a", 1), await channels.add("b", 2)
        await a1.open_gate(gates(gateway("b", exports=("orders",))))
        for number in range(3):
            await a1.running.publish("orders", b"%d" % number)
        last_ms = time.time_ns() // 1_000_000
        await until(lambda: time.time_ns() // 1_000_000 > last_ms + 1)
        begins = {"late": datetime.fromtimestamp((last_ms + 1) / 1000, UTC).isoformat(), "earliest": "earliest"}
        second = "earliest" if first == "late" else "late"
        for number in range(3, 6):
            await a1.running.publish("orders", b"%d" % number)
        to_a = {"address": a1.gate, "imports": ("orders",)}
        await b1.open_gate(gates(gateway("a", begin=begins[first], **to_a)))
        begin = 3 if first == "late" else 0
        await until(lambda: len(b2.rows("orders")) == 6 - begin)
        await b2.open_gate(gates(gateway("a", begin=begins[second], **to_a), join=b1.gate))
        await until(lambda: len(a1.keeper.links.links) == 2)
        for number in range(6, 9):
            await a1.running.publish("orders", b"%d" % number)
        await until(lambda: all(len(each.rows("orders")) == 9 - begin for each in (b1, b2)))
        for each in (b1, b2):
            assert each.rows("orders") == a1.rows("orders")[begin:]
            skips = [skip for skip in each.running.deliveries if isinstance(skip, Skip)]
            assert all(skip.last_sequence <= begin for skip in skips), skips

    run(tmp_path, scenario)


def test_an_import_begins_with_the_time_that_it_names(tmp_path: Path) -> None:
    async def scenario(channels: Channels) -> None:
        (a1,), (b1,) = await channels.add("a", 1), await channels.add("b", 1)
        await a1.open_gate(gates(gateway("b", exports=("orders",))))
        for number in range(3):
            await a1.running.publish("orders", b"%d" % number)
        last_ms = time.time_ns() // 1_000_000
        await until(lambda: time.time_ns() // 1_000_000 > last_ms + 1)
        begin = datetime.fromtimestamp((last_ms + 1) / 1000, UTC).isoformat()
        for number in range(3, 6):
            await a1.running.publish("orders", b"%d" % number)
        await b1.open_gate(gates(gateway("a", address=a1.gate, imports=("orders",), begin=begin)))
        await until(lambda: len(b1.rows("orders")) == 3)
        assert b1.rows("orders") == a1.rows("orders")[3:]

    run(tmp_path, scenario)
