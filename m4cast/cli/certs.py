"""`m4cast certs`: an authority for a cluster, and certificates for its nodes and clients. docs/SECURITY.md tells how
they are used and replaced."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from m4cast.overlay.errors import M4castError

try:
    from m4cast.overlay.net.certificates import (
        CA_DAYS,
        DAYS,
        Pair,
        facts_of,
        make_ca,
        make_client_certificate,
        make_node_certificate,
    )
except ImportError as missing:
    raise M4castError("certificates need the package cryptography: pip install 'm4cast[node]'") from missing

_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_DIR = click.option(
    "--dir",
    "folder",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where ca.crt and ca.key are, and where new files go.",
)
_FORCE = click.option("--force", is_flag=True, help="Replace what is there.")


_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")


def _days(default: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--days", type=click.IntRange(1, 36_500), default=default, show_default=True, help="How long it is valid."
    )


@click.group(context_settings=_HELP_NAMES)
def certs() -> None:
    """Make and show the certificates of a cluster.

    One authority (CA) signs a certificate for each node. Keep ca.key away from the nodes: whoever has it can make
    more nodes. A node needs ca.crt, its own certificate and its own key.
    """


@certs.command(context_settings=_HELP_NAMES)
@_DIR
@_days(CA_DAYS)
@_FORCE
@_JSON
def ca(folder: Path, days: int, force: bool, as_json: bool) -> None:
    """Make the cluster's authority: ca.crt and ca.key."""
    _say(make_ca(folder, days=days, force=force), as_json)


@certs.command(context_settings=_HELP_NAMES)
@click.argument("name")
@_DIR
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="HOST_OR_IP",
    help="Where clients reach the node; several are possible. localhost and 127.0.0.1 are always in it.",
)
@_days(DAYS)
@_FORCE
@_JSON
def node(name: str, folder: Path, addresses: tuple[str, ...], days: int, force: bool, as_json: bool) -> None:
    """Make the certificate of the node called NAME: the `name` in its configuration."""
    _say(make_node_certificate(folder, name, addresses, days=days, force=force), as_json)


@certs.command(context_settings=_HELP_NAMES)
@click.argument("name")
@_DIR
@_days(DAYS)
@_FORCE
@_JSON
def client(name: str, folder: Path, days: int, force: bool, as_json: bool) -> None:
    """Make a certificate for clients of nodes that have no tokens."""
    _say(make_client_certificate(folder, name, days=days, force=force), as_json)


@certs.command(context_settings=_HELP_NAMES)
@click.argument("file", type=click.Path(path_type=Path))
@_JSON
def show(file: Path, as_json: bool) -> None:
    """Say whose the certificate in FILE is, for which addresses, and until when."""
    facts = facts_of(file)
    days_left = (facts.not_after - datetime.now(UTC)).days
    said = {
        "kind": facts.kind,
        "name": facts.name,
        "issuer": facts.issuer,
        "not_before": facts.not_before.isoformat(),
        "not_after": facts.not_after.isoformat(),
        "days_left": days_left,
        "addresses": list(facts.addresses),
        "sha256": facts.sha256,
    }
    if as_json:
        click.echo(json.dumps(said))
        return
    for name, value in said.items():
        click.echo(f"{name:<12}{', '.join(value) if isinstance(value, list) else value}")


def _say(pair: Pair, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"certificate": str(pair.certificate), "key": str(pair.key)}))
    else:
        click.echo(f"made {pair.certificate} and {pair.key}")
