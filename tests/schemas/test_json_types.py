"""Guarantees of guessed types."""

import pyarrow as pa
import pytest

from m4cast.schemas.json_types import settled, timeless

TIME = pa.timestamp("s")


@pytest.mark.parametrize(
    ("guessed", "known"),
    [
        (pa.int64(), pa.int64()),
        (pa.null(), None),
        (pa.list_(pa.null()), None),
        (pa.struct([]), None),
        (pa.struct([("x", pa.int64()), ("y", pa.null())]), pa.struct([("x", pa.int64())])),
        (pa.struct([("x", pa.struct([("y", pa.list_(pa.null()))]))]), None),
        (pa.list_(pa.struct([("q", pa.bool_()), ("r", pa.struct([]))])), pa.list_(pa.struct([("q", pa.bool_())]))),
    ],
    ids=str,
)
def test_parts_without_a_type_are_left_out(guessed: pa.DataType, known: pa.DataType | None) -> None:
    assert settled(guessed) == known
    if known is not None:
        assert pa.nulls(2, guessed).cast(known).type == known, "a column can be cast to it"


def test_text_stays_text() -> None:
    guessed = pa.struct([("at", TIME), ("all", pa.list_(TIME)), ("n", pa.int64())])
    assert timeless(guessed) == pa.struct([("at", pa.string()), ("all", pa.list_(pa.string())), ("n", pa.int64())])
