"""The records that the channel keeps about itself: delivery records, roster records, interest records and dead letters.

Each is defined here once. Its Arrow schema (`arrow_types`), its Avro schema (`avro_types`) and its Delta table
(`tables/`) are derived, so a new column is one line here, and a value in the code that writes the record:

    DELIVERY_RECORD   door/read/deliveries.py
    ROSTER_RECORD     door/read/deliveries.py
    INTEREST_RECORD   door/read/deliveries.py
    DEAD_LETTER       bridge/records.py, jobs/feeds/dead_letters.py

Released columns stay as they are. A new one is nullable, comes last, and names the version of its Delta table that
brings it (`since`): tables of older versions gain the column in place.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "long", "int", "boolean", "bytes", "time", "texts", "headers"]
"""`time` is microseconds since 1970 UTC, `headers` a list of (key, value), value being bytes or null."""


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """Bounds of a value, by Avro's names of them in `avro/`. Numbers are never negative."""

    minBytes: int | None = None
    maxBytes: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    maxItems: int | None = None


NODE_ID = ValueLimits(minBytes=32, maxBytes=32)
"""32 hex digits."""
NAME = ValueLimits(maxBytes=200)
TOPIC = ValueLimits(minBytes=1, maxBytes=200)
ADDRESS = ValueLimits(maxBytes=259)
WORD = ValueLimits(maxBytes=64)
FROM_ONE = ValueLimits(minimum=1)
CHECKSUM = ValueLimits(minBytes=16, maxBytes=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordField:
    name: str
    kind: Kind
    about: str
    """The meaning of the column: Avro's `doc`, Delta's comment."""
    nullable: bool = False
    limits: ValueLimits = ValueLimits()
    since: int = 1
    """The version of its table that brought it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDefinition:
    name: str
    about: str
    fields: tuple[RecordField, ...]
    namespace: str | None = None
    """Avro's."""
    null_defaults: bool = False
    """True if nullable fields have the default null in Avro."""

    @property
    def version(self) -> int:
        """The version of its table, unless the table adds columns of its own."""
        return max(field.since for field in self.fields)


COVERED: tuple[tuple[str, Kind, ValueLimits, str], ...] = (
    ("origin_incarnation", "long", ValueLimits(), "incarnation of the origin when it numbered the batch"),
    ("schema_id", "text", CHECKSUM, "id of the payload's schema, 16 hex digits"),
    ("publisher", "text", ValueLimits(maxBytes=200), "the publisher key; empty: none"),
    ("position", "text", ValueLimits(maxBytes=1_000), "the position that the commit moved the key to"),
    ("part", "int", ValueLimits(), "number of the batch in its commit, from 0"),
    ("parts", "int", FROM_ONE, "batches of the commit"),
    ("previous_checksum", "text", CHECKSUM, "checksum of the stream's batch before it, 16 hex digits"),
    ("extensions", "bytes", ValueLimits(maxBytes=65_535), "additions by the origin, as they are in the batch"),
)
"""The fields that the checksum of a batch covers besides its place and its rows: with these, its bytes can be
rebuilt."""
KEPT = "null for a skip, and for a batch that the node kept no longer when the record was read"

DELIVERY_RECORD = RecordDefinition(
    name="DeliveryRecord",
    about="What a node delivered: a batch, or a skip in place of rows",
    fields=(
        RecordField(
            name="delivery",
            kind="long",
            limits=FROM_ONE,
            about="number of the record at its node, from 1, without gaps",
        ),
        RecordField(name="node_id", kind="text", limits=NODE_ID, about="the receiving node, 32 hex digits"),
        RecordField(name="node", kind="text", limits=NAME, about="name of the receiving node"),
        RecordField(name="incarnation", kind="long", about="incarnation of the receiving node at the delivery"),
        RecordField(name="origin", kind="text", limits=NODE_ID, about="the node that numbered the rows, 32 hex digits"),
        RecordField(name="topic", kind="text", limits=TOPIC, about="with the origin: the stream"),
        RecordField(name="first_sequence", kind="long", limits=FROM_ONE, about="first row of the range in its stream"),
        RecordField(name="last_sequence", kind="long", limits=FROM_ONE, about="last row of the range"),
        RecordField(name="kind", kind="text", limits=WORD, about="batch or skip"),
        RecordField(
            name="reason",
            kind="text",
            limits=WORD,
            nullable=True,
            about="reason of a skip: expired, lost, filtered, not-subscribed; null for a batch",
        ),
        RecordField(name="published_at", kind="time", nullable=True, about="by the origin's clock; null for a skip"),
        RecordField(name="delivered_at", kind="time", about="by the receiving node's clock"),
        RecordField(
            name="hops",
            kind="int",
            limits=ValueLimits(maximum=255),
            nullable=True,
            about="links that the batch travelled; null for a skip",
        ),
        RecordField(
            name="from_node",
            kind="text",
            limits=NODE_ID,
            nullable=True,
            about="the neighbour that sent it; null for a skip and for a batch that was published here",
        ),
        RecordField(
            name="how",
            kind="text",
            limits=WORD,
            nullable=True,
            about="published, pushed, pulled, or filled (in place of a skip); null for a skip",
        ),
        RecordField(
            name="origin_batch",
            kind="long",
            nullable=True,
            about="the origin's number of the batch, over all its topics; null for a skip",
        ),
        RecordField(
            name="row_count", kind="long", limits=FROM_ONE, about="rows of the range; of a skip: rows that are missing"
        ),
        RecordField(name="payload_bytes", kind="long", nullable=True, about="size of the payload; null for a skip"),
        RecordField(
            name="checksum",
            kind="text",
            limits=CHECKSUM,
            nullable=True,
            about="checksum of the batch, 16 hex digits, equal at all nodes; null for a skip",
        ),
        RecordField(
            name="spread",
            kind="text",
            limits=WORD,
            nullable=True,
            since=2,
            about="selective: rows of the stream go where they are wanted; null: to every node, and for a skip",
        ),
        *(
            RecordField(name=name, kind=kind, limits=limits, nullable=True, since=3, about=f"{about}; {KEPT}")
            for name, kind, limits, about in COVERED
        ),
    ),
)

ROSTER_RECORD = RecordDefinition(
    name="RosterRecord",
    about="One incarnation of a node, as one node reports it",
    fields=(
        RecordField(name="node_id", kind="text", limits=NODE_ID, about="32 hex digits"),
        RecordField(name="name", kind="text", limits=NAME, about="the node's name"),
        RecordField(name="site", kind="text", limits=NAME, about="the place it serves"),
        RecordField(name="address", kind="text", limits=ADDRESS, about="where it answers other nodes"),
        RecordField(name="door", kind="text", limits=ADDRESS, about="where clients reach it; empty: nowhere"),
        RecordField(name="incarnation", kind="long", about="raised each time the node opens its store"),
        RecordField(name="from_at", kind="time", about="when the reporting node first heard of this incarnation"),
        RecordField(name="to_at", kind="time", nullable=True, about="when it ended; null while it lasts"),
        RecordField(name="reason", kind="text", limits=WORD, nullable=True, about="why it ended: left, restarted"),
        RecordField(
            name="last_heard_at",
            kind="time",
            nullable=True,
            about="its last beacon; null once it has ended, and for the reporting node itself",
        ),
        RecordField(name="silent", kind="boolean", about="three beacons are missing"),
        RecordField(
            name="neighbours",
            kind="texts",
            limits=ValueLimits(maxItems=128),
            nullable=True,
            about="node ids of its neighbours, by its last beacon",
        ),
        RecordField(name="heard_by", kind="text", limits=NODE_ID, about="the reporting node, 32 hex digits"),
    ),
)

INTEREST_RECORD = RecordDefinition(
    name="InterestRecord",
    about="A registration at a node, from when to when: which rows were wanted there",
    fields=(
        RecordField(
            name="number", kind="long", limits=FROM_ONE, about="number of the registration at its node, from 1 on"
        ),
        RecordField(name="node_id", kind="text", limits=NODE_ID, about="the node that wants the rows, 32 hex digits"),
        RecordField(name="node", kind="text", limits=NAME, about="its name"),
        RecordField(name="registration", kind="text", about="id of the registration at its node"),
        RecordField(name="owner", kind="text", about="the client that made it; empty: the node itself"),
        RecordField(name="topic", kind="text", limits=TOPIC, about="the topic whose rows are wanted"),
        RecordField(
            name="condition",
            kind="text",
            limits=ValueLimits(maxBytes=4096),
            nullable=True,
            about="which of its rows, in the language of the next column; null: every row",
        ),
        RecordField(name="language", kind="text", limits=WORD, nullable=True, about="sql, json or diet"),
        RecordField(name="start", kind="text", limits=WORD, about="where it begins: earliest or latest"),
        RecordField(
            name="epoch",
            kind="long",
            about="another one than before: the registration was given up in between",
        ),
        RecordField(name="incarnation", kind="long", about="of the node when it was made"),
        RecordField(
            name="ts", kind="long", about="with the incarnation: version of the node's interest since which it counts"
        ),
        RecordField(name="from_at", kind="time", about="when it was made, by the node's clock"),
        RecordField(name="until_at", kind="time", nullable=True, about="when it was given up; null while it lasts"),
        RecordField(
            name="until_incarnation", kind="long", nullable=True, about="of the node when it was given up; else null"
        ),
        RecordField(
            name="until_ts",
            kind="long",
            nullable=True,
            about="version of the node's interest since which it does not count; null while it lasts",
        ),
        RecordField(
            name="revision",
            kind="long",
            limits=FROM_ONE,
            about="rises at the node with each change of such a record: the greatest was changed last",
        ),
    ),
)

DEAD_LETTER = RecordDefinition(
    name="DeadLetter",
    about="A record that could not be processed: why, where it came from, and all that is needed to try again",
    namespace="m4cast",
    null_defaults=True,
    fields=(
        RecordField(name="failed_at", kind="time", about="when it was given up"),
        RecordField(name="failed_by", kind="text", about="who gave it up: kafka-in/NAME, kafka-out/NAME, ingest"),
        RecordField(name="reason", kind="text", about="a stable word to count and filter by"),
        RecordField(name="detail", kind="text", about="what exactly is wrong, for people"),
        RecordField(name="source", kind="text", about="kafka or channel"),
        RecordField(name="source_topic", kind="text", about="topic at the source"),
        RecordField(
            name="source_stream", kind="text", about="kafka: the partition; channel: the origin, 32 hex digits"
        ),
        RecordField(name="source_position", kind="long", about="kafka: the offset; channel: the sequence"),
        RecordField(name="target_topic", kind="text", about="topic that it was meant for"),
        RecordField(name="key", kind="bytes", nullable=True, about="as it was read"),
        RecordField(
            name="value",
            kind="bytes",
            nullable=True,
            about="as it was read; a channel row as JSON; null if it was null or too large (reason too-large)",
        ),
        RecordField(name="headers", kind="headers", nullable=True, about="as they were read"),
        RecordField(name="timestamp", kind="time", nullable=True, about="the source's own time of it"),
    ),
)

RECORDS = (DELIVERY_RECORD, ROSTER_RECORD, INTEREST_RECORD, DEAD_LETTER)
