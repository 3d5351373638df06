"""Single rows through a publisher, against real nodes: packed, acknowledged by row, and refused by name."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.client import Channel, publisher
from m4cast.overlay.errors import LocalProtocolError, RefusedError, RemoteProtocolError, UnreachableError
from tests.overlay.client.forgetful import forgetful
from tests.overlay.client.hanging import Relay
from tests.overlay.door.http.watched import until
from tests.overlay.door.served import Served, serving

LONG_MS = 10**12
"""Longer than the machine has been up, whose clock may begin at 0."""
WAIT_S = 30


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("publisher"), 1, one_is_away=True) as served:
        yield served


def test_rows_are_published_in_order_and_acknowledged_one_by_one(served: Served) -> None:
    channel = Channel(served.addresses)
    with channel.publisher("rows") as rows:
        assert [rows.send({"n": n}) for n in range(2_500)] == list(range(1, 2_501))
        assert rows.flush() == rows.acked == 2_500
        rows.send({"n": 2_500})
    assert (rows.sent, rows.acked) == (2_501, 2_501), "closing waits for the last one"
    assert channel.read("rows")["n"].to_pylist() == list(range(2_501))
    (stream,) = channel.describe("rows")["streams"].values()
    assert stream["batches"] < 1_000, "they were packed"
    with pytest.raises(LocalProtocolError, match="closed"):
        rows.send({"n": 1})


def test_a_publisher_that_is_too_fast_waits(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "WINDOW_ROWS", 10)
    with Channel(served.addresses).publisher("slowed", linger_ms=1) as rows:
        for n in range(100):
            rows.send({"n": n})
            assert rows.sent - rows.acked <= 10
    assert Channel(served.addresses).read("slowed").num_rows == 100


def test_rows_wait_for_others_until_they_are_asked_for(tmp_path: Path) -> None:
    """Publishes with `acks=1` at a node that is alone are not answered before a second node joins."""

    def published(channel: Channel) -> int:
        return sum(until - 1 for until in channel.frontier().get("paced", {}).values())

    with serving(tmp_path, 1, one_is_away=True) as served:
        channel = Channel(served.addresses)
        with channel.publisher("paced", acks=1, linger_ms=LONG_MS) as rows:
            rows.send({"n": 0})
            until(lambda: published(channel) == 1, "the first row waits for nobody")
            for n in range(1, publisher.BATCH_ROWS):
                rows.send({"n": n})
            assert (published(channel), rows.acked) == (1, 0)
            served.run(served.join(tmp_path))
            assert rows.flush() == publisher.BATCH_ROWS
        (stream,) = channel.describe("paced")["streams"].values()
        assert stream["batches"] == 2


def test_rows_wait_for_the_acknowledgement_of_those_before_them(tmp_path: Path) -> None:
    """The rows wait although their pause is over: they go when the second node has the first row."""
    with serving(tmp_path, 1, one_is_away=True) as served:
        channel = Channel(served.addresses)
        with channel.publisher("acked", acks=1, linger_ms=LONG_MS) as rows:
            rows.send({"n": 0})
            until(lambda: channel.frontier().get("acked", {}) != {}, "the first row waits for nobody")
            rows._written_s -= LONG_MS / 1000
            for n in range(1, 10):
                rows.send({"n": n})
                assert sum(channel.frontier()["acked"].values()) == 2, "they do not go meanwhile"
            served.run(served.join(tmp_path))
            until(lambda: rows.acked == 10, "the others have followed")
        (stream,) = channel.describe("acked")["streams"].values()
        assert stream["batches"] == 2


def test_rows_have_the_columns_of_the_schema_or_of_the_first(served: Served) -> None:
    channel = Channel(served.addresses)
    with channel.publisher("typed", schema=pa.schema([("n", pa.int32()), ("text", pa.string())])) as rows:
        rows.send({"n": 1})
        rows.send({"text": "x"})
    assert channel.read("typed").select(["n", "text"]).to_pylist() == [
        {"n": 1, "text": None},
        {"n": None, "text": "x"},
    ]
    for row, says in (({"n": 2, "new": 1}, "column 'new'"), ({"n": "two"}, "does not fit")):
        rows = channel.publisher("odd")
        rows.send({"n": 1})
        rows.flush()
        rows.send(row)
        with pytest.raises(LocalProtocolError, match=says):
            rows.close()
        assert rows.acked == 1


BAD_ROWS: list[tuple[dict[str, object], Any, str]] = [
    ({"n": 1}, {"n": 2**70}, "column 'n'.*too large"),
    ({"n": "text"}, {"n": "\ud800"}, "column 'n'.*surrogates"),
    ({"n": 1}, 5, "must be a dict, not int"),
    ({"n": 1}, ["n"], "must be a dict, not list"),
]


@pytest.mark.parametrize(("good", "bad", "says"), BAD_ROWS)
@pytest.mark.parametrize("goes_before", [0, 1])
def test_a_row_that_cannot_be_converted_ends_the_publisher_and_is_named(
    served: Served, good: dict[str, object], bad: Any, says: str, goes_before: int
) -> None:
    rows = Channel(served.addresses).publisher(f"bad/{type(good['n']).__name__}")
    for _ in range(goes_before):
        rows.send(good)
        rows.flush()
    rows.send(bad)
    for call in (rows.flush, lambda: rows.send(good), rows.close, rows.close):
        with pytest.raises(LocalProtocolError, match=says):
            call()
    assert rows.acked == goes_before


def test_no_failure_is_lost_whatever_it_is(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("of an unknown kind")

    monkeypatch.setattr(publisher, "batch_of", fail)
    rows = Channel(served.addresses).publisher("unknown")
    rows.send({"n": 1})
    with pytest.raises(LocalProtocolError, match="of an unknown kind"):
        rows.close()


def test_a_node_that_hangs_is_not_waited_for_without_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "PATIENCE_S", 0)
    told: list[Exception] = []

    def close() -> None:
        try:
            rows.close()
        except RefusedError as error:
            told.append(error)

    with Relay(served.addresses[0]) as relay:
        rows = Channel([relay.address], timeout_s=1).publisher("hung")
        rows.send({"n": 1})
        rows.flush()
        relay.fall_silent()
        rows.send({"n": 2})
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(WAIT_S)
        assert [str(error) for error in told] == [
            "timeout: 1 rows are not acknowledged after 1 s; they may still be published"
        ]
        assert (rows.sent, rows.acked) == (2, 1)
        with pytest.raises(RefusedError, match="timeout"):
            rows.send({"n": 3})


def test_rows_that_are_not_acknowledged_are_an_error() -> None:
    """The node ends the call in order, and says nothing of them."""
    for acks in ([], [b'{"rows": 0, "ranges": []}']):
        for finish in ("flush", "close"):
            with forgetful(acks) as node:
                rows = Channel([node]).publisher("t")
                rows.send({"n": 1})
                with pytest.raises(RefusedError, match="0 of 1 rows") as error:
                    getattr(rows, finish)()
                assert error.value.code == "unacknowledged"


def test_a_call_that_the_node_ends_is_not_gone_on_with() -> None:
    """All that was sent is safe; what comes later would not be."""
    with forgetful([b'{"rows": 1, "ranges": []}']) as node:
        rows = Channel([node]).publisher("t")
        rows.send({"n": 1})
        rows.flush()
        rows._thread.join(WAIT_S)
        with pytest.raises(RefusedError, match="the call ended"):
            rows.send({"n": 2})


@pytest.mark.parametrize("ack", [b"no JSON", b"{}", b"[]"])
def test_an_acknowledgement_that_makes_no_sense_is_an_error(ack: bytes) -> None:
    with forgetful([ack]) as node:
        rows = Channel([node]).publisher("t")
        rows.send({"n": 1})
        with pytest.raises(RemoteProtocolError, match="sent an invalid acknowledgement"):
            rows.close()


def test_refusals_and_unreachable_nodes_are_raised(served: Served, tmp_path: Path) -> None:
    channel = Channel(served.addresses, timeout_s=0.3)
    rows = channel.publisher("unacked", acks=1)
    rows.send({"n": 1})
    with pytest.raises(RefusedError) as error:
        rows.close()
    assert error.value.code == "timeout"
    assert rows.acked == 0
    with pytest.raises(UnreachableError), Channel(["127.0.0.1:1"]).publisher("away") as rows:
        rows.send({"n": 1})
    rows = channel.publisher("unacked", acks=1)
    rows.send({"n": 1})
    with pytest.raises(ValueError, match="the caller's own"), rows:
        raise ValueError("the caller's own")


def test_nothing_sent_is_nothing_published(served: Served) -> None:
    with Channel(served.addresses).publisher("silent") as rows:
        assert rows.flush() == 0
    assert "silent" not in Channel(served.addresses).topics()


def test_close_waits_as_long_as_rows_are_acknowledged(served: Served) -> None:
    """However many there are, and however long that takes in all."""
    rows = Channel(served.addresses).publisher("slow")
    rows.close()

    class Slow:
        """A thread that hears of one row in each time-out."""

        joins = 0

        def is_alive(self) -> bool:
            return rows.acked < rows.sent

        def join(self, timeout_s: float) -> None:
            self.joins += 1
            rows.acked += 1

    slow = Slow()
    rows.sent, rows._thread = 3, slow  # type: ignore[assignment]
    rows.close()
    assert (rows.acked, slow.joins) == (3, 3)
