"""Devices and groups: several positions of one client, and one position for several processes; at real doors."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from m4cast.overlay.client import Channel, Client, GroupMember
from m4cast.overlay.errors import LocalProtocolError, RefusedError
from tests.overlay.client.roaming.test_client import SECRET, created, got, publish, until_gone, until_known
from tests.overlay.client.roaming.waiting import until
from tests.overlay.door.served import Served, serving, told_doors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("groups"), 3, settings=told_doors(3)) as served:
        yield served


def member(served: Served, key: str, name: str, at: int = 0, **settings: Any) -> GroupMember:
    nodes = served.addresses[at:] + served.addresses[:at]
    made = GroupMember(nodes, key=key, credential=SECRET, member=name, timeout_s=20, **settings)
    made.connect(create=True)
    return made


class Worker:
    """A member that takes rows on a thread of its own, until it is told to stop."""

    def __init__(self, member: GroupMember) -> None:
        self.member = member
        self.rows: list[tuple[str, int]] = []
        self.came = threading.Condition()
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stops.is_set():
            for rows in self.member.notifications(idle_s=0.2):
                taken = zip(rows.column("_origin").to_pylist(), rows.column("n").to_pylist(), strict=True)
                with self.came:
                    self.rows += taken
                    self.came.notify_all()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join()
        self.member.disconnect()

    def wait(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.rows) >= count, 20)


def until_taken(workers: tuple[Worker, ...], count: int) -> None:
    until(lambda: sum(len(each.rows) for each in workers) >= count, True)


def publish_everywhere(served: Served, topic: str, first: int, count: int) -> None:
    for address in served.addresses:
        Channel([address]).publish(topic, [{"n": n} for n in range(first, first + count)], acks=2)


def test_members_share_the_streams_and_each_row_is_taken_once(served: Served) -> None:
    first = member(served, "packers", "one")
    first.subscribe("packing", start="earliest")
    one = Worker(first)
    publish_everywhere(served, "packing", 0, 5)
    one.wait(15)
    two, three = Worker(member(served, "packers", "two", at=1)), Worker(member(served, "packers", "three", at=2))
    assert {each.member.node for each in (one, two, three)} == {served.addresses[0]}  # where the group is
    publish_everywhere(served, "packing", 5, 5)
    everybody = (one, two, three)
    until_taken(everybody, 30)
    one.stop()
    publish_everywhere(served, "packing", 10, 5)
    until_taken(everybody, 45)
    two.stop()
    three.stop()
    rows = [row for each in everybody for row in each.rows]
    origins = {origin for origin, _ in rows}
    assert len(origins) == 3
    assert sorted(rows) == sorted((origin, n) for origin in origins for n in range(15))
    for each in everybody:
        for origin in origins:
            taken = [n for found, n in each.rows if found == origin]
            assert taken == sorted(taken)
    back = member(served, "packers", "four")
    assert got(back) == []
    back.disconnect()


def test_what_a_silent_member_did_not_acknowledge_is_given_to_another(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = member(served, "movers", "one", acknowledge="manual")
    one.subscribe("silence", start="earliest")
    publish(served, "silence", 0, 3)
    notifications = one.notifications(idle_s=5)
    assert next(notifications).column("n").to_pylist() == [0, 1, 2]
    notifications.close()
    clients = served.doors[0].services.clients
    served_at = clients._groups._clock_ms
    monkeypatch.setattr(clients._groups, "_clock_ms", lambda: served_at() + 60_000)
    two = member(served, "movers", "two")
    clients._groups.expire()
    two.save()
    assert got(two) == [0, 1, 2]
    one.acknowledge()
    one.save()  # it comes back, and what it acknowledged late changes nothing
    publish(served, "silence", 3, 2)
    assert got(one) + got(two) + got(one) == [3, 4]  # whoever has the stream now, when the other has seen that
    one.disconnect()
    two.disconnect()


def test_a_group_meets_elsewhere_when_its_access_point_dies(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("dying-group"), 3, settings=told_doors(3)) as served:
        one, two = member(served, "crew", "one"), member(served, "crew", "two")
        one.subscribe("crew", start="earliest")
        publish(served, "crew", 0, 5)
        assert sorted(got(one) + got(two)) == [0, 1, 2, 3, 4]
        for each in (one, two):
            each.save()  # and learns what the other has acknowledged
        served.run(served.stop_door(0))
        Channel([served.addresses[1]]).publish("crew", [{"n": n} for n in range(5, 8)], acks=1)
        found = got(one)
        found += got(two)
        found += got(one)
        assert sorted(found) == [5, 6, 7]
        assert one.node == two.node
        assert one.node != served.addresses[0]


def test_a_members_credential_may_be_a_reference(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREW_SECRET", SECRET)
    one = GroupMember(served.addresses, key="referred", credential="env:CREW_SECRET", member="one")
    one.connect(create=True)
    two = member(served, "referred", "two")
    one.disconnect()
    two.disconnect()


def test_limits_of_a_group(served: Served) -> None:
    one = member(served, "limits", "one")
    one.subscribe("limits", "n > 1")
    with pytest.raises(LocalProtocolError, match="begins at latest"):
        one.subscribe("limits", name="more", start="earliest")
    with pytest.raises(LocalProtocolError, match="has no _mail"):
        next(one.inbox(idle_s=1))
    with pytest.raises(LocalProtocolError, match="must be printable text"):
        GroupMember(served.addresses, key="limits", credential=SECRET, member="")
    alone = Client(served.addresses, key="limits", credential=SECRET)
    with pytest.raises(RefusedError, match="connect as one of them"):
        alone.connect()
    one.disconnect()
    alone.connect()
    with pytest.raises(LocalProtocolError, match="not connected"):
        one.save()
    alone.disconnect()


def test_devices_of_a_client_have_positions_of_their_own(served: Served) -> None:
    client = created(served, "owner-of-devices")
    client.subscribe("devices", "n < 100")
    publish(served, "devices", 0, 3)
    assert got(client) == [0, 1, 2]
    phone = client.device("phone")
    assert phone.profiles == client.profiles
    publish(served, "devices", 3, 2)
    assert got(phone) == [3, 4]
    phone.move(served.addresses[1])
    until_gone(served, 0, phone.key)
    assert got(client) == [3, 4]
    publish(served, "devices", 5, 1)
    assert got(client) == [5]
    phone.disconnect()
    again = client.device("phone")
    assert got(again) == [5]
    thief = Client(served.addresses, key=f"{client.key}/tablet", credential="another secret of 16")
    with pytest.raises(RefusedError) as refused:
        thief.connect(create=True)
    assert refused.value.code == "bad-credential"
    other = created(served, "writer-to-devices", at=2)
    until_known(served, other.key)
    other.send(client.key, "to both")
    for each in (client, again):
        assert [message.text for message in each.inbox(idle_s=2)] == ["to both"]
