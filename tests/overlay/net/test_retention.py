"""Retention of a running node follows what is written, not only the clock."""

import asyncio
from pathlib import Path

import pytest

from m4cast.overlay.ids import StreamId
from m4cast.overlay.net import store_side
from m4cast.overlay.store.tables.topics import Keep
from tests.overlay.net.running import start_node

PAYLOAD = bytes(100_000)
HOUR_S = 3_600.0


def test_what_is_over_its_limit_goes_when_enough_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_side, "TRIM_BYTES", 10 * len(PAYLOAD))

    async def scenario() -> None:
        node = await start_node(tmp_path, "n1")
        trimming = asyncio.create_task(node.driver.upkeep.trim_every(HOUR_S))
        try:
            node.store.set_keep("t", Keep(bytes_max=3 * len(PAYLOAD))).result()
            stream = StreamId(node.driver.node.me.node_id, "t")
            for _ in range(9):
                await node.publish("t", PAYLOAD)
            assert node.store.streams()[stream] == (1, 10), "too little for a look"
            await node.publish("t", PAYLOAD)
            await node.until(lambda: node.store.streams()[stream] == (9, 11))
            await node.until(lambda: node.driver.node.holdings.open(stream).low == 9)
        finally:
            trimming.cancel()
            await node.stop()

    asyncio.run(scenario())
