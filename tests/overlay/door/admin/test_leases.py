"""Reader leases at a real door: what they hold, what cuts them, and how a reader hears of it."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.store import retention
from m4cast.overlay.store.store import Keep
from tests.overlay.door.plain import act, code_of, connect, path, put
from tests.overlay.door.served import Served, serving

HOUR_MS = 3_600_000
HOLDS_ALL = Keep(bytes_max=0, age_ms_max=None, hold_bytes_max=None, hold_ms_max=None)
HOLDS_NOTHING = Keep(bytes_max=0, age_ms_max=None, hold_bytes_max=0, hold_ms_max=None)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("readers"), 1) as served:
        yield served


def published(served: Served, topic: str, batches: int, rows: int = 10) -> tuple[Any, str]:
    """Publish so many batches of a topic; returns the client, and the origin."""
    client = connect(served, 0)
    for _ in range(batches):
        put(client, path(topic), pa.table({"n": list(range(rows))}))
    return client, served.nodes[0].driver.node.me.node_id.hex()


def trim(served: Served, topic: str, keep: Keep) -> int:
    """The first sequence that is kept after a round of retention."""
    store = served.nodes[0].store
    store.set_keep(topic, keep).result(30)
    store.trim(served.nodes[0].driver.clock.now_ms()).result(30)
    return next(low for stream, (low, _) in store.streams().items() if stream.topic == topic)


def reader(client: Any, name: str) -> Any:
    return next(reader for reader in act(client, "readers") if reader["reader"] == name)


def test_a_lease_keeps_rows_from_its_frontier_on_until_it_is_released(served: Served) -> None:
    client, origin = published(served, "held", 5)
    said = act(client, "lease", reader="slow", frontier={"held": {origin: 21}}, ttl_ms=HOUR_MS)
    assert said["missing"] == {}
    assert trim(served, "held", HOLDS_ALL) == 21
    there = reader(client, "slow")
    assert there["rows_behind"] == 30
    assert (there["live"], there["expires_at_ms"]) == (True, said["expires_at_ms"])
    assert (there["frontier"], there["topics"], there["cuts"]) == ({"held": {origin: 21}}, ["held"], [])
    act(client, "lease", reader="slow", frontier={"held": {origin: 31}}, ttl_ms=HOUR_MS)
    assert trim(served, "held", HOLDS_ALL) == 31
    assert act(client, "release", reader="slow") == {"released": True}
    assert act(client, "release", reader="slow") == {"released": False}
    assert trim(served, "held", HOLDS_ALL) == 51


def test_a_lease_on_a_topic_keeps_all_its_streams(served: Served) -> None:
    client, _ = published(served, "whole", 3)
    act(client, "lease", reader="new", topics=["whole"], ttl_ms=HOUR_MS)
    assert trim(served, "whole", HOLDS_ALL) == 1
    assert reader(client, "new")["rows_behind"] == 30


def test_a_cut_reader_is_warned_until_it_continues_behind_the_cut(served: Served) -> None:
    client, origin = published(served, "capped", 4)
    act(client, "lease", reader="cut", frontier={"capped": {origin: 11}}, ttl_ms=HOUR_MS)
    assert trim(served, "capped", HOLDS_NOTHING) == 41
    for _ in range(2):
        with pytest.raises(flight.FlightServerError, match="rows 11 to 40 of topic 'capped'") as error:
            act(client, "lease", reader="cut", frontier={"capped": {origin: 35}}, ttl_ms=HOUR_MS)
        assert code_of(error) == "reader-cut"
    assert reader(client, "cut")["cuts"] == [{"topic": "capped", "origin": origin, "first": 11, "next": 41}]
    act(client, "lease", reader="cut", frontier={"capped": {origin: 41}}, ttl_ms=HOUR_MS)
    assert reader(client, "cut")["cuts"] == []


def test_what_went_without_a_lease_is_missing(served: Served) -> None:
    client, origin = published(served, "gone", 2)
    assert trim(served, "gone", HOLDS_ALL) == 21
    said = act(client, "lease", reader="late", frontier={"gone": {origin: 5}}, ttl_ms=HOUR_MS)
    assert said["missing"] == {"gone": {origin: 21}}


def test_readers_are_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = published(served, "limited", 1)
    act(client, "lease", reader="one", topic="limited", ttl_ms=HOUR_MS)
    monkeypatch.setattr(retention, "READERS_MAX", 1)
    with pytest.raises(flight.FlightServerError) as error:
        act(client, "lease", reader="two", topic="limited", ttl_ms=HOUR_MS)
    assert code_of(error) == "too-many"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"reader": "r", "ttl_ms": 1_000}, "would hold no rows"),
        ({"reader": "r", "topic": "t"}, "ttl_ms is missing"),
        ({"reader": "r", "topic": "t", "ttl_ms": 999}, "from 1000 to 86400000"),
        ({"reader": "r", "topic": "t", "ttl_ms": 86_400_001}, "from 1000 to 86400000"),
        ({"reader": "", "topic": "t", "ttl_ms": 1_000}, "1 to 200 bytes"),
        ({"reader": "x" * 201, "topic": "t", "ttl_ms": 1_000}, "1 to 200 bytes"),
        ({"reader": "r", "frontier": "latest", "ttl_ms": 1_000}, "frontier must be"),
        ({"reader": "r", "frontier": {"t": {"ab": 1}}, "ttl_ms": 1_000}, "32 hex digits"),
        ({"reader": "r", "topic": "t", "ttl_ms": 1_000, "ttl": 5}, "unknown field 'ttl'"),
    ],
)
def test_a_lease_that_makes_no_sense_is_refused(served: Served, body: dict[str, Any], says: str) -> None:
    with pytest.raises(flight.FlightServerError, match=says) as error:
        act(connect(served, 0), "lease", **body)
    assert code_of(error) == "bad-request"
