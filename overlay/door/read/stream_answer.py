"""One stream of a filtered answer: matching rows that wait to be sent, and how far the stream was tested.

A filtered answer passes rows over. Each of its record batches has a certificate: `next` means that everything below it
that matches was given, under the profile whose id is `profile`. Where nothing matches for a while, and at the end, a
record batch without rows says so. So a reader that continues from `next`, here or at another node, misses nothing and
has nothing tested twice.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from m4cast.overlay.door.read.matching import Found, Numbers
from m4cast.overlay.door.requests import Form
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.catalogue import not_arrow
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import Profile
from m4cast.overlay.store.store import Kept
from m4cast.overlay.value import value

Piece = tuple[pa.RecordBatch, bytes]

JOINED_ROWS = 4_096
JOINED_BYTES = 512 << 10
"""So many matching rows or bytes are sent at once. More: fewer and larger record batches, more copying. Guess."""
EARLY_S = 0.01
"""Fewer wait this long, counted from the last record batch of their stream, so the first ones do not wait. Higher:
fewer record batches, more latency: with 50 ms, rows that follow one another came after 50 ms, for the same CPU time at
200 rows a second. Tails that match together get their rows no sooner (`live_matching`). Measured."""
CERTIFY_S = 0.5
"""The interval at which a stretch without a match is certified. Lower: less is tested again after a failure, more
messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredShape:
    """The form and schema of a filtered answer."""

    form: Form
    columns: pa.Schema
    """The columns of the payloads."""
    schema: pa.Schema
    whose: Mapping[str, str]
    """The metadata of record batches about this node, unless rows have it as columns."""
    rows_at_once: int
    row_bytes: int
    """The number of bytes by which a row may be larger in the answer than in its batch."""


@value
class TestedSpan:
    """Rows `.. until - 1` of a stream were tested, from where the last step ended."""

    until: int
    rows: int
    """The number of rows that were tested: rows that are not retained were not."""
    found: Found | Kept | None
    """The rows that match, or the raw batch that may; None: nothing does."""


def seen(stream: StreamId, found: Found, columns: pa.Schema, schema: pa.Schema) -> pa.RecordBatch:
    """Rows that were found, under these columns and with the channel's."""
    count = len(found.sequences)
    named = payload.repeated(stream.topic, count), payload.repeated(stream.origin.hex(), count)
    added = [*named, pa.array(found.sequences), payload.moments(found.arrived(0), count)]
    return payload.found_rows(found.rows, columns, added, schema)


def split(
    rows: pa.RecordBatch, sequences: Numbers, until: int, rows_at_once: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Validated rows in pieces that any client accepts as a message, unless a single row is too large; each with the
    position after it, which is `until` for the last one."""
    at = 0
    while at < rows.num_rows:
        piece = payload.fitting(rows.slice(at, rows_at_once))
        at += piece.num_rows
        yield piece, until if at == rows.num_rows else int(sequences[at - 1]) + 1


class StreamAnswer:
    def __init__(self, stream: StreamId, begin: int, profile: Profile, shape: FilteredShape) -> None:
        self.stream = stream
        self.next = begin
        """Everything below it was tested."""
        self._shape = shape
        self._profile = profile.id.hex()
        self._certified = begin
        self._tested = 0
        self._waiting: list[Found] = []
        self._raw: Kept | None = None
        self._rows = 0
        self._bytes = 0
        self._sent_at = float("-inf")
        self._begun_at = time.monotonic()

    def add(self, step: TestedSpan) -> None:
        """Call `pieces` before the next step if they are due."""
        self.next = step.until
        self._tested += step.rows
        if isinstance(step.found, Kept):
            self._raw = step.found
        elif step.found is not None:
            self._waiting.append(step.found)
            self._rows += step.found.rows.num_rows
            self._bytes += step.found.size

    @property
    def due_at(self) -> float:
        """The time at which its pieces should be sent, on the monotonic clock."""
        if self._raw is not None or self._rows >= JOINED_ROWS or self._bytes >= JOINED_BYTES:
            return float("-inf")
        if self._waiting:
            return self._sent_at + EARLY_S
        if self.next > self._certified:
            return max(self._sent_at, self._begun_at) + CERTIFY_S
        return float("inf")

    def pieces(self) -> Iterator[Piece]:
        """All that waits, or the certificate alone; nothing if the last one still stands."""
        if self._raw is not None:
            raw, self._raw = self._raw, None
            yield payload.raw_row(raw.batch), self._certificate(self.next, raw)
        elif self._waiting:
            yield from self._joined()
        elif self.next > self._certified:
            yield payload.no_rows(self._shape.schema), self._certificate(self.next)

    def _joined(self) -> Iterator[Piece]:
        """Split by bytes, so that any client accepts each message, unless a single row is too large."""
        waiting, self._waiting = self._waiting, []
        self._rows = self._bytes = 0
        if len(waiting) == 1 and waiting[0].whole is not None and self._fits(waiting[0].whole):
            yield self._seen(waiting[0]), self._certificate(self.next)
            return
        seen = [self._seen(found) for found in waiting]
        rows = seen[0] if len(seen) == 1 else pa.concat_batches(seen)
        del seen
        if rows.num_rows <= self._shape.rows_at_once and rows.nbytes <= payload.PIECE_BYTES_MAX:
            yield rows, self._certificate(self.next)
            return
        sequences = np.concatenate([found.sequences for found in waiting])
        try:
            rows.validate(full=True)
        except pa.ArrowInvalid as error:
            raise not_arrow(self.stream, int(sequences[0]), error) from error
        for piece, until in split(rows, sequences, self.next, self._shape.rows_at_once):
            yield piece, self._certificate(until)

    def _fits(self, whole: Kept) -> bool:
        """True if all rows of a batch certainly fit into one piece."""
        count, size = whole.batch.row_count, len(whole.batch.content)
        return count <= self._shape.rows_at_once and size + count * self._shape.row_bytes <= payload.PIECE_BYTES_MAX

    def _seen(self, found: Found) -> pa.RecordBatch:
        shape, count = self._shape, len(found.sequences)
        if shape.form == "rows":
            return seen(self.stream, found, shape.columns, shape.schema)
        sequence, published_at = pa.array(found.sequences), payload.moments(found.arrived(0), count)
        hops = payload.repeatable(found.arrived(2), count).cast(pa.int32())
        added = [sequence, published_at, payload.moments(found.arrived(1), count), hops]
        return payload.found_rows(found.rows, shape.columns, added, shape.schema)

    def _certificate(self, until: int, raw: Kept | None = None) -> bytes:
        """The metadata of a piece."""
        where: dict[str, object] = {
            "topic": self.stream.topic,
            "origin": self.stream.origin.hex(),
            "next": until,
            "profile": self._profile,
            "tested": self._tested,
        }
        if self._shape.form != "rows":
            where.update(self._shape.whose)
        if raw is not None:
            where["published_at_ms"] = raw.batch.published_at_ms
            where["delivered_at_ms"] = raw.received_at_ms
            where["hops"] = raw.hops
        self._certified, self._tested = until, 0
        self._sent_at = time.monotonic()
        return json.dumps(where).encode()
