"""Lanes keep the order of values, whatever the type."""

from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from m4cast.overlay.profiles.boxes import boxes_of
from m4cast.overlay.profiles.condition import ColumnRef, Compare
from m4cast.overlay.profiles.evaluation import ColumnValues, kind_of, mask
from m4cast.overlay.profiles.lanes import (
    DENSE_FACTOR,
    DENSE_MIN,
    SHORT_BYTES_MAX,
    Codes,
    Places,
    ShortTexts,
    Texts,
    has_lane,
    interval_in,
    lane_of,
    point_in,
)
from tests.overlay.profiles.profile_parts import COLUMNS, LITERALS, OPERATORS

WITH_LANE = [name for name, (type_, _) in COLUMNS.items() if has_lane(type_)]


@pytest.mark.parametrize("name", WITH_LANE)
def test_intervals_and_points_in_a_lane_equal_masks(name: str) -> None:
    type_, values = COLUMNS[name]
    batch = pa.record_batch({name: pa.array(values, type_)})
    column = ColumnValues(
        batch.column(0).cast(pa.decimal128(7, 2)) if pa.types.is_decimal32(type_) else batch.column(0)
    )
    lane, type_ = lane_of(column), column.array.type
    tested = 0
    for literal in LITERALS:
        for operator in OPERATORS:
            term = Compare(ColumnRef((name,)), operator, literal)
            boxes = boxes_of(term)
            assert boxes is not None
            span = None if not boxes else boxes[0][term.column].spans.get(kind_of(type_))
            if span is None or span.excluded:
                continue
            if span.points is not None:
                found = np.isin(lane, [at for each in span.points if (at := point_in(type_, each)) is not None])
            else:
                low, high = interval_in(type_, span)
                found = np.array([low <= at <= high for at in lane.tolist()])
            assert found.tolist() == mask(term, batch).tolist(), f"{operator} {literal}"
            tested += 1
    assert tested > 5


def test_types_without_a_lane() -> None:
    for type_ in (pa.string(), pa.binary(), pa.decimal128(19, 0), pa.duration("us"), pa.list_(pa.int64()), pa.null()):
        assert not has_lane(type_)
    assert has_lane(pa.decimal128(18, 4))


def test_decimals_of_a_slice_begin_at_its_offset() -> None:
    values = pa.array([Decimal(-1), None, Decimal("2.5"), Decimal(7)], pa.decimal128(18, 1)).slice(2)
    assert lane_of(ColumnValues(values)).tolist() == [25, 70]


@pytest.mark.parametrize("reach", [10, DENSE_MIN + DENSE_FACTOR * 8, DENSE_MIN + DENSE_FACTOR * 8 + 1, 2**40])
def test_places_by_table_and_by_search(reach: int) -> None:
    random = Random(reach)
    numbers = np.array([-5, -5 + reach - 1, *random.sample(range(-4, -5 + reach - 1), 6)])
    wanted = np.array([*numbers, -(2**63), 2**63 - 1, -6, -5 + reach])
    numbers = np.array(random.sample(numbers.tolist(), len(numbers)))
    expected = [numbers.tolist().index(each) if each in numbers else -1 for each in wanted.tolist()]
    assert Places(numbers).of(wanted).tolist() == expected


@pytest.mark.parametrize("longest", [3, 8, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1])
@pytest.mark.parametrize("type_", [pa.string(), pa.binary()])
def test_texts_are_found_by_value(longest: int, type_: pa.DataType) -> None:
    random = Random(longest)
    texts = [
        *("x" * longest, "a", "", "é", "a\0", "ab", "x" * (longest - 1)),
        *(random.randbytes(4).hex() for _ in range(30)),
    ]
    content = [text.encode() if type_ == pa.binary() else text for text in texts if len(text.encode()) <= longest]
    codes = Codes(is_lane=False)
    for each in content[::2]:
        codes.code(each)
    rows = pa.array([*content, None, *random.choices([*content, None], k=40)], type_)
    for column in (rows, rows.slice(3, 20), rows.slice(len(rows))):
        expected = [codes.known.get(each, -1) for each in column.to_pylist()]
        assert codes.of_texts(Texts(column)).tolist() == expected
    assert ShortTexts(codes.known).is_usable is (longest <= SHORT_BYTES_MAX)


def test_no_text_is_found_among_none() -> None:
    assert Codes(is_lane=False).of_texts(Texts(pa.array(["", "a", None]))).tolist() == [-1, -1, -1]


def test_places_among_nothing() -> None:
    assert Places(np.empty(0, np.int64)).of(np.array([0, 1, -1])).tolist() == [-1, -1, -1]
