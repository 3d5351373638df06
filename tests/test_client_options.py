"""Where nodes are, as users write it."""

import click
import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.client_options import doors_of


def test_doors_come_one_by_one_or_with_commas() -> None:
    assert doors_of(("a:1", "b:2, c:65535", "[::1]:7500,")) == ("a:1", "b:2", "c:65535", "[::1]:7500")
    assert doors_of(("grpc+tls://a:1",)) == ("grpc+tls://a:1",)
    assert doors_of(()) == ()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("localhost", "'localhost' has no port: give HOST:PORT"),
        (":7500", "':7500' has no port"),
        ("[::1]", "'[::1]' has no port"),
        ("::1:7500", "needs brackets"),
        ("a:x", "'x' is no port: give a number from 1 to 65535"),
        ("a:", "'' is no port"),
        ("a:0", "'0' is no port"),
        ("a:65536", "'65536' is no port"),
        ("a:1,b", "'b' has no port"),
        (",", "names no node"),
    ],
)
def test_what_is_no_door_is_said(value: str, said: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        doors_of((value,))
    assert said in refused.value.message
    for command in ("status", "publish", "tail", "drain", "doctor"):
        result = CliRunner().invoke(main, [command, "--node", value])
        assert result.exit_code == 2 and said in result.output


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["tail"], "the next is asked when one is away"),
        (["publish"], "Door of the access point"),
        (["shutdown"], "exactly one"),
        (["drain"], "exactly one"),
        (["topology"], "each is asked"),
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
