"""`m4cast subscribe`, `unsubscribe` and `subscriptions`: what is wanted at nodes, and who wants what on the channel.

A registration is made at a node, and lasts until it is given up. It is spread to all nodes and shown there; rows go to
every node, wanted or not.
"""

from datetime import UTC, datetime
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from m4cast.console.access import EACH, FAIL_OVER, channel_options
from m4cast.console.errors import warn
from m4cast.console.options import command, json_option, json_per_node_option
from m4cast.console.screen import Screen, print_json
from m4cast.overlay.client import Channel

WHERE = click.option("--where", default="", help="Only rows that satisfy this condition (docs/FILTERS.md).")


@command()
@WHERE
@click.option("--earliest", is_flag=True, help="From the earliest rows that are kept, not only new ones.")
@channel_options(EACH)
@json_per_node_option
@click.argument("topic")
def subscribe(channel: Channel, as_json: bool, where: str, earliest: bool, topic: str) -> None:
    """Register rows of TOPIC as wanted at each node that is named."""
    for node in channel.nodes:
        answer = channel.at(node).register(topic, where, start="earliest" if earliest else "latest")
        if as_json:
            print_json({"node": node, **answer})
        else:
            click.echo(f"{topic} at {node}: registered as {answer['id']}, epoch {answer['epoch']}")


@command()
@WHERE
@channel_options(EACH)
@json_per_node_option
@click.argument("topic")
def unsubscribe(channel: Channel, as_json: bool, where: str, topic: str) -> None:
    """Give up what `subscribe` registered for TOPIC at each node that is named."""
    for node in channel.nodes:
        removed = channel.at(node).unregister(topic, where)
        if as_json:
            print_json({"node": node, "removed": removed})
        else:
            click.echo(f"{topic} at {node}: {'given up' if removed else 'was not registered'}")


@command()
@click.option("--topic", default=None, help="Only registrations of this topic.")
@channel_options(FAIL_OVER)
@json_option
def subscriptions(channel: Channel, as_json: bool, topic: str | None) -> None:
    """Show who wants what, at which node and since when, as the answering node knows it."""
    view = channel.subscriptions(topic)
    if as_json:
        print_json(view)
        return
    registrations = view["registrations"]
    if not registrations:
        click.echo("nobody has registered anything")
        return
    Screen().print(_table(registrations))
    if view["has_more"]:
        warn("there are more registrations than one answer has: name a --topic")


def _table(registrations: list[dict[str, Any]]) -> Table:
    table = Table("topic", "where", "node", "since", "epoch", box=None, pad_edge=False)
    for each in sorted(registrations, key=lambda each: (each["topic"] or "~", each["where"], each["node"])):
        since = datetime.fromtimestamp(each["since_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        topic = each["topic"] or f"#{each['topic_hash']}"
        table.add_row(*map(Text, (topic, each["where"] or "every row", each["node"], since, str(each["epoch"]))))
    return table
