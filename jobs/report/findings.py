"""The findings of a report: what the tables of gaps and audit have about the last day, as plain values."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import functions as F

from m4cast.jobs.expectation import unread_nodes
from m4cast.jobs.runs import in_utc, last_runs
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.delivery_audit import BAD, DELIVERY_AUDIT, NOT_READ
from m4cast.schemas.tables.interest import INTEREST
from m4cast.schemas.tables.ordering_gaps import ORDERING_GAPS
from m4cast.schemas.tables.roster import ROSTER

GAPS_SHOWN_MAX = 500
WINDOWS_SHOWN_MAX = 200
REGISTRATIONS_SHOWN_MAX = 200
"""The latest ones of each; the tables have all."""
COUNTS = ("published", "expected", "missing", "lost", "not_read", "duplicates")
SERIES = {"p50": "latency_p50_ms", "p95": "latency_p95_ms", "p99": "latency_p99_ms"}
SEVERITY = ("OK", NOT_READ, "INCOMPLETE")

Row = dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """The content of the report, as plain values."""

    run: Row | None
    """The last run of the job with the worse verdict; if they are equal, the later run. All figures are from it."""
    pairs: list[Row]
    """Per origin and receiver."""
    windows: list[Row]
    """Per window: the highest latencies of any stream and receiver."""
    topics: list[Row]
    """Per topic: rows published, each counted once, and the rows that its receivers should have, have, and lack."""
    bad_windows: list[Row]
    """Windows with rows that are missing or whose delivery is unknown, latest first."""
    statuses: dict[str, int]
    gaps: list[Row]
    """Repaired ranges, and ranges of expected rows that are missing or not read."""
    roster: list[Row]
    interest: list[Row] = field(default_factory=list)
    """Registrations: first those that are still in force, then the others, latest end first."""


def find(tables: TableFolder) -> Findings:
    for each in (DELIVERY_AUDIT, ORDERING_GAPS, AUDIT_RUNS):
        if tables.has(each):
            tables.ensure(each)  # upgrades an older table, which may lack columns
    pairs: list[Row] = []
    windows: list[Row] = []
    statuses: list[Row] = []
    topics: list[Row] = []
    bad: list[Row] = []
    if tables.has(DELIVERY_AUDIT):
        table = tables.read(DELIVERY_AUDIT)
        last = table.agg(F.max("window_start")).collect()[0][0]
        recent = table if last is None else table.where(F.col("window_start") > F.lit(last) - F.expr("INTERVAL 1 DAY"))
        sums = [F.sum(name).alias(name) for name in COUNTS]
        pairs = _rows(recent.groupBy("origin", "node_id").agg(*sums))
        topics = _topics(recent)
        is_bad = F.col("status").isin(*BAD, NOT_READ)
        bad = _rows(recent.where(is_bad).orderBy(F.desc("window_start"), "topic", "node_id").limit(WINDOWS_SHOWN_MAX))
        worst = [F.max(name).alias(name) for name in SERIES.values()]
        windows = _rows(recent.groupBy("window_start").agg(*worst).orderBy("window_start"))
        statuses = _rows(recent.groupBy("status").count())
    roster = _rows(tables.read(ROSTER)) if tables.has(ROSTER) else []
    runs = last_runs(tables) if tables.has(AUDIT_RUNS) else []
    worst_run = max(runs, key=lambda run: (SEVERITY.index(run.verdict), run.finished_at), default=None)
    members = next((run.members for run in runs if run.job == "ordering_gaps"), None)
    return Findings(
        run=None if worst_run is None else asdict(worst_run),
        pairs=pairs,
        windows=windows,
        topics=topics,
        bad_windows=bad,
        statuses={row["status"]: row["count"] for row in statuses},
        gaps=_gap_rows(tables, unread_nodes(members)) if tables.has(ORDERING_GAPS) else [],
        roster=roster,
        interest=_interest_rows(tables) if tables.has(INTEREST) else [],
    )


def _topics(recent: Any) -> list[Row]:
    """A window of a stream has a line for each receiver. All of them state what was published, which counts once."""
    stream = ("window_start", "origin", "topic")
    published = recent.groupBy(*stream).agg(F.max("published").alias("published")).groupBy("topic")
    received = recent.groupBy("topic").agg(*(F.sum(name).alias(name) for name in COUNTS if name != "published"))
    rows = published.agg(F.sum("published").alias("published"), F.countDistinct("origin").alias("origins"))
    return _rows(rows.join(received, "topic", "inner").orderBy(F.desc("published"), "topic"))


def _gap_rows(tables: TableFolder, unread: Sequence[str]) -> list[Row]:
    lines = tables.read(ORDERING_GAPS).where(F.col("line") == "stream")
    is_expected = F.coalesce(F.col("expected") > 0, F.lit(True))
    lines = lines.where((F.col("state") == "REPAIRED") | ((F.col("state") == "MISSING") & is_expected))
    is_unread = (F.col("state") == "MISSING") & F.col("is_tail") & F.col("node_id").isin(list(unread))
    lines = lines.withColumn("state", F.when(is_unread, "NOT READ").otherwise(F.col("state")))
    latest = F.coalesce("repaired_at", F.current_timestamp()).desc()
    return _rows(lines.orderBy(latest, "node_id", "first").limit(GAPS_SHOWN_MAX))


def _interest_rows(tables: TableFolder) -> list[Row]:
    order = F.col("until_at").desc_nulls_first(), "topic", "node", "number"
    return _rows(tables.read(INTEREST).orderBy(*order).limit(REGISTRATIONS_SHOWN_MAX))


def _rows(frame: Any) -> list[Row]:
    return [in_utc(row.asDict(recursive=True)) for row in frame.collect()]
