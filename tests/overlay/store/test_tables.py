"""A table is its module: the file has every table that a module defines, and an older store gets those that are new."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from m4cast.overlay.errors import StoreError
from m4cast.overlay.protocol.effects import Append, PublisherRecord, StoredRecord
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.store import folder, tables
from m4cast.overlay.store.inspection import check
from m4cast.overlay.store.table import RecordTable, StoreTable, Tables, Txn, WriteTxn
from m4cast.overlay.value import value
from tests.overlay.store import kept_store
from tests.overlay.store.store_parts import opened, synced

MORE = StoreTable("more", since=tables.FORMAT_VERSION + 1)


@value
class NoteRecord(StoredRecord[str, int]):
    """A kind of record that no store knows yet."""


def write_note(record: StoredRecord[str, int], number_of: object, opened: Tables, txn: WriteTxn) -> None:
    if record.content is None:
        txn.delete(record.key.encode(), db=opened[MORE])
    else:
        txn.put(record.key.encode(), b"%d" % record.content, db=opened[MORE])


def read_notes(names: object, opened: Tables, txn: Txn) -> dict[str, int]:
    return {str(key, "utf-8"): int(bytes(value)) for key, value in txn.cursor(opened[MORE])}


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A version with one table more, as if it had a module of its own."""
    with monkeypatch.context() as newer:
        newer.setattr(tables, "TABLES", (*tables.TABLES, MORE))
        newer.setattr(folder, "TABLES", tables.TABLES)
        newer.setattr(folder, "FORMAT_VERSION", MORE.since)
        yield newer


def test_every_table_is_listed_in_the_head_of_its_folder() -> None:
    listed = re.findall(r"^    (\w+) +\S", tables.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == sorted(table.name for table in tables.TABLES)


def test_an_older_store_gets_a_new_table_when_a_node_opens_it(tmp_path: Path, newer: pytest.MonkeyPatch) -> None:
    kept_store.unpack(tmp_path)
    before = kept_store.tables(tmp_path)
    assert check(tmp_path).problems == []
    assert kept_store.tables(tmp_path) == before
    for _ in range(2):
        with opened(tmp_path) as store:
            assert MORE in store._tables
            assert store.recovered.of(PublisherRecord)
    after = kept_store.tables(tmp_path)
    assert after.pop(MORE.name) == {}
    assert json.loads(bytes.fromhex(after["meta"][b"format".hex()]))["version"] == MORE.since
    assert {name: rows for name, rows in after.items() if name != "meta"} == {
        name: rows for name, rows in before.items() if name != "meta"
    }


def test_a_store_without_one_of_its_tables_is_refused(tmp_path: Path, newer: pytest.MonkeyPatch) -> None:
    kept_store.unpack(tmp_path)
    newer.setattr(tables, "TABLES", (*tables.TABLES, StoreTable("lost")))
    with pytest.raises(StoreError, match="the store cannot be opened"):
        check(tmp_path)


def test_a_new_kind_of_record_needs_its_codec_and_its_value_alone(tmp_path: Path, newer: pytest.MonkeyPatch) -> None:
    """The store keeps it by its codec, the simulated disk without one."""
    newer.setitem(tables.RECORD_TABLES, NoteRecord, RecordTable(NoteRecord, write_note, read_notes))
    appends = [
        Append(1, (NoteRecord("a", 1), NoteRecord("b", 2))),
        Append(2, (NoteRecord("a", 3), NoteRecord("b", None))),
    ]
    with opened(tmp_path) as store:
        disk = Disk(store.recovered.node_id)
        synced(store, *appends)
    disk.waiting, disk.syncing = list(appends), len(appends)
    disk.sync_done()
    with opened(tmp_path) as store:
        assert store.recovered.of(NoteRecord) == disk.open().of(NoteRecord) == {"a": 3}
