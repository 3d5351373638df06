"""The ingest job with its direct engine. Speed: rows of 100 bytes, and wide rows (20 columns, nested), from one node
with fsync into Delta, with all that the job does before and after, beside Spark's Kafka connector (wide: with
from_avro) in the same session, local[2]. Topics: many of them, 10 rows/s each (a batch every ten seconds), one ingest
with a heap of 512 MB: the age of the oldest row of each commit, the cores that are busy, and how long a micro-batch
takes. Small batches: triggers of 1 s, one row at a time, from before its publish until its commit is in the table's
log."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import LongType, StringType, StructField, StructType

from m4cast.cluster.local import LocalCluster
from m4cast.jobs import ingest
from m4cast.jobs.ingest import Ingest
from m4cast.jobs.table_folder import TableFolder
from m4cast.overlay.client import Channel
from m4cast.schemas.tables.events import events_table
from tests.bench.comparison import Bench, Comparison, Missing, Side
from tests.bench.processes import Watch
from tests.bench.references import ROW_BYTES, bench_cluster, pids
from tests.bench.spark import BROKER, PARTITIONS, READ_TIMES, Speeds, bench_session, jvm_pid, timed
from tests.kafka_broker import running_broker

ROWS = 1_000_000
QUICK_ROWS = 200_000
WIDE_ROWS = 400_000
QUICK_WIDE_ROWS = 100_000
AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"
"""Spark's of the same version as Spark is not to be had everywhere."""
TOPICS = 1_000
QUICK_TOPICS = 100
EVERY_S = 10.0
"""Between two batches of a topic, each of the rows of that time."""
ROWS_PER_S = 10
WINDOW_S = 60.0
"""How long topics are looked at, after all have joined and been read once."""
SMALL = 20
TIMEOUT_S = 240.0
POLL_S = 0.005
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
    with tempfile.TemporaryDirectory() as folder, bench_session(packages=AVRO) as spark, bench_cluster(1) as cluster:
        with bench_cluster(1) as others:
            _topics(bench, spark, others)
        with running_broker(Path(folder) / "kafka", BROKER, java_options=()) as broker:
            count = bench.of(ROWS, QUICK_ROWS)
            speeds = Speeds(spark, cluster.node("n1").door, broker.address, Path(folder), count)
            jvm = {"Spark": jvm_pid(spark)}
            ours, kafkas = {**pids(cluster), **jvm}, {"broker": broker.pid, **jvm}
            rows = READ_TIMES * count
            done = bench.compare(
                "ingest, rows of 100 B",
                "rows/s",
                Side("m4cast", timed(speeds.ingest), ours),
                Side("Kafka's connector", timed(speeds.kafka_to_delta), kafkas),
                amount=rows,
                gb=rows * ROW_BYTES / 1e9,
                bar=2.5,
                rounds=ROUNDS,
            )
            _cpu(bench, done, 0.5)
            wide = WideRows(spark, speeds, bench.of(WIDE_ROWS, QUICK_WIDE_ROWS))
            bench.compare(
                "ingest, 20 columns, nested",
                "rows/s",
                Side("m4cast", timed(wide.ingest), ours),
                wide.reference(kafkas),
                amount=wide.count,
                bar=2.0,
                rounds=ROUNDS,
            )
        _small_batches(bench, spark, cluster.node("n1").door, Path(folder))


def _cpu(bench: Bench, done: Comparison, bar: float) -> None:
    """CPU seconds per GB of ours by the reference's."""
    ours, theirs = (sum(done.cpu(side).values()) for side in done.sides[:2])
    bench.fact(
        what=f"{done.what}: CPU s/GB",
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

    def reference(self, processes: Mapping[str, int]) -> Side | Missing:
        name = "Kafka's connector, from_avro"
        return Missing(name, self._why_not) if self._why_not else Side(name, timed(self.kafka_to_delta), processes)

    def ingest(self, name: str) -> None:
        self._speeds.ingest(name, "wide", self.count)

    def kafka_to_delta(self, name: str) -> None:
        read = self._speeds.stream_kafka("wide")
        rows = read.select(from_avro("value", self._avro).alias("row"), "topic", "partition", "offset", "timestamp")
        self._speeds.to_delta(rows.select("row.*", "topic", "partition", "offset", "timestamp"), name)


def _avro_schema(spark: SparkSession, schema: StructType) -> str:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    type_ = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters
    return str(converters.toAvroType(type_, False, "row", "").toString())


# ---- many topics


def _topics(bench: Bench, spark: SparkSession, cluster: LocalCluster) -> None:
    count = bench.of(TOPICS, QUICK_TOPICS)
    names = [f"topic-{number:04}" for number in range(count)]
    door = cluster.node("n1").door
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        _make_tables(spark, folder, names)
        publish_all(door, names)
        logs = [Path(events_table(name, StructType()).path(str(folder))) / "_delta_log" for name in names]
        with _ingesting(door, folder) as process:
            began = time.monotonic()
            _until(lambda: all((log / f"{1:020}.json").exists() for log in logs), "all topics were read once")
            first_s = time.monotonic() - began
            with _publishing(door, names):
                time.sleep(EVERY_S)
                watch = Watch({"ingest": process.pid})
                since = time.time()
                with watch:
                    time.sleep(bench.of(int(WINDOW_S), 20))
            ages = [age for log in logs for age in _ages(log, since)]
            micro_batches = _micro_batch_s(folder, since)
    bench.fact(
        what=f"{count} topics, {ROWS_PER_S} rows/s each, heap 512 MB: oldest row of a commit",
        m4cast=f"p50 {median(ages):.1f} s, max {max(ages):.1f} s in {len(ages)} commits",
        bar="max <= 60 s",
    )
    bench.fact(what="the same: busy cores of ingest", m4cast=f"{watch.cpu_s['ingest'] / watch.seconds:.2f}", bar="<= 1")
    bench.fact(
        what="the same: a micro-batch",
        m4cast=f"p50 {median(s for s, _ in micro_batches):.1f} s with {median(n for _, n in micro_batches):.0f} tables",
        bar="<= 5 s with 50 tables",
    )
    bench.fact(what="the same: from its start until all tables had rows", m4cast=f"{first_s:.0f} s", bar="")


def publish_all(door: str, names: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        channel = Channel([door])
        rows = [{"id": number, "text": "x" * 80} for number in range(int(EVERY_S) * ROWS_PER_S)]
        list(pool.map(lambda name: channel.publish(name, rows), names))


@contextmanager
def _publishing(door: str, names: list[str]) -> Iterator[None]:
    """Each topic gets its batch at its own moment of every `EVERY_S`."""
    done = threading.Event()
    rows = [{"id": number, "text": "x" * 80} for number in range(int(EVERY_S) * ROWS_PER_S)]

    def publish(mine: list[str]) -> None:
        channel = Channel([door])
        began = time.monotonic()
        turn = 0
        while not done.is_set():
            for at, name in enumerate(mine):
                due = began + (turn + at / len(mine)) * EVERY_S
                if done.wait(max(0.0, due - time.monotonic())):
                    return
                channel.publish(name, rows)
            turn += 1

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(publish, names[number::4]) for number in range(4)]
        try:
            yield
        finally:
            done.set()
            for each in running:
                each.result()


@contextmanager
def _ingesting(door: str, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    words = [sys.executable, "-m", "m4cast", "ingest", "--node", door, "--tables", str(folder), "--only", "events"]
    words += ["--continuous", "--spark-conf", "spark.driver.memory=512m", "--spark-conf", "spark.master=local[2]"]
    process = subprocess.Popen([*words, "--spark-log", str(folder / "log")], start_new_session=True)
    try:
        yield process
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _make_tables(spark: SparkSession, folder: Path, names: list[str]) -> None:
    """One by Spark, the others as its copies: what is measured here begins when tables exist."""
    payload = StructType([StructField("id", LongType()), StructField("text", StringType())])
    first = events_table(names[0], payload)
    TableFolder(spark, str(folder)).ensure(first)
    log = (Path(first.path(str(folder))) / "_delta_log" / f"{0:020}.json").read_text()
    made = next(json.loads(line)["metaData"]["id"] for line in log.splitlines() if "metaData" in line)
    for name in names[1:]:
        place = Path(events_table(name, payload).path(str(folder))) / "_delta_log"
        place.mkdir(parents=True)
        (place / f"{0:020}.json").write_text(log.replace(names[0], name).replace(made, str(uuid.uuid4())))


def _ages(log: Path, since: float) -> Iterator[float]:
    """How old the oldest row of each commit was when it was committed."""
    for commit in log.glob("*.json"):
        committed_at = commit.stat().st_mtime
        if committed_at < since:
            continue
        adds = [json.loads(line)["add"] for line in commit.read_text().splitlines() if line.startswith('{"add"')]
        oldest = [json.loads(add["stats"])["minValues"] for add in adds]
        times = [value for values in oldest for value in values.values() if isinstance(value, str) and "T" in value]
        if times:
            yield committed_at - datetime.fromisoformat(min(times)).timestamp()


def _micro_batch_s(folder: Path, since: float) -> list[tuple[float, int]]:
    """The seconds of each micro-batch, from its plan to its end, and its number of tables."""
    (checkpoint,) = [path.parent for path in (folder / "_checkpoints" / "direct").glob("*/metadata")]
    found = []
    for commit in (checkpoint / "commits").iterdir():
        planned = checkpoint / "offsets" / commit.name
        if commit.name.isdecimal() and commit.stat().st_mtime >= since and planned.exists():
            before = json.loads((checkpoint / "offsets" / str(int(commit.name) - 1)).read_text().splitlines()[-1])
            after = json.loads(planned.read_text().splitlines()[-1])
            tables = sum(after[name] != before.get(name) for name in after if name)
            found.append((commit.stat().st_mtime - planned.stat().st_mtime, tables))
    return found


# ---- one row at a time


def _small_batches(bench: Bench, spark: SparkSession, door: str, folder: Path) -> None:
    channel = Channel([door])
    channel.publish("small", [{"id": 0}])
    plan = Ingest({"nodes": door}, str(folder / "small"), ("small",), kinds=("events",), continuous=True)
    log = Path(events_table("small", StructType()).path(plan.tables)) / "_delta_log"
    stop = threading.Event()
    began, taken = 0.0, []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ingest.run, spark, plan, stop=stop)
        try:
            for number in range(1, 4 + bench.of(SMALL, 5)):
                commit = log / f"{number:020}.json"
                _until(commit.exists, "the row is in the table")
                if number > 3:
                    taken.append(time.perf_counter() - began)
                time.sleep(random.uniform(0.5, 1.5))  # any moment of a trigger's second
                began = time.perf_counter()
                channel.publish("small", [{"id": number}])
        finally:
            stop.set()
        running.result(TIMEOUT_S)
    cuts = quantiles(taken, n=20)
    bench.fact(
        what=f"small batches: publish to visible, {len(taken)} rows",
        m4cast=f"p50 {median(taken):.2f} s, p95 {cuts[-1]:.2f} s",
        bar="p50 <= 1.2 s",
    )


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S:g} s: {what}"
        time.sleep(POLL_S)
