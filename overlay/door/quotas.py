"""Quotas: what clients may use of a node at a time: bytes that wait for the disk or for a reader, and open calls.

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

BURST_S = 1.0
"""The time for which a client saves what it does not use of its CPU budget. Guess."""
CPU_CLIENTS_MAX = 1_000
"""Clients whose CPU time is counted separately, as many as there may be tokens; addresses have no other limit."""
OTHER_CLIENTS = "others"


class ByteQuota:
    """Limits the unanswered payload of all calls together. While others wait, one client gets at most half of it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = 0
        self._taken_by: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._changed = threading.Condition()

    def take(self, client: str, size: int, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        """Wait until `size` bytes are free. A request larger than the whole quota is admitted when nothing else is."""
        with self._changed:
            if not self._fits(client, size):
                self._wait(client, lambda: self._fits(client, size), timeout_s, is_cancelled)
            self._taken += size
            self._taken_by[client] += size

    def try_take(self, client: str, size: int) -> bool:
        """The same without waiting: whether they were free."""
        with self._changed:
            if not self._fits(client, size):
                return False
            self._taken += size
            self._taken_by[client] += size
        return True

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
        self, client: str, is_free: Callable[[], bool], timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> None:
        deadline = time.monotonic() + timeout_s
        self._waiting[client] += 1
        try:
            while not is_free():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    detail = f"{self._taken} bytes of publishes wait for the disk and the neighbours: repeat it later"
                    raise Refusal("busy", detail)
                if is_cancelled():
                    raise gone()
                self._changed.wait(min(left_s, LOOK_S))
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]
            self._changed.notify_all()  # a client limited to half of it may have more now


@dataclass(slots=True, eq=False)
class KeyedCall:
    """The bytes that a keyed call has written so far."""

    client: str
    payloads: list[Staged] = field(default_factory=list)
    size: int = 0
    shared_bytes: int = 0
    """The number of these bytes that count towards the shared quota."""
    is_lost: bool = False


class KeyedQuota(ByteQuota):
    """Limits the payload of keyed calls, each of which is held until it is complete and answered.

    Calls that hold bytes and wait for more would deadlock. So one call at a time, the first that exceeds the quota, is
    *apart*: its bytes do not count, and it does not wait. When it has ended, another one may be. Memory thus holds at
    most `bytes_max` and one call.

    A client that pauses keeps its bytes until somebody else waits for them and it has held them for `hold_s`. Then its
    payload is dropped, by the waiting thread (its own waits for the client), and the call is refused when it continues.
    If its request was sent already, only its bytes are freed: the node has the payload, and limits of its own.
    """

    def __init__(self, bytes_max: int, hold_s: float) -> None:
        super().__init__(bytes_max)
        self._hold_s = hold_s
        self._late_at: dict[KeyedCall, float] = {}
        """The calls that hold bytes, oldest first, and when others may have these, on the monotonic clock."""
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
            if not self._may_add(call, size):
                self._wait(call.client, lambda: self._may_add(call, size), timeout_s, is_cancelled)
            self._refuse_lost(call)
            self._late_at.setdefault(call, time.monotonic() + self._hold_s)
            if call is not self._apart:
                self._taken += size
                self._taken_by[call.client] += size
                call.shared_bytes += size
            call.size += size
            call.payloads.append(staged)

    def complete(self, call: KeyedCall) -> tuple[Staged, ...]:
        """The whole payload, for the request. From here on it cannot be lost."""
        with self._changed:
            self._refuse_lost(call)
            payloads = tuple(call.payloads)
            call.payloads.clear()
            return payloads

    def _may_add(self, call: KeyedCall, size: int) -> bool:
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
                f"this call held {call.size} bytes for {self._hold_s:g} s while others waited for them: nothing was "
                "published; write without a pause, or stage and commit"
            )
            raise Refusal("busy", detail)


class ChunkQuota:
    """Limits how much a reader reads from the store at a time. All readers share it, since each may be slow to take
    what was read for it. A reader gets at least one batch."""

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
        """While a reader holds batches. One that waits for new rows is not counted."""
        with self._lock:
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1


class FilterCpu:
    """The CPU time that filters take, by client, and the pauses of clients that have a budget.

    A budget is a share of one core. A client may use what it saved within `BURST_S`; beyond that each second of CPU
    costs it a pause, in all its calls together. Nothing is refused.
    """

    def __init__(self) -> None:
        self._spent_s: dict[str, float] = {}
        self._paid_until: dict[str, float] = {}
        """The time, on the monotonic clock, at which the budget of a client has paid for what it used."""
        self._lock = threading.Lock()

    def spend(self, client: str, cpu_s: float, share: float | None) -> float:
        """Count it. Returns how long the client has to pause; `share` None: not at all."""
        with self._lock:
            if client not in self._spent_s and len(self._spent_s) >= CPU_CLIENTS_MAX:
                client = OTHER_CLIENTS
            self._spent_s[client] = self._spent_s.get(client, 0) + cpu_s
            if share is None:
                return 0
            now = time.monotonic()
            paid_until = max(self._paid_until.get(client, 0), now - BURST_S) + cpu_s / share
            self._paid_until[client] = paid_until
            return max(paid_until - now, 0)

    def so_far(self) -> dict[str, float]:
        """Seconds by client."""
        with self._lock:
            return dict(self._spent_s)


class CallQuota:
    """Limits the open calls of each client. Each costs a thread, idle or not."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def begin(self, client: str) -> None:
        with self._lock:
            if self._open[client] >= self._calls_max:
                raise Refusal("busy", f"{client} has {self._calls_max} open calls at this node: end some first")
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
