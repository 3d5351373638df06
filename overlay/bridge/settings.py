"""The settings of a bridge: `KafkaInSettings` and `KafkaOutSettings`, from a TOML file, flags, or both.

A file contains the table `[kafka-in]` or `[kafka-out]`, and optionally `[kafka]` with settings that are passed to
kafka-python: `security_protocol`, `sasl_mechanism`, `ssl_cafile`, ... A text there may be a reference, `env:NAME` or
`file:PATH`, to keep passwords out of the file. Settings that the bridge must choose itself (groups, offsets,
transactions) are refused there.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from m4cast.overlay.bridge.routes import Routes
from m4cast.overlay.config import KIB, MIB
from m4cast.overlay.config.files import made, read_table
from m4cast.overlay.config.settings import (
    OPTIONAL_LISTEN_ADDRESS,
    Allowed,
    field_problems,
    matching,
    one_of,
    refuse,
    setting,
    text,
    whole,
)
from m4cast.overlay.errors import ConfigError

CodecName = Literal["raw", "json", "avro", "avro-single", "cloudevents", "cloudevents-structured"]
CODECS = ("raw", "json", "avro", "avro-single", "cloudevents", "cloudevents-structured")
LIST_MAX = 256
OWN_KAFKA_SETTINGS = frozenset(
    (
        *("bootstrap_servers", "client_id", "group_id", "enable_auto_commit", "auto_offset_reset", "isolation_level"),
        *("key_deserializer", "value_deserializer", "key_serializer", "value_serializer", "consumer_timeout_ms"),
        *("max_poll_records", "transactional_id", "enable_idempotence", "acks", "retries"),
    )
)
"""Settings of kafka-python that the bridge chooses itself, since exactly-once delivery depends on them."""

NAME = matching("[a-z0-9-]{1,32}", "1 to 32 of a-z, 0-9 and -")
TEXTS = Allowed(
    f"at most {LIST_MAX} texts of 1 to 1_000 printable characters",
    lambda value: (
        isinstance(value, tuple)
        and len(value) <= LIST_MAX
        and all(isinstance(each, str) and 1 <= len(each) <= 1_000 and each.isprintable() for each in value)
    ),
)
FLAG = Allowed("true or false", lambda value: isinstance(value, bool))
URL = matching(r"(?:https?://[^\s]{1,1000})?", "an http or https URL, or empty")


def _name(what: str) -> str:
    return setting(
        "bridge",
        what,
        allowed=NAME,
        cost="nothing; a bridge with another name starts from the beginning",
        source="guess",
    )


def _brokers() -> tuple[str, ...]:
    about = 'Bootstrap brokers of Kafka, "host:port".'
    return setting((), about, allowed=TEXTS, cost="nothing", source="guess")


def _codec() -> CodecName:
    about = "Format of Kafka values: see docs/KAFKA.md."
    return setting(
        "raw", about, allowed=one_of(*CODECS), cost="CPU: all codecs but raw parse every value", source="guess"
    )


def _registry() -> str:
    about = "URL of the schema registry, for the codec avro."
    return setting("", about, allowed=URL, cost="nothing; the codec avro needs it", source="guess")


def _avro_schemas() -> tuple[str, ...]:
    about = "Files with Avro schemas (.avsc): avro-single reads values of all of them; kafka-out writes with the first."
    return setting((), about, allowed=TEXTS, cost="nothing", source="guess")


def _dead_letters() -> str:
    about = "Topic of the channel for records and rows that cannot be carried."
    return setting("dead-letters", about, allowed=text(1, 200), cost="nothing", source="guess")


def _metrics() -> str:
    about = "Address where the bridge serves /metrics over plain HTTP; empty: not served."
    cost = "nothing; anyone who can reach the address can read topic names"
    return setting("", about, allowed=OPTIONAL_LISTEN_ADDRESS, cost=cost, source="guess")


def _fail_on_data_loss() -> bool:
    about = "Stop if data to be carried is gone (retention, a topic created again); false: log it and continue."
    return setting(True, about, allowed=FLAG, cost="false continues without the lost data", source="guess")


def _start() -> Literal["earliest", "latest"]:
    about = "Where to begin with a topic that has not been carried before."
    return setting("earliest", about, allowed=one_of("earliest", "latest"), cost="nothing", source="guess")


@dataclass(frozen=True, slots=True)
class KafkaInSettings:
    """Kafka topics into channel topics."""

    name: str = _name("Name of the bridge: the access point stores its positions under this name.")
    brokers: tuple[str, ...] = _brokers()
    topics: tuple[str, ...] = setting(
        (),
        "Kafka topics: regular expressions for whole names, as 'PATTERN' or 'PATTERN -> CHANNEL TOPIC' (with \\\\1).",
        allowed=TEXTS,
        cost="nothing",
        source="guess",
    )
    group: str = setting(
        "",
        "Kafka consumer group that shares the partitions among bridges of one name; empty: m4cast-NAME.",
        allowed=text(0, 200),
        cost="nothing; offsets are never committed to it",
        source="guess",
    )
    start: Literal["earliest", "latest"] = _start()
    codec: CodecName = _codec()  # noqa: RUF009 - a literal is immutable
    columns: tuple[str, ...] = setting(
        (),
        "Types of columns for the codec json, as 'NAME TYPE' with an Arrow type, such as 'price decimal128(10, 2)' or "
        "'at timestamp[us, tz=UTC]'; the types of other columns are inferred.",
        allowed=TEXTS,
        cost="records that do not fit become dead letters",
        source="guess",
    )
    registry: str = _registry()
    avro_schemas: tuple[str, ...] = _avro_schemas()
    dead_letters: str = _dead_letters()
    fail_on_data_loss: bool = _fail_on_data_loss()
    acks: int = setting(
        -1,
        "Number of other nodes that must have rows on disk before they count as carried; -1: the node's own setting.",
        allowed=whole(-1, 64),
        cost="rows wait for the slowest of them",
        source="guess",
    )
    batch_bytes: int = setting(
        MIB,
        "Approximate number of bytes of one partition that are published in one commit.",
        allowed=whole(KIB, 16 * MIB),
        cost="memory, four batches for each lagging partition; latency under load",
        source="guess",
    )
    linger_ms: int = setting(
        100,
        "How long an incomplete batch waits for more records.",
        allowed=whole(0, 60_000),
        cost="latency; lowering it makes small commits, each of which costs a sync",
        source="guess",
    )
    writers: int = setting(
        2,
        "Partitions that are decoded and published in parallel.",
        allowed=whole(1, 64),
        cost="a thread each",
        source="guess",
    )
    metrics: str = _metrics()

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if not problems:
            problems = _problems(self.brokers, self.topics, self.codec, self.registry, self.avro_schemas)
        refuse(problems)

    @property
    def routes(self) -> Routes:
        return Routes.parse(self.topics)


@dataclass(frozen=True, slots=True)
class KafkaOutSettings:
    """Channel topics into Kafka topics."""

    name: str = _name("Name of the bridge, and of its reader at the nodes and its transactions in Kafka.")
    brokers: tuple[str, ...] = _brokers()
    topics: tuple[str, ...] = setting(
        (),
        "Channel topics: regular expressions for whole names, as 'PATTERN' or 'PATTERN -> KAFKA TOPIC' (with \\\\1).",
        allowed=TEXTS,
        cost="nothing",
        source="guess",
    )
    start: Literal["earliest", "latest"] = _start()
    codec: CodecName = _codec()  # noqa: RUF009 - a literal is immutable
    registry: str = _registry()
    avro_schemas: tuple[str, ...] = _avro_schemas()
    dead_letters: str = _dead_letters()
    fail_on_data_loss: bool = _fail_on_data_loss()
    partition_by: Literal["key", "source"] = setting(
        "key",
        "Partition of a record: by its key, as Kafka does, or the partition that it came from.",
        allowed=one_of("key", "source"),
        cost="source needs a topic with as many partitions; rows without a source are placed by their key",
        source="guess",
    )
    progress_topic: str = setting(
        "m4cast-bridge-progress",
        "Kafka topic (compacted; created if missing) where bridges store their progress.",
        allowed=matching("[A-Za-z0-9._-]{1,249}", "the name of a Kafka topic"),
        cost="nothing; with another topic the bridge starts from the beginning",
        source="guess",
    )
    transaction_rows: int = setting(
        20_000,
        "Largest number of rows in one Kafka transaction.",
        allowed=whole(1, 1_000_000),
        cost="consumers of committed records see them later; lowering it commits more often",
        source="guess",
    )
    linger_ms: int = setting(
        100,
        "How long an incomplete transaction stays open for more rows.",
        allowed=whole(0, 60_000),
        cost="latency; lowering it commits more often",
        source="guess",
    )
    metrics: str = _metrics()

    def __post_init__(self) -> None:
        problems = field_problems(self)
        if not problems:
            problems = _problems(self.brokers, self.topics, self.codec, self.registry, self.avro_schemas)
        refuse(problems)

    @property
    def routes(self) -> Routes:
        return Routes.parse(self.topics)


def _problems(
    brokers: tuple[str, ...], topics: tuple[str, ...], codec: str, registry: str, avro_schemas: tuple[str, ...]
) -> list[str]:
    problems = []
    if brokers and any(":" not in broker for broker in brokers):
        problems.append(f'brokers = {list(brokers)}: must be addresses "host:port"')
    try:
        Routes.parse(topics)
    except ConfigError as error:
        problems.append(f"topics: {error}")
    if codec == "avro" and not registry:
        problems.append("codec = 'avro' needs registry: set it to the URL of the schema registry")
    if codec == "avro-single" and not avro_schemas:
        problems.append("codec = 'avro-single' needs avro_schemas: set it to files with the schemas")
    return problems


Direction = Literal["kafka-in", "kafka-out"]
KAFKA_TABLE = "kafka"


def load_settings(
    direction: Direction, path: Path | None, flags: Mapping[str, Any], kafka_flags: Mapping[str, Any]
) -> tuple[KafkaInSettings | KafkaOutSettings, dict[str, Any]]:
    """The settings from a file and from flags, which override the file; and the settings for kafka-python."""
    values: dict[str, Any] = {}
    kafka: dict[str, Any] = {}
    if path is not None:
        tables = ("kafka-in", "kafka-out", KAFKA_TABLE)
        values.update(read_table(path, direction, tables))
        kafka.update(read_table(path, KAFKA_TABLE, tables) if _has_kafka(path) else {})
    values.update(flags)
    kafka.update(kafka_flags)
    where = f"{path}: [{direction}]" if path else direction
    made_settings = made(KafkaInSettings if direction == "kafka-in" else KafkaOutSettings, values, where)
    settings: KafkaInSettings | KafkaOutSettings = made_settings  # type: ignore[assignment]  # one of the two
    for name in ("brokers", "topics"):
        if not getattr(settings, name):
            raise ConfigError(f"{where} {name}: at least one is required")
    if path is not None:
        folder = path.parent
        settings = replace(settings, avro_schemas=tuple(str(folder / each) for each in settings.avro_schemas))
    return settings, {name: _resolved(name, value) for name, value in kafka.items()}


def _has_kafka(path: Path) -> bool:
    import tomllib

    return KAFKA_TABLE in tomllib.loads(path.read_text(encoding="utf-8"))


def _resolved(name: str, value: Any) -> Any:
    if name in OWN_KAFKA_SETTINGS:
        raise ConfigError(f"[{KAFKA_TABLE}] {name}: the bridge sets it itself; remove it")
    if isinstance(value, str) and value.startswith("env:"):
        found = os.environ.get(value.removeprefix("env:"))
        if found is None:
            raise ConfigError(f"[{KAFKA_TABLE}] {name}: {value} is not set; set the variable")
        return found
    if isinstance(value, str) and value.startswith("file:"):
        try:
            return Path(value.removeprefix("file:")).read_text(encoding="utf-8").rstrip("\n")
        except OSError as error:
            raise ConfigError(f"[{KAFKA_TABLE}] {name}: {value} cannot be read: {error.strerror}") from error
    return value
