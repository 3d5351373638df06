"""Each page is followed from top to bottom; then the results are what the page promises."""

import configparser
import re
import shlex
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from m4cast.cli import main
from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Channel
from tests.docs.pages import DOCS, PAGES, ROOT, snippets_of
from tests.docs.walkthrough import Walkthrough
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


# ---- what is not run


def lines_of(language: str, beginning: str) -> list[tuple[str, str]]:
    """Place and line, of snippets in this language."""
    found = [each for page in PAGES for each in snippets_of(page) if each.language == language]
    return [
        (snippet.place, line)
        for snippet in found
        for line in snippet.text.splitlines()
        if line.strip().startswith(beginning)
    ]


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """Has click parse the words as this command would, and nothing more."""
    context = command.make_context(name, list(words), parent)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        chosen_name, chosen, left = command.resolve_command(context, rest)
        assert chosen is not None and chosen_name is not None
        parse(chosen, chosen_name, left, context)


@pytest.mark.parametrize(("place", "line"), lines_of("text", "m4cast "))
def test_commands_that_are_not_run_are_understood(place: str, line: str) -> None:
    parse(main, "m4cast", shlex.split(line, comments=True)[1:])


def test_the_unit_file_starts_a_node() -> None:
    (unit,) = [each for each in snippets_of(DOCS / "OPERATIONS.md") if each.language == "ini"]
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.text)
    started = parser["Service"]["ExecStart"]
    words = shlex.split(re.sub(r"\S*%i\S*", str(ROOT / "conf" / "node.toml"), started))
    assert words[0].endswith("/m4cast")
    parse(main, "m4cast", words[1:])
