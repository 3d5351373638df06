"""Selective topics on real nodes: rows are where they are wanted, and nowhere else, and each reader sees its own in
order."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.http.watched import until
from tests.overlay.door.served import Served, serving

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
    """What is there now; an origin that is slow to report what it has is not known at first."""
    try:
        rows = channel.read(topic, where=f"country = '{country}'")
    except RefusedError as error:
        if error.code != "unknown-topic":
            raise
        return []
    return rows["n"].to_pylist() if rows.num_rows else []


def stored(served: Served, at: int, topic: str) -> int:
    """Batches of the topic on the disk of a node."""
    return sum(held.batches for stream, held in served.nodes[at].store.held().items() if stream.topic == topic)


def test_rows_are_where_they_are_wanted_and_nowhere_else(four: Served) -> None:
    origin, reader, _, _ = (Channel(address) for address in four.addresses)
    made = origin.create_topic("orders", keepers=0, route_by=["country"])
    assert made == {"topic": "orders", "keepers": 0, "route_by": ["country"]}
    publish(origin, "orders", 0, 3)
    until(lambda: numbers(reader, "orders", "PL") == [0], "registered, and filled")
    publish(origin, "orders", 3, 9)
    until(lambda: reader.read("orders", where="country = 'PL'")["n"].to_pylist() == [0, 3, 6, 9], "all rows")
    assert (stored(four, 0, "orders"), stored(four, 1, "orders")) == (12, 4)
    assert stored(four, 2, "orders") == stored(four, 3, "orders") == 0
    assert origin.read("orders")["n"].to_pylist() == list(range(12)), "all rows are at the origin"


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
    with pytest.raises(RefusedError, match="read them apart"):
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
