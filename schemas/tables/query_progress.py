"""`query_progress`: what streaming queries that read or publish a channel have done, one row for each trigger.

`m4cast.spark_connector.progress.DeltaProgressListener` appends what Spark tells. It is small; nothing is laid out.
"""

from pyspark.sql.types import LongType, StringType, TimestampType

from m4cast.schemas.tables.table import Column, Table

QUERY_PROGRESS = Table(
    name="query_progress",
    comment="What streaming queries on the channel have done, trigger by trigger",
    columns=(
        Column("query_id", StringType(), "of the checkpoint", nullable=False),
        Column("run_id", StringType(), "of this start of the query", nullable=False),
        Column("query_name", StringType(), "as the user has named it"),
        Column("batch_id", LongType(), "the micro-batch", nullable=False),
        Column("started_at", TimestampType(), "of the trigger, by the clock of the driver", nullable=False),
        Column("row_count", LongType(), "rows read from all sources", nullable=False),
        Column(
            "payload_bytes", LongType(), "about, of the rows read from the channel: by the mean sizes of its streams"
        ),
        Column("rows_behind", LongType(), "between the end of the micro-batch and the latest that the node had"),
        Column(
            "rows_skipped",
            LongType(),
            "covered by the micro-batch, kept by nobody and passed over; null of a query's first",
        ),
        Column("publish_ms", LongType(), "tasks and commit of the sink; of a sink that publishes, its latency"),
        Column("trigger_ms", LongType(), "the whole trigger"),
    ),
    key=("query_id", "batch_id", "run_id"),
    time="started_at",
)
