"""The codecs avro and avro-single: Avro values, with the id or the fingerprint of their schema in a prefix."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from m4cast.overlay.bridge.codecs.avro_values import AvroReader, Schema, UnsupportedError, avro_schema, encode
from m4cast.overlay.bridge.codecs.codec import (
    ODD,
    VALUE,
    Decoded,
    Encoded,
    Problem,
    Record,
    RowSource,
    add_rows,
    encode_rows,
)
from m4cast.overlay.bridge.codecs.json_values import pylist
from m4cast.overlay.bridge.codecs.registry import MissingSchemaError, Registry
from m4cast.overlay.errors import ConfigError
from m4cast.schemas.json_types import Rounded

MAGIC = b"\x00"
SINGLE_OBJECT = b"\xc3\x01"
FINGERPRINT = "CRC-64-AVRO"


class AvroCodec:
    """Values in Avro. With a `registry` they carry its prefix; without one they are single objects of one of `schemas`.
    Values are written with the first of `schemas`, or else with a schema derived from the columns and registered as
    `TOPIC-value`."""

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
            if record.value is None:  # a row of nulls under any schema
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
        """The reader for this value, and its bytes from where the Avro data begins."""
        body = io.BytesIO(value)
        if self._registry is not None:
            if len(value) < 5 or value[:1] != MAGIC:
                raise ValueError(f"no schema registry prefix (a zero byte and four more): begins with {value[:5]!r}")
            body.seek(5)
            return self._registry.reader(int.from_bytes(value[1:5], "big")), body
        if len(value) < 10 or value[:2] != SINGLE_OBJECT:
            raise ValueError(f"no single-object prefix (C3 01 and eight more bytes): begins with {value[:10]!r}")
        body.seek(10)
        reader = self._by_fingerprint.get(value[2:10])
        if reader is None:
            raise MissingSchemaError(f"no schema in avro_schemas has the fingerprint {value[2:10].hex()}: add its file")
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
    """A function that builds rows from values that the reader decoded; without a reader, all of them are null."""
    if reader is None:
        return lambda values: (pa.table({VALUE: pa.nulls(len(values))}), {})
    return lambda values: (reader.table(values), {})


def fingerprint_of(schema: Schema) -> bytes:
    """The fingerprint in little-endian order, as in a single object."""
    # fastavro returns the little-endian bytes as hex digits.
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), FINGERPRINT))


def load_avro_schema(path: Path) -> Schema:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
        fastavro.parse_schema(schema)
        return schema
    except (OSError, ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(f"{path} is not an Avro schema: {error}") from error
