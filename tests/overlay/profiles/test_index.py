"""The index finds exactly the pairs that one-by-one evaluation finds, while profiles come and go."""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.profiles.boxes import Box, boxes_of_many
from m4cast.overlay.profiles.condition import ColumnRef, Compare, Condition, all_of, text_of
from m4cast.overlay.profiles.evaluation import mask
from m4cast.overlay.profiles.index import PLANS_MAX, ProfileIndex
from m4cast.overlay.profiles.literals import number, text
from m4cast.overlay.profiles.profile import Profile, parse, profile_of
from m4cast.overlay.profiles.summary import may_match, summarise
from tests.overlay.profiles.profile_parts import COLUMNS, LITERALS, PATHS, random_batch, random_condition


def expected_pairs(conditions: dict[int, Condition], batch: pa.RecordBatch) -> set[tuple[int, int]]:
    return {(key, row) for key, each in conditions.items() for row in np.flatnonzero(mask(each, batch)).tolist()}


def found_pairs(index: ProfileIndex[int], batch: pa.RecordBatch, with_summary: bool = False) -> set[tuple[int, int]]:
    matches = index.match(batch, summarise(batch, PATHS) if with_summary else None)
    pairs = [(key, row) for key, rows in matches.by_key() for row in rows.tolist()]
    assert len(pairs) == len(set(pairs)) == len(matches.rows), "a pair was found twice"
    return set(pairs)


@pytest.mark.parametrize("seed", range(8))
def test_the_index_equals_one_by_one_evaluation(seed: int) -> None:
    random = Random(seed)
    index: ProfileIndex[int] = ProfileIndex()
    conditions: dict[int, Condition] = {}
    names = tuple(random.sample(sorted(COLUMNS), 10))
    for step in range(10):
        for key in range(step * 12, step * 12 + 12):
            conditions[key] = random_condition(random, random.choice([0, 1, 1, 2]))
            index.add(key, profile_of(conditions[key]))
        for key in random.sample(sorted(conditions), 4):
            index.remove(key)
            del conditions[key]
        batch = random_batch(random, random.choice([0, 1, 30]), names if step % 2 else tuple(COLUMNS))
        assert len(index) == len(conditions)
        assert found_pairs(index, batch, with_summary=step % 3 == 0) == expected_pairs(conditions, batch)


@pytest.mark.parametrize("seed", range(6))
def test_candidates_hold_every_profile_that_matches(seed: int) -> None:
    random = Random(seed)
    index: ProfileIndex[int] = ProfileIndex()
    conditions = {key: random_condition(random, random.choice([0, 1, 2])) for key in range(150)}
    for key, condition in conditions.items():
        index.add(key, profile_of(condition))
    for _ in range(6):
        batch = random_batch(random, random.choice([1, 4, 40]))
        summary = summarise(batch, random.sample(PATHS, 20))
        candidates = index.candidates(summary, batch.schema)
        matching = {key for key, _ in expected_pairs(conditions, batch)}
        assert matching <= set(candidates)
        assert len(candidates) < len(conditions), "nothing was ruled out"
        by_one = [key for key, condition in conditions.items() if may_match(condition, summary)]
        assert len(candidates) <= len(by_one) + 40


def conjunctions(random: Random, count: int) -> dict[int, Condition]:
    """Equalities and intervals on a few columns, as subscribers write them."""
    found = {}
    for key in range(count):
        parts: list[Condition] = []
        if random.random() < 0.7:
            parts.append(Compare(ColumnRef(("k",)), "=", text(f"k{random.randrange(20)}")))
        if random.random() < 0.5:
            parts.append(Compare(ColumnRef(("n",)), "=", number(str(random.randrange(10)))))
        if random.random() < 0.6 or not parts:
            low = random.randrange(100)
            parts += [
                Compare(ColumnRef(("a",)), ">", number(str(low))),
                Compare(ColumnRef(("a",)), "<=", number(str(low + 9))),
            ]
        found[key] = all_of(parts)
    return found


def subscribers_batch(random: Random, rows: int, amount: pa.DataType) -> pa.RecordBatch:
    amounts = pa.array([random.choice([None, *map(Decimal, range(120))]) for _ in range(rows)], pa.decimal128(9, 0))
    return pa.record_batch(
        {
            "k": [random.choice([None, *(f"k{at}" for at in range(25))]) for _ in range(rows)],
            "n": [random.choice([None, *range(12)]) for _ in range(rows)],
            "a": amounts.cast(amount),
        }
    )


@pytest.mark.parametrize("amount", [pa.int64(), pa.float64(), pa.uint64(), pa.decimal128(9, 0), pa.decimal128(30, 0)])
def test_equalities_and_intervals_of_many_profiles(amount: pa.DataType) -> None:
    random = Random(7)
    conditions = conjunctions(random, 600)
    index: ProfileIndex[int] = ProfileIndex()
    for key, condition in conditions.items():
        index.add(key, profile_of(condition))
    for rows in (0, 1, 200):
        batch = subscribers_batch(random, rows, amount)
        assert found_pairs(index, batch) == expected_pairs(conditions, batch)
        assert found_pairs(index, batch.slice(rows // 2)) == expected_pairs(conditions, batch.slice(rows // 2))


def test_a_change_costs_no_rebuild_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def counted(conditions: Iterable[Condition]) -> Iterator[tuple[Box, ...] | None]:
        listed = list(conditions)
        built.append(len(listed))
        return boxes_of_many(listed)

    monkeypatch.setattr("m4cast.overlay.profiles.index.boxes_of_many", counted)
    index: ProfileIndex[int] = ProfileIndex()
    batch = subscribers_batch(Random(1), 5, pa.int64())
    for key, condition in conjunctions(Random(2), 1_000).items():
        index.add(key, profile_of(condition))
    index.match(batch)
    for key, condition in conjunctions(Random(3), 200).items():
        index.add(1_000 + key, profile_of(condition))
        index.match(batch)
    assert built[0] == 1_000 and sum(built[1:]) < 200 * 30
    for key in range(700):
        index.remove(key)
    index.match(batch)
    assert found_pairs(index, batch) and built[-1] < 700, "the segment was made anew without what was removed"


def test_profiles_come_and_go_between_batches() -> None:
    random = Random(11)
    batch = subscribers_batch(random, 100, pa.int64())
    index: ProfileIndex[int] = ProfileIndex()
    conditions = conjunctions(random, 200)
    for key, condition in conditions.items():
        index.add(key, profile_of(condition))
    assert found_pairs(index, batch) == expected_pairs(conditions, batch)
    for key in range(0, 60, 3):
        index.remove(key)
        del conditions[key]
    assert found_pairs(index, batch) == expected_pairs(conditions, batch), "what was removed is not found"
    summary = summarise(batch, [("k",), ("n",), ("a",)])
    assert set(index.candidates(summary, batch.schema)) <= set(conditions)
    conditions[900] = conditions[1]
    index.add(900, profile_of(conditions[900]))
    assert found_pairs(index, batch) == expected_pairs(conditions, batch), "what was added is found"


def test_keys_are_used_once_and_known() -> None:
    index: ProfileIndex[str] = ProfileIndex()
    index.add("a", parse("a = 1"))
    with pytest.raises(LocalProtocolError, match="'a' has a profile already"):
        index.add("a", parse("a = 2"))
    with pytest.raises(LocalProtocolError, match="'b' has no profile"):
        index.remove("b")
    index.remove("a")
    assert "a" not in index and len(index) == 0
    index.add("a", parse("a = 2"))
    assert [(key, rows.tolist()) for key, rows in index.match(pa.record_batch({"a": [1, 2]})).by_key()] == [("a", [1])]


def test_types_may_change_from_batch_to_batch() -> None:
    index: ProfileIndex[str] = ProfileIndex()
    index.add("five", parse("a = '5'"))
    index.add("null", parse("a IS NULL"))
    for type_ in (pa.int64(), pa.string(), pa.float64(), pa.int8(), pa.decimal128(5, 1), pa.binary()):
        five = {pa.binary(): b"5", pa.string(): "5", pa.decimal128(5, 1): Decimal(5)}.get(type_, 5)
        column = pa.array([five, None], type_)
        found = {key: rows.tolist() for key, rows in index.match(pa.record_batch({"a": column})).by_key()}
        assert found == {"five": [0], "null": [1]}, type_
    assert len(index._plans) == PLANS_MAX
    assert {key: rows.tolist() for key, rows in index.match(pa.record_batch({"b": [1]})).by_key()} == {"null": [0]}


def test_ansi_errors_are_counted() -> None:
    index: ProfileIndex[int] = ProfileIndex()
    index.add(1, parse("a LIKE '%x' OR NOT words(b, 'y')"))
    assert index.match(pa.record_batch({"a": [1, 2, None], "b": ["y", "y", "y"]})).errors == 2


def test_values_that_no_lane_joins_are_told_apart() -> None:
    """Two groups number the values of one column: those of the one must not be taken for the other's."""
    index: ProfileIndex[str] = ProfileIndex()
    profiles: dict[str, Profile] = {f"pair {at}": parse(f"k = {at} AND n = {at}") for at in range(3)}
    profiles |= {f"single {at}": parse(f"n = {at}") for at in range(3, 9)}
    for key, profile in profiles.items():
        index.add(key, profile)
    batch = pa.record_batch({"k": [at for at in range(9) for _ in range(9)], "n": list(range(9)) * 9})
    for key, rows in index.match(batch).by_key():
        assert rows.tolist() == np.flatnonzero(mask(profiles[key].condition, batch)).tolist(), key


def test_literals_of_every_kind_are_indexed() -> None:
    index: ProfileIndex[int] = ProfileIndex()
    conditions: dict[int, Condition] = {}
    for at, (path, literal) in enumerate((path, literal) for path in PATHS[:20] for literal in LITERALS):
        conditions[at] = Compare(ColumnRef(path), "=" if at % 2 else "<=", literal)
        index.add(at, profile_of(conditions[at]))
    batch = random_batch(Random(2), 12)
    found = found_pairs(index, batch)
    missing = expected_pairs(conditions, batch) ^ found
    assert not missing, [text_of(conditions[key]) for key, _ in missing]
