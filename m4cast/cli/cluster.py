"""`m4cast cluster`: a local cluster of real node processes, to try things. See `m4cast.cluster.local`.

Tables for people, one JSON object with `--json` for programs. Progress goes to stderr, and only to a terminal.
"""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from m4cast.cluster.local import CLUSTER_DIR, CLUSTER_DIR_VARIABLE, LocalCluster, NodeFailedError
from m4cast.cluster.plan import NODES_MAX
from m4cast.cluster.view import NodeView
from m4cast.console.screen import Screen, styled_state
from m4cast.overlay.config import ClusterConfig

_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_FOLDER = click.option(
    "--dir",
    "folder",
    default=CLUSTER_DIR,
    show_default=True,
    envvar=CLUSTER_DIR_VARIABLE,
    show_envvar=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the cluster is.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
_NAMES = click.argument("names", nargs=-1, required=True, metavar="NAME...")
_Command = Callable[..., Any]


@click.group(context_settings=_HELP_NAMES)
def cluster() -> None:
    """A local cluster of real nodes on this machine's loopback, to try things.

    The nodes go on running when the command ends, until `cluster down`.
    """


@cluster.command(context_settings=_HELP_NAMES)
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), help="How many, in a new cluster; 5 if not given.")
@click.option("--degree", type=click.IntRange(3, 64), help=f"Of a new cluster; {ClusterConfig().degree} if not given.")
@click.option("--tls", is_flag=True, help="A new cluster makes itself certificates; links and doors speak TLS.")
@click.option(
    "--tokens",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Tokens that clients of a new cluster need (docs/SECURITY.md), instead of certificates.",
)
@_FOLDER
@_JSON
def up(nodes: int | None, degree: int | None, tls: bool, tokens: str | None, folder: Path, as_json: bool) -> None:
    """Make a cluster in DIR, or start the one that is there, and wait until all nodes are on the channel."""
    if (folder / "cluster.json").exists():
        local = LocalCluster.open(folder)
        plan = local.plan
        differs = nodes not in (None, len(plan.nodes)) or degree not in (None, plan.degree) or (tls and not plan.tls)
        if differs or tokens:
            raise click.UsageError(
                f"{folder}: holds a cluster of {len(plan.nodes)} nodes of degree {plan.degree} "
                f"{'with' if plan.tls else 'without'} TLS: "
                "leave --nodes, --degree, --tls and --tokens out to start it, or choose another --dir"
            )
    else:
        settings = {"tokens": f"file:{tokens}"} if tokens else {}
        degree = degree or ClusterConfig().degree
        local = LocalCluster.make(folder, nodes or 5, degree=degree, tls=tls, node_settings=settings)
    began = time.monotonic()
    with _waiting("starting") as told:
        local.up(told)
    count = len(local.plan.nodes)
    nodes_are = "1 node is" if count == 1 else f"{count} nodes are"
    said = f"{nodes_are} up after {time.monotonic() - began:.1f} s; for clients in other folders:"
    _show(local, as_json, f"{said}\n{_export(local)}")


def _export(local: LocalCluster) -> str:
    """A line for the shell, with all that clients need to know."""
    known = {"node": ",".join(node.door for node in local.plan.nodes), **local.credentials()}
    if "tokens" in local.plan.node:
        known = {name: value for name, value in known.items() if name in ("node", "ca")} | {"token": "file:PATH"}
    return "export " + " ".join(f"M4CAST_{name.upper()}={shlex.quote(value)}" for name, value in known.items())


@cluster.command(context_settings=_HELP_NAMES)
@_FOLDER
@_JSON
def status(folder: Path, as_json: bool) -> None:
    """Show every node: where its doors are, its process and its state.

    States: full (on the channel), partial (on it, with neighbours missing), seeking (not on it yet), silent (it runs,
    but does not answer), down.
    """
    _show(LocalCluster.open(folder), as_json, "")


@cluster.command(context_settings=_HELP_NAMES)
@_NAMES
@_FOLDER
@_JSON
def kill(names: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """End nodes at once, as a crash does (SIGKILL)."""
    local = LocalCluster.open(folder)
    local.kill(*dict.fromkeys(names))
    _show(local, as_json, f"killed {', '.join(dict.fromkeys(names))}")


@cluster.command(context_settings=_HELP_NAMES)
@_NAMES
@_FOLDER
@_JSON
def start(names: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Start nodes that are down, and wait until they are on the channel again."""
    local = LocalCluster.open(folder)
    began = time.monotonic()
    with _waiting("starting") as told:
        local.start(*dict.fromkeys(names), on_progress=told)
    _show(local, as_json, f"{', '.join(dict.fromkeys(names))} on the channel after {time.monotonic() - began:.1f} s")


@cluster.command(context_settings=_HELP_NAMES)
@_FOLDER
@_JSON
def add(folder: Path, as_json: bool) -> None:
    """Add one node, and wait until it is on the channel."""
    local = LocalCluster.open(folder)
    began = time.monotonic()
    with _waiting("starting") as told:
        name = local.add(told)
    _show(local, as_json, f"{name} is on the channel after {time.monotonic() - began:.1f} s")


@cluster.command(context_settings=_HELP_NAMES)
@_FOLDER
@_JSON
def down(folder: Path, as_json: bool) -> None:
    """Let every node leave in order; one that takes longer than 20 s is killed. Stores and logs stay in DIR."""
    local = LocalCluster.open(folder)
    running = local.running()
    killed = local.down()
    late = f"; {', '.join(killed)} took too long and were killed" if killed else ""
    _show(local, as_json, f"stopped {len(running)} node{'' if len(running) == 1 else 's'}{late}")


@contextmanager
def _waiting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A line that says how many nodes are ready, if somebody watches; the log of a node that failed."""
    watched = sys.stderr.isatty()
    began = time.monotonic()

    def told(ready: int, of: int) -> None:
        if watched:
            click.echo(f"\r{what}: {ready} of {of} nodes ready, {time.monotonic() - began:.0f} s", nl=False, err=True)

    try:
        yield told
    except NodeFailedError as error:
        click.echo(f"{chr(10) if watched else ''}{error.log_tail}", err=True)
        raise
    finally:
        if watched:
            click.echo("\r\033[K", nl=False, err=True)


def _show(local: LocalCluster, as_json: bool, said: str) -> None:
    views = local.look()
    if as_json:
        click.echo(json.dumps({"nodes": [as_object(view) for view in views]}))
        return
    table = Table("name", "state", "neighbours", "door", "http", "listen", "pid", box=None, pad_edge=False)
    for view in views:
        neighbours = len(view.neighbours()) if view.status else ""
        state = styled_state(view.state)
        table.add_row(view.name, state, str(neighbours), view.door, view.http, view.listen, str(view.pid or ""))
    console = Screen()
    console.print(table)
    if said:
        console.print(said, soft_wrap=True)


def as_object(view: NodeView) -> dict[str, object]:
    """`address` is the door, as programs know it from the first version on."""
    return {
        "name": view.name,
        "address": view.door,
        "http": view.http,
        "pid": view.pid,
        "state": view.state,
        "door": view.door,
        "listen": view.listen,
        "neighbours": view.neighbours(),
    }
