"""Lines of streams: what one receiver holds, skipped and is missing of one stream, folded from its records in order.

A *line* is one row with arrays of ranges. Delivery records are ranges on it, in the order of arrival. A record that
leaves a hole after the previous ones opens a *gap*; later records may fill it piece by piece: filled parts are
repaired, the rest is missing.

Records that continue the line are combined first, by one sort per line. The remaining ones (a few for each disorder)
are folded into the line one by one. So a healthy line costs one sort, however long it is, and a line continues from an
earlier run.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
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

# New records, sorted by their first field: in the order of arrival.
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
    """Lines after more records. `lines` has all parts but `repaired`, which lists only what these records repair."""
    arrived = _combined(records, lines, keys)
    by_line = arrived.groupBy(*keys).agg(F.array_sort(F.collect_list(F.struct(*ARRIVED))).alias("arrived"))
    both = lines.withColumn("repaired", F.lit(None).cast(array_of(REPAIRED))).join(
        by_line, on=list(keys), how="full_outer"
    )
    start = ", ".join(f"{_or_none(name, fields)} AS {name}" for name, fields in PARTS.items())
    folded = f"aggregate({_or_none('arrived', ARRIVED)}, struct({start}), (line, came) -> {_TAKEN})"
    return both.select(*keys, F.expr(folded).alias("line_now")).select(*keys, "line_now.*")


def _or_none(array: str, fields: dict[str, str]) -> str:
    return f"coalesce({array}, {no_ranges(fields)})"


def _combined(records: DataFrame, lines: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The records, with consecutive ones combined; each with the gap that it opens and how late it arrived."""
    recorded = spans("held", "skipped")
    known = lines.selectExpr(
        *keys,
        f"array_min(transform({recorded}, each -> each.first)) AS known_low",
        f"array_max(transform({recorded}, each -> each.last)) AS known_high",
    )
    line = f"PARTITION BY {', '.join(keys)} ORDER BY delivery ROWS"
    before = f"OVER ({line} BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    so_far = f"OVER ({line} UNBOUNDED PRECEDING)"
    seen = records.join(F.broadcast(known), on=list(keys), how="left").selectExpr(
        "*", f"least(min(first) {before}, known_low) AS low", f"greatest(max(last) {before}, known_high) AS high"
    )
    marked = seen.selectExpr(
        "*",
        "CASE WHEN first - 1 > high THEN high + 1 WHEN last < low - 1 THEN last + 1 END AS gap_first",
        "CASE WHEN first - 1 > high THEN first - 1 WHEN last < low - 1 THEN low - 1 END AS gap_last",
        "greatest(high - first, 0) AS depth",
        "kind = 'batch' AND coalesce(first > high, true) AS is_forward",
    )
    forward_to = f"max(if(is_forward, last, NULL)) {before}"
    marked = marked.selectExpr("*", f"is_forward AND NOT coalesce(first - 1 = {forward_to}, false) AS is_start")
    number = f"if(is_forward, sum(int(is_start)) {so_far}, -delivery)"
    grouped = marked.selectExpr("*", f"{number} AS together").groupBy(*keys, "together")
    opening = "min_by(struct(kind, reason, delivered_at, gap_first, gap_last, depth), delivery) AS opening"
    measures = (
        "min(delivery) AS delivery",
        "min(first) AS first",
        "max(last) AS last",
        "count(*) AS records",
        "min(delivered_at) AS first_delivered_at",
        "max(delivered_at) AS last_delivered_at",
        "max(delivery) AS last_delivery",
        opening,
    )
    return grouped.agg(*map(F.expr, measures)).select("*", "opening.*")


def _taken() -> str:
    """The `line` after one more record, or several combined ones (`came`)."""
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
    """The held ranges with one more, merged with those that it touches."""
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
