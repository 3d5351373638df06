"""Fixtures that several rooms share; and the distribution of tests over processes: the suite runs in two of them
(`make test`), the tests of a file in one.

Tests that use a Spark session stay together in two groups of about the same length, each with a session of its own: a
JVM costs half a minute until it is warm, and a third one would not pay. All tests that use Kafka are one group, too.
What takes longest comes first, so that the processes end together.
"""

import ast
import asyncio
import gc
import os
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from m4cast.overlay.profiles.condition import Condition
from m4cast.overlay.profiles.profile import LANGUAGES, SQL, SQL_VERSION
from tests.time_table import TimeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kafka_broker import KafkaBroker

ROOT = Path(__file__).parent.parent

TOGETHER = {
    "tests/docs/test_pages.py": "spark: jobs",  # reads the audited tables, too
    "tests/jobs/direct/": "spark: connector",
    "tests/jobs/test_ingest.py": "spark: connector",
    "tests/jobs/": "spark: jobs",
    "tests/docs/": "spark: connector",
    "tests/spark_connector/": "spark: connector",
    "tests/overlay/profiles/test_spark_agreement.py": "spark: connector",
    "tests/overlay/bridge/": "kafka",
    "tests/processes/": "processes",
}
"""Rooms whose tests share a JVM, or what runs beside them: of those of Spark, the files that use the session."""
SESSION = re.compile(r"\bdef test_\w+\([^)]*\b(spark|audited): ")
"""A test with one of the fixtures that make a session."""
FIRST = (
    "spark",
    "tests/simulation/test_campaign.py",
    "processes",  # wait more than they work: good company
    "kafka",
    "tests/simulation/",
    "tests/spark_connector/",  # some start JVMs of their own
)
"""Groups that take long."""
LAST = "tests/processes/test_netns.py"
"""In its group: what it looks at takes minutes, and runs beside the others."""
# Every JVM that tests start runs for a few minutes: compiling well, and collecting in parallel, does not pay. With the
# quick compiler alone the JVM has room for 48 MB of code. A session that all tests share compiles more than that, and
# would discard it and compile it again all the time.
# Classes of released jars need no verification, which is a fifth of the time that loading them takes.
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JVM)


MACHINES = tuple(f"m4cast.overlay.{room}." for room in ("protocol", "federation", "net"))
NODE_ROOMS = (*MACHINES, "m4cast.overlay.door.", "m4cast.overlay.store.", "m4cast.cli.nodes.")


if sys.version_info < (3, 12, 2):
    # CPython's `ast.parse` counts the depth of what it makes in a variable that all threads share (gh-106905): if the
    # collector runs meanwhile, and with it Python code (Hypothesis has a callback), another thread may parse as well,
    # say a line of a traceback that it logs, and one of both fails with "AST constructor recursion depth mismatch".
    parse_at_risk = ast.parse

    def parse_uncollected(*args: Any, **named: Any) -> Any:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return parse_at_risk(*args, **named)
        finally:
            if was_enabled:
                gc.enable()

    ast.parse = parse_uncollected


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out whole groups in the order of `pytest_collection_modifyitems`. (`--dist loadgroup` would do, but the
    group's mark has no effect with pytest 9.2 and xdist 3.8.)"""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # where the reports of all workers arrive
        config.pluginmanager.register(TimeTable())


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByGroup:
    return ByGroup(config, log)


def group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    groups = (group for room, group in TOGETHER.items() if file.startswith(room))
    group = next(groups, file)
    return file if group.startswith("spark") and not uses_session(file) else group


@cache
def uses_session(file: str) -> bool:
    return SESSION.search((ROOT / file).read_text(encoding="utf-8")) is not None


def pytest_collection_finish() -> None:
    """Objects that exist by now stay, and simulations make objects that live: looking for garbage among these is a
    quarter of the time that a channel of a thousand nodes takes."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> tuple[int, bool]:
        group = group_of(item.nodeid)
        place = next((number for number, first in enumerate(FIRST) if group.startswith(first)), len(FIRST))
        return place, item.nodeid.startswith(LAST)

    items.sort(key=place)


@pytest.fixture(autouse=True)
def parsed_off_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails any test in which sqlglot, which takes up to 20 ms, runs on a node's loop or in the machines that the loop
    drives."""
    parse = LANGUAGES[SQL, SQL_VERSION]
    seen: list[str] = []

    def watched(text: str) -> Condition:
        seen.extend(offence_of(sys._getframe(1)))
        return parse(text)

    monkeypatch.setitem(LANGUAGES, (SQL, SQL_VERSION), watched)
    yield
    assert not seen, f"a filter was parsed where only canonical texts may be read: {seen}"


def offence_of(frame: FrameType | None) -> Iterator[str]:
    """The place that has a text parsed, if it must not."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("m4cast.overlay.profiles"):
        frame = frame.f_back
    if frame is None:
        return
    module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
    is_node = module.startswith(NODE_ROOMS)
    is_machine = module.startswith(MACHINES) and function != "config_wishes"  # asked first on a thread
    if is_machine or (is_node and asyncio._get_running_loop() is not None):
        yield f"{module}.{function}"


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One session with Delta for all tests of a group: a JVM takes long to start, and has its jars for good."""
    from m4cast.jobs.session import delta_builder  # here, since it imports Spark

    os.environ["PYSPARK_PYTHON"] = sys.executable  # in it, Spark looks for data sources
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        delta_builder("m4cast-tests")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        # Small queries: what takes time is planning and compiling them, and files beside files, not running.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.hadoop.fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        # The default one starts `readlink` three times for each file that it renames.
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        )
        # Memory that grows by itself does so through many full collections.
        .config("spark.driver.memory", "3g")
        .config("spark.driver.extraJavaOptions", "-Xms2g -Xmn768m -XX:MetaspaceSize=256m")
        # Plans and tasks of the last thousand queries are retained even without the UI.
        .config("spark.ui.retainedJobs", "10")
        .config("spark.ui.retainedStages", "10")
        .config("spark.ui.retainedTasks", "100")
        .config("spark.sql.ui.retainedExecutions", "10")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def audited(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of one channel's tables, with gaps and audit done; tests read it, or change a copy."""
    from tests.jobs.audited import make_audited  # here, since they import Spark
    from tests.jobs.scenarios import BEGIN, channel

    folder: Path = tmp_path_factory.mktemp("audited")
    make_audited(spark, str(folder), channel(), BEGIN + timedelta(hours=1))
    return str(folder)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[KafkaBroker]":
    """One broker for all tests; every test has topics of its own. Whoever stops it starts it again."""
    from tests.kafka_broker import running_broker  # here, since it imports Spark and Kafka

    with running_broker(tmp_path_factory.mktemp("kafka") / "broker") as broker:
        yield broker
