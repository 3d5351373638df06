"""`interest`: which rows were wanted at which node, from when to when. One row for each registration.

Ingest merges what each node reports: a row of the same node and number is replaced by a later revision. It is small and
needs no layout.
"""

from pyspark.sql.types import TimestampType

from m4cast.schemas.records import INTEREST_RECORD
from m4cast.schemas.tables.table import Column, Table, columns_of

INTEREST = Table(
    name="interest",
    comment="Which rows were wanted at which node, from when to when: one row per registration",
    columns=(
        *columns_of(INTEREST_RECORD),
        Column("read_at", TimestampType(), "when ingest read its last change; a column of ingest, not of the door"),
        Column("first_read_at", TimestampType(), "when ingest first met it; a column of ingest, too"),
    ),
    key=("node_id", "number"),
    time="until_at",
    version=INTEREST_RECORD.version,
)
