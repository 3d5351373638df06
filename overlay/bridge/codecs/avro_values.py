"""Avro types to Arrow types and back, and the values between them; fastavro reads and writes the bytes.

    arrow_schema({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})  ->  id: int64

The fields of a record become columns; any other value becomes one column called `value`. Times are decoded as the
integers that Avro stores, which is exact and avoids creating objects. Enums and UUIDs become text. Types without an
Arrow column (unions of several types, recursive records) raise an `UnsupportedError` that names the field.
"""

import io
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import types

from m4cast.overlay.bridge.codecs.codec import VALUE
from m4cast.overlay.errors import M4castError

Schema = Any
"""An Avro schema, as parsed JSON."""

DEPTH_MAX = 32
_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIMES = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class UnsupportedError(M4castError):
    """An Avro schema that has no columns, or columns that have no Avro schema."""


class AvroReader:
    """Reads values of one writer schema into columns."""

    def __init__(self, schema: Schema) -> None:
        self.columns = arrow_schema(schema)
        self._is_record = isinstance(schema, Mapping) and schema.get("type") in ("record", "error")
        # Times are read in the writer's units, then cast to microseconds.
        self._read_columns = _columns(schema)
        self._parsed = fastavro.parse_schema(_without_times(schema))

    def value(self, body: io.BytesIO) -> Mapping[str, Any]:
        read = fastavro.schemaless_reader(body, self._parsed, None)
        return read if self._is_record else {VALUE: read}  # type: ignore[return-value]  # a record is a dict

    def table(self, values: list[Mapping[str, Any]]) -> pa.Table:
        """The rows of values that `value` returned; an empty value is a row of nulls."""
        arrays = [pa.array([row.get(field.name) for row in values], field.type) for field in self._read_columns]
        return pa.Table.from_arrays(arrays, schema=self._read_columns).cast(self.columns)


def encode(
    rows: Iterable[Mapping[str, Any]], schema: Schema, prefix: bytes, *, is_given: bool
) -> list[bytes | ValueError]:
    """Each row as Avro after the prefix, or the error of a row that does not fit the schema. With a configured schema
    (`is_given`) fastavro may round silently, so each value is read back to detect it."""
    parsed = fastavro.parse_schema(schema)
    is_record = isinstance(parsed, Mapping) and parsed.get("type") in ("record", "error")
    encoded: list[bytes | ValueError] = []
    for row in rows:
        body = io.BytesIO()
        body.write(prefix)
        try:
            fastavro.schemaless_writer(body, parsed, row if is_record else row.get(VALUE))
            if is_given:
                body.seek(len(prefix))
                read: Any = fastavro.schemaless_reader(body, parsed, None)
                _refuse_changed(row, read if is_record else {VALUE: read})
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
            encoded.append(ValueError(f"{type(error).__name__}: {error}"))
            continue
        encoded.append(body.getvalue())
    return encoded


def _refuse_changed(row: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    for name, value in read.items():
        if name in row and not _is_same(row[name], value):
            raise ValueError(f"column {name!r} would be changed to {str(value)[:100]} by the schema")


def _is_same(value: Any, read: Any) -> bool:
    if isinstance(read, Mapping) and isinstance(value, Mapping):
        return all(_is_same(value[name], each) for name, each in read.items() if name in value)
    if isinstance(read, list) and isinstance(value, list):
        return len(read) == len(value) and all(map(_is_same, value, read))
    is_nan = value != value and read != read
    return bool(value == read or is_nan or (isinstance(read, uuid.UUID) and str(read) == str(value).lower()))


# ---- Avro to Arrow


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns, with the types that a channel uses."""
    return pa.schema([(field.name, _canonical(field.type)) for field in _columns(schema)])


def _columns(schema: Schema) -> pa.Schema:
    """The columns, with times in the units of the writer."""
    parsed = fastavro.parse_schema(schema)  # it expands names and references
    named: dict[str, Schema] = {}
    if isinstance(parsed, Mapping) and parsed["type"] in ("record", "error"):
        named[parsed["name"]] = parsed
        return pa.schema([(each["name"], _arrow(each["type"], each["name"], named, 0)) for each in parsed["fields"]])
    return pa.schema([(VALUE, _arrow(parsed, VALUE, named, 0))])


def _arrow(schema: Schema, where: str, named: dict[str, Schema], depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise UnsupportedError(f"{where}: nested deeper than {DEPTH_MAX} levels, or a recursive record")
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in named:
            return _arrow(named[schema], where, named, depth + 1)
        raise UnsupportedError(f"{where}: unknown type {schema!r}")
    if isinstance(schema, list):
        members = [member for member in schema if member != "null"]
        if len(members) > 1:
            raise UnsupportedError(f"{where}: a union of several types cannot be a column")
        return _arrow(members[0], where, named, depth) if members else pa.null()
    return _arrow_complex(schema, where, named, depth)


def _arrow_complex(schema: Mapping[str, Any], where: str, named: dict[str, Schema], depth: int) -> pa.DataType:
    kind, logical = schema["type"], schema.get("logicalType")
    if "name" in schema:
        named[schema["name"]] = schema
    if logical in _TIMES:
        return _TIMES[logical]
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    match kind:
        case "array":
            return pa.list_(pa.field("element", _arrow(schema["items"], where, named, depth + 1)))
        case "map":
            return pa.map_(pa.string(), _arrow(schema["values"], where, named, depth + 1))
        case "enum":
            return pa.string()
        case "fixed":
            return pa.binary(schema["size"])
        case "record" | "error":
            fields = [
                (each["name"], _arrow(each["type"], f"{where}.{each['name']}", named, depth + 1))
                for each in schema["fields"]
            ]
            return pa.struct(fields)
        case _:
            return _arrow(kind, where, named, depth + 1)


def _canonical(type_: pa.DataType) -> pa.DataType:
    """The type with times in microseconds, as a channel stores them."""
    if types.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if types.is_list(type_):
        return pa.list_(pa.field("element", _canonical(type_.value_type)))
    if types.is_map(type_):
        return pa.map_(pa.string(), _canonical(type_.item_type))
    if types.is_struct(type_):
        return pa.struct([(field.name, _canonical(field.type)) for field in type_])
    return type_


def _without_times(schema: Schema) -> Schema:
    """A schema that reads the same bytes as plain numbers and text. Decimals stay, since their bytes need the scale."""
    if isinstance(schema, list):
        return [_without_times(member) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain = {name: value for name, value in schema.items() if name not in ("logicalType", "default")}
    if schema.get("logicalType") == "decimal":
        plain["logicalType"] = "decimal"
    for name in ("items", "values"):
        if name in plain:
            plain[name] = _without_times(plain[name])
    if isinstance(plain["type"], Mapping | list):
        plain["type"] = _without_times(plain["type"])
    if "fields" in plain:
        plain["fields"] = [{"name": field["name"], "type": _without_times(field["type"])} for field in schema["fields"]]
    return plain


# ---- Arrow to Avro

_AVRO = (
    (types.is_null, "null"),
    (types.is_boolean, "boolean"),
    (lambda type_: types.is_integer(type_) and type_.bit_width < 32, "int"),
    (types.is_int32, "int"),
    (lambda type_: types.is_int64(type_) or types.is_uint32(type_), "long"),
    (lambda type_: types.is_float16(type_) or types.is_float32(type_), "float"),
    (types.is_float64, "double"),
    (types.is_string, "string"),
    (types.is_binary, "bytes"),
    (types.is_date32, {"type": "int", "logicalType": "date"}),
    (types.is_time32, {"type": "int", "logicalType": "time-millis"}),
    (types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)


def avro_schema(columns: pa.Schema, name: str) -> Schema:
    """A record with one nullable field for each column."""
    return {
        "type": "record",
        "name": _named(re.sub("[^A-Za-z0-9_]", "_", name), name),
        "namespace": "m4cast.topics",
        "fields": [
            {"name": _named(field.name, field.name), "type": _nullable(field.type, field.name), "default": None}
            for field in columns
        ],
    }


def _nullable(type_: pa.DataType, where: str) -> Schema:
    avro = _avro(type_, where)
    return avro if avro == "null" else ["null", avro]


def _avro(type_: pa.DataType, where: str) -> Schema:
    for is_such, avro in _AVRO:
        if is_such(type_):
            return avro
    if types.is_timestamp(type_):
        return {"type": "long", "logicalType": f"{'' if type_.tz else 'local-'}timestamp-micros"}
    if types.is_decimal128(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if types.is_fixed_size_binary(type_):
        return {"type": "fixed", "name": f"{where.replace('.', '_')}_bytes", "size": type_.byte_width}
    if types.is_list(type_) or types.is_fixed_size_list(type_):
        return {"type": "array", "items": _nullable(type_.value_type, where)}
    if types.is_map(type_) and types.is_string(type_.key_type):
        return {"type": "map", "values": _nullable(type_.item_type, where)}
    if types.is_struct(type_):
        fields = [
            {
                "name": _named(field.name, f"{where}.{field.name}"),
                "type": _nullable(field.type, f"{where}.{field.name}"),
                "default": None,
            }
            for field in type_
        ]
        return {"type": "record", "name": f"{where.replace('.', '_')}_record", "fields": fields}
    raise UnsupportedError(f"column {where!r} is {type_}, which has no Avro type: set avro_schemas")


def _named(name: str, where: str) -> str:
    if not _NAME.fullmatch(name):
        raise UnsupportedError(f"column {where!r} has a name that Avro does not allow: set avro_schemas")
    return name
