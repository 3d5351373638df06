"""Clients of selective topics: beside broadcast ones, over a migration, and when their access point is lost."""

from collections.abc import Iterator

import pytest

from m4cast.overlay.client import Channel
from tests.overlay.client.roaming.test_client import (
    SECRET,
    client_of,
    created,
    got,
    publish,
    publish_one,
    trim,
    until_gone,
    until_known,
)
from tests.overlay.client.roaming.waiting import until
from tests.overlay.door.selected.test_mixed import begun_too_early
from tests.overlay.door.served import Served, serving, told_doors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("selective"), 3, settings=told_doors(3)) as served:
        yield served


def client_registrations(served: Served, at: int, topic: str) -> list[str]:
    rows = served.nodes[at].driver.node.interest.registrations.rows
    return [each for each, row in rows.items() if each.startswith("_client/") and row.topic == topic]


def test_one_client_has_profiles_on_selective_and_broadcast_topics(served: Served) -> None:
    origin = Channel([served.addresses[0]])
    origin.create_topic("odd-ones", keepers=0, route_by=["kind"])
    client = created(served, "mixed", at=1)
    client.subscribe("odd-ones", "kind = 'odd'", name="odd", start="earliest")
    client.subscribe("plain", "n >= 2", name="plain", start="earliest")
    for n in range(4):
        publish_one(origin, "odd-ones", n)
    publish(served, "plain", 0, 4)
    taken: list[int] = []
    while len(taken) < 4:
        taken += got(client)
    assert sorted(taken) == [1, 2, 3, 3]
    assert got(client) == []
    client.disconnect()


def test_rows_of_a_broadcast_topic_are_read_elsewhere_though_another_profile_is_on_a_selective_one(
    served: Served,
) -> None:
    origin = Channel([served.addresses[0]])
    origin.create_topic("odd-here", keepers=0, route_by=["kind"])
    client = created(served, "both-kinds", at=0)
    client.subscribe("odd-here", "kind = 'odd'", name="odd", start="earliest")
    client.subscribe("trimmed", "n >= 2", name="plain")
    for n in range(4):
        publish_one(origin, "odd-here", n)
    until(lambda: got(client), [1, 3])
    client.disconnect()
    publish(served, "trimmed", 0, 4)
    publish(served, "trimmed", 4, 4)
    for at in (1, 2):  # nothing holds them there
        assert trim(served, at, "trimmed") > 1
    assert trim(served, 0, "trimmed") == 1
    back = client_of(served, "both-kinds", at=1)
    back.connect()
    before = [registrations(served, at) for at in (0, 1, 2)]
    assert got(back) == [2, 3, 4, 5, 6, 7]
    assert back.dropped == []
    assert [registrations(served, at) for at in (0, 2)] == [before[0], before[2]]
    back.disconnect()


def registrations(served: Served, at: int) -> list[str]:
    return sorted(served.nodes[at].driver.node.interest.registrations.rows)


def test_a_row_is_covered_when_the_rows_have_arrived_and_the_former_node_wants_nothing_more(served: Served) -> None:
    origin = Channel([served.addresses[0]])
    origin.create_topic("arriving", keepers=0, route_by=["kind"])
    client = created(served, "arriver", at=1)
    client.subscribe("arriving", "kind = 'odd'", start="earliest")
    for n in range(4):
        publish_one(origin, "arriving", n)
    client.disconnect()
    back = client_of(served, "arriver", at=2)
    back.connect()
    until_known(served, "arriver", session=2)  # covered: what it wants is here
    stored = [stream.topic for stream in served.nodes[2].store.streams()]
    assert "arriving" in stored
    until_gone(served, 1, "arriver")
    assert client_registrations(served, 1, "arriving") == []
    assert got(back) == [1, 3]
    back.disconnect()


def test_a_client_moves_with_its_position_in_a_broadcast_stream_of_a_selective_topic(served: Served) -> None:
    begun_too_early(served, "early", [{"n": n, "kind": "odd"} for n in range(3)])
    client = created(served, "early-bird", at=1)
    client.subscribe("early", "kind = 'odd'", start="earliest")
    until(lambda: got(client), [0, 1, 2])
    client.move(served.addresses[2])
    until_known(served, "early-bird", session=2)  # covered
    until_gone(served, 1, "early-bird")
    Channel(served.addresses[0]).publish("early", [{"n": 3, "kind": "odd"}])
    until(lambda: got(client), [3])
    client.disconnect()


def test_clients_that_want_the_same_share_a_registration_until_the_last_has_gone(served: Served) -> None:
    origin = Channel([served.addresses[0]])
    origin.create_topic("shared", keepers=0, route_by=["kind"])
    conditions = ("kind = 'odd'", "kind = 'even'")
    wanted = [
        {"key": f"sharer-{number}", "credential": SECRET, "topic": "shared", "where": conditions[number % 2]}
        for number in range(6)
    ]
    assert Channel([served.addresses[1]]).subscribe_all(wanted, start="earliest").created == 6
    assert len(client_registrations(served, 1, "shared")) == 2
    for number in range(6):
        until_known(served, f"sharer-{number}")  # covered
    for number in (1, 3):  # two of the three that want even ones go
        client = client_of(served, f"sharer-{number}", at=2)
        client.connect()
        until_gone(served, 1, f"sharer-{number}")
        client.disconnect()
    assert len(client_registrations(served, 1, "shared")) == 2
    for n in range(4):
        publish_one(origin, "shared", n)
    last = client_of(served, "sharer-5", at=1)
    last.connect()
    until(lambda: got(last), [0, 2])
    last.move(served.addresses[2])
    until_gone(served, 1, "sharer-5")
    assert len(client_registrations(served, 1, "shared")) == 1
    last.disconnect()


def test_a_node_that_restarts_keeps_what_its_clients_want_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("claimed")
    with serving(folder, 1) as served:
        Channel(served.addresses).create_topic("claimed", keepers=0, route_by=["kind"])
        for key, kind in (("stays", "odd"), ("goes", "even")):
            created(served, key).subscribe("claimed", f"kind = '{kind}'", start="earliest")
        before = client_registrations(served, 0, "claimed")
        assert len(before) == 2
        served.nodes[0].store.clients.remove("goes").result(20)  # as if it had died while it let the client go
    with serving(folder, 1) as served:
        until(lambda: len(client_registrations(served, 0, "claimed")), 1)
        publish_one(Channel(served.addresses), "claimed", 1)
        back = client_of(served, "stays")
        back.connect()
        until(lambda: got(back), [1])
        assert len(client_registrations(served, 0, "claimed")) == 1
        back.disconnect()


def test_rows_of_absent_clients_outlive_their_access_point_at_keepers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory.mktemp("kept"), 3, settings=told_doors(3)) as served:
        origin = Channel([served.addresses[0]])
        origin.create_topic("kept", keepers=2, route_by=["kind"])
        client = created(served, "absent", at=1)
        client.subscribe("kept", "kind = 'odd'", start="earliest")
        publish_one(origin, "kept", 1)
        until(lambda: got(client), [1])
        client.disconnect()
        for n in (2, 3, 4, 5):
            publish_one(origin, "kept", n)
        reader = f"_clients/{served.nodes[1].driver.node.me.node_id.hex()}"
        stores = [served.nodes[at].store for at in (0, 2)]
        until(lambda: [reader in store.readers() for store in stores], [True, True])
        until(lambda: [until_ for stream, (_, until_) in stores[1].streams().items() if stream.topic == "kept"], [6])
        for at in (0, 2):
            assert trim(served, at, "kept") <= 3  # nothing that the client has not got
        served.run(served.stop_door(1))
        served.run(served.nodes.pop(1).stop())
        back = client_of(served, "absent", at=1)
        back.memory = client.memory
        back.connect(at=served.addresses[-1])
        until(lambda: got(back), [3, 5])
        assert back.dropped == []
        doors = [served.nodes[at].driver.node.roster.own.door for at in (0, 1)]
        until(back.access_points, sorted(doors))  # P9: the one that died is not among them
