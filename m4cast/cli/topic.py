"""`m4cast topic`: what nodes have of one topic, how much of it they keep, and its deletion.

Nodes decide for themselves what they keep: `retention` and `delete` are done at each node that is named.
"""

import json
import sys
from typing import Any

import click

from m4cast.console.access import EACH, client_options
from m4cast.console.quantities import age_of, size_of
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each node, and nothing else.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def topic() -> None:
    """Describe a topic, set how much of it is kept, or delete what is kept.

    A name is taken as it is, with spaces and commas. One that begins with a dash comes last, after `--`.
    """


@topic.command()
@client_options(EACH, is_interruptible=True)
@_JSON
@click.argument("topic")
def describe(channel: Channel, as_json: bool, topic: str) -> None:
    """Show the columns and streams of TOPIC at each node."""
    for node in channel.nodes:
        said = channel.at(node).describe(topic)
        if as_json:
            click.echo(json.dumps({"node": node, **said}))
            continue
        rows = "1 row" if said["rows"] == 1 else f"{said['rows']:,} rows"
        click.echo(f"{topic} at {node}: {rows}, {size_of(said['bytes'])}; {_kept(said['retention'])}")
        if said["columns"] is None:
            click.echo(f"  columns that do not agree: {said['conflict']}")
        for column in said["columns"] or ():
            click.echo(f"  column {column['name']}: {column['type']}")
        for origin, stream in said["streams"].items():
            rows = f"rows {stream['low']} to {stream['next'] - 1}" if stream["low"] < stream["next"] else "no rows"
            click.echo(f"  stream of {origin}: {rows}, next is {stream['next']}, {size_of(stream['bytes'])}")


@topic.command()
@client_options(EACH, is_interruptible=True)
@_JSON
@click.option("--max-bytes", type=click.IntRange(0), help="Keep about as much; the node's default if not given.")
@click.option("--max-age-ms", type=click.IntRange(0), help="Keep rows as long; the node's default if not given.")
@click.argument("topic")
def retention(channel: Channel, as_json: bool, max_bytes: int | None, max_age_ms: int | None, topic: str) -> None:
    """Set how much of TOPIC each node keeps. Without a limit it is the node's default again."""
    for node in channel.nodes:
        said = channel.at(node).set_retention(topic, max_bytes=max_bytes, max_age_ms=max_age_ms)
        click.echo(json.dumps({"node": node, **said}) if as_json else f"{topic} at {node}: {_kept(said)}")


@topic.command()
@client_options(EACH, is_interruptible=True)
@_JSON
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.argument("topic")
def delete(channel: Channel, as_json: bool, yes: bool, topic: str) -> None:
    """Remove what each node keeps of TOPIC. Its numbering goes on; nodes that are not named keep what they have."""
    if not yes:
        click.echo(f"Delete what {', '.join(channel.nodes)} keeps of {topic!r}? [y/N]: ", nl=False, err=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise M4castError("nothing was deleted: answer y, or give --yes")
    for node in channel.nodes:
        said = channel.at(node).delete_topic(topic)
        click.echo(
            json.dumps({"node": node, **said}) if as_json else f"{topic} at {node}: removed {size_of(said['bytes'])}"
        )


def _kept(retention: dict[str, Any]) -> str:
    size = "any size" if retention["max_bytes"] is None else size_of(retention["max_bytes"])
    age = "any age" if retention["max_age_ms"] is None else age_of(retention["max_age_ms"])
    return f"kept to {size} and {age}" + (" (default)" if retention["is_default"] else "")
