"""Start of a reader of a selective topic, and the registration that it then needs."""

from pathlib import Path

import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.door.frontiers import CoveredFrontiers, Frontiers
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.selection.selection import Selection
from tests.overlay.door.http.watched import until
from tests.overlay.door.selected.test_reads import publish, selective_at, stored
from tests.overlay.door.served import serving

EARLY, LATE, NEW = (NodeId(bytes([number]) * 16) for number in (1, 2, 3))


def test_a_stream_that_begins_later_than_the_reader_is_hidden_until_it_calls_again() -> None:
    frontiers = Frontiers()
    touched: list[str] = []
    frontiers.cover("t", {"r": {EARLY: 1, LATE: 4}}, {EARLY: 5, LATE: 9})
    named = CoveredFrontiers(frontiers, {"t": "r"}, touched.append, {StreamId(LATE, "t")})
    from_now_on = CoveredFrontiers(frontiers, {"t": "r"}, touched.append, None)
    other = CoveredFrontiers(frontiers, {"t": "r"}, touched.append, set())
    frontiers.cover("t", {"r": {NEW: 1}}, {NEW: 3})
    assert named.positions(["t"]) == {StreamId(EARLY, "t"): 5, StreamId(LATE, "t"): 9, StreamId(NEW, "t"): 3}
    assert from_now_on.positions(["t"]) == named.positions(["t"])
    assert other.positions(["t"]) == {StreamId(EARLY, "t"): 5, StreamId(NEW, "t"): 3}
    assert not other.wait_for({StreamId(LATE, "t"): 5}, 0, lambda: False)
    assert set(touched) == {"r"}
    frontiers.uncover("t", "r")
    assert named.positions(["t"]) == {}


def test_a_reader_from_now_on_fetches_no_old_rows_and_one_from_before_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, 2, settings=lambda name: {"clock_skew_ms": 0}) as served:
        origin, reader = (Channel(address) for address in served.addresses)
        own = served.nodes[0].driver.node.me.node_id.hex()
        origin.create_topic("t", keepers=0)
        publish(origin, "t", 0, 3)
        until(lambda: "t" in selective_at(served, 1), "known there")
        with reader.subscribe("t") as subscription:
            assert subscription.effective_from == {"t": {own: 4}}
            publish(origin, "t", 3, 2)
            seen = [subscription.acquire(20), subscription.acquire(20)]
            assert [rows["n"].to_pylist() for rows in seen if rows is not None] == [[3], [4]]
        assert stored(served, 1, "t") == 2, "old rows were not fetched"
        later = reader.tail("t", {"t": {own: 4}})
        assert next(later)["n"].to_pylist() == [3]
        later.close()
        assert stored(served, 1, "t") == 2
        earlier = reader.tail("t", {"t": {own: 2}})
        assert next(earlier)["n"].to_pylist() == [1], "what it lacks is fetched"
        earlier.close()
        assert stored(served, 1, "t") == 4, "and no more"
        starts = [each["start"] for each in reader.subscriptions("t")["own"]]
        assert starts == ["latest", {own: 2}]
        monkeypatch.setattr(Selection, "is_settled", lambda self, registration: False)  # rows that nobody has
        again = reader.at(served.addresses[1], timeout_s=10)
        assert again.read("t", {"t": {own: 2}})["n"].to_pylist() == [1, 2, 3, 4]
