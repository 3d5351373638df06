"""`delivery_audit`: for each stream, receiver and minute of publication, what was published and what arrived.

A row covers the rows that were published in its minute, whenever they arrived; when more arrive, the minute is
rewritten. Clustered by minute: audits rewrite minutes, and users query the latest.
"""

from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, TimestampType

from m4cast.schemas.tables.table import Column, Table

BAD = ("INCOMPLETE", "STALLED", "SILENT")
"""Statuses of windows with missing rows."""
NOT_READ = "NOT_READ"
"""The status of windows without rows that are known to be missing, but with some that are not known."""

DELIVERY_AUDIT = Table(
    name="delivery_audit",
    comment="Published against delivered, per stream, receiver and minute of publication",
    columns=(
        Column("window_start", TimestampType(), "the minute of publication, by the origin's clock", nullable=False),
        Column("origin", StringType(), "the node that numbered the rows", nullable=False),
        Column("topic", StringType(), "with the origin: the stream", nullable=False),
        Column("node_id", StringType(), "the receiver", nullable=False),
        Column("status", StringType(), "OK LATE INCOMPLETE STALLED SILENT NOT_READ LEFT NOT_EXPECTED", nullable=False),
        Column("published", LongType(), "rows that were published in the window", nullable=False),
        Column(
            "expected", LongType(), "of them, while the receiver was on the channel and wanted them", nullable=False
        ),
        Column("delivered", LongType(), "published rows that arrived, expected or not, each once", nullable=False),
        Column("missing", LongType(), "expected rows that did not arrive, and no skip says why", nullable=False),
        Column("lost", LongType(), "expected rows that a skip gave up: expired or lost", nullable=False),
        Column(
            "declined",
            LongType(),
            "rows that the receiver did not want: by its interest, or by a skip filtered or not-subscribed",
            nullable=False,
        ),
        Column(
            "mismatched", LongType(), "rows that arrived with another checksum; they count as missing", nullable=False
        ),
        Column("duplicates", LongType(), "rows that arrived once more, counted each time", nullable=False),
        Column("completeness", DoubleType(), "expected rows that arrived, in percent; null if none was expected"),
        Column("latency_p50_ms", DoubleType(), "of rows, delivered_at - published_at"),
        Column("latency_p95_ms", DoubleType(), "the same"),
        Column("latency_p99_ms", DoubleType(), "the same"),
        Column("latency_max_ms", DoubleType(), "the same"),
        Column("clocks", StringType(), "own: one node's clock; host: one host's; apart: two hosts', not corrected"),
        Column("hops_mean", DoubleType(), "links travelled, of rows"),
        Column("hops_max", LongType(), "links travelled"),
        Column(
            "published_checksum", StringType(), "exclusive-or of the checksums of the expected batches", nullable=False
        ),
        Column("delivered_checksum", StringType(), "of those of them that arrived", nullable=False),
        Column("is_identical", BooleanType(), "the two are equal: what was expected is what arrived", nullable=False),
        Column("first_sequence", LongType(), "of what was published in the window", nullable=False),
        Column("last_sequence", LongType(), "of what was published in the window", nullable=False),
        Column("run_id", StringType(), "the run that stated this row last", nullable=False),
        Column(
            "not_read",
            LongType(),
            "expected rows of which nobody knows, since the receiver's delivery records were not read; not missing",
            since=2,
        ),
        Column(
            "epoch",
            LongType(),
            "of selective topics: the latest epoch of what the receiver wanted; null if it wanted nothing of the topic",
            since=3,
        ),
    ),
    key=("window_start", "origin", "topic", "node_id"),
    time="window_start",
    cluster_by=("window_start", "node_id"),
    version=3,
)
