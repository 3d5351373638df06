"""`m4cast explain`: what a filter means, what it passes and what it costs; and the options that filters have."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from m4cast.console.access import FAIL_OVER, channel_options
from m4cast.console.errors import warn
from m4cast.console.interruption import interruptible
from m4cast.console.options import command, count_option, json_option
from m4cast.console.screen import print_json
from m4cast.overlay.client import Channel

LANGUAGES = ("sql", "json", "diet")
F = TypeVar("F", bound=Callable[..., Any])


def filter_options(about: str, *, required: bool = False) -> Callable[[F], F]:
    """`--where` and `--language`."""

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
@count_option("--rows", high=10_000_000, default=100_000, help="Test at most this many of the newest rows.")
@channel_options(FAIL_OVER)
@json_option
def explain(channel: Channel, as_json: bool, where: str, language: str | None, topic: str, rows: int) -> None:
    """Show what a filter means, how many rows of a topic pass, and what it costs a node.

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


def _summaries(found: dict[str, Any]) -> str:
    batches, passed = found["batches"], found["passed_over_batches"]
    return (
        f"batches: {found['summarised_batches']:,} of {batches:,} have a summary; {passed:,} are passed over by it, "
        f"{batches - passed:,} are read"
    )


def _passing(found: dict[str, Any]) -> str:
    rows, matching = found["rows"], found["matching_rows"]
    if not rows:
        return "rows: none was tested"
    cost = found["cpu_ms_per_million_rows"]
    return f"rows: {matching:,} of {rows:,} pass ({matching / rows:.2%}); {cost:,.1f} ms of CPU per million rows"
