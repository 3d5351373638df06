"""Rows of others whose offsets lead out of their buffers, or whose names are not text: refused before Arrow follows
them, which would end the process."""

import struct
from types import SimpleNamespace

import pyarrow as pa
import pytest

from m4cast.overlay.door.publish.puts import _record_batches
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.web.bodies import rows_of
from m4cast.overlay.door.web.routes import ARROW
from tests.overlay.door.web.test_posts import arrow_bytes

GOOD, FAR = (struct.pack("<iii", 0, 3, end) for end in (4, 1 << 30))
"""The offsets of a value of three and one of one."""


def far(column: pa.Array) -> bytes:
    stream = arrow_bytes(pa.table({"c": column}))
    assert stream.count(GOOD) == 1
    return stream.replace(GOOD, FAR)


@pytest.mark.parametrize(
    "column", [pa.array([[1, 2, 3], [4]]), pa.array([{"l": [1, 2, 3]}, {"l": [4]}])], ids=["list", "struct"]
)
def test_offsets_are_checked_before_the_size_of_rows_is_computed(column: pa.Array) -> None:
    with pytest.raises(Refusal) as error:
        list(rows_of(far(column), {"Content-Type": ARROW}, lambda: pa.schema([])).batches)
    assert error.value.code == "bad-rows"


def test_offsets_are_checked_before_rows_are_split_by_their_values() -> None:
    rows = pa.ipc.open_stream(far(pa.array(["abc", "d"]))).read_next_batch()
    chunks = iter([SimpleNamespace(data=rows)])
    with pytest.raises(Refusal) as error:
        list(_record_batches(SimpleNamespace(read_chunk=lambda: next(chunks)), ("c",)))
    assert error.value.code == "bad-rows"


@pytest.mark.parametrize("name", [b"name", b"member"])
def test_names_that_are_not_text_are_refused(name: bytes) -> None:
    stream = arrow_bytes(pa.table({"name": [{"member": 1}]}))
    schema = pa.ipc.open_stream(stream.replace(name, b"\xa8" * len(name))).schema
    with pytest.raises(Refusal) as error:
        payload.canonical_schema(schema)
    assert error.value.code == "bad-schema"
