"""The tables of a store's file: one module per table (or pair of tables), with its keys and values as they are on disk.

    meta        what the store is, whose it is, where its counters stand; see the module for all its keys
    streams     origin and topic -> stream number, holdings (low, next, checksum, bytes, batches), owner
    names       stream number -> origin and topic
    log         stream number, first sequence -> entry: a prefix of fixed width, then the body of the batch
    payloads    payload number -> payload that is not in its log entry
    skips       stream number, first sequence -> last sequence, reason, the node that reported it
    deliveries  arrival number -> stream number, range, times, hops, how, sender, incarnation, facts of batch or skip
    publishers  key -> position, ranges, identity, owner, last use
    stage       stage id -> topic, rows, schema, payload number
    schemas     schema id -> bytes (outside retention)
    roster      node id, incarnation -> its last roster entry, from when to when it was known, why it ended
    topics      topic -> its retention, where it was set while the node ran
    readers     name -> frontier, lease, what was cut

Streams have small numbers, so that keys stay short.

Every `StoreTable` that a module of this folder defines is part of the file, and every `RecordTable` keeps one kind of
record that the protocol writes: a new table needs a module here and nothing else. Its `since` is the next format
version.
"""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from lmdb import Environment

from m4cast.overlay.protocol.effects import StoredRecord
from m4cast.overlay.store.table import RecordTable, StoreTable, Tables, WriteTxn
from m4cast.overlay.store.tables.selective import SELECTIVE_FORMAT

_DEFINED = [
    found
    for module in iter_modules(__path__)
    for found in vars(import_module(f"{__name__}.{module.name}")).values()
    if isinstance(found, StoreTable | RecordTable)
]
TABLES = tuple(dict.fromkeys(found for found in _DEFINED if isinstance(found, StoreTable)))
RECORD_TABLES: dict[type[StoredRecord[Any, Any]], RecordTable[Any, Any]] = {
    found.kind: found for found in _DEFINED if isinstance(found, RecordTable)
}
FORMAT_VERSION = max(4, *(table.since for table in TABLES))
"""Raised when an older program could not read the file, or would damage it."""
FORMAT_VERSION_MAX = max(FORMAT_VERSION, SELECTIVE_FORMAT)
"""The latest that can be read: a store becomes one of it with its first selective stream."""


def create_tables(env: Environment, wanted: Iterable[StoreTable], txn: WriteTxn) -> Tables:
    """Make these tables in this transaction; one that exists stays as it is."""
    return Tables({table: env.open_db(table.name.encode(), txn=txn) for table in wanted})


def open_tables(env: Environment, version: int) -> Tables:
    """The tables that a store of this format version has; `lmdb.Error` if one of them is missing."""
    return Tables({table: env.open_db(table.name.encode(), create=False) for table in TABLES if table.since <= version})
