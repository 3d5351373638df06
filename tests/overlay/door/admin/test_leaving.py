"""Nodes that are told to go: what they wait for, and what they do when it does not come."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow import flight

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError
from m4cast.overlay.protocol.publishing.publishing import Publishing
from tests.overlay.door.served import Served, serving

TOKENS = """
[[token]]
name = "operator"
secret = "the operator's secret"
admin = true

[[token]]
name = "writer"
secret = "the writer's secret"
publish = ["*"]
read = ["*"]
"""


def wait_until_left(served: Served, at: int) -> None:
    served.run(served.nodes[at].until(served.nodes[at].driver.stopped.is_set))


def test_a_drained_node_leaves_when_all_neighbours_have_its_rows(tmp_path: Path) -> None:
    with serving(tmp_path, 3) as served:
        leaver = Channel([served.addresses[2]])
        leaver.publish("orders", [{"id": number} for number in range(100)])
        assert leaver.drain() == 2
        wait_until_left(served, 2)
        for address in served.addresses[:2]:
            assert Channel([address]).read("orders").num_rows == 100
            assert {entry["name"] for entry in Channel([address]).status()["roster"]} == {"n0", "n1"}


def test_a_drain_reports_the_delivery_records_that_are_lost(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served:
        Channel([served.addresses[0]]).publish("orders", [{"id": 1}], acks=1)
        there = Channel([served.addresses[1]]).delivery_range()
        client = flight.connect(f"grpc://{served.addresses[1]}")
        (answer,) = client.do_action(flight.Action("drain", b"{}"))
        assert json.loads(answer.body.to_pybytes()) == {"copies": None, "delivery_records": there.next - there.low}
        assert there.next > there.low


def test_a_node_without_rows_of_its_own_has_nothing_to_wait_for(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served:
        Channel([served.addresses[0]]).publish("orders", [{"id": 1}], acks=1)
        assert Channel([served.addresses[1]]).drain() is None
        wait_until_left(served, 1)


@pytest.fixture
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No neighbour ever has all rows on disk."""
    monkeypatch.setattr(Publishing, "copies", lambda _: 0)


@pytest.mark.usefixtures("no_copies")
def test_a_node_that_cannot_be_drained_stays_and_takes_publishes_again(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served:
        node = Channel([served.addresses[1]], timeout_s=0.3)
        node.publish("orders", [{"id": 1}])
        with pytest.raises(RefusedError, match="0 of 1 other nodes have all rows; the node stays") as refused:
            node.drain(copies=1)
        assert refused.value.code == "not-drained"
        assert node.publish("orders", [{"id": 2}], acks=1)[0].first == 2
        assert not served.nodes[1].driver.stopping


def test_more_copies_than_neighbours_are_refused_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served:
        node = Channel([served.addresses[1]])
        node.publish("orders", [{"id": 1}])
        with pytest.raises(
            RefusedError, match="copies is 2, but this node has 1 neighbour: ask for 1 at most"
        ) as refused:
            node.drain(copies=2)
        assert refused.value.code == "too-few-nodes"
        assert node.publish("orders", [{"id": 2}], acks=1)[0].first == 2, "it never stopped to take them"
        assert node.drain(copies=1) == 1


def test_the_last_node_of_a_channel_is_not_drained(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as served:
        node = Channel(served.addresses)
        node.publish("orders", [{"id": 1}])
        with pytest.raises(RefusedError, match="no other node is linked") as refused:
            node.drain()
        assert refused.value.code == "alone"
        assert node.publish("orders", [{"id": 2}])[0].first == 2


def test_a_node_whose_neighbours_are_gone_is_not_drained_though_they_had_its_rows(tmp_path: Path) -> None:
    with serving(tmp_path, 3) as served:
        node = Channel([served.addresses[0]])
        node.publish("orders", [{"id": 1}], acks=2)
        driver = served.nodes[0].driver
        for other in served.nodes[1:]:
            served.run(other.driver.stop())
        served.run(served.nodes[0].until(lambda: not driver.node.membership.table.neighbours))
        with pytest.raises(RefusedError, match="no other node is linked") as refused:
            node.drain()
        assert refused.value.code == "alone"
        assert not driver.stopping


@pytest.mark.parametrize("copies", [0, 65, "all"])
def test_copies_that_make_no_sense_are_refused(tmp_path: Path, copies: int) -> None:
    with serving(tmp_path, 1) as served, pytest.raises(RefusedError, match="copies"):
        Channel(served.addresses).drain(copies)


def test_only_the_first_node_is_asked_to_leave(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served:
        channel = Channel(served.addresses)
        channel.shutdown()
        wait_until_left(served, 0)
        served.run(served.stop_door(0))
        assert channel.status()["name"] == "n1"
        assert not served.nodes[1].driver.stopping


def test_the_whole_channel_goes_by_its_name_alone(tmp_path: Path) -> None:
    with serving(tmp_path, 3) as served:
        channel = Channel(served.addresses)
        with pytest.raises(RefusedError, match="on the channel 'm4cast/default', not 'm4cast/other'") as refused:
            channel.shutdown_channel("m4cast/other")
        assert refused.value.code == "bad-request"
        assert not any(node.driver.node.departure.of_channel for node in served.nodes)
        channel.shutdown_channel("m4cast/default")
        for at in range(3):
            wait_until_left(served, at)


def test_the_channel_is_shut_down_by_administrators_only(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS)
    with serving(tmp_path, 1, tokens=f"file:{tokens}") as served:
        writer = Channel(served.addresses, token="the writer's secret")
        with pytest.raises(RefusedError, match="admin") as refused:
            writer.shutdown_channel("m4cast/default")
        assert refused.value.code == "forbidden"
        Channel(served.addresses, token="the operator's secret").shutdown_channel("m4cast/default")
        wait_until_left(served, 0)


@pytest.mark.usefixtures("no_copies")
def test_a_drain_ends_with_its_client(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served:
        node = Channel([served.addresses[1]])
        node.publish("orders", [{"id": 1}])
        client = flight.connect(f"grpc://{served.addresses[1]}")
        body = json.dumps({"copies": 1, "timeout_ms": 600_000}).encode()
        with client, pytest.raises(flight.FlightTimedOutError):
            list(client.do_action(flight.Action("drain", body), flight.FlightCallOptions(timeout=0.2)))
        served.run(served.nodes[1].until(lambda: served.nodes[1].driver.node.why_no_publishes() is None))
        assert node.publish("orders", [{"id": 2}], acks=1)[0].first == 2


@pytest.mark.usefixtures("no_copies")
def test_one_drain_at_a_time_and_no_publish_meanwhile(tmp_path: Path) -> None:
    with serving(tmp_path, 2) as served, ThreadPoolExecutor(1) as pool:
        node = Channel([served.addresses[1]], timeout_s=3)
        node.publish("orders", [{"id": 1}])
        draining = pool.submit(node.drain, 1)
        driver = served.nodes[1].driver
        served.run(served.nodes[1].until(lambda: driver.node.why_no_publishes() is not None))
        with pytest.raises(RefusedError, match="leaves the channel") as leaving:
            node.publish("orders", [{"id": 2}])
        assert leaving.value.code == "leaving"
        with pytest.raises(RefusedError, match="drained already") as busy:
            node.drain()
        assert busy.value.code == "busy"
        with pytest.raises(RefusedError, match="the node stays"):
            draining.result(30)
