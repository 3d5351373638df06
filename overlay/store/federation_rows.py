"""Rows that a gatekeeper keeps for its part in a federation, as bytes; the store does not look into them.

They are keys of `meta` with a prefix: a store without a federation has none, and a program of before can open it.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from m4cast.overlay.store.table import ReadTxn, Tables, WriteTxn
from m4cast.overlay.store.tables.meta import META, facts_under

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
        after: bytes | None = None
        while True:
            with self._read() as txn:
                page = list(islice(facts_under(_PREFIX + prefix, self._tables, txn, after), PAGE))
            yield from ((prefix + rest, content) for rest, content in page)
            if not page:
                return
            after = page[-1][0]
