"""Segments: the arrays by which a `ProfileIndex` finds, for each row of a batch, the profiles that may want it.

A segment is built once for columns of given types and never changed. Every box of a profile becomes an entry with one
way to reach it:

1. by equality: boxes that name values for the same columns form a group. A row's values are numbered column by column
   and the numbers joined step by step, each step a search among the pairs that occur: GES's profile graph as arrays.
   The cost is the same whether the group has a thousand entries or a million, and whatever values they share.
2. by interval: boxes without equalities, on one column with a lane. They hang in a segment tree over their end points;
   a row meets exactly the entries whose interval holds its value.
3. by neither (`scan`): evaluated one by one, terms shared.

What a row reaches is then tested, all candidates at once, against the entry's intervals on other columns. Words,
patterns, exclusions and nulls are left to evaluation of the profile itself, on the candidates only.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from m4cast.overlay.profiles.boxes import BOTH, FULL, Box
from m4cast.overlay.profiles.condition import ColumnRef, Kind
from m4cast.overlay.profiles.evaluation import BatchTerms, ColumnValues, kind_of
from m4cast.overlay.profiles.lanes import (
    GREATEST,
    LEAST,
    Codes,
    Lane,
    Places,
    Texts,
    has_lane,
    interval_in,
    lane_of,
    point_in,
)
from m4cast.overlay.profiles.patterns import Mask

POINTS_MAX = 16
"""Values of an IN that are looked up; a longer one is tested. Each takes an entry."""
ENTRIES_MAX = 64
"""Entries of one box: the product of its INs."""
FEW_ROWS_SHARE = 4
"""If fewer than one row in this many is left, texts of these rows alone are encoded."""
Types = Mapping[ColumnRef, pa.DataType | None]
"""The type of each column that profiles read; None for one that a batch lacks, or that holds nothing but nulls."""


@dataclass(slots=True)
class Pairs:
    """Rows and the entries that they reach, as two arrays of equal length."""

    rows: Lane
    entries: Lane


class BatchLanes:
    """The columns of one batch, each converted once for all segments."""

    def __init__(self, terms: BatchTerms, rows: int) -> None:
        self.terms = terms
        self.rows = rows
        self._lanes: dict[ColumnRef, Lane] = {}
        self._texts: dict[ColumnRef, Texts] = {}

    def values(self, column: ColumnRef) -> ColumnValues:
        found = self.terms.values(column)
        assert found is not None, "a segment names only columns that the batch has"
        return found

    def lane(self, column: ColumnRef) -> Lane:
        if column not in self._lanes:
            self._lanes[column] = lane_of(self.values(column))
        return self._lanes[column]

    def valid(self, column: ColumnRef) -> Mask | None:
        """The rows that are not null, None if all are."""
        values = self.values(column)
        return values.valid() if values.array.null_count else None

    def codes(self, column: ColumnRef, codes: Codes, rows: Lane | None) -> Lane:
        """The number of each row's value; of these rows only, if some are named."""
        if not codes.is_lane:
            return self._text_codes(column, codes, rows)
        found = codes.of_lane(self.lane(column) if rows is None else self.lane(column)[rows])
        valid = self.valid(column)
        if valid is None:
            return found
        return np.where(valid if rows is None else valid[rows], found, -1)

    def _text_codes(self, column: ColumnRef, codes: Codes, rows: Lane | None) -> Lane:
        array = self.values(column).array
        if column not in self._texts:
            if rows is not None and len(rows) * FEW_ROWS_SHARE < self.rows:
                return codes.of_texts(Texts(array.take(pa.array(rows))))
            self._texts[column] = Texts(array)
        found = codes.of_texts(self._texts[column])
        return found if rows is None else found[rows]


@dataclass(slots=True)
class _Entry:
    """A box as it is reached and tested, for columns of given types."""

    slot: int
    is_exact: bool = True
    points: dict[ColumnRef, list[Any]] = field(default_factory=dict)
    intervals: dict[ColumnRef, tuple[int, int]] = field(default_factory=dict)
    required: set[ColumnRef] = field(default_factory=set)
    """Columns that must not be null."""


@dataclass(slots=True)
class _Tests:
    """The members of a group, in the order in which they are stored, and their intervals by column."""

    slots: Lane
    is_exact: Mask
    lows: dict[ColumnRef, Lane]
    """Lower bounds, for columns on which some entry has one; `LEAST` for entries without."""
    highs: dict[ColumnRef, Lane]
    required: dict[ColumnRef, Mask]
    """True for members that a null in this column rules out."""

    def passed(self, batch: BatchLanes, pairs: Pairs) -> Pairs:
        """The pairs whose row is inside all intervals of its entry."""
        rows, entries = pairs.rows, pairs.entries
        for column, required in self.required.items():
            lows, highs, valid = self.lows.get(column), self.highs.get(column), batch.valid(column)
            if lows is None and highs is None and valid is None:
                continue
            passed = np.ones(len(rows), dtype=bool) if valid is None else valid[rows] | ~required[entries]
            if lows is not None or highs is not None:
                lane = batch.lane(column)[rows]
                # A member without bounds passes every lane value, so what a null row holds does not matter.
                passed &= True if lows is None else lows[entries] <= lane
                passed &= True if highs is None else lane <= highs[entries]
            rows, entries = rows[passed], entries[passed]
        return Pairs(rows, entries)

    def may(self, reach: Mapping[ColumnRef, tuple[int, int]]) -> Mask:
        """The members whose intervals meet what a batch reaches from and to."""
        found = np.ones(len(self.slots), dtype=bool)
        for column, (least, greatest) in reach.items():
            if column in self.lows:
                found &= self.lows[column] <= greatest
            if column in self.highs:
                found &= self.highs[column] >= least
        return found


class EqualityGroup:
    """Entries that name values for the same columns."""

    def __init__(self, columns: tuple[ColumnRef, ...], codes: Mapping[ColumnRef, Codes], entries: list[_Entry]) -> None:
        # The column with the most values first: it leaves the fewest rows for the others.
        columns = tuple(sorted(columns, key=lambda column: (-len(codes[column].known), _column_key(column))))
        self.columns = columns
        self._codes = codes
        keys: list[tuple[int, ...]] = []
        owners: list[int] = []
        for at, entry in enumerate(entries):
            for combination in product(*(entry.points[column] for column in columns)):
                keys.append(tuple(codes[column].code(each) for column, each in zip(columns, combination, strict=True)))
                owners.append(at)
        table = np.array(keys, dtype=np.int64).reshape(len(keys), len(columns))
        self._steps: list[tuple[int, Places]] = []
        joined, known = table[:, 0], table[:, 0]
        for at, column in enumerate(columns):
            size = len(codes[column].known)
            if at:
                joined = joined * size + table[:, at]
            known, joined = np.unique(joined, return_inverse=True)
            self._steps.append((size, Places(known)))
        order = np.argsort(joined, kind="stable")
        self._starts = np.searchsorted(joined[order], np.arange(len(known) + 1))
        self._keys = table[order]
        # One test per member, in the order in which rows reach them: neighbours in memory are tested together.
        self.tests = _tests(entries, np.array(owners, dtype=np.int64)[order])

    def reached(self, batch: BatchLanes) -> Pairs:
        """Find the rows that reach each entry."""
        rows: Lane | None = None
        joined = np.zeros(0, np.int64)
        for column, (size, places) in zip(self.columns, self._steps, strict=True):
            codes = batch.codes(column, self._codes[column], rows)
            joined = places.of(codes if rows is None else np.where(codes < 0, -1, joined * size + codes))
            found = np.flatnonzero(joined >= 0)
            rows, joined = found if rows is None else rows[found], joined[found]
        assert rows is not None
        return _expanded(rows, joined, self._starts)

    def may(
        self, possible: Callable[[ColumnRef, Codes], Mask | None], reach: Mapping[ColumnRef, tuple[int, int]]
    ) -> Lane:
        """The slots that a batch with these possible values may reach."""
        found = self.tests.may(reach)
        for at, column in enumerate(self.columns):
            allowed = possible(column, self._codes[column])
            if allowed is not None:
                found &= allowed[self._keys[:, at]]
        return self.tests.slots[found]


class IntervalGroup:
    """Entries reached by an interval on one column: a segment tree over the cells between their end points."""

    def __init__(self, column: ColumnRef, entries: list[_Entry]) -> None:
        self.column = column
        lows = np.array([entry.intervals[column][0] for entry in entries], dtype=np.int64)
        highs = np.array([entry.intervals[column][1] for entry in entries], dtype=np.int64)
        self._ends = np.unique(np.concatenate([lows, highs[highs < GREATEST] + 1]))
        cells = len(self._ends)
        self._size = 1 << max(cells - 1, 1).bit_length()
        first = np.searchsorted(self._ends, lows) + self._size
        after_cells = np.searchsorted(self._ends, highs[highs < GREATEST] + 1)
        after = np.full(len(entries), cells)
        after[highs < GREATEST] = after_cells
        nodes, owners = _hung(first, after + self._size)
        order = np.argsort(nodes, kind="stable")
        self._starts = np.searchsorted(nodes[order], np.arange(2 * self._size + 1))
        self._members = owners[order]
        self._levels = [
            level
            for level in range(self._size.bit_length())
            if self._starts[(2 * self._size) >> level] > self._starts[self._size >> level]
        ]
        self.tests = _tests(entries, np.arange(len(entries)))

    def reached(self, batch: BatchLanes) -> Pairs:
        """Find the rows that reach each entry."""
        cells = np.searchsorted(self._ends, batch.lane(self.column), side="right") - 1
        valid = batch.valid(self.column)
        rows = np.flatnonzero(cells >= 0 if valid is None else (cells >= 0) & valid)
        leaves = cells[rows] + self._size
        found = [_expanded(rows, leaves >> level, self._starts) for level in self._levels]
        if not found:
            return Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
        entries = self._members[np.concatenate([each.entries for each in found])]
        return Pairs(np.concatenate([each.rows for each in found]), entries)

    def may(self, reach: Mapping[ColumnRef, tuple[int, int]]) -> Lane:
        """The slots that a batch with these ranges may reach."""
        return self.tests.slots[self.tests.may(reach)]


def _hung(left: Lane, right: Lane) -> tuple[Lane, Lane]:
    """The nodes of the tree that make up each half-open range of leaves, and whose they are."""
    owners = np.arange(len(left))
    nodes_found: list[Lane] = []
    owners_found: list[Lane] = []
    while len(owners):
        odd = (left & 1).astype(bool)
        nodes_found.append(left[odd])
        owners_found.append(owners[odd])
        left = left + odd
        odd = (right & 1).astype(bool)
        right = right - odd
        nodes_found.append(right[odd])
        owners_found.append(owners[odd])
        left, right = left >> 1, right >> 1
        going = left < right
        left, right, owners = left[going], right[going], owners[going]
    return np.concatenate(nodes_found), np.concatenate(owners_found)


def _expanded(rows: Lane, keys: Lane, starts: Lane) -> Pairs:
    """Each row with all members of its key."""
    begins = starts[keys]
    counts = starts[keys + 1] - begins
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return Pairs(np.repeat(rows, counts), np.arange(total) + np.repeat(begins - (ends - counts), counts))


def _tests(entries: list[_Entry], members: Lane) -> _Tests:
    columns = dict.fromkeys(column for entry in entries for column in entry.intervals)
    every = (LEAST, GREATEST)
    ends = {
        column: np.array([entry.intervals.get(column, every) for entry in entries], dtype=np.int64)[members]
        for column in columns
    }
    lows = {column: np.ascontiguousarray(both[:, 0]) for column, both in ends.items()}
    highs = {column: np.ascontiguousarray(both[:, 1]) for column, both in ends.items()}
    return _Tests(
        slots=np.array([entry.slot for entry in entries], dtype=np.int64)[members],
        is_exact=np.array([entry.is_exact for entry in entries], dtype=bool)[members],
        lows={column: bounds for column, bounds in lows.items() if bounds.max() > LEAST},
        highs={column: bounds for column, bounds in highs.items() if bounds.min() < GREATEST},
        required={
            column: np.array([column in entry.required for entry in entries], dtype=bool)[members]
            for column in dict.fromkeys(
                column for entry in entries for column in sorted(entry.required, key=_column_key)
            )
        },
    )


class Segment:
    """The entries of some profiles, for columns of given types. `slots` are the profiles' numbers in the index."""

    def __init__(self, types: Types, profiles: Iterable[tuple[int, tuple[Box, ...] | None]]) -> None:
        self.types = types
        self.slots: list[int] = []
        self.scan: list[int] = []
        self.is_single = True
        """True if every profile has one entry, so that no pair is found twice."""
        self.codes: dict[ColumnRef, Codes] = {}
        by_points: dict[tuple[ColumnRef, ...], list[_Entry]] = {}
        by_interval: dict[ColumnRef, list[_Entry]] = {}
        for slot, boxes in profiles:
            self.slots.append(slot)
            entries = None if boxes is None else [entry for box in boxes if (entry := self._entry(slot, box))]
            if entries is None or not all(entry.points or entry.intervals for entry in entries):
                self.scan.append(slot)
                continue
            self.is_single &= len(entries) <= 1
            for entry in entries:
                if entry.points:
                    by_points.setdefault(tuple(sorted(entry.points, key=_column_key)), []).append(entry)
                else:
                    by_interval.setdefault(_narrowest(entry.intervals), []).append(entry)
        for columns, entries in by_points.items():  # all codes before any group: groups join them by how many there are
            self._number_points(columns, entries)
        self.equalities = [EqualityGroup(columns, self.codes, entries) for columns, entries in by_points.items()]
        self.intervals = [IntervalGroup(column, entries) for column, entries in by_interval.items()]

    def _number_points(self, columns: tuple[ColumnRef, ...], entries: list[_Entry]) -> None:
        for column in columns:
            type_ = self.types[column]
            assert type_ is not None
            codes = self.codes.setdefault(column, Codes(has_lane(type_)))
            for entry in entries:
                for each in entry.points[column]:
                    codes.code(each)

    def _entry(self, slot: int, box: Box) -> _Entry | None:
        """The entry by which the box is reached and tested; None if no row of these types is in it."""
        entry = _Entry(slot)
        size = 1
        for column, constraint in box.items():
            type_ = self.types[column]
            if type_ is None:
                if not constraint.is_null:
                    return None
                continue
            kind = Kind.OTHER if column.is_lowered and kind_of(type_) is not Kind.TEXT else kind_of(type_)
            span = constraint.spans.get(kind)
            if span is None and not constraint.is_null:
                return None
            if span is None or constraint.is_null:
                entry.is_exact = False
                continue
            entry.required.add(column)
            if span in (FULL, BOTH):
                continue
            if kind is Kind.OTHER:
                entry.is_exact = False
            elif span.points is not None:
                points: list[Any] = sorted(span.points)
                if has_lane(type_):
                    points = sorted({at for each in points if (at := point_in(type_, each)) is not None})
                    if not points:
                        return None
                if len(points) <= POINTS_MAX and size * len(points) <= ENTRIES_MAX and _can_be_coded(type_):
                    size *= len(points)
                    entry.points[column] = points
                else:
                    entry.is_exact = False
            elif has_lane(type_):
                low, high = interval_in(type_, span)
                if low > high:
                    return None
                entry.is_exact &= not (span.excluded or span.clauses or span.residue)
                entry.intervals[column] = (low, high)
            else:
                entry.is_exact = False
        return entry


def _can_be_coded(type_: pa.DataType) -> bool:
    return has_lane(type_) or kind_of(type_) in (Kind.TEXT, Kind.BYTES)


def _column_key(column: ColumnRef) -> tuple[tuple[str, ...], bool]:
    return column.path, column.is_lowered


def _narrowest(intervals: Mapping[ColumnRef, tuple[int, int]]) -> ColumnRef:
    """The column to reach an entry by: one with two ends before one with one."""
    return min(
        intervals,
        key=lambda column: (
            (intervals[column][0] == LEAST) + (intervals[column][1] == GREATEST),
            _column_key(column),
        ),
    )
