"""`roster`: which nodes were expected to receive rows, from when to when. One row for each incarnation of a node.

Ingest merges what a node reports: a row of the same node and incarnation is replaced. It is small and needs no layout.
"""

from pyspark.sql.types import TimestampType

from m4cast.schemas.records import ROSTER_RECORD
from m4cast.schemas.tables.table import Column, Table, columns_of

ROSTER = Table(
    name="roster",
    comment="Which nodes were on the channel, from when to when, as one node reports it: one row per incarnation",
    columns=(
        *columns_of(ROSTER_RECORD),
        Column("read_at", TimestampType(), "when ingest asked the reporting node; a column of ingest, not of the door"),
    ),
    key=("node_id", "incarnation"),
    time="read_at",
    version=ROSTER_RECORD.version,
)
