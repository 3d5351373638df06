"""The share of its node that one connection may have: credits of subscriptions, unanswered publishes, turns on the
loop."""

import asyncio

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.door.web.live.messages import CREDIT_MAX, LivePublish, LiveRefused

Publish = LivePublish | LiveRefused
SHARE = 4_096
"""Rows of one value that a connection parses and gathers on the loop before others have their turn: 0.7 ms (measured).
Higher: they wait for longer. Lower: more batches of fewer publishes."""
FRAME_ROWS = 128
"""A frame takes as long as so many of these rows, however small it is. Guess."""
ROW_BYTES = 32
"""A row with more bytes takes as long as several. Measured for long texts."""


class LiveSubscription:
    """The credit of a subscription: how many more frames its client wants."""

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._added = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def add(self, frames: int) -> None:
        self._credit = min(self._credit + frames, CREDIT_MAX)
        self._added.set()

    async def take(self) -> None:
        """Use one. Only the subscription's own task does."""
        while not self._credit:
            self._added.clear()
            await self._added.wait()
        self._credit -= 1


class PublishWindow:
    """The unanswered publishes of a connection: their number and bytes. Used by the connection's reader and its
    reports."""

    def __init__(self, limits: WebLimits) -> None:
        self._limits = limits
        self._frames = 0
        self._bytes = 0
        self._left = asyncio.Event()

    async def enter(self, size: int) -> None:
        """Wait until there is room. A single publish always has."""
        while self._frames and (
            self._frames >= self._limits.window_frames or self._bytes + size > self._limits.window_bytes
        ):
            self._left.clear()
            await self._left.wait()
        self._frames += 1
        self._bytes += size

    def leave(self, size: int) -> None:
        self._frames -= 1
        self._bytes -= size
        self._left.set()


class LoopShare:
    """The work that a connection has done on the loop since others had their turn."""

    def __init__(self) -> None:
        self._left = SHARE

    def is_used_up(self, rows: int, size: int) -> bool:
        """Count a frame. True once for every share."""
        self._left -= max(FRAME_ROWS, rows, size // ROW_BYTES)
        if self._left > 0:
            return False
        self._left = SHARE
        return True


class OpenPublish:
    """A publish of a connection, from its frame to its answer."""

    __slots__ = ("outcome", "publish", "size", "taken")

    def __init__(self, publish: Publish, size: int, taken: int) -> None:
        self.publish = publish
        self.size = size
        """The bytes of its frame."""
        self.taken = taken
        """The bytes that it has of the memory for bodies."""
        self.outcome: str | Refusal | None = None
        """Its ranges, as JSON, or why it was refused; None: not known yet."""
