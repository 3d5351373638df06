"""Clients of this node, under two prefixes of `meta`: their rows of the client table, which are read when the node
starts, and their states, which are read when they are needed.

A program of before does not look at these keys, so it can still open the store.
"""

import struct
from collections.abc import Callable, Iterator

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import ClientRow, ClientRowRecord, StoredRecord
from m4cast.overlay.store.table import RecordTable, Tables, Txn, WriteTxn
from m4cast.overlay.store.tables.meta import META

_ROW = struct.Struct("<QQ?")
_ROW_PREFIX = b"client-row/"
_STATE_PREFIX = b"client-state/"


def _write_row(
    record: StoredRecord[str, ClientRow], number_of: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    key, row = _ROW_PREFIX + record.key.encode(), record.content
    if row is None:
        txn.delete(key, db=tables[META])
    else:
        txn.put(key, _ROW.pack(row.session, row.since_ms, row.covered) + row.digest, db=tables[META])


def _read_rows(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[str, ClientRow]:
    rows: dict[str, ClientRow] = {}
    for key, value in _under(_ROW_PREFIX, b"", tables, txn):
        session, since_ms, covered = _ROW.unpack_from(value)
        rows[key] = ClientRow(session, covered, since_ms, bytes(value[_ROW.size :]))
    return rows


CLIENT_ROW_RECORDS = RecordTable(ClientRowRecord, _write_row, _read_rows)


def write_client_state(key: str, state: bytes | None, tables: Tables, txn: WriteTxn) -> bool:
    """None removes it. Whether there was one to remove, or it was written."""
    at = _STATE_PREFIX + key.encode()
    return txn.delete(at, db=tables[META]) if state is None else txn.put(at, state, db=tables[META])


def read_client_state(key: str, tables: Tables, txn: Txn) -> bytes | None:
    value = txn.get(_STATE_PREFIX + key.encode(), db=tables[META])
    return None if value is None else bytes(value)


def read_client_states(after: str, limit: int, tables: Tables, txn: Txn) -> list[tuple[str, bytes]]:
    """At most `limit` states of the keys after `after`, in the order of their bytes."""
    found: list[tuple[str, bytes]] = []
    for key, value in _under(_STATE_PREFIX, after.encode(), tables, txn):
        if key == after:
            continue
        if len(found) == limit:
            break
        found.append((key, bytes(value)))
    return found


def _under(prefix: bytes, first: bytes, tables: Tables, txn: Txn) -> Iterator[tuple[str, memoryview | bytes]]:
    with txn.cursor(tables[META]) as cursor:
        is_there = cursor.set_range(prefix + first)
        while is_there and bytes(cursor.key()[: len(prefix)]) == prefix:
            yield str(cursor.key()[len(prefix) :], "utf-8"), cursor.value()
            is_there = cursor.next()
