"""Choice of the nodes that are asked; one of them that hangs does not block the others."""

import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.source.nodes import Nodes
from tests.overlay.client.hanging import hanging


def nodes_of(listed: str, timeout_ms: int = 2_000) -> Nodes:
    given = {"nodes": listed, "read": "deliveries", "of": "all", "timeoutMs": str(timeout_ms)}
    return Nodes(read_options(parse(given), streaming=False))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_listed_node_that_hangs_is_passed_over(cluster: LocalCluster, is_first: bool) -> None:
    door = cluster.node("n1").door
    with hanging() as silent:
        listed = f"{silent},{door}" if is_first else f"{door},{silent}"
        assert {node.name for node in nodes_of(listed).wanted()} == {"n1", "n2"}


def test_it_fails_when_every_node_hangs() -> None:
    with hanging() as silent, pytest.raises(ConnectorError, match="M4CAST_UNREACHABLE"):
        nodes_of(silent, timeout_ms=100).wanted()
