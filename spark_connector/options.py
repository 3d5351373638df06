"""Every option of the data source, once: name, kind, default, what is allowed, what it means.

Spark hands options over as text, with names in any case. They are checked when the DataFrame is made: a name that is
not here is refused with the nearest one that is; values are parsed into frozen `ReadOptions` and `WriteOptions`. The
table in docs/SPARK.md is compared with this one by a test.

A secret is never shown: not in errors, not by `repr`.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import Frontier, parse_frontier

Use = Literal["read", "write", "both"]
Read = Literal["rows", "raw", "deliveries", "roster"]
Edge = Frontier | Literal["earliest", "latest"]
TOPICS_MAX = 1_000
TOPIC_BYTES_MAX = 200
INT_MAX = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
CHANNEL_COLUMNS = (
    "_channel",
    "_topic",
    "_origin",
    "_sequence",
    "_published_at",
    "_key",
    "_headers",
    "_delivered_at",
    "_hops",
    "_node",
)
METADATA = ("_topic", "_origin", "_sequence", "_published_at")
"""Of each row, unless others are chosen."""
RAW_METADATA = ("_topic", "_origin", "_published_at")
NOT_OF_RAW = frozenset({"_sequence", "_key", "_headers"})
ROWS_ONLY = ("onNewColumns",)
TOPICS_ONLY = (
    "topic",
    "topics",
    "topicPattern",
    "startingTimestamp",
    "endingTimestamp",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "reader",
    "leaseMs",
    "metadata",
    *ROWS_ONLY,
)
"""Options of rows and raw batches, not of delivery records."""
RANGES_ONLY = (
    "startingOffsets",
    "endingOffsets",
    "maxRowsPerTrigger",
    "minPartitions",
    "maxRowsPerPartition",
    *TOPICS_ONLY,
)
"""Options of what has a beginning and an end, not of the roster."""
ROWS_PER_PARTITION = 4_000_000
BATCH_BYTES = 4 << 20
LEASE_MS = 600_000
TRIGGER_DELAY_MS = 900_000


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    use: Use
    parse: Callable[[str], Any]
    """Raises ValueError, which says what is allowed."""
    allowed: str
    default: str
    """As it is shown; `ReadOptions` and `WriteOptions` have the value."""
    meaning: str
    is_secret: bool = False


# ---- kinds of values


class _NotAllowed(ValueError):
    """Its text is for users, beside what is allowed."""


def _name(value: str) -> str:
    """A name as it was given: names that differ in a space are two names."""
    if not value.strip():
        raise ValueError
    return value


def _text(value: str) -> str:
    return _name(value).strip()


def _topic(value: str) -> str:
    """The rule of the nodes: printable text, which may begin or end with spaces and have any separator in it."""
    if not value.isprintable() or not 1 <= len(value.encode(errors="replace")) <= TOPIC_BYTES_MAX:
        raise ValueError
    return value


def _topics(value: str) -> tuple[str, ...]:
    if not value.lstrip().startswith("["):
        return tuple(map(_topic, _list(value)))
    names = json.loads(value)
    if not 0 < len(names) <= TOPICS_MAX or not all(isinstance(name, str) for name in names):
        raise ValueError
    return tuple(dict.fromkeys(map(_topic, names)))


def _list(value: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    if not all(parts) or len(parts) > TOPICS_MAX:
        raise ValueError
    return parts


def _nodes(value: str) -> tuple[str, ...]:
    nodes = _list(value)
    for node in nodes:
        host, _, port = node.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError
    return nodes


def _integer(low: int, high: int = INT_MAX) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def _truth(value: str) -> bool:
    return {"true": True, "false": False}[value.strip().lower()]


def _choice(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        return {word: word for word in words}[value.strip().lower()]

    return parse


def _time(value: str) -> int:
    """In milliseconds. A part of one is rounded up: rows published then or later are the same rows."""
    text = value.strip()
    if re.fullmatch(r"\d{1,19}", text):
        return _integer(0)(text)
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise _NotAllowed("it has no time zone: add Z, or an offset such as +01:00")
    return _integer(0)(str(-((EPOCH - at) // MILLISECOND)))


def _edge(value: str) -> Edge:
    word = value.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    return parse_frontier(json.loads(value))


def _pattern(value: str) -> str:
    re.compile(value)
    return _name(value)


def _place(value: str) -> str:
    place = _text(value)
    if not place.startswith("/") and "://" not in place:
        raise ValueError
    return place


def _duration(value: str) -> int:
    """In milliseconds."""
    found = re.fullmatch(r"\s*(\d{1,12})\s*(ms|s|m|h)\s*", value.lower())
    if found is None:
        raise ValueError
    return int(found[1]) * {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[found[2]]


def _metadata(value: str) -> tuple[str, ...]:
    names = _list(value)
    if not set(names) <= set(CHANNEL_COLUMNS):
        raise ValueError
    return names


NUMBER = "a whole number, 1 or more"
TIME = "milliseconds since 1970, or ISO 8601 with a zone: `2026-03-01T12:00:00Z`, `2026-03-01 13:00+01:00`"
EDGE = '`earliest`, `latest` or JSON, `{"topic": {"origin": next}}`'

OPTIONS = (
    Option(
        "nodes",
        "both",
        _nodes,
        "`host:port`, with commas between",
        "required",
        "doors of nodes. Reads go to the first that can answer; a sink stays with the first",
    ),
    Option(
        "topic",
        "both",
        _topic,
        "a name: printable text of 1 to 200 bytes",
        "",
        "read this topic; publish under this topic (then a column `_topic` is dropped)",
    ),
    Option(
        "topics",
        "read",
        _topics,
        "names with commas between, or a JSON array of names",
        "",
        'read these topics. Names that have commas, or begin or end with a space, need JSON: `["a, b", "c "]`',
    ),
    Option(
        "topicPattern",
        "read",
        _pattern,
        "a regular expression",
        "",
        "read all topics whose whole name matches, also those that come later",
    ),
    Option(
        "read",
        "read",
        _choice("rows", "raw", "deliveries", "roster"),
        "`rows`, `raw`, `deliveries`, `roster`",
        "`rows`",
        "what is read: rows of topics, batches of topics as they were published, delivery records, or who is on the "
        "channel",
    ),
    Option(
        "of",
        "read",
        _name,
        "`first`, `all`, or a node's name or id",
        "`first`",
        "whose deliveries or roster: of the first of `nodes` that answers, of all nodes that it knows, of one of them",
    ),
    Option(
        "metadata",
        "read",
        _metadata,
        "names of columns, with commas between",
        "`_topic,_origin,_sequence,_published_at`",
        "the channel's columns that rows have behind their own, in this order. Each costs time",
    ),
    Option(
        "startingOffsets",
        "read",
        _edge,
        EDGE,
        "`latest`; batch: `earliest`",
        "where a new query begins. Streams that JSON does not name begin at their first row",
    ),
    Option(
        "startingTimestamp",
        "read",
        _time,
        TIME,
        "",
        "in its place: with the first row of each stream that was published then or later",
    ),
    Option(
        "endingOffsets",
        "read",
        _edge,
        EDGE,
        "`latest`",
        "where a batch read ends. Streams that JSON does not name are not read",
    ),
    Option(
        "endingTimestamp",
        "read",
        _time,
        TIME,
        "",
        "in its place: before the first row of each stream that was published then or later",
    ),
    Option(
        "maxRowsPerTrigger",
        "read",
        _integer(1),
        NUMBER,
        "no limit",
        "most rows of a micro-batch, fairly over the streams",
    ),
    Option(
        "maxBytesPerTrigger",
        "read",
        _integer(1),
        NUMBER,
        "no limit",
        "about the most bytes of a micro-batch, by the mean size of each stream's rows",
    ),
    Option(
        "minRowsPerTrigger",
        "read",
        _integer(1),
        NUMBER,
        "1",
        "a micro-batch waits for as many rows, for `maxTriggerDelay` at most. `availableNow` does not wait",
    ),
    Option(
        "maxTriggerDelay",
        "read",
        _duration,
        "a number with `ms`, `s`, `m` or `h`",
        "15m",
        "how long a micro-batch waits for `minRowsPerTrigger` since the one before",
    ),
    Option(
        "minPartitions",
        "read",
        _integer(1, 100_000),
        "1 to 100000",
        "1",
        "split until there are so many partitions, if there are as many rows",
    ),
    Option(
        "maxRowsPerPartition",
        "read",
        _integer(1),
        NUMBER,
        "4000000",
        "most rows of one partition (task). Lower: more tasks at once, and more overhead",
    ),
    Option(
        "failOnDataLoss",
        "read",
        _truth,
        "`true`, `false`",
        "`true`",
        "rows that no node keeps any more: fail, or pass over them",
    ),
    Option(
        "onNewColumns",
        "read",
        _choice("fail", "ignore"),
        "`fail`, `ignore`",
        "`fail`",
        "a topic gained columns since the query was planned: fail (a restart plans with them), or drop them",
    ),
    Option(
        "reader",
        "read",
        _name,
        "a name",
        "",
        "have the nodes keep the rows that a stream has not read yet, under this name; one for each query",
    ),
    Option(
        "leaseMs",
        "read",
        _integer(1_000, 86_400_000),
        "1000 to 86400000",
        "600000",
        "how long rows are kept for a `reader` that has stopped. Longer: more disk at the nodes",
    ),
    Option(
        "sinkId",
        "write",
        _name,
        "a name",
        "the query's id",
        "the key under which micro-batches are published once. Name it to survive a lost checkpoint",
    ),
    Option(
        "takeover",
        "write",
        _text,
        "a position",
        "",
        "go on after another query under the same sink id: its last position, as the error tells it",
    ),
    Option(
        "batchId",
        "write",
        _integer(0),
        "0 or more",
        "",
        "number of a batch write under its `sinkId`: the same again publishes nothing, a smaller one is refused",
    ),
    Option(
        "receipts",
        "write",
        _place,
        "an absolute path or a URI",
        "",
        "a folder in which the driver keeps a receipt of each commit: what was published, outside of the channel",
    ),
    Option(
        "acks",
        "write",
        _integer(0, 64),
        "0 to 64",
        "the node's setting",
        "nodes besides the first that have a micro-batch on disk before it is done",
    ),
    Option(
        "batchBytes",
        "write",
        _integer(1_024, 8 << 20),
        "1024 to 8388608",
        "4194304",
        "rows are published in batches of about this size. A micro-batch has at most 4096 of them",
    ),
    Option(
        "timeoutMs",
        "both",
        _integer(100, 3_600_000),
        "100 to 3600000",
        "60000",
        "how long nodes that are away, busy or behind are waited for before the query fails",
    ),
    Option(
        "token",
        "both",
        _text,
        "`env:NAME`, `file:PATH` or the secret",
        "",
        "what the nodes ask for. A reference is looked up by each process, a literal travels with the plan",
        is_secret=True,
    ),
    Option(
        "compression",
        "both",
        _choice("lz4", "zstd"),
        "`lz4`, `zstd`",
        "",
        "of rows on their way between Spark and the nodes, for networks that are slower than this costs",
    ),
    Option("tlsCa", "both", _name, "a path", "", "the cluster's CA, on every machine; with it all connections are TLS"),
    Option("tlsCert", "both", _name, "a path", "", "an own certificate, for nodes without tokens"),
    Option("tlsKey", "both", _name, "a path", "", "its key"),
)
BY_NAME = {option.name.lower(): option for option in OPTIONS}
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options of the writer that Spark hands on."""
TABLES_OWN = "provider"
"""Spark adds it to the options when a table is made, by SQL or by its catalog."""
NO_TABLES = "Spark does not pass the options of a table to a Python data source"
INSTEAD_OF_TABLES = (
    "CREATE TEMPORARY VIEW ... USING m4cast OPTIONS (nodes ..., topic ...), or use spark.read and df.write"
)


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the channel."""

    nodes: tuple[str, ...]
    timeoutMs: int = 60_000
    token: str = field(default="", repr=False)
    tlsCa: str = ""
    tlsCert: str = ""
    tlsKey: str = ""
    compression: Literal["lz4", "zstd"] | None = None

    @property
    def timeout_s(self) -> float:
        return self.timeoutMs / 1000


@dataclass(frozen=True, slots=True)
class ReadOptions:
    access: Access
    read: Read = "rows"
    of: str = "first"
    """Of deliveries and the roster: whose."""
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    """Either this or topics."""
    metadata: tuple[str, ...] = METADATA
    starting: Edge | int = "earliest"
    """An int is a time."""
    ending: Edge | int = "latest"
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_rows_per_trigger: int = 1
    max_trigger_delay_ms: int = TRIGGER_DELAY_MS
    min_partitions: int = 1
    max_rows_per_partition: int = ROWS_PER_PARTITION
    fail_on_data_loss: bool = True
    ignore_new_columns: bool = False
    reader: str | None = None
    lease_ms: int = LEASE_MS


@dataclass(frozen=True, slots=True)
class WriteOptions:
    access: Access
    topic: str | None = None
    sink_id: str | None = None
    takeover: str | None = None
    acks: int | None = None
    batch_bytes: int = BATCH_BYTES
    batch_id: int | None = None
    receipts: str | None = None


# ---- parsing


def parse(options: Mapping[str, str]) -> dict[str, Any]:
    """The values, by the names of the table. It does not ask yet what they are for."""
    values: dict[str, Any] = {}
    if TABLES_OWN in {name.lower() for name in options}:
        problem = f"a table cannot be USING m4cast: {NO_TABLES}"
        raise ConnectorError("M4CAST_NO_TABLES", problem, INSTEAD_OF_TABLES)
    for name, text in options.items():
        option = BY_NAME.get(name.lower())
        if option is None:
            if name.lower() in SPARKS_OWN:
                continue
            raise _unknown(name)
        try:
            values[option.name] = option.parse(str(text))
        except (ValueError, KeyError, TypeError, re.error, RecursionError) as error:
            raise _bad(option, str(text), error) from None
    return values


def read_options(values: Mapping[str, Any], *, streaming: bool) -> ReadOptions:
    _refuse_use(values, "read")
    _refuse_together(values, "topic", "topics", "topicPattern")
    _refuse_together(values, "startingOffsets", "startingTimestamp")
    _refuse_together(values, "endingOffsets", "endingTimestamp")
    access = _access(values)
    read: Read = values.get("read", "rows")
    _refuse_of_others(values, read)
    if read in ("rows", "raw") and not {"topic", "topics", "topicPattern"} & set(values):
        raise ConnectorError("M4CAST_MISSING_OPTION", "no topic to read", "give topic, topics or topicPattern")
    if streaming:
        for name in ("endingOffsets", "endingTimestamp"):
            if name in values:
                fix = "use spark.read, or drop the option and stop the query"
                raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", f"{name} is for batch reads", fix)
    for name, needed in (("leaseMs", "reader"), ("maxTriggerDelay", "minRowsPerTrigger")):
        if name in values and needed not in values:
            raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", f"{name} is of {needed}", f"give {needed}, too")
    least, most = values.get("minRowsPerTrigger", 1), values.get("maxRowsPerTrigger", INT_MAX)
    if least > most:
        problem = f"minRowsPerTrigger is {least}, more than maxRowsPerTrigger, {most}"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "lower one, or raise the other")
    starting = values.get("startingOffsets", values.get("startingTimestamp", "latest" if streaming else "earliest"))
    if not streaming and starting == "latest":
        problem = "startingOffsets is latest, so that a batch read has no rows"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "use earliest, JSON or startingTimestamp")
    return ReadOptions(
        access,
        read=read,
        of=values.get("of", "first"),
        topics=values.get("topics", (values["topic"],) if "topic" in values else ()),
        topic_pattern=values.get("topicPattern"),
        metadata=values.get("metadata", RAW_METADATA if read == "raw" else METADATA),
        starting=starting,
        ending=values.get("endingOffsets", values.get("endingTimestamp", "latest")),
        max_rows_per_trigger=values.get("maxRowsPerTrigger"),
        max_bytes_per_trigger=values.get("maxBytesPerTrigger"),
        min_rows_per_trigger=values.get("minRowsPerTrigger", 1),
        max_trigger_delay_ms=values.get("maxTriggerDelay", TRIGGER_DELAY_MS),
        min_partitions=values.get("minPartitions", 1),
        max_rows_per_partition=values.get("maxRowsPerPartition", ROWS_PER_PARTITION),
        fail_on_data_loss=values.get("failOnDataLoss", True),
        ignore_new_columns=values.get("onNewColumns") == "ignore",
        reader=values.get("reader"),
        lease_ms=values.get("leaseMs", LEASE_MS),
    )


def _refuse_of_others(values: Mapping[str, Any], read: Read) -> None:
    """Options that say nothing about what is read."""
    others: dict[Read, tuple[str, ...]] = {
        "rows": ("of",),
        "raw": ("of", *ROWS_ONLY),
        "deliveries": TOPICS_ONLY,
        "roster": RANGES_ONLY,
    }
    for name in others[read]:
        if name in values:
            problem = f"option {name} has no effect with read = {read}"
            raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "remove it, or correct read")
    strange = NOT_OF_RAW & set(values.get("metadata", ())) if read == "raw" else ()
    if strange:
        problem = f"a raw batch has no {', '.join(sorted(strange))}"
        fix = "leave it out of metadata; first_sequence and last_sequence are there"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, fix)


def write_options(values: Mapping[str, Any], *, streaming: bool = False) -> WriteOptions:
    _refuse_use(values, "write")
    for name in ("takeover", "batchId"):
        if name in values and "sinkId" not in values:
            problem = f"{name} is of a sink id, and none is given"
            raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "give sinkId, too")
    if streaming and "batchId" in values:
        problem = "batchId is for batch writes: a stream's micro-batches have numbers"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "drop it")
    return WriteOptions(
        _access(values),
        values.get("topic"),
        values.get("sinkId"),
        values.get("takeover"),
        values.get("acks"),
        values.get("batchBytes", BATCH_BYTES),
        values.get("batchId"),
        values.get("receipts"),
    )


def _access(values: Mapping[str, Any]) -> Access:
    if "nodes" not in values:
        fix = 'give option("nodes", "host:port,host:port")'
        if not values:  # perhaps a table that was made with its columns, since then nobody was asked here
            fix += f"; if this is a table USING m4cast, {NO_TABLES}: {INSTEAD_OF_TABLES}"
        raise ConnectorError("M4CAST_MISSING_OPTION", "no nodes", fix)
    if ("tlsCert" in values) != ("tlsKey" in values):
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", "tlsCert and tlsKey go together", "give both or neither")
    names = ("nodes", "timeoutMs", "token", "tlsCa", "tlsCert", "tlsKey", "compression")
    return Access(**{name: values[name] for name in names if name in values})


def _refuse_use(values: Mapping[str, Any], use: Use) -> None:
    for name in values:
        if BY_NAME[name.lower()].use not in (use, "both"):
            other = "write" if use == "read" else "read"
            raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", f"{name} is an option of a {other}", "drop it")


def _refuse_together(values: Mapping[str, Any], *names: str) -> None:
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", f"{' and '.join(given)} say the same thing", "give one")


def _unknown(name: str) -> ConnectorError:
    if name.lower() == "path":
        return ConnectorError("M4CAST_UNKNOWN_OPTION", "m4cast has no path", 'name the topic by option("topic", ...)')
    near = difflib.get_close_matches(name.lower(), BY_NAME, 1, 0.5)
    fix = f"did you mean {BY_NAME[near[0]].name}?" if near else f"there are {', '.join(o.name for o in OPTIONS)}"
    return ConnectorError("M4CAST_UNKNOWN_OPTION", f"m4cast has no option {name[:100]!r}", fix)


def _bad(option: Option, text: str, error: Exception) -> ConnectorError:
    shown = "" if option.is_secret else f" is {text[:100]!r}, which"
    why = f" ({error})" if isinstance(error, _NotAllowed | re.error) else ""
    problem = f"option {option.name}{shown} cannot be used{why}"
    return ConnectorError("M4CAST_BAD_OPTION", problem, f"allowed: {option.allowed}")


def table() -> str:
    """For the docs."""
    used = {"read": "read", "write": "write", "both": "read, write"}
    rows = [f"| `{o.name}` | {used[o.use]} | {o.allowed} | {o.default} | {o.meaning} |" for o in OPTIONS]
    return "\n".join(["| option | for | allowed | default | meaning |", "| --- | --- | --- | --- | --- |", *rows])
