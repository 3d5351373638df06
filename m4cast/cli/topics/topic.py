"""`m4cast topic`: what nodes have of a topic, how much of it they retain, which columns they summarise, and the
deletion of its rows.

Each node decides for itself: `retention`, `summaries`, `compact` and `delete` apply to every node that is named,
`retention --all-nodes` to every node of the channel.
"""

from typing import Any

import click

from m4cast.console.access import ACCESS_POINT, EACH, channel_options
from m4cast.console.errors import warn
from m4cast.console.options import confirm, count_option, group, json_option, json_per_node_option, yes_option
from m4cast.console.quantities import age_of, count_of, size_of
from m4cast.console.screen import print_json
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError
from m4cast.topology.survey import every_node


@group()
def topic() -> None:
    """Describe a topic, change its settings, or delete its rows.

    A topic's name is taken literally, including spaces and commas. If it begins with a dash, put `--` before it.
    """


@topic.command()
@channel_options(EACH, is_interruptible=True)
@json_per_node_option
@click.argument("topic")
def describe(channel: Channel, as_json: bool, topic: str) -> None:
    """Show the columns and streams of TOPIC at each node."""
    for node in channel.nodes:
        found = channel.at(node).describe(topic)
        if as_json:
            print_json({"node": node, **found})
            continue
        sizes = "sizes are not shown to a token with a filter"
        if found["bytes"] is not None:
            sizes = f"{count_of(found['rows'], 'row')}, {size_of(found['bytes'])}"
        settings = f"{_retained(found['retention'])}; {_summarised(found['summaries'])}"
        click.echo(f"{topic} at {node}: {sizes}; {settings}")
        if found.get("is_quiet"):  # older nodes do not report it
            click.echo("  quiet: no other channel wants its rows")
        if found["columns"] is None:
            click.echo(f"  conflicting columns: {found['conflict']}")
        for column in found["columns"] or ():
            click.echo(f"  column {column['name']}: {column['type']}")
        for origin, stream in found["streams"].items():
            rows = f"rows {stream['low']} to {stream['next'] - 1}" if stream["low"] < stream["next"] else "no rows"
            size = "" if stream["bytes"] is None else f", {size_of(stream['bytes'])}"
            click.echo(f"  stream of {origin}: {rows}, next is {stream['next']}{size}")


@topic.command()
@count_option("--max-bytes", help="Retain about this many bytes; the node's default if omitted.")
@count_option("--max-age-ms", help="Retain rows for this long, in milliseconds; the node's default if omitted.")
@click.option("--all-nodes", is_flag=True, help="Set it at every node of the channel, not only at those named.")
@channel_options(EACH, is_interruptible=True)
@json_per_node_option
@click.argument("topic")
def retention(
    channel: Channel, as_json: bool, max_bytes: int | None, max_age_ms: int | None, all_nodes: bool, topic: str
) -> None:
    """Set how much of TOPIC each node retains. Without a limit, the node's default applies again.

    With --all-nodes, the nodes that are named are asked for the addresses of all others. The limits are set wherever
    possible; nodes that could not be reached are reported, and the exit code is 1. Repeat the command once they are
    back.
    """
    nodes = [(node, node) for node in channel.nodes] if not all_nodes else every_node(channel)
    failed = False
    for name, door in nodes:
        try:
            if not door:
                raise M4castError(f"{name}: has not reported a client door: name it with --node")
            result = channel.at(door).set_retention(topic, max_bytes=max_bytes, max_age_ms=max_age_ms)
        except M4castError as error:
            if not all_nodes:
                raise
            failed = True
            warn(f"not set at {name}: {error}")
            continue
        if as_json:
            print_json({"node": door, **result})
        else:
            click.echo(f"{topic} at {door}: {_retained(result)}")
    if failed:
        raise click.exceptions.Exit(1)


@topic.command()
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Summarise this column. Can be repeated.")
@click.option("--off", is_flag=True, help="Make no summaries.")
@channel_options(EACH, is_interruptible=True)
@json_per_node_option
@click.argument("topic")
def summaries(channel: Channel, as_json: bool, columns: tuple[str, ...], off: bool, topic: str) -> None:
    """Set which columns of TOPIC are summarised at each node, in the batches that are published there.

    Filtered reads pass over batches whose summary rules a match out. A member of a struct is named with a dot:
    address.city. Without --column and --off, the columns are those that reads at the node filter by.
    """
    if columns and off:
        raise click.UsageError("--column and --off exclude each other: give one of them")
    wanted = [column.split(".") for column in columns]
    for node in channel.nodes:
        result = channel.at(node).set_summaries(topic, wanted or ("off" if off else "auto"))
        if as_json:
            print_json({"node": node, **result})
        else:
            click.echo(f"{topic} at {node}: {_summarised(result)}")


@topic.command()
@click.option("--spread", type=click.Choice(["selective"]), default="selective", help="How rows travel.")
@click.option("--keepers", type=click.IntRange(0, 8), default=2, show_default=True, help="Nodes that keep all rows.")
@click.option("--route-by", "route_by", multiple=True, metavar="COLUMN", help="Column to route by. Can be repeated.")
@channel_options(ACCESS_POINT, is_interruptible=True)
@json_option
@click.argument("topic")
def create(channel: Channel, spread: str, keepers: int, route_by: tuple[str, ...], as_json: bool, topic: str) -> None:
    """Make TOPIC a selective topic: its rows go to the nodes that want them, and to its keepers.

    Every node must support the protocol version that selective topics need. A topic that is not created in this way is
    a broadcast topic.
    """
    made = channel.create_topic(topic, keepers=keepers, route_by=route_by)
    if as_json:
        print_json(made)
        return
    columns = f", routed by {', '.join(made['route_by'])}" if made["route_by"] else ""
    click.echo(f"{topic}: {spread}, {count_of(made['keepers'], 'keeper')}{columns}")


@topic.command()
@channel_options(EACH, is_interruptible=True)
@json_per_node_option
@click.argument("topic")
def compact(channel: Channel, as_json: bool, topic: str) -> None:
    """Remove from each node the batches of the table TOPIC in which no row stands any more.

    Batches are removed from the beginning of each stream, up to the first one in which a row stands or which a reader
    holds. Retention does not remove rows of tables.
    """
    for node in channel.nodes:
        result = channel.at(node).compact_table(topic)
        if as_json:
            print_json({"node": node, **result})
        else:
            click.echo(f"{topic} at {node}: {result['batches']:,} of its batches removed")


@topic.command()
@yes_option
@channel_options(EACH, is_interruptible=True)
@json_per_node_option
@click.argument("topic")
def delete(channel: Channel, as_json: bool, yes: bool, topic: str) -> None:
    """Delete the rows of TOPIC at each node that is named. Numbering continues; other nodes keep their rows."""
    if not yes:
        confirm(f"Delete the rows of {topic!r} at {', '.join(channel.nodes)}?")
    for node in channel.nodes:
        result = channel.at(node).delete_topic(topic)
        if as_json:
            print_json({"node": node, **result})
        else:
            click.echo(f"{topic} at {node}: removed {size_of(result['bytes'])}")


def _retained(retention: dict[str, Any]) -> str:
    size = "any size" if retention["max_bytes"] is None else size_of(retention["max_bytes"])
    age = "any age" if retention["max_age_ms"] is None else age_of(retention["max_age_ms"])
    return f"retention: {size}, {age}" + (" (default)" if retention["is_default"] else "")


def _summarised(summaries: dict[str, Any]) -> str:
    names = ", ".join(name if isinstance(name, str) else ".".join(name) for name in summaries["columns"])
    if summaries["summarise"] == "auto":
        return f"summaries: auto, now {f'of {names}' if names else 'none'}"
    return f"summaries: of {names}" if names else "summaries: off"
