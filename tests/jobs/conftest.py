"""One cluster of two nodes for the jobs that read a channel; every test has topics and tables of its own."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from tests.processes.clusters import running_cluster


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
    """A folder of tables."""
    return str(tmp_path / "tables")
