"""Delivery records and the roster at real doors: what an audit reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.store.retention import Retention
from tests.overlay.door.plain import act, code_of, connect, frontier, get, path, put
from tests.overlay.door.served import Served, serving


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("deliveries"), 2) as served:
        yield served


def node_id(served: Served, at: int) -> str:
    return served.nodes[at].driver.node.me.node_id.hex()


def of_topic(client: Any, topic: str) -> list[dict[str, Any]]:
    records = get(client, read="deliveries", start="earliest", end="latest").to_pylist()
    return [record for record in records if record["topic"] == topic]


def test_each_batch_has_a_record_at_each_node(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    put(here, path("audited"), pa.table({"n": [1, 2]}))
    put(here, path("audited"), pa.table({"n": [3]}))
    get(there, topic="audited", start={}, end=frontier(here, "audited"))
    published, received = of_topic(here, "audited"), of_topic(there, "audited")
    spans = [(1, 2, 2), (3, 3, 1)]
    for records in (published, received):
        assert [(r["first_sequence"], r["last_sequence"], r["row_count"]) for r in records] == spans
        assert {r["origin"] for r in records} == {node_id(pair, 0)}
        assert {(r["kind"], r["reason"]) for r in records} == {("batch", None)}
    assert {(r["node_id"], r["node"], r["incarnation"]) for r in received} == {(node_id(pair, 1), "n1", 1)}
    assert {(r["how"], r["hops"], r["from_node"]) for r in published} == {("published", 0, None)}
    assert {r["from_node"] for r in received} == {node_id(pair, 0)}
    assert all(r["how"] in ("pushed", "pulled") and r["hops"] >= 1 for r in received)
    same = ("published_at", "origin_batch", "payload_bytes", "checksum")
    assert [[r[name] for name in same] for r in published] == [[r[name] for name in same] for r in received]
    assert len({r["checksum"] for r in received}) == 2
    assert all(r["published_at"] and r["delivered_at"] and r["payload_bytes"] > 0 for r in received)


def test_records_are_numbered_without_gaps_and_a_range_is_equal_each_time(pair: Served) -> None:
    here = connect(pair, 0)
    for n in range(5):
        put(here, path("numbered"), pa.table({"n": [n]}))
    said = act(here, "delivery-range")
    low, until = said["low"], said["next"]
    everything = get(here, read="deliveries", start=low, end=until)
    assert everything["delivery"].to_pylist() == list(range(low, until))
    put(here, path("numbered"), pa.table({"n": [5]}))
    assert get(here, read="deliveries", start=low, end=until).equals(everything)
    assert get(here, read="deliveries", start=until - 2, end=until).equals(everything.slice(until - 2 - low))
    assert get(here, read="deliveries", start="latest", end="latest").num_rows == 0


def test_a_tail_of_deliveries_follows(pair: Served) -> None:
    here = connect(pair, 0)
    until = act(here, "delivery-range")["next"]
    tail = here.do_get(flight.Ticket(b'{"read": "deliveries", "start": %d}' % until))
    for n in range(3):
        put(here, path("tailed"), pa.table({"n": [n]}))
        chunk = tail.read_chunk()
        assert chunk.data["delivery"].to_pylist() == [until + n]
        assert chunk.app_metadata.to_pybytes() == b'{"next": %d}' % (until + n + 1)
    tail.cancel()
    quiet = get(here, read="deliveries", start=until, idle_ms=50)
    assert quiet.num_rows == 3


def test_records_that_have_not_come_or_are_gone_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        for n in range(3):
            put(here, path("t"), pa.table({"n": [n]}))
        with pytest.raises(
            flight.FlightUnavailableError, match="below 9 were requested, but this node has those below 4"
        ) as error:
            get(here, read="deliveries", start=1, end=9, timeout_ms=20)
        assert code_of(error) == "behind"
        served.nodes[0].store.retention = Retention(deliveries_max=2)
        served.nodes[0].store.trim(served.nodes[0].driver.clock.now_ms()).result(30)
        node_id = act(here, "status")["node_id"]
        assert act(here, "delivery-range") == {"node_id": node_id, "low": 2, "next": 4}
        for end in (2, 4):
            with pytest.raises(flight.FlightUnavailableError, match="start at 2") as error:
                get(here, read="deliveries", start=1, end=end)
            assert code_of(error) == "missing"
        assert get(here, read="deliveries", start=1, end=4, on_missing="skip")["delivery"].to_pylist() == [2, 3]
        assert get(here, read="deliveries", start=1, end=2, on_missing="skip").num_rows == 0
        assert get(here, read="deliveries", end=4)["delivery"].to_pylist() == [2, 3]


def test_a_skip_is_a_delivery_with_its_reason(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as served:
        here = connect(served, 0)
        for n in range(3):
            put(here, path("t"), pa.table({"n": [n, n]}))
        act(here, "topic-delete", topic="t")
        put(here, path("t"), pa.table({"n": [9]}))
        served.run(served.join(tmp_path))
        there = connect(served, 1)
        assert get(there, topic="t", start={}, end=frontier(here, "t"), on_missing="skip")["n"].to_pylist() == [9]
        skip, batch = of_topic(there, "t")
        assert (skip["delivery"], batch["delivery"]) == (1, 2)
        assert (skip["kind"], skip["reason"]) == ("skip", "expired")
        assert (skip["first_sequence"], skip["last_sequence"], skip["row_count"]) == (1, 6, 6)
        assert skip["delivered_at"] is not None
        unknown = ("published_at", "hops", "from_node", "how", "origin_batch", "payload_bytes", "checksum")
        assert [skip[name] for name in unknown] == [None] * len(unknown)
        assert (batch["kind"], batch["first_sequence"], batch["last_sequence"]) == ("batch", 7, 7)


def test_the_roster_has_every_node_and_its_incarnations(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served:
        here = connect(served, 0)
        own, other = (node_id(served, at) for at in (0, 1))
        by_id = {row["node_id"]: row for row in get(here, read="roster").to_pylist()}
        assert set(by_id) == {own, other}
        assert (by_id[own]["name"], by_id[other]["name"]) == ("n0", "n1")
        assert by_id[other]["address"] == served.nodes[1].address
        assert by_id[own]["neighbours"] == [other]
        assert by_id[own]["last_heard_at"] is None
        assert by_id[other]["last_heard_at"] >= by_id[other]["from_at"]
        assert {(row["incarnation"], row["to_at"], row["reason"], row["silent"]) for row in by_id.values()} == {
            (1, None, None, False)
        }
        served.run(served.stop_door(1))
        served.doors.pop()
        served.run(served.nodes.pop().stop())
        served.run(served.join(tmp_path))
        served.run(served.nodes[0].until(lambda: len(served.nodes[0].store.roster_spans()) == 3))
        first, second = (row for row in get(here, read="roster").to_pylist() if row["node_id"] == other)
        assert (first["incarnation"], first["reason"]) == (1, "restarted")
        assert first["from_at"] < first["to_at"] == second["from_at"]
        assert (second["incarnation"], second["to_at"], second["reason"]) == (2, None, None)


@pytest.mark.parametrize(
    "ticket",
    [
        {"read": "everything"},
        {"read": "deliveries", "topic": "t"},
        {"read": "deliveries", "start": 0},
        {"read": "deliveries", "start": "first"},
        {"read": "deliveries", "end": "earliest"},
        {"read": "deliveries", "on_missing": "x"},
        {"read": "roster", "start": 1},
    ],
)
def test_a_ticket_that_makes_no_sense_is_refused(pair: Served, ticket: dict[str, Any]) -> None:
    with pytest.raises(flight.FlightServerError) as error:
        get(connect(pair, 0), **ticket)
    assert code_of(error) == "bad-request"
