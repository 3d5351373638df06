"""Acknowledgements: reports to a client, in the order of its batches, which of its rows are safe.

While the client writes, they are sent by a separate thread and never hold up publishing: those that are not sent yet
are merged. So a client may write everything first and read acknowledgements afterwards. Most small calls have no more
to write when their answer arrives: then the call's own thread sends it, and no other is woken. Later calls reuse the
threads (`AckThreads`).

An error that occurs while the call waits for the client's next batch is sent as an acknowledgement with `error`, after
the acknowledgements of everything that was sent before it. The call itself ends with that error as soon as the client
writes or is done.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import pyarrow as pa

from m4cast.overlay.door.fields import ranges_json
from m4cast.overlay.door.frontiers import LOOK_S
from m4cast.overlay.door.node_handle import NodeRequest, answer_of, timed_out
from m4cast.overlay.door.refusals import Refusal, as_json, gone
from m4cast.overlay.protocol.effects import Published, Range

log = logging.getLogger("m4cast.door")

CALL_BATCHES_MAX = 64
"""Unanswered batches of one call. Higher: more memory; lower: more waiting for the disk. Guess."""
IDLE_MAX = 64
"""Idle threads that are kept for later calls; guess."""


class AckThreads:
    """Threads that send acknowledgements: one for each call that has some while it is written, reused by later calls.
    Starting a thread costs a fifth of a small publish. An executor would wait for all of its threads when the process
    ends, and one of them may wait for a client that no longer answers.

    A call whose answer is late gets a thread as well, which says so in time: one more thread looks for such calls, now
    and then, as long as there are any without."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0
        self._closed = False
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.unattended: dict[AckStream, float] = {}
        """Calls that have rows on their way and no thread, and since when, on the monotonic clock. Any thread adds and
        removes its own; whoever adds one calls `look`, unless `is_looking`, in this order."""
        self.is_looking = False

    def look(self) -> None:
        with self._lock:
            if self.is_looking or self._closed:
                return
            self.is_looking = True
        threading.Thread(target=self._look, name="door-acks-late", daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                self.is_looking = False  # before it looks: who adds a call now, or has, sees this or is seen
                if self._closed or not self.unattended:
                    return
                self.is_looking = True
            oldest = time.monotonic() - LOOK_S
            for call, since in list(self.unattended.items()):
                if since <= oldest:
                    call.hurry()

    def run(self, task: Callable[[], None]) -> None:
        with self._lock:
            is_taken = self._idle > 0
            self._idle -= is_taken
        if is_taken:
            self._tasks.put(task)
        else:
            threading.Thread(target=self._serve, args=(task,), name="door-acks", daemon=True).start()

    def close(self) -> None:
        """Idle threads end now, the others when they are done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._tasks.put(None)

    def _serve(self, first: Callable[[], None]) -> None:
        task: Callable[[], None] | None = first
        while task is not None:
            try:
                task()
            except Exception:
                log.exception("unexpected error in the door")
            with self._lock:
                if self._closed or self._idle >= IDLE_MAX:
                    return
                self._idle += 1
            task = self._tasks.get()


class AckSink(Protocol):
    """The receiver of reports about a call's rows."""

    failure: Refusal | None
    """Why no more of this call is accepted."""

    def raise_failure(self) -> None: ...
    def add(self, asked: NodeRequest, rows: int, offset: int = 0) -> None:
        """This many rows of the call were sent with that request, from its row `offset` on."""

    def fail(self, refusal: Refusal) -> None:
        """The call's next rows cannot be published."""


@dataclass(frozen=True, slots=True)
class SentRows:
    """A request, of which the rows from `offset` on belong to this call. Others may belong to other calls."""

    asked: NodeRequest
    offset: int
    rows: int
    deadline: float

    def ranges(self, answer: Published) -> tuple[Range, ...]:
        if not self.offset and sum(r.next_sequence - r.first_sequence for r in answer.ranges) == self.rows:
            return answer.ranges
        (whole,) = answer.ranges  # coalesced rows are one batch
        first = whole.first_sequence + self.offset
        return (Range(whole.stream, first, first + self.rows),)


class AckStream:
    def __init__(self, writer: Any, timeout_s: float, is_cancelled: Callable[[], bool], threads: AckThreads) -> None:
        self.stage_ids: list[str] = []
        self.failure: Refusal | None = None
        """Why no more of this call is accepted."""
        self._writer = writer
        self._timeout_s = timeout_s
        self._is_cancelled = is_cancelled
        self._threads = threads
        self._changed = threading.Condition()
        self._waiting: deque[SentRows] = deque()
        self._unanswered = 0
        self._finished = False
        self._begun = False
        self._over = False
        self.rows = 0
        """The number of rows that are safe, from the call's first on."""

    def wait_for_room(self, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self.failure is not None or self._unanswered < CALL_BATCHES_MAX, timeout_s
            ):
                raise Refusal(
                    "timeout",
                    f"{self._unanswered} batches have no answer within {timeout_s:g} s: repeat the call later",
                )
        self.raise_failure()

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def add(self, asked: NodeRequest, rows: int, offset: int = 0) -> None:
        """This many rows of the call were sent with that request. After a failure they are not waited for: an
        acknowledgement of them would imply that the rows before them are safe."""
        with self._changed:
            if self._over or self.failure is not None:
                asked.give_up()
                return
            if not self._begun and not self._waiting:
                self._threads.unattended[self] = time.monotonic()
                if not self._threads.is_looking:
                    self._threads.look()
            self._waiting.append(SentRows(asked, offset, rows, time.monotonic() + self._timeout_s))
            self._unanswered += 1
        asked.answer.add_done_callback(self._answered)

    def fail(self, refusal: Refusal) -> None:
        """The call's next rows cannot be published."""
        with self._changed:
            self.failure = self.failure or refusal
            with suppress(RuntimeError, MemoryError):  # no thread to report it: then the end of the call does
                self._start()
            self._changed.notify_all()

    def finish(self) -> None:
        """No more rows follow. Returns when all requests are answered and acknowledged, or one has failed."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()
            is_begun, self._begun = self._begun, True
            if is_begun:
                self._changed.wait_for(lambda: self._over)
        if not is_begun:
            self._threads.unattended.pop(self, None)
            if self._waiting or self.failure is not None:
                self._run()

    def hurry(self) -> None:
        """Its client waits for acknowledgements, and has not said that it is done: a thread sends them."""
        with self._changed, suppress(RuntimeError, MemoryError):  # without a thread, the end of the call sends them
            self._start()

    def _start(self) -> None:
        if not self._begun:
            self._threads.run(self._run)
            self._begun = True  # not before: without a thread, nobody must wait for one
            self._threads.unattended.pop(self, None)

    def _answered(self, _: object) -> None:
        with self._changed:
            self._unanswered -= 1
            if not self._begun:
                self.hurry()
            self._changed.notify_all()

    # ---- the thread

    def _run(self) -> None:
        try:
            self._send_all()
        finally:
            with self._changed:
                self._over = True
                left = list(self._waiting)
                self._waiting.clear()
                self._changed.notify_all()
            for sent in left:
                sent.asked.give_up()

    def _send_all(self) -> None:
        while True:
            ranges: list[Range] = []
            with self._changed:
                late = self._wait_for_work()
                if self._finished and not self._waiting and self.failure is None:
                    return
                taken, refusal = self._take(ranges)
                refusal = refusal or (None if taken else late)
                self.failure = self.failure or refusal
                failure = self.failure if refusal is not None or not self._waiting else None
                self._changed.notify_all()
            if taken and not self._send({"rows": self.rows, "ranges": ranges_json(ranges)}):
                return
            if failure is not None:
                self._send({"error": as_json(failure)})
                return

    def _wait_for_work(self) -> Refusal | None:
        """A refusal, if the next answer is late or the client has disconnected. The client is checked only when nothing
        else happens: that costs as much as an acknowledgement."""
        while not self._has_work():
            heard = self._changed.wait(self._patience_s())
            if self._waiting and time.monotonic() >= self._waiting[0].deadline:
                return timed_out(self._timeout_s)
            if not heard and self._waiting and self._is_cancelled():
                return gone()
        return None

    def _has_work(self) -> bool:
        """Requests from before a failure are still waited for: if they are published, they are acknowledged."""
        if self._waiting:
            return self._waiting[0].asked.answer.done()
        return self._finished or self.failure is not None

    def _patience_s(self) -> float | None:
        if not self._waiting:
            return None
        return min(max(self._waiting[0].deadline - time.monotonic(), 0), LOOK_S)

    def _take(self, ranges: list[Range]) -> tuple[int, Refusal | None]:
        """Remove answered requests from the front, up to the first refusal: how many, and that refusal."""
        taken = 0
        while self._waiting:
            sent = self._waiting[0]
            if not sent.asked.answer.done():
                break
            try:
                answer = answer_of(sent.asked)
            except Refusal as refusal:
                return taken, refusal
            self._waiting.popleft()
            self.rows += sent.rows
            taken += 1
            for rows in sent.ranges(answer) if answer is not None else ():
                if ranges and ranges[-1].stream == rows.stream and ranges[-1].next_sequence == rows.first_sequence:
                    ranges[-1] = Range(rows.stream, ranges[-1].first_sequence, rows.next_sequence)
                else:
                    ranges.append(rows)
        return taken, None

    def _send(self, message: dict[str, object]) -> bool:
        """True if the client is still connected."""
        if self.stage_ids:
            message["stage_ids"] = list(self.stage_ids)
            message.pop("ranges", None)
        try:
            self._writer.write(json.dumps(message).encode())
        except (OSError, pa.ArrowException):
            with self._changed:
                self.failure = self.failure or gone()
                self._changed.notify_all()
            return False
        return True
