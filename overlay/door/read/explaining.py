"""Explains a filter and its cost at this node: its canonical form, what summaries decide, how much of a topic
passes."""

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.fields import Fields
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.read.matching import Slice, examined, row_test
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader, ruled_out_by
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.requests import parse_filter
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.profiles import Profile, columns_of, is_opaque
from m4cast.overlay.store.store import Store, SummarisedBatch

ROWS_DEFAULT = 100_000
ROWS_MAX = 10_000_000
SLICE_ROWS = 65_536
NOT_TOLD = dict.fromkeys(("passed_over_batches", "error_rows", "cpu_ms_per_million_rows"))
"""The part of an answer that depends on whole batches, so also on rows that a token with a filter may not see."""


@dataclass(frozen=True, slots=True)
class FilterQuestion:
    topic: str
    profile: Profile
    rows: int
    """The number of newest rows to test, shared evenly by the streams; at least one of each, unless it is 0."""


def parse_explain(fields: Fields) -> FilterQuestion:
    profile = parse_filter(fields)
    if profile is None:
        raise bad_request("where is missing: set it to a filter")
    rows = fields.whole("rows", 0, ROWS_MAX)
    return FilterQuestion(fields.topic(), profile, ROWS_DEFAULT if rows is None else rows)


class Explaining:
    """Any thread may use it."""

    def __init__(
        self, store: Store, portions: PortionReader, catalogue: Catalogue, frontiers: Frontiers, pacing: Pacing
    ) -> None:
        self._store = store
        self._portions = portions
        self._catalogue = catalogue
        self._frontiers = frontiers
        self._pacing = pacing

    def explain(self, question: FilterQuestion, caller: Caller) -> dict[str, object]:
        profile = question.profile
        positions = self._frontiers.positions((question.topic,))
        if not positions:
            detail = f"nothing was published under topic {question.topic!r}, as far as this node knows: check the name"
            raise Refusal("unknown-topic", detail)
        lows = self._store.lows(positions)
        share = max(question.rows // len(positions), min(question.rows, 1))
        spans = [
            StreamSpan(stream, max(lows.get(stream, 1), until - share), until) for stream, until in positions.items()
        ]
        known = self._catalogue.merged(StreamSpan(stream, 1, until) for stream, until in positions.items())
        allowed = caller.rights.filters((question.topic,), profile)[question.topic]
        return {
            "canonical": profile.text,
            "id": profile.id.hex(),
            "language": profile.language,
            "version": profile.version,
            "columns": [list(path) for path in columns_of(profile.condition)],
            "unknown_columns": [list(path) for path in columns_of(profile.condition) if not _has(known, path)],
            "known_columns": known.names,
            "is_opaque": is_opaque(profile.condition),
            **self._tested(allowed, [span for span in spans if span.first < span.next], caller),
            **({} if caller.rights.filter_of(question.topic) is None else NOT_TOLD),
        }

    def _tested(self, profile: Profile, spans: list[StreamSpan], caller: Caller) -> dict[str, Any]:
        test, is_ruled_out = row_test(profile), ruled_out_by(profile.condition)
        batches, summarised, passed_over, matching, errors = 0, 0, 0, 0, 0
        seen_until = 0

        def rules_out(head: SummarisedBatch) -> bool:
            nonlocal batches, summarised, passed_over, seen_until
            is_out = is_ruled_out(head)
            if head.next_sequence > seen_until:  # heads are looked at again if rows are removed meanwhile
                seen_until = head.next_sequence
                batches += 1
                summarised += head.summary is not None
                passed_over += is_out
            return is_out

        def count(rows: Slice) -> int:
            found = test(rows)
            return 0 if found is None else found.rows.num_rows

        rows, cpu_s = 0, 0.0
        for span in spans:
            seen_until = 0
            began_s = time.thread_time()
            for stretch in self._portions.read(span, skip_missing=True, rules_out=rules_out):
                rows += stretch.passed_rows
                for tested, found in examined(stretch.portions, self._catalogue, count, SLICE_ROWS):
                    rows += tested.row_count
                    matching += found
                    errors += tested.errors
                spent_s = time.thread_time() - began_s
                cpu_s += spent_s
                self._pacing.pay(caller, spent_s)
                began_s = time.thread_time()
        return {
            "batches": batches,
            "summarised_batches": summarised,
            "passed_over_batches": passed_over,
            "rows": rows,
            "matching_rows": matching,
            "error_rows": errors,
            "cpu_ms_per_million_rows": round(cpu_s * 1e9 / rows, 3) if rows else None,
        }


def _has(schema: pa.Schema, path: tuple[str, ...]) -> bool:
    """True if a topic has a column, or a member of a nested one."""
    at = schema.get_field_index(path[0])
    if at < 0:
        return False
    type_ = schema.field(at).type
    for name in path[1:]:
        if not types.is_struct(type_) or (at := type_.get_field_index(name)) < 0:
            return False
        type_ = type_.field(at).type
    return True
