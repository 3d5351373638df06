"""The options that commands share: each declared once, and the same in every command."""

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from m4cast.cli import SUBCOMMANDS, main
from m4cast.console.options import (
    command,
    confirm,
    count_option,
    folder_option,
    moment_option,
    pairs_option,
    seconds_option,
)
from m4cast.console.quantities import count_of, whole_age_of
from m4cast.overlay.errors import M4castError

SHARED = ("as_json", "token", "ca", "cert", "key", "yes", "svg", "log_format", "tables", "spark_log", "spark_conf")
"""Options that look the same in every command that has them."""

GIVEN: list[dict[str, object]] = []


@command()
@count_option("--count", low=1, high=9, default=3, help="A number.")
@seconds_option("--wait-s", low=0.5, help="A duration.")
@moment_option("--at", help="A moment.")
@folder_option(default=".", help="A folder.")
@pairs_option("--set", "settings", help="A setting.")
def example(**given: object) -> None:
    """An example."""
    GIVEN.append(given)


def parsed(*words: str) -> dict[str, object]:
    result = CliRunner().invoke(example, words)
    assert result.exit_code == 0, result.output
    return GIVEN.pop()


def test_values_are_parsed() -> None:
    assert parsed() == {"count": 3, "wait_s": None, "at": None, "folder": Path(), "settings": {}}
    given = ("--count", "9", "--wait-s", "0.5", "--at", "2026-01-31", "--dir", "x", "--set", "a=1=2", "--set", "b=")
    assert parsed(*given) == {
        "count": 9,
        "wait_s": 0.5,
        "at": datetime(2026, 1, 31, tzinfo=UTC),
        "folder": Path("x"),
        "settings": {"a": "1=2", "b": ""},
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--count", "10"], "10 is not in the range 1<=x<=9"),
        (["--count", "0"], "0 is not in the range"),
        (["--wait-s", "0.4"], "0.4 is not in the range"),
        (["--at", "soon"], "'soon' does not match the format"),
        (["--set", "a"], "'a' is not NAME=VALUE"),
        (["--set", "=a"], "'=a' is not NAME=VALUE"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(words: list[str], message: str) -> None:
    result = CliRunner().invoke(example, words)
    assert result.exit_code == 2 and message in result.output


@pytest.mark.parametrize(("answer", "is_yes"), [("y", True), ("YES", True), ("n", False), ("", False), ("yep", False)])
def test_a_question_is_answered_by_yes_alone(answer: str, is_yes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    if is_yes:
        confirm("Sure?")
    else:
        with pytest.raises(M4castError, match="answer y, or give --yes"):
            confirm("Sure?")


def every_command() -> Iterator[tuple[str, click.Command]]:
    for name in SUBCOMMANDS:
        found = main.get_command(None, name)  # type: ignore[arg-type]  # our group does not look at the context
        assert found is not None
        yield from ((f"{name} {part}", each) for part, each in getattr(found, "commands", {name: found}).items())


def test_a_shared_option_looks_the_same_in_every_command() -> None:
    looks: dict[str, dict[str, list[str]]] = {}
    for name, each in every_command():
        for option in each.params:
            if isinstance(option, click.Option) and option.name in SHARED:
                record = option.get_help_record(click.Context(each))
                assert record is not None
                look = " ".join(record).replace("per node ", "")  # commands that ask each node print an object for each
                looks.setdefault(option.name, {}).setdefault(look, []).append(name)
    assert set(looks) == set(SHARED)
    assert {name: found for name, found in looks.items() if len(found) > 1} == {}


def test_every_option_has_help_and_takes_h() -> None:
    for name, each in every_command():
        assert "-h" in each.get_help_option_names(click.Context(each, **each.context_settings)) or " " in name, name
        for option in each.params:
            if isinstance(option, click.Option):
                text = (option.help or "").partition(" [default")[0]
                assert text[:1].isupper() and text.endswith("."), (name, option.name, text)


def test_counts_and_whole_ages() -> None:
    assert [count_of(count, "row") for count in (0, 1, 2_000)] == ["0 rows", "1 row", "2,000 rows"]
    assert [whole_age_of(ms) for ms in (0, 999, 1_000, 90_000, 7_200_000, 259_200_000)] == [
        "0 s",
        "0 s",
        "1 s",
        "1 min",
        "2 h",
        "3 d",
    ]
