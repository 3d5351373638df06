"""What this node wants: keys of `meta` with a prefix, one for each registration, and one for the state of its entry.

A program of before does not look at these keys, so it can still open the store.
"""

from collections.abc import Callable

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    InterestState,
    InterestStateRecord,
    Registration,
    RegistrationRecord,
    StoredRecord,
)
from m4cast.overlay.store.table import RecordTable, Tables, Txn, WriteTxn, of_json, to_json
from m4cast.overlay.store.tables.meta import META

_STATE_KEY = b"interest"
_PREFIX = b"registration/"


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


REGISTRATION_RECORDS = RecordTable(RegistrationRecord, _write_row, _read_rows)
INTEREST_STATE_RECORDS = RecordTable(InterestStateRecord, _write_state, _read_state)
