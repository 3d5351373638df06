"""`m4cast demo --no-spark`: a channel of real nodes on this machine, from nothing to a table of what happened.

Rows are published at one node and followed at all of them; one node is killed in the middle (SIGKILL) and brought
back while publishing goes on. The exit code is 0 only if every row that was acknowledged arrived at every node,
exactly once and in order. However it ends, no process and no store is left behind; only the picture stays.
"""

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from m4cast.cluster.local import LocalCluster, NodeFailedError
from m4cast.overlay.client import Channel
from m4cast.overlay.client.tail import Tail
from m4cast.overlay.errors import M4castError
from m4cast.topology.picture import write_svg
from m4cast.topology.survey import survey
from m4cast.topology.table import print_topology

TOPIC = "orders"
GOODS = ("tea", "jam", "milk", "bread", "salt")
BATCH_ROWS = 100
BATCH_EVERY_S = 0.05
ARRIVE_TIMEOUT_S = 60.0
SHOWN_ROWS = 3
EXIT_CODE_BROKEN = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one node handed to a client that followed it all the time."""

    name: str
    rows: int
    missing: int
    duplicates: int
    in_order: bool
    catch_up_s: float | None
    """From the start of its process until it had handed over all that was published before; None: it was not away."""
    error: str | None

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.duplicates and self.in_order and self.error is None


class Follower(threading.Thread):
    """A client that follows one node, through its death and return."""

    def __init__(self, name: str, channel: Channel) -> None:
        super().__init__(name=f"follow-{name}", daemon=True)
        self.node = name
        self.sequences: list[int] = []
        self.first_rows: list[dict[str, Any]] = []
        self.error: str | None = None
        self.tail: Tail = channel.tail(TOPIC, {})
        self._came = threading.Condition()

    def run(self) -> None:
        try:
            for batch in self.tail:
                if len(self.first_rows) < SHOWN_ROWS:
                    self.first_rows += batch.slice(0, SHOWN_ROWS - len(self.first_rows)).to_pylist()
                with self._came:
                    self.sequences += batch.column("_sequence").to_pylist()
                    self._came.notify_all()
        except M4castError as error:
            with self._came:
                self.error = str(error)
                self._came.notify_all()

    def wait_for(self, rows: int, timeout_s: float) -> bool:
        """Wait until so many rows came, or no more will."""
        with self._came:
            self._came.wait_for(lambda: len(self.sequences) >= rows or self.error is not None, timeout_s)
            return len(self.sequences) >= rows

    def outcome(self, published: int, catch_up_s: float | None) -> Outcome:
        with self._came:
            came = list(self.sequences)
        different = set(came)
        missing = len(set(range(1, published + 1)) - different)
        in_order = all(one < other for one, other in pairwise(came))
        return Outcome(self.node, len(came), missing, len(came) - len(different), in_order, catch_up_s, self.error)


class Publisher(threading.Thread):
    """A client that publishes rows at one node, a batch at a time, and counts what was acknowledged."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(name="publish", daemon=True)
        self.rows = 0
        self.error: str | None = None
        self.enough = threading.Event()
        self._channel = channel

    def run(self) -> None:
        try:
            while not self.enough.wait(BATCH_EVERY_S):
                batch = [self._row(self.rows + number) for number in range(1, BATCH_ROWS + 1)]
                self._channel.publish(TOPIC, batch, acks=1)
                self.rows += BATCH_ROWS
        except M4castError as error:
            self.error = str(error)

    def _row(self, number: int) -> dict[str, Any]:
        return {"id": number, "what": GOODS[number % len(GOODS)], "pieces": 1 + number % 7}


def quick_demo(nodes: int, seconds: float, svg: Path | None, as_json: bool) -> None:
    """Publish, follow, kill a node, bring it back, and count; prints what happened, and exits unless all is well."""
    if svg is not None and not svg.parent.is_dir():
        raise M4castError(f"{svg}: cannot be written: {svg.parent} is not a folder")
    console = Console(highlight=False, quiet=as_json)
    folder = Path(tempfile.mkdtemp(prefix="m4cast-demo-"))
    svg = svg or folder / "topology.svg"
    try:
        with _cluster(folder / "cluster", nodes, console) as local:
            outcomes, published = _play(local, seconds, svg, console)
    finally:
        if not svg.is_relative_to(folder) or not svg.exists():
            folder.rmdir()
    whole = published > 0 and all(outcome.is_whole for outcome in outcomes)
    if as_json:
        told = [asdict(outcome) for outcome in outcomes]
        click.echo(json.dumps({"whole": whole, "published": published, "svg": str(svg), "nodes": told}))
    else:
        _print_outcomes(outcomes, published, svg, console)
    if not whole:
        raise SystemExit(EXIT_CODE_BROKEN)


def _play(local: LocalCluster, seconds: float, svg: Path, console: Console) -> tuple[list[Outcome], int]:
    """All that happens; the outcome at each node, and how many rows were acknowledged."""
    names = local.names()
    at, afar, victim = names[0], names[-1], names[len(names) // 2]
    graph = survey(local.channel())
    print_topology(graph, console)
    write_svg(graph, svg)

    console.rule(f"Rows published at {at}, followed at all {len(names)}")
    followers = {name: Follower(name, local.channel(name, timeout_s=ARRIVE_TIMEOUT_S)) for name in names}
    publisher = Publisher(local.channel(at))
    try:
        with _bars(console, publisher, [followers[afar], followers[victim]]):
            for thread in (*followers.values(), publisher):
                thread.start()
            followers[afar].wait_for(SHOWN_ROWS, ARRIVE_TIMEOUT_S)
            for row in followers[afar].first_rows:
                console.print(f"  {afar} tails: {json.dumps(row, default=str)}", markup=False, soft_wrap=True)
            _go_on(publisher, seconds)

            local.kill(victim)
            console.print(f"[red]{victim} is killed (-9)[/] after {publisher.rows:,} rows; publishing goes on")
            _go_on(publisher, seconds)

            published_before, began = publisher.rows, time.monotonic()
            console.print(f"{victim} comes back after {published_before:,} rows")
            local.start(victim)
            followers[victim].wait_for(published_before, ARRIVE_TIMEOUT_S)
            catch_up_s = time.monotonic() - began
            console.print(f"[green]{victim} has caught up[/] {catch_up_s:.1f} s after its start")
            _go_on(publisher, seconds)

            publisher.enough.set()
            publisher.join(ARRIVE_TIMEOUT_S)
            if publisher.error is not None:
                raise M4castError(f"publishing at {at} failed: {publisher.error}")
            deadline = time.monotonic() + ARRIVE_TIMEOUT_S
            for follower in followers.values():
                follower.wait_for(publisher.rows, deadline - time.monotonic())
    finally:
        publisher.enough.set()
        for follower in followers.values():
            follower.tail.close()
    outcomes = [
        follower.outcome(publisher.rows, catch_up_s if name == victim else None) for name, follower in followers.items()
    ]
    return outcomes, publisher.rows


def _go_on(publisher: Publisher, seconds: float) -> None:
    """Let it publish for a while; ends early if it failed."""
    publisher.join(seconds)
    if publisher.error is not None:
        raise M4castError(f"publishing failed: {publisher.error}")


@contextmanager
def _cluster(folder: Path, nodes: int, console: Console) -> Iterator[LocalCluster]:
    """A cluster that is up; gone afterwards, with all it wrote, whatever happened."""
    console.rule(f"A channel of {nodes} nodes, each a process of its own")
    local = LocalCluster.make(folder, nodes)
    try:
        began = time.monotonic()
        with console.status("starting") as line:
            try:
                local.up(lambda ready, of: line.update(f"starting: {ready} of {of} nodes are on the channel"))
            except NodeFailedError as error:
                click.echo(error.log_tail, err=True)
                raise
        console.print(f"{nodes} nodes are up after {time.monotonic() - began:.1f} s")
        yield local
    finally:
        try:
            local.down()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _bars(console: Console, publisher: Publisher, followers: list[Follower]) -> Iterator[None]:
    """Who has how many rows, as long as it lasts; only on a terminal."""
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} rows"))
    with Progress(*columns, console=console, transient=True) as bars:
        rows: dict[TaskID, Any] = {bars.add_task("published"): lambda: publisher.rows}
        for follower in followers:
            rows[bars.add_task(f"at {follower.node}")] = lambda follower=follower: len(follower.sequences)
        over = threading.Event()

        def draw() -> None:
            while not over.wait(0.1):
                for task, count in rows.items():
                    bars.update(task, completed=count(), total=max(publisher.rows, 1))

        drawing = threading.Thread(target=draw, daemon=True)
        drawing.start()
        try:
            yield
        finally:
            over.set()
            drawing.join()


def _print_outcomes(outcomes: list[Outcome], published: int, svg: Path, console: Console) -> None:
    console.rule("What happened")
    table = Table("node", box=None, pad_edge=False)
    for name in ("rows", "missing", "duplicates", "in order", "caught up after"):
        table.add_column(name, justify="right")
    for outcome in outcomes:
        table.add_row(
            outcome.name,
            f"{outcome.rows:,}",
            _good_if(outcome.missing == 0, f"{outcome.missing:,}"),
            _good_if(outcome.duplicates == 0, f"{outcome.duplicates:,}"),
            _good_if(outcome.in_order, "yes" if outcome.in_order else "NO"),
            "" if outcome.catch_up_s is None else f"{outcome.catch_up_s:.1f} s",
        )
    console.print(table)
    for outcome in outcomes:
        if outcome.error is not None:
            console.print(f"{outcome.name}: {outcome.error}", style="red", markup=False)
    console.print(f"the graph is drawn in {svg}", markup=False, soft_wrap=True)
    if all(outcome.is_whole for outcome in outcomes):
        console.print(f"[green]Every one of {published:,} rows arrived at every node exactly once, in order.[/]")
    else:
        console.print("[bold red]Not every row arrived at every node exactly once, in order.[/]")


def _good_if(condition: bool, text: str) -> str:
    return f"[{'green' if condition else 'bold red'}]{text}[/]"
