"""A summary never hides a matching row, and rules out what it can."""

from datetime import datetime
from random import Random

import pyarrow as pa
import pytest

from m4cast.overlay.profiles.condition import text_of
from m4cast.overlay.profiles.evaluation import mask
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.profiles.summary import (
    COLUMNS_MAX,
    RESIDUE_MAX,
    TEXT_BYTES_MAX,
    VALUES_MAX,
    Summary,
    may_match,
    summarise,
)
from m4cast.overlay.profiles.summary_bytes import decode, encode
from tests.overlay.profiles.profile_parts import PATHS, random_batch, random_condition


@pytest.mark.parametrize("seed", range(10))
def test_a_batch_with_a_matching_row_may_match(seed: int) -> None:
    random = Random(seed)
    ruled_out = 0
    for _ in range(12):
        batch = random_batch(random, random.choice([1, 3, 60]))
        whole = summarise(batch, PATHS)
        some = Summary(whole.rows, {path: whole.columns[path] for path in random.sample(PATHS, 12)})
        sent = decode(encode(whole))
        assert sent is not None
        for _ in range(25):
            condition = random_condition(random, random.choice([0, 0, 1, 2]))
            is_there = bool(mask(condition, batch).any())
            for summary in (whole, some, sent):
                assert may_match(condition, summary) or not is_there, f"seed {seed}: {text_of(condition)}"
            ruled_out += not may_match(condition, whole)
    assert ruled_out > 50, "a summary that rules nothing out is no use"


def test_a_summary_of_one_row_is_exact_for_conjunctions() -> None:
    random = Random(5)
    for _ in range(300):
        batch = random_batch(random, 1)
        condition = random_condition(random, 0)
        if any(term in text_of(condition) for term in ("`s`", "`dur`", "`st`", "`l`", "`m`")):
            continue  # long texts are cut; kinds that have no values are either null or not
        assert may_match(condition, summarise(batch, PATHS)) is bool(mask(condition, batch).any()), text_of(condition)


def may(where: str, *, routed: tuple[str, ...] = ("a",), **columns: object) -> bool:
    batch = pa.record_batch(columns)
    return may_match(parse(where).condition, summarise(batch, [(name,) for name in routed]))


def test_what_least_greatest_values_and_nulls_rule_out() -> None:
    many = list(range(100))
    assert not may("a > 99", a=many) and may("a >= 99", a=many)
    assert not may("a < 0", a=many) and may("a <= 0", a=many)
    assert may("a = 50.5", a=many), "in range, and too many values to list"
    assert not may("a = 3", a=[1, 5]) and may("a = 5", a=[1, 5])
    assert not may("a IS NULL", a=[1, 5]) and may("a IS NULL", a=[1, None])
    assert not may("a IS NOT NULL", a=pa.nulls(2)) and not may("missing = 1", routed=("missing",), a=[1])
    assert not may("a > 3 AND a < 2", a=[1, 5])
    assert not may("a = 1 AND b = 1", routed=("a", "b"), a=[1, 5], b=[2, 2])
    assert may("c = 1", a=[1, 5]), "a column that is not summarised may hold anything"
    assert not may("a = 'x'", a=[1, 5]), "no number is x"
    assert not may("a = 1", a=pa.array([], pa.int64()))


def test_nan_is_outside_the_range() -> None:
    assert may("a > 5", a=[1.0, float("nan")]) and not may("a > 5", a=[1.0, 2.0])
    assert may("a = double('NaN')", a=[float("nan")]) and not may("a < 5", a=[float("nan")])

    many = [float(each) for each in range(100)]
    assert may("a = 50", a=[*many, float("nan")]) and may("a > 100", a=[*many, None, float("nan")])
    assert not may("a < 0", a=[*many, float("nan")]) and not may("a > 100", a=many)


@pytest.mark.parametrize(
    "type_",
    [
        *(pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
        *(pa.decimal128(38, 2), pa.string(), pa.binary(), pa.timestamp("ms"), pa.timestamp("us", "UTC")),
        *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us")),
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [VALUES_MAX, VALUES_MAX + 1, 100])
def test_a_summary_of_many_rows_is_that_of_its_single_rows(type_: pa.DataType, count: int) -> None:
    """The values in any order, with nulls, in the middle of an array."""
    numbers = [*range(1, count + 1), 1, 1]
    Random(count).shuffle(numbers)
    plain = pa.array(numbers, pa.int32() if type_ in (pa.date32(), pa.time32("ms")) else pa.int64())
    if type_ == pa.binary():
        plain = plain.cast(pa.string())
    if type_ == pa.date64():
        plain = plain.cast(pa.int32()).cast(pa.date32())
    nulls = pa.nulls(3, type_)
    batch = pa.record_batch({"a": pa.concat_arrays([nulls, plain.cast(type_), nulls])}).slice(3)
    whole = summarise(batch, [("a",)]).columns[("a",)]
    rows = [summarise(batch.slice(at, 1), [("a",)]).columns[("a",)] for at in range(len(numbers))]
    values = frozenset(each for row in rows for each in row.values or ())
    assert len(values) == count and whole.null_count == 3
    assert (whole.least, whole.greatest) == (min(values), max(values))
    assert whole.values == (values if count <= VALUES_MAX else None)


@pytest.mark.parametrize("count", [VALUES_MAX, VALUES_MAX + 1, 100])
def test_values_that_a_sample_misses_are_counted(count: int) -> None:
    numbers = [0] * 20_000
    numbers[1 : 2 * count - 1 : 2] = range(1, count)  # the sample takes every 312th
    summary = summarise(pa.record_batch({"a": numbers}), [("a",)]).columns[("a",)]
    assert (summary.least, summary.greatest) == (0, count - 1)
    assert summary.values == (frozenset(range(count)) if count <= VALUES_MAX else None)


def test_cut_texts_are_bounds_all_the_same() -> None:
    long = "m" * (TEXT_BYTES_MAX + 5)
    column = summarise(pa.record_batch({"a": [long, long + "z"]}), [("a",)]).columns["a",]
    assert column.is_least_cut and column.is_greatest_cut and column.values is None
    assert may(f"a = '{long}z'", a=[long, long + "z"]) and not may("a > 'n'", a=[long, long + "z"])
    assert may(f"a > '{'m' * TEXT_BYTES_MAX}a'", a=[long])
    accents = "é" * TEXT_BYTES_MAX  # cut in the middle of a character
    assert may(f"a = '{accents}'", a=[accents, accents + "x"])


@pytest.mark.parametrize("type_", [pa.string(), pa.binary()])
def test_texts_are_cut_beyond_so_many_bytes(type_: pa.DataType) -> None:
    for length, is_cut in ((TEXT_BYTES_MAX, False), (TEXT_BYTES_MAX + 1, True)):
        found = summarise(pa.record_batch({"a": pa.array(["m" * length]).cast(type_)}), [("a",)]).columns["a",]
        assert (found.is_least_cut, found.is_greatest_cut, found.values is None) == (is_cut, is_cut, is_cut)


def test_small_sets_of_values_are_listed_at_most_so_many() -> None:
    at_limit = pa.record_batch({"a": list(range(VALUES_MAX))})
    above = pa.record_batch({"a": list(range(VALUES_MAX + 1))})
    assert len(summarise(at_limit, [("a",)]).columns["a",].values or ()) == VALUES_MAX
    assert summarise(above, [("a",)]).columns["a",].values is None
    late = pa.record_batch({"a": [1] * 300 + list(range(100))})
    assert summarise(late, [("a",)]).columns["a",].values is None


def test_a_summary_has_at_most_so_many_columns() -> None:
    batch = pa.record_batch({f"c{at}": [at] for at in range(COLUMNS_MAX + 1)})
    assert len(summarise(batch, [(name,) for name in batch.schema.names]).columns) == COLUMNS_MAX


def test_moments_finer_than_a_microsecond_are_rounded_outwards() -> None:
    column = pa.array([1_500, 2_500], pa.timestamp("ns"))
    found = summarise(pa.record_batch({"a": column}), [("a",)]).columns["a",]
    assert (found.least, found.greatest, found.values) == (1, 3, None)


def test_an_opaque_condition_is_still_ruled_out_part_by_part() -> None:
    opaque = " AND ".join(f"(a > {at} OR b{at} = 2)" for at in range(7))
    columns = {f"b{at}": [1] for at in range(7)}
    routed = ("a", *columns)
    assert not may(opaque, routed=routed, a=[3], **columns) and may(opaque, routed=routed, a=[9], **columns)


def test_many_patterns_on_one_column_count_as_matching() -> None:
    few = " AND ".join(f"a NOT LIKE '%{at}x%'" for at in range(RESIDUE_MAX - 1)) + " AND a LIKE '%z%'"
    many = few + " AND a NOT LIKE '%y%'"
    assert not may(few, a=["abc"]) and may(many, a=["abc"])


def test_dates_and_timestamps_share_one_axis() -> None:
    assert not may("a < '2026-01-01'", a=[datetime(2026, 1, 1, 12)]) and may(
        "a > '2026-01-01'", a=[datetime(2026, 1, 1, 12)]
    )
