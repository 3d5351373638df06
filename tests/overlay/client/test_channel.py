"""The client against real nodes: what goes in, what comes out, and what happens when a node is away."""

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from m4cast.overlay.client import Channel, RowRange, connections
from m4cast.overlay.client.doors import Doors
from m4cast.overlay.errors import LocalProtocolError, RefusedError, UnreachableError
from tests.overlay.client.hanging import Relay, hanging
from tests.overlay.door.served import Served, serving

AWAY = "127.0.0.1:1"
"""Nobody listens there."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("pair"), 2) as served:
        yield served


def channels(served: Served) -> tuple[Channel, Channel]:
    here, there = (Channel([address]) for address in served.addresses)
    return here, there


ROWS = [{"n": 1, "text": "a"}, {"n": 2, "text": None}]
INPUTS = {
    "dicts": ROWS,
    "generator": (row for row in ROWS),
    "sparse dicts": [{"n": 1, "text": "a"}, {"n": 2}],
    "table": pa.Table.from_pylist(ROWS),
    "batch": pa.RecordBatch.from_pylist(ROWS),
    "reader": pa.Table.from_pylist(ROWS).to_reader(),
    "pandas": pd.DataFrame(ROWS),
}


@pytest.mark.parametrize("given", INPUTS.values(), ids=INPUTS)
def test_rows_in_any_shape_are_read_at_the_other_node(
    pair: Served, given: object, request: pytest.FixtureRequest
) -> None:
    here, there = channels(pair)
    topic = request.node.callspec.id
    (written,) = here.publish(topic, given, acks=1)
    assert (written.topic, written.first, written.next) == (topic, 1, 3)
    assert there.read(topic, end=here.frontier(topic)).select(["n", "text"]).to_pylist() == ROWS


NO_ROWS = [
    *(5, "text", {"n": 1}, [1], [{}]),
    *([{"n": 1}, {"n": "x"}], [{"n": 2**70}], [{"n": "\ud800"}], [{1: 2}], pd.DataFrame({"n": [1, "x"]})),
]


@pytest.mark.parametrize("given", NO_ROWS)
def test_what_is_not_rows_is_refused_here(given: object) -> None:
    with pytest.raises(LocalProtocolError):
        Channel([AWAY]).publish("t", given)


def test_nodes_are_a_list_or_text_with_commas() -> None:
    assert Channel("a:1").nodes == ("a:1",)
    assert Channel("a:1, [::1]:2,grpc+tls://b:3,").nodes == ("a:1", "[::1]:2", "grpc+tls://b:3")
    assert Channel(["a:1", "b:2"]).nodes == ("a:1", "b:2")


@pytest.mark.parametrize("nodes", [[], "", " , ", "host", ["host"], ["host:0"], ["::1:7500"], ["a:1,b"], [5], 5, None])
def test_nodes_must_be_addresses(nodes: Any) -> None:
    with pytest.raises(LocalProtocolError, match=r"give host:port|IPv6 address needs brackets"):
        Channel(nodes)


def test_a_large_table_goes_in_several_batches(pair: Served) -> None:
    here, there = channels(pair)
    here.batch_bytes = 100_000  # more than is put together
    table = pa.table({"n": range(100_000), "text": ["x" * (n % 7) for n in range(100_000)]})
    assert [(rows.first, rows.next) for rows in here.publish("large", table)] == [(1, 100_001)]
    assert there.read("large", end=here.frontier("large")).select(["n", "text"]).equals(table)
    assert len([delivery for delivery in pair.nodes[1].deliveries if delivery.stream.topic == "large"]) > 10


def test_nothing_to_publish_is_not_published(pair: Served) -> None:
    here, _ = channels(pair)
    assert here.publish("nothing", []) == []
    assert "nothing" not in here.topics()


def test_a_keyed_publish_is_delivered_once(pair: Served) -> None:
    here, _ = channels(pair)
    first = here.publish("keyed", ROWS, key="writer", next=1)
    assert here.publish("keyed", ROWS, key="writer", next=1) == first
    assert here.publish("keyed", ROWS, key="writer", expect=1, next=2) == [RowRange("keyed", first[0].origin, 3, 5)]
    assert here.read("keyed")["n"].to_pylist() == [1, 2, 1, 2]
    with pytest.raises(RefusedError, match="actual '2'") as error:
        here.publish("keyed", ROWS, key="writer", expect=1, next=3)
    assert error.value.code == "wrong-position"
    with pytest.raises(LocalProtocolError, match="set key, too"):
        here.publish("keyed", ROWS, next=1)


def test_an_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(RefusedError("busy", "try again")))
    assert (error.code, error.detail, str(error)) == ("busy", "try again", "busy: try again")
    for is_sent in (False, True):
        unreachable = pickle.loads(pickle.dumps(UnreachableError("away", is_sent=is_sent)))
        assert (str(unreachable), unreachable.is_sent) == ("away", is_sent)


def test_several_topics_are_read_together(pair: Served) -> None:
    here, _ = channels(pair)
    here.publish("left", [{"a": 1}])
    here.publish("right", [{"b": "x"}])
    read = here.read(["right", "left"])
    assert read.select(["_topic", "a", "b"]).to_pylist() == [
        {"_topic": "left", "a": 1, "b": None},
        {"_topic": "right", "a": None, "b": "x"},
    ]
    assert here.schema("left").names[0] == "a"


def test_a_range_is_read_from_frontier_to_frontier(pair: Served) -> None:
    here, there = channels(pair)
    assert here.frontier("ranged") == {}
    here.publish("ranged", [{"n": n} for n in range(5)])
    start = here.frontier("ranged")
    here.publish("ranged", [{"n": n} for n in range(5, 10)])
    end = here.frontier("ranged")
    here.publish("ranged", [{"n": 10}])
    for channel in (here, there):
        assert channel.read("ranged", start, end)["n"].to_pylist() == [5, 6, 7, 8, 9]
        assert channel.read("ranged", {}, end)["n"].to_pylist() == list(range(10))
    assert here.read("ranged", "latest").num_rows == 0


def test_a_tail_follows_through_a_new_column(pair: Served) -> None:
    here, there = channels(pair)
    tail = there.tail("followed")  # there is no such topic yet
    assert tail.frontier is None
    waiting = threading.Thread(target=lambda: seen.extend(islice(tail, 3)))
    seen: list[pa.RecordBatch] = []
    waiting.start()
    here.publish("followed", [{"a": 1}])
    here.publish("followed", [{"a": 2}])
    here.publish("followed", [{"a": 3, "b": "x"}])
    waiting.join(30)
    tail.close()
    rows = [row for batch in seen for row in batch.to_pylist()]
    assert [(row["a"], row.get("b")) for row in rows] == [(1, None), (2, None), (3, "x")]
    assert tail.frontier == here.frontier("followed")


def test_a_tail_from_latest_begins_after_what_was_there(pair: Served) -> None:
    here, _ = channels(pair)
    here.publish("late", [{"n": 1}])
    tail = here.tail("late", idle_s=0.2)
    assert list(tail) == []
    here.publish("late", [{"n": 2}])
    assert [batch["n"].to_pylist() for batch in here.tail("late", tail.frontier or {}, idle_s=0.2)] == [[2]]
    assert [batch["n"].to_pylist() for batch in here.tail("late", "earliest", idle_s=0.2)] == [[1], [2]]


def test_closing_a_tail_frees_whoever_waits_in_it(pair: Served) -> None:
    here, _ = channels(pair)
    here.publish("closed", [{"n": 1}])
    tail = here.tail("closed", "earliest")
    next(tail)
    waiting = threading.Thread(target=lambda: list(tail))
    waiting.start()
    tail.close()
    waiting.join(30)
    assert not waiting.is_alive()


def test_looking_at_the_channel(pair: Served) -> None:
    here, _ = channels(pair)
    here.publish("looked", ROWS)
    (origin,) = here.frontier("looked")["looked"]
    assert here.frontier()["looked"] == {origin: 3}
    assert here.earliest("looked") == {"looked": {origin: 1}}
    assert here.frontier("looked", at=0) == {"looked": {origin: 1}}
    assert "looked" in here.topics()
    assert here.status()["name"] == "n0"


FORMS: dict[str, Callable[[datetime], Any]] = {
    "datetime": lambda at: at,
    "text": datetime.isoformat,
    "milliseconds": lambda at: round(at.timestamp() * 1000),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_start_may_be_a_time_in_any_form(pair: Served, form: Callable[[datetime], Any]) -> None:
    here, _ = channels(pair)
    if "timed" not in here.topics():
        here.publish("timed", ROWS)
    (published_at,) = set(here.read("timed")["_published_at"].to_pylist())
    now, later = form(published_at), form(published_at + timedelta(milliseconds=1))
    assert [here.read("timed", start).num_rows for start in (now, later)] == [2, 0]
    assert [sum(here.frontier("timed", at=at)["timed"].values()) for at in (now, later)] == [1, 3]
    assert [sum(batch.num_rows for batch in here.tail("timed", at, idle_s=0.1)) for at in (now, later)] == [2, 0]


@pytest.mark.parametrize("start", [datetime(2026, 1, 31), "2026-01-31T12:00"])
def test_a_start_without_a_zone_is_refused_before_anybody_is_asked(start: Any) -> None:
    channel = Channel([AWAY])
    for call in (channel.read, channel.tail, channel.subscribe, lambda topic, start: channel.frontier(topic, at=start)):
        with pytest.raises(LocalProtocolError, match="has no time zone: add one"):
            call("timed", start=start)
    with pytest.raises(LocalProtocolError, match="'soon' is neither earliest, latest nor a time"):
        channel.read("timed", "soon")


def test_reads_and_publishes_without_a_key_go_to_the_next_node(pair: Served) -> None:
    here, _ = channels(pair)
    here.publish("failing-over", ROWS, acks=1)
    both = Channel([AWAY, *pair.addresses])
    assert both.read("failing-over").num_rows == 2
    assert both.status()["name"] == "n0"
    assert next(both.tail("failing-over", "earliest"))["n"].to_pylist() == [1, 2]
    assert [rows.first for rows in both.publish("failing-over", ROWS)] == [3]
    with both.publisher("failing-over") as publisher:
        publisher.send({"n": 3})
    assert here.read("failing-over").num_rows == 5
    for publish in STAY_AT_THE_FIRST_NODE:
        with pytest.raises(
            UnreachableError, match=f"{AWAY} cannot be reached: Connection refused.*nothing was published"
        ):
            publish(both)
    with pytest.raises(UnreachableError, match=AWAY) as error:
        Channel([AWAY]).read("failing-over")
    assert "published" not in str(error.value)


def published_one_by_one(channel: Channel) -> None:
    with channel.publisher("failing-over") as publisher:
        publisher.send({"n": 1})


STAY_AT_THE_FIRST_NODE: list[Callable[[Channel], object]] = [
    lambda channel: channel.publish("failing-over", ROWS, key="stays", next=1),
    lambda channel: channel.stage("failing-over", ROWS),
    lambda channel: channel.commit(["staged"]),
    lambda channel: channel.at(channel.nodes[0]).publish("failing-over", ROWS),
    lambda channel: published_one_by_one(channel.at(channel.nodes[0])),
    lambda channel: published_one_by_one(Channel([channel.nodes[0]] * 2)),
]


def test_a_publish_without_a_key_goes_to_the_next_node_when_one_hangs(pair: Served) -> None:
    with hanging() as hung, hanging() as other:
        channel = Channel([hung, pair.addresses[0]], timeout_s=1)
        assert [rows.first for rows in channel.publish("hung-publish", ROWS)] == [1]
        with Channel([other, pair.addresses[0]], timeout_s=1).publisher("hung-publish") as publisher:
            publisher.send({"n": 3})
    assert Channel(pair.addresses).read("hung-publish").num_rows == 3


def test_a_key_moves_to_another_node_by_its_position_there(pair: Served) -> None:
    """The steps of docs/OPERATIONS.md."""
    here, there = channels(pair)
    here.publish("moving", [{"n": 1}], key="mover", next=1, acks=1)
    for number in (2, 3):
        there.publish("moving", [{"n": number}], key="mover", expect=there.position("mover"), next=number, acks=1)
    here.publish("moving", [{"n": 4}], key="mover", expect=here.position("mover"), next=4, acks=1)
    assert sorted(here.read("moving", end=there.frontier("moving"))["n"].to_pylist()) == [1, 2, 3, 4]


PUBLISHES_WITH_ACKS: dict[str, Callable[[Channel, int], object]] = {
    "rows": lambda channel, acks: channel.publish("too-safe", ROWS, acks=acks),
    "keyed": lambda channel, acks: channel.publish("too-safe", ROWS, acks=acks, key="safe", next=1),
    "commit": lambda channel, acks: channel.commit(channel.stage("too-safe", ROWS), acks=acks),
}


@pytest.mark.parametrize("publish", PUBLISHES_WITH_ACKS.values(), ids=PUBLISHES_WITH_ACKS)
def test_acks_that_the_channel_cannot_give_are_refused_at_once(
    pair: Served, publish: Callable[[Channel, int], object]
) -> None:
    here, _ = channels(pair)
    with pytest.raises(RefusedError, match="acks is 2, but at most 1 other node can acknowledge") as error:
        publish(here, 2)
    assert error.value.code == "too-few-nodes"
    publish(here, 1)


ERRORS: list[Callable[[Channel], object]] = [
    lambda channel: Channel([AWAY]).publish("clean", ROWS),
    lambda channel: Channel([AWAY]).read("clean"),
    lambda channel: Channel(["no-such-host.invalid:1"]).status(),
    lambda channel: channel.publish("clean", [{"n": "text"}]),
    lambda channel: channel.publish("clean", ROWS, key="clean", next="x" * 2_000),
    lambda channel: channel.read("nobody's"),
]


def test_errors_have_no_word_of_the_libraries_beneath(pair: Served, capfd: pytest.CaptureFixture[str]) -> None:
    here, _ = channels(pair)
    here.publish("clean", ROWS)
    said: list[str] = []
    for call in ERRORS:
        with pytest.raises((UnreachableError, RefusedError)) as error:
            call(here)
        said.append(str(error.value))
    with Relay(pair.addresses[0]) as relay, hanging() as hung:
        tail = Channel([relay.address], timeout_s=0.1).tail("clean", "earliest")
        next(tail)
        relay.__exit__()
        with pytest.raises(UnreachableError) as lost:
            next(tail)
        with pytest.raises(RefusedError) as late:
            Channel([hung], timeout_s=0.1).status()
        said += [str(lost.value), str(late.value)]
    said += capfd.readouterr()
    for piece in ("/arrow/", "gRPC", "Flight returned", "all addresses", "last error", "Detail:", "context", "ipv4"):
        assert piece not in " ".join(said)


CALLS: dict[str, Callable[[Channel], object]] = {
    "read": lambda channel: channel.read("hung-over").num_rows,
    "read_batches": lambda channel: next(channel.read_batches("hung-over", {}, channel.frontier("hung-over"))).num_rows,
    "tail": lambda channel: next(channel.tail("hung-over", "earliest")).num_rows,
    "subscribe": lambda channel: sum(channel.subscribe("hung-over").frontier["hung-over"].values()) - 1,
    "frontier": lambda channel: sum(channel.frontier("hung-over")["hung-over"].values()) - 1,
    "news": lambda channel: len(channel.news({}, "hung-over", wait_s=2)) + 1,
    "schema": lambda channel: len(channel.schema("hung-over")) - 4,
    "roster": lambda channel: channel.roster().num_rows,
    "lease": lambda channel: len(channel.lease("reader", topics="hung-over").expires_at_ms) + 1,
}
"""Each gives 2."""


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_reads_go_to_the_next_node_when_one_hangs(pair: Served, call: Callable[[Channel], object]) -> None:
    if "hung-over" not in Channel(pair.addresses[:1]).topics():
        Channel(pair.addresses[:1]).publish("hung-over", ROWS)
    with hanging() as hung, Channel([hung, pair.addresses[0]], timeout_s=1) as channel:
        assert call(channel) == 2
    assert connections.answering_first([hung, "other"]) == ("other", hung), "the next calls do not begin with it"


def test_a_node_that_answers_again_is_asked_first_again(pair: Served) -> None:
    node = pair.addresses[0]
    connections.note_silence(node)
    assert connections.answering_first([node, "other"]) == ("other", node)
    Channel([node]).topics()
    assert connections.answering_first([node, "other"]) == (node, "other")


def test_a_general_refusal_is_not_retried_elsewhere(pair: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = Doors.at

    def noted(doors: Doors, node: str, call: Callable[[Any, float], pa.Table], limit_s: float) -> pa.Table:
        asked.append(node)
        return ask(doors, node, call, limit_s)

    monkeypatch.setattr(Doors, "at", noted)
    with pytest.raises(RefusedError) as error:
        Channel(pair.addresses).read("looked", end="first")  # type: ignore[arg-type]
    assert error.value.code == "bad-request"
    assert asked == pair.addresses[:1]
    with pytest.raises(RefusedError) as error:
        Channel(pair.addresses).read("nobody's topic")
    assert error.value.code == "unknown-topic"
    assert asked[1:] == pair.addresses


def test_a_tail_goes_on_at_another_node(tmp_path: Path) -> None:
    with serving(tmp_path, 3) as served:
        writer = Channel(served.addresses[2:])
        tail = Channel(served.addresses[:2]).tail("t", "earliest")
        writer.publish("t", [{"n": 1}])
        assert next(tail)["n"].to_pylist() == [1]
        served.run(served.stop_door(0))
        writer.publish("t", [{"n": 2}])
        assert next(tail)["n"].to_pylist() == [2]
        tail.close()


def test_a_channel_is_its_settings(pair: Served) -> None:
    here, _ = channels(pair)
    here.publish("pickled", ROWS)
    again = pickle.loads(pickle.dumps(here))
    assert (again.nodes, again.timeout_s) == (here.nodes, here.timeout_s)
    assert again.read("pickled").num_rows == 2


FORKING = """
import os, sys
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import LocalProtocolError

channel = Channel([sys.argv[1]])

def in_child():
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    try:
        print(channel.read("forked").num_rows, flush=True)
    except LocalProtocolError as error:
        print(error, flush=True)
    os._exit(0)

in_child()
print(channel.read("forked").num_rows, flush=True)
in_child()
"""


def test_a_forked_child_uses_the_channel_or_is_refused(pair: Served) -> None:
    here, _ = channels(pair)
    here.publish("forked", ROWS)
    command = [sys.executable, "-c", FORKING, pair.addresses[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    before, parent, after = done.stdout.splitlines()
    assert (before, parent) == ("2", "2")
    assert "forked after its parent had used a channel: fork before that" in after
