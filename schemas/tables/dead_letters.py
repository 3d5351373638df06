"""`dead_letters`: what could not be carried on, with what it takes to try again.

The columns are those of the Avro record that bridges publish, so that their dead letters and those of ingest lie in one
table. A row names its place at its source, so that it can be read again while that keeps it, and holds what was read,
so that it can be tried again when it does not.
"""

from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType, TimestampType

from m4cast.schemas.tables.table import Column, Table

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

DEAD_LETTERS = Table(
    name="dead_letters",
    comment="What could not be carried on: as it was read, why, and where it came from",
    columns=(
        Column("failed_at", TimestampType(), "when it was given up", nullable=False),
        Column("failed_by", StringType(), "who gave it up: ingest, kafka-in/NAME, kafka-out/NAME", nullable=False),
        Column("reason", StringType(), "a stable word", nullable=False),
        Column("detail", StringType(), "what exactly is wrong with it", nullable=False),
        Column("source", StringType(), "channel or kafka", nullable=False),
        Column("source_topic", StringType(), "topic there", nullable=False),
        Column("source_stream", StringType(), "channel: the origin; kafka: the partition", nullable=False),
        Column("source_position", LongType(), "channel: the sequence; kafka: the offset", nullable=False),
        Column("target_topic", StringType(), "where it was to go", nullable=False),
        Column("key", BinaryType(), "as it was read"),
        Column("value", BinaryType(), "as it was read"),
        Column("headers", ArrayType(HEADER), "as they were read"),
        Column("timestamp", TimestampType(), "the source's own time of it"),
        Column("replayed_at", TimestampType(), "when it was carried on after all; null until then"),
    ),
    key=("source", "source_topic", "source_stream", "source_position", "failed_by"),
    time="failed_at",
    cluster_by=("failed_at",),
)
