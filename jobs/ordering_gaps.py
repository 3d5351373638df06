"""Ordering gaps: which ranges of each stream every receiver holds, skipped, is missing, or received late.

There is a line for each stream at each receiver (see `gaps.lines`), and one for each origin's batch numbers at each
receiver, over all topics. The range after a receiver's highest number, up to the highest number in any record, is its
*tail*: MISSING as well, but the receiver lags and its line has no hole. Numbers before its first record are not a gap:
a node that begins at `latest` has no record of them. If it has no record of a stream, everything that was expected (see
`expectation`) is its tail. The combined line of all receivers (`*`) shows what any of them has: rows that are MISSING
there were published, but no node has a record of them.

The lines are their own state. A run reads them and the delivery records added since (by Delta's change feed), and
rewrites all present lines in one commit, with the version of `deliveries` that they reflect, so a repeated run has no
further effect. A node whose records arrive out of order is computed again from all its records.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from m4cast.console import options
from m4cast.console.screen import print_json
from m4cast.jobs import command
from m4cast.jobs.audit.comparison import DECLINED
from m4cast.jobs.audit.windows import BEGINNING, closed_until
from m4cast.jobs.beyond import take_over
from m4cast.jobs.command import GRACE
from m4cast.jobs.expectation import (
    Deleted,
    expected_ranges,
    find_deleted,
    members_of,
    membership_changes,
    nodes_frame,
    of_roster,
    roster_members,
    unread_nodes,
)
from m4cast.jobs.gaps.gap_rows import BARE, LINE, Expected, GapRows, Torn, advance
from m4cast.jobs.gaps.lines import no_ranges
from m4cast.jobs.gaps.row_proof import prove
from m4cast.jobs.ranges import islands, length, outside_all, total
from m4cast.jobs.report.page import write_report
from m4cast.jobs.runs import AuditRun, in_utc, last_run, last_runs, record_run
from m4cast.jobs.session import as_script, interpreted_if_few, set_meanwhile
from m4cast.jobs.steps import Steps
from m4cast.jobs.table_folder import TableFolder, held_if_few, held_if_small
from m4cast.jobs.wants import (
    find_wants,
    interest_changes,
    interest_read_at,
    met_so_far,
    topics_if_selective,
)
from m4cast.schemas.receipt import RECEIPT_DDL
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.ordering_gaps import EVERYBODY, ORDERING_GAPS
from m4cast.schemas.tables.roster import ROSTER

JOB = "ordering_gaps"
RECEIVED = LINE[1:]
RECEIPT_MARGIN = timedelta(hours=1)
"""Receipts up to this much older than the last run are read again, since clocks of stores and drivers differ. Guess."""


@dataclass(frozen=True, slots=True)
class GapsSummary:
    run: AuditRun
    lines: int
    """Streams at receivers."""
    held: int
    skipped: int
    missing: int
    tail: int
    """Missing rows that follow everything the receiver has."""
    repaired: int
    duplicates: int
    unaccounted: int

    @property
    def text(self) -> str:
        run = self.run
        return (
            f"{run.verdict}: {self.lines} streams at receivers: {self.held} rows held, {self.skipped} skipped "
            f"({run.lost} of them given up), {self.missing} missing ({self.tail} of them at the end), "
            f"{run.not_read} not read, {self.repaired} late, {self.duplicates} duplicated; "
            f"{self.unaccounted} rows were published without a record at any node"
        )


# Read


def receipt_frontier(spark: SparkSession, uri: str, since: datetime | None) -> DataFrame:
    """The highest sequence of each stream in a publisher's receipts."""
    reader = spark.read.schema(RECEIPT_DDL)
    if since is not None:
        moment = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        reader = reader.option("modifiedAfter", moment).option("timeZone", "UTC")
    streams = reader.json(uri).select(F.explode("streams").alias("stream")).select("stream.*")
    return streams.groupBy("origin", "topic").agg(F.max("last_sequence").alias("end"))


# Write


def write(
    tables: TableFolder,
    lines: GapRows,
    before: int,
    version: int,
    restated: Sequence[str],
    *,
    full: bool,
    is_small: bool = False,
) -> None:
    """Replace the present lines and add repaired ranges, in one commit."""
    rows = lines.present.unionByName(lines.repaired).withColumn("deliveries_version", F.lit(version).cast("long"))
    rows = rows.coalesce(1) if is_small else rows
    writer = rows.select(*ORDERING_GAPS.schema.names).write.format("delta").mode("overwrite")
    settings = {}
    if restated:
        of_restated = "".join(f" OR node_id = '{node_id}'" for node_id in restated)
        writer = writer.option("replaceWhere", f"state <> 'REPAIRED' OR deliveries_version > {before}{of_restated}")
    elif not full:  # whole partitions: no file is read. The repaired ranges that are added are in none of these.
        writer = writer.option("replaceWhere", "state <> 'REPAIRED'")
        settings = {"spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false"}
    with set_meanwhile(tables.spark, settings):
        writer.save(ORDERING_GAPS.path(tables.folder))


# Main


def run(
    spark: SparkSession,
    folder: str,
    *,
    receipts: str | None = None,
    as_of: datetime | None = None,
    grace: timedelta = GRACE,
    full: bool = False,
    beyond: Sequence[str] = (),
    steps: Steps | None = None,
) -> GapsSummary:
    """Bring the table up to date with `deliveries`; `full`: from all records, regardless of earlier runs.

    Rows that were published less than `grace` before `as_of` (None: now) may be in transit and are not expected yet.
    `beyond`: the tables of other channels whose rows arrive here.
    """
    steps = steps or Steps()
    tables, started_at = TableFolder(spark, folder), datetime.now(UTC)
    tables.read(DELIVERIES)  # raises if it is missing
    tables.ensure(DELIVERIES)  # an older one gains the columns that it lacks
    take_over(tables, beyond)
    source_id, version = tables.version(DELIVERIES)
    for table in (ORDERING_GAPS, AUDIT_RUNS):
        tables.ensure(table)
    last = last_run(last_runs(tables), JOB)
    if last is not None and last.deliveries_id != source_id:
        last = None
    known_lines = held_if_small(tables.read(ORDERING_GAPS))
    present = known_lines.rows.where(F.col("state") != "REPAIRED")
    before = present.agg(F.max("deliveries_version")).collect()[0][0]
    previous = None if full or last is None or before is None or before > version else last
    steps.step("looking for new records")
    records, is_small = held_if_small(tables.read_at(DELIVERIES, version))
    roster = held_if_small(tables.read(ROSTER)).rows if tables.has(ROSTER) else None
    new, restated = (records, []) if previous is None else _news(tables, records, present, before, version)
    counted: Any = new.agg(
        F.count("*").alias("records"),
        F.collect_set("node_id").alias("nodes"),
        F.min("published_at").alias("published_from"),
        topics_if_selective(),
    ).collect()[0]
    topics = met_so_far(last, counted["selective_topics"])
    known = {each.node_id for each in (last.members or ()) if each.has_reported} if last is not None else set()
    reporters = known | set(counted["nodes"])
    members = None if roster is None else roster_members(roster, reporters)
    own = of_roster(members, reporters)
    deleted = find_deleted(tables, records, last, version, own, started_at, is_full=previous is None)
    begun = AuditRun.begun(JOB, started_at, source_id, version, is_full=previous is None, records=counted["records"])
    begun = replace(
        begun,
        receipts=receipts,
        members=members,
        audited_until=closed_until(as_of or started_at, grace),
        deleted_until=None if deleted is None else deleted.until,
        selective_topics=topics,
        interest_read_at=interest_read_at(tables, topics),
    )
    published_from = in_utc(counted.asDict())["published_from"]
    receivers = None if roster is None else members_of(roster, nodes_frame(tables, ()))
    is_small = is_small and known_lines.is_small
    with interpreted_if_few(spark, begun.records, is_small=is_small):
        steps.step("computing lines")
        since = None
        if previous is not None and previous.receipts == receipts:
            since = previous.started_at - RECEIPT_MARGIN  # the lines contain what was read before
        lines = advance(
            new,
            None if previous is None else present.where(~F.col("node_id").isin(restated)),
            None if receipts is None else receipt_frontier(spark, receipts, since),
            expected=None
            if receivers is None
            else _expected(tables, records, receivers, begun, previous, present, new, deleted, published_from),
            cut=None if deleted is None else nodes_frame(tables, deleted.nodes),
            torn=None if members is None else Torn([each.node_id for each in members], topics),
        )
        steps.step("writing ordering_gaps")
        write(tables, lines, before or 0, version, restated, full=previous is None, is_small=is_small)
        steps.step("summing up")
        summary = summarise(tables, begun)
        record_run(tables, summary.run)
    return summary


def _news(
    tables: TableFolder, records: DataFrame, present: DataFrame, before: int, version: int
) -> tuple[DataFrame, list[str]]:
    """The records to fold, and the nodes whose records are all folded again because some arrived out of order."""
    new = held_if_few(tables.changes(DELIVERIES, before, version)).rows
    restated = _out_of_order(new, present)
    if restated:
        again = records.where(F.col("node_id").isin(restated))
        new = new.where(~F.col("node_id").isin(restated)).unionByName(again)
    return new, restated


def _expected(
    tables: TableFolder,
    records: DataFrame,
    members: DataFrame,
    run: AuditRun,
    previous: AuditRun | None,
    present: DataFrame,
    new: DataFrame,
    deleted: Deleted | None,
    published_from: datetime | None,
) -> Expected:
    """The ranges that receivers were expected to receive, by roster and interest: known, new, and changes of both.
    `published_from`: when the first of the new batches was published."""
    assert run.members is not None and run.audited_until is not None
    is_batch = F.col("kind") == "batch"
    all_batches = records.where(is_batch)
    batches, ranges = all_batches, None
    topics = run.selective_topics or ()
    published = F.col("published_at") < F.lit(run.audited_until)
    if previous is not None:
        of_members = membership_changes(previous.members or (), run.members)
        of_interest = interest_changes(tables, topics, previous.interest_read_at)
        changed_at = min((each for each in (of_members, of_interest) if each is not None), default=None)
        since = min(each for each in (previous.audited_until or BEGINNING, changed_at) if each is not None)
        batches = all_batches.where(F.col("published_at") >= F.lit(since)).unionByName(new.where(is_batch))
        published = published & (F.col("published_at") >= F.lit(min(since, published_from or since)))
        ranges = present.where(F.col("state") == "EXPECTED").select(*RECEIVED, "first", "last")
        if changed_at is not None:
            ranges = _outside_of(ranges, all_batches.where(F.col("published_at") >= F.lit(changed_at)))
    batches = batches.where(F.col("published_at") < F.lit(run.audited_until))
    wants = find_wants(tables, batches, topics, published)
    doubtful = None
    if deleted is not None:
        is_early = F.col("published_at") <= F.lit(deleted.until)
        early = expected_ranges(batches.where(is_early), members, wants=wants)
        is_cut = F.col("node_id").isin(sorted(deleted.nodes))
        doubtful = early.where(is_cut)
        found = expected_ranges(batches.where(~is_early), members, wants=wants).unionByName(early.where(~is_cut))
    else:
        found = expected_ranges(batches, members, wants=wants)
    if ranges is not None:
        found = found.unionByName(ranges)
    return Expected(islands(found, RECEIVED), doubtful)


def _outside_of(ranges: DataFrame, batches: DataFrame) -> DataFrame:
    """The ranges without the rows of these batches."""
    ends = F.col("first_sequence").alias("first"), F.col("last_sequence").alias("last")
    cuts = islands(batches.select("origin", "topic", *ends).distinct(), ("origin", "topic"))
    cuts = cuts.groupBy("origin", "topic").agg(F.collect_list(F.struct("first", "last")).alias("cuts"))
    whole = ranges.groupBy(*RECEIVED).agg(F.collect_list(F.struct("first", "last")).alias("whole"))
    both = whole.join(cuts, on=["origin", "topic"], how="left")
    left = outside_all("whole", f"coalesce(cuts, {no_ranges(BARE)})")
    return both.select(*RECEIVED, F.inline(F.expr(left)))


def _out_of_order(new: DataFrame, present: DataFrame) -> list[str]:
    """Nodes with new records that are older than records folded before."""
    reached = present.groupBy("node_id").agg(F.max("last_delivery").alias("reached"))
    begins = new.groupBy("node_id").agg(F.min("delivery").alias("begins"))
    late = begins.join(reached, on="node_id", how="inner").where(F.col("begins") <= F.col("reached"))
    return [row["node_id"] for row in late.collect()]


def summarise(tables: TableFolder, run: AuditRun) -> GapsSummary:
    table = tables.read(ORDERING_GAPS).where(F.col("line") == "stream")
    unread = unread_nodes(run.members)
    counts = findings(table, unread, selective_topics=run.selective_topics or ()).collect()[0].asDict()
    ended = run.ended(
        missing=counts["missing"],
        lost=counts.pop("lost"),
        not_read=counts.pop("not_read"),
        duplicates=counts["duplicates"],
        unaccounted=counts["unaccounted"],
    )
    summary = GapsSummary(run=ended, **counts)
    return replace(summary, run=replace(ended, summary=summary.text))


def findings(
    rows: DataFrame, unread: Sequence[str], within: Sequence[str] = (), selective_topics: Sequence[str] = ()
) -> DataFrame:
    """The totals over lines of streams. MISSING and SKIPPED rows count if they were expected, or all of them without a
    roster. In the tail of an unread node, rows count as not read instead of missing. Rows of selective topics that were
    expected and filtered are missing."""
    of_receivers, is_everybody = F.col("node_id") != EVERYBODY, F.col("node_id") == EVERYBODY
    is_unread = F.col("is_tail") & F.col("node_id").isin(list(unread))

    def rows_of(state: str, where: Column = of_receivers, count: Column | None = None) -> Column:
        return total(F.when(where & (F.col("state") == state), length() if count is None else count))

    expected = F.coalesce("expected", length())
    # A node that joins after the channel has removed its first rows has lost nothing: its stream begins later.
    held = F.when(F.col("state") == "HELD", F.col("first"))
    has_begun = F.coalesce(F.col("last") > F.min(held).over(Window.partitionBy(*within, *LINE)), F.lit(False))
    is_lost = (F.col("reason") == "lost") | (
        (F.col("reason") == "expired") & (F.col("expected").isNotNull() | F.col("has_begun"))
    )
    is_denied = F.col("reason").isin(*DECLINED) & F.col("topic").isin(list(selective_topics))
    denied = F.when(of_receivers & (F.col("state") == "SKIPPED") & is_denied, F.coalesce("expected", F.lit(0)))
    table = rows.withColumn("has_begun", has_begun)
    is_line = of_receivers & F.col("state").isin("HELD", "SKIPPED")
    return table.groupBy(*within).agg(
        F.count_distinct(F.when(is_line, F.struct("node_id", "origin", "topic"))).alias("lines"),
        rows_of("HELD").alias("held"),
        rows_of("SKIPPED").alias("skipped"),
        (rows_of("MISSING", of_receivers & ~is_unread, expected) + total(denied)).alias("missing"),
        rows_of("MISSING", of_receivers & ~is_unread & F.col("is_tail"), expected).alias("tail"),
        rows_of("REPAIRED").alias("repaired"),
        total(F.when(of_receivers, F.col("duplicates"))).alias("duplicates"),
        rows_of("MISSING", is_everybody).alias("unaccounted"),
        rows_of("SKIPPED", of_receivers & is_lost, expected).alias("lost"),
        rows_of("MISSING", of_receivers & is_unread, expected).alias("not_read"),
    )


@options.command("gaps")
@command.tables_option
@click.option("--receipts", metavar="URI", help="Location of the sinks' receipts, to find rows that no node remembers.")
@command.beyond_option
@command.as_of_option
@command.grace_option
@click.option("--full", is_flag=True, help="Use all records, not only new ones.")
@click.option(
    "--prove", "proved", multiple=True, metavar="TOPIC", help="Compare with the events of this topic. Can be repeated."
)
@options.report_option
@command.spark_options
@options.json_option
def main(
    tables: str,
    receipts: str | None,
    beyond: tuple[str, ...],
    as_of: datetime | None,
    grace: timedelta,
    full: bool,
    proved: tuple[str, ...],
    report: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Update the table ordering_gaps: the ranges of every stream that are held, skipped, missing or repaired."""
    folder = command.filled_folder_of(tables, DELIVERIES.name)
    beyond = tuple(command.filled_folder_of(each, DELIVERIES.name) for each in beyond)
    steps = Steps.on_stderr()
    steps.step("starting Spark")
    spark = command.session_of("m4cast gaps", settings)
    summary = run(spark, folder, receipts=receipts, as_of=as_of, grace=grace, full=full, beyond=beyond, steps=steps)
    proofs = []
    for topic in proved:
        steps.step(f"comparing rows of {topic}")
        proofs.append(prove(spark, folder, topic))
    if report is not None:
        steps.step("writing the report")
        write_report(TableFolder(spark, folder), report)
    steps.done()
    if as_json:
        print_json({**asdict(summary), "proofs": [asdict(proof) for proof in proofs]})
        return
    for text in (summary.text, *(proof.text for proof in proofs)):
        click.echo(text)


if __name__ == "__main__":
    as_script(main)
