"""`m4cast demo`: see it work, from nothing to a table of what became of every row.

However it ends, no process is left behind. See `m4cast.demo.spark`, and `m4cast.demo.quick` for installs without Spark.
"""

import json
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console
from rich.table import Table

from m4cast.demo.display import Narrator
from m4cast.demo.outcome import Outcome
from m4cast.demo.quick import quick_demo
from m4cast.demo.spark import NODES_MIN, SparkDemo

EXIT_CODE_BROKEN, EXIT_CODE_INTERRUPTED = 1, 130
QUICK_SECONDS, SECONDS = 2.0, 8.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", type=click.IntRange(3, 16), default=9, show_default=True, help="How many.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 60),
    help=f"How long each part lasts: before, during and after faults. {SECONDS:g}, or {QUICK_SECONDS:g} without Spark.",
)
@click.option(
    "--rows-per-s",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    help="Published by each of the two pipelines.",
)
@click.option("--seed", type=int, default=7, show_default=True, help="Of the orders.")
@click.option(
    "--dir",
    "folder",
    default="m4cast-demo",
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the tables, the report and the picture of the graph stay; what an earlier demo left there is replaced.",
)
@click.option("--no-spark", is_flag=True, help="Only nodes and clients: quicker, and needs no Java. DIR is not used.")
@click.option("--svg", metavar="FILE", type=click.Path(path_type=Path), help="Of --no-spark: where to draw the graph.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def demo(
    nodes: int,
    seconds: float | None,
    rows_per_s: int,
    seed: int,
    folder: Path,
    no_spark: bool,
    svg: Path | None,
    as_json: bool,
) -> None:
    """See it work: real nodes, Spark pipelines that publish and ingest, faults, and an audit of every row.

    A pipeline publishes orders at two nodes, another one ingests at a third into Delta; one node is killed and comes
    back, one is stopped for a while. The exit code is 0 only if every row is in Delta once and reached every node once.
    """
    if svg is not None and not no_spark:
        raise click.UsageError("--svg is of --no-spark: the picture is in DIR")
    if not no_spark and nodes < NODES_MIN:
        raise click.UsageError(f"with Spark there are {NODES_MIN} nodes or more")
    try:
        with _interruptible():
            if no_spark:
                quick_demo(nodes, seconds or QUICK_SECONDS, svg, as_json)
                return
            console = Console(highlight=False, quiet=as_json)
            shown = SparkDemo(folder.resolve(), nodes, seconds or SECONDS, rows_per_s, seed, Narrator(console))
            outcome = shown.play()
    except KeyboardInterrupt:
        click.echo("interrupted; nothing is left running", err=True)
        raise SystemExit(EXIT_CODE_INTERRUPTED) from None
    if as_json:
        where = {"tables": str(shown.tables), "report": str(shown.report), "svg": str(shown.svg)}
        click.echo(json.dumps({"whole": outcome.is_whole, **asdict(outcome), **where}))
    else:
        _print(outcome, shown, folder, console)
    if not outcome.is_whole:
        raise SystemExit(EXIT_CODE_BROKEN)


def _print(outcome: Outcome, shown: SparkDemo, folder: Path, console: Console) -> None:
    console.rule("What became of every row")
    table = Table("node", box=None, pad_edge=False)
    for name in ("published", "delivered", "missing", "duplicates", "p99 latency"):
        table.add_column(name, justify="right")
    for node in outcome.nodes:
        table.add_row(
            node.name,
            f"{outcome.published:,}",
            _good_if(node.delivered == outcome.published, node.delivered),
            _good_if(not node.missing, node.missing),
            _good_if(not node.duplicates, node.duplicates),
            "" if node.p99_ms is None else f"{node.p99_ms:,.0f} ms",
        )
    console.print(table)
    counts = f"{outcome.generated:,} orders were made, {outcome.published:,} published, {outcome.events:,} are in Delta"
    console.print(f"{counts}, {outcome.different_events:,} of them different; the audit says {outcome.verdict}")
    if outcome.is_whole:
        console.print("[green]Every row reached every node exactly once, and is in Delta exactly once.[/]")
    else:
        console.print("[bold red]Not every row is where it should be, exactly once.[/]")
    for what, path in (("Delta tables", shown.tables), ("the report", shown.report), ("the graph", shown.svg)):
        console.print(f"{what + ':':14}{path}", markup=False, soft_wrap=True)
    console.print("\nTry next:")
    for words in next_commands(folder):
        console.print(f"  {words}", markup=False, soft_wrap=True)


def next_commands(folder: Path) -> list[str]:
    """Each works as it stands, where the demo was run."""
    tables = f"--tables {folder / 'tables'}"
    return [
        f"m4cast gaps {tables}",
        f"m4cast audit {tables} --report {folder / 'again.html'} --fail-on incomplete",
        f"m4cast maintain {tables} --keep events=90",
        "m4cast cluster up --nodes 5",
        "m4cast sim --nodes 200 --scenario churn",
    ]


def _good_if(condition: bool, count: int) -> str:
    return f"[{'green' if condition else 'bold red'}]{count:,}[/]"


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, so that it cleans up; quietly: calls to Spark are cut in the middle."""

    def interrupt(*_: object) -> NoReturn:
        logging.disable()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in before.items():
            signal.signal(number, handler)
