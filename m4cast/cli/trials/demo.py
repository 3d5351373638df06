"""`m4cast demo`: watch a channel of real nodes, from their start to an account of every row.

However the demo ends, it leaves no process behind. See `m4cast.demo.spark`, and `m4cast.demo.quick` for installs
without Spark.
"""

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

from m4cast.console.errors import EXIT_CODE_FAILED, EXIT_CODE_INTERRUPTED, warn
from m4cast.console.options import command, count_option, folder_option, json_option, seconds_option, svg_option
from m4cast.console.screen import print_json
from m4cast.demo.display import Narrator, verdict_text
from m4cast.demo.outcome import DemoOutcome
from m4cast.demo.quick import quick_demo
from m4cast.demo.spark import NODES_MIN, SparkDemo

QUICK_SECONDS, SECONDS = 2.0, 8.0


@command()
@count_option("--nodes", low=3, high=16, default=9, help="Number of nodes.")
@seconds_option(
    "--seconds",
    low=0.1,
    high=60,
    help=f"Duration of each phase: before, during and after faults. Default: {SECONDS:g}, or {QUICK_SECONDS:g} "
    "without Spark.",
)
@count_option(
    "--rows-per-s", low=1, high=100_000, default=1_000, help="Rows per second that each of the two pipelines publishes."
)
@click.option("--seed", type=int, metavar="N", default=7, show_default=True, help="Seed of the generated orders.")
@folder_option(
    default="m4cast-demo",
    help="Folder for the tables, the report and the drawing of the graph. Results of an earlier demo are replaced.",
)
@click.option(
    "--no-spark", is_flag=True, help="Run only nodes and clients: faster, needs no Java, uses --svg instead of --dir."
)
@svg_option
@json_option
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
    """Watch a channel of real nodes survive crashes, and account for every row.

    Two Spark pipelines publish orders at two sites, and a third ingests them at another node into Delta. A subscriber
    follows some of them by a filter, a client leaves and returns elsewhere, and a second unit imports orders through a
    gateway. Meanwhile one node is killed and restarted, and another is suspended for a while. The address of a console
    is printed at the start. The exit code is 0 only if every row is in Delta exactly once and reached every node
    exactly once.
    """
    if svg is not None and not no_spark:
        raise click.UsageError("--svg is only for --no-spark: with Spark, the graph is drawn in DIR")
    if not no_spark and nodes < NODES_MIN:
        raise click.UsageError(f"--nodes {nodes} is too few: with Spark the demo needs {NODES_MIN} or more")
    try:
        with _interruptible():
            if no_spark:
                quick_demo(nodes, seconds or QUICK_SECONDS, svg, as_json)
                return
            console = Console(highlight=False, quiet=as_json)
            shown = SparkDemo(
                folder=folder.resolve(),
                nodes=nodes,
                seconds=seconds or SECONDS,
                rows_per_s=rows_per_s,
                seed=seed,
                narrator=Narrator(console),
            )
            outcome = shown.play()
    except KeyboardInterrupt:
        warn("interrupted; nothing is left running")
        raise SystemExit(EXIT_CODE_INTERRUPTED) from None
    if as_json:
        where = {"tables": str(shown.tables), "report": str(shown.report), "svg": str(shown.svg)}
        print_json({"whole": outcome.is_whole, **asdict(outcome), **where})
    else:
        _print(outcome, shown, folder, console)
    if not outcome.is_whole:
        raise SystemExit(EXIT_CODE_FAILED)


def _print(outcome: DemoOutcome, shown: SparkDemo, folder: Path, console: Console) -> None:
    console.rule("What became of every row")
    table = Table("node", box=None, pad_edge=False)
    for name in ("published", "delivered", "missing", "duplicates", "p99 latency"):
        table.add_column(name, justify="right")
    for node in outcome.nodes:
        table.add_row(
            node.name,
            f"{outcome.published:,}",
            verdict_text(node.delivered == outcome.published, f"{node.delivered:,}"),
            verdict_text(not node.missing, f"{node.missing:,}"),
            verdict_text(not node.duplicates, f"{node.duplicates:,}"),
            "" if node.p99_ms is None else f"{node.p99_ms:,.0f} ms",
        )
    console.print(table)
    counts = f"{outcome.generated:,} orders generated, {outcome.published:,} published, {outcome.events:,} in Delta"
    console.print(f"{counts} ({outcome.different_events:,} distinct); verdict of the audit: {outcome.verdict}")
    if outcome.is_whole:
        console.print("[green]Every row reached every node exactly once, and is in Delta exactly once.[/]")
    else:
        console.print("[bold red]Some rows are missing or duplicated.[/]")
    for what, path in (("Delta tables", shown.tables), ("report", shown.report), ("graph", shown.svg)):
        console.print(f"{what + ':':14}{path}", markup=False, soft_wrap=True)
    console.print("\nTry next:")
    for words in next_commands(folder):
        console.print(f"  {words}", markup=False, soft_wrap=True)


def next_commands(folder: Path) -> list[str]:
    """Commands that work as they are in the folder where the demo was run."""
    tables = f"--tables {folder / 'tables'}"
    return [
        f"m4cast gaps {tables}",
        f"m4cast audit {tables} --report {folder / 'again.html'} --fail-on incomplete",
        f"m4cast maintain {tables} --keep events=90",
        f"m4cast federation up --spec {folder / 'units.toml'} --dir two-units",
        'eval "$(m4cast cluster up --nodes 5 | tail -n 1)"',
        "m4cast cluster status    # open the address in the column web: the node's console",
        "m4cast tail --topic orders --where 'pieces >= 5'",
        "m4cast client new shop-1.json --name shop-1",
        "m4cast sim --nodes 200 --scenario churn",
    ]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make SIGTERM end the demo as Ctrl-C does, so that it cleans up. Logging is off from then on, because interrupted
    calls to Spark would log their tracebacks."""

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
