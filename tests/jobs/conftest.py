"""One cluster of two nodes for the jobs that read a channel, and, for those that look at tables, tables of one channel
with gaps and audit done; every test has topics and tables of its own."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from m4cast.cluster.local import LocalCluster
from tests.jobs.scenarios import BEGIN, channel
from tests.processes.clusters import running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("jobs") / "cluster", 2) as cluster:
        yield cluster


@pytest.fixture
def nodes(cluster: LocalCluster) -> str:
    return ",".join(cluster.node(name).door for name in cluster.names())


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Of tables."""
    return str(tmp_path / "tables")


@pytest.fixture(scope="session")
def audited(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder."""
    from tests.jobs.audited import make_audited

    folder: Path = tmp_path_factory.mktemp("audited")
    make_audited(spark, str(folder), channel(), BEGIN + timedelta(hours=1))
    return str(folder)
