"""Tables as a node's door reads them: what stands, through batches, streams, holes and filters."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.door.read.portions import PortionReader
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import Get
from m4cast.overlay.door.rows.folded_tables import FoldedTables
from m4cast.overlay.door.rows.table_rows import TYPES, StandingRows
from m4cast.overlay.profiles import parse
from m4cast.overlay.protocol.wire.batch import Skip, SkipReason
from tests.overlay.door.read.filtered_parts import FilteredStore, filtered_store, sequences_of, where_of
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import node_id, stream_id
from tests.overlay.store.store_parts import synced

A, B = stream_id("o", "t"), stream_id("p", "t")


def batch(*rows: tuple[str, int, int]) -> pa.RecordBatch:
    """Names with their version's counter and a value; a negative value removes."""
    return pa.record_batch(
        {
            "_owner": pa.array(["ann"] * len(rows), TYPES["_owner"]),
            "_name": pa.array([name for name, _, _ in rows], TYPES["_name"]),
            "_version": pa.array([{"session": 1, "counter": at} for _, at, _ in rows], TYPES["_version"]),
            "_removed": pa.array([value < 0 for _, _, value in rows], TYPES["_removed"]),
            "n": pa.array([value for _, _, value in rows], pa.int64()),
        }
    )


def table(here: FilteredStore, where: str = "TRUE", **more: Any) -> dict[str, int]:
    get = Get(
        topics=("t",),
        start="earliest",
        skip_missing=True,
        is_table=True,
        profile=parse(where),
        **{"end": "latest", **more},
    )
    _, pieces = here.read(get)
    found: dict[str, int] = {}
    for rows, _ in pieces:
        for name, value in zip(rows["_name"].to_pylist(), rows["n"].to_pylist(), strict=True):
            assert name not in found, "each name once"
            found[name] = value
    return found


def test_what_stands_is_found_across_batches_and_streams(tmp_path: Path) -> None:
    choose = random.Random(7)
    expected: dict[str, tuple[int, int]] = {}
    with filtered_store(tmp_path) as here:
        for counter in range(60):
            rows = []
            for at in range(choose.randrange(1, 30)):
                name, version, value = f"k{choose.randrange(40)}", counter * 100 + at, choose.randrange(-20, 100)
                rows.append((name, version, value))
                expected[name] = (version, value)
            here.publish(choose.choice([A, B]), batch(*rows), summarised=["n"] if counter % 2 else [])
        alive = {name: value for name, (_, value) in expected.items() if value >= 0}
        assert table(here) == alive
        for where in ("n >= 50", "n < 3", "_name = 'k7'", "n > 1000"):
            wanted = {
                name: value
                for name, value in alive.items()
                if (where == "n >= 50" and value >= 50)
                or (where == "n < 3" and value < 3)
                or (where == "_name = 'k7'" and name == "k7")
            }
            assert table(here, where) == wanted
        assert table(here, with_removals=True).keys() == expected.keys()


@pytest.mark.parametrize("seed", range(5))
def test_a_table_that_is_read_again_and_again_is_what_a_fresh_reader_finds(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    with filtered_store(tmp_path) as here:
        for counter in range(40):
            rows = [(f"k{choose.randrange(200)}", counter * 100 + at, choose.randrange(-3, 9)) for at in range(5)]
            here.publish(choose.choice([A, B]), batch(*rows))
            if choose.random() < 0.2:  # rows go, whether they stood or not
                here.store.compact({choose.choice([A, B]): choose.randrange(1, 60)}, 0).result()
            removed = choose.random() < 0.5
            found = table(here, with_removals=removed)
            tables = here.filtered.tables
            kept, tables.folded = tables.folded, FoldedTables()
            assert table(here, with_removals=removed) == found
            tables.folded = kept


def test_a_second_read_folds_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[int] = []
    add = StandingRows.add

    def add_counted(standing: StandingRows, rows: pa.RecordBatch, *more: Any) -> None:
        folded.append(rows.num_rows)
        add(standing, rows, *more)

    monkeypatch.setattr(StandingRows, "add", add_counted)
    with filtered_store(tmp_path) as here:
        here.publish(A, batch(*((f"k{at}", at, at) for at in range(100))))
        assert len(table(here)) == 100
        here.publish(B, batch(("k5", 500, 7)))
        assert table(here)["k5"] == 7
        assert table(here, "n = 7") == {"k5": 7, "k7": 7}
        assert folded == [100, 1]


def test_an_answer_is_certified_to_its_end(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, batch(("a", 1, 1)), batch(("a", 2, 2)))
        get = Get(topics=("t",), start="earliest", end={A: 2}, skip_missing=True, is_table=True, profile=parse("TRUE"))
        pieces = list(here.read(get)[1])
        assert sequences_of(pieces) == [1], "as it stood there"
        assert where_of(pieces[-1])["next"] == 2


def test_rows_before_a_range_that_had_expired_do_not_stand(tmp_path: Path) -> None:
    """A removal may have been in the range, and is swept (H39). What was lost says nothing about rows before it."""
    with filtered_store(tmp_path) as here:
        here.publish(A, batch(("a", 1, 1), ("b", 2, 2)))
        here.publish(A, 5)
        here.publish(A, batch(("c", 9, 9)))
        assert table(here) == {"a": 1, "b": 2, "c": 9}
        here.publish(B, batch(("d", 1, 1)), is_seen=False)
        synced(here.store, append_of(99, skips=(Skip(B, 2, 4, SkipReason.EXPIRED, node_id("n")),)))
        here._next[B] = 5
        here.publish(B, batch(("e", 5, 5)))
        assert table(here) == {"a": 1, "b": 2, "c": 9, "e": 5}


def test_a_compaction_during_a_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, batch(("a", 1, 1)), batch(("b", 2, 2)))
        original, reads = PortionReader.read, []

        def compacting(reader: PortionReader, *args: Any, **more: Any) -> Any:
            reads.append(args)
            if len(reads) == 2:  # between the two passes
                here.store.compact({A: 2}, 0).result()
            return original(reader, *args, **more)

        monkeypatch.setattr(PortionReader, "read", compacting)
        with pytest.raises(Refusal, match="compacted while it was read"):
            table(here)


def test_of_a_compacted_table_an_earlier_position_is_refused(tmp_path: Path) -> None:
    """`a` stood at B's row there, which is gone since it was replaced. The row before it is left, and must not show."""
    with filtered_store(tmp_path) as here:
        here.publish(A, batch(("a", 1, 1), ("b", 2, 2)))
        here.publish(B, batch(("a", 3, 3)))
        here.publish(A, batch(("a", 4, 4)))
        earlier, latest = {A: 3, B: 2}, {A: 4, B: 2}
        assert table(here, end=earlier) == {"a": 3, "b": 2}
        here.store.compact({B: 2}, 0).result()
        with pytest.raises(Refusal, match="'t' was compacted: what stood at an earlier position is not known"):
            table(here, end=earlier)
        assert table(here, end=latest) == table(here) == {"a": 4, "b": 2}


def test_a_topic_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with filtered_store(tmp_path) as here:
        here.publish(A, pa.record_batch({"n": [1]}))
        get = Get(topics=("t",), start="earliest", end="latest", is_table=True, profile=parse("TRUE"))
        with pytest.raises(Refusal, match="'t' is no table: its rows lack _owner, _name, _version"):
            here.read(get)
