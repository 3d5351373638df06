"""`m4cast publishers`: the publisher keys that nodes remember, and the removal of keys that nobody needs any more.

A key is one node's, the access point of its publisher: `list` and `remove` are done at each node that is named.
"""

import json
from itertools import islice
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from m4cast.console.access import EACH, client_options
from m4cast.console.screen import Screen
from m4cast.overlay.client import Channel

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each node, and nothing else.")
_UNITS = (("d", 24 * 3_600_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def publishers() -> None:
    """List publisher keys, or remove those that are not needed any more.

    With a token, these are the keys that it created; an administrator's token has all of them.
    """


@publishers.command("list")
@client_options(EACH)
@_JSON
@click.option("--prefix", default="", help="Only keys that begin with this.")
@click.option("--limit", type=click.IntRange(1), default=1_000, show_default=True, help="Keys of each node, at most.")
def list_(channel: Channel, as_json: bool, prefix: str, limit: int) -> None:
    """Show the keys of each node: position, creator, and for how long they were not used while the node was up."""
    for node in channel.nodes:
        found = list(islice(channel.at(node).publishers(prefix), limit + 1))
        shown, has_more = found[:limit], len(found) > limit
        if as_json:
            click.echo(json.dumps({"node": node, "publishers": shown, "has_more": has_more}))
            continue
        click.echo(f"{node}: {len(shown) or 'no'} publisher key{'' if len(shown) == 1 else 's'}")
        if shown:
            Screen().print(_table(shown))
        if has_more:
            click.echo(f"m4cast: there are more than {limit} at {node}: raise --limit, or give a --prefix", err=True)


@publishers.command()
@client_options(EACH)
@_JSON
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
def remove(channel: Channel, as_json: bool, yes: bool, keys: tuple[str, ...]) -> None:
    """Remove KEY... from each node. What they published stays.

    A publisher that goes on with a removed key is refused. One that begins with it anew is not known to repeat
    itself: remove only keys whose publishers have ended.
    """
    if not yes:
        named = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        click.confirm(f"Remove {named} from {', '.join(channel.nodes)}?", abort=True, err=True)
    for node in channel.nodes:
        positions = {key: channel.at(node).remove_publisher(key) for key in keys}
        if as_json:
            click.echo(json.dumps({"node": node, "removed": positions}))
            continue
        for key, position in positions.items():
            what = "no such key" if position is None else f"removed, it stood at {position}"
            click.echo(f"{key} at {node}: {what}")


def _table(keys: list[dict[str, Any]]) -> Table:
    table = Table("key", "position", "created by", box=None, pad_edge=False)
    table.add_column("unused for", justify="right")
    for each in keys:
        texts = (each["key"], each["position"], each["owner"] or "", _shown(each["unused_ms"]))
        table.add_row(*map(Text, texts))  # a key in [brackets] is no markup
    return table


def _shown(unused_ms: int | None) -> str:
    if unused_ms is None:
        return ""
    for unit, size_ms in _UNITS:
        if unused_ms >= size_ms:
            return f"{unused_ms // size_ms} {unit}"
    return "0 s"
