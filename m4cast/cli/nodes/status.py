"""`m4cast status`, `topics`, `topology`, `route`: inspect nodes and their channel through their doors.

None of them changes anything. In JSON output, `listen` is the address at which other nodes reach a node, and `door` the
one at which clients do; `address` is the same as `listen`.
"""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from m4cast.console.access import EACH, FAIL_OVER, channel_options
from m4cast.console.errors import warn
from m4cast.console.options import command, json_option, svg_option
from m4cast.console.quantities import count_of
from m4cast.console.screen import Screen, print_json, styled_state
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.routes.trees import RouteGraph
from m4cast.topology.beside import find_beside
from m4cast.topology.graph import Topology
from m4cast.topology.picture import write_svg
from m4cast.topology.survey import survey
from m4cast.topology.table import print_topology

ROSTER_SHOWN_MAX = 50
FORKS_SHOWN_MAX = 5


@command()
@channel_options(FAIL_OVER, is_interruptible=True)
@json_option
def status(channel: Channel, as_json: bool) -> None:
    """Show the node that answers: its state, its neighbours, and the nodes it knows on the channel."""
    reported = _with_doors(channel.status(), channel.topology())
    if as_json:
        print_json(reported)
    else:
        Screen().print(_status_table(reported))


def _status_table(reported: dict[str, Any]) -> Table:
    names = {entry["node_id"]: entry["name"] for entry in reported["roster"]}
    neighbours = [f"{names.get(each['node_id'], '?')} at {each['listen']}" for each in reported["neighbours"]]
    table = Table("", "", "", box=None, pad_edge=False, show_header=False)
    table.add_row("node", reported["name"], f"id {reported['node_id']}, incarnation {reported['incarnation']}")
    if reported["site"]:
        table.add_row("site", reported["site"], "")
    door = f"door for clients at {reported['door']}" if reported["door"] else "no door for clients"
    table.add_row("state", styled_state(reported["state"]), f"listens for other nodes at {reported['listen']}, {door}")
    table.add_row("neighbours", str(len(neighbours)), ", ".join(neighbours))
    table.add_row("holes", str(reported["holes"]), "missing neighbours")
    table.add_row("diameter", str(reported["diameter"]), "hops to the farthest node that it knows")
    forks = reported.get("forks", [])  # older versions do not report them
    if forks:
        named = ", ".join(each["topic"] for each in forks[:FORKS_SHOWN_MAX])
        table.add_row("forks", str(len(forks)), f"streams with TWO HISTORIES (see docs/OPERATIONS.md): {named}")
    clock = reported.get("clock", {})  # older versions do not report it
    if clock.get("ahead_ms") is not None:
        about = "relative to the median of its neighbours" + ("" if clock["agrees"] else ": one of them is WRONG")
        table.add_row("clock", f"{clock['ahead_ms'] / 1000:+.1f} s", about)
    table.add_row("topics", str(reported["topics"]), count_of(reported["streams"], "stream"))
    roster = ", ".join(entry["name"] for entry in reported["roster"][:ROSTER_SHOWN_MAX])
    more = len(reported["roster"]) - ROSTER_SHOWN_MAX
    table.add_row("roster", str(len(reported["roster"])), f"{roster}{f' and {more} more' if more > 0 else ''}")
    return table


def _with_doors(status: dict[str, Any], topology: dict[str, Any]) -> dict[str, Any]:
    """The status, with the `listen` and `door` of each node that it names; the door is empty if it is not known."""
    doors = {node["node_id"]: node.get("door", "") for node in topology["nodes"]}

    def with_door(node: dict[str, Any]) -> dict[str, Any]:
        return {**node, "listen": node["address"], "door": doors.get(node["node_id"], "")}

    parts = {name: [with_door(node) for node in status[name]] for name in ("neighbours", "roster")}
    return {**with_door(status), **parts}


@command()
@channel_options(FAIL_OVER, is_interruptible=True)
@json_option
def topics(channel: Channel, as_json: bool) -> None:
    """List the topics that the answering node knows, with their streams and the rows that it retains."""
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
        print_json({"topics": listed})
        return
    if not listed:
        click.echo("no topics yet")
        return
    table = Table("topic", box=None, pad_edge=False)
    for name in ("streams", "rows retained", "rows published"):
        table.add_column(name, justify="right")
    for each in listed:
        counts = (each["streams"], each["rows"], each["rows_published"])
        table.add_row(str(each["topic"]), *(f"{count:,}" for count in counts))
    Screen().print(table)


@command()
@svg_option
@click.option("--tree", metavar="NODE", help="Show the tree of shortest paths from this node; --svg draws it.")
@channel_options(EACH, is_interruptible=True)
@json_option
def topology(channel: Channel, svg: Path | None, tree: str | None, as_json: bool) -> None:
    """Show the graph of the channel: its nodes, their neighbours, and which failures it survives.

    Every --node is asked, and so is every other node whose door these know. A node that does not answer is shown as the
    others know it from its last beacon, which is some seconds old. At least one --node must answer. If the channel is
    part of a federation, --svg draws the units beside it as well.
    """
    graph = _surveyed(channel)
    branches = [] if tree is None else _branches(graph, graph.id_of(tree))
    if svg is not None:
        write_svg(graph, svg, branches, find_beside(channel, graph))
    if as_json:
        named = {} if tree is None else {"tree": graph.named(branches)}
        print_json({**graph.as_object(), **named})
        return
    console = Screen()
    print_topology(graph, console)
    for one, other in branches:
        console.print(f"{graph.name(one)} passes on to {graph.name(other)}", soft_wrap=True)
    if svg is not None:
        console.print(f"graph drawn to {svg}", soft_wrap=True)


@command()
@click.option("--from", "start", required=True, metavar="NODE", help="First node: its name, or part of its id.")
@click.option("--to", "end", required=True, metavar="NODE", help="Last node: its name, or part of its id.")
@channel_options(EACH, is_interruptible=True)
@json_option
def route(channel: Channel, start: str, end: str, as_json: bool) -> None:
    """Show the path from one node to another in the first node's tree, which all nodes compute from the graph."""
    graph = _surveyed(channel)
    found = _routes(graph).path(_node_id(graph.id_of(start)), _node_id(graph.id_of(end)))
    names = [graph.name(node_id.hex()) for node_id in found]
    if as_json:
        print_json({"route": names, "hops": len(names) - 1 if names else None})
    elif not names:
        raise M4castError(f"no path leads from {start!r} to {end!r}: the graph is in pieces, see `m4cast topology`")
    else:
        click.echo(f"{' -> '.join(names)} ({count_of(len(names) - 1, 'hop')})")


def _surveyed(channel: Channel) -> Topology:
    unreachable: list[str] = []
    graph = survey(channel, unreachable=unreachable, beyond=True)
    for error in unreachable:
        warn(f"continuing without a node: {error}")
    return graph


def _routes(graph: Topology) -> RouteGraph:
    return RouteGraph({_node_id(node.node_id): map(_node_id, node.neighbours) for node in graph.nodes})


def _branches(graph: Topology, root: str) -> list[tuple[str, str]]:
    """The links of the root's tree: each node, with the nodes that it passes a broadcast on to."""
    tree = _routes(graph).tree(_node_id(root))
    return [(one.hex(), other.hex()) for one, others in tree.children().items() for other in others]


def _node_id(written: str) -> NodeId:
    return NodeId(bytes.fromhex(written))
