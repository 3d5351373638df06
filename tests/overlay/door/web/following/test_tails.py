"""Following by server-sent events: order, resuming after any cut, at any node, and how a tail ends."""

import json
import random
from itertools import islice
from pathlib import Path

import pytest

from m4cast.overlay.door.web.limits import WebLimits
from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.door.web.events import EventSource
from tests.overlay.door.web.test_posts import refused

CUTS = 100


def source(web: WebServed, topic: str, query: str = "", at: int = 0) -> EventSource:
    return EventSource(web.doors[at].address, f"/topics/{topic}/tail{query}")


def ids(events: object) -> list[int]:
    return [json.loads(event.data)["id"] for event in events]  # type: ignore[attr-defined]


def test_rows_arrive_as_events_whose_ids_are_positions(pair: WebServed) -> None:
    pair.post("/topics/sse", [{"id": 1}, {"id": 2}])
    events = list(islice(source(pair, "sse", "?from=earliest").events(), 2))
    assert [json.loads(event.data)["_sequence"] for event in events] == [1, 2]
    origin = pair.served.nodes[0].driver.node.me.node_id.hex()
    assert [event.id for event in events] == [f"{origin}:2", f"{origin}:3"]
    assert pair.get("/topics/sse/rows").headers["m4cast-next"] == events[-1].id


def test_a_tail_says_whether_it_has_every_row(tmp_path: Path) -> None:
    """Then numbers without gaps prove that no row is missing. Filters and selective topics leave rows out."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        '[[token]]\nname = "all"\nsecret = "everything-everything"\nread = ["*"]\npublish = ["*"]\nadmin = true\n'
        '[[token]]\nname = "few"\nsecret = "filtered-filtered"\nread = ["*"]\nwhere = {"*" = "id = 1"}\n',
        encoding="utf-8",
    )
    with web_serving(tmp_path, 1, tokens=f"file:{tokens}") as web:
        key = {"Authorization": "Bearer everything-everything"}
        web.post("/topics/whole", {"id": 1}, **key)
        assert web.post("/actions/topic-create", {"topic": "selective", "keepers": 0}, **key).status == 200
        web.post("/topics/selective", {"id": 1}, **key)

        def rows_of(topic: str, query: str = "", secret: str = "everything-everything") -> str:
            tail = EventSource(
                web.address, f"/topics/{topic}/tail{query}", headers={"Authorization": f"Bearer {secret}"}
            )
            assert list(tail.events(cut_after=1)) == []
            return tail.answered["M4cast-Rows"]

        assert rows_of("whole") == "all"
        assert {rows_of("whole", "?where=id=1"), rows_of("whole", "", "filtered-filtered"), rows_of("selective")} == {
            "some"
        }


def test_a_tail_of_a_new_topic_begins_with_its_first_row(pair: WebServed) -> None:
    """The position before any row is sent at once: a client that is cut off before the first row loses none."""
    tail = source(pair, "sse-new")
    assert list(tail.events(cut_after=len("retry: 1000\nid: -\n\n"))) == []
    assert tail.last_id == "-"
    pair.post("/topics/sse-new", {"id": 1})
    assert ids(islice(tail.events(), 1)) == [1]


@pytest.mark.parametrize("seed", range(2))
def test_a_tail_that_is_cut_anywhere_gets_every_row_once_and_in_order(pair: WebServed, seed: int) -> None:
    """Cut within lines, events and chunks, and continued at either node."""
    chance = random.Random(seed)
    topic = f"sse-cut-{seed}"
    tail = source(pair, topic, "?from=earliest")
    published = 0
    seen: list[int] = []
    for _ in range(CUTS // 2):
        count = chance.randrange(1, 5)
        rows = [{"id": published + number, "text": "x" * chance.randrange(200)} for number in range(count)]
        assert pair.post(f"/topics/{topic}", rows).status == 200
        published += count
        tail.address = chance.choice(pair.doors).address
        seen += ids(islice(tail.events(cut_after=chance.randrange(1, 3_000)), published - len(seen)))
    while len(seen) < published:
        seen += ids(islice(tail.events(), published - len(seen)))
    assert seen == list(range(published))


def test_rows_of_several_origins_keep_the_order_of_each(pair: WebServed) -> None:
    for number in range(6):
        answer = pair.ask(
            "POST", "/topics/sse-two", json.dumps({"id": number}), {"Content-Type": "application/json"}, at=number % 2
        )
        assert answer.status == 200
    tail = source(pair, "sse-two", "?from=earliest")
    rows = []
    for _ in range(6):
        (event,) = islice(tail.events(), 1)
        rows.append(json.loads(event.data))
    by_origin: dict[str, list[int]] = {}
    for row in rows:
        by_origin.setdefault(row["_origin"], []).append(row["id"])
    assert sorted(by_origin.values()) == [[0, 2, 4], [1, 3, 5]]


def test_a_filtered_tail_passes_over_the_other_rows_and_resumes(pair: WebServed) -> None:
    tail = source(pair, "sse-where", "?from=earliest&where=id%20IN%20(0,2,4,6,8)")
    seen: list[int] = []
    for number in range(0, 10, 2):
        pair.post("/topics/sse-where", [{"id": number}, {"id": number + 1}])
        seen += ids(islice(tail.events(), 1))
    assert seen == [0, 2, 4, 6, 8]


def test_a_refusal_before_the_first_row_is_an_answer_and_later_an_event(pair: WebServed) -> None:
    refused(pair.get("/topics/sse/tail?from=yesterday"), 400, "bad-request", "from")
    refused(pair.get("/topics/sse/tail", Last_Event_ID="x"), 400, "bad-request", "Last-Event-ID")
    refused(pair.get("/topics/sse/tail?to=latest"), 400, "bad-request", "'to'")
    pair.post("/topics/sse-gone", {"id": 1})
    pair.post("/actions/topic-delete", {"topic": "sse-gone"})
    (event,) = source(pair, "sse-gone", "?from=-").events()
    assert (event.name, json.loads(event.data)["code"]) == ("refused", "missing")
    pair.post("/topics/sse-gone", {"id": 2})
    assert ids(islice(source(pair, "sse-gone", "?from=-&on_missing=skip").events(), 1)) == [2]


def test_a_tail_without_rows_is_kept_alive(tmp_path: Path) -> None:
    with web_serving(tmp_path, 1, WebLimits(ping_ms=10)) as web:
        tail = source(web, "quiet")
        body = tail.events(cut_after=200)  # several pings
        assert list(body) == []
        assert tail.status == "HTTP/1.1 200 OK"


def test_a_door_that_stops_ends_its_tails(tmp_path: Path) -> None:
    with web_serving(tmp_path, 1) as web:
        web.post("/topics/t", {"id": 1})
        events = source(web, "t", "?from=earliest").events()
        assert ids([next(events)]) == [1]
        web.served.run(web.stop())
        assert list(events) == []
