"""A driver program of its own that publishes, reads and fans out, on whatever kind of Spark it is given.

    python -m tests.spark_connector.end_to_end '{"nodes": ..., "folder": ..., "master": "spark://..."}'

It prints what came of it as one line of JSON. `remote` in place of `master`: a session of Spark Connect.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import m4cast
from m4cast.jobs import ingest
from m4cast.jobs.ingest import Ingest
from m4cast.jobs.session import DELTA_PACKAGE, DELTA_SETTINGS
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.events import events_table
from m4cast.spark_connector.provider import M4castDataSource

TIMEOUT_S = 120
HEAVY_ROWS = 400
EXECUTOR_KILLS = 2
SPECULATION = {"": "true", ".interval": "100ms", ".multiplier": "1.1", ".quantile": "0.5", ".minTaskRuntime": "2s"}
"""A copy of a task is started soon when others have ended."""


def session(master: str | None, remote: str | None) -> SparkSession:
    builder: Any = SparkSession.builder
    builder = builder.master(master) if master else builder.remote(remote)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",  # small queries: compiling them takes longer than running them
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }.items():
        builder = builder.config(name, value)
    if master:
        for name, value in SPECULATION.items():
            builder = builder.config(f"spark.speculation{name}", value)
        for name, value in {**DELTA_SETTINGS, "spark.jars.packages": DELTA_PACKAGE}.items():
            builder = builder.config(name, value)
    found: SparkSession = builder.getOrCreate()
    return found


def drop(inbox: Path, first: int, until: int) -> None:
    inbox.mkdir(exist_ok=True)
    new = inbox.parent / f"{first:09}.json"
    new.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(first, until)))
    os.utime(new, (1_700_000_000 + first,) * 2)
    new.rename(inbox / new.name)


def finish(stream: Any, checkpoint: Path) -> None:
    query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S), "the query does not end"


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of one task fails when the sink has its rows."""
    partition, attempt = task_attempt()
    yield from marked(batches, attempt)
    if partition == 1 and attempt == 0:
        raise RuntimeError("the first attempt")


def overtaken(marker: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The first attempt of one task does not end before its speculative copy has given the sink all rows, too."""

    def slow_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, attempt = task_attempt()
        yield from marked(batches, attempt)
        if partition == 1 and attempt > 0:
            Path(marker).touch()
        deadline = time.monotonic() + TIMEOUT_S
        while partition == 1 and attempt == 0 and not Path(marker).exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    return slow_once


def task_attempt() -> tuple[int, int]:
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    return task.partitionId(), task.attemptNumber()


def marked(batches: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.append_column("attempt", pa.array([attempt] * batch.num_rows, pa.int32()))


def main(nodes: str, folder: str, master: str | None = None, remote: str | None = None) -> None:
    spark = session(master, remote)
    here = Path(folder)
    inbox = here / "inbox"
    drop(inbox, 0, 40)
    drop(inbox, 40, 50)
    arriving = spark.readStream.schema("id long").option("maxFilesPerTrigger", "1").json(str(inbox))

    def rows(topic: str) -> DataFrame:
        return spark.read.format("m4cast").options(nodes=nodes, topic=topic, minPartitions="2").load()

    def ids(topic: str) -> list[int]:
        return [row["id"] for row in rows(topic).orderBy("_sequence").collect()]

    spark.range(0, 100, 1, 4).write.format("m4cast").mode("append").options(nodes=nodes, topic="batch", acks="1").save()
    spark.dataSource.register(M4castDataSource)  # besides being found

    for first in (50, 80):  # and again, with the same checkpoint
        finish(arriving.writeStream.format("m4cast").options(nodes=nodes, topic="stream", acks="1"), here / "publisher")
        drop(inbox, first, first + 10)

    table = str(here / "table")
    for through in nodes.split(","):  # the second node goes on where the first was
        source = spark.readStream.format("m4cast").options(nodes=through, topic="stream", startingOffsets="earliest")
        finish(
            source.option("maxRowsPerTrigger", "45").load().writeStream.format("parquet").option("path", table),
            here / "reader",
        )
    read = [(row["id"], row["_sequence"]) for row in spark.read.parquet(table).orderBy("_sequence").collect()]

    def each(batch: DataFrame, batch_id: int) -> None:
        m4cast.fanout(batch, topic="fanned", name="fanned", nodes=nodes, batch_id=batch_id)

    finish(arriving.writeStream.foreachBatch(each), here / "each")

    def twice(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            m4cast.fanout(batch, topic="twice", name="twice", nodes=nodes, batch_id=batch_id)

    try:
        finish(arriving.writeStream.foreachBatch(twice), here / "twice")
        refused = ""
    except Exception as error:
        refused = str(error)
    attempts = spark.range(0, 1_000, 1, 4).mapInArrow(failing_once, "id long, attempt int")
    attempts.write.format("m4cast").mode("append").options(nodes=nodes, topic="retried").save()
    if master:  # Spark does not speculate on one machine by itself
        twice_run = spark.range(0, 1_000, 1, 4).mapInArrow(overtaken(str(here / "overtaken")), "id long, attempt int")
        twice_run.write.format("m4cast").mode("append").options(nodes=nodes, topic="speculated").save()
    print(
        json.dumps(
            {
                "batch": ids("batch"),
                "stream": ids("stream"),
                "read": read,
                "fanned": ids("fanned"),
                "partitions": len({row["p"] for row in rows("batch").selectExpr("spark_partition_id() p").collect()}),
                "refused": "M4CAST_FANOUT" in refused,
                "retried": [(row["id"], row["attempt"]) for row in rows("retried").orderBy("_sequence").collect()],
                "speculated": ids("speculated") if master else None,
                "overtaken": (here / "overtaken").exists(),
                "executors": _executors(spark) if master else None,
                "ingested": _ingested(spark, nodes, str(here / "tables")) if master else None,
                "despite_kills": _ingested_despite_kills(spark, nodes, str(here / "tables")) if master else None,
            }
        )
    )
    spark.stop()


def _ingested(spark: SparkSession, nodes: str, folder: str) -> dict[str, Any]:
    """The contents of the tables after an ingest whose tasks run on the workers."""
    plan = Ingest({"nodes": nodes}, folder, kinds=("events", "deliveries"), options={"minPartitions": "2"})
    filled = ingest.run(spark, plan).tables
    batch = TableFolder(spark, folder).read(events_table("batch", StructType()))
    return {"engines": sorted({each.engine for each in filled}), "ids": sorted(row["id"] for row in batch.collect())}


def _ingested_despite_kills(spark: SparkSession, nodes: str, folder: str) -> dict[str, Any]:
    """The rows of a table though executors were killed (-9) while their tasks wrote its files."""
    heavy = spark.range(0, HEAVY_ROWS, 1, 4).selectExpr("id", "repeat(uuid(), 3000) AS text")
    heavy.write.format("m4cast").mode("append").options(nodes=nodes, topic="heavy").save()
    files = Path(events_table("heavy", StructType()).path(folder))
    killed: list[int] = []
    is_over = threading.Event()

    def kill() -> None:
        seen = 0
        while len(killed) < EXECUTOR_KILLS and not is_over.wait(0.002):
            written = sum(1 for _ in files.glob("*.parquet"))
            if written > seen:
                seen = written
                for pid in _executor_processes(spark)[:1]:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        plan = Ingest({"nodes": nodes}, folder, ("heavy",), kinds=("events",), options={"minPartitions": "2"})
        ingest.run(spark, replace(plan, max_rows=HEAVY_ROWS // 4))
    finally:
        is_over.set()
        killing.join()
    found = TableFolder(spark, folder).read(events_table("heavy", StructType()))
    return {"killed": len(killed), "ids": sorted(row["id"] for row in found.select("id").collect())}


def _executor_processes(spark: SparkSession) -> list[int]:
    """Those of this program: others may run beside it."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if spark.sparkContext.applicationId in words and "java" in words[0]:
                    found.append(int(folder.name))
    return sorted(found)


def _executors(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
