"""Options of every command that speaks to nodes as a client: where they are, and what to show them.

    @click.command()
    @client_options(FAIL_OVER)
    def topics(channel: Channel) -> None: ...

Each option can come from the environment: M4CAST_NODE (several: separated by spaces or commas), M4CAST_TOKEN,
M4CAST_CA, M4CAST_CERT, M4CAST_KEY. Without a node, the local cluster in the folder `m4cast-cluster` (or
M4CAST_CLUSTER_DIR) is used, if there is one, with its certificates; stderr says so.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from m4cast.cluster.local import CLUSTER_DIR, CLUSTER_DIR_VARIABLE, LocalCluster
from m4cast.cluster.plan import PLAN_FILE
from m4cast.console.interruption import interruptible
from m4cast.overlay.client import Channel
from m4cast.overlay.client.doors import nodes_of
from m4cast.overlay.errors import LocalProtocolError, M4castError

FAIL_OVER = "Door of a node; of several, the next is asked when one is away."
EACH = "Door of a node; of several, each is asked."
ACCESS_POINT = "Door of the access point, where rows are published; of several, the first."
PUBLISH = "Door of a node; of several, the next is given the rows when one is away."
EXACTLY_ONE = "Door of the node that is to leave: exactly one."

_CREDENTIALS = (
    click.option(
        "--token",
        default="",
        metavar="env:NAME|file:PATH|TOKEN",
        envvar="M4CAST_TOKEN",
        show_envvar=True,
        help="What the node asks for; a token that is written out is seen in the list of processes.",
    ),
    click.option(
        "--ca", default="", metavar="FILE", envvar="M4CAST_CA", show_envvar=True, help="The cluster's CA: speak TLS."
    ),
    click.option(
        "--cert",
        default="",
        metavar="FILE",
        envvar="M4CAST_CERT",
        show_envvar=True,
        help="Own certificate, if nodes ask.",
    ),
    click.option("--key", default="", metavar="FILE", envvar="M4CAST_KEY", show_envvar=True, help="The key of --cert."),
)


def client_options(
    about_nodes: str, *, is_interruptible: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options; the command gets a `channel` made of them. `is_interruptible`: it runs on a thread of its own,
    so that Ctrl-C ends it also while a node does not answer; others see to that themselves."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_channel(nodes: tuple[str, ...], token: str, ca: str, cert: str, key: str, **others: Any) -> None:
            if nodes:
                channel = channel_of(nodes, token, ca, cert, key)
            elif about_nodes == EXACTLY_ONE:
                raise click.UsageError("name the node that is to leave: give --node HOST:PORT, or set M4CAST_NODE")
            else:
                channel = _found(token, ca, cert, key)
            if is_interruptible:
                interruptible(lambda: command(channel=channel, **others))
            else:
                command(channel=channel, **others)

        return node_option(about_nodes)(credential_options(with_channel))

    return add


def _found(token: str, ca: str, cert: str, key: str) -> Channel:
    """The local cluster that is here: those of its nodes that run."""
    folder = Path(os.environ.get(CLUSTER_DIR_VARIABLE) or CLUSTER_DIR)
    if not (folder / PLAN_FILE).exists():
        raise click.UsageError(
            "no node: give --node HOST:PORT, set M4CAST_NODE, or make a cluster here with `m4cast cluster up`"
        )
    local = LocalCluster.open(folder)
    names = local.running()
    if not names:
        raise M4castError(f"{folder}: no node of this cluster runs: start it with `m4cast cluster up`, or give --node")
    click.echo(f"m4cast: using the cluster in {folder}: {', '.join(names)}", err=True)
    own = {} if ca or cert else local.credentials()
    doors = tuple(local.node(name).door for name in names)
    return channel_of(doors, token, own.get("ca", ca), own.get("cert", cert), own.get("key", key))


def node_option(about: str, *, from_environment: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds --node alone: the command gets `nodes`."""
    return click.option(
        "--node",
        "nodes",
        multiple=True,
        metavar="HOST:PORT",
        envvar="M4CAST_NODE" if from_environment else None,
        show_envvar=from_environment,
        callback=lambda context, option, values: doors_of(values),
        help=about,
    )


def doors_of(values: tuple[str, ...]) -> tuple[str, ...]:
    """The doors that are given, one by one or several with commas between them."""
    try:
        return tuple(door for value in values for door in nodes_of(value))
    except LocalProtocolError as error:
        raise click.BadParameter(str(error)) from None


def credential_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds only what to show to nodes: the command gets `token`, `ca`, `cert` and `key`."""
    for option in reversed(_CREDENTIALS):
        command = option(command)
    return command


def channel_of(nodes: tuple[str, ...], token: str = "", ca: str = "", cert: str = "", key: str = "") -> Channel:
    return Channel(nodes, token=token, ca=ca, cert=cert, key=key)
