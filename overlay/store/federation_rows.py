"""Rows that a gatekeeper keeps for its part in a federation, as bytes; the store does not look into them.

They are keys of `meta` with a prefix: a store without a federation has none, and a program of before can open it.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from m4cast.overlay.store.table import ReadTxn, Tables, WriteTxn
from m4cast.overlay.store.tables.meta import META

_PREFIX = b"federation/"
PAGE = 1_000
"""Rows that one transaction reads."""


class FederationRows:
    """Any thread may use it. `read` opens a transaction, `ask` has work done by the writer."""

    def __init__(
        self,
        read: Callable[[], AbstractContextManager[ReadTxn]],
        ask: Callable[[Callable[..., Any]], Future[Any]],
        tables: Tables,
    ) -> None:
        self._read = read
        self._ask = ask
        self._tables = tables

    def put(self, rows: Mapping[bytes, bytes | None]) -> Future[None]:
        """Write these rows in one transaction; None removes one."""
        return self._ask(lambda txn, log: self._write(rows, txn))

    def _write(self, rows: Mapping[bytes, bytes | None], txn: WriteTxn) -> None:
        for key, content in rows.items():
            if content is None:
                txn.delete(_PREFIX + key, db=self._tables[META])
            else:
                txn.put(_PREFIX + key, content, db=self._tables[META])

    def get(self, key: bytes) -> bytes | None:
        with self._read() as txn:
            content = txn.get(_PREFIX + key, db=self._tables[META])
            return None if content is None else bytes(content)

    def all(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows whose keys begin so, in the order of their keys, a page at a time."""
        start, after = _PREFIX + prefix, b""
        while True:
            page: list[tuple[bytes, bytes]] = []
            with self._read() as txn, txn.cursor(self._tables[META]) as cursor:
                is_there = cursor.set_range(after or start)
                while is_there and len(page) < PAGE and bytes(cursor.key()[: len(start)]) == start:
                    if bytes(cursor.key()) != after:
                        page.append((bytes(cursor.key()), bytes(cursor.value())))
                    is_there = cursor.next()
            yield from ((key[len(_PREFIX) :], content) for key, content in page)
            if not page:
                return
            after = page[-1][0]
