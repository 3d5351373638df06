"""Rows of a table that stand, and those that are still needed."""

import random

import numpy as np
import pyarrow as pa
import pytest

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows import folded_tables, table_rows
from m4cast.overlay.door.rows.folded_tables import FoldedTables
from m4cast.overlay.door.rows.table_rows import REMOVAL_MS, TYPES, StandingRows
from m4cast.overlay.ids import NodeId, StreamId

Row = tuple[str, str, int, int, bool]
"""Owner, name, session, counter, removed."""


def rows_of(rows: list[Row]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "_owner": pa.array([row[0] for row in rows], TYPES["_owner"]),
            "_name": pa.array([row[1] for row in rows], TYPES["_name"]),
            "_version": pa.array([{"session": row[2], "counter": row[3]} for row in rows], TYPES["_version"]),
            "_removed": pa.array([row[4] or None for row in rows], TYPES["_removed"]),
        }
    )


def added(standing: StandingRows, rows: list[Row], first: int = 1, stream: int = 0, at_ms: int = 0) -> StandingRows:
    standing.add(rows_of(rows), np.arange(first, first + len(rows)), stream, at_ms)
    return standing


def found(standing: StandingRows, **more: bool) -> dict[int, list[int]]:
    sequences = standing.sequences(with_removals=more.get("with_removals", False))
    return {stream: each.tolist() for stream, each in sequences.items()}


@pytest.mark.parametrize("few", [0, 2, 1_000])
@pytest.mark.parametrize("seed", range(20))
def test_what_stands_is_what_a_dict_of_versions_has(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "PENDING_MIN", 10)  # so that it settles on the way
    monkeypatch.setattr(table_rows, "FEW", few)  # one by one, by turns, all together
    choose = random.Random(seed)
    standing = StandingRows()
    expected: dict[tuple[str, str], tuple[int, int, int, int, bool]] = {}
    counts: dict[tuple[str, str], int] = {}
    firsts = [1, 1, 1]
    for _ in range(30):
        stream = choose.randrange(3)
        rows: list[Row] = [
            (
                choose.choice(["", "a", "ab", "ann", "żółć"]),
                choose.choice(["", "b", "bc", "x\x00y", "c"]),
                choose.randrange(3),
                choose.randrange(4),
                choose.random() < 0.3,
            )
            for _ in range(choose.randrange(1, 9))
        ]
        added(standing, rows, firsts[stream], stream)
        for number, (owner, name, session, counter, removed) in enumerate(rows):
            place = (session, counter, stream, firsts[stream] + number, removed)
            expected[owner, name] = max(expected.get((owner, name), place), place)
            counts[owner, name] = counts.get((owner, name), 0) + 1
        firsts[stream] += len(rows)
    alive = sorted((stream, sequence) for _, _, stream, sequence, removed in expected.values() if not removed)
    assert sorted((stream, sequence) for stream, each in found(standing).items() for sequence in each) == alive
    with_removals = found(standing, with_removals=True)
    assert sum(map(len, with_removals.values())) == len(expected)
    standing.settle()
    settled = standing.rows()
    keys = zip(settled["owner"].to_pylist(), settled["name"].to_pylist(), strict=True)
    assert dict(zip(keys, settled["versions"].to_pylist(), strict=True)) == counts


def test_an_owner_and_a_name_are_two_things() -> None:
    assert found(added(StandingRows(), [("a", "bc", 1, 1, False), ("ab", "c", 1, 2, False)])) == {0: [1, 2]}


def test_of_a_version_that_was_published_twice_one_stands() -> None:
    assert found(added(StandingRows(), [("a", "b", 1, 1, False), ("a", "b", 1, 1, False)])) == {0: [2]}


def test_without_the_column_nothing_is_removed() -> None:
    standing = StandingRows()
    standing.add(rows_of([("a", "b", 1, 1, True)]).drop_columns(["_removed"]), np.array([1]), 0, 0)
    assert found(standing) == {0: [1]}


def test_a_table_without_rows_has_none() -> None:
    assert found(StandingRows()) == {} and StandingRows().needed_from(0) == {}


def test_what_stands_is_needed_from_its_first_row_on() -> None:
    standing = added(StandingRows(), [("a", "x", 1, 1, False), ("a", "y", 1, 2, False), ("a", "x", 1, 3, False)])
    assert standing.needed_from(10 * REMOVAL_MS) == {0: 2}


@pytest.mark.parametrize(("age_ms", "needed"), [(REMOVAL_MS, {0: 1}), (REMOVAL_MS + 1, {})])
def test_a_removal_is_needed_for_seven_days(age_ms: int, needed: dict[int, int]) -> None:
    assert added(StandingRows(), [("a", "x", 1, 1, True)], at_ms=1_000).needed_from(1_000 + age_ms) == needed


def test_an_old_removal_is_needed_while_an_older_row_is_left() -> None:
    """Else that row would stand again: it may be in another stream, whose batches a reader holds."""
    standing = added(StandingRows(), [("a", "x", 1, 1, False)], stream=0)
    added(standing, [("a", "x", 1, 2, True)], stream=1)
    assert standing.needed_from(10 * REMOVAL_MS) == {1: 1}


def test_too_many_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "STANDING_MAX", 3)
    standing = added(StandingRows(), [("a", name, 1, 1, False) for name in "xyz"])
    assert found(standing) == {0: [1, 2, 3]}
    added(standing, [("a", "w", 1, 1, False)], 4)
    with pytest.raises(Refusal, match="more than 3 names"):
        standing.settle()


def test_tables_stay_folded_until_there_are_too_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded_tables, "KEYS_MAX", 3)
    tables = FoldedTables()
    for topic, streams in (("first", 2), ("second", 1), ("third", 2)):
        tables.get(topic).next = {StreamId(NodeId(bytes([each]) * 16), topic): 1 for each in range(streams)}
        tables.trim()
    assert [len(tables.get(topic).next) for topic in ("first", "second", "third")] == [0, 1, 2]
