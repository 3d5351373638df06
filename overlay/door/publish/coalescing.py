"""Coalescing: small record batches of many publishes become one batch of the channel; each call gets its own acks.

Unkeyed publishes of the same topic, schema and acks share one `Coalescer`, whichever calls they belong to. Rows are
sent at once if the last batch was sent `linger_ms` ago or earlier, so a lone publisher does not wait. Otherwise they
wait until then, or until there are enough for a batch, or, if their call has ended, until no batch is unanswered:
however many rows arrive one by one, every node of the channel has a bounded number of batches to handle. In a batch the
rows of each call are adjacent and in order, so that each call has one range. Rows of different clients are not
coalesced until a batch has been published: the topic may be new, and a client that has created too many must not keep
others from it.

Cost: a small record batch costs its call a size check and an append to a queue; everything else (validation, casts,
encoding, the request, the answer) is done once for all that are coalesced. `tests/bench/rows.py` watches it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from m4cast.overlay.door.frontiers import LOOK_S
from m4cast.overlay.door.node_handle import NodeHandle, timed_out
from m4cast.overlay.door.publish.acks import AckSink
from m4cast.overlay.door.quotas import ByteQuota
from m4cast.overlay.door.refusals import Refusal, gone, internal
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.summaries import ROWS_MIN, Summaries
from m4cast.overlay.door.rows.table_rows import refuse_unversioned
from m4cast.overlay.net.driver import Answer
from m4cast.overlay.protocol.effects import Publish, Published, Staged
from m4cast.overlay.protocol.wire.batch import TABLE_EXTENSION, Extension

log = logging.getLogger("m4cast.door")

FEW_BYTES_MAX = 256 << 10
"""Small record batches are coalesced up to this size. Higher: fewer batches and later answers. Guess."""
FEW_BATCHES_MAX = 4_096
"""The most of one call that wait: each costs about 1 KB of memory besides its rows."""
IN_FLIGHT_MAX = 16
"""Unanswered batches of one coalescer; guess."""
CREDIT_BYTES = 64 << 10
"""The quota is taken in steps of up to this, not for every row."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes rows of one schema as payload."""

    topic: str
    topic_hash: int
    """The hash by which registrations name the topic."""
    schema: pa.Schema
    written: bytes
    schema_id: int
    batch_bytes_max: int
    expands: bool
    """True if rows may become larger when they are made canonical."""
    summaries: Summaries
    is_table: bool = False

    def __call__(self, rows: pa.RecordBatch) -> Staged:
        """`rows` are canonical."""
        if self.is_table:
            refuse_unversioned(rows)
        if rows.nbytes > self.batch_bytes_max:  # an estimate; exactly below
            raise payload.too_large(rows.num_rows, rows.nbytes, self.batch_bytes_max)
        encoded = payload.encode(self.written, rows)
        if len(encoded) > self.batch_bytes_max:
            raise payload.too_large(rows.num_rows, len(encoded), self.batch_bytes_max)
        extensions: tuple[Extension, ...] = ()
        if (
            rows.num_rows >= ROWS_MIN
            and (
                self.topic in self.summaries.filtered.topics
                or self.topic in self.summaries.chosen
                or self.topic_hash in self.summaries.registered.topics
            )
        ) or self.topic in self.summaries.selective:
            extensions = self.summaries.extensions(self.topic, rows)
        if self.is_table:
            extensions = (Extension(TABLE_EXTENSION, must_understand=False, value=b""), *extensions)
        return Staged(self.topic, rows.num_rows, self.schema_id, encoded, xxh3_64_intdigest(encoded), extensions)


class SmallBatches:
    """Small record batches of one call that were read and not sent yet. One thread adds, any thread may take."""

    def __init__(self, acks: AckSink, client: str, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        self.acks = acks
        self.client = client
        self.timeout_s = timeout_s
        self.is_cancelled = is_cancelled
        self.queue: deque[tuple[pa.RecordBatch, int]] = deque()
        self.listed = False
        """The coalescer has it in its list of calls."""
        self.gathered_bytes = 0
        """About the size of the queue; exact if nothing was taken since it was 0."""
        self.credit_lock = threading.Lock()
        self.credit = 0
        """Bytes of the quota that were taken and not used yet."""
        self._step = 0

    def take_quota(self, quota: ByteQuota, size: int) -> None:
        """Take quota for a publish that the credit does not cover. The first steps are small, since most calls send
        little."""
        step = max(size, self._step)
        quota.take(self.client, step, self.timeout_s, self.is_cancelled)
        with self.credit_lock:
            self.credit += step - size
            self._step = min(2 * step, CREDIT_BYTES)

    def give_back_credit(self, quota: ByteQuota) -> None:
        """Return the credit to the quota when there is nothing to send: the client may never write again."""
        with self.credit_lock:
            credit, self.credit = self.credit, 0
            self._step = 0
        quota.give_back(self.client, credit)


class _Taken(NamedTuple):
    call: SmallBatches
    batches: list[pa.RecordBatch]
    size: int


class Coalescer:
    def __init__(
        self,
        encode: Encoder,
        acks: int,
        node: NodeHandle,
        quota: ByteQuota,
        linger_s: float,
        later: Callable[..., None],
    ) -> None:
        self._encode = encode
        self._acks = acks
        self._node = node
        self._quota = quota
        self._linger_s = linger_s
        self._later = later
        self._bytes_max = min(FEW_BYTES_MAX, encode.batch_bytes_max // 2)
        self.few_bytes_max = self._bytes_max // 4 if linger_s else 0
        """The largest record batch that is coalesced."""
        self._submitting = threading.Lock()
        """Held from taking rows until they are requested, so that a call's rows keep their order."""
        self._changed = threading.Condition()
        self._calls: dict[SmallBatches, None] = {}
        self._in_flight = 0
        self._next_at = 0.0
        """The time from which few rows may be sent, on the monotonic clock."""
        self._has_published = False
        """Until then the topic may be new, and refused to one client: rows of others are sent separately."""
        self.users = 0

    # ---- from the call's thread

    def add(self, call: SmallBatches, rows: pa.RecordBatch, size: int) -> None:
        with call.credit_lock:
            has_credit = call.credit >= size
            if has_credit:
                call.credit -= size
        if not has_credit:
            call.take_quota(self._quota, size)
        call.queue.append((rows, size))  # before `listed` is checked, which a taker clears before it empties the queue
        call.gathered_bytes += size
        if not call.listed:
            self._list(call)
        if call.gathered_bytes >= self._bytes_max or len(call.queue) >= FEW_BATCHES_MAX:
            self._wait(lambda: self._in_flight < IN_FLIGHT_MAX, call)
            self.flush()

    def drain(self, call: SmallBatches) -> None:
        """Returns when all rows of the call are sent. Rows coalesced with others' are sent with these. Nothing more of
        the call follows, so they linger only while a batch is unanswered: those that arrive meanwhile share the next
        one."""
        self._wait(lambda: not call.listed or not self._in_flight, call)
        while call.listed:
            self.flush()
            self._wait(lambda: not call.listed or not self._in_flight, call)
        with self._submitting:
            call.acks.raise_failure()

    def send_now(self, call: SmallBatches) -> None:
        """The same without lingering: a large batch of the call follows."""
        while call.listed:
            self._wait(lambda: self._in_flight < IN_FLIGHT_MAX, call)
            self.flush()
        with self._submitting:
            call.acks.raise_failure()

    def leave(self, call: SmallBatches) -> None:
        """The call ends. What it could not send is dropped; its client was informed, or has disconnected."""
        with self._submitting, self._changed:
            self._calls.pop(call, None)
            left = sum(size for _, size in call.queue)
            call.queue.clear()
        self._quota.give_back(call.client, left)
        if call.credit:
            call.give_back_credit(self._quota)

    def _list(self, call: SmallBatches) -> None:
        with self._changed:
            call.listed = True
            self._calls[call] = None
            wait_s = self._next_at - time.monotonic()
        if wait_s <= 0:
            self.flush()
        else:
            self._later(self, wait_s)

    def _wait(self, condition: Callable[[], bool], call: SmallBatches) -> None:
        deadline = time.monotonic() + call.timeout_s
        with self._changed:
            while not condition():
                if call.acks.failure is not None:
                    raise call.acks.failure
                if call.is_cancelled():
                    raise gone()
                if time.monotonic() >= deadline:
                    raise timed_out(call.timeout_s)
                self._changed.wait(LOOK_S)

    # ---- from any thread

    def flush(self) -> None:
        """Send what has gathered, within the limit of unanswered batches."""
        with self._submitting:
            while taken := self._take():
                self._submit(taken)

    def _take(self) -> list[_Taken]:
        taken: list[_Taken] = []
        left = self._bytes_max
        with self._changed:
            if self._in_flight >= IN_FLIGHT_MAX:
                return taken  # the next answer continues here
            for call in list(self._calls):
                if left <= 0:
                    break
                if taken and not self._has_published and call.client != taken[0].call.client:
                    continue
                call.listed = False
                call.gathered_bytes = 0
                del self._calls[call]
                batches: list[pa.RecordBatch] = []
                before = left
                while call.queue and left > 0:
                    rows, size = call.queue.popleft()
                    batches.append(rows)
                    left -= size
                if batches:
                    taken.append(_Taken(call, batches, before - left))
                if call.queue:
                    call.listed = True
                    self._calls[call] = None
                elif call.credit:
                    call.give_back_credit(self._quota)
            if taken:
                self._next_at = time.monotonic() + self._linger_s
                self._changed.notify_all()
        return taken

    def _submit(self, taken: list[_Taken]) -> None:
        """One request for all of them, or, if that is too large, one for each half. A call whose rows are invalid fails
        alone. Whatever fails, each call is informed and gets its quota back: its rows are off its queue, and nobody
        else has them."""
        checked: list[_Taken] = []
        rows: list[pa.RecordBatch] = []
        for each in taken:
            try:
                rows.append(payload.canonical_rows_together(each.batches, self._encode.schema))
                checked.append(each)
            except Exception as error:
                self._refuse([each], error)
        if not checked:
            return
        try:
            staged = self._encode(rows[0] if len(rows) == 1 else pa.concat_batches(rows))
        except Exception as error:
            halves = _halves(checked) if isinstance(error, Refusal) else ()
            for half in halves:
                self._submit(half)
            if not halves:
                self._refuse(checked, error)
            return
        try:
            first = checked[0].call.client  # a new topic counts towards its share
            asked = self._node.request(lambda n: Publish(n, (staged,), (), self._acks, first), holders=len(checked))
        except Exception as error:
            self._refuse(checked, error)
            return
        with self._changed:
            self._in_flight += 1
        asked.answer.add_done_callback(lambda answer: self._answered(checked, answer))
        offset = 0
        for each, own in zip(checked, rows, strict=True):
            try:
                each.call.acks.add(asked, own.num_rows, offset)
            except Exception as error:  # there is no thread to inform the client
                each.call.acks.fail(internal(error))
            offset += own.num_rows

    def _refuse(self, taken: list[_Taken], error: Exception) -> None:
        refusal = error if isinstance(error, Refusal) else internal(error)
        for each in taken:
            self._quota.give_back(each.call.client, each.size)
            each.call.acks.fail(refusal)

    def _answered(self, taken: list[_Taken], answer: "Future[Answer]") -> None:
        for each in taken:
            self._quota.give_back(each.call.client, each.size)
        with self._changed:
            if not self._has_published:
                self._has_published = answer.exception() is None and isinstance(answer.result(), Published)
            self._in_flight -= 1
            goes_on = (
                self._calls and self._in_flight == IN_FLIGHT_MAX - 1
            )  # the limit of unanswered batches was reached
            self._changed.notify_all()
        if goes_on:
            self._later(self, 0.0)


def _halves(taken: list[_Taken]) -> tuple[list[_Taken], ...]:
    """The same in two halves: of the calls, or of a single call's record batches. None for a single record batch."""
    if len(taken) > 1:
        middle = len(taken) // 2
        return taken[:middle], taken[middle:]
    call, batches, size = taken[0]
    if len(batches) == 1:
        return ()
    middle, half = len(batches) // 2, size // 2
    return [_Taken(call, batches[:middle], half)], [_Taken(call, batches[middle:], size - half)]


class Coalescing:
    """The coalescers of a door, and the thread that flushes those that linger."""

    def __init__(self, node: NodeHandle, quota: ByteQuota, linger_s: float) -> None:
        self._node = node
        self._quota = quota
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._coalescers: dict[tuple[str, int, int], Coalescer] = {}
        self._changed = threading.Condition()
        self._due: dict[Coalescer, float] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="door-linger", daemon=True)
        self._thread.start()

    @contextmanager
    def joined(self, encode: Encoder, acks: int) -> Iterator[Coalescer]:
        """The coalescer of this topic, schema and acks, while a call uses it."""
        key = (encode.topic, encode.schema_id, acks)
        with self._lock:
            coalescer = self._coalescers.get(key)
            if coalescer is None:
                coalescer = Coalescer(encode, acks, self._node, self._quota, self._linger_s, self._flush_in)
                self._coalescers[key] = coalescer
            coalescer.users += 1
        try:
            yield coalescer
        finally:
            with self._lock:
                coalescer.users -= 1
                if not coalescer.users:
                    del self._coalescers[key]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _flush_in(self, coalescer: Coalescer, delay_s: float) -> None:
        at = time.monotonic() + delay_s
        with self._changed:
            if at < self._due.get(coalescer, float("inf")):
                self._due[coalescer] = at
                self._changed.notify_all()

    def _run(self) -> None:
        while (coalescer := self._next()) is not None:
            try:
                coalescer.flush()
            except Exception:
                log.exception("unexpected error in the door")

    def _next(self) -> Coalescer | None:
        with self._changed:
            while not self._closed:
                first = min(self._due, key=self._due.__getitem__, default=None)
                if first is None:
                    self._changed.wait()
                    continue
                left_s = self._due[first] - time.monotonic()
                if left_s <= 0:
                    del self._due[first]
                    return first
                self._changed.wait(left_s)
        return None
