"""Tables that were read, folded: which rows of them stand, up to a position of each stream.

The next read folds what is new since, and no more. Whoever holds `lock` may use the other fields.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np

from m4cast.overlay.door.rows.catalogue import StreamSpan
from m4cast.overlay.door.rows.table_rows import Numbers, StandingRows
from m4cast.overlay.ids import StreamId

KEYS_MAX = 2_000_000
"""Names of all tables that are kept folded, about 250 bytes each. Beyond it those that were not read for longest are
dropped, and folded anew when they are read; within it they are kept for as long as the node runs, so that a query does
not wait for one. A million names and what replaced some of them fit. Guess."""
NO_ROWS: Numbers = np.empty(0, np.int64)


class FoldedTable:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.standing = StandingRows()
        self.numbers: dict[StreamId, int] = {}
        """The numbers by which `standing` knows the streams."""
        self._firsts: dict[StreamId, int] = {}
        self.next: dict[StreamId, int] = {}
        """The position up to which each stream is folded."""

    def begin(self, spans: Iterable[StreamSpan], *, is_exact: bool) -> bool:
        """Prepare to show what these spans have: by adding rows if that suffices, otherwise from the start. False: the
        spans end before it does. `is_exact`: the number of versions of a name counts, too."""
        firsts = {span.stream: span.first for span in spans}
        if any(self.next.get(span.stream, 0) > span.next for span in spans) or self.next.keys() - firsts.keys():
            return False
        moved = {stream: firsts[stream] for stream, first in self._firsts.items() if firsts[stream] != first}
        if moved and (is_exact or self._has_lost(moved)):
            self.standing, self.numbers, self.next, self._firsts = StandingRows(), {}, {}, {}
        for stream, first in firsts.items():
            self._firsts[stream] = first
            self.numbers.setdefault(stream, len(self.numbers))
        return True

    def _has_lost(self, firsts: Mapping[StreamId, int]) -> bool:
        """True if rows that stood are gone."""
        standing = self.standing.sequences(with_removals=True)
        for stream, first in firsts.items():
            found = standing.get(self.numbers[stream], NO_ROWS)
            if len(found) and found[0] < first:
                return True
        return False

    def sequences(self, spans: Iterable[StreamSpan], *, with_removals: bool) -> dict[StreamId, Numbers]:
        found = self.standing.sequences(with_removals=with_removals)
        return {span.stream: found.get(self.numbers[span.stream], NO_ROWS) for span in spans}

    def needed_from(self, spans: Iterable[StreamSpan], now_ms: int) -> dict[StreamId, int]:
        """Return the first sequence that is still needed, by stream; the end of the span if none is."""
        found = self.standing.needed_from(now_ms)
        return {span.stream: found.get(self.numbers[span.stream], span.next) for span in spans}


class FoldedTables:
    """Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, FoldedTable] = OrderedDict()

    def get(self, topic: str) -> FoldedTable:
        """The table, as it was left; a new one if it was not kept."""
        with self._lock:
            table = self._tables.pop(topic, None) or FoldedTable()
            self._tables[topic] = table
            return table

    def trim(self) -> None:
        """Drop what is too much."""
        with self._lock:
            kept = 0
            for topic, table in reversed(list(self._tables.items())):
                size = len(table.standing) + len(table.next)
                kept += size
                if kept > KEYS_MAX:
                    kept -= size
                    del self._tables[topic]
