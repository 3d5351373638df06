"""Restoring: rows that a client has kept in a table become the batch again that they were published in.

The client sends the rows of one batch and what else its checksum covers (`BatchFacts`). They are encoded as they were
when they were published, under the schema with the batch's schema id, which nodes keep for ever. Only if the result has
the checksum that the batch had does the node take it: into a skip, or before the first row that it keeps (PROTOCOL.md
5.8). What it takes is held for a day, by a reader's lease: retention would remove old rows at once.
"""

import base64
import binascii
import json
import threading
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.fields import NUMBER_MAX, Fields, shown
from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.node_handle import NodeHandle, until_written, waited
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.catalogue import Catalogue
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Restore, Restored
from m4cast.overlay.protocol.wire.batch import Batch, BatchFacts, Payload
from m4cast.overlay.store.store import Store

HOLD_MS = 24 * 3_600_000
RESTORED = "_restored"
"""The reader that holds what was restored."""
ROWS_BYTES = 4
"""Rows of a table may be so many times as large as the batch that they were published in: other types, for example."""
PARTS_MAX = 2**31 - 1
POSITION_BYTES_MAX = 1_000
FIELDS = (
    "origin",
    "first_sequence",
    "origin_batch",
    "published_at_ms",
    "checksum",
    "origin_incarnation",
    "schema_id",
    "publisher",
    "position",
    "part",
    "parts",
    "previous_checksum",
    "extensions",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBatch:
    """A batch that is to be restored, without its rows."""

    stream: StreamId
    first_sequence: int
    origin_batch: int
    published_at_ms: int
    checksum: int
    facts: BatchFacts


def parse_restore(topic: str, value: object) -> LostBatch:
    if not isinstance(value, dict):
        raise bad_request(f"restore must be an object, not {shown(value)}")
    fields = Fields.of(value)
    fields.refuse_unknown("restore", FIELDS)
    origin = fields.node_id("origin")
    if origin is None:
        raise bad_request("origin is missing: set it to the node id that numbered the rows")

    def number(name: str, low: int = 0, high: int = NUMBER_MAX) -> int:
        found = fields.whole(name, low, high)
        if found is None:
            raise bad_request(f"{name} is missing: set it to what the delivery record has")
        return found

    facts = BatchFacts(
        incarnation=number("origin_incarnation"),
        schema_id=_checksum(fields, "schema_id"),
        publisher=fields.text("publisher", ""),
        position=fields.text("position", ""),
        part=number("part", 0, PARTS_MAX),
        parts=number("parts", 1, PARTS_MAX),
        previous_checksum=_checksum(fields, "previous_checksum"),
        extensions=_bytes(fields, "extensions"),
    )
    return LostBatch(
        stream=StreamId(origin, topic),
        first_sequence=number("first_sequence", 1),
        origin_batch=number("origin_batch"),
        published_at_ms=number("published_at_ms"),
        checksum=_checksum(fields, "checksum"),
        facts=facts,
    )


def _checksum(fields: Fields, name: str) -> int:
    text = fields.required_text(name, "16 hex digits, as the delivery record has them")
    try:
        written = bytes.fromhex(text)
    except ValueError:
        written = b""
    if len(written) != 8:
        raise bad_request(f"{name} must be 16 hex digits, not {shown(text)}")
    return int.from_bytes(written, "big")


def _bytes(fields: Fields, name: str) -> bytes:
    try:
        return base64.b64decode(fields.text(name, ""), validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"{name} must be base64, not {shown(fields.get(name))}") from None


class Restoring:
    """Any thread may use it."""

    def __init__(self, store: Store, node: NodeHandle, catalogue: Catalogue, limits: DoorLimits) -> None:
        self._store = store
        self._node = node
        self._catalogue = catalogue
        self._timeout_s = limits.timeout_ms / 1000
        self._bytes_max = limits.batch_bytes_max
        self._lock = threading.Lock()

    def put(self, lost: LostBatch, rows: int | None, reader: Any, writer: Any, caller: Caller) -> None:
        """Restore one batch from the rows that follow; `rows`: how many there are."""
        caller.rights.require("admin")
        if self._store.is_nearly_full():
            raise Refusal(
                "store-full", "this node's store is nearly full: keep less, give it more room, or restore elsewhere"
            )
        content = self._encoded(lost, self._collected(reader, rows))
        batch = Batch(
            stream=lost.stream,
            incarnation=lost.facts.incarnation,
            first_sequence=lost.first_sequence,
            row_count=rows or 0,
            origin_batch=lost.origin_batch,
            schema_id=lost.facts.schema_id,
            published_at_ms=lost.published_at_ms,
            publisher=lost.facts.publisher,
            position=lost.facts.position,
            part=lost.facts.part,
            parts=lost.facts.parts,
            previous_checksum=lost.facts.previous_checksum,
            payload=content,
            checksum=lost.checksum,
        )
        self._refuse_other_history(batch)
        with self._lock:
            self._hold(batch)
            asked = self._node.request(lambda number: Restore(number, batch, lost.facts.extensions))
            answer = waited(asked, self._timeout_s, caller.is_cancelled)
        assert isinstance(answer, Restored)
        self._catalogue.forget(batch.stream)
        if self._store.lows((batch.stream,)).get(batch.stream, 0) > batch.first_sequence:
            raise _not_restored(batch, "retention removed rows after them meanwhile: repeat it")
        writer.write(json.dumps({"rows": batch.row_count, "restored": answer.is_new}).encode())

    def _collected(self, reader: Any, wanted: int | None) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        size = rows = 0
        while True:
            try:
                batch = reader.read_chunk().data
            except StopIteration:
                break
            batches.append(payload.checked(batch))
            size, rows = size + batch.nbytes, rows + batch.num_rows
            if size > ROWS_BYTES * self._bytes_max or rows > payload.BATCH_ROWS_MAX:
                raise payload.too_large(rows, size, ROWS_BYTES * self._bytes_max)
        if not rows or rows != wanted:  # in Flight, a call that broke off looks like one that ended
            raise Refusal("cut-off", f"{rows} of {wanted} rows arrived, and nothing was restored: repeat the call")
        return pa.Table.from_batches(batches)

    def _encoded(self, lost: LostBatch, rows: pa.Table) -> Payload:
        """The payload that these rows had."""
        schema = self._catalogue.known(lost.facts.schema_id)
        if schema is None:
            detail = f"this node does not know schema {lost.facts.schema_id:016x}: ask a node that had the rows"
            raise Refusal("not-restored", detail)
        try:
            columns = [_column(rows, field) for field in schema]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise Refusal("not-restored", f"the rows cannot be given the types that they had: {error}") from error
        (made,) = pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()
        made.validate(full=True)
        encoded = payload.encode(payload.schema_bytes(schema), made)
        if len(encoded) > self._bytes_max:
            raise payload.too_large(made.num_rows, len(encoded), self._bytes_max)
        return encoded

    def _refuse_other_history(self, batch: Batch) -> None:
        """The batch that follows, or the stream's record, names the checksum of the one that ended there."""
        known = self._store.before_low(batch.stream)
        if known is not None and known[0] == batch.next_sequence and known[1] not in (0, batch.checksum):
            raise _not_restored(batch, f"the rows after them follow a batch with checksum {known[1]:016x}")

    def _hold(self, batch: Batch) -> None:
        """Keep the stream's rows from this batch on from retention for a day, besides what is held already."""
        now_ms = self._node.clock_ms()
        held = self._store.readers().get(RESTORED)
        topic = batch.stream.topic
        frontier = {stream: until for stream, (_, until) in self._store.streams().items() if stream.topic == topic}
        if held is not None and held.lease_until_ms > now_ms and not held.cuts:
            frontier |= held.frontier
        first = min(batch.first_sequence, frontier.get(batch.stream, batch.first_sequence))
        if held is not None and held.cuts:
            until_written(self._store.drop_reader(RESTORED), self._timeout_s)
        wanted = {**frontier, batch.stream: first}
        until_written(self._store.set_reader(RESTORED, wanted, now_ms + HOLD_MS, now_ms=now_ms), self._timeout_s)


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    """A column under the type that it was published with. One that was null in every row may not be in the table."""
    at = rows.schema.get_field_index(field.name)
    if at < 0 or pa.types.is_null(field.type):
        return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
    return rows.column(at).cast(field.type)


def _not_restored(batch: Batch, why: str) -> Refusal:
    what = f"rows {batch.first_sequence} to {batch.last_sequence} of topic {batch.stream.topic!r}"
    return Refusal("not-restored", f"{what}: {why}")
