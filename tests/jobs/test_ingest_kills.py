"""Ingest that is killed (-9) again and again while nodes are killed, too: what was published is in Delta, once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from m4cast.cluster.local import LocalCluster
from m4cast.jobs.ingest import Ingest, run
from m4cast.jobs.table_folder import TableFolder
from m4cast.schemas.tables.deliveries import DELIVERIES
from m4cast.schemas.tables.events import events_table
from tests.processes.clusters import running_cluster
from tests.processes.load import KeyedPublisher

TOPIC = "orders"
NODES = 3
BATCH_ROWS = 2_500
MICRO_BATCHES_PER_LIFE = 4
"""About as many as there are rows for between two deaths: a death waits for up to three of them."""
INTERPRETED = ("spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN")
"""A process that lives for a few micro-batches would spend most of its time compiling."""
DEATHS = ("offsets", "commits", "_delta_log")
"""In which folder a new file is its death: a micro-batch is planned, it is done, or Delta has it and Spark not yet."""
TIMEOUT_S = 240.0
POLL_S = 0.005


@contextmanager
def ingesting(cluster: LocalCluster, folder: Path, micro_batch_rows: int) -> Iterator[None]:
    """A process that ingests until it is killed, with all that it started."""
    nodes = [word for name in cluster.names() for word in ("--node", cluster.node(name).door)]
    words = [sys.executable, "-m", "m4cast", "ingest", *nodes, "--tables", str(folder), "--continuous"]
    words += ["--interval-s", "0", "--max-rows", str(micro_batch_rows), "--spark-log", str(folder.parent / "log")]
    words += [word for setting in INTERPRETED for word in ("--spark-conf", setting)]
    with (folder.parent / "said").open("ab") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said, start_new_session=True)
    try:
        yield
        assert process.poll() is None, (folder.parent / "said").read_text()[-3000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)


def wait_for_news(where: Path, files: int, said: Path) -> None:
    """Until there are more files in the folder."""
    deadline = time.monotonic() + TIMEOUT_S
    while count_of(where) <= files:
        assert time.monotonic() < deadline, f"nothing new in {where}:\n{said.read_text()[-3000:]}"
        time.sleep(POLL_S)


def count_of(where: Path) -> int:
    return sum(1 for path in where.glob("*") if path.name[0] != "." and path.suffix != ".crc")


@pytest.mark.parametrize(
    ("kills", "rows"), [(3, 240_000), pytest.param(20, 10_000_000, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_no_row_is_lost_or_doubled(spark: SparkSession, tmp_path: Path, kills: int, rows: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    folder = tmp_path / "tables"
    folder.mkdir()
    table = events_table(TOPIC, StructType())
    plan = Ingest({}, str(folder))
    places = {
        "_delta_log": Path(table.path(str(folder))) / "_delta_log",
        **{name: Path(plan.shared_checkpoint) / name for name in ("offsets", "commits")},
    }
    batches = -(-rows // (2 * (kills + 1) * BATCH_ROWS))
    micro_batch_rows = rows // (kills + 1) // MICRO_BATCHES_PER_LIFE
    with running_cluster(tmp_path / "cluster", NODES) as cluster:
        publishers = [KeyedPublisher(TOPIC, cluster.channel(name), acks=1) for name in ("n1", "n2")]

        def publish_slice() -> None:
            with ThreadPoolExecutor(2) as pool:
                victim = rng.choice(cluster.names())
                done = [pool.submit(publish_batches, publisher, batches) for publisher in publishers]
                cluster.kill(victim)
                cluster.start(victim)
                for each in done:
                    each.result(TIMEOUT_S)

        for number in range(kills):
            death = places[DEATHS[number % len(DEATHS)]]
            with ingesting(cluster, folder, micro_batch_rows):
                before = count_of(death)
                publish_slice()
                wait_for_news(death, before + rng.randrange(3), tmp_path / "said")
        publish_slice()
        published = {publisher.acknowledged[-1].origin: publisher.rows for publisher in publishers}
        nodes = ",".join(cluster.node(name).door for name in cluster.names())
        run(spark, replace(plan, access={"nodes": nodes}, max_rows=micro_batch_rows * 10))
    assert sum(published.values()) >= rows
    assert_whole(TableFolder(spark, str(folder)), published)


def publish_batches(publisher: KeyedPublisher, batches: int) -> None:
    for _ in range(batches):
        publisher.publish_one(BATCH_ROWS)


def assert_whole(tables: TableFolder, published: dict[str, int]) -> None:
    """Row by row, and by the ranges of every node's delivery records."""
    events = tables.read(events_table(TOPIC, StructType()))
    found = events.groupBy("_origin").agg(
        F.count("*").alias("rows"),
        F.min("_sequence").alias("first"),
        F.max("_sequence").alias("last"),
        F.max("number").alias("last_number"),
    )
    whole = {origin: (rows, 1, rows, rows - 1) for origin, rows in published.items()}
    assert {row["_origin"]: tuple(row)[1:] for row in found.collect()} == whole
    for column in ("_sequence", "number"):  # one after the other: of both at once Spark makes three times the rows
        different = events.select("_origin", column).distinct().groupBy("_origin").count()
        assert {row["_origin"]: row["count"] for row in different.collect()} == published, column

    records = tables.read(DELIVERIES).where(F.col("topic") == TOPIC).groupBy("node", "origin")
    ranges = records.agg(
        F.sum("row_count").alias("rows"), F.min("first_sequence").alias("first"), F.max("last_sequence").alias("last")
    )
    told = {(row["node"], row["origin"]): tuple(row)[2:] for row in ranges.collect()}
    names = [f"n{number + 1}" for number in range(NODES)]
    assert told == {(name, origin): (rows, 1, rows) for name in names for origin, rows in published.items()}
