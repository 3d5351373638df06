"""DoGet: rows of some topics, from a frontier to a frontier, or from a frontier on.

Reads go to the store, in the thread of the call, a few batches at a time; the node does not notice. What the client
does not take is not read: a slow one costs one chunk of memory and its own lag; of many, the chunks are smaller.

Guarantees
2. Rows of a stream come in the order of their sequences, without repeats; what is missing is refused, or passed over
   if the client asks for that.
6. `[start, end)` of frontiers gives the same rows in the same order, under the same schema, on every node that has
   them: streams by topic and origin, rows by sequence. A node that is behind waits for the rows, then refuses
   (`behind`).
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from m4cast.overlay.door import payload
from m4cast.overlay.door.asking import stopping
from m4cast.overlay.door.catalogue import Catalogue, Span
from m4cast.overlay.door.progress import Progress
from m4cast.overlay.door.refusals import Refusal, gone
from m4cast.overlay.door.requests import Frontier, Get
from m4cast.overlay.door.room import Chunks
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.batch import Batch
from m4cast.overlay.store.store import Store

Piece = tuple[pa.RecordBatch, bytes]
"""Rows of one batch, and the JSON that goes with them: `{"topic", "origin", "next"}`."""


class Reading:
    def __init__(
        self, store: Store, catalogue: Catalogue, progress: Progress, chunks: Chunks, *, timeout_s: float
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._progress = progress
        self._chunks = chunks
        self._timeout_s = timeout_s

    def read(self, get: Get, is_cancelled: Callable[[], bool]) -> tuple[pa.Schema, Iterator[Piece]]:
        """The schema of the answer and its rows, read as they are taken."""
        if get.end is None:
            return self._tail(get, is_cancelled)
        spans = self.plan(get, is_cancelled)
        known = spans or [Span(stream, 1, until) for stream, until in self._progress.positions(get.topics).items()]
        seen = payload.seen_schema(self._catalogue.merged(known))
        return seen, self._rows(spans, seen, get.skip_missing)

    # ---- a range

    def plan(self, get: Get, is_cancelled: Callable[[], bool] = lambda: False) -> list[Span]:
        """What there is to read of each stream, in the order of reading."""
        now = self._progress.positions(get.topics)
        if isinstance(get.end, dict):
            end = {stream: get.end[stream] for stream in sorted(get.end, key=_order) if stream.topic in get.topics}
            self._wait_for(end, get.timeout_s or self._timeout_s, is_cancelled)
        else:
            self._refuse_unknown(get.topics, now)
            end = now
        starts = self._starts(get, now)
        return [Span(stream, first, until) for stream, until in end.items() if (first := starts.get(stream, 1)) < until]

    def _wait_for(self, end: Frontier, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        if self._progress.wait_for(end, timeout_s, is_cancelled):
            return
        self._refuse_ended(is_cancelled)
        has = self._progress.positions({stream.topic for stream in end})
        stream = next(stream for stream, until in end.items() if has.get(stream, 1) < until)
        detail = (
            f"topic {stream.topic!r}, origin {stream.origin.hex()}: asked for rows below {end[stream]}, this node has "
            f"those below {has.get(stream, 1)}, and no more came within {timeout_s:g} s: try later, or another node"
        )
        raise Refusal("behind", detail)

    def _refuse_unknown(self, topics: tuple[str, ...], now: Frontier) -> None:
        there = {stream.topic for stream in now}
        for topic in topics:
            if topic not in there:
                detail = f"nothing was published under topic {topic!r}, as far as this node knows: look at the topics"
                raise Refusal("unknown-topic", detail)

    def _starts(self, get: Get, now: Frontier) -> Frontier:
        """Where to begin with each stream that is here; others begin at 1."""
        if isinstance(get.start, dict):
            return get.start
        if get.start == "latest":
            return now
        if get.start == "earliest":
            return {stream: low for stream, (low, _) in self._store.streams().items() if stream in now}
        return {stream: self._store.sequence_at(stream, get.start) or until for stream, until in now.items()}

    def _rows(self, spans: list[Span], seen: pa.Schema, skip_missing: bool) -> Iterator[Piece]:
        for span in spans:
            for batch, first, until in self._batches(span, skip_missing):
                yield self._piece(batch, self._catalogue.decoded(batch), first, until, seen)

    def _piece(self, batch: Batch, rows: pa.RecordBatch, first: int, until: int, seen: pa.Schema) -> Piece:
        where = {"topic": batch.stream.topic, "origin": batch.stream.origin.hex(), "next": until}
        return payload.seen_rows(batch, rows, first, until, seen), json.dumps(where).encode()

    def _batches(self, span: Span, skip_missing: bool) -> Iterator[tuple[Batch, int, int]]:
        """Batches that hold the span's rows, each with the first and next of those that belong to it."""
        first = span.first
        with self._chunks.reading():
            while first < span.next:
                if self._progress.closed:
                    raise stopping()
                batches = self._read_chunk(span, first)
                if not batches:
                    found = self._store.locate(span.stream, first)
                    begins = span.next if found is None else min(found[0], span.next)
                    if begins > first:
                        if not skip_missing:
                            raise _missing(span.stream, first, begins)
                        first = begins
                        continue
                    assert found is not None
                    batches = self._read_chunk(span, found[0])
                while batches:  # what was handed on is not kept: a slow reader has the rest of it for long
                    batch = batches.popleft()
                    until = min(batch.next_sequence, span.next)
                    yield batch, first, until
                    first = until

    def _read_chunk(self, span: Span, first: int) -> deque[Batch]:
        return deque(self._store.read_range(span.stream, first, span.next, self._chunks.bytes_now))

    # ---- a tail

    def _tail(self, get: Get, is_cancelled: Callable[[], bool]) -> tuple[pa.Schema, Iterator[Piece]]:
        """The schema is that of all rows which are here now. If there are none it has no columns of theirs, and the
        tail ends when the first ones come, as before any rows that do not fit."""
        now = self._progress.positions(get.topics)
        starts = dict(self._starts(get, now))
        seen = payload.seen_schema(self._catalogue.merged(Span(stream, 1, until) for stream, until in now.items()))
        return seen, self._follow(get, starts, seen, is_cancelled)

    def _follow(self, get: Get, at: Frontier, seen: pa.Schema, is_cancelled: Callable[[], bool]) -> Iterator[Piece]:
        """A round over the streams, a chunk of each, as long as there is news. Ends before rows that do not fit the
        schema: the client asks again from where it is and gets the wider one."""
        fits = pa.schema(list(seen)[: -len(payload.SYSTEM_FIELDS)])
        heard_at = time.monotonic()
        while True:
            deadline = heard_at + get.idle_s if get.idle_s is not None else float("inf")
            now = self._progress.wait_beyond(at, get.topics, deadline)
            self._refuse_ended(is_cancelled)
            for stream, beyond in now.items():
                first = at.get(stream, 1)
                given = 0
                for batch, begin, until in self._batches(Span(stream, first, beyond), get.skip_missing):
                    rows = self._catalogue.decoded(batch)
                    if not payload.covers(fits, rows.schema):
                        return
                    yield self._piece(batch, rows, begin, until, seen)
                    at[stream] = until
                    heard_at = time.monotonic()
                    given += len(batch.payload)
                    if given >= self._chunks.bytes_now:
                        break
                else:
                    at[stream] = max(first, beyond)  # also past what was passed over
            if time.monotonic() >= deadline and heard_at + (get.idle_s or 0) <= deadline:
                return

    def _refuse_ended(self, is_cancelled: Callable[[], bool]) -> None:
        if self._progress.closed:
            raise stopping()
        if is_cancelled():
            raise gone()


def _missing(stream: StreamId, first: int, begins: int) -> Refusal:
    detail = (
        f"topic {stream.topic!r}, origin {stream.origin.hex()}: rows {first} to {begins - 1} are not kept here "
        '(any more): ask another node, start at "earliest", or pass over them with on_missing = "skip"'
    )
    return Refusal("missing", detail)


def _order(stream: StreamId) -> tuple[str, Any]:
    return stream.topic, stream.origin
