"""Ingest: write a channel to Delta tables, each row exactly once, despite kills, replays and restarts.

    m4cast ingest --node 127.0.0.1:7501 --topic orders --tables /data/m4cast
    m4cast ingest --node 127.0.0.1:7501 --tables /data/m4cast --continuous

The table `events/<topic>` has the topic's own columns and types. Two engines can fill events tables and `deliveries`:
`direct`, whose tasks write the tables' files themselves, those of all topics in one query (`m4cast.jobs.direct`), and
`spark`, Delta's streaming sink in a query for each table. `roster` and `interest` are merged periodically. Queries
write their id and the micro-batch number in the same commit as the rows and ignore a number that the table already has:
with a source that returns equal rows for equal offsets, this is exactly once. The rows that a micro-batch has of a
topic are one commit, and continue each stream, so the rows of a stream in a table have no holes. A query whose
checkpoint is lost continues after the rows in its tables.

In raw mode (`--raw`), batches are decoded here, and those whose rows do not fit become dead letters: one query fills
two tables, so it writes the numbers itself (`txnAppId`, `txnVersion`). See `m4cast.jobs.feeds.dead_letters`.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from m4cast.console import options
from m4cast.console.access import FAIL_OVER, NodeAccess, access_options
from m4cast.console.screen import Screen, print_json
from m4cast.jobs import command
from m4cast.jobs.feeds.display import feed_display
from m4cast.jobs.feeds.feed import FeedRun, FeedState, run_feeds
from m4cast.jobs.session import as_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from m4cast.jobs.direct.engine import EngineChoice
    from m4cast.schemas.tables.table import Table as TableDefinition

Kind = Literal["events", "deliveries", "roster", "interest"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Engine = Literal["direct", "spark"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
READER_TOPIC_CHARS = 40
SHARED = "direct"
"""The folder of what belongs to the query that all topics share, among the checkpoints."""
DEAD_LETTERS_NAME = "dead_letters"


@dataclass(frozen=True, slots=True)
class Ingest:
    """The settings of an ingest: what to read, and the folder to write it to."""

    access: dict[str, str]
    """The options for reaching the channel: those of `format("m4cast")`."""
    tables: str
    """The folder of tables."""
    topics: tuple[str, ...] = ()
    topic_pattern: str = ".*"
    """Used if `topics` is empty."""
    kinds: tuple[Kind, ...] = KINDS
    continuous: bool = False
    """Run until stopped; otherwise until everything is ingested that was on the channel at the start."""
    interval_s: float = 1.0
    """Minimum time between micro-batches. Higher: fewer and larger files, more latency."""
    max_rows: int | None = None
    """The most rows of a topic in a micro-batch."""
    raw: bool = False
    columns: str | None = None
    """Columns and types to use in raw mode instead of the topic's, such as `id long, price double`."""
    options: dict[str, str] = field(default_factory=dict)
    """More options of the source."""
    where: dict[str, str] = field(default_factory=dict)
    """Conditions in SQL, by topic: only rows that match are ingested."""
    engine: Engine | None = None
    """The engine that writes events tables and `deliveries`; None: `direct` where it is possible, otherwise `spark`."""

    @property
    def checkpoints(self) -> str:
        return f"{self.tables}/_checkpoints"

    def checkpoint(self, table: "TableDefinition") -> str:
        """Events have one checkpoint per read mode: without --raw, a micro-batch may end in the middle of a batch."""
        mode = "raw/" if self.raw and table.name.startswith("events/") else ""
        return f"{self.checkpoints}/{mode}{table.name}"

    @property
    def shared_checkpoint(self) -> str:
        """The checkpoint of the direct engine's query."""
        return f"{self.checkpoints}/{SHARED}/{self.selection}"

    @property
    def selection(self) -> str:
        """Stands for the choice of topics. Ingests with different choices can fill one folder at the same time."""
        chosen = json.dumps(sorted(set(self.topics)) or self.topic_pattern)
        return hashlib.sha256(chosen.encode()).hexdigest()[:12]

    def reader(self, topic: str) -> str:
        """The name under which the nodes retain rows for a query of this ingest, unique for each folder."""
        place = hashlib.sha256(f"{self.tables}/{topic}".encode()).hexdigest()[:12]
        return f"ingest-{topic[:READER_TOPIC_CHARS]}-{place}"


@dataclass(frozen=True, slots=True)
class Filled:
    """The result of filling one table."""

    table: str
    rows: int
    """Rows that this run read from the channel."""
    micro_batches: int
    restarts: int
    behind: int | None
    engine: Engine = "spark"
    engine_reason: str | None = None
    """Why it is not `direct`, if that was not the user's choice."""


@dataclass(frozen=True, slots=True)
class IngestSummary:
    tables: tuple[Filled, ...]
    dead_letters: int
    """Dead letters of all runs that have not been replayed."""
    seconds: float


def run(
    spark: "SparkSession",
    ingest: Ingest,
    *,
    stop: threading.Event | None = None,
    on_progress: Callable[[Sequence[FeedState]], None] = lambda states: None,
) -> IngestSummary:
    """Ingest until everything is ingested, or until `stop` is set. Calls `on_progress` several times a second."""
    from m4cast.jobs.feeds.event_feeds import EventFeeds
    from m4cast.jobs.feeds.record_feeds import RecordMerges, deliveries_feed
    from m4cast.jobs.feeds.table_locks import TableLocks

    began = time.monotonic()
    locks = TableLocks(spark, ingest.tables, ingest.checkpoints)
    events = EventFeeds(spark, ingest, locks)
    merges = RecordMerges(spark, ingest)

    def discover() -> list[FeedRun]:
        merges.check()
        feeds = events.now() if "events" in ingest.kinds else []
        if "deliveries" in ingest.kinds:
            feeds.append(deliveries_feed(spark, ingest, events.engines, locks))
        return feeds

    stop = stop or threading.Event()
    try:
        states = run_feeds(discover, have_end=not ingest.continuous, stop=stop, on_progress=on_progress)
        merges.finish()
    finally:
        merges.stop()
        locks.release()
    filled = tuple(_filled(state, events.engines.get(state.table)) for state in states)
    return IngestSummary(filled, events.dead_letters_waiting(), time.monotonic() - began)


def _filled(state: FeedState, choice: "EngineChoice | None") -> Filled:
    return Filled(
        table=state.table,
        rows=state.rows,
        micro_batches=state.micro_batches,
        restarts=state.restarts,
        behind=state.behind,
        engine="spark" if choice is None else choice.engine,
        engine_reason=None if choice is None else choice.reason,
    )


# ---- the command


@options.command("ingest")
@command.tables_option
@click.option("--topic", "topics", multiple=True, help="A topic; all topics by default. Can be repeated.")
@click.option(
    "--topic-pattern", metavar="REGEX", help="Topics whose complete name matches, including topics created later."
)
@options.pairs_option(
    "--where",
    "where",
    metavar="TOPIC=CONDITION",
    help="Ingest only the rows of a topic that match, as in orders=price>5.",
)
@click.option("--only", "kinds", multiple=True, type=click.Choice(KINDS), help="Write only these tables.")
@click.option(
    "--continuous", is_flag=True, help="Run until Ctrl-C or SIGTERM, instead of ending when everything is ingested."
)
@options.seconds_option(
    "--interval-s",
    low=0,
    high=86_400,
    default=1.0,
    help="With --continuous: shortest time between micro-batches. Longer: fewer and larger files, which appear later.",
)
@options.count_option("--max-rows", low=1, help="Limit on the rows of a topic in one micro-batch.")
@click.option("--raw", is_flag=True, help="Store batches that do not fit their topic's columns in dead_letters.")
@click.option(
    "--columns", metavar="DDL", help="With --raw or --replay: use these columns, as in 'id long, what string'."
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="What writes events and deliveries: tasks in Python (direct) or Spark. By default direct, where possible.",
)
@click.option("--replay", is_flag=True, help="Only retry dead letters; needs no node.")
@options.pairs_option("--option", "others", help="An option of the source (see docs/SPARK.md).")
@access_options(FAIL_OVER)
@command.spark_options
@options.json_option
def ingest(
    access: NodeAccess,
    topics: tuple[str, ...],
    topic_pattern: str | None,
    kinds: tuple[Kind, ...],
    raw: bool,
    columns: str | None,
    replay: bool,
    others: dict[str, str],
    where: dict[str, str],
    as_json: bool,
    **settings: Any,
) -> None:
    """Ingest a channel into Delta tables: events of each topic, delivery records, roster and interest, each row once.

    The next run resumes where this one stopped, however it was stopped.
    """
    if topics and topic_pattern:
        raise click.UsageError("give --topic or --topic-pattern, not both")
    if raw and settings["engine"] == "direct":
        raise click.UsageError("--raw needs the engine spark: remove --engine")
    if topics and (apart := sorted(set(where) - set(topics))):
        raise click.UsageError(f"--where names topic {apart[0]!r}, which is not ingested: add --topic, or correct it")
    if where and "where" in {name.lower() for name in others}:
        raise click.UsageError("give --where for each topic, or --option where=... for all, not both")
    if columns and not (raw or replay):
        raise click.UsageError("--columns needs --raw or --replay")
    tables = command.folder_of(settings["tables"])
    if replay:
        command.filled_folder_of(settings["tables"], DEAD_LETTERS_NAME)
        _replay(command.session_of("m4cast replay", settings), tables, columns, as_json)
        return
    plan = Ingest(
        access=command.source_options(access.resolved()),
        tables=tables,
        topics=topics,
        topic_pattern=topic_pattern or ".*",
        kinds=kinds or KINDS,
        continuous=settings["continuous"],
        interval_s=settings["interval_s"],
        max_rows=settings["max_rows"],
        raw=raw,
        columns=columns,
        options=others,
        where=where,
        engine=settings["engine"],
    )
    spark = command.session_of("m4cast ingest", settings)
    with command.stopped_by_signals() as stop, feed_display(Console(stderr=True)) as draw:
        summary = run(spark, plan, stop=stop, on_progress=draw)
    if as_json:
        print_json(asdict(summary))
    else:
        print_summary(summary, tables, Screen())


def print_summary(summary: IngestSummary, tables: str, console: Console) -> None:
    shown = Table("table", box=None, pad_edge=False)
    for name in ("rows read", "micro-batches", "restarts", "behind"):
        shown.add_column(name, justify="right")
    shown.add_column("engine")
    for filled in summary.tables:
        behind = "" if filled.behind is None else f"{filled.behind:,}"
        engine = filled.engine if filled.engine_reason is None else f"{filled.engine}: {filled.engine_reason}"
        counts = (f"{filled.rows:,}", f"{filled.micro_batches:,}", f"{filled.restarts:,}", behind)
        shown.add_row(escape(filled.table), *counts, escape(engine))
    console.print(shown)
    if summary.dead_letters:
        said = (
            f"{summary.dead_letters:,} dead letters are waiting: see {tables}/dead_letters, then m4cast ingest --replay"
        )
        console.print(said, style="yellow", markup=False, soft_wrap=True)
    console.print(f"{summary.seconds:.1f} s, into {tables}", markup=False, soft_wrap=True)


def _replay(spark: "SparkSession", tables: str, columns: str | None, as_json: bool) -> None:
    from m4cast.jobs.feeds.dead_letters import replay

    replayed = replay(spark, tables, columns=columns)
    if as_json:
        print_json(asdict(replayed))
    else:
        click.echo(
            f"{replayed.letters:,} dead letters became {replayed.rows:,} rows; {replayed.left:,} still do not fit"
        )


if __name__ == "__main__":
    as_script(ingest)
