"""Parts of commits that were made under a former identity and have not come back whole: keys of `meta` with a prefix.

They are few and short-lived, and a store that was never rolled back has none.
"""

from collections.abc import Iterator

from m4cast.overlay.ids import NODE_ID_BYTES, NodeId, StreamId
from m4cast.overlay.protocol.effects import FormerPart, Range
from m4cast.overlay.store.table import (
    NUMBER_BYTES,
    Tables,
    Txn,
    WriteTxn,
    number_key,
    number_of,
    of_json,
    sequence_key,
    to_json,
)
from m4cast.overlay.store.tables.meta import META

_PREFIX = b"former-part/"


def former_commit_key(origin: NodeId, first_batch: int) -> bytes:
    """What the keys of all parts of one former commit begin with."""
    return _PREFIX + origin + sequence_key(first_batch)


def former_part_key(part: FormerPart) -> bytes:
    return former_commit_key(part.origin, part.first_batch) + number_key(part.part)


def former_part_value(part: FormerPart) -> bytes:
    rows = part.rows
    return to_json([part.key, part.position, rows.stream.topic, rows.first_sequence, rows.next_sequence])


def former_part_of(key: bytes | memoryview, value: bytes | memoryview) -> FormerPart:
    at = len(_PREFIX)
    origin = NodeId(bytes(key[at : at + NODE_ID_BYTES]))
    publisher, position, topic, first, next_sequence = of_json(value)
    return FormerPart(
        origin=origin,
        first_batch=number_of(key[at + NODE_ID_BYTES : -NUMBER_BYTES]),
        part=number_of(key[-NUMBER_BYTES:]),
        key=publisher,
        position=position,
        rows=Range(StreamId(origin, topic), first, next_sequence),
    )


def read_former_parts(tables: Tables, txn: Txn) -> tuple[FormerPart, ...]:
    return tuple(former_part_of(key, value) for key, value in _under(_PREFIX, tables, txn))


def remove_former_commit(origin: NodeId, first_batch: int, tables: Tables, txn: WriteTxn) -> None:
    for key in [bytes(key) for key, _ in _under(former_commit_key(origin, first_batch), tables, txn)]:
        txn.delete(key, db=tables[META])


def _under(prefix: bytes, tables: Tables, txn: Txn) -> Iterator[tuple[bytes | memoryview, bytes | memoryview]]:
    """Entries of the table whose keys begin with the prefix."""
    cursor = txn.cursor(tables[META])
    if cursor.set_range(prefix):
        for key, value in cursor:
            if bytes(key[: len(prefix)]) != prefix:
                return
            yield key, value
