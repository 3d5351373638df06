"""Delivery audit: for each stream, receiver and minute, what was published and what arrived; and a verdict.

A run states the windows that something new is known about, and no others: those in which newly told batches were
published, whenever they arrived; those that have closed since the last run; those that a new skip reaches into; those
since a node joined or left, if the roster tells it only now; and those in which something is missing at a node
that has fallen silent or is heard again. A window is closed `grace` after its end: until then rows are under way.

Stating a window again gives the same rows, so a run that is cut off is done again by the next one. Only as long as its
delivery records are there: windows from before those that `maintain` has deleted stay as they were stated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from m4cast.jobs import command
from m4cast.jobs.audit_windows import WINDOW_SECONDS, audit, members_of, window_start
from m4cast.jobs.ranges import length
from m4cast.jobs.report import write_report
from m4cast.jobs.runs import Member, Run, in_utc, last_run, record_run
from m4cast.jobs.session import as_script, interpreted_if_few
from m4cast.jobs.steps import Steps
from m4cast.jobs.tables import Tables, frame
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.delivery_audit import BAD, DELIVERY_AUDIT
from m4cast.schemas.tables.ordering_gaps import EVERYBODY, ORDERING_GAPS
from m4cast.schemas.tables.roster import ROSTER

JOB = "delivery_audit"
LATE_MS = 30_000
GRACE = timedelta(minutes=2)
WINDOW = timedelta(seconds=WINDOW_SECONDS)
PERIODS_MAX = 200
"""Of one statement: more are put together, with what lies between. Guess; Delta tries each file with each of them."""
REPORTERS = StructType([StructField("node_id", StringType())])
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(9999, 1, 1, tzinfo=UTC)

Period = tuple[datetime, datetime]
"""From, and until (not included); both are starts of windows."""


@dataclass(frozen=True, slots=True)
class AuditSummary:
    run: Run
    statuses: dict[str, int]
    """How many windows of streams at receivers were stated with each status, in this run."""
    bad: dict[str, int]
    """How many in the whole table are INCOMPLETE, STALLED or SILENT."""

    @property
    def text(self) -> str:
        run = self.run
        told = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items())) or "none"
        bad = ", ".join(f"{count} {status}" for status, count in sorted(self.bad.items())) or "none"
        return (
            f"{run.verdict}: {run.missing} rows missing, {run.lost} given up, {run.duplicates} twice, "
            f"{run.unaccounted} unaccounted for; windows stated: {told}; not whole in all: {bad}"
        )


# Read


def roster_members(roster: DataFrame, reporters: Iterable[str]) -> tuple[Member, ...]:
    reported = set(reporters)
    rows: list[dict[str, Any]] = [in_utc(row.asDict()) for row in roster.collect()]
    names = [name for name in Member.__slots__ if name != "has_reported"]
    found = [Member(**{name: row[name] for name in names}, has_reported=row["node_id"] in reported) for row in rows]
    return tuple(sorted(found, key=lambda member: (member.node_id, member.incarnation)))


# Transform


def closed_until(as_of: datetime, grace: timedelta) -> datetime:
    """Windows that end here or earlier are closed."""
    seconds = (as_of - grace - BEGINNING) // WINDOW
    return BEGINNING + seconds * WINDOW


def merged(periods: Iterable[Period], periods_max: int = PERIODS_MAX) -> list[Period]:
    """As few periods as can be, and no more than `periods_max`: the nearest ones are put together."""
    joined: list[Period] = []
    for begin, end in sorted(each for each in periods if each[0] < each[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    while len(joined) > periods_max:
        distances = [(following[0] - each[1], at) for at, (each, following) in enumerate(pairwise(joined))]
        at = min(distances)[1]
        joined[at : at + 2] = [(joined[at][0], joined[at + 1][1])]
    return joined


def membership_changes(before: Sequence[Member], now: Sequence[Member]) -> datetime | None:
    """Since when the roster tells otherwise than it did who was a member; None if it does not."""

    def told(members: Sequence[Member]) -> dict[tuple[str, int], tuple[datetime, datetime | None]]:
        return {(each.node_id, each.incarnation): (each.from_at, each.to_at) for each in members}

    old, new = told(before), told(now)
    times: list[datetime] = []
    for key in old.keys() | new.keys():
        for one, other in ((old.get(key), new.get(key)), (new.get(key), old.get(key))):
            if one is not None and other is None:
                times.append(one[0])
            elif one is not None and other is not None:
                times += [mine for mine, theirs in zip(one, other, strict=True) if mine is not None and mine != theirs]
    return min(times, default=None)


def changed_voices(before: Sequence[Member], now: Sequence[Member]) -> list[str]:
    """Nodes that have fallen silent, are heard again, or have told of a delivery for the first time."""

    def told(members: Sequence[Member]) -> set[tuple[str, int, bool, bool]]:
        return {(each.node_id, each.incarnation, each.silent, each.has_reported) for each in members}

    return sorted({each[0] for each in told(before) ^ told(now)})


def within_periods(time: str, periods: Sequence[Period]) -> str:
    """The periods as a condition of Spark SQL."""

    def moment(at: datetime) -> str:
        return f"TIMESTAMP '{at.astimezone(UTC).isoformat(sep=' ', timespec='seconds')}'"

    each = [f"({time} >= {moment(begin)} AND {time} < {moment(end)})" for begin, end in periods]
    return " OR ".join(each) or "false"


# Write


def write(tables: Tables, rows: DataFrame, run_id: str, periods: Sequence[Period] | None) -> None:
    """In place of the windows of these periods (None: of all), in one commit."""
    stated = rows.withColumn("run_id", F.lit(run_id)).select(*DELIVERY_AUDIT.schema.names)
    writer = stated.write.format("delta").mode("overwrite")
    if periods is not None:
        writer = writer.option("replaceWhere", within_periods("window_start", periods))
    writer.save(DELIVERY_AUDIT.path(tables.folder))


# Main


def run(
    spark: SparkSession,
    folder: str,
    *,
    as_of: datetime | None = None,
    grace: timedelta = GRACE,
    late_ms: int = LATE_MS,
    full: bool = False,
    steps: Steps | None = None,
) -> AuditSummary:
    """State what is new up to `as_of` (now, if None); `full`: all windows, whatever was stated before."""
    steps = steps or Steps()
    tables, started_at = Tables(spark, folder), datetime.now(UTC)
    source_id, version = tables.version(DELIVERIES)
    for table in (DELIVERY_AUDIT, AUDIT_RUNS):
        tables.ensure(table)
    last = last_run(tables, JOB)
    if last is not None and (last.deliveries_id != source_id or last.deliveries_version > version):
        last = None
    previous = None if full else last
    until = closed_until(as_of or started_at, grace)
    steps.step("looking for what is new")
    deleted_until = None if last is None else _deleted_until(tables, last, version, is_full=full)
    kept_from = BEGINNING if deleted_until is None else closed_until(deleted_until, timedelta(0)) + WINDOW
    all_records = tables.read_at(DELIVERIES, version)
    new = all_records if previous is None else tables.changes(DELIVERIES, previous.deliveries_version, version)
    known = {each.node_id for each in (previous.members or ()) if each.has_reported} if previous is not None else set()
    facts = _news(new, is_first=previous is None)
    members = roster_members(tables.read(ROSTER), known | facts.reporters)
    periods = None if deleted_until is None else [(kept_from, END)]
    if previous is not None:
        found = _periods(tables, previous, members, facts, new, until)
        periods = merged((max(begin, kept_from), end) for begin, end in found)
    steps.step("auditing" if periods is None else f"auditing {len(periods)} periods")
    batches = all_records.where((F.col("kind") == "batch") & (F.col("published_at") < F.lit(until)))
    if periods is not None:
        batches = batches.where(within_periods("published_at", periods))
    skips = all_records.where(F.col("kind") == "skip")
    reporters = frame(spark, [{"node_id": each.node_id} for each in members if each.has_reported], REPORTERS)
    rows = audit(batches, skips, members_of(tables.read(ROSTER), reporters), late_ms)
    begun = Run.begun(JOB, started_at, source_id, version, is_full=previous is None, records=facts.records)
    # If it was later before, what is new there is not stated yet: the next run begins here again.
    begun = replace(begun, audited_until=until, members=members, deleted_until=deleted_until)
    with interpreted_if_few(spark, facts.records):
        if periods is None or periods:
            write(tables, rows, begun.run_id, periods)
        steps.step("summing up")
        summary = summarise(tables, begun)
        record_run(tables, summary.run)
    return summary


def _deleted_until(tables: Tables, last: Run, version: int, *, is_full: bool) -> datetime | None:
    """Delivery records from then and before are gone, or some of them; None if none is."""
    try:
        records = tables.deleted(DELIVERIES, last.deliveries_version, version)
        found = in_utc(records.agg(F.max("delivered_at").alias("at")).collect()[0].asDict())["at"]
    except PySparkException:
        if not is_full:
            raise
        # The versions since the last run are gone: what is left may begin anywhere.
        left = tables.read_at(DELIVERIES, version).agg(F.min("delivered_at").alias("at"))
        found = in_utc(left.collect()[0].asDict())["at"]
    return max((at for at in (last.deleted_until, found) if at is not None), default=None)


@dataclass(frozen=True)
class _News:
    records: int
    reporters: set[str]
    windows: list[datetime]
    has_skips: bool


def _news(new: DataFrame, *, is_first: bool) -> _News:
    found = new.agg(
        F.count("*").alias("records"),
        F.collect_set("node_id").alias("reporters"),
        F.collect_set(F.unix_seconds(window_start("published_at")) if not is_first else F.lit(None).cast("long")).alias(
            "windows"
        ),
        F.coalesce(F.bool_or(F.col("kind") == "skip"), F.lit(False)).alias("has_skips"),
    ).collect()[0]
    windows = [datetime.fromtimestamp(seconds, UTC) for seconds in found["windows"]]
    return _News(found["records"], set(found["reporters"]), windows, found["has_skips"])


def _periods(
    tables: Tables, previous: Run, members: tuple[Member, ...], facts: _News, new: DataFrame, until: datetime
) -> list[Period]:
    """The windows that something new is known about."""
    before = previous.members or ()
    periods = [(window, window + WINDOW) for window in facts.windows]
    if previous.audited_until is not None:
        periods.append((previous.audited_until, until))
    changed = membership_changes(before, members)
    if changed is not None:
        periods.append((changed.replace(second=0, microsecond=0), until))
    stated = tables.read(DELIVERY_AUDIT)
    windows = []
    if facts.has_skips:
        skips = new.where(F.col("kind") == "skip").select(
            "origin", "topic", F.col("first_sequence").alias("first"), F.col("last_sequence").alias("last")
        )
        reached = stated.join(F.broadcast(skips), on=["origin", "topic"], how="inner").where(
            (F.col("first_sequence") <= F.col("last")) & (F.col("first") <= F.col("last_sequence"))
        )
        windows.append(reached.select("window_start"))
    voices = changed_voices(before, members)
    if voices:
        windows.append(stated.where(F.col("node_id").isin(voices) & (F.col("missing") > 0)).select("window_start"))
    for found in windows:
        for row in found.select(F.unix_seconds("window_start").alias("at")).distinct().collect():
            at = datetime.fromtimestamp(row["at"], UTC)
            periods.append((at, at + WINDOW))
    return merged((begin, min(end, until)) for begin, end in periods)


def summarise(tables: Tables, run: Run) -> AuditSummary:
    table = tables.read(DELIVERY_AUDIT)
    # Files without any of these are passed over by their statistics.
    odd = table.where("missing > 0 OR lost > 0 OR duplicates > 0")
    found = odd.agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("missing", "lost", "duplicates"))
    ).collect()[0]
    by_status = odd.where(F.col("status").isin(*BAD)).groupBy("status").count().collect()
    bad = {row["status"]: row["count"] for row in by_status}
    stated = table.where(F.col("run_id") == run.run_id)
    statuses = {row["status"]: row["count"] for row in stated.groupBy("status").count().collect()}
    unaccounted = _unaccounted(tables)
    verdict = "INCOMPLETE" if bad or unaccounted else "OK"
    summary = AuditSummary(run, statuses, bad)
    ended = run.ended(
        verdict,
        missing=found["missing"],
        lost=found["lost"],
        duplicates=found["duplicates"],
        unaccounted=unaccounted,
        summary="",
    )
    text = replace(summary, run=ended).text
    return replace(summary, run=replace(ended, summary=text))


def _unaccounted(tables: Tables) -> int:
    """Rows that were published and that no node has a record of, by the last run of ordering gaps."""
    if not tables.has(ORDERING_GAPS):
        return 0
    gaps = tables.read(ORDERING_GAPS)
    is_unknown = (F.col("state") == "MISSING") & (F.col("node_id") == EVERYBODY) & (F.col("line") == "stream")
    return int(gaps.where(is_unknown).agg(F.coalesce(F.sum(length()), F.lit(0))).collect()[0][0])


EXIT_CODE_FAILED = 1
FAILING = {"incomplete": BAD, "late": (*BAD, "LATE")}


@click.command("audit", context_settings=command.HELP_NAMES)
@command.tables_option
@click.option("--as-of", type=click.DateTime(), help="Audit as if it were then (UTC); now if absent.")
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(min=0),
    default=int(GRACE.total_seconds()),
    show_default=True,
    help="Seconds from a window's end to its audit. Raising it: later verdicts, fewer restated.",
)
@click.option(
    "--late-ms",
    type=click.IntRange(min=0),
    default=LATE_MS,
    show_default=True,
    help="Rows that took longer make a window LATE.",
)
@click.option("--full", is_flag=True, help="All windows, not only those that something new is known about.")
@click.option("--fail-on", type=click.Choice(list(FAILING)), help=f"Exit with {EXIT_CODE_FAILED} if this is found.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write a page for people to this file.")
@command.spark_options
@command.json_option
def main(
    tables: str,
    as_of: datetime | None,
    grace_s: int,
    late_ms: int,
    full: bool,
    fail_on: str | None,
    report: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Bring the table delivery_audit up to date: published against delivered, per stream, receiver and minute."""
    steps = Steps.on_stderr()
    steps.step("starting Spark")
    spark, folder = command.session_of("m4cast audit", settings), command.folder_of(tables)
    moment = None if as_of is None else as_of.replace(tzinfo=UTC)
    grace = timedelta(seconds=grace_s)
    summary = run(spark, folder, as_of=moment, grace=grace, late_ms=late_ms, full=full, steps=steps)
    if report is not None:
        steps.step("writing the report")
        write_report(Tables(spark, folder), report)
    steps.done()
    if as_json:
        command.print_json(asdict(summary))
    else:
        click.echo(summary.text)
    if has_failed(summary, fail_on):
        raise SystemExit(EXIT_CODE_FAILED)


def has_failed(summary: AuditSummary, fail_on: str | None) -> bool:
    """Whether a scheduler is to be told: by what the whole table says, and for LATE by what this run stated."""
    if fail_on is None:
        return False
    return summary.run.verdict != "OK" or any(summary.statuses.get(status, 0) for status in FAILING[fail_on])


if __name__ == "__main__":
    as_script(main)
