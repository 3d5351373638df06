"""What was published against what arrived, per stream, receiver and minute of publication: the audit's transform.

A window holds the batches that were published in its minute, as anybody who has one tells it: a batch never changes,
and its time and checksum travel with it. Each batch is then looked up at each receiver: it arrived (with the right
checksum), or a skip stands in its place, or it is missing. It was expected if the receiver was on the channel when
it was published.

Nothing here looks beyond a window, so that a window can be stated anew by itself when something about it changes.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from m4cast.jobs.ranges import islands, length
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT

WINDOW_SECONDS = 60
LEFT_LISTED = "INTERVAL 1 DAY"
"""A node that left longer ago has no rows in later windows."""
DECLINED = ("filtered", "not-subscribed")
PERCENTILES = {"latency_p50_ms": 0.5, "latency_p95_ms": 0.95, "latency_p99_ms": 0.99}
BATCH = ("origin", "topic", "first", "last", "published_at")
COLUMNS = tuple(name for name in DELIVERY_AUDIT.schema.names if name != "run_id")
WINDOW = ("window_start", "origin", "topic", "node_id")


def window_start(time: str) -> Column:
    return F.date_trunc("minute", time)


def members_of(roster: DataFrame, reporters: DataFrame, within: Sequence[str] = ()) -> DataFrame:
    """One row for each node of the roster: when it was a member, whether it is heard, and where it is."""
    keys = [*within, "node_id"]
    is_silent = F.col("silent") & F.col("to_at").isNull()
    members = roster.groupBy(*keys).agg(
        F.collect_list(F.struct("from_at", "to_at")).alias("memberships"),
        F.max_by(is_silent, "incarnation").alias("silent"),
        F.max_by(F.regexp_replace("address", ":[0-9]+$", ""), "incarnation").alias("host"),
    )
    reported = reporters.select(*keys).distinct().withColumn("has_reported", F.lit(True))
    return members.join(reported, on=keys, how="left").withColumn("has_reported", F.col("has_reported").isNotNull())


def audit(
    deliveries: DataFrame, skips: DataFrame, members: DataFrame, late_ms: int, within: Sequence[str] = ()
) -> DataFrame:
    """Rows of `delivery_audit` without `run_id`, from all batch records of some windows and all skips."""
    looked_up = _looked_up(deliveries, skips, members, within)
    return _stated(_summed(looked_up, within), late_ms, within)


def _looked_up(deliveries: DataFrame, skips: DataFrame, members: DataFrame, within: Sequence[str]) -> DataFrame:
    """Each batch at each receiver: whether it was expected, arrived, and what of it was skipped."""
    batch = [*within, *BATCH]
    records = deliveries.select(
        *within,
        "origin",
        "topic",
        F.col("first_sequence").alias("first"),
        F.col("last_sequence").alias("last"),
        "published_at",
        "node_id",
        "delivery",
        "delivered_at",
        "hops",
        "checksum",
        "how",
    )
    of_batch = Window.partitionBy(*batch)
    by_origin = F.max(F.when(F.col("how") == "published", F.col("checksum"))).over(of_batch)
    records = records.withColumn("true_checksum", F.coalesce(by_origin, F.min("checksum").over(of_batch)))
    is_right = F.col("checksum") == F.col("true_checksum")
    arrival = F.struct("delivered_at", "hops")
    copies = records.groupBy(*batch, "true_checksum", "node_id").agg(
        F.count("*").alias("copies"),
        F.min_by(F.when(is_right, arrival), F.when(is_right, F.col("delivery"))).alias("arrival"),
        F.min_by("checksum", "delivery").alias("first_checksum"),
    )
    end = F.col("window_start") + F.expr(f"INTERVAL {WINDOW_SECONDS} SECONDS")
    published = (
        copies.select(*batch, "true_checksum").distinct().withColumn("window_start", window_start("published_at"))
    )
    nodes = F.broadcast(members.select(*within, "node_id", "memberships"))
    pairs = published.join(nodes, on=list(within), how="inner") if within else published.crossJoin(nodes)
    is_listed = F.exists(
        "memberships",
        lambda each: (
            (each["from_at"] < end)
            & (each["to_at"].isNull() | (each["to_at"] > F.col("window_start") - F.expr(LEFT_LISTED)))
        ),
    )
    pairs = pairs.where(is_listed).select(*batch, "true_checksum", "node_id")
    both = copies.unionByName(pairs, allowMissingColumns=True).groupBy(*batch, "true_checksum", "node_id")
    met = both.agg(
        F.max("copies").alias("copies"),
        F.max("arrival").alias("arrival"),
        F.max("first_checksum").alias("first_checksum"),
    )
    met = met.join(F.broadcast(_skip_lines(skips, within)), on=[*within, "node_id", "origin", "topic"], how="left")
    of_node = members.withColumnRenamed("host", "node_host")
    of_origin = members.select(*within, F.col("node_id").alias("origin"), F.col("host").alias("origin_host"))
    met = met.join(F.broadcast(of_node), on=[*within, "node_id"], how="left")
    return met.join(F.broadcast(of_origin), on=[*within, "origin"], how="left")


def _skip_lines(skips: DataFrame, within: Sequence[str]) -> DataFrame:
    """For each stream at each receiver: the ranges that were skipped, and those that were declined."""
    keys = [*within, "node_id", "origin", "topic"]
    is_declined = F.col("reason").isin(*DECLINED)
    ranges = skips.select(
        *keys,
        F.explode(
            F.when(is_declined, F.array(F.lit("skipped"), F.lit("declined"))).otherwise(F.array(F.lit("skipped")))
        ).alias("part"),
        F.col("first_sequence").alias("first"),
        F.col("last_sequence").alias("last"),
    )
    union = islands(ranges, [*keys, "part"])

    def part(name: str) -> Column:
        return F.collect_list(F.when(F.col("part") == name, F.struct("first", "last"))).alias(f"{name}_ranges")

    return union.groupBy(*keys).agg(part("skipped"), part("declined"))


def _summed(met: DataFrame, within: Sequence[str]) -> DataFrame:
    """Batches at receivers, summed up for each window."""
    rows = length()
    published_at = F.col("published_at")
    is_member = F.coalesce(
        F.exists(
            "memberships",
            lambda each: (each["from_at"] <= published_at) & (each["to_at"].isNull() | (published_at < each["to_at"])),
        ),
        F.lit(False),
    )
    was_member = F.coalesce(F.exists("memberships", lambda each: each["from_at"] <= published_at), F.lit(False))
    has_arrived = F.col("arrival").isNotNull()
    skipped, declined = _rows_in("skipped_ranges"), _rows_in("declined_ranges")
    is_absent = is_member & ~has_arrived

    def count(condition: Column, amount: Column) -> Column:
        return F.when(condition, amount).otherwise(F.lit(0)).cast("long")

    facts = met.withColumns(
        {
            "window_start": window_start("published_at"),
            "rows": rows,
            "is_member": is_member,
            "was_member": was_member,
            "is_arrived": is_member & has_arrived,
            "expected": count(is_member, F.when(has_arrived, rows).otherwise(rows - declined)),
            "delivered": count(has_arrived, rows),
            "missing": count(is_absent, rows - skipped),
            "lost": count(is_absent, skipped - declined),
            "declined": count(is_absent, declined),
            "mismatched": count(is_absent & F.col("copies").isNotNull(), rows),
            "duplicates": count(F.col("copies").isNotNull(), rows * (F.col("copies") - 1)),
            "latency_us": F.unix_micros(F.col("arrival.delivered_at")) - F.unix_micros("published_at"),
            "hops": F.col("arrival.hops"),
        }
    )
    arrived_rows = F.when(F.col("is_arrived"), F.col("rows"))
    latency = F.when(F.col("is_arrived"), F.col("latency_us"))
    hops = F.when(F.col("is_arrived"), F.col("hops"))
    is_of_sum = F.col("expected") > 0
    arrived_checksum = F.when(F.col("is_arrived"), F.col("true_checksum")).otherwise(F.col("first_checksum"))
    counts = ("expected", "delivered", "missing", "lost", "declined", "mismatched", "duplicates")
    return facts.groupBy(*within, *WINDOW).agg(
        F.sum("rows").alias("published"),
        *(F.sum(name).alias(name) for name in counts),
        F.sum(arrived_rows).alias("arrived"),
        F.percentile(latency, list(PERCENTILES.values()), F.coalesce(arrived_rows, F.lit(1))).alias("latencies_us"),
        F.max(latency).alias("latency_max_us"),
        F.sum(hops * F.col("rows")).alias("hops_rows"),
        F.max(hops).cast("long").alias("hops_max"),
        F.bit_xor(F.when(is_of_sum, _bits("true_checksum"))).alias("published_bits"),
        F.bit_xor(F.when(is_of_sum, _bits_of(arrived_checksum))).alias("delivered_bits"),
        F.min("first").alias("first_sequence"),
        F.max("last").alias("last_sequence"),
        F.bool_or("was_member").alias("was_member"),
        F.first("silent").alias("silent"),
        F.first("has_reported").alias("has_reported"),
        F.first("node_host").alias("node_host"),
        F.first("origin_host").alias("origin_host"),
    )


def _rows_in(ranges: str) -> Column:
    """Rows of the batch that lie in ranges, which do not overlap each other."""
    met = f"filter({ranges}, span -> span.first <= last AND first <= span.last)"
    rows = "rows + least(span.last, last) - greatest(span.first, first) + 1"
    return F.expr(f"coalesce(aggregate({met}, CAST(0 AS bigint), (rows, span) -> {rows}), 0)")


def _bits(name: str) -> Column:
    return _bits_of(F.col(name))


def _bits_of(checksum: Column) -> Column:
    """16 hex digits as 64 bits. In halves, since a number of Spark has a sign."""

    def half(at: int) -> Column:
        return F.conv(F.substring(checksum, at, 8), 16, 10).cast("long")

    return F.shiftleft(half(1), 32).bitwiseOR(half(9))


def _digits(bits: Column) -> Column:
    return F.lower(F.lpad(F.hex(F.coalesce(bits, F.lit(0).cast("long"))), 16, "0"))


def _stated(sums: DataFrame, late_ms: int, within: Sequence[str]) -> DataFrame:
    """Sums as rows of the table, with their status."""
    ms = {name: F.col("latencies_us")[at] / 1000 for at, name in enumerate(PERCENTILES)}
    named = sums.withColumns(
        {
            **ms,
            "latency_max_ms": F.col("latency_max_us") / 1000,
            "completeness": F.when(F.col("expected") > 0, 100 * F.coalesce("arrived", F.lit(0)) / F.col("expected")),
            "hops_mean": F.col("hops_rows") / F.col("arrived"),
            "published_checksum": _digits(F.col("published_bits")),
            "delivered_checksum": _digits(F.col("delivered_bits")),
            "clocks": F.when(F.col("node_id") == F.col("origin"), "own")
            .when(F.col("node_host") == F.col("origin_host"), "host")
            .otherwise("apart"),
        }
    ).withColumn("is_identical", F.col("published_checksum") == F.col("delivered_checksum"))
    is_unexpected = F.col("expected") == 0
    has_left = F.col("was_member") & (F.col("declined") == 0)
    is_whole = (F.col("missing") == 0) & (F.col("lost") == 0)
    is_late = F.col("latency_max_ms") > late_ms
    has_nothing = F.col("arrived").isNull() & (F.col("lost") == 0) & (F.col("mismatched") == 0)
    is_silent = F.col("silent") | ~F.col("has_reported")
    status = (
        F.when(is_unexpected & has_left, "LEFT")
        .when(is_unexpected, "NOT_EXPECTED")
        .when(is_whole & is_late, "LATE")
        .when(is_whole, "OK")
        .when(has_nothing & is_silent, "SILENT")
        .when(has_nothing, "STALLED")
        .otherwise("INCOMPLETE")
    )
    return named.withColumn("status", status).select(*within, *COLUMNS)
