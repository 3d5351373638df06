"""Settings of single topics, where they were set while the node ran: retention, and the columns that are summarised
(keys of `meta` with a prefix)."""

from dataclasses import asdict, dataclass

from m4cast.overlay.store.table import StoreTable, Tables, Txn, WriteTxn, of_json, to_json
from m4cast.overlay.store.tables.meta import META, facts_under

TOPICS = StoreTable("topics")

ColumnPaths = tuple[tuple[str, ...], ...]
"""Columns by their names, members of structs by the names on the way to them. None of them: no summaries are made."""

_PREFIX = b"summarised/"

DAY_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Keep:
    """Limits on how much of a topic is kept; None is no limit. All numbers are guesses."""

    bytes_max: int | None = None
    age_ms_max: int | None = 7 * DAY_MS
    hold_bytes_max: int | None = 16 << 30
    """Readers can hold a topic up to this size, if it is more than `bytes_max`."""
    hold_ms_max: int | None = 14 * DAY_MS


def write_keep(topic: str, keep: Keep | None, tables: Tables, txn: WriteTxn) -> None:
    """Write a topic's own setting; None removes it."""
    if keep is None:
        txn.delete(topic.encode(), db=tables[TOPICS])
    else:
        txn.put(topic.encode(), to_json(asdict(keep)), db=tables[TOPICS])


def read_keeps(tables: Tables, txn: Txn) -> dict[str, Keep]:
    return {str(key, "utf-8"): Keep(**of_json(value)) for key, value in txn.cursor(tables[TOPICS])}


def write_summarised(topic: str, columns: ColumnPaths | None, tables: Tables, txn: WriteTxn) -> None:
    """Write a topic's own setting; None removes it."""
    key = _PREFIX + topic.encode()
    if columns is None:
        txn.delete(key, db=tables[META])
    else:
        txn.put(key, to_json(columns), db=tables[META])


def read_summarised(tables: Tables, txn: Txn) -> dict[str, ColumnPaths]:
    found = facts_under(_PREFIX, tables, txn)
    return {topic.decode(): tuple(tuple(path) for path in of_json(value)) for topic, value in found}
