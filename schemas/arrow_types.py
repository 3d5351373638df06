"""The rows that travel as Arrow: events, and the records of `records`, derived from their definitions.

Every column is nullable on a channel: whoever writes rows ensures what a definition requires.
"""

import pyarrow as pa

from m4cast.schemas import records
from m4cast.schemas.records import Kind, RecordDefinition

TIME = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

ARROW_TYPES: dict[Kind, pa.DataType] = {
    "text": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
    "time": TIME,
    "texts": pa.list_(pa.field("element", pa.string())),
    "headers": HEADERS,
}


def arrow_schema(record: RecordDefinition) -> pa.Schema:
    return pa.schema([(field.name, ARROW_TYPES[field.kind]) for field in record.fields])


DELIVERIES = arrow_schema(records.DELIVERY_RECORD)
ROSTER = arrow_schema(records.ROSTER_RECORD)
INTEREST = arrow_schema(records.INTEREST_RECORD)
DEAD_LETTER = arrow_schema(records.DEAD_LETTER)
CLIENT_PROFILES = pa.schema(
    [
        ("key", pa.string()),
        ("node_id", pa.string()),
        ("node", pa.string()),
        ("name", pa.string()),
        ("topic", pa.string()),
        ("where", pa.string()),
        ("language", pa.string()),
        ("begin", pa.map_(pa.string(), pa.int64())),
    ]
)
"""Profiles of clients: where they are attached, and where each profile begins in each stream."""
EVENT = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("specversion", pa.string()),
        ("type", pa.string()),
        ("subject", pa.string()),
        ("time", TIME),
        ("datacontenttype", pa.string()),
        ("dataschema", pa.string()),
        ("sequence", pa.string()),
        ("extensions", pa.map_(pa.string(), pa.string())),
        ("data", pa.binary()),
    ]
)
"""`schemas/avro/event.avsc`."""
