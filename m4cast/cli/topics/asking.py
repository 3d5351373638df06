"""`m4cast table`: print a table as it stands. `m4cast query`: print rows of a topic that match, from one node or all.

Both print one JSON object per line. `query` reports on stderr for which ranges the answer is exact, and which nodes did
not answer.
"""

from typing import Literal

import click

from m4cast.cli.topics.filters import filter_options
from m4cast.console.access import FAIL_OVER, channel_options
from m4cast.console.errors import EXIT_CODE_FAILED, warn
from m4cast.console.interruption import interruptible
from m4cast.console.options import command, count_option
from m4cast.console.quantities import count_of
from m4cast.overlay.client import Channel
from m4cast.schemas.json_text import json_of


@command()
@filter_options('Print only rows that stand and satisfy this, as in "price < 50" (docs/FILTERS.md).')
@click.option("--removed", is_flag=True, help="Print removals as well.")
@channel_options(FAIL_OVER)
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the output is always JSON.")
@click.argument("topic")
def table(channel: Channel, where: str | None, language: str | None, removed: bool, topic: str) -> None:
    """Print the table TOPIC as it stands: the last version of each owner and name that was not removed."""
    found = interruptible(lambda: channel.table(topic, where, language=language, removed=removed))
    for batch in found.to_batches():
        for row in batch.to_pylist():
            click.echo(json_of(row))


@command()
@filter_options("Print only rows that satisfy this, as in \"price > 100 AND country = 'PL'\" (docs/FILTERS.md).")
@click.option(
    "--scope",
    type=click.Choice(("node", "channel")),
    default="node",
    show_default=True,
    help="Ask one node, or each stream of the topic at its origin.",
)
@count_option("--max-rows", low=1, help="End after this many rows.")
@channel_options(FAIL_OVER)
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the output is always JSON.")
@click.argument("topic")
def query(
    channel: Channel,
    where: str | None,
    language: str | None,
    scope: Literal["node", "channel"],
    max_rows: int | None,
    topic: str,
) -> None:
    """Print the rows of TOPIC that match, and on stderr the ranges for which the answer is exact.

    The exit code is 1 if a node of the channel did not answer; the answer is then exact for the printed ranges only.
    """
    asked = interruptible(lambda: channel.query(topic, where, language=language, scope=scope))
    left = max_rows
    try:
        while left != 0 and (batch := interruptible(lambda: next(asked, None))) is not None:
            for row in batch.to_pylist()[:left]:
                click.echo(json_of(row))
            left = None if left is None else max(left - batch.num_rows, 0)
    finally:
        asked.close()
    if left == 0:
        warn(f"ended after {count_of(max_rows or 0, 'row')}: there may be more")
    for each in asked.ranges:
        click.echo(f"rows {each.first} to {each.next - 1} of {each.origin} by {each.node}", err=True)
    for node, reason in asked.unanswered.items():
        warn(f"{node} did not answer: {reason}")
    if asked.unanswered:
        raise SystemExit(EXIT_CODE_FAILED)
