"""The state of feeds on the console: a table that is redrawn on a terminal; elsewhere, one line per failed feed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from m4cast.jobs.feeds.feed import FeedRun

DRAWINGS_PER_S = 4


@contextmanager
def feed_display(console: Console) -> Iterator[Callable[[Sequence[FeedRun]], None]]:
    """A function to be called with the present feeds; it draws only on a terminal."""
    began = time.monotonic()
    printed: dict[str, str] = {}

    def print_failures(runs: Sequence[FeedRun]) -> None:
        for run in runs:
            if run.error is not None and printed.get(run.feed.table) != run.error:
                printed[run.feed.table] = run.error
                text = f"m4cast: {run.feed.table} failed: {run.error}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield print_failures
        return
    with Live(console=console, refresh_per_second=DRAWINGS_PER_S, transient=True) as live:

        def draw(runs: Sequence[FeedRun]) -> None:
            print_failures(runs)
            live.update(feed_table(runs, time.monotonic() - began))

        yield draw


def feed_table(runs: Sequence[FeedRun], seconds: float) -> Table:
    table = Table("table", box=None, pad_edge=False)
    for name in ("rows", "behind", "micro-batches", "restarts", "rows/s"):
        table.add_column(name, justify="right")
    table.add_column("")
    for run in runs:
        state = "[red]failed[/]" if run.error is not None else "[green]done[/]" if run.is_over else "running"
        behind = "" if run.behind is None else f"{run.behind:,}"
        counts = (f"{run.rows:,}", behind, f"{run.micro_batches:,}", f"{run.restarts:,}")
        table.add_row(escape(run.feed.table), *counts, f"{run.rows / max(seconds, 1e-3):,.0f}", state)
    return table
