"""Gaps and audits. "Gaps": missing ranges of 50 M rows of ten origins at one receiver, found from delivery records, and
row by row by words of bits, beside the textbook's `lag()` over all rows. "One more minute": after 24 hours
of 64 nodes, what runs of both jobs read and take: in full, with one more minute of records, and with nothing new;
with broadcast topics alone, and when two of the ten origins publish on a selective one, of which each node wants three
tenths by three registrations.
"Growth": time of the row-level proof over rows, and of a full audit of an hour over nodes."""

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from time import perf_counter
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from m4cast.jobs import delivery_audit, ordering_gaps
from m4cast.jobs.gaps.gap_rows import advance
from m4cast.jobs.gaps.row_proof import row_ranges
from m4cast.jobs.ranges import between
from m4cast.jobs.session import delta_builder, interpreted_if_few
from m4cast.jobs.table_folder import TableFolder, frame
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.events import events_table
from m4cast.schemas.tables.interest import INTEREST
from m4cast.schemas.tables.roster import ROSTER
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch
from tests.bench.spark import jvm_pid

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
SELECTIVE_ORIGINS = 2
"""Of the ten, when there is a selective topic."""
SELECTIVE_ROWS = 10
"""Rows of a selective batch: whether they were wanted is decided by reading them."""
KINDS = 10
"""Each selective batch has rows of one kind."""
WANTED_KINDS = 3
"""Registrations of a node, each of one kind."""
WANTED = events_table("wanted", StructType([StructField("kind", LongType())]))
GROWTH_ROWS = (1_000_000, 10_000_000, 100_000_000)
GROWTH_NODES = (9, 64)


def measure(bench: Bench) -> None:
    spark = (
        delta_builder("m4cast-bench")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.memory", "4g")
        .config("spark.log.level", "OFF")
        .config("spark.hadoop.parquet.hadoop.vectored.io.enabled", "false")  # its reads are not counted
        .getOrCreate()
    )
    try:
        gaps(bench, spark)
        one_more_minute(bench, spark)
        growth(bench, spark)
    finally:
        spark.stop()


# Gaps


def gaps(bench: Bench, spark: SparkSession) -> None:
    rows = bench.of(ROWS, ROWS // 50)
    with tempfile.TemporaryDirectory(prefix="m4cast-bench-") as folder:
        is_lost = (F.col("batch") * ORIGINS + F.col("number")) % LOST_EVERY == 500
        batches = spark.range(rows // BATCH_ROWS).select(
            (F.col("id") % ORIGINS).alias("number"), F.floor(F.col("id") / ORIGINS).alias("batch")
        )
        held = batches.where(~is_lost)
        tables = TableFolder(spark, folder)
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
        answers: dict[str, list[tuple[object, ...]]] = {}

        def side(name: str, way: Callable[[], list[Row]]) -> Side:
            def work(watch: Watch) -> None:
                with watch:
                    answers[name] = sorted(tuple(row) for row in way())

            return Side(name, work, {"Spark": jvm_pid(spark)})

        def all_rows() -> DataFrame:
            return spark.read.format("delta").load(f"{folder}/events")

        by_records = side("m4cast, records", lambda: _holes_of_records(tables.read(DELIVERIES)))
        in_words = side("m4cast, rows", lambda: _holes_of_rows(all_rows()).collect())
        by_lag = side("lag() over rows", lambda: _holes_by_lag(all_rows()).collect())
        bench.compare(f"gaps in {rows:,} rows", "rows/s", by_records, by_lag, in_words, amount=rows, rounds=ROUNDS)
    first, *others = answers.values()
    assert all(other == first for other in others), "they do not agree"


def _records_of(held: DataFrame) -> DataFrame:
    """The records of one receiver."""
    number = F.row_number().over(Window.orderBy("batch", "number"))
    names = {
        "delivery": number.cast("long"),
        "node_id": F.lit("f" * 32),
        "node": F.lit("n1"),
        "published_at": F.current_timestamp(),
        "delivered_at": F.current_timestamp(),
    }
    return _records(held.withColumn("node", F.lit(-1)), names)


def _holes_of_records(deliveries: DataFrame) -> list[Row]:
    """A run as the job makes it, which counts the records first, too."""
    missing = (
        (F.col("line") == "stream") & (F.col("state") == "MISSING") & ~F.col("is_tail") & (F.col("node_id") != "*")
    )
    with interpreted_if_few(deliveries.sparkSession, deliveries.count()):
        return advance(deliveries, None).present.where(missing).select("origin", "topic", "first", "last").collect()


def _holes_of_rows(events: DataFrame) -> DataFrame:
    ranges = (
        row_ranges(events).groupBy("_origin", "_topic").agg(F.collect_list(F.struct("first", "last")).alias("held"))
    )
    end = "array_max(transform(held, each -> each.last))"
    return ranges.select("_origin", "_topic", F.expr(f"inline({between('held', end)})"))


def _holes_by_lag(events: DataFrame) -> DataFrame:
    before = F.lag("_sequence").over(Window.partitionBy("_origin", "_topic").orderBy("_sequence"))
    rows = events.select("_origin", "_topic", "_sequence", before.alias("before"))
    torn = rows.where(F.col("_sequence") - F.col("before") > 1)
    return torn.select("_origin", "_topic", F.col("before") + 1, F.col("_sequence") - 1)


# One more minute


def one_more_minute(bench: Bench, spark: SparkSession) -> None:
    for selective in (0, SELECTIVE_ORIGINS):
        _one_more_minute(bench, spark, selective)


def _one_more_minute(bench: Bench, spark: SparkSession, selective: int) -> None:
    hours = bench.of(HOURS, 1)
    with tempfile.TemporaryDirectory(prefix="m4cast-bench-") as folder:
        tables = TableFolder(spark, folder)
        make_history(tables, NODES, hours * 60, selective)
        end = BEGIN + timedelta(hours=hours)
        full = _both(spark, folder, end)
        _both(spark, folder, end)  # so that the one with nothing new is not the first of its kind
        nothing = _both(spark, folder, end)
        tables.append(DELIVERIES, minutes_of(spark, NODES, hours * 60, 1, selective))
        if selective:
            tables.append(WANTED, wanted_rows(spark, hours * 60, 1, selective))
        more = _both(spark, folder, end + timedelta(minutes=1))
    for name, (seconds, records, read) in {"full": full, "nothing new": nothing, "one more minute": more}.items():
        bench.fact(
            what=f"gaps and audit, {NODES} nodes, {hours} h, {selective} of {ORIGINS} origins selective: {name}",
            seconds=round(seconds, 1),
            records=records,
            bytes=read,
            beside=f"records 1/{full[1] / max(records, 1):.0f}, bytes 1/{full[2] / max(read, 1):.0f}, "
            f"{seconds / nothing[0]:.1f} x nothing new",
        )


def make_history(tables: TableFolder, nodes: int, minutes: int, selective: int = 0) -> None:
    """`selective`: so many of the origins publish on a selective topic."""
    for table in (DELIVERIES, ROSTER, *((INTEREST, WANTED) if selective else ())):
        tables.ensure(table)
    if selective:
        tables.append(INTEREST, frame(tables.spark, _registrations(nodes), INTEREST.schema))
        tables.append(WANTED, wanted_rows(tables.spark, 0, minutes, selective))
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
    history = minutes_of(tables.spark, nodes, 0, minutes, selective)
    history = history.repartitionByRange(max(1, minutes // 5), "delivered_at")
    tables.append(DELIVERIES, history)


def _registrations(nodes: int) -> list[dict[str, Any]]:
    """Each node wants three kinds, from before the first row on."""
    return [
        {
            "number": 1 + each,
            "node_id": f"{node:032x}",
            "node": f"n{node}",
            "registration": f"r{each}",
            "owner": "bench",
            "topic": "wanted",
            "condition": f"kind = {(node + each) % KINDS}",
            "language": "sql",
            "start": "latest",
            "epoch": 1 + each,
            "incarnation": 1,
            "ts": 1 + each,
            "from_at": BEGIN - timedelta(hours=1),
            "revision": 1 + each,
            "read_at": BEGIN,
            "first_read_at": BEGIN,
        }
        for node in range(nodes)
        for each in range(WANTED_KINDS)
    ]


def _is_selective(selective: int) -> Column:
    return F.col("number") >= ORIGINS - selective


def _kind() -> Column:
    return F.pmod(F.col("number") + F.col("batch"), F.lit(KINDS))


def _published() -> Column:
    seconds = F.col("batch") * (60 // BATCHES_PER_MINUTE) + F.col("number")
    return F.timestamp_seconds(F.lit(int(BEGIN.timestamp())) + seconds)


def wanted_rows(spark: SparkSession, begin: int, minutes: int, selective: int) -> DataFrame:
    """The rows of the selective topic of whole minutes."""
    per_minute = ORIGINS * BATCHES_PER_MINUTE
    number = F.lit(begin * per_minute) + F.col("id")
    batches = spark.range(minutes * per_minute).select(
        (number % ORIGINS).alias("number"), F.floor(number / ORIGINS).alias("batch")
    )
    columns = {
        "_topic": F.lit("wanted"),
        "_origin": F.format_string("%032x", "number"),
        "_sequence": F.explode(F.sequence(F.col("batch") * SELECTIVE_ROWS + 1, (F.col("batch") + 1) * SELECTIVE_ROWS)),
        "_published_at": _published(),
        "kind": _kind().cast("long"),
    }
    rows = batches.where(_is_selective(selective))
    return rows.select(*(columns[name].alias(name) for name in WANTED.schema.names))


def minutes_of(spark: SparkSession, nodes: int, begin: int, minutes: int, selective: int = 0) -> DataFrame:
    """Records of whole minutes: every batch of every origin at every node, but of selective ones where it is wanted."""
    per_minute = ORIGINS * BATCHES_PER_MINUTE
    number = F.lit(begin * per_minute) + F.floor(F.col("id") / nodes)
    spread = spark.range(minutes * per_minute * nodes).select(
        (F.col("id") % nodes).alias("node"),
        (number % ORIGINS).alias("number"),
        F.floor(number / ORIGINS).alias("batch"),
        number.alias("delivery"),
    )
    is_own = F.col("node") == F.col("number")
    is_wanted = F.pmod(_kind() - F.col("node"), F.lit(KINDS)) < WANTED_KINDS
    spread = spread.where(~_is_selective(selective) | is_own | is_wanted)
    published = _published()
    # Each arrival takes a time of its own: constants would be compressed to nothing.
    took_us = F.pmod(F.xxhash64("node", "number", "batch"), F.lit(100_000)) + 20_000
    names = {
        "delivery": F.col("delivery") + 1,
        "node_id": F.format_string("%032x", "node"),
        "node": F.concat(F.lit("n"), F.col("node")),
        "published_at": published,
        "delivered_at": F.timestamp_micros(F.unix_micros(published) + took_us),
    }
    if selective:
        names |= {
            "topic": F.when(_is_selective(selective), "wanted").otherwise("orders"),
            "spread": F.when(_is_selective(selective), "selective"),
        }
        rows = F.when(_is_selective(selective), SELECTIVE_ROWS).otherwise(BATCH_ROWS)
        names |= {
            "first_sequence": F.col("batch") * rows + 1,
            "last_sequence": (F.col("batch") + 1) * rows,
            "row_count": rows,
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
    nothing = F.lit(None)
    types = {field.name: field.dataType for field in DELIVERIES.schema}
    return spread.select(*(columns.get(name, nothing).cast(types[name]).alias(name) for name in types))


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
    """Records that all stages of this session have read, by Spark's own count, and bytes of files, by Hadoop's: Spark
    would count blocks that it keeps in memory, too."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    # Scala's defaults are methods of their own to others.
    defaults = [getattr(store, f"stageList$default${number}")() for number in range(2, 6)]
    stages = store.stageList(None, *defaults)
    each = [stages.apply(at) for at in range(stages.size())]
    jvm: Any = spark.sparkContext._jvm
    file_systems = jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
    return sum(int(stage.inputRecords()) for stage in each), sum(int(one.getBytesRead()) for one in file_systems)


# Growth


def growth(bench: Bench, spark: SparkSession) -> None:
    for count in GROWTH_ROWS[: bench.of(3, 1)]:
        events = spark.range(count).select(
            F.format_string("%032x", F.col("id") % ORIGINS).alias("_origin"),
            F.lit("orders").alias("_topic"),
            (F.floor(F.col("id") / ORIGINS) + 1).alias("_sequence"),
        )
        bench.fact(what="proof of rows", rows=count, seconds=round(_seconds(row_ranges(events)), 2))
    for nodes in GROWTH_NODES[: bench.of(2, 1)]:
        with tempfile.TemporaryDirectory(prefix="m4cast-bench-") as folder:
            make_history(TableFolder(spark, folder), nodes, 60)
            seconds, _, _ = _both(spark, folder, BEGIN + timedelta(hours=1))
            made = nodes * 60 * ORIGINS * BATCHES_PER_MINUTE
            bench.fact(what="full gaps and audit of an hour", nodes=nodes, records=made, seconds=round(seconds, 1))


def _seconds(found: DataFrame) -> float:
    taken = []
    for _ in range(ROUNDS):
        started = perf_counter()
        found.collect()
        taken.append(perf_counter() - started)
    return median(taken)
