"""Published against delivered, per stream, receiver and window of publication: the audit's transform.

A window contains the batches that were published in it, according to any node that has them: a batch never changes, and
carries its time and checksum. Each batch is then looked up at each receiver: it arrived (with the right checksum), was
skipped, is missing, or was not read (see `expectation`). It was expected if the receiver was on the channel when it was
published and, if its stream is selective, wanted it then (see `wants`). A skip does not excuse a receiver that wanted
the rows, because whether filtering was correct is what the audit checks.

Windows are independent of each other, so one can be written again when something about it changes.
"""

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from m4cast.jobs.audit.windows import window_end, window_start
from m4cast.jobs.expectation import is_member
from m4cast.jobs.ranges import islands, length, rows_within
from m4cast.jobs.wants import InterestFacts
from m4cast.schemas.tables.delivery_audit import DELIVERY_AUDIT, NOT_READ

LEFT_LISTED = "INTERVAL 1 DAY"
"""A node that left longer ago has no rows in a window."""
DECLINED = ("filtered", "not-subscribed")
PERCENTILES = {"latency_p50_ms": 0.5, "latency_p95_ms": 0.95, "latency_p99_ms": 0.99}
BATCH = ("origin", "topic", "first", "last", "published_at")
COLUMNS = tuple(name for name in DELIVERY_AUDIT.schema.names if name != "run_id")
WINDOW_KEY = ("window_start", "origin", "topic", "node_id")
COUNTS = (
    "expected",
    "delivered",
    "missing",
    "lost",
    "declined",
    "mismatched",
    "duplicates",
    "not_read",
    "unknown",
)
LINE = ("node_id", "origin", "topic")
EXTENT = ("recorded_from", "recorded_until")
"""The lowest and the highest sequence of a stream in a receiver's records."""


def audit(
    deliveries: DataFrame,
    skips: DataFrame,
    members: DataFrame,
    extents: DataFrame,
    late_ms: int,
    within: Sequence[str] = (),
    deleted_until: datetime | None = None,
) -> DataFrame:
    """Rows of `delivery_audit` without `run_id`, from all batch records of some windows and all skips; with a column
    `unknown`: rows that a member has no record of and was not expected to have.

    `extents`: see `extents_of`. Records of rows that were published up to `deleted_until` may have been deleted.
    """
    looked_up = look_up(deliveries, skips, members, within)
    return state(looked_up, extents, late_ms, within, deleted_until)


def state(
    looked_up: DataFrame,
    extents: DataFrame,
    late_ms: int,
    within: Sequence[str] = (),
    deleted_until: datetime | None = None,
) -> DataFrame:
    line = [*within, *LINE]
    known = looked_up.join(F.broadcast(extents.select(*line, *EXTENT)), on=line, how="left")
    return _stated(_summed(known, within, deleted_until), late_ms, within)


def lines_with_holes(looked_up: DataFrame) -> DataFrame:
    """The streams at receivers that lack a record of a batch that they were expected to receive."""
    return looked_up.where(F.col("arrival").isNull() & is_due()).select(*LINE).distinct()


def is_due() -> Column:
    """True if a receiver was expected to receive a batch, or may have been."""
    return is_member() & (~F.col("is_selective") | F.col("is_wanted") | F.col("is_undecided"))


def extents_of(records: DataFrame, within: Sequence[str] = ()) -> DataFrame:
    """The lowest and the highest sequence of each stream in each receiver's records, batches and skips."""
    low, high = F.min("first_sequence").alias(EXTENT[0]), F.max("last_sequence").alias(EXTENT[1])
    return records.groupBy(*within, *LINE).agg(low, high)


def look_up(
    deliveries: DataFrame,
    skips: DataFrame,
    members: DataFrame,
    within: Sequence[str] = (),
    wants: InterestFacts | None = None,
) -> DataFrame:
    """Each batch at each receiver: its copies, its arrival, the skipped ranges of its stream, and whether it was wanted
    (`wants`, None: no stream is selective)."""
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
    end = window_end("window_start")
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
    return _with_wants(met.join(F.broadcast(of_origin), on=[*within, "origin"], how="left"), wants)


def _with_wants(met: DataFrame, wants: InterestFacts | None) -> DataFrame:
    if wants is None:
        no = F.lit(False)
        none = F.lit(None).cast("long")
        return met.withColumns({"is_selective": no, "is_wanted": no, "is_undecided": no, "epoch": none})
    streams = F.broadcast(wants.streams.withColumn("is_selective", F.lit(True)))
    met = met.join(streams, on=["origin", "topic"], how="left")
    met = met.join(wants.batches, on=[*BATCH, "node_id"], how="left")
    marks = ("is_selective", "is_wanted", "is_undecided")
    return met.withColumns({name: F.coalesce(name, F.lit(False)) for name in marks})


def _skip_lines(skips: DataFrame, within: Sequence[str]) -> DataFrame:
    """The skipped ranges of each stream at each receiver, and the declined ones among them."""
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


def _summed(met: DataFrame, within: Sequence[str], deleted_until: datetime | None) -> DataFrame:
    """The sums over all batches of a window at a receiver."""
    facts = _facts(met, deleted_until)
    arrived_rows = F.when(F.col("is_arrived"), F.col("rows"))
    latency = F.when(F.col("is_arrived"), F.col("latency_us"))
    hops = F.when(F.col("is_arrived"), F.col("hops"))
    is_of_sum = F.col("expected") > 0
    arrived_checksum = F.when(F.col("is_arrived"), F.col("true_checksum")).otherwise(F.col("first_checksum"))
    return facts.groupBy(*within, *WINDOW_KEY).agg(
        F.sum("rows").alias("published"),
        *(F.sum(name).alias(name) for name in COUNTS),
        F.sum(arrived_rows).alias("arrived"),
        F.percentile(latency, list(PERCENTILES.values()), F.coalesce(arrived_rows, F.lit(1))).alias("latencies_us"),
        F.max(latency).alias("latency_max_us"),
        F.sum(hops * F.col("rows")).alias("hops_rows"),
        F.max(hops).cast("long").alias("hops_max"),
        F.max("epoch").alias("epoch"),
        F.bit_xor(F.when(is_of_sum, _bits("true_checksum"))).alias("published_bits"),
        F.bit_xor(F.when(is_of_sum, _bits_of(arrived_checksum))).alias("delivered_bits"),
        F.min("first").alias("first_sequence"),
        F.max("last").alias("last_sequence"),
        F.bool_or("was_member").alias("was_member"),
        F.first("silent").alias("silent"),
        F.first("node_host").alias("node_host"),
        F.first("origin_host").alias("origin_host"),
    )


def _facts(met: DataFrame, deleted_until: datetime | None) -> DataFrame:
    """The outcome of each batch at each receiver, in rows."""
    rows = length()
    published_at = F.col("published_at")
    was_member = F.coalesce(F.exists("memberships", lambda each: each["from_at"] <= published_at), F.lit(False))
    has_arrived = F.col("arrival").isNotNull()
    low, high = (F.col(name) for name in EXTENT)
    is_early = F.lit(False) if deleted_until is None else F.col("is_cut") & (published_at <= F.lit(deleted_until))
    before = F.greatest(F.lit(0), F.least(rows, low - F.col("first")))
    is_selective = F.col("is_selective")
    is_absent = is_due() & ~has_arrived
    unknown = F.when(low.isNull(), F.when(is_early, rows).otherwise(0)).otherwise(before)
    unknown = F.when(is_selective & ~is_early, 0).otherwise(unknown)  # where it begins, its registration says
    skipped, declined = rows_within("skipped_ranges"), rows_within("declined_ranges")
    skipped, declined = (
        skipped - F.when(is_selective, declined).otherwise(0),
        F.when(~is_selective, declined).otherwise(0),
    )
    is_unwanted = is_member() & ~is_due()
    is_unread = F.col("is_gone") | ~F.col("has_reported")
    after = F.when(high.isNull(), rows).otherwise(
        F.greatest(F.lit(0), F.col("last") - F.greatest(high, F.col("first") - 1))
    )
    not_read = F.when(is_unread & ~(low.isNull() & is_early), after).otherwise(0)
    not_read = F.when(F.col("is_undecided"), rows - skipped - unknown).otherwise(not_read)

    def count(condition: Column, amount: Column) -> Column:
        return F.when(condition, amount).otherwise(F.lit(0)).cast("long")

    return met.withColumns(
        {
            "window_start": window_start("published_at"),
            "rows": rows,
            "was_member": was_member,
            "is_arrived": is_due() & has_arrived,
            "expected": count(is_due(), F.when(has_arrived, rows).otherwise(rows - declined - unknown)),
            "delivered": count(has_arrived, rows),
            "unknown": count(is_absent, unknown),
            "not_read": count(is_absent, not_read),
            "missing": count(is_absent, rows - skipped - unknown - not_read),
            "lost": count(is_absent, skipped - declined),
            "declined": count(is_absent, declined) + count(is_unwanted, rows),
            "mismatched": count(is_absent & F.col("copies").isNotNull(), rows),
            "duplicates": count(F.col("copies").isNotNull(), rows * (F.col("copies") - 1)),
            "latency_us": F.unix_micros(F.col("arrival.delivered_at")) - F.unix_micros("published_at"),
            "hops": F.col("arrival.hops"),
        }
    )


def _bits(name: str) -> Column:
    return _bits_of(F.col(name))


def _bits_of(checksum: Column) -> Column:
    """16 hex digits as 64 bits, in halves because Spark's integers are signed."""

    def half(at: int) -> Column:
        return F.conv(F.substring(checksum, at, 8), 16, 10).cast("long")

    return F.shiftleft(half(1), 32).bitwiseOR(half(9))


def _digits(bits: Column) -> Column:
    return F.lower(F.lpad(F.hex(F.coalesce(bits, F.lit(0).cast("long"))), 16, "0"))


def _stated(sums: DataFrame, late_ms: int, within: Sequence[str]) -> DataFrame:
    """The sums as rows of the table, with their status."""
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
    has_left = F.col("was_member") & (F.col("declined") == 0) & (F.col("unknown") == 0)
    has_all_known = (F.col("missing") == 0) & (F.col("lost") == 0)
    is_whole = has_all_known & (F.col("not_read") == 0)
    is_late = F.col("latency_max_ms") > late_ms
    has_nothing = F.col("arrived").isNull() & (F.col("lost") == 0) & (F.col("mismatched") == 0)
    status = (
        F.when(is_unexpected & has_left, "LEFT")
        .when(is_unexpected, "NOT_EXPECTED")
        .when(is_whole & is_late, "LATE")
        .when(is_whole, "OK")
        .when(has_all_known, NOT_READ)
        .when(has_nothing & F.col("silent"), "SILENT")
        .when(has_nothing, "STALLED")
        .otherwise("INCOMPLETE")
    )
    return named.withColumn("status", status).select(*within, *COLUMNS, "unknown")
