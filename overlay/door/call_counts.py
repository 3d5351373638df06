"""Counts how the calls of clients end, by call and outcome, and what their filters cost."""

import threading
from collections import Counter

from m4cast.overlay.door.quotas import FilterCpu


class CallCounts:
    """`call` and `outcome` are from small sets: the door's calls, "ok" and the codes of refusals."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self.filter_cpu = FilterCpu()

    def ended(self, call: str, outcome: str) -> None:
        with self._lock:
            self._counts[call, outcome] += 1

    def so_far(self) -> dict[tuple[str, str], int]:
        with self._lock:
            return dict(self._counts)
