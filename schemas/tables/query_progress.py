"""`query_progress`: what streaming queries that read or publish a channel have done, one row for each trigger.

`m4cast.spark_connector.progress.DeltaProgressListener` appends what Spark reports. It is small and needs no layout.
"""

from pyspark.sql.types import LongType, StringType, TimestampType

from m4cast.schemas.tables.table import Column, Table

QUERY_PROGRESS = Table(
    name="query_progress",
    comment="What streaming queries on the channel have done, trigger by trigger",
    columns=(
        Column("query_id", StringType(), "of the checkpoint", nullable=False),
        Column("run_id", StringType(), "of this start of the query", nullable=False),
        Column("query_name", StringType(), "as the user named it"),
        Column("batch_id", LongType(), "the micro-batch", nullable=False),
        Column("started_at", TimestampType(), "of the trigger, by the clock of the driver", nullable=False),
        Column("row_count", LongType(), "rows read from all sources", nullable=False),
        Column(
            "payload_bytes", LongType(), "estimate for the rows read from the channel, by the mean sizes of its streams"
        ),
        Column("rows_behind", LongType(), "between the end of the micro-batch and the latest row of the node"),
        Column(
            "rows_skipped",
            LongType(),
            "in the range of the micro-batch, but retained by no node and skipped; null for a query's first",
        ),
        Column("publish_ms", LongType(), "duration of the sink's tasks and commit"),
        Column("trigger_ms", LongType(), "duration of the whole trigger"),
        Column(
            "rows_tested",
            LongType(),
            "tested by the nodes with the option where; null without it, and for a query's first micro-batch",
            since=2,
        ),
        Column("rows_filtered", LongType(), "those of the tested rows that did not match and were not sent", since=2),
    ),
    key=("query_id", "batch_id", "run_id"),
    time="started_at",
    version=2,
)
