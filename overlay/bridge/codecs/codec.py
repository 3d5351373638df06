"""The interface of codecs, and what they share.

A codec works on many records at once. `decode` returns pieces in the order of the records: runs of records that have
the same columns. A record that cannot be decoded becomes a `Problem` and does not affect the others, and neither does a
row that cannot be encoded: all are tried together and, if that fails, in halves until the faulty one is isolated. A
null value (a tombstone) is a row of nulls. A `RegistryError` is passed on: the records are sound and can be retried.

Cost: per value; `tests/bench/bridge.py` watches it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import fastavro
import pyarrow as pa

from m4cast.overlay.bridge.codecs.json_values import pylist, write_json_object
from m4cast.schemas.json_types import Rounded

VALUE = "value"
"""The column of a value that is not a record."""
Header = tuple[str, bytes | None]
T = TypeVar("T")

ODD = (
    *(pa.ArrowException, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError, RecursionError),
    fastavro.schema.SchemaParseException,
)
"""Errors that a faulty value may raise, here and in the libraries that read and write it. Never a `RegistryError`."""


class Record(Protocol):
    """The parts of a Kafka record that a codec reads."""

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[Header]: ...


class Problem(NamedTuple):
    """The reason why one record, or one row, becomes a dead letter."""

    reason: str
    detail: str


class Piece(NamedTuple):
    """The rows of one run of records, and the indexes of these records."""

    records: Sequence[int]
    rows: pa.Table
    rounded: Rounded


@dataclass(slots=True)
class Decoded:
    pieces: list[Piece] = field(default_factory=list)
    problems: dict[int, Problem] = field(default_factory=dict)


class Encoded(NamedTuple):
    """The value or the problem of each row; and the headers that belong to the values, if the codec uses headers."""

    values: list[bytes | Problem | None]
    headers: list[list[Header]] | None = None


class RowSource(NamedTuple):
    """The origin of a batch's rows, for codecs that need more than the columns."""

    topic: str
    origin: str
    sequences: list[int]
    published_at: pa.Array

    def slice(self, at: int, count: int) -> "RowSource":
        """The source of a slice of the rows."""
        return self._replace(sequences=self.sequences[at : at + count], published_at=self.published_at.slice(at, count))


class Codec(Protocol):
    consumed_headers: tuple[str, ...]
    """Prefixes of header names that become columns and are not kept as headers."""

    def decode(self, records: Sequence[Record]) -> Decoded: ...

    def encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded: ...


# ---- isolating what is faulty, by halves


def add_rows(
    decoded: Decoded,
    records: Sequence[int],
    values: list[T],
    make: Callable[[list[T]], tuple[pa.Table, Rounded]],
    reason: str,
) -> None:
    """Add the rows that `make` builds from the values of these records, and a problem for each value it rejects."""
    try:
        rows, rounded = make(values)
    except ODD as error:
        if len(values) == 1:
            decoded.problems[records[0]] = Problem(reason, str(error).replace(" in row 0", ""))
            return
        half = len(values) // 2
        add_rows(decoded, records[:half], values[:half], make, reason)
        add_rows(decoded, records[half:], values[half:], make, reason)
        return
    decoded.pieces.append(Piece(records, rows, rounded))


def encode_rows(
    encode: Callable[[pa.RecordBatch, RowSource, str], Encoded], rows: pa.RecordBatch, source: RowSource, target: str
) -> Encoded:
    """The result of `encode`, with a problem for each row that it rejects."""
    try:
        return encode(rows, source, target)
    except ODD as error:
        if rows.num_rows == 1:
            odd = "".join(f"; column {name!r}" for name in _odd_columns(rows))
            return Encoded([Problem("not-encodable", f"{type(error).__name__}: {error}{odd}")])
    half, count = rows.num_rows // 2, rows.num_rows
    first = encode_rows(encode, rows.slice(0, half), source.slice(0, half), target)
    second = encode_rows(encode, rows.slice(half), source.slice(half, count - half), target)
    values = [*first.values, *second.values]
    if first.headers is None and second.headers is None:
        return Encoded(values)
    nothing: list[list[Header]] = [[]]
    headers = [each.headers or nothing * len(each.values) for each in (first, second)]
    return Encoded(values, [*headers[0], *headers[1]])


def _odd_columns(row: pa.RecordBatch) -> list[str]:
    """Names of the columns that cannot be converted to Python values or to JSON."""
    names = []
    for name in row.schema.names:
        try:
            write_json_object(pylist(row.select([name]))[0])
        except ODD:
            names.append(name)
    return names


def row_as_json(row: pa.RecordBatch) -> bytes:
    """One row, without the columns that cannot be written as JSON."""
    try:
        return write_json_object(pylist(row)[0])
    except ODD:
        return write_json_object(pylist(row.drop_columns(_odd_columns(row)))[0])
