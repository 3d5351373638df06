"""`events/<topic>`: the rows of one topic, typed, with where they come from.

Each topic has its own table, since each has its own columns. What the channel knows of a row stands first and is always
there; the columns that were published follow, and more are added behind them when the topic gains some. So the columns
that files are found by are among the first, of which Delta keeps statistics.
Clustered by stream and sequence: a range of a stream, and the proof that nothing is missing, read few files.
"""

import hashlib
from urllib.parse import quote

from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from m4cast.schemas.tables.table import Column, Table

TOPIC_PROPERTY = "m4cast.topic"
"""The topic's name, percent-encoded: the table's folder has only the beginning of a long one."""
FOLDER_BYTES_MAX = 255
"""What file systems allow for one name."""
CUT = "%~"
"""Between the beginning of a long name and its hash. Percent-encoding never yields it: no other topic has the place."""

CHANNEL_COLUMNS = (
    Column("_topic", StringType(), "the name it was published under", nullable=False),
    Column("_origin", StringType(), "the node that numbered the row, 32 hex digits", nullable=False),
    Column("_sequence", LongType(), "the row's number in its stream, from 1, without holes", nullable=False),
    Column("_published_at", TimestampType(), "by the origin's clock", nullable=False),
)


def events_table(topic: str, payload: StructType) -> Table:
    """The table of one topic whose rows have these columns."""
    taken = {column.name for column in CHANNEL_COLUMNS}
    assert not taken & set(payload.names), "the channel takes no batch with columns of these names"
    published = tuple(Column(field.name, field.dataType, "published", nullable=True) for field in payload.fields)
    return Table(
        name=f"events/{_folder_of(topic)}",
        comment=f"The rows published under the topic {topic}",
        columns=(*CHANNEL_COLUMNS, *published),
        key=("_origin", "_sequence"),
        time="_published_at",
        cluster_by=("_origin", "_sequence"),
        properties={
            "delta.dataSkippingStatsColumns": "_origin,_sequence,_published_at",
            "delta.columnMapping.mode": "name",  # else a column could not be called `total (EUR)`
            TOPIC_PROPERTY: quote(topic, safe=""),
        },
    )


def _folder_of(topic: str) -> str:
    """The topic's name, percent-encoded, with a hash in place of what would be too long for a folder's name.

    A dot at the beginning is encoded, too: `.` and `..` are folders already, and Spark passes over hidden ones.
    """
    quoted = quote(topic, safe="")
    quoted = f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
    if len(quoted) <= FOLDER_BYTES_MAX:
        return quoted
    end = CUT + hashlib.sha256(topic.encode()).hexdigest()
    return quoted[: FOLDER_BYTES_MAX - len(end)] + end
