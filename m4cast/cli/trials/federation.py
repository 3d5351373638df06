"""`m4cast federation`: a local federation of real node processes. See `m4cast.cluster.federation`."""

import time
from pathlib import Path

import click
from rich.table import Table

from m4cast.cluster.federation import FEDERATION_DIR, FEDERATION_FILE, LocalFederation, read_spec
from m4cast.console.options import folder_option, group, json_option
from m4cast.console.quantities import count_of
from m4cast.console.screen import Screen, print_json

_folder_option = folder_option(
    default=FEDERATION_DIR, variable="M4CAST_FEDERATION_DIR", help="Folder of the federation."
)


@group()
def federation() -> None:
    """Run several local clusters, joined by gateways, for trying things out.

    The nodes keep running when the command ends, until `federation down`.
    """


@federation.command()
@click.option(
    "--spec",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file that specifies a new federation by the tables [federation], [[channel]] and [[gateway]] "
    "(docs/FEDERATION.md).",
)
@_folder_option
@json_option
def up(spec: Path | None, folder: Path, as_json: bool) -> None:
    """Create a federation in DIR from a specification, or start the existing one.

    The command waits until every channel and every gateway is up.
    """
    is_there = (folder / FEDERATION_FILE).exists()
    if is_there and spec is not None:
        raise click.UsageError(f"{folder}: has a federation: omit --spec to start it, or choose another --dir")
    if not is_there and spec is None:
        raise click.UsageError(f"{folder}: has no federation: name a --spec")
    began = time.monotonic()
    local = LocalFederation.open(folder) if spec is None else LocalFederation.make(folder, read_spec(spec))
    local.up()
    nodes = sum(len(cluster.plan.nodes) for cluster in local.clusters.values())
    _show(local, as_json)
    if not as_json:
        channels = count_of(len(local.clusters), "channel")
        click.echo(f"{channels} with {count_of(nodes, 'node')} are up after {time.monotonic() - began:.1f} s")


@federation.command()
@_folder_option
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show every channel: its doors, its gatekeepers, and links that are missing."""
    _show(LocalFederation.open(folder), as_json)


@federation.command()
@_folder_option
def down(folder: Path) -> None:
    """Stop every node gracefully. Stores and logs are kept."""
    local = LocalFederation.open(folder)
    local.down()
    click.echo(f"{count_of(len(local.clusters), 'channel')} stopped")


def _show(local: LocalFederation, as_json: bool) -> None:
    channels = [
        {
            "channel": name,
            "doors": [node.door for node in cluster.plan.nodes],
            "gatekeepers": local.gates[name],
            "running": cluster.running(),
        }
        for name, cluster in local.clusters.items()
    ]
    missing = local.missing()
    if as_json:
        print_json({"channels": channels, "missing": missing})
        return
    table = Table("channel", "doors", "gatekeepers", box=None, pad_edge=False)
    for each in channels:
        table.add_row(str(each["channel"]), "\n".join(each["doors"]), "\n".join(each["gatekeepers"]))
    Screen().print(table)
    for link in missing:
        click.echo(f"missing: {link}")
