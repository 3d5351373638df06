"""Payloads as bytes: one piece that any Arrow reader takes, whichever way it was written, and not too large."""

import re

import pyarrow as pa
import pytest

from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows import payload

SMALL_ROWS, LARGE_ROWS = 10, 20_000


def rows_of(count: int) -> pa.RecordBatch:
    return pa.record_batch({"number": range(count), "text": [f"{number:>40}" for number in range(count)]})


@pytest.mark.parametrize("count", [SMALL_ROWS, LARGE_ROWS])
def test_a_payload_is_its_schema_and_its_rows_and_nothing_else(count: int) -> None:
    rows = rows_of(count)
    written = payload.schema_bytes(rows.schema)
    encoded = payload.encode(written, rows)
    assert (len(encoded) >= payload.WRITTEN_BYTES_MIN) == (count == LARGE_ROWS), "both ways of writing are tried"
    assert bytes(encoded) == written + rows.serialize().to_pybytes()
    assert payload.split(encoded)[0] == written
    with pa.ipc.open_stream(pa.py_buffer(encoded)) as stream:
        assert stream.read_next_batch().equals(rows)


def test_rows_of_a_slice_are_written_without_what_was_cut_off() -> None:
    rows = rows_of(2 * LARGE_ROWS).slice(100, LARGE_ROWS)
    encoded = payload.encode(payload.schema_bytes(rows.schema), rows)
    with pa.ipc.open_stream(pa.py_buffer(encoded)) as stream:
        assert stream.read_next_batch().to_pylist() == rows.to_pylist()
    assert len(encoded) < 1.1 * rows.nbytes


def test_encoded_rows_are_immutable() -> None:
    rows = rows_of(LARGE_ROWS)
    encoded = payload.encode(payload.schema_bytes(rows.schema), rows)
    assert memoryview(encoded).readonly


# ---- rows that are larger when they are canonical


def repeated(text: str = "x" * 1_000, count: int = 1_000, type_: pa.DataType | None = None) -> pa.DictionaryArray:
    """The text once, and a small number for each row; every tenth is null."""
    indices = pa.array([None if number % 10 == 9 else 0 for number in range(count)], pa.int8())
    return pa.DictionaryArray.from_arrays(indices, pa.array([text], type_ or pa.string()))


def viewed(type_: pa.DataType, count: int = 1_000) -> pa.Array:
    """The text once, and a view of it for each row; of those that are null the views say something else."""
    (_, view, *texts) = pa.array(["x" * 1_000], pa.string()).cast(type_).buffers()
    validity = pa.array([number % 10 != 9 for number in range(count)], pa.bool_()).buffers()[1]
    views = b"".join(b"\xff" * 16 if number % 10 == 9 else view.to_pybytes()[:16] for number in range(count))
    return pa.Array.from_buffers(type_, count, [validity, pa.py_buffer(views), *texts])


OFFSETS = range(0, 1_001, 10)
EXPANDING = {
    "dictionary": repeated(),
    "large": repeated(type_=pa.large_string()),
    "fixed": pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int8()), pa.array([bytes(500)], pa.binary(500))),
    "of dictionaries": pa.DictionaryArray.from_arrays(
        pa.array([0] * 1_000, pa.int8()), repeated().dictionary.dictionary_encode()
    ),
    "string view": viewed(pa.string_view()),
    "binary view": viewed(pa.binary_view()),
    "list": pa.ListArray.from_arrays(OFFSETS, repeated()),
    "large list": pa.LargeListArray.from_arrays(OFFSETS, viewed(pa.string_view())),
    "fixed-size list": pa.FixedSizeListArray.from_arrays(repeated(), 10),
    "struct": pa.StructArray.from_arrays([pa.array(range(1_000)), repeated()], ["n", "s"]),
    "map": pa.MapArray.from_arrays(OFFSETS, pa.array(["k"] * 1_000), repeated()),
    "in lists of structs": pa.ListArray.from_arrays(OFFSETS, pa.StructArray.from_arrays([repeated()], ["s"])),
}


@pytest.mark.parametrize("column", EXPANDING.values(), ids=EXPANDING)
def test_rows_that_would_be_too_large_are_refused_before_they_are(column: pa.Array) -> None:
    rows = pa.record_batch([pa.array(range(len(column))), column], names=["n", "c"])
    schema = payload.canonical_schema(rows.schema)
    canonical = payload.canonical_rows(rows, schema)
    size = canonical.nbytes
    assert size > 20 * rows.get_total_buffer_size()
    assert payload.canonical_rows(rows, schema, size * 101 // 100).equals(canonical), (
        "the size is known to one part in 100"
    )
    allocated = pa.total_allocated_bytes()
    with pytest.raises(Refusal, match="send fewer rows") as refused:
        payload.canonical_rows(rows, schema, size * 99 // 100)
    assert refused.value.code == "too-large"
    assert pa.total_allocated_bytes() == allocated


@pytest.mark.parametrize("column", EXPANDING.values(), ids=EXPANDING)
def test_which_rows_may_become_larger_is_known_by_their_schema(column: pa.Array) -> None:
    schema = pa.schema([("n", pa.int64()), ("c", column.type)])
    assert payload.expands(schema)
    assert not payload.expands(payload.canonical_schema(schema))


@pytest.mark.parametrize("type_", [pa.dictionary(pa.int8(), pa.string()), pa.string_view(), pa.binary_view()])
def test_a_part_of_such_rows_is_as_large_as_the_part(type_: pa.DataType) -> None:
    column = repeated() if pa.types.is_dictionary(type_) else viewed(type_)
    rows = pa.record_batch([column], names=["c"]).slice(8, 3)  # one of them is null
    schema = payload.canonical_schema(rows.schema)
    assert [len(text or "") for text in payload.canonical_rows(rows, schema, 2_100)["c"].to_pylist()] == [
        1_000,
        0,
        1_000,
    ]
    with pytest.raises(Refusal, match="a record batch of 3 rows has 2012 bytes"):
        payload.canonical_rows(rows, schema, 2_000)


@pytest.mark.parametrize("type_", [pa.string_view(), pa.binary_view()])
def test_what_stands_under_a_null_is_not_followed(type_: pa.DataType) -> None:
    """A view of a null may point anywhere: Arrow's own cast then ends the process."""
    validity, views, *texts = pa.array(["a" * 20, None, "b" * 20], pa.string()).cast(type_).buffers()
    for at in range(16, 32):
        for byte in (1, 127, 128, 255):
            astray = views.to_pybytes()[:at] + bytes([byte]) + views.to_pybytes()[at + 1 : 48]
            column = pa.Array.from_buffers(type_, 3, [validity, pa.py_buffer(astray), *texts])
            for each in (column, column.slice(1), pa.ListArray.from_arrays([0, 1, 3], column)):
                rows = pa.record_batch([each], names=["c"])
                canonical = payload.canonical_rows(rows, payload.canonical_schema(rows.schema), 1 << 20)
                canonical.validate(full=True)
                assert canonical.to_pylist() == rows.to_pylist()


def test_such_columns_may_have_nothing_in_them() -> None:
    for column in EXPANDING.values():
        nothing = pa.ListArray.from_arrays([0, 0], column.slice(0, 0))
        rows = pa.record_batch([nothing, pa.nulls(1, column.type)], names=["empty", "null"])
        assert payload.canonical_rows(rows, payload.canonical_schema(rows.schema), 1 << 20).num_rows == 1


def refusal_of(column: pa.Array) -> Refusal:
    rows = pa.record_batch([column], names=["c"])
    with pytest.raises(Refusal) as refused:
        payload.canonical_rows(rows, payload.canonical_schema(rows.schema))
    assert refused.value.code == "bad-rows"
    return refused.value


@pytest.mark.parametrize("type_", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")])
def test_times_that_lose_digits_are_refused_with_what_to_do(type_: pa.DataType) -> None:
    one, rounding = pa.array([1], type_), "Times have microseconds: round them first"
    assert rounding in refusal_of(one).detail
    assert rounding in refusal_of(pa.ListArray.from_arrays([0, 1], one)).detail
    assert rounding in refusal_of(pa.DictionaryArray.from_arrays(pa.array([0]), one)).detail


def test_times_too_far_away_are_refused() -> None:
    assert "timestamp" in refusal_of(pa.array([2**62], pa.timestamp("s"))).detail


def test_other_bad_rows_are_refused_without_a_word_about_times() -> None:
    text = pa.array([b"\xff"]).cast(pa.string(), safe=False)
    assert "Times" not in refusal_of(text).detail
    assert "Times" not in refusal_of(text.cast(pa.large_string(), safe=False)).detail
    assert "Times" not in refusal_of(pa.array([1], pa.date64())).detail


# ---- rows that are made for readers


def test_readers_get_as_many_rows_at_a_time_as_fit_into_memory() -> None:
    narrow = pa.schema([("n", pa.null())])
    assert payload.rows_at_once(payload.seen_schema(narrow)) == payload.PIECE_ROWS_MAX
    assert payload.rows_at_once(pa.schema([])) == payload.PIECE_ROWS_MAX
    for wide in (
        pa.schema([(f"c{number}", pa.int64()) for number in range(2_000)]),
        pa.schema([("c", pa.binary(1 << 20))]),
        pa.schema([("c", pa.list_(pa.int64(), 100_000))]),
        pa.schema([("c", pa.struct([("s", pa.binary(1 << 20))]))]),
    ):
        rows = payload.rows_at_once(wide)
        assert sum(pa.nulls(rows, type_).nbytes for type_ in wide.types) <= payload.PIECE_BYTES_MAX
    assert payload.rows_at_once(pa.schema([("c", pa.binary(payload.PIECE_BYTES_MAX))])) == 1


@pytest.mark.parametrize(
    "name", ["_sequence", "_Sequence", "_TOPIC", "_M4cast_x", "_Key", "_HEADERS", "_\u017fequence"]
)
def test_a_reserved_name_is_refused_in_any_spelling(name: str) -> None:
    """Spark does not tell capital letters from small ones: such a topic could not be read there."""
    with pytest.raises(Refusal, match=re.escape(repr(name))) as refused:
        payload.canonical_schema(pa.schema([("a", pa.int64()), (name, pa.binary())]))
    assert refused.value.code == "reserved-column"
