"""`m4cast units`: the federation as a gatekeeper knows it. `m4cast trace`: the route of a row through it."""

from typing import Any

import click
from rich.table import Table
from rich.tree import Tree

from m4cast.console.access import FAIL_OVER, channel_options
from m4cast.console.errors import warn
from m4cast.console.options import command, json_option
from m4cast.console.screen import Screen, print_json
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError

ORIGIN_DIGITS = 32


@command()
@channel_options(FAIL_OVER, is_interruptible=True)
@json_option
def units(channel: Channel, as_json: bool) -> None:
    """Show the federation as the answering node knows it: units, gateways with their costs, and links with counts.

    The node must be a gatekeeper: one with a [federation] (docs/FEDERATION.md).
    """
    view = channel.units()
    if as_json:
        print_json(view)
        return
    if not view["is_gatekeeper"]:
        raise M4castError("this node is no gatekeeper: name one that has a [federation] in its configuration")
    screen = Screen()
    screen.print(_tree(view))
    screen.print(_links(view))
    screen.print(_wants(view))
    if view["quiet"]:
        click.echo(f"quiet, since no other channel wants their rows: {', '.join(view['quiet'])}")
    if view["failure"]:
        click.echo(f"not linked yet: {view['failure']}")


@command()
@click.option("--topic", default="default", show_default=True, help="Topic of the row.")
@channel_options(FAIL_OVER, is_interruptible=True)
@json_option
@click.argument("row", metavar="ROW")
def trace(channel: Channel, as_json: bool, topic: str, row: str) -> None:
    """Show the route of a row between channels: which gatekeepers had it, for which units they matched it, and where
    they sent it. ROW is ORIGIN:SEQUENCE, as in the columns _origin and _sequence.

    The node must be a gatekeeper: one with a [federation] (docs/FEDERATION.md). Gatekeepers remember the latest 4,096
    batches.
    """
    origin, _, sequence = row.rpartition(":")
    if len(origin) != ORIGIN_DIGITS or not sequence.isdecimal() or int(sequence) < 1:
        raise click.UsageError(f"ROW is {row!r}: give ORIGIN:SEQUENCE, the _origin of the row in hex and its _sequence")
    way = channel.trace(topic, origin, int(sequence))
    if as_json:
        print_json(way)
        return
    if not way["is_gatekeeper"]:
        raise M4castError("this node is no gatekeeper: name one that has a [federation] in its configuration")
    if not way["steps"]:
        raise M4castError(
            f"no gatekeeper remembers row {row} of {topic!r}: it never left its channel, or it left too long ago"
        )
    table = Table("gateways", "channel", "gatekeeper", "step", "", box=None, pad_edge=False)
    for step in way["steps"]:
        table.add_row(str(step["hops"]), step["channel"], step["address"], step["kind"], _detail(step))
    Screen().print(table)
    if way["is_cut"]:
        warn("not every gatekeeper could be asked: steps may be missing")


def _detail(step: dict[str, Any]) -> str:
    if step["kind"] == "matched":
        hits = ", ".join(map(_unit, step["hits"])) or "no unit"
        return f"for {_unit(step['unit'])}: {hits}"
    if step["kind"] == "delivered":
        return f"for {', '.join(step['wants'])}"
    way = {"came": "from ", "sent": "to ", "withheld": "from "}.get(step["kind"], "")
    return f"{way}{step['peer']}"


def _unit(unit: dict[str, Any]) -> str:
    kind = {0: "node", 1: "channel"}.get(unit["level"], f"unit of level {unit['level']}")
    return f"{kind} {unit['address'] or unit['id'][:8]}"


def _tree(view: dict[str, Any]) -> Tree:
    """The units that the node belongs to and those beside them, with the whole federation at the top."""
    by_parent: dict[str, list[dict[str, Any]]] = {}
    for unit in view["units"]:
        by_parent.setdefault(unit["parent"], []).append(unit)
    top = [unit for unit in view["units"] if unit["level"] == view["top"]]
    tree = Tree(f"federation, seen from {view['context']} ({view['name']})")

    def add(at: Tree, unit: dict[str, Any]) -> None:
        kind = "node" if unit["level"] == 0 else "channel" if unit["level"] == 1 else f"unit of level {unit['level']}"
        mine, lost = ("  (own)" if unit["is_own"] else ""), ("" if unit["is_reached"] else "  OUT OF REACH")
        label = f"{kind} {unit['number']}  {unit['address'] or unit['id'][:8]}{mine}{lost}"
        branch = at.add(label)
        for inner in by_parent.get(unit["id"], ()):
            add(branch, inner)

    for unit in top:
        add(tree, unit)
    for gateway in view["gateways"]:
        tree.add(
            f"gateway of level {gateway['level']}  {' - '.join(gateway['addresses'])}  cost {gateway['cost']}, "
            f"{gateway['status']}"
        )
    return tree


def _links(view: dict[str, Any]) -> Table:
    table = Table("link with", "address", "level", box=None, pad_edge=False)
    for name in ("batches sent", "rows", "bytes", "batches received", "withheld", "waiting"):
        table.add_column(name, justify="right")
    for link in view["links"]:
        counts = ("sent_batches", "sent_rows", "sent_bytes", "received_batches", "withheld", "unacknowledged")
        level = "?" if link["level"] is None else str(link["level"])
        table.add_row(link["channel"], link["address"], level, *(f"{link[count]:,}" for count in counts))
    return table


def _wants(view: dict[str, Any]) -> Table:
    table = Table("topic", "where", "active", box=None, pad_edge=False)
    for want in view["wants"]:
        level = want["active_level"]
        active = "everywhere" if level > view["top"] else f"up to level {level}" if level >= 0 else "not yet"
        table.add_row(want["topic"], want["where"] or "every row", active)
    return table
