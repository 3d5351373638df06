"""Ranges of streams that the store does not have, each with the reason."""

import struct

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.wire.batch import Skip, SkipReason
from m4cast.overlay.store.table import ReadTxn, StoreTable, Tables, Txn, place_key, place_of

SKIPS = StoreTable("skips")

_SKIP = struct.Struct("<QB16s")


def skip_value(skip: Skip) -> bytes:
    return _SKIP.pack(skip.last_sequence, skip.reason, skip.by)


def skip_of(stream: StreamId, first_sequence: int, value: bytes | memoryview) -> Skip:
    last_sequence, reason, by = _SKIP.unpack(value)
    return Skip(stream, first_sequence, last_sequence, SkipReason(reason), NodeId(by))


def last_sequence_of(value: bytes | memoryview) -> int:
    last_sequence: int = _SKIP.unpack(value)[0]
    return last_sequence


def expired_until(number: int, tables: Tables, txn: ReadTxn) -> int:
    """The end of the last skip of this stream whose rows had expired elsewhere; 1 if there is none."""
    until = 1
    with txn.cursor(tables[SKIPS]) as cursor:
        is_there = cursor.set_range(place_key(number, 0))
        while is_there and place_of(cursor.key())[0] == number:
            last_sequence, reason, _ = _SKIP.unpack(cursor.value())
            until = last_sequence + 1 if reason == SkipReason.EXPIRED else until
            is_there = cursor.next()
    return until


def read_skips(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[StreamId, list[Skip]]:
    """The skips of each stream, in order."""
    found: dict[StreamId, list[Skip]] = {}
    for key, value in txn.cursor(tables[SKIPS]):
        number, first_sequence = place_of(key)
        found.setdefault(names[number], []).append(skip_of(names[number], first_sequence, value))
    return found
