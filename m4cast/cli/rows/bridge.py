"""`m4cast bridge`: carry Kafka topics into channel topics and back, until stopped.

On SIGTERM or Ctrl-C a bridge finishes the commit in progress, leaves its Kafka group and exits with 0. When it is
started again, on this machine or another, it resumes where it stopped. The log goes to stderr.
"""

import json
import logging
import re
import signal
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from m4cast.console.access import ACCESS_POINT, FAIL_OVER, channel_options
from m4cast.console.log_format import LogFormat, log_to_stderr
from m4cast.console.options import Command, Decorator, all_of, group, log_options, pairs_option
from m4cast.overlay.client import Channel
from m4cast.overlay.config.settings import facts_of
from m4cast.overlay.errors import ConfigError, M4castError

try:
    from m4cast.overlay.bridge.brokers import Brokers
    from m4cast.overlay.bridge.codecs.avro_codec import AvroCodec, load_avro_schema
    from m4cast.overlay.bridge.codecs.cloud_events import CloudEventsCodec
    from m4cast.overlay.bridge.codecs.codec import Codec
    from m4cast.overlay.bridge.codecs.json_codec import JsonCodec
    from m4cast.overlay.bridge.codecs.raw_codec import RawCodec
    from m4cast.overlay.bridge.codecs.registry import Registry
    from m4cast.overlay.bridge.kafka_in.bridge import KafkaIn
    from m4cast.overlay.bridge.kafka_out.bridge import KafkaOut
    from m4cast.overlay.bridge.metrics import BridgeMetrics
    from m4cast.overlay.bridge.settings import Direction, KafkaInSettings, KafkaOutSettings, load_settings
except ImportError as error:
    raise M4castError(
        f"a bridge needs kafka-python and prometheus_client: pip install 'm4cast[kafka]' ({error})"
    ) from error

log = logging.getLogger("m4cast.bridge")

SINGULAR = {"brokers": "broker", "topics": "topic", "columns": "column", "avro_schemas": "avro_schema"}
"""Names of flags for settings that are lists: each flag takes one value and can be repeated."""


def _settings_options(settings: type[KafkaInSettings] | type[KafkaOutSettings]) -> Decorator:
    """An option for every setting in the file."""

    def add(command: Command) -> Command:
        for each in reversed(fields(settings)):
            about = facts_of(each).about.replace("\\\\", "\\")  # escaped for the file
            flag = f"--{SINGULAR.get(each.name, each.name).replace('_', '-')}"
            if isinstance(each.default, bool):
                command = click.option(f"{flag}/--no-{flag[2:]}", each.name, default=None, help=about)(command)
            elif isinstance(each.default, tuple):
                command = click.option(flag, each.name, multiple=True, help=f"{about} Can be repeated.")(command)
            else:
                kind = int if isinstance(each.default, int) else str
                shown = f"{about} [default: {each.default}]" if each.default != "" else about
                command = click.option(flag, each.name, type=kind, default=None, help=shown)(command)
        return command

    return add


_shared_options = all_of(
    click.option(
        "--conf",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="TOML file with settings; options take precedence over it.",
    ),
    pairs_option("--kafka", "kafka", help="A setting of kafka-python."),
    log_options("Log more, including what kafka-python logs."),
)


@group()
def bridge() -> None:
    """Carry Kafka topics into channel topics and back."""


@bridge.command("kafka-in")
@channel_options(ACCESS_POINT)
@_shared_options
@_settings_options(KafkaInSettings)
def kafka_in(channel: Channel, **options: Any) -> None:
    """Publish the records of Kafka topics as rows of channel topics, exactly once.

    The first --node is the access point, which stores how far each partition has been carried.
    """
    _run("kafka-in", channel, **options)


@bridge.command("kafka-out")
@channel_options(FAIL_OVER)
@_shared_options
@_settings_options(KafkaOutSettings)
def kafka_out(channel: Channel, **options: Any) -> None:
    """Write the rows of channel topics as records to Kafka topics, in transactions.

    A consumer that reads only committed records sees each row exactly once.
    """
    _run("kafka-out", channel, **options)


def _run(
    direction: Direction,
    channel: Channel,
    *,
    conf: Path | None,
    kafka: dict[str, str],
    verbose: bool,
    log_format: LogFormat,
    **flags: Any,
) -> None:
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in flags.items()}
    given = {name: value for name, value in given.items() if value not in (None, [])}
    settings, kafka_settings = load_settings(
        direction, conf, given, {name: _kafka_value(value) for name, value in kafka.items()}
    )
    log_to_stderr(settings.name, log_format, verbose=verbose)
    if not verbose:
        # kafka-python repeats what the bridge logs once.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
    brokers = Brokers(settings.brokers, settings.name, kafka_settings)
    metrics = BridgeMetrics(direction, settings.name)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = metrics.serve(settings.metrics) if settings.metrics else None
    log.info("%s %s started", direction, settings.name)
    try:
        bridge_of(settings, brokers, channel, metrics, stop).run()
    finally:
        if server is not None:
            server.shutdown()
    log.info("%s %s stopped", direction, settings.name)


def bridge_of(
    settings: KafkaInSettings | KafkaOutSettings,
    brokers: Brokers,
    channel: Channel,
    metrics: BridgeMetrics,
    stop: threading.Event,
) -> KafkaIn | KafkaOut:
    codec = codec_of(settings)
    if isinstance(settings, KafkaInSettings):
        return KafkaIn(settings, brokers, channel, codec, metrics, stop)
    return KafkaOut(settings, brokers, channel, codec, metrics, stop)


def codec_of(settings: KafkaInSettings | KafkaOutSettings) -> Codec:
    match settings.codec:
        case "raw":
            return RawCodec()
        case "json":
            return JsonCodec(_columns(settings.columns if isinstance(settings, KafkaInSettings) else ()))
        case "avro" | "avro-single":
            registry = Registry(settings.registry) if settings.codec == "avro" else None
            return AvroCodec(registry, [load_avro_schema(Path(path)) for path in settings.avro_schemas])
        case "cloudevents":
            return CloudEventsCodec("binary")
        case "cloudevents-structured":
            return CloudEventsCodec("structured")


_COLUMN = re.compile(r"(?P<name>.+?) +(?P<type>\S+|decimal128\(\d+, *\d+\)|timestamp\[\w+, *tz=UTC\])")


def _columns(lines: tuple[str, ...]) -> pa.Schema:
    found = []
    for line in lines:
        match = _COLUMN.fullmatch(line.strip())
        try:
            if match is None:
                raise ValueError("expected a name, a space and a type")
            found.append((match["name"], _column_type(match["type"])))
        except ValueError as error:
            raise ConfigError(
                f"columns: {line!r}: write 'NAME TYPE' with an Arrow type, such as 'price decimal128(10, 2)' or "
                f"'at timestamp[us, tz=UTC]' ({error})"
            ) from error
    return pa.schema(found)


def _column_type(text: str) -> pa.DataType:
    """Parse a type, including those with arguments, which have no alias in Arrow."""
    if decimal := re.fullmatch(r"decimal128\((\d+), *(\d+)\)", text):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if zoned := re.fullmatch(r"timestamp\[(\w+), *tz=UTC\]", text):
        return pa.timestamp(zoned[1], "UTC")
    return pa.type_for_alias(text)


def _kafka_value(text: str) -> Any:
    """The value of a setting: numbers and booleans are parsed as JSON; anything else is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text
