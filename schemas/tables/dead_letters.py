"""`dead_letters`: records that could not be processed, with all that is needed to try again.

The columns are those of the record that bridges publish, so that their dead letters and those of ingest share one
table. A row names its position at its source, so that it can be read again while the source retains it, and holds what
was read, so that it can be retried afterwards.
"""

from pyspark.sql.types import TimestampType

from m4cast.schemas.records import DEAD_LETTER
from m4cast.schemas.tables.table import Column, Table, columns_of

DEAD_LETTERS = Table(
    name="dead_letters",
    comment="Records that could not be processed: as they were read, why, and where they came from",
    columns=(
        *columns_of(DEAD_LETTER),
        Column("replayed_at", TimestampType(), "when it was processed after all; null until then"),
    ),
    key=("source", "source_topic", "source_stream", "source_position", "failed_by"),
    time="failed_at",
    cluster_by=("failed_at",),
    version=DEAD_LETTER.version,
)
