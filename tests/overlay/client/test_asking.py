"""Tables and queries by a client, at real nodes."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.client.asking.query import AnsweredRange, planned
from m4cast.overlay.client.asking.questions import Questions
from m4cast.overlay.door.admin.compaction import Compaction
from m4cast.overlay.door.publish.coalescing import Coalescer
from m4cast.overlay.errors import LocalProtocolError, RefusedError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.wire.batch import TABLE_EXTENSION
from tests.overlay.client.roaming.waiting import until, until_ready
from tests.overlay.door.served import Served, serving, told_doors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("asking"), 3, settings=told_doors(3)) as nodes:
        for door in nodes.doors:
            door.services.topics.compaction.close(10)  # tests compact when they mean to
        yield nodes


@pytest.fixture
def channel(served: Served) -> Channel:
    return Channel(served.addresses[:1])


def standing(channel: Channel, topic: str, where: str | None = None, **more: Any) -> dict[tuple[str, str], Any]:
    rows = channel.table(topic, where, **more).to_pylist()
    return {(row["_owner"], row["_name"]): row["price"] for row in rows}


def level(channel: Channel, topic: str, served: Served) -> Channel:
    """The last node, once it has everything of the topic."""
    last = Channel(served.addresses[-1:])
    last.read(topic, {}, channel.frontier(topic))
    return last


# ---- tables


def test_a_row_stands_until_it_is_replaced_or_removed(channel: Channel, served: Served) -> None:
    writer = channel.table_writer("offers", "ann")
    writer.put({"lamp": {"price": 20}, "chair": {"price": 75}})
    writer.put({"lamp": {"price": 25}})
    channel.table_writer("offers", "bob").put({"lamp": {"price": 1}})
    assert standing(channel, "offers") == {("ann", "lamp"): 25, ("ann", "chair"): 75, ("bob", "lamp"): 1}
    writer.remove(["chair", "never there"])
    assert standing(channel, "offers") == {("ann", "lamp"): 25, ("bob", "lamp"): 1}
    assert standing(level(channel, "offers", served), "offers") == standing(channel, "offers")


def test_the_version_decides_and_not_the_order_or_the_node(channel: Channel, served: Served) -> None:
    there = Channel(served.addresses[1:2])
    channel.table_writer("moved", "ann", session=2).put({"a": {"price": 2}})
    there.table_writer("moved", "ann", session=1).put({"a": {"price": 1}, "b": {"price": 1}})
    channel.read("moved", {}, there.frontier("moved"))
    assert standing(channel, "moved") == {("ann", "a"): 2, ("ann", "b"): 1}
    assert channel.table_writer("moved", "ann").session == 3


def test_a_removal_prevails_over_an_older_row_that_comes_later(channel: Channel, served: Served) -> None:
    there = Channel(served.addresses[1:2])
    channel.table_writer("late", "ann", session=2).remove(["a"])
    there.table_writer("late", "ann", session=1).put({"a": {"price": 1}})
    channel.read("late", {}, there.frontier("late"))
    assert channel.table("late").num_rows == 0
    assert channel.table("late", removed=True)["_removed"].to_pylist() == [True]


def test_a_filter_chooses_among_rows_that_stand(channel: Channel) -> None:
    writer = channel.table_writer("filtered", "ann")
    writer.put({"a": {"price": 10}, "b": {"price": 10}})
    writer.put({"a": {"price": 90}})
    assert standing(channel, "filtered", "price < 50") == {("ann", "b"): 10}
    assert standing(channel, "filtered", "_name = 'a'") == {("ann", "a"): 90}


def test_a_feed_gives_what_stands_then_each_version_once(channel: Channel) -> None:
    writer = channel.table_writer("fed", "ann")
    writer.put({"a": {"price": 1}, "b": {"price": 1}})
    writer.put({"a": {"price": 2}})
    writer.remove(["b"])
    feed = channel.follow_table("fed", idle_s=20)
    first = next(feed)
    assert first.is_reset and first.rows.select(["_name", "price"]).to_pylist() == [{"_name": "a", "price": 2}]
    old = channel.table_writer("fed", "ann", session=0)
    old.put({"a": {"price": 0}, "b": {"price": 0}})  # both are older than what was there
    writer.put({"b": {"price": 3}})
    change = next(feed)
    assert not change.is_reset
    assert change.rows.select(["_name", "price"]).to_pylist() == [{"_name": "b", "price": 3}]
    writer.remove(["b"])
    assert next(feed).rows["_removed"].to_pylist() == [True]
    feed.close()


def test_a_topic_is_a_table_or_not(channel: Channel) -> None:
    channel.publish("log", [{"price": 1}])
    with pytest.raises(RefusedError, match="'log' is no table"):
        channel.table("log")
    with pytest.raises(RefusedError, match="not those of a table"):
        channel.table_writer("log", "ann", session=1).put({"a": {"price": 1}})
    channel.table_writer("pure", "ann").put({"a": {"price": 1}})
    with pytest.raises(RefusedError, match="'pure' is a table"):
        channel.publish("pure", [{"price": 1}])


VERSION = {"session": 1, "counter": 1}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"_name": "a", "_version": VERSION}, "lack _owner"),
        ({"_removed": True, "x": 1}, "lack _owner, _name, _version"),
        ({"_owner": "o", "_name": "a", "_version": 7}, "_version"),
        ({"_owner": "o", "_name": "a", "_version": {"session": -1, "counter": 1}}, "negative"),
        ({"_owner": "o", "_name": "a", "_version": {"session": 1, "counter": None}}, "negative"),
        ({"_owner": "o", "_name": "a", "_version": {"session": 1}}, "session or counter"),
        ({"_owner": None, "_name": "a", "_version": VERSION}, "null in a row"),
        ({"_owner": "o", "_name": "n" * 1_025, "_version": VERSION}, "1025 bytes"),
    ],
)
@pytest.mark.parametrize("key", [None, "k"])
def test_rows_that_cannot_stand_are_refused(channel: Channel, row: dict[str, Any], said: str, key: str | None) -> None:
    with pytest.raises(RefusedError, match=said):
        channel.publish("bad", [row], key=key, next=None if key is None else 1)
    assert "bad" not in channel.topics()


def test_rows_that_cannot_stand_never_meet_the_rows_of_others(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small publishes are put together: one bad row would take the others with it."""
    met: list[object] = []
    monkeypatch.setattr(Coalescer, "add", lambda *args: met.append(args))
    with pytest.raises(RefusedError, match="null in a row"):
        channel.publish("apart", [{"_owner": None, "_name": "a", "_version": VERSION}])
    assert met == []


def test_every_batch_of_a_table_is_marked(channel: Channel, served: Served) -> None:
    rows = [{"_owner": "o", "_name": "a", "_version": VERSION}]
    channel.publish("marked", rows)
    channel.publish("marked", rows, key="marked", next=1)
    channel.commit(channel.stage("marked", rows))
    channel.publish("unmarked", [{"n": 1}])
    origin = served.nodes[0].driver.node.me.node_id
    for topic, types in (("marked", [[TABLE_EXTENSION]] * 3), ("unmarked", [[]])):
        kept = served.nodes[0].store.read_range(StreamId(origin, topic), 1, 10, 1 << 20)
        assert [[each.type for each in batch.extensions] for batch in kept] == types


def test_a_name_may_have_the_greatest_length(channel: Channel) -> None:
    channel.table_writer("long", "o" * 1_024).put({"n" * 1_024: {"price": 1}})
    assert channel.table("long").num_rows == 1


def test_what_a_writer_adds_cannot_be_given(channel: Channel) -> None:
    writer = channel.table_writer("given", "ann")
    with pytest.raises(LocalProtocolError, match="_owner, which the writer adds"):
        writer.put({"a": {"_owner": "bob"}})
    with pytest.raises(LocalProtocolError, match="list of names"):
        writer.remove("a")


def test_a_compaction_removes_what_does_not_stand(channel: Channel) -> None:
    writer = channel.table_writer("compacted", "ann")
    for price in range(5):
        writer.put({"a": {"price": price}})
    writer.put({"b": {"price": 7}})
    before = standing(channel, "compacted")
    origin = next(iter(channel.extents("compacted")["compacted"]))
    assert channel.compact_table("compacted") == {
        "topic": "compacted",
        "batches": 4,
        "streams": {origin: [5, 7]},
    }
    assert standing(channel, "compacted") == before == {("ann", "a"): 4, ("ann", "b"): 7}
    assert channel.compact_table("compacted")["batches"] == 0


def test_a_feed_begins_anew_when_rows_before_it_are_gone(channel: Channel) -> None:
    writer = channel.table_writer("anew", "ann")
    writer.put({"a": {"price": 1}, "b": {"price": 1}})
    feed = channel.at(channel.nodes[0], timeout_s=0.5).follow_table("anew", idle_s=20)
    next(feed)
    assert feed._tail is not None
    writer.put({"a": {"price": 2}})
    writer.put({"a": {"price": 3}, "b": {"price": 3}})
    assert channel.compact_table("anew")["batches"] == 2
    change = next(feed)
    assert change.is_reset
    assert sorted(change.rows["price"].to_pylist()) == [3, 3]
    feed.close()


def test_a_feed_of_a_compacted_table_begins_while_it_changes(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows between its position and what stands are in both, and given once."""
    writer = channel.table_writer("busy", "ann")
    for price in range(3):
        writer.put({"a": {"price": price}, "b": {"price": price}})
    assert channel.compact_table("busy")["batches"] == 2
    read = Questions._read_table

    def busy(*given: Any) -> pa.Table:
        monkeypatch.undo()
        writer.put({"a": {"price": 7}})
        return read(*given)

    feed = channel.follow_table("busy", idle_s=20)
    monkeypatch.setattr(Questions, "_read_table", busy)
    assert sorted(next(feed).rows["price"].to_pylist()) == [2, 7]
    writer.put({"b": {"price": 8}})
    assert next(feed).rows["price"].to_pylist() == [8]
    feed.close()


def test_tables_are_compacted_without_being_asked(channel: Channel, served: Served) -> None:
    writer = channel.table_writer("by-itself", "ann")
    for price in range(5):
        writer.put({"a": {"price": price}})
    channel.publish("no-table", [{"n": 1}])
    compaction = Compaction(served.doors[0].services.topics, every_s=3_600)
    assert compaction.compact_all() >= 4
    assert standing(channel, "by-itself") == {("ann", "a"): 4}
    assert channel.read("no-table")["n"].to_pylist() == [1]
    assert compaction.compact_all() == 0, "nothing has changed"
    writer.put({"a": {"price": 5}})
    rested: list[float] = []
    assert compaction.compact_all(rested.append) == 1
    assert len(rested) == 1, "the others are not looked at"
    compaction.close(10)


def test_only_a_table_is_compacted(channel: Channel) -> None:
    channel.publish("rows", [{"n": 1}])
    with pytest.raises(RefusedError, match="'rows' is no table"):
        channel.compact_table("rows")


# ---- queries


@pytest.fixture
def orders(served: Served) -> str:
    """Rows of two origins, which all nodes have."""
    if "orders" not in Channel(served.addresses[:1]).topics():
        for node in served.addresses[:2]:
            Channel([node]).publish("orders", [{"n": n, "kind": "ab"[n % 2]} for n in range(100)])
    frontier: dict[str, dict[str, int]] = {"orders": {}}
    for node in served.addresses[:2]:
        frontier["orders"] |= Channel([node]).frontier("orders")["orders"]
    for node in served.addresses:
        Channel([node]).read("orders", {}, frontier)
    return "orders"


def numbers(query: Any) -> list[int]:
    return sorted(n for batch in query for n in batch["n"].to_pylist())


@pytest.mark.parametrize("scope", ["node", "channel"])
def test_a_query_has_each_matching_row_once_and_names_its_ranges(
    channel: Channel, served: Served, orders: str, scope: Any
) -> None:
    query = channel.query(orders, "kind = 'a' AND n < 50", scope=scope)
    assert numbers(query) == sorted(2 * list(range(0, 50, 2)))
    assert {(each.first, each.next) for each in query.ranges} == {(1, 101)}
    assert {each.origin for each in query.ranges} == {node.driver.node.me.node_id.hex() for node in served.nodes[:2]}
    assert query.unanswered == {}
    if scope == "channel":
        assert all(each.origin[:8] in each.node for each in query.ranges), "each stream is asked of its origin"


def test_a_query_without_a_filter_has_all_rows(channel: Channel, orders: str) -> None:
    assert len(numbers(channel.query(orders, scope="channel"))) == 200


@pytest.mark.parametrize("scope", ["node", "channel"])
def test_a_query_of_a_table_chooses_among_rows_that_stand(channel: Channel, served: Served, scope: Any) -> None:
    """Replaced and removed by rows of the same origin, of another one, and by an older session that comes later."""
    topic = f"asked-{scope}"
    there = Channel(served.addresses[1:2])
    ann = channel.table_writer(topic, "ann", session=1)
    ann.put({name: {"price": 1} for name in ("same", "gone", "elsewhere", "gone elsewhere", "kept")})
    ann.put({"same": {"price": 10}})
    ann.remove(["gone"])
    moved = there.table_writer(topic, "ann", session=2)
    moved.put({"elsewhere": {"price": 10}, "late": {"price": 10}})
    moved.remove(["gone elsewhere"])
    ann.put({"late": {"price": 1}})
    there.read(topic, {}, channel.frontier(topic))
    channel.read(topic, {}, there.frontier(topic))
    cheap = channel.query(topic, "price < 5", scope=scope)
    assert [name for rows in cheap for name in rows["_name"].to_pylist()] == ["kept"]
    assert sorted((each.first, each.next) for each in cheap.ranges) == [(1, 4), (1, 9)]
    every = channel.query(topic, scope=scope)
    assert {row["_name"]: row["price"] for rows in every for row in rows.to_pylist()} == {
        "same": 10,
        "elsewhere": 10,
        "late": 10,
        "kept": 1,
    }


def test_a_query_of_a_table_that_is_compacted_meanwhile_ends_with_an_error(channel: Channel) -> None:
    """A row that stood when the query was planned may be gone, and the one that replaced it is not in the ranges."""
    writer = channel.table_writer("compacted-meanwhile", "ann")
    writer.put({"a": {"price": 1}})
    writer.put({"b": {"price": 1}})
    query = channel.at(channel.nodes[0], timeout_s=0.5).query("compacted-meanwhile", "price < 5")
    writer.put({"a": {"price": 2}})
    assert channel.compact_table("compacted-meanwhile")["batches"] == 1
    with pytest.raises(RefusedError, match="was compacted"):
        list(query)


@pytest.mark.parametrize("scope", ["node", "channel"])
def test_an_unknown_topic_is_named(channel: Channel, scope: Any) -> None:
    with pytest.raises(RefusedError, match="'nothing'"):
        channel.query("nothing", scope=scope)


def test_an_unknown_scope_is_refused(channel: Channel, orders: str) -> None:
    with pytest.raises(LocalProtocolError, match="'world': must be node or channel"):
        channel.query(orders, scope="world")  # type: ignore[arg-type]


@pytest.mark.parametrize(("scope", "wanting"), [("node", [["kind = 'a'"], [], []]), ("channel", [[], [], []])])
def test_a_query_of_a_selective_topic_wants_no_rows_that_it_does_not_ask_for(
    served: Served, scope: Any, wanting: list[list[str]]
) -> None:
    """With the whole channel as scope, origins answer for their own streams, and nobody begins to want anything."""
    topic = f"chosen-{scope}"
    asked = Channel(served.addresses[:1])
    asked.create_topic(topic, keepers=0, route_by=["kind"])
    until(lambda: all(topic in node.driver.node.selection.descriptors for node in served.nodes), True)
    for at in (1, 2):
        origin = Channel(served.addresses[at : at + 1])
        for n in range(6):
            until_ready(partial(origin.publish, topic, [{"n": n, "kind": "ab"[n % 2]}], acks=0))
    origins = {node.driver.node.me.node_id.hex() for node in served.nodes[1:]}
    if scope == "node":  # an origin that is slow to report what it has is not known at first

        def origins_known() -> set[str]:
            with suppress(RefusedError):
                return {each.origin for each in asked.query(topic, "kind = 'a'").ranges}
            return set()

        until(origins_known, origins)
    query = asked.query(topic, "kind = 'a'", scope=scope)
    assert numbers(query) == [0, 0, 2, 2, 4, 4]
    assert {each.origin for each in query.ranges} == origins
    own = [Channel([address]).subscriptions(topic)["own"] for address in served.addresses]
    assert [sorted({each["where"] for each in registrations}) for registrations in own] == wanting


def test_a_query_that_is_closed_ends(channel: Channel, orders: str) -> None:
    query = channel.query(orders, scope="channel")
    assert next(query).num_rows
    query.close()
    assert list(query) == []


def test_each_stream_is_given_to_one_node() -> None:
    known = {
        "a": {"1": [1, 50], "2": [1, 100], "3": [10, 20]},
        "b": {"1": [1, 60], "2": [40, 100], "3": [5, 20]},
        "c": {"3": [5, 20]},
    }
    assert planned(known, {"1": "a", "2": "gone"}) == [
        AnsweredRange("1", "a", 1, 50),
        AnsweredRange("2", "a", 1, 100),
        AnsweredRange("3", "b", 5, 20),
    ]


def test_a_dead_node_is_named_and_its_stream_asked_of_another(tmp_path: Path) -> None:
    with serving(tmp_path, 3, settings=told_doors(3)) as nodes:
        first, second = (Channel([node]) for node in nodes.addresses[:2])
        second.publish("t", [{"n": n} for n in range(10)])
        first.publish("t", [{"n": n} for n in range(10, 20)])
        frontier = {"t": first.frontier("t")["t"] | second.frontier("t")["t"]}
        for node in nodes.addresses:
            Channel([node], timeout_s=10).read("t", {}, frontier)
        dead = nodes.nodes[1].driver.node.me.node_id.hex()
        nodes.run(nodes.stop_door(1))
        query = Channel(nodes.addresses[:1], timeout_s=10).query("t", "n >= 0", scope="channel")
        assert [name for name in query.unanswered if dead[:8] in name] == list(query.unanswered) != []
        assert numbers(query) == list(range(20))
        assert {each.origin for each in query.ranges} == set(frontier["t"])
