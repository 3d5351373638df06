"""Rows are split by the columns that their topic is routed by: nothing is lost, and order is kept per value (H54)."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from m4cast.overlay.door.rows.routed import PARTS_MAX, split_rows


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["PL", "DE", None]), st.sampled_from([1, 2])), min_size=1, max_size=50))
def test_each_part_has_one_value_and_keeps_its_order(values: list[tuple[str | None, int]]) -> None:
    rows = pa.record_batch(
        {
            "country": pa.array([country for country, _ in values], pa.string()),
            "kind": [kind for _, kind in values],
            "at": list(range(len(values))),
        }
    )
    parts = split_rows(rows, ("country", "kind"))
    seen = []
    for part in parts:
        keys = list(zip(part["country"].to_pylist(), part["kind"].to_pylist(), strict=True))
        assert len(set(keys)) == 1
        assert part["at"].to_pylist() == [at for at, value in enumerate(values) if value == keys[0]]
        seen.append(keys[0])
    assert seen == list(dict.fromkeys(values)), "in the order in which values come first"


def test_more_values_than_parts_are_together_in_the_last_one() -> None:
    for count in (PARTS_MAX, PARTS_MAX + 1, 200):
        rows = pa.record_batch({"id": [number % count for number in range(2 * count)]})
        parts = split_rows(rows, ("id",))
        assert len(parts) == PARTS_MAX
        assert [part["id"].to_pylist() for part in parts[:-1]] == [[number, number] for number in range(PARTS_MAX - 1)]
        last = list(range(PARTS_MAX - 1, count))
        assert parts[-1]["id"].to_pylist() == last + last


def test_columns_that_are_missing_or_cannot_be_compared_do_not_split() -> None:
    rows = pa.record_batch({"tags": [["a"], ["b"]], "country": ["PL", "DE"]})
    assert split_rows(rows, ("city",)) == [rows]
    assert split_rows(rows, ("tags",)) == [rows]
    assert [part.num_rows for part in split_rows(rows, ("tags", "country"))] == [1, 1]
