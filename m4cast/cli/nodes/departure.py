"""`m4cast shutdown` and `m4cast drain`: make one node or all nodes leave, and wait until they have left."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from m4cast.console.access import EXACTLY_ONE, channel_options
from m4cast.console.errors import warn
from m4cast.console.options import command, count_option, json_option, seconds_option
from m4cast.console.quantities import count_of
from m4cast.console.screen import print_json
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

LEAVE_TIMEOUT_S = 20.0
"""A leaving node hands over its rows for at most 5 s, then needs a few seconds more to close its links and its door."""
POLL_S = 0.1
LOOK_TIMEOUT_S = 2.0


@command()
@click.option(
    "--channel", "whole", metavar="TYPE/INSTANCE", help="Shut down this whole channel, with every node on it."
)
@channel_options(EXACTLY_ONE, is_interruptible=True)
@json_option
def shutdown(channel: Channel, whole: str | None, as_json: bool) -> None:
    """Stop a node gracefully, as SIGTERM does. It can be started again.

    The node refuses new publishes, waits up to 5 s until another node has its rows on disk, notifies its neighbours and
    stops.

    With --channel and the name of the channel, all nodes stop: each node passes the request on to its neighbours. They
    keep their stores and form the same channel again when they are started.
    """
    name = _name(channel)
    if whole is not None:
        _shut_down(channel, name, whole, as_json)
        return
    with _may_stop_before_answering():
        channel.shutdown()
    _wait_until_gone(channel)
    if as_json:
        print_json({"name": name})
    else:
        click.echo(f"{name} has left the channel")


@command()
@count_option(
    "--copies", low=1, high=64, help="Number of other nodes that must have all its rows; all its neighbours by default."
)
@seconds_option("--timeout-s", low=0.1, high=3600, default=60, help="How long to wait for these nodes.")
@channel_options(EXACTLY_ONE, is_interruptible=True)
@json_option
def drain(channel: Channel, copies: int | None, timeout_s: float, as_json: bool) -> None:
    """Retire a node: it leaves for good once other nodes have all the rows that were published at it.

    The node refuses new publishes from the start. If the other nodes do not have everything in time, or if the command
    is interrupted, the node stays on the channel and accepts publishes again.

    Afterwards its store is no longer needed, except for its delivery records, which exist nowhere else. Ingest them
    first (`m4cast ingest --only deliveries`); otherwise audits cannot tell what this node received and report its last
    windows as NOT_READ.
    """
    name = _name(channel)
    records = _delivery_records(channel)
    if records:
        warn(
            f"{name} has {count_of(records, 'delivery record')}, which no other node has: ingest first "
            "(m4cast ingest --only deliveries), or audits will not know what it received"
        )
    have_all = channel.at(channel.nodes[0], timeout_s=timeout_s).drain(copies)
    _wait_until_gone(channel)
    if as_json:
        print_json({"name": name, "copies": have_all, "delivery_records": records})
    elif have_all is None:
        click.echo(f"{name} has left the channel; it had no retained rows of its own")
    else:
        others = "1 other node has" if have_all == 1 else f"{have_all} other nodes have"
        click.echo(f"{name} has left the channel; {others} all its rows on disk")


def _delivery_records(channel: Channel) -> int | None:
    """The number of delivery records at the node; None if this client may not read it."""
    try:
        found = channel.delivery_range()
    except RefusedError:
        return None
    return found.next - found.low


def _shut_down(channel: Channel, name: str, whole: str, as_json: bool) -> None:
    """Shut the whole channel down. Nodes without a door stop as well, but this cannot be verified."""
    others = [node for node in channel.topology()["nodes"] if node["door"] and not node["leaving"]]
    with _may_stop_before_answering():
        channel.shutdown_channel(whole)
    _wait_until_gone(channel)
    for node in others:
        _wait_until_gone(channel.at(node["door"]))
    names = sorted({name, *(node["name"] for node in others)})
    if as_json:
        print_json({"channel": whole, "nodes": names})
    else:
        click.echo(f"{whole} is down: {', '.join(names)}")


@contextmanager
def _may_stop_before_answering() -> Iterator[None]:
    """Ignore a connection that breaks after the request was sent; whether the node has stopped is verified anyway."""
    try:
        yield
    except UnreachableError as error:
        if not error.is_sent:
            raise


def _name(channel: Channel) -> str:
    if len(channel.nodes) != 1:
        raise click.UsageError("one node at a time: give exactly one --node")
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
    raise M4castError(f"{node} still answers {LEAVE_TIMEOUT_S:g} s after it was asked to leave: see its log")
