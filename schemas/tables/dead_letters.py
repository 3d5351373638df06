"""`dead_letters`: what could not be carried on, with what it takes to try again.

The columns are those of the Avro record that bridges publish, so that their dead letters and those of ingest lie in one
table. A row names its place at its source, so that it can be read again while that keeps it, and holds what was read,
so that it can be tried again when it does not.
"""

from pyspark.sql.types import TimestampType

from m4cast.schemas.records import DEAD_LETTER
from m4cast.schemas.tables.table import Column, Table, columns_of

DEAD_LETTERS = Table(
    name="dead_letters",
    comment="What could not be carried on: as it was read, why, and where it came from",
    columns=(
        *columns_of(DEAD_LETTER),
        Column("replayed_at", TimestampType(), "when it was processed after all; null until then"),
    ),
    key=("source", "source_topic", "source_stream", "source_position", "failed_by"),
    time="failed_at",
    cluster_by=("failed_at",),
    version=DEAD_LETTER.version,
)
