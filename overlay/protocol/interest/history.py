"""The history of this node's registrations: each from when to when, under a number of its own.

It answers what this node wanted at a time that has passed, which an audit needs to tell rows that did not arrive from
rows that nobody wanted. It is written in the same transaction as the registration, so it has neither more nor less.
Registrations that last are always in it; of those that have ended, the last `ENDED_MAX`.

A span that changes gets the next revision, so that whoever has read everything up to a revision asks for what changed
since.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from m4cast.overlay.protocol.effects import InterestSpan, InterestSpanRecord, InterestState, Registration

ENDED_MAX = 10_000
"""Ended registrations that are remembered; guess. About 500 bytes each, in memory and on disk."""


class NumberedSpan(NamedTuple):
    number: int
    span: InterestSpan


class HistoryChange(NamedTuple):
    """The change that one append makes, and how to take it back."""

    records: tuple[InterestSpanRecord, ...]
    open_before: dict[str, NumberedSpan | None]
    dropped: tuple[int, ...]
    """Numbers of ended spans that are forgotten."""
    next_before: int
    revision_before: int


class InterestHistory:
    def __init__(self, spans: Mapping[int, InterestSpan], ended_max: int = ENDED_MAX) -> None:
        self.spans = dict(spans)
        """The durable spans, by number."""
        self._ended_max = ended_max
        ended = [number for number, span in spans.items() if span.until_ms is not None]
        self._ended = deque(sorted(ended, key=lambda number: spans[number].revision))
        self._open = {span.id: NumberedSpan(number, span) for number, span in spans.items() if span.until_ms is None}
        """The open spans by id, including those that are not durable yet."""
        self._next = max(spans, default=0) + 1
        self._revision = max((span.revision for span in spans.values()), default=0)

    def lasting(self, each: str) -> InterestSpan | None:
        """The span of a registration that lasts, by its id."""
        numbered = self._open.get(each)
        return None if numbered is None else self.spans.get(numbered.number)

    def changed(self, start: int) -> list[tuple[int, InterestSpan]]:
        """The spans that changed with this revision or later, with their numbers."""
        return [(number, span) for number, span in self.spans.items() if span.revision >= start]

    def record(
        self, ids: Iterable[str], rows: Mapping[str, Registration], state: InterestState, now_ms: int
    ) -> HistoryChange:
        """Compare the registrations with these ids to the spans that last. `state` is the version of the entry from now
        on."""
        next_before, revision_before = self._next, self._revision
        records: list[InterestSpanRecord] = []
        open_before: dict[str, NumberedSpan | None] = {}
        for each in ids:
            before, row = self._open.get(each), rows.get(each)
            if before is not None and row is not None and _is_of(before.span, row):
                continue
            if before is None and row is None:
                continue
            open_before[each] = before
            if before is not None:
                records.append(InterestSpanRecord(before.number, self._ended_span(before.span, state, now_ms)))
                del self._open[each]
            if row is not None:
                from_ms = row.since_ms if before is None else now_ms
                self._open[each] = begun = NumberedSpan(self._next, self._begun_span(each, row, state, from_ms))
                self._next += 1
                records.append(InterestSpanRecord(begun.number, begun.span))
        dropped = [self._ended.popleft() for _ in range(max(len(self._ended) - self._ended_max, 0))]
        records += [InterestSpanRecord(number, None) for number in dropped]
        return HistoryChange(tuple(records), open_before, tuple(dropped), next_before, revision_before)

    def _begun_span(self, each: str, row: Registration, state: InterestState, from_ms: int) -> InterestSpan:
        self._revision += 1
        return InterestSpan(
            id=each,
            topic=row.topic,
            language=row.language,
            text=row.text,
            owner=row.owner,
            epoch=row.epoch,
            earliest=row.reaches_back,
            incarnation=state.incarnation,
            ts=state.ts,
            from_ms=from_ms,
            revision=self._revision,
        )

    def _ended_span(self, span: InterestSpan, state: InterestState, now_ms: int) -> InterestSpan:
        self._revision += 1
        return replace(
            span,
            until_ms=max(now_ms, span.from_ms),
            until_incarnation=state.incarnation,
            until_ts=state.ts,
            revision=self._revision,
        )

    def durable(self, change: HistoryChange) -> None:
        for record in change.records:
            number, span = record.key, record.content
            if span is None:
                del self.spans[number]
            else:
                self.spans[number] = span
                if span.until_ms is not None:
                    self._ended.append(number)

    def undo(self, change: HistoryChange) -> None:
        """The append was not kept; those after it are undone already."""
        for each, before in change.open_before.items():
            if before is None:
                del self._open[each]
            else:
                self._open[each] = before
        self._ended.extendleft(reversed(change.dropped))
        self._next, self._revision = change.next_before, change.revision_before


def _is_of(span: InterestSpan, row: Registration) -> bool:
    """True if the span is about this registration in its present form. Text has to be equal: the span shows what was
    asked for, so another spelling is another text."""
    return (
        span.topic == row.topic
        and span.language == row.language
        and span.text == row.text
        and span.owner == row.owner
        and span.epoch == row.epoch
        and span.earliest == row.reaches_back
    )
