"""The rows of `ordering_gaps`, computed from lines: the job's transform.

`advance` folds new delivery records into the lines of each receiver (`lines`), combines the lines of all receivers, and
turns both into rows of the table: ranges that are held, skipped, missing, expected or repaired.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from m4cast.jobs.gaps.lines import GAPS, HELD, SKIPPED, array_of, fold_lines, no_ranges
from m4cast.jobs.ranges import between, islands, length, outside_all, rows_within, spans
from m4cast.jobs.table_folder import frame
from m4cast.schemas.tables.ordering_gaps import ALL_TOPICS, EVERYBODY, ORDERING_GAPS

LINE = ("line", "node_id", "origin", "topic")
STREAM = ("line", "origin", "topic")
BARE = {"first": "bigint", "last": "bigint"}
SKIPS = {**BARE, "reason": "string"}
SELECTIVE = "selective"
"""The spread of a batch, and the reason for which its number is skipped on the line of its origin."""


@dataclass(frozen=True)
class GapRows:
    """Rows of the table, without `deliveries_version`."""

    present: DataFrame
    repaired: DataFrame


@dataclass(frozen=True)
class Expected:
    """Ranges of streams that receivers were expected to receive: all of them, not only new ones."""

    ranges: DataFrame
    doubtful: DataFrame | None = None
    """Ranges that count only if the receiver has records of the stream; if it has none, they may have been deleted."""


@dataclass(frozen=True)
class Torn:
    """Lines of which not everything is received here. For an origin in another channel (H45), these are the line of its
    batches, some of which belong to topics that are not received here, and the lines of its selective streams, since
    rows that no node of this channel wants are at none of its nodes."""

    own: Sequence[str] | None = None
    """The nodes of this channel; None if all origins belong to it."""
    selective_topics: Sequence[str] = ()

    def is_foreign(self) -> Column:
        return F.lit(False) if self.own is None else ~F.col("origin").isin(list(self.own))

    def is_partial(self) -> Column:
        return self.is_foreign() & (F.col("line") == "stream") & F.col("topic").isin(list(self.selective_topics))


def advance(
    deliveries: DataFrame,
    present: DataFrame | None,
    receipted: DataFrame | None = None,
    within: Sequence[str] = (),
    expected: Expected | None = None,
    cut: DataFrame | None = None,
    torn: Torn | None = None,
) -> GapRows:
    """The rows after more delivery records, all of them later than those in `present` (None: from the beginning).

    `within` names the columns that distinguish channels, if a table holds several. `cut` lists the nodes of which
    records were deleted.
    """
    torn = torn or Torn()
    empty = _no_rows(deliveries, within)
    rows = empty if present is None else present.select(*empty.columns)
    rows = rows.where((F.col("line") == "stream") | ~torn.is_foreign())
    is_stream, is_everybody = F.col("line") == "stream", F.col("node_id") == EVERYBODY
    whole = deliveries.where(~torn.is_foreign())
    origins = _origin_lines(whole, rows.where(~is_stream & ~is_everybody), within)
    streams = _stream_lines(deliveries, rows.where(is_stream & ~is_everybody), within)
    receivers = streams.unionByName(origins, allowMissingColumns=True).localCheckpoint()  # one row per line
    everybody = _everybody(receivers, rows.where(is_everybody), receipted, within)
    if cut is not None and present is None:
        everybody = _without_deleted(everybody, receivers, cut, within)
    everybody = everybody.localCheckpoint()
    passed = F.when(~is_stream, F.col("skipped")).alias("passed")
    ends = everybody.select(*within, *STREAM, "end", passed)
    if expected is not None:  # read in many places, and expensive to compute
        receivers = _with_expected(receivers, expected, within).localCheckpoint()
    else:
        receivers = receivers.withColumn("expected", F.lit(None).cast(array_of(BARE)))
    ended = receivers.join(F.broadcast(ends), on=[*within, *STREAM], how="left")
    parts = [*_rows_of_receivers(ended, [*within, *LINE]), *_rows_of_everybody(everybody, [*within, *LINE], torn)]
    repaired = receivers.select(*within, *LINE, F.inline("repaired")).withColumn("state", F.lit("REPAIRED"))
    return GapRows(_as_table(empty, *parts), _as_table(empty, repaired))


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
    """The lines of origins' batch numbers. Batches of different topics overtake each other, so these lines show which
    batches are held, not in which order they arrived.

    A line of an origin covers its broadcast topics. Receivers need not get selective batches: the numbers of these are
    skipped on the lines of receivers that got them, and are not holes on the lines of others.
    """
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
        F.when(F.col("spread") == SELECTIVE, F.lit(SELECTIVE)).alias("reason"),
    )
    before = rows.where(F.col("state").isin("HELD", "SKIPPED")).withColumn("numbers", length() + F.col("duplicates"))
    union = islands(
        records.unionByName(before.select(*records.columns)),
        [*keys, "reason"],
        F.sum("records").alias("records"),
        F.sum("numbers").alias("numbers"),
        F.lit(0).cast("long").alias("reorder_depth"),
        F.min("first_delivered_at").alias("first_delivered_at"),
        F.max("last_delivered_at").alias("last_delivered_at"),
        F.max("last_delivery").alias("last_delivery"),
    )

    def part(is_of_part: Column, fields: dict[str, str]) -> Column:
        return F.collect_list(F.when(is_of_part, F.struct(*fields))).cast(array_of(fields))

    return union.groupBy(*keys).agg(
        part(F.col("reason").isNull(), HELD).alias("held"),
        part(F.col("reason").isNotNull(), SKIPPED).alias("skipped"),
    )


def _everybody(receivers: DataFrame, rows: DataFrame, receipted: DataFrame | None, within: Sequence[str]) -> DataFrame:
    """The combined line of all receivers, with its `end`: the highest number in any record."""
    stream = [*within, *STREAM]
    before = rows.where(F.col("state") == "HELD").select(
        *stream, "first", "last", "first_delivered_at", "last_delivered_at"
    )
    recorded = receivers.select(*stream, F.inline("held")).select(*before.columns)
    held = islands(
        before.unionByName(recorded),
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
    nothing = no_ranges(SKIPS)
    skip = "array(struct(skip.first AS first, skip.last AS last, skip.reason AS reason))"
    # If the same numbers have several reasons, the alphabetically first is kept.
    taken = f"concat(taken, {outside_all(skip, spans('taken'), 'reason')})"
    disjoint = f"coalesce(aggregate(array_sort(skips), {nothing}, (taken, skip) -> {taken}), {nothing})"
    kept = both.withColumn("held", F.coalesce("held", F.array().cast(of_held.schema["held"].dataType)))
    kept = kept.withColumn("skipped", F.expr(outside_all(disjoint, spans("held"), "reason")))
    high = F.expr(_highest(spans("held", "skipped")))
    return kept.select(
        *stream, "held", "skipped", high.alias("high"), F.greatest(high, "known_end").alias("end")
    ).withColumn("node_id", F.lit(EVERYBODY))


def _without_deleted(everybody: DataFrame, receivers: DataFrame, cut: DataFrame, within: Sequence[str]) -> DataFrame:
    """Holes before the first remaining record of a receiver may have been in deleted records: on the combined line they
    are skipped, not missing."""
    stream = [*within, *STREAM]
    low = F.expr(_lowest(_recorded())).alias("low")
    left = receivers.join(F.broadcast(cut.distinct()), on=[*within, "node_id"], how="inner").select(*stream, low)
    begins = left.groupBy(*stream).agg(F.max("low").alias("low"))
    recorded = spans("held", "skipped")
    holes = f"if(size({recorded}) = 0, {no_ranges(BARE)}, {between(recorded, 'high')})"
    early = f"filter({holes}, hole -> hole.last < low)"
    deleted = f"transform({early}, hole -> struct(hole.first AS first, hole.last AS last, 'deleted' AS reason))"
    both = everybody.join(begins, on=stream, how="left")
    skipped = F.expr(f"if(low IS NULL, skipped, concat(skipped, {deleted}))")
    return both.withColumn("skipped", skipped).drop("low")


def _with_expected(receivers: DataFrame, expected: Expected, within: Sequence[str]) -> DataFrame:
    """The lines with their `expected` ranges, including lines of which nothing else is known."""
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
    begun = F.expr(f"if(size({_recorded()}) = 0, {sure}, concat({sure}, {more}))")
    return both.withColumn("expected", begun).drop("doubtful")


def _rows_of_receivers(lines: DataFrame, keys: list[str]) -> list[DataFrame]:
    held = lines.select(*keys, F.inline("held")).withColumns(
        {"state": F.lit("HELD"), "duplicates": F.col("numbers") - length()}
    )
    of_lines = lines.withColumnRenamed("expected", "expected_ranges")
    counted = F.when(F.col("expected_ranges").isNotNull(), rows_within("expected_ranges"))
    pieces = of_lines.select(*keys, "expected_ranges", F.inline("skipped"))
    measures = F.max("last_delivery").alias("last_delivery"), F.first("expected_ranges").alias("expected_ranges")
    of_streams_alone = F.when(F.col("line") == "stream", counted)
    skipped = islands(pieces, [*keys, "reason"], *measures).withColumn("expected", of_streams_alone)
    torn = lines.select(*keys, F.inline("gaps"))
    is_origin = F.col("line") == "origin"
    holes = outside_all(between(_recorded(), "end"), f"coalesce(passed, {no_ranges(SKIPS)})")
    of_origins = lines.where(is_origin).select(*keys, F.inline(F.expr(holes)))
    of_origins = of_origins.join(_reached(lines, keys), on=keys).withColumn("is_tail", F.col("first") > F.col("high"))
    tails = _reached(lines.where(~is_origin), keys).where(F.col("high") < F.col("end"))
    tails = tails.select(
        *keys,
        (F.col("high") + 1).alias("first"),
        F.col("end").alias("last"),
        "first_seen_at",
        F.lit(True).alias("is_tail"),
    )
    unrecorded = lines.where(~is_origin & F.expr(f"size({_recorded()}) = 0")).select(*keys, F.inline("expected"))
    of_streams = torn.unionByName(tails, allowMissingColumns=True).unionByName(
        unrecorded.withColumn("is_tail", F.lit(True)), allowMissingColumns=True
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
    """The highest number of each line, and when the last range was delivered."""
    return lines.select(
        *keys,
        "end",
        F.expr(_highest(_recorded())).alias("high"),
        F.expr("array_max(transform(held, each -> each.last_delivered_at))").alias("first_seen_at"),
    )


def _recorded() -> str:
    """All ranges that a line has records of; one that is only expected has none."""
    return f"concat({', '.join(f'coalesce({spans(part)}, {no_ranges(BARE)})' for part in ('held', 'skipped'))})"


def _highest(ranges: str) -> str:
    return f"array_max(transform({ranges}, each -> each.last))"


def _lowest(ranges: str) -> str:
    return f"array_min(transform({ranges}, each -> each.first))"


def _rows_of_everybody(lines: DataFrame, keys: list[str], torn: Torn) -> list[DataFrame]:
    recorded = spans("held", "skipped")
    # If only receipts know of a stream, everything is missing.
    all_of_it = "array(struct(CAST(1 AS bigint) AS first, end AS last))"
    holes = F.expr(f"if(size({recorded}) = 0, {all_of_it}, {between(recorded, 'end')})")
    missing = lines.where(~torn.is_partial()).select(*keys, "high", F.inline(holes))
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
    """The parts as rows of the table, with all its columns, in its order and types."""
    rows = empty
    for part in parts:
        of_table = part.select(*(name for name in empty.columns if name in part.columns))
        rows = rows.unionByName(of_table, allowMissingColumns=True)
    return rows.withColumn("is_tail", F.coalesce("is_tail", F.lit(False)))


def lines_of(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows of the table as lines: one row per line, with arrays of ranges."""

    def part(state: str, fields: dict[str, str]) -> Column:
        numbers = (length() + F.col("duplicates")).alias("numbers")
        columns = [numbers if name == "numbers" else F.col(name) for name in fields]
        is_of_part = (F.col("state") == state) & ~F.col("is_tail")
        return F.collect_list(F.when(is_of_part, F.struct(*columns))).cast(array_of(fields))

    return rows.groupBy(*keys).agg(
        part("HELD", HELD).alias("held"), part("SKIPPED", SKIPPED).alias("skipped"), part("MISSING", GAPS).alias("gaps")
    )
