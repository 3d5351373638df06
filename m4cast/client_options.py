"""Options of every command that speaks to nodes as a client: where they are, and what to show them.

    @click.command()
    @client_options(FAIL_OVER)
    def topics(channel: Channel) -> None: ...

Each option can come from the environment: M4CAST_NODE (several: separated by spaces or commas), M4CAST_TOKEN,
M4CAST_CA, M4CAST_CERT, M4CAST_KEY.
"""

import functools
from collections.abc import Callable
from typing import Any

import click

from m4cast.overlay.client import Channel

FAIL_OVER = "Door of a node; of several, the next is asked when one is away."
EACH = "Door of a node; of several, each is asked."
ACCESS_POINT = "Door of the access point, where rows are published; of several, the first."
EXACTLY_ONE = "Door of the node that is to leave: exactly one."
PORT_MAX = 65_535

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


def client_options(about_nodes: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options; the command gets a `channel` made of them."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_channel(nodes: tuple[str, ...], token: str, ca: str, cert: str, key: str, **others: Any) -> None:
            command(channel=channel_of(nodes, token, ca, cert, key), **others)

        return node_option(about_nodes, required=True)(credential_options(with_channel))

    return add


def node_option(about: str, *, required: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds --node alone: the command gets `nodes`."""
    return click.option(
        "--node",
        "nodes",
        required=required,
        multiple=True,
        metavar="HOST:PORT",
        envvar="M4CAST_NODE" if required else None,
        show_envvar=required,
        callback=lambda context, option, values: doors_of(values),
        help=about,
    )


def doors_of(values: tuple[str, ...]) -> tuple[str, ...]:
    """The doors that are given, one by one or several with commas between them."""
    doors = [door.strip() for value in values for door in value.split(",") if door.strip()]
    if values and not doors:
        raise click.BadParameter("names no node: give HOST:PORT")
    for door in doors:
        _check(door)
    return tuple(doors)


def _check(door: str) -> None:
    host, colon, port = door.rpartition(":")
    host = host.rpartition("://")[2]
    if not colon or not host or (host.startswith("[") and not host.endswith("]")):
        raise click.BadParameter(f"{door!r} has no port: give HOST:PORT, as in 127.0.0.1:7500")
    if ":" in host and not host.startswith("["):
        raise click.BadParameter(f"{door!r}: an IPv6 address needs brackets, as in [::1]:7500")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= PORT_MAX):
        raise click.BadParameter(f"{door!r}: {port!r} is no port: give a number from 1 to {PORT_MAX}")


def credential_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds only what to show to nodes: the command gets `token`, `ca`, `cert` and `key`."""
    for option in reversed(_CREDENTIALS):
        command = option(command)
    return command


def channel_of(nodes: tuple[str, ...], token: str = "", ca: str = "", cert: str = "", key: str = "") -> Channel:
    return Channel(nodes, token=token, ca=ca, cert=cert, key=key)
