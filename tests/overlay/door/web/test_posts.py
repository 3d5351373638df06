"""Publishing by HTTP: every format of a body, keys, refusals that name the thing and the fix."""

import io
import json
import re
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet
import pytest

from m4cast.overlay.door.publish.gathering import GatheredRows, Gatherer
from m4cast.overlay.door.web import bodies
from m4cast.overlay.door.web.routes import ARROW, BODIES, CSV, EVENT_JSON, EVENTS_JSON, JSON, JSON_LINES, PARQUET
from tests.overlay.door.web.doors import Answer, WebServed

TABLE = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]
EVENT = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "sold"}


def arrow_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue()


def rows_of(web: WebServed, topic: str) -> list[dict[str, Any]]:
    """Without the channel's columns."""
    answer = web.get(f"/topics/{topic}/rows")
    assert answer.status == 200, answer.body
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in answer.lines]


def refused(answer: Answer, status: int, code: str, *words: str) -> None:
    assert (answer.status, answer.json["code"]) == (status, code), answer.body
    for word in words:
        assert word in answer.json["detail"], answer.json


BODY_OF: dict[str, bytes] = {
    JSON: json.dumps(ROWS, indent=2).encode(),
    JSON_LINES: b"\n".join(json.dumps(row).encode() for row in ROWS),
    CSV: b'id,name\n1,a\n2,b\n3,""\n'.replace(b'""', b""),
    ARROW: arrow_bytes(TABLE),
    PARQUET: parquet_bytes(TABLE),
    EVENT_JSON: json.dumps(EVENT).encode(),
    EVENTS_JSON: json.dumps([EVENT, {**EVENT, "id": "e2"}]).encode(),
}


def test_each_format_has_a_test() -> None:
    assert set(BODY_OF) == set(BODIES)


@pytest.mark.parametrize("kind", [JSON, JSON_LINES, CSV, ARROW, PARQUET])
def test_rows_are_published_in_each_format_and_answered_with_their_range(pair: WebServed, kind: str) -> None:
    topic = f"format-{kind.rpartition('/')[2]}"
    answer = pair.post(f"/topics/{topic}", BODY_OF[kind], f"{kind}; charset=utf-8")
    assert answer.status == 200, answer.body
    origin = pair.served.nodes[0].driver.node.me.node_id.hex()
    assert answer.json == {"rows": 3, "ranges": [{"topic": topic, "origin": origin, "first": 1, "next": 4}]}
    last = [{"id": 3, "name": "" if kind == CSV else None}]
    assert rows_of(pair, topic) == ROWS[:2] + last


def test_one_object_is_one_row_even_over_several_lines(pair: WebServed) -> None:
    assert pair.post("/topics/one", json.dumps({"a": {"b": [1]}}, indent=4)).json["rows"] == 1
    assert rows_of(pair, "one") == [{"a": {"b": [1]}}]


def test_an_empty_body_of_rows_publishes_nothing(pair: WebServed) -> None:
    for kind, body in ((JSON, "[]"), (JSON_LINES, ""), (EVENTS_JSON, "[]"), (CSV, "id\n")):
        assert pair.post("/topics/nothing", body, kind).json == {"rows": 0, "ranges": []}
    assert pair.get("/topics/nothing").status == 404


def test_text_has_the_types_of_the_topic(pair: WebServed) -> None:
    pair.post("/topics/typed", {"price": 9.5, "count": 1})
    assert pair.post("/topics/typed", {"price": 9}).status == 200
    assert pair.post("/topics/typed", "price\n3\n", CSV).status == 200
    assert [row["price"] for row in rows_of(pair, "typed")] == [9.5, 9.0, 3.0]
    refused(pair.post("/topics/typed", {"count": 1.5}), 400, "bad-request", "element 1", "count")
    refused(pair.post("/topics/typed", arrow_bytes(pa.table({"count": ["x"]})), ARROW), 409, "schema-conflict", "count")


def test_many_rows_become_several_batches(pair: WebServed) -> None:
    table = pa.table({"id": range(300_000), "text": ["some text"] * 300_000})
    for kind, body in ((PARQUET, parquet_bytes(table)), (ARROW, arrow_bytes(table))):
        answer = pair.post("/topics/many", body, kind)
        assert answer.status == 200, answer.body
        assert answer.json["rows"] == 300_000
        assert sum(rows["next"] - rows["first"] for rows in answer.json["ranges"]) == 300_000
    described = pair.get("/topics/many").json
    assert (described["rows"], {stream["batches"] > 2 for stream in described["streams"].values()}) == (600_000, {True})


@pytest.mark.parametrize("kind", [PARQUET, ARROW])
def test_a_body_of_many_texts_becomes_few_batches(kind: str) -> None:
    """Each text once: a dictionary is as large as the body, and has nothing to do with the size of a row."""
    texts = [f"{number:0100}" for number in range(30_000)]
    table = pa.table({"text": texts})
    folded = pa.table({"text": pa.array(texts).dictionary_encode()})
    body = parquet_bytes(table) if kind == PARQUET else arrow_bytes(folded)
    batches = list(bodies.rows_of(body, {"Content-Type": kind}, lambda: pa.schema([])).batches)
    assert len(batches) < 10
    assert [text for rows in batches for text in rows.column("text").to_pylist()] == texts


def test_a_file_of_few_texts_is_not_expanded_at_once() -> None:
    table = pa.table({"text": ["x" * 100_000] * 1_000})
    body = parquet_bytes(table)
    assert len(body) < 1_000_000
    sizes = [rows.nbytes for rows in bodies.rows_of(body, {"Content-Type": PARQUET}, lambda: table.schema).batches]
    assert max(sizes) <= 4 << 20 and sum(sizes) >= 100_000_000


def test_acks_wait_for_another_node(pair: WebServed) -> None:
    assert pair.post("/topics/acked?acks=1", {"id": 1}).status == 200
    end = pair.get("/topics/acked/rows").headers["m4cast-next"]
    answer = pair.ask("GET", f"/topics/acked/rows?to={end}", at=1)
    assert [row["id"] for row in answer.lines] == [1]
    refused(pair.post("/topics/acked?acks=9", {"id": 1}), 409, "too-few-nodes", "acks is 9")


# ---- keys


def test_a_request_with_a_key_is_published_once(pair: WebServed) -> None:
    first, again = (pair.post("/topics/keyed", {"id": 1}, Idempotency_Key='"8e03-97"') for _ in range(2))
    assert first.json == again.json and first.status == 200
    assert rows_of(pair, "keyed") == [{"id": 1}]


def test_expect_and_next_are_the_commit_primitive(pair: WebServed) -> None:
    for path, rows in (("?next=10", [{"id": 1}]), ("?expect=10&next=20", [{"id": 2}, {"id": 3}])):
        first, again = (pair.post(f"/topics/moves{path}", rows, Idempotency_Key="shop") for _ in range(2))
        assert first.status == 200 and first.json == again.json
    assert pair.post("/actions/position", {"key": "shop"}).json["position"] == "20"
    assert [row["id"] for row in rows_of(pair, "moves")] == [1, 2, 3]
    late = pair.post("/topics/moves?expect=10&next=30", {"id": 4}, Idempotency_Key="shop")
    refused(late, 409, "wrong-position", "shop")


def test_keys_that_make_no_sense_are_refused(pair: WebServed) -> None:
    refused(pair.post("/topics/t?next=1", {"id": 1}), 400, "bad-request", "Idempotency-Key")
    refused(pair.post("/topics/t?expect=1", {"id": 1}, Idempotency_Key="k"), 400, "bad-request", "expect needs next")
    refused(pair.post("/topics/t", {"id": 1}, Idempotency_Key=""), 400, "bad-request", "Idempotency-Key")


# ---- CloudEvents


def test_events_are_rows_in_all_three_modes(pair: WebServed) -> None:
    attributes = {
        "ce-specversion": "1.0",
        "ce-id": "b1",
        "ce-source": "/shop",
        "ce-type": "sold",
        "ce-trace": "7%C3%A9",
    }
    attributes |= {"Content-Type": "text/plain", "ce-subject": '"a \\"quoted\\" one"'}
    assert pair.ask("POST", "/topics/events", "the data", attributes).status == 200
    structured = {**EVENT, "id": "s1", "time": "2026-01-31T12:00:00Z", "data": {"price": 1.5}, "trace": 7}
    assert pair.post("/topics/events", structured, EVENT_JSON).status == 200
    batch = [{**EVENT, "id": "t1", "data_base64": "AAE="}, {**EVENT, "id": "t2"}]
    assert pair.post("/topics/events", batch, EVENTS_JSON).json["rows"] == 2
    binary, whole, third, _ = rows_of(pair, "events")
    assert (binary["id"], binary["datacontenttype"], binary["data"]) == ("b1", "text/plain", "dGhlIGRhdGE=")
    assert (binary["subject"], binary["extensions"]) == ('a "quoted" one', {"trace": "7é"})
    assert (whole["time"], whole["extensions"]) == ("2026-01-31T12:00:00Z", {"trace": "7"})
    assert third["data"] == "AAE="


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"id": "x"}, EVENT_JSON, ["source", "type", "missing"]),
        ([EVENT, {**EVENT, "specversion": "0.3"}], EVENTS_JSON, ["event 2", "specversion"]),
        ([EVENT, {**EVENT, "Bad_Name": "x"}], EVENTS_JSON, ["event 2", "Bad_Name"]),
        (EVENT, EVENTS_JSON, ["array"]),
        (EVENT, "application/cloudevents+avro", [EVENT_JSON]),
        ("{", EVENT_JSON, ["not a CloudEvent"]),
    ],
)
def test_what_is_no_event_is_refused_by_its_attribute(
    pair: WebServed, body: object, kind: str, words: list[str]
) -> None:
    refused(pair.post("/topics/no-events", body, kind), 400, "bad-request", *words)


# ---- refusals


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "code", "words"),
    [
        ("/topics/t", "", "", 400, "bad-request", ["Content-Type is missing", JSON]),
        ("/topics/t", "x", "application/xml", 400, "bad-request", ["application/xml", JSON]),
        ("/topics/t", '{"a": 1}\n[1]', JSON_LINES, 400, "bad-request", ["line 2"]),
        ("/topics/t", '{"a": 1}\n{"a": "x"}', JSON_LINES, 400, "bad-request", ["line 2", "/a"]),
        ("/topics/t", "[1]", JSON, 400, "bad-request", ["element 1", "object"]),
        ("/topics/t", "a,b\n1\n", CSV, 400, "bad-request", ["line 2"]),
        ("/topics/t", b"not arrow", ARROW, 400, "bad-request", [ARROW]),
        ("/topics/t", b"not parquet", PARQUET, 400, "bad-request", [PARQUET]),
        ("/topics/t", {"_sequence": 1}, JSON, 422, "reserved-column", ["_sequence"]),
        ("/topics/_t", {"a": 1}, JSON, 400, "bad-request", ["_t"]),
        ("/topics/" + "t" * 201, {"a": 1}, JSON, 400, "bad-topic", ["200"]),
        ("/topics/t?acks=-1", {"a": 1}, JSON, 400, "bad-request", ["acks"]),
        ("/topics/t?acks=1&acks=2", {"a": 1}, JSON, 400, "bad-request", ["acks twice"]),
        ("/topics/t?token=x", {"a": 1}, JSON, 400, "bad-request", ["token", "acks"]),
    ],
)
def test_a_bad_request_is_refused_by_name_and_fix(
    pair: WebServed, path: str, body: Any, kind: str, status: int, code: str, words: list[str]
) -> None:
    refused(pair.post(path, body, kind), status, code, *words)


def test_an_encoded_body_is_refused(pair: WebServed) -> None:
    refused(pair.post("/topics/t", {"a": 1}, Content_Encoding="gzip"), 400, "bad-request", "Content-Encoding")


def test_few_bytes_that_are_many_values_are_refused(pair: WebServed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "CELLS_MAX", 100)
    sparse = [{f"c{number}": 1} for number in range(11)]
    refused(pair.post("/topics/sparse", sparse), 413, "too-large", "11 columns", "in parts")
    refused(pair.post("/topics/sparse", "a\n" + "1\n" * 100, CSV), 413, "too-large")
    assert pair.post("/topics/sparse", sparse[:10]).status == 200


def test_a_topic_may_have_any_name(pair: WebServed) -> None:
    assert pair.post("/topics/a%2Fb%20%C3%A9", {"id": 1}).json["ranges"][0]["topic"] == "a/b é"
    assert "a/b é" in pair.get("/topics").json


def test_calls_are_counted_by_how_they_ended(pair: WebServed) -> None:
    counts = pair.doors[0].services.calls.so_far
    before = counts()
    pair.post("/topics/counted", {"id": 1})
    pair.post("/topics/counted", {"id": "x"})
    pair.post("/topics/counted", "{")
    grown = {key: count - before.get(key, 0) for key, count in counts().items() if count > before.get(key, 0)}
    assert grown == {("post", "ok"): 1, ("post", "bad-request"): 2}


def test_a_plain_post_is_answered_as_any_other_and_holds_nothing(pair: WebServed) -> None:
    """Once a topic's rows are gathered on the loop; what cannot be gathered is left to the threads, whole."""
    topic = 'plain "quoted"'
    path = "/topics/" + quote(topic)
    publishing, calls = pair.served.doors[0].services.publishing, pair.served.doors[0].services.calls
    first = pair.post(path, {"id": 0})
    node = pair.served.nodes[0]
    pair.served.run(node.until(lambda: publishing.gathering.find(topic, 0) is not None))
    gathered: list[int] = []
    before = calls.so_far()
    was = Gatherer.add

    def noted(self: Gatherer, rows: GatheredRows) -> bool:
        gathered.append(rows.count)
        return was(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gatherer, "add", noted)
        answers = [
            pair.post(path, {"id": 1}),
            pair.post(path, [{"id": 2}, {"id": 3}]),
            pair.post(path, {"id": 4, "more": "x"}),
            pair.post(path, b'{"id": 5}\n{"id": 6}\n', JSON_LINES),
            pair.post(f"{path}?acks=0", {"id": 7}),
        ]
        refused(pair.post(path, b'{"id": 8', JSON), 400, "bad-request", "JSON")
        refused(pair.post(path, b'{"id": 8}', JSON, Content_Encoding="gzip"), 400, "bad-request", "gzip")
    assert gathered == [1, 2, 2, 1]
    firsts = [1, 2, 3, 5, 6, 8]
    origin = first.json["ranges"][0]["origin"]
    for answer, at, after in zip([first, *answers], firsts, [*firsts[1:], 9], strict=True):
        (rows,) = answer.json["ranges"]
        assert answer.json["rows"] == after - at
        assert rows == {"topic": topic, "origin": origin, "first": at, "next": after}
        assert answer.body == json.dumps(answer.json).encode() + b"\n"
    assert [row["id"] for row in rows_of(pair, quote(topic))] == list(range(8))
    grown = {key: count - before.get(key, 0) for key, count in calls.so_far().items() if count > before.get(key, 0)}
    assert grown == {("post", "ok"): 5, ("post", "bad-request"): 2, ("rows", "ok"): 1}
    assert not pair.doors[0]._bodies._taken


def test_the_answer_says_nothing_about_the_software(pair: WebServed) -> None:
    for answer in (pair.get("/topics"), pair.get("/nothing"), pair.ask("GET", "*")):
        assert re.fullmatch("m4cast", answer.headers["server"]), answer.headers
