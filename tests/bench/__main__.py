"""`python -m tests.bench [NAME ...]`: run the benchmarks, print their tables, keep the numbers.

Each benchmark is a module with `measure()`, which returns rows of one table. Results also go, as JSON, to
`tests/bench/results/`, one file per run, which git ignores.
"""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.table import Table

from tests.bench import audit, bridge, channel, events, frames, growth, rows, spark, store

TABLE_WIDTH = 120
RESULTS = Path(__file__).parent / "results"
BENCHMARKS: dict[str, ModuleType] = {
    "audit": audit,
    "bridge": bridge,
    "channel": channel,
    "events": events,
    "frames": frames,
    "growth": growth,
    "rows": rows,
    "spark": spark,
    "store": store,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown benchmark {', '.join(unknown)}; known are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    when = datetime.now(UTC)
    results: dict[str, object] = {
        "when": when.isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    for name in names or BENCHMARKS:
        console.print(f"\n{name}: {' '.join((BENCHMARKS[name].__doc__ or '').split())}")
        rows: list[dict[str, object]] = BENCHMARKS[name].measure()
        results[name] = rows
        console.print(_table(rows))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{when:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(f"\nkept in {path}")
    return 0


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for key, value in rows[0].items():
        table.add_column(key, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
