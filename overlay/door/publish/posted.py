"""Posted rows: one small publish whose answer is a future, so that no thread waits for the disk or the neighbours.

It takes the place of an `AckStream`, which reports to a client that keeps writing. A posted publish is one record
batch, so it is sent with one request, alone or coalesced with others, and has one range.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress

from m4cast.overlay.door.node_handle import NodeRequest, answer_of
from m4cast.overlay.door.publish.acks import SentRows
from m4cast.overlay.door.refusals import Refusal, internal
from m4cast.overlay.protocol.effects import Range


class PostedRows:
    """Any thread may use it. `answer` has the ranges, or raises `Refusal`. Whoever has waited for it calls `close`."""

    def __init__(self) -> None:
        self.failure: Refusal | None = None
        self.answer: Future[tuple[Range, ...]] = Future()
        self._lock = threading.Lock()
        self._asked: NodeRequest | None = None
        self._is_given_up = False
        self._held = ExitStack()
        self._leave: Callable[[], None] = lambda: None
        self.way: object = None
        """The coalescer: rows that go the same way keep their order."""
        self.send_now: Callable[[], None] = lambda: None

    def holds(self, held: ExitStack, leave: Callable[[], None]) -> None:
        """Set what is held at the door until the end, and the function that takes back rows that were not sent."""
        self._held = held
        self._leave = leave

    def hurry(self) -> None:
        """Rows that linger are sent, on a thread: what follows must not overtake them. If they cannot be, that is their
        own outcome."""
        with suppress(Refusal):
            self.send_now()

    def close(self) -> None:
        """Give up waiting for the answer. If there is none yet, rows that were not sent are dropped. That may wait for
        others that are being sent, so it does not run on the loop. (The answer itself does not call this: it arrives
        while the coalescer is locked.)"""
        if not self.answer.done():
            with self._lock:
                self._is_given_up = True
                asked = self._asked
            if asked is not None:
                asked.give_up()
            self._leave()
        self._held.close()

    # ---- called by the coalescer

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def add(self, asked: NodeRequest, rows: int, offset: int = 0) -> None:
        with self._lock:
            self._asked = asked
            is_given_up = self._is_given_up
        if is_given_up:
            asked.give_up()
        sent = SentRows(asked, offset, rows, deadline=0)
        asked.answer.add_done_callback(lambda _: self._answered(sent))

    def fail(self, refusal: Refusal) -> None:
        self.failure = refusal
        if not self.answer.done():
            self.answer.set_exception(refusal)

    def _answered(self, sent: SentRows) -> None:
        try:
            answer = answer_of(sent.asked)
            assert answer is not None
            self.answer.set_result(sent.ranges(answer))
        except Refusal as refusal:
            self.fail(refusal)
        except Exception as error:
            self.fail(internal(error))
