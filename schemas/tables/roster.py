"""`roster`: who was expected to receive, from when to when. One row for each incarnation of a node.

Ingest merges what a node tells: a row of the same node and incarnation is replaced. It is small; nothing is laid out.
"""

from pyspark.sql.types import TimestampType

from m4cast.schemas.records import ROSTER_RECORD
from m4cast.schemas.tables.table import Column, Table, columns_of

ROSTER = Table(
    name="roster",
    comment="Who was on the channel, from when to when, as one node tells it: one row per incarnation of a node",
    columns=(
        *columns_of(ROSTER_RECORD),
        Column("read_at", TimestampType(), "when ingest asked the reporting node; a column of ingest, not of the door"),
    ),
    key=("node_id", "incarnation"),
    time="read_at",
    version=ROSTER_RECORD.version,
)
