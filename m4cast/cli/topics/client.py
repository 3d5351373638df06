"""`m4cast client`: clients with a lasting key, from the command line.

A client's file contains its key, its credential, the nodes that it knows, and its position. Every command except
`list`, `finger`, `access-points` and `remove` takes the file, so a client can be used from any host, by one process at
a time.
"""

from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from m4cast.cli.topics.filters import filter_options
from m4cast.console.access import EACH, FAIL_OVER, NodeAccess, access_options, channel_options
from m4cast.console.errors import warn
from m4cast.console.interruption import interruptible
from m4cast.console.options import (
    confirm,
    count_option,
    group,
    json_option,
    json_per_node_option,
    seconds_option,
    yes_option,
)
from m4cast.console.screen import Screen, print_json
from m4cast.overlay.client import Channel, Client
from m4cast.overlay.client.roaming.client_file import ClientFile
from m4cast.overlay.errors import LocalProtocolError
from m4cast.schemas.json_text import json_of

file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
name_option = click.option("--name", default="default", show_default=True, help="Name of the profile.")


@group()
def client() -> None:
    """Use clients: each has a key, profiles and a position, and gets each row once, wherever it connects."""


def opened(access: NodeAccess, file: Path, **settings: Any) -> Client:
    """The client of a file, at the nodes that are named or, if none is, at those in the file."""
    known = ClientFile(file).read().get("nodes", [])
    nodes = access.nodes or tuple(known)
    named = replace(access, nodes=nodes) if nodes else access
    return Client(named.resolved().channel(), file=str(file), **settings)


def show(as_json: bool, answer: dict[str, Any], line: str) -> None:
    if as_json:
        print_json(answer)
    else:
        click.echo(line)


@client.command()
@click.option("--name", "client_key", default=None, metavar="KEY", help="Key of the client; random by default.")
@access_options(FAIL_OVER)
@file_argument
@json_option
def new(access: NodeAccess, file: Path, as_json: bool, client_key: str | None) -> None:
    """Create a client, and write its key, its credential and its position to FILE."""
    if file.exists():
        raise LocalProtocolError(f"{file} exists: choose another name, or remove it")
    made = Client.new(access.resolved().channel(), key=client_key, file=str(file))
    node = made.node
    made.disconnect()
    show(as_json, {"key": made.key, "node": node}, f"{made.key}: created at {node}, {file} has its credential")


@client.command()
@access_options(FAIL_OVER)
@file_argument
@json_option
def connect(access: NodeAccess, file: Path, as_json: bool) -> None:
    """Attach the client to the first node that answers, show how many rows wait for it at most, and disconnect."""
    one = opened(access, file)
    waiting = one.connect()
    answer = {"key": one.key, "node": one.node, "session": one.memory.session, "waiting_max": waiting}
    one.disconnect()
    line = f"{one.key}: attached to {answer['node']}, session {answer['session']}; at most {waiting:,} rows wait"
    show(as_json, answer, line)


@client.command()
@access_options(FAIL_OVER)
@file_argument
@json_option
def disconnect(access: NodeAccess, file: Path, as_json: bool) -> None:
    """End the client's connection, whichever process has it. That process is notified."""
    one = opened(access, file)
    one.connect()
    one.disconnect()
    show(as_json, {"key": one.key}, f"{one.key}: disconnected; its rows wait")


@client.command()
@name_option
@filter_options("Only rows that satisfy this filter (docs/FILTERS.md).")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|standing|TIME",
    help="Where to start; standing: with the rows of a table that stand now. Earlier rows of the topic that other "
    "profiles have already given are not given again.",
)
@access_options(FAIL_OVER)
@file_argument
@click.argument("topic")
@json_option
def subscribe(
    access: NodeAccess,
    file: Path,
    as_json: bool,
    topic: str,
    name: str,
    where: str | None,
    language: str | None,
    start: str,
) -> None:
    """Add a profile of rows of TOPIC. A profile of the same name is replaced."""
    one = opened(access, file)
    one.connect()
    one.subscribe(topic, where, name=name, language=language, start=start)
    one.disconnect()
    answer = {"key": one.key, "name": name, "topic": topic, "where": where}
    show(as_json, answer, f"{one.key}: {name}: {topic}{f' where {where}' if where else ''}")


@client.command()
@name_option
@access_options(FAIL_OVER)
@file_argument
@json_option
def unsubscribe(access: NodeAccess, file: Path, as_json: bool, name: str) -> None:
    """Remove a profile."""
    one = opened(access, file)
    one.connect()
    is_there = one.unsubscribe(name)
    one.disconnect()
    line = f"{one.key}: {name}: {'given up' if is_there else 'there is no such profile'}"
    show(as_json, {"key": one.key, "name": name, "removed": is_there}, line)


@client.command()
@count_option("--max-rows", low=1, help="End after this many rows.")
@seconds_option("--idle-s", low=0.001, help="End when no row has arrived for this long.")
@access_options(FAIL_OVER)
@file_argument
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the output is always JSON.")
def tail(access: NodeAccess, file: Path, max_rows: int | None, idle_s: float | None) -> None:
    """Print the client's rows, one JSON object per line, until Ctrl-C. Rows that were printed are not printed again."""
    one = opened(access, file, acknowledge="manual")
    interruptible(one.connect)
    left = max_rows
    with suppress(KeyboardInterrupt), closing(one.notifications(idle_s)) as notifications:
        for rows in interruptible_batches(notifications):
            for row in islice(rows.to_pylist(), left):
                click.echo(json_of(row))
            if left is not None:
                notifications.take(left)
                left -= min(left, rows.num_rows)
            one.acknowledge()
            if left == 0:
                break
    one.disconnect()


def interruptible_batches(notifications: Any) -> Any:
    while True:
        rows = interruptible(lambda: next(notifications, None))
        if rows is None:
            return
        yield rows


@client.command()
@channel_options(FAIL_OVER)
@json_option
@click.argument("client_key", metavar="KEY")
def finger(channel: Channel, as_json: bool, client_key: str) -> None:
    """Show where a client is attached, and whether it is connected."""
    row = channel.finger(client_key)
    if as_json:
        print_json({"key": client_key, "found": row is not None, **(row or {})})
    elif row is None:
        click.echo(f"{client_key}: no node knows this client")
    else:
        state = {True: "online", False: "offline", None: "unknown: its access point does not answer"}[row["online"]]
        click.echo(f"{client_key}: {state}; attached to {row['node']} ({row['door'] or 'no door'})")


@client.command("list")
@count_option("--limit", low=1, default=1_000, help="Show at most this many clients.")
@channel_options(FAIL_OVER)
@json_option
def list_(channel: Channel, as_json: bool, limit: int) -> None:
    """Show the clients of the channel, as the answering node knows them."""
    found = list(islice(channel.clients(), limit + 1))
    shown = found[:limit]
    if as_json:
        print_json({"clients": shown, "has_more": len(found) > limit})
        return
    if not shown:
        click.echo("there are no clients")
        return
    table = Table("key", "node", "session", "since", box=None, pad_edge=False)
    for row in shown:
        since = datetime.fromtimestamp(row["since_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(*map(Text, (row["key"], row["node"], str(row["session"]), since)))
    Screen().print(table)
    if len(found) > limit:
        warn(f"there are more than {limit} clients: raise --limit")


@client.command("access-points")
@channel_options(FAIL_OVER)
@json_option
def access_points(channel: Channel, as_json: bool) -> None:
    """Show the doors of all nodes that are present; a client can connect to any of them."""
    doors = channel.access_points()
    if as_json:
        print_json({"access_points": doors})
    else:
        for door in doors:
            click.echo(door)


@client.command()
@yes_option
@channel_options(EACH)
@json_per_node_option
@click.argument("client_key", metavar="KEY")
def remove(channel: Channel, as_json: bool, yes: bool, client_key: str) -> None:
    """Remove a client from each node that is named: its profiles, its position, and the hold on its rows."""
    if not yes:
        confirm(f"Remove client {client_key} from {', '.join(channel.nodes)}?")
    for node in channel.nodes:
        removed = channel.at(node).remove_client(client_key)
        if as_json:
            print_json({"node": node, "removed": removed})
        else:
            click.echo(f"{client_key} at {node}: {'removed' if removed else 'is not attached there'}")
