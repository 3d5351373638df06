"""Boxes: the form of a condition in which profiles are compared with each other and with summaries.

A condition is a union of boxes, a box an intersection of constraints, one per column. A constraint says for each kind
of column which values pass, and whether null does: a literal may mean different values to different kinds (see
`literals.readings`), and what a column's kind is, only the batch knows. So whatever is concluded from boxes holds for
columns of every kind. A kind that is absent from a constraint has no values that pass.

A `Span` is the set of values of one kind: a few points, or an interval without some points, with words that the text
must hold and with terms that no other form has (`residue`).

`boxes_of` is exact: the union is the condition's TRUE set. It is bounded. Past the bound a condition is *opaque*
(None): it is evaluated like any other, but covers only itself and is not indexed.

`covers(P, Q)` is sound: when it is true, every row that satisfies Q satisfies P, whatever types the columns have. It is
complete for conjunctions of constraints on different columns (comparisons, IN, BETWEEN, prefixes, words, nulls) and so
for the language `diet`; where it is unsure it is false. (P2P-DIET 4.4.)
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import assert_never

import numpy as np
import pyarrow as pa

from m4cast.overlay.profiles.condition import (
    AllOf,
    Always,
    AnyOf,
    ColumnRef,
    Compare,
    Condition,
    IsNull,
    Kind,
    Like,
    Never,
    OneOf,
    Operator,
    Term,
    Words,
)
from m4cast.overlay.profiles.evaluation import ColumnValues
from m4cast.overlay.profiles.literals import Value, readings
from m4cast.overlay.profiles.patterns import Mask, after_prefix, shape_of
from m4cast.overlay.value import value

BOXES_MAX = 64
"""Boxes of one condition. Covers compares each with each. Decided."""
CONSTRAINTS_MAX = 2_048
"""Constraints in all boxes of one condition: memory, about 200 bytes each, of those that are kept."""
FEW_CONSTRAINTS, FEW_KEPT_MAX = 32, 16_384
"""Conditions with so few constraints, as the profiles of many clients are, whose boxes are kept: 100 MB at most."""
MANY_KEPT_MAX = 256
"""Other conditions whose boxes are kept."""
WORK_MAX = 4_096
"""Intersections that are tried before a condition counts as opaque: 3,600 took 15 ms. Measured."""
SPLIT_MAX = 64
"""Points of a box that are compared one by one with several boxes. Guess."""
_NOTHING: frozenset[Value] = frozenset()


@value
class Span:
    """A set of values of one kind. With `points` it is those and nothing else counts; they are already filtered."""

    low: Value | None = None
    high: Value | None = None
    is_low_open: bool = False
    is_high_open: bool = False
    points: frozenset[Value] | None = None
    excluded: frozenset[Value] = _NOTHING
    clauses: frozenset[frozenset[str]] = frozenset()
    """Words: of each set the text holds at least one."""
    residue: frozenset[Term] = frozenset()
    """Terms of the column that are only evaluated."""

    def accepts(self, each: Value) -> bool:
        """True if this value is in the set."""
        return bool(self.among((each,)))

    def among(self, values: Iterable[Value]) -> list[Value]:
        """Those of the values that are in the set. Cost: a pass over all of them per word and term."""
        if self.points is not None:
            return [each for each in values if each in self.points]
        near = [each for each in values if self.reaches(each) and each not in self.excluded]
        if not near or not (self.clauses or self.residue):
            return near
        column = ColumnValues(pa.array(near))
        tests = [column.words(tuple(sorted(clause)), is_any=True, is_negated=False) for clause in self.clauses]
        tests += [_residue_mask(column, term) for term in self.residue]
        passed = np.logical_and.reduce([test for test in tests if test is not None])
        return [each for each, is_passed in zip(near, passed.tolist(), strict=True) if is_passed]

    def reaches(self, each: Value) -> bool:
        """True if this value is inside the interval."""
        if self.low is not None and (each < self.low or (self.is_low_open and each == self.low)):  # type: ignore[operator]
            return False
        return self.high is None or each < self.high or (each == self.high and not self.is_high_open)  # type: ignore[operator]

    def meets(self, other: "Span") -> "Span | None":
        """The values that both have, None if there certainly are none."""
        if self.points is not None or other.points is not None:
            some, rest = (self, other) if self.points is not None else (other, self)
            assert some.points is not None
            return _of_points(rest.among(some.points))
        low, is_low_open = _later(self.low, self.is_low_open, other.low, other.is_low_open)
        high, is_high_open = _earlier(self.high, self.is_high_open, other.high, other.is_high_open)
        excluded = self.excluded | other.excluded
        both = Span(
            low=low,
            high=high,
            is_low_open=is_low_open or low in excluded,  # a <= 2 AND a != 2 is a < 2
            is_high_open=is_high_open or high in excluded,
            excluded=excluded,
            clauses=self.clauses | other.clauses,
            residue=self.residue | other.residue,
        )
        if low is None or high is None or low < high:  # type: ignore[operator]
            return both
        return _of_points([low] if low == high and both.accepts(low) else [])

    def contains(self, other: "Span") -> bool:
        """True if every value of the other is in this one; false if unsure."""
        if other.points is not None:
            return len(self.among(other.points)) == len(other.points)
        if self.points is not None:
            return False
        if _later(self.low, self.is_low_open, other.low, other.is_low_open) != (other.low, other.is_low_open):
            return False
        if _earlier(self.high, self.is_high_open, other.high, other.is_high_open) != (other.high, other.is_high_open):
            return False
        return (
            not other.among(self.excluded)
            and all(any(narrow <= clause for narrow in other.clauses) for clause in self.clauses)
            and self.residue <= other.residue
        )

    def overlaps(self, least: Value, greatest: Value | None) -> bool:
        """True if a value from `least` to `greatest` (None: without end) may be in the set."""
        if self.points is not None:
            return any(least <= each and (greatest is None or each <= greatest) for each in self.points)  # type: ignore[operator]
        if self.high is not None and (self.high < least or (self.is_high_open and self.high == least)):  # type: ignore[operator]
            return False
        if self.low is None or greatest is None:
            return True
        return self.low < greatest or (self.low == greatest and not self.is_low_open)  # type: ignore[operator]


FULL = Span()
BOTH = Span(points=frozenset({False, True}))


@value
class Constraint:
    """The values that a column may have, by kind, and whether it may be null."""

    spans: Mapping[Kind, Span]
    is_null: bool = False

    def meets(self, other: "Constraint") -> "Constraint | None":
        """The values that both allow; None if there certainly are none."""
        spans = {
            kind: both
            for kind, span in self.spans.items()
            if (theirs := other.spans.get(kind)) is not None and (both := span.meets(theirs)) is not None
        }
        is_null = self.is_null and other.is_null
        return Constraint(spans, is_null) if spans or is_null else None

    def contains(self, other: "Constraint") -> bool:
        """True if this allows everything that the other allows; false if unsure."""
        if other.is_null and not self.is_null:
            return False
        return all(
            (mine := self.spans.get(kind)) is not None and mine.contains(span) for kind, span in other.spans.items()
        )


Box = Mapping[ColumnRef, Constraint]
NOT_NULL = Constraint({kind: BOTH if kind is Kind.BOOLEAN else FULL for kind in Kind})


def covers(wide: Condition, narrow: Condition) -> bool:
    """True if every row that satisfies `narrow` satisfies `wide`: certainly, whatever types the columns have."""
    if wide == narrow:
        return True
    wide_boxes, narrow_boxes = boxes_of(wide), boxes_of(narrow)
    if wide_boxes is None:
        return narrow_boxes == ()
    if narrow_boxes is None:
        return any(not box for box in wide_boxes)
    return all(_is_covered(wide_boxes, box) for box in narrow_boxes)


def _is_covered(wide: tuple[Box, ...], narrow: Box) -> bool:
    if any(box_contains(box, narrow) for box in wide):
        return True
    return len(wide) > 1 and any(_is_covered_by_points(wide, narrow, column) for column in narrow)


def _is_covered_by_points(wide: tuple[Box, ...], narrow: Box, column: ColumnRef) -> bool:
    """True if each value of a column of few values is covered, perhaps by different boxes."""
    constraint = narrow[column]
    if any(span.points is None for span in constraint.spans.values()):
        return False
    if sum(len(span.points or ()) for span in constraint.spans.values()) > SPLIT_MAX:
        return False
    slices = [
        Constraint({kind: Span(points=frozenset({point}))})
        for kind, span in constraint.spans.items()
        for point in span.points or ()
    ]
    slices += [Constraint({}, is_null=True)] * constraint.is_null
    return all(any(box_contains(box, {**narrow, column: each}) for box in wide) for each in slices)


def box_contains(wide: Box, narrow: Box) -> bool:
    """True if every row of the narrow box is in the wide one; false if unsure."""
    return all(
        (theirs := narrow.get(column)) is not None and constraint.contains(theirs)
        for column, constraint in wide.items()
    )


# ---- from conditions to boxes


class _ManyBoxesError(Exception):
    """Too many to keep."""


def boxes_of(condition: Condition) -> tuple[Box, ...] | None:
    """The union of boxes that is the condition's TRUE set, None if it has too many (opaque)."""
    try:
        return _few_boxes(condition)
    except _ManyBoxesError:
        return _found_boxes(condition)


@lru_cache(maxsize=FEW_KEPT_MAX)
def _few_boxes(condition: Condition) -> tuple[Box, ...] | None:
    boxes = _found_boxes(condition)
    if sum(map(len, boxes or ())) > FEW_CONSTRAINTS:
        raise _ManyBoxesError
    return boxes


@lru_cache(maxsize=MANY_KEPT_MAX)
def _found_boxes(condition: Condition) -> tuple[Box, ...] | None:
    try:
        return tuple(_boxes(condition, [WORK_MAX]))
    except _OpaqueError:
        return None


def is_opaque(condition: Condition) -> bool:
    """True if the condition has too many boxes: then it covers only itself and is not indexed."""
    return boxes_of(condition) is None


def boxes_of_many(conditions: Iterable[Condition]) -> Iterator[tuple[Box, ...] | None]:
    """The boxes of each condition in turn, without keeping any."""
    return map(_found_boxes, conditions)


class _OpaqueError(Exception):
    """The condition has too many boxes."""


def _boxes(condition: Condition, work: list[int]) -> list[Box]:
    match condition:
        case Always():
            return [{}]
        case Never():
            return []
        case AnyOf(parts):
            return _bounded([box for part in parts for box in _boxes(part, work)])
        case AllOf(parts):
            joined: list[Box] = [{}]
            # Terms first: they narrow the boxes before alternatives multiply them.
            for part in sorted(parts, key=lambda part: isinstance(part, AnyOf)):
                pairs = product(joined, _boxes(part, work))
                joined = _bounded([both for left, right in pairs if (both := _met(left, right, work)) is not None])
            return joined
        case _:
            constraint = constraint_of(condition)
            return [{condition.column: constraint}] if constraint.spans or constraint.is_null else []


def _bounded(boxes: list[Box]) -> list[Box]:
    if len(boxes) > BOXES_MAX or sum(map(len, boxes)) > CONSTRAINTS_MAX:
        raise _OpaqueError
    return boxes


def _met(left: Box, right: Box, work: list[int]) -> Box | None:
    work[0] -= 1
    if work[0] < 0:
        raise _OpaqueError
    both = dict(left)
    for column, constraint in right.items():
        mine = both.get(column)
        narrowed = constraint if mine is None else mine.meets(constraint)
        if narrowed is None:
            return None
        both[column] = narrowed
    return both


def constraint_of(term: Term) -> Constraint:
    """The values of its column for which the term is true."""
    found = _constraint(term)
    if term.column.is_lowered and not isinstance(term, IsNull):
        return Constraint({kind: span for kind, span in found.spans.items() if kind is Kind.TEXT})
    return found


def _constraint(term: Term) -> Constraint:
    match term:
        case Compare(_, operator, literal):
            spans = {kind: _compared(kind, operator, reading) for kind, reading in readings(literal).items()}
            return Constraint({kind: span for kind, span in spans.items() if span is not None})
        case OneOf(_, literals, is_negated):
            meanings = [readings(literal) for literal in literals]
            if is_negated:
                kinds = [kind for kind in meanings[0] if all(kind in meaning for meaning in meanings)]
                excluded = {kind: frozenset(meaning[kind] for meaning in meanings) for kind in kinds}
                return Constraint({kind: Span(excluded=points) for kind, points in excluded.items()}).meets(
                    NOT_NULL
                ) or Constraint({})
            points: dict[Kind, set[Value]] = {}
            for meaning in meanings:
                for kind, reading in meaning.items():
                    points.setdefault(kind, set()).add(reading)
            return Constraint({kind: Span(points=frozenset(known)) for kind, known in points.items()})
        case IsNull(_, is_negated):
            return NOT_NULL if is_negated else Constraint({}, is_null=True)
        case Like():
            return Constraint({Kind.TEXT: _like_span(term, Kind.TEXT), Kind.BYTES: _like_span(term, Kind.BYTES)})
        case Words(_, words, is_any, is_negated):
            clauses = [frozenset(words)] if is_any else [frozenset({word}) for word in words]
            span = Span(residue=frozenset({term})) if is_negated else Span(clauses=frozenset(clauses))
            return Constraint({Kind.TEXT: span, Kind.BYTES: span})
        case _:
            assert_never(term)


def _compared(kind: Kind, operator: Operator, reading: Value) -> Span | None:
    match operator:
        case "=":
            span = Span(points=frozenset((reading,)))
        case "!=":
            span = Span(excluded=frozenset((reading,)))
        case "<" | "<=":
            span = Span(high=reading, is_high_open=operator == "<")
        case _:
            span = Span(low=reading, is_low_open=operator == ">")
    return span.meets(BOTH) if kind is Kind.BOOLEAN else span


def _like_span(term: Like, kind: Kind) -> Span:
    if term.is_negated:
        return Span(residue=frozenset({term}))
    shape = shape_of(term.pattern)
    text: str | bytes = shape.text if kind is Kind.TEXT else shape.text.encode()
    if shape.search == "exact":
        return Span(points=frozenset({text}))
    residue = frozenset[Term]() if shape.search == "prefix" else frozenset[Term]({term})
    if not text or shape.search in ("suffix", "substring"):
        return Span(residue=residue)
    end = after_prefix(text)
    return Span(low=text, high=end, is_high_open=end is not None, residue=residue)


def _residue_mask(column: ColumnValues, term: Term) -> Mask | None:
    match term:
        case Like(_, pattern, is_negated):
            return column.like(pattern, is_negated)
        case Words(_, words, is_any, is_negated):
            return column.words(words, is_any, is_negated)
        case _:
            raise AssertionError(f"no residue has the term {term}")


def _of_points(points: Iterable[Value]) -> Span | None:
    found = frozenset(points)
    return Span(points=found) if found else None


def _later(low: Value | None, is_open: bool, other: Value | None, is_other_open: bool) -> tuple[Value | None, bool]:
    """The lower bound that is passed by fewer values."""
    if low is None or other is None:
        return (other, is_other_open) if low is None else (low, is_open)
    if low == other:
        return low, is_open or is_other_open
    return (low, is_open) if low > other else (other, is_other_open)  # type: ignore[operator]


def _earlier(high: Value | None, is_open: bool, other: Value | None, is_other_open: bool) -> tuple[Value | None, bool]:
    """The upper bound that is passed by fewer values."""
    if high is None or other is None:
        return (other, is_other_open) if high is None else (high, is_open)
    if high == other:
        return high, is_open or is_other_open
    return (high, is_open) if high < other else (other, is_other_open)  # type: ignore[operator]
