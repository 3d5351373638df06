"""The states of the clients that are attached to this node, as bytes; the store does not look into them."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from m4cast.overlay.store.table import ReadTxn, Tables
from m4cast.overlay.store.tables.interest import read_client_state, read_client_states, write_client_state

PAGE = 1_000
"""States that one transaction reads."""


class ClientStates:
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

    def get(self, key: str) -> bytes | None:
        with self._read() as txn:
            return read_client_state(key, self._tables, txn)

    def put(self, key: str, state: bytes) -> Future[bool]:
        return self._ask(lambda txn, log: write_client_state(key, state, self._tables, txn))

    def remove(self, key: str) -> Future[bool]:
        """Answers whether there was one."""
        return self._ask(lambda txn, log: write_client_state(key, None, self._tables, txn))

    def all(self, after: str = "") -> Iterator[tuple[str, bytes]]:
        """All states by key, from the one after this key on, read a page at a time: what changes meanwhile may be seen
        as it was or as it is."""
        while True:
            with self._read() as txn:
                page = read_client_states(after, PAGE, self._tables, txn)
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1][0]
