"""Codecs: Kafka values as columns of channel rows, and back. One room, chosen by the setting `codec`.

| codec | a value is |
| --- | --- |
| raw | bytes, in the column `value` |
| json | a JSON object; its members are the columns |
| avro | Avro behind a schema registry's prefix: a zero byte and the schema's number in four bytes |
| avro-single | Avro single-object encoding: C3 01, the schema's fingerprint in eight bytes |
| cloudevents, cloudevents-structured | an event, binary or structured (`cloud_events.py`) |

A codec gets many records at once. `decode` gives pieces, in the order of the records: runs whose columns are the same.
What cannot be decoded is a `Problem` of its record and stops nobody else, nor does a row that cannot be encoded: all
are tried at once, and when that fails by halves, until what is wrong stands alone. A value that is null (a tombstone)
is a row of nulls. `RegistryError` goes through: nothing is wrong with the records, and they wait.

Cost: per value; `tests/bench/bridge.py` watches it.
"""

import base64
import datetime
import decimal
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import fastavro
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form
from pyarrow import types

from m4cast.overlay.bridge.avro_values import (
    VALUE,
    AvroReader,
    Schema,
    UnsupportedError,
    avro_schema,
    encode,
)
from m4cast.overlay.bridge.registry import MissingSchemaError, Registry
from m4cast.overlay.errors import ConfigError
from m4cast.schemas.casts import exact_cast, kindred_cast
from m4cast.schemas.json_types import Rounded, read_objects

Header = tuple[str, bytes | None]
T = TypeVar("T")

ODD = (
    *(pa.ArrowException, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError, RecursionError),
    fastavro.schema.SchemaParseException,
)
"""What one odd value may raise, here and in the libraries that read and write it. A registry that is away is none."""


class Record(Protocol):
    """What a codec looks at of a Kafka record."""

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[Header]: ...


class Problem(NamedTuple):
    """Why one record, or one row, goes to the dead letters."""

    reason: str
    detail: str


class Piece(NamedTuple):
    """Rows of one run of records: which ones, counted from the first, and their columns."""

    records: Sequence[int]
    rows: pa.Table
    rounded: Rounded


@dataclass(slots=True)
class Decoded:
    pieces: list[Piece] = field(default_factory=list)
    problems: dict[int, Problem] = field(default_factory=dict)


class Encoded(NamedTuple):
    """Of each row its value, or what is wrong with it; and headers that belong to the value, if the codec has such."""

    values: list[bytes | Problem | None]
    headers: list[list[Header]] | None = None


class RowSource(NamedTuple):
    """Where the rows of a batch are from: what a codec may need besides their columns."""

    topic: str
    origin: str
    sequences: list[int]
    published_at: pa.Array

    def slice(self, at: int, count: int) -> "RowSource":
        """Of some of the rows."""
        return self._replace(sequences=self.sequences[at : at + count], published_at=self.published_at.slice(at, count))


class Codec(Protocol):
    consumed_headers: tuple[str, ...]
    """Beginnings of header names that become columns, and are not kept as headers."""

    def decode(self, records: Sequence[Record]) -> Decoded: ...

    def encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded: ...


# ---- by halves


def add_rows(
    decoded: Decoded,
    records: Sequence[int],
    values: list[T],
    make: Callable[[list[T]], tuple[pa.Table, Rounded]],
    reason: str,
) -> None:
    """The rows that `make` makes of the values of these records, and problems for those of which it makes none."""
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
    """What `encode` gives, with problems for the rows with which it fails."""
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
    """Names of the columns that are not read as Python's values, or are not written as JSON."""
    names = []
    for name in row.schema.names:
        try:
            write_json_object(pylist(row.select([name]))[0])
        except ODD:
            names.append(name)
    return names


def row_as_json(row: pa.RecordBatch) -> bytes:
    """One row, without the columns that cannot be written, if it has such."""
    try:
        return write_json_object(pylist(row)[0])
    except ODD:
        return write_json_object(pylist(row.drop_columns(_odd_columns(row)))[0])


# ---- raw


class RawCodec:
    consumed_headers: tuple[str, ...] = ()

    def decode(self, records: Sequence[Record]) -> Decoded:
        values = pa.array([record.value for record in records], pa.binary())
        return Decoded([Piece(range(len(records)), pa.table({VALUE: values}), {})])

    def encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        at = rows.schema.get_field_index(VALUE)
        if at < 0 or not (types.is_binary(rows.schema.field(at).type) or types.is_string(rows.schema.field(at).type)):
            problem = Problem("no-value-column", f"raw rows have a column {VALUE!r} of bytes or text")
            return Encoded([problem] * rows.num_rows)
        return Encoded(rows.column(at).cast(pa.binary()).to_pylist())


# ---- JSON


class JsonCodec:
    """`columns`: the types of columns that are known; others are guessed."""

    consumed_headers: tuple[str, ...] = ()

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        # These Arrow reads from the digits themselves; into others it would round, or take numbers for times.
        exact = (each for each in columns if types.is_decimal(each.type) or types.is_uint64(each.type))
        self._explicit = pa.schema(list(exact))

    def decode(self, records: Sequence[Record]) -> Decoded:
        values = [b"{}" if record.value is None else record.value for record in records]
        decoded = Decoded()
        add_rows(decoded, range(len(values)), values, self._rows, "not-json")
        return decoded

    def _rows(self, values: list[bytes]) -> tuple[pa.Table, Rounded]:
        rows, rounded = read_json_objects(values, self._explicit)
        for declared in self._columns:
            at = rows.schema.get_field_index(declared.name)
            if at < 0:
                rows = rows.append_column(declared, pa.nulls(len(values), declared.type))
            elif rows.schema.field(at).type != declared.type:
                rows = rows.set_column(at, declared, _as_declared(rows.column(at).combine_chunks(), declared))
        return rows, rounded

    def encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        return encode_rows(self._encode, rows, source, target)

    def _encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        return Encoded([write_json_object(row) for row in pylist(rows)])


def _as_declared(column: pa.Array, declared: pa.Field) -> pa.Array:
    """Text may be a time or bytes, if that is what the column was declared as."""
    is_said = types.is_string(column.type) and (types.is_temporal(declared.type) or types.is_binary(declared.type))
    try:
        return exact_cast(column, declared.type) if is_said else kindred_cast(column, declared.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {declared.name!r} is declared as {declared.type}: {error}") from None


def read_json_objects(values: list[bytes], explicit: pa.Schema) -> tuple[pa.Table, Rounded]:
    """One row for each value, which is one object."""
    for value in values:
        # One object each, begun and ended where its value is: else two broken ones could pass for two others.
        if value[:1] != b"{" or value[-1:] != b"}":
            stripped = value.strip()
            if stripped[:1] != b"{" or stripped[-1:] != b"}":
                raise ValueError("not a JSON object")
    return read_objects(values, explicit)


def write_json_object(row: Mapping[str, Any]) -> bytes:
    """`ValueError` for what JSON has not got: NaN and infinity."""
    written = json.dumps(
        _without_nulls(row), default=_json_value, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )
    return written.encode()


def _without_nulls(value: Any) -> Any:
    """A member that is absent reads as null: all columns that a row has not got are nulls on a channel."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return value


def _json_value(value: object) -> object:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case decimal.Decimal() | datetime.timedelta():
            return str(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON")


def pylist(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts="strict")
    return listed


# ---- Avro

MAGIC = b"\x00"
SINGLE_OBJECT = b"\xc3\x01"
FINGERPRINT = "CRC-64-AVRO"


class AvroCodec:
    """`registry` for the prefix of a schema registry; `schemas` for single objects. To write, the first of `schemas`;
    if there is none, what the columns give, which is registered as `TOPIC-value`."""

    consumed_headers: tuple[str, ...] = ()

    def __init__(self, registry: Registry | None, schemas: Sequence[Schema]) -> None:
        self._registry = registry
        self._schemas = list(schemas)
        self._by_fingerprint = {} if registry else {fingerprint_of(schema): AvroReader(schema) for schema in schemas}

    def decode(self, records: Sequence[Record]) -> Decoded:
        decoded = Decoded()
        run: list[int] = []
        values: list[Mapping[str, Any]] = []
        reader: AvroReader | None = None
        for at, record in enumerate(records):
            if record.value is None:  # a row of nulls, whatever the schema
                run.append(at)
                values.append({})
                continue
            try:
                its, body = self._reader(record.value)
                if its is not reader and reader is not None:
                    add_rows(decoded, run, values, _avro_rows(reader), "not-avro")
                    run, values = [], []
                reader = its
                values.append(reader.value(body))
                run.append(at)
            except (MissingSchemaError, UnsupportedError, fastavro.schema.SchemaParseException) as error:
                decoded.problems[at] = Problem("unknown-schema", str(error))
            except ODD as error:
                decoded.problems[at] = Problem("not-avro", f"{type(error).__name__}: {error}")
        if run:
            add_rows(decoded, run, values, _avro_rows(reader), "not-avro")
        return decoded

    def _reader(self, value: bytes) -> tuple[AvroReader, io.BytesIO]:
        """Of this value, with its bytes where the Avro begins."""
        body = io.BytesIO(value)
        if self._registry is not None:
            if len(value) < 5 or value[:1] != MAGIC:
                raise ValueError(f"no schema registry prefix: a zero byte and four more (begins with {value[:5]!r})")
            body.seek(5)
            return self._registry.reader(int.from_bytes(value[1:5], "big")), body
        if len(value) < 10 or value[:2] != SINGLE_OBJECT:
            raise ValueError(f"no single object: C3 01 and eight more bytes (begins with {value[:10]!r})")
        body.seek(10)
        reader = self._by_fingerprint.get(value[2:10])
        if reader is None:
            raise MissingSchemaError(f"no schema of avro_schemas has the fingerprint {value[2:10].hex()}")
        return reader, body

    def encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        return encode_rows(self._encode, rows, source, target)

    def _encode(self, rows: pa.RecordBatch, source: RowSource, target: str) -> Encoded:
        try:
            schema = self._schemas[0] if self._schemas else avro_schema(rows.schema, source.topic)
        except UnsupportedError as error:
            return Encoded([Problem("not-encodable", str(error))] * rows.num_rows)
        if self._registry is not None:
            try:
                number = self._registry.register(f"{target}-value", schema)
            except MissingSchemaError as error:
                return Encoded([Problem("schema-refused", str(error))] * rows.num_rows)
            prefix = MAGIC + number.to_bytes(4, "big")
        else:
            prefix = SINGLE_OBJECT + fingerprint_of(schema)
        encoded = encode(pylist(rows), schema, prefix, is_given=bool(self._schemas))
        return Encoded([Problem("not-encodable", str(v)) if isinstance(v, ValueError) else v for v in encoded])


def _avro_rows(reader: AvroReader | None) -> Callable[[list[Mapping[str, Any]]], tuple[pa.Table, Rounded]]:
    """Makes rows of values that the reader has read; without one, all are nulls."""
    if reader is None:
        return lambda values: (pa.table({VALUE: pa.nulls(len(values))}), {})
    return lambda values: (reader.table(values), {})


def fingerprint_of(schema: Schema) -> bytes:
    """Little-endian, as a single object has it."""
    # fastavro gives the bytes of the little-endian number as hex digits.
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), FINGERPRINT))


def load_avro_schema(path: Path) -> Schema:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
        fastavro.parse_schema(schema)
        return schema
    except (OSError, ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(f"{path}: is no Avro schema: {error}") from error
