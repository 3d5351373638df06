"""`m4cast publish` and `m4cast tail`: rows in and out of a channel, through the door of a node."""

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet

from m4cast.client_options import client_options
from m4cast.overlay.client import Channel
from m4cast.overlay.client.tail import Start
from m4cast.overlay.errors import M4castError

FORMATS = ("jsonl", "csv", "parquet", "arrow")
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


@click.command(context_settings=_HELP_NAMES)
@client_options
@click.option("--topic", default="default", show_default=True)
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), help="Of the rows; by the file's ending, else jsonl, if not given."
)
@click.option(
    "--acks",
    type=click.IntRange(0, 64),
    help="Other nodes' disks to wait for; as the node is configured, if not given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
@click.argument("file", default="-", metavar="[FILE]", type=click.Path(path_type=Path))
def publish(channel: Channel, topic: str, kind: str | None, acks: int | None, as_json: bool, file: Path) -> None:
    """Publish the rows of FILE, or of standard input, at a node.

    It ends when the rows are on the node's disk, and on as many others as --acks says.
    """
    ending = file.suffix.removeprefix(".").replace("json", "jsonl").replace("jsonll", "jsonl")
    table = _table(file, kind or (ending if ending in FORMATS else "jsonl"))
    ranges = channel.publish(topic, table, acks=acks)
    if as_json:
        said = [{"topic": r.topic, "origin": r.origin, "first": r.first, "next": r.next} for r in ranges]
        click.echo(json.dumps({"rows": table.num_rows, "ranges": said}))
    else:
        where = ", ".join(f"{r.first} to {r.next - 1} of {r.topic} at {r.origin[:8]}" for r in ranges)
        click.echo(f"published {table.num_rows} rows: {where or 'none'}")


def _table(file: Path, kind: str) -> pa.Table:
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        source = pa.BufferReader(content)
        match kind:
            case "jsonl":
                return pyarrow.json.read_json(source)
            case "csv":
                return pyarrow.csv.read_csv(source)
            case "parquet":
                return pyarrow.parquet.read_table(source)
            case _:
                return pyarrow.feather.read_table(source)
    except OSError as error:
        raise M4castError(f"{file}: cannot be read as {kind}: {error}") from error
    except pa.ArrowException as error:
        raise M4castError(f"{file}: is not {kind}: {error}") from error


@click.command(context_settings=_HELP_NAMES)
@client_options
@click.option("--topic", "topics", multiple=True, default=("default",), show_default=True, help="Several are possible.")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|TIMESTAMP",
    help="Where to begin; a timestamp as in 2026-01-31T12:00:00Z.",
)
@click.option("--max-rows", type=click.IntRange(1), help="End after this many rows.")
@click.option("--idle-s", type=click.FloatRange(0.001), help="End when no row came for this long.")
def tail(channel: Channel, topics: tuple[str, ...], start: str, max_rows: int | None, idle_s: float | None) -> None:
    """Print rows as they come, one JSON object a line, until Ctrl-C."""
    left = max_rows
    try:
        for row in _rows(channel, topics, _start(start), idle_s):
            click.echo(json.dumps(row, default=str))
            if left is not None:
                left -= 1
                if left == 0:
                    break
    except KeyboardInterrupt:
        pass


def _rows(channel: Channel, topics: tuple[str, ...], start: Start, idle_s: float | None) -> Iterator[dict[str, Any]]:
    for batch in channel.tail(list(topics), start, idle_s=idle_s):
        yield from batch.to_pylist()


def _start(text: str) -> Start:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither earliest, latest nor a time ({error})") from error
    return int(at.timestamp() * 1000)
