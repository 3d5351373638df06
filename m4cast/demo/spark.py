"""The demo with Spark: two pipelines publish, a third ingests into Delta, nodes fail meanwhile, and audits account for
every row. With seven nodes:

    n1, n2    pipelines publish the orders of two cities here
    n3        the ingest pipeline reads here
    n5        is killed (SIGKILL) and restarted
    n7        is suspended (SIGSTOP) and resumed

A subscriber follows some of the rows at n3. A client that was attached to n5 leaves before it is killed, and returns at
n7, where it gets what it missed. A second unit, a channel of two nodes, imports the orders through a gateway at n1.

Nodes are real processes; the pipelines are queries of one Spark session on this machine. The tables, the report and a
drawing of the graph stay in the folder. Nodes and their stores are removed at the end, however it ends.
"""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from m4cast.cluster.local import LocalCluster
from m4cast.demo.display import LOOK_TIMEOUT_S, Narrator, Scene, rows_at
from m4cast.demo.outcome import DemoOutcome, outcome_of
from m4cast.demo.roaming import KEY, FilteredSubscriber, RoamingShop
from m4cast.demo.units import PARTNER, TOPIC, open_units, remove_units, rows_of_topic, write_spec
from m4cast.overlay.errors import M4castError
from m4cast.topology.picture import write_svg
from m4cast.topology.survey import survey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from m4cast.jobs.feeds.feed import FeedState
    from m4cast.jobs.ingest import Ingest

NODES_MIN = 5
TRIGGER_S = 1.0
INGEST_EVERY_S = 2.0
ACKS = 1
START_TIMEOUT_S = 120.0
ARRIVE_TIMEOUT_S = 120.0
INGEST_TIMEOUT_S = 300.0
"""The first micro-batch of a busy machine takes minutes."""
POLL_S = 0.2
FILTER = "item = 'tea' AND pieces >= 5"
MARK = "demo.json"
"""Marks a folder that a demo created, which another demo may replace."""


@dataclass(frozen=True, slots=True)
class Cast:
    """The roles of the nodes."""

    publishing: dict[str, str]
    """The city whose orders are published at a node, by the node's name."""
    ingesting: str
    killed: str
    paused: str

    @classmethod
    def of(cls, names: list[str], cities: list[str]) -> "Cast":
        assert len(names) >= NODES_MIN
        return cls(
            publishing=dict(zip(names, cities, strict=False)),
            ingesting=names[2],
            killed=names[len(names) // 2 + 1],
            paused=names[-1],
        )

    def roles(self, names: list[str]) -> dict[str, str]:
        roles = {name: f"publishes {city}" for name, city in self.publishing.items()}
        roles[self.ingesting] = "ingest reads here"
        return {name: roles.get(name, "") for name in names}


@dataclass(frozen=True, slots=True)
class SparkDemo:
    folder: Path
    nodes: int
    seconds: float
    """Duration of each phase: before the faults, while a node is down, while one is suspended, and after."""
    rows_per_s: int
    """At each publishing node."""
    seed: int
    narrator: Narrator

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def receipts(self) -> Path:
        return self.folder / "receipts"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def svg(self) -> Path:
        return self.folder / "topology.svg"

    def play(self) -> DemoOutcome:
        """Run the demo. The folder is created anew, and removed if the demo does not complete."""
        make_folder(self.folder)
        try:
            with self._units() as (cluster, partner, spark):
                outcome = self._play(cluster, partner, spark)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return outcome

    # ---- nodes and Spark

    @contextmanager
    def _units(self) -> "Iterator[tuple[LocalCluster, LocalCluster, SparkSession]]":
        """Two running clusters and a Spark session, started in parallel; all are gone afterwards, whatever happens."""
        from pyspark.sql import SparkSession

        from m4cast.demo.orders import SHOPS
        from m4cast.jobs.session import job_session

        folder, spec = self.folder / "cluster", self.folder / "units.toml"
        write_spec(spec, self.nodes, list(SHOPS))
        self.narrator.say(f"starting {self.nodes} nodes and a second unit, each node a separate process, and Spark")
        words = [sys.executable, "-m", "m4cast", "federation", "up", "--spec", str(spec), "--dir", str(folder)]
        # Another process starts the nodes: this one forks to start a JVM, which is not safe once it uses gRPC.
        up = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        is_new = SparkSession.getActiveSession() is None
        spark = None
        try:
            on_interrupt = signal.getsignal(signal.SIGINT)
            spark = job_session("m4cast demo", settings={"spark.log.level": "ERROR"}, log=self.folder / "spark.log")
            signal.signal(
                signal.SIGINT, on_interrupt
            )  # Spark's own handler would call Spark in the middle of another call
            self.narrator.say("Spark has started")
            _, messages = up.communicate(timeout=START_TIMEOUT_S)
            if up.returncode:
                raise M4castError(f"the nodes did not start: {messages.strip()}")
            cluster, partner = open_units(folder)
            self.narrator.say(
                f"{self.nodes} nodes are on the channel, {len(partner.names())} on that of unit {PARTNER}"
            )
            self.narrator.say(f"watch them in a browser until the demo ends: http://{cluster.node('n1').web}/", "bold")
            yield cluster, partner, spark
        finally:
            if up.poll() is None:
                up.kill()
                up.communicate()
            try:
                if spark is not None and is_new:
                    spark.stop()  # it raises if a signal has ended the JVM, too
            finally:
                remove_units(folder)

    # ---- the play

    def _play(self, cluster: LocalCluster, partner: LocalCluster, spark: "SparkSession") -> DemoOutcome:
        from m4cast.demo import orders as demo_orders
        from m4cast.jobs import ingest

        cast = Cast.of(cluster.names(), list(demo_orders.SHOPS))
        write_svg(survey(cluster.channel()), self.svg)
        ingesting = Ingesting(spark, self._plan(cluster, cast, continuous=True))
        scene = Scene(cast.roles(cluster.names()))

        def look(scene: Scene) -> None:
            scene.published = max(scene.rows.values(), default=0)
            scene.ingested = ingesting.rows

        with self.narrator.live(cluster, scene, look):
            queries = []
            try:
                for name, city in cast.publishing.items():
                    queries.append(self._publish(spark, cluster.node(name).door, city))
                    self.narrator.say(f"a pipeline publishes orders of {city} at {name}: {self.rows_per_s:,} rows/s")
                ingesting.start()
                self.narrator.say(f"a third pipeline ingests rows at {cast.ingesting} into Delta, and delivery records")
                self._faults(cluster, cast, queries, ingesting)
            finally:
                for query in queries:
                    query.stop()
                ingesting.stop()
            published = self._wait_until_all_have_all(cluster)
            self._wait_for_partner(cluster, partner)
            scene.now = "ingesting the rest"
            filled = ingest.run(spark, self._plan(cluster, cast, continuous=False)).tables
            self.narrator.say("all rows are in Delta")
            if {table.engine for table in filled} == {"direct"}:
                self.narrator.say("tasks wrote the files of the tables themselves: no row passed through the JVM")
            scene.now = "auditing"
            return self._audited(spark, published)

    def _plan(self, cluster: LocalCluster, cast: Cast, *, continuous: bool) -> "Ingest":
        from m4cast.jobs.ingest import Ingest

        nodes = [cast.ingesting, *(name for name in cluster.names() if name != cast.ingesting)]
        access = {"nodes": ",".join(cluster.node(name).door for name in nodes)}
        return Ingest(access, str(self.tables), continuous=continuous, interval_s=INGEST_EVERY_S)

    def _publish(self, spark: "SparkSession", door: str, city: str) -> "StreamingQuery":
        from m4cast.demo.orders import orders

        stream = orders(spark, city, seed=self.seed, rows_per_batch=round(self.rows_per_s * TRIGGER_S))
        writer = stream.writeStream.format("m4cast").queryName(f"orders of {city}")
        writer = writer.options(
            nodes=door, sinkId=f"demo-{city}", acks=str(ACKS), receipts=str(self.folder / "receipts")
        )
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoints" / city))
        return writer.trigger(processingTime=f"{TRIGGER_S} seconds").start()

    def _faults(
        self, cluster: LocalCluster, cast: Cast, queries: "list[StreamingQuery]", ingesting: "Ingesting"
    ) -> None:
        """Inject faults while rows are published and ingested."""

        def wait(seconds: float) -> None:
            """Let the pipelines run; raises if one has failed."""
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                time.sleep(POLL_S)
                for query in queries:
                    if query.exception() is not None:
                        raise M4castError(f"{query.name} failed: {query.exception()}")
                ingesting.check()

        states = self.narrator.scene.states
        deadline = time.monotonic() + INGEST_TIMEOUT_S
        while not ingesting.rows:
            if time.monotonic() > deadline:
                raise M4castError(f"no row was in Delta after {INGEST_TIMEOUT_S:g} s: is this machine busy?")
            wait(POLL_S)
        self.narrator.say("the first rows are in Delta", "green")
        roamer = RoamingShop(cluster, cast.killed, "orders", "pieces >= 6")
        subscriber = FilteredSubscriber(cluster, cast.ingesting, "orders", FILTER)
        self.narrator.say(f"a subscriber at {cast.ingesting} wants orders where {FILTER}")
        wait(self.seconds)

        self.narrator.say(f"client {KEY}, attached to {cast.killed}, leaves with {roamer.leave():,} orders")
        cluster.kill(cast.killed)
        states[cast.killed] = "killed"
        self.narrator.say(f"{cast.killed} is killed (SIGKILL); publishing continues", "red")
        wait(self.seconds)
        missed = roamer.come_back(cast.paused)
        if not roamer.has_each_once():
            raise M4castError(f"client {KEY} did not get each order once")
        self.narrator.say(
            f"client {KEY} returns at {cast.paused} and gets the {missed:,} orders that it missed", "green"
        )
        states[cast.killed] = "starting"
        cluster.start(cast.killed)
        states[cast.killed] = "up"
        self.narrator.say(f"{cast.killed} is back on the channel and fetches what it missed", "green")

        cluster.pause(cast.paused)
        states[cast.paused] = "paused"
        self.narrator.say(f"{cast.paused} is suspended (SIGSTOP); publishing continues", "yellow")
        wait(self.seconds)
        cluster.resume(cast.paused)
        states[cast.paused] = "up"
        self.narrator.say(f"{cast.paused} is resumed (SIGCONT)", "green")
        wait(self.seconds)
        for query in queries:
            query.stop()
        self._until(lambda: not subscriber.left(), "the subscriber lacks rows")
        self.narrator.say(f"the subscriber got the {subscriber.rows:,} orders that it wanted, and no others", "green")
        subscriber.close()

    def _wait_until_all_have_all(self, cluster: LocalCluster) -> int:
        """Wait until all nodes have the same number of rows, after publishing has stopped; returns that number."""
        deadline = time.monotonic() + ARRIVE_TIMEOUT_S
        counts: dict[str, int] = {}
        while time.monotonic() < deadline:
            counts = {name: rows_at(cluster, name, LOOK_TIMEOUT_S) for name in cluster.names()}
            self.narrator.scene.now = f"{min(counts.values()):,} of {max(counts.values()):,} rows are at every node"
            if min(counts.values()) == max(counts.values()) > 0:
                self.narrator.say(f"publishing has stopped: every node has all {max(counts.values()):,} rows", "green")
                return max(counts.values())
            time.sleep(POLL_S)
        last = min(counts, key=lambda name: counts[name])
        raise M4castError(
            f"{last} has only {counts[last]:,} of {max(counts.values()):,} rows after {ARRIVE_TIMEOUT_S:g} s"
        )

    def _wait_for_partner(self, cluster: LocalCluster, partner: LocalCluster) -> None:
        rows = rows_of_topic(cluster, "n1")

        def has_all() -> bool:
            return all(rows_of_topic(partner, name) == rows for name in partner.names())

        self._until(has_all, f"unit {PARTNER} lacks rows")
        self.narrator.say(f"unit {PARTNER} has all {rows:,} {TOPIC}, and only these, through its gateway", "green")

    def _until(self, is_done: Callable[[], bool], trouble: str) -> None:
        deadline = time.monotonic() + ARRIVE_TIMEOUT_S
        while not is_done():
            if time.monotonic() > deadline:
                raise M4castError(f"{trouble} after {ARRIVE_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    # ---- audits

    def _audited(self, spark: "SparkSession", published: int) -> DemoOutcome:
        from m4cast.jobs import delivery_audit, ordering_gaps
        from m4cast.jobs.report.page import write_report
        from m4cast.jobs.table_folder import TableFolder

        tables, receipts = str(self.tables), str(self.receipts)
        self.narrator.scene.now = "looking for gaps"
        # All rows have arrived, so even the current minute can be audited.
        as_of, grace = datetime.now(UTC) + timedelta(minutes=1), timedelta(0)
        gaps = ordering_gaps.run(spark, tables, receipts=receipts, as_of=as_of, grace=grace)
        self.narrator.say(f"gaps: {gaps.text}")
        self.narrator.scene.now = "auditing deliveries"
        audit = delivery_audit.run(spark, tables, as_of=as_of, grace=grace)
        self.narrator.say(f"audit: {audit.text}")
        write_report(TableFolder(spark, tables), self.report)
        self.narrator.scene.now = "counting"
        return outcome_of(spark, tables, published, audit.run.verdict)


class Ingesting(threading.Thread):
    """The ingest pipeline, which runs until it is stopped."""

    def __init__(self, spark: "SparkSession", plan: "Ingest") -> None:
        super().__init__(name="demo-ingest", daemon=True)
        self._spark = spark
        self._plan = plan
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self.rows = 0
        """Rows in Delta, of all topics."""

    def run(self) -> None:
        from m4cast.jobs import ingest

        try:
            ingest.run(self._spark, self._plan, stop=self._stopped, on_progress=self._look)
        except Exception as error:  # `check` raises it on the demo's thread
            self._error = error

    def _look(self, states: "Sequence[FeedState]") -> None:
        self.rows = sum(state.rows for state in states if state.table.startswith("events/"))

    def check(self) -> None:
        if self._error is not None:
            raise M4castError(f"ingest failed: {self._error}") from self._error

    def stop(self) -> None:
        """Stop, and return when its queries have ended."""
        self._stopped.set()
        if self.is_alive():
            self.join()
        self.check()


def make_folder(folder: Path) -> None:
    """Create an empty folder for the demo, in place of one that an earlier demo left."""
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / MARK).exists():
                raise M4castError(f"{folder}: is not empty and not from an earlier demo: choose another --dir")
            remove_units(folder / "cluster")  # left by a demo that was killed
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text(json.dumps({"made_by": "m4cast demo"}) + "\n", encoding="utf-8")
    except OSError as error:
        raise M4castError(f"{folder}: cannot be used: {error.strerror}") from error
