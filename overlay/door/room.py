"""What clients may take of a node at a time, counted: bytes that wait for the disk or for a reader, and calls.

They keep one client from crowding out the others (guarantee 7). A client is a token's name, or else an address.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from m4cast.overlay.door.progress import LOOK_S
from m4cast.overlay.door.refusals import Refusal, gone


class Room:
    """Unanswered payload of all calls together. While others wait, one client gets no more than half of it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._taken_by: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._changed = threading.Condition()

    def take(self, client: str, size: int, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        """Wait for room. One that is larger than all of it gets it alone."""
        with self._changed:
            if not self._fits(client, size):
                self._wait(client, size, timeout_s, is_cancelled)
            self._taken += size
            self._taken_by[client] += size

    def give_back(self, client: str, size: int) -> None:
        with self._changed:
            self._taken -= size
            self._taken_by[client] -= size
            if not self._taken_by[client]:
                del self._taken_by[client]
            if self._waiting:
                self._changed.notify_all()

    def _fits(self, client: str, size: int) -> bool:
        if not self._taken:
            return True
        if self._taken + size > self._bytes_max:
            return False
        others_wait = len(self._waiting) > (client in self._waiting)
        return not others_wait or self._taken_by[client] + size <= self._bytes_max // 2

    def _wait(self, client: str, size: int, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        self._waiting[client] += 1
        try:
            while not self._fits(client, size):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    detail = f"{self._taken} bytes of publishes wait for the disk and the neighbours: try again"
                    raise Refusal("busy", detail)
                if is_cancelled():
                    raise gone()
                self._changed.wait(min(left_s, LOOK_S))
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]
            self._changed.notify_all()  # who was held to half of it may have more now


class Chunks:
    """How much a reader reads from the store at a time: all readers share a limit, since each may be slow to take what
    was read for it. A reader has at least one batch."""

    def __init__(self, bytes_each: int, bytes_of_all: int) -> None:
        self._bytes_each = bytes_each
        self._bytes_of_all = bytes_of_all
        self._readers = 0
        self._lock = threading.Lock()

    @property
    def bytes_now(self) -> int:
        return min(self._bytes_each, self._bytes_of_all // max(self._readers, 1))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While a reader has something that it has not handed on; one that waits for news is not counted."""
        with self._lock:
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1


class Calls:
    """Calls of each client that are open. Each costs a thread, idle or not."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def begin(self, client: str) -> None:
        with self._lock:
            if self._open[client] >= self._calls_max:
                raise Refusal("busy", f"{client} has {self._calls_max} calls open here: end some first")
            self._open[client] += 1

    def end(self, client: str) -> None:
        with self._lock:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    @contextmanager
    def admitted(self, client: str) -> Iterator[None]:
        self.begin(client)
        try:
            yield
        finally:
            self.end(client)
