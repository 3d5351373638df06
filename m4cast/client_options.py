"""Options of every command that speaks to nodes as a client: where they are, and what to show them.

    @click.command()
    @client_options
    def topics(channel: Channel) -> None: ...

Each option can come from the environment: M4CAST_NODE (several: separated by spaces), M4CAST_TOKEN, M4CAST_CA,
M4CAST_CERT, M4CAST_KEY.
"""

import functools
from collections.abc import Callable
from typing import Any

import click

from m4cast.overlay.client import Channel

_NODES = click.option(
    "--node",
    "nodes",
    required=True,
    multiple=True,
    metavar="HOST:PORT",
    envvar="M4CAST_NODE",
    help="Door of a node; several for fail-over.",
)
_CREDENTIALS = (
    click.option(
        "--token",
        default="",
        metavar="env:NAME|file:PATH|TOKEN",
        envvar="M4CAST_TOKEN",
        help="What the node asks for; a token that is written out is seen in the list of processes.",
    ),
    click.option("--ca", default="", metavar="FILE", envvar="M4CAST_CA", help="The cluster's CA: speak TLS."),
    click.option("--cert", default="", metavar="FILE", envvar="M4CAST_CERT", help="Own certificate, if nodes ask."),
    click.option("--key", default="", metavar="FILE", envvar="M4CAST_KEY", help="The key of --cert."),
)


def client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options; the command gets a `channel` made of them."""

    @functools.wraps(command)
    def with_channel(nodes: tuple[str, ...], token: str, ca: str, cert: str, key: str, **others: Any) -> None:
        command(channel=channel_of(nodes, token, ca, cert, key), **others)

    wrapped: Callable[..., None] = _NODES(credential_options(with_channel))
    return wrapped


def credential_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds only what to show to nodes: the command gets `token`, `ca`, `cert` and `key`."""
    for option in reversed(_CREDENTIALS):
        command = option(command)
    return command


def channel_of(nodes: tuple[str, ...], token: str = "", ca: str = "", cert: str = "", key: str = "") -> Channel:
    return Channel(nodes, token=token, ca=ca, cert=cert, key=key)
