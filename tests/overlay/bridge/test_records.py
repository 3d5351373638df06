"""Parts of a record besides its value, as columns and in dead letters, with odd contents."""

import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from m4cast.overlay.bridge import brokers as _  # noqa: F401 - makes kafka-python's reader lenient
from m4cast.overlay.bridge.codecs.codec import Problem
from m4cast.overlay.bridge.records import (
    SEQUENCE_DIGITS_MAX,
    TIME_MS_MAX,
    OddName,
    RowName,
    dead_letters,
    row_name_of,
    sizes,
    with_record_columns,
)

NOW_MS = 1_700_000_000_000


class KafkaRecord(NamedTuple):
    value: bytes | None = b"x"
    key: bytes | None = b"k"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = NOW_MS
    offset: int = 0
    topic: str = "t"
    partition: int = 0


TIMES_MS = [NOW_MS, -1, TIME_MS_MAX, TIME_MS_MAX + 1, NOW_MS * 1_000, NOW_MS * 1_000_000, 0]
"""As Kafka has them; -1 is none."""
TIMES = [
    datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC),
    None,
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999_000, datetime.UTC),
    *(None, None, None),
    datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
]


def test_a_timestamp_after_the_year_9999_is_null_and_the_record_is_carried() -> None:
    records = [KafkaRecord(timestamp=each) for each in TIMES_MS]
    rows = with_record_columns(pa.table({"value": [b"x"] * len(records)}), records, "c", ())
    assert [each["timestamp"] for each in rows["_kafka"].to_pylist()] == TIMES


def test_dead_letters_have_the_same_timestamps() -> None:
    problem = Problem("not-json", "x")
    letters = dead_letters([(KafkaRecord(timestamp=each), problem) for each in TIMES_MS], "b", "t", bytes_max=100)
    assert letters["timestamp"].to_pylist() == TIMES


def test_a_header_with_more_digits_than_a_sequence_has_is_somebody_elses() -> None:
    for digits, expected in ((SEQUENCE_DIGITS_MAX, RowName("o", 10**19 - 1, "t")), (20, None), (5_000, None)):
        assert row_name_of([("m4cast", b"o/" + b"9" * digits + b"/t")]) == expected


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        (KafkaRecord(b"v" * 50, b"k" * 50), (True, True, False)),
        (KafkaRecord(b"v" * 51, b"k" * 50), (False, True, False)),
        (KafkaRecord(b"v" * 50, b"k", (("h", b"x" * 32),)), (True, True, True)),
        (KafkaRecord(b"v" * 51, b"k", (("h", b"x" * 32),)), (False, True, True)),
        (KafkaRecord(b"v" * 50, b"k", (("h", b"x" * 100),)), (True, False, False)),
    ],
)
def test_a_dead_letter_keeps_what_is_not_too_large(record: KafkaRecord, kept: tuple[bool, bool, bool]) -> None:
    letter: dict[str, Any] = dead_letters([(record, Problem("x", "y"))], "b", "t", bytes_max=100).to_pylist()[0]
    assert tuple(letter[name] is not None for name in ("value", "key", "headers")) == kept


def test_headers_count() -> None:
    plain, headed = sizes([KafkaRecord(), KafkaRecord(headers=(("trace", b"y" * 1_000), ("none", None)))])
    assert plain < 100 and headed - plain > 1_000


def test_a_header_whose_name_is_not_utf_8_is_read_as_an_odd_one() -> None:
    """kafka-python's own reader would stop at it."""

    class Odd(str):
        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            return b"\xff" + super().encode(encoding, errors)

    builder = MemoryRecordsBuilder(2, 0, 1 << 16)
    for name in ("plain", Odd("x"), "Zo\u00eb"):
        builder.append(timestamp=1, key=None, value=b"v", headers=[(name, b"y")])
    builder.close()
    names = [record.headers[0][0] for record in MemoryRecords(builder.buffer()).next_batch()]
    assert names == ["plain", r"\xffx", "Zo\u00eb"]
    assert [isinstance(name, OddName) for name in names] == [False, True, False]
