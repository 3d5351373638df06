"""Lines of streams: what one receiver holds, skipped and is missing of one stream, folded from its records in order.

A *line* is one row with arrays of ranges. Delivery records are ranges on it, in the order of arrival. A record that
leaves a hole between itself and what came before opens a *gap*; later records may fill it, piece by piece: what was
filled is repaired, what is left is missing.

Records that continue the line are put together first, by one sort of each line. What is left then (a few for each
disorder) is folded into the line one by one. So a healthy line costs a sort, however long it is, and a line goes on
from where an earlier run left it.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from m4cast.jobs.ranges import meets, outside, outside_all, spans, touches

# The parts of a line, each an array of ranges with these fields.
HELD = {
    "first": "bigint",
    "last": "bigint",
    "records": "bigint",
    "numbers": "bigint",  # with duplicates
    "reorder_depth": "bigint",
    "first_delivered_at": "timestamp",
    "last_delivered_at": "timestamp",
    "last_delivery": "bigint",
}
SKIPPED = {"first": "bigint", "last": "bigint", "reason": "string", "last_delivery": "bigint"}
GAPS = {"first": "bigint", "last": "bigint", "first_seen_at": "timestamp"}
REPAIRED = {**GAPS, "repaired_at": "timestamp", "repaired_by": "string"}
PARTS = {"held": HELD, "skipped": SKIPPED, "gaps": GAPS, "repaired": REPAIRED}

# What came, sorted by its first field: in the order of arrival.
ARRIVED = {
    "delivery": "bigint",
    "first": "bigint",
    "last": "bigint",
    "kind": "string",
    "reason": "string",
    "records": "bigint",
    "delivered_at": "timestamp",
    "first_delivered_at": "timestamp",
    "last_delivered_at": "timestamp",
    "last_delivery": "bigint",
    "gap_first": "bigint",
    "gap_last": "bigint",
    "depth": "bigint",
}


def array_of(fields: dict[str, str]) -> str:
    """The type of an array of structs with these fields."""
    return f"array<struct<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>>"


def no_ranges(fields: dict[str, str]) -> str:
    return f"CAST(array() AS {array_of(fields)})"


def fold_lines(records: DataFrame, lines: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Lines after more records. `lines` has the parts, but for `repaired`: only what these records repair is told."""
    arrived = _put_together(records, lines, keys)
    by_line = arrived.groupBy(*keys).agg(F.array_sort(F.collect_list(F.struct(*ARRIVED))).alias("arrived"))
    both = lines.withColumn("repaired", F.lit(None).cast(array_of(REPAIRED))).join(
        by_line, on=list(keys), how="full_outer"
    )
    start = ", ".join(f"{_or_none(name, fields)} AS {name}" for name, fields in PARTS.items())
    folded = f"aggregate({_or_none('arrived', ARRIVED)}, struct({start}), (line, came) -> {_TAKEN})"
    return both.select(*keys, F.expr(folded).alias("line_now")).select(*keys, "line_now.*")


def _or_none(array: str, fields: dict[str, str]) -> str:
    return f"coalesce({array}, {no_ranges(fields)})"


def _put_together(records: DataFrame, lines: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Records, those that continue each other as one; each with the gap that it opens and how far it came behind."""
    told = spans("held", "skipped")
    known = lines.select(
        *keys,
        F.expr(f"array_min(transform({told}, each -> each.first))").alias("known_low"),
        F.expr(f"array_max(transform({told}, each -> each.last))").alias("known_high"),
    )
    before = Window.partitionBy(*keys).orderBy("delivery").rowsBetween(Window.unboundedPreceding, -1)
    so_far = Window.partitionBy(*keys).orderBy("delivery").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ends = {
        "low": F.least(F.min("first").over(before), "known_low"),
        "high": F.greatest(F.max("last").over(before), "known_high"),
    }
    seen = records.join(F.broadcast(known), on=list(keys), how="left").withColumns(ends)
    is_ahead, is_below = F.col("first") > F.col("high") + 1, F.col("last") < F.col("low") - 1
    is_forward = (F.col("kind") == "batch") & F.coalesce(F.col("first") > F.col("high"), F.lit(True))
    marked = seen.withColumns(
        {
            "gap_first": F.when(is_ahead, F.col("high") + 1).when(is_below, F.col("last") + 1),
            "gap_last": F.when(is_ahead, F.col("first") - 1).when(is_below, F.col("low") - 1),
            "depth": F.greatest(F.col("high") - F.col("first"), F.lit(0)),
            "is_forward": is_forward,
        }
    )
    forward_to = F.max(F.when(F.col("is_forward"), F.col("last"))).over(before)
    continues = F.coalesce(F.col("first") == forward_to + 1, F.lit(False))
    marked = marked.withColumn("is_start", (F.col("is_forward") & ~continues).cast("int"))
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


def _taken() -> str:
    """The `line` after one more record, or several that continue each other (`came`)."""
    opened = "struct(came.gap_first AS first, came.gap_last AS last, came.delivered_at AS first_seen_at)"
    gaps = f"if(came.gap_first IS NULL, line.gaps, concat(line.gaps, array({opened})))"
    filled = """struct(
        greatest(gap.first, came.first) AS first,
        least(gap.last, came.last) AS last,
        gap.first_seen_at AS first_seen_at,
        came.delivered_at AS repaired_at,
        came.kind AS repaired_by
    )"""
    skip = "struct(came.first AS first, came.last AS last, came.reason AS reason, came.last_delivery AS last_delivery)"
    others = "reason", "last_delivery"
    new_skips = outside_all(f"array({skip})", spans("line.held", "line.skipped"), *others)
    parts = {
        "held": f"if(came.kind = 'batch', {_joined()}, line.held)",
        "skipped": f"if(came.kind = 'batch', {outside('line.skipped', 'came', *others)}, "
        f"concat(line.skipped, {new_skips}))",
        "gaps": outside(gaps, "came", "first_seen_at"),
        "repaired": f"concat(line.repaired, transform({_MET}, gap -> {filled}))",
    }
    return f"struct({', '.join(f'CAST({parts[name]} AS {array_of(PARTS[name])}) AS {name}' for name in PARTS)})"


_MET = f"filter(line.gaps, gap -> {meets('gap', 'came')})"


def _joined() -> str:
    """The ranges that are held, with one more; those that it touches become one."""
    new = f"""struct(
        came.first AS first,
        came.last AS last,
        came.records AS records,
        came.last - came.first + 1 AS numbers,
        CAST(if(size({_MET}) > 0, came.depth, 0) AS bigint) AS reorder_depth,
        came.first_delivered_at AS first_delivered_at,
        came.last_delivered_at AS last_delivered_at,
        came.last_delivery AS last_delivery
    )"""
    both = """struct(
        least(one.first, other.first) AS first,
        greatest(one.last, other.last) AS last,
        one.records + other.records AS records,
        one.numbers + other.numbers AS numbers,
        greatest(one.reorder_depth, other.reorder_depth) AS reorder_depth,
        least(one.first_delivered_at, other.first_delivered_at) AS first_delivered_at,
        greatest(one.last_delivered_at, other.last_delivered_at) AS last_delivered_at,
        greatest(one.last_delivery, other.last_delivery) AS last_delivery
    )"""
    is_touched = touches("each", "came")
    together = f"aggregate(filter(line.held, each -> {is_touched}), {new}, (one, other) -> {both})"
    return f"concat(filter(line.held, each -> NOT {is_touched}), array({together}))"


_TAKEN = _taken()
