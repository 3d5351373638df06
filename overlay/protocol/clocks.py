"""Clocks: what this node's clock shows, what its neighbours' show, and by which time rows grow old.

A node runs on `now_ms`, which never goes back and by which all timers are set. Rows and delivery records are stamped by
the wall clock, which may be wrong, and may be set while the node runs: it shows `now_ms + offset_ms`, and the driver
reports each change of the offset. Nothing in the protocol waits for the wall clock or orders by it.

Each heartbeat carries the time that the sender's clock shows. A node compares its own clock with the median of its
neighbours', so that a single wrong one does not matter. A message takes a while, so a neighbour's clock always seems to
be a little slow.

Rows that are removed by age are gone, so a clock that jumps must not remove any by itself. Ages are measured by a
*retention clock*: it is never later than the wall clock, and it follows the wall clock at a limited speed, in
milliseconds per millisecond that the node has run:

    60   while the neighbours' clocks agree with this node's
     2   while there are no neighbours to ask
     1   while this node's clock is ahead of theirs

Thus after a real absence (the node was off, its host was suspended) rows that are too old are removed within hours, or
within twice the time if the node is alone. A clock that is wrong by a year removes next to nothing that it should not
as long as a single neighbour's is right, and leaves hours to set it if all are wrong alike. The speeds are guesses.
"""

from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId

TOLERANCE_MS = 60_000
"""Clocks agree that differ by no more. Heartbeats may wait for seconds behind large frames; guess."""
AGREED_SPEED = 60
ALONE_SPEED = 2
DISPUTED_SPEED = 1
ALONE_PATIENCE_MS = 60_000
"""The time for which a node with an empty store waits for a neighbour to confirm its clock; guess."""


@dataclass(slots=True)
class Clocks:
    offset_ms: int = 0
    """The time by which this node's wall clock is ahead of `now_ms`."""
    _others: dict[NodeId, int] = field(default_factory=dict)
    """The time by which each neighbour's clock was ahead of `now_ms`, by its last heartbeat."""

    def heard(self, node_id: NodeId, clock_ms: int, now_ms: int) -> None:
        """A neighbour's heartbeat carries the time of its clock; 0 if it carries none."""
        if clock_ms:
            self._others[node_id] = clock_ms - now_ms

    def forget(self, node_id: NodeId) -> None:
        self._others.pop(node_id, None)

    def ahead_ms(self) -> int | None:
        """Return the time by which this node's clock is ahead of the median of its neighbours', negative if it is slow;
        None when no neighbour has sent its time. Of two in the middle the earlier one counts: what is removed too early
        is lost."""
        if not self._others:
            return None
        offsets = sorted(self._others.values())
        return self.offset_ms - offsets[(len(offsets) - 1) // 2]

    def agree(self) -> bool | None:
        """Return whether this node's clock and its neighbours' show about the same time; None when there are none to
        ask."""
        ahead_ms = self.ahead_ms()
        return None if ahead_ms is None else abs(ahead_ms) <= TOLERANCE_MS


@dataclass(slots=True)
class RetentionClock:
    """The clock by which rows age. `at_ms` is the time that it has reached, None while that is not known: a store
    without rows has no past, and its host may have booted just now, with a clock that is not set yet. `seen_ms` is the
    node's own time (`now_ms`) of the last step, at first that of its start."""

    at_ms: int | None
    seen_ms: int

    def advance(self, clock_ms: int, now_ms: int, ahead_ms: int | None) -> int:
        """The time by which ages are to be measured now. `ahead_ms`: of this node's clock, see `Clocks`.

        A clock that shows less than was reached takes nothing back, unless the neighbours agree with it."""
        is_agreed = ahead_ms is not None and abs(ahead_ms) <= TOLERANCE_MS
        if self.at_ms is None:
            if not is_agreed and (ahead_ms is not None or now_ms - self.seen_ms < ALONE_PATIENCE_MS):
                return 0
            self.at_ms = clock_ms
        elif ahead_ms is None:
            self._follow(max(clock_ms, self.at_ms), ALONE_SPEED * (now_ms - self.seen_ms))
        elif ahead_ms > TOLERANCE_MS:
            self._follow(max(clock_ms, self.at_ms), DISPUTED_SPEED * (now_ms - self.seen_ms))
        else:
            self._follow(clock_ms if is_agreed else max(clock_ms, self.at_ms), AGREED_SPEED * (now_ms - self.seen_ms))
        self.seen_ms = now_ms
        return min(self.at_ms, clock_ms)

    def _follow(self, target_ms: int, step_ms: int) -> None:
        assert self.at_ms is not None
        self.at_ms = min(target_ms, self.at_ms + step_ms)
