"""Streaming into Delta by the ingest job with its direct engine, from one node with fsync, beside Spark's Kafka
connector in the same session, local[2]: rows of 100 bytes, and wide rows (20 columns, nested; Kafka's with from_avro).
Both sides make a new table and read the same number of rows in micro-batches of the same size. "Streaming": the rows
after the first commit, by the time from the first to the last commit of the table. "Whole run": all rows, from the call
to its end, with what happens before the first row and after the last; the CPU time is that of the whole run."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import StructType

from m4cast.schemas.tables.events import events_table
from tests.bench.comparison import Bench, Comparison, Missing, Side
from tests.bench.processes import Watch
from tests.bench.references import ROW_BYTES, bench_cluster, pids
from tests.bench.spark import BROKER, PARTITIONS, READ_TIMES, Speeds, bench_session, jvm_pid, timed
from tests.kafka_broker import running_broker

ROWS = 2_000_000
QUICK_ROWS = 250_000
"""Of one publish; `READ_TIMES` as many are read."""
MICRO_BATCHES = 8
WIDE_ROWS = 1_600_000
QUICK_WIDE_ROWS = 200_000
AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"
"""Spark's of the same version as Spark is not published."""
ROUNDS = 3
WIDE = [
    *(f"id * {number} AS n{number}" for number in range(1, 9)),
    *(f"concat('text ', id % {10**number}) AS t{number}" for number in range(1, 6)),
    *(f"id / {number} AS d{number}" for number in range(3, 6)),
    "timestamp_millis(1700000000000 + id) AS at",
    "id % 2 = 0 AS flag",
    "named_struct('x', id, 'y', named_struct('name', concat('n', id % 7), 'z', id / 3)) AS place",
    "array(id, id + 1, id + 2) AS items",
]
assert len(WIDE) == 20


def measure(bench: Bench) -> None:
    with (
        tempfile.TemporaryDirectory() as text,
        bench_session(packages=AVRO) as spark,
        bench_cluster(1) as cluster,
        running_broker(Path(text) / "kafka", BROKER, java_options=()) as broker,
    ):
        folder = Path(text)
        speeds = Speeds(spark, cluster.node("n1").door, broker.address, folder, bench.of(ROWS, QUICK_ROWS))
        jvm = {"Spark": jvm_pid(spark)}
        ours, kafkas = {**pids(cluster), **jvm}, {"broker": broker.pid, **jvm}
        rows = READ_TIMES * bench.of(ROWS, QUICK_ROWS)
        at_once = rows // MICRO_BATCHES
        done = bench.compare(
            "streaming into Delta, rows of 100 B",
            "rows/s",
            Side("m4cast", streamed(folder, lambda name: speeds.ingest(name, max_rows=at_once), "read"), ours),
            Side("Kafka's connector", streamed(folder, lambda name: speeds.kafka_to_delta(name, at_once)), kafkas),
            gb=rows * ROW_BYTES / 1e9,
            bar=2.5,
            rounds=ROUNDS,
        )
        _whole_run(bench, done, rows)
        _cpu(bench, done, 0.5)
        wide = WideRows(spark, speeds, bench.of(WIDE_ROWS, QUICK_WIDE_ROWS))
        done = bench.compare(
            "streaming into Delta, 20 columns, nested",
            "rows/s",
            Side("m4cast", streamed(folder, wide.ingest, "wide"), ours),
            wide.reference(folder, kafkas),
            bar=2.0,
            rounds=ROUNDS,
        )
        _whole_run(bench, done, wide.count)


def streamed(folder: Path, action: Callable[[str], None], topic: str | None = None) -> Callable[[Watch], float]:
    """The rows/s of a table's commits after the first. `topic`: the table is one of ingest's."""

    def work(watch: Watch) -> float:
        names: list[str] = []

        def noted(name: str) -> None:
            names.append(name)
            action(name)

        timed(noted)(watch)
        (name,) = names
        table = folder / name if topic is None else Path(events_table(topic, StructType()).path(str(folder / name)))
        return _rows_per_s(table / "_delta_log")

    return work


def _rows_per_s(log: Path) -> float:
    commits: list[tuple[float, int]] = []
    for path in sorted(log.glob("*.json")):
        adds = [json.loads(line)["add"] for line in path.read_text().splitlines() if line.startswith('{"add"')]
        if adds:
            commits.append((path.stat().st_mtime, sum(json.loads(add["stats"])["numRecords"] for add in adds)))
    assert len(commits) >= MICRO_BATCHES
    full = commits[:MICRO_BATCHES]  # Kafka's limit goes by partitions, so a few rows may come after them
    return sum(rows for _, rows in full[1:]) / (full[-1][0] - full[0][0])


def _whole_run(bench: Bench, done: Comparison, rows: int) -> None:
    for side in done.sides[1:]:
        ratios = [theirs / ours for ours, theirs in zip(done.sides[0].seconds, side.seconds, strict=True)]
        bench.fact(
            what=f"{done.what}: whole run, rows/s",
            m4cast=f"{rows / median(done.sides[0].seconds):,.0f}",
            reference=f"{rows / median(side.seconds):,.0f}",
            ratio=f"{median(ratios):.2f}",
            bar="",
        )


def _cpu(bench: Bench, done: Comparison, bar: float) -> None:
    """CPU seconds per GB of ours by the reference's, of all processes."""
    ours, theirs = (sum(done.cpu(side).values()) for side in done.sides[:2])
    bench.fact(
        what=f"{done.what}: whole run, CPU s/GB",
        m4cast=f"{ours:.1f}",
        reference=f"{theirs:.1f}",
        ratio=f"{ours / theirs:.2f}",
        bar=f"<= {bar}",
    )


class WideRows:
    def __init__(self, spark: SparkSession, speeds: Speeds, count: int) -> None:
        self.count = count
        self._spark = spark
        self._speeds = speeds
        rows = spark.range(0, count, 1, PARTITIONS).selectExpr(*WIDE)
        struct = F.struct(*rows.columns)
        schema = rows.select(struct.alias("row")).schema["row"].dataType
        assert isinstance(schema, StructType)
        self._avro = _avro_schema(spark, schema)
        rows.write.format("m4cast").mode("append").options(nodes=speeds.nodes, topic="wide").save()
        speeds.make_topic("wide")
        try:
            speeds.write_kafka("wide", rows.select(to_avro(struct, self._avro).alias("value")))
            self._why_not = ""
        except Exception as error:  # whatever Spark says about the other version's jar
            self._why_not = str(error).partition("\n")[0]

    def reference(self, folder: Path, processes: Mapping[str, int]) -> Side | Missing:
        name = "Kafka's connector, from_avro"
        if self._why_not:
            return Missing(name, self._why_not)
        return Side(name, streamed(folder, self.kafka_to_delta), processes)

    def ingest(self, name: str) -> None:
        self._speeds.ingest(name, "wide", self.count, self.count // MICRO_BATCHES)

    def kafka_to_delta(self, name: str) -> None:
        read = self._speeds.stream_kafka("wide", self.count // MICRO_BATCHES)
        rows = read.select(from_avro("value", self._avro).alias("row"), "topic", "partition", "offset", "timestamp")
        self._speeds.to_delta(rows.select("row.*", "topic", "partition", "offset", "timestamp"), name)


def _avro_schema(spark: SparkSession, schema: StructType) -> str:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    type_ = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters
    return str(converters.toAvroType(type_, False, "row", "").toString())
