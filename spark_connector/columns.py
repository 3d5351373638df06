"""Columns: a topic's as Spark's, and rows projected to the columns that Spark planned with.

Spark's schema is fixed when a query is planned, and every record batch has to equal its Arrow form exactly. Columns
that rows lack are null; columns that came later are an error, or dropped; types are cast where nothing is lost.
Arrow types that Spark has not got become the next wider one that it has.
"""

from collections.abc import Iterable

import pyarrow as pa
from pyarrow import types
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from m4cast.spark_connector.errors import ConnectorError

METADATA = ("_topic", "_origin", "_sequence", "_published_at")
"""Of each row, behind its own columns."""
RESERVED = frozenset({*METADATA, "_channel", "_delivered_at", "_hops", "_node"})
"""Names that payload cannot have."""
_WIDER = (
    (types.is_uint8, pa.int16()),
    (types.is_uint16, pa.int32()),
    (types.is_uint32, pa.int64()),
    (types.is_uint64, pa.decimal128(20, 0)),
    (types.is_float16, pa.float32()),
    (types.is_date64, pa.date32()),
    (types.is_time, pa.time64("ns")),
)


def merged(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """All columns of some topics, in the order in which they are met, those of the channel last."""
    fields: dict[str, tuple[str, pa.Field]] = {}
    for topic, schema in schemas:
        for field in schema:
            known = fields.get(field.name)
            if known is None or types.is_null(known[1].type):
                fields[field.name] = (topic, field)
            elif not types.is_null(field.type) and known[1].type != field.type:
                problem = f"column {field.name!r} is {known[1].type} in {known[0]!r} and {field.type} in {topic!r}"
                fix = "read the topics apart and cast, or give one schema by schema()"
                raise ConnectorError("M4CAST_SCHEMA_CONFLICT", problem, fix)
    payload = [field for name, (_, field) in fields.items() if name not in METADATA]
    return pa.schema([*payload, *(fields[name][1] for name in METADATA if name in fields)])


def spark_schema(schema: pa.Schema) -> StructType:
    found = StructType()
    for field in schema:
        try:
            found.add(StructField(field.name, from_arrow_type(_known_to_spark(field.type)), True))
        except (PySparkException, ValueError):
            problem = f"column {field.name!r} has the Arrow type {field.type}, which Spark has not got"
            fix = "publish it as another type, or leave the column out by schema()"
            raise ConnectorError("M4CAST_UNSUPPORTED_TYPE", problem, fix) from None
    return found


def arrow_schema(schema: StructType) -> pa.Schema:
    """What record batches for Spark look like."""
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


def projected(rows: pa.RecordBatch, wanted: pa.Schema, *, drop_others: bool) -> pa.RecordBatch:
    """The rows with exactly the wanted columns. Columns that are as wanted are not copied."""
    if not drop_others:
        _refuse_new(rows.schema, wanted)
    arrays = []
    for field in wanted:
        at = rows.schema.get_field_index(field.name)
        column = pa.nulls(rows.num_rows, field.type) if at < 0 else _as(rows.column(at), field)
        if not field.nullable and column.null_count:
            problem = f"column {field.name!r} has nulls, and the schema does not allow them"
            raise ConnectorError("M4CAST_COLUMN_TYPE", problem, "make it nullable in schema()")
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _refuse_new(schema: pa.Schema, wanted: pa.Schema) -> None:
    known = set(wanted.names)
    new = [name for name in schema.names if name not in known]
    if new:
        problem = f"the topic has columns that it had not when the query was planned: {', '.join(new[:20])}"
        fix = "restart the query to read them, or set onNewColumns to ignore"
        raise ConnectorError("M4CAST_NEW_COLUMNS", problem, fix)


def _as(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        problem = f"column {field.name!r} is {column.type}, which does not go into {field.type} ({error})"
        raise ConnectorError(
            "M4CAST_COLUMN_TYPE", problem, "correct the type in schema(), or restart the query"
        ) from None
