"""Deadlines of one node, kept inside the pure core: the driver only ever has to keep one wake-up time.

A timer is a key, a tuple whose first item names the sub-machine's purpose. Setting a key again moves it; firing
removes it. Stale heap entries are dropped when they surface.
"""

from heapq import heappop, heappush

TimerKey = tuple[object, ...]


class Timers:
    __slots__ = ("_count", "_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._count = 0  # equal deadlines fire in the order they were set

    def set(self, key: TimerKey, at_ms: int) -> None:
        if self._due.get(key) != at_ms:
            self._due[key] = at_ms
            self._count += 1
            heappush(self._heap, (at_ms, self._count, key))

    def set_sooner(self, key: TimerKey, at_ms: int) -> None:
        """Set the timer unless it is due earlier already."""
        due = self._due.get(key)
        if due is None or due > at_ms:
            self.set(key, at_ms)

    def cancel(self, key: TimerKey) -> None:
        self._due.pop(key, None)

    def is_set(self, key: TimerKey) -> bool:
        return key in self._due

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """The next timer that is due, removed; None when there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, key = heappop(self._heap)
            if self._due.get(key) == at_ms:
                del self._due[key]
                return key
        return None

    def next_at(self) -> int | None:
        while self._heap:
            at_ms, _, key = self._heap[0]
            if self._due.get(key) == at_ms:
                return at_ms
            heappop(self._heap)
        return None
