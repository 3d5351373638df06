"""The interest of this node, present and past: keys of `meta` with a prefix, one per registration and per span of its
history, and one for the state of its entry. So are its clients: a key for the row of each, read when the node starts,
and one for its state, read when it is needed.

A program of before does not look at these keys, so it can still open the store.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    ClientRow,
    ClientRowRecord,
    InterestSpan,
    InterestSpanRecord,
    InterestState,
    InterestStateRecord,
    Registration,
    RegistrationRecord,
    StoredRecord,
)
from m4cast.overlay.store.table import (
    RecordTable,
    Tables,
    Txn,
    WriteTxn,
    number_of,
    of_json,
    sequence_key,
    to_json,
)
from m4cast.overlay.store.tables.meta import META

_STATE_KEY = b"interest"
_PREFIX = b"registration/"
_SPAN_PREFIX = b"interest-span/"


_CLIENT_ROW = struct.Struct("<QQ?")
_CLIENT_ROW_PREFIX = b"client-row/"
_CLIENT_STATE_PREFIX = b"client-state/"


def registration_value(row: Registration) -> bytes:
    return to_json(
        {
            "topic": row.topic,
            "language": row.language,
            "version": row.version,
            "text": row.text,
            "canonical": row.canonical,
            "owner": row.owner,
            "epoch": row.epoch,
            "since_ms": row.since_ms,
            "earliest": row.earliest,
            "under": row.under,
        }
    )


def state_value(state: InterestState) -> bytes:
    return to_json({"incarnation": state.incarnation, "ts": state.ts, "counter": state.counter})


def _write_row(
    record: StoredRecord[str, Registration], number_of: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    key = _PREFIX + record.key.encode()
    if record.content is None:
        txn.delete(key, db=tables[META])
    else:
        txn.put(key, registration_value(record.content), db=tables[META])


def _read_rows(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[str, Registration]:
    rows: dict[str, Registration] = {}
    with txn.cursor(tables[META]) as cursor:
        is_there = cursor.set_range(_PREFIX)
        while is_there and bytes(cursor.key()[: len(_PREFIX)]) == _PREFIX:
            rows[str(cursor.key()[len(_PREFIX) :], "utf-8")] = Registration(**of_json(cursor.value()))
            is_there = cursor.next()
    return rows


def _write_state(
    record: StoredRecord[str, InterestState], number_of: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    assert record.content is not None, "the state of an entry is never removed"
    txn.put(_STATE_KEY, state_value(record.content), db=tables[META])


def _read_state(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[str, InterestState]:
    value = txn.get(_STATE_KEY, db=tables[META])
    return {} if value is None else {"": InterestState(**of_json(value))}


def _write_span(
    record: StoredRecord[int, InterestSpan], number_of: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    key = _SPAN_PREFIX + sequence_key(record.key)
    if record.content is None:
        txn.delete(key, db=tables[META])
    else:
        txn.put(key, to_json(asdict(record.content)), db=tables[META])


def _read_spans(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[int, InterestSpan]:
    spans: dict[int, InterestSpan] = {}
    with txn.cursor(tables[META]) as cursor:
        is_there = cursor.set_range(_SPAN_PREFIX)
        while is_there and bytes(cursor.key()[: len(_SPAN_PREFIX)]) == _SPAN_PREFIX:
            spans[number_of(cursor.key()[len(_SPAN_PREFIX) :])] = InterestSpan(**of_json(cursor.value()))
            is_there = cursor.next()
    return spans


REGISTRATION_RECORDS = RecordTable(RegistrationRecord, _write_row, _read_rows)
INTEREST_STATE_RECORDS = RecordTable(InterestStateRecord, _write_state, _read_state)
INTEREST_SPAN_RECORDS = RecordTable(InterestSpanRecord, _write_span, _read_spans)


# ---- clients


def _write_client_row(
    record: StoredRecord[str, ClientRow], number_of: Callable[[StreamId], int], tables: Tables, txn: WriteTxn
) -> None:
    key, row = _CLIENT_ROW_PREFIX + record.key.encode(), record.content
    if row is None:
        txn.delete(key, db=tables[META])
    else:
        txn.put(key, _CLIENT_ROW.pack(row.session, row.since_ms, row.covered) + row.digest, db=tables[META])


def _read_client_rows(names: dict[int, StreamId], tables: Tables, txn: Txn) -> dict[str, ClientRow]:
    rows: dict[str, ClientRow] = {}
    for key, value in _under(_CLIENT_ROW_PREFIX, b"", tables, txn):
        session, since_ms, covered = _CLIENT_ROW.unpack_from(value)
        rows[key] = ClientRow(session, covered, since_ms, bytes(value[_CLIENT_ROW.size :]))
    return rows


CLIENT_ROW_RECORDS = RecordTable(ClientRowRecord, _write_client_row, _read_client_rows)


def write_client_state(key: str, state: bytes | None, tables: Tables, txn: WriteTxn) -> bool:
    """None removes it. Whether there was one to remove, or it was written."""
    at = _CLIENT_STATE_PREFIX + key.encode()
    return txn.delete(at, db=tables[META]) if state is None else txn.put(at, state, db=tables[META])


def read_client_state(key: str, tables: Tables, txn: Txn) -> bytes | None:
    value = txn.get(_CLIENT_STATE_PREFIX + key.encode(), db=tables[META])
    return None if value is None else bytes(value)


def read_client_states(after: str, limit: int, tables: Tables, txn: Txn) -> list[tuple[str, bytes]]:
    """At most `limit` states of the keys after `after`, in the order of their bytes."""
    found: list[tuple[str, bytes]] = []
    for key, value in _under(_CLIENT_STATE_PREFIX, after.encode(), tables, txn):
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
