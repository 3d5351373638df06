"""Clients whose rows have not all arrived at their access point: once they have, their rows are announced as covered.

Clients that want the same share a registration, so what has arrived is looked up once for all of them, and those that
are whole are announced together: ten thousand clients are not ten thousand versions of the node's entry.
"""

import json
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from m4cast.overlay.door.clients.arrived_rows import ArrivedRows
from m4cast.overlay.door.clients.client_wants import ClientWants, has_arrived
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.clients.state import ClientState, Sequences, state_of
from m4cast.overlay.protocol.effects import ClientRow
from m4cast.overlay.store.store import Store

AT_ONCE = 500
"""Clients that are announced together. More: other calls about clients wait longer."""


class SettlingClients:
    """The part of `ClientAdmin` that is about clients whose rows are on their way."""

    _store: Store
    _rows: ArrivedRows
    _wants: ClientWants
    _turns: list[threading.Lock]
    _unsettled: dict[str, None]

    @abstractmethod
    def _turn(self, key: str) -> threading.Lock: ...
    @abstractmethod
    def _turn_number(self, key: str) -> int: ...
    @abstractmethod
    def _own_row(self, key: str) -> tuple[NodeId, ClientRow | None]: ...
    @abstractmethod
    def _is_awaited(self, key: str, state: ClientState) -> bool: ...
    @abstractmethod
    def _announce_all(self, rows: Sequence[tuple[str, ClientRow | None]]) -> None: ...

    def _cover(self, key: str, row: ClientRow, state: ClientState) -> None:
        """Announce that all rows are here, if they are; with the turn of the key."""
        if row.covered:
            return
        ends = self._wants.settled((key,)).get(key)
        if ends is not None and self._is_whole(key, state, ends):
            self._unsettled.pop(key, None)
            self._announce_all([(key, replace(row, covered=True))])
        elif not self._rows.lacking(state):
            self._unsettled[key] = None

    def _is_whole(self, key: str, state: ClientState, ends: Mapping[str, Sequences]) -> bool:
        """True if nothing is lacking that the client needs; `ends`: of the selective topics, whose rows have come."""
        if self._rows.lacking(state) or not has_arrived(state, ends) or self._is_awaited(key, state):
            return False
        self._rows.strangers.pop(key, None)
        return True

    def _settle_soon(self, keys: Iterable[str]) -> None:
        self._unsettled.update(dict.fromkeys(keys))

    def _settle(self) -> None:
        """Look again at clients whose rows had not all arrived. Those that have are announced together."""
        waiting = list(self._unsettled)
        for first in range(0, len(waiting), AT_ONCE):
            settled = self._wants.settled(waiting[first : first + AT_ONCE])
            if not settled:
                continue
            with ExitStack() as turns:
                for turn in sorted({self._turn_number(key) for key in settled}):
                    turns.enter_context(self._turns[turn])
                rows = [
                    (key, replace(row, covered=True))
                    for key, ends in self._wants.settled(settled).items()  # again: they may have changed meanwhile
                    if (row := self._waiting_row(key, ends)) is not None
                ]
                if rows:
                    self._announce_all(rows)
                    for key, _ in rows:
                        self._unsettled.pop(key, None)

    def _waiting_row(self, key: str, ends: Mapping[str, Sequences]) -> ClientRow | None:
        """The row of a client that is to be announced as covered; with its turn."""
        _, row = self._own_row(key)
        kept = self._store.clients.get(key)
        if row is None or row.covered or kept is None:
            self._unsettled.pop(key, None)
            return None
        return row if self._is_whole(key, state_of(json.loads(kept)["state"]), ends) else None

    def _claim(self) -> None:
        """Give up the registrations from before the node started that no client wants."""
        for key, _ in self._store.clients.all() if self._wants.unclaimed else ():
            with self._turn(key):
                kept = self._store.clients.get(key)
                if kept is not None:
                    self._wants.claim(key, state_of(json.loads(kept)["state"]))
        self._wants.claimed()
