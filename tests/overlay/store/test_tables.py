"""A table is its module: the file has every table that a module defines, and an older store gets those that are new."""

import json
import re
from pathlib import Path

import pytest

from m4cast.overlay.store import folder, tables
from m4cast.overlay.store.inspection import check
from m4cast.overlay.store.table import Table
from tests.overlay.store import kept_store
from tests.overlay.store.store_parts import opened

MORE = Table("more", since=tables.FORMAT_VERSION + 1)


def test_every_table_is_listed_in_the_head_of_its_folder() -> None:
    listed = re.findall(r"^    (\w+) +\S", tables.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == sorted(table.name for table in tables.TABLES)


def test_an_older_store_gets_a_new_table_when_a_node_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_store.unpack(tmp_path)
    before = kept_store.tables(tmp_path)
    with monkeypatch.context() as newer:
        newer.setattr(tables, "TABLES", (*tables.TABLES, MORE))
        newer.setattr(folder, "TABLES", tables.TABLES)
        newer.setattr(folder, "FORMAT_VERSION", MORE.since)
        assert check(tmp_path).problems == []
        assert kept_store.tables(tmp_path) == before
        with opened(tmp_path) as store:
            assert MORE in store._tables
            assert store.recovered.publishers
        with opened(tmp_path) as store:
            assert MORE in store._tables
    after = kept_store.tables(tmp_path)
    assert after.pop(MORE.name) == {}
    assert json.loads(bytes.fromhex(after["meta"][b"format".hex()]))["version"] == MORE.since
    assert {name: rows for name, rows in after.items() if name != "meta"} == {
        name: rows for name, rows in before.items() if name != "meta"
    }
