"""The clocks of a node, and its one timer.

The node runs on `now_ms`: the wall clock at the start plus what the monotonic clock has counted since. It never goes
back, and stands still while the host is suspended. Rows, records and leases are stamped by the wall clock (`wall_ms`),
and the node is informed when that is set. Rows age by a third clock, the retention clock, which no jump of the wall
clock moves at once (`protocol/clocks.py`).
"""

import asyncio
import logging
import time
from collections.abc import Callable

from m4cast.overlay.protocol.effects import ClockSet, Input, Wake

log = logging.getLogger("m4cast.node")

STEP_MS = 100
"""A wall clock that moved by less against the node's own time was not set. Guess."""


class NodeClock:
    """`feed` takes the inputs that clocks cause: `Wake` and `ClockSet`. `wall_s` is the wall clock, in seconds."""

    def __init__(self, feed: Callable[[Input], None], wall_s: Callable[[], float]) -> None:
        self.offset_ms = 0
        """Offset of the wall clock from `now_ms`, as last reported to the node."""
        self._feed = feed
        self._wall_s = wall_s
        self._started_s = wall_s() - time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        """The node's own time, for timers. It never goes back."""
        return int((self._started_s + time.monotonic()) * 1000)

    def wall_ms(self) -> int:
        """The time of the wall clock, for stamps. May be called from any thread."""
        return int(self._wall_s() * 1000)

    def check(self) -> None:
        """Inform the node if the wall clock was set since the last check."""
        offset_ms = self.wall_ms() - self.now_ms()
        if abs(offset_ms - self.offset_ms) >= STEP_MS:
            log.warning("the clock was set by %+.1f s", (offset_ms - self.offset_ms) / 1000)
            self.offset_ms = offset_ms
            self._feed(ClockSet(offset_ms))

    def wake_at(self, at_ms: int) -> None:
        """Feed a `Wake` at this time; replaces the time asked for before."""
        if self._timer is not None:
            self._timer.cancel()
        # Timers of the loop are whole milliseconds; one that is due already still waits for its turn.
        delay_s = max(at_ms - self.now_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def cancel_wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        self.check()
        self._feed(Wake())
