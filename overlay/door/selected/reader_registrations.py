"""Registrations that a node makes for readers of selective topics, and gives up when their readers are gone.

A read whose rows no registration of the node covers is registered in the reader's name. That registration is used as
long as reads by it are under way, or one was within the last ten minutes, or a reader with such a filter has a lease.
Then it is given up: rows for it are not fetched any longer, and those that are here stay until retention removes them.
A reader that comes back is registered again, and what it missed is filled.

Nothing about it is stored but the registration itself: after a restart each has ten minutes again.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from xxhash import xxh3_64_hexdigest

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.node_handle import NodeHandle, waited
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.selected.backlog import is_for
from m4cast.overlay.door.selected.begins import Start, fits, wish_of
from m4cast.overlay.profiles import Profile
from m4cast.overlay.protocol.effects import Subscribe, Unsubscribe
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.store.store import Reader

READER_PREFIX = "_read/"
"""Ids of registrations that were made for readers. Clients' own ids do not begin with an underscore."""
KEPT_S = 600.0
"""The time for which a registration outlives its last read; guess. Longer: rows are fetched for nobody; shorter: a
reader that pauses has to be filled again."""
SWEEP_S = 30.0
"""The shortest interval at which unused ones are looked for."""
READERS_MAX = 1_000
"""Registrations of readers at a node. Beyond it the one that was unused for longest makes room."""
BUSY_S = 60.0
"""One that was used this recently does not make room."""
DATED_MAX = 4
"""Registrations of one filter that begin at times or positions; further readers share one from the earliest rows on.
Guess. Higher: a reader that goes back in steps has as many registrations; lower: rows are fetched that nobody reads."""


class ReaderRegistrations:
    """Made on the loop; any thread may use it. `leased`: the readers that have a lease now. `dropped` is
    called on the loop with the topic and id of each that is given up."""

    def __init__(
        self, node: NodeHandle, leased: Callable[[], Collection[Reader]], dropped: Callable[[str, str], None]
    ) -> None:
        self._node = node
        self._leased = leased
        self._dropped = dropped
        self.kept_s = KEPT_S
        self._used_at: dict[str, float] = {}
        """The time at which each was last used, on the monotonic clock."""
        self._going: set[str] = set()
        """Being given up. Used on the loop alone."""
        self._is_sweeping = False
        if node.now(_topics_of):
            self._sweep_later()

    def touch(self, registration: str) -> None:
        """A read uses it."""
        if registration.startswith(READER_PREFIX):
            self._used_at[registration] = time.monotonic()

    def find(self, topic: str, profile: Profile | None, start: Start, timeout_s: float) -> str | None:
        """A registration of this node that covers such a read; None: there is none."""

        def look(node: Node) -> str | None:
            found = node.selection.covering(topic, profile, partial(fits, start=start), but=self._going)
            if found is not None:
                self.touch(found)  # here, so that it is not given up in between
            return found

        return self._node.look(look, timeout_s)

    def make(self, topic: str, profile: Profile | None, caller: Caller, start: Start, timeout_s: float) -> str:
        """Register what a reader wants, in its name. A filter that many readers begin with at other times or positions
        is registered from the earliest rows on."""
        text = profile.text if profile else ""
        if not isinstance(start, str) and self._node.look(partial(_dated, topic, text), timeout_s) >= DATED_MAX:
            start = "earliest"
        wish = wish_of("", topic, profile, start)
        named = sorted((origin.hex(), first) for origin, first in (wish.positions or {}).items())
        digest = xxh3_64_hexdigest(f"{topic}\0{text}\0{wish.earliest}\0{wish.from_ms}\0{named}".encode())
        wish = replace(wish, id=f"{READER_PREFIX}{caller.name}/{digest}")
        self._node.look(self._make_room, timeout_s)
        self.touch(wish.id)
        request = self._node.request(lambda number: Subscribe(number, (wish,), owner=caller.name))
        waited(request, timeout_s, caller.is_cancelled)
        self._node.later(self._sweep_later)
        return wish.id

    # ---- on the loop

    def _make_room(self, node: Node) -> None:
        topics = _topics_of(node)
        if len(topics) < READERS_MAX:
            return
        oldest = min(topics, key=lambda each: self._used_at.get(each, 0.0))
        if time.monotonic() - self._used_at.get(oldest, 0.0) < BUSY_S:
            detail = f"this node already reads selective topics by {READERS_MAX} different filters, which is its limit"
            raise Refusal("too-many", f"{detail}: read at another node, or subscribe to a filter that covers several")
        self._give_up({oldest: topics[oldest]})

    def _sweep_later(self) -> None:
        if not self._is_sweeping:
            self._is_sweeping = True
            self._node.after(min(SWEEP_S, self.kept_s), self.sweep)

    def sweep(self) -> None:
        """Give up those whose readers are gone."""
        self._is_sweeping = False
        if self._node.is_stopped:
            return
        topics = self._node.now(_topics_of)
        leased = self._leased() if topics else ()
        now = time.monotonic()
        gone: dict[str, str] = {}
        rows = self._node.now(lambda node: node.interest.registrations.rows)
        for each, topic in topics.items():
            if any(is_for(rows[each], reader) for reader in leased):
                self._used_at[each] = now
            elif now - self._used_at.setdefault(each, now) >= self.kept_s:
                gone[each] = topic
        if gone:
            self._give_up(gone)
        for each in [each for each in self._used_at if each not in topics]:
            if now - self._used_at[each] >= self.kept_s:
                del self._used_at[each]
        if topics:
            self._sweep_later()

    def _give_up(self, gone: dict[str, str]) -> None:
        ids = tuple(each for each in gone if each not in self._going)
        if not ids:
            return
        self._going.update(ids)
        asked = self._node.request_here(lambda number: Unsubscribe(number, ids, owner=None))

        def ended(_: object) -> None:
            self._going.difference_update(ids)

        asked.add_done_callback(ended)
        for each in ids:
            self._used_at.pop(each, None)
            self._dropped(gone[each], each)


def _dated(topic: str, text: str, node: Node) -> int:
    """Registrations of readers with this condition that begin at a time or a position."""
    rows = node.interest.registrations.rows
    return sum(
        row.topic == topic and row.canonical == text and not row.earliest and row.reaches_back
        for each, row in rows.items()
        if each.startswith(READER_PREFIX)
    )


def _topics_of(node: Node) -> dict[str, str]:
    """The registrations of readers, with their topics."""
    rows = node.interest.registrations.rows
    return {each: row.topic for each, row in rows.items() if each.startswith(READER_PREFIX)}
