"""Delivery audit: what was published and what was delivered, per stream, receiver and window, with a verdict.

A run states only the windows about which something is new: those of newly recorded batches, whenever they arrived;
those that have closed since the last run; those that a new skip overlaps; those since a node joined or left, if the
roster reports it only now; those since a node wanted something of a selective topic, or gave it up; and those with rows
missing or not read at a node that has left, has fallen silent or is heard again. A window is closed `grace` after its
end: until then rows may be in transit.

Stating a window again produces the same rows, so an interrupted run is completed by the next one. This needs the
delivery records of the window: where `maintain` has deleted some, an earlier statement that knows more is kept.
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
from m4cast.jobs.command import GRACE
from m4cast.jobs.expectation import (
    Deleted,
    find_deleted,
    gone_nodes,
    members_of,
    membership_changes,
    nodes_frame,
    roster_members,
)
from m4cast.jobs.ranges import length, total
from m4cast.jobs.report.page import write_report
from m4cast.jobs.runs import AuditRun, NodeLife, last_run, record_run
from m4cast.jobs.session import as_script, interpreted_if_few
from m4cast.jobs.steps import Steps
from m4cast.jobs.table_folder import TableFolder
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
    """The new rows, except where an earlier statement knows more because records were deleted since: then that one."""
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
    steps: Steps | None = None,
) -> AuditSummary:
    """State the windows with news up to `as_of` (None: now); `full`: all windows, regardless of earlier runs."""
    steps = steps or Steps()
    tables, started_at = TableFolder(spark, folder), datetime.now(UTC)
    tables.read(DELIVERIES)  # raises if it is missing
    tables.ensure(DELIVERIES)  # an older one gains the columns that it lacks
    source_id, version = tables.version(DELIVERIES)
    for table in (DELIVERY_AUDIT, AUDIT_RUNS):
        tables.ensure(table)
    last = last_run(tables, JOB)
    if last is not None and (last.deliveries_id != source_id or last.deliveries_version > version):
        last = None
    previous = None if full else last
    until = closed_until(as_of or started_at, grace)
    steps.step("looking for new records")
    all_records = tables.read_at(DELIVERIES, version)
    new = all_records if previous is None else tables.changes(DELIVERIES, previous.deliveries_version, version)
    facts = _news(new, is_first=previous is None)
    known = {each.node_id for each in (last.members or ()) if each.has_reported} if last is not None else set()
    members = roster_members(tables.read(ROSTER), known | facts.reporters)
    topics = met_so_far(last, facts.selective_topics)
    deleted = find_deleted(tables, last, version, known | facts.reporters, started_at, is_full=full)
    interest_at = interest_read_at(tables, topics)
    periods = None if previous is None else _periods(tables, previous, members, facts, new, until, topics)
    begun = AuditRun.begun(JOB, started_at, source_id, version, is_full=previous is None, records=facts.records)
    # If an earlier run went further, windows after `until` are not stated: the next run begins here again.
    deleted_until = None if deleted is None else deleted.until
    begun = replace(begun, audited_until=until, members=members, deleted_until=deleted_until)
    begun = replace(begun, selective_topics=topics, interest_read_at=interest_at)
    steps.step("auditing" if periods is None else f"auditing {len(periods)} periods")
    with interpreted_if_few(spark, facts.records):
        if periods is None or periods:
            _state(tables, begun, deleted, periods, late_ms)
        steps.step("summing up")
        summary = summarise(tables, begun)
        record_run(tables, summary.run)
    return summary


def _state(
    tables: TableFolder, run: AuditRun, deleted: Deleted | None, periods: Sequence[Period] | None, late_ms: int
) -> None:
    """Write the windows of these periods; None: all windows."""
    assert run.members is not None and run.audited_until is not None
    records = tables.read_at(DELIVERIES, run.deliveries_version)
    batches = records.where((F.col("kind") == "batch") & (F.col("published_at") < F.lit(run.audited_until)))
    stated = tables.read(DELIVERY_AUDIT)
    if periods is not None:
        batches = batches.where(within_periods("published_at", periods))
        stated = stated.where(within_periods("window_start", periods))
        if deleted is not None and deleted.until < min(begin for begin, _ in periods):
            deleted = None  # none of these windows' records
    reporters = nodes_frame(tables, {each.node_id for each in run.members if each.has_reported})
    cut = None if deleted is None else nodes_frame(tables, deleted.nodes)
    members = members_of(tables.read(ROSTER), reporters, cut=cut)
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
    voices = {*changed_voices(before, members), *(facts.reporters & gone_nodes(members))}
    if voices:
        has_hole = F.col("node_id").isin(sorted(voices)) & ((F.col("missing") > 0) | (F.col("not_read") > 0))
        windows.append(stated.where(has_hole).select("window_start"))
    for found in windows:
        for row in found.select(F.unix_seconds("window_start").alias("at")).distinct().collect():
            periods.append(window_of(datetime.fromtimestamp(row["at"], UTC)))
    return merged((begin, min(end, until)) for begin, end in periods)


def summarise(tables: TableFolder, run: AuditRun) -> AuditSummary:
    table = tables.read(DELIVERY_AUDIT)
    # Delta skips files without any of these by their statistics.
    odd = table.where("missing > 0 OR lost > 0 OR not_read > 0 OR duplicates > 0")
    counts = ("missing", "lost", "not_read", "duplicates")
    found = odd.agg(*(total(F.col(name)).alias(name) for name in counts)).collect()[0]
    by_status = odd.where(F.col("status").isin(*BAD, NOT_READ)).groupBy("status").count().collect()
    bad = {row["status"]: row["count"] for row in by_status}
    stated = table.where(F.col("run_id") == run.run_id)
    statuses = {row["status"]: row["count"] for row in stated.groupBy("status").count().collect()}
    ended = run.ended(**{name: found[name] for name in counts}, unaccounted=_unaccounted(tables))
    summary = AuditSummary(ended, statuses, bad)
    return replace(summary, run=replace(ended, summary=summary.text))


def _unaccounted(tables: TableFolder) -> int:
    """Published rows that no node has a record of, according to the last run of ordering gaps."""
    if not tables.has(ORDERING_GAPS):
        return 0
    gaps = tables.read(ORDERING_GAPS)
    is_unknown = (F.col("state") == "MISSING") & (F.col("node_id") == EVERYBODY) & (F.col("line") == "stream")
    return int(gaps.where(is_unknown).agg(total(length())).collect()[0][0])


FAILING = {"incomplete": (), "not-read": (NOT_READ,), "late": (NOT_READ, "LATE")}
"""Beside a verdict of INCOMPLETE: the statuses of windows that fail a run, too."""


@options.command("audit")
@command.tables_option
@command.as_of_option
@command.grace_option
@options.count_option("--late-ms", default=LATE_MS, help="A window is LATE if a row took longer, in milliseconds.")
@click.option("--full", is_flag=True, help="Audit all windows, not only those with new records.")
@click.option("--fail-on", type=click.Choice(list(FAILING)), help=f"Exit with {EXIT_CODE_FAILED} if this is found.")
@options.report_option
@command.spark_options
@options.json_option
def main(
    tables: str,
    as_of: datetime | None,
    grace: timedelta,
    late_ms: int,
    full: bool,
    fail_on: str | None,
    report: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Bring the table delivery_audit up to date: published against delivered, per stream, receiver and minute."""
    folder = command.filled_folder_of(tables, DELIVERIES.name)
    steps = Steps.on_stderr()
    steps.step("starting Spark")
    spark = command.session_of("m4cast audit", settings)
    summary = run(spark, folder, as_of=as_of, grace=grace, late_ms=late_ms, full=full, steps=steps)
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
    """True if the command should fail: judged by the whole table, and for LATE by the windows of this run."""
    if fail_on is None:
        return False
    if summary.run.verdict == "INCOMPLETE" or (fail_on != "incomplete" and summary.run.not_read):
        return True
    return any(summary.statuses.get(status, 0) for status in FAILING[fail_on])


if __name__ == "__main__":
    as_script(main)
