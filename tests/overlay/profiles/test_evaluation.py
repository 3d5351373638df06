"""Masks are exact: against a plain evaluator on columns of every type, and case by case where types meet."""

from datetime import UTC
from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from m4cast.overlay.profiles.condition import Term, text_of
from m4cast.overlay.profiles.evaluation import BatchTerms, mask
from m4cast.overlay.profiles.patterns import Mask
from m4cast.overlay.profiles.profile import parse
from tests.overlay.profiles import reference
from tests.overlay.profiles.profile_parts import COLUMNS, random_batch, random_condition, random_term


@pytest.mark.parametrize("seed", range(8))
def test_masks_equal_a_plain_evaluator(seed: int) -> None:
    random = Random(seed)
    batch = random_batch(random, 40)
    terms = BatchTerms(batch)
    for _ in range(60):
        condition = random_condition(random)
        expected = reference.true_rows(condition, batch)
        assert terms.mask(condition).tolist() == expected, f"seed {seed}: {text_of(condition)}"


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_with_every_literal(name: str) -> None:
    random = Random(name)
    batch = random_batch(random, 60, (name,))
    for _ in range(80):
        term = random_term(random, [(name,)])
        assert mask(term, batch).tolist() == reference.true_rows(term, batch), text_of(term)


def rows_of(where: str, **columns: object) -> list[int]:
    batch = pa.record_batch(columns)
    found: list[int] = np.flatnonzero(mask(parse(where).condition, batch)).tolist()
    return found


def test_a_missing_column_is_null() -> None:
    assert rows_of("b IS NULL", a=[1, 2]) == [0, 1]
    assert rows_of("b = 1 OR b != 1 OR b LIKE '%'", a=[1, 2]) == []
    assert rows_of("a.b IS NULL", a=[1, 2]) == [0, 1]


def test_only_true_passes() -> None:
    values = [1, None, 3]
    assert rows_of("a > 2", a=values) == [2]
    assert rows_of("NOT (a > 2)", a=values) == [0]
    assert rows_of("NOT (a > 2 AND c = 1)", a=values) == [0], "FALSE AND UNKNOWN is FALSE"
    assert rows_of("a > 2 OR c = 1", a=values) == [2]
    assert rows_of("a NOT IN (1, NULL)", a=values) == []
    assert rows_of("a IN (1, NULL)", a=values) == [0]
    assert rows_of("NOT (a <=> 1)", a=values) == [1, 2]
    assert rows_of("a = NULL OR a != NULL", a=values) == []


def test_integers_beyond_doubles_are_exact() -> None:
    values = pa.array([2**53, 2**53 + 1, None])
    assert rows_of("a = 9007199254740993", a=values) == [1]
    assert rows_of("a > 9007199254740992.5", a=values) == [1]
    assert rows_of("a < 1e300 AND a > -1e300", a=values) == [0, 1]
    assert rows_of("a = 9007199254740993", a=values.cast(pa.float64(), safe=False)) == [0, 1], (
        "as doubles they are equal"
    )


def test_decimals_are_compared_exactly_and_floats_as_doubles() -> None:
    assert rows_of("a = 0.1", a=[Decimal("0.1"), Decimal("0.2")]) == [0]
    assert rows_of("a = 0.10000000000000000001", a=[Decimal("0.1")]) == []
    assert rows_of("a = 0.10000000000000000001", a=[0.1]) == [0]
    assert rows_of("a = 0.1", a=pa.array([0.1], pa.float32())) == [], "0.1 as a float is not 0.1 as a double"
    assert rows_of("a = 0.1F", a=pa.array([0.1], pa.float32())) == [0]
    assert rows_of("a = 0.1F", a=[0.1]) == []


def test_nan_equals_itself_and_is_greatest() -> None:
    values = [1.0, float("nan"), float("inf"), None]
    assert rows_of("a = double('NaN')", a=values) == [1]
    assert rows_of("a > 5", a=values) == [1, 2]
    assert rows_of("a > double('Infinity')", a=values) == [1]
    assert rows_of("a < double('NaN')", a=values) == [0, 2]
    assert rows_of("a < double('NaN')", a=[1, 2]) == [0, 1]


def test_times_are_moments_in_utc() -> None:
    from datetime import date, datetime, timedelta, timezone

    zoned = [datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), datetime(2026, 1, 1, 1, tzinfo=UTC)]
    assert rows_of("a = TIMESTAMP '2026-01-01 00:00:00'", a=pa.array(zoned, pa.timestamp("us", "UTC"))) == [0]
    assert rows_of("a > '2026-01-01 02:00+02:00'", a=pa.array(zoned, pa.timestamp("us", "UTC"))) == [1]
    days = [date(2025, 12, 31), date(2026, 1, 1)]
    assert rows_of("a < TIMESTAMP '2026-01-01 00:00:01'", a=days) == [0, 1]
    assert rows_of("a >= TIMESTAMP '2025-12-31 00:00:01'", a=days) == [1]
    assert rows_of("a = '2026-01-01 12:00:00'", a=days) == []


def test_what_ansi_mode_calls_an_error_is_no_match_and_counted() -> None:
    batch = pa.record_batch({"a": [1, 2, None], "s": ["1", "x", None]})
    terms = BatchTerms(batch)
    assert not terms.mask(parse("a = 'x'").condition).any() and terms.errors == 2
    assert not terms.mask(parse("a LIKE '1%'").condition).any() and terms.errors == 4
    assert not terms.mask(parse("s > 0").condition).any() and terms.errors == 6
    assert terms.mask(parse("a IN (1, 'x')").condition).tolist() == [True, False, False] and terms.errors == 7
    assert not terms.mask(parse("a NOT IN (1, 'x')").condition).any() and terms.errors == 9
    assert terms.mask(parse("a = '1'").condition).tolist() == [True, False, False] and terms.errors == 9


def test_each_distinct_term_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[Term] = []
    evaluate = BatchTerms._term

    def counted(self: BatchTerms, term: Term) -> Mask:
        evaluated.append(term)
        return evaluate(self, term)

    monkeypatch.setattr(BatchTerms, "_term", counted)
    terms = BatchTerms(pa.record_batch({"a": [1, 2], "b": [1, 2]}))
    for where in ("a > 0 AND b = 1", "a > 0 AND b = 2", "b = 1 OR a > 0"):
        terms.mask(parse(where).condition)
    assert len(evaluated) == 3


def test_columns_of_folded_types_are_read() -> None:
    values = ["a", "b", None, "a"]
    for type_ in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert rows_of("s = 'a' AND s LIKE 'a%'", s=pa.array(values).cast(type_)) == [0, 3]
    assert rows_of("s = 'a'", s=pa.compute.run_end_encode(pa.array(values))) == [0, 3]
    assert rows_of("y = X'61'", y=pa.array([b"a"], pa.large_binary())) == [0]


def test_members_of_a_null_struct_are_null() -> None:
    structs = pa.array([{"x": 1}, None, {"x": None}], pa.struct([("x", pa.int64())]))
    assert rows_of("a.x IS NULL", a=structs) == [1, 2]
    assert rows_of("a.x = 1", a=structs) == [0]
    assert rows_of("a.x = 1", a=structs.slice(1)) == []


def test_a_slice_of_a_batch_is_read_from_its_offset() -> None:
    batch = random_batch(Random(3), 30)
    random = Random(4)
    for _ in range(200):
        condition = random_condition(random)
        assert mask(condition, batch.slice(7, 11)).tolist() == mask(condition, batch)[7:18].tolist(), text_of(condition)


def test_a_batch_without_rows_has_no_matches() -> None:
    batch = random_batch(Random(0), 0)
    random = Random(1)
    for _ in range(100):
        assert mask(random_condition(random), batch).tolist() == []
