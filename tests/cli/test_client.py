"""`m4cast client` at real nodes: made, subscribed, away, back at another node."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel
from tests.overlay.door.served import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), 2) as served:
        yield served


def run(*words: str, code: int = 0) -> str:
    said = CliRunner().invoke(main, ["client", *words])
    assert said.exit_code == code, said.output
    return said.output


def test_a_client_leaves_and_returns_elsewhere(served: Served, tmp_path: Path) -> None:
    first, second = served.addresses
    file = str(tmp_path / "shop.json")
    assert "shop-7: created at" in run("new", file, "--name", "shop-7", "--node", first)
    assert "exists: choose another name" in run("new", file, "--node", first, code=2)
    run("subscribe", file, "orders", "--where", "n > 2", "--name", "large")
    Channel([first]).publish("orders", [{"n": n} for n in range(5)], acks=1)
    answer = json.loads(run("connect", file, "--node", second, "--json"))
    assert (answer["node"], answer["session"], answer["waiting_max"]) == (second, 2, 5)
    lines = run("tail", file, "--idle-s", "0.5", "--node", second).splitlines()
    assert [json.loads(line)["n"] for line in lines] == [3, 4]
    assert run("tail", file, "--idle-s", "0.3", "--node", second) == ""
    assert "shop-7: offline; attached to n1" in run("finger", "shop-7", "--node", second)
    assert "nobody knows it" in run("finger", "shop-8", "--node", second)
    assert "shop-7" in run("list", "--node", second)
    assert "large: given up" in run("unsubscribe", file, "--name", "large", "--node", second)
    assert "its rows wait" in run("disconnect", file, "--node", second)
    assert "shop-7 at" in run("remove", "shop-7", "--yes", "--node", second)
    assert json.loads(run("list", "--node", second, "--json"))["clients"] == []


def test_access_points_are_the_doors_of_the_roster(served: Served) -> None:
    doors = json.loads(run("access-points", "--node", served.addresses[0], "--json"))["access_points"]
    assert doors == sorted(node["door"] for node in Channel(served.addresses).topology()["nodes"] if node["door"])


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "there is no such file" in run("tail", str(tmp_path / "nothing.json"), code=2)
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    assert "cannot be read as a client's file" in run("tail", str(tmp_path / "broken.json"), code=2)
