"""Retention: what is removed from a store, and which readers hold it back.

Every topic has limits by bytes and by age. Age is measured from the rows' `published_at_ms`, so that all nodes trim
alike. That is another node's clock, however, so no row counts as younger than its arrival here, and no row is removed
within a day of its arrival because of an old stamp. Past a limit the oldest batches of the topic are removed, whichever
stream they are in, but always from the beginning of their stream.

A named reader holds back what it has not read while its lease lasts: in every stream of the topics that it names or has
in its frontier, everything from its frontier on (from the beginning for streams that are not in the frontier). It
cannot hold a topic beyond `hold_bytes_max`, or rows older than `hold_ms_max`. What it holds does not count against the
topic's other streams: they keep no less because a reader is slow. Past its limits the reader is cut: the rows are
removed, its frontier moves on, and its record lists the loss, so that the reader is informed of it and does not just
find a hole. Its lease is not renewed until it asks with a frontier past the cuts.

Batches of tables are not removed by these limits: what stands there may be as old as it likes. They are removed when
nothing in them stands any more, which the door finds out (`compact`); readers hold them back as they do others.

Delivery records have limits of their own, independent of the rows.

The writer trims in steps of bounded work, between groups of appends. LMDB reuses freed pages, so that under steady load
the file stops growing. A topic within its limits costs a look at what is in memory of its streams: a round over 64,000
of them takes 0.05 s; reading the first batch of each took half a second. Measured.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.store.log import Log
from m4cast.overlay.store.table import Tables, Txn, WriteTxn, number_of, place_key, place_of, sequence_key
from m4cast.overlay.store.tables.deliveries import DELIVERIES, received_at_of
from m4cast.overlay.store.tables.log import LOG, PAYLOADS, Entry, entry_of, is_of_table, kept_bytes
from m4cast.overlay.store.tables.meta import write_published_ms
from m4cast.overlay.store.tables.readers import Reader, read_readers, remove_reader, write_reader
from m4cast.overlay.store.tables.selective import is_marked
from m4cast.overlay.store.tables.skips import SKIPS, last_sequence_of
from m4cast.overlay.store.tables.topics import DAY_MS, Keep, read_keeps

STEP_ENTRIES = 512
"""Batches removed in one transaction. Higher: longer waits for the appends after it. Guess."""
STEP_STREAMS = 2_048
"""Streams examined in one transaction, apart from those of the topic it has begun."""
STEP_DELIVERIES = 8_192
"""Delivery records removed in one transaction."""
READERS_MAX = 1_000
"""Each costs a look at every batch that a trim considers. Guess."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a node: by default, of single topics, and of delivery records."""

    default: Keep = field(default_factory=Keep)
    topics: dict[str, Keep] = field(default_factory=dict)
    deliveries_max: int = 10_000_000
    """About 100 bytes each."""
    deliveries_ms_max: int = 30 * DAY_MS

    def with_topics(self, topics: dict[str, Keep]) -> "Retention":
        """A copy in which limits set for single topics at run time take precedence over the node's settings."""
        return replace(self, topics=self.topics | topics)

    def of(self, topic: str) -> Keep:
        return self.topics.get(topic, self.default)


def lease(wanted: Reader, now_ms: int, tables: Tables, txn: WriteTxn, log: Log) -> Reader | None:
    """Create the reader or renew its lease. None if there are too many readers; with cuts, and not renewed, if it wants
    rows that were cut.

    Of its frontier only streams that the store has are kept: every trim reads the whole frontier, whatever names a
    client invents.
    """
    wanted = replace(wanted, frontier={each: next_ for each, next_ in wanted.frontier.items() if each in log.streams})
    readers = read_readers(tables, txn)
    present = readers.get(wanted.name)
    if present is None and len(readers) >= READERS_MAX:
        oldest = min(readers.values(), key=lambda reader: reader.lease_until_ms)
        if oldest.lease_until_ms > now_ms:
            return None
        remove_reader(oldest.name, tables, txn)
    cuts = () if present is None else tuple(cut for cut in present.cuts if wanted.lacks(cut))
    if not cuts:
        write_reader(wanted, tables, txn)
    return replace(wanted, cuts=cuts)


# ---- trimming


class _First(NamedTuple):
    """The oldest batch of a stream. Compares by age."""

    dated_ms: int
    number: int
    first_sequence: int
    stream: StreamId
    entry: Entry
    kept_bytes: int
    is_of_table: bool

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.entry.row_count


class Step(NamedTuple):
    """The result of one step of a trim: the new lows of streams, and the topics that remain for later steps."""

    lows: dict[StreamId, int]
    topics: list[str]
    is_last: bool


class Trim:
    """One round of retention, done in steps. A step changes nothing in this object: its transaction may be rolled back,
    and the step repeated."""

    def __init__(self, tables: Tables, retention: Retention, now_ms: int) -> None:
        self._tables = tables
        self._retention = retention
        self._now_ms = now_ms
        self._streams: dict[str, list[StreamId]] = {}
        """Streams by topic, as they were when the round began."""

    def step(self, topics: list[str] | None, txn: WriteTxn, log: Log) -> Step:
        """Remove some of what is over its limits, in the topics that remain (None: all)."""
        if topics is None:
            self._streams = {}
            for stream in log.streams:
                self._streams.setdefault(stream.topic, []).append(stream)
        streams = self._streams
        topics = sorted(streams) if topics is None else list(topics)
        lows: dict[StreamId, int] = {}
        retention = self._retention.with_topics(read_keeps(self._tables, txn))
        readers = read_readers(self._tables, txn)
        live = [reader for reader in readers.values() if reader.lease_until_ms > self._now_ms]
        entries, looked_at = STEP_ENTRIES, 0
        while topics and entries and looked_at < STEP_STREAMS:
            topic = topics[-1]
            looked_at += len(streams[topic])
            removed = self._trim_topic(streams[topic], retention.of(topic), live, entries, txn, log)
            lows |= {stream: self._raise_low(stream, txn, log) for stream in removed}
            entries -= sum(removed.values())
            if entries:
                topics.pop()
        for reader in live:
            if reader != readers[reader.name]:
                write_reader(reader, self._tables, txn)
        return Step(lows, topics, is_last=self._trim_deliveries(txn, log) and not topics)

    def empty(self, upto: dict[StreamId, int], txn: WriteTxn, log: Log) -> Step:
        """Remove some of what these streams have below the given sequences, even if readers hold it."""
        readers = read_readers(self._tables, txn)
        left = STEP_ENTRIES
        for stream, until in upto.items():
            while left and (first := self._first(stream, txn, log)) and first.first_sequence < until:
                for reader in readers.values():
                    if _wants(reader, first):
                        readers[reader.name] = reader.cut(stream, first.next_sequence, self._now_ms)
                        write_reader(readers[reader.name], self._tables, txn)
                self._remove(first, txn, log)
                left -= 1
        return Step({stream: self._raise_low(stream, txn, log) for stream in upto}, [], is_last=left > 0)

    def compact(self, upto: dict[StreamId, int], txn: WriteTxn, log: Log) -> Step:
        """Remove some of the batches that these streams have before the ones that begin at the given sequences, up to
        the first that a reader holds."""
        live = [each for each in read_readers(self._tables, txn).values() if each.lease_until_ms > self._now_ms]
        left = STEP_ENTRIES
        for stream, until in upto.items():
            while left and (first := self._first(stream, txn, log)) and first.next_sequence <= until:
                if any(_wants(reader, first) for reader in live):
                    break
                self._remove(first, txn, log)
                left -= 1
        return Step({stream: self._raise_low(stream, txn, log) for stream in upto}, [], is_last=left > 0)

    def _trim_topic(
        self, streams: list[StreamId], keep: Keep, live: list[Reader], left: int, txn: WriteTxn, log: Log
    ) -> dict[StreamId, int]:
        """Remove the oldest batches of a topic's streams, at most `left`. Returns how many were removed of each."""
        topic_bytes = counted_bytes = sum(log.streams[stream].log_bytes for stream in streams)
        if not self._has_too_much(streams, topic_bytes, keep, txn, log):
            return {}
        age_ms_max = keep.age_ms_max
        firsts = [first for stream in streams if (first := self._oldest(stream, txn, log, age_ms_max))]
        heapify(firsts)
        removed: dict[StreamId, int] = {}
        while firsts and left:
            first = firsts[0]
            if not self._is_over(first, counted_bytes, keep.bytes_max, keep.age_ms_max):
                break
            held_by = [i for i, reader in enumerate(live) if _wants(reader, first)]
            # A hold cannot be tighter than what is kept without readers.
            hold_bytes_max = None if keep.hold_bytes_max is None else max(keep.hold_bytes_max, keep.bytes_max or 0)
            if held_by and not self._is_over(first, topic_bytes, hold_bytes_max, keep.hold_ms_max):
                counted_bytes -= log.streams[first.stream].log_bytes
                heappop(firsts)
                continue
            for i in held_by:
                live[i] = live[i].cut(first.stream, first.next_sequence, self._now_ms)
            self._remove(first, txn, log)
            topic_bytes -= first.kept_bytes
            counted_bytes -= first.kept_bytes
            left -= 1
            removed[first.stream] = removed.get(first.stream, 0) + 1
            following = self._oldest(first.stream, txn, log, age_ms_max)
            if following is None:
                heappop(firsts)
            else:
                heapreplace(firsts, following)
        return removed

    def _has_too_much(self, streams: list[StreamId], topic_bytes: int, keep: Keep, txn: WriteTxn, log: Log) -> bool:
        """True if anything of the topic is over its limits, regardless of readers. Reads only first batches whose times
        are not in memory."""
        if keep.bytes_max is not None and topic_bytes > keep.bytes_max:
            return True
        if keep.age_ms_max is None:
            return False
        kept_from_ms = self._now_ms - keep.age_ms_max
        for stream in streams:
            if log.streams[stream].batches:
                times = log.oldest.get(stream)
                if times is None:
                    first = self._first(stream, txn, log, keep.age_ms_max)
                    if first is None:
                        continue
                    times = log.oldest[stream] = first.entry.published_at_ms, first.entry.received_at_ms
                if self._dated_ms(*times, keep.age_ms_max) < kept_from_ms:
                    return True
        return False

    def _is_over(self, first: _First, topic_bytes: int, bytes_max: int | None, age_ms_max: int | None) -> bool:
        too_many = bytes_max is not None and topic_bytes > bytes_max
        too_old = age_ms_max is not None and first.dated_ms < self._now_ms - age_ms_max
        return too_many or too_old

    def _first(self, stream: StreamId, txn: WriteTxn, log: Log, age_ms_max: int | None = None) -> _First | None:
        number = log.streams[stream].number
        with txn.cursor(self._tables[LOG]) as cursor:
            if not cursor.set_range(place_key(number, 0)):
                return None
            found, first_sequence = place_of(cursor.key())
            if found != number:
                return None
            value = cursor.value()
            entry = entry_of(value)
            size = kept_bytes(entry, value)
            dated_ms = self._dated_ms(entry.published_at_ms, entry.received_at_ms, age_ms_max)
            return _First(dated_ms, number, first_sequence, stream, entry, size, is_of_table(value))

    def _oldest(self, stream: StreamId, txn: WriteTxn, log: Log, age_ms_max: int | None) -> _First | None:
        """The oldest batch of a stream, if limits may remove it."""
        first = self._first(stream, txn, log, age_ms_max)
        return None if first is None or first.is_of_table else first

    def _dated_ms(self, published_at_ms: int, received_at_ms: int, age_ms_max: int | None) -> int:
        """The time from which a batch's age counts. Where rows are kept for a day or less, that is its arrival. An
        arrival in the future comes from a clock that was wrong here."""
        dated_ms = min(published_at_ms, received_at_ms, self._now_ms)
        if age_ms_max is None or received_at_ms > self._now_ms:
            return dated_ms
        return max(dated_ms, received_at_ms - max(age_ms_max - DAY_MS, 0))

    def _remove(self, first: _First, txn: WriteTxn, log: Log) -> None:
        txn.delete(place_key(first.number, first.first_sequence), db=self._tables[LOG])
        if first.entry.payload_number:
            txn.delete(sequence_key(first.entry.payload_number), db=self._tables[PAYLOADS])
        log.oldest.pop(first.stream, None)
        held = log.changed(first.stream)
        held.low = max(held.low, first.next_sequence)
        held.batches -= 1
        held.log_bytes -= first.kept_bytes
        if not held.batches and first.stream.origin == log.identity.node_id:
            write_published_ms(first.stream, first.entry.published_at_ms, self._tables, txn)

    def _raise_low(self, stream: StreamId, txn: WriteTxn, log: Log) -> int:
        """Raise the stream's low to its first batch. Skips before it are removed. Returns the new low. In a selective
        stream low is the end of the last batch removed: what lies between batches was not wanted."""
        held = log.changed(stream)
        if not is_marked(held.number, self._tables, txn):
            first = self._first(stream, txn, log)
            held.low = first.first_sequence if first else held.next
        for key in list(_skips_below(self._tables, txn, held.number, held.low)):
            txn.delete(key, db=self._tables[SKIPS])
        return held.low

    def _trim_deliveries(self, txn: WriteTxn, log: Log) -> bool:
        oldest_ms = self._now_ms - self._retention.deliveries_ms_max
        kept_from = log.counters.delivery - self._retention.deliveries_max
        with txn.cursor(self._tables[DELIVERIES]) as cursor:
            is_there = cursor.first()
            for _ in range(STEP_DELIVERIES):
                if not is_there:
                    return True
                too_old = received_at_of(cursor.value()) < oldest_ms
                if not too_old and number_of(cursor.key()) >= kept_from:
                    return True
                cursor.delete()  # moves to the next record, and returns True even if there is none
                is_there = bool(cursor.key())
            return False


def _wants(reader: Reader, first: _First) -> bool:
    wanted = reader.holds(first.stream)
    return wanted is not None and wanted < first.next_sequence


def _skips_below(tables: Tables, txn: Txn, number: int, low: int) -> Iterator[bytes]:
    with txn.cursor(tables[SKIPS]) as cursor:
        is_there = cursor.set_range(place_key(number, 0))
        while is_there and place_of(cursor.key()) < (number, low):
            if last_sequence_of(cursor.value()) < low:
                yield bytes(cursor.key())
            is_there = cursor.next()


def in_steps(
    ask: Callable[[Callable[[WriteTxn, Log], Step]], "Future[Step]"],
    work: Callable[[list[str] | None, WriteTxn, Log], Step],
) -> Future[list[tuple[StreamId, int]]]:
    """Do the work step by step, each in a transaction of its own. The answer has the streams' new lows.

    A step that fails, or a store that is closed, ends the round; the answer then has what earlier steps removed.
    """
    answer: Future[list[tuple[StreamId, int]]] = Future()
    answer.set_running_or_notify_cancel()
    lows: dict[StreamId, int] = {}

    def ask_step(topics: list[str] | None) -> None:
        ask(lambda txn, log: work(topics, txn, log)).add_done_callback(stepped)

    def stepped(done: Future[Step]) -> None:
        error = done.exception()
        if error is None:
            step = done.result()
            lows.update(step.lows)
            if not step.is_last:
                with suppress(StoreError):  # closed meanwhile
                    ask_step(step.topics)
                    return
        if error is not None and not lows:
            answer.set_exception(error)
        else:
            answer.set_result(list(lows.items()))

    ask_step(None)
    return answer
