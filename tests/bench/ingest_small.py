"""Small batches into Delta by the ingest job with its direct engine: triggers of 1 s, one row at a time, published at
any moment of a trigger, from before its publish until its commit is in the table's log; local[2], one node with
fsync."""

import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

from pyspark.sql.types import StructType

from m4cast.jobs import ingest
from m4cast.jobs.ingest import Ingest
from m4cast.overlay.client import Channel
from m4cast.schemas.tables.events import events_table
from tests.bench.comparison import Bench
from tests.bench.references import bench_cluster
from tests.bench.spark import bench_session

TOPIC = "small"
ROWS = 40
QUICK_ROWS = 10
WARM = 5
TIMEOUT_S = 240.0
POLL_S = 0.005


def measure(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder, bench_session() as spark, bench_cluster(1) as cluster:
        door = cluster.node("n1").door
        channel = Channel([door])
        channel.publish(TOPIC, [{"id": 0}])
        plan = Ingest({"nodes": door}, f"{folder}/tables", (TOPIC,), kinds=("events",), continuous=True)
        log = Path(events_table(TOPIC, StructType()).path(plan.tables)) / "_delta_log"
        stop = threading.Event()
        taken = []
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(ingest.run, spark, plan, stop=stop)
            try:
                _until_there(log / f"{1:020}.json")
                for number in range(2, 2 + WARM + bench.of(ROWS, QUICK_ROWS)):
                    time.sleep(random.uniform(0.5, 1.5))
                    began = time.perf_counter()
                    channel.publish(TOPIC, [{"id": number}])
                    _until_there(log / f"{number:020}.json")
                    taken.append(time.perf_counter() - began)
            finally:
                stop.set()
            running.result(TIMEOUT_S)
    taken = taken[WARM:]
    bench.fact(
        what=f"small batches: publish to visible, {len(taken)} rows",
        m4cast=f"p50 {median(taken):.2f} s, p95 {quantiles(taken, n=20)[-1]:.2f} s",
        bar="p50 <= 1.2 s",
    )


def _until_there(commit: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not commit.exists():
        assert time.monotonic() < deadline, f"the row is not in the table after {TIMEOUT_S:g} s"
        time.sleep(POLL_S)
