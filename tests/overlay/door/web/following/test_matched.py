"""Filtered tails of one topic by server-sent events, WebSocket, Flight and clients share the matching of new rows."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from m4cast.overlay.client import Channel, Client
from m4cast.overlay.door.read import inboxes
from m4cast.overlay.door.read.inboxes import Inbox
from m4cast.overlay.door.read.live_matching import LiveMatching, TopicMatcher
from m4cast.overlay.door.rows.catalogue import Catalogue
from m4cast.overlay.door.web.following.matched import MatchedRows
from m4cast.overlay.door.web.limits import WebLimits
from m4cast.overlay.protocol.wire.batch import Batch
from tests.overlay.door.http.watched import until
from tests.overlay.door.selected.test_reads import selective_at
from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.door.web.events import EventSource
from tests.overlay.door.web.live.test_connection import talking

WAIT_S = 30
Numbers = list[int]


class Watched:
    """Counts what the doors of a test open, decode and match."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Condition()
        self.opened: Counter[str] = Counter()
        self.matchers: dict[str, set[TopicMatcher]] = {}
        self.decoded: Counter[int] = Counter()
        original_open, original_decoded = LiveMatching.open, Catalogue.decoded

        def opened(live: LiveMatching, inbox: Inbox, seen: Any) -> Any:
            found = original_open(live, inbox, seen)
            with self._changed:
                for topic in inbox.profiles:
                    self.opened[topic] += 1
                    self.matchers.setdefault(topic, set()).update(found[0].values())
                self._changed.notify_all()
            return found

        def decoded(catalogue: Catalogue, batch: Batch, *, to_cut: bool) -> pa.RecordBatch:
            self.decoded[batch.first_sequence] += 1
            return original_decoded(catalogue, batch, to_cut=to_cut)

        monkeypatch.setattr(LiveMatching, "open", opened)
        monkeypatch.setattr(Catalogue, "decoded", decoded)

    def until(self, topic: str, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.opened[topic] >= count, WAIT_S)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.fixture
def readers() -> Iterator[Callable[..., "Future[Any]"]]:
    with ThreadPoolExecutor(16) as threads:
        yield threads.submit


def by_events(web: WebServed, topic: str, where: str, count: int, **more: str) -> Numbers:
    path = f"/topics/{topic}/tail?{urlencode({'where': where, **more})}"
    events = EventSource(web.address, path).events()
    return [json.loads(event.data)["n"] for event in islice(events, count)]


def by_socket(web: WebServed, topic: str, where: str, count: int, form: str = "json") -> Numbers:
    seen: Numbers = []

    async def work() -> None:
        async with talking(web) as talk:
            asked = {"topic": topic, "where": where, "from": "latest", "format": form}
            await talk.say(type="subscribe", id="s", credit=1_000, **asked)
            assert (await talk.hear())["type"] == "subscribed"
            while len(seen) < count:
                seen.extend(row["n"] for row in (await talk.hear())["rows"])

    asyncio.run(work())
    return seen


def by_flight(web: WebServed, topic: str, where: str, count: int) -> Numbers:
    seen: Numbers = []
    tail = Channel(web.served.addresses[0]).tail(topic, "latest", where=where)
    while len(seen) < count:
        seen += next(tail)["n"].to_pylist()
    tail.close()
    return seen


def by_client(web: WebServed, topic: str, where: str, count: int) -> Numbers:
    client = Client(web.served.addresses[:1], key=f"client-{topic}", credential="a secret of this test")
    client.connect(create=True)
    client.subscribe(topic, where, start="latest")
    seen: Numbers = []
    notifications = client.notifications()
    while len(seen) < count:
        seen += next(notifications)["n"].to_pylist()
    notifications.close()
    client.disconnect()
    return seen


def rows_of(first: int, count: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(first, first + count)]


def test_tails_of_all_transports_decode_a_batch_once(
    pair: WebServed, watched: Watched, readers: Callable[..., "Future[Any]"]
) -> None:
    topic = "matched-all"
    channel = Channel(pair.served.addresses[0])
    channel.publish(topic, rows_of(0, 1))
    following = [
        readers(by_events, pair, topic, "n IN (2, 4)", 2),
        readers(by_events, pair, topic, "n > 3", 4),
        readers(by_socket, pair, topic, "n >= 5", 3),
        readers(by_socket, pair, topic, "n < 3", 2, "arrow"),
        readers(by_flight, pair, topic, "n = 3 OR n = 7", 2),
        readers(by_client, pair, topic, "n <> 4", 6),
    ]
    watched.until(topic, 6)
    watched.decoded.clear()
    for first in range(1, 7, 3):
        channel.publish(topic, rows_of(first, 3))
    channel.publish(topic, rows_of(7, 1))
    seen = [reader.result(WAIT_S) for reader in following]
    assert seen == [[2, 4], [4, 5, 6, 7], [5, 6, 7], [1, 2], [3, 7], [1, 2, 3, 5, 6, 7]]
    assert watched.decoded == Counter({2: 1, 5: 1, 8: 1}), "each batch once, for all"
    assert len(watched.matchers[topic]) == 1


TOKENS = """
[[token]]
name = "all"
secret = "all of the rows here"
publish = ["*"]
read = ["*"]

[[token]]
name = "few"
secret = "few of the rows here"
read = ["*"]
where = { "t*" = "n > 2" }
filter_cpu = 0.5
"""


def test_tails_of_filtered_tokens_share_the_matching_and_nothing_else(
    tmp_path: Path, watched: Watched, readers: Callable[..., "Future[Any]"]
) -> None:
    """Without `where`, and with one that asks for more."""
    (tmp_path / "tokens.toml").write_text(TOKENS, encoding="utf-8")
    whole, few = ({"Authorization": f"Bearer {name} of the rows here"} for name in ("all", "few"))
    with web_serving(tmp_path, 1, tokens=f"file:{tmp_path / 'tokens.toml'}") as web:
        channel = Channel(web.served.addresses[0], token="all of the rows here")
        channel.publish("t", rows_of(0, 1))

        def follow(headers: dict[str, str], where: str, count: int) -> Numbers:
            source = EventSource(web.address, f"/topics/t/tail?{where}", headers=headers)
            return [json.loads(event.data)["n"] for event in islice(source.events(), count)]

        async def talk() -> Numbers:
            async with talking(web, headers=few) as talk:
                await talk.say(type="subscribe", id="s", credit=9, topic="t", **{"from": "latest"})
                assert (await talk.hear())["type"] == "subscribed"
                return [row["n"] for row in (await talk.hear())["rows"]]

        following = [
            readers(follow, few, "", 4),
            readers(follow, few, "where=n%20%3C%205", 2),
            readers(follow, whole, "where=n%20%3C%205", 4),
            readers(asyncio.run, talk()),
        ]
        watched.until("t", 4)
        channel.publish("t", rows_of(1, 6))
        seen = [reader.result(WAIT_S) for reader in following]
        assert seen == [[3, 4, 5, 6], [3, 4], [1, 2, 3, 4], [3, 4, 5, 6]]
        assert watched.decoded[2] == 1
        rows = web.get("/topics/t/rows", **few).lines
        assert [row["n"] for row in rows] == [3, 4, 5, 6]
        spent = web.served.doors[0].services.calls.filter_cpu
        until(lambda: spent.so_far().get("few", 0) > 0, "the matching is charged")


def test_a_follower_that_is_too_slow_reads_by_itself_and_misses_nothing(
    tmp_path: Path, watched: Watched, readers: Callable[..., "Future[Any]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "INBOX_LETTERS", 1)
    asked, goes_on, lost = threading.Event(), threading.Event(), threading.Event()
    original, original_lose = MatchedRows.take, Inbox._lose

    def noted(inbox: Inbox) -> None:
        original_lose(inbox)
        lost.set()

    def held(rows: MatchedRows, *args: Any) -> Any:
        asked.set()
        assert goes_on.wait(WAIT_S)
        return original(rows, *args)

    monkeypatch.setattr(MatchedRows, "take", held)
    monkeypatch.setattr(Inbox, "_lose", noted)
    with web_serving(tmp_path, 1) as web:
        channel = Channel(web.served.addresses[0])
        channel.publish("t", rows_of(0, 1))
        slow = readers(by_events, web, "t", "n >= 0", 30)
        quick = readers(by_flight, web, "t", "n = 29", 1)
        watched.until("t", 2)
        for first in range(1, 31, 3):
            channel.publish("t", rows_of(first, 3))
            if first == 1:
                assert asked.wait(WAIT_S)
        assert quick.result(WAIT_S) == [29], "it does not wait for the slow one"
        goes_on.set()
        assert slow.result(WAIT_S) == list(range(1, 31))
        assert lost.is_set()


def test_a_follower_from_the_beginning_shares_what_follows(
    pair: WebServed, watched: Watched, readers: Callable[..., "Future[Any]"]
) -> None:
    topic = "matched-from"
    channel = Channel(pair.served.addresses[0])
    channel.publish(topic, rows_of(0, 5))
    reader = readers(by_events, pair, topic, "n > 2", 4, **{"from": "earliest"})
    watched.until(topic, 1)
    channel.publish(topic, rows_of(5, 2))
    assert reader.result(WAIT_S) == [3, 4, 5, 6]


def test_matches_that_exceed_a_message_arrive_in_pieces(
    pair: WebServed, watched: Watched, readers: Callable[..., "Future[Any]"]
) -> None:
    topic = "matched-large"
    channel = Channel(pair.served.addresses[0])
    channel.publish(topic, [{"n": 0, "text": ""}])
    reader = readers(by_socket, pair, topic, "n >= 1", 5_000, "arrow")
    watched.until(topic, 1)
    channel.publish(topic, [{"n": number, "text": "x" * 1_000} for number in range(1, 5_001)])
    assert reader.result(WAIT_S) == list(range(1, 5_001))


def test_a_follower_that_disconnects_leaves_no_inbox(
    pair: WebServed, watched: Watched, readers: Callable[..., "Future[Any]"]
) -> None:
    topic = "matched-left"
    channel = Channel(pair.served.addresses[0])
    channel.publish(topic, rows_of(0, 1))
    reader = readers(by_events, pair, topic, "n = 1", 1)
    watched.until(topic, 1)
    live = pair.served.doors[0].services._filtered_reading._live
    assert topic in live._matchers
    channel.publish(topic, rows_of(1, 1))
    assert reader.result(WAIT_S) == [1]
    channel.publish(topic, rows_of(2, 1))  # a lost connection is noticed when something is written
    until(lambda: topic not in live._matchers, "nobody follows the topic")


def test_what_did_not_match_is_passed_over_while_nothing_happens(
    tmp_path: Path, watched: Watched, readers: Callable[..., "Future[Any]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that loses its inbox after a long time has little to read by itself."""
    passed = threading.Event()
    original = MatchedRows.look_again

    def noted(rows: MatchedRows, at: Any, seen: Any) -> bool:
        found = original(rows, at, seen)
        if any(position == 12 for _, position, _ in rows._pieces):
            passed.set()
        return found

    monkeypatch.setattr(MatchedRows, "look_again", noted)
    with web_serving(tmp_path, 1, WebLimits(ping_ms=50)) as web:
        channel = Channel(web.served.addresses[0])
        channel.publish("t", rows_of(0, 1))
        reader = readers(by_events, web, "t", "n = 11", 1)
        watched.until("t", 1)
        channel.publish("t", rows_of(1, 10))
        assert passed.wait(WAIT_S)
        channel.publish("t", rows_of(11, 1))
        assert reader.result(WAIT_S) == [11]


def test_tails_of_a_selective_topic_share_by_registration(
    tmp_path: Path, watched: Watched, readers: Callable[..., "Future[Any]"]
) -> None:
    """Filters that one registration covers are matched together, by whichever transport."""
    topic = "matched-selective"
    with web_serving(tmp_path, 1) as web:
        channel = Channel(web.served.addresses[0])
        channel.create_topic(topic, keepers=0)
        until(lambda: topic in selective_at(web.served, 0), "known")
        channel.publish(topic, rows_of(0, 1))
        wide = readers(by_flight, web, topic, "n >= 0", 6)
        watched.until(topic, 1)
        following = [
            wide,
            readers(by_flight, web, topic, "n = 2", 1),
            readers(by_events, web, topic, "n > 4", 2),
        ]
        watched.until(topic, 3)
        watched.decoded.clear()
        for first in range(1, 7, 3):
            channel.publish(topic, rows_of(first, 3))
        seen = [reader.result(WAIT_S) for reader in following]
        assert seen == [[1, 2, 3, 4, 5, 6], [2], [5, 6]]
        assert len(watched.matchers[topic]) == 1
        assert watched.decoded == Counter({2: 1, 5: 1})
