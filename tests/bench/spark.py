"""Rows of 100 bytes through Spark (local[2]) and one node with fsync, beside Spark's own Kafka connector with a tuned
broker (lz4, 256 KB batches, no fsync) in the same session. "Publish": a
batch write of rows in memory. "Read": to Spark's noop sink. "To Delta": a streaming read, all columns, availableNow.
"Ingest": the same rows by the ingest job with its direct engine, including what it does before and after.
"Ready rows": a Python source that gives Spark the same columns without any work, which is the limit of one in Python;
to Delta as a batch, without a stream's part.
"Trigger": micro-batches of one row from source to sink, beside a Python source and sink that do nothing, in turns: the
median of the paired differences."""

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pyspark
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from pyspark.sql import DataFrame, SparkSession

from m4cast.jobs import ingest
from m4cast.jobs.ingest import Ingest
from m4cast.spark_connector.option_values import CHANNEL_COLUMNS
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch
from tests.bench.ready_source import ready_rows
from tests.bench.references import ROW_BYTES, bench_cluster, pids
from tests.bench.triggers import QUICK_WARM, WARM, trigger_ms
from tests.kafka_broker import running_broker

ROWS = 2_000_000
READ_TIMES = 4
"""As many rows are read as so many publishes left: a read of one second would mostly say how a query starts."""
PARTITIONS = 2
QUICK_ROWS = 500_000
TRIGGERS = 200
JARS_FOLDER = Path.home() / ".cache" / "m4cast" / "spark-kafka-4.2.0"
DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
PAYLOAD = "substring(unhex(concat(sha2(string(id), 512), sha2(string(id), 384))), 1, 100)"
"""100 bytes that do not compress."""
BROKER = {"num.network.threads": "2", "num.io.threads": "2"}
PRODUCER = {
    "kafka.compression.type": "lz4",
    "kafka.batch.size": str(256 << 10),
    "kafka.linger.ms": "5",
    "kafka.buffer.memory": str(64 << 20),
    "kafka.acks": "1",
}
CONSUMER = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.max.poll.records": "50000",
}


def measure(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder, bench_session() as spark, bench_cluster(1) as cluster:
        nodes = cluster.node("n1").door
        with running_broker(Path(folder) / "kafka", BROKER, java_options=()) as broker:
            jvm = {"Spark": jvm_pid(spark)}
            speeds = Speeds(spark, nodes, broker.address, Path(folder), bench.of(ROWS, QUICK_ROWS))
            speeds.measure(bench, {**pids(cluster), **jvm}, {"broker": broker.pid, **jvm})
        _triggers(bench, spark, nodes, Path(folder))


class Speeds:
    def __init__(self, spark: SparkSession, nodes: str, broker: str, folder: Path, count: int) -> None:
        self._spark = spark
        self.nodes = nodes
        self._broker = broker
        self._folder = folder
        self._count = count
        self._rows = rows_in_memory(spark, count)
        self._readies: dict[str | None, DataFrame] = {}
        self.make_topic("read")
        for _ in range(READ_TIMES):
            self._publish_ours("read")
            self.write_kafka("read", self._rows)

    def measure(self, bench: Bench, ours: Mapping[str, int], kafkas: Mapping[str, int]) -> None:
        few, all_columns = "_origin,_sequence", ",".join(CHANNEL_COLUMNS)
        limits: dict[str, Callable[[str], None]] = {
            "read, value _origin _sequence": lambda _: _to_noop(self._ready(few)),
            "read, all columns": lambda _: _to_noop(self._ready(all_columns)),
            "to Delta, columns by default": lambda name: _to_table(self._ready(None), self._folder / name),
        }
        for what, our, their, times, bar in (
            ("publish", self._publish_ours, self._publish_kafka, 1, 1.3),
            ("read, value _origin _sequence", lambda _: self._read_ours(few), self._read_kafka, READ_TIMES, 3.0),
            ("read, all columns", lambda _: self._read_ours(all_columns), self._read_kafka, READ_TIMES, 2.0),
            ("to Delta, columns by default", self._ours_to_delta, self.kafka_to_delta, READ_TIMES, 2.0),
            ("ingest to Delta, direct engine", self.ingest, self.kafka_to_delta, READ_TIMES, 2.5),
        ):
            sides = [Side("m4cast", timed(our), ours), Side("Kafka's connector", timed(their), kafkas)]
            if what in limits:
                sides.append(Side("ready rows", timed(limits[what]), {"Spark": kafkas["Spark"]}))
            rows = times * self._count
            bench.compare(what, "rows/s", *sides, amount=rows, gb=rows * ROW_BYTES / 1e9, bar=bar)
            self._rows.unpersist(blocking=True)  # of use for publishing only

    # ---- ours

    def _publish_ours(self, topic: str) -> None:
        self._rows.write.format("m4cast").mode("append").options(nodes=self.nodes, topic=topic).save()

    def _read_ours(self, columns: str) -> None:
        _to_noop(self._read(columns))

    def _read(self, columns: str | None) -> DataFrame:
        reader = self._spark.read.format("m4cast").options(nodes=self.nodes, topic="read")
        if columns is not None:
            reader = reader.option("metadata", columns)
        return reader.option("minPartitions", str(PARTITIONS)).load()

    def _ready(self, columns: str | None) -> DataFrame:
        if columns not in self._readies:
            file = self._folder / f"ready-{len(self._readies)}.arrow"
            rows = READ_TIMES * self._count
            self._readies[columns] = ready_rows(self._spark, self._read(columns), rows, PARTITIONS, file)
        return self._readies[columns]

    def _ours_to_delta(self, name: str) -> None:
        options = {"nodes": self.nodes, "topic": "read", "startingOffsets": "earliest", "minPartitions": "2"}
        self.to_delta(self._spark.readStream.format("m4cast").options(**options).load(), name)

    def ingest(self, name: str, topic: str = "read", rows: int | None = None, max_rows: int | None = None) -> None:
        """`max_rows`: those of a micro-batch."""
        folder, options = str(self._folder / name), {"minPartitions": str(PARTITIONS)}
        plan = Ingest({"nodes": self.nodes}, folder, (topic,), kinds=("events",), options=options, engine="direct")
        (filled,) = ingest.run(self._spark, replace(plan, max_rows=max_rows)).tables
        assert filled.rows == (READ_TIMES * self._count if rows is None else rows)

    # ---- Kafka's

    def _publish_kafka(self, topic: str) -> None:
        self.make_topic(topic)
        self.write_kafka(topic, self._rows)

    def make_topic(self, topic: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self._broker)
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        admin.close()

    def write_kafka(self, topic: str, rows: DataFrame) -> None:
        options = {"kafka.bootstrap.servers": self._broker, "topic": topic, **PRODUCER}
        rows.write.format("kafka").options(**options).save()

    def _read_kafka(self, _: str) -> None:
        options = {"kafka.bootstrap.servers": self._broker, "subscribe": "read", **CONSUMER}
        _to_noop(self._spark.read.format("kafka").options(**options).load())

    def kafka_to_delta(self, name: str, max_rows: int | None = None) -> None:
        self.to_delta(self.stream_kafka("read", max_rows), name)

    def stream_kafka(self, topic: str, max_rows: int | None = None) -> DataFrame:
        options = {"kafka.bootstrap.servers": self._broker, "subscribe": topic, "startingOffsets": "earliest"}
        if max_rows is not None:
            options["maxOffsetsPerTrigger"] = str(max_rows)
        return self._spark.readStream.format("kafka").options(**options, **CONSUMER).load()

    def to_delta(self, df: DataFrame, name: str) -> None:
        stream = df.writeStream.format("delta").option("checkpointLocation", str(self._folder / f"{name}-checkpoint"))
        query = stream.trigger(availableNow=True).start(str(self._folder / name))
        query.awaitTermination()


def _to_noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def _to_table(df: DataFrame, path: Path) -> None:
    df.write.format("delta").save(str(path))


def timed(action: Callable[[str], None]) -> Callable[[Watch], None]:
    """The action gets a name that nobody had yet."""

    def work(watch: Watch) -> None:
        name = f"t-{uuid.uuid4().hex[:12]}"
        with watch:
            action(name)

    return work


def rows_in_memory(spark: SparkSession, count: int) -> DataFrame:
    rows = spark.range(0, count, 1, PARTITIONS).selectExpr(f"{PAYLOAD} AS value").cache()
    assert rows.count() == count
    return rows


def _triggers(bench: Bench, spark: SparkSession, nodes: str, folder: Path) -> None:
    pairs = trigger_ms(spark, nodes, folder, bench.of(TRIGGERS, 20), bench.of(WARM, QUICK_WARM))
    differences = [ours - empty for ours, empty in pairs]
    cuts = quantiles(differences, n=20)
    bench.fact(
        what=f"trigger of one row, {len(pairs)} pairs",
        m4cast=f"{median(ours for ours, _ in pairs):.0f} ms",
        reference=f"{median(empty for _, empty in pairs):.0f} ms",
        difference=f"+{median(differences):.0f} ms",
        spread=f"p5 {cuts[0]:.0f} .. p95 {cuts[-1]:.0f} ms",
    )


def jvm_pid(spark: SparkSession) -> int:
    """The processes of the session, including its Python workers."""
    gateway: Any = spark.sparkContext._gateway
    return int(gateway.proc.pid)


@contextmanager
def bench_session(packages: str = "") -> Iterator[SparkSession]:
    """`packages`: more of them, separated by commas."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.jars.packages": ",".join(filter(None, (DELTA, packages))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    builder = SparkSession.builder.master("local[2]").appName("m4cast-bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def connector_jars() -> list[Path]:
    """Spark's Kafka connector, by Spark's own Ivy. Its token provider of the same version is not to be had
    everywhere; that of 4.0.0 does as well, and nothing here asks it for a token."""
    wanted = ("spark-sql-kafka", "kafka-clients", "commons-pool2", "spark-token-provider")
    if not JARS_FOLDER.exists():
        token_provider = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
        _resolve("connector", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0", "--exclude-packages", token_provider)
        _resolve("token-provider", f"{token_provider}:4.0.0")
        (JARS_FOLDER / "token-provider" / "jars" / "org.apache.kafka_kafka-clients-3.9.0.jar").unlink()
    return sorted(jar for jar in JARS_FOLDER.glob("*/jars/*.jar") if any(name in jar.name for name in wanted))


def _resolve(folder: str, package: str, *words: str) -> None:
    """An empty program with this package: Spark gets it before it starts it."""
    place = JARS_FOLDER / folder
    place.mkdir(parents=True)
    program = place / "nothing.py"
    program.touch()
    submit = str(Path(pyspark.__path__[0]) / "bin" / "spark-submit")
    command = [submit, "--master", "local", "--packages", package, *words, "--conf", f"spark.jars.ivy={place}"]
    subprocess.run([*command, str(program)], check=True, capture_output=True, timeout=600)
