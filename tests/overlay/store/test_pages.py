"""Rows of clients and of gatekeepers are read a page at a time: each once, in order, and none of another prefix."""

from pathlib import Path

import pytest

from m4cast.overlay.store import client_states, federation_rows
from tests.overlay.store.store_parts import opened

PAGE = 3
COUNTS = (0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1)


@pytest.mark.parametrize("count", COUNTS)
def test_states_of_clients_are_read_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(client_states, "PAGE", PAGE)
    states = [(f"k{number:02}", b"%d" % number) for number in range(count)]
    with opened(tmp_path) as store:
        for key, state in reversed(states):
            assert store.clients.put(key, state).result(10)
        assert list(store.clients.all()) == states
        assert list(store.clients.all("k00")) == states[1:]
        assert list(store.clients.all("k0")) == states, "it need not be the key of a state"


@pytest.mark.parametrize("count", COUNTS)
def test_rows_of_gatekeepers_are_read_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(federation_rows, "PAGE", PAGE)
    rows = [(b"a" + bytes([number]) * bool(number), b"%d" % number) for number in range(count)]
    with opened(tmp_path) as store:
        store.federation.put({**dict(rows), b"b": b"another", b"Z": b"another"}).result(10)
        assert list(store.federation.all(b"a")) == rows, "one may have no more than the prefix"
        assert [key for key, _ in store.federation.all(b"")] == [b"Z", *dict(rows), b"b"]
