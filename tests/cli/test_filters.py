"""`m4cast explain`, and filters of `m4cast tail`, at a real node."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.profiles import parse
from tests.overlay.door.served import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), 1) as served:
        yield served


@pytest.fixture
def door(served: Served, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("M4CAST_NODE", served.addresses[0])
    return served.addresses[0]


def rows(first: int, count: int) -> list[dict[str, object]]:
    return [{"n": number, "at": {"site": "warsaw"}} for number in range(first, first + count)]


def test_a_tail_prints_rows_that_match(door: str) -> None:
    Channel([door]).publish("tailed", rows(0, 20))
    words = ["tail", "--topic", "tailed", "--from", "earliest", "--idle-s", "0.1", "--where"]
    said = CliRunner().invoke(main, [*words, "n > 17 AND at.site = 'warsaw'"])
    assert [json.loads(line)["n"] for line in said.stdout.splitlines()] == [18, 19]
    assert (said.exit_code, said.stderr) == (0, "")
    diet = CliRunner().invoke(main, [*words, "size > 3", "--language", "diet", "--max-rows", "1"])
    assert (diet.exit_code, diet.stdout) == (0, "")


def test_a_tail_warns_of_columns_that_its_topic_lacks(door: str) -> None:
    Channel([door]).publish("lacking", rows(0, 3))
    words = ["tail", "--topic", "lacking", "--from", "earliest", "--idle-s", "0.1", "--where"]
    said = CliRunner().invoke(main, [*words, "m IS NULL AND at.city IS NULL"])
    assert len(said.stdout.splitlines()) == 3
    assert "topic 'lacking' has no column 'm', so it is null in every row; its columns are n, at" in said.stderr
    assert "no column 'at.city'" in said.stderr
    wrong = CliRunner().invoke(main, [*words, "n ="])
    assert wrong.exit_code == 2
    assert "where: at character" in wrong.stderr
    alone = CliRunner().invoke(main, [*words[:-1], "--language", "sql"])
    assert alone.exit_code == 2 and "without where" in alone.stderr


def test_explain_shows_what_a_filter_means_and_decides(door: str) -> None:
    channel = Channel([door])
    channel.publish("explained", rows(0, 1))
    channel.read("explained", where="n = 1")  # from now on, batches are summarised
    for first in range(0, 3_000, 1_000):
        channel.publish(
            "explained", rows(first, 1_000), key="k", expect=str(first) if first else None, next=first + 1_000
        )
    said = CliRunner().invoke(main, ["explain", "--topic", "explained", "--where", "NOT n < 2990 AND nobody <=> NULL"])
    lines = said.stdout.splitlines()
    profile = parse("n >= 2990 AND nobody IS NULL")
    assert lines[:3] == [
        f"filter: {profile.text}",
        f"id: {profile.id.hex()} (sql 1)",
        "columns: n, nobody",
    ]
    assert lines[3] == "batches: 3 of 4 have a summary; 2 are passed over by it, 2 are read"
    assert lines[4].startswith("rows: 10 of 3,001 pass (0.33%); ")
    assert lines[4].endswith(" ms of CPU per million rows")
    assert said.stderr == (
        "m4cast: topic 'explained' has no column 'nobody', so it is null in every row; its columns are n, at\n"
    )
    found = json.loads(
        CliRunner()
        .invoke(main, ["explain", "--topic", "explained", "--where", "n = 1", "--rows", "0", "--json"])
        .stdout
    )
    assert (found["rows"], found["batches"], found["cpu_ms_per_million_rows"]) == (0, 0, None)
    newest = channel.explain("explained", "TRUE", rows=10)
    assert (newest["rows"], newest["matching_rows"], newest["columns"]) == (10, 10, [])
    assert newest["error_rows"] == 0
    said = CliRunner().invoke(
        main, ["explain", "--topic", "explained", "--where", "n = 'x' OR at LIKE '%'", "--rows", "7"]
    )
    assert "rows: 0 of 7 pass" in said.stdout
    assert "\nerrors: 2,000 times a value could not be compared, which is no match: " in said.stdout


def test_explain_refuses_what_cannot_be_explained(door: str) -> None:
    for words, problem in (
        (["--where", "n ="], "at character"),
        (["--where", "n = 1", "--topic", "nowhere"], "nothing was published under topic 'nowhere'"),
        (["--topic", "t"], "--where"),
        (["--where", "n = 1", "--rows", "10000001"], "10000001"),
    ):
        said = CliRunner().invoke(main, ["explain", *words])
        assert said.exit_code == 2 and problem in said.stderr


def test_an_opaque_filter_is_called_that(door: str) -> None:
    Channel([door]).publish("opaque", rows(0, 1))
    where = " AND ".join(f"(a{at} = 1 OR b{at} = 2)" for at in range(8))
    said = CliRunner().invoke(main, ["explain", "--topic", "opaque", "--where", where])
    assert "opaque: it has too many alternatives" in said.stdout
