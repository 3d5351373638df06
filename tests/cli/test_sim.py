"""`m4cast sim`: one JSON object for programs, words for people, an exit code for both."""

import builtins
import json
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from m4cast.cli import main
from m4cast.cli.trials import sim as sim_command
from m4cast.overlay.sim.federation.scenario import UnitsReport, broken_unit_promises, simulate_units
from m4cast.overlay.sim.graph import GraphFacts
from m4cast.overlay.sim.run import ScenarioPlan
from m4cast.overlay.sim.scenarios import SCENARIOS, SimulationReport, broken_promises, simulate

KEYS = [
    "scenario",
    "seed",
    "degree",
    "nodes",
    "edges",
    "degree_min",
    "degree_max",
    "connected",
    "edge_connectivity",
    "vertex_connectivity",
    "eccentricity_max",
    "sends_per_delivery",
    "hops_mean",
    "hops_max",
    "delivered_fraction_before_repair",
    "delivered_fraction",
    "duplicates_delivered",
    "out_of_order",
    "join_messages_mean",
    "join_ms_p50",
    "join_ms_p99",
    "gap_repair_ms_p99",
    "whole_again_ms",
    "virtual_seconds",
    "wall_seconds",
]


def sim(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sim", *arguments])


def json_of(*arguments: str) -> dict[str, Any]:
    result = sim("--json", *arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1, "exactly one object, on one line"
    report = json.loads(result.stdout)
    assert isinstance(report, dict)
    return report


def test_json_is_one_object_with_every_key() -> None:
    report = json_of("--nodes", "9", "--seed", "3", "--messages", "5")
    assert list(report) == KEYS
    assert (report["scenario"], report["seed"], report["degree"], report["nodes"]) == ("grow", 3, 4, 9)
    assert (report["edges"], report["degree_min"], report["degree_max"], report["connected"]) == (18, 4, 4, True)
    assert report["edge_connectivity"] == 4
    assert report["delivered_fraction_before_repair"] == report["delivered_fraction"] == 1
    assert report["duplicates_delivered"] == report["out_of_order"] == 0


def test_sends_are_counted_per_remote_delivery() -> None:
    """2E - N + 1 copies reach N - 1 other nodes; the origin's own delivery is not one of them."""
    assert json_of("--nodes", "20", "--messages", "7")["sends_per_delivery"] == pytest.approx(61 / 19, abs=1e-4)


def test_the_same_seed_gives_the_same_report() -> None:
    arguments = ("--nodes", "12", "--scenario", "churn", "--seed", "5")
    first, second, other = json_of(*arguments), json_of(*arguments), json_of(*arguments[:-1], "6")
    for report in (first, second, other):
        del report["wall_seconds"]
    assert first == second
    assert first != {**other, "seed": 5}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_runs_and_is_explained(scenario: str) -> None:
    result = sim("--nodes", "10", "--scenario", scenario)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{scenario}, seed 1, degree 4")
    assert "Everything that the scenario promises holds." in result.stdout
    assert result.stderr == "", "no progress bar where there is no terminal"
    about = " ".join((SCENARIOS[scenario].__doc__ or "").split()[:4])
    assert f"{scenario} {about}" in " ".join(sim("--help").stdout.split())


@pytest.mark.parametrize("nodes", [1, 3, 24])
def test_units(nodes: int) -> None:
    report = json_of("--scenario", "units", "--nodes", str(nodes), "--messages", "12")
    assert list(report) == [field.name for field in fields(UnitsReport)]
    assert report["delivered_fraction"] == 1 and report["duplicates_delivered"] == report["unconfirmed"] == 0
    assert report["published"] == 12 and report["expected"] >= 12
    if nodes == 24:
        assert report["gateways"] > 4 and report["crashes"] + report["cuts"] == 3


def test_units_are_explained() -> None:
    result = sim("--scenario", "units", "--nodes", "8", "--messages", "3")
    assert result.exit_code == 0 and result.stdout.startswith("units, seed 1")
    assert "Everything that the scenario promises holds." in result.stdout
    assert "units A federation of clusters" in " ".join(sim("--help").stdout.split())
    refused = sim("--scenario", "units", "--degree", "5")
    assert refused.exit_code == 2 and "--degree has no effect with --scenario units" in refused.stderr


def test_broken_unit_promises_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    report = replace(simulate_units(4, 1, 3), delivered_fraction=0.5, duplicates_delivered=2, unconfirmed=1)
    monkeypatch.setattr(sim_command, "simulate_units", lambda *_: report)
    result = sim("--scenario", "units")
    assert result.exit_code == 1 and len(broken_unit_promises(report)) == 3
    assert "only 50.000% of what was expected" in result.stdout


def test_the_nodes_at_the_end_are_reported() -> None:
    assert json_of("--nodes", "12", "--scenario", "leave")["nodes"] == 8
    assert json_of("--nodes", "10", "--scenario", "crash")["nodes"] == 8


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_smallest_channels(scenario: str, nodes: int) -> None:
    report = json_of("--nodes", str(nodes), "--scenario", scenario, "--messages", "3")
    assert report["delivered_fraction"] == 1
    if nodes == 1 and scenario == "grow":
        assert report["sends_per_delivery"] is None and report["join_ms_p50"] is None


def test_no_messages() -> None:
    report = json_of("--nodes", "5", "--messages", "0")
    assert report["hops_mean"] is None and report["delivered_fraction"] == 1


def test_every_number_of_the_report_is_in_the_table() -> None:
    report = simulate(ScenarioPlan("grow", 7))
    marked = replace(report, sends_per_delivery=1234.5, hops_max=4321, join_ms_p99=98765, gap_repair_ms_p99=56789)
    text = "\n".join(" ".join(line) for line in sim_command.report_lines(marked))
    for shown in ("1,234.50", "4321", "98,765 ms", "56,789 ms"):
        assert shown in text
    # Each field changes some line, apart from those in the title.
    for name in KEYS:
        if name not in ("scenario", "seed", "degree"):
            changed = with_change(report, name, False if name == "connected" else 77)
            assert sim_command.report_lines(changed) != sim_command.report_lines(report), name


def with_change(report: SimulationReport, name: str, number: object) -> SimulationReport:
    """The report with another number under this name."""
    change: dict[str, Any] = {name: number}
    if name in (field.name for field in fields(GraphFacts)):
        return replace(report, graph=replace(report.graph, **change))
    return replace(report, **change)


# ---- exit codes


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"connected": False}, "in pieces"),
        ({"edges": 17}, "17 links, a whole one has 18"),
        ({"degree_max": 5}, "5 neighbours, more than 4"),
        ({"edge_connectivity": 3}, "loss of 3 links can split the graph, it should take 4"),
        ({"delivered_fraction": 0.99}, "only 99.0000% of the deliveries came"),
        ({"duplicates_delivered": 1}, "1 deliveries came twice"),
        ({"out_of_order": 2}, "2 deliveries came out of order"),
    ],
)
def test_a_violated_guarantee_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], complaint: str
) -> None:
    ((name, number),) = change.items()
    report = with_change(simulate(ScenarioPlan("grow", 9)), name, number)
    monkeypatch.setattr(sim_command, "simulate", lambda *_: report)
    people, programs = sim(), sim("--json")
    assert people.exit_code == programs.exit_code == 1
    assert complaint in " ".join(people.stdout.split())
    assert complaint in programs.stderr
    assert list(json.loads(programs.stdout)) == KEYS


@pytest.mark.parametrize(
    ("scenario", "degree", "connectivity", "well"),
    [("grow", 4, 3, False), ("flash", 4, 3, False), ("churn", 4, 3, True), ("grow", 3, 2, True), ("grow", 3, 1, False)],
)
def test_how_many_links_may_split_the_graph(scenario: str, degree: int, connectivity: int, well: bool) -> None:
    """The number of neighbours that a node has after joins; one less if the degree is odd. After faults, only that the
    graph is one piece."""
    grown = simulate(ScenarioPlan("grow", 10, degree))
    report = replace(grown, scenario=scenario, graph=replace(grown.graph, edge_connectivity=connectivity))
    assert (broken_promises(report) == []) == well


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nodes", "0"], "0 is not in the range 1<=x<=20000"),
        (["--nodes", "20001"], "20001 is not in the range 1<=x<=20000"),
        (["--nodes", "many"], "'many' is not a valid integer"),
        (["--degree", "2"], "2 is not in the range 3<=x<=64"),
        (["--degree", "65"], "65 is not in the range 3<=x<=64"),
        (["--seed", "-1"], "-1 is not in the range"),
        (["--messages", "-1"], "-1 is not in the range 0<=x<=100000"),
        (["--messages", "100001"], "100001 is not in the range 0<=x<=100000"),
        (["--scenario", "party"], "'party' is not one of 'grow', 'leave', 'crash', 'churn', 'flash', 'loss'"),
        (["--trace", "/nowhere/trace"], "No such file or directory"),
        (["--speed", "9"], "No such option"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(arguments: list[str], complaint: str) -> None:
    result = sim(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stdout == ""


def test_missing_networkx_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_networkx(name: str, *rest: Any) -> Any:
        if name == "networkx":
            raise ImportError("no networkx here")
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_networkx)
    result = sim("--nodes", "5")
    assert result.exit_code == 2
    assert "pip install m4cast[sim]" in result.stderr


def test_trace_shows_inputs_and_outputs_of_every_node(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    json_of("--nodes", "3", "--trace", str(path))
    text = path.read_text(encoding="utf-8")
    for name in ("n0", "n1", "n2"):
        assert f"{name} started" in text and f"{name} <- Start()" in text and f"{name} -> Send(" in text
    assert "n0 -> Trace(name='founded'" in text


@pytest.mark.parametrize(("terminal", "wanted"), [(True, True), (True, False), (False, True)])
def test_progress_is_for_who_looks_on(terminal: bool, wanted: bool) -> None:
    file = StringIO()
    with sim_command.progress_bars(Console(file=file, force_terminal=terminal), wanted=wanted) as progress:
        for phase in ("join", "settle"):
            progress(phase, 1, 2)
            progress(phase, 2, 2)
    if terminal and wanted:
        assert "join" in file.getvalue() and "settle" in file.getvalue()
    else:
        assert file.getvalue() == ""


def test_the_scenarios_in_the_help_are_not_wrapped_twice() -> None:
    shown = sim("--help").stdout
    told = shown.partition("Scenarios:\n")[2].partition("\n\n")[0].splitlines()
    indent = 5 + max(len(name) for name in SCENARIOS)
    assert max(len(line) for line in told) < 80
    begun = [line.split()[0] for line in told if line[4] != " "]
    assert begun == [*SCENARIOS, "units"]
    assert all(line.startswith(" " * indent) or line[4] != " " for line in told)
