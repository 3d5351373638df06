"""`m4cast bridge`: carry Kafka topics into channel topics and back, until told to stop.

SIGTERM or Ctrl-C stops it in order: what is being committed is finished, and it leaves its Kafka group; it exits with
0. Where it stops it goes on when it is started again, wherever that is. Log lines go to stderr.
"""

import json
import logging
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from m4cast.client_options import ACCESS_POINT, FAIL_OVER, client_options
from m4cast.log_format import LogFormat, log_to_stderr
from m4cast.overlay.client import Channel
from m4cast.overlay.config.settings import facts_of
from m4cast.overlay.errors import ConfigError, M4castError

try:
    from m4cast.overlay.bridge.brokers import Brokers
    from m4cast.overlay.bridge.cloud_events import CloudEventsCodec
    from m4cast.overlay.bridge.codecs import AvroCodec, Codec, JsonCodec, RawCodec, load_avro_schema
    from m4cast.overlay.bridge.kafka_in import KafkaIn
    from m4cast.overlay.bridge.kafka_out import KafkaOut
    from m4cast.overlay.bridge.metrics import BridgeMetrics
    from m4cast.overlay.bridge.registry import Registry
    from m4cast.overlay.bridge.settings import Direction, KafkaInSettings, KafkaOutSettings, load_settings
except ImportError as error:
    raise M4castError(
        f"a bridge needs kafka-python and prometheus_client: pip install 'm4cast[kafka]' ({error})"
    ) from error

log = logging.getLogger("m4cast.bridge")

SINGULAR = {"brokers": "broker", "topics": "topic", "columns": "column", "avro_schemas": "avro_schema"}
"""Flags of settings that are lists: one value each, given several times."""


def _flags(settings: type[KafkaInSettings] | type[KafkaOutSettings]) -> Callable[..., Any]:
    """A flag for every setting of the file."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(fields(settings)):
            about = facts_of(each).about.replace("\\\\", "\\")  # escaped for the file
            flag = f"--{SINGULAR.get(each.name, each.name).replace('_', '-')}"
            if isinstance(each.default, bool):
                command = click.option(f"{flag}/--no-{flag[2:]}", each.name, default=None, help=about)(command)
            elif isinstance(each.default, tuple):
                command = click.option(flag, each.name, multiple=True, help=f"{about} Several times.")(command)
            else:
                kind = int if isinstance(each.default, int) else str
                shown = f"{about} [default: {each.default}]" if each.default != "" else about
                command = click.option(flag, each.name, type=kind, default=None, help=shown)(command)
        return command

    return add


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--verbose", is_flag=True, help="Log more, and what kafka-python says."),
        click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
        click.option(
            "--kafka", "kafka", multiple=True, metavar="NAME=VALUE", help="A setting of kafka-python. Several times."
        ),
        click.option("--conf", metavar="FILE", type=click.Path(path_type=Path), help="TOML; flags win over it."),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bridge() -> None:
    """Carry Kafka topics into channel topics, and back."""


@bridge.command("kafka-in")
@client_options(ACCESS_POINT)
@_shared
@_flags(KafkaInSettings)
def kafka_in(channel: Channel, **options: Any) -> None:
    """Records of Kafka topics become rows of channel topics, exactly once.

    The first --node is the access point: positions are kept there.
    """
    _run("kafka-in", channel, **options)


@bridge.command("kafka-out")
@client_options(FAIL_OVER)
@_shared
@_flags(KafkaOutSettings)
def kafka_out(channel: Channel, **options: Any) -> None:
    """Rows of channel topics become records of Kafka topics, in transactions.

    Who reads committed records there sees each row once.
    """
    _run("kafka-out", channel, **options)


def _run(
    direction: Direction,
    channel: Channel,
    *,
    conf: Path | None,
    kafka: tuple[str, ...],
    verbose: bool,
    log_format: LogFormat,
    **flags: Any,
) -> None:
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in flags.items()}
    given = {name: value for name, value in given.items() if value not in (None, [])}
    settings, kafka_settings = load_settings(direction, conf, given, dict(_kafka_setting(each) for each in kafka))
    log_to_stderr(settings.name, log_format, verbose=verbose)
    if not verbose:
        logging.getLogger("kafka").setLevel(
            logging.CRITICAL
        )  # it says the same again and again; the bridge says it once
    brokers = Brokers(settings.brokers, settings.name, kafka_settings)
    metrics = BridgeMetrics(direction, settings.name)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = metrics.serve(settings.metrics) if settings.metrics else None
    log.info("%s %s begins", direction, settings.name)
    try:
        bridge_of(settings, brokers, channel, metrics, stop).run()
    finally:
        if server is not None:
            server.shutdown()
    log.info("%s %s stopped in order", direction, settings.name)


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
                raise ValueError("a name, a space and a type")
            found.append((match["name"], _column_type(match["type"])))
        except ValueError as error:
            raise ConfigError(
                f"columns: {line!r}: write 'NAME TYPE' with a type of Arrow, such as 'price decimal128(10, 2)' or "
                f"'at timestamp[us, tz=UTC]' ({error})"
            ) from error
    return pa.schema(found)


def _column_type(text: str) -> pa.DataType:
    """Arrow knows no names of types that have arguments."""
    if decimal := re.fullmatch(r"decimal128\((\d+), *(\d+)\)", text):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if zoned := re.fullmatch(r"timestamp\[(\w+), *tz=UTC\]", text):
        return pa.timestamp(zoned[1], "UTC")
    return pa.type_for_alias(text)


def _kafka_setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r}: write NAME=VALUE", param_hint="--kafka")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
