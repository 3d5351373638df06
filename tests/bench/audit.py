"""Gaps and audits. "Gaps": missing ranges of 50 M rows of ten origins at one receiver, found from delivery records, and
row by row by words of bits, beside the textbook's `lag()` over all rows, in turns. "One more minute": after 24 hours
of 64 nodes, what runs of both jobs read and take: in full, with one more minute of records, and with nothing new.
"Growth": time of the row-level proof over rows, and of a full audit of an hour over nodes."""

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from time import perf_counter
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from m4cast.jobs import delivery_audit, ordering_gaps
from m4cast.jobs.ordering_gaps import advance
from m4cast.jobs.ranges import between
from m4cast.jobs.row_proof import row_ranges
from m4cast.jobs.session import delta_builder
from m4cast.jobs.tables import Tables, frame
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.roster import ROSTER

ROWS = 50_000_000
ORIGINS = 10
BATCH_ROWS = 10_000
LOST_EVERY = 997
"""One batch in so many is missing."""
ROUNDS = 2
NODES = 64
HOURS = 24
BATCHES_PER_MINUTE = 2
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
GROWTH_ROWS = (1_000_000, 10_000_000, 100_000_000)
GROWTH_NODES = (9, 64)


def measure() -> list[dict[str, object]]:
    spark = (
        delta_builder("m4cast-bench")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.memory", "4g")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    try:
        return [*gaps(spark), *one_more_minute(spark), *growth(spark)]
    finally:
        spark.stop()


# Gaps


def gaps(spark: SparkSession) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="m4cast-bench-") as folder:
        is_lost = (F.col("batch") * ORIGINS + F.col("number")) % LOST_EVERY == 500
        batches = spark.range(ROWS // BATCH_ROWS).select(
            (F.col("id") % ORIGINS).alias("number"), F.floor(F.col("id") / ORIGINS).alias("batch")
        )
        held = batches.where(~is_lost)
        tables = Tables(spark, folder)
        tables.ensure(DELIVERIES)
        tables.append(DELIVERIES, _records_of(held))
        events = held.select(
            F.format_string("%032x", "number").alias("_origin"),
            F.lit("orders").alias("_topic"),
            F.explode(F.sequence(F.col("batch") * BATCH_ROWS + 1, (F.col("batch") + 1) * BATCH_ROWS)).alias(
                "_sequence"
            ),
        )
        events = events.withColumns({"_published_at": F.current_timestamp(), "price": F.rand(1)})
        events.repartition(8).write.format("delta").save(f"{folder}/events")
        ways: dict[str, Callable[[], Any]] = {
            "records": lambda: _holes_of_records(tables.read(DELIVERIES)),
            "rows, in words": lambda: _holes_of_rows(spark.read.format("delta").load(f"{folder}/events")),
            "rows, lag()": lambda: _holes_by_lag(spark.read.format("delta").load(f"{folder}/events")),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        answers = {}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                started = perf_counter()
                answers[name] = sorted(tuple(row) for row in way().collect())
                times[name].append(perf_counter() - started)
    assert answers["records"] == answers["rows, in words"] == answers["rows, lag()"], "they do not agree"
    reference = min(times["rows, lag()"])
    return [
        _row(f"gaps in {ROWS:,} rows: {name}", f"{min(taken):.1f} s", f"{reference / min(taken):.1f} x lag()")
        for name, taken in times.items()
    ]


def _records_of(held: DataFrame) -> DataFrame:
    """Of one receiver."""
    number = F.row_number().over(Window.orderBy("batch", "number"))
    names = {
        "delivery": number.cast("long"),
        "node_id": F.lit("f" * 32),
        "node": F.lit("n1"),
        "published_at": F.current_timestamp(),
        "delivered_at": F.current_timestamp(),
    }
    return _records(held.withColumn("node", F.lit(-1)), names)


def _holes_of_records(deliveries: DataFrame) -> DataFrame:
    missing = (
        (F.col("line") == "stream") & (F.col("state") == "MISSING") & ~F.col("is_tail") & (F.col("node_id") != "*")
    )
    return advance(deliveries, None).present.where(missing).select("origin", "topic", "first", "last")


def _holes_of_rows(events: DataFrame) -> DataFrame:
    ranges = (
        row_ranges(events).groupBy("_origin", "_topic").agg(F.collect_list(F.struct("first", "last")).alias("held"))
    )
    end = F.array_max(F.transform("held", lambda each: each["last"]))
    return ranges.select("_origin", "_topic", F.inline(between(F.col("held"), end)))


def _holes_by_lag(events: DataFrame) -> DataFrame:
    before = F.lag("_sequence").over(Window.partitionBy("_origin", "_topic").orderBy("_sequence"))
    rows = events.select("_origin", "_topic", "_sequence", before.alias("before"))
    torn = rows.where(F.col("_sequence") - F.col("before") > 1)
    return torn.select("_origin", "_topic", F.col("before") + 1, F.col("_sequence") - 1)


# One more minute


def one_more_minute(spark: SparkSession) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="m4cast-bench-") as folder:
        tables = Tables(spark, folder)
        make_history(tables, NODES, HOURS * 60)
        end = BEGIN + timedelta(hours=HOURS)
        full = _both(spark, folder, end)
        _both(spark, folder, end)  # so that the one with nothing new is not the first of its kind
        nothing = _both(spark, folder, end)
        tables.append(DELIVERIES, minutes_of(spark, NODES, HOURS * 60, 1))
        more = _both(spark, folder, end + timedelta(minutes=1))
    rows = []
    for name, (seconds, records, read) in {"full": full, "nothing new": nothing, "one more minute": more}.items():
        what = f"gaps and audit, {NODES} nodes, {HOURS} h: {name}"
        read_less = f"records 1/{full[1] / max(records, 1):.0f}, bytes 1/{full[2] / max(read, 1):.0f}"
        shares = f"{read_less}, {seconds / nothing[0]:.1f} x nothing new"
        rows.append(_row(what, f"{seconds:.1f} s, {records:,} records, {read:,} bytes", shares))
    return rows


def make_history(tables: Tables, nodes: int, minutes: int) -> None:
    for table in (DELIVERIES, ROSTER):
        tables.ensure(table)
    members = [
        {
            "node_id": f"{node:032x}",
            "name": f"n{node}",
            "site": "",
            "address": f"h{node}:1",
            "door": "",
            "heard_by": f"{0:032x}",
            "incarnation": 1,
            "from_at": BEGIN - timedelta(days=1),
            "silent": False,
            "neighbours": [],
            "read_at": BEGIN,
        }
        for node in range(nodes)
    ]
    tables.append(ROSTER, frame(tables.spark, members, ROSTER.schema))
    # Files as ingest would write them, each of some minutes; in one commit, to be made in reasonable time.
    history = minutes_of(tables.spark, nodes, 0, minutes)
    history = history.repartitionByRange(max(1, minutes // 5), "delivered_at")
    tables.append(DELIVERIES, history)


def minutes_of(spark: SparkSession, nodes: int, begin: int, minutes: int) -> DataFrame:
    """Records of whole minutes: every batch of every origin at every node."""
    per_minute = ORIGINS * BATCHES_PER_MINUTE
    number = F.lit(begin * per_minute) + F.floor(F.col("id") / nodes)
    spread = spark.range(minutes * per_minute * nodes).select(
        (F.col("id") % nodes).alias("node"),
        (number % ORIGINS).alias("number"),
        F.floor(number / ORIGINS).alias("batch"),
        number.alias("delivery"),
    )
    seconds = F.col("batch") * (60 // BATCHES_PER_MINUTE) + F.col("number")
    published = F.timestamp_seconds(F.lit(int(BEGIN.timestamp())) + seconds)
    late = F.expr("make_dt_interval(0, 0, 0, 0.05)")
    names = {
        "delivery": F.col("delivery") + 1,
        "node_id": F.format_string("%032x", "node"),
        "node": F.concat(F.lit("n"), F.col("node")),
        "published_at": published,
        "delivered_at": published + late,
    }
    return _records(spread, names)


def _records(spread: DataFrame, names: dict[str, Any]) -> DataFrame:
    constants = {
        "incarnation": F.lit(1).cast("long"),
        "origin": F.format_string("%032x", "number"),
        "topic": F.lit("orders"),
        "first_sequence": F.col("batch") * BATCH_ROWS + 1,
        "last_sequence": (F.col("batch") + 1) * BATCH_ROWS,
        "kind": F.lit("batch"),
        "reason": F.lit(None).cast("string"),
        "hops": F.when(F.col("node") == F.col("number"), 0).otherwise(2),
        "from_node": F.lit(None).cast("string"),
        "how": F.when(F.col("node") == F.col("number"), "published").otherwise("pushed"),
        "origin_batch": F.col("batch") + 1,
        "row_count": F.lit(BATCH_ROWS).cast("long"),
        "payload_bytes": F.lit(1_000_000).cast("long"),
        "checksum": F.format_string("%016x", F.col("batch") * ORIGINS + F.col("number")),
    }
    columns = {**constants, **names}
    return spread.select(*(columns[name].alias(name) for name in DELIVERIES.schema.names))


def _both(spark: SparkSession, folder: str, as_of: datetime) -> tuple[float, int, int]:
    """Seconds, records and bytes that a run of both jobs takes and reads."""
    before = _read(spark)
    started = perf_counter()
    ordering_gaps.run(spark, folder)
    summary = delivery_audit.run(spark, folder, as_of=as_of, grace=timedelta(0))
    seconds = perf_counter() - started
    assert summary.run.verdict == "OK", summary.text
    after = _read(spark)
    return seconds, after[0] - before[0], after[1] - before[1]


def _read(spark: SparkSession) -> tuple[int, int]:
    """Records and bytes that all stages of this session have read, by Spark's own count."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    stages = store.stageList(None)
    each = [stages.apply(at) for at in range(stages.size())]
    return sum(int(stage.inputRecords()) for stage in each), sum(int(stage.inputBytes()) for stage in each)


# Growth


def growth(spark: SparkSession) -> list[dict[str, object]]:
    rows = []
    for count in GROWTH_ROWS:
        events = spark.range(count).select(
            F.format_string("%032x", F.col("id") % ORIGINS).alias("_origin"),
            F.lit("orders").alias("_topic"),
            (F.floor(F.col("id") / ORIGINS) + 1).alias("_sequence"),
        )
        seconds = _seconds(row_ranges(events))
        rows.append(_row(f"proof of {count:,} rows", f"{seconds:.1f} s", f"{count / seconds / 1e6:.1f} M rows/s"))
    for nodes in GROWTH_NODES:
        with tempfile.TemporaryDirectory(prefix="m4cast-bench-") as folder:
            make_history(Tables(spark, folder), nodes, 60)
            seconds, _, _ = _both(spark, folder, BEGIN + timedelta(hours=1))
            made = nodes * 60 * ORIGINS * BATCHES_PER_MINUTE
            rows.append(_row(f"full gaps and audit of an hour, {nodes} nodes", f"{seconds:.1f} s", f"{made:,} records"))
    return rows


def _seconds(found: DataFrame) -> float:
    taken = []
    for _ in range(ROUNDS):
        started = perf_counter()
        found.collect()
        taken.append(perf_counter() - started)
    return median(taken)


def _row(what: str, value: str, beside: str) -> dict[str, object]:
    return {"what": what, "value": value, "beside": beside}
