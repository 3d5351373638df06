"""Lines of streams: what one receiver holds, skipped and is missing of one stream, folded from its records in order.

A *line* is one row with arrays of ranges. Delivery records are ranges on it, in the order of arrival. A record that
leaves a hole between itself and what came before opens a *gap*; later records may fill it, piece by piece: what was
filled is repaired, what is left is missing.

Records that continue the line are put together first, by one sort of each line. What is left then (a few for each
disorder) is folded into the line one by one. So a healthy line costs a sort, however long it is, and a line goes on
from where an earlier run left it.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from m4cast.jobs.ranges import meets, outside, outside_all, spans, touches

HELD = (
    "array<struct<first: bigint, last: bigint, records: bigint, numbers: bigint, reorder_depth: bigint, "
    "first_delivered_at: timestamp, last_delivered_at: timestamp, last_delivery: bigint>>"
)
SKIPPED = "array<struct<first: bigint, last: bigint, reason: string, last_delivery: bigint>>"
GAPS = "array<struct<first: bigint, last: bigint, first_seen_at: timestamp>>"
REPAIRED = (
    "array<struct<first: bigint, last: bigint, first_seen_at: timestamp, repaired_at: timestamp, repaired_by: string>>"
)
PARTS = {"held": HELD, "skipped": SKIPPED, "gaps": GAPS, "repaired": REPAIRED}


def fold_lines(records: DataFrame, lines: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Lines after more records. `lines` has the parts, but for `repaired`: only what these records repair is told."""
    arrived = _put_together(records, lines, keys)
    by_line = arrived.groupBy(*keys).agg(F.array_sort(F.collect_list(F.struct(*_ARRIVED))).alias("arrived"))
    both = lines.withColumn("repaired", F.lit(None).cast(REPAIRED)).join(by_line, on=list(keys), how="full_outer")
    start = F.struct(*(F.coalesce(name, F.array().cast(kind)).alias(name) for name, kind in PARTS.items()))
    elements = F.coalesce("arrived", F.array().cast(_ARRIVED_TYPE))
    return both.select(*keys, F.aggregate(elements, start, _take).alias("line_now")).select(*keys, "line_now.*")


# Sorted by their first field: in the order of arrival.
_ARRIVED = (
    "delivery",
    "first",
    "last",
    "kind",
    "reason",
    "records",
    "delivered_at",
    "first_delivered_at",
    "last_delivered_at",
    "last_delivery",
    "gap_first",
    "gap_last",
    "depth",
)
_ARRIVED_TYPE = (
    "array<struct<delivery: bigint, first: bigint, last: bigint, kind: string, reason: string, records: bigint, "
    "delivered_at: timestamp, first_delivered_at: timestamp, last_delivered_at: timestamp, last_delivery: bigint, "
    "gap_first: bigint, gap_last: bigint, depth: bigint>>"
)


def _put_together(records: DataFrame, lines: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Records, those that continue each other as one; each with the gap that it opens and how far it came behind."""
    told = spans(F.col("held"), F.col("skipped"))
    known = lines.select(
        *keys,
        F.array_min(F.transform(told, lambda each: each["first"])).alias("known_low"),
        F.array_max(F.transform(told, lambda each: each["last"])).alias("known_high"),
    )
    before = Window.partitionBy(*keys).orderBy("delivery").rowsBetween(Window.unboundedPreceding, -1)
    so_far = Window.partitionBy(*keys).orderBy("delivery").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_batch = F.col("kind") == "batch"
    seen = records.join(F.broadcast(known), on=list(keys), how="left").withColumns(
        {
            "low": F.least(F.min("first").over(before), "known_low"),
            "high": F.greatest(F.max("last").over(before), "known_high"),
            "batches_to": F.max(F.when(is_batch, F.col("last"))).over(before),
        }
    )
    is_ahead, is_below = F.col("first") > F.col("high") + 1, F.col("last") < F.col("low") - 1
    is_forward = is_batch & F.coalesce(F.col("first") > F.col("high"), F.lit(True))
    is_start = is_forward & F.coalesce(F.col("first") != F.col("batches_to") + 1, F.lit(True))
    marked = seen.withColumns(
        {
            "gap_first": F.when(is_ahead, F.col("high") + 1).when(is_below, F.col("last") + 1),
            "gap_last": F.when(is_ahead, F.col("first") - 1).when(is_below, F.col("low") - 1),
            "depth": F.greatest(F.col("high") - F.col("first"), F.lit(0)),
            "is_start": is_start.cast("int"),
            "is_forward": is_forward,
        }
    )
    number = F.when(F.col("is_forward"), F.sum("is_start").over(so_far)).otherwise(-F.col("delivery"))
    opening = F.min_by(F.struct("kind", "reason", "delivered_at", "gap_first", "gap_last", "depth"), "delivery")
    grouped = marked.withColumn("together", number).groupBy(*keys, "together")
    return grouped.agg(
        F.min("delivery").alias("delivery"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.count("*").alias("records"),
        F.min("delivered_at").alias("first_delivered_at"),
        F.max("delivered_at").alias("last_delivered_at"),
        F.max("delivery").alias("last_delivery"),
        opening.alias("_opening"),
    ).select("*", "_opening.*")


def _take(line: Column, came: Column) -> Column:
    """The line after one more record, or several that continue each other."""
    opened = F.struct(
        came["gap_first"].alias("first"), came["gap_last"].alias("last"), came["delivered_at"].alias("first_seen_at")
    )
    gaps = F.when(came["gap_first"].isNull(), line["gaps"]).otherwise(F.concat(line["gaps"], F.array(opened)))
    met = F.filter(line["gaps"], lambda gap: meets(gap, came))
    filled = F.transform(
        met,
        lambda gap: F.struct(
            F.greatest(gap["first"], came["first"]).alias("first"),
            F.least(gap["last"], came["last"]).alias("last"),
            gap["first_seen_at"].alias("first_seen_at"),
            came["delivered_at"].alias("repaired_at"),
            came["kind"].alias("repaired_by"),
        ),
    )
    is_batch = came["kind"] == "batch"
    skip = F.struct(*(came[name].alias(name) for name in ("first", "last", "reason", "last_delivery")))
    new_skips = outside_all(F.array(skip), spans(line["held"], line["skipped"]))
    return F.struct(
        F.when(is_batch, _join(line["held"], came, met)).otherwise(line["held"]).cast(HELD).alias("held"),
        F.when(is_batch, outside(line["skipped"], came))
        .otherwise(F.concat(line["skipped"], new_skips))
        .cast(SKIPPED)
        .alias("skipped"),
        outside(gaps, came).cast(GAPS).alias("gaps"),
        F.concat(line["repaired"], filled).cast(REPAIRED).alias("repaired"),
    )


def _join(held: Column, came: Column, met: Column) -> Column:
    """The ranges that are held, with one more; those that it touches become one."""
    new = F.struct(
        came["first"].alias("first"),
        came["last"].alias("last"),
        came["records"].alias("records"),
        (came["last"] - came["first"] + 1).alias("numbers"),
        F.when(F.size(met) > 0, came["depth"]).otherwise(F.lit(0)).cast("long").alias("reorder_depth"),
        came["first_delivered_at"].alias("first_delivered_at"),
        came["last_delivered_at"].alias("last_delivered_at"),
        came["last_delivery"].alias("last_delivery"),
    )

    def both(one: Column, other: Column) -> Column:
        return F.struct(
            F.least(one["first"], other["first"]).alias("first"),
            F.greatest(one["last"], other["last"]).alias("last"),
            (one["records"] + other["records"]).alias("records"),
            (one["numbers"] + other["numbers"]).alias("numbers"),
            F.greatest(one["reorder_depth"], other["reorder_depth"]).alias("reorder_depth"),
            F.least(one["first_delivered_at"], other["first_delivered_at"]).alias("first_delivered_at"),
            F.greatest(one["last_delivered_at"], other["last_delivered_at"]).alias("last_delivered_at"),
            F.greatest(one["last_delivery"], other["last_delivery"]).alias("last_delivery"),
        )

    apart = F.filter(held, lambda each: ~touches(each, came))
    together = F.aggregate(F.filter(held, lambda each: touches(each, came)), new, both)
    return F.concat(apart, F.array(together))
