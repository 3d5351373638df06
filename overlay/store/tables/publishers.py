"""Publisher keys: where each stands, and what the commit that moved it there wrote."""

import struct
from collections.abc import Callable

from m4cast.overlay.ids import NODE_ID_BYTES, NodeId, StreamId
from m4cast.overlay.protocol.effects import PublisherRecord, PublisherState, Range, StoredRecord
from m4cast.overlay.store.table import ReadTxn, RecordTable, StoreTable, Tables, Txn, WriteTxn

PUBLISHERS = StoreTable("publishers")

_PUBLISHER = struct.Struct("<H16sQ")
_USE = struct.Struct("<QH")
_HAS_USE = 0x8000
"""Set in the length of the position when owner and last use follow, as they do from version 4 on."""
_RANGE = struct.Struct("<IQQ")


def publisher_value(state: PublisherState, numbers: list[int]) -> bytes:
    """`numbers` are the stream numbers of `state.ranges`."""
    position, owner = state.position.encode(), state.owner.encode()
    ranges = (
        _RANGE.pack(number, rows.first_sequence, rows.next_sequence)
        for number, rows in zip(numbers, state.ranges, strict=True)
    )
    # An unknown origin is empty, a known one is never zero.
    fields = _PUBLISHER.pack(_HAS_USE | len(position), state.origin, state.origin_batch)
    return b"".join((fields, _USE.pack(state.used_ms, len(owner)), position, owner, *ranges))


class PublisherValues:
    """Decodes the values of publishers. There may be many, so what they have in common is in memory once."""

    def __init__(self, stream_of_number: Callable[[int], StreamId]) -> None:
        self._stream = stream_of_number
        self._origins = {bytes(NODE_ID_BYTES): NodeId(b"")}
        self._owners = {b"": ""}

    def state_of(self, value: bytes | memoryview) -> PublisherState:
        position_bytes, origin, origin_batch = _PUBLISHER.unpack_from(value)
        at = _PUBLISHER.size
        used_ms = owner_bytes = 0
        if position_bytes & _HAS_USE:
            position_bytes -= _HAS_USE
            used_ms, owner_bytes = _USE.unpack_from(value, at)
            at += _USE.size
        owner_at = at + position_bytes
        ranges_at = owner_at + owner_bytes
        owner = bytes(value[owner_at:ranges_at])
        return PublisherState(
            position=str(value[at:owner_at], "utf-8"),
            ranges=tuple(
                [Range(self._stream(number), *rows) for number, *rows in _RANGE.iter_unpack(value[ranges_at:])]
            ),
            origin=self._origins.get(origin) or self._origins.setdefault(origin, NodeId(origin)),
            origin_batch=origin_batch,
            owner=self._owners.get(owner) or self._owners.setdefault(owner, owner.decode()),
            used_ms=used_ms,
        )


def read_publishers(
    start: str, limit: int, stream_of_number: Callable[[int], StreamId], tables: Tables, txn: ReadTxn
) -> list[tuple[str, PublisherState]]:
    """Return at most `limit` keys from `start` on, in the order of their bytes."""
    found: list[tuple[str, PublisherState]] = []
    with txn.cursor(tables[PUBLISHERS]) as cursor:
        state_of = PublisherValues(stream_of_number).state_of
        is_there = cursor.set_range(start.encode()) if start else cursor.first()
        while is_there and len(found) < limit:
            found.append((str(cursor.key(), "utf-8"), state_of(cursor.value())))
            is_there = cursor.next()
    return found


def _write(
    record: StoredRecord[str, PublisherState], number_of: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    key, state = record.key.encode(), record.content
    if state is None:
        txn.delete(key, db=tables[PUBLISHERS])
    else:
        numbers = [number_of(rows.stream) for rows in state.ranges]
        txn.put(key, publisher_value(state, numbers), db=tables[PUBLISHERS])


def _read(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[str, PublisherState]:
    state_of = PublisherValues(names.__getitem__).state_of
    return {str(key, "utf-8"): state_of(value) for key, value in txn.cursor(tables[PUBLISHERS])}


PUBLISHER_RECORDS = RecordTable(PublisherRecord, _write, _read)
