"""Properties that benchmarks rely on: sides take turns, ratios are of the same round, and nothing that is missing is
hidden."""

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.bench import __main__ as command
from tests.bench.comparison import Bench, Better, Missing, Side
from tests.bench.page import page
from tests.bench.processes import CLIENT, Watch
from tests.bench.results import as_json, tables


def sides(order: list[str], ours: list[float], theirs: list[float]) -> tuple[Side, Side]:
    """Two that say when they ran, and give these figures one after the other."""

    def side(name: str, figures: list[float]) -> Side:
        left = iter(figures)

        def work(watch: Watch) -> float:
            with watch:
                order.append(name)
            return next(left)

        return Side(name, work)

    return side("ours", ours), side("theirs", theirs)


def measured() -> Bench:
    bench = Bench()
    ours, theirs = sides([], [90, 10, 30, 20], [1, 10, 10, 5])
    missing = Missing("<NATS>", "nats-server is not installed")
    bench.compare("publish", "MB/s", ours, theirs, missing, gb=0.5, bar=3.0, rounds=3)
    bench.fact(what="copies", count=1234)
    return bench


def test_sides_take_turns_and_what_is_warm_up_does_not_count() -> None:
    order: list[str] = []
    bench = Bench()
    ours, theirs = sides(order, [90, 10, 30, 20], [1, 10, 10, 5])
    comparison = bench.compare("x", "MB/s", ours, theirs, rounds=3)
    assert order == ["ours", "theirs"] * 4
    assert comparison.sides[0].values == [10, 30, 20]
    assert comparison.ratios(comparison.sides[1]) == [1, 3, 4]


@pytest.mark.parametrize(
    ("better", "bar", "is_met"),
    [("higher", 3.0, True), ("higher", 3.1, False), ("lower", 3.0, True), ("lower", 2.9, False)],
)
def test_a_bar_is_met_by_the_median_of_the_ratios(better: Better, bar: float, is_met: bool) -> None:
    ours, theirs = sides([], [10, 30, 20], [10, 10, 5])
    comparison = Bench().compare("x", "ms", ours, theirs, better=better, bar=bar, rounds=3, warm_rounds=0)
    assert comparison.is_met(comparison.sides[1]) == is_met


def test_quick_is_one_round_after_one_to_warm_up() -> None:
    order: list[str] = []
    bench = Bench(quick=True)
    bench.compare("x", "MB/s", *sides(order, [1, 2], [1, 2]))
    assert order == ["ours", "theirs"] * 2 and bench.of(100, 3) == 3


def test_the_number_of_rounds_can_be_chosen() -> None:
    order: list[str] = []
    Bench(quick=True, rounds=2).compare("x", "MB/s", *sides(order, [1, 2, 3], [1, 2, 3]), rounds=7)
    assert order == ["ours", "theirs"] * 3


def test_a_side_that_measures_nothing_is_an_error() -> None:
    with pytest.raises(AssertionError, match="idle measured nothing"):
        Bench().compare("x", "MB/s", Side("idle", lambda watch: 1.0))


def test_a_figure_is_the_amount_by_the_seconds_unless_the_side_says_its_own() -> None:
    def work(watch: Watch) -> None:
        with watch:
            sum(range(10_000))

    (seen,) = Bench().compare("x", "MB/s", Side("ours", work), amount=5.0, rounds=1, warm_rounds=0).sides
    assert seen.values == [pytest.approx(5.0 / seen.seconds[0])]


def test_a_missing_reference_is_reported_in_table_page_and_json() -> None:
    bench = measured()
    console = Console(width=200, record=True, file=StringIO())
    for table in tables(bench):
        console.print(table)
    text = console.export_text()
    html = page({"cores": 2}, "today", {"channel": ("About & more", bench)}, {})
    for said in (text, json.dumps(as_json(bench)), html.replace("&lt;", "<").replace("&gt;", ">")):
        assert "<NATS>" in said and "nats-server is not installed" in said
    assert "3.00 (>= 3 met)" in text and "1.00 .. 4.00" in text and "1,234" in text
    assert "<NATS>" not in html and "About &amp; more" in html and "<script" not in html and "http" not in html


def test_the_json_has_every_round() -> None:
    content = json.loads(json.dumps(as_json(measured())))
    (comparison,) = content["comparisons"]
    assert [side["values"] for side in comparison["sides"]] == [[10, 30, 20], [10, 10, 5]]
    assert comparison["sides"][1]["ratio"] == 3 and comparison["sides"][1]["ratios"] == [1, 3, 4]
    assert CLIENT in comparison["sides"][0]["CPU s/GB"] and content["facts"] == [{"what": "copies", "count": 1234}]


def test_cpu_and_memory_of_a_process_count_with_its_descendants() -> None:
    busy = "import time; held = b'x' * 50_000_000\nwhile time.process_time() < 0.3: pass\nprint('done'); input()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-u', '-c', {busy!r}])"
    watch = Watch({})
    with watch:
        process = subprocess.Popen(
            [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        watch.add("child", process.pid)
        assert process.stdout is not None and process.stdout.readline() == "done\n"
    process.communicate("\n", timeout=30)
    assert 0.3 <= watch.cpu_s["child"] < 10 and 50 <= watch.peak_mb["child"] < 500
    assert watch.seconds >= 0.3 and watch.peak_mb[CLIENT] > 0


def test_the_command_lists_benchmarks_and_refuses_unknown_ones() -> None:
    listed = CliRunner().invoke(command.main, ["--list"])
    assert listed.exit_code == 0 and [line.split()[0] for line in listed.output.splitlines()] == list(
        command.BENCHMARKS
    )
    refused = CliRunner().invoke(command.main, ["chanel"])
    assert refused.exit_code == 2 and "unknown benchmark chanel; known are" in refused.output


def test_a_run_keeps_its_results_with_facts_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(bench: Bench) -> None:
        bench.compare("publish", "MB/s", *sides([], [1, 2], [1, 2]))
        raise ValueError("the disk is full")

    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setitem(sys.modules, "tests.bench.tiny", SimpleNamespace(__doc__="Tiny.", measure=measure))
    assert command.run(("tiny",), quick=True) == 1
    (path,) = tmp_path.glob("*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["machine"]["cores"] > 0 and content["machine"]["fsync_4kb_ms_p50"] > 0
    assert content["benchmarks"]["tiny"]["comparisons"][0]["what"] == "publish"
    assert content["failures"] == {"tiny": "ValueError: the disk is full"}
    assert "the disk is full" in path.with_suffix(".html").read_text(encoding="utf-8")
