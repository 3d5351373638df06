"""The demo without Spark: a channel of real nodes on this machine, one of which is killed and restarted.

Rows are published at one node and followed at all of them. One node is killed (SIGKILL) and restarted while publishing
continues. A client that was attached to it returns at another node, and gets what it missed. The demo succeeds only if
every acknowledged row arrived at every node, exactly once and in order. However it ends, it leaves no process and no
store behind; only the drawing of the graph stays.
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
from m4cast.console.errors import EXIT_CODE_FAILED
from m4cast.console.screen import print_json
from m4cast.demo.display import verdict_text
from m4cast.demo.roaming import KEY, RoamingShop
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


@dataclass(frozen=True, slots=True)
class FollowerOutcome:
    """The rows that one node delivered to a client that followed it from the start."""

    name: str
    rows: int
    missing: int
    duplicates: int
    in_order: bool
    catch_up_s: float | None
    """Seconds from its restart until it had delivered all that was published before; None if it was not killed."""
    error: str | None

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.duplicates and self.in_order and self.error is None


class Follower(threading.Thread):
    """A client that follows one node, even while it is killed and restarted."""

    def __init__(self, name: str, channel: Channel) -> None:
        super().__init__(name=f"follow-{name}", daemon=True)
        self.node = name
        self.sequences: list[int] = []
        self.first_rows: list[dict[str, Any]] = []
        self.error: str | None = None
        self.tail: Tail = channel.tail(TOPIC, {})
        self._changed = threading.Condition()

    def run(self) -> None:
        try:
            for batch in self.tail:
                if len(self.first_rows) < SHOWN_ROWS:
                    self.first_rows += batch.slice(0, SHOWN_ROWS - len(self.first_rows)).to_pylist()
                with self._changed:
                    self.sequences += batch.column("_sequence").to_pylist()
                    self._changed.notify_all()
        except M4castError as error:
            with self._changed:
                self.error = str(error)
                self._changed.notify_all()

    def wait_for(self, rows: int, timeout_s: float) -> bool:
        """Wait until this many rows have arrived or the follower has failed; returns whether they have."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.sequences) >= rows or self.error is not None, timeout_s)
            return len(self.sequences) >= rows

    def outcome(self, published: int, catch_up_s: float | None) -> FollowerOutcome:
        with self._changed:
            arrived = list(self.sequences)
        distinct = set(arrived)
        missing = len(set(range(1, published + 1)) - distinct)
        in_order = all(one < other for one, other in pairwise(arrived))
        return FollowerOutcome(
            name=self.node,
            rows=len(arrived),
            missing=missing,
            duplicates=len(arrived) - len(distinct),
            in_order=in_order,
            catch_up_s=catch_up_s,
            error=self.error,
        )


class OrderPublisher(threading.Thread):
    """A client that publishes orders at one node, batch by batch, and counts the acknowledged rows."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(name="publish", daemon=True)
        self.rows = 0
        self.error: str | None = None
        self.stop = threading.Event()
        self._channel = channel

    def run(self) -> None:
        try:
            while not self.stop.wait(BATCH_EVERY_S):
                batch = [self._row(self.rows + number) for number in range(1, BATCH_ROWS + 1)]
                self._channel.publish(TOPIC, batch, acks=1)
                self.rows += BATCH_ROWS
        except M4castError as error:
            self.error = str(error)

    def _row(self, number: int) -> dict[str, Any]:
        return {"id": number, "what": GOODS[number % len(GOODS)], "pieces": 1 + number % 7}


def quick_demo(nodes: int, seconds: float, svg: Path | None, as_json: bool) -> None:
    """Run the demo and print the outcome; exits with 1 if rows are missing, duplicated or out of order."""
    if svg is not None and not svg.parent.is_dir():
        raise M4castError(f"{svg}: cannot be written: there is no folder {svg.parent}")
    console = Console(highlight=False, quiet=as_json)
    folder = Path(tempfile.mkdtemp(prefix="m4cast-demo-"))
    svg = svg or folder / "topology.svg"
    try:
        with _cluster(folder / "cluster", nodes, console) as local:
            outcomes, published, roaming = _play(local, seconds, svg, console)
    finally:
        if not svg.is_relative_to(folder) or not svg.exists():
            folder.rmdir()
    whole = published > 0 and all(outcome.is_whole for outcome in outcomes)
    if as_json:
        found = [asdict(outcome) for outcome in outcomes]
        print_json({"whole": whole, "published": published, "svg": str(svg), "nodes": found, "client": roaming})
    else:
        _print_outcomes(outcomes, published, svg, console)
    if not whole:
        raise SystemExit(EXIT_CODE_FAILED)


def _play(
    local: LocalCluster, seconds: float, svg: Path, console: Console
) -> tuple[list[FollowerOutcome], int, dict[str, int]]:
    """Run the demo on a cluster; returns the outcome at each node, the number of acknowledged rows, and how many rows
    the client had when it left and had missed when it returned."""
    names = local.names()
    at, afar, victim = names[0], names[-1], names[len(names) // 2]
    graph = survey(local.channel())
    print_topology(graph, console)
    write_svg(graph, svg)
    address = f"http://{local.node(at).web}/"
    console.print(f"watch it in a browser until the demo ends: [bold]{address}[/]", soft_wrap=True)

    console.rule(f"Publishing rows at {at}, following them at all {len(names)} nodes")
    followers = {name: Follower(name, local.channel(name, timeout_s=ARRIVE_TIMEOUT_S)) for name in names}
    publisher = OrderPublisher(local.channel(at))
    try:
        with _bars(console, publisher, [followers[afar], followers[victim]]):
            for thread in (*followers.values(), publisher):
                thread.start()
            followers[afar].wait_for(SHOWN_ROWS, ARRIVE_TIMEOUT_S)
            for row in followers[afar].first_rows:
                console.print(f"  {afar} receives: {json.dumps(row, default=str)}", markup=False, soft_wrap=True)
            roamer = RoamingShop(local, victim, TOPIC, "pieces >= 6")
            _continue(publisher, seconds)

            left = roamer.leave()
            console.print(f"client {KEY}, attached to {victim}, leaves with {left:,} rows")
            local.kill(victim)
            console.print(f"[red]{victim} is killed (SIGKILL)[/] after {publisher.rows:,} rows; publishing continues")
            _continue(publisher, seconds)
            missed = roamer.come_back(afar)
            if not roamer.has_each_once():
                raise M4castError(f"client {KEY} did not get each row once")
            console.print(f"[green]client {KEY} returns at {afar}[/] and gets the {missed:,} rows that it missed, once")

            published_before, began = publisher.rows, time.monotonic()
            console.print(f"{victim} is restarted after {published_before:,} rows")
            local.start(victim)
            followers[victim].wait_for(published_before, ARRIVE_TIMEOUT_S)
            catch_up_s = time.monotonic() - began
            console.print(f"[green]{victim} has caught up[/] {catch_up_s:.1f} s after its restart")
            _continue(publisher, seconds)

            publisher.stop.set()
            publisher.join(ARRIVE_TIMEOUT_S)
            if publisher.error is not None:
                raise M4castError(f"publishing at {at} failed: {publisher.error}")
            deadline = time.monotonic() + ARRIVE_TIMEOUT_S
            for follower in followers.values():
                follower.wait_for(publisher.rows, deadline - time.monotonic())
    finally:
        publisher.stop.set()
        for follower in followers.values():
            follower.tail.close()
    outcomes = [
        follower.outcome(publisher.rows, catch_up_s if name == victim else None) for name, follower in followers.items()
    ]
    return outcomes, publisher.rows, {"left_with": left, "missed": missed}


def _continue(publisher: OrderPublisher, seconds: float) -> None:
    """Let it publish for a while; raises if it has failed."""
    publisher.join(seconds)
    if publisher.error is not None:
        raise M4castError(f"publishing failed: {publisher.error}")


@contextmanager
def _cluster(folder: Path, nodes: int, console: Console) -> Iterator[LocalCluster]:
    """A running cluster, which is stopped and removed afterwards, whatever happens."""
    console.rule(f"Starting a channel of {nodes} nodes, each a separate process")
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
def _bars(console: Console, publisher: OrderPublisher, followers: list[Follower]) -> Iterator[None]:
    """Progress bars of rows published and received; only on a terminal."""
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


def _print_outcomes(outcomes: list[FollowerOutcome], published: int, svg: Path, console: Console) -> None:
    console.rule("Outcome")
    table = Table("node", box=None, pad_edge=False)
    for name in ("rows", "missing", "duplicates", "in order", "caught up after"):
        table.add_column(name, justify="right")
    for outcome in outcomes:
        table.add_row(
            outcome.name,
            f"{outcome.rows:,}",
            verdict_text(outcome.missing == 0, f"{outcome.missing:,}"),
            verdict_text(outcome.duplicates == 0, f"{outcome.duplicates:,}"),
            verdict_text(outcome.in_order, "yes" if outcome.in_order else "NO"),
            "" if outcome.catch_up_s is None else f"{outcome.catch_up_s:.1f} s",
        )
    console.print(table)
    for outcome in outcomes:
        if outcome.error is not None:
            console.print(f"{outcome.name}: {outcome.error}", style="red", markup=False)
    console.print(f"graph drawn to {svg}", markup=False, soft_wrap=True)
    if all(outcome.is_whole for outcome in outcomes):
        console.print(f"[green]All {published:,} rows arrived at every node exactly once and in order.[/]")
    else:
        console.print("[bold red]Some rows are missing, duplicated or out of order.[/]")
