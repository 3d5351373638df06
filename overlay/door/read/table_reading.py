"""A table as it stands: of each owner and name the row with the greatest version, unless that is a removal.

Two passes over the topic, up to the same frontier: the first reads the columns of tables and finds the rows that stand
(`table_rows`), the second gives those that match the filter. A filter is applied to rows that stand, never before: a
row that matches and was replaced by one that does not is not in the answer. Nothing is kept between two reads.
"""

import time
from collections.abc import Iterator

import numpy as np

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.read.filtered_call import FilteredCall
from m4cast.overlay.door.read.matching import Found, Numbers, RowTest, Slice, examined
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader, ruled_out_by
from m4cast.overlay.door.read.stream_answer import Piece, TestedSpan
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.door.rows.table_rows import KEYS, TYPES, StandingRows, is_table
from m4cast.overlay.ids import StreamId
from m4cast.overlay.store.store import SummarisedBatch
from m4cast.overlay.value import value

SLICE_ROWS = 65_536
"""Rows that are looked at together, unless a batch has more. More: a cancelled call is noticed later. Guess."""
NO_ROWS: Numbers = np.empty(0, np.int64)


class TableReading:
    """Any thread may use it."""

    def __init__(self, portions: PortionReader, catalogue: Catalogue, pacing: Pacing) -> None:
        self._portions = portions
        self._catalogue = catalogue
        self._pacing = pacing

    def read(self, call: FilteredCall, spans: list[StreamSpan]) -> Iterator[Piece]:
        """The rows that stand in these spans and match. Refuses a topic that is no table."""
        if not is_table(call.shape.columns):
            raise _no_table(call.get.topics[0])
        return self._pieces(call, spans)

    def needed_from(self, topic: str, spans: list[StreamSpan], caller: Caller, now_ms: int) -> dict[StreamId, int]:
        """By stream, the first sequence of a table that is still needed; the end of the span if none is."""
        if not is_table(self._catalogue.merged(spans)):
            raise _no_table(topic)
        standing = self._standing(spans, caller)
        needed = standing.needed_from(now_ms)
        return {span.stream: needed.get(number, span.next) for number, span in enumerate(spans)}

    def _standing(self, spans: list[StreamSpan], caller: Caller) -> StandingRows:
        standing = StandingRows()
        for number, span in enumerate(spans):
            for _ in self._pacing.paced(caller, self._add(standing, number, span)):
                pass
        return standing

    def _pieces(self, call: FilteredCall, spans: list[StreamSpan]) -> Iterator[Piece]:
        sequences = self._standing(spans, call.caller).sequences(with_removals=call.get.with_removals)
        for number, span in enumerate(spans):
            answer = call.answer(span.stream, span.first)
            steps = self._steps(call, span, sequences.get(number, NO_ROWS))
            for step in self._pacing.paced(call.caller, steps):
                answer.add(step)
                if answer.due_at <= time.monotonic():
                    yield from answer.pieces()
            yield from answer.pieces()

    def _add(self, standing: StandingRows, number: int, span: StreamSpan) -> Iterator[int]:
        """Add the rows of a span, slice by slice."""
        span = StreamSpan(span.stream, max(span.first, self._portions.stands_from(span.stream)), span.next)

        def examine(rows: Slice) -> int:
            columns = rows.columns(TYPES)
            if not is_table(columns.schema):
                return 0  # an origin that did not know of the table
            for portion, begin in rows.places():
                batch = portion.kept.batch
                part = columns.slice(begin + portion.first - batch.first_sequence, portion.until - portion.first)
                sequences = np.arange(portion.first, portion.until)
                standing.add(part, sequences, number, batch.published_at_ms)
            return rows.row_count

        for stretch in self._portions.read(span, skip_missing=True, rules_out=_nothing):
            for _, count in examined(stretch.portions, self._catalogue, examine, SLICE_ROWS):
                yield count

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
                    detail = f"table {topic!r} was compacted while it was read: repeat the read"
                    raise Refusal("missing", detail)
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
        numbers = sequences - rows.portions[0].kept.batch.first_sequence
        numbers = numbers[self.test.mask(rows)[numbers]]
        return rows.found(numbers) if len(numbers) else None

    def between(self, first: int, until: int) -> Numbers:
        begin, end = np.searchsorted(self.standing, [first, until])
        return self.standing[begin:end]


def _no_table(topic: str) -> Refusal:
    return bad_request(f"topic {topic!r} is no table: its rows lack {', '.join(KEYS)}. Read it as rows")


def _nothing(head: SummarisedBatch) -> bool:
    return False
