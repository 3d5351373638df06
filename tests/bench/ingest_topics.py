"""Many topics, 10 rows/s each (a batch of 100 rows every ten seconds), into Delta by one ingest with a heap of 512 MB.
Tables exist before (copies of one that Spark made), and all topics have been read once. One more topic gets as many
rows, and ingest cannot write them: there is a file in place of its table. Then, for a minute: the age of the oldest row
of each commit, the cores that are busy, the time of a micro-batch, and how long after the last publish every row of the
others is in its table. At last, 50 of the topics by a new ingest that ends, in one micro-batch."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from m4cast.jobs.table_folder import TableFolder
from m4cast.overlay.client import Channel
from m4cast.schemas.tables.events import events_table
from tests.bench.comparison import Bench
from tests.bench.processes import Watch
from tests.bench.references import bench_cluster
from tests.bench.spark import bench_session

TOPICS = 1_000
QUICK_TOPICS = 100
POISONED = "topic-poisoned"
AT_ONCE = 50
EVERY_S = 10.0
"""Between two batches of a topic, each of the rows of that time."""
ROWS_PER_S = 10
BATCH = [{"id": number, "text": "x" * 80} for number in range(int(EVERY_S) * ROWS_PER_S)]
WINDOW_S = 60
QUICK_WINDOW_S = 20
PUBLISHERS = 4
TIMEOUT_S = 1_200.0
POLL_S = 0.2
PAYLOAD = StructType([StructField("id", LongType()), StructField("text", StringType())])


def measure(bench: Bench) -> None:
    began = time.monotonic()

    def say(step: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {step}", file=sys.stderr, flush=True)

    count = bench.of(TOPICS, QUICK_TOPICS)
    names = [f"topic-{number:04}" for number in range(count)]
    with tempfile.TemporaryDirectory() as text, bench_cluster(1) as cluster:
        door, folder = cluster.node("n1").door, Path(text)
        with bench_session() as spark:
            _make_tables(spark, folder, names)
        logs = {name: Path(events_table(name, PAYLOAD).path(text)) / "_delta_log" for name in names}
        Path(events_table(POISONED, PAYLOAD).path(text)).write_text("not a table")
        published = dict.fromkeys([*names, POISONED], 0)
        say(f"{count} tables are made")
        publish_all(door, published)
        say("every topic has its first rows")
        with _ingesting(door, folder) as process:
            first_s = _until_whole(logs, published, process)
            say("every table has them")
            with _publishing(door, published):
                time.sleep(EVERY_S)
                watch, since = Watch({"ingest": process.pid}), time.time()
                with watch:
                    time.sleep(bench.of(WINDOW_S, QUICK_WINDOW_S))
            say(f"{bench.of(WINDOW_S, QUICK_WINDOW_S)} s of publishing are over")
            last_s = _until_whole(logs, published, process)
            say("every table has all rows")
            ages = [age for log in logs.values() for age in _ages(log, since)]
            micro_batches = _micro_batches(folder, since)
        assert POISONED in (folder / "said").read_text(), "its failure is reported"
        several = names[:AT_ONCE]
        publish_all(door, dict.fromkeys(several, 0))
        ended = time.time()
        with _ingesting(door, folder, several) as process:
            process.wait(TIMEOUT_S)
        say(f"{AT_ONCE} of the topics were ingested again")
        at_once_s, tables = max(_micro_batches(folder, ended), key=lambda found: found[1])
        assert tables == AT_ONCE
    named = f"{count} topics, {ROWS_PER_S} rows/s each, and one whose table cannot be written"
    for what, figure, bar in (
        ("oldest row of a commit", f"p50 {median(ages):.1f} s, max {max(ages):.1f} s, {len(ages)} commits", "<= 60 s"),
        ("after the last publish, every row in its table", f"{last_s:.1f} s", "<= 60 s"),
        ("busy cores of ingest", f"{watch.cpu_s['ingest'] / watch.seconds:.2f}", "<= 1"),
        ("a micro-batch", _spelled(micro_batches), ""),
        (f"a micro-batch of {AT_ONCE} tables, the first after a start", f"{at_once_s:.1f} s", "<= 5 s"),
        ("from the start until all tables had their first rows", f"{first_s:.0f} s", ""),
    ):
        bench.fact(what=f"{named}: {what}", m4cast=figure, bar=bar)


def _spelled(micro_batches: list[tuple[float, int]]) -> str:
    seconds, tables = zip(*micro_batches, strict=True)
    return f"p50 {median(seconds):.1f} s, max {max(seconds):.1f} s, with {median(tables):.0f} tables (p50)"


def publish_all(door: str, published: dict[str, int]) -> None:
    channel = Channel([door])
    with ThreadPoolExecutor(PUBLISHERS) as pool:
        list(pool.map(lambda name: _publish(channel, name, published), published))


def _publish(channel: Channel, name: str, published: dict[str, int]) -> None:
    channel.publish(name, BATCH)
    published[name] += len(BATCH)


@contextmanager
def _publishing(door: str, published: dict[str, int]) -> Iterator[None]:
    """Each topic gets its batch at its own moment of every `EVERY_S`."""
    done = threading.Event()

    def publish(mine: list[str]) -> None:
        channel = Channel([door])
        began = time.monotonic()
        turn = 0
        while not done.is_set():
            for at, name in enumerate(mine):
                due = began + (turn + at / len(mine)) * EVERY_S
                if done.wait(max(0.0, due - time.monotonic())):
                    return
                _publish(channel, name, published)
            turn += 1

    names = list(published)
    with ThreadPoolExecutor(PUBLISHERS) as pool:
        running = [pool.submit(publish, names[number::PUBLISHERS]) for number in range(PUBLISHERS)]
        try:
            yield
        finally:
            done.set()
            for each in running:
                each.result()


@contextmanager
def _ingesting(door: str, folder: Path, topics: Sequence[str] = ()) -> Iterator["subprocess.Popen[bytes]"]:
    """All topics, for ever; or these, to their end."""
    words = [sys.executable, "-m", "m4cast", "ingest", "--node", door, "--tables", str(folder), "--only", "events"]
    words += [word for topic in topics for word in ("--topic", topic)] or ["--continuous"]
    words += ["--spark-conf", "spark.driver.memory=512m", "--spark-conf", "spark.master=local[2]"]
    with (folder / "said").open("wb") as said:
        words += ["--spark-log", str(folder / "log")]
        process = subprocess.Popen(words, stdout=said, stderr=said, start_new_session=True)
    try:
        yield process
        assert process.poll() == (0 if topics else None), (folder / "said").read_text()[-3000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _make_tables(spark: SparkSession, folder: Path, names: list[str]) -> None:
    """One by Spark, the others as its copies: what is measured here begins when tables exist."""
    first = events_table(names[0], PAYLOAD)
    TableFolder(spark, str(folder)).ensure(first)
    log = (Path(first.path(str(folder))) / "_delta_log" / f"{0:020}.json").read_text()
    made = next(json.loads(line)["metaData"]["id"] for line in log.splitlines() if "metaData" in line)
    for name in names[1:]:
        place = Path(events_table(name, PAYLOAD).path(str(folder))) / "_delta_log"
        place.mkdir(parents=True)
        (place / f"{0:020}.json").write_text(log.replace(names[0], name).replace(made, str(uuid.uuid4())))


def _until_whole(logs: dict[str, Path], published: dict[str, int], process: "subprocess.Popen[bytes]") -> float:
    """The seconds until each table has as many rows as were published. Looking costs little: ingest needs the cores."""
    began = time.monotonic()
    for done, (name, log) in enumerate(logs.items()):
        known: dict[str, int] = {}
        while (count := _rows(log, known)) != published[name]:
            assert count < published[name], f"{name} has {count} rows, {published[name]} were published"
            assert process.poll() is None, "ingest has ended"
            waited_s = time.monotonic() - began
            assert waited_s < TIMEOUT_S, f"{len(logs) - done} tables lack rows after {TIMEOUT_S:g} s: {name}"
            time.sleep(POLL_S)
    return time.monotonic() - began


def _rows(log: Path, known: dict[str, int]) -> int:
    """The rows of a table; those of versions that were read before are known."""
    for path in log.glob("*.json"):
        if path.name not in known:
            known[path.name] = sum(json.loads(add["stats"])["numRecords"] for add in _adds(path))
    return sum(known.values())


def _adds(commit: Path) -> list[dict[str, str]]:
    return [json.loads(line)["add"] for line in commit.read_text().splitlines() if line.startswith('{"add"')]


def _ages(log: Path, since: float) -> Iterator[float]:
    """The age of the oldest row of each commit when it was committed."""
    for commit in log.glob("*.json"):
        committed_at = commit.stat().st_mtime
        if committed_at < since:
            continue
        oldest = [json.loads(add["stats"])["minValues"] for add in _adds(commit)]
        times = [value for values in oldest for value in values.values() if isinstance(value, str) and "T" in value]
        if times:
            yield committed_at - datetime.fromisoformat(min(times)).timestamp()


def _micro_batches(folder: Path, since: float) -> list[tuple[float, int]]:
    """The seconds of each micro-batch, from its plan to its end, and its number of tables."""
    found = []
    for commit in (folder / "_checkpoints" / "direct").glob("*/commits/*"):
        offsets = commit.parent.parent / "offsets"
        planned = offsets / commit.name
        if commit.name.isdecimal() and commit.stat().st_mtime >= since and planned.exists():
            last = offsets / str(int(commit.name) - 1)
            before = json.loads(last.read_text().splitlines()[-1]) if last.exists() else {}
            after = json.loads(planned.read_text().splitlines()[-1])
            tables = sum(after[name] != before.get(name) for name in after if name)
            found.append((commit.stat().st_mtime - planned.stat().st_mtime, tables))
    return found
