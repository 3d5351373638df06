"""What an append does in a transaction, and what a store knew when it was opened.

The log keeps holdings and counters of all streams in memory, ahead of the file by the transaction under way: a group of
appends to one stream writes the stream's holdings once. After a transaction that was not kept they are read again.
One thread uses it, the writer's; readers look into the file.

Guarantees
2. A batch or skip goes into its stream's log at `next` and nowhere else: no number twice, no hole.
5. A staged payload becomes part of the log by its number: a commit writes heads, keys and holdings.

Cost: per batch two puts and about 10 us besides the copy of its payload into LMDB's pages (`tests/bench/store.py`).
"""

from collections.abc import Iterable

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.batch import Batch, Delivery, Payload, Skip, StoredPayload
from m4cast.overlay.protocol.effects import Append, PublisherState, Recovered, Staged, StoredStream
from m4cast.overlay.store import layout
from m4cast.overlay.store.history import others
from m4cast.overlay.store.layout import Held, StageEntry, Tables, Txn, WriteTxn


class Log:
    def __init__(self, tables: Tables, txn: Txn) -> None:
        self._tables = tables
        self.reload(txn)

    def reload(self, txn: Txn) -> None:
        """Forget what was not kept."""
        tables = self._tables
        self.identity = layout.identity_of(_meta(tables, txn, layout.IDENTITY))
        self.counters = layout.counters_of(_meta(tables, txn, layout.COUNTERS))
        self.streams = {layout.stream_of(key): layout.held_of(value) for key, value in txn.cursor(tables.streams)}
        self.oldest: dict[StreamId, tuple[int, int]] = {}
        """When the first batch that is kept of a stream was published and received, as far as retention has looked."""
        self._changed: dict[StreamId, Held] = {}
        self._counted = False

    # ---- one append

    def apply(self, append: Append, txn: WriteTxn) -> None:
        for stream, start in append.starts:
            if stream not in self.streams:
                held = self._open(stream, txn)
                held.low = held.next = start
        released = self._release(append.unstage, txn)
        for stage_id, staged in append.stage:
            self._stage(stage_id, staged, txn)
        arrivals = {(each.stream, each.first_sequence): each for each in append.deliveries}
        for batch in append.batches:
            self._append_batch(batch, arrivals.get((batch.stream, batch.first_sequence)), released, txn)
        for leftover in released:
            txn.delete(layout.sequence_key(leftover.payload_number), db=self._tables.payloads)
        for skip in append.skips:
            self._append_skip(skip, txn)
        self._deliver(append, txn)
        for key, state in append.publishers:
            self._move(key, state, txn)

    def flush(self, txn: WriteTxn) -> None:
        """Write what the transaction changed of holdings and counters; the last thing before it is committed."""
        for stream, held in self._changed.items():
            txn.put(layout.stream_key(stream), held.to_bytes(), db=self._tables.streams)
        self._changed.clear()
        if self._counted:
            txn.put(layout.COUNTERS, self.counters.to_bytes(), db=self._tables.meta)
            self._counted = False

    def changed(self, stream: StreamId) -> Held:
        """The stream's holdings, to be changed and written with the transaction."""
        held = self._changed[stream] = self.streams[stream]
        return held

    def take_identity(self, identity: layout.Identity, txn: WriteTxn) -> None:
        self.identity = identity
        self.counters.origin_batch = 0
        self._counted = True
        txn.put(layout.IDENTITY, identity.to_bytes(), db=self._tables.meta)

    def _open(self, stream: StreamId, txn: WriteTxn) -> Held:
        held = self.streams.get(stream)
        if held is None:
            held = self.streams[stream] = Held(self.counters.stream)
            self.counters.stream += 1
            self._counted = True
            txn.put(layout.number_key(held.number), layout.stream_key(stream), db=self._tables.names)
        self._changed[stream] = held
        return held

    def _append_batch(self, batch: Batch, arrival: Delivery | None, released: list[StageEntry], txn: WriteTxn) -> None:
        held = self._open(batch.stream, txn)
        assert batch.first_sequence == held.next, f"{batch.stream.topic}: {batch.first_sequence} at {held.next}"
        if isinstance(batch.payload, StoredPayload):
            assert released and released[0].is_of(batch), f"{batch.stream.topic}: {batch.first_sequence} is not staged"
            payload_number = released.pop(0).payload_number
        elif len(batch.payload) > layout.INLINE_BYTES_MAX:
            payload_number = self._put_payload(batch.payload, txn)
        else:
            payload_number = 0
        came = (batch.published_at_ms, 0) if arrival is None else (arrival.received_at_ms, arrival.hops)
        value = layout.entry_value(batch, payload_number, *came)
        txn.put(layout.place_key(held.number, batch.first_sequence), value, db=self._tables.log)
        held.next = batch.next_sequence
        held.last_checksum = batch.checksum
        held.batches += 1
        held.log_bytes += len(value) - layout.ENTRY_BYTES + (len(batch.payload) if payload_number else 0)
        if batch.stream.origin == self.identity.node_id:
            self.counters.origin_batch = batch.origin_batch
            self._counted = True

    def _append_skip(self, skip: Skip, txn: WriteTxn) -> None:
        held = self._open(skip.stream, txn)
        assert skip.first_sequence == held.next, f"{skip.stream.topic}: skip {skip.first_sequence} at {held.next}"
        place = layout.place_key(held.number, skip.first_sequence)
        txn.put(place, layout.skip_value(skip), db=self._tables.skips)
        held.next = skip.last_sequence + 1
        held.last_checksum = 0

    def _deliver(self, append: Append, txn: WriteTxn) -> None:
        what: dict[tuple[StreamId, int], Batch | Skip] = {}
        what.update(((batch.stream, batch.first_sequence), batch) for batch in append.batches)
        what.update(((skip.stream, skip.first_sequence), skip) for skip in append.skips)
        for delivery in append.deliveries:
            delivered = what.get((delivery.stream, delivery.first_sequence))
            number = self._number(delivery.stream, txn)
            value = layout.delivery_value(delivery, number, self.identity.incarnation, delivered)
            txn.put(layout.sequence_key(self.counters.delivery), value, append=True, db=self._tables.deliveries)
            self.counters.delivery += 1
            self._counted = True

    def _move(self, key: str, state: PublisherState, txn: WriteTxn) -> None:
        numbers = [self._number(rows.stream, txn) for rows in state.ranges]
        txn.put(key.encode(), layout.publisher_value(state, numbers), db=self._tables.publishers)

    def _number(self, stream: StreamId, txn: WriteTxn) -> int:
        held = self.streams.get(stream)
        return (held or self._open(stream, txn)).number

    # ---- stage and payloads

    def _put_payload(self, payload: Payload, txn: WriteTxn) -> int:
        number = self.counters.payload
        txn.put(layout.sequence_key(number), payload, append=True, db=self._tables.payloads)
        self.counters.payload += 1
        self._counted = True
        return number

    def _stage(self, stage_id: str, staged: Staged, txn: WriteTxn) -> None:
        for replaced in self._release((stage_id,), txn):
            txn.delete(layout.sequence_key(replaced.payload_number), db=self._tables.payloads)
        assert not isinstance(staged.payload, StoredPayload), f"{stage_id}: staged without its bytes"
        number = self._put_payload(staged.payload, txn)
        txn.put(stage_id.encode(), layout.stage_value(staged, number), db=self._tables.stage)

    def _release(self, stage_ids: Iterable[str], txn: WriteTxn) -> list[StageEntry]:
        """Take these ids from the stage. Their payloads stay, for the log to take or the caller to remove."""
        values = (txn.pop(stage_id.encode(), db=self._tables.stage) for stage_id in stage_ids)
        return [layout.stage_of(value) for value in values if value is not None]


# ---- reading it all back


def recover(tables: Tables, txn: Txn) -> Recovered:
    """What the store knows."""
    identity = layout.identity_of(_meta(tables, txn, layout.IDENTITY))
    streams = {layout.number_of(key): layout.stream_of(name) for key, name in txn.cursor(tables.names)}
    skips: dict[StreamId, list[Skip]] = {}
    for key, value in txn.cursor(tables.skips):
        number, first_sequence = layout.place_of(key)
        skips.setdefault(streams[number], []).append(layout.skip_of(streams[number], first_sequence, value))
    return Recovered(
        node_id=identity.node_id,
        incarnation=identity.incarnation,
        former_ids=identity.former_ids,
        streams={
            stream: StoredStream(held.low, held.next, held.last_checksum, tuple(skips.get(stream, ())))
            for stream, held in _streams(tables, txn)
            if held.next > 1  # else it has a number because a publisher's range names it, and nothing is held of it
        },
        publishers={
            str(key, "utf-8"): layout.publisher_of(value, streams) for key, value in txn.cursor(tables.publishers)
        },
        staged={str(key, "utf-8"): layout.stage_of(value).staged() for key, value in txn.cursor(tables.stage)},
        origin_batch=layout.counters_of(_meta(tables, txn, layout.COUNTERS)).origin_batch,
        roster=others(tables, txn, identity),
    )


def _streams(tables: Tables, txn: Txn) -> Iterable[tuple[StreamId, Held]]:
    for key, value in txn.cursor(tables.streams):
        yield layout.stream_of(key), layout.held_of(value)


def _meta(tables: Tables, txn: Txn, key: bytes) -> bytes | memoryview:
    value = txn.get(key, db=tables.meta)
    assert value is not None, f"the store has no {key.decode()}"
    return value
