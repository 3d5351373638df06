"""The options of a read or a write, checked: `ReadOptions` and `WriteOptions`.

Spark passes options as text, with names in any case. They are checked when the DataFrame is created: an unknown name is
refused with the nearest known one (`option_table` has all of them), values are parsed (`option_values`), and options
that contradict each other are refused. Here, and only here, Spark's camelCase names become attributes.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.option_table import BY_NAME, OPTIONS, Option, Read, Use
from m4cast.spark_connector.option_values import INT_MAX, Edge, NotAllowed
from m4cast.spark_connector.source_filter import SourceFilter

METADATA = ("_topic", "_origin", "_sequence", "_published_at")
"""The channel's columns of a row, unless others are chosen."""
RAW_METADATA = ("_topic", "_origin", "_published_at")
NOT_IN_RAW = frozenset({"_sequence", "_key", "_headers"})
ROWS_PER_PARTITION = 4_000_000
BATCH_BYTES = 4 << 20
KEEPERS = 2
LEASE_MS = 600_000
TRIGGER_DELAY_MS = 900_000
NEEDED = {
    "leaseMs": "reader",
    "maxTriggerDelay": "minRowsPerTrigger",
    "whereLanguage": "where",
    "credential": "client",
}
"""Options that have no effect without another one."""
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark's writer that it passes to the data source as well."""
TABLES_OWN = "provider"
"""Spark adds it to the options when a table is created, by SQL or by its catalog."""
NO_TABLES = "Spark does not pass the options of a table to a Python data source"
INSTEAD_OF_TABLES = (
    "use CREATE TEMPORARY VIEW ... USING m4cast OPTIONS (nodes ..., topic ...), or spark.read and df.write"
)


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the channel: nodes and credentials."""

    nodes: tuple[str, ...]
    timeout_ms: int = 60_000
    token: str = field(default="", repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    compression: Literal["lz4", "zstd"] | None = None

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000


@dataclass(frozen=True, slots=True)
class ReadOptions:
    access: Access
    read: Read = "rows"
    of: str = "first"
    """The nodes whose deliveries, roster or interest are read."""
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    """Set if `topics` is empty."""
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
    row_filter: SourceFilter | None = None
    wait_active: Literal["channel", "system"] | None = None
    asks_channel: bool = False
    """Rows are read from the origin of each stream."""
    client: str = ""
    """The key of a client whose notifications are read."""
    credential: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SpreadOptions:
    """A selective topic, made before the first rows are published."""

    keepers: int
    route_by: tuple[str, ...]


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
    spread: SpreadOptions | None = None


# ---- parsing


def parse(options: Mapping[str, str]) -> dict[str, Any]:
    """The values by option name, as spelled in the table. Whether they go together is checked later."""
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
    access = access_of(values)
    read: Read = "client" if "client" in values else values.get("read", "rows")
    _refuse_without_effect(values, read)
    if read in ("rows", "raw", "table") and not {"topic", "topics", "topicPattern"} & set(values):
        raise ConnectorError("M4CAST_MISSING_OPTION", "no topic to read", "set topic, topics or topicPattern")
    if read == "client":
        _require_client(values)
    if values.get("scope") == "channel":
        _refuse_scope(values, streaming=streaming)
    if streaming and read == "table":
        problem = "a table as it stands can only be read by spark.read"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "use spark.read, or read = rows for its changes")
    if streaming and read == "clients":
        problem = "profiles of clients can only be read by spark.read"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "use spark.read")
    if streaming:
        for name in ("endingOffsets", "endingTimestamp"):
            if name in values:
                fix = "use spark.read, or remove the option and stop the query yourself"
                raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", f"option {name} is only for batch reads", fix)
    elif "waitActive" in values:
        problem = "option waitActive is only for streams: a batch read has what is there"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "remove it, or use spark.readStream")
    for name, needed in NEEDED.items():
        if name in values and needed not in values:
            problem = f"option {name} has no effect without {needed}"
            raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, f"set {needed} as well, or remove {name}")
    least, most = values.get("minRowsPerTrigger", 1), values.get("maxRowsPerTrigger", INT_MAX)
    if least > most:
        problem = f"minRowsPerTrigger = {least} is greater than maxRowsPerTrigger = {most}"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "lower the one or raise the other")
    starting = values.get("startingOffsets", values.get("startingTimestamp", "latest" if streaming else "earliest"))
    if not streaming and starting == "latest":
        problem = "a batch read with startingOffsets = latest has no rows"
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
        row_filter=_row_filter(values),
        wait_active=values.get("waitActive"),
        asks_channel=values.get("scope") == "channel",
        client=values.get("client", ""),
        credential=values.get("credential", ""),
    )


def _refuse_scope(values: Mapping[str, Any], *, streaming: bool) -> None:
    if streaming:
        problem = "scope = channel is only for batch reads"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "use spark.read, or remove scope")
    for name in values:
        if name.startswith(("starting", "ending")):
            problem = f"option {name} has no effect with scope = channel, which reads all that the nodes have"
            raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, f"remove {name}, or scope")


def _require_client(values: Mapping[str, Any]) -> None:
    if "credential" not in values:
        fix = "set credential to env:NAME, file:PATH, or the credential itself"
        raise ConnectorError("M4CAST_MISSING_OPTION", f"no credential of client {values['client']!r}", fix)
    absent = set(values.get("metadata", ())) - set(METADATA)
    if absent:
        problem = f"the rows of a client have no {', '.join(sorted(absent))}"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, f"metadata may have {', '.join(METADATA)}")


def _row_filter(values: Mapping[str, Any]) -> SourceFilter | None:
    if "where" not in values:
        return None
    found = SourceFilter(values["where"], values.get("whereLanguage", "sql"))
    found.profile()  # refuses what is not a filter
    return found


def write_options(values: Mapping[str, Any], *, streaming: bool = False) -> WriteOptions:
    _refuse_use(values, "write")
    for name in ("takeover", "batchId"):
        if name in values and "sinkId" not in values:
            problem = f"option {name} has no effect without sinkId"
            raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, f"set sinkId as well, or remove {name}")
    if streaming and "batchId" in values:
        problem = "option batchId is only for batch writes: Spark numbers the micro-batches of a stream"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "remove it")
    return WriteOptions(
        access_of(values),
        topic=values.get("topic"),
        sink_id=values.get("sinkId"),
        takeover=values.get("takeover"),
        acks=values.get("acks"),
        batch_bytes=values.get("batchBytes", BATCH_BYTES),
        batch_id=values.get("batchId"),
        receipts=values.get("receipts"),
        spread=_spread(values),
    )


def _spread(values: Mapping[str, Any]) -> SpreadOptions | None:
    if values.get("spread") != "selective":
        for name in ("keepers", "routeBy"):
            if name in values:
                problem = f"option {name} has no effect without spread = selective"
                raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, f"set spread as well, or remove {name}")
        return None
    if "topic" not in values:
        problem = "option spread needs option topic: topics that are columns of rows are not created"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "set topic, or create the topics beforehand")
    return SpreadOptions(values.get("keepers", KEEPERS), values.get("routeBy", ()))


def access_of(values: Mapping[str, Any]) -> Access:
    if "nodes" not in values:
        fix = 'set option("nodes", "host:port,host:port")'
        if not values:  # perhaps a table that was created with columns, when the data source was not consulted
            fix += f"; if this is a table USING m4cast, {NO_TABLES}: {INSTEAD_OF_TABLES}"
        raise ConnectorError("M4CAST_MISSING_OPTION", "no nodes", fix)
    if ("tlsCert" in values) != ("tlsKey" in values):
        problem = "tlsCert and tlsKey must be set together"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "set both or neither")
    return Access(
        values["nodes"],
        timeout_ms=values.get("timeoutMs", 60_000),
        token=values.get("token", ""),
        tls_ca=values.get("tlsCa", ""),
        tls_cert=values.get("tlsCert", ""),
        tls_key=values.get("tlsKey", ""),
        compression=values.get("compression"),
    )


# ---- refusals


def _refuse_without_effect(values: Mapping[str, Any], read: Read) -> None:
    for option in OPTIONS:
        if option.name in values and read not in option.reads:
            chosen, fix = (
                ("client", "remove it, or client")
                if read == "client"
                else (f"read = {read}", "remove it, or correct read")
            )
            problem = f"option {option.name} has no effect with {chosen}"
            raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, fix)
    absent = NOT_IN_RAW & set(values.get("metadata", ())) if read == "raw" else ()
    if absent:
        problem = f"a raw batch has no {', '.join(sorted(absent))}"
        fix = "remove it from metadata; first_sequence and last_sequence are always present"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, fix)


def _refuse_use(values: Mapping[str, Any], use: Use) -> None:
    for name in values:
        if BY_NAME[name.lower()].use not in (use, "both"):
            other = "writes" if use == "read" else "reads"
            raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", f"option {name} is only for {other}", "remove it")


def _refuse_together(values: Mapping[str, Any], *names: str) -> None:
    given = [name for name in names if name in values]
    if len(given) > 1:
        problem = f"options {' and '.join(given)} exclude each other"
        raise ConnectorError("M4CAST_CONFLICTING_OPTIONS", problem, "set only one")


def _unknown(name: str) -> ConnectorError:
    if name.lower() == "path":
        return ConnectorError("M4CAST_UNKNOWN_OPTION", "m4cast has no path", 'set option("topic", ...)')
    near = difflib.get_close_matches(name.lower(), BY_NAME, 1, 0.5)
    fix = f"did you mean {BY_NAME[near[0]].name}?" if near else f"options are {', '.join(o.name for o in OPTIONS)}"
    return ConnectorError("M4CAST_UNKNOWN_OPTION", f"m4cast has no option {name[:100]!r}", fix)


def _bad(option: Option, text: str, error: Exception) -> ConnectorError:
    shown = "" if option.is_secret else f" = {text[:100]!r}"
    why = f" ({error})" if isinstance(error, NotAllowed | re.error) else ""
    problem = f"option {option.name}{shown} is not allowed{why}"
    return ConnectorError("M4CAST_BAD_OPTION", problem, f"allowed: {option.allowed}")
