"""Ranges that are read as they come: at another node when one is away or behind, and never short of rows in silence."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import flight

from m4cast.overlay.client import Channel, ranges
from m4cast.overlay.errors import RefusedError, UnreachableError
from tests.overlay.client.hanging import Clock, hanging
from tests.overlay.door.served import Served, serving

AWAY = "127.0.0.1:1"
"""Nobody listens there."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("ranges"), 2) as served:
        yield served


def test_a_range_arrives_in_batches_with_positions(pair: Served) -> None:
    channel = Channel(pair.addresses, batch_bytes=1_000)
    rows = [{"n": number} for number in range(1_000)]
    (written,) = channel.publish("long", rows, key="long", next=1)  # with a key, few rows are not put together
    start, end = {"long": {written.origin: 11}}, {"long": {written.origin: 901}}
    reading = channel.read_batches("long", start, end)
    batches = list(reading)
    assert len(batches) > 2
    assert [n for batch in batches for n in batch.column("n").to_pylist()] == list(range(10, 900))
    assert reading.frontier == end
    assert list(channel.read_batches("long", end, end)) == []


def test_a_range_is_read_where_a_node_answers(pair: Served) -> None:
    here, there = pair.addresses
    (written,) = Channel([here]).publish("near", [{"n": 1}], acks=1)
    end = {"near": {written.origin: 2}}
    (batch,) = Channel([AWAY, there]).read_batches("near", {}, end)
    assert batch.column("n").to_pylist() == [1]
    with pytest.raises(UnreachableError, match=AWAY):
        next(Channel([AWAY], timeout_s=0.3).read_batches("near", {}, end))


def test_a_range_goes_on_at_another_node_in_the_middle(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served:
        channel = Channel(served.addresses, batch_bytes=200_000)
        rows = [{"n": number, "text": "x" * 1_000} for number in range(20_000)]
        (written,) = channel.publish("moving", rows, acks=1)
        reading = channel.read_batches("moving", {}, {"moving": {written.origin: written.next}})
        seen = next(reading).column("n").to_pylist()
        served.run(served.stop_door(0))
        for batch in reading:
            seen += batch.column("n").to_pylist()
        assert seen == list(range(20_000))


@pytest.mark.parametrize("nodes_count", [1, 2])
@pytest.mark.parametrize("error", [flight.FlightTimedOutError("too late"), flight.FlightUnavailableError("gone")])
def test_a_range_is_read_on_however_long_its_user_took(
    pair: Served, monkeypatch: pytest.MonkeyPatch, error: Exception, nodes_count: int
) -> None:
    """Meanwhile the time of its call is over, or its connection broke."""

    def fail() -> Any:
        raise error

    clock = Clock(monkeypatch, ranges)
    nodes = pair.addresses[:nodes_count]
    rows = [{"n": number} for number in range(1_000)]
    (written,) = Channel(nodes, batch_bytes=1_000).publish("pondered", rows, key="pondered", next=1, acks=1)
    reading = Channel(nodes).read_batches("pondered", {}, {"pondered": {written.origin: written.next}})
    seen = next(reading)["n"].to_pylist()
    reading.close()
    reading._reader = SimpleNamespace(read_chunk=fail)
    clock.skipped_s += 60
    seen += next(reading)["n"].to_pylist()
    if isinstance(error, flight.FlightTimedOutError):
        assert reading._nodes[reading._node] == nodes[0], "it has done nothing to be left"
    seen += [n for batch in reading for n in batch["n"].to_pylist()]
    assert seen == list(range(1_000))


def test_a_range_is_read_elsewhere_when_a_node_hangs(pair: Served) -> None:
    (written,) = Channel(pair.addresses[:1]).publish("hung", [{"n": 1}])
    end = {"hung": {written.origin: 2}}
    with hanging() as hung:
        assert [
            batch.num_rows for batch in Channel([hung, pair.addresses[0]], timeout_s=1).read_batches("hung", {}, end)
        ] == [1]
        with pytest.raises(RefusedError, match="did not answer") as error:
            next(Channel([hung], timeout_s=0.3).read_batches("hung", {}, end))
        assert error.value.code == "timeout"


def test_rows_that_are_not_there_yet_are_waited_for(pair: Served) -> None:
    channel = Channel(pair.addresses, timeout_s=0.3)
    (written,) = channel.publish("late", [{"n": 1}])
    with pytest.raises(RefusedError, match="behind"):
        list(channel.read_batches("late", {}, {"late": {written.origin: 3}}))


def test_rows_are_missing_when_every_node_lacks_them(pair: Served) -> None:
    here, there = pair.addresses
    (written,) = Channel([here]).publish("gone", [{"n": 1}, {"n": 2}], acks=1)
    end = {"gone": {written.origin: 3}}
    Channel([here]).delete_topic("gone")
    assert [batch.num_rows for batch in Channel([here, there]).read_batches("gone", {}, end)] == [2]
    Channel([there]).delete_topic("gone")
    with pytest.raises(RefusedError, match=r"missing.*rows 1 to 2"):
        list(Channel([here, there]).read_batches("gone", {}, end))
    with pytest.raises(UnreachableError, match=r"gone.*rows 1 to 2|cannot be reached"):
        list(Channel([here, AWAY], timeout_s=0.3).read_batches("gone", {}, end))
    assert list(Channel([here]).read_batches("gone", {}, end, on_missing="skip")) == []


def test_a_publisher_asks_where_its_key_stands(pair: Served) -> None:
    channel = Channel(pair.addresses)
    assert channel.position("asked") is None
    channel.publish("asked", [{"n": 1}], key="asked", next=1)
    channel.commit(channel.stage("asked", [{"n": 2}]), key="asked", expect=1, next="two")
    assert channel.position("asked") == "two"
