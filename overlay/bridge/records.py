"""The parts of a Kafka record besides its value, as columns of its row, and dead letters of records.

| column | type | is |
| --- | --- | --- |
| `_key` | binary | the record's key |
| `_headers` | list of (key, value) | its headers, without those that the codec turned into columns |
| `_kafka` | struct | `cluster`, `topic`, `partition`, `offset`, `timestamp`, and `tombstone`: its value was null |

Records that kafka-out writes have an additional header `m4cast`: `origin/sequence/topic` of the row.
"""

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from m4cast.overlay.bridge.codecs.codec import Header, Problem
from m4cast.schemas.arrow_types import DEAD_LETTER, HEADERS, TIME

KAFKA = pa.struct(
    [
        ("cluster", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("tombstone", pa.bool_()),
    ]
)
ROW_HEADER = "m4cast"
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last that Python can represent. A later timestamp is a producer's mistake (it wrote
microseconds or nanoseconds); the record is carried without it."""
SEQUENCE_DIGITS_MAX = 19
"""Digits of the largest sequence. Anybody may write the header, and Python refuses to parse thousands of digits."""
RECORD_BYTES = 32
HEADER_BYTES = 16
"""Approximate overhead of a record, and of each header, in columns."""
LETTER_BYTES_MAX = 8 << 20
"""Content that a dead letter keeps: half of the default limit for a batch of the channel."""
RESERVED = ("_topic", "_origin", "_sequence", "_published_at", "_channel", "_delivered_at", "_hops", "_node")
OWN = ("_key", "_headers", "_kafka")
"""Columns that the bridge adds."""


class OddName(str):
    """A header name that is not UTF-8, with `\\xff` for undecodable bytes. No column can hold it."""


class RowName(NamedTuple):
    """The row of the channel that a Kafka record was made from."""

    origin: str
    sequence: int
    topic: str


def is_reserved(name: str) -> bool:
    """True if records cannot have a column of this name. Case does not matter, as in Spark."""
    folded = name.casefold()
    return folded in RESERVED or folded in OWN or folded.startswith("_m4cast")


def row_headers(origin: str, topic: str, sequences: Sequence[int]) -> list[Header]:
    """The header of each row, for rows of one stream."""
    before, after = f"{origin}/".encode(), f"/{topic}".encode()
    return [(ROW_HEADER, b"%b%d%b" % (before, sequence, after)) for sequence in sequences]


def row_name_of(headers: Sequence[Header]) -> RowName | None:
    """The row named by the header; None for a record that kafka-out did not write."""
    for name, value in headers:
        if name == ROW_HEADER and value is not None:
            origin, _, rest = value.decode(errors="replace").partition("/")
            sequence, _, topic = rest.partition("/")
            if sequence.isdecimal() and len(sequence) <= SEQUENCE_DIGITS_MAX and topic:
                return RowName(origin, int(sequence), topic)
    return None


def with_record_columns(rows: pa.Table, records: Sequence[Any], cluster: str, consumed: tuple[str, ...]) -> pa.Table:
    """The rows of one partition's records, with the columns above added."""
    count = len(records)
    kafka = pa.StructArray.from_arrays(
        [
            pa.repeat(pa.scalar(cluster), count),
            pa.repeat(pa.scalar(records[0].topic), count),
            pa.repeat(pa.scalar(records[0].partition, pa.int32()), count),
            pa.array([record.offset for record in records], pa.int64()),
            times([record.timestamp for record in records]),
            pa.array([record.value is None for record in records], pa.bool_()),
        ],
        fields=list(KAFKA),
    )
    keys = pa.array([record.key for record in records], pa.binary())
    # Built anew: a table without columns (of empty objects) does not know its number of rows.
    own = {"_key": keys, "_headers": _headers_of(records, consumed), "_kafka": kafka}
    return pa.table([*rows.columns, *own.values()], names=[*rows.column_names, *own])


def times(milliseconds: list[int | None]) -> pa.Array:
    """The times; null for none (-1 in Kafka) and for invalid ones."""
    ms = [each if each is not None and 0 <= each <= TIME_MS_MAX else None for each in milliseconds]
    return pa.array(ms, pa.timestamp("ms", "UTC")).cast(TIME)


def sizes(records: Sequence[Any]) -> list[int]:
    """The approximate size of each record's row. Cost: per record; tests/bench/bridge.py watches it."""
    return [
        len(record.value or b"")
        + len(record.key or b"")
        + (RECORD_BYTES + headers_bytes(record.headers) if record.headers else RECORD_BYTES)
        for record in records
    ]


def headers_bytes(headers: Sequence[Header]) -> int:
    return sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)


def _headers_of(records: Sequence[Any], consumed: tuple[str, ...]) -> pa.Array:
    headers = [record.headers for record in records]
    if consumed:
        headers = [[header for header in each if not header[0].startswith(consumed)] for each in headers]
    return headers_column(headers)


def headers_column(headers: Sequence[Sequence[Header]]) -> pa.Array:
    if not any(headers):
        return pa.nulls(len(headers), HEADERS)
    listed = [[{"key": name, "value": value} for name, value in each] if each else None for each in headers]
    return pa.array(listed, HEADERS)


def letter_content(key: bytes | None, value: bytes | None, headers: Sequence[Header], bytes_max: int) -> dict[str, Any]:
    """The content of a dead letter: the whole record up to `bytes_max`; beyond it, the parts that fit."""
    beside = len(key or b"") + headers_bytes(headers)
    if beside > bytes_max:
        key, headers, beside = None, (), 0
    return {
        "key": key,
        "value": value if beside + len(value or b"") <= bytes_max else None,
        "headers": [{"key": name, "value": each} for name, each in headers] or None,
    }


def dead_letters(problems: Sequence[tuple[Any, Problem]], failed_by: str, target: str, *, bytes_max: int) -> pa.Table:
    """Dead letters for Kafka records."""
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        {
            "failed_at": now,
            "failed_by": failed_by,
            "reason": problem.reason,
            "detail": problem.detail[:1_000].encode(errors="backslashreplace").decode(),
            "source": "kafka",
            "source_topic": record.topic,
            "source_stream": str(record.partition),
            "source_position": record.offset,
            "target_topic": target,
            "timestamp": times([record.timestamp])[0],
            **letter_content(record.key, record.value, record.headers, bytes_max),
        }
        for record, problem in problems
    ]
    return pa.Table.from_pylist(rows, schema=DEAD_LETTER)
