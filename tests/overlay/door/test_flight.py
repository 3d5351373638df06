"""The door as any Flight client meets it: plain `pyarrow.flight` over real sockets, without our client."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.protocol.publishing.acks import Acks
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store.store import ChannelName
from tests.overlay.door.plain import CALL, act, code_of, command, connect, frontier, get, path, put
from tests.overlay.door.served import Served, serving
from tests.overlay.protocol.stream_parts import chain, stream_id
from tests.overlay.store.store_parts import opened, received, synced

SYSTEM = ["_topic", "_origin", "_sequence", "_published_at"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two nodes for all tests that use topics of their own."""
    with serving(tmp_path_factory.mktemp("pair"), 2, DoorLimits(batch_bytes_max=100_000)) as served:
        yield served


def rich_rows() -> pa.Table:
    """Nulls, nested values and times, in canonical types."""
    at = datetime(2026, 5, 17, 12, 0, 0, 123_456)
    return pa.table(
        {
            "n": pa.array([1, None, 3], pa.int64()),
            "text": pa.array(["ä", "", None], pa.string()),
            "data": pa.array([b"\x00", None, b""], pa.binary()),
            "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
            "at": pa.array([at, None, at], pa.timestamp("us")),
            "at_zoned": pa.array([at.replace(tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
            "tags": pa.array([["a", None], None, []], pa.list_(pa.field("element", pa.string()))),
            "place": pa.array([{"x": 1, "y": [1.5]}, None, {"x": None, "y": None}]),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        }
    )


def test_what_is_published_at_one_node_is_read_at_another(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    rows = rich_rows()
    (ack,) = put(here, path("rich"), rows)
    (written,) = ack["ranges"]
    assert ack["rows"] == 3
    assert (written["topic"], written["first"], written["next"]) == ("rich", 1, 4)

    read = get(there, topic="rich", start="earliest", end={"rich": {written["origin"]: 4}})
    assert read.column_names == [*rows.column_names, *SYSTEM]
    assert read.select(rows.column_names).to_pylist() == rows.to_pylist()
    assert read["_topic"].to_pylist() == ["rich"] * 3
    assert read["_origin"].to_pylist() == [pair.nodes[0].driver.node.me.node_id.hex()] * 3
    assert read["_sequence"].to_pylist() == [1, 2, 3]
    assert read.schema.field("_published_at").type == pa.timestamp("us", "UTC")


def test_a_range_is_equal_on_two_nodes_and_each_time(pair: Served) -> None:
    nodes = [connect(pair, 0), connect(pair, 1)]
    for number in range(10):
        rows = pa.table({"n": list(range(number * 10, number * 10 + 10))})
        put(nodes[number % 2], path("equal"), rows)
    ends: dict[str, int] = {}
    for node in nodes:
        for origin, until in frontier(node, "equal")["equal"].items():
            ends[origin] = max(until, ends.get(origin, 1))
    assert sorted(ends.values()) == [51, 51]
    start = {"equal": dict.fromkeys(ends, 5)}  # in the middle of batches, on both sides
    end = {"equal": dict.fromkeys(ends, 48)}
    backwards = {"equal": dict.fromkeys(sorted(ends, reverse=True), 48)}  # the order in which it is said is nothing
    tables = [get(node, topic="equal", start=start, end=said) for node in nodes for said in (end, backwards)]
    assert all(table.equals(tables[0]) for table in tables)
    assert tables[0].num_rows == 2 * 43
    for origin in ends:
        of_origin = [row for row in tables[0].to_pylist() if row["_origin"] == origin]
        assert [row["_sequence"] for row in of_origin] == list(range(5, 48))
        assert [row["n"] for row in of_origin] == sorted(row["n"] for row in of_origin)


def test_a_tail_follows_in_order(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    put(here, path("tail"), pa.table({"n": [0, 1]}))
    get(there, topic="tail", start={}, end=frontier(here, "tail"))  # it is there now
    tail = there.do_get(flight.Ticket(b'{"topic": "tail", "start": {}, "end": null}'), CALL)
    seen = tail.read_chunk().data.to_pylist()
    for number in range(2, 12, 2):
        put(here, path("tail"), pa.table({"n": [number, number + 1]}))
        chunk = tail.read_chunk()
        seen += chunk.data.to_pylist()
        assert json.loads(chunk.app_metadata.to_pybytes())["next"] == number + 3
    assert [(row["n"], row["_sequence"]) for row in seen] == [(n, n + 1) for n in range(12)]
    tail.cancel()


def test_a_tail_of_a_topic_without_rows_ends_when_they_come(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    ticket = flight.Ticket(b'{"topic": "later", "start": {}}')
    tail = there.do_get(ticket, CALL)
    assert tail.schema.names == SYSTEM
    put(here, path("later"), pa.table({"n": [7]}))
    with pytest.raises(StopIteration):
        tail.read_chunk()
    tail = there.do_get(ticket, CALL)
    assert tail.read_chunk().data["n"].to_pylist() == [7]
    tail.cancel()


def test_a_tail_ends_when_it_was_idle_for_so_long(pair: Served) -> None:
    here = connect(pair, 0)
    put(here, path("idle"), pa.table({"n": [1, 2]}))
    assert get(here, topic="idle", start="earliest", idle_ms=50).num_rows == 2


def test_a_tail_ends_before_rows_with_a_new_column_and_goes_on_with_it(pair: Served) -> None:
    here = connect(pair, 0)
    put(here, path("wider"), pa.table({"a": [1]}))
    tail = here.do_get(flight.Ticket(b'{"topic": "wider", "start": "earliest"}'), CALL)
    where = json.loads(tail.read_chunk().app_metadata.to_pybytes())
    put(here, path("wider"), pa.table({"a": [2], "b": ["x"]}))
    with pytest.raises(StopIteration):
        tail.read_chunk()
    start = {"wider": {where["origin"]: where["next"]}}
    rest = get(here, topic="wider", start=start, end="latest")
    assert rest.select(["a", "b", "_sequence"]).to_pylist() == [{"a": 2, "b": "x", "_sequence": 2}]
    everything = get(here, topic="wider", end="latest")
    assert everything.select(["a", "b"]).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_types_become_canonical(pair: Served) -> None:
    here = connect(pair, 0)
    nanoseconds = pa.timestamp("ns", "Europe/Warsaw")
    rows = pa.table(
        {
            "large": pa.array(["a", None], pa.large_string()),
            "view": pa.array([b"a", None], pa.binary_view()),
            "coded": pa.array(["a", "a"]).dictionary_encode(),
            "ns": pa.array([1_000, None], nanoseconds),
            "nested": pa.array([[{"s": "x"}], None], pa.large_list(pa.struct([("s", pa.large_string())]))),
            "strict": pa.array([1, 2]),
        },
        schema=pa.schema(
            [
                ("large", pa.large_string()),
                ("view", pa.binary_view()),
                ("coded", pa.dictionary(pa.int32(), pa.string())),
                ("ns", nanoseconds),
                ("nested", pa.large_list(pa.struct([("s", pa.large_string())]))),
                pa.field("strict", pa.int64(), nullable=False),
            ],
            metadata={"whose": "the publisher's"},
        ),
    )
    put(here, path("types"), rows)
    read = get(here, topic="types", end="latest").drop_columns(SYSTEM)
    element = pa.field("element", pa.struct([("s", pa.string())]))
    assert read.schema.equals(
        pa.schema(
            [
                ("large", pa.string()),
                ("view", pa.binary()),
                ("coded", pa.string()),
                ("ns", pa.timestamp("us", "UTC")),
                ("nested", pa.list_(element)),
                ("strict", pa.int64()),
            ]
        ),
        check_metadata=True,
    )
    assert read["nested"].to_pylist() == [[{"s": "x"}], None]
    assert read["ns"].cast(pa.int64()).to_pylist() == [1, None]


def test_keys_and_headers_have_one_type_for_all_publishers(pair: Served) -> None:
    here = connect(pair, 0)
    put(here, path("with-keys"), pa.table({"_key": ["k"], "_headers": [[{"key": "h", "value": "text"}]]}))
    as_map = pa.array([[("h", b"map")]], pa.map_(pa.string(), pa.binary()))
    put(here, path("with-keys"), pa.table({"_key": [b"\xff"], "_headers": as_map}))
    read = get(here, topic="with-keys", end="latest")
    assert read["_key"].to_pylist() == [b"k", b"\xff"]
    assert read["_headers"].to_pylist() == [[{"key": "h", "value": b"text"}], [{"key": "h", "value": b"map"}]]


def test_a_batch_says_how_it_came_when_its_rows_do_not(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    put(here, path("told"), pa.table({"n": [1, 2, 3]}))
    end = frontier(here, "told")
    (origin,) = end["told"]
    start = {"told": {origin: 2}}
    ticket = {"topic": "told", "start": start, "end": end, "metadata": "batches"}
    for node, client, hops in ((0, here, 0), (1, there, 1)):
        (chunk,) = client.do_get(flight.Ticket(json.dumps(ticket).encode()), CALL)
        assert chunk.data.to_pydict() == {"n": [2, 3]}
        said = json.loads(chunk.app_metadata.to_pybytes())
        assert said.pop("published_at_ms") <= said.pop("delivered_at_ms") + 1_000
        assert said == {
            "topic": "told",
            "origin": origin,
            "next": 4,
            "hops": hops,
            "node_id": pair.nodes[node].driver.node.me.node_id.hex(),
            "channel": "m4cast/default",
        }


def test_a_column_without_a_type_takes_the_one_it_gets(pair: Served) -> None:
    here = connect(pair, 0)
    put(here, path("untyped"), pa.table({"a": [1], "b": pa.nulls(1)}))
    put(here, path("untyped"), pa.table({"a": [2], "b": ["x"]}))
    put(here, path("untyped"), pa.table({"b": pa.nulls(1)}))
    read = get(here, topic="untyped", end="latest")
    assert read.select(["a", "b"]).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": None, "b": None}]


def test_a_keyed_publish_is_one_commit_and_a_repeat_adds_nothing(pair: Served) -> None:
    here = connect(pair, 0)
    rows = pa.Table.from_batches([pa.record_batch({"n": [n]}) for n in range(5)])
    move = command(topic="keyed", key="writer", next="1", rows=5, acks=1)
    first = put(here, move, rows)
    assert first == put(here, move, rows)
    assert [(ack["rows"], len(ack["ranges"])) for ack in first] == [(5, 1)]
    assert get(here, topic="keyed", end="latest")["n"].to_pylist() == [0, 1, 2, 3, 4]
    batches = pair.nodes[0].store.read_range(pair.nodes[0].deliveries[-1].stream, 1, 6, 1 << 20)
    assert [(batch.publisher, batch.position, batch.part, batch.parts) for batch in batches] == [
        ("writer", "1", part, 5) for part in range(5)
    ]


def test_a_keyed_publish_with_a_wrong_row_count_is_refused(pair: Served) -> None:
    here, rows = connect(pair, 0), pa.table({"n": [1, 2, 3]})
    with pytest.raises(flight.FlightServerError) as error:
        put(here, command(topic="short", key="short", next="1", rows=4), rows)
    assert code_of(error) == "cut-off" and "3 of 4 rows arrived" in str(error.value)
    assert act(here, "position", key="short") == {"position": None, "ranges": []}
    assert put(here, command(topic="short", key="short", next="1", rows=3), rows)[-1]["rows"] == 3


def test_a_keyed_publish_that_breaks_off_moves_no_key(pair: Served) -> None:
    here, rows = connect(pair, 0), pa.table({"n": [1, 2, 3]})
    for attempt in range(20):
        move = command(topic="broken", key=f"broken-{attempt}", next="1", rows=3)
        writer, reader = here.do_put(move, rows.schema, flight.FlightCallOptions(timeout=0.05))
        with suppress(flight.FlightTimedOutError):
            assert reader.read() is None
        with pytest.raises(flight.FlightTimedOutError):
            writer.close()
        assert put(here, move, rows)[-1]["rows"] == 3
        ((written,),) = [act(here, "position", key=f"broken-{attempt}")["ranges"]]
        assert written["next"] - written["first"] == 3


def test_a_keyed_publish_without_rows_moves_the_key(pair: Served) -> None:
    here = connect(pair, 0)
    empty = pa.table({"n": pa.array([], pa.int64())})
    assert put(here, command(topic="keyed-empty", key="quiet", next="1", rows=0), empty) == [{"rows": 0, "ranges": []}]
    with pytest.raises(flight.FlightServerError) as error:
        put(here, command(topic="keyed-empty", key="quiet", next="2", rows=0), empty)
    assert code_of(error) == "wrong-position"


def test_staged_rows_are_numbered_by_their_commit(pair: Served) -> None:
    here = connect(pair, 0)
    tasks = [command(topic="staged", stage=f"attempt-{task}") for task in range(3)]
    ids = [put(here, task, pa.table({"n": [number] * 2}))[-1]["stage_ids"] for number, task in enumerate(tasks)]
    assert ids == [["attempt-0/0"], ["attempt-1/0"], ["attempt-2/0"]]
    act(here, "abort", stage_ids=ids[1])
    with pytest.raises(flight.FlightServerError) as error:
        act(here, "commit", stage_ids=[*ids[0], *ids[1]], key="sink", next="1")
    assert code_of(error) == "missing-stage"
    committed = act(here, "commit", stage_ids=[*ids[2], *ids[0]], key="sink", next="1")
    assert [(rows["first"], rows["next"]) for rows in committed["ranges"]] == [(1, 5)]
    assert committed == act(here, "commit", stage_ids=[], key="sink", next="1")
    assert get(here, topic="staged", end="latest")["n"].to_pylist() == [2, 2, 0, 0]


def test_acknowledgements_are_cumulative_and_come_while_the_client_writes(pair: Served) -> None:
    here = connect(pair, 0)
    batch = pa.record_batch({"n": [1, 2, 3]})
    writer, reader = here.do_put(path("acked"), batch.schema, CALL)
    for number in range(1, 4):
        writer.write_batch(batch)
        ack = json.loads(reader.read().to_pybytes())
        assert ack["rows"] == 3 * number
        assert (ack["ranges"][0]["first"], ack["ranges"][0]["next"]) == (3 * number - 2, 3 * number + 1)
    writer.close()


def test_a_client_may_write_everything_before_it_listens(pair: Served) -> None:
    here = connect(pair, 0)
    count = 3_000
    rows = pa.Table.from_batches([pa.record_batch({"n": [n]}) for n in range(count)])
    acks = put(here, path("many"), rows)
    assert acks[-1]["rows"] == count
    assert sum(rows["next"] - rows["first"] for ack in acks for rows in ack["ranges"]) == count
    read = get(here, topic="many", end="latest")
    assert read["n"].to_pylist() == list(range(count))
    assert read["_sequence"].to_pylist() == list(range(1, count + 1))
    assert read["n"].num_chunks < count / 4  # they were put together


def test_small_and_large_batches_of_one_call_keep_their_order(pair: Served) -> None:
    here = connect(pair, 0)
    sizes = [1, 1, 10_000, 1, 1, 1, 10_000, 1] * 5
    batches = [pa.record_batch({"n": [number] * size}) for number, size in enumerate(sizes)]
    acks = put(here, path("mixed"), pa.Table.from_batches(batches))
    assert acks[-1]["rows"] == sum(sizes)
    read = get(here, topic="mixed", end="latest")["n"].to_pylist()
    assert read == [number for number, size in enumerate(sizes) for _ in range(size)]


@pytest.fixture
def no_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node's acknowledgements are lost."""
    monkeypatch.setattr(Acks, "acked", lambda *_: None)


@pytest.mark.usefixtures("no_acks")
def test_a_refusal_of_gathered_rows_reaches_their_publishers(pair: Served) -> None:
    here = connect(pair, 0)
    rows = pa.Table.from_batches([pa.record_batch({"n": [n]}) for n in range(100)])
    with pytest.raises(flight.FlightTimedOutError) as error:
        put(here, command(topic="few-refused", acks=1, timeout_ms=50), rows)
    assert code_of(error) == "timeout"


@pytest.mark.parametrize("size", [1, 10_000], ids=["small", "large"])
def test_what_was_published_before_bad_rows_is_acknowledged(pair: Served, size: int) -> None:
    here, topic = connect(pair, 0), f"good-bad-good-{size}"
    good = pa.record_batch({"s": ["good"] * size})
    bad = pa.record_batch({"s": pa.array([b"\xff"] * size).cast(pa.string(), safe=False)})
    safe = 0
    for _ in range(20):
        writer, reader = here.do_put(path(topic), good.schema, CALL)
        for rows in (good, bad, good):
            with suppress(flight.FlightServerError):  # it may have been refused already
                writer.write_batch(rows)
        with suppress(flight.FlightServerError):
            writer.done_writing()
        rows_safe = 0
        with suppress(flight.FlightServerError):  # what ends the call may end the reader, too
            while (message := reader.read()) is not None:
                rows_safe = json.loads(message.to_pybytes()).get("rows", rows_safe)
        with pytest.raises(flight.FlightServerError) as error:
            writer.close()
        assert code_of(error) == "bad-rows"
        safe += rows_safe
    published = sum(end - 1 for end in frontier(here, topic)[topic].values()) if topic in act(here, "topics") else 0
    assert published == safe


def test_flights_are_the_topics(pair: Served) -> None:
    here = connect(pair, 0)
    put(here, path("listed"), pa.table({"n": [1, 2]}))
    put(here, path("listed"), pa.table({"n": [3]}))
    info = here.get_flight_info(path("listed"), CALL)
    assert info.schema.names == ["n", *SYSTEM]
    assert info.total_records == 3
    assert here.do_get(info.endpoints[0].ticket, CALL).read_all()["n"].to_pylist() == [1, 2, 3]
    assert b"listed" in [flown.descriptor.path[0] for flown in here.list_flights(options=CALL)]
    assert "listed" in act(here, "topics")
    assert {action.type for action in here.list_actions(CALL)} >= {"frontier", "topics", "status", "commit", "abort"}


def test_status_describes_the_node_and_the_channel(pair: Served) -> None:
    status = act(connect(pair, 0), "status")
    other = pair.nodes[1].driver.node.me
    assert status["node_id"] == pair.nodes[0].driver.node.me.node_id.hex()
    assert (status["name"], status["incarnation"], status["state"]) == ("n0", 1, "full")
    assert status["neighbours"] == [{"node_id": other.node_id.hex(), "address": other.address}]
    assert status["holes"] == 3
    assert status["diameter"] >= 1
    assert status["clock"].keys() == {"ahead_ms", "agrees"}
    assert {entry["name"] for entry in status["roster"]} == {"n0", "n1"}


def test_a_frontier_can_be_asked_for_by_time(pair: Served) -> None:
    here = connect(pair, 0)
    put(here, path("timed"), pa.table({"n": [1, 2]}))
    (stamp,) = set(get(here, topic="timed", end="latest")["_published_at"].cast(pa.int64()).to_pylist())
    at_ms = stamp // 1000
    assert [ends[1] for ends in act(here, "frontier", topic="timed", at_ms=at_ms)["timed"].values()] == [1]
    assert [ends[1] for ends in act(here, "frontier", topic="timed", at_ms=at_ms + 1)["timed"].values()] == [3]
    assert get(here, topic="timed", start=at_ms, end="latest").num_rows == 2
    assert get(here, topic="timed", start=at_ms + 1, end="latest").num_rows == 0


def test_a_frontier_by_time_misses_no_rows_where_the_clock_of_their_origin_went_back(tmp_path: Path) -> None:
    """Rows as they are in stores that were written when that could happen."""
    times = (500, 600, 700, 100, 200, 300, 400, 710, 800)
    batches: list[Batch] = []
    for at_ms in times:
        [batch] = chain(1, after=batches[-1] if batches else None)
        batches.append(seal(replace(batch, published_at_ms=at_ms, checksum=0)))
    with opened(tmp_path / "n0", channel=ChannelName("m4cast", "default")) as store:
        synced(store, received(1, *batches))
    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        for at_ms in range(0, 900, 50):
            first = next((number for number, each in enumerate(times, start=1) if each >= at_ms), 10)
            said = act(here, "frontier", topic="t", at_ms=at_ms)
            assert said == {"t": {stream_id().origin.hex(): [1, first]}}, at_ms


def test_news_are_what_is_past_what_was_seen_and_can_be_waited_for(pair: Served) -> None:
    here = connect(pair, 0)
    put(here, path("news"), pa.table({"n": [1, 2]}))
    seen = frontier(here, "news")
    (origin,) = seen["news"]
    assert act(here, "frontier", topic="news", seen={}) == {"news": {origin: [1, 3]}}
    assert act(here, "frontier", topic="news", seen=seen, wait_ms=1) == {}
    assert "news" not in act(here, "frontier", seen=seen)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: act(connect(pair, 0), "frontier", topic="news", seen=seen, wait_ms=10_000))
        while not waiting.done():  # also before it waits: then it is answered at once
            put(here, path("news"), pa.table({"n": [3]}))
        assert waiting.result()["news"][origin][1] > 3


def test_rows_are_compressed_on_their_way_if_asked_for(pair: Served) -> None:
    here = connect(pair, 0)
    rows = pa.table({"n": list(range(1_000))})
    written = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer, _ = here.do_put(path("compressed"), rows.schema, written)
    with writer:
        writer.write_table(rows)
    for codec in ("lz4", "zstd"):
        assert get(here, topic="compressed", end="latest", compression=codec)["n"].to_pylist() == list(range(1_000))


def test_a_lagging_node_waits_then_refuses(pair: Served) -> None:
    here = connect(pair, 0)
    put(here, path("behind"), pa.table({"n": [1]}))
    (origin,) = frontier(here, "behind")["behind"]
    with pytest.raises(flight.FlightUnavailableError) as error:
        get(here, topic="behind", start={}, end={"behind": {origin: 3}}, timeout_ms=50)
    assert code_of(error) == "behind"
    assert f"origin {origin}: rows below 3 were requested, but this node has those below 2" in str(error.value)


BAD_PUTS = {
    "json": (flight.FlightDescriptor.for_command(b"{"), "bad-request"),
    "list": (flight.FlightDescriptor.for_command(b"[]"), "bad-request"),
    "bytes": (flight.FlightDescriptor.for_command(b"\xff"), "bad-request"),
    "deep": (flight.FlightDescriptor.for_command(b"[" * 100_000), "bad-request"),
    "no such field": (command(topic="bad", ack=1), "bad-request"),
    "acks": (command(topic="bad", acks=-1), "bad-request"),
    "acks as bool": (command(topic="bad", acks=True), "bad-request"),
    "key without next": (command(topic="bad", key="k", rows=1), "bad-request"),
    "next without key": (command(topic="bad", next="1"), "bad-request"),
    "number as position": (command(topic="bad", key="k", next=1, rows=1), "bad-request"),
    "same position": (command(topic="bad", key="k", expect="1", next="1", rows=1), "bad-request"),
    "rows without key": (command(topic="bad", rows=1), "bad-request"),
    "key without rows": (command(topic="bad", key="k", next="1"), "bad-request"),
    "stage with key": (command(topic="bad", stage="s", key="k", next="1", rows=1), "bad-request"),
    "empty topic": (path(""), "bad-topic"),
    "long topic": (path("t" * 201), "bad-topic"),
    "unprintable topic": (path("a\nb"), "bad-topic"),
    "system topic": (path("_beacon"), "bad-request"),
    "two parts": (flight.FlightDescriptor.for_path("a", "b"), "bad-request"),
    "timeout": (command(topic="bad", timeout_ms=0), "bad-request"),
}


@pytest.mark.parametrize(("descriptor", "code"), BAD_PUTS.values(), ids=BAD_PUTS)
def test_a_bad_publish_is_refused_by_name(pair: Served, descriptor: Any, code: str) -> None:
    here = connect(pair, 0)
    with pytest.raises(flight.FlightServerError) as error:
        put(here, descriptor, pa.table({"n": [1]}))
    assert code_of(error) == code
    assert "bad" not in act(here, "topics")


def record_batch_of(column: pa.Array, name: str = "a") -> pa.RecordBatch:
    return pa.record_batch([column], names=[name])


BAD_ROWS = {
    "too large": (record_batch_of(pa.array(["x" * 100_001])), "too-large", "send fewer rows"),
    "just too large": (record_batch_of(pa.array(["x" * 99_990])), "too-large", "send fewer rows"),
    "reserved": (record_batch_of(pa.array([1]), "_sequence"), "reserved-column", "'_sequence'"),
    "ours": (record_batch_of(pa.array([1]), "_m4cast_x"), "reserved-column", "'_m4cast_x'"),
    "no columns": (pa.record_batch([], names=[]), "bad-schema", "0 columns"),
    "twice": (pa.record_batch([pa.array([1]), pa.array([1])], names=["a", "a"]), "bad-schema", "twice"),
    "union": (
        record_batch_of(pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])),
        "bad-schema",
        "cannot be published",
    ),
    "key": (record_batch_of(pa.array([1]), "_key"), "bad-schema", "must be binary"),
    "headers": (record_batch_of(pa.array([[{"k": "a"}]]), "_headers"), "bad-schema", "value: binary"),
    "nanoseconds": (record_batch_of(pa.array([1], pa.timestamp("ns"))), "bad-rows", "microseconds"),
    "not UTF-8": (record_batch_of(pa.array([b"\xff"]).cast(pa.string(), safe=False)), "bad-rows", "UTF8"),
}


@pytest.mark.parametrize(("rows", "code", "says"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_refused_by_name(pair: Served, rows: pa.RecordBatch, code: str, says: str) -> None:
    here = connect(pair, 0)
    with pytest.raises(flight.FlightServerError) as error:
        put(here, path("bad-rows"), rows)
    assert code_of(error) == code
    assert says in str(error.value)
    assert "bad-rows" not in act(here, "topics")


def test_a_column_keeps_its_type(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    (ack,) = put(here, path("agreed"), pa.table({"a": [1]}))
    get(there, topic="agreed", start={}, end={"agreed": {ack["ranges"][0]["origin"]: 2}})  # it is there now
    for client in (here, there):
        with pytest.raises(flight.FlightServerError) as error:
            put(client, path("agreed"), pa.table({"a": ["x"]}))
        assert code_of(error) == "schema-conflict"
        assert "column 'a' is int64 in this topic and string here" in str(error.value)
    put(here, path("agreed"), pa.table({"a": [2]}))


def test_a_refused_schema_does_not_bind_the_topic(pair: Served) -> None:
    here = connect(pair, 0)
    with pytest.raises(flight.FlightServerError):
        put(here, command(topic="unbound", key="unbound", expect="0", next="1", rows=1), pa.table({"a": ["x"]}))
    put(here, path("unbound"), pa.table({"a": [1]}))


def test_a_schema_binds_while_it_is_being_published_and_not_after_it_was_refused(pair: Served) -> None:
    here = connect(pair, 0)
    open_call, acks = here.do_put(path("bound"), pa.schema([("a", pa.int64())]), CALL)
    open_call.write_batch(pa.record_batch({"a": [1]}))
    acks.read()
    with pytest.raises(flight.FlightServerError) as error:
        put(here, command(topic="bound", key="bound", expect="0", next="1", rows=1), pa.table({"b": ["x"]}))
    assert code_of(error) == "wrong-position"
    put(here, path("bound"), pa.table({"b": [1]}))
    with pytest.raises(flight.FlightServerError) as error:
        put(here, path("bound"), pa.table({"a": ["x"]}))
    assert code_of(error) == "schema-conflict"
    open_call.close()


@pytest.mark.usefixtures("no_acks")
def test_an_error_reaches_a_client_that_waits_for_its_acknowledgement(pair: Served) -> None:
    here = connect(pair, 0)
    batch = pa.record_batch({"n": [1]})
    writer, reader = here.do_put(command(topic="lonely", acks=1, timeout_ms=50), batch.schema, CALL)
    writer.write_batch(batch)
    assert json.loads(reader.read().to_pybytes())["error"]["code"] == "timeout"
    with pytest.raises(flight.FlightTimedOutError) as error:
        writer.close()
    assert code_of(error) == "timeout"


BAD_TICKETS = {
    "json": (b"\x00", "bad-request"),
    "nothing": (b"{}", "bad-request"),
    "unknown": (b'{"topic": "nowhere", "end": "latest"}', "unknown-topic"),
    "field": (b'{"topic": "t", "from": "latest"}', "bad-request"),
    "both": (b'{"topic": "t", "topics": ["u"]}', "bad-request"),
    "start": (b'{"topic": "t", "start": "first"}', "bad-request"),
    "end": (b'{"topic": "t", "end": "earliest"}', "bad-request"),
    "end by time": (b'{"topic": "t", "end": 5}', "bad-request"),
    "origin": (b'{"topic": "t", "start": {"t": {"xy": 1}}}', "bad-request"),
    "sequence": (b'{"topic": "t", "start": {"t": {"' + b"0" * 32 + b'": 0}}}', "bad-request"),
    "shape": (b'{"topic": "t", "start": {"t": 5}}', "bad-request"),
    "compression": (b'{"topic": "t", "compression": "gzip"}', "bad-request"),
    "metadata": (b'{"topic": "t", "metadata": "columns"}', "bad-request"),
    "metadata of raw": (b'{"topic": "t", "read": "raw", "metadata": "rows"}', "bad-request"),
    "read": (b'{"topic": "t", "read": "everything"}', "bad-request"),
    "on_missing": (b'{"topic": "t", "on_missing": "guess"}', "bad-request"),
}


@pytest.mark.parametrize(("ticket", "code"), BAD_TICKETS.values(), ids=BAD_TICKETS)
def test_a_bad_ticket_is_refused_by_name(pair: Served, ticket: bytes, code: str) -> None:
    here = connect(pair, 0)
    with pytest.raises(flight.FlightServerError) as error:
        here.do_get(flight.Ticket(ticket), CALL).read_all()
    assert code_of(error) == code


def test_a_publish_that_does_not_say_waits_for_as_many_acks_as_the_node_asks_for(tmp_path: Path) -> None:
    rows = pa.table({"n": [1]})
    with serving(tmp_path, 1, DoorLimits(acks=1), one_is_away=True) as served:
        here = connect(served, 0)
        assert put(here, command(topic="t", acks=0), rows)[-1]["rows"] == 1
        staged = put(here, command(topic="t", stage="s"), rows)[-1]["stage_ids"]
        for publish in (
            lambda: put(here, command(topic="t", timeout_ms=100), rows),
            lambda: put(here, command(topic="t", key="k", next="1", rows=rows.num_rows, timeout_ms=100), rows),
            lambda: act(here, "commit", stage_ids=staged, timeout_ms=100),
        ):
            with pytest.raises(flight.FlightTimedOutError, match="too few nodes for the acks"):
                publish()


def test_a_publisher_asks_where_its_key_stands(pair: Served) -> None:
    here = connect(pair, 0)
    assert act(here, "position", key="stand") == {"position": None, "ranges": []}
    said = put(here, command(topic="stand", key="stand", next="7", rows=3), pa.table({"n": [1, 2, 3]}))
    assert act(here, "position", key="stand") == {"position": "7", "ranges": said[-1]["ranges"]}
    with pytest.raises(flight.FlightServerError, match="bad-request: key is missing"):
        act(here, "position", key="")


@pytest.mark.parametrize("action", ["nonsense", "frontier", "commit", "abort", "position"])
def test_a_bad_action_is_refused_by_name(pair: Served, action: str) -> None:
    here = connect(pair, 0)
    with pytest.raises(flight.FlightServerError) as error:
        list(here.do_action(flight.Action(action, b'{"what": 1}'), CALL))
    assert code_of(error) == "bad-request"


def test_payload_that_is_not_arrow_is_refused_alone(pair: Served) -> None:
    here = connect(pair, 0)
    pair.run(pair.nodes[0].publish("raw", b"not Arrow at all"))
    with pytest.raises(flight.FlightServerError) as error:
        get(here, topic="raw", end="latest")
    assert code_of(error) == "not-arrow"
    put(here, path("raw"), pa.table({"n": [1]}))
    (origin,) = frontier(here, "raw")["raw"]
    unopened = get(here, read="raw", topic="raw", end="latest")
    assert unopened["payload"][0].as_py() == b"not Arrow at all"
    assert pa.ipc.open_stream(unopened["payload"][1].as_buffer()).read_next_batch().to_pydict() == {"n": [1]}
    assert get(here, topic="raw", start={"raw": {origin: 2}}, end="latest")["n"].to_pylist() == [1]


def test_a_stopped_node_refuses_calls_and_ends_its_tails(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        put(here, path("t"), pa.table({"n": [1]}))
        tail = here.do_get(flight.Ticket(b'{"topic": "t"}'), CALL)
        tail.read_chunk()
        served.run(served.nodes[0].driver.stop())
        with pytest.raises(flight.FlightUnavailableError) as error:
            put(here, path("t"), pa.table({"n": [1]}))
        assert code_of(error) == "stopping"
        served.run(served.stop_door(0))
        with pytest.raises(flight.FlightUnavailableError):
            tail.read_chunk()


def test_a_restarted_node_serves_what_it_had(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as served:
        put(connect(served, 0), path("t"), pa.table({"n": [1, 2]}))
    with serving(tmp_path, 1) as served:
        assert get(connect(served, 0), topic="t", end="latest")["n"].to_pylist() == [1, 2]


def test_a_client_that_is_silent_does_not_keep_a_door_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("m4cast.overlay.door.flight.STOP_S", 0.1)
    with serving(tmp_path, 1) as served:
        batch = pa.record_batch({"n": [1]})
        writer, acks = connect(served, 0).do_put(path("t"), batch.schema, CALL)
        writer.write_batch(batch)
        acks.read()
        served.run(served.stop())
    writer.write_batch(batch)
    with pytest.raises(flight.FlightUnavailableError) as error:
        writer.close()
    assert code_of(error) == "stopping"
