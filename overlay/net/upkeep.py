"""The upkeep of a node's store: retention from time to time, and a look at the free space."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from m4cast.overlay.errors import StoreError
from m4cast.overlay.net.node_clock import NodeClock
from m4cast.overlay.net.store_side import StoreSide
from m4cast.overlay.protocol.clocks import RetentionClock
from m4cast.overlay.protocol.effects import Input, StoreFull, Trimmed

log = logging.getLogger("m4cast.node")

CLOCK_SAVE_MS = 60_000
"""The retention clock is saved when it has moved by this much. Lower: more commits of an idle node; higher: a restart
takes it back further. Guess."""


class Upkeep:
    def __init__(self, side: StoreSide, clock: NodeClock, feed: Callable[[Input], None]) -> None:
        self.is_full = False
        """The store is nearly full, as the node was last informed."""
        self._side = side
        self._clock = clock
        self._feed = feed
        saved_ms = side.store.retention_clock_ms()
        self._retention_clock = RetentionClock(saved_ms, clock.now_ms())
        self._saved_ms = saved_ms or 0
        self._clocks_agree: bool | None = None

    async def trim_every(self, interval_s: float) -> None:
        """Run retention every `interval_s`, and whenever much was added, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._side.trim_soon.wait()
            self._side.trim_soon.clear()
            try:
                trimmed = await asyncio.wrap_future(self._side.store.trim(self._retention_time_ms()))
            except StoreError as error:
                log.error("retention removed nothing this time: %s", error)
                continue
            for stream, low in trimmed:
                self._feed(Trimmed(stream, low))
            self._check_free_space()

    async def watch_free_space(self, interval_s: float) -> None:
        """Check every `interval_s` whether the store is nearly full, until cancelled."""
        while True:
            self._check_free_space()
            await asyncio.sleep(interval_s)

    def retention_lag_ms(self) -> int:
        """The extra time for which rows are kept because the clock may be wrong. May be called from any
        thread."""
        at_ms = self._retention_clock.at_ms
        return 0 if at_ms is None else max(self._clock.wall_ms() - at_ms, 0)

    def _check_free_space(self) -> None:
        is_full = self._side.store.is_nearly_full()
        if is_full != self.is_full:
            self.is_full = is_full
            if is_full:
                log.error("the store is nearly full: publishes are refused until there is room again")
            else:
                log.info("the store has room again: publishes are taken")
            self._feed(StoreFull(is_full))

    def _retention_time_ms(self) -> int:
        """The time by which ages are measured in this round. Logs when the clock proves wrong, or right again."""
        clocks = self._side.node.clocks
        ahead_ms, agree = clocks.ahead_ms(), clocks.agree()
        at_ms = self._retention_clock.advance(self._clock.wall_ms(), self._clock.now_ms(), ahead_ms)
        if agree is False and self._clocks_agree is not False:
            assert ahead_ms is not None
            how = "ahead of" if ahead_ms > 0 else "behind"
            log.error(
                "this node's clock is %.0f s %s its neighbours': set whichever is wrong. Until they agree, rows are "
                "removed by age no sooner than they would be without the difference",
                abs(ahead_ms) / 1000,
                how,
            )
        elif agree and self._clocks_agree is False:
            log.info("this node's clock agrees with its neighbours' again")
        self._clocks_agree = self._clocks_agree if agree is None else agree
        reached_ms = self._retention_clock.at_ms
        if reached_ms is not None and abs(reached_ms - self._saved_ms) >= CLOCK_SAVE_MS:
            self._saved_ms = reached_ms
            self._side.store.save_retention_clock(reached_ms)
        return at_ms
