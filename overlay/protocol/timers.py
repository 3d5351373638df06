"""Deadlines of one node, kept inside the pure core: the driver only ever has to keep one wake-up time.

A timer is a value that says what is due; each room defines its own kinds. Setting it again moves it; firing removes it.
Stale heap entries are dropped when they surface.
"""

from heapq import heappop, heappush


class Timer:
    """A task that is due at a deadline. Two timers are the same if they are of one kind and their fields are equal."""

    __slots__ = ()


class Timers:
    __slots__ = ("_count", "_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[Timer, int] = {}
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0  # equal deadlines fire in the order they were set

    def set(self, timer: Timer, at_ms: int) -> None:
        if self._due.get(timer) != at_ms:
            self._due[timer] = at_ms
            self._count += 1
            heappush(self._heap, (at_ms, self._count, timer))

    def set_sooner(self, timer: Timer, at_ms: int) -> None:
        """Set the timer unless it is due earlier already."""
        due = self._due.get(timer)
        if due is None or due > at_ms:
            self.set(timer, at_ms)

    def cancel(self, timer: Timer) -> None:
        self._due.pop(timer, None)

    def is_set(self, timer: Timer) -> bool:
        return timer in self._due

    def pop_due(self, now_ms: int) -> Timer | None:
        """The next timer that is due, removed; None when there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, timer = heappop(self._heap)
            if self._due.get(timer) == at_ms:
                del self._due[timer]
                return timer
        return None

    def next_at(self) -> int | None:
        while self._heap:
            at_ms, _, timer = self._heap[0]
            if self._due.get(timer) == at_ms:
                return at_ms
            heappop(self._heap)
        return None
