"""`m4cast cluster`: a local cluster of real node processes. See `m4cast.cluster`.

Progress is shown on stderr, and only on a terminal.
"""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.table import Table

from m4cast.cluster.local import CLUSTER_DIR, CLUSTER_DIR_VARIABLE, LocalCluster, NodeFailedError
from m4cast.cluster.plan import NODES_MAX, PLAN_FILE
from m4cast.cluster.view import NodeView
from m4cast.console.options import count_option, folder_option, group, json_option
from m4cast.console.quantities import count_of
from m4cast.console.screen import Screen, print_json, styled_state
from m4cast.overlay.config import ClusterConfig

NODES = 5
_folder_option = folder_option(default=CLUSTER_DIR, variable=CLUSTER_DIR_VARIABLE, help="Folder of the cluster.")
_names_argument = click.argument("names", nargs=-1, required=True, metavar="NAME...")


@group()
def cluster() -> None:
    """Run a local cluster of real nodes on this machine's loopback, for trying things out.

    The nodes keep running when the command ends, until `cluster down`.
    """


@cluster.command()
@count_option("--nodes", low=1, high=NODES_MAX, help=f"Number of nodes of a new cluster; {NODES} by default.")
@count_option(
    "--degree",
    low=3,
    high=64,
    help=f"Number of neighbours of each node of a new cluster; {ClusterConfig().degree} by default.",
)
@click.option("--tls", is_flag=True, help="Make certificates for a new cluster and use TLS on links and doors.")
@click.option(
    "--tokens",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Tokens that clients of a new cluster need instead of certificates (see docs/SECURITY.md).",
)
@_folder_option
@json_option
def up(nodes: int | None, degree: int | None, tls: bool, tokens: str | None, folder: Path, as_json: bool) -> None:
    """Create a cluster in DIR, or start the existing one.

    The command waits until all nodes are on the channel.
    """
    if (folder / PLAN_FILE).exists():
        local = LocalCluster.open(folder)
        plan = local.plan
        differs = nodes not in (None, len(plan.nodes)) or degree not in (None, plan.degree) or (tls and not plan.tls)
        if differs or tokens:
            raise click.UsageError(
                f"{folder}: has a cluster of {count_of(len(plan.nodes), 'node')} with degree {plan.degree} "
                f"{'and' if plan.tls else 'without'} TLS: "
                "omit --nodes, --degree, --tls and --tokens to start it, or choose another --dir"
            )
    else:
        settings = {"tokens": f"file:{tokens}"} if tokens else {}
        degree = degree or ClusterConfig().degree
        local = LocalCluster.make(folder, nodes or NODES, degree=degree, tls=tls, node_settings=settings)
    began = time.monotonic()
    with _progress() as on_progress:
        local.up(on_progress)
    count = len(local.plan.nodes)
    summary = f"{count_of(count, 'node')} {'is' if count == 1 else 'are'} up after {time.monotonic() - began:.1f} s"
    _show(local, as_json, f"{summary}; to use the cluster from another folder:\n{_export(local)}")


def _export(local: LocalCluster) -> str:
    """A shell command that sets the variables that clients need; M4CAST_WEB is for browsers and curl."""
    known = {"node": ",".join(node.door for node in local.plan.nodes), **local.credentials()}
    if "tokens" in local.plan.node:
        known = {name: value for name, value in known.items() if name in ("node", "ca")} | {"token": "file:PATH"}
    known["web"] = f"{'https' if local.plan.tls else 'http'}://{local.plan.nodes[0].web}"
    return "export " + " ".join(f"M4CAST_{name.upper()}={shlex.quote(value)}" for name, value in known.items())


@cluster.command()
@_folder_option
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show every node: its addresses, its process and its state.

    States: full (on the channel), partial (on the channel, neighbours missing), seeking (not on the channel yet),
    silent (running, but not answering), down.
    """
    _show(LocalCluster.open(folder), as_json, "")


@cluster.command()
@_names_argument
@_folder_option
@json_option
def kill(names: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Kill nodes, as in a crash (SIGKILL)."""
    local = LocalCluster.open(folder)
    local.kill(*dict.fromkeys(names))
    _show(local, as_json, f"killed {', '.join(dict.fromkeys(names))}")


@cluster.command()
@_names_argument
@_folder_option
@json_option
def start(names: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Start nodes that are down.

    The command waits until they are back on the channel.
    """
    local = LocalCluster.open(folder)
    began = time.monotonic()
    with _progress() as on_progress:
        local.start(*dict.fromkeys(names), on_progress=on_progress)
    _show(local, as_json, f"{', '.join(dict.fromkeys(names))} on the channel after {time.monotonic() - began:.1f} s")


@cluster.command()
@_folder_option
@json_option
def add(folder: Path, as_json: bool) -> None:
    """Add a node and wait until it is on the channel."""
    local = LocalCluster.open(folder)
    began = time.monotonic()
    with _progress() as on_progress:
        name = local.add(on_progress)
    _show(local, as_json, f"{name} is on the channel after {time.monotonic() - began:.1f} s")


@cluster.command()
@_folder_option
@json_option
def down(folder: Path, as_json: bool) -> None:
    """Stop every node gracefully. Stores and logs are kept.

    A node that takes longer than 20 s is killed.
    """
    local = LocalCluster.open(folder)
    running = local.running()
    killed = local.down()
    late = f"; killed because they took too long: {', '.join(killed)}" if killed else ""
    _show(local, as_json, f"stopped {count_of(len(running), 'node')}{late}")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show, on a terminal, a line with the number of nodes that are ready; if a node fails, the end of its log."""
    is_shown = sys.stderr.isatty()
    began = time.monotonic()

    def show(ready: int, of: int) -> None:
        if is_shown:
            click.echo(f"\rstarting: {ready} of {of} nodes ready, {time.monotonic() - began:.0f} s", nl=False, err=True)

    try:
        yield show
    except NodeFailedError as error:
        click.echo(f"{chr(10) if is_shown else ''}{error.log_tail}", err=True)
        raise
    finally:
        if is_shown:
            click.echo("\r\033[K", nl=False, err=True)


def _show(local: LocalCluster, as_json: bool, summary: str) -> None:
    views = local.look()
    if as_json:
        print_json({"nodes": [as_object(view) for view in views]})
        return
    table = Table("name", "state", "neighbours", "door", "web", "http", "listen", "pid", box=None, pad_edge=False)
    for view in views:
        neighbours = str(len(view.neighbours())) if view.status else ""
        state = styled_state(view.state)
        table.add_row(view.name, state, neighbours, view.door, view.web, view.http, view.listen, str(view.pid or ""))
    console = Screen()
    console.print(table)
    if summary:
        console.print(summary, soft_wrap=True)


def as_object(view: NodeView) -> dict[str, object]:
    """The node as an object for JSON. `address` is the door, under the name that it had in the first version."""
    return {
        "name": view.name,
        "address": view.door,
        "http": view.http,
        "pid": view.pid,
        "state": view.state,
        "door": view.door,
        "listen": view.listen,
        "neighbours": view.neighbours(),
        "web": view.web,
    }
