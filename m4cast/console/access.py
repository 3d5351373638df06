"""Options of every command that connects to nodes as a client: which nodes, and with which credentials.

    @command()
    @channel_options(FAIL_OVER)
    def topics(channel: Channel) -> None: ...

Each option can be set in the environment: M4CAST_NODE (several nodes separated by spaces or commas), M4CAST_TOKEN,
M4CAST_CA, M4CAST_CERT, M4CAST_KEY. If no node is named, the local cluster in the folder `m4cast-cluster` (or
M4CAST_CLUSTER_DIR) is used, if there is one, with its certificates; a line on stderr reports this.
"""

import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m4cast.cluster.local import CLUSTER_DIR, CLUSTER_DIR_VARIABLE, LocalCluster
from m4cast.cluster.plan import PLAN_FILE
from m4cast.console.errors import warn
from m4cast.console.interruption import interruptible
from m4cast.console.options import Command, Decorator, all_of
from m4cast.overlay.errors import LocalProtocolError, M4castError

if TYPE_CHECKING:
    from m4cast.overlay.client import Channel

FAIL_OVER = "Door of a node. Can be repeated: if one node is unreachable, the next is used."
EACH = "Door of a node. Can be repeated: every node is asked."
ACCESS_POINT = "Door of the access point, at which rows are published. If repeated, the first is used."
PUBLISH = "Door of a node. Can be repeated: if one node is unreachable, the rows go to the next."
EXACTLY_ONE = "Door of the node that is to leave: exactly one."


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Access to nodes: their doors, and the credentials to present."""

    nodes: tuple[str, ...]
    token: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def channel(self) -> "Channel":
        from m4cast.overlay.client import Channel

        return Channel(self.nodes, token=self.token, ca=self.ca, cert=self.cert, key=self.key)

    def resolved(self) -> "NodeAccess":
        """The same if it names a node; else the running nodes of the local cluster in this folder."""
        if self.nodes:
            return self
        folder = Path(os.environ.get(CLUSTER_DIR_VARIABLE) or CLUSTER_DIR)
        if not (folder / PLAN_FILE).exists():
            raise click.UsageError(
                "no node is named: give --node HOST:PORT, set M4CAST_NODE, or start a cluster in this folder with "
                "`m4cast cluster up`"
            )
        local = LocalCluster.open(folder)
        names = local.running()
        if not names:
            raise M4castError(
                f"{folder}: no node of this cluster is running: start it with `m4cast cluster up`, or give --node"
            )
        warn(f"using the cluster in {folder}: {', '.join(names)}")
        own = {} if self.ca or self.cert else local.credentials()
        return replace(self, nodes=tuple(local.node(name).door for name in names), **own)


def access_options(about_nodes: str, *, from_environment: bool = True) -> Decorator:
    """Adds the options; the command gets `access`, a `NodeAccess`, which may name no node (see `resolved`).

    `from_environment`: whether nodes may be named by M4CAST_NODE."""

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def with_access(nodes: tuple[str, ...], token: str, ca: str, cert: str, key: str, **others: Any) -> None:
            command(access=NodeAccess(nodes, token=token, ca=ca, cert=cert, key=key), **others)

        return all_of(_node_option(about_nodes, from_environment=from_environment), *_CREDENTIALS)(with_access)

    return add


def channel_options(about_nodes: str, *, is_interruptible: bool = False) -> Decorator:
    """Adds the options; the command gets `channel`, a client of the nodes.

    `is_interruptible`: the command runs on a thread of its own, so that Ctrl-C ends it even while a node does not
    answer. Commands that wait in other places handle Ctrl-C themselves."""

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def with_channel(access: NodeAccess, **others: Any) -> None:
            if not access.nodes and about_nodes == EXACTLY_ONE:
                raise click.UsageError("name the node that is to leave: give --node HOST:PORT, or set M4CAST_NODE")
            channel = access.resolved().channel()
            if is_interruptible:
                interruptible(lambda: command(channel=channel, **others))
            else:
                command(channel=channel, **others)

        return access_options(about_nodes)(with_channel)

    return add


def _node_option(about: str, *, from_environment: bool) -> Decorator:
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


def _credential_option(name: str, metavar: str, help: str) -> Decorator:
    return click.option(
        f"--{name}", default="", metavar=metavar, envvar=f"M4CAST_{name.upper()}", show_envvar=True, help=help
    )


_CREDENTIALS = (
    _credential_option(
        "token",
        "env:NAME|file:PATH|TOKEN",
        "Token for the nodes. A literal token is visible in the list of processes.",
    ),
    _credential_option("ca", "FILE", "CA certificate of the cluster; enables TLS."),
    _credential_option("cert", "FILE", "Client certificate, if the nodes ask for one."),
    _credential_option("key", "FILE", "Private key of --cert."),
)


def doors_of(values: tuple[str, ...]) -> tuple[str, ...]:
    """The doors given, one per value or several separated by commas."""
    from m4cast.overlay.client.doors import nodes_of

    try:
        return tuple(door for value in values for door in nodes_of(value))
    except LocalProtocolError as error:
        raise click.BadParameter(str(error)) from None
