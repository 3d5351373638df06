"""`m4cast status`, `topics` and `topology`: look at nodes and their channel through their doors. Nothing is changed.

Tables for people, one JSON object with `--json` for programs. In it `listen` is where other nodes reach a node, `door`
where clients do; `address` is the same as `listen`.
"""

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from m4cast.console.access import EACH, FAIL_OVER, client_options
from m4cast.console.screen import Screen, styled_state
from m4cast.overlay.client import Channel
from m4cast.topology.picture import write_svg
from m4cast.topology.survey import survey
from m4cast.topology.table import print_topology

ROSTER_SHOWN_MAX = 50
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")


@click.command(context_settings=_HELP_NAMES)
@client_options(FAIL_OVER, is_interruptible=True)
@_JSON
def status(channel: Channel, as_json: bool) -> None:
    """Show the node that answers: its state, its neighbours, and whom it knows on the channel."""
    said = _with_doors(channel.status(), channel.topology())
    if as_json:
        click.echo(json.dumps(said))
        return
    names = {entry["node_id"]: entry["name"] for entry in said["roster"]}
    neighbours = [f"{names.get(each['node_id'], '?')} at {each['listen']}" for each in said["neighbours"]]
    table = Table("", "", "what it says", box=None, pad_edge=False, show_header=False)
    table.add_row("node", said["name"], f"id {said['node_id']}, incarnation {said['incarnation']}")
    if said["site"]:
        table.add_row("site", said["site"], "")
    reached = f"clients at {said['door']}" if said["door"] else "clients nowhere"
    table.add_row("state", styled_state(said["state"]), f"other nodes reach it at {said['listen']}, {reached}")
    table.add_row("neighbours", str(len(neighbours)), ", ".join(neighbours))
    table.add_row("holes", str(said["holes"]), "neighbours missing")
    table.add_row("diameter", str(said["diameter"]), "hops to the farthest node, as far as it knows")
    forks = said.get("forks", [])  # nor of these
    if forks:
        about = "streams with TWO HISTORIES (docs/OPERATIONS.md): " + ", ".join(each["topic"] for each in forks[:5])
        table.add_row("forks", str(len(forks)), about)
    clock = said.get("clock", {})  # a node of an older version says nothing of it
    if clock.get("ahead_ms") is not None:
        about = "beyond its neighbours' (their median)" if clock["agrees"] else "beyond its neighbours': one is WRONG"
        table.add_row("clock", f"{clock['ahead_ms'] / 1000:+.1f} s", about)
    table.add_row("topics", str(said["topics"]), f"{said['streams']} streams")
    roster = ", ".join(entry["name"] for entry in said["roster"][:ROSTER_SHOWN_MAX])
    more = len(said["roster"]) - ROSTER_SHOWN_MAX
    table.add_row("roster", str(len(said["roster"])), f"{roster}{f' and {more} more' if more > 0 else ''}")
    Screen().print(table)


def _with_doors(status: dict[str, Any], topology: dict[str, Any]) -> dict[str, Any]:
    """What the node says, with `listen` and `door` of each node in it; the door empty where it is not known."""
    doors = {node["node_id"]: node.get("door", "") for node in topology["nodes"]}

    def told(node: dict[str, Any]) -> dict[str, Any]:
        return {**node, "listen": node["address"], "door": doors.get(node["node_id"], "")}

    parts = {name: [told(node) for node in status[name]] for name in ("neighbours", "roster")}
    return {**told(status), **parts}


@click.command(context_settings=_HELP_NAMES)
@client_options(FAIL_OVER, is_interruptible=True)
@_JSON
def topics(channel: Channel, as_json: bool) -> None:
    """List the topics that the answering node knows: their streams and the rows it keeps."""
    lows, nexts = channel.earliest(), channel.frontier()
    listed = [
        {
            "topic": topic,
            "streams": len(origins),
            "rows": sum(until - lows.get(topic, {}).get(origin, until) for origin, until in origins.items()),
            "rows_published": sum(until - 1 for until in origins.values()),
        }
        for topic, origins in sorted(nexts.items())
    ]
    if as_json:
        click.echo(json.dumps({"topics": listed}))
        return
    if not listed:
        click.echo("no topics yet")
        return
    table = Table("topic", box=None, pad_edge=False)
    for name in ("streams", "rows kept", "rows ever"):
        table.add_column(name, justify="right")
    for each in listed:
        counts = (each["streams"], each["rows"], each["rows_published"])
        table.add_row(str(each["topic"]), *(f"{count:,}" for count in counts))
    Screen().print(table)


@click.command(context_settings=_HELP_NAMES)
@client_options(EACH, is_interruptible=True)
@click.option("--svg", metavar="FILE", type=click.Path(path_type=Path), help="Draw the graph into this file.")
@_JSON
def topology(channel: Channel, svg: Path | None, as_json: bool) -> None:
    """Show the graph of the channel: nodes, their neighbours, and what it survives.

    Each --node is asked, and every other node whose door these know. Of a node that does not answer, the others' word
    is taken, which its last beacon gave them some seconds ago. One has to answer.
    """
    away: list[str] = []
    graph = survey(channel, unreachable=away, beyond=True)
    for error in away:
        click.echo(f"m4cast: goes on without it: {error}", err=True)
    if svg is not None:
        write_svg(graph, svg)
    if as_json:
        click.echo(json.dumps(graph.as_object()))
        return
    console = Screen()
    print_topology(graph, console)
    if svg is not None:
        console.print(f"drawn in {svg}", markup=False, soft_wrap=True)
