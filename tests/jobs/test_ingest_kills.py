"""Ingest that is killed (-9) again and again while nodes are killed, too: what was published is in Delta, once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
from tests.jobs.direct.test_worker_kills import processes_below
from tests.processes.clusters import running_cluster
from tests.processes.load import KeyedPublisher

TOPIC = "orders"
NODES = 3
BATCH_ROWS = 2_500
MICRO_BATCHES_PER_LIFE = 4
"""About as many as there are rows for between two deaths: a death waits for up to three of them."""
INTERPRETED = ("spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN")
"""A process that lives for a few micro-batches would spend most of its time compiling."""
DEATHS = ("offsets", "data", "_delta_log", "commits")
"""In which folder a new file is its death: a micro-batch is planned, its rows are written, Delta has them and Spark not
yet, or it is done. The first three have more to repair."""
TIMEOUT_S = 240.0
POLL_S = 0.005


@contextmanager
def ingesting(cluster: LocalCluster, folder: Path, micro_batch_rows: int, *, with_workers: bool) -> Iterator[None]:
    """A process that ingests until it is killed, with its JVM; with its Python workers, too, or they see the end."""
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
        workers = [pid for pid, _ in processes_below(process.pid)] if with_workers else []
        os.killpg(process.pid, signal.SIGKILL)
        for pid in workers:  # pyspark.daemon has a group of its own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)


def wait_for_news(where: Path, last: int, said: Path) -> None:
    """Wait until the folder has later files."""
    deadline = time.monotonic() + TIMEOUT_S
    while last_of(where) <= last:
        assert time.monotonic() < deadline, f"nothing new in {where}:\n{said.read_text()[-3000:]}"
        time.sleep(POLL_S)


def last_of(where: Path) -> int:
    """The greatest number in the names of files: of old ones, Spark keeps a hundred. Data files are counted instead."""
    names = [path.name.partition(".")[0] for path in where.glob("*")]
    numbers = [int(name) for name in names if name.isdecimal()]
    return max(numbers, default=-1) + sum(name.startswith("part-") for name in names)


@pytest.mark.parametrize(
    ("names", "last"),
    [
        ((), -1),
        (("98", "99", "100", ".101.crc", ".102.tmp"), 100),
        (("00000000000000000049.json", "00000000000000000050.checkpoint.parquet", "_last_checkpoint"), 50),
        (("part-1.snappy.parquet", "part-2.snappy.parquet", "_delta_log"), 1),
    ],
)
def test_the_last_file_is_known_though_old_ones_are_removed(tmp_path: Path, names: tuple[str, ...], last: int) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert last_of(tmp_path) == last


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
        "data": Path(table.path(str(folder))),
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
            with ingesting(cluster, folder, micro_batch_rows, with_workers=number % 2 == 1):
                before = last_of(death)
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
