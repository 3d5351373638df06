"""Summaries: what a batch's routed columns hold, in at most 8 KB, so that most batches need not be opened.

Of each column: least and greatest value, how many nulls, and all distinct values if they are few. `may_match` is false
only if no row of the batch can satisfy the condition; any doubt is a match: a column that is not summarised, a range
that is not known, a version that is newer.

Rules that keep it so:
- NaN is marked and takes no part in least and greatest.
- Long texts are cut to `TEXT_BYTES_MAX`. A cut least value is still a lower bound; a cut greatest one is marked and
  stands for every text that begins with it.
- A column that the batch lacks is null in every row, and is summarised as that.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, isnan
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from m4cast.overlay.profiles.boxes import Box, Constraint, Span, boxes_of, constraint_of
from m4cast.overlay.profiles.condition import AllOf, Always, AnyOf, ColumnRef, Condition, Kind, Never
from m4cast.overlay.profiles.evaluation import column_of, kind_of, unit_of
from m4cast.overlay.profiles.literals import FLOAT_NAN, Value, float_value
from m4cast.overlay.profiles.patterns import after_prefix, lowered_text
from m4cast.overlay.value import value

VALUES_MAX = 32
"""Distinct values that are listed. More: fewer false matches, more bytes. Guess."""
TEXT_BYTES_MAX = 64
"""Longest text in a summary. Longer: fewer false matches among texts with long common beginnings. Guess."""
COLUMNS_MAX = 64
"""Most columns of a summary. Each costs 15-130 us per batch of 10,000 rows. Guess."""
RESIDUE_MAX = 32
"""Patterns on one column that listed values are held against; with more, they count as matching. Guess."""
_SAMPLE_ROWS = 256
_SAMPLE_NUMBERS = 64
_NUMBERS = (Kind.EXACT, Kind.FLOAT, Kind.MOMENT, Kind.CLOCK)


@value
class ColumnSummary:
    """One column of a batch. Without a kind it is null in every row; without `least` its range is not known."""

    kind: Kind | None
    null_count: int
    least: Value | None = None
    greatest: Value | None = None
    values: frozenset[Value] | None = None
    """All distinct values but null and NaN."""
    has_nan: bool = False
    is_least_cut: bool = False
    is_greatest_cut: bool = False


@value
class Summary:
    """The routed columns of a batch, by path."""

    rows: int
    columns: Mapping[tuple[str, ...], ColumnSummary]


# ---- making


def summarise(batch: pa.RecordBatch, paths: Iterable[tuple[str, ...]]) -> Summary:
    """The summary of these columns. Cost at 10,000 rows: 15 us per column of numbers, 90-130 us of texts."""
    chosen = list(dict.fromkeys(paths))[:COLUMNS_MAX]
    return Summary(batch.num_rows, {path: _column_summary(column_of(batch, path), batch.num_rows) for path in chosen})


def _column_summary(array: pa.Array | None, rows: int) -> ColumnSummary:
    if array is None or array.null_count == rows:
        return ColumnSummary(None, rows)
    kind, nulls = kind_of(array.type), array.null_count
    if kind is Kind.OTHER:
        return ColumnSummary(kind, nulls)
    if kind in _NUMBERS and not types.is_decimal(array.type):
        return _numbers_summary(array.drop_null() if nulls else array, kind, nulls)
    distinct = _distinct(array)
    if distinct is None:
        ends = pc.min_max(array)
        first, last = _plain_value(ends["min"].as_py()), _plain_value(ends["max"].as_py())
    else:
        first, last = min(distinct), max(distinct)
    least, is_least_cut = _cut(first)
    greatest, is_greatest_cut = _cut(last)
    is_whole = distinct is not None and not any(_cut(each)[1] for each in distinct)
    return ColumnSummary(
        kind=kind,
        null_count=nulls,
        least=least,
        greatest=greatest,
        values=distinct if is_whole else None,
        is_least_cut=is_least_cut,
        is_greatest_cut=is_greatest_cut,
    )


def _numbers_summary(array: pa.Array, kind: Kind, nulls: int) -> ColumnSummary:
    """Summarise integers, floats and times without nulls, by numpy: on few rows, Arrow's calls take several times as
    long."""
    if kind is Kind.FLOAT:
        numbers = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    elif kind is Kind.EXACT:
        numbers = array.to_numpy(zero_copy_only=False)
    else:
        numbers = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32()).to_numpy()
    least, greatest = numbers.min().item(), numbers.max().item()
    has_nan = kind is Kind.FLOAT and isnan(greatest)  # of any NaN, numpy makes the greatest and the least one
    if has_nan:
        numbers = numbers[~np.isnan(numbers)]
        if not len(numbers):
            return ColumnSummary(kind, nulls, values=frozenset(), has_nan=True)
        least, greatest = numbers.min().item(), numbers.max().item()
    unit = unit_of(array.type) if kind in (Kind.MOMENT, Kind.CLOCK) else Fraction(1)
    return ColumnSummary(
        kind=kind,
        null_count=nulls,
        least=_number_value(least, kind, unit, floor),
        greatest=_number_value(greatest, kind, unit, ceil),
        values=_few_numbers(numbers, kind, unit),
        has_nan=has_nan,
    )


def _few_numbers(numbers: npt.NDArray[Any], kind: Kind, unit: Fraction) -> frozenset[Value] | None:
    """The distinct values, if they are few: a sample tells before all rows are looked at."""
    if unit.denominator > 1:
        return None  # finer than what values are counted in
    if len(set(numbers[:: len(numbers) // _SAMPLE_NUMBERS or 1].tolist())) > VALUES_MAX:
        return None
    distinct = pc.unique(pa.array(numbers))
    if len(distinct) > VALUES_MAX + 1:  # zero may be in it twice, with either sign
        return None
    found = frozenset(_number_value(each, kind, unit, floor) for each in distinct.to_pylist())
    return found if len(found) <= VALUES_MAX else None


def _number_value(number: float, kind: Kind, unit: Fraction, rounded: Callable[[Fraction], int]) -> Value:
    """The number as filters compare it; a moment finer than a microsecond is rounded outwards."""
    if kind is Kind.FLOAT:
        return float_value(number)
    if unit.denominator > 1:
        return rounded(Fraction(number) * unit)
    return int(number) * unit.numerator


def _distinct(array: pa.Array) -> frozenset[Value] | None:
    """The distinct values but null, if they are few: a sample tells before all rows are looked at."""
    if len(pc.unique(array.slice(0, _SAMPLE_ROWS))) > VALUES_MAX + 1:
        return None
    distinct = pc.unique(array)
    if len(distinct) > VALUES_MAX + 1:  # null may be among them
        return None
    found = frozenset(_plain_value(each) for each in distinct.to_pylist() if each is not None)
    return found if len(found) <= VALUES_MAX else None


def _plain_value(content: Value) -> Value:
    """The value as filters compare it."""
    if isinstance(content, Decimal):
        whole = content.to_integral_value()
        return int(whole) if whole == content else content
    return content


def _cut(content: Value) -> tuple[Value, bool]:
    """A text of at most so many bytes, and whether it was cut."""
    encoded = content.encode() if isinstance(content, str) else content
    if not isinstance(encoded, bytes) or len(encoded) <= TEXT_BYTES_MAX:
        return content, False
    cut = encoded[:TEXT_BYTES_MAX]
    return cut.decode(errors="ignore") if isinstance(content, str) else cut, True


# ---- asking


def may_match(condition: Condition, summary: Summary) -> bool:
    """True if a row of the batch may satisfy the condition: false only if certainly none does."""
    if not summary.rows:
        return False
    boxes = boxes_of(condition)
    if boxes is None:
        return _may_tree_match(condition, summary)
    return any(may_box_match(box, summary) for box in boxes)


def _may_tree_match(condition: Condition, summary: Summary) -> bool:
    match condition:
        case AllOf(parts):
            return all(_may_tree_match(part, summary) for part in parts)
        case AnyOf(parts):
            return any(_may_tree_match(part, summary) for part in parts)
        case Always():
            return True
        case Never():
            return False
        case _:
            return _may_column_match(condition.column, constraint_of(condition), summary)


def may_box_match(box: Box, summary: Summary) -> bool:
    """True if a row may be in the box."""
    return all(_may_column_match(column, constraint, summary) for column, constraint in box.items())


def _may_column_match(column: ColumnRef, constraint: Constraint, summary: Summary) -> bool:
    known = summary.columns.get(column.path)
    if known is None or (constraint.is_null and known.null_count):
        return True
    if known.kind is None:
        return False
    span = constraint.spans.get(known.kind)
    if span is None:
        return False
    if len(span.residue) > RESIDUE_MAX:
        span = replace(span, residue=frozenset())
    if column.is_lowered:
        if known.kind is not Kind.TEXT or known.values is None:
            return True
        return bool(span.among(lowered_text(str(each)) for each in known.values))
    return _may_span_match(span, known)


def _may_span_match(span: Span, known: ColumnSummary) -> bool:
    if known.has_nan and span.accepts(FLOAT_NAN):
        return True
    if known.values is not None:
        return bool(span.among(known.values))
    if known.least is None or known.greatest is None:
        return True
    greatest: Value | None = known.greatest
    if known.is_greatest_cut:
        assert isinstance(greatest, str | bytes)
        greatest = after_prefix(greatest)
    return span.overlaps(known.least, greatest)
