"""Columns: a topic's columns as Spark columns, the channel's own columns, and rows projected to Spark's schema.

Spark's schema is fixed when a query is planned, and every record batch must match its Arrow form exactly. Columns that
rows lack are null; columns that were added later are an error, or are dropped; types are cast if the cast is exact. An
Arrow type that Spark lacks becomes the next wider type.

The channel's columns are not transferred: their values are the same for a whole batch, or count its rows, so they are
built here for each batch from what the node reports about it.

Cost: columns that already match are not copied; repeated names are built once and sliced. `tests/bench` watches it.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from m4cast.schemas.casts import exact_cast
from m4cast.spark_connector.errors import ConnectorError

_TIME = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
CHANNEL_TYPES: dict[str, pa.DataType] = {
    "_channel": pa.string(),
    "_topic": pa.string(),
    "_origin": pa.string(),
    "_sequence": pa.int64(),
    "_published_at": _TIME,
    "_key": pa.binary(),
    "_headers": HEADERS,
    "_delivered_at": _TIME,
    "_hops": pa.int32(),
    "_node": pa.string(),
}
"""Columns with a meaning to the channel. The publisher provides `_key` and `_headers`; the others are built."""
PUBLISHERS = frozenset({"_key", "_headers"})
RESERVED = frozenset(CHANNEL_TYPES) - PUBLISHERS
"""Names that a publisher's columns cannot have."""
RAW = pa.schema(
    [
        ("payload", pa.binary()),
        ("first_sequence", pa.int64()),
        ("last_sequence", pa.int64()),
        ("checksum", pa.string()),
    ]
)
"""The columns of a batch as it was published."""
REPEATED_ROWS = 65_536
"""Rows of a repeated name that is cached; 16 are cached, about 2.5 MB each."""
_WIDER = (
    (types.is_uint8, pa.int16()),
    (types.is_uint16, pa.int32()),
    (types.is_uint32, pa.int64()),
    (types.is_uint64, pa.decimal128(20, 0)),
    (types.is_float16, pa.float32()),
    (types.is_date64, pa.date32()),
    (types.is_time, pa.time64("ns")),
)


# ---- planning


def merged(schemas: Iterable[tuple[str, pa.Schema]], metadata: Iterable[str]) -> pa.Schema:
    """All columns of the topics, in order of appearance, then the requested columns of the channel."""
    wanted = [pa.field(name, CHANNEL_TYPES[name]) for name in metadata]
    made = {*RESERVED, *metadata}
    fields: dict[str, tuple[str, pa.Field]] = {}
    for topic, schema in schemas:
        for field in schema:
            if field.name in made:
                continue
            known = fields.get(field.name)
            if known is None or types.is_null(known[1].type):
                fields[field.name] = (topic, field)
            elif not types.is_null(field.type) and known[1].type != field.type:
                problem = f"column {field.name!r} is {known[1].type} in {known[0]!r} and {field.type} in {topic!r}"
                fix = "read the topics separately and cast, or set one schema with schema()"
                raise ConnectorError("M4CAST_SCHEMA_CONFLICT", problem, fix)
    return pa.schema([*(field for _, field in fields.values()), *wanted])


def spark_schema(schema: pa.Schema) -> StructType:
    found = StructType()
    for field in schema:
        try:
            found.add(StructField(field.name, from_arrow_type(_known_to_spark(field.type)), True))
        except (PySparkException, ValueError):
            problem = f"column {field.name!r} has the Arrow type {field.type}, which Spark does not support"
            fix = "publish it as another type, or omit the column with schema()"
            raise ConnectorError("M4CAST_UNSUPPORTED_TYPE", problem, fix) from None
    return found


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of record batches for Spark."""
    return to_arrow_schema(schema, timezone="UTC")


def _known_to_spark(type_: pa.DataType) -> pa.DataType:
    for is_such, wider in _WIDER:
        if is_such(type_):
            return wider
    if types.is_decimal(type_):
        return pa.decimal128(type_.precision, type_.scale)  # ValueError beyond 38 digits
    if types.is_map(type_):
        return pa.map_(_known_to_spark(type_.key_type), _known_to_spark(type_.item_type))
    if types.is_list(type_) or types.is_fixed_size_list(type_):
        return pa.list_(pa.field("element", _known_to_spark(type_.value_type)))
    if types.is_struct(type_):
        return pa.struct([pa.field(field.name, _known_to_spark(field.type)) for field in type_])
    return type_


# ---- reading


def projected(
    rows: pa.RecordBatch, wanted: pa.Schema, where: Mapping[str, Any], *, drop_others: bool
) -> pa.RecordBatch:
    """The rows with exactly the wanted columns. `where`: what the node reports about them, see `RangeRead.where`; empty
    for records without columns of the channel."""
    if not drop_others:
        _refuse_new(rows.schema, wanted)
    arrays = []
    for field in wanted:
        at = rows.schema.get_field_index(field.name)
        make = _MADE.get(field.name) if where else None
        if at >= 0 and not types.is_null(field.type):
            column = _as(rows.column(at), field)
        elif at < 0 and make is not None:
            column = _as(make(where, rows.num_rows), field)
        else:
            column = pa.nulls(rows.num_rows, field.type)
        if not field.nullable and column.null_count:
            problem = f"column {field.name!r} contains nulls, which the schema does not allow"
            raise ConnectorError("M4CAST_COLUMN_TYPE", problem, "make it nullable in schema()")
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _refuse_new(schema: pa.Schema, wanted: pa.Schema) -> None:
    """A column without a type has no values, so it counts as new only once it has a type."""
    known = {*RESERVED, *(field.name for field in wanted if not types.is_null(field.type))}
    new = [field.name for field in schema if field.name not in known and not types.is_null(field.type)]
    if new:
        problem = f"the topic has gained columns since the query was planned: {', '.join(new[:20])}"
        fix = "restart the query to read them, or set onNewColumns to ignore"
        raise ConnectorError("M4CAST_NEW_COLUMNS", problem, fix)


def _as(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    try:
        return exact_cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        problem = f"column {field.name!r} is {column.type} and cannot be cast to {field.type} exactly ({error})"
        raise ConnectorError(
            "M4CAST_COLUMN_TYPE", problem, "correct the type in schema(), or restart the query"
        ) from None


# ---- the channel's columns


def _name(key: str) -> Callable[[Mapping[str, Any], int], pa.Array]:
    def make(where: Mapping[str, Any], count: int) -> pa.Array:
        """The same text in every row, built once and sliced, since a reader sees the same few names again and again."""
        if count > REPEATED_ROWS:
            return pa.repeat(pa.scalar(where[key], pa.string()), count)
        return _long_repeated(where[key]).slice(0, count)

    return make


@lru_cache(maxsize=16)
def _long_repeated(text: str) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), REPEATED_ROWS)


def _time(key: str) -> Callable[[Mapping[str, Any], int], pa.Array]:
    return lambda where, count: pa.repeat(pa.scalar(where[key] * 1000, _TIME), count)


_MADE: dict[str, Callable[[Mapping[str, Any], int], pa.Array]] = {
    "_channel": _name("channel"),
    "_topic": _name("topic"),
    "_origin": _name("origin"),
    "_sequence": lambda where, count: pa.arange(where["next"] - count, where["next"]),
    "_published_at": _time("published_at_ms"),
    "_delivered_at": _time("delivered_at_ms"),
    "_hops": lambda where, count: pa.repeat(pa.scalar(where["hops"], pa.int32()), count),
    "_node": _name("node_id"),
}
