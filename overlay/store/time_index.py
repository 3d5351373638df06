"""The time index: finds rows by the time at which they were published.

Within a stream that time does not decrease, except across restarts of an origin that ran an early version, which did
not remember its last stamp; stores have such rows for as long as they are retained. A binary search over times that
decrease would miss rows. So a stream is split into *runs*, within each of which the time does not decrease: nearly
always one. The answer is in the first run whose last time is late enough, and is found there by a binary search.

The runs of a stream are found by reading the head of each of its batches once, on the first search, and of those that
arrived since on later ones: about 2 us for each batch. They are kept in memory, `RUNS_MAX` for each stream that was
searched. In a stream with more runs, what follows them is read for each search.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from m4cast.overlay.ids import StreamId
from m4cast.overlay.store.table import ReadTxn, Tables, place_key, place_of
from m4cast.overlay.store.tables.log import LOG, entry_of
from m4cast.overlay.store.tables.streams import STREAMS, StreamRecord, record_of, stream_key

RUNS_MAX = 1_000
SCAN_BATCHES_MAX = 65_536
"""Heads read in one transaction. Higher: pages of what is removed meanwhile are freed later."""


class _Run(NamedTuple):
    """Consecutive batches: the first one's sequence, and when the last one was published."""

    first_sequence: int
    last_ms: int


class _Known(NamedTuple):
    """The runs of a stream below `next_sequence`."""

    next_sequence: int = 0
    runs: tuple[_Run, ...] = ()


class TimeIndex:
    """May be used by any thread: what is known of a stream is replaced as a whole."""

    def __init__(self, tables: Tables, read: Callable[[], AbstractContextManager[ReadTxn]]) -> None:
        self._tables = tables
        self._read = read
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()

    def sequence_at(self, stream: StreamId, at_ms: int) -> int | None:
        """The first sequence of the first batch published at `at_ms` or later; None if there is none yet."""
        while True:
            with self._read() as txn:
                value = txn.get(stream_key(stream), db=self._tables[STREAMS])
                if value is None:
                    return None
                held = record_of(value)
                known, is_whole = self._learn(held.number, txn)
                if is_whole:
                    return self._find(held, known, at_ms, txn)

    def _learn(self, number: int, txn: ReadTxn) -> tuple[_Known, bool]:
        """Read the batches that arrived since. Also returns whether these were all, or as many as are remembered."""
        with self._lock:
            known = self._known.get(number, _Known())
        with txn.cursor(self._tables[LOG]) as cursor:
            is_there = cursor.set_range(place_key(number, 0))
            found, first = place_of(cursor.key()) if is_there else (0, 0)
        if known.runs and found == number and first < known.runs[0].first_sequence:
            known = _Known()  # A skip before everything that was read has been filled since.
        next_sequence, runs = known.next_sequence, list(known.runs)
        is_whole = False
        with txn.cursor(self._tables[LOG]) as cursor:
            is_there = cursor.set_range(place_key(number, next_sequence))
            for _ in range(SCAN_BATCHES_MAX):
                found, first = place_of(cursor.key()) if is_there else (0, 0)
                if found != number:
                    is_whole = True
                    break
                entry = entry_of(cursor.value())
                if runs and entry.published_at_ms >= runs[-1].last_ms:
                    runs[-1] = _Run(runs[-1].first_sequence, entry.published_at_ms)
                elif len(runs) == RUNS_MAX:
                    is_whole = True
                    break
                else:
                    runs.append(_Run(first, entry.published_at_ms))
                next_sequence = first + entry.row_count
                is_there = cursor.next()
        learned = _Known(next_sequence, tuple(runs))
        with self._lock:
            if self._known.get(number, _Known()).next_sequence < next_sequence or known == _Known():
                self._known[number] = learned
        return learned, is_whole

    def _find(self, held: StreamRecord, known: _Known, at_ms: int, txn: ReadTxn) -> int | None:
        ends = (*(run.first_sequence for run in known.runs[1:]), known.next_sequence) if known.runs else ()
        for run, end in zip(known.runs, ends, strict=True):
            if run.last_ms >= at_ms and end > held.low:
                low = max(run.first_sequence, held.low)
                if (found := self._search(held.number, low, end, at_ms, txn)) is not None:
                    return found
        with txn.cursor(self._tables[LOG]) as cursor:  # what follows the runs that are remembered
            is_there = cursor.set_range(place_key(held.number, max(known.next_sequence, held.low)))
            while is_there and place_of(cursor.key())[0] == held.number:
                if entry_of(cursor.value()).published_at_ms >= at_ms:
                    return place_of(cursor.key())[1]
                is_there = cursor.next()
        return None

    def _search(self, number: int, low: int, high: int, at_ms: int, txn: ReadTxn) -> int | None:
        """Search the batches that begin in `low .. high - 1`, among which the time does not decrease."""
        found: int | None = None
        end = high
        with txn.cursor(self._tables[LOG]) as cursor:
            while low < high:
                middle = (low + high) // 2
                if not cursor.set_range(place_key(number, middle)):
                    high = middle
                    continue
                of, first = place_of(cursor.key())
                if of != number or first >= end:
                    high = middle
                elif entry_of(cursor.value()).published_at_ms >= at_ms:
                    found, high = first, middle
                else:
                    low = first + 1
        return found
