"""What is removed from a store, and who holds it back.

Per topic there are limits by bytes and by age: of the rows' `published_at_ms`, so that nodes trim alike. But that is
another node's clock, so nothing is younger than its arrival here, and nothing is too old in the first day after it.
Past a limit the oldest batches of the topic go, whichever stream they are in, but always from the beginning of their
stream.

A named reader holds back what it has not read while its lease lasts: of every stream of the topics that it names or has
in its frontier, everything from its frontier on (from the beginning, for streams that are not in it). It cannot hold a
topic beyond `hold_bytes_max` or rows older than `hold_ms_max`. What it holds does not count against the topic's other
streams: nobody keeps less because a reader is slow. Past its limits it is cut: the rows go, its frontier moves
on, and its record says what it lost, so that it learns of the loss instead of meeting a hole: its lease is not renewed
before it comes with a frontier past the cuts.

Delivery records have limits of their own; they say what happened, and outlive the rows or not.

Trimming is done by the writer in steps of bounded work, between groups of appends. LMDB uses freed pages again, so that
under steady load the file stops growing. A topic that is within its limits costs a look at what is in memory of its
streams: a round over 64,000 of them takes 0.05 s; reading the first batch of each took half a second. Measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.store import layout
from m4cast.overlay.store.layout import Tables, Txn, WriteTxn
from m4cast.overlay.store.log import Log

DAY_MS = 24 * 3_600_000
STEP_ENTRIES = 512
"""Batches removed in one transaction. Higher: longer waits for the appends behind it. Guess."""
STEP_STREAMS = 2_048
"""Streams looked at in one transaction, apart from those of the topic it has begun."""
STEP_DELIVERIES = 8_192
READERS_MAX = 1_000
"""Each costs a look at every batch that a trim considers. Guess."""
CUTS_MAX = 256
"""Streams of which a reader's record tells what was cut; the oldest are forgotten beyond it."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a topic is kept; None is no limit. All numbers are guesses."""

    bytes_max: int | None = None
    age_ms_max: int | None = 7 * DAY_MS
    hold_bytes_max: int | None = 16 << 30
    """Readers can hold a topic up to this size, if it is more than `bytes_max`."""
    hold_ms_max: int | None = 14 * DAY_MS


@dataclass(frozen=True, slots=True)
class Retention:
    default: Keep = Keep()
    topics: dict[str, Keep] = field(default_factory=dict)
    deliveries_max: int = 10_000_000
    """About 100 bytes each."""
    deliveries_ms_max: int = 30 * DAY_MS

    def with_topics(self, topics: dict[str, Keep]) -> "Retention":
        """What was set for single topics while the node ran comes before what it was started with."""
        return replace(self, topics=self.topics | topics)

    def of(self, topic: str) -> Keep:
        return self.topics.get(topic, self.default)


class Cut(NamedTuple):
    """Rows `first_sequence .. next_sequence - 1` that a reader had not read when they were removed."""

    stream: StreamId
    first_sequence: int
    next_sequence: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Reader:
    name: str
    frontier: dict[StreamId, int]
    topics: frozenset[str]
    lease_until_ms: int
    cuts: tuple[Cut, ...] = ()

    def holds(self, stream: StreamId) -> int | None:
        """The first sequence that this reader still wants of the stream; None if it does not want the stream."""
        wanted = self.frontier.get(stream)
        return 1 if wanted is None and stream.topic in self.topics else wanted

    def lacks(self, cut: Cut) -> bool:
        wanted = self.holds(cut.stream)
        return wanted is not None and wanted < cut.next_sequence

    def cut(self, stream: StreamId, next_sequence: int, at_ms: int) -> "Reader":
        wanted = self.holds(stream)
        assert wanted is not None and wanted < next_sequence
        earlier = [cut for cut in self.cuts if cut.stream == stream and cut.next_sequence >= wanted]
        first = min([wanted, *(cut.first_sequence for cut in earlier)])
        others = [cut for cut in self.cuts if cut not in earlier]
        cuts = (*others, Cut(stream, first, next_sequence, at_ms))[-CUTS_MAX:]
        return replace(self, frontier={**self.frontier, stream: next_sequence}, cuts=cuts)

    def to_bytes(self) -> bytes:
        return layout.to_json(
            {
                "lease_until_ms": self.lease_until_ms,
                "topics": sorted(self.topics),
                "frontier": [[s.origin.hex(), s.topic, next_] for s, next_ in self.frontier.items()],
                "cuts": [[c.stream.origin.hex(), c.stream.topic, *c[1:]] for c in self.cuts],
            }
        )


def reader_of(name: str, value: bytes | memoryview) -> Reader:
    fields = layout.of_json(value)
    return Reader(
        name,
        {_stream(origin, topic): next_ for origin, topic, next_ in fields["frontier"]},
        frozenset(fields["topics"]),
        fields["lease_until_ms"],
        tuple(Cut(_stream(origin, topic), *numbers) for origin, topic, *numbers in fields["cuts"]),
    )


def read_keeps(tables: Tables, txn: Txn) -> dict[str, Keep]:
    return {str(key, "utf-8"): Keep(**layout.of_json(value)) for key, value in txn.cursor(tables.topics)}


def _stream(origin: str, topic: str) -> StreamId:
    return StreamId(NodeId(bytes.fromhex(origin)), topic)


def read_readers(tables: Tables, txn: Txn) -> dict[str, Reader]:
    return {(name := str(key, "utf-8")): reader_of(name, value) for key, value in txn.cursor(tables.readers)}


def lease(wanted: Reader, now_ms: int, tables: Tables, txn: WriteTxn, log: Log) -> Reader | None:
    """Make the reader or renew it. An answer with cuts: it wants what was cut, and was not renewed; None: too many.

    Of its frontier only streams that are here are kept: every trim reads all of it, whatever names somebody thought of.
    """
    wanted = replace(wanted, frontier={each: next_ for each, next_ in wanted.frontier.items() if each in log.streams})
    readers = read_readers(tables, txn)
    present = readers.get(wanted.name)
    if present is None and len(readers) >= READERS_MAX:
        oldest = min(readers.values(), key=lambda reader: reader.lease_until_ms)
        if oldest.lease_until_ms > now_ms:
            return None
        txn.delete(oldest.name.encode(), db=tables.readers)
    cuts = () if present is None else tuple(cut for cut in present.cuts if wanted.lacks(cut))
    if not cuts:
        txn.put(wanted.name.encode(), wanted.to_bytes(), db=tables.readers)
    return replace(wanted, cuts=cuts)


# ---- trimming


class _First(NamedTuple):
    """The oldest batch of a stream; ordered by age."""

    dated_ms: int
    number: int
    first_sequence: int
    stream: StreamId
    entry: layout.Entry
    kept_bytes: int

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.entry.row_count


class Step(NamedTuple):
    """What one step of a trim did: the new lows of streams, and the topics that are left for later ones."""

    lows: dict[StreamId, int]
    topics: list[str]
    is_last: bool


class Trim:
    """One round of retention, done in steps. A step changes nothing here, since it may be done in vain, and again."""

    def __init__(self, tables: Tables, retention: Retention, now_ms: int) -> None:
        self._tables = tables
        self._retention = retention
        self._now_ms = now_ms
        self._streams: dict[str, list[StreamId]] = {}
        """By topic, as they were when the round began."""

    def step(self, topics: list[str] | None, txn: WriteTxn, log: Log) -> Step:
        """Remove some of what is too much, of the topics that are left (None: all)."""
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
                txn.put(reader.name.encode(), reader.to_bytes(), db=self._tables.readers)
        return Step(lows, topics, is_last=self._trim_deliveries(txn, log) and not topics)

    def empty(self, upto: dict[StreamId, int], txn: WriteTxn, log: Log) -> Step:
        """Remove some of what these streams have below the given sequences, whoever holds it."""
        readers = read_readers(self._tables, txn)
        left = STEP_ENTRIES
        for stream, until in upto.items():
            while left and (first := self._first(stream, txn, log)) and first.first_sequence < until:
                for reader in readers.values():
                    if _wants(reader, first):
                        readers[reader.name] = reader.cut(stream, first.next_sequence, self._now_ms)
                        txn.put(reader.name.encode(), readers[reader.name].to_bytes(), db=self._tables.readers)
                self._remove(first, txn, log)
                left -= 1
        return Step({stream: self._raise_low(stream, txn, log) for stream in upto}, [], is_last=left > 0)

    def _trim_topic(
        self, streams: list[StreamId], keep: Keep, live: list[Reader], left: int, txn: WriteTxn, log: Log
    ) -> dict[StreamId, int]:
        """Remove the oldest batches of a topic's streams, at most `left`; how many it were of each."""
        topic_bytes = counted_bytes = sum(log.streams[stream].log_bytes for stream in streams)
        if not self._has_too_much(streams, topic_bytes, keep, txn, log):
            return {}
        age_ms_max = keep.age_ms_max
        firsts = [first for stream in streams if (first := self._first(stream, txn, log, age_ms_max))]
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
            following = self._first(first.stream, txn, log, age_ms_max)
            if following is None:
                heappop(firsts)
            else:
                heapreplace(firsts, following)
        return removed

    def _has_too_much(self, streams: list[StreamId], topic_bytes: int, keep: Keep, txn: WriteTxn, log: Log) -> bool:
        """Whether anything of the topic is over its limits, readers apart. Reads only what was never looked at."""
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
        with txn.cursor(self._tables.log) as cursor:
            if not cursor.set_range(layout.place_key(number, 0)):
                return None
            found, first_sequence = layout.place_of(cursor.key())
            if found != number:
                return None
            value = cursor.value()
            entry = layout.entry_of(value)
            size = layout.kept_bytes(entry, value)
            dated_ms = self._dated_ms(entry.published_at_ms, entry.received_at_ms, age_ms_max)
            return _First(dated_ms, number, first_sequence, stream, entry, size)

    def _dated_ms(self, published_at_ms: int, received_at_ms: int, age_ms_max: int | None) -> int:
        """From when a batch's age counts. Where rows are kept for a day or less, that is its arrival; one in the future
        is of a clock that was wrong here."""
        dated_ms = min(published_at_ms, received_at_ms, self._now_ms)
        if age_ms_max is None or received_at_ms > self._now_ms:
            return dated_ms
        return max(dated_ms, received_at_ms - max(age_ms_max - DAY_MS, 0))

    def _remove(self, first: _First, txn: WriteTxn, log: Log) -> None:
        txn.delete(layout.place_key(first.number, first.first_sequence), db=self._tables.log)
        if first.entry.payload_number:
            txn.delete(layout.sequence_key(first.entry.payload_number), db=self._tables.payloads)
        log.oldest.pop(first.stream, None)
        held = log.changed(first.stream)
        held.batches -= 1
        held.log_bytes -= first.kept_bytes
        if not held.batches and first.stream.origin == log.identity.node_id:
            # The stream goes on, and no row of it may be published before this one.
            last_ms = layout.time_value(first.entry.published_at_ms)
            txn.put(layout.PUBLISHED + layout.stream_key(first.stream), last_ms, db=self._tables.meta)

    def _raise_low(self, stream: StreamId, txn: WriteTxn, log: Log) -> int:
        """To the first batch that is left, over the skips before it; they go as well."""
        held = log.changed(stream)
        first = self._first(stream, txn, log)
        held.low = first.first_sequence if first else held.next
        for key in list(_skips_below(self._tables, txn, held.number, held.low)):
            txn.delete(key, db=self._tables.skips)
        return held.low

    def _trim_deliveries(self, txn: WriteTxn, log: Log) -> bool:
        oldest_ms = self._now_ms - self._retention.deliveries_ms_max
        kept_from = log.counters.delivery - self._retention.deliveries_max
        with txn.cursor(self._tables.deliveries) as cursor:
            is_there = cursor.first()
            for _ in range(STEP_DELIVERIES):
                if not is_there:
                    return True
                too_old = layout.delivery_of(cursor.value()).received_at_ms < oldest_ms
                if not too_old and layout.number_of(cursor.key()) >= kept_from:
                    return True
                cursor.delete()  # goes to the next record; says True even if that was the last one
                is_there = bool(cursor.key())
            return False


def _wants(reader: Reader, first: _First) -> bool:
    wanted = reader.holds(first.stream)
    return wanted is not None and wanted < first.next_sequence


def _skips_below(tables: Tables, txn: Txn, number: int, low: int) -> Iterator[bytes]:
    with txn.cursor(tables.skips) as cursor:
        is_there = cursor.set_range(layout.place_key(number, 0))
        while is_there and layout.place_of(cursor.key()) < (number, low):
            _, first_sequence = layout.place_of(cursor.key())
            skip = layout.skip_of(StreamId(NodeId(b""), ""), first_sequence, cursor.value())
            if skip.last_sequence < low:
                yield bytes(cursor.key())
            is_there = cursor.next()
