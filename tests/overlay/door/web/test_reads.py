"""Reading by HTTP: ranges in every format, positions, times and limits; what a node has and knows."""

import json
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.door.web.routes import ARROW, CSV, JSON_LINES
from m4cast.overlay.door.web.texts import accepted
from tests.overlay.door.web.doors import WebServed
from tests.overlay.door.web.test_posts import refused

ROWS = [{"id": number, "text": f"row {number}"} for number in range(10)]


@pytest.fixture(scope="module")
def orders(pair: WebServed) -> str:
    """A topic with ten rows in five batches. Returns the position after the first four."""
    positions = []
    for at in range(0, 10, 2):
        assert pair.post("/topics/read", ROWS[at : at + 2]).status == 200
        positions.append(pair.get("/topics/read/rows").headers["m4cast-next"])
    return positions[1]


def ids(lines: list[Any]) -> list[int]:
    return [line["id"] for line in lines]


def test_rows_are_json_lines_by_default_with_the_channels_columns(pair: WebServed, orders: str) -> None:
    answer = pair.get("/topics/read/rows")
    assert (answer.status, answer.headers["content-type"]) == (200, JSON_LINES)
    assert ids(answer.lines) == list(range(10))
    first = answer.lines[0]
    assert first.pop("_published_at").endswith("Z")
    origin = pair.served.nodes[0].driver.node.me.node_id.hex()
    assert first == {**ROWS[0], "_topic": "read", "_origin": origin, "_sequence": 1}


def test_rows_are_the_same_as_those_of_the_flight_door(pair: WebServed, orders: str) -> None:
    answer = pair.get("/topics/read/rows", Accept=ARROW)
    assert answer.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.equals(Channel(pair.served.addresses[:1]).read("read"))


def test_a_table_is_read_as_it_stands(pair: WebServed) -> None:
    for counter, price in enumerate((1, 2)):
        row = {"_owner": "a", "_name": "b", "_version": {"session": 1, "counter": counter}, "n": price}
        assert pair.post("/topics/offers", [row]).status == 200
    assert [line["n"] for line in pair.get("/topics/offers/rows").lines] == [1, 2]
    assert [line["n"] for line in pair.get("/topics/offers/rows?read=table").lines] == [2]
    assert pair.get("/topics/offers/rows?read=table&where=n%3D1").lines == []
    refused(pair.get("/topics/offers/rows?read=table&from=earliest"), 400, "bad-request", "remove from")
    refused(pair.get("/topics/offers/rows?read=tables"), 400, "bad-request", "must be rows or table")


def test_csv_has_a_header_and_nested_columns_as_json(pair: WebServed) -> None:
    row = {"a": 1, "list": [1, 2], "text": 'a "b", c', "none": None}
    pair.post("/topics/nested", row)
    answer = pair.get("/topics/nested/rows", Accept=CSV)
    header, line = answer.body.decode().splitlines()
    assert header.startswith('"a","list","text","none","_topic"')
    assert line.startswith('1,"[1, 2]","a ""b"", c",,"nested"')


def test_positions_times_and_limits_choose_the_rows(pair: WebServed, orders: str) -> None:
    def chosen(query: str) -> list[int]:
        answer = pair.get(f"/topics/read/rows?{query}")
        assert answer.status == 200, answer.body
        return ids(answer.lines)

    assert chosen(f"from={orders}") == [4, 5, 6, 7, 8, 9]
    assert chosen(f"to={orders}") == [0, 1, 2, 3]
    assert chosen(f"from={orders}&limit=3") == [4, 5, 6]
    assert chosen("limit=0") == []
    assert chosen("from=latest") == []
    assert chosen("from=-") == list(range(10))
    published = pair.get("/topics/read/rows?limit=10").lines[4]["_published_at"]
    since = chosen(f"from={published.replace('+', '%2B')}")
    assert since == list(range(since[0], 10)) and since[0] <= 4
    assert chosen("from=9999999999999") == []


def test_reading_from_the_next_position_gives_each_row_once(pair: WebServed) -> None:
    seen: list[int] = []
    at = "earliest"
    for number in range(5):
        pair.post("/topics/pages", {"id": number})
        answer = pair.get(f"/topics/pages/rows?from={at}")
        seen += ids(answer.lines)
        at = answer.headers["m4cast-next"]
    assert seen == [0, 1, 2, 3, 4]


def test_another_node_waits_for_the_rows_or_says_that_it_lags(pair: WebServed) -> None:
    pair.post("/topics/lag", {"id": 1})
    origin, _, until = pair.get("/topics/lag/rows").headers["m4cast-next"].partition(":")
    assert ids(pair.ask("GET", f"/topics/lag/rows?to={origin}:{until}", at=1).lines) == [1]
    late = pair.get(f"/topics/lag/rows?to={origin}:{int(until) + 1}&timeout_ms=1")
    refused(late, 503, "behind", "repeat it later")
    assert late.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("query", "status", "code", "words"),
    [
        ("from=yesterday", 400, "bad-request", ["from", "origin:next"]),
        ("from=2026-01-31T12:00:00", 400, "bad-request", ["from", "zone"]),
        ("to=earliest", 400, "bad-request", ["to is 'earliest'"]),
        ("to=0123:1", 400, "bad-request", ["to has '0123:1'", "origin:next"]),
        ("from=" + "00" * 16 + ":0", 400, "bad-request", ["from", "from 1 on"]),
        ("from=" + "00" * 16 + ":1," + "00" * 16 + ":2", 400, "bad-request", ["twice"]),
        ("limit=-1", 400, "bad-request", ["limit"]),
        ("limit=x", 400, "bad-request", ["limit"]),
        ("on_missing=maybe", 400, "bad-request", ["on_missing", "fail or skip"]),
        ("start=1", 400, "bad-request", ["'start'", "from"]),
    ],
)
def test_a_bad_parameter_is_refused_by_name(
    pair: WebServed, orders: str, query: str, status: int, code: str, words: list[str]
) -> None:
    refused(pair.get(f"/topics/read/rows?{query}"), status, code, *words)


def test_unknown_topics_and_rows_that_are_gone_are_refused(pair: WebServed) -> None:
    refused(pair.get("/topics/never/rows"), 404, "unknown-topic", "never")
    refused(pair.get("/topics/never"), 404, "unknown-topic")
    pair.post("/topics/gone", {"id": 1})
    assert pair.post("/actions/topic-delete", {"topic": "gone"}).status == 200
    refused(pair.get("/topics/gone/rows?from=-"), 410, "missing", "earliest")
    assert pair.get("/topics/gone/rows?from=-&on_missing=skip").lines == []


def test_a_filter_chooses_rows_and_a_bad_one_is_refused(pair: WebServed, orders: str) -> None:
    answer = pair.get("/topics/read/rows?where=id%20%3E%3D%207")
    assert ids(answer.lines) == [7, 8, 9]
    assert answer.headers["m4cast-next"] == pair.get("/topics/read/rows").headers["m4cast-next"]
    assert ids(pair.get("/topics/read/rows?where=id%20%3E%3D%207&limit=1").lines) == [7]
    refused(pair.get("/topics/read/rows?where=id%20%3E%3D"), 400, "bad-request", "where")
    refused(pair.get("/topics/read/tail?language=sql"), 400, "bad-request", "where")


def test_accept_chooses_by_weight_and_order() -> None:
    assert accepted("") == accepted("*/*") == accepted("application/json") == JSON_LINES
    assert accepted("text/csv;q=0.5, application/vnd.apache.arrow.stream") == ARROW
    assert accepted("text/html, text/csv; q=0.1") == CSV
    assert accepted("text/csv, application/x-ndjson") == CSV


def test_what_cannot_be_written_is_refused(pair: WebServed, orders: str) -> None:
    for accept in ("text/html", "text/csv;q=0", "text/csv;q=x"):
        refused(pair.get("/topics/read/rows", Accept=accept), 400, "bad-request", "Accept", JSON_LINES)


def test_many_rows_are_streamed_in_order(pair: WebServed) -> None:
    table = pa.table({"id": range(100_000)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert pair.post("/topics/stream", sink.getvalue().to_pybytes(), ARROW).status == 200
    read = pa.ipc.open_stream(pair.get("/topics/stream/rows", Accept=ARROW).body).read_all()
    assert read["id"].to_pylist() == list(range(100_000))
    assert len(pair.get("/topics/stream/rows?limit=70000", Accept=CSV).body.splitlines()) == 70_001


# ---- what a node has and knows


def test_resources_are_the_actions_of_the_client_door(pair: WebServed, orders: str) -> None:
    for path, action, body in (
        ("/topics", "topics", None),
        ("/topics/read", "topic", {"topic": "read"}),
        ("/topics/read/frontier", "frontier", {"topic": "read"}),
        ("/topics/read/frontier?at_ms=0", "frontier", {"topic": "read", "at_ms": 0}),
        ("/topology", "topology", None),
        ("/status", "status", None),
    ):
        direct = pair.ask("POST", f"/actions/{action}", json.dumps(body) if body else None)
        answer = pair.get(path)
        assert (answer.status, direct.status) == (200, 200), (path, answer.body, direct.body)
        if action not in ("status", "topology"):  # these have clocks
            assert answer.json == direct.json
    refused(pair.ask("POST", "/actions/explode"), 400, "bad-request", "explode", "choose one of")
    refused(pair.ask("POST", "/actions/lease", "{}"), 400, "bad-request", "lease")
    refused(pair.ask("POST", "/actions/status", "[]"), 400, "bad-request", "object")


def test_other_paths_and_methods_are_not_there(pair: WebServed) -> None:
    assert pair.get("/nothing").status == 404
    wrong = pair.ask("DELETE", "/topics/read")
    assert (wrong.status, sorted(wrong.headers["allow"].split(","))) == (405, ["GET", "POST"])
