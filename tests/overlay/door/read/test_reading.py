"""Reading from a store that has not got everything: skips, a low above 1, frontiers that cut batches."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.quotas import ChunkQuota
from m4cast.overlay.door.read.reading import Reading
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import Form, Get
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.catalogue import Catalogue
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import StartStream
from m4cast.overlay.protocol.wire.batch import Batch, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal
from tests.overlay.protocol.append_parts import append_of, with_writes
from tests.overlay.protocol.stream_parts import chain, node_id, stream_id
from tests.overlay.store.store_parts import opened, received, synced

STREAM = stream_id("o", "t")
LATE = stream_id("p", "t")
"""This node began it at 11."""


def arrow_batch(batch: Batch, rows: pa.RecordBatch, first_sequence: int) -> Batch:
    written = payload.schema_bytes(rows.schema)
    return seal(
        replace(
            batch,
            first_sequence=first_sequence,
            row_count=rows.num_rows,
            schema_id=payload.fingerprint(written),
            payload=payload.encode(written, rows),
        )
    )


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Reading]:
    """Rows 1-4 (n), then 5-8 lost, then 9-12 (n and more) of one stream; 11-12 of another."""
    (first,) = chain(1, stream=STREAM)
    (late,) = chain(1, stream=LATE)
    with opened(tmp_path) as store:
        synced(
            store,
            received(1, arrow_batch(first, pa.record_batch({"n": [1, 2, 3, 4]}), 1)),
            append_of(2, skips=(Skip(STREAM, 5, 8, SkipReason.LOST, node_id("n")),)),
            received(3, arrow_batch(first, pa.record_batch({"n": [9, 10, 11, 12], "more": ["a"] * 4}), 9)),
            with_writes(
                received(4, arrow_batch(late, pa.record_batch({"n": [11, 12]}), 11)), before=(StartStream(LATE, 11),)
            ),
        )
        frontiers = Frontiers()
        frontiers.advance({stream: until for stream, (_, until) in store.streams().items()})
        yield Reading(store, Catalogue(store), frontiers, ChunkQuota(1, 1), timeout_s=0.05)


def rows_of(reading: Reading, get: Get) -> pa.Table:
    schema, pieces = reading.read(get, lambda: False)
    return pa.Table.from_batches([rows for rows, _ in pieces], schema)


def between(first: int, until: int, *, skip: bool = False) -> Get:
    return Get(topics=("t",), start={STREAM: first}, end={STREAM: until}, skip_missing=skip)


@pytest.mark.parametrize(("first", "until"), [(1, 1), (1, 5), (2, 4), (4, 5), (9, 13), (10, 11), (12, 13)])
def test_any_retained_range_is_read(reading: Reading, first: int, until: int) -> None:
    read = rows_of(reading, between(first, until))
    assert read["_sequence"].to_pylist() == read["n"].to_pylist() == list(range(first, until))


def test_the_columns_are_those_of_the_range(reading: Reading) -> None:
    assert "more" not in rows_of(reading, between(1, 5)).column_names
    assert "more" in rows_of(reading, between(11, 12)).column_names
    everything = rows_of(reading, between(1, 13, skip=True))
    assert everything["more"].to_pylist() == [None] * 4 + ["a"] * 4


@pytest.mark.parametrize(("first", "until", "missing"), [(1, 13, "5 to 8"), (6, 13, "6 to 8"), (5, 7, "5 to 6")])
def test_what_is_missing_is_refused_by_name(reading: Reading, first: int, until: int, missing: str) -> None:
    with pytest.raises(Refusal) as refused:
        rows_of(reading, between(first, until))
    assert refused.value.code == "missing"
    assert f"rows {missing} are not retained at this node" in refused.value.detail


def test_what_is_missing_is_passed_over_if_asked_for(reading: Reading) -> None:
    assert rows_of(reading, between(3, 11, skip=True))["n"].to_pylist() == [3, 4, 9, 10]
    assert rows_of(reading, between(5, 7, skip=True)).num_rows == 0


@pytest.mark.parametrize(
    ("first", "until", "batches"), [(1, 5, [1]), (2, 5, [1]), (1, 4, []), (9, 12, []), (12, 13, [9]), (4, 13, [1, 9])]
)
def test_a_raw_batch_is_whole_and_in_the_range_that_has_its_last_row(
    reading: Reading, first: int, until: int, batches: list[int]
) -> None:
    read = rows_of(reading, replace(between(first, until, skip=True), form="raw"))
    assert read["first_sequence"].to_pylist() == batches
    assert [last - first for first, last in zip(batches, read["last_sequence"].to_pylist(), strict=True)] == [3] * len(
        batches
    )


def test_a_raw_tail_gives_every_batch(reading: Reading) -> None:
    get = Get(topics=("t",), start="earliest", end=None, skip_missing=True, idle_s=0.05, form="raw")
    assert sorted(rows_of(reading, get)["first_sequence"].to_pylist()) == [1, 9, 11]


def test_earliest_is_what_is_kept_and_a_frontier_is_meant_as_it_is(reading: Reading) -> None:
    read = rows_of(reading, Get(topics=("t",), start="earliest", end={LATE: 13}))
    assert read["_sequence"].to_pylist() == [11, 12]
    with pytest.raises(Refusal) as refused:
        rows_of(reading, Get(topics=("t",), start={}, end={LATE: 13}))
    assert refused.value.code == "missing"
    assert "rows 1 to 10" in refused.value.detail


def test_a_tail_comes_to_the_end_of_every_stream_with_small_chunks(reading: Reading) -> None:
    read = rows_of(reading, Get(topics=("t",), start="earliest", end=None, skip_missing=True, idle_s=0.05))
    assert sorted(read["_sequence"].to_pylist()) == [1, 2, 3, 4, 9, 10, 11, 11, 12, 12]


def test_a_tail_sleeps_at_an_end_that_was_passed_over(tmp_path: Path) -> None:
    class Counted(Frontiers):
        looks = 0

        def wait_beyond(
            self, seen: Mapping[StreamId, int], topics: Iterable[str], deadline: float
        ) -> dict[StreamId, int]:
            self.looks += 1
            return super().wait_beyond(seen, topics, deadline)

    with opened(tmp_path) as store:
        synced(store, append_of(1, skips=(Skip(STREAM, 1, 8, SkipReason.LOST, node_id("n")),)))
        frontiers = Counted()
        frontiers.advance({STREAM: 9})
        reading = Reading(store, Catalogue(store), frontiers, ChunkQuota(1, 1), timeout_s=0.05)
        assert rows_of(reading, Get(topics=("t",), start={}, end=None, skip_missing=True, idle_s=0.1)).num_rows == 0
        assert frontiers.looks <= 3


def test_origins_that_disagree_are_named(tmp_path: Path) -> None:
    (first,) = chain(1, stream=STREAM)
    (other,) = chain(1, stream=LATE)
    with opened(tmp_path) as store:
        synced(
            store,
            received(1, arrow_batch(first, pa.record_batch({"n": [1]}), 1)),
            received(2, arrow_batch(other, pa.record_batch({"n": ["x"]}), 1)),
        )
        frontiers = Frontiers()
        frontiers.advance({STREAM: 2, LATE: 2})
        reading = Reading(store, Catalogue(store), frontiers, ChunkQuota(1, 1), timeout_s=0.05)
        with pytest.raises(Refusal) as refused:
            rows_of(reading, Get(topics=("t",), start="earliest", end="latest"))
        assert refused.value.code == "schema-conflict"
        assert STREAM.origin.hex() in refused.value.detail and LATE.origin.hex() in refused.value.detail
        assert rows_of(reading, between(1, 2))["n"].to_pylist() == [1]


def test_a_payload_with_another_schema_than_it_says_is_not_read(tmp_path: Path) -> None:
    (first,) = chain(1, stream=STREAM)
    wrong = seal(replace(arrow_batch(first, pa.record_batch({"n": [1]}), 1), schema_id=5))
    with opened(tmp_path) as store:
        synced(store, received(1, wrong))
        frontiers = Frontiers()
        frontiers.advance({STREAM: 2})
        reading = Reading(store, Catalogue(store), frontiers, ChunkQuota(1, 1), timeout_s=0.05)
        with pytest.raises(Refusal, match="its schema is not the one that its core names"):
            rows_of(reading, between(1, 2))
        assert store.schema(5) is None


def test_readers_share_what_is_read_ahead_and_those_that_are_done_count_no_more(tmp_path: Path) -> None:
    chunks = ChunkQuota(bytes_each=100, bytes_of_all=300)
    (first,) = chain(1, stream=STREAM)
    with opened(tmp_path) as store:
        batches = [arrow_batch(first, pa.record_batch({"n": [n]}), n) for n in range(1, 4)]
        synced(store, *(received(n, batch) for n, batch in enumerate(batches, start=1)))
        frontiers = Frontiers()
        frontiers.advance({STREAM: 4})
        reading = Reading(store, Catalogue(store), frontiers, chunks, timeout_s=0.05)
        slow = [reading.read(between(1, 4), lambda: False)[1] for _ in range(6)]
        shares = []
        for pieces in slow:
            next(pieces)
            shares.append(chunks.bytes_now)
        assert shares == [100, 100, 100, 75, 60, 50]
        assert [len(list(pieces)) for pieces in slow] == [2] * 6, "each gets all, however small its share"
        assert chunks.bytes_now == 100


# ---- batches of many rows


@contextmanager
def reading_of(folder: Path, rows: pa.RecordBatch) -> Iterator[Reading]:
    (first,) = chain(1, stream=STREAM)
    with opened(folder) as store:
        synced(store, received(1, arrow_batch(first, rows, 1)))
        frontiers = Frontiers()
        frontiers.advance({STREAM: rows.num_rows + 1})
        yield Reading(store, Catalogue(store), frontiers, ChunkQuota(1, 1), timeout_s=0.05)


MANY = 2 * payload.PIECE_ROWS_MAX + 5


@pytest.mark.parametrize("form", ["rows", "batches"])
@pytest.mark.parametrize("end", [{STREAM: MANY + 1}, None], ids=["range", "tail"])
def test_a_batch_of_very_many_rows_is_read_piece_by_piece(tmp_path: Path, form: Form, end: Frontier | None) -> None:
    with reading_of(tmp_path, pa.record_batch({"n": pa.nulls(MANY)})) as reading:
        get = Get(topics=("t",), start={STREAM: 3}, end=end, idle_s=0.05, form=form)
        _, pieces = reading.read(get, lambda: False)
        first = 3
        counts = []
        for rows, where in pieces:
            counts.append(rows.num_rows)
            first += rows.num_rows
            assert json.loads(where)["next"] == first
            if form == "rows":
                assert rows["_sequence"][-1].as_py() == first - 1
        assert sum(counts) == MANY - 2
        assert max(counts) <= payload.PIECE_ROWS_MAX
        assert len(counts) <= (3 if form == "batches" else 5), "no more pieces than are needed"


def test_what_is_read_piece_by_piece_is_checked_before(tmp_path: Path) -> None:
    """Offsets of a peer's batch that go astray in the middle: whoever looks only at both ends does not notice."""
    offsets = pa.array([0] * (MANY // 2) + [1 << 30] + [0] * (MANY // 2 + 1), pa.int32())
    text = pa.StringArray.from_buffers(MANY, offsets.buffers()[1], pa.py_buffer(b""))
    with reading_of(tmp_path, pa.record_batch({"s": text})) as reading:
        with pytest.raises(Refusal, match="batch at 1 cannot be read as Arrow") as refused:
            rows_of(reading, between(1, MANY + 1))
        assert refused.value.code == "not-arrow"


MESSAGE_BYTES_MAX = 4 << 20
"""What Go's and Rust's gRPC accept unless they are told otherwise."""
LARGE = {
    "many columns": pa.record_batch({f"c{at}": pa.array(range(600), pa.int64()) for at in range(1_500)}),
    "many members": pa.record_batch(
        {
            "s": pa.StructArray.from_arrays(
                [pa.array([None, 1] * 180, pa.int8())] * 9_990, [f"m{at}" for at in range(9_990)]
            )
        }
    ),
    "texts": pa.record_batch({"s": ["x" * 70] * 100_000}),
    "the largest first": pa.record_batch({"s": ["x" * (3 << 20), *["y"] * 60_000, "z" * (2 << 20), "z" * (2 << 20)]}),
    "lists": pa.record_batch({"l": pa.array([[number] * 100 for number in range(9_000)], pa.list_(pa.int64()))}),
    "nulls": pa.record_batch({"n": pa.nulls(60_000), "b": pa.nulls(60_000, pa.binary(64))}),
}


@pytest.mark.parametrize("form", ["rows", "batches"])
@pytest.mark.parametrize("rows", LARGE.values(), ids=LARGE)
def test_large_batches_come_in_messages_that_any_client_accepts(
    tmp_path: Path, form: Form, rows: pa.RecordBatch
) -> None:
    with reading_of(tmp_path, rows) as reading:
        _, pieces = reading.read(
            Get(topics=("t",), start={}, end={STREAM: rows.num_rows + 1}, form=form), lambda: False
        )
        came = [piece for piece, _ in pieces]
        assert max(pa.ipc.get_record_batch_size(piece) for piece in came) < MESSAGE_BYTES_MAX - 1_000
        assert pa.Table.from_batches(came).select(rows.schema.names).equals(pa.Table.from_batches([rows]))
        assert len(came) <= 2 + 2 * sum(piece.nbytes for piece in came) // payload.PIECE_BYTES_MAX, "nor in too many"


def test_a_row_that_is_larger_than_a_message_comes_alone(tmp_path: Path) -> None:
    rows = pa.record_batch({"s": ["a", "x" * MESSAGE_BYTES_MAX, "b"]})
    with reading_of(tmp_path, rows) as reading:
        _, pieces = reading.read(Get(topics=("t",), start={}, end={STREAM: 4}), lambda: False)
        assert [piece["s"].to_pylist() for piece, _ in pieces] == [["a"], ["x" * MESSAGE_BYTES_MAX], ["b"]]


def test_a_large_batch_is_checked_before_it_is_cut_by_its_bytes(tmp_path: Path) -> None:
    offsets = pa.array([0] * 30_000 + [1 << 30] + [0] * 30_000, pa.int32())
    text = pa.StringArray.from_buffers(60_000, offsets.buffers()[1], pa.py_buffer(b""))
    astray = pytest.raises(Refusal, match="batch at 1 cannot be read as Arrow")
    with reading_of(tmp_path, pa.record_batch({"s": text})) as reading, astray:
        rows_of(reading, between(1, 60_001))
