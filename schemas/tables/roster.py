"""`roster`: who was expected to receive, from when to when. One row for each incarnation of a node.

Ingest merges what a node tells: a row of the same node and incarnation is replaced. It is small; nothing is laid out.
"""

from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, TimestampType

from m4cast.schemas.tables.table import Column, Table

ROSTER = Table(
    name="roster",
    comment="Who was on the channel, from when to when, as one node tells it: one row per incarnation of a node",
    columns=(
        Column("node_id", StringType(), "32 hex digits", nullable=False),
        Column("name", StringType(), "the node's name", nullable=False),
        Column("site", StringType(), "the place it serves", nullable=False),
        Column("address", StringType(), "where it answers other nodes", nullable=False),
        Column("door", StringType(), "where clients reach it; empty: nowhere", nullable=False),
        Column("incarnation", LongType(), "raised each time the node opens its store", nullable=False),
        Column("from_at", TimestampType(), "when the teller first heard of this incarnation", nullable=False),
        Column("to_at", TimestampType(), "when it was over; null while it lasts"),
        Column("reason", StringType(), "why it is over: left, restarted"),
        Column("last_heard_at", TimestampType(), "its last beacon; null for what is over and for the teller itself"),
        Column("silent", BooleanType(), "three beacons are missing", nullable=False),
        Column("neighbours", ArrayType(StringType(), True), "node ids, by its last word"),
        Column("heard_by", StringType(), "the node that tells it: 32 hex digits", nullable=False),
        Column("read_at", TimestampType(), "when ingest asked the teller; not the door's but ingest's column"),
    ),
    key=("node_id", "incarnation"),
    time="read_at",
)
