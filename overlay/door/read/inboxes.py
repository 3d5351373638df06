"""Inboxes: what the shared matching (`live_matching`) has for one reader, and who of them is woken when.

Whoever takes rows too slowly loses its inbox, so it is bounded. A reader that waits on a thread is woken in turn; one
that lives on the node's loop is rung there.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from m4cast.overlay.door.read.matching import Found
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import Profile
from m4cast.overlay.value import value

INBOX_BYTES = 2 << 20
INBOX_LETTERS = 64
"""The maximum that waits in an inbox, in letters and bytes; one letter may be larger. Higher: more memory for slow
clients. Guess."""


@value
class Letter:
    """Rows for one tail: those of a stream that match and lie below `until`. It shares no memory with other profiles'
    letters, so that a tail which does not take it keeps nobody else's rows."""

    stream: StreamId
    until: int
    found: Found

    def rows_from(self, first: int) -> Found | None:
        """The rows from this sequence on."""
        begin = int(np.searchsorted(self.found.sequences, first))
        if begin == len(self.found.sequences):
            return None
        return self.found.some(np.arange(begin, len(self.found.sequences)))


class Inbox:
    """The rows that the matchers of some topics have for one tail."""

    def __init__(self, profiles: Mapping[str, Profile], ring: Callable[[], None] | None = None) -> None:
        """`ring` is called, from any thread, when there is something in it or it is lost, for a reader that does not
        `wait`."""
        self.profiles = profiles
        self._ring = ring
        self._changed = threading.Condition()
        self._letters: deque[Letter] = deque()
        self._bytes = 0
        self._is_lost = False
        self._is_waiting = False
        self._cpu_s = 0.0

    def put(self, letter: Letter, size: int) -> bool:
        """False: it is lost."""
        with self._changed:
            is_full = len(self._letters) >= INBOX_LETTERS or self._bytes + size > INBOX_BYTES
            if self._is_lost or (self._letters and is_full):
                self._lose()
                return False
            self._letters.append(letter)
            self._bytes += size
            return True

    def wake(self) -> bool:
        """False: its tail does not wait, and looks into it anyway."""
        if self._ring is not None:
            self._ring()
            return False
        with self._changed:
            was_waiting, self._is_waiting = self._is_waiting, False
            if was_waiting:
                self._changed.notify()
            return was_waiting

    def lose(self) -> None:
        """Close it: nothing more is put into it, and its contents are dropped."""
        with self._changed:
            self._lose()

    def _lose(self) -> None:
        self._is_lost = True
        self._letters.clear()
        self._changed.notify()
        if self._ring is not None:
            self._ring()

    def charge(self, cpu_s: float) -> None:
        with self._changed:
            self._cpu_s += cpu_s

    def take(self) -> list[Letter] | None:
        """Empty it; None: it is lost."""
        with self._changed:
            if self._is_lost:
                return None
            letters = list(self._letters)
            self._letters.clear()
            self._bytes = 0
            return letters

    @property
    def has_news(self) -> bool:
        """True if it is not empty, or is lost."""
        return self._is_lost or bool(self._letters)

    def take_cpu_s(self) -> float:
        """The tail's share of the matchers' CPU time since it was last taken."""
        with self._changed:
            cpu_s, self._cpu_s = self._cpu_s, 0.0
        return cpu_s

    def wait(self, deadline: float) -> None:
        """Wait until the tail is woken or lost, or the time is over; return at once if it is not empty."""
        with self._changed:
            if not self._is_lost and not self._letters and (rest_s := deadline - time.monotonic()) > 0:
                self._is_waiting = True
                self._changed.wait(rest_s)
                self._is_waiting = False


class Turns:
    """Wakes tails one after another, the next one when the last has prepared what it sends. Woken all at once, they
    would compete for the interpreter, and that would cost several times as much as their work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Inbox] = deque()
        self._at_work: Inbox | None = None

    def wake(self, inboxes: Iterable[Inbox]) -> None:
        with self._lock:
            self._waiting.extend(inboxes)
            if self._at_work is None:
                self._wake_next()

    def end(self, inbox: Inbox) -> None:
        """The tail of this inbox has prepared what it sends, whether it was woken or came by itself."""
        with self._lock:
            if self._at_work is inbox:
                self._wake_next()

    def _wake_next(self) -> None:
        self._at_work = None
        while self._waiting and self._at_work is None:
            inbox = self._waiting.popleft()
            if inbox.wake():
                self._at_work = inbox
