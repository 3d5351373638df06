"""Looking at real nodes through their doors, and telling them to go."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.config import NodeConfig
from tests.overlay.door.served import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), 3) as served:
        yield served


def run(*words: str) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def told(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


def test_the_status_of_a_node(served: Served) -> None:
    status = told("status", "--node", served.addresses[0])
    assert (status["name"], status["state"], status["holes"]) == ("n0", "full", 2)
    assert len(status["neighbours"]) == 2
    assert {entry["name"] for entry in status["roster"]} == {"n0", "n1", "n2"}
    assert status["door"] == NodeConfig().door  # as it is configured
    assert status["listen"] == status["address"] == served.nodes[0].address
    doors = {entry["listen"]: entry["door"] for entry in [*status["roster"], *status["neighbours"]]}
    assert doors.keys() == {node.address for node in served.nodes}
    shown = run("status", "--node", served.addresses[0])
    for word in ("n0", "full", "neighbours", "n1 at", "roster"):
        assert word in shown


def test_the_topics_of_a_node(served: Served) -> None:
    assert "no topics yet" in run("topics", "--node", served.addresses[0])
    for address in served.addresses[:2]:
        Channel([address]).publish("orders", [{"id": number} for number in range(5)], acks=2)
    orders = {"topic": "orders", "streams": 2, "rows": 10, "rows_published": 10}
    assert told("topics", "--node", served.addresses[2]) == {"topics": [orders]}
    assert run("topics", "--node", served.addresses[2]).splitlines()[1].split() == ["orders", "2", "10", "10"]


def test_the_topology_as_text_json_and_picture(served: Served, tmp_path: Path) -> None:
    nodes = [word for address in served.addresses for word in ("--node", address)]
    graph = told("topology", *nodes)
    assert [node["name"] for node in graph["nodes"]] == ["n0", "n1", "n2"]
    assert [node["neighbours"] for node in graph["nodes"]] == [["n1", "n2"], ["n0", "n2"], ["n0", "n1"]]
    assert graph["links"] == [["n0", "n1"], ["n0", "n2"], ["n1", "n2"]]
    assert (graph["diameter"], graph["components"], graph["lynchpins"]) == (1, [["n0", "n1", "n2"]], [])
    file = tmp_path / "graph.svg"
    shown = run("topology", *nodes, "--svg", str(file))
    assert (
        "3 nodes, 3 links, diameter 1" in shown
        and "survives the loss of any one node" in shown
        and "graph.svg" in shown
    )
    assert len(Xml.parse(file).findall("{http://www.w3.org/2000/svg}line")) == 3


def test_a_route_and_a_tree(served: Served, tmp_path: Path) -> None:
    node = ("--node", ",".join(served.addresses))
    assert run("route", "--from", "n0", "--to", "n2", *node) == "n0 -> n2 (1 hop)\n"
    assert told("route", "--from", "n1", "--to", "n1", *node) == {"route": ["n1"], "hops": 0}
    tree = told("topology", "--tree", "n1", *node)["tree"]
    assert sorted(tree) == [["n1", "n0"], ["n1", "n2"]]
    file = tmp_path / "tree.svg"
    shown = run("topology", "--tree", "n1", "--svg", str(file), *node)
    assert "n1 passes on to n0" in shown
    widths = [line.get("stroke-width") for line in Xml.parse(file).findall("{http://www.w3.org/2000/svg}line")]
    assert sorted(map(str, widths)) == ["1.4", "4", "4"]
    result = CliRunner().invoke(main, ["route", "--from", "n0", "--to", "nowhere", *node])
    assert result.exit_code == 2
    assert "no node is called 'nowhere': choose one of n0, n1, n2" in result.output


def test_the_topology_goes_on_without_a_node_that_is_away(served: Served) -> None:
    result = CliRunner().invoke(main, ["topology", "--node", f"127.0.0.1:1,{served.addresses[1]}", "--json"])
    assert result.exit_code == 0, result.output
    graph = json.loads(result.stdout)
    assert [node["name"] for node in graph["nodes"]] == ["n0", "n1", "n2"]
    assert graph["nodes"][1]["state"] == "full", "its own word"
    assert [node["listen"] for node in graph["nodes"]] == [node.address for node in served.nodes]
    assert all(node["address"] == node["listen"] for node in graph["nodes"])
    assert {node["door"] for node in graph["nodes"]} == {NodeConfig().door}
    assert "continuing without a node: 127.0.0.1:1 cannot be reached" in result.stderr


def test_an_unwritable_picture_is_reported(served: Served, tmp_path: Path) -> None:
    words = ["topology", "--node", served.addresses[0], "--svg", str(tmp_path / "nowhere" / "graph.svg")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "graph.svg: cannot be written" in result.output
