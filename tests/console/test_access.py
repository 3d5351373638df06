"""Addresses of nodes, as users write them."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.cluster.local import LocalCluster
from m4cast.console.access import doors_of


def test_doors_come_one_by_one_or_with_commas() -> None:
    assert doors_of(("a:1", "b:2, c:65535", "[::1]:7500,")) == ("a:1", "b:2", "c:65535", "[::1]:7500")
    assert doors_of(("grpc+tls://a:1",)) == ("grpc+tls://a:1",)
    assert doors_of(()) == ()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("localhost", "'localhost' has no port: give host:port"),
        (":7500", "':7500' has no port"),
        ("[::1]", "'[::1]' has no port"),
        ("::1:7500", "needs brackets"),
        ("a:x", "'x' is not a port: give host:port, the port from 1 to 65535"),
        ("a:", "'' is not a port"),
        ("a:0", "'0' is not a port"),
        ("a:65536", "'65536' is not a port"),
        ("a:1,b", "'b' has no port"),
        (",", "names no node"),
    ],
)
def test_an_invalid_door_is_reported(value: str, said: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        doors_of((value,))
    assert said in refused.value.message
    for command in ("status", "publish", "tail", "drain", "doctor"):
        result = CliRunner().invoke(main, [command, "--node", value])
        assert result.exit_code == 2 and said in result.output


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["tail"], "if one node is unreachable, the next is used"),
        (["publish"], "if one node is unreachable, the rows go to the next"),
        (["shutdown"], "exactly one"),
        (["drain"], "exactly one"),
        (["topology"], "every node is asked"),
    ],
)
def test_help_says_what_nodes_are_for_and_how_the_environment_names_them(words: list[str], about: str) -> None:
    shown = " ".join(CliRunner().invoke(main, [*words, "--help"]).output.split())
    assert about in shown
    for name in ("NODE", "TOKEN", "CA", "CERT", "KEY"):
        assert f"[env var: M4CAST_{name}" in shown


def test_exactly_one_is_one() -> None:
    result = CliRunner().invoke(main, ["shutdown", "--node", "127.0.0.1:1,127.0.0.1:2"])
    assert result.exit_code == 2 and "one node at a time" in result.output


def test_nodes_of_the_environment_may_have_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M4CAST_NODE", "127.0.0.1:1,127.0.0.1:2")
    result = CliRunner().invoke(main, ["status"])
    assert "127.0.0.1:1 cannot be reached" in result.output and "127.0.0.1:2 cannot be reached" in result.output


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster in the folder where commands are run; none of its nodes runs."""
    monkeypatch.delenv("M4CAST_NODE", raising=False)
    monkeypatch.delenv("M4CAST_CLUSTER_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return LocalCluster.make(tmp_path / "m4cast-cluster", 2)


def test_a_stopped_cluster_is_reported(planned: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalCluster.make(planned.folder.parent / "other", 1)
    for words in (["status"], ["topics"], ["topology"], ["tail"], ["topic", "describe", "t"]):
        for folder in ("m4cast-cluster", "other"):
            if folder == "other":
                monkeypatch.setenv("M4CAST_CLUSTER_DIR", "other")
            result = CliRunner().invoke(main, words)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr == (
                f"m4cast: {folder}: no node of this cluster is running: start it with `m4cast cluster up`, "
                "or give --node\n"
            )
        monkeypatch.delenv("M4CAST_CLUSTER_DIR")


def test_nodes_that_are_named_come_before_a_cluster_that_is_here(
    planned: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = CliRunner().invoke(main, ["status", "--node", "127.0.0.1:1"])
    monkeypatch.setenv("M4CAST_NODE", "127.0.0.1:1")
    for result in (named, CliRunner().invoke(main, ["status"])):
        assert result.stderr == "m4cast: 127.0.0.1:1 cannot be reached: Connection refused\n"


@pytest.mark.parametrize("words", [["shutdown"], ["drain"]])
def test_a_node_that_is_to_go_is_named(planned: LocalCluster, words: list[str]) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "name the node that is to leave: give --node HOST:PORT" in result.stderr


def test_a_missing_node_option_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("M4CAST_NODE", raising=False)
    monkeypatch.delenv("M4CAST_CLUSTER_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["topics"])
    assert result.exit_code == 2
    assert "no node is named: give --node HOST:PORT, set M4CAST_NODE, or start a cluster in this folder with" in (
        result.stderr
    )
