"""`ordering_gaps`: the sequences of each stream at each receiver, in ranges that are held, skipped or missing.

The sequences of one stream at one receiver are a line. Its ranges that are not REPAIRED do not overlap and have no
holes between them, from the first sequence that the receiver reports to the last one that any receiver reports.
REPAIRED ranges were missing once; they lie within held or skipped ones and say from when to when. Besides the streams,
`origin` lines have the origin's batch numbers over all its topics in place of sequences: one line shows whether
anything of an origin is missing. EXPECTED ranges say which sequences were published while the receiver was on the
channel, by the roster; MISSING and SKIPPED ranges count for a verdict as far as they lie in them.

Partitioned by state: each run rewrites the present lines (their number depends on receivers and streams, not on time)
and only appends to the repaired ranges.
"""

from pyspark.sql.types import BooleanType, LongType, StringType, TimestampType

from m4cast.schemas.tables.table import Column, Table

EVERYBODY = "*"
"""A name in place of a receiver's: everything that any node has a record of, or a publisher a receipt."""
ALL_TOPICS = "*"
"""A name in place of a topic's, in the line of an origin."""

ORDERING_GAPS = Table(
    name="ordering_gaps",
    comment="Ranges of each stream that are held, skipped, missing or repaired, at each receiver",
    columns=(
        Column(
            "line", StringType(), "stream (numbers are sequences) or origin (numbers are origin_batch)", nullable=False
        ),
        Column("node_id", StringType(), "the receiver; * for all of them together", nullable=False),
        Column("origin", StringType(), "the node that numbered the rows", nullable=False),
        Column("topic", StringType(), "* for a line of an origin, which is over all topics", nullable=False),
        Column("state", StringType(), "HELD, SKIPPED, MISSING, REPAIRED or EXPECTED", nullable=False),
        Column("first", LongType(), "first number of the range", nullable=False),
        Column("last", LongType(), "last number of the range", nullable=False),
        Column("is_tail", BooleanType(), "MISSING at the end: the receiver lags and has no later rows", nullable=False),
        Column(
            "reason",
            StringType(),
            "SKIPPED: why (expired, lost, filtered, not-subscribed; deleted: nobody's delivery records are left)",
        ),
        Column(
            "first_seen_at",
            TimestampType(),
            "MISSING, REPAIRED: when the receiver took what follows the range; of a tail, when it took its last",
        ),
        Column("repaired_at", TimestampType(), "REPAIRED: when the receiver took the range after all"),
        Column("repaired_by", StringType(), "REPAIRED: batch or skip"),
        Column("records", LongType(), "HELD: delivery records that make up the range, with duplicates"),
        Column("duplicates", LongType(), "HELD: numbers delivered once more, counted each time"),
        Column(
            "reorder_depth", LongType(), "HELD: how far below the highest number a new range began at most; 0: in order"
        ),
        Column("first_delivered_at", TimestampType(), "HELD: by the receiver's clock"),
        Column("last_delivered_at", TimestampType(), "HELD: by the receiver's clock"),
        Column("last_delivery", LongType(), "the receiver's last delivery record in the line"),
        Column(
            "deliveries_version",
            LongType(),
            "version of the table deliveries that the line is based on",
            nullable=False,
        ),
        Column(
            "expected",
            LongType(),
            "MISSING, SKIPPED: rows of the range that lie in EXPECTED ones; null if there was no roster",
            since=2,
        ),
    ),
    key=("line", "node_id", "origin", "topic", "state", "first"),
    time="repaired_at",
    partition_by=("state",),
    version=2,
)
