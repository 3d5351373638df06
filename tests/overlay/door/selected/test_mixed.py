"""A selective topic of which one stream is broadcast, since its node published before it heard of the spread. Readers
see the rows of both kinds."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.http.watched import until
from tests.overlay.door.selected.test_reads import publish, selective_at, stored
from tests.overlay.door.served import Served, serving
from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.door.web.events import EventSource

PL = "country = 'PL'"
ROWS = [{"n": number, "country": country} for number, country in enumerate(("PL", "DE", "PL"))]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mixed"), 3) as served:
        yield served


def begun_too_early(served: Served, topic: str, rows: list[dict[str, Any]]) -> list[Channel]:
    """Channels of a topic that the second node has made selective, and on which the first one published these rows just
    before it heard of that."""
    channels = [Channel(address) for address in served.addresses]
    hooks = served.nodes[0].driver.node.interest.hooks
    shown, heard = hooks.shown, []
    hooks.shown = lambda change, now_ms: heard.append((change, now_ms))
    channels[1].create_topic(topic, keepers=0, route_by=list(rows[0])[-1:])
    channels[0].publish(topic, rows)
    for at in range(1, len(channels)):
        until(lambda at=at: stored(served, at, topic) == 1, "at every node")  # type: ignore[misc]

    async def hear() -> None:
        hooks.shown = shown
        for change, now_ms in heard:
            shown(change, now_ms)

    served.run(hear())
    for at in range(len(channels)):
        until(lambda at=at: topic in selective_at(served, at), "known there")  # type: ignore[misc]
    return channels


def test_a_topic_with_rows_that_went_to_every_node_is_not_made_selective(three: Served) -> None:
    origin, other, _ = (Channel(address) for address in three.addresses)
    origin.publish("plain", [{"n": 1}])
    until(lambda: stored(three, 1, "plain") == 1, "there")
    for channel in (origin, other):
        with pytest.raises(RefusedError, match="went to every node") as refused:
            channel.create_topic("plain", keepers=0)
        assert refused.value.code == "wrong-spread"
    assert not any("plain" in selective_at(three, at) for at in range(3))


def test_readers_see_both_kinds_of_streams(three: Served) -> None:
    origin, other, reader = begun_too_early(three, "both", ROWS)
    assert reader.read("both", where=PL)["n"].to_pylist() == [0, 2]
    assert origin.read("both", where=PL)["n"].to_pylist() == [0, 2]
    with reader.subscribe("both", where=PL) as subscription:
        publish(other, "both", 3, 3)
        origin.publish("both", [{"n": 9, "country": "PL"}])
        seen: list[int] = []
        while len(seen) < 2:
            rows = subscription.acquire(20)
            assert rows is not None
            seen += rows["n"].to_pylist()
        assert sorted(seen) == [3, 9]
        early = three.nodes[0].driver.node.me.node_id.hex()
        assert subscription.effective_from["both"][early] == 1
    assert sorted(reader.read("both", where=PL)["n"].to_pylist()) == [0, 2, 3, 9]
    assert stored(three, 0, "both") == 3, "its own two, and the one of the other's that it wants"
    assert other.create_topic("both", keepers=0, route_by=["country"])["topic"] == "both", "it is selective already"


def test_the_web_door_leases_and_filters_know_them(three: Served) -> None:
    origin, _, reader = begun_too_early(three, "web", ROWS)
    own = three.nodes[0].driver.node.me.node_id.hex()
    web = WebServed(three, None, "", ())
    three.run(web.open())
    try:
        query = urlencode({"where": PL})
        rows = web.ask("GET", f"/topics/web/rows?{query}", at=2)
        assert [each["n"] for each in rows.lines] == [0, 2]
        assert web.ask("GET", f"/topics/web/frontier?{query}", at=2).json == {"web": {own: [1, 4]}}
        events = EventSource(web.doors[2].address, f"/topics/web/tail?from=earliest&{query}").events()
        assert [json.loads(next(events).data)["n"] for _ in range(2)] == [0, 2]
        origin.publish("web", [{"n": 7, "country": "PL"}])
        assert json.loads(next(events).data)["n"] == 7
    finally:
        three.run(web.cut())
    reader.lease("late", {"web": {own: 2}}, ttl_s=60)
    assert [each["rows_behind"] for each in reader.readers() if each["reader"] == "late"] == [3]
    assert reader.explain("web", PL)["matching_rows"] == 3


def test_a_node_that_restarts_knows_them(tmp_path: Path) -> None:
    with web_serving(tmp_path, 2) as web:
        begun_too_early(web.served, "t", ROWS)
        web.served.run(web.restart_node(1, tmp_path))
        assert Channel(web.served.addresses[1]).read("t", where=PL)["n"].to_pylist() == [0, 2]
