"""Departure: how a node leaves, alone or with the whole channel (PROTOCOL.md 4.7).

A node that leaves accepts no more publishes and waits, for a bounded time, until another node has its rows on disk.
When the channel is shut down all nodes leave: each passes the shutdown on, stays a moment for rows that are still in
flight, and ends. None announces that it left, and none fills holes: the stores remember the members, so that the nodes
find each other again when they are started.
"""

from collections.abc import Callable

from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.value import value

LEAVE_DRAIN_MS = 5_000
"""The time for which a leaving node waits for one other node to have its rows on disk; guess."""
SHUTDOWN_LINGER_MS = 1_000
"""The time for which a node stays after it hears of the shutdown: longer than a flood takes, so that what was published
before arrives; guess."""


@value
class LeaveDue(Timer):
    """Look again whether the node goes now."""


class Departure:
    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.draining = False
        """Publishes are refused so that existing rows can be copied; the node may still stay."""
        self.of_channel = False
        """All nodes leave."""
        self._not_before_ms = 0
        self._deadline_ms: int | None = None

    def why_no_publishes(self) -> tuple[str, str] | None:
        if self.of_channel:
            return "leaving", "the channel is being shut down: publish when it is up again"
        if self.draining or self._deadline_ms is not None:
            return "leaving", "this node leaves the channel: publish at another one"
        return None

    def leave(self, now_ms: int) -> None:
        if self._deadline_ms is None:
            self._deadline_ms = now_ms + LEAVE_DRAIN_MS
            self._timers.set(LeaveDue(), self._deadline_ms)

    def shut_down(self, now_ms: int) -> bool:
        """The channel is shut down; False when that is known already."""
        if self.of_channel:
            return False
        self.of_channel = True
        self.leave(now_ms)
        self._not_before_ms = now_ms + SHUTDOWN_LINGER_MS
        self._timers.set(LeaveDue(), self._not_before_ms)
        return True

    @property
    def begun(self) -> bool:
        """The node is leaving; until then `is_due` need not be asked."""
        return self._deadline_ms is not None

    def is_due(self, handed_over: Callable[[], bool], is_alone: bool, now_ms: int) -> bool:
        """True if the node leaves now; asked after every input."""
        if self._deadline_ms is None or now_ms < self._not_before_ms:
            return False
        if now_ms >= self._deadline_ms or handed_over() or (self.of_channel and is_alone):
            return True
        self._timers.set(LeaveDue(), self._deadline_ms)
        return False
