"""Settings of gateways that limit them, on loopback: what waits, and that it comes in the end."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from m4cast.overlay.net.gateways.exports import READ_BYTES
from tests.overlay.net.gateways.federated import Channels, gates, gateway, until
from tests.overlay.net.gateways.test_gateways import run

BATCH_BYTES = 600_000
QUEUE_BYTES = 1 << 20
SLOW = {"bytes_per_s_max": 10_000}
"""A minute for each batch."""


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
