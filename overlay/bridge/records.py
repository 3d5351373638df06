"""What a Kafka record has besides its value, as columns of its row, and back.

| column | type | is |
| --- | --- | --- |
| `_key` | binary | the record's key |
| `_headers` | list of (key, value) | its headers, without those that the codec made columns of |
| `_kafka` | struct | `cluster`, `topic`, `partition`, `offset`, `timestamp`, and `tombstone`: its value was null |

Records that kafka-out writes have one header more, `m4cast`: `origin/sequence/topic` of the row.
"""

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from m4cast.overlay.bridge.codecs import Header, Problem
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
UNTIMED = -1
"""Kafka's word for a record without a timestamp."""


class RowName(NamedTuple):
    """Which row of the channel a Kafka record was made of."""

    origin: str
    sequence: int
    topic: str


def row_headers(origin: str, topic: str, sequences: Sequence[int]) -> list[Header]:
    """The header of each of some rows of a stream."""
    before, behind = f"{origin}/".encode(), f"/{topic}".encode()
    return [(ROW_HEADER, b"%b%d%b" % (before, sequence, behind)) for sequence in sequences]


def row_name_of(headers: Sequence[Header]) -> RowName | None:
    """What the record's header says; None for a record that is not ours."""
    for name, value in headers:
        if name == ROW_HEADER and value is not None:
            origin, _, rest = value.decode(errors="replace").partition("/")
            sequence, _, topic = rest.partition("/")
            if sequence.isdecimal() and topic:
                return RowName(origin, int(sequence), topic)
    return None


def with_record_columns(rows: pa.Table, records: Sequence[Any], cluster: str, consumed: tuple[str, ...]) -> pa.Table:
    """The rows of records of one partition, with the columns above."""
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
    return (
        rows.append_column("_key", keys)
        .append_column("_headers", _headers_of(records, consumed))
        .append_column("_kafka", kafka)
    )


def times(milliseconds: list[int]) -> pa.Array:
    ms = [None if each == UNTIMED else each for each in milliseconds]
    return pa.array(ms, pa.timestamp("ms", "UTC")).cast(TIME)


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


def dead_letters(
    problems: Sequence[tuple[Any, Problem]], failed_by: str, target: str, *, value_bytes_max: int
) -> pa.Table:
    """Of Kafka records."""
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        {
            "failed_at": now,
            "failed_by": failed_by,
            "reason": problem.reason,
            "detail": problem.detail[:1_000],
            "source": "kafka",
            "source_topic": record.topic,
            "source_stream": str(record.partition),
            "source_position": record.offset,
            "target_topic": target,
            "key": record.key,
            "value": record.value if len(record.value or b"") <= value_bytes_max else None,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
            "timestamp": None
            if record.timestamp in (None, UNTIMED)
            else datetime.datetime.fromtimestamp(record.timestamp / 1000, datetime.UTC),
        }
        for record, problem in problems
    ]
    return pa.Table.from_pylist(rows, schema=DEAD_LETTER)
