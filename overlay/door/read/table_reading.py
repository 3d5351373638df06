"""A table as it stands: of each owner and name the row with the greatest version, unless that is a removal.

Two passes over the topic, up to the same frontier: the first reads the columns of tables and finds the rows that stand
(`table_rows`), the second gives those that match the filter. A filter is applied to rows that stand, never before: a
row that matches and was replaced by one that does not is not in the answer.

The first pass is not repeated: tables that are read again stay folded (`folded_tables`), and only what is new is added.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.read.filtered_call import FilteredCall
from m4cast.overlay.door.read.matching import Found, RowTest, Slice, examined
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader, ruled_out_by
from m4cast.overlay.door.read.stream_answer import Piece, TestedSpan
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.door.rows.folded_tables import NO_ROWS, FoldedTable, FoldedTables
from m4cast.overlay.door.rows.table_rows import KEYS, TYPES, Numbers, is_table
from m4cast.overlay.ids import StreamId
from m4cast.overlay.store.store import SummarisedBatch
from m4cast.overlay.value import value

SLICE_ROWS = 65_536
"""Rows that are looked at together, unless a batch has more. More: a cancelled call is noticed later. Guess."""


class TableReading:
    """Any thread may use it."""

    def __init__(self, portions: PortionReader, catalogue: Catalogue, pacing: Pacing) -> None:
        self._portions = portions
        self._catalogue = catalogue
        self._pacing = pacing
        self.folded = FoldedTables()

    def read(self, call: FilteredCall, spans: list[StreamSpan], positions: Callable[[], Frontier]) -> Iterator[Piece]:
        """The rows that stand in these spans and match. Refuses a topic that is no table. `positions`: returns how far
        the caller's streams of the topic have come."""
        if not is_table(call.shape.columns):
            raise _no_table(call.get.topics[0])
        return self._pieces(call, spans, positions)

    def read_part(self, call: FilteredCall, spans: list[StreamSpan], below: list[StreamSpan]) -> Iterator[Piece]:
        """The rows of these spans that match, and stand in what lies `below` a position of all streams."""
        if not is_table(call.shape.columns):
            raise _no_table(call.get.topics[0])
        return self._parts(call, spans, below)

    def needed_from(self, topic: str, spans: list[StreamSpan], now_ms: int) -> dict[StreamId, int]:
        """Return the first sequence of a table that is still needed, by stream; the end of the span if none is."""
        if not is_table(self._catalogue.merged(spans)):
            raise _no_table(topic)
        with self._folded_up_to(topic, spans, None, is_exact=True) as table:
            return table.needed_from(spans, now_ms)

    @contextmanager
    def _folded_up_to(
        self, topic: str, spans: list[StreamSpan], caller: Caller | None, *, is_exact: bool = False
    ) -> Iterator[FoldedTable]:
        """A table that is folded up to the end of these spans, as long as the lock is held."""
        spans = [
            StreamSpan(span.stream, min(max(span.first, self._portions.stands_from(span.stream)), span.next), span.next)
            for span in spans
        ]
        table = self.folded.get(topic)
        with table.lock:
            if not table.begin(spans, is_exact=is_exact):
                table = FoldedTable()  # an earlier position: for this read alone
                table.begin(spans, is_exact=is_exact)
            for span in spans:
                for _ in self._pacing.counted(caller, self._add(table, span)):
                    pass
            yield table
        self.folded.trim()

    def _pieces(
        self, call: FilteredCall, spans: list[StreamSpan], positions: Callable[[], Frontier]
    ) -> Iterator[Piece]:
        with self._folded_up_to(call.get.topics[0], spans, call.caller) as table:
            sequences = table.sequences(spans, with_removals=call.get.with_removals)
        if isinstance(call.get.end, dict):
            self._refuse_earlier(call.get.topics[0], call.get.end, positions)
        yield from self._given(call, [(span, sequences[span.stream]) for span in spans])

    def _parts(self, call: FilteredCall, spans: list[StreamSpan], below: list[StreamSpan]) -> Iterator[Piece]:
        with self._folded_up_to(call.get.topics[0], below, call.caller) as table:
            sequences = table.sequences(below, with_removals=False)
        if call.get.retained is not None:
            self._refuse_compacted(call.get.topics[0], call.get.retained)
        yield from self._given(call, [(span, sequences.get(span.stream, NO_ROWS)) for span in spans])

    def _refuse_compacted(self, topic: str, retained: Frontier) -> None:
        """Asked after the rows were folded: what replaced the rows that are gone may lie past the position."""
        lows = self._portions.lows(retained)
        if any(lows.get(stream, 1) > first for stream, first in retained.items()):
            raise _compacted(topic)

    def _refuse_earlier(self, topic: str, end: Frontier, positions: Callable[[], Frontier]) -> None:
        """Refuse a position before the end of a table that was compacted: a row that stood there may be gone, because
        it was replaced since, and one that it had replaced may be left. Called after the rows were folded."""
        lows = self._portions.lows(positions())
        if any(low > 1 for low in lows.values()) and any(
            end.get(stream, 1) < position for stream, position in positions().items()
        ):
            detail = f"table {topic!r} was compacted: what stood at an earlier position is not known; end with latest"
            raise Refusal("missing", detail)

    def _given(self, call: FilteredCall, parts: list[tuple[StreamSpan, Numbers]]) -> Iterator[Piece]:
        for span, standing in parts:
            answer = call.answer(span.stream, span.first)
            steps = self._steps(call, span, standing)
            for step in self._pacing.paced(call.caller, steps):
                answer.add(step)
                if answer.due_at <= time.monotonic():
                    yield from answer.pieces()
            yield from answer.pieces()

    def _add(self, table: FoldedTable, span: StreamSpan) -> Iterator[int]:
        """Add the rows of a span that are not there yet, slice by slice."""
        number = table.numbers[span.stream]
        span = StreamSpan(span.stream, max(span.first, table.next.get(span.stream, 1)), span.next)

        def examine(rows: Slice) -> int:
            columns = rows.columns(TYPES)
            if is_table(columns.schema):  # else an origin that did not know of the table
                for portion, begin in rows.places():
                    batch = portion.kept.batch
                    part = columns.slice(begin + portion.first - batch.first_sequence, portion.until - portion.first)
                    sequences = np.arange(portion.first, portion.until)
                    table.standing.add(part, sequences, number, batch.published_at_ms)
            table.next[span.stream] = rows.until
            return rows.row_count

        if span.first < span.next:
            for stretch in self._portions.read(span, skip_missing=True, rules_out=_nothing):
                for _, count in examined(stretch.portions, self._catalogue, examine, SLICE_ROWS):
                    yield count
            table.next[span.stream] = span.next

    def _steps(self, call: FilteredCall, span: StreamSpan, standing: Numbers) -> Iterator[TestedSpan]:
        topic, at = span.stream.topic, span.first
        test = StandingTest(call.tests[topic], standing)
        rules_out = ruled_out_by(call.profile(topic).condition)
        for stretch in self._portions.read(span, skip_missing=True, rules_out=rules_out):
            if stretch.portions:
                for rows, found in examined(stretch.portions, self._catalogue, test, SLICE_ROWS):
                    yield TestedSpan(until=rows.until, rows=rows.row_count, found=found)
            else:
                if not stretch.passed_rows and len(test.between(at, stretch.until)):
                    raise _compacted(topic)
                yield TestedSpan(until=stretch.until, rows=stretch.passed_rows, found=None)
            at = stretch.until


@value
class StandingTest:
    """The rows of slices that stand and match."""

    test: RowTest
    standing: Numbers
    """Sequences, in ascending order."""

    def __call__(self, rows: Slice) -> Found | None:
        sequences = self.between(rows.portions[0].first, rows.until)
        if not len(sequences):
            return None
        found = self.test(rows)
        stays = np.isin(found.sequences, sequences) if found is not None else NO_ROWS
        return found.some(np.flatnonzero(stays)) if found is not None and stays.any() else None

    def between(self, first: int, until: int) -> Numbers:
        begin, end = np.searchsorted(self.standing, [first, until])
        return self.standing[begin:end]


def _no_table(topic: str) -> Refusal:
    return bad_request(f"topic {topic!r} is no table: its rows lack {', '.join(KEYS)}. Read it as rows")


def _compacted(topic: str) -> Refusal:
    return Refusal("missing", f"table {topic!r} was compacted while it was read: repeat the read")


def _nothing(head: SummarisedBatch) -> bool:
    return False
