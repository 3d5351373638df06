"""Clocks on the wall that are wrong or are set, with real nodes: which times rows get, and that none are removed."""

import asyncio
import logging
import time
from pathlib import Path

import pytest

from m4cast.overlay.ids import StreamId
from m4cast.overlay.store.store import Keep
from m4cast.overlay.store.tables.topics import DAY_MS
from tests.overlay.net.running import Running, settled, start_node

YEAR_S = 365 * 86_400.0
ROUND_S = 0.01


class Clock:
    """A clock on the wall that can be set."""

    def __init__(self) -> None:
        self.wrong_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.wrong_s


async def rounds(node: Running, count: int) -> None:
    """Let retention look at the store so many times."""
    trims = 0
    trim = node.store.trim

    def counted(now_ms: int):  # type: ignore[no-untyped-def]  # as `Store.trim`
        nonlocal trims
        trims += 1
        return trim(now_ms)

    node.store.trim = counted  # type: ignore[method-assign]
    trimming = asyncio.create_task(node.driver.upkeep.trim_every(ROUND_S))
    try:
        await node.until(lambda: trims > count)
    finally:
        trimming.cancel()
        node.store.trim = trim  # type: ignore[method-assign]


def test_a_clock_that_is_a_year_ahead_at_a_start_removes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Alone, then beside a neighbour whose clock is right; and the clock is set right while the node runs."""
    clock = Clock()

    async def scenario() -> None:
        node = await start_node(tmp_path, "n1", clock=clock)
        stream = StreamId(node.driver.node.me.node_id, "t")
        node.store.set_keep("t", Keep(age_ms_max=7 * DAY_MS)).result()
        await node.publish("t", b"row")
        await node.stop()
        clock.wrong_s = YEAR_S
        node = await start_node(tmp_path, "n1", clock=clock)
        await rounds(node, 3)
        assert node.store.streams()[stream] == (1, 2)
        assert node.driver.upkeep.retention_lag_ms() > 300 * DAY_MS
        other = await start_node(tmp_path, "n2", (node.driver.node.me.address,))
        await settled([node, other])
        await node.until(lambda: node.driver.node.clocks.agree() is False)
        await rounds(node, 3)
        assert node.store.streams()[stream] == (1, 2)
        assert "31536000 s ahead of its neighbours'" in caplog.text
        clock.wrong_s = 0.0
        await node.until(lambda: node.driver.node.clocks.agree() is True)
        await rounds(node, 3)
        assert node.store.streams()[stream] == (1, 2)
        assert node.driver.upkeep.retention_lag_ms() < 60_000
        assert "agrees with its neighbours' again" in caplog.text
        await node.stop()
        await other.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())


def test_rows_get_the_time_of_the_clock_as_it_is_set_and_it_never_goes_back(tmp_path: Path) -> None:
    clock = Clock()

    async def scenario() -> None:
        node = await start_node(tmp_path, "n1", clock=clock)
        await node.publish("t", b"now")
        for wrong_s in (YEAR_S, 0.0):
            clock.wrong_s = wrong_s
            offset = node.driver.node.clocks.offset_ms
            await node.until(lambda offset=offset: node.driver.node.clocks.offset_ms != offset)  # type: ignore[misc]
            await node.publish("t", b"later")
        await node.publish("u", b"another stream")
        await node.stop()
        node = await start_node(tmp_path, "n1", clock=clock)
        await node.publish("t", b"after a restart")
        me = node.driver.node.me.node_id
        now, ahead, *later = (batch.published_at_ms for batch in node.store.read_range(StreamId(me, "t"), 1, 9, 9_999))
        assert 0 <= ahead - now - YEAR_S * 1000 < 60_000
        assert later == [ahead, ahead]
        [fresh] = node.store.read_range(StreamId(me, "u"), 1, 9, 9_999)
        assert fresh.published_at_ms < ahead
        assert node.store.sequence_at(StreamId(me, "t"), now + 1) == 2
        await node.stop()

    asyncio.run(scenario())


def test_how_far_ages_were_measured_is_known_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()

    async def scenario() -> None:
        node = await start_node(tmp_path, "n1", clock=clock)
        assert node.store.retention_clock_ms() is None
        await node.publish("t", b"row")
        kept_ms = node.store.retention_clock_ms()
        assert kept_ms is not None and abs(kept_ms - time.time() * 1000) < 60_000, (
            "as in stores of before: its last row"
        )
        await node.stop()
        node = await start_node(tmp_path, "n1", clock=clock)
        node.store.save_retention_clock(kept_ms + 5_000).result()
        await node.stop()
        node = await start_node(tmp_path, "n1", clock=clock)
        assert node.store.retention_clock_ms() == kept_ms + 5_000
        await node.stop()

    asyncio.run(scenario())
