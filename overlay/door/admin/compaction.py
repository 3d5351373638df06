"""Compaction by itself: tables lose the batches that nothing stands in, without anybody asking.

One thread looks at the topics of the node now and then. A table is folded only if rows have come since the last time,
and the work takes at most one part in `SHARE` of a thread's time, however many tables there are. What may be
removed is decided by `TableReading.needed_from`: rows that stand, removals of the last seven days, and removals whose
older rows are still here are never touched, nor what readers hold.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.errors import StoreError

if TYPE_CHECKING:
    from m4cast.overlay.door.admin.topics import TopicAdmin

log = logging.getLogger("m4cast.door")

EVERY_S = 60.0
"""The interval at which tables are checked. Lower: disk space is free sooner, more work."""
SHARE = 50


class Compaction:
    """`close` ends it, after the frontiers are closed: what it does then is refused its next step."""

    def __init__(self, topics: "TopicAdmin", every_s: float = EVERY_S) -> None:
        self._topics = topics
        self._every_s = every_s
        self._seen: dict[str, int] = {}
        """The number of rows that each topic had ever had when it was last checked."""
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="compaction", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        self._is_closed.set()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        pause_s = self._every_s
        while not self._is_closed.wait(pause_s):
            began_s = time.monotonic()
            try:
                self.compact_all(self._rest)
            except (Refusal, StoreError) as error:  # the node stops, or its disk fails
                log.warning("tables are not compacted: %s", error)
            pause_s = max(self._every_s - (time.monotonic() - began_s), 1.0)

    def _rest(self, worked_s: float) -> None:
        self._is_closed.wait(worked_s * SHARE)

    def compact_all(self, rest: Callable[[float], None] = lambda worked_s: None) -> int:
        """Compact every table that has changed. Returns how many batches were removed."""
        removed, seen = 0, self._seen
        self._seen = {}
        for topic, rows in self._topics.sizes().items():
            self._seen[topic] = rows
            if seen.get(topic) == rows or self._is_closed.is_set():
                continue
            began_s = time.thread_time()
            try:
                removed += self._topics.compact(topic)["batches"]
            except Refusal as refusal:
                if refusal.code in ("stopping", "store"):
                    raise
                log.debug("topic %r is not compacted: %s", topic, refusal.detail)  # no table, too large, or gone
            rest(time.thread_time() - began_s)
        return removed
