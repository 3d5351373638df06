"""Filtered reads by the client, against real nodes: positions pass over what does not match, also from node to node."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import flight

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import LocalProtocolError, RefusedError
from m4cast.overlay.profiles import parse
from tests.overlay.door.http.watched import until
from tests.overlay.door.served import Served, serving

WAIT_S = 30


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("filters"), 2) as served:
        yield served


def publish(channel: Channel, topic: str, count: int = 100) -> dict[str, dict[str, int]]:
    """Rows in batches of ten at both nodes. Returns the frontier after them."""
    rows = [{"n": number, "tens": number % 10, "name": f"row {number}"} for number in range(count)]
    for first in range(0, count, 10):
        channel.publish(topic, rows[first : first + 10], acks=1)
    return channel.frontier(topic)


def test_a_read_has_the_rows_that_match_in_every_language(pair: Served) -> None:
    channel = Channel(pair.addresses)
    end = publish(channel, "languages")
    expected = list(range(3, 100, 10))
    assert channel.read("languages", "earliest", end, where="tens = 3")["n"].to_pylist() == expected
    written = json.dumps({"exact": {"tens": 3}})
    assert channel.read("languages", "earliest", end, where=written, language="json")["n"].to_pylist() == expected
    assert channel.read("languages", "earliest", end, where="", language="diet").num_rows == 100
    assert channel.read("languages", "earliest", end, where="tens = 11").num_rows == 0


def test_batches_of_a_filtered_range_pass_over_what_does_not_match(pair: Served) -> None:
    channel = Channel(pair.addresses)
    end = publish(channel, "ranges")
    for form, columns in (("rows", {"_topic", "_sequence"}), ("batches", {"_sequence", "_delivered_at", "_hops"})):
        reader = channel.read_batches("ranges", {}, end, where="n = 42", form=form)  # type: ignore[arg-type]
        (batch,) = reader
        assert columns <= set(batch.schema.names)
        assert batch["_sequence"].to_pylist() == [43]
        assert reader.frontier == end
        assert reader.tested == 100
        assert reader.where["profile"] == parse("n = 42").id.hex()
    nothing = channel.read_batches("ranges", {}, end, where="n = -1")
    assert list(nothing) == []
    assert (nothing.frontier, nothing.tested) == (end, 100)
    raw = channel.read_batches("ranges", {}, end, where="n = 42", form="raw")
    assert [batch["first_sequence"].to_pylist() for batch in raw] == [[41]]


def test_a_tail_gives_matches_as_they_are_published_and_its_position_passes_over_the_rest(pair: Served) -> None:
    channel = Channel(pair.addresses)
    end = publish(channel, "followed")
    tail = channel.tail("followed", "earliest", where="n = 42", idle_s=0.3)
    assert [row["n"] for batch in tail for row in batch.to_pylist()] == [42]
    assert tail.frontier == end
    assert tail.tested == 100
    again = channel.tail("followed", tail.frontier, where="n = 42", idle_s=0.1)
    assert list(again) == []
    assert again.tested == 0, "what was tested once is not tested again"


def test_a_tail_goes_on_at_another_node_after_the_rows_that_it_passed_over(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served:
        channel = Channel(served.addresses)
        publish(channel, "moving")
        tail = channel.tail("moving", "earliest", where="n >= 98")
        assert next(tail)["n"].to_pylist() == [98, 99]
        there = Channel(served.addresses[1:])
        served.run(served.stop_door(0))
        there.publish("moving", [{"n": 5, "tens": 5, "name": ""}, {"n": 100, "tens": 0, "name": ""}])
        assert next(tail)["n"].to_pylist() == [100]
        assert tail.tested == 102
        tail.close()


def test_a_subscription_gets_matching_rows_only(pair: Served) -> None:
    channel = Channel(pair.addresses)
    with channel.subscribe("subscribed", where="n = 2") as subscription:
        channel.publish("subscribed", [{"n": 1}, {"n": 2}, {"n": 3}])
        batch = subscription.acquire(WAIT_S)
        assert batch is not None and batch["n"].to_pylist() == [2]


@pytest.mark.parametrize(
    ("where", "language", "text"),
    [
        ("n = ", None, "where: at character"),
        ("n = 1", "latin", "filter language 'latin'"),
        ("x" * 4_097, None, "4097 bytes, at most 4096"),
        ("[", "json", "where: "),
        ("a = b", None, "where: at character"),
    ],
)
def test_a_filter_that_cannot_be_used_is_refused_with_the_place(
    pair: Served, where: str, language: str | None, text: str
) -> None:
    channel = Channel(pair.addresses)
    publish(channel, "refused", 1)
    with pytest.raises(RefusedError, match=text) as refused:
        channel.read("refused", where=where, language=language)
    assert refused.value.code == "bad-request"


def test_a_language_without_a_filter_is_a_mistake(pair: Served) -> None:
    channel = Channel(pair.addresses)
    with pytest.raises(LocalProtocolError, match="language is 'sql' without where"):
        channel.tail("t", language="sql")
    client = flight.FlightClient(f"grpc://{pair.addresses[0]}")
    with pytest.raises(flight.FlightServerError, match="language is set without where"):
        client.do_get(flight.Ticket(json.dumps({"topic": "t", "language": "sql"}).encode()))


def test_a_tail_that_is_closed_leaves_nothing_at_its_node(pair: Served) -> None:
    channel = Channel(pair.addresses)
    channel.publish("left", [{"n": 1}])
    tail = channel.tail("left", "earliest", where="n = 1")
    assert next(tail)["n"].to_pylist() == [1]
    live = pair.doors[0].services._filtered_reading._live
    until(lambda: "left" in live._matchers, "the tail has an inbox")
    tail.close()
    until(lambda: "left" not in live._matchers, "nobody follows the topic")
