"""The rows that travel as Arrow and are defined in Avro as well: events and dead letters.

Both definitions say the same; a test compares them, names, order and types. Every column is nullable on a channel, so
what Avro demands is demanded by whoever writes the rows.
"""

import pyarrow as pa

TIME = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

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

DEAD_LETTER = pa.schema(
    [
        ("failed_at", TIME),
        ("failed_by", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("source", pa.string()),
        ("source_topic", pa.string()),
        ("source_stream", pa.string()),
        ("source_position", pa.int64()),
        ("target_topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", TIME),
    ]
)
"""`schemas/avro/dead_letter.avsc`."""
