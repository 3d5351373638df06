"""`m4cast sim`: run the channel's own protocol code with simulated nodes and time, and report what it did.

People get a table that says what each number means; `--json` prints the report as one object for programs. Progress
and complaints go to stderr. The exit code is 0 when everything that the scenario promises holds, 1 when not, 2 when
the command was given something it cannot use.
"""

import json
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import NamedTuple, TextIO

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from m4cast.console.screen import Screen
from m4cast.overlay.sim.graph import edges_when_settled
from m4cast.overlay.sim.run import Plan, Progress
from m4cast.overlay.sim.scenarios import SCENARIOS, Report, broken_promises, simulate

EXIT_CODE_BROKEN = 1
NODES_MAX = 20_000
DEGREE_MIN, DEGREE_MAX = 3, 64
MESSAGES_MAX = 100_000
SEED_MAX = (1 << 63) - 1
HELP_COLUMNS = 76
"""Of 80: click indents it."""

HELP = """Run the channel's own protocol code with simulated nodes and time.

Nodes join through three portals, one every 50 ms of virtual time. Then the scenario happens, small batches are
published at random nodes, faults stop, and the run ends when the graph is whole and everything is delivered, or when
that did not happen within a bound. The same options give the same report, apart from the time the run took.

\b
Scenarios:
{scenarios}

The exit code is 0 when everything that the scenario promises holds: the graph is connected and every node has its
neighbours, and every batch was delivered exactly once and in order at every node that stayed. Else it is 1.
"""


def _help() -> str:
    # Click rewraps everything but what follows \b, so the list of scenarios is wrapped here.
    indent = 3 + max(len(name) for name in SCENARIOS)
    lines = []
    for name, scenario in SCENARIOS.items():
        text = " ".join((scenario.__doc__ or "").split())
        first, *more = textwrap.wrap(text, HELP_COLUMNS - indent) or [""]
        lines.append(f"  {name}".ljust(indent) + first)
        lines.extend(" " * indent + line for line in more)
    return HELP.format(scenarios="\n".join(lines))


@click.command(help=_help(), context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    default=20,
    show_default=True,
    help="How many nodes the channel grows to. 1,000 take about half a minute.",
)
@click.option(
    "--degree",
    type=click.IntRange(DEGREE_MIN, DEGREE_MAX),
    default=4,
    show_default=True,
    help="Neighbours of a node. More of them: fewer hops, more failures survived, more copies of each batch.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, SEED_MAX),
    default=1,
    show_default=True,
    help="Chance begins here: another seed, another run.",
)
@click.option(
    "--scenario",
    type=click.Choice(list(SCENARIOS)),
    default="grow",
    show_default=True,
    help="What the channel lives through; see above.",
)
@click.option(
    "--messages",
    type=click.IntRange(0, MESSAGES_MAX),
    default=20,
    show_default=True,
    help="How many batches are published.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object, and nothing else.")
@click.option(
    "--trace",
    type=click.File("w", encoding="utf-8", lazy=False),
    metavar="FILE",
    help="Write every input and output of every node to this file. Grows fast: 5 MB for 20 nodes.",
)
def sim(nodes: int, degree: int, seed: int, scenario: str, messages: int, as_json: bool, trace: TextIO | None) -> None:
    plan = Plan(scenario, nodes, degree, seed, messages)
    with progress_bars(Console(stderr=True), wanted=not as_json) as progress:
        report = simulate(plan, progress, None if trace is None else lambda line: print(line, file=trace))
    broken = broken_promises(report)
    if as_json:
        click.echo(json.dumps(asdict(report)))
        for promise in broken:
            click.echo(f"m4cast sim: broken: {promise}", err=True)
    else:
        print_report(report, broken)
    if broken:
        raise SystemExit(EXIT_CODE_BROKEN)


@contextmanager
def progress_bars(console: Console, *, wanted: bool = True) -> Iterator[Progress]:
    """A bar per phase, which comes when the phase does; none where nobody looks on."""
    shown = wanted and console.is_terminal
    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not shown) as bars:
        current: list[tuple[str, TaskID]] = []

        def progress(phase: str, done: int, total: int) -> None:
            if not current or current[-1][0] != phase:
                current.append((phase, bars.add_task(phase, total=total)))
            bars.update(current[-1][1], completed=done, total=total)

        yield progress


# ---- the report for people


class Line(NamedTuple):
    what: str
    value: str
    meaning: str


def report_lines(report: Report) -> list[Line]:
    """Every number of the report, in words."""
    whole = edges_when_settled(report.nodes, report.degree)
    return [
        Line("nodes", f"{report.nodes:,}", "on the channel at the end"),
        Line("edges", f"{report.edges:,}", f"links between them; a whole graph of these nodes has {whole:,}"),
        Line("degree", f"{report.degree_min} to {report.degree_max}", "neighbours of a node, fewest and most"),
        Line("connected", "yes" if report.connected else "NO", "every node reaches every other over links"),
        Line("edge connectivity", _count(report.edge_connectivity), "links that must fail at once to split the graph"),
        Line("vertex connectivity", _count(report.vertex_connectivity), "nodes that must fail at once to split it"),
        Line("eccentricity", str(report.eccentricity_max), "hops between the two nodes that are farthest apart"),
        Line("sends per delivery", _number(report.sends_per_delivery), "copies of a batch sent, per node that got it"),
        Line(
            "hops",
            f"{_number(report.hops_mean)}, at most {report.hops_max}",
            "links a batch crossed on its way to a node, mean",
        ),
        Line(
            "delivered early",
            f"{report.delivered_fraction_before_repair:.3%}",
            "of all deliveries, before the channel was given time to repair itself",
        ),
        Line("delivered", f"{report.delivered_fraction:.3%}", "of all deliveries, in the end"),
        Line("duplicates", str(report.duplicates_delivered), "batches handed over twice at one node"),
        Line("out of order", str(report.out_of_order), "batches handed over before an earlier one of their stream"),
        Line(
            "messages per join",
            _number(report.join_messages_mean),
            "sent by all nodes together while the channel grew (no heartbeats, no beacons)",
        ),
        Line(
            "join time",
            f"{_ms(report.join_ms_p50)}, {_ms(report.join_ms_p99)}",
            "from start to fully connected: half of the joins, 99 % of them",
        ),
        Line(
            "gap repair",
            _ms(report.gap_repair_ms_p99),
            "from asking for a missing batch to having it: 99 % of the gaps",
        ),
        Line(
            "whole again",
            _ms(report.whole_again_ms),
            "from the end of the faults until the graph was whole and everything delivered",
        ),
        Line(
            "time",
            f"{report.virtual_seconds:,.1f} s in {report.wall_seconds:,.1f} s",
            "simulated, and what the simulation took",
        ),
    ]


def _count(value: int | None) -> str:
    return "not computed" if value is None else str(value)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:,.2f}"


def _ms(value: int | None) -> str:
    return "none" if value is None else f"{value:,} ms"


def print_report(report: Report, broken: list[str]) -> None:
    console = Screen()
    title = f"{report.scenario}, seed {report.seed}, degree {report.degree}"
    table = Table("", "", "what it says", title=title, title_justify="left", box=None, pad_edge=False)
    for line in report_lines(report):
        table.add_row(*line)
    console.print(table)
    if broken:
        console.print("\nBROKEN:", style="bold red")
        for promise in broken:
            console.print(f"- {promise}", style="red")
    else:
        console.print("\nEverything that the scenario promises holds.", style="green")
