"""Selective topics on real nodes: rows are where they are wanted, and nowhere else, and each reader sees its own in
order."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.door.selected import costs, reader_registrations
from m4cast.overlay.door.selected.reader_registrations import ReaderRegistrations
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.http.watched import until
from tests.overlay.door.served import Served, serving
from tests.overlay.door.web.doors import WebServed
from tests.overlay.door.web.events import EventSource

COUNTRIES = ("PL", "DE", "FR")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("selective"), 4) as served:
        yield served


def publish(channel: Channel, topic: str, first: int, count: int, acks: int = 0) -> None:
    """One row a batch, the countries in turn. A node that has just heard of the topic may have to wait."""
    for number in range(first, first + count):
        rows = [{"n": number, "country": COUNTRIES[number % len(COUNTRIES)]}]
        until(partial(_published, channel, topic, rows, acks), "published")


def _published(channel: Channel, topic: str, rows: list[dict[str, object]], acks: int) -> bool:
    try:
        channel.publish(topic, rows, acks=acks)
    except RefusedError as error:
        if error.code in ("not-ready", "too-few-nodes"):
            return False
        raise
    return True


def numbers(channel: Channel, topic: str, country: str) -> list[int]:
    """The rows that are there now; an origin that is slow to report what it has is not known at first."""
    try:
        rows = channel.read(topic, where=f"country = '{country}'")
    except RefusedError as error:
        if error.code != "unknown-topic":
            raise
        return []
    return rows["n"].to_pylist() if rows.num_rows else []


def selective_at(served: Served, at: int) -> dict[str, tuple[str, ...]]:
    """The selective topics that a node knows."""
    return served.doors[at].services.topics.selective.topics


def wants(channel: Channel, topic: str) -> list[tuple[str, str]]:
    """The registration at a node for readers of a topic: its condition, and where it starts."""
    node = channel.status()["name"]
    view = channel.subscriptions(topic)
    assert all(each["is_reader"] for each in view["own"])
    return [(each["where"], each["start"]) for each in view["registrations"] if each["node"] == node]


def stored(served: Served, at: int, topic: str) -> int:
    """Batches of the topic on the disk of a node."""
    return sum(held.batches for stream, held in served.nodes[at].store.held().items() if stream.topic == topic)


def test_rows_are_where_they_are_wanted_and_nowhere_else(four: Served) -> None:
    origin, reader, _, _ = (Channel(address) for address in four.addresses)
    made = origin.create_topic("orders", keepers=0, route_by=["country"])
    assert made == {"topic": "orders", "keepers": 0, "route_by": ["country"]}
    publish(origin, "orders", 0, 3)
    until(lambda: "orders" in selective_at(four, 1), "known there")
    assert numbers(reader, "orders", "PL") == [0], "the first read is registered, and waits for the fill"
    publish(origin, "orders", 3, 9)
    until(lambda: reader.read("orders", where="country = 'PL'")["n"].to_pylist() == [0, 3, 6, 9], "all rows")
    assert (stored(four, 0, "orders"), stored(four, 1, "orders")) == (12, 4)
    assert stored(four, 2, "orders") == stored(four, 3, "orders") == 0
    assert origin.read("orders")["n"].to_pylist() == list(range(12)), "all rows are at the origin"


def test_a_publish_is_split_by_the_columns_that_its_topic_is_routed_by(four: Served) -> None:
    origin, _, reader, _ = (Channel(address) for address in four.addresses)
    origin.create_topic("mixed", keepers=0, route_by=["country"])
    until(lambda: "mixed" in selective_at(four, 2), "known there")
    assert numbers(reader, "mixed", "PL") == []
    rows = [{"n": number, "country": COUNTRIES[number % len(COUNTRIES)]} for number in range(9)]
    until(partial(_published, origin, "mixed", rows, 0), "published")
    origin.publish("mixed", rows, key="job", next=1)
    until(lambda: numbers(reader, "mixed", "PL") == [0, 3, 6, 0, 3, 6], "all rows, in order")
    assert (stored(four, 0, "mixed"), stored(four, 2, "mixed")) == (6, 2)
    assert stored(four, 1, "mixed") == stored(four, 3, "mixed") == 0


def test_a_tail_gives_each_wanted_row_once_in_order(four: Served) -> None:
    origin, _, reader, _ = (Channel(address) for address in four.addresses)
    origin.create_topic("ticks", keepers=0, route_by=["country"])
    publish(origin, "ticks", 0, 1)
    assert numbers(reader, "ticks", "DE") == []
    publish(origin, "ticks", 1, 8)
    tail = reader.tail("ticks", "earliest", where="country = 'DE'")
    seen: list[int] = []
    for batch in tail:
        seen += batch["n"].to_pylist()
        if len(seen) == 3:
            break
    assert seen == [1, 4, 7]


def test_a_topic_is_made_once_and_a_stream_keeps_its_spread(four: Served) -> None:
    origin = Channel(four.addresses[0])
    origin.publish("plain", [{"n": 1}])
    with pytest.raises(RefusedError, match="went to every node"):
        origin.create_topic("plain")
    origin.create_topic("twice", keepers=1)
    assert origin.create_topic("twice", keepers=1)["keepers"] == 1
    with pytest.raises(RefusedError, match="in separate calls"):
        origin.read(["plain", "twice"])


def test_a_keeper_has_what_was_acknowledged_when_the_origin_is_gone(tmp_path: Path) -> None:
    with serving(tmp_path, 4) as served:
        channels = [Channel(address) for address in served.addresses]
        channels[0].create_topic("kept", keepers=2, route_by=["country"])
        publish(channels[0], "kept", 0, 6, acks=1)
        origin = served.nodes[0].driver.node.me.node_id.hex()
        rows = [node.driver.node.interest.registrations.rows for node in served.nodes]
        keepers = [at for at in (1, 2, 3) if f"_keep/{origin}" in rows[at]]
        assert keepers, "an acknowledged row is at a keeper"
        served.run(served.lose(0))
        late = next(at for at in (1, 2, 3) if at not in keepers[:1])
        until(lambda: numbers(channels[late], "kept", "PL") == [0, 3], "read elsewhere")


def test_a_tail_from_now_on_fetches_its_rows_and_no_others(four: Served) -> None:
    origin, reader, _, _ = (Channel(address) for address in four.addresses)
    origin.create_topic("fresh", keepers=0, route_by=["country"])
    until(lambda: "fresh" in selective_at(four, 1), "known there")
    with reader.subscribe("fresh", where="country = 'FR'") as subscription:
        found = subscription.active(timeout_s=20)
        assert found.is_active and set(found.confirmed) == {"n0", "n2", "n3"}
        assert subscription.epoch == found.epoch is not None
        assert wants(reader, "fresh") == [("country = 'FR'", "latest")]
        publish(origin, "fresh", 0, 6)
        seen: list[int] = []
        while len(seen) < 2:
            rows = subscription.acquire(20)
            assert rows is not None
            seen += rows["n"].to_pylist()
        assert seen == [2, 5]
        own = four.nodes[0].driver.node.me.node_id.hex()
        assert subscription.effective_from == {"fresh": {own: 1}}, "the stream is younger than the subscription"
    assert stored(four, 1, "fresh") == 2
    assert reader.read("fresh", where="country = 'FR'")["n"].to_pylist() == [2, 5]
    assert len(reader.subscriptions("fresh")["own"]) == 2, "old rows need another registration"


def test_a_subscription_to_a_broadcast_topic_is_active_at_once(four: Served) -> None:
    channel = Channel(four.addresses[0])
    channel.publish("everywhere", [{"n": 1}])
    with channel.subscribe("everywhere") as subscription:
        assert subscription.epoch is None and subscription.effective_from == {}
        assert subscription.active(timeout_s=0).is_active
    assert channel.subscriptions("everywhere")["own"] == []


def test_what_is_registered_for_a_reader_goes_when_the_reader_is_gone(four: Served) -> None:
    origin, _, _, reader = (Channel(address) for address in four.addresses)
    origin.create_topic("left", keepers=0, route_by=["country"])
    publish(origin, "left", 0, 3)
    until(lambda: "left" in selective_at(four, 3), "known there")
    assert numbers(reader, "left", "PL") == [0]
    reader.lease("report", topics="left", ttl_s=600)
    services = four.doors[3].services

    async def again(kept_s: float) -> ReaderRegistrations:
        """The registrations as a restarted node finds them."""
        selective = services.topics.selective
        readers = ReaderRegistrations(services.node, selective._leased, selective.drop)
        readers.kept_s = kept_s
        selective.readers = readers
        readers.sweep()
        return readers

    async def sweep(readers: ReaderRegistrations) -> None:
        readers.sweep()

    readers = four.run(again(0.0))
    four.run(sweep(readers))
    assert reader.subscriptions("left")["own"], "somebody has a lease on the topic"
    assert reader.release("report")
    four.run(sweep(readers))
    until(lambda: not wants(reader, "left"), "given up")
    until(lambda: not origin.subscriptions("left")["registrations"], "heard of by others")
    four.run(again(600.0))
    publish(origin, "left", 3, 3)
    assert stored(four, 3, "left") == 1, "nobody reads there"
    assert reader.read("left", where="country = 'PL'")["n"].to_pylist() == [0, 3], "who comes back is filled"


def test_too_many_filters_of_readers_make_room_or_are_refused(four: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, reader, _, _ = (Channel(address) for address in four.addresses)
    origin.create_topic("many", keepers=0, route_by=["n"])
    until(lambda: "many" in selective_at(four, 1), "known there")
    publish(origin, "many", 0, 2)
    there = len([each for each in reader.subscriptions()["own"] if each["is_reader"]])
    monkeypatch.setattr(reader_registrations, "READERS_MAX", there + 2)
    for number in range(2):
        reader.read("many", where=f"n = {number}")
    with pytest.raises(RefusedError, match="which is its limit"):
        reader.read("many", where="n = 9")
    monkeypatch.setattr(reader_registrations, "BUSY_S", 0.0)
    reader.read("many", where="n = 9")
    own = [each for each in reader.subscriptions()["own"] if each["is_reader"]]
    assert len(own) <= there + 2 and "n = 9" in {each["where"] for each in own}


def test_what_filters_cost_and_save(four: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, _, reader, _ = (Channel(address) for address in four.addresses)
    origin.create_topic("costs", keepers=0, route_by=["country"])
    until(lambda: "costs" in selective_at(four, 2), "known there")
    reader.register("costs", "country = 'PL' AND n < 4")
    assert reader.active("costs", "country = 'PL' AND n < 4", timeout_s=20).is_active
    publish(origin, "costs", 0, 9)
    origin.publish("costs", [{"n": number, "country": "PL"} for number in range(5)])
    node = four.nodes[2].driver.node
    (name,) = (each["id"] for each in reader.subscriptions("costs")["own"])
    until(lambda: set(node.selection.coverage(name).values()) >= {15}, "all of it is covered")

    def cost() -> dict[str, object]:
        (each,) = reader.subscriptions("costs", costs=True)["own"]
        counted: dict[str, object] = each["cost"]
        return counted

    found = cost()
    sizes = {key: found.pop(key) for key in ("bytes", "spared_bytes")}
    assert found == {
        "batches": 4,  # three of one row for PL, and that of five
        "rows": 8,
        "matched_rows": 6,
        "batches_in_vain": 1,  # n = 6: by country it might match
        "rows_in_vain": 1,
        "spared_rows": 6,
        "is_whole": True,
    }
    assert all(isinstance(size, int) and size > 0 for size in sizes.values())
    publish(origin, "costs", 3, 1)
    until(lambda: set(node.selection.coverage(name).values()) >= {16}, "and the next")
    assert (cost()["rows"], cost()["matched_rows"]) == (9, 7), "it goes on from where it was"
    whole = cost()
    monkeypatch.setattr(costs, "ROWS_AT_ONCE", 2)
    four.doors[2].services.interest._costs._costs.clear()
    assert not cost()["is_whole"], "an answer looks at so many rows"
    until(lambda: cost() == whole, "and the next ones go on")
    monkeypatch.delenv("COLUMNS", raising=False)  # by which a user chooses another width
    shown = CliRunner().invoke(main, ["subscriptions", "--costs", "--topic", "costs", "--node", four.addresses[2]])
    assert shown.exit_code == 0 and "country = 'PL'" in shown.output and "rows spared" in shown.output
    copies = four.nodes[0].driver.node.selection.copies
    assert copies.sent.batches > 0 and copies.spared.batches > 0


def test_http_shows_what_a_reader_sees(four: Served) -> None:
    origin, _, there, _ = (Channel(address) for address in four.addresses)
    origin.create_topic("seen", keepers=0, route_by=["country"])
    publish(origin, "seen", 0, 5)
    until(lambda: "seen" in selective_at(four, 2), "known there")

    web = WebServed(four, None, "", ())
    four.run(web.open())
    try:
        query = urlencode({"where": "country = 'PL'"})
        own = four.nodes[0].driver.node.me.node_id.hex()
        rows = web.ask("GET", f"/topics/seen/rows?{query}", at=2)
        assert [each["n"] for each in rows.lines] == [0, 3]
        assert rows.headers["m4cast-next"] == f"{own}:6"
        assert web.ask("GET", f"/topics/seen/frontier?{query}", at=2).json == {"seen": {own: [1, 6]}}
        assert stored(four, 2, "seen") == 2, "other rows were not fetched"
        assert there.describe("seen")["rows"] == 2
        there.lease("web", {"seen": {own: 2}}, ttl_s=60)
        assert [each["rows_behind"] for each in there.readers() if each["reader"] == "web"] == [1]
        events = EventSource(web.doors[2].address, f"/topics/seen/tail?from=earliest&{query}").events()
        assert [json.loads(next(events).data)["n"] for _ in range(2)] == [0, 3]
        publish(origin, "seen", 5, 3)
        assert json.loads(next(events).data)["n"] == 6
    finally:
        four.run(web.cut())
