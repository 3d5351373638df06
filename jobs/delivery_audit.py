"""Delivery audit: what was published and what was delivered, per stream, receiver and window, with a verdict.

A run writes only the windows for which something is new: those of newly recorded batches, whenever these arrived;
those that have closed since the last run; those that a new skip overlaps; those since a node joined or left, if the
roster reports this only now; those since a node began or ceased to want rows of a selective topic; and those with rows
missing or not read at a node that has left, has fallen silent or is heard again. A window is closed `grace` after its
end: until then rows may be in transit.

Writing a window again produces the same rows, so an interrupted run is completed by the next one. This requires the
delivery records of the window: where `maintain` has deleted some, an earlier result that knows more is kept.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from m4cast.console import options
from m4cast.console.errors import EXIT_CODE_FAILED
from m4cast.console.screen import print_json
from m4cast.jobs import command
from m4cast.jobs.audit.comparison import LINE, WINDOW_KEY, extents_of, lines_with_holes, look_up, state
from m4cast.jobs.audit.windows import (
    Period,
    closed_until,
    merged,
    start_of_window,
    window_of,
    window_start,
    within_periods,
)
from m4cast.jobs.beyond import take_over
from m4cast.jobs.command import GRACE
from m4cast.jobs.expectation import (
    Deleted,
    find_deleted,
    gone_nodes,
    members_of,
    membership_changes,
    nodes_frame,
    of_roster,
    roster_members,
)
from m4cast.jobs.ordering_gaps import JOB as GAPS_JOB
from m4cast.jobs.ranges import NUMBER_MAX, length, total
from m4cast.jobs.report.page import write_report
from m4cast.jobs.runs import AuditRun, NodeLife, last_run, last_runs, record_run
from m4cast.jobs.session import as_script, interpreted_if_few
from m4cast.jobs.steps import Steps
from m4cast.jobs.table_folder import TableFolder, held_if_few, held_if_small
from m4cast.jobs.wants import (
    find_wants,
    interest_changes,
    interest_read_at,
    met_so_far,
    topics_if_selective,
)
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.delivery_audit import BAD, DELIVERY_AUDIT, NOT_READ
from m4cast.schemas.tables.ordering_gaps import EVERYBODY, ORDERING_GAPS
from m4cast.schemas.tables.roster import ROSTER

JOB = "delivery_audit"
LATE_MS = 30_000


@dataclass(frozen=True, slots=True)
class AuditSummary:
    run: AuditRun
    statuses: dict[str, int]
    """The number of windows (of streams at receivers) that this run stated with each status."""
    bad: dict[str, int]
    """The number in the whole table that are INCOMPLETE, STALLED, SILENT or NOT_READ."""

    @property
    def text(self) -> str:
        run = self.run
        stated = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items())) or "none"
        bad = ", ".join(f"{count} {status}" for status, count in sorted(self.bad.items())) or "none"
        return (
            f"{run.verdict}: {run.missing} rows missing, {run.lost} given up, {run.not_read} not read, "
            f"{run.duplicates} duplicated, {run.unaccounted} unaccounted for; windows in this run: {stated}; "
            f"incomplete windows in total: {bad}"
        )


# Transform


def changed_voices(before: Sequence[NodeLife], now: Sequence[NodeLife]) -> list[str]:
    """Nodes that have fallen silent, are heard again, have left, or have their first delivery record."""

    def facts(members: Sequence[NodeLife]) -> set[tuple[str, int, bool, bool, bool]]:
        return {
            (each.node_id, each.incarnation, each.silent, each.has_reported, each.to_at is None) for each in members
        }

    return sorted({each[0] for each in facts(before) ^ facts(now)})


# Write


def kept_where_more_was_known(stated: DataFrame, rows: DataFrame) -> DataFrame:
    """The new rows, or an earlier result where that knows more, because records have been deleted since."""
    names = DELIVERY_AUDIT.schema.names
    old = stated.select(*WINDOW_KEY, F.struct(*names).alias("old"))
    new = rows.select(*WINDOW_KEY, F.struct(*names).alias("new"), "unknown")
    knows_less = F.col("unknown") > 0
    for name in ("published", "delivered", "duplicates"):
        knows_less |= F.col(f"new.{name}") < F.col(f"old.{name}")
    is_kept = F.col("old").isNotNull() & (F.col("new").isNull() | knows_less)
    picked = F.when(is_kept, F.col("old")).otherwise(F.col("new")).alias("picked")
    return old.join(new, on=list(WINDOW_KEY), how="full_outer").select(picked).select("picked.*")


def write(tables: TableFolder, rows: DataFrame, periods: Sequence[Period] | None) -> None:
    """Replace the windows of these periods (None: all windows) in one commit."""
    writer = rows.select(*DELIVERY_AUDIT.schema.names).write.format("delta").mode("overwrite")
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
    beyond: Sequence[str] = (),
    steps: Steps | None = None,
) -> AuditSummary:
    """Write the windows with news up to `as_of` (None: now); `full`: all windows, regardless of earlier runs. `beyond`:
    the tables of other channels whose rows arrive here."""
    steps = steps or Steps()
    tables, started_at = TableFolder(spark, folder), datetime.now(UTC)
    tables.read(DELIVERIES)  # raises if it is missing
    tables.ensure(DELIVERIES)  # an older one gains the columns that it lacks
    take_over(tables, beyond)
    source_id, version = tables.version(DELIVERIES)
    for table in (DELIVERY_AUDIT, AUDIT_RUNS):
        tables.ensure(table)
    runs = last_runs(tables)
    last = last_run(runs, JOB)
    if last is not None and (last.deliveries_id != source_id or last.deliveries_version > version):
        last = None
    previous = None if full else last
    until = closed_until(as_of or started_at, grace)
    steps.step("looking for new records")
    records, is_small = held_if_small(tables.read_at(DELIVERIES, version))
    roster, stated = held_if_small(tables.read(ROSTER)).rows, held_if_small(tables.read(DELIVERY_AUDIT))
    before = _Tables(records, roster, stated.rows)
    new = records
    if previous is not None:
        new = held_if_few(tables.changes(DELIVERIES, previous.deliveries_version, version)).rows
    facts = _news(new, is_first=previous is None)
    known = {each.node_id for each in (last.members or ()) if each.has_reported} if last is not None else set()
    members = roster_members(roster, known | facts.reporters)
    topics = met_so_far(last, facts.selective_topics)
    own = of_roster(members, known | facts.reporters)
    deleted = find_deleted(tables, records, last, version, own, started_at, is_full=full)
    interest_at = interest_read_at(tables, topics)
    periods = (
        None if previous is None else _periods(tables, before.stated, previous, members, facts, new, until, topics)
    )
    begun = AuditRun.begun(JOB, started_at, source_id, version, is_full=previous is None, records=facts.records)
    # If an earlier run went further, windows after `until` are not stated: the next run begins here again.
    deleted_until = None if deleted is None else deleted.until
    begun = replace(begun, audited_until=until, members=members, deleted_until=deleted_until)
    begun = replace(begun, selective_topics=topics, interest_read_at=interest_at)
    steps.step("auditing" if periods is None else f"auditing {len(periods)} periods")
    with interpreted_if_few(spark, facts.records, is_small=is_small and stated.is_small):
        if periods is None or periods:
            _state(tables, before, begun, deleted, periods, late_ms)
        steps.step("summing up")
        summary = summarise(tables, begun, last_run(runs, GAPS_JOB))
        record_run(tables, summary.run)
    return summary


@dataclass(frozen=True)
class _Tables:
    """The tables as they are when a run begins."""

    records: DataFrame
    roster: DataFrame
    stated: DataFrame


def _state(
    tables: TableFolder,
    found: _Tables,
    run: AuditRun,
    deleted: Deleted | None,
    periods: Sequence[Period] | None,
    late_ms: int,
) -> None:
    """Write the windows of these periods; None: all windows."""
    assert run.members is not None and run.audited_until is not None
    records, stated = found.records, found.stated
    batches = records.where((F.col("kind") == "batch") & (F.col("published_at") < F.lit(run.audited_until)))
    if periods is not None:
        batches = batches.where(within_periods("published_at", periods))
        stated = stated.where(within_periods("window_start", periods))
        if deleted is not None and deleted.until < min(begin for begin, _ in periods):
            deleted = None  # none of these windows' records
    reporters = nodes_frame(tables, {each.node_id for each in run.members if each.has_reported})
    cut = None if deleted is None else nodes_frame(tables, deleted.nodes)
    members = members_of(found.roster, reporters, cut=cut)
    published = F.col("published_at") < F.lit(run.audited_until)
    if periods is not None:
        published = published & F.expr(within_periods("published_at", periods))
    wants = find_wants(tables, batches, run.selective_topics or (), published)
    looked_up = look_up(batches, records.where(F.col("kind") == "skip"), members, wants=wants)
    if periods is not None:  # usually few windows with few holes: read only the lines with holes completely
        looked_up = looked_up.persist(StorageLevel.MEMORY_AND_DISK)
        records = records.join(F.broadcast(lines_with_holes(looked_up)), on=list(LINE), how="left_semi")
    try:
        rows = state(looked_up, extents_of(records), late_ms, deleted_until=None if deleted is None else deleted.until)
        rows = rows.withColumn("run_id", F.lit(run.run_id))
        write(tables, rows if deleted is None else kept_where_more_was_known(stated, rows), periods)
    finally:
        looked_up.unpersist()


@dataclass(frozen=True)
class _News:
    records: int
    reporters: set[str]
    windows: list[datetime]
    has_skips: bool
    selective_topics: set[str]


def _news(new: DataFrame, *, is_first: bool) -> _News:
    found = new.agg(
        F.count("*").alias("records"),
        F.collect_set("node_id").alias("reporters"),
        F.collect_set(F.unix_seconds(window_start("published_at")) if not is_first else F.lit(None).cast("long")).alias(
            "windows"
        ),
        F.coalesce(F.bool_or(F.col("kind") == "skip"), F.lit(False)).alias("has_skips"),
        topics_if_selective(),
    ).collect()[0]
    windows = [datetime.fromtimestamp(seconds, UTC) for seconds in found["windows"]]
    return _News(found["records"], set(found["reporters"]), windows, found["has_skips"], set(found["selective_topics"]))


def _periods(
    tables: TableFolder,
    stated: DataFrame,
    previous: AuditRun,
    members: tuple[NodeLife, ...],
    facts: _News,
    new: DataFrame,
    until: datetime,
    topics: Sequence[str],
) -> list[Period]:
    """The periods about which something is new. `topics`: those with selective streams."""
    before = previous.members or ()
    periods = [window_of(start) for start in facts.windows]
    if previous.audited_until is not None:
        periods.append((start_of_window(previous.audited_until), until))
    changed = membership_changes(before, members)
    if changed is not None:
        periods.append((start_of_window(changed), until))
    wanted = interest_changes(tables, topics, previous.interest_read_at)
    if wanted is not None:
        periods.append((start_of_window(wanted), until))
    windows = []
    if facts.has_skips:
        skips = new.where(F.col("kind") == "skip").select(
            "origin", "topic", F.col("first_sequence").alias("first"), F.col("last_sequence").alias("last")
        )
        reached = stated.join(F.broadcast(skips), on=["origin", "topic"], how="inner").where(
            (F.col("first_sequence") <= F.col("last")) & (F.col("first") <= F.col("last_sequence"))
        )
        windows.append(reached.select("window_start"))
    voices = {*changed_voices(before, members), *(facts.reporters & gone_nodes(members))}
    if voices:
        has_hole = F.col("node_id").isin(sorted(voices)) & ((F.col("missing") > 0) | (F.col("not_read") > 0))
        windows.append(stated.where(has_hole).select("window_start"))
    for found in windows:
        for row in found.select(F.unix_seconds("window_start").alias("at")).distinct().collect():
            periods.append(window_of(datetime.fromtimestamp(row["at"], UTC)))
    return merged((begin, min(end, until)) for begin, end in periods)


def summarise(tables: TableFolder, run: AuditRun, gaps: AuditRun | None) -> AuditSummary:
    """`gaps`: the last run of ordering gaps."""
    # Delta skips files without any of these by their statistics.
    is_odd = F.expr("missing > 0 OR lost > 0 OR not_read > 0 OR duplicates > 0")
    is_stated = F.col("run_id") == run.run_id
    counts = ("missing", "lost", "not_read", "duplicates")
    by_status = tables.read(DELIVERY_AUDIT).where(is_odd | is_stated).groupBy("status")
    rows = by_status.agg(
        *(total(F.col(name)).alias(name) for name in counts),
        F.count_if(is_odd).alias("odd"),
        F.count_if(is_stated).alias("stated"),
    ).collect()
    bad = {row["status"]: row["odd"] for row in rows if row["odd"] and row["status"] in (*BAD, NOT_READ)}
    statuses = {row["status"]: row["stated"] for row in rows if row["stated"]}
    sums = {name: min(sum(row[name] for row in rows), NUMBER_MAX) for name in counts}
    ended = run.ended(**sums, unaccounted=_unaccounted(tables) if gaps is None else gaps.unaccounted)
    summary = AuditSummary(ended, statuses, bad)
    return replace(summary, run=replace(ended, summary=summary.text))


def _unaccounted(tables: TableFolder) -> int:
    """Published rows that no node has a record of, if the run of ordering gaps that found them is not recorded."""
    if not tables.has(ORDERING_GAPS):
        return 0
    gaps = tables.read(ORDERING_GAPS)
    is_unknown = (F.col("state") == "MISSING") & (F.col("node_id") == EVERYBODY) & (F.col("line") == "stream")
    return int(gaps.where(is_unknown).agg(total(length())).collect()[0][0])


FAILING = {"incomplete": (), "not-read": (NOT_READ,), "late": (NOT_READ, "LATE")}
"""The statuses of windows that fail a run, in addition to a verdict of INCOMPLETE."""


@options.command("audit")
@command.tables_option
@command.beyond_option
@command.as_of_option
@command.grace_option
@options.count_option("--late-ms", default=LATE_MS, help="A window is LATE if a row took more milliseconds.")
@click.option("--full", is_flag=True, help="Audit all windows, not only those with new records.")
@click.option("--fail-on", type=click.Choice(list(FAILING)), help=f"Exit with {EXIT_CODE_FAILED} if this is found.")
@options.report_option
@command.spark_options
@options.json_option
def main(
    tables: str,
    beyond: tuple[str, ...],
    as_of: datetime | None,
    grace: timedelta,
    late_ms: int,
    full: bool,
    fail_on: str | None,
    report: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Update the table delivery_audit, which compares published with delivered rows per stream, receiver and minute."""
    folder = command.filled_folder_of(tables, DELIVERIES.name)
    beyond = tuple(command.filled_folder_of(each, DELIVERIES.name) for each in beyond)
    steps = Steps.on_stderr()
    steps.step("starting Spark")
    spark = command.session_of("m4cast audit", settings)
    summary = run(spark, folder, as_of=as_of, grace=grace, late_ms=late_ms, full=full, beyond=beyond, steps=steps)
    if report is not None:
        steps.step("writing the report")
        write_report(TableFolder(spark, folder), report)
    steps.done()
    if as_json:
        print_json(asdict(summary))
    else:
        click.echo(summary.text)
    if has_failed(summary, fail_on):
        raise SystemExit(EXIT_CODE_FAILED)


def has_failed(summary: AuditSummary, fail_on: str | None) -> bool:
    """True if the command should fail. The whole table is judged; for LATE, only the windows of this run."""
    if fail_on is None:
        return False
    if summary.run.verdict == "INCOMPLETE" or (fail_on != "incomplete" and summary.run.not_read):
        return True
    return any(summary.statuses.get(status, 0) for status in FAILING[fail_on])


if __name__ == "__main__":
    as_script(main)
