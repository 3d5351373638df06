"""`m4cast publishers`: the publisher keys that nodes remember, and the removal of those that are no longer needed.

A key belongs to one node, the access point of its publisher. `list` and `remove` apply to every node that is named.
"""

from itertools import islice
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from m4cast.console.access import EACH, channel_options
from m4cast.console.errors import warn
from m4cast.console.options import confirm, count_option, group, json_per_node_option, yes_option
from m4cast.console.quantities import whole_age_of
from m4cast.console.screen import Screen, print_json
from m4cast.overlay.client import Channel


@group()
def publishers() -> None:
    """List publisher keys, or remove those that are no longer needed.

    A token gives access to the keys that were created with it, an administrator's token to all keys.
    """


@publishers.command("list")
@click.option("--prefix", default="", help="Show only keys that begin with this.")
@count_option("--limit", low=1, default=1_000, help="Show at most this many keys per node.")
@channel_options(EACH)
@json_per_node_option
def list_(channel: Channel, as_json: bool, prefix: str, limit: int) -> None:
    """Show the keys of each node with position, creator, and for how long they were unused while the node was up."""
    for node in channel.nodes:
        found = list(islice(channel.at(node).publishers(prefix), limit + 1))
        shown, has_more = found[:limit], len(found) > limit
        if as_json:
            print_json({"node": node, "publishers": shown, "has_more": has_more})
            continue
        click.echo(f"{node}: {len(shown) or 'no'} publisher key{'' if len(shown) == 1 else 's'}")
        if shown:
            Screen().print(_table(shown))
        if has_more:
            warn(f"{node} has more than {limit} keys: raise --limit, or give a --prefix")


@publishers.command()
@yes_option
@channel_options(EACH)
@json_per_node_option
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
def remove(channel: Channel, as_json: bool, yes: bool, keys: tuple[str, ...]) -> None:
    """Remove KEY... from each node. The rows that were published with them stay.

    A publisher that continues with a removed key is refused. One that starts over with the key can publish rows a
    second time. Remove only keys whose publishers have ended.
    """
    if not yes:
        named = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        confirm(f"Remove {named} from {', '.join(channel.nodes)}?")
    for node in channel.nodes:
        positions = {key: channel.at(node).remove_publisher(key) for key in keys}
        if as_json:
            print_json({"node": node, "removed": positions})
            continue
        for key, position in positions.items():
            result = "no such key" if position is None else f"removed; its position was {position}"
            click.echo(f"{key} at {node}: {result}")


def _table(keys: list[dict[str, Any]]) -> Table:
    table = Table("key", "position", "created by", box=None, pad_edge=False)
    table.add_column("unused for", justify="right")
    for each in keys:
        unused = "" if each["unused_ms"] is None else whole_age_of(each["unused_ms"])
        table.add_row(*map(Text, (each["key"], each["position"], each["owner"] or "", unused)))
    return table
