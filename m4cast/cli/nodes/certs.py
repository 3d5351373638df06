"""`m4cast certs`: a certificate authority for a cluster, and certificates for its nodes and clients.

docs/SECURITY.md describes how they are used and replaced.
"""

from datetime import UTC, datetime
from pathlib import Path

import click

from m4cast.console.options import Decorator, count_option, folder_option, group, json_option
from m4cast.console.screen import print_json
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

_folder_option = folder_option(help="Folder of ca.crt and ca.key, and of the new files.")
_force_option = click.option("--force", is_flag=True, help="Replace existing files.")


def _days_option(default: int) -> Decorator:
    return count_option("--days", low=1, high=36_500, default=default, help="Days for which the certificate is valid.")


@group()
def certs() -> None:
    """Make and show the certificates of a cluster.

    One authority (CA) signs a certificate for each node. Keep ca.key away from the nodes: anyone who has it can make
    certificates for more nodes. A node needs ca.crt, its own certificate and its own key.
    """


@certs.command()
@_folder_option
@_days_option(CA_DAYS)
@_force_option
@json_option
def ca(folder: Path, days: int, force: bool, as_json: bool) -> None:
    """Make the cluster's authority: ca.crt and ca.key."""
    _report(make_ca(folder, days=days, force=force), as_json)


@certs.command()
@click.argument("name")
@_folder_option
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="HOST_OR_IP",
    help="Address at which clients reach the node. Can be repeated. localhost and 127.0.0.1 are always included.",
)
@_days_option(DAYS)
@_force_option
@json_option
def node(name: str, folder: Path, addresses: tuple[str, ...], days: int, force: bool, as_json: bool) -> None:
    """Make the certificate of the node called NAME: the `name` in its configuration."""
    _report(make_node_certificate(folder, name, addresses, days=days, force=force), as_json)


@certs.command()
@click.argument("name")
@_folder_option
@_days_option(DAYS)
@_force_option
@json_option
def client(name: str, folder: Path, days: int, force: bool, as_json: bool) -> None:
    """Make a certificate for clients of nodes that have no tokens."""
    _report(make_client_certificate(folder, name, days=days, force=force), as_json)


@certs.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def show(file: Path, as_json: bool) -> None:
    """Show the owner of the certificate in FILE, its addresses, and until when it is valid."""
    facts = facts_of(file)
    days_left = (facts.not_after - datetime.now(UTC)).days
    shown = {
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
        print_json(shown)
        return
    for name, value in shown.items():
        click.echo(f"{name:<12}{', '.join(value) if isinstance(value, list) else value}")


def _report(pair: Pair, as_json: bool) -> None:
    if as_json:
        print_json({"certificate": str(pair.certificate), "key": str(pair.key)})
    else:
        click.echo(f"made {pair.certificate} and {pair.key}")
