"""`events/<topic>`: the rows of one topic, typed, with their origin.

Each topic has its own table, since each has its own columns. The channel's columns are first and never null; the
published columns follow, and new ones are appended when the topic gains some. So the columns that are used to skip
files are among the first, for which Delta keeps statistics. Clustered by stream and sequence: a range of a stream, and
the proof that nothing is missing, read few files."""

import hashlib
from urllib.parse import quote

from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from m4cast.schemas.tables.table import Column, Table

TOPIC_PROPERTY = "m4cast.topic"
"""The topic's name, percent-encoded: the name of the table's folder may be cut."""
FOLDER_BYTES_MAX = 255
"""The longest file name that file systems allow."""
CUT = "%~"
"""Separates the beginning of a long name from its hash. Percent-encoding never yields it: no other topic collides."""

CHANNEL_COLUMNS = (
    Column("_topic", StringType(), "the name it was published under", nullable=False),
    Column("_origin", StringType(), "the node that numbered the row, 32 hex digits", nullable=False),
    Column("_sequence", LongType(), "the row's number in its stream, from 1, without gaps", nullable=False),
    Column("_published_at", TimestampType(), "by the origin's clock", nullable=False),
)


def events_table(topic: str, payload: StructType) -> Table:
    """The table of a topic whose rows have these columns."""
    taken = {column.name for column in CHANNEL_COLUMNS}
    assert not taken & set(payload.names), "the channel accepts no batch with columns of these names"
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
            "delta.checkpointInterval": "50",  # a checkpoint of the log costs as much as dozens of commits
            "delta.columnMapping.mode": "name",  # else a column could not be called `total (EUR)`
            TOPIC_PROPERTY: quote(topic, safe=""),
        },
    )


def _folder_of(topic: str) -> str:
    """The topic's name, percent-encoded, cut and completed by a hash if it is too long for a folder's name.

    A leading dot is encoded as well: `.` and `..` exist already, and Spark ignores hidden folders.
    """
    quoted = quote(topic, safe="")
    quoted = f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
    if len(quoted) <= FOLDER_BYTES_MAX:
        return quoted
    end = CUT + hashlib.sha256(topic.encode()).hexdigest()
    return quoted[: FOLDER_BYTES_MAX - len(end)] + end
