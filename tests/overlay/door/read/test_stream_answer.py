"""The pieces of a filtered answer: matches are sent early, then together; and the certificate of a stretch
without a match."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from m4cast.overlay.door.read import stream_answer
from m4cast.overlay.door.read.matching import Found
from m4cast.overlay.door.read.stream_answer import (
    CERTIFY_S,
    EARLY_S,
    JOINED_BYTES,
    JOINED_ROWS,
    FilteredShape,
    StreamAnswer,
)
from m4cast.overlay.door.rows import payload
from m4cast.overlay.profiles import parse
from tests.overlay.protocol.stream_parts import stream_id

STREAM = stream_id("o", "t")
PROFILE = parse("n = 3")
COLUMNS = pa.schema([("n", pa.int64())])
SEEN = payload.seen_schema(COLUMNS)
SHAPE = FilteredShape(form="rows", columns=COLUMNS, schema=SEEN, whose={}, rows_at_once=1 << 20, row_bytes=100)
NOW_S = 1_000.0


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> StreamAnswer:
    """One that has just sent its first match."""
    monkeypatch.setattr(stream_answer, "time", SimpleNamespace(monotonic=lambda: NOW_S))
    answer = StreamAnswer(STREAM, 1, PROFILE, SHAPE)
    assert answer.due_at == float("inf"), "nothing was tested yet"
    add(answer, 1, matching=1)
    assert answer.due_at <= NOW_S, "the first match does not wait"
    assert sent(answer) == [(1, 2, 1)]
    return answer


def add(answer: StreamAnswer, tested: int, matching: int) -> None:
    """The next rows, the first of which match."""
    found = None
    if matching:
        found = Found(
            rows=pa.record_batch({"n": pa.array([3] * matching, pa.int64())}),
            sequences=np.arange(answer.next, answer.next + matching),
            arrivals=np.array([(7, 8, 1)], dtype=np.int64),
            owners=None,
        )
    answer.add(stream_answer.TestedSpan(until=answer.next + tested, rows=tested, found=found))


def sent(answer: StreamAnswer) -> list[tuple[int, int, int]]:
    """The rows of each piece, how far it certifies, and how many rows were tested for it."""
    pieces = [(rows.num_rows, json.loads(where)) for rows, where in answer.pieces()]
    assert {where["profile"] for _, where in pieces} <= {PROFILE.id.hex()}
    return [(count, where["next"], where["tested"]) for count, where in pieces]


def test_matches_soon_after_others_wait_and_are_sent_together(answer: StreamAnswer) -> None:
    add(answer, 10, matching=1)
    add(answer, 20, matching=2)
    assert answer.due_at == NOW_S + EARLY_S
    assert sent(answer) == [(3, 32, 30)]
    assert answer.due_at == float("inf") and sent(answer) == [], "a certificate that stands is not repeated"


@pytest.mark.parametrize("rows_max", [JOINED_ROWS, JOINED_BYTES // 8])
def test_many_matches_do_not_wait(answer: StreamAnswer, monkeypatch: pytest.MonkeyPatch, rows_max: int) -> None:
    if rows_max != JOINED_ROWS:  # so many that they have the bytes
        monkeypatch.setattr(stream_answer, "JOINED_ROWS", 2 * rows_max)
    add(answer, rows_max - 1, matching=rows_max - 1)
    assert answer.due_at == NOW_S + EARLY_S
    add(answer, 1, matching=1)
    assert answer.due_at <= NOW_S


def test_a_stretch_without_a_match_is_certified_now_and_then(answer: StreamAnswer) -> None:
    add(answer, 10, matching=0)
    add(answer, 90, matching=0)
    assert answer.due_at == NOW_S + CERTIFY_S
    assert sent(answer) == [(0, 102, 100)]
