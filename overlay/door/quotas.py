"""What clients may take of a node at a time, counted: bytes that wait for the disk or for a reader, and calls.

They keep one client from crowding out the others (guarantee 7). A client is a token's name, or else an address.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from m4cast.overlay.door.frontiers import LOOK_S
from m4cast.overlay.door.refusals import Refusal, gone
from m4cast.overlay.protocol.effects import Staged


class ByteQuota:
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
                self._wait(client, lambda: self._fits(client, size), timeout_s, is_cancelled)
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

    def _wait(
        self, client: str, has_room: Callable[[], bool], timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> None:
        deadline = time.monotonic() + timeout_s
        self._waiting[client] += 1
        try:
            while not has_room():
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


@dataclass(slots=True, eq=False)
class KeyedCall:
    """What a keyed call has written so far."""

    client: str
    payloads: list[Staged] = field(default_factory=list)
    size: int = 0
    shared_bytes: int = 0
    """How much of the room that all share it has."""
    is_lost: bool = False


class KeyedQuota(ByteQuota):
    """Payload of keyed calls, each of which is held until all of it is there and answered.

    Calls that hold bytes and wait for more would wait for each other. So one call at a time, the first that finds none,
    has its payload apart from the others' and waits for nobody; when it has ended, another one may. In memory are thus
    at most `bytes_max` and one call.

    A client that stops to write keeps what it has, until somebody waits for room and it has held it for `hold_s`: then
    its payload is dropped, by the one that waits (its own thread waits for the client), and the call is refused when
    it goes on. If it is asked for already, only its room is given back: the node has the payload, and its own limits.
    """

    def __init__(self, bytes_max: int, hold_s: float) -> None:
        super().__init__(bytes_max)
        self._hold_s = hold_s
        self._late_at: dict[KeyedCall, float] = {}
        """The calls that have room, oldest first, and when others may have it, on the monotonic clock."""
        self._apart: KeyedCall | None = None

    @contextmanager
    def call(self, client: str) -> Iterator[KeyedCall]:
        call = KeyedCall(client)
        try:
            yield call
        finally:
            with self._changed:
                self._let_go(call)

    def add(self, call: KeyedCall, staged: Staged, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        size = len(staged.payload)
        with self._changed:
            if not self._has_room(call, size):
                self._wait(call.client, lambda: self._has_room(call, size), timeout_s, is_cancelled)
            self._refuse_lost(call)
            self._late_at.setdefault(call, time.monotonic() + self._hold_s)
            if call is not self._apart:
                self._taken += size
                self._taken_by[call.client] += size
                call.shared_bytes += size
            call.size += size
            call.payloads.append(staged)

    def complete(self, call: KeyedCall) -> tuple[Staged, ...]:
        """All of it, to be asked for: it cannot be lost any more."""
        with self._changed:
            self._refuse_lost(call)
            payloads = tuple(call.payloads)
            call.payloads.clear()
            return payloads

    def _has_room(self, call: KeyedCall, size: int) -> bool:
        if call.is_lost or call is self._apart or self._fits(call.client, size):
            return True
        now = time.monotonic()
        for other, late_at in list(self._late_at.items()):
            if self._apart is None or late_at > now:
                break
            if other is not call:
                self._let_go(other)
                other.is_lost = True
                other.payloads.clear()
        if self._apart is None:
            self._give_back_shared(call)
            self._apart = call
        return call is self._apart or self._fits(call.client, size)

    def _let_go(self, call: KeyedCall) -> None:
        self._late_at.pop(call, None)
        self._give_back_shared(call)
        if call is self._apart:
            self._apart = None
            self._changed.notify_all()

    def _give_back_shared(self, call: KeyedCall) -> None:
        self.give_back(call.client, call.shared_bytes)
        call.shared_bytes = 0

    def _refuse_lost(self, call: KeyedCall) -> None:
        if call.is_lost:
            detail = (
                f"its {call.size} bytes were held for {self._hold_s:g} s, and others waited for the room: nothing was "
                "published; write it without a pause, or stage it and commit"
            )
            raise Refusal("busy", detail)


class ChunkQuota:
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


class CallQuota:
    """CallQuota of each client that are open. Each costs a thread, idle or not."""

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
