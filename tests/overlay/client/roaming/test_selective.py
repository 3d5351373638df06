"""Clients of selective topics: beside broadcast ones, over a migration, and when their access point is lost."""

from collections.abc import Iterator

import pytest

from m4cast.overlay.client import Channel
from tests.overlay.client.roaming.test_client import (
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
from tests.overlay.door.served import Served, serving, told_doors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("selective"), 3, settings=told_doors(3)) as served:
        yield served


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
    registrations = served.nodes[1].driver.node.interest.registrations.rows
    assert not [each for each in registrations if each.startswith("_client/") and each.endswith("/arriver")]
    assert got(back) == [1, 3]
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
