"""`m4cast status`, `topics` and `topology`: look at nodes and their channel through their doors. Nothing is changed.

Tables for people, one JSON object with `--json` for programs. In it `listen` is where other nodes reach a node, `door`
where clients do; `address` is the same as `listen`.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from m4cast.client_options import EACH, FAIL_OVER, client_options
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError, UnreachableError
from m4cast.screen import Screen
from m4cast.topology import Topology
from m4cast.topology_svg import write_svg

STATE_STYLES = {"full": "green", "partial": "yellow", "seeking": "yellow", "heard": "blue", "apart": "red"}
ROSTER_SHOWN_MAX = 50
BEYOND_TIMEOUT_S = 2.0
"""How long a node is waited for that nobody named. Guess."""
BEYOND_AT_A_TIME = 16
BEYOND_MAX = 200
"""Nodes that are asked though nobody named them; of larger channels, beacons tell of the others."""
Answer = tuple[dict[str, Any], dict[str, Any]]
"""A node's `status` and its `topology`."""
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
    table.add_row("state", _styled(said["state"]), f"other nodes reach it at {said['listen']}, {reached}")
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
    graph = asked(channel, away, beyond=True)
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


def asked(channel: Channel, away: list[str] | None = None, *, beyond: bool = False) -> Topology:
    """The topology, by the word of each node of the channel's. With `away`, those that cannot be reached are left out,
    and what is said of them is added to it; one has to answer. `beyond`: the nodes whose doors these know are asked,
    too, and left out in silence if they do not answer."""
    answers: list[Answer] = []
    for node in (channel.at(each) for each in channel.nodes):
        try:
            answers.append((node.status(), node.topology()))
        except UnreachableError as error:
            if away is None:
                raise
            away.append(str(error))
    if not answers:
        raise UnreachableError("; ".join(away or ()))
    return Topology.of([*answers, *_beyond(channel, answers)] if beyond else answers)


def _beyond(channel: Channel, answers: list[Answer]) -> list[Answer]:
    """What those nodes say that were not asked yet and that others know a door of."""
    asked_ids = {status["node_id"] for status, _ in answers}
    doors = {
        node["node_id"]: node["door"]
        for _, topology in answers
        for node in topology["nodes"]
        if node["door"] and not node["leaving"] and node["node_id"] not in asked_ids
    }

    def ask(node_id: str, door: str) -> Answer | None:
        node = channel.at(door, timeout_s=BEYOND_TIMEOUT_S)
        try:
            status = node.status()
            return (status, node.topology()) if status["node_id"] == node_id else None  # else another has that address
        except M4castError:
            return None

    if not doors:
        return []
    with ThreadPoolExecutor(min(len(doors), BEYOND_AT_A_TIME)) as pool:
        said = pool.map(ask, *zip(*list(doors.items())[:BEYOND_MAX], strict=True))
        return [answer for answer in said if answer is not None]


def print_topology(graph: Topology, console: Console) -> None:
    table = Table("node", "state", "degree", "neighbours", box=None, pad_edge=False)
    for node in graph.nodes:
        neighbours = " ".join(graph.name(neighbour) for neighbour in node.neighbours)
        table.add_row(node.name, _styled(node.state), str(len(node.neighbours)), neighbours)
    console.print(table)
    console.print(f"{len(graph.nodes)} nodes, {len(graph.links)} links, diameter {graph.diameter}")
    if len(graph.components) > 1:
        parts = "; ".join(", ".join(part) for part in graph.components)
        console.print(f"not all are linked: {parts}", style="yellow", markup=False)
    if graph.half_links:
        told = ", ".join(f"{one}-{other}" for one, other in graph.named(graph.half_links))
        console.print(f"told by one end only, so new or gone: {told}", style="yellow", markup=False)
    if graph.lynchpins:
        console.print(f"the loss of any of these alone splits it: {', '.join(graph.lynchpins)}", style="yellow")
    elif graph.lynchpins is not None and len(graph.nodes) > 2 and len(graph.components) == 1:
        console.print("the loss of any one node leaves the others linked")


def _styled(state: str) -> Text:
    return Text(state, STATE_STYLES[state])
