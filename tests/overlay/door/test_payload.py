"""Payloads as bytes: one piece that any Arrow reader takes, whichever way it was written."""

import pyarrow as pa
import pytest

from m4cast.overlay.door import payload

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


def test_nobody_can_change_what_was_encoded() -> None:
    rows = rows_of(LARGE_ROWS)
    encoded = payload.encode(payload.schema_bytes(rows.schema), rows)
    assert memoryview(encoded).readonly
