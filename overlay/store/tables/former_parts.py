"""Parts of commits that were made under a former identity and have not come back whole: keys of `meta` with a prefix.

They are few and short-lived, and a store that was never rolled back has none.
"""

from collections.abc import Callable

from m4cast.overlay.ids import NODE_ID_BYTES, NodeId, StreamId
from m4cast.overlay.protocol.effects import FormerPart, FormerPartRecord, Range, StoredRecord
from m4cast.overlay.store.table import (
    NUMBER_BYTES,
    RecordTable,
    Tables,
    Txn,
    WriteTxn,
    number_key,
    number_of,
    of_json,
    sequence_key,
    to_json,
)
from m4cast.overlay.store.tables.meta import META, facts_under

_PREFIX = b"former-part/"


Key = tuple[NodeId, int, int]
"""Identity, the commit's first batch, part."""


def former_part_key(key: Key) -> bytes:
    origin, first_batch, part = key
    return _PREFIX + origin + sequence_key(first_batch) + number_key(part)


def former_part_value(part: FormerPart) -> bytes:
    rows = part.rows
    return to_json([part.key, part.position, rows.stream.topic, rows.first_sequence, rows.next_sequence])


def _former_part_of(place: bytes, value: bytes) -> FormerPart:
    origin = NodeId(place[:NODE_ID_BYTES])
    publisher, position, topic, first, next_sequence = of_json(value)
    return FormerPart(
        origin=origin,
        first_batch=number_of(place[NODE_ID_BYTES:-NUMBER_BYTES]),
        part=number_of(place[-NUMBER_BYTES:]),
        key=publisher,
        position=position,
        rows=Range(StreamId(origin, topic), first, next_sequence),
    )


def _write(
    record: StoredRecord[Key, FormerPart], number_of_stream: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    key = former_part_key(record.key)
    if record.content is None:
        txn.delete(key, db=tables[META])
    else:
        txn.put(key, former_part_value(record.content), db=tables[META])


def _read(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[Key, FormerPart]:
    parts = (_former_part_of(place, value) for place, value in facts_under(_PREFIX, tables, txn))
    return {(part.origin, part.first_batch, part.part): part for part in parts}


FORMER_PART_RECORDS = RecordTable(FormerPartRecord, _write, _read)
