"""The state of feeds on the console: a table that is redrawn on a terminal; elsewhere, one line per failed feed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from m4cast.jobs.feeds.feed import FeedState

DRAWINGS_PER_S = 4


@contextmanager
def feed_display(console: Console) -> Iterator[Callable[[Sequence[FeedState]], None]]:
    """A function to be called with the present feeds; it draws only on a terminal."""
    began = time.monotonic()
    printed: dict[str, str] = {}

    def print_failures(states: Sequence[FeedState]) -> None:
        for run in states:
            if run.error is not None and printed.get(run.table) != run.error:
                printed[run.table] = run.error
                text = f"m4cast: {run.table} failed: {run.error}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield print_failures
        return
    with Live(console=console, refresh_per_second=DRAWINGS_PER_S, transient=True) as live:

        def draw(states: Sequence[FeedState]) -> None:
            print_failures(states)
            live.update(feed_table(states, time.monotonic() - began))

        yield draw


def feed_table(states: Sequence[FeedState], seconds: float) -> Table:
    table = Table("table", box=None, pad_edge=False)
    for name in ("rows", "behind", "micro-batches", "restarts", "rows/s"):
        table.add_column(name, justify="right")
    table.add_column("")
    for run in states:
        state = "[red]failed[/]" if run.error is not None else "[green]done[/]" if run.is_over else "running"
        behind = "" if run.behind is None else f"{run.behind:,}"
        counts = (f"{run.rows:,}", behind, f"{run.micro_batches:,}", f"{run.restarts:,}")
        table.add_row(escape(run.table), *counts, f"{run.rows / max(seconds, 1e-3):,.0f}", state)
    return table
