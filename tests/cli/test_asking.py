"""`m4cast table`, `m4cast query` and `m4cast topic compact`, at real nodes."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel
from tests.overlay.door.served import Served, serving, told_doors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), 2, settings=told_doors(2)) as served:
        yield served


@pytest.fixture
def channel(served: Served, monkeypatch: pytest.MonkeyPatch) -> Channel:
    monkeypatch.setenv("M4CAST_NODE", served.addresses[0])
    return Channel(served.addresses[:1])


def test_a_table_is_printed_as_it_stands_and_compacted(channel: Channel) -> None:
    writer = channel.table_writer("offers", "ann")
    writer.put({"lamp": {"price": 1}})
    writer.put({"lamp": {"price": 2}, "chair": {"price": 3}})
    writer.remove(["chair"])
    said = CliRunner().invoke(main, ["table", "offers"])
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert (said.exit_code, [(row["_name"], row["price"]) for row in rows]) == (0, [("lamp", 2)])
    removed = CliRunner().invoke(main, ["table", "offers", "--removed", "--where", "price IS NULL"])
    assert [json.loads(line)["_name"] for line in removed.stdout.splitlines()] == ["chair"]
    compacted = CliRunner().invoke(main, ["topic", "compact", "offers"])
    assert (compacted.exit_code, compacted.stdout.split(": ")[1]) == (0, "1 of its batches removed\n")
    as_json = CliRunner().invoke(main, ["topic", "compact", "--json", "offers"])
    assert json.loads(as_json.stdout)["batches"] == 0


def test_a_query_prints_rows_and_what_they_are_exact_for(channel: Channel) -> None:
    channel.publish("asked", [{"n": n} for n in range(10)])
    origin = next(iter(channel.extents("asked")["asked"]))
    for scope in ("node", "channel"):
        said = CliRunner().invoke(main, ["query", "asked", "--where", "n > 7", "--scope", scope])
        assert [json.loads(line)["n"] for line in said.stdout.splitlines()] == [8, 9]
        assert f"rows 1 to 10 of {origin} by " in said.stderr
        assert said.exit_code == 0
    few = CliRunner().invoke(main, ["query", "asked", "--max-rows", "3"])
    assert len(few.stdout.splitlines()) == 3 and "there may be more" in few.stderr
    unknown = CliRunner().invoke(main, ["query", "nothing"])
    assert unknown.exit_code == 2 and "'nothing'" in unknown.stderr


def test_a_query_that_a_node_did_not_answer_fails(channel: Channel, served: Served) -> None:
    channel.publish("partly", [{"n": 1}])
    served.run(served.stop_door(1))
    said = CliRunner().invoke(main, ["query", "partly", "--scope", "channel"])
    assert (said.exit_code, len(said.stdout.splitlines())) == (1, 1)
    assert "did not answer" in said.stderr
