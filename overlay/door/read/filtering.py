"""Filtered DoGet: exactly the rows that match, of a range or of a tail, or whole raw batches that may.

Rows are tested in the thread of the call, a slice at a time. Tails that are level with their topics share one thread
for each topic, also with those of the web door (`live_matching`). Between slices a call checks whether its client is
connected and the node runs, so that a filter that matches nothing holds nobody up. Matches are sent early; small ones
are joined across batches (`stream_answer`). The CPU time is counted by client, and a client that has a budget is slowed
down when it exceeds it.

Guarantees 2 and 6 (`reading`) hold for the rows that match. What was passed over is certified (`stream_answer`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import LOOK_S, Frontiers
from m4cast.overlay.door.read.filtered_call import FilteredCall
from m4cast.overlay.door.read.live_matching import LiveMatching, SharedMatches
from m4cast.overlay.door.read.matching import Found, Portion, RowTest, Slice, examined, row_test
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader
from m4cast.overlay.door.read.reading import Reading, whole_streams
from m4cast.overlay.door.read.stream_answer import FilteredShape, Piece, TestedSpan
from m4cast.overlay.door.read.table_reading import TableReading
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import Get
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.door.rows.summaries import FilteredColumns
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import EVERYTHING, Profile, columns_of

SLICE_ROWS = 65_536
"""Rows that are tested at once, unless a batch has more. More: a cancelled call is noticed later. Guess."""
TURN_S = 0.05
"""The time for which a tail tests one stream before it turns to another one. Guess."""


class FilteredTail:
    """The state of a tail: how far it has tested each stream, and the rows that wait to be sent."""

    def __init__(self, call: FilteredCall, starts: Frontier) -> None:
        self.call = call
        self._is_over = False
        self._answers = {stream: call.answer(stream, begin) for stream, begin in starts.items()}
        self._heard_at = time.monotonic()

    def is_over(self) -> bool:
        return self._is_over

    def end(self) -> None:
        self._is_over = True

    def at(self, stream: StreamId) -> int:
        answer = self._answers.get(stream)
        return 1 if answer is None else answer.next

    def positions(self) -> Frontier:
        return {stream: answer.next for stream, answer in self._answers.items()}

    def add(self, stream: StreamId, step: TestedSpan) -> None:
        """It is over before matching rows that do not fit its columns."""
        columns = self.call.shape.columns
        if isinstance(step.found, Found) and not payload.covers(columns, step.found.rows.schema):
            self._is_over = True
            return
        answer = self._answers.get(stream)
        if answer is None:
            answer = self._answers[stream] = self.call.answer(stream, 1)
        answer.add(step)
        self._heard_at = time.monotonic()

    def due_pieces(self, streams: Iterable[StreamId] | None = None) -> Iterator[Piece]:
        """The pieces of these streams that are due; None: of all streams."""
        now = time.monotonic()
        chosen = list(self._answers) if streams is None else streams
        for answer in [self._answers[stream] for stream in chosen if stream in self._answers]:
            if answer.due_at <= now:
                yield from answer.pieces()

    def last_pieces(self) -> Iterator[Piece]:
        for answer in self._answers.values():
            yield from answer.pieces()

    @property
    def idle_at(self) -> float:
        """The time at which it ends, on the monotonic clock, if no row arrives."""
        idle_s = self.call.get.idle_s
        return float("inf") if idle_s is None else self._heard_at + idle_s

    def wakes_at(self) -> float:
        """Return the time of the next check: of the client, of what is due, or of the end."""
        due_at = min((answer.due_at for answer in self._answers.values()), default=float("inf"))
        return min(due_at, self.idle_at, time.monotonic() + LOOK_S)


class FilteredReading:
    """Any thread may use it."""

    def __init__(
        self,
        portions: PortionReader,
        catalogue: Catalogue,
        frontiers: Frontiers,
        reading: Reading,
        pacing: Pacing,
        columns: FilteredColumns,
        *,
        live: LiveMatching | None = None,
    ) -> None:
        """`live`: what tails share that are level with their topics."""
        self._portions = portions
        self._catalogue = catalogue
        self._frontiers = frontiers
        self._reading = reading
        self.pacing = pacing
        self.columns = columns
        self._live = live or LiveMatching(portions, catalogue)
        self.tables = TableReading(portions, catalogue, pacing)

    def under(self, frontiers: Frontiers, reading: Reading) -> "FilteredReading":
        """The same, for a reader that sees other frontiers."""
        return FilteredReading(
            self._portions, self._catalogue, frontiers, reading, self.pacing, self.columns, live=self._live
        )

    def read(
        self, get: Get, profiles: Mapping[str, Profile], caller: Caller, whose: Mapping[str, str]
    ) -> tuple[pa.Schema, Iterator[Piece]]:
        """The schema of the answer, and its record batches, which are made when they are taken."""
        if get.end is not None:
            spans = self._reading.plan(get, caller.is_cancelled)
            call = self._call(get, profiles, caller, whose, spans or whole_streams(self._frontiers, get.topics))
            if get.is_table:
                return call.shape.schema, self.tables.read(call, spans, partial(self._frontiers.positions, get.topics))
            if get.standing is not None:
                below = self._reading.plan(replace(get, start={}, end=get.standing), caller.is_cancelled)
                return call.shape.schema, self.tables.read_part(call, spans, below)
            return call.shape.schema, self._range(call, spans)
        now = self._frontiers.positions(get.topics)
        starts = dict(self._reading.starts(get, now))
        call = self._call(get, profiles, caller, whose, whole_streams(self._frontiers, get.topics))
        return call.shape.schema, self._tail(call, starts)

    def _call(
        self,
        get: Get,
        profiles: Mapping[str, Profile],
        caller: Caller,
        whose: Mapping[str, str],
        spans: list[StreamSpan],
    ) -> FilteredCall:
        shape = self._reading.shape(get, spans, whose)
        schema = shape.schema
        if get.form == "batches":
            schema = pa.schema([*shape.columns, *payload.ARRIVAL_FIELDS])
        tests = {topic: row_test(profiles.get(topic, EVERYTHING), get.left_out) for topic in get.topics}
        call = FilteredCall(
            get=get,
            caller=caller,
            profiles=profiles,
            tests=tests,
            shape=FilteredShape(
                form=get.form,
                columns=shape.columns,
                schema=schema,
                whose=whose,
                rows_at_once=payload.rows_at_once(schema),
                row_bytes=shape.row_bytes,
            ),
        )
        self._report_columns(call)
        return call

    def shared(
        self, profiles: Mapping[str, Profile], seen: Frontiers, ring: Callable[[], None] | None = None
    ) -> SharedMatches:
        """The matching that a tail shares with others, once it is level with its topics. The tail closes it."""
        return SharedMatches(self._live, profiles, seen, self.columns, self.pacing, ring)

    def _report_columns(self, call: FilteredCall) -> None:
        """Publishers summarise the columns that readers filter by."""
        for topic, profile in call.profiles.items():
            self.columns.filtered(topic, columns_of(profile.condition))

    # ---- a range

    def _range(self, call: FilteredCall, spans: list[StreamSpan]) -> Iterator[Piece]:
        for span in spans:
            answer = call.answer(span.stream, span.first)
            for step in self.pacing.paced(call.caller, self._steps(call, span)):
                answer.add(step)
                if answer.due_at <= time.monotonic():
                    yield from answer.pieces()
            yield from answer.pieces()

    def _steps(self, call: FilteredCall, span: StreamSpan) -> Iterator[TestedSpan]:
        """A span, tested from its beginning to its end."""
        topic = span.stream.topic
        test, rules_out = call.tests[topic], call.rules_out(span.stream)
        skip_missing = call.get.skip_missing or topic in call.get.sparse
        for stretch in self._portions.read(span, skip_missing=skip_missing, rules_out=rules_out):
            if not stretch.portions:
                yield TestedSpan(until=stretch.until, rows=stretch.passed_rows, found=None)
            elif call.get.form == "raw":
                yield from self._raw_steps(stretch.portions, test)
            else:
                for rows, found in examined(stretch.portions, self._catalogue, test, SLICE_ROWS):
                    yield TestedSpan(until=rows.until, rows=rows.row_count, found=found)

    def _raw_steps(self, portions: Sequence[Portion], test: RowTest) -> Iterator[TestedSpan]:
        """A raw batch is whole, and belongs to the range that has its last row. One that cannot be read may match."""
        for portion in portions:
            batch = portion.kept.batch
            is_given = portion.until == batch.next_sequence
            if is_given:
                try:
                    is_given = test.matches(Slice([portion], self._catalogue))
                except Refusal:
                    is_given = True
            rows = portion.until - portion.first
            yield TestedSpan(until=portion.until, rows=rows, found=portion.kept if is_given else None)

    # ---- a tail

    def _tail(self, call: FilteredCall, starts: Frontier) -> Iterator[Piece]:
        """Follow the topics: by reading while the tail lags, from an inbox when it is level. It ends, like every tail,
        before matching rows that do not fit its columns."""
        tail = FilteredTail(call, starts)
        while not tail.is_over():
            self._report_columns(call)
            yield from self._catch_up(tail, self._frontiers.positions(call.get.topics))
            if tail.is_over():
                break
            if call.get.form == "raw" or call.get.left_out:
                yield from self._wait(tail)
                continue
            rows = self.shared({topic: call.profile(topic) for topic in call.get.topics}, self._frontiers)
            try:
                if rows.is_level:
                    yield from self._catch_up(tail, rows.begins)
                    yield from self._listen(tail, rows)
            finally:
                rows.close()
            if not rows.is_level:
                yield from self._wait(tail)
        yield from tail.last_pieces()

    def _catch_up(self, tail: FilteredTail, goal: Frontier) -> Iterator[Piece]:
        """Test all streams up to the goal, in turns."""
        while not tail.is_over():
            spans = [StreamSpan(stream, tail.at(stream), until) for stream, until in goal.items()]
            spans = [span for span in spans if span.first < span.next]
            for span in spans:
                turn_ends = time.monotonic() + TURN_S
                for step in self.pacing.paced(tail.call.caller, self._steps(tail.call, span)):
                    tail.add(span.stream, step)
                    yield from tail.due_pieces([span.stream])
                    if tail.is_over() or time.monotonic() >= turn_ends:
                        break
            if not spans:
                return
            yield from tail.due_pieces()

    def _listen(self, tail: FilteredTail, rows: SharedMatches) -> Iterator[Piece]:
        """Give what is put into the inbox, until the tail is over or the inbox lost."""
        while not tail.is_over():
            try:
                pieces = self._given(tail, rows)
            finally:
                rows.end_turn()
            if pieces is None:
                return
            yield from pieces
            rows.pay(tail.call.caller)
            rows.report_columns()
            self._end_if_idle(tail)
            if not tail.is_over():
                rows.inbox.wait(tail.wakes_at())

    def _given(self, tail: FilteredTail, rows: SharedMatches) -> list[Piece] | None:
        """Return the pieces that are due from the inbox, at most one full inbox; None: the inbox is lost."""
        steps = rows.take(tail.at)
        if steps is None:
            return None
        for stream, step in steps:
            tail.add(stream, step)
            if tail.is_over():
                break
        return list(tail.due_pieces())

    def _wait(self, tail: FilteredTail) -> Iterator[Piece]:
        """Wait until there are new rows, or something is due."""
        self._frontiers.wait_beyond(tail.positions(), tail.call.get.topics, tail.wakes_at())
        self._frontiers.refuse_ended(tail.call.caller.is_cancelled)
        self._end_if_idle(tail)
        yield from tail.due_pieces()

    def _end_if_idle(self, tail: FilteredTail) -> None:
        if tail.idle_at <= time.monotonic():
            now = self._frontiers.positions(tail.call.get.topics)
            if all(tail.at(stream) >= until for stream, until in now.items()):
                tail.end()
