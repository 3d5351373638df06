"""DoGet: rows of some topics, from a frontier to a frontier, or from a frontier on.

Reads go to the store, in the thread of the call, a few batches at a time, without the node's loop. Batches are read
when the client takes them: a slow client costs one chunk of memory and its own lag; with many clients, chunks are
smaller.

Guarantees
2. Rows of a stream are returned in the order of their sequences, without repeats. Missing rows are refused, or skipped
   if the client asks for that.
6. `[start, end)` of frontiers gives the same rows in the same order, under the same schema, on every node that has
   them: streams by topic and origin, rows by sequence. A node that lags waits for the rows, then refuses (`behind`).
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.quotas import ChunkQuota
from m4cast.overlay.door.refusals import Refusal, stopping
from m4cast.overlay.door.requests import Form, Get
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.store.store import Kept, Store

NOBODY: Mapping[str, str] = MappingProxyType({})

Piece = tuple[pa.RecordBatch, bytes]
"""Rows of one batch, or the batch, and the JSON of their metadata: `{"topic", "origin", "next"}` and more."""


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The form, schema and piece size of an answer."""

    form: Form
    columns: pa.Schema
    """The columns of the payloads."""
    whose: Mapping[str, str]
    """The metadata of record batches about this node, unless rows have it as columns."""
    schema: pa.Schema
    rows_at_once: int
    """The most rows of a record batch of the answer."""
    row_bytes: int
    """The number of bytes by which a row may be larger in the answer than in its batch."""


class Reading:
    def __init__(
        self, store: Store, catalogue: Catalogue, frontiers: Frontiers, chunks: ChunkQuota, *, timeout_s: float
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._frontiers = frontiers
        self._chunks = chunks
        self._timeout_s = timeout_s

    def under(self, frontiers: Frontiers) -> "Reading":
        """The same, for a reader that sees other frontiers."""
        return Reading(self._store, self._catalogue, frontiers, self._chunks, timeout_s=self._timeout_s)

    def read(
        self, get: Get, is_cancelled: Callable[[], bool], whose: Mapping[str, str] = NOBODY
    ) -> tuple[pa.Schema, Iterator[Piece]]:
        """The schema of the answer, and its rows, which are read when they are taken."""
        if get.end is None:
            return self._tail(get, is_cancelled, whose)
        spans = self.plan(get, is_cancelled)
        known = spans or whole_streams(self._frontiers, get.topics)
        look = self.shape(get, known, whose)
        return look.schema, self._rows(spans, look, get.skip_missing)

    def shape(self, get: Get, spans: Iterable[StreamSpan], whose: Mapping[str, str]) -> AnswerShape:
        """Raw batches are not decoded, so that conflicts between them do not matter."""
        columns = pa.schema([]) if get.form == "raw" else self._catalogue.merged(spans)
        schemas = {"rows": payload.seen_schema(columns), "batches": columns, "raw": payload.RAW}
        seen = schemas[get.form]
        return AnswerShape(
            form=get.form,
            columns=columns,
            whose=whose,
            schema=seen,
            rows_at_once=payload.rows_at_once(seen),
            row_bytes=payload.added_bytes(seen, get.topics),
        )

    # ---- a range

    def plan(self, get: Get, is_cancelled: Callable[[], bool] = lambda: False) -> list[StreamSpan]:
        """Plan what to read of each stream, in the order of reading."""
        now = self._frontiers.positions(get.topics)
        if isinstance(get.end, dict):
            end = {stream: get.end[stream] for stream in sorted(get.end, key=_order) if stream.topic in get.topics}
            self._wait_for(end, get.timeout_s or self._timeout_s, is_cancelled)
        else:
            self._refuse_unknown(get.topics, now)
            end = now
        starts = self.starts(get, now)
        return [
            StreamSpan(stream, first, until)
            for stream, until in end.items()
            if (first := starts.get(stream, 1)) < until
        ]

    def _wait_for(self, end: Frontier, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        if self._frontiers.wait_for(end, timeout_s, is_cancelled):
            return
        self._frontiers.refuse_ended(is_cancelled)
        has = self._frontiers.positions({stream.topic for stream in end})
        stream = next(stream for stream, until in end.items() if has.get(stream, 1) < until)
        detail = (
            f"topic {stream.topic!r}, origin {stream.origin.hex()}: rows below {end[stream]} were requested, but this "
            f"node has those below {has.get(stream, 1)}, and no more arrived within {timeout_s:g} s: repeat it later, "
            "or read from another node"
        )
        raise Refusal("behind", detail)

    def _refuse_unknown(self, topics: tuple[str, ...], now: Frontier) -> None:
        there = {stream.topic for stream in now}
        for topic in topics:
            if topic not in there:
                detail = f"nothing was published under topic {topic!r}, as far as this node knows: check the name"
                raise Refusal("unknown-topic", detail)

    def starts(self, get: Get, now: Frontier) -> Frontier:
        """Return the position to begin at in each known stream. Others begin at 1."""
        if isinstance(get.start, dict):
            return get.start
        if get.start == "latest":
            return now
        if get.start == "earliest":
            return self._store.lows(now)
        return {stream: self._store.sequence_at(stream, get.start) or until for stream, until in now.items()}

    def _rows(self, spans: list[StreamSpan], look: AnswerShape, skip_missing: bool) -> Iterator[Piece]:
        for span in spans:
            for kept, first, until in self._batches(span, skip_missing):
                if look.form != "raw":
                    is_cut = _is_cut(kept.batch, first, until, look)
                    rows = self._catalogue.decoded(kept.batch, to_cut=is_cut)
                    yield from self._pieces(kept, rows, first, until, look, is_cut=is_cut)
                elif (
                    until == kept.batch.next_sequence
                ):  # a raw batch is whole, and belongs to the range that has its last row
                    yield _raw(kept, look)

    def _pieces(
        self, kept: Kept, rows: pa.RecordBatch, first: int, until: int, look: AnswerShape, *, is_cut: bool
    ) -> Iterator[Piece]:
        """Split by bytes, so that any client accepts each message, unless a single row is too large."""
        while first < until:
            after = min(first + look.rows_at_once, until)
            piece = payload.cut_rows(kept.batch, rows, first, after, look.columns)
            if look.form == "rows":
                piece = payload.seen_rows(kept.batch, piece, first, look.schema)
            if is_cut:
                piece = payload.fitting(piece)
                after = first + piece.num_rows
            yield piece, _where(kept, after, look)
            first = after

    def _batches(self, span: StreamSpan, skip_missing: bool) -> Iterator[tuple[Kept, int, int]]:
        """The batches of a span, each with its first sequence in the span and the one after its last."""
        first = span.first
        with self._chunks.reading():
            while first < span.next:
                if self._frontiers.closed:
                    raise stopping()
                batches = self._read_chunk(span, first)
                if not batches:
                    found = self._store.locate(span.stream, first)
                    begins = span.next if found is None else min(found[0], span.next)
                    if begins > first:
                        if not skip_missing:
                            raise missing_rows(span.stream, first, begins)
                        first = begins
                        continue
                    assert found is not None
                    batches = self._read_chunk(span, found[0])
                while batches:  # a batch is released when it is handed on: a slow reader holds the rest for long
                    kept = batches.popleft()
                    until = min(kept.batch.next_sequence, span.next)
                    yield kept, first, until
                    first = until

    def _read_chunk(self, span: StreamSpan, first: int) -> deque[Kept]:
        return deque(self._store.read_kept(span.stream, first, span.next, self._chunks.bytes_now))

    # ---- a tail

    def _tail(
        self, get: Get, is_cancelled: Callable[[], bool], whose: Mapping[str, str]
    ) -> tuple[pa.Schema, Iterator[Piece]]:
        """The schema is that of all rows which this node has now. Without rows it has no columns, and the tail ends
        when the first ones arrive, as it does before any rows that do not fit."""
        now = self._frontiers.positions(get.topics)
        starts = dict(self.starts(get, now))
        look = self.shape(get, (StreamSpan(stream, 1, until) for stream, until in now.items()), whose)
        return look.schema, self._follow(get, starts, look, is_cancelled)

    def _follow(self, get: Get, at: Frontier, look: AnswerShape, is_cancelled: Callable[[], bool]) -> Iterator[Piece]:
        """Rounds over the streams, a chunk of each, while there are new rows. Ends before rows that do not fit the
        schema: the client calls again from its frontier and gets the wider schema."""
        heard_at = time.monotonic()
        while True:
            deadline = heard_at + get.idle_s if get.idle_s is not None else float("inf")
            now = self._frontiers.wait_beyond(at, get.topics, deadline)
            self._frontiers.refuse_ended(is_cancelled)
            for stream, beyond in now.items():
                first = at.get(stream, 1)
                given = 0
                for kept, begin, until in self._batches(StreamSpan(stream, first, beyond), get.skip_missing):
                    if look.form == "raw":
                        yield _raw(kept, look)
                    else:
                        is_cut = _is_cut(kept.batch, begin, until, look)
                        rows = self._catalogue.decoded(kept.batch, to_cut=is_cut)
                        if not payload.covers(look.columns, rows.schema):
                            return
                        yield from self._pieces(kept, rows, begin, until, look, is_cut=is_cut)
                    at[stream] = until
                    heard_at = time.monotonic()
                    given += len(kept.batch.payload)
                    if given >= self._chunks.bytes_now:
                        break
                else:
                    at[stream] = max(first, beyond)  # also past skipped rows
            if time.monotonic() >= deadline and heard_at + (get.idle_s or 0) <= deadline:
                return


def whole_streams(frontiers: Frontiers, topics: Iterable[str]) -> list[StreamSpan]:
    """Every stream of the topics, from its first row to the last one delivered here."""
    return [StreamSpan(stream, 1, until) for stream, until in frontiers.positions(topics).items()]


def _is_cut(batch: Batch, first: int, until: int, look: AnswerShape) -> bool:
    """True if these rows may need several pieces, or are only a part of their batch."""
    count = until - first
    if count < batch.row_count or count > look.rows_at_once:
        return True
    return len(batch.content) + count * look.row_bytes > payload.PIECE_BYTES_MAX


def _raw(kept: Kept, look: AnswerShape) -> Piece:
    return payload.raw_row(kept.batch), _where(kept, kept.batch.next_sequence, look)


def _where(kept: Kept, until: int, look: AnswerShape) -> bytes:
    batch = kept.batch
    where: dict[str, object] = {
        "topic": batch.stream.topic,
        "origin": payload.origin_text(batch.stream.origin),
        "next": until,
    }
    if look.form != "rows":
        where["published_at_ms"] = batch.published_at_ms
        where["delivered_at_ms"] = kept.received_at_ms
        where["hops"] = kept.hops
        where.update(look.whose)
    return json.dumps(where).encode()


def missing_rows(stream: StreamId, first: int, begins: int) -> Refusal:
    detail = (
        f"topic {stream.topic!r}, origin {stream.origin.hex()}: rows {first} to {begins - 1} are not retained "
        'at this node: read from another one, start at "earliest", or skip them with on_missing = "skip"'
    )
    return Refusal("missing", detail)


def _order(stream: StreamId) -> tuple[str, Any]:
    return stream.topic, stream.origin
