"""Callbacks, inboxes, leases, audits and staging by the client, against real nodes."""

import json
import pickle
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.client import Channel, Subscription
from m4cast.overlay.client import tail as tail_module
from m4cast.overlay.client.doors import Doors
from m4cast.overlay.door.flight import as_flight_error
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.overlay.store.store import Keep
from tests.overlay.client.hanging import Clock, Relay, hanging
from tests.overlay.door.served import Served, serving

WAIT_S = 30
AWAY = "127.0.0.1:1"
HOLDS_NOTHING = Keep(bytes_max=0, age_ms_max=None, hold_bytes_max=0, hold_ms_max=None)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("following"), 2) as served:
        yield served


class Heard:
    """The rows that were called back, and an event when there are enough."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.all: list[Any] = []

    def __call__(self, *what: Any) -> None:
        with self._changed:
            self.all.append(what[0] if len(what) == 1 else what)
            self._changed.notify_all()

    def until(self, count: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, WAIT_S)
            return list(self.all)


# ---- staging


def test_what_is_staged_is_published_by_its_commit_and_once(pair: Served) -> None:
    here, there = (Channel([address]) for address in pair.addresses)
    ids = here.stage("staged", [{"n": 1}], "attempt-1") + here.stage("staged/2", [{"m": 2}])
    assert ids[0] == "attempt-1/0"
    assert here.stage("staged", []) == []
    assert "staged" not in here.topics()
    ranges = here.commit(ids, key="query", next=1, acks=1)
    assert [(r.topic, r.first, r.next) for r in ranges] == [("staged", 1, 2), ("staged/2", 1, 2)]
    assert here.commit(ids, key="query", next=1) == ranges
    assert there.read("staged", end=here.frontier("staged"))["n"].to_pylist() == [1]
    moves: list[dict[str, str | None]] = [
        {"key": "query", "expect": "1", "next": "2"},
        {"key": "other", "expect": None, "next": "5"},
    ]
    assert here.commit(here.stage("staged", [{"n": 2}]), moves=moves)[0].first == 2
    with pytest.raises(LocalProtocolError, match="set key, too"):
        here.commit(ids, next=3)


def test_what_is_aborted_cannot_be_committed(pair: Served) -> None:
    here = Channel(pair.addresses[:1])
    ids = here.stage("aborted", [{"n": 1}])
    here.abort(ids)
    with pytest.raises(RefusedError, match="not staged") as error:
        here.commit(ids, key="aborted", next=1)
    assert error.value.code == "missing-stage"


# ---- tails


def test_a_tail_leaves_a_silent_node(pair: Served) -> None:
    there = Channel([pair.addresses[1]])
    there.publish("silent", [{"n": 1}])
    with Relay(pair.addresses[0]) as relay:
        tail = Channel([relay.address, pair.addresses[1]], timeout_s=1).tail("silent", "earliest", idle_s=WAIT_S)
        assert next(tail)["n"].to_pylist() == [1]
        relay.fall_silent()
        there.publish("silent", [{"n": 2}])
        assert next(tail)["n"].to_pylist() == [2]
        tail.close()


def test_a_tail_fails_when_every_node_is_silent(pair: Served) -> None:
    Channel(pair.addresses[:1]).publish("silent/2", [{"n": 1}])
    with Relay(pair.addresses[0]) as relay:
        tail = Channel([relay.address], timeout_s=0.5).tail("silent/2", "earliest", idle_s=WAIT_S)
        assert next(tail)["n"].to_pylist() == [1]
        relay.fall_silent()
        with pytest.raises(UnreachableError, match="does not answer"):
            next(tail)


def test_a_tail_is_called_again_and_again_without_a_row_lost_or_doubled(pair: Served) -> None:
    """Its calls last half a second at most, and end after a quarter without rows."""
    here = Channel(pair.addresses[:1])
    numbers: list[int] = []
    here.publish("again", [{"n": 0}])
    tail = Channel(pair.addresses[:1], timeout_s=0.5).tail("again", "earliest", idle_s=1.5)
    for number, batch in enumerate(tail, start=1):
        numbers += batch["n"].to_pylist()
        if number < 100:
            here.publish("again", [{"n": number}])
    assert numbers == list(range(100))


def test_a_tail_gives_what_waits_however_long_its_user_took(pair: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, tail_module)
    here = Channel(pair.addresses[:1])
    for n in range(3):
        here.publish("pondered", [{"n": n}])
    numbers: list[int] = []
    for batch in here.tail("pondered", "earliest", idle_s=1):
        numbers += batch["n"].to_pylist()
        clock.skipped_s += 60
    assert numbers == [0, 1, 2]


def test_a_node_that_hangs_is_not_taken_for_one_without_rows(pair: Served) -> None:
    here = pair.addresses[0]
    Channel([here]).publish("elsewhere", [{"n": 1}])
    with hanging() as hung:
        tail = Channel([hung, here], timeout_s=1).tail("elsewhere", {}, idle_s=0.5)
        assert [batch["n"].to_pylist() for batch in tail] == [[1]]


def test_a_tail_that_failed_has_all_its_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, tail_module)
    tail = Channel([AWAY], timeout_s=0.5).tail("t", {})
    retries: list[float] = []

    def wait(pause_s: float) -> None:
        retries.append(pause_s)
        clock.skipped_s += pause_s

    monkeypatch.setattr(tail._closed, "wait", wait)
    for _ in range(2):
        retries.clear()
        with pytest.raises(UnreachableError):
            next(tail)
        assert retries, "it tried again before it gave up"
        clock.skipped_s += 60


# ---- callbacks


def test_a_callback_gets_each_batch_in_order_until_it_is_closed(pair: Served) -> None:
    here = Channel(pair.addresses[:1])
    here.publish("called", [{"n": 0}])
    heard = Heard()
    with here.subscribe("called", heard) as subscription:
        for n in range(1, 4):
            here.publish("called", [{"n": n}])
        rows = heard.until(3)
        assert [batch["n"].to_pylist() for batch in rows] == [[1], [2], [3]], "from now on, and not from before"
        assert subscription.frontier == here.frontier("called")
        with pytest.raises(M4castError, match="has a callback"):
            subscription.acquire()
    assert not subscription.is_open
    here.publish("called", [{"n": 4}])
    assert len(heard.all) == 3
    with here.subscribe("called", heard, subscription.frontier):
        assert heard.until(4)[-1]["n"].to_pylist() == [4], "it goes on where the other one was"


def test_an_error_ends_a_subscription_and_is_raised(pair: Served) -> None:
    here = Channel(pair.addresses[:1])
    here.publish("failing", [{"n": 1}])
    told = Heard()

    def fail(batch: pa.RecordBatch) -> None:
        raise ValueError(f"{batch.num_rows} row is too many")

    subscription = here.subscribe("failing", fail, "earliest", on_error=told)
    (error,) = told.until(1)
    assert str(error) == "1 row is too many"
    subscription.close()
    assert subscription.error is error
    pair.nodes[0].store.set_keep("failing", HOLDS_NOTHING).result(WAIT_S)
    pair.nodes[0].store.trim(pair.nodes[0].driver.clock.now_ms()).result(WAIT_S)
    brief = Channel(pair.addresses[:1], timeout_s=0.5)
    brief.subscribe("failing", fail, {}, on_error=told)
    refused = told.until(2)[1]
    assert isinstance(refused, RefusedError) and refused.code == "missing"


def test_a_subscription_can_be_closed_by_its_own_callback(pair: Served) -> None:
    here = Channel(pair.addresses[:1])
    opened: list[Subscription] = []
    closed = threading.Event()

    def close(batch: pa.RecordBatch) -> None:
        opened[0].close()
        closed.set()

    opened.append(here.subscribe("self-closed", close))
    here.publish("self-closed", [{"n": 1}])
    assert closed.wait(WAIT_S)
    opened[0].close()
    assert not opened[0].is_open


# ---- acquire


def test_acquire_gives_the_next_rows_one_batch_at_a_time(pair: Served) -> None:
    with Channel(pair.addresses) as channel:
        assert channel.acquire("acquired", timeout_s=0) is None
        channel.publish("acquired", [{"n": 1}])
        channel.publish("acquired", [{"n": 2}])
        for n in (1, 2):
            rows = channel.acquire("acquired", timeout_s=WAIT_S)
            assert rows is not None and rows["n"].to_pylist() == [n]
        assert channel.acquire("acquired", timeout_s=0.01) is None
    late = Channel(pair.addresses)
    rows = late.acquire("acquired", WAIT_S, "earliest")
    assert rows is not None and rows["n"].to_pylist() == [1]
    late.close()


def test_closing_frees_whoever_waits_to_acquire(pair: Served) -> None:
    channel = Channel(pair.addresses)
    inbox = channel.subscribe("nothing comes")
    got = Heard()
    waiting = [threading.Thread(target=lambda: got(inbox.acquire())) for _ in range(2)]
    for thread in waiting:
        thread.start()
    channel.close()
    assert got.until(2) == [None, None]


def test_a_full_inbox_does_not_take_more_and_loses_nothing(pair: Served) -> None:
    with Channel(pair.addresses[:1]) as channel:
        inbox = channel.subscribe("full")
        for n in range(40):
            channel.publish("full", [{"n": n}])
        got = [rows["n"].to_pylist()[0] for _ in range(40) if (rows := inbox.acquire(WAIT_S)) is not None]
        assert got == list(range(40))


def test_an_error_reaches_whoever_acquires_and_the_next_call_begins_anew(pair: Served) -> None:
    channel = Channel(pair.addresses[:1], timeout_s=0.5)
    channel.publish("lost", [{"n": 1}])
    pair.nodes[0].store.set_keep("lost", HOLDS_NOTHING).result(WAIT_S)
    pair.nodes[0].store.trim(pair.nodes[0].driver.clock.now_ms()).result(WAIT_S)
    with pytest.raises(RefusedError, match="missing"):
        channel.acquire("lost", WAIT_S, {})
    assert channel.acquire("lost", 0) is None
    channel.publish("lost", [{"n": 2}])
    rows = channel.acquire("lost", WAIT_S)
    assert rows is not None and rows["n"].to_pylist() == [2]
    channel.close()


# ---- connect with a callback


def test_connect_calls_back_when_the_access_point_is_on_the_channel_and_when_it_is_lost(tmp_path: Path) -> None:
    heard = Heard()
    with serving(tmp_path, 1) as served:
        channel = Channel.connect(served.addresses, on_state=heard, timeout_s=5)
        ((state, status),) = heard.until(1)
        assert (state, status["name"]) == ("connected", "n0")
        assert pickle.loads(pickle.dumps(channel)).nodes == channel.nodes
        served.run(served.stop_door(0))
        assert heard.until(2)[1] == ("lost", None)
    channel.close()
    assert len(heard.all) == 2


def test_connect_fails_at_once_without_a_node() -> None:
    heard = Heard()
    with Channel.connect([AWAY], on_state=heard, timeout_s=5):
        assert heard.until(1) == [("lost", None)]


# ---- readers and audits


def test_a_lease_is_taken_at_every_reachable_node(pair: Served) -> None:
    channel = Channel([*pair.addresses, AWAY])
    channel.publish("leased", [{"n": 1}], acks=1)
    lease = channel.lease("reader", channel.earliest("leased"))
    assert set(lease.expires_at_ms) == set(pair.addresses)
    assert lease.missing == {}
    for address in pair.addresses:
        (reader,) = [each for each in Channel([address]).readers() if each["reader"] == "reader"]
        assert reader["rows_behind"] == 1
    (origin,) = channel.frontier("leased")["leased"]
    pair.nodes[0].store.set_keep("leased", HOLDS_NOTHING).result(WAIT_S)
    pair.nodes[0].store.trim(pair.nodes[0].driver.clock.now_ms()).result(WAIT_S)
    with pytest.raises(RefusedError, match="rows 1 to 1 of topic 'leased'") as error:
        channel.lease("reader", {"leased": {origin: 1}})
    assert error.value.code == "reader-cut"
    channel.release("reader")
    assert channel.lease("reader", {"leased": {origin: 1}}).missing == {}, "the other node has it"
    assert Channel(pair.addresses[:1]).lease("alone", {"leased": {origin: 1}}).missing == {"leased": {origin: 2}}
    assert channel.release("reader")
    assert not channel.release("reader")
    with pytest.raises(UnreachableError, match=AWAY):
        Channel([AWAY]).lease("reader", topics="leased")


def test_deliveries_and_the_roster_are_tables(pair: Served) -> None:
    channel = Channel(pair.addresses)
    channel.publish("audited", [{"n": 1}, {"n": 2}])
    _, low, until = channel.delivery_range()
    records = channel.deliveries(low, until)
    assert records["delivery"].to_pylist() == list(range(low, until))
    assert records.slice(len(records) - 1).select(["topic", "row_count", "kind"]).to_pylist() == [
        {"topic": "audited", "row_count": 2, "kind": "batch"}
    ]
    assert channel.deliveries("latest").num_rows == 0
    assert sorted(channel.roster()["name"].to_pylist()) == ["n0", "n1"]


def test_deliveries_are_read_on_when_the_time_of_a_call_is_over(pair: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes while their user is busy with those that came."""
    channel = Channel(pair.addresses[:1])
    channel.publish("audited/2", [{"n": 1}])
    _, low, until = channel.delivery_range()
    first = next(channel.delivery_batches(low, low + 1))
    opened: list[object] = []
    open_ = Doors.open

    def brief(doors: Doors, client: Any, limit_s: float, ticket: Mapping[str, object]) -> Any:
        opened.append(ticket["start"])
        return open_(doors, client, limit_s, ticket) if len(opened) > 1 else cut_off()

    def cut_off() -> Iterator[Any]:
        yield SimpleNamespace(data=first, app_metadata=pa.py_buffer(json.dumps({"next": low + 1}).encode()))
        raise flight.FlightTimedOutError("Deadline Exceeded")

    monkeypatch.setattr(Doors, "open", brief)
    seen = [n for batch in channel.delivery_batches(low, until) for n in batch["delivery"].to_pylist()]
    assert seen == list(range(low, until))
    assert opened == [low, low + 1]


def test_closing_ends_all_that_runs_and_the_channel_can_be_used_again(pair: Served) -> None:
    channel = Channel(pair.addresses)
    heard = Heard()
    subscription = channel.subscribe("used again", heard)
    channel.close()
    assert not subscription.is_open
    channel.publish("used again", [{"n": 1}])
    rows = channel.acquire("used again", WAIT_S, "earliest")
    assert rows is not None and rows.num_rows == 1
    channel.close()
    assert heard.all == []


class Mistaken(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """A node whose reads always end with a mistake of its own."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.reads = 0

    def do_get(self, context: Any, ticket: Any) -> Any:
        self.reads += 1
        raise as_flight_error(Refusal("internal", "KeyError: see the node's log"))


def test_a_tail_ends_when_every_node_has_made_a_mistake() -> None:
    with Mistaken() as one, Mistaken() as other:
        tail = Channel([f"127.0.0.1:{node.port}" for node in (one, other)]).tail("t", start={})
        with pytest.raises(RefusedError) as error:
            next(tail)
        assert error.value.code == "internal"
        assert (one.reads, other.reads) == (1, 1), "the same mistake would be made again"
