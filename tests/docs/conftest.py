"""One local cluster for the pages and the examples that need some channel; each page has a folder of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from m4cast.cluster.local import LocalCluster
from tests.docs.walkthrough import Walkthrough
from tests.processes.clusters import running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("docs") / "cluster", 2) as cluster:
        yield cluster


@pytest.fixture
def nodes(cluster: LocalCluster) -> str:
    return doors_of(cluster)


@pytest.fixture
def own_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Nodes for one page alone: pages have topics of the same name."""
    with running_cluster(tmp_path_factory.mktemp("page") / "cluster", 2) as cluster:
        yield doors_of(cluster)


def doors_of(cluster: LocalCluster) -> str:
    return ",".join(cluster.node(name).door for name in cluster.names())


@pytest.fixture
def walkthrough(tmp_path: Path) -> Walkthrough:
    return Walkthrough(tmp_path)


@pytest.fixture
def with_cluster(walkthrough: Walkthrough) -> Iterator[Walkthrough]:
    """A walkthrough for a page that starts a cluster of its own: its processes end with the test."""
    yield walkthrough
    for folder in walkthrough.folder.glob("work/m4cast-cluster"):
        cluster = LocalCluster.open(folder)
        cluster.kill(*cluster.running())


@pytest.fixture(autouse=True)
def same_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """A page that builds a session gets the shared one, and sets it up in its own way: that is taken back."""
    if "spark" not in request.fixturenames:
        yield
        return
    spark: SparkSession = request.getfixturevalue("spark")
    kept = spark.conf.getAll
    yield
    for name, value in spark.conf.getAll.items():
        if kept.get(name, value) != value and spark.conf.isModifiable(name):  # the others have no effect by now
            spark.conf.set(name, kept[name])
