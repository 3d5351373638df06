"""`deliveries`: what was handed over at which node, in the order of arrival. One row for each batch and each skip.

Partitioned by `kind`: every audit asks for all skips, which are few and have no time of publication, and for the
batches that were published in some minutes. Those are found by the files' statistics: ingest writes records as they
come, so a file spans little time. The change feed gives audits what is new; for rows that are only ever appended it
stores nothing of its own.
"""

from pyspark.sql.types import IntegerType, LongType, StringType, TimestampType

from m4cast.schemas.tables.table import Column, Table

DELIVERIES = Table(
    name="deliveries",
    comment="What was handed over at which node, in the order of arrival: one row per batch or skip",
    columns=(
        Column("delivery", LongType(), "number of the record at its node, from 1, without gaps", nullable=False),
        Column(
            "node_id", StringType(), "the node where it was handed over (the receiver), 32 hex digits", nullable=False
        ),
        Column("node", StringType(), "that node's name", nullable=False),
        Column("incarnation", LongType(), "of that node, when it was handed over", nullable=False),
        Column("origin", StringType(), "the node that numbered the rows, 32 hex digits", nullable=False),
        Column("topic", StringType(), "with the origin: the stream", nullable=False),
        Column("first_sequence", LongType(), "first row of the range in its stream, from 1", nullable=False),
        Column("last_sequence", LongType(), "last row of the range", nullable=False),
        Column("kind", StringType(), "batch or skip", nullable=False),
        Column("reason", StringType(), "of a skip: expired, lost, filtered, not-subscribed"),
        Column("published_at", TimestampType(), "by the origin's clock; null for a skip"),
        Column("delivered_at", TimestampType(), "by the receiver's clock", nullable=False),
        Column("hops", IntegerType(), "links that the batch travelled; null for a skip"),
        Column("from_node", StringType(), "the neighbour it came from; null for a skip and for an own batch"),
        Column("how", StringType(), "published, pushed, pulled, or filled (in place of a skip); null for a skip"),
        Column("origin_batch", LongType(), "the origin's own count of batches over all topics; null for a skip"),
        Column("row_count", LongType(), "rows of the range; of a skip: the rows that are not there", nullable=False),
        Column("payload_bytes", LongType(), "null for a skip"),
        Column("checksum", StringType(), "of the batch, 16 hex digits, equal at all nodes; null for a skip"),
    ),
    key=("node_id", "delivery"),
    time="delivered_at",
    partition_by=("kind",),
    properties={"delta.enableChangeDataFeed": "true", "delta.dataSkippingNumIndexedCols": "19"},
)
