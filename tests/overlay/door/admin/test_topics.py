"""Topics at real doors: their description, their retention, and what a deletion does and does not."""

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import flight

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.door.admin import topics
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.plain import act, code_of, connect, frontier, get, path, put
from tests.overlay.door.served import Served, serving

WEEK_MS = 7 * 24 * 3_600_000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("topics"), 2) as served:
        yield served


def origin(served: Served, at: int) -> str:
    return served.nodes[at].driver.node.me.node_id.hex()


def test_a_topic_is_described_with_columns_streams_and_retention(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    put(here, path("described"), pa.table({"n": [1, 2]}))
    put(there, path("described"), pa.table({"n": [3], "text": ["x"]}))
    get(here, topic="described", start={}, end=frontier(there, "described"))  # it is there now
    said = act(here, "topic", topic="described")
    assert sorted(column["name"] for column in said["columns"]) == ["n", "text"]
    assert {"name": "text", "type": "string"} in said["columns"]
    first, second = said["streams"][origin(pair, 0)], said["streams"][origin(pair, 1)]
    assert (first["low"], first["next"], first["batches"]) == (1, 3, 1)
    assert (second["low"], second["next"], second["batches"]) == (1, 2, 1)
    assert (said["rows"], said["bytes"]) == (3, first["bytes"] + second["bytes"])
    assert said["retention"] == {"max_bytes": None, "max_age_ms": WEEK_MS, "is_default": True}


def test_a_topic_with_unknown_columns_is_described_with_the_reason(pair: Served) -> None:
    pair.run(pair.nodes[0].publish("odd", b"not arrow at all"))
    said = act(connect(pair, 0), "topic", topic="odd")
    assert said["columns"] is None
    assert "cannot be read as Arrow" in said["conflict"]


def test_retention_of_a_topic_is_set_and_reset(pair: Served) -> None:
    here = connect(pair, 0)
    for _ in range(3):
        put(here, path("kept"), pa.table({"n": list(range(100))}))
    assert act(here, "topic-retention", topic="kept", max_bytes=0) == {
        "max_bytes": 0,
        "max_age_ms": WEEK_MS,
        "is_default": False,
    }
    pair.nodes[0].store.trim(pair.nodes[0].driver.clock.now_ms()).result(30)
    assert act(here, "topic", topic="kept")["rows"] == 0
    assert act(connect(pair, 1), "topic-retention", topic="kept", max_age_ms=5)["max_bytes"] is None
    reset = {"max_bytes": None, "max_age_ms": WEEK_MS, "is_default": True}
    assert act(here, "topic-retention", topic="kept", max_bytes=None) == reset


def test_settings_are_limited(pair: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    here = connect(pair, 0)
    act(here, "topic-retention", topic="one more", max_bytes=1)
    monkeypatch.setattr(topics, "SETTINGS_MAX", 1)
    act(here, "topic-retention", topic="one more", max_bytes=2)
    with pytest.raises(flight.FlightServerError) as error:
        act(here, "topic-retention", topic="yet another", max_bytes=1)
    assert code_of(error) == "too-many"
    act(here, "topic-summaries", topic="one more", summarise="off")
    act(here, "topic-summaries", topic="one more", summarise=["n"])
    with pytest.raises(flight.FlightServerError, match="reset some") as error:
        act(here, "topic-summaries", topic="yet another", summarise="off")
    assert code_of(error) == "too-many"
    act(here, "topic-summaries", topic="yet another")


def test_a_deleted_topic_is_empty_here_whole_elsewhere_and_its_numbering_goes_on(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    for _ in range(3):
        put(here, path("deleted"), pa.table({"n": [1, 2]}))
    end = frontier(here, "deleted")
    get(there, topic="deleted", start={}, end=end)
    act(here, "lease", reader="held", frontier={"deleted": {origin(pair, 0): 3}}, ttl_ms=60_000)

    said = act(here, "topic-delete", topic="deleted")
    assert said["streams"] == {origin(pair, 0): [7, 7]}
    assert said["bytes"] > 0
    assert act(here, "topic", topic="deleted")["bytes"] == 0
    with pytest.raises(flight.FlightUnavailableError) as error:
        get(here, topic="deleted", start={}, end=end)
    assert code_of(error) == "missing"
    with pytest.raises(flight.FlightServerError) as error:
        act(here, "lease", reader="held", frontier={"deleted": {origin(pair, 0): 3}}, ttl_ms=60_000)
    assert code_of(error) == "reader-cut"
    assert get(there, topic="deleted", start={}, end=end).num_rows == 6

    (ack,) = put(here, path("deleted"), pa.table({"n": [9]}))
    assert (ack["ranges"][0]["first"], ack["ranges"][0]["next"]) == (7, 8)
    assert get(here, topic="deleted", start="earliest", end="latest")["n"].to_pylist() == [9]
    stream = next(stream for stream in pair.nodes[0].driver.node.holdings.streams if stream.topic == "deleted")
    assert pair.nodes[0].driver.node.holdings.streams[stream].low == 7, "the node does not offer what it has not got"


@pytest.mark.parametrize("action", ["topic", "topic-delete"])
def test_an_unknown_topic_is_refused(pair: Served, action: str) -> None:
    with pytest.raises(flight.FlightServerError) as error:
        act(connect(pair, 0), action, topic="nobody's")
    assert code_of(error) == "unknown-topic"
    with pytest.raises(flight.FlightServerError, match="topic is missing: set it") as error:
        act(connect(pair, 0), action)
    assert code_of(error) == "bad-request"


def test_the_client_and_the_command_handle_topics(pair: Served) -> None:
    channel = Channel(pair.addresses)
    channel.publish("ordered", [{"n": 1}, {"n": 2}], acks=1)
    assert channel.describe("ordered")["rows"] == 2
    assert channel.set_retention("ordered", max_bytes=5)["max_bytes"] == 5
    nodes = [option for address in pair.addresses for option in ("--node", address)]

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["topic", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert [json.loads(line)["rows"] for line in run("describe", *nodes, "--json", "ordered").splitlines()] == [2, 2]
    shown = run("describe", *nodes[:2], "ordered")
    assert "2 rows" in shown and "retention: 5 B" in shown and "column n: int64" in shown and "rows 1 to 2" in shown
    assert "any size, 7 d (default)" in run("retention", *nodes[:2], "ordered")
    assert "summaries: auto, now none" in shown
    assert "summaries: of n, st.x" in run("summaries", *nodes[:2], "--column", "n", "--column", "st.x", "ordered")
    assert channel.describe("ordered")["summaries"]["summarise"] == ["n", ["st", "x"]]
    assert "summaries: off" in run("summaries", *nodes, "--off", "ordered")
    assert json.loads(run("summaries", *nodes[:2], "--json", "ordered"))["summarise"] == "auto"
    both = CliRunner().invoke(main, ["topic", "summaries", *nodes, "--off", "--column", "n", "ordered"])
    assert both.exit_code == 2 and "exclude each other" in both.output
    assert channel.set_summaries("ordered", ["n"]) == {"summarise": ["n"], "columns": ["n"]}
    assert channel.set_summaries("ordered", "off")["summarise"] == "off"
    assert channel.set_summaries("ordered") == {"summarise": "auto", "columns": []}
    assert CliRunner().invoke(main, ["topic", "delete", *nodes, "ordered"], input="n").exit_code == 2
    assert "removed 0 bytes" not in run("delete", *nodes, "--yes", "ordered")
    assert [Channel([node]).describe("ordered")["rows"] for node in pair.addresses] == [0, 0]
    with pytest.raises(RefusedError, match="unknown-topic"):
        channel.delete_topic("nobody's")
