"""The log: appends in a transaction, and recovery when a store is opened.

The log keeps the records of all streams and the counters in memory, ahead of the file by the transaction under way: a
group of appends to one stream writes the stream's record once. After a transaction that was rolled back they are read
again. Only the writer's thread uses it; readers read the file.

Guarantees
2. A batch or skip is appended to its stream's log at `next` and nowhere else: no number twice, no hole.
5. A staged payload becomes part of the log by its number: a commit writes heads, keys and records.

Cost: per batch two puts and about 10 us besides the copy of its payload into LMDB's pages (`tests/bench/store.py`).
"""

from functools import partial
from typing import assert_never

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    AppendBatch,
    AppendSkip,
    DropStaged,
    FillSkip,
    InsertBatch,
    MarksRecord,
    NoteSkip,
    PrependBatch,
    Recovered,
    RepairBatch,
    SetOwner,
    Staged,
    StagePayload,
    StartStream,
    StoredRecord,
    StoredStream,
)
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, Payload, Skip, StoredPayload
from m4cast.overlay.store.table import Tables, Txn, WriteTxn, place_key, place_of, sequence_key
from m4cast.overlay.store.tables import RECORD_TABLES
from m4cast.overlay.store.tables.deliveries import DELIVERIES, delivery_value
from m4cast.overlay.store.tables.log import (
    ENTRY_BYTES,
    INLINE_BYTES_MAX,
    LOG,
    PAYLOADS,
    checksums_left,
    checksums_of,
    entry_of,
    entry_value,
    last_entry,
    last_origin_batch,
)
from m4cast.overlay.store.tables.meta import (
    COUNTERS,
    IDENTITY,
    META,
    Identity,
    counters_of,
    identity_of,
    read_fact,
    read_published_ms,
)
from m4cast.overlay.store.tables.roster import read_others
from m4cast.overlay.store.tables.skips import SKIPS, read_skips, skip_of, skip_value
from m4cast.overlay.store.tables.stage import STAGE, StageEntry, read_stage, stage_of, stage_value
from m4cast.overlay.store.tables.streams import STREAMS, StreamRecord, read_names, read_streams, stream_key, write_name


class Log:
    def __init__(self, tables: Tables, txn: Txn) -> None:
        self._tables = tables
        self.reload(txn)

    def reload(self, txn: Txn) -> None:
        """Read everything again, after a transaction that was rolled back."""
        tables = self._tables
        self.identity = identity_of(read_fact(IDENTITY, tables, txn))
        self.counters = counters_of(read_fact(COUNTERS, tables, txn))
        self.streams = read_streams(tables, txn)
        self.oldest: dict[StreamId, tuple[int, int]] = {}
        """The times at which the first kept batch of a stream was published and received, where retention has read
        it."""
        self._changed: dict[StreamId, StreamRecord] = {}
        self._counted = False

    # ---- one append

    def apply(self, append: Append, txn: WriteTxn) -> None:
        delivered: list[tuple[Delivery, Batch | Skip]] = []
        for write in append.writes:
            match write:
                case AppendBatch(batch, delivery):
                    self._append_batch(write, txn)
                    if delivery is not None:
                        delivered.append((delivery, batch))
                case AppendSkip(skip, delivery):
                    self._append_skip(skip, txn)
                    if delivery is not None:
                        delivered.append((delivery, skip))
                case FillSkip(batch, delivery):
                    if self._fill(batch, delivery, txn):
                        delivered.append((delivery, batch))
                case PrependBatch(batch, at_ms):
                    self._prepend(batch, at_ms, txn)
                case RepairBatch(batch):
                    self._repair(batch, txn)
                case InsertBatch(batch, delivery):
                    if self._insert(batch, delivery, txn):
                        delivered.append((delivery, batch))
                case NoteSkip(skip):
                    place = place_key(self._open(skip.stream, txn).number, skip.first_sequence)
                    txn.put(place, skip_value(skip), db=self._tables[SKIPS])
                case StagePayload(stage_id, staged):
                    self._stage(stage_id, staged, txn)
                case DropStaged(stage_id):
                    self._drop_staged(stage_id, txn)
                case StartStream(stream, first_sequence):
                    if stream not in self.streams:
                        held = self._open(stream, txn)
                        held.low = held.next = first_sequence
                case SetOwner(stream, owner):
                    self._open(stream, txn).owner = owner
                case StoredRecord():
                    RECORD_TABLES[type(write)].write(write, partial(self._number, txn=txn), self._tables, txn)
                case _:
                    assert_never(write)
        # After all batches: small pages between those of large payloads would scatter the free space of the file.
        if delivered:
            self._deliver(delivered, txn)

    def flush(self, txn: WriteTxn) -> None:
        """Write the records and counters that the transaction changed; the last thing before it is committed."""
        for stream, held in self._changed.items():
            txn.put(stream_key(stream), held.to_bytes(), db=self._tables[STREAMS])
        self._changed.clear()
        if self._counted:
            txn.put(COUNTERS, self.counters.to_bytes(), db=self._tables[META])
            self._counted = False

    def changed(self, stream: StreamId) -> StreamRecord:
        """The stream's record, to be changed and written with the transaction."""
        held = self._changed[stream] = self.streams[stream]
        return held

    def take_identity(self, identity: Identity, txn: WriteTxn) -> None:
        self.identity = identity
        self.counters.origin_batch = 0
        self._counted = True
        txn.put(IDENTITY, identity.to_bytes(), db=self._tables[META])

    def _open(self, stream: StreamId, txn: WriteTxn) -> StreamRecord:
        held = self.streams.get(stream)
        if held is None:
            held = self.streams[stream] = StreamRecord(self.counters.stream)
            self.counters.stream += 1
            self._counted = True
            write_name(held.number, stream, self._tables, txn)
        self._changed[stream] = held
        return held

    def _append_batch(self, write: AppendBatch, txn: WriteTxn) -> None:
        batch, delivery = write.batch, write.delivery
        held = self._open(batch.stream, txn)
        assert batch.first_sequence == held.next, f"{batch.stream.topic}: {batch.first_sequence} at {held.next}"
        if isinstance(batch.payload, StoredPayload):
            payload_number = self._take_staged(write.stage_id, batch, txn)
        elif len(batch.payload) > INLINE_BYTES_MAX:
            payload_number = self._put_payload(batch.payload, txn)
        else:
            payload_number = 0
        came = (batch.published_at_ms, 0) if delivery is None else (delivery.received_at_ms, delivery.hops)
        value = entry_value(batch, payload_number, *came)
        txn.put(place_key(held.number, batch.first_sequence), value, db=self._tables[LOG])
        held.next = batch.next_sequence
        held.last_checksum = batch.checksum
        held.batches += 1
        held.log_bytes += len(value) - ENTRY_BYTES + (len(batch.payload) if payload_number else 0)
        if batch.stream.origin == self.identity.node_id:
            self.counters.origin_batch = batch.origin_batch
            self._counted = True

    def _fill(self, batch: Batch, delivery: Delivery, txn: WriteTxn) -> bool:
        """Write the batch in place of a skip or a part of it. False if there is no such skip (any more), or if the
        batches beside it belong to another history."""
        held = self.streams.get(batch.stream)
        if held is None or batch.first_sequence < held.low:
            return False
        skip = self._skip_around(batch, held, txn)
        if skip is None or not self._fits(batch, held, txn):
            return False
        changed = self.changed(batch.stream)
        self._put_entry(batch, changed, delivery.received_at_ms, delivery.hops, txn)
        txn.delete(place_key(held.number, skip.first_sequence), db=self._tables[SKIPS])
        for piece in skip.without(batch.first_sequence, batch.last_sequence):
            place = place_key(held.number, piece.first_sequence)
            txn.put(place, skip_value(piece), db=self._tables[SKIPS])
        if batch.next_sequence == held.next:
            changed.last_checksum = batch.checksum
        return True

    def _prepend(self, batch: Batch, at_ms: int, txn: WriteTxn) -> None:
        """Write the batch before the first row that is kept, if that is where it belongs."""
        held = self.streams.get(batch.stream)
        if held is None or batch.next_sequence != held.low or not self._fits(batch, held, txn):
            return
        if held.low == held.next and held.last_checksum not in (0, batch.checksum):
            return
        changed = self.changed(batch.stream)
        self._put_entry(batch, changed, at_ms, 0, txn)
        changed.low = batch.first_sequence

    def _put_entry(self, batch: Batch, held: StreamRecord, received_at_ms: int, hops: int, txn: WriteTxn) -> None:
        """Write a batch that is not the last of its stream at its place."""
        number = self._put_payload(batch.content, txn) if len(batch.payload) > INLINE_BYTES_MAX else 0
        value = entry_value(batch, number, received_at_ms, hops)
        txn.put(place_key(held.number, batch.first_sequence), value, db=self._tables[LOG])
        held.batches += 1
        held.log_bytes += len(value) - ENTRY_BYTES + (len(batch.payload) if number else 0)
        self.oldest.pop(batch.stream, None)

    def _insert(self, batch: Batch, delivery: Delivery, txn: WriteTxn) -> bool:
        """Write a batch of a selective stream at its place. False if rows are there already."""
        held = self._open(batch.stream, txn)
        if self._has_rows(batch, held, txn):
            return False
        self._put_entry(batch, held, delivery.received_at_ms, delivery.hops, txn)
        if batch.next_sequence >= held.next:
            held.next, held.last_checksum = batch.next_sequence, batch.checksum
        return True

    def _has_rows(self, batch: Batch, held: StreamRecord, txn: WriteTxn) -> bool:
        with txn.cursor(self._tables[LOG]) as cursor:
            is_there = cursor.set_range(place_key(held.number, batch.first_sequence))
            if is_there and place_of(cursor.key()) < (held.number, batch.next_sequence):
                return True
            if not (cursor.prev() if is_there else cursor.last()):
                return False
            number, first = place_of(cursor.key())
            return number == held.number and first + entry_of(cursor.value()).row_count > batch.first_sequence

    def _skip_around(self, batch: Batch, held: StreamRecord, txn: WriteTxn) -> Skip | None:
        with txn.cursor(self._tables[SKIPS]) as cursor:
            is_there = cursor.set_range(place_key(held.number, batch.first_sequence + 1))
            if not (cursor.prev() if is_there else cursor.last()):
                return None
            number, first = place_of(cursor.key())
            skip = skip_of(batch.stream, first, cursor.value()) if number == held.number else None
        return skip if skip is not None and batch.last_sequence <= skip.last_sequence else None

    def _fits(self, batch: Batch, held: StreamRecord, txn: WriteTxn) -> bool:
        """True if the checksums chain with the batches beside it, as far as the store has these."""
        following = txn.get(place_key(held.number, batch.next_sequence), db=self._tables[LOG])
        if following is not None and checksums_of(following)[1] != batch.checksum:
            return False
        with txn.cursor(self._tables[LOG]) as cursor:
            is_there = cursor.set_range(place_key(held.number, batch.first_sequence))
            if not (cursor.prev() if is_there else cursor.last()):
                return True
            number, first = place_of(cursor.key())
            if number != held.number or first + entry_of(cursor.value()).row_count != batch.first_sequence:
                return True
            return checksums_of(cursor.value())[0] == batch.previous_checksum

    def _repair(self, batch: Batch, txn: WriteTxn) -> None:
        """Write the batch in place of a damaged one, if a checksum that can still be read proves it to be the same."""
        held = self.streams.get(batch.stream)
        place = b"" if held is None else place_key(held.number, batch.first_sequence)
        value = txn.get(place, db=self._tables[LOG]) if held is not None else None
        if held is None or value is None:  # retention has removed it
            return
        if batch.checksum not in checksums_left(held, batch.first_sequence, batch.next_sequence, self._tables, txn):
            return
        entry = entry_of(value)
        if (entry.published_at_ms, entry.row_count, entry.payload_bytes) == (
            batch.published_at_ms,
            batch.row_count,
            len(batch.payload),
        ):
            number, came = entry.payload_number, (entry.received_at_ms, entry.hops)
            if number:
                txn.put(sequence_key(number), batch.content, db=self._tables[PAYLOADS])
        else:  # The entry's own numbers are damaged: its payload number must not be used.
            number, came = 0, (batch.published_at_ms, 0)
            if len(batch.payload) > INLINE_BYTES_MAX:
                number = self._put_payload(batch.content, txn)
        txn.put(place, entry_value(batch, number, *came), db=self._tables[LOG])
        self.oldest.pop(batch.stream, None)

    def _append_skip(self, skip: Skip, txn: WriteTxn) -> None:
        held = self._open(skip.stream, txn)
        assert skip.first_sequence == held.next, f"{skip.stream.topic}: skip {skip.first_sequence} at {held.next}"
        place = place_key(held.number, skip.first_sequence)
        txn.put(place, skip_value(skip), db=self._tables[SKIPS])
        held.next = skip.last_sequence + 1
        held.last_checksum = 0

    def _deliver(self, delivered: list[tuple[Delivery, Batch | Skip]], txn: WriteTxn) -> None:
        for delivery, what in delivered:
            number = self._number(delivery.stream, txn)
            value = delivery_value(delivery, number, self.identity.incarnation, what)
            txn.put(sequence_key(self.counters.delivery), value, append=True, db=self._tables[DELIVERIES])
            self.counters.delivery += 1
        self._counted = True

    def _number(self, stream: StreamId, txn: WriteTxn) -> int:
        held = self.streams.get(stream)
        return (held or self._open(stream, txn)).number

    # ---- stage and payloads

    def _put_payload(self, payload: Payload, txn: WriteTxn) -> int:
        number = self.counters.payload
        txn.put(sequence_key(number), payload, append=True, db=self._tables[PAYLOADS])
        self.counters.payload += 1
        self._counted = True
        return number

    def _stage(self, stage_id: str, staged: Staged, txn: WriteTxn) -> None:
        self._drop_staged(stage_id, txn)
        assert not isinstance(staged.payload, StoredPayload), f"{stage_id}: staged without its bytes"
        number = self._put_payload(staged.payload, txn)
        txn.put(stage_id.encode(), stage_value(staged, number), db=self._tables[STAGE])

    def _take_staged(self, stage_id: str | None, batch: Batch, txn: WriteTxn) -> int:
        """Remove the id from the stage; its payload stays, for the log. Returns the payload's number."""
        entry = None if stage_id is None else self._pop_staged(stage_id, txn)
        assert entry is not None and entry.is_of(batch), f"{batch.stream.topic}: {batch.first_sequence} is not staged"
        return entry.payload_number

    def _drop_staged(self, stage_id: str, txn: WriteTxn) -> None:
        entry = self._pop_staged(stage_id, txn)
        if entry is not None:
            txn.delete(sequence_key(entry.payload_number), db=self._tables[PAYLOADS])

    def _pop_staged(self, stage_id: str, txn: WriteTxn) -> StageEntry | None:
        value = txn.pop(stage_id.encode(), db=self._tables[STAGE])
        return None if value is None else stage_of(value)


# ---- reading it all back


def recover(tables: Tables, txn: Txn) -> Recovered:
    """Recover the state of the store when it is opened."""
    identity = identity_of(read_fact(IDENTITY, tables, txn))
    names = read_names(tables, txn)
    skips = read_skips(names, tables, txn)
    records = {kind: rows for kind, table in RECORD_TABLES.items() if (rows := table.read(names, tables, txn))}
    marks = records.get(MarksRecord, {})
    return Recovered(
        node_id=identity.node_id,
        incarnation=identity.incarnation,
        former_ids=identity.former_ids,
        streams={
            stream: StoredStream(
                low=record.low,
                next=record.next,
                last_checksum=record.last_checksum,
                skips=tuple(skips.get(stream, ())),
                owner=record.owner,
                last_published_ms=(
                    _last_published_ms(stream, record, tables, txn) if stream.origin == identity.node_id else 0
                ),
                origin_batch=last_origin_batch(record.number, tables, txn) if stream in marks else 0,
            )
            for stream, record in read_streams(tables, txn).items()
            if record.next > 1  # else only a publisher's range refers to the stream, and nothing is held of it
        },
        staged={stage_id: entry.staged() for stage_id, entry in read_stage(tables, txn).items()},
        origin_batch=counters_of(read_fact(COUNTERS, tables, txn)).origin_batch,
        roster=read_others(identity, tables, txn),
        records=records,
    )


def _last_published_ms(stream: StreamId, record: StreamRecord, tables: Tables, txn: Txn) -> int:
    """Return the time at which the last batch of an own stream was published; 0 if that is no longer known."""
    last = last_entry(record.number, tables, txn)
    if last is not None:
        return last.published_at_ms
    return read_published_ms(stream, tables, txn) or 0
