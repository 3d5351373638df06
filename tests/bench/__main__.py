"""`python -m tests.bench [NAME ...]`: run benchmarks, print their tables, keep the numbers.

Each benchmark is a module with `measure(bench)`, which compares ours with its references (see comparison.py). One that
has named parts (`PARTS`) is also run in part, as in `clients.query`. Results
go to `tests/bench/results/`, which git ignores: one JSON file per run, and a page with plots beside it.
"""

import importlib
import json
import signal
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from tests.bench.comparison import Bench, Row
from tests.bench.machine import machine_facts
from tests.bench.page import page
from tests.bench.results import as_json, tables

TABLE_WIDTH = 160
RESULTS = Path(__file__).parent / "results"
BENCHMARKS = {
    "frames": "the frame format, beside struct and XXH3",
    "events": "the simulator, beside a bare heap",
    "store": "the durable log, beside LMDB, SQLite and plain files",
    "channel": "large batches through real nodes, beside LMDB, a null Flight server and a socket",
    "rows": "single rows, acknowledged one by one",
    "latency": "how late single rows come, open loop, beside NATS",
    "web": "the web door: single rows over /live, small batches of 8 clients, posts, idle connections",
    "sizes": "rows of 100 B, 1 KB and 64 KB, beside Kafka, JetStream and a null Flight server",
    "topics": "batches under 1, 64 and 1,000 topics, beside JetStream",
    "fan_out": "one publisher to 1, 3, 5 and 9 disks, beside Kafka with consumers that sync",
    "growth": "diameter and cost of joins by degree (virtual time)",
    "healing": "crashes and splits (virtual time)",
    "selection": "selective topics between 16 real nodes: bytes on links, coverage, active, routes after a kill",
    "federation": "the Grid Event Service's test network with 22 node processes, beside its figures and three foils",
    "spark": "Spark's publish, read, Delta and triggers, beside its own Kafka connector",
    "ingest": "the ingest job: speed beside Spark's Kafka connector",
    "ingest_topics": "the ingest job: 1,000 topics, 10 rows/s each",
    "ingest_small": "the ingest job: one row at a time, triggers of 1 s",
    "replicas": "Spark's publish to three nodes, beside three brokers with three replicas",
    "streams": "64 origins with 1,000 topics each: link-up, and a Spark trigger on one topic",
    "where": "Spark's option where, beside .filter()",
    "audit": "gaps and audits, beside lag() over all rows",
    "bridge": "the Kafka bridge, beside bare kafka-python loops",
    "profiles": "filters: one profile, many profiles, summaries, beside DuckDB and one-by-one evaluation",
    "clients": "clients: hierarchy of profiles, many that are absent, how late notifications are, tables and queries",
    "filters": "filtered reads and tails at the door, beside unfiltered ones",
}
TABLES = ("growth", "healing", "selection")
"""They have nothing to take turns with: their `measure()` returns the rows of one table."""
QUICK = ("frames", "events", "store", "channel", "rows", "latency", "spark")
"""Together they take less than five minutes with --quick."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--quick", is_flag=True, help=f"Little of each; without names: {' '.join(QUICK)}. Less than 5 minutes.")
@click.option("--rounds", type=click.IntRange(1, 1_000), help="So many of each comparison, after the warm-up.")
@click.option("--list", "only_list", is_flag=True, help="List the benchmarks.")
def main(names: tuple[str, ...], quick: bool, rounds: int | None, only_list: bool) -> None:
    """Measure m4cast beside what one would use instead, on this machine, in turns. Without a NAME: all."""
    if only_list:
        for name, about in BENCHMARKS.items():
            click.echo(f"{name:13} {about}")
        return
    unknown = [name for name in names if name.partition(".")[0] not in BENCHMARKS]
    if unknown:
        raise click.UsageError(f"unknown benchmark {', '.join(unknown)}; known are {', '.join(BENCHMARKS)}")
    for name in names:
        benchmark, _, part = name.partition(".")
        if part and part not in (parts := getattr(importlib.import_module(f"tests.bench.{benchmark}"), "PARTS", {})):
            raise click.UsageError(f"{benchmark} has no part {part!r}; its parts are {', '.join(parts) or 'none'}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that what it started ends with it
    sys.exit(run(names or (QUICK if quick else tuple(BENCHMARKS)), quick=quick, rounds=rounds))


def run(names: tuple[str, ...], *, quick: bool, rounds: int | None = None) -> int:
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    when = datetime.now(UTC)
    machine = machine_facts()
    results: dict[str, tuple[str, Bench]] = {}
    failures: dict[str, str] = {}
    for name in names:
        benchmark, _, part = name.partition(".")
        module = importlib.import_module(f"tests.bench.{benchmark}")  # here, since some import Spark
        about = " ".join((module.__doc__ or "").split())
        console.print(f"\n{name}: {about}")
        with console.status("") as status:
            bench = Bench(quick=quick, rounds=rounds, report=status.update)
            results[name] = (about, bench)
            try:
                if part:
                    module.PARTS[part](bench)
                elif name in TABLES:
                    bench.facts += module.measure()
                else:
                    module.measure(bench)
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
                console.print(f"{name} failed:\n{traceback.format_exc()}", markup=False)
            finally:  # also of what is broken off
                for table in tables(bench):
                    console.print(table)
                _keep(when, machine, results, failures)
    console.print(f"\nkept in {_path(when, 'json')} and {_path(when, 'html')}")
    return 1 if failures else 0


def _path(when: datetime, suffix: str) -> Path:
    return RESULTS / f"{when:%Y%m%d-%H%M%S}.{suffix}"


def _keep(when: datetime, machine: Row, results: dict[str, tuple[str, Bench]], failures: dict[str, str]) -> None:
    """After each benchmark, so that a run that is broken off has what it had."""
    said = when.isoformat(timespec="seconds")
    content: Row = {"when": said, "machine": machine, "failures": failures}
    content["benchmarks"] = {name: {"about": about, **as_json(bench)} for name, (about, bench) in results.items()}
    RESULTS.mkdir(exist_ok=True)
    _path(when, "json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    _path(when, "html").write_text(page(machine, said, results, failures), encoding="utf-8")


if __name__ == "__main__":
    main()
