"""Every option of the data source, once: its name, its use, its allowed values, its default and its meaning.

A test compares the table in docs/SPARK.md with this one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from m4cast.spark_connector import option_values as values
from m4cast.spark_connector.source_filter import LANGUAGES

Use = Literal["read", "write", "both"]
Read = Literal["rows", "raw", "table", "deliveries", "roster", "interest", "clients", "client"]
READS: tuple[Read, ...] = ("rows", "raw", "table", "deliveries", "roster", "interest", "clients")
"""The values of the option `read`; the option `client` stands for itself."""
CLIENT: tuple[Read, ...] = ("client",)
ROWS: tuple[Read, ...] = ("rows",)
TOPICS: tuple[Read, ...] = ("rows", "raw")
NAMED: tuple[Read, ...] = ("rows", "raw", "table")
FILTERED: tuple[Read, ...] = ("rows", "table")
RANGES: tuple[Read, ...] = ("rows", "raw", "deliveries")
RECORDS: tuple[Read, ...] = ("deliveries", "roster", "interest", "clients")

NUMBER = "an integer, 1 or more"
TIME = "milliseconds since 1970, or ISO 8601 with a time zone: `2026-03-01T12:00:00Z`, `2026-03-01 13:00+01:00`"
EDGE = '`earliest`, `latest` or JSON, `{"topic": {"origin": next}}`'


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    name: str
    use: Use
    parse: Callable[[str], Any]
    """One of `option_values`."""
    allowed: str
    default: str = ""
    """The default as documented; `ReadOptions` and `WriteOptions` hold the value."""
    meaning: str
    reads: tuple[Read, ...] = (*READS, *CLIENT)
    """The kinds of read on which it has an effect."""
    is_secret: bool = False
    """Never shown: neither in errors nor by `repr`."""


OPTIONS = (
    Option(
        name="nodes",
        use="both",
        parse=values.nodes,
        allowed="`host:port`, separated by commas",
        default="required",
        meaning="client doors of nodes. Reads use the first node that can answer; a sink always uses the first of the "
        "list",
    ),
    Option(
        name="topic",
        use="both",
        parse=values.topic,
        allowed="a name: printable text of 1 to 200 bytes",
        meaning="the topic to read, or to publish to (a column `_topic` is then dropped)",
        reads=NAMED,
    ),
    Option(
        name="topics",
        use="read",
        parse=values.topics,
        allowed="names separated by commas, or a JSON array of names",
        meaning='the topics to read. Names with commas, or with spaces at either end, need JSON: `["a, b", "c "]`',
        reads=NAMED,
    ),
    Option(
        name="topicPattern",
        use="read",
        parse=values.pattern,
        allowed="a regular expression",
        meaning="read all topics whose whole name matches, including topics created later",
        reads=NAMED,
    ),
    Option(
        name="read",
        use="read",
        parse=values.choice(*READS),
        allowed="`rows`, `raw`, `table`, `deliveries`, `roster`, `interest`, `clients`",
        default="`rows`",
        meaning="what to read: rows of topics, batches of topics as they were published, tables as they stand (batch "
        "only), delivery records, the nodes on the channel, the registrations of nodes, or the profiles of clients "
        "(batch only)",
        reads=READS,
    ),
    Option(
        name="scope",
        use="read",
        parse=values.choice("node", "channel"),
        allowed="`node`, `channel`",
        default="`node`",
        meaning="which nodes to ask for rows: the first of `nodes` that has them, or, in a batch read, each stream's "
        "origin at its own door, with one partition for each node that answers",
        reads=ROWS,
    ),
    Option(
        name="of",
        use="read",
        parse=values.name,
        allowed="`first`, `all`, or a node's name or id",
        default="`first`",
        meaning="the nodes whose deliveries, roster, interest or clients are read: the first of `nodes` that answers, "
        "all nodes that it knows, or one node",
        reads=RECORDS,
    ),
    Option(
        name="metadata",
        use="read",
        parse=values.metadata,
        allowed="column names separated by commas",
        default="`_topic,_origin,_sequence,_published_at`",
        meaning="the channel's columns that follow the topic's own, in this order. Each column makes the read slower",
        reads=(*TOPICS, *CLIENT),
    ),
    Option(
        name="where",
        use="read",
        parse=values.name,
        allowed="a condition ([FILTERS.md](FILTERS.md)), at most 4096 bytes",
        meaning="rows that do not satisfy the condition are not sent to Spark, but count as read",
        reads=FILTERED,
    ),
    Option(
        name="whereLanguage",
        use="read",
        parse=values.choice(*LANGUAGES),
        allowed="`sql`, `json`, `diet`",
        default="`sql`",
        meaning="the language of `where`",
        reads=FILTERED,
    ),
    Option(
        name="startingOffsets",
        use="read",
        parse=values.edge,
        allowed=EDGE,
        default="`latest`; batch: `earliest`",
        meaning="where a new query begins. Streams that the JSON does not name begin at their first row",
        reads=RANGES,
    ),
    Option(
        name="startingTimestamp",
        use="read",
        parse=values.time_ms,
        allowed=TIME,
        meaning="instead of `startingOffsets`: begin with the first row of each stream published at or after this time",
        reads=TOPICS,
    ),
    Option(
        name="endingOffsets",
        use="read",
        parse=values.edge,
        allowed=EDGE,
        default="`latest`",
        meaning="where a batch read ends. Streams that the JSON does not name are not read",
        reads=RANGES,
    ),
    Option(
        name="endingTimestamp",
        use="read",
        parse=values.time_ms,
        allowed=TIME,
        meaning="instead of `endingOffsets`: end before the first row of each stream published at or after this time",
        reads=TOPICS,
    ),
    Option(
        name="maxRowsPerTrigger",
        use="read",
        parse=values.integer(1),
        allowed=NUMBER,
        default="no limit",
        meaning="maximum number of rows in a micro-batch, shared fairly between the streams",
        reads=(*RANGES, *CLIENT),
    ),
    Option(
        name="maxBytesPerTrigger",
        use="read",
        parse=values.integer(1),
        allowed=NUMBER,
        default="no limit",
        meaning="approximate maximum size of a micro-batch, from the mean row size of each stream",
        reads=TOPICS,
    ),
    Option(
        name="minRowsPerTrigger",
        use="read",
        parse=values.integer(1),
        allowed=NUMBER,
        default="1",
        meaning="a micro-batch waits for this many rows, at most for `maxTriggerDelay`. `availableNow` does not wait",
        reads=TOPICS,
    ),
    Option(
        name="maxTriggerDelay",
        use="read",
        parse=values.duration_ms,
        allowed="a number with `ms`, `s`, `m` or `h`",
        default="15m",
        meaning="longest wait of a micro-batch for `minRowsPerTrigger`, counted from the previous micro-batch",
        reads=TOPICS,
    ),
    Option(
        name="minPartitions",
        use="read",
        parse=values.integer(1, 100_000),
        allowed="1 to 100000",
        default="1",
        meaning="split a read into at least this many partitions, if it has that many rows",
        reads=(*RANGES, *CLIENT),
    ),
    Option(
        name="maxRowsPerPartition",
        use="read",
        parse=values.integer(1),
        allowed=NUMBER,
        default="4000000",
        meaning="maximum number of rows in a partition (task). A lower value gives more parallel tasks and more "
        "overhead",
        reads=(*RANGES, *CLIENT),
    ),
    Option(
        name="failOnDataLoss",
        use="read",
        parse=values.boolean,
        allowed="`true`, `false`",
        default="`true`",
        meaning="when no node retains the rows any more: `true` fails the query, `false` skips the rows",
    ),
    Option(
        name="onNewColumns",
        use="read",
        parse=values.choice("fail", "ignore"),
        allowed="`fail`, `ignore`",
        default="`fail`",
        meaning="when a topic has gained columns since the query was planned: `fail` fails the query, which reads them "
        "after a restart; `ignore` drops them",
        reads=(*ROWS, *CLIENT),
    ),
    Option(
        name="waitActive",
        use="read",
        parse=values.choice("channel", "system"),
        allowed="`channel`, `system`",
        meaning="a stream begins only when all nodes of the channel, or all gatekeepers of the federation, know which "
        "rows it wants. It fails if that takes longer than `timeoutMs`",
        reads=ROWS,
    ),
    Option(
        name="reader",
        use="read",
        parse=values.name,
        allowed="a name",
        meaning="the name under which the nodes retain the rows that the stream has not read yet. Each query needs its "
        "own",
        reads=TOPICS,
    ),
    Option(
        name="leaseMs",
        use="read",
        parse=values.integer(1_000, 86_400_000),
        allowed="1000 to 86400000",
        default="600000",
        meaning="how long the nodes retain rows for a `reader` that has stopped. A longer time needs more disk space "
        "on the nodes",
        reads=TOPICS,
    ),
    Option(
        name="client",
        use="read",
        parse=values.text,
        allowed="a client's key",
        meaning="read the rows that this client's profiles match, from its position on (streams only). The position is "
        "in the checkpoint, and is reported to the client's access point",
        reads=CLIENT,
    ),
    Option(
        name="credential",
        use="read",
        parse=values.text,
        allowed="`env:NAME`, `file:PATH` or the credential itself",
        default="required with `client`",
        meaning="the credential of `client`. Only the driver uses it",
        is_secret=True,
    ),
    Option(
        name="sinkId",
        use="write",
        parse=values.name,
        allowed="a name",
        default="the query's id",
        meaning="the key under which each micro-batch is published once. Set it to be able to continue after a lost "
        "checkpoint",
    ),
    Option(
        name="takeover",
        use="write",
        parse=values.text,
        allowed="a position",
        meaning="continue after another query with the same sink id: the last position of that query, as given in the "
        "error",
    ),
    Option(
        name="batchId",
        use="write",
        parse=values.integer(0),
        allowed="0 or more",
        meaning="the number of a batch write under its `sinkId`: a repeated number publishes nothing, and a smaller "
        "one is refused",
    ),
    Option(
        name="spread",
        use="write",
        parse=values.choice("broadcast", "selective"),
        allowed="`broadcast`, `selective`",
        default="`broadcast`",
        meaning="`selective`: make the topic selective before its first rows are published (SELECTIVE.md). A topic "
        "that is already selective stays so",
    ),
    Option(
        name="keepers",
        use="write",
        parse=values.keepers,
        allowed="an integer, 0 to 8",
        default="2",
        meaning="with `spread`: how many nodes besides the origin store all rows",
    ),
    Option(
        name="routeBy",
        use="write",
        parse=values.topics,
        allowed="columns separated by commas, or a JSON array of names",
        meaning="with `spread`: the columns whose values decide which nodes rows are sent to",
    ),
    Option(
        name="receipts",
        use="write",
        parse=values.place,
        allowed="an absolute path or a URI",
        meaning="a folder in which the driver writes a receipt of each commit: a record, outside of the channel, of "
        "what was published",
    ),
    Option(
        name="acks",
        use="write",
        parse=values.integer(0, 64),
        allowed="0 to 64",
        default="the node's setting",
        meaning="number of nodes besides the first that must have a micro-batch on disk before it is acknowledged",
    ),
    Option(
        name="batchBytes",
        use="write",
        parse=values.integer(1_024, 8 << 20),
        allowed="1024 to 8388608",
        default="4194304",
        meaning="approximate size of the batches in which rows are published. A micro-batch has at most 4096 batches",
    ),
    Option(
        name="timeoutMs",
        use="both",
        parse=values.integer(100, 3_600_000),
        allowed="100 to 3600000",
        default="60000",
        meaning="how long to wait for nodes that are unreachable, busy or lagging before the query fails",
    ),
    Option(
        name="token",
        use="both",
        parse=values.text,
        allowed="`env:NAME`, `file:PATH` or the token itself",
        meaning="the token that the nodes require. Each process resolves a reference itself; a literal is part of the "
        "query plan",
        is_secret=True,
    ),
    Option(
        name="compression",
        use="both",
        parse=values.choice("lz4", "zstd"),
        allowed="`lz4`, `zstd`",
        meaning="compress rows between Spark and the nodes. This helps on networks that are slower than the "
        "compression",
    ),
    Option(
        name="tlsCa",
        use="both",
        parse=values.name,
        allowed="a path",
        meaning="the cluster's CA certificate, which must be present on every machine. With it, all connections use "
        "TLS",
    ),
    Option(
        name="tlsCert",
        use="both",
        parse=values.name,
        allowed="a path",
        meaning="a client certificate, for nodes without tokens",
    ),
    Option(name="tlsKey", use="both", parse=values.name, allowed="a path", meaning="the key of `tlsCert`"),
)
BY_NAME = {option.name.lower(): option for option in OPTIONS}


def table() -> str:
    """The table of options in docs/SPARK.md."""
    used = {"read": "read", "write": "write", "both": "read, write"}
    rows = [f"| `{o.name}` | {used[o.use]} | {o.allowed} | {o.default} | {o.meaning} |" for o in OPTIONS]
    return "\n".join(["| option | for | allowed | default | meaning |", "| --- | --- | --- | --- | --- |", *rows])
