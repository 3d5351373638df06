"""Each page is followed from top to bottom; then the results are what the page promises."""

import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Channel
from tests.docs.pages import DOCS, ROOT, snippets_of
from tests.docs.walkthrough import Walkthrough
from tests.overlay.door.served import serving
from tests.overlay.door.web.doors import web_serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def doors(nodes: str) -> dict[str, str]:
    """The addresses that pages use, and those of real nodes."""
    first, second = nodes.split(",")
    return {"127.0.0.1:7501": first, "127.0.0.1:7502": second, "old:7500": first, "new:7500": second}


def test_architecture(walkthrough: Walkthrough, capsys: pytest.CaptureFixture[str]) -> None:
    walkthrough.run(DOCS / "ARCHITECTURE.md")
    assert "founded" in capsys.readouterr().out


def test_clients(tmp_path: Path, nodes: str) -> None:
    page = Walkthrough(tmp_path, replace=doors(nodes))
    page.run(DOCS / "CLIENTS.md")
    assert page.names["missed"] == [3]


def test_commands(with_cluster: Walkthrough) -> None:
    with_cluster.run(DOCS / "COMMANDS.md")
    assert (with_cluster.folder / "work" / "graph.svg").read_text(encoding="utf-8").startswith("<svg")


def test_contributing(tmp_path: Path) -> None:
    page = Walkthrough(tmp_path, working=ROOT)
    page.run(ROOT / "CONTRIBUTING.md")
    assert len(page.ran) == 2


def test_filters(tmp_path: Path) -> None:
    """Its `sql` is filters, one a line."""
    orders = [{"country": country, "amount": amount} for country, amount in (("PL", 150), ("PL", 50), ("DE", 150))]
    with serving(tmp_path / "nodes", 1) as served:
        channel = Channel(served.addresses)
        channel.publish("orders", orders)
        page = Walkthrough(tmp_path, {"channel": channel})
        for snippet in snippets_of(DOCS / "FILTERS.md"):
            if snippet.language == "python":
                page.run_one(snippet)
                assert page.names.pop("rows").select(["country", "amount"]).to_pylist() == orders[:1]
            elif snippet.language == "sql":
                for where in snippet.text.splitlines():
                    channel.read("orders", where=where)


def test_operations(tmp_path: Path, own_nodes: str) -> None:
    listen, door, http = free_ports(3)
    alone = {"127.0.0.1:7401": listen, "127.0.0.1:7501": door, "127.0.0.1:7601": http}
    replace = {old: f"127.0.0.1:{port}" for old, port in alone.items()}
    page = Walkthrough(tmp_path, replace={**doors(own_nodes), **replace})
    page.run(DOCS / "OPERATIONS.md")
    assert Channel(own_nodes.split(",")[1]).position("orders-import") == "44"


def test_backup(tmp_path: Path) -> None:
    page = Walkthrough(tmp_path)
    cluster = page.folder / "work" / "m4cast-cluster"
    try:
        page.run(DOCS / "BACKUP.md")
        restored = LocalCluster.open(cluster)
        with restored.channel("n3") as channel:
            assert channel.read("orders").column("id").to_pylist() == [1, 2, 3], "it has what came after the copy"
    finally:
        if cluster.exists():
            LocalCluster.open(cluster).down()


def test_security(walkthrough: Walkthrough) -> None:
    walkthrough.run(DOCS / "SECURITY.md")
    made = {path.name for path in (walkthrough.folder / "work" / "certs").iterdir()}
    assert {"ca.crt", "ca.key", "warsaw-1.crt", "warsaw-1.key", "reports.crt", "reports.key"} <= made


def test_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tail.mjs", "live.mjs"):
        shutil.copy(DOCS / "examples" / name, tmp_path)
    with web_serving(tmp_path / "nodes", 1) as web:
        monkeypatch.setenv("M4CAST_WEB", f"http://{web.address}")
        Walkthrough(tmp_path).run(DOCS / "HTTP.md")
        assert web.post("/actions/position", {"key": "shop"}).json["position"] == "2"


def test_jobs(spark: "SparkSession", tmp_path: Path, own_nodes: str) -> None:
    Channel(own_nodes).publish("orders", [{"id": 1, "price": 9.5}, {"id": 2, "price": 0.5}])
    page = Walkthrough(tmp_path, replace=doors(own_nodes))
    page.run(DOCS / "JOBS.md")
    for tables in ("tables", "raw-tables"):
        rows = spark.read.format("delta").load(str(tmp_path / "work" / tables / "events" / "orders"))
        assert sorted(row.id for row in rows.collect()) == [1, 2]


def test_audit(spark: "SparkSession", tmp_path: Path, audited: str, capsys: pytest.CaptureFixture[str]) -> None:
    tables = tmp_path / "tables"
    shutil.copytree(audited, tables)
    names = {"spark": spark, "folder": str(tables)}
    page = Walkthrough(tmp_path, names, replace={"--tables tables": f"--tables {tables}"})
    page.run(DOCS / "AUDIT.md")
    assert "INCOMPLETE" in capsys.readouterr().out
    missing, health, latest, slow, repairs = page.names["results"]
    assert missing[0]["receiver"] == "n7" and missing[0]["is_tail"]
    assert any(row["receiver"] == "n5" and not row["is_tail"] for row in missing)
    assert next(row["receiver"] for row in health if row["missing"] or row["lost"]) == "n7"
    assert {row["receiver"] for row in health if row["completeness"] == 100} >= {"n1", "n2", "n3", "n4", "n8", "n9"}
    assert {row["status"] for row in latest} == {"SILENT"}
    assert {row["node_id"] for row in slow} == {"n4"}
    assert {row["node_id"] for row in repairs} == {"n4"}
