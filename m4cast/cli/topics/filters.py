"""`m4cast explain`: what a filter means, which rows pass and what it costs; and the options of filters.

`m4cast subscribe`, `unsubscribe`, `subscriptions`: which rows are wanted at nodes, and who wants what on the channel. A
registration is made at a node, and lasts until it is removed. It is reported to all nodes and shown there. Rows of
selective topics go where they are wanted, those of broadcast topics to every node.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import click
from rich.table import Table
from rich.text import Text

from m4cast.console.access import EACH, FAIL_OVER, channel_options
from m4cast.console.errors import EXIT_CODE_FAILED, warn
from m4cast.console.interruption import interruptible
from m4cast.console.options import command, count_option, json_option, json_per_node_option, seconds_option
from m4cast.console.screen import Screen, print_json
from m4cast.overlay.client import Channel
from m4cast.overlay.client.interest import ActiveLevel, Activity
from m4cast.overlay.client.tail import Start, start_of
from m4cast.overlay.errors import LocalProtocolError

LANGUAGES = ("sql", "json", "diet")
F = TypeVar("F", bound=Callable[..., Any])


def filter_options(about: str, *, required: bool = False) -> Callable[[F], F]:
    """Adds `--where` and `--language`."""

    def add(function: F) -> F:
        language = click.option("--language", type=click.Choice(LANGUAGES), help="Language of --where; sql by default.")
        where = click.option("--where", metavar="FILTER", required=required, help=about)
        return where(language(function))

    return add


def warn_of_unknown(topic: str, explained: dict[str, Any]) -> None:
    for path in explained["unknown_columns"]:
        known = ", ".join(explained["known_columns"]) or "none"
        warn(f"topic {topic!r} has no column {'.'.join(path)!r}, so it is null in every row; its columns are {known}")


@command()
@filter_options("The filter, as in \"price > 100 AND country = 'PL'\" (docs/FILTERS.md).", required=True)
@click.option("--topic", default="default", show_default=True, help="Topic whose rows are tested.")
@count_option(
    "--rows",
    high=10_000_000,
    default=100_000,
    help="Test this many rows: of each stream's newest an equal share, at least one.",
)
@channel_options(FAIL_OVER)
@json_option
def explain(channel: Channel, as_json: bool, where: str, language: str | None, topic: str, rows: int) -> None:
    """Show what a filter means, how many rows of a topic pass, and what the filter costs a node.

    A column that the topic does not have is null in every row. The command warns of such columns.
    """
    found = interruptible(lambda: channel.explain(topic, where, language=language, rows=rows))
    if as_json:
        print_json(found)
        return
    warn_of_unknown(topic, found)
    click.echo(f"filter: {found['canonical']}")
    click.echo(f"id: {found['id']} ({found['language']} {found['version']})")
    click.echo(f"columns: {', '.join('.'.join(path) for path in found['columns']) or 'none'}")
    if found["is_opaque"]:
        click.echo("opaque: it has too many alternatives to be indexed or compared with others; it works as any other")
    click.echo(_summaries(found))
    click.echo(_passing(found))
    if found["error_rows"]:
        click.echo(
            f"errors: {found['error_rows']:,} times a value could not be compared, which is no match: give the "
            "constant the type of its column"
        )


def _summaries(found: dict[str, Any]) -> str:
    batches, passed = found["batches"], found["passed_over_batches"]
    summarised = f"batches: {found['summarised_batches']:,} of {batches:,} have a summary"
    if passed is None:
        return f"{summarised}; a token with a filter is not told what they decide"
    return f"{summarised}; {passed:,} are passed over by it, {batches - passed:,} are read"


def _passing(found: dict[str, Any]) -> str:
    rows, matching = found["rows"], found["matching_rows"]
    if not rows:
        return "rows: none was tested"
    cost = found["cpu_ms_per_million_rows"]
    passing = f"rows: {matching:,} of {rows:,} pass ({matching / rows:.2%})"
    return passing if cost is None else f"{passing}; {cost:,.1f} ms of CPU per million rows"


# ---- registrations

wanted_rows = filter_options("Only rows that satisfy this filter (docs/FILTERS.md).")


@command()
@wanted_rows
@click.option("--earliest", is_flag=True, help="Short for --from earliest.")
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|TIME|POSITION",
    help="Where to start in a selective topic: at the earliest rows that are retained, at a time (ISO 8601 with a "
    "zone, or milliseconds since 1970 UTC), or at a position, which is JSON as in "
    '\'{"orders": {"<origin>": 101}}\'. By default, with new rows.',
)
@click.option(
    "--wait",
    "awaited",
    type=click.Choice(["active", "system"]),
    help="Wait until all present nodes know of the registration, or all gatekeepers of the federation.",
)
@seconds_option("--wait-s", low=0, default=30, help="How long to wait; after that, exit with 1.")
@channel_options(EACH)
@json_per_node_option
@click.argument("topic")
def subscribe(
    channel: Channel,
    as_json: bool,
    where: str | None,
    language: str | None,
    earliest: bool,
    start: str | None,
    awaited: str | None,
    wait_s: float,
    topic: str,
) -> None:
    """Register rows of TOPIC as wanted at each node that is named."""
    is_active = True
    since = _start(start, earliest=earliest)
    for node in channel.nodes:
        there = channel.at(node)
        answer = there.register(topic, where or "", language=language or "sql", start=since)
        found = None
        if awaited:
            level: ActiveLevel = "system" if awaited == "system" else "channel"
            found = interruptible(
                partial(there.active, topic, where or "", language=language or "sql", timeout_s=wait_s, level=level)
            )
            is_active = is_active and found.is_reached(level)
        if as_json:
            print_json({"node": node, **answer, **({} if found is None else asdict(found))})
            continue
        click.echo(f"{topic} at {node}: registered as {answer['id']}, epoch {answer['epoch']}")
        if found is not None:
            click.echo(_activity(found))
            if awaited == "system":
                click.echo(_levels(topic, found))
    if not is_active:
        raise SystemExit(EXIT_CODE_FAILED)


def _start(text: str | None, *, earliest: bool) -> Start:
    if earliest and text is not None:
        raise click.UsageError("--earliest and --from exclude each other: give one of them")
    if text is None:
        return "earliest" if earliest else "latest"
    try:
        return start_of(json.loads(text) if text.startswith("{") else text)
    except (LocalProtocolError, ValueError) as error:
        raise click.BadParameter(str(error), param_hint="--from") from None


def _activity(found: Activity) -> str:
    confirmed = ", ".join(found.confirmed) or "no other node"
    begins = "".join(f"\neffective from row {first} of {origin}" for origin, first in found.effective_from.items())
    if found.is_active:
        return f"active: confirmed by {confirmed}{begins}"
    return f"not active yet: confirmed by {confirmed}; not by {', '.join(found.missing)}{begins}"


def _levels(topic: str, found: Activity) -> str:
    levels = found.levels
    if levels is None:
        fix = "name it under imports or on_demand of a [[gateway]] (docs/FEDERATION.md)"
        return f"not active in the system: no gatekeeper of this channel brings rows of {topic!r} from others: {fix}"
    state = "active in the system" if found.is_system_active else "not active in the system yet"
    return f"{state}: confirmed up to level {levels.confirmed} of {levels.system}, seen up to {levels.seen}"


@command()
@wanted_rows
@channel_options(EACH)
@json_per_node_option
@click.argument("topic")
def unsubscribe(channel: Channel, as_json: bool, where: str | None, language: str | None, topic: str) -> None:
    """Remove what `subscribe` registered for TOPIC at each node that is named."""
    for node in channel.nodes:
        removed = channel.at(node).unregister(topic, where or "", language=language or "sql")
        if as_json:
            print_json({"node": node, "removed": removed})
        else:
            click.echo(f"{topic} at {node}: {'given up' if removed else 'was not registered'}")


@command()
@click.option("--topic", default=None, help="Show only registrations of this topic.")
@click.option("--follow", is_flag=True, help="Show registrations, and their changes as they happen, until Ctrl-C.")
@seconds_option("--idle-s", low=0, default=None, help="With --follow: end when nothing has changed for this long.")
@click.option("--costs", is_flag=True, help="Show what each registration of the answering node costs and saves.")
@channel_options(FAIL_OVER)
@json_option
def subscriptions(
    channel: Channel, as_json: bool, topic: str | None, follow: bool, idle_s: float | None, costs: bool
) -> None:
    """Show who wants what, at which node and since when, as the answering node knows it."""
    if follow and costs:
        raise click.UsageError("--costs and --follow exclude each other: give one of them")
    if follow:
        _follow(channel, topic, idle_s, as_json=as_json)
        return
    if idle_s is not None:
        raise click.UsageError("--idle-s needs --follow")
    view = interruptible(lambda: channel.subscriptions(topic, costs=costs))
    if as_json:
        print_json(view)
        return
    if costs:
        _show_costs(view["own"])
        return
    registrations = view["registrations"]
    if not registrations:
        click.echo("nobody has registered anything")
        return
    Screen().print(_registrations_table(registrations))
    if view["has_more"]:
        warn("there are more registrations than fit in one answer: name a --topic")


def _follow(channel: Channel, topic: str | None, idle_s: float | None, *, as_json: bool) -> None:
    changes = channel.interest_changes(topic, idle_s=idle_s)
    with suppress(KeyboardInterrupt):  # the way to stop
        while (change := interruptible(lambda: next(changes, None))) is not None:
            if as_json:
                print_json(change)
            else:
                named, wanted = change["topic"] or f"#{change['topic_hash']}", change["where"] or "every row"
                click.echo(f"{change['kind']:<8}  {named}  {wanted}  at {change['node']}, epoch {change['epoch']}")


def _show_costs(own: list[dict[str, Any]]) -> None:
    counted = [each for each in own if each["cost"] is not None]
    if not counted:
        click.echo("this node has no registration on a selective topic of which you may read every row")
        return
    names = ("topic", "where", "of", "batches", "rows", "match", "batches in vain", "rows in vain", "rows spared", "MB")
    table = Table(*names, box=None, pad_edge=False)
    for each in sorted(counted, key=lambda each: -each["cost"]["bytes"]):
        cost = each["cost"]
        whose = f"{each['owner'] or 'this node'}{' (reading)' if each['is_reader'] else ''}"
        counts = ("batches", "rows", "matched_rows", "batches_in_vain", "rows_in_vain", "spared_rows")
        cells = (each["topic"], each["where"] or "every row", whose, *(f"{cost[name]:,}" for name in counts))
        table.add_row(*map(Text, (*cells, f"{cost['bytes'] / 1e6:,.1f}")))
    Screen().print(table)
    if not all(each["cost"]["is_whole"] for each in counted):
        warn("not all rows are counted yet: repeat the command to count the others")


def _registrations_table(registrations: list[dict[str, Any]]) -> Table:
    table = Table("topic", "where", "node", "since", "epoch", box=None, pad_edge=False)
    for each in sorted(registrations, key=lambda each: (each["topic"] or "~", each["where"], each["node"])):
        since = datetime.fromtimestamp(each["since_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        topic = each["topic"] or f"#{each['topic_hash']}"
        table.add_row(*map(Text, (topic, each["where"] or "every row", each["node"], since, str(each["epoch"]))))
    return table
