"""The batches of all streams, and payloads with a place of their own.

A log entry is a prefix of fixed width, then the body of the batch. A payload longer than `INLINE_BYTES_MAX`, and every
staged one, has a place of its own in `payloads`; the entry then ends with the head of the body, and its prefix has the
payload's number. So a commit numbers staged payload without writing it again: the number moves from the stage to the
log. It also saves a copy of every large payload that is received, and keeps the log's own tree small, so that retention
reads little. Payloads are numbered as they arrive: the table is filled at its end and emptied near its beginning.

The summary of a batch is one of its extensions, in the head. It is read there without the payload, whose pages are
elsewhere or follow the head's.
"""

import struct
from typing import NamedTuple

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, TABLE_EXTENSION, Batch, BatchFacts
from m4cast.overlay.protocol.wire.frame import (
    body_checksums,
    body_extension,
    body_facts,
    body_schema_id,
    decode_body,
    decode_parts,
    encode_head,
)
from m4cast.overlay.protocol.wire.selective import SPREAD_EXTENSION
from m4cast.overlay.store.table import ReadTxn, StoreTable, Tables, Txn, place_key, place_of, sequence_key
from m4cast.overlay.store.tables.streams import StreamRecord, read_stream, read_streams

LOG = StoreTable("log")
PAYLOADS = StoreTable("payloads")

INLINE_BYTES_MAX = 16_384
"""Payloads up to this size are in their log entry: one tree to update instead of two. Guess."""

_ENTRY = struct.Struct("<QQIIQB")
ENTRY_BYTES = _ENTRY.size


class Entry(NamedTuple):
    """The prefix of a log entry: all that retention needs, and how the batch arrived, without decoding the body."""

    published_at_ms: int
    payload_number: int
    """0 when the payload is in the entry."""
    payload_bytes: int
    row_count: int
    received_at_ms: int
    hops: int


def entry_value(batch: Batch, payload_number: int, received_at_ms: int, hops: int) -> bytes:
    """The entry of a batch whose payload is in the entry (number 0) or has a place of its own."""
    prefix = _ENTRY.pack(
        batch.published_at_ms, payload_number, len(batch.payload), batch.row_count, received_at_ms, hops
    )
    head = encode_head(batch)
    return prefix + head if payload_number else b"".join((prefix, head, batch.content))


def entry_of(value: bytes | memoryview) -> Entry:
    return Entry._make(_ENTRY.unpack_from(value))


def schema_id_of(value: bytes | memoryview) -> int:
    """The schema id of an entry's batch, without decoding the rest of it."""
    return body_schema_id(value, ENTRY_BYTES)


def summary_of(value: bytes | memoryview) -> bytes | None:
    """The summary of an entry's batch as its origin wrote it, None if it has none. Does not read the payload."""
    return body_extension(value, ENTRY_BYTES, SUMMARY_EXTENSION)


def is_of_table(value: bytes | memoryview) -> bool:
    """True if the rows of an entry's batch are those of a table, by its origin's word."""
    return body_extension(value, ENTRY_BYTES, TABLE_EXTENSION) is not None


def checksums_of(value: bytes | memoryview) -> tuple[int, int]:
    """The checksums of an entry's batch and of the batch before it, as the entry has them: the batch may be damaged."""
    return body_checksums(value, ENTRY_BYTES)


def read_facts(number: int, first: int, checksum: int, tables: Tables, txn: ReadTxn) -> BatchFacts | None:
    """The facts of the batch with this checksum that begins there; None if the log does not have it any longer."""
    value = txn.get(place_key(number, first), db=tables[LOG])
    return None if value is None or checksums_of(value)[0] != checksum else body_facts(value, ENTRY_BYTES)


class SummarisedBatch(NamedTuple):
    """A batch as far as it is known without reading its payload."""

    first_sequence: int
    next_sequence: int
    payload_bytes: int
    summary: bytes | None
    """The summary as its origin wrote it, unchecked; None if the batch has none."""


class Kept(NamedTuple):
    """A batch, and how it arrived at this node."""

    batch: Batch
    received_at_ms: int
    hops: int


def kept_bytes(entry: Entry, value: bytes | memoryview) -> int:
    """Bytes of the batch's body, wherever its payload is."""
    return len(value) - ENTRY_BYTES + (entry.payload_bytes if entry.payload_number else 0)


def batch_of(value: memoryview, payload: memoryview | None) -> Batch:
    """The batch of an entry, copied out and checked; `RemoteProtocolError` when it is not what was written."""
    body = value[ENTRY_BYTES:]
    if payload is None:
        return decode_body(body, (SPREAD_EXTENSION,))
    return decode_parts(body, bytes(payload), (SPREAD_EXTENSION,))


def first_entry(number: int, tables: Tables, txn: Txn) -> Entry | None:
    """The entry of the first batch that is kept of the stream with this number."""
    with txn.cursor(tables[LOG]) as cursor:
        if not cursor.set_range(place_key(number, 0)) or place_of(cursor.key())[0] != number:
            return None
        return entry_of(cursor.value())


def last_entry(number: int, tables: Tables, txn: Txn) -> Entry | None:
    """The entry of the last batch that is kept of the stream with this number."""
    with txn.cursor(tables[LOG]) as cursor:
        is_there = cursor.prev() if cursor.set_range(place_key(number + 1, 0)) else cursor.last()
        if not is_there or place_of(cursor.key())[0] != number:
            return None
        return entry_of(cursor.value())


def last_origin_batch(number: int, tables: Tables, txn: Txn) -> int:
    """`origin_batch` of the last batch that is kept of the stream with this number; 0 if it cannot be read."""
    with txn.cursor(tables[LOG]) as cursor:
        is_there = cursor.prev() if cursor.set_range(place_key(number + 1, 0)) else cursor.last()
        if not is_there or place_of(cursor.key())[0] != number:
            return 0
        payload_number = entry_of(cursor.value()).payload_number
        payload = txn.get(sequence_key(payload_number), db=tables[PAYLOADS]) if payload_number else None
        try:
            kept = None if payload is None else memoryview(payload)
            return batch_of(memoryview(cursor.value()), kept).origin_batch
        except RemoteProtocolError:
            return 0


def oldest_published_ms(tables: Tables, txn: Txn) -> int | None:
    """Return the time at which the oldest kept batch was published. About 3 us for each stream."""
    entries = (first_entry(record.number, tables, txn) for record in read_streams(tables, txn).values())
    return min((entry.published_at_ms for entry in entries if entry is not None), default=None)


def latest_received_ms(tables: Tables, txn: Txn) -> int | None:
    """Return the time at which the latest kept batch was received."""
    entries = (last_entry(record.number, tables, txn) for record in read_streams(tables, txn).values())
    return max((entry.received_at_ms for entry in entries if entry is not None), default=None)


def read_summaries(
    number: int, first: int, until: int, limit: int, tables: Tables, txn: ReadTxn
) -> list[SummarisedBatch]:
    """The batches that have rows in `first .. until - 1`, in order, at most `limit`. Cost: 2 us each, 3.5 with a
    summary."""
    found: list[SummarisedBatch] = []
    with txn.cursor(tables[LOG]) as cursor:
        # From the last entry that begins at or before `first`, which may be of another stream.
        is_there = cursor.prev() if cursor.set_range(place_key(number, first + 1)) else cursor.last()
        is_there = is_there or cursor.first()
        while is_there and len(found) < limit:
            of, begins = place_of(cursor.key())
            if (of, begins) >= (number, until):
                break
            value = cursor.value()
            entry = entry_of(value)
            if of == number and begins + entry.row_count > first:
                found.append(SummarisedBatch(begins, begins + entry.row_count, entry.payload_bytes, summary_of(value)))
            is_there = cursor.next()
    return found


def read_before_low(stream: StreamId, tables: Tables, txn: ReadTxn) -> tuple[int, int] | None:
    """Return the beginning of the stream here, and the checksum of the batch that ended there; 0 if it is not known."""
    record = read_stream(stream, tables, txn)
    if record is None:
        return None
    value = txn.get(place_key(record.number, record.low), db=tables[LOG])
    if value is not None:
        return record.low, checksums_of(value)[1]
    return record.low, record.last_checksum if record.low == record.next else 0


def checksums_left(record: StreamRecord, first: int, following: int, tables: Tables, txn: Txn) -> tuple[int, ...]:
    """The readable copies of a damaged batch's checksum: in its own entry, in its successor's, and, if it is the
    last batch, in the stream's record."""
    value = txn.get(place_key(record.number, first), db=tables[LOG])
    successor = txn.get(place_key(record.number, following), db=tables[LOG])
    return (
        *((checksums_of(value)[0],) if value is not None else ()),
        *((record.last_checksum,) if following == record.next else ()),
        *((checksums_of(successor)[1],) if successor is not None else ()),
    )
