"""The interest of this node, present and past: keys of `meta` with a prefix, one per registration and per span of its
history, and one for the state of its entry. So are its clients: a key for the row of each, read when the node starts,
and one for its state, read when it is needed.

A program of before does not look at these keys, so it can still open the store.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from m4cast.overlay.ids import NodeId, StreamId
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
    Want,
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
from m4cast.overlay.store.tables.meta import META, facts_under

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
            **begin_fields(row),
        }
    )


def begin_fields(row: Registration | Want) -> dict[str, object]:
    """The fields of where it begins, if that is a time or a position."""
    fields: dict[str, object] = {}
    if row.from_ms is not None:
        fields["from_ms"] = row.from_ms
    if row.positions is not None:
        fields["positions"] = {origin.hex(): first for origin, first in row.positions.items()}
    return fields


def positions_of(fields: Mapping[str, Any]) -> dict[NodeId, int] | None:
    written = fields.get("positions")
    return None if written is None else {NodeId(bytes.fromhex(origin)): first for origin, first in written.items()}


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
    for key, value in facts_under(_PREFIX, tables, txn):
        fields = of_json(value)
        rows[key.decode()] = Registration(**{**fields, "positions": positions_of(fields)})
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
    found = facts_under(_SPAN_PREFIX, tables, txn)
    return {number_of(key): InterestSpan(**of_json(value)) for key, value in found}


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
    for key, value in facts_under(_CLIENT_ROW_PREFIX, tables, txn):
        session, since_ms, covered = _CLIENT_ROW.unpack_from(value)
        rows[key.decode()] = ClientRow(session, covered, since_ms, value[_CLIENT_ROW.size :])
    return rows


CLIENT_ROW_RECORDS = RecordTable(ClientRowRecord, _write_client_row, _read_client_rows)


def write_client_state(key: str, state: bytes | None, tables: Tables, txn: WriteTxn) -> bool:
    """Write a client's state; None removes it. True if it was written, or there was one to remove."""
    at = _CLIENT_STATE_PREFIX + key.encode()
    return txn.delete(at, db=tables[META]) if state is None else txn.put(at, state, db=tables[META])


def read_client_state(key: str, tables: Tables, txn: Txn) -> bytes | None:
    value = txn.get(_CLIENT_STATE_PREFIX + key.encode(), db=tables[META])
    return None if value is None else bytes(value)


def read_client_states(after: str, limit: int, tables: Tables, txn: Txn) -> list[tuple[str, bytes]]:
    """Return at most `limit` states of the keys after `after`, in the order of their bytes."""
    found = facts_under(_CLIENT_STATE_PREFIX, tables, txn, after.encode() or None)
    return [(key.decode(), state) for key, state in islice(found, limit)]
