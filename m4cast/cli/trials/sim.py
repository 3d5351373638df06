"""`m4cast sim`: run the protocol's own code with simulated nodes in virtual time, and report the results.

The table explains each number; `--json` prints the report for programs. Progress and broken promises are shown on
stderr. The exit code is 0 if every promise of the scenario holds, and 1 if not.
"""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TextIO

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from m4cast.console.errors import EXIT_CODE_FAILED, warn
from m4cast.console.options import command, count_option, json_option
from m4cast.console.screen import Screen, print_json
from m4cast.overlay.sim.federation.scenario import UNITS_SCENARIO, UnitsReport, broken_unit_promises, simulate_units
from m4cast.overlay.sim.graph import edges_when_settled
from m4cast.overlay.sim.run import ScenarioPlan, ShowProgress
from m4cast.overlay.sim.scenarios import SCENARIOS, SimulationReport, broken_promises, simulate

NODES_MAX = 20_000
DEGREE_MIN, DEGREE_MAX = 3, 64
MESSAGES_MAX = 100_000
SEED_MAX = (1 << 63) - 1
HELP_COLUMNS = 76
"""80, less the indent that click adds."""

HELP = """Simulate a channel: real protocol code, virtual nodes and virtual time.

Nodes join through three portals, one every 50 ms of virtual time. Then the scenario runs while small batches are
published at random nodes. After the faults stop, the run ends when the graph is complete and everything is delivered,
or when a time limit is reached. The same options give the same report, except for the wall-clock time.

\b
Scenarios:
{scenarios}

The exit code is 0 if everything that the scenario promises holds: the graph is connected, every node has all its
neighbours, and every batch was delivered exactly once and in order at every node that stayed. Otherwise it is 1.
In `selective` and `keepers`, a batch is sent only to nodes that wanted it before it was published, and only these
count. In `units` the exit code is 0 if every batch was delivered exactly once at every node whose want was confirmed
where the batch was published.
"""
UNITS_HELP = (
    "A federation of clusters, of four nodes to 64, in four super-clusters. A tenth of the nodes, at most 64, want the "
    "batches; gateways are cut and gatekeepers killed while they are published."
)


def _help() -> str:
    # Click rewraps all text except what follows \b, so the list of scenarios is wrapped here.
    texts = {name: " ".join((scenario.__doc__ or "").split()) for name, scenario in SCENARIOS.items()}
    texts[UNITS_SCENARIO] = UNITS_HELP
    indent = 3 + max(len(name) for name in texts)
    lines = []
    for name, text in texts.items():
        first, *more = textwrap.wrap(text, HELP_COLUMNS - indent) or [""]
        lines.append(f"  {name}".ljust(indent) + first)
        lines.extend(" " * indent + line for line in more)
    return HELP.format(scenarios="\n".join(lines))


@command(help=_help())
@count_option(
    "--nodes", low=1, high=NODES_MAX, default=20, help="Number of nodes. 1,000 nodes take about half a minute."
)
@count_option(
    "--degree",
    low=DEGREE_MIN,
    high=DEGREE_MAX,
    default=4,
    help="Neighbours of each node. More neighbours: fewer hops, more failures survived, more copies of each batch.",
)
@count_option("--seed", low=0, high=SEED_MAX, default=1, help="Seed of all random choices in the run.")
@click.option(
    "--scenario",
    type=click.Choice([*SCENARIOS, UNITS_SCENARIO]),
    default="grow",
    show_default=True,
    help="What happens to the channel: see above.",
)
@count_option("--messages", high=MESSAGES_MAX, default=20, help="Number of batches published.")
@click.option(
    "--trace",
    type=click.File("w", encoding="utf-8", lazy=False),
    metavar="FILE",
    help="Write every input and output of every node to this file: about 5 MB for 20 nodes.",
)
@json_option
def sim(nodes: int, degree: int, seed: int, scenario: str, messages: int, as_json: bool, trace: TextIO | None) -> None:
    if scenario == UNITS_SCENARIO:
        _sim_units(nodes, seed, messages, as_json)
        return
    plan = ScenarioPlan(scenario, nodes, degree, seed, messages)
    with progress_bars(Console(stderr=True), wanted=not as_json) as progress:
        report = simulate(plan, progress, None if trace is None else lambda line: print(line, file=trace))
    broken = broken_promises(report)
    if as_json:
        print_json(report.as_dict())
        for promise in broken:
            warn(f"broken promise: {promise}")
    else:
        print_report(report, broken)
    if broken:
        raise SystemExit(EXIT_CODE_FAILED)


def _sim_units(nodes: int, seed: int, messages: int, as_json: bool) -> None:
    source = click.get_current_context().get_parameter_source
    for name in ("degree", "trace"):
        if source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} has no effect with --scenario {UNITS_SCENARIO}: remove it")
    with progress_bars(Console(stderr=True), wanted=not as_json) as progress:
        report = simulate_units(nodes, seed, messages, progress)
    broken = broken_unit_promises(report)
    if as_json:
        print_json(report.as_dict())
        for promise in broken:
            warn(f"broken promise: {promise}")
    else:
        _print_lines(f"{report.scenario}, seed {report.seed}", units_lines(report), broken)
    if broken:
        raise SystemExit(EXIT_CODE_FAILED)


@contextmanager
def progress_bars(console: Console, *, wanted: bool = True) -> Iterator[ShowProgress]:
    """A progress bar for each phase, added when the phase begins; none if stderr is not a terminal."""
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


def report_lines(report: SimulationReport) -> list[Line]:
    """Every number of the report, with its meaning."""
    graph = report.graph
    whole = edges_when_settled(graph.nodes, report.degree)
    return [
        Line("nodes", f"{graph.nodes:,}", "on the channel at the end"),
        Line("edges", f"{graph.edges:,}", f"links between them; a settled graph of these nodes has {whole:,}"),
        Line("degree", f"{graph.degree_min} to {graph.degree_max}", "fewest and most neighbours of a node"),
        Line("connected", "yes" if graph.connected else "NO", "whether every node reaches every other node"),
        Line("edge connectivity", _count(graph.edge_connectivity), "links that must fail at once to split the graph"),
        Line("vertex connectivity", _count(graph.vertex_connectivity), "nodes that must fail at once to split it"),
        Line("eccentricity", str(graph.eccentricity_max), "hops between the two nodes that are farthest apart"),
        Line("sends per delivery", _number(report.sends_per_delivery), "copies of a batch sent per node that has it"),
        Line(
            "hops",
            f"{_number(report.hops_mean)}, {report.hops_max}",
            "links that a batch crossed on its way to a node: mean, maximum",
        ),
        Line(
            "delivered early",
            f"{report.delivered_fraction_before_repair:.3%}",
            "share of deliveries made before the channel had time for repairs",
        ),
        Line("delivered", f"{report.delivered_fraction:.3%}", "share of deliveries made in the end"),
        Line("duplicates", str(report.duplicates_delivered), "batches delivered twice at one node"),
        Line("out of order", str(report.out_of_order), "batches delivered before an earlier one of their stream"),
        Line(
            "messages per join",
            _number(report.join_messages_mean),
            "sent by all nodes while the channel grew, without heartbeats and beacons",
        ),
        Line(
            "join time",
            f"{_ms(report.join_ms_p50)}, {_ms(report.join_ms_p99)}",
            "from start to fully connected: median, 99th percentile",
        ),
        Line(
            "gap repair",
            _ms(report.gap_repair_ms_p99),
            "from requesting a missing batch to receiving it: 99th percentile",
        ),
        Line(
            "recovery",
            _ms(report.whole_again_ms),
            "from the end of the faults until the graph was complete and everything delivered",
        ),
        Line(
            "time",
            f"{report.virtual_seconds:,.1f} s, {report.wall_seconds:,.1f} s",
            "virtual time, wall-clock time",
        ),
    ]


def _count(value: int | None) -> str:
    return "not computed" if value is None else str(value)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:,.2f}"


def _ms(value: int | None) -> str:
    return "none" if value is None else f"{value:,} ms"


def units_lines(report: UnitsReport) -> list[Line]:
    """Every number of the report about units, with its meaning."""
    return [
        Line("nodes", f"{report.nodes:,}", "in the federation"),
        Line("units", f"{report.clusters}, {report.super_clusters}", "clusters, super-clusters"),
        Line("gateways", str(report.gateways), "links between nodes of two units"),
        Line("takers", str(report.takers), "nodes that want the batches"),
        Line(
            "active",
            f"{_ms(report.active_ms_p50)}, {_ms(report.active_ms_p99)}",
            "from a want until it is confirmed everywhere: median, 99th percentile",
        ),
        Line("unconfirmed", str(report.unconfirmed), "wants that are not active everywhere at the end"),
        Line("batches", str(report.published), "published"),
        Line("expected", str(report.expected), "deliveries to nodes whose want was confirmed for the publisher's unit"),
        Line("delivered", f"{report.delivered_fraction:.3%}", "share of these"),
        Line("duplicates", str(report.duplicates_delivered), "batches delivered twice at one node"),
        Line("copies", _number(report.copies_per_batch), "of a batch, sent over any link: mean"),
        Line("gateway copies", _number(report.gateway_copies_per_batch), "of these, over gateways: mean"),
        Line("matchings", _number(report.matchings_per_batch), "of a batch with the wants of a unit: mean"),
        Line("connections", str(report.connections_max), "links that a node knows of: most"),
        Line("faults", f"{report.crashes}, {report.cuts}", "gatekeepers killed, gateways cut"),
        Line(
            "time",
            f"{report.virtual_seconds:,.1f} s, {report.wall_seconds:,.1f} s",
            "virtual time, wall-clock time",
        ),
    ]


def print_report(report: SimulationReport, broken: list[str]) -> None:
    _print_lines(f"{report.scenario}, seed {report.seed}, degree {report.degree}", report_lines(report), broken)


def _print_lines(title: str, lines: list[Line], broken: list[str]) -> None:
    console = Screen()
    table = Table("", "", "meaning", title=title, title_justify="left", box=None, pad_edge=False)
    for line in lines:
        table.add_row(*line)
    console.print(table)
    if broken:
        console.print("\nBROKEN:", style="bold red")
        for promise in broken:
            console.print(f"- {promise}", style="red")
    else:
        console.print("\nEverything that the scenario promises holds.", style="green")
