"""Few rows of many calls at a real door: they share batches, each call hears of its own rows, nobody waits for ever.

Publishes with `acks=1` at a node whose only other node is away are not answered before a second one joins: that keeps
one under way.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.door.limits import DoorLimits
from tests.overlay.door.plain import act, code_of, command, connect, frontier, get, path, put
from tests.overlay.door.served import Served, serving

LINGER_MS = 1_000
WAIT_S = 30
ROWS = pa.table({"n": [1]})


class Putting:
    """A publish on a thread and a connection of its own."""

    def __init__(self, served: Served, rows: pa.Table, **fields: object) -> None:
        self.acks: list[dict[str, Any]] = []
        self.error: Any = None
        self._thread = threading.Thread(target=self._run, args=(connect(served, 0), command(**fields), rows))
        self._thread.start()

    def _run(self, client: Any, descriptor: Any, rows: pa.Table) -> None:
        try:
            self.acks = put(client, descriptor, rows)
        except flight.FlightError as error:
            self.error = error

    def done(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@contextmanager
def one_under_way(folder: Path) -> Iterator[tuple[Served, Putting]]:
    with serving(folder, 1, DoorLimits(linger_ms=LINGER_MS), one_is_away=True) as served:
        first = Putting(served, pa.table({"n": [0]}), topic="t", acks=1)
        until(lambda: "t" in act(connect(served, 0), "topics"))
        yield served, first


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        threading.Event().wait(0.01)


def waiting_for_acks(served: Served) -> int:
    return len(served.nodes[0].driver.node.publishing.acks.waiting())


def test_rows_of_different_calls_share_a_batch_and_each_call_hears_of_its_own(tmp_path: Path) -> None:
    with one_under_way(tmp_path) as (served, first):
        others = [
            Putting(
                served,
                pa.Table.from_batches([pa.record_batch({"n": [n]}), pa.record_batch({"n": [-n]})]),
                topic="t",
                acks=1,
            )
            for n in range(1, 9)
        ]
        until(lambda: list(frontier(connect(served, 0), "t")["t"].values()) == [18])
        served.run(served.join(tmp_path))
        for call in (first, *others):
            call.done()
            assert call.error is None
        rows = get(connect(served, 0), topic="t", end="latest")["n"].to_pylist()
        assert sorted(rows) == sorted([0, *range(1, 9), *(-n for n in range(1, 9))])
        for n, call in enumerate(others, start=1):
            ranges = [r for ack in call.acks for r in ack["ranges"]]
            own = [row for r in ranges for row in rows[r["first"] - 1 : r["next"] - 1]]
            assert own == [n, -n], "its own, in their order"
            assert call.acks[-1]["rows"] == 2
        assert act(connect(served, 0), "topic", topic="t")["streams"].popitem()[1]["batches"] < len(others)


def test_a_call_whose_rows_cannot_be_used_fails_alone(tmp_path: Path) -> None:
    def at(nanoseconds: int) -> pa.Table:
        return pa.table({"at": pa.array([nanoseconds], pa.timestamp("ns"))})

    with serving(tmp_path, 1, DoorLimits(linger_ms=LINGER_MS), one_is_away=True) as served:
        first = Putting(served, at(1_000), topic="t", acks=1)
        until(lambda: "t" in act(connect(served, 0), "topics"))
        good = Putting(served, at(2_000), topic="t", acks=1)
        bad = Putting(served, at(2_001), topic="t", acks=1)
        bad.done()
        assert "would lose data" in str(bad.error)
        assert str(bad.error).startswith("bad-rows: ")
        served.run(served.join(tmp_path))
        for call in (first, good):
            call.done()
            assert call.error is None
        assert len(get(connect(served, 0), topic="t", end="latest")) == 2


def test_without_linger_every_record_batch_is_a_batch(tmp_path: Path) -> None:
    with serving(tmp_path, 1, DoorLimits(linger_ms=0)) as served:
        here = connect(served, 0)
        put(here, path("t"), pa.Table.from_batches([pa.record_batch({"n": [n]}) for n in range(50)]))
        (stream,) = act(here, "topic", topic="t")["streams"].values()
        assert stream["batches"] == 50


def test_many_small_batches_of_one_call_are_few_batches_of_the_channel(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        rows = pa.Table.from_batches([pa.record_batch({"n": [n]}) for n in range(5_000)])
        acks = put(here, path("t"), rows)
        assert acks[-1]["rows"] == 5_000
        assert sum(r["next"] - r["first"] for ack in acks for r in ack["ranges"]) == 5_000
        assert get(here, topic="t", end="latest")["n"].to_pylist() == list(range(5_000))
        (stream,) = act(here, "topic", topic="t")["streams"].values()
        assert stream["batches"] < 1_000


# ---- giving up


def test_a_publish_that_timed_out_is_forgotten(tmp_path: Path) -> None:
    with serving(tmp_path, 1, one_is_away=True) as served:
        here = connect(served, 0)
        for fields in ({"topic": "t"}, {"topic": "t", "key": "k", "next": "1", "rows": ROWS.num_rows}):
            with pytest.raises(flight.FlightTimedOutError) as error:
                put(here, command(**fields, acks=1, timeout_ms=50), ROWS)
            assert code_of(error) == "timeout"
            until(lambda: not waiting_for_acks(served))
        put(here, command(topic="t", stage="s"), ROWS)
        with pytest.raises(flight.FlightTimedOutError) as error:
            act(here, "commit", stage_ids=["s/0"], key="c", next="1", acks=1, timeout_ms=50)
        until(lambda: not waiting_for_acks(served))


def test_a_batch_is_forgotten_when_the_last_of_its_calls_gave_up(tmp_path: Path) -> None:
    with one_under_way(tmp_path) as (served, first):
        brief = Putting(served, pa.table({"n": [1]}), topic="t", acks=1, timeout_ms=2_000)
        patient = Putting(served, pa.table({"n": [2]}), topic="t", acks=1)
        brief.done()
        assert isinstance(brief.error, flight.FlightTimedOutError)
        served.run(served.join(tmp_path))
        for call in (first, patient):
            call.done()
            assert call.error is None
        assert waiting_for_acks(served) == 0


def test_a_client_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path, 1, one_is_away=True) as served:
        soon = flight.FlightCallOptions(timeout=0.3)
        for fields in ({"topic": "t"}, {"topic": "t", "key": "k", "next": "1", "rows": ROWS.num_rows}):
            writer, _ = connect(served, 0).do_put(command(**fields, acks=1), ROWS.schema, soon)
            writer.write_table(ROWS)
            writer.done_writing()
            until(lambda: waiting_for_acks(served) == 1)
            until(lambda: not waiting_for_acks(served))
            with pytest.raises(flight.FlightTimedOutError):
                writer.close()


def test_open_calls_of_one_client_are_limited(tmp_path: Path) -> None:
    with serving(tmp_path, 1, DoorLimits(calls_max=2), one_is_away=True) as served:
        here = connect(served, 0)
        put(here, path("t"), ROWS)
        tails = [here.do_get(flight.Ticket(b'{"topic": "t"}')) for _ in range(2)]
        for tail in tails:
            tail.read_chunk()
        with pytest.raises(flight.FlightUnavailableError, match="2 open calls") as error:
            get(here, topic="t", end="latest")
        assert code_of(error) == "busy"
        with pytest.raises(flight.FlightUnavailableError, match="2 open calls"):
            put(here, path("t"), ROWS)
        assert act(here, "topics") == ["t"], "actions are counted apart"
        tails[0].cancel()

        def is_free() -> bool:
            try:
                return bool(get(here, topic="t", end="latest").num_rows)
            except flight.FlightUnavailableError:
                return False

        until(is_free)
        tails[1].cancel()
