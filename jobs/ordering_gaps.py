"""Ordering gaps: which ranges of each stream every receiver holds, skipped, is missing, or got late.

There is a line for each stream at each receiver (`ordering_lines` says how it is made), and one for each origin's count
of batches at each receiver, over all topics. Behind a receiver's highest number, up to the highest that anybody
tells of, lies its *tail*, MISSING too: it is behind, not torn. What lies before its first record is no gap: a
node that begins at `latest` has no record of it. Of a stream that it tells nothing of, everything that was expected
(`expectation` says when) is its tail. Lines of all receivers together (`*`) say what anybody has: MISSING there are
rows that were published and that no node has a record of.

The lines are their own state. A run reads them and the delivery records that came since (by Delta's change feed), and
writes all present lines anew in one commit, with the version of `deliveries` that they speak of: what is done twice is
done once. A node whose records come out of order is computed from all its records.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from m4cast.console import options
from m4cast.console.screen import print_json
from m4cast.jobs import command
from m4cast.jobs.command import GRACE
from m4cast.jobs.expectation import (
    BEGINNING,
    Deleted,
    closed_until,
    expected_ranges,
    find_deleted,
    members_of,
    membership_changes,
    nodes_frame,
    read_members,
    unread_nodes,
)
from m4cast.jobs.ordering_lines import GAPS, HELD, SKIPPED, array_of, fold_lines, no_ranges
from m4cast.jobs.ranges import between, islands, length, outside_all, rows_within, spans, total
from m4cast.jobs.report import write_report
from m4cast.jobs.row_proof import prove
from m4cast.jobs.runs import Run, last_run, record_run
from m4cast.jobs.session import as_script, interpreted_if_few
from m4cast.jobs.steps import Steps
from m4cast.jobs.tables import Tables, frame
from m4cast.schemas.receipt import RECEIPT_DDL
from m4cast.schemas.tables.audit_runs import AUDIT_RUNS
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.ordering_gaps import ALL_TOPICS, EVERYBODY, ORDERING_GAPS
from m4cast.schemas.tables.roster import ROSTER

JOB = "ordering_gaps"
LINE = ("line", "node_id", "origin", "topic")
RECEIVED = LINE[1:]
STREAM = ("line", "origin", "topic")
BARE = {"first": "bigint", "last": "bigint"}
RECEIPT_MARGIN = timedelta(hours=1)
"""Receipts this much older than the last run are read again: clocks of stores and drivers differ. Guess."""


@dataclass(frozen=True, slots=True)
class GapsSummary:
    run: Run
    lines: int
    """Streams at receivers."""
    held: int
    skipped: int
    missing: int
    tail: int
    """Of the missing ones: behind everything that the receiver has."""
    repaired: int
    duplicates: int
    unaccounted: int

    @property
    def text(self) -> str:
        run = self.run
        return (
            f"{run.verdict}: {self.lines} streams at receivers: {self.held} rows held, {self.skipped} skipped "
            f"({run.lost} of them given up), {self.missing} missing ({self.tail} of them at the end), "
            f"{run.not_read} not read, {self.repaired} came late, {self.duplicates} twice; "
            f"{self.unaccounted} rows were published and no node has a record of them"
        )


# Read


def receipt_frontier(spark: SparkSession, uri: str, since: datetime | None) -> DataFrame:
    """The highest sequence of each stream that a publisher has a receipt for."""
    reader = spark.read.schema(RECEIPT_DDL)
    if since is not None:
        moment = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        reader = reader.option("modifiedAfter", moment).option("timeZone", "UTC")
    streams = reader.json(uri).select(F.explode("streams").alias("stream")).select("stream.*")
    return streams.groupBy("origin", "topic").agg(F.max("last_sequence").alias("end"))


def lines_of(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows of the table as lines: one row each, with arrays of ranges."""

    def part(state: str, fields: dict[str, str]) -> Column:
        numbers = (length() + F.col("duplicates")).alias("numbers")
        columns = [numbers if name == "numbers" else F.col(name) for name in fields]
        is_of_part = (F.col("state") == state) & ~F.col("is_tail")
        return F.collect_list(F.when(is_of_part, F.struct(*columns))).cast(array_of(fields))

    return rows.groupBy(*keys).agg(
        part("HELD", HELD).alias("held"), part("SKIPPED", SKIPPED).alias("skipped"), part("MISSING", GAPS).alias("gaps")
    )


# Transform


@dataclass(frozen=True)
class Lines:
    """Rows of the table, without `deliveries_version`."""

    present: DataFrame
    repaired: DataFrame


@dataclass(frozen=True)
class Expected:
    """Ranges of streams that receivers were expected to get: all of them, not only new ones."""

    ranges: DataFrame
    doubtful: DataFrame | None = None
    """Those that count only where the receiver tells of the stream: else all its records of it may be deleted."""


def advance(
    deliveries: DataFrame,
    present: DataFrame | None,
    receipted: DataFrame | None = None,
    within: Sequence[str] = (),
    expected: Expected | None = None,
    cut: DataFrame | None = None,
) -> Lines:
    """The lines after more delivery records, which came after everything in `present` (none: from the beginning).

    `within` names columns that tell channels apart, where a table holds several. `cut` has the nodes of which records
    were deleted.
    """
    empty = _no_rows(deliveries, within)
    rows = empty if present is None else present.select(*empty.columns)
    is_stream, is_everybody = F.col("line") == "stream", F.col("node_id") == EVERYBODY
    origins = _origin_lines(deliveries, rows.where(~is_stream & ~is_everybody), within)
    streams = _stream_lines(deliveries, rows.where(is_stream & ~is_everybody), within)
    receivers = streams.unionByName(origins, allowMissingColumns=True).localCheckpoint()  # one row for each line
    everybody = _everybody(receivers, rows.where(is_everybody), receipted, within)
    if cut is not None and present is None:
        everybody = _without_deleted(everybody, receivers, cut, within)
    everybody = everybody.localCheckpoint()
    ends = everybody.select(*within, *STREAM, "end")
    if expected is not None:  # it is read in many places, and what is expected takes long to find
        receivers = _with_expected(receivers, expected, within).localCheckpoint()
    else:
        receivers = receivers.withColumn("expected", F.lit(None).cast(array_of(BARE)))
    ended = receivers.join(F.broadcast(ends), on=[*within, *STREAM], how="left")
    parts = [*_rows_of_receivers(ended, [*within, *LINE]), *_rows_of_everybody(everybody, [*within, *LINE])]
    repaired = receivers.select(*within, *LINE, F.inline("repaired")).withColumn("state", F.lit("REPAIRED"))
    return Lines(_as_table(empty, *parts), _as_table(empty, repaired))


def _stream_lines(deliveries: DataFrame, rows: DataFrame, within: Sequence[str]) -> DataFrame:
    keys = [*within, *LINE]
    records = deliveries.select(
        *within,
        F.lit("stream").alias("line"),
        "node_id",
        "origin",
        "topic",
        F.col("first_sequence").alias("first"),
        F.col("last_sequence").alias("last"),
        "kind",
        "reason",
        "delivery",
        "delivered_at",
    )
    return fold_lines(records, lines_of(rows, keys), keys)


def _origin_lines(deliveries: DataFrame, rows: DataFrame, within: Sequence[str]) -> DataFrame:
    """Batches overtake each other on these lines, since topics do: only what is held counts, not when it came."""
    keys = [*within, *LINE]
    number = F.col("origin_batch")
    records = deliveries.where(F.col("kind") == "batch").select(
        *within,
        F.lit("origin").alias("line"),
        "node_id",
        "origin",
        F.lit(ALL_TOPICS).alias("topic"),
        number.alias("first"),
        number.alias("last"),
        F.lit(1).cast("long").alias("records"),
        F.lit(1).cast("long").alias("numbers"),
        F.col("delivered_at").alias("first_delivered_at"),
        F.col("delivered_at").alias("last_delivered_at"),
        F.col("delivery").alias("last_delivery"),
    )
    held = rows.where(F.col("state") == "HELD").withColumn("numbers", length() + F.col("duplicates"))
    union = islands(
        records.unionByName(held.select(*records.columns)),
        keys,
        F.sum("records").alias("records"),
        F.sum("numbers").alias("numbers"),
        F.lit(0).cast("long").alias("reorder_depth"),
        F.min("first_delivered_at").alias("first_delivered_at"),
        F.max("last_delivered_at").alias("last_delivered_at"),
        F.max("last_delivery").alias("last_delivery"),
    )
    fields = [name for name in union.columns if name not in keys]
    return union.groupBy(*keys).agg(F.collect_list(F.struct(*fields)).cast(array_of(HELD)).alias("held"))


def _everybody(receivers: DataFrame, rows: DataFrame, receipted: DataFrame | None, within: Sequence[str]) -> DataFrame:
    """The lines of all receivers together, each with its `end`: the highest number that anybody tells of."""
    stream = [*within, *STREAM]
    before = rows.where(F.col("state") == "HELD").select(
        *stream, "first", "last", "first_delivered_at", "last_delivered_at"
    )
    told = receivers.select(*stream, F.inline("held")).select(*before.columns)
    held = islands(
        before.unionByName(told),
        stream,
        F.min("first_delivered_at").alias("first_delivered_at"),
        F.max("last_delivered_at").alias("last_delivered_at"),
    )
    ranges = F.struct("first", "last", "first_delivered_at", "last_delivered_at")
    of_held = held.groupBy(*stream).agg(F.collect_list(ranges).alias("held"))
    skips = receivers.select(*stream, F.inline("skipped")).select(*stream, "first", "last", "reason")
    skips = skips.unionByName(rows.where(F.col("state") == "SKIPPED").select(*skips.columns))
    of_skips = skips.groupBy(*stream).agg(F.collect_set(F.struct("reason", "first", "last")).alias("skips"))
    ends = rows.groupBy(*stream).agg(F.max("last").alias("known_end"))
    if receipted is not None:
        receipts = receipted.withColumn("line", F.lit("stream")).withColumnRenamed("end", "known_end")
        ends = (
            ends.unionByName(receipts.select(*ends.columns)).groupBy(*stream).agg(F.max("known_end").alias("known_end"))
        )
    both = of_held.join(of_skips, on=stream, how="full_outer").join(ends, on=stream, how="full_outer")
    nothing = no_ranges({"first": "bigint", "last": "bigint", "reason": "string"})
    skip = "array(struct(skip.first AS first, skip.last AS last, skip.reason AS reason))"
    # Of several reasons for the same numbers, the first in the alphabet stands.
    taken = f"concat(taken, {outside_all(skip, spans('taken'), 'reason')})"
    disjoint = f"coalesce(aggregate(array_sort(skips), {nothing}, (taken, skip) -> {taken}), {nothing})"
    kept = both.withColumn("held", F.coalesce("held", F.array().cast(of_held.schema["held"].dataType)))
    kept = kept.withColumn("skipped", F.expr(outside_all(disjoint, spans("held"), "reason")))
    high = F.expr(_highest(spans("held", "skipped")))
    return kept.select(
        *stream, "held", "skipped", high.alias("high"), F.greatest(high, "known_end").alias("end")
    ).withColumn("node_id", F.lit(EVERYBODY))


def _without_deleted(everybody: DataFrame, receivers: DataFrame, cut: DataFrame, within: Sequence[str]) -> DataFrame:
    """Holes that nobody has a record of, and that lie before what is left of a receiver's records, may have been in
    deleted ones: they are skipped on the line of everybody, not missing."""
    stream = [*within, *STREAM]
    low = F.expr(_lowest(_told_of())).alias("low")
    left = receivers.join(F.broadcast(cut.distinct()), on=[*within, "node_id"], how="inner").select(*stream, low)
    begins = left.groupBy(*stream).agg(F.max("low").alias("low"))
    told = spans("held", "skipped")
    holes = f"if(size({told}) = 0, {no_ranges(BARE)}, {between(told, 'high')})"
    early = f"filter({holes}, hole -> hole.last < low)"
    deleted = f"transform({early}, hole -> struct(hole.first AS first, hole.last AS last, 'deleted' AS reason))"
    both = everybody.join(begins, on=stream, how="left")
    skipped = F.expr(f"if(low IS NULL, skipped, concat(skipped, {deleted}))")
    return both.withColumn("skipped", skipped).drop("low")


def _with_expected(receivers: DataFrame, expected: Expected, within: Sequence[str]) -> DataFrame:
    """The lines with the ranges that were `expected`; also lines of which nothing else is known."""
    keys = [*within, *LINE]

    def together(ranges: DataFrame, name: str) -> DataFrame:
        lines = ranges.withColumn("line", F.lit("stream")).groupBy(*keys)
        return lines.agg(F.collect_list(F.struct("first", "last")).alias(name))

    both = receivers.join(together(expected.ranges, "expected"), on=keys, how="full_outer")
    sure = f"coalesce(expected, {no_ranges(BARE)})"
    if expected.doubtful is None:
        return both.withColumn("expected", F.expr(sure))
    both = both.join(together(expected.doubtful, "doubtful"), on=keys, how="left")
    more = outside_all(f"coalesce(doubtful, {no_ranges(BARE)})", sure)
    begun = F.expr(f"if(size({_told_of()}) = 0, {sure}, concat({sure}, {more}))")
    return both.withColumn("expected", begun).drop("doubtful")


def _rows_of_receivers(lines: DataFrame, keys: list[str]) -> list[DataFrame]:
    held = lines.select(*keys, F.inline("held")).withColumns(
        {"state": F.lit("HELD"), "duplicates": F.col("numbers") - length()}
    )
    of_lines = lines.withColumnRenamed("expected", "expected_ranges")
    counted = F.when(F.col("expected_ranges").isNotNull(), rows_within("expected_ranges"))
    pieces = of_lines.select(*keys, "expected_ranges", F.inline("skipped"))
    measures = F.max("last_delivery").alias("last_delivery"), F.first("expected_ranges").alias("expected_ranges")
    skipped = islands(pieces, [*keys, "reason"], *measures).withColumn("expected", counted)
    torn = lines.select(*keys, F.inline("gaps"))
    is_origin = F.col("line") == "origin"
    of_origins = lines.where(is_origin).select(*keys, F.inline(F.expr(between("held", "end"))))
    of_origins = of_origins.join(_reached(lines, keys), on=keys).withColumn("is_tail", F.col("first") > F.col("high"))
    tails = _reached(lines.where(~is_origin), keys).where(F.col("high") < F.col("end"))
    tails = tails.select(
        *keys,
        (F.col("high") + 1).alias("first"),
        F.col("end").alias("last"),
        "first_seen_at",
        F.lit(True).alias("is_tail"),
    )
    untold = lines.where(~is_origin & F.expr(f"size({_told_of()}) = 0")).select(*keys, F.inline("expected"))
    of_streams = torn.unionByName(tails, allowMissingColumns=True).unionByName(
        untold.withColumn("is_tail", F.lit(True)), allowMissingColumns=True
    )
    of_streams = of_streams.join(of_lines.select(*keys, "expected_ranges"), on=keys).withColumn("expected", counted)
    missing = of_streams.unionByName(of_origins.drop("high", "end", "first_seen_at"), allowMissingColumns=True)
    expected = lines.where(~is_origin).select(*keys, F.inline("expected"))
    return [
        held,
        skipped.withColumn("state", F.lit("SKIPPED")),
        missing.withColumn("state", F.lit("MISSING")),
        expected.withColumn("state", F.lit("EXPECTED")),
    ]


def _reached(lines: DataFrame, keys: list[str]) -> DataFrame:
    """How far each line goes, and when it took its last."""
    return lines.select(
        *keys,
        "end",
        F.expr(_highest(_told_of())).alias("high"),
        F.expr("array_max(transform(held, each -> each.last_delivered_at))").alias("first_seen_at"),
    )


def _told_of() -> str:
    """All ranges that a line tells of. A line of an origin has no skips, and one that is only expected has nothing."""
    return f"concat({', '.join(f'coalesce({spans(part)}, {no_ranges(BARE)})' for part in ('held', 'skipped'))})"


def _highest(ranges: str) -> str:
    return f"array_max(transform({ranges}, each -> each.last))"


def _lowest(ranges: str) -> str:
    return f"array_min(transform({ranges}, each -> each.first))"


def _rows_of_everybody(lines: DataFrame, keys: list[str]) -> list[DataFrame]:
    told = spans("held", "skipped")
    # Of a stream that only receipts tell of, everything is missing.
    all_of_it = "array(struct(CAST(1 AS bigint) AS first, end AS last))"
    holes = F.expr(f"if(size({told}) = 0, {all_of_it}, {between(told, 'end')})")
    missing = lines.select(*keys, "high", F.inline(holes))
    is_tail = F.coalesce(F.col("first") > F.col("high"), F.lit(True))
    return [
        lines.select(*keys, F.inline("held")).withColumn("state", F.lit("HELD")),
        islands(lines.select(*keys, F.inline("skipped")), [*keys, "reason"]).withColumn("state", F.lit("SKIPPED")),
        missing.withColumns({"state": F.lit("MISSING"), "is_tail": is_tail}).drop("high"),
    ]


def _no_rows(like: DataFrame, within: Sequence[str]) -> DataFrame:
    columns = [field for field in ORDERING_GAPS.schema if field.name != "deliveries_version"]
    fields = [like.schema[name] for name in within] + columns
    schema = StructType([StructField(each.name, each.dataType) for each in fields])
    return frame(like.sparkSession, [], schema)


def _as_table(empty: DataFrame, *parts: DataFrame) -> DataFrame:
    """The parts as rows of the table: all its columns, in its order and types."""
    rows = empty
    for part in parts:
        of_table = part.select(*(name for name in empty.columns if name in part.columns))
        rows = rows.unionByName(of_table, allowMissingColumns=True)
    return rows.withColumn("is_tail", F.coalesce("is_tail", F.lit(False)))


# Write


def write(tables: Tables, lines: Lines, before: int, version: int, restated: Sequence[str], *, full: bool) -> None:
    """Present lines in place of those from before, repaired ranges besides those from before: in one commit."""
    rows = lines.present.unionByName(lines.repaired).withColumn("deliveries_version", F.lit(version).cast("long"))
    writer = rows.select(*ORDERING_GAPS.schema.names).write.format("delta").mode("overwrite")
    if not full:
        of_restated = "".join(f" OR node_id = '{node_id}'" for node_id in restated)
        writer = writer.option("replaceWhere", f"state <> 'REPAIRED' OR deliveries_version > {before}{of_restated}")
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
    steps: Steps | None = None,
) -> GapsSummary:
    """Bring the table up to date with `deliveries`; `full`: from all records, whatever was computed before.

    Rows that were published less than `grace` before `as_of` (now, if None) are under way: not expected yet.
    """
    steps = steps or Steps()
    tables, started_at = Tables(spark, folder), datetime.now(UTC)
    source_id, version = tables.version(DELIVERIES)
    for table in (ORDERING_GAPS, AUDIT_RUNS):
        tables.ensure(table)
    last = last_run(tables, JOB)
    if last is not None and last.deliveries_id != source_id:
        last = None
    present = tables.read(ORDERING_GAPS).where(F.col("state") != "REPAIRED")
    before = present.agg(F.max("deliveries_version")).collect()[0][0]
    previous = None if full or last is None or before is None or before > version else last
    steps.step("looking for new records")
    new, restated = _news(tables, present, before, version, is_full=previous is None)
    counted: Any = new.agg(F.count("*").alias("records"), F.collect_set("node_id").alias("nodes")).collect()[0]
    known = {each.node_id for each in (last.members or ()) if each.has_reported} if last is not None else set()
    reporters = known | set(counted["nodes"])
    deleted = find_deleted(tables, last, version, reporters, started_at, is_full=previous is None)
    begun = Run.begun(JOB, started_at, source_id, version, is_full=previous is None, records=counted["records"])
    begun = replace(
        begun,
        receipts=receipts,
        members=read_members(tables, reporters),
        audited_until=closed_until(as_of or started_at, grace),
        deleted_until=None if deleted is None else deleted.until,
    )
    with interpreted_if_few(spark, begun.records):
        steps.step("computing lines")
        since = None
        if previous is not None and previous.receipts == receipts:
            since = previous.started_at - RECEIPT_MARGIN  # the lines remember what was read before
        lines = advance(
            new,
            None if previous is None else present.where(~F.col("node_id").isin(restated)),
            None if receipts is None else receipt_frontier(spark, receipts, since),
            expected=_expected(tables, begun, previous, present, new, deleted),
            cut=None if deleted is None else nodes_frame(tables, deleted.nodes),
        )
        steps.step("writing ordering_gaps")
        write(tables, lines, before or 0, version, restated, full=previous is None)
        steps.step("summing up")
        summary = summarise(tables, begun)
        record_run(tables, summary.run)
    return summary


def _news(
    tables: Tables, present: DataFrame, before: int, version: int, *, is_full: bool
) -> tuple[DataFrame, list[str]]:
    """Records to take, and the nodes of which all are taken again, since some came out of order."""
    if is_full:
        return tables.read_at(DELIVERIES, version), []
    new = tables.changes(DELIVERIES, before, version)
    restated = _out_of_order(new, present)
    if restated:
        again = tables.read_at(DELIVERIES, version).where(F.col("node_id").isin(restated))
        new = new.where(~F.col("node_id").isin(restated)).unionByName(again)
    return new, restated


def _expected(
    tables: Tables, run: Run, previous: Run | None, present: DataFrame, new: DataFrame, deleted: Deleted | None
) -> Expected | None:
    """What receivers were expected to get, by the roster: what is known of it, what is new, and what has changed."""
    if run.members is None or run.audited_until is None:
        return None
    members = members_of(tables.read(ROSTER), nodes_frame(tables, ()))
    is_batch = F.col("kind") == "batch"
    all_batches = tables.read_at(DELIVERIES, run.deliveries_version).where(is_batch)
    batches, ranges = all_batches, None
    if previous is not None:
        changed_at = membership_changes(previous.members or (), run.members)
        since = min(each for each in (previous.audited_until or BEGINNING, changed_at) if each is not None)
        batches = all_batches.where(F.col("published_at") >= F.lit(since)).unionByName(new.where(is_batch))
        ranges = present.where(F.col("state") == "EXPECTED").select(*RECEIVED, "first", "last")
        if changed_at is not None:
            ranges = _outside_of(ranges, all_batches.where(F.col("published_at") >= F.lit(changed_at)))
    batches = batches.where(F.col("published_at") < F.lit(run.audited_until))
    doubtful = None
    if deleted is not None:
        is_early = F.col("published_at") <= F.lit(deleted.until)
        early = expected_ranges(batches.where(is_early), members)
        is_cut = F.col("node_id").isin(sorted(deleted.nodes))
        doubtful = early.where(is_cut)
        found = expected_ranges(batches.where(~is_early), members).unionByName(early.where(~is_cut))
    else:
        found = expected_ranges(batches, members)
    if ranges is not None:
        found = found.unionByName(ranges)
    return Expected(islands(found, RECEIVED), doubtful)


def _outside_of(ranges: DataFrame, batches: DataFrame) -> DataFrame:
    """What is left of the ranges without the rows of these batches."""
    ends = F.col("first_sequence").alias("first"), F.col("last_sequence").alias("last")
    cuts = islands(batches.select("origin", "topic", *ends).distinct(), ("origin", "topic"))
    cuts = cuts.groupBy("origin", "topic").agg(F.collect_list(F.struct("first", "last")).alias("cuts"))
    whole = ranges.groupBy(*RECEIVED).agg(F.collect_list(F.struct("first", "last")).alias("whole"))
    both = whole.join(cuts, on=["origin", "topic"], how="left")
    left = outside_all("whole", f"coalesce(cuts, {no_ranges(BARE)})")
    return both.select(*RECEIVED, F.inline(F.expr(left)))


def _out_of_order(new: DataFrame, present: DataFrame) -> list[str]:
    """Nodes of which records came that are older than some that were taken before."""
    reached = present.groupBy("node_id").agg(F.max("last_delivery").alias("reached"))
    begins = new.groupBy("node_id").agg(F.min("delivery").alias("begins"))
    late = begins.join(reached, on="node_id", how="inner").where(F.col("begins") <= F.col("reached"))
    return [row["node_id"] for row in late.collect()]


def summarise(tables: Tables, run: Run) -> GapsSummary:
    table = tables.read(ORDERING_GAPS).where(F.col("line") == "stream")
    counts = findings(table, unread_nodes(run.members)).collect()[0].asDict()
    ended = run.ended(
        missing=counts["missing"],
        lost=counts.pop("lost"),
        not_read=counts.pop("not_read"),
        duplicates=counts["duplicates"],
        unaccounted=counts["unaccounted"],
    )
    summary = GapsSummary(run=ended, **counts)
    return replace(summary, run=replace(ended, summary=summary.text))


def findings(rows: DataFrame, unread: Sequence[str], within: Sequence[str] = ()) -> DataFrame:
    """What lines of streams add up to. MISSING and SKIPPED rows count as far as they were expected, or all of them
    where there is no roster. At the end of a line of an unread node they are not read; else missing."""
    of_receivers, is_everybody = F.col("node_id") != EVERYBODY, F.col("node_id") == EVERYBODY
    is_unread = F.col("is_tail") & F.col("node_id").isin(list(unread))

    def rows_of(state: str, where: Column = of_receivers, count: Column | None = None) -> Column:
        return total(F.when(where & (F.col("state") == state), length() if count is None else count))

    expected = F.coalesce("expected", length())
    # A node that joins a channel that no longer keeps its beginning has lost nothing: it begins behind it.
    held = F.when(F.col("state") == "HELD", F.col("first"))
    has_begun = F.coalesce(F.col("last") > F.min(held).over(Window.partitionBy(*within, *LINE)), F.lit(False))
    is_lost = (F.col("reason") == "lost") | (
        (F.col("reason") == "expired") & (F.col("expected").isNotNull() | F.col("has_begun"))
    )
    table = rows.withColumn("has_begun", has_begun)
    is_line = of_receivers & F.col("state").isin("HELD", "SKIPPED")
    return table.groupBy(*within).agg(
        F.count_distinct(F.when(is_line, F.struct("node_id", "origin", "topic"))).alias("lines"),
        rows_of("HELD").alias("held"),
        rows_of("SKIPPED").alias("skipped"),
        rows_of("MISSING", of_receivers & ~is_unread, expected).alias("missing"),
        rows_of("MISSING", of_receivers & ~is_unread & F.col("is_tail"), expected).alias("tail"),
        rows_of("REPAIRED").alias("repaired"),
        total(F.when(of_receivers, F.col("duplicates"))).alias("duplicates"),
        rows_of("MISSING", is_everybody).alias("unaccounted"),
        rows_of("SKIPPED", of_receivers & is_lost, expected).alias("lost"),
        rows_of("MISSING", of_receivers & is_unread, expected).alias("not_read"),
    )


@options.command("gaps")
@command.tables_option
@click.option("--receipts", metavar="URI", help="Location of the sinks' receipts; finds rows that no node remembers.")
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
    as_of: datetime | None,
    grace: timedelta,
    full: bool,
    proved: tuple[str, ...],
    report: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Bring the table ordering_gaps up to date: ranges of every stream that are held, skipped, missing or repaired."""
    folder = command.filled_folder_of(tables, DELIVERIES.name)
    steps = Steps.on_stderr()
    steps.step("starting Spark")
    spark = command.session_of("m4cast gaps", settings)
    summary = run(spark, folder, receipts=receipts, as_of=as_of, grace=grace, full=full, steps=steps)
    proofs = []
    for topic in proved:
        steps.step(f"comparing rows of {topic}")
        proofs.append(prove(spark, folder, topic))
    if report is not None:
        steps.step("writing the report")
        write_report(Tables(spark, folder), report)
    steps.done()
    if as_json:
        print_json({**asdict(summary), "proofs": [asdict(proof) for proof in proofs]})
        return
    for text in (summary.text, *(proof.text for proof in proofs)):
        click.echo(text)


if __name__ == "__main__":
    as_script(main)
