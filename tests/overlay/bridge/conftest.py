"""One broker, one node, and topics of its own for each test."""

from collections.abc import Iterator

import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Channel
from tests.kafka_broker import KafkaBroker
from tests.overlay.bridge.kafka_side import KafkaSide, SmallRegistry
from tests.processes.clusters import running_cluster


@pytest.fixture(scope="session")
def bridge_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("bridge") / "cluster", 1) as cluster:
        yield cluster


@pytest.fixture
def channel(bridge_cluster: LocalCluster) -> Channel:
    return bridge_cluster.channel("n1")


@pytest.fixture
def kafka(kafka_broker: KafkaBroker) -> KafkaSide:
    return KafkaSide(kafka_broker)


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    small = SmallRegistry()
    yield small
    small.close()
