"""The columns that are summarised of single topics, where they were set while the node ran: keys of `meta` with a
prefix."""

from m4cast.overlay.store.table import Tables, Txn, WriteTxn, of_json, to_json
from m4cast.overlay.store.tables.meta import META

ColumnPaths = tuple[tuple[str, ...], ...]
"""Columns by their names, members of structs by the names on the way to them. None of them: no summaries are made."""

_PREFIX = b"summarised/"


def write_summarised(topic: str, columns: ColumnPaths | None, tables: Tables, txn: WriteTxn) -> None:
    """None removes the topic's setting."""
    key = _PREFIX + topic.encode()
    if columns is None:
        txn.delete(key, db=tables[META])
    else:
        txn.put(key, to_json(columns), db=tables[META])


def read_summarised(tables: Tables, txn: Txn) -> dict[str, ColumnPaths]:
    found: dict[str, ColumnPaths] = {}
    with txn.cursor(tables[META]) as cursor:
        is_there = cursor.set_range(_PREFIX)
        while is_there and bytes(cursor.key()[: len(_PREFIX)]) == _PREFIX:
            topic = str(cursor.key()[len(_PREFIX) :], "utf-8")
            found[topic] = tuple(tuple(path) for path in of_json(cursor.value()))
            is_there = cursor.next()
    return found
