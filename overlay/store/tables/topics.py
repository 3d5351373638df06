"""Retention of single topics, where it was set while the node ran."""

from dataclasses import asdict, dataclass

from m4cast.overlay.store.table import StoreTable, Tables, Txn, WriteTxn, of_json, to_json

TOPICS = StoreTable("topics")

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
    """None removes the topic's setting."""
    if keep is None:
        txn.delete(topic.encode(), db=tables[TOPICS])
    else:
        txn.put(topic.encode(), to_json(asdict(keep)), db=tables[TOPICS])


def read_keeps(tables: Tables, txn: Txn) -> dict[str, Keep]:
    return {str(key, "utf-8"): Keep(**of_json(value)) for key, value in txn.cursor(tables[TOPICS])}
