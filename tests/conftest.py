"""What tests of several rooms share; and which tests run beside which: the suite runs in two processes (`make test`),
the tests of a file in one of them.

All tests that use Spark stay together, since a second JVM would cost more time than it saves, and so do all that use
Kafka. Simulation comes first: it takes longest, and the two processes should end together.
"""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kafka_broker import KafkaBroker

TOGETHER = ("spark", "kafka_broker")
"""Fixtures whose tests stay in one process; a test with both goes with the first."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = [fixture for fixture in TOGETHER if fixture in getattr(item, "fixturenames", ())]
        item.add_marker(pytest.mark.xdist_group(used[0] if used else _file(item)))
    items.sort(key=lambda item: not _file(item).startswith("tests/simulation/"))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One session with Delta for all: a JVM takes long to start, and has its jars for good."""
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
        # Thousands of small queries: what takes time is compiling, not running.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[KafkaBroker]":
    """One broker for all tests; every test has topics of its own. Whoever stops it starts it again."""
    from tests.kafka_broker import running_broker  # here, since it imports Spark and Kafka

    with running_broker(tmp_path_factory.mktemp("kafka") / "broker") as broker:
        yield broker
