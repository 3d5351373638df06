"""`m4cast shutdown` and `m4cast drain`: tell a node to leave, or all of them, and wait until that is done."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from m4cast.console.access import EXACTLY_ONE, client_options
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

LEAVE_TIMEOUT_S = 20.0
"""A node that leaves hands its rows over for at most 5 s, and closes links and door in a few more."""
POLL_S = 0.1
LOOK_TIMEOUT_S = 2.0
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")


@click.command(context_settings=_HELP_NAMES)
@client_options(EXACTLY_ONE, is_interruptible=True)
@click.option(
    "--channel", "whole", metavar="TYPE/INSTANCE", help="Shut down this whole channel: every node that is on it."
)
@_JSON
def shutdown(channel: Channel, whole: str | None, as_json: bool) -> None:
    """Let a node leave the channel in order and stop, as SIGTERM does. It may be started again.

    It refuses new publishes, waits up to 5 s until another node has its rows on disk, tells its neighbours, and ends.

    With --channel, and the channel's name, all nodes do: the node passes the word on to its neighbours, they to theirs.
    They keep their stores, and are one channel again when they are started.
    """
    name = _name(channel)
    if whole is not None:
        _shut_down(channel, name, whole, as_json)
        return
    with _stopping_at_once():
        channel.shutdown()
    _wait_until_gone(channel)
    click.echo(json.dumps({"name": name}) if as_json else f"{name} has left")


@click.command(context_settings=_HELP_NAMES)
@client_options(EXACTLY_ONE, is_interruptible=True)
@click.option(
    "--copies", type=click.IntRange(1, 64), help="Other nodes that must have all its rows; all neighbours if not given."
)
@click.option(
    "--timeout-s", type=click.FloatRange(0.1, 3600), default=60, show_default=True, help="How long to wait for them."
)
@_JSON
def drain(channel: Channel, copies: int | None, timeout_s: float, as_json: bool) -> None:
    """Take a node out of service for good: it leaves when other nodes have all the rows that were published at it.

    It refuses new publishes from the beginning. If the others have not got everything in time, or the command is
    interrupted, it stays on the channel and takes publishes again. Afterwards its store is not needed any more, but for
    its delivery records: they are in no other place. Ingest them before (`m4cast ingest --only deliveries`), or audits
    will not know what this node got: its last windows are NOT_READ.
    """
    name = _name(channel)
    records = _delivery_records(channel)
    if records:
        click.echo(
            f"m4cast: {name} has {records:,} delivery records, which go with it: audits will not know of those that "
            "were not ingested before (m4cast ingest --only deliveries)",
            err=True,
        )
    have_all = channel.at(channel.nodes[0], timeout_s=timeout_s).drain(copies)
    _wait_until_gone(channel)
    if as_json:
        click.echo(json.dumps({"name": name, "copies": have_all, "delivery_records": records}))
    elif have_all is None:
        click.echo(f"{name} has left; nothing that is kept was published at it")
    else:
        click.echo(f"{name} has left; {have_all} other nodes have all its rows on disk")


def _delivery_records(channel: Channel) -> int | None:
    """How many the node has; None if whoever drains it may not know."""
    try:
        found = channel.delivery_range()
    except RefusedError:
        return None
    return found.next - found.low


def _shut_down(channel: Channel, name: str, whole: str, as_json: bool) -> None:
    """Nodes without a door go, too, but nobody can look whether they did."""
    others = [node for node in channel.topology()["nodes"] if node["door"] and not node["leaving"]]
    with _stopping_at_once():
        channel.shutdown_channel(whole)
    _wait_until_gone(channel)
    for node in others:
        _wait_until_gone(channel.at(node["door"]))
    names = sorted({name, *(node["name"] for node in others)})
    click.echo(json.dumps({"channel": whole, "nodes": names}) if as_json else f"{whole} is down: {', '.join(names)}")


@contextmanager
def _stopping_at_once() -> Iterator[None]:
    """A node may be gone before its answer is out; that it is gone is looked at anyway."""
    try:
        yield
    except UnreachableError as error:
        if not error.is_sent:
            raise


def _name(channel: Channel) -> str:
    if len(channel.nodes) != 1:
        raise click.UsageError("one node at a time: give one --node")
    return str(channel.status()["name"])


def _wait_until_gone(channel: Channel) -> None:
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    (node,) = channel.nodes
    channel = channel.at(node, timeout_s=LOOK_TIMEOUT_S)
    while time.monotonic() < deadline:
        try:
            channel.status()
        except UnreachableError:
            return
        except RefusedError as error:
            if error.code not in ("stopping", "timeout"):
                raise
        time.sleep(POLL_S)
    raise M4castError(f"{node} was told to leave and still answers after {LEAVE_TIMEOUT_S:g} s: see its log")
