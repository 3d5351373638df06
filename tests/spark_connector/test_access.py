"""Reaching the nodes: credentials from the options, patience, and how Spark finds the data source."""

import subprocess
import sys
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.errors import RefusedError, UnreachableError
from m4cast.spark_connector.access import patiently
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.source.rows import schema_of


def test_certificates_open_a_door_that_is_closed_without_them(tmp_path: Path, nodes: str) -> None:
    cluster = LocalCluster.make(tmp_path / "cluster", 1, tls=True)
    try:
        cluster.up()
        cluster.channel().publish("orders", [{"id": 1}])
        who = cluster.credentials()
        given = {"nodes": cluster.node("n1").door, "topic": "orders", "timeoutMs": "500"}
        shown = {**given, "tlsCa": who["ca"], "tlsCert": who["cert"], "tlsKey": who["key"], "timeoutMs": "20000"}
        found = schema_of(read_options(parse(shown), streaming=True))
        assert found.names == ["id", "_topic", "_origin", "_sequence", "_published_at"]
        with pytest.raises(ConnectorError, match=r"M4CAST_UNREACHABLE.*the door may speak TLS: give tlsCa"):
            schema_of(read_options(parse(given), streaming=True))
        plain = {"nodes": nodes, "topic": "orders", "timeoutMs": "500", "tlsCa": who["ca"]}
        with pytest.raises(ConnectorError, match=r"M4CAST_UNREACHABLE.*does not speak TLS: leave tlsCa"):
            schema_of(read_options(parse(plain), streaming=True))
    finally:
        cluster.kill(*cluster.running())


def test_a_port_without_a_door_is_reported(cluster: LocalCluster) -> None:
    node = cluster.node("n1")
    for port in (node.listen, node.http):
        given = {"nodes": port, "topic": "orders", "timeoutMs": "500"}
        with pytest.raises(ConnectorError, match=r"M4CAST_UNREACHABLE.*give the node's `door`, not its `listen`"):
            schema_of(read_options(parse(given), streaming=True))


def test_what_passes_is_waited_for() -> None:
    answers: list[Exception | str] = [UnreachableError("away"), RefusedError("busy", "full"), "done"]

    def call() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(call, 60) == "done"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnreachableError("n1 is away"), "M4CAST_UNREACHABLE.*n1 is away"),
        (RefusedError("behind", "no rows yet"), "M4CAST_BEHIND.*no rows yet"),
        (RefusedError("missing", "rows 1 to 2"), "M4CAST_DATA_LOSS.*rows 1 to 2.*failOnDataLoss"),
        (RefusedError("missing-stage", "x/0"), "M4CAST_STAGE_LOST.*x/0.*stage_expire_ms"),
        (RefusedError("schema-conflict", "column a"), "M4CAST_SCHEMA_CONFLICT.*column a"),
        (RefusedError("forbidden", "no right"), "M4CAST_REFUSED.*forbidden: no right"),
        (RefusedError("unauthenticated", "no token"), "M4CAST_REFUSED.*no token: set token to env:NAME"),
        (UnreachableError("n: certificate verify failed"), "M4CAST_UNREACHABLE.*not issued by this tlsCa"),
    ],
)
def test_errors_of_nodes_get_the_ids_of_the_connector(error: Exception, told: str) -> None:
    def call() -> None:
        raise error

    with pytest.raises(ConnectorError, match=told):
        patiently(call, 0)


def test_sparks_look_up_imports_little_and_is_never_broken_by_it() -> None:
    """It imports every such module of the environment, and one that raises would hide all other sources."""
    program = (
        "import sys; import pyspark_m4cast as found; print(found.DefaultSource.name(), 'pyarrow.flight' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["m4cast", "False"]
    program = (
        "import sys; sys.modules['m4cast.spark_connector'] = None; import pyspark_m4cast as found; print(dir(found))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "DefaultSource" not in said.stdout and "format('m4cast') is not available" in said.stderr
