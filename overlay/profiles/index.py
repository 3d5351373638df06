"""The index: many profiles against one batch, at the cost of the rows and of what matches, not of all profiles.

`ProfileIndex` keeps profiles under keys of the caller's. `match` gives all pairs of a row and a profile that it
satisfies, exactly; `candidates` gives the profiles that a summary cannot rule out.

The arrays (`segment`) depend on the types of the columns, so there is one plan per combination of types that occurs;
a topic has one or a few. A plan is a list of segments. New profiles wait and become a segment at the next question;
segments of similar size are merged, so that there are few. A profile that was removed is only marked: it leaves the
arrays when they are made anew.

Cost (`tests/bench/profiles.py`): a question costs one pass over the columns that profiles read, a search per row and
group, and about 20 ns per candidate; a profile that is added costs 40 us when its segment is built.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import types as arrow_types

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.profiles.boxes import Span, boxes_of_many
from m4cast.overlay.profiles.condition import ColumnRef, Condition, terms_of
from m4cast.overlay.profiles.evaluation import BatchTerms, column_of, kind_of
from m4cast.overlay.profiles.lanes import Codes, Lane, has_lane, interval_in
from m4cast.overlay.profiles.patterns import Mask
from m4cast.overlay.profiles.profile import Profile
from m4cast.overlay.profiles.segment import BatchLanes, EqualityGroup, IntervalGroup, Segment, Types
from m4cast.overlay.profiles.summary import ColumnSummary, Summary, may_match
from m4cast.overlay.value import value

PLANS_MAX = 4
"""Combinations of column types that are kept ready. Each holds its own arrays of all profiles."""
MERGE_FACTOR = 8
"""A segment is merged with those that are at most so many times as large. Higher: fewer segments, more merging."""
WHOLE_BATCH_SHARE = 8
"""A profile is evaluated on the whole batch, where its terms are shared, if at least one row in this many is left."""
Key = TypeVar("Key", bound=Hashable)


@value
class Matches(Generic[Key]):
    """Rows of a batch and the profiles that they satisfy, as pairs in no order, each once."""

    rows: Lane
    slots: Lane
    keys: Mapping[int, Key]
    errors: int
    """Rows that terms could not be compared with (ANSI errors), of what was evaluated."""

    def by_key(self) -> Iterator[tuple[Key, Lane]]:
        """Each profile that matched, with its rows in ascending order."""
        for slot, rows in _by_slot(self.rows, self.slots):
            yield self.keys[slot], rows


class ProfileIndex(Generic[Key]):
    """Profiles under keys, matched together."""

    def __init__(self) -> None:
        self._slots: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._conditions: dict[int, Condition] = {}
        self._columns: dict[ColumnRef, int] = {}  # with the number of profiles that read it
        self._alive = np.zeros(64, dtype=bool)
        self._next_slot = 0
        self._plans: dict[tuple[object, ...], _Plan] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def add(self, key: Key, profile: Profile) -> None:
        """Keep a profile under a key that is not in use."""
        if key in self._slots:
            raise LocalProtocolError(f"key {key!r} has a profile already: remove it first")
        slot = self._next_slot
        self._next_slot += 1
        if slot >= len(self._alive):
            self._alive = np.concatenate([self._alive, np.zeros_like(self._alive)])
        self._alive[slot] = True
        self._slots[key] = slot
        self._keys[slot] = key
        self._conditions[slot] = profile.condition
        known = len(self._columns)
        for column in _columns(profile.condition):
            self._columns[column] = self._columns.get(column, 0) + 1
        if len(self._columns) > known:
            self._plans.clear()  # they lack a column
        for plan in self._plans.values():
            plan.waiting.append(slot)

    def remove(self, key: Key) -> None:
        """Forget the profile under a key."""
        slot = self._slots.pop(key, None)
        if slot is None:
            raise LocalProtocolError(f"key {key!r} has no profile: nothing to remove")
        self._alive[slot] = False
        del self._keys[slot]
        for plan in self._plans.values():
            plan.is_thinned = True
        for column in _columns(self._conditions.pop(slot)):
            self._columns[column] -= 1
            if not self._columns[column]:
                del self._columns[column]  # plans that still look at it do no harm

    def match(self, batch: pa.RecordBatch, summary: Summary | None = None) -> Matches[Key]:
        """All pairs of a row and a profile that it satisfies. With a summary, profiles that it rules out cost less."""
        terms = BatchTerms(batch)
        plan = self._plan(_types(batch, self._columns))
        lanes = BatchLanes(terms, batch.num_rows)
        rows: list[Lane] = []
        slots: list[Lane] = []
        for segment in plan.segments:
            for found_rows, found_slots in self._segment_pairs(segment, batch, lanes, summary):
                rows.append(found_rows)
                slots.append(found_slots)
        all_rows = np.concatenate(rows) if rows else np.empty(0, np.int64)
        all_slots = np.concatenate(slots) if slots else np.empty(0, np.int64)
        if not all(segment.is_single for segment in plan.segments):
            all_slots, all_rows = np.divmod(np.unique(all_slots * batch.num_rows + all_rows), max(batch.num_rows, 1))
        return Matches(all_rows, all_slots, self._keys, terms.errors)

    def candidates(self, summary: Summary, schema: pa.Schema) -> list[Key]:
        """The keys of all profiles that a row of the summarised batch may satisfy, in the order of their arrival."""
        if not summary.rows:
            return []
        empty = pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)
        types = _types(empty, self._columns)
        types = {column: None if _is_null(summary, column) else type_ for column, type_ in types.items()}
        reach = _reaches(summary, types)
        found: list[Lane] = []
        for segment in self._plan(types).segments:
            for group in segment.equalities:
                found.append(group.may(lambda column, codes: _possible(column, codes, summary, types), reach))
            found.extend(group.may(reach) for group in segment.intervals)
            scanned = [slot for slot in segment.scan if self._alive[slot]]
            kept = [slot for slot in scanned if may_match(self._conditions[slot], summary)]
            found.append(np.array(kept, dtype=np.int64))
        slots = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        return [self._keys[slot] for slot in slots[self._alive[slots]].tolist()]

    def _segment_pairs(
        self, segment: Segment, batch: pa.RecordBatch, lanes: BatchLanes, summary: Summary | None
    ) -> Iterator[tuple[Lane, Lane]]:
        groups: list[EqualityGroup | IntervalGroup] = [*segment.equalities, *segment.intervals]
        for group in groups:
            pairs = group.tests.passed(lanes, group.reached(lanes))
            slots = group.tests.slots[pairs.entries]
            is_alive = self._alive[slots]
            is_exact = group.tests.is_exact[pairs.entries] & is_alive
            yield pairs.rows[is_exact], slots[is_exact]
            unsure = is_alive & ~is_exact
            if unsure.any():
                yield from self._evaluated(batch, lanes.terms, pairs.rows[unsure], slots[unsure])
        for slot in segment.scan:
            if self._alive[slot] and (summary is None or may_match(self._conditions[slot], summary)):
                rows = np.flatnonzero(lanes.terms.mask(self._conditions[slot]))
                yield rows, np.full(len(rows), slot)

    def _evaluated(
        self, batch: pa.RecordBatch, terms: BatchTerms, rows: Lane, slots: Lane
    ) -> Iterator[tuple[Lane, Lane]]:
        """The candidates that satisfy their profile, by evaluation."""
        for slot, chosen in _by_slot(rows, slots):
            condition = self._conditions[slot]
            if len(chosen) * WHOLE_BATCH_SHARE >= batch.num_rows:
                passed: Mask = terms.mask(condition)[chosen]
            else:
                part = BatchTerms(batch.take(pa.array(chosen)))
                passed = part.mask(condition)
                terms.errors += part.errors
            kept = chosen[passed]
            yield kept, np.full(len(kept), slot)

    def _plan(self, types: Types) -> "_Plan":
        key = tuple((column, types[column]) for column in sorted(types, key=repr))
        plan = self._plans.pop(key, None)
        if plan is None:
            plan = _Plan(types, list(self._conditions))
        self._plans[key] = plan  # the last one is the latest used
        if len(self._plans) > PLANS_MAX:
            del self._plans[next(iter(self._plans))]
        plan.settle(self._conditions)
        return plan


class _Plan:
    """The segments for columns of given types, and the profiles that wait to be in one."""

    def __init__(self, types: Types, waiting: list[int]) -> None:
        self.types = types
        self.waiting = waiting
        self.segments: list[Segment] = []
        self.is_thinned = False
        """True if profiles were removed since it was last examined."""

    def settle(self, conditions: Mapping[int, Condition]) -> None:
        """Put what waits into a segment, together with segments that are not much larger, or half of it removed."""
        dead = [each for each in self.segments if self.is_thinned and 2 * _living(each, conditions) < len(each.slots)]
        self.is_thinned = False
        if not self.waiting and not dead:
            return
        slots = [slot for slot in self.waiting if slot in conditions]
        self.waiting = []
        kept: list[Segment] = []
        for segment in sorted(self.segments, key=lambda each: len(each.slots)):
            if segment in dead or len(segment.slots) <= MERGE_FACTOR * len(slots):
                slots.extend(slot for slot in segment.slots if slot in conditions)
            else:
                kept.append(segment)
        if slots:
            profiles = zip(slots, boxes_of_many(conditions[slot] for slot in slots), strict=True)
            kept.append(Segment(self.types, profiles))
        self.segments = kept


def _living(segment: Segment, conditions: Mapping[int, Condition]) -> int:
    return sum(slot in conditions for slot in segment.slots)


def _by_slot(rows: Lane, slots: Lane) -> Iterator[tuple[int, Lane]]:
    if not len(rows):
        return
    order = np.lexsort((rows, slots))
    rows, slots = rows[order], slots[order]
    starts = np.flatnonzero(np.diff(slots, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(slots)], strict=True):
        yield int(slots[start]), rows[start:end]


def _columns(condition: Condition) -> set[ColumnRef]:
    return {term.column for term in terms_of(condition)}


def _types(batch: pa.RecordBatch, columns: Mapping[ColumnRef, int]) -> dict[ColumnRef, pa.DataType | None]:
    found: dict[ColumnRef, pa.DataType | None] = {}
    for column in columns:
        array = column_of(batch, column.path)
        found[column] = None if array is None or arrow_types.is_null(array.type) else array.type
    return found


def _is_null(summary: Summary, column: ColumnRef) -> bool:
    known = summary.columns.get(column.path)
    return known is not None and known.kind is None


def _reaches(summary: Summary, types: Types) -> dict[ColumnRef, tuple[int, int]]:
    """The range of values of the batch in each lane that the summary knows."""
    found: dict[ColumnRef, tuple[int, int]] = {}
    for column, type_ in types.items():
        known = summary.columns.get(column.path)
        if known is None or type_ is None or not has_lane(type_) or known.kind is not kind_of(type_):
            continue
        if known.least is not None and known.greatest is not None and not known.has_nan:
            found[column] = interval_in(type_, Span(low=known.least, high=known.greatest))
    return found


def _possible(column: ColumnRef, codes: Codes, summary: Summary, types: Types) -> Mask | None:
    """Return those of the values that profiles ask for that the batch may have; None if nothing is known."""
    known: ColumnSummary | None = summary.columns.get(column.path)
    type_ = types[column]
    if known is None or type_ is None or column.is_lowered or known.kind is not kind_of(type_):
        return None
    if codes.is_lane:
        reach = _reaches(summary, {column: type_}).get(column)
        if reach is None:
            return None
        points = codes.points()
        return (points >= reach[0]) & (points <= reach[1])
    if known.values is None:
        return None
    allowed = np.zeros(len(codes.known), dtype=bool)
    for each in known.values:
        at = codes.known.get(each)
        if at is not None:
            allowed[at] = True
    return allowed
