"""Clients at real doors: they leave, miss rows, return anywhere, and get each row once."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.client import Channel, Client
from m4cast.overlay.client.doors import Doors
from m4cast.overlay.door import node_handle
from m4cast.overlay.door.clients import attachments, client_lease
from m4cast.overlay.door.refusals import gone
from m4cast.overlay.errors import LocalProtocolError, RefusedError, UnreachableError
from m4cast.overlay.protocol.clients.packed_state import state_from
from m4cast.overlay.store.store import Keep
from tests.overlay.client.roaming.waiting import until
from tests.overlay.door.served import Served, serving, told_doors

SECRET = "a-secret-of-this-test"
IDLE_S = 0.5


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("clients"), 3, settings=told_doors(3)) as served:
        yield served


def client_of(served: Served, key: str, at: int = 0, **settings: Any) -> Client:
    """A client that knows all nodes, and tries them from this one on."""
    nodes = served.addresses[at:] + served.addresses[:at]
    return Client(nodes, key=key, credential=SECRET, timeout_s=20, **settings)


def created(served: Served, key: str, at: int = 0, **settings: Any) -> Client:
    client = client_of(served, key, at, **settings)
    client.connect(create=True)
    return client


def until_known(served: Served, key: str, session: int = 1) -> None:
    """Wait until all nodes know that a client has this session, and is covered."""
    for node in served.nodes:
        interest = node.driver.node.interest
        at = interest.clients.key(key)

        def is_known(interest: Any = interest, at: Any = at) -> bool:
            return any(at in each.items and each.items[at].epoch == 2 * session + 1 for each in interest.view.used())

        served.run(node.until(is_known))


def publish(served: Served, topic: str, first: int, count: int, acks: int = 2) -> None:
    """Rows on the disks of all nodes."""
    rows = [{"n": n, "kind": "even" if n % 2 == 0 else "odd"} for n in range(first, first + count)]
    Channel([served.addresses[0]]).publish(topic, rows, acks=acks)


def got(client: Client) -> list[int]:
    return [n for rows in client.notifications(idle_s=IDLE_S) for n in rows.column("n").to_pylist()]


def test_a_client_that_leaves_gets_what_it_missed_elsewhere_once(served: Served) -> None:
    client = created(served, "leaver")
    client.subscribe("leaving", "n >= 5")
    publish(served, "leaving", 0, 10)
    assert got(client) == [5, 6, 7, 8, 9]
    client.disconnect()
    publish(served, "leaving", 10, 5)
    back = client_of(served, "leaver", at=1)  # another process, which knows key and credential only
    assert back.connect() == 5
    assert back.profiles == {"default": ("leaving", "n >= 5")}
    assert got(back) == [10, 11, 12, 13, 14]
    assert got(back) == []
    assert back.node == served.addresses[1]
    assert back.memory.session == 2


def test_a_client_that_moves_ships_the_short_form(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state as fetched by its library, and by one that has only key and credential; a caller that does not ask for
    the short form gets the long one."""
    shipped: list[object] = []
    act = Doors.act

    def counted(doors: Doors, client: Any, limit_s: float, action: str, question: Any) -> Any:
        answer = act(doors, client, limit_s, action, question)
        if action in ("client-connect", "client-state"):
            shipped.extend(each["state"] for each in (question, answer) if each.get("state") is not None)
        return answer

    client = created(served, "shipped")
    client.subscribe("shipping")
    monkeypatch.setattr(Doors, "act", counted)
    client.move(served.addresses[1])
    client.disconnect()
    until_gone(served, 0, "shipped")
    client_of(served, "shipped").connect()
    assert len(shipped) == 5
    assert all(isinstance(each, dict) and each.keys() == {"short"} for each in shipped)
    assert state_from(shipped[-1]).frontier.keys() == {"shipping"}
    who = {"key": "shipped", "credential": SECRET}
    assert Channel([served.addresses[0]]).doors.ask("client-state", who)["state"].keys() >= {"profiles", "frontier"}


def test_a_new_client_has_a_key_of_its_own_and_the_access_point_that_was_chosen_last(served: Served) -> None:
    """P1, P10: keys are random, whoever makes them; a node is chosen while offline, and counts when it connects."""
    ann, bob = (Client.new(served.addresses[at:], timeout_s=20) for at in (0, 1))
    assert len({ann.key, bob.key}) == 2
    assert [len(bytes.fromhex(each.key)) for each in (ann, bob)] == [16, 16]
    until_known(served, ann.key)
    ann.disconnect()
    assert not bob.online(ann.key), "it has no connection while it is away"
    ann.channel = Channel(served.addresses[1:2], timeout_s=20)
    ann.channel = Channel(served.addresses[2:], timeout_s=20)
    assert (bob.finger(ann.key) or {})["node"] == "n0", "nothing has changed before it connects"
    ann.connect()
    assert ann.node == served.addresses[2]
    for client in (ann, bob):
        client.disconnect()


def until_gone(served: Served, at: int, key: str) -> None:
    """Wait until a former access point has released a client."""
    node = served.nodes[at]
    rows, states = node.driver.node.interest.clients.rows, node.store.clients
    served.run(node.until(lambda: key not in rows and states.get(key) is None))


def test_the_former_access_point_lets_go(served: Served) -> None:
    client = created(served, "mover")
    client.subscribe("moving")
    client.move(served.addresses[1])
    until_gone(served, 0, "mover")
    assert served.nodes[1].store.clients.get("mover") is not None
    until_known(served, "mover", session=2)
    (row,) = Channel([served.addresses[2]]).clients("mover")
    assert (row["node"], row["session"], row["covered"]) == ("n1", 2, True)
    client.disconnect()


def test_a_process_that_dies_while_it_is_attached_elsewhere_leaves_its_state_there(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = created(served, "dying")
    client.subscribe("dying", start="earliest")
    waited = node_handle.waited

    def gone_meanwhile(*asked: Any) -> None:
        waited(*asked)
        raise gone()

    with monkeypatch.context() as patched:
        patched.setattr(attachments, "waited", gone_meanwhile)
        with pytest.raises(RefusedError, match="cancelled"):
            client.connect(at=served.addresses[1])
    until_gone(served, 0, "dying")
    publish(served, "dying", 0, 2)
    back = client_of(served, "dying", at=2)
    back.connect()
    assert got(back) == [0, 1]
    back.disconnect()


def test_the_later_of_two_processes_takes_over(served: Served) -> None:
    first = created(served, "twice")
    first.subscribe("twice")
    second = client_of(served, "twice")
    second.connect()
    with pytest.raises(RefusedError, match="connected again") as told:
        first.save()
    assert told.value.code == "client-elsewhere"
    third = client_of(served, "twice", at=2)
    third.connect()
    until_gone(served, 0, "twice")
    with pytest.raises(RefusedError, match="is attached to node") as told:
        next(second.notifications(idle_s=5))
    assert told.value.code == "client-elsewhere"
    publish(served, "twice", 0, 3)
    assert got(third) == [0, 1, 2]


def test_a_wrong_credential_changes_nothing(served: Served) -> None:
    client = created(served, "owner")
    until_known(served, "owner")
    for at in (0, 1):
        thief = Client([served.addresses[at]], key="owner", credential="another secret of 16")
        with pytest.raises(RefusedError, match="not that of client 'owner'") as refused:
            thief.connect(create=True)
        assert refused.value.code == "bad-credential"
    client.save()
    (row,) = Channel([served.addresses[0]]).clients("owner")
    assert (row["session"], row["online"]) == (1, True)


def test_an_uncreated_key_is_unknown(served: Served) -> None:
    with pytest.raises(RefusedError) as refused:
        client_of(served, "nobody").connect()
    assert refused.value.code == "unknown-client"


def test_a_second_profile_fills_what_the_first_did_not_give(served: Served) -> None:
    client = created(served, "filler")
    publish(served, "filling", 0, 10)
    client.subscribe("filling", "n >= 6", name="late", start="earliest")
    assert got(client) == [6, 7, 8, 9]
    client.subscribe("filling", "kind = 'even'", name="even", start="earliest")
    publish(served, "filling", 10, 2)
    assert got(client) == [0, 2, 4, 10, 11]
    client.subscribe("filling", None, name="late", start="earliest")
    assert got(client) == [1, 3, 5]
    assert client.unsubscribe("late")
    assert not client.unsubscribe("late")
    publish(served, "filling", 12, 3)
    assert got(client) == [12, 14]
    client.disconnect()


def test_one_row_for_many_profiles_of_several_topics(served: Served) -> None:
    client = created(served, "several")
    client.subscribe("several-a", "n < 2", name="small")
    client.subscribe("several-a", "title contains zero", name="diet", language="diet")
    client.subscribe("several-a", "n IN (0, 2)", name="some")
    client.subscribe("several-b", None, name="all")
    publish(served, "several-a", 0, 4)
    publish(served, "several-b", 10, 2)
    assert sorted(got(client)) == [0, 1, 2, 10, 11]
    client.disconnect()


def test_a_profile_that_cannot_be_parsed_changes_nothing(served: Served) -> None:
    client = created(served, "parser")
    client.subscribe("parsing", "n = 1")
    with pytest.raises(RefusedError, match="where: at character"):
        client.subscribe("parsing", "n ==== 2", name="other")
    assert client.profiles == {"default": ("parsing", "n = 1")}
    client.save()
    client.disconnect()


def test_what_was_not_acknowledged_is_handed_out_again_unless_there_is_a_file(served: Served, tmp_path: Path) -> None:
    client = created(served, "manual", acknowledge="manual")
    client.subscribe("manual")
    publish(served, "manual", 0, 3)
    notifications = client.notifications(idle_s=IDLE_S)
    assert next(notifications).num_rows == 3
    notifications.close()  # saves what was acknowledged: nothing
    again = client_of(served, "manual", file=str(tmp_path / "manual.json"))
    again.connect()
    assert got(again) == [0, 1, 2]
    publish(served, "manual", 3, 2)
    assert next(again.notifications(idle_s=5)).column("n").to_pylist() == [3, 4]
    again.acknowledge()  # and dies before it is saved at the node
    third = Client(served.addresses, file=str(tmp_path / "manual.json"))
    third.connect()
    assert got(third) == []
    assert (tmp_path / "manual.json").stat().st_mode & 0o777 == 0o600


def test_rows_that_an_error_met_are_handed_out_again_by_the_same_object(served: Served) -> None:
    client = created(served, "failing", at=1)
    client.subscribe("failing")
    taken: list[list[int]] = []

    def fail_once(rows: pa.RecordBatch) -> None:
        taken.append(rows.column("n").to_pylist())
        if taken.count([2, 3]) == 1:
            raise InterruptedError

    def fail_while_connected() -> None:
        with client:
            fail_once(next(client.notifications(idle_s=5)))

    publish(served, "failing", 0, 2)
    client.run(fail_once, idle_s=0.2)
    publish(served, "failing", 2, 2)
    with pytest.raises(InterruptedError):
        client.run(fail_once, idle_s=5)
    client.run(fail_once, idle_s=0.2)
    assert taken == [[0, 1], [2, 3], [2, 3]]
    taken.remove([2, 3])
    publish(served, "failing", 4, 1)
    with pytest.raises(InterruptedError):
        fail_while_connected()
    with client:
        assert got(client) == [4]


def test_a_new_client_takes_the_place_of_no_other(served: Served, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first.json"), str(tmp_path / "second.json")
    client = Client.new(served.addresses, key="taken", file=first)
    with pytest.raises(LocalProtocolError, match=r"first\.json exists: choose another name"):
        Client.new(served.addresses, file=first)
    with pytest.raises(RefusedError, match="client 'taken' exists: open it with its credential or its file"):
        Client.new(served.addresses, key="taken", file=second)
    with pytest.raises(LocalProtocolError, match="is the file of client 'taken', not of 'other'"):
        Client(served.addresses, key="other", credential=SECRET, file=first)
    with pytest.raises(LocalProtocolError, match="there is no such file"):
        Client(served.addresses, file=second)
    client.save()
    client.disconnect()


def test_a_client_is_pickled_with_its_position(served: Served) -> None:
    client = created(served, "pickled")
    client.subscribe("pickled")
    publish(served, "pickled", 0, 2)
    assert got(client) == [0, 1]
    copy = pickle.loads(pickle.dumps(client))
    with pytest.raises(LocalProtocolError, match="not connected"):
        copy.subscribe("pickled")
    copy.connect()
    publish(served, "pickled", 2, 1)
    assert got(copy) == [2]
    with pytest.raises(RefusedError):
        client.save()


def test_own_rows_are_not_handed_back(served: Served) -> None:
    client = created(served, "echo", exclude_own=True)
    client.subscribe("echo")
    client.publish("echo", [{"n": 1}])
    publish(served, "echo", 2, 1)
    client.publish("echo", [{"n": 3}])
    assert got(client) == [2]
    client.disconnect()


def test_own_rows_are_known_by_the_file(served: Served, tmp_path: Path) -> None:
    file = str(tmp_path / "own.json")
    client = created(served, "own", exclude_own=True, file=file)
    client.subscribe("own")
    client.publish("own", [{"n": 1}], acks=2)
    client.publish("own", [{"n": 2}], acks=2)
    assert [(each.first, each.next) for each in client.own] == [(1, 3)]
    client.disconnect()
    publish(served, "own", 3, 1)
    again = Client(served.addresses[1:], file=file, exclude_own=True, timeout_s=20)
    again.connect()
    assert got(again) == [3]
    assert again.own == [], "what is acknowledged is forgotten"
    again.disconnect()


FORKING = """
import os, sys
from m4cast.overlay.client import Client
from m4cast.overlay.errors import LocalProtocolError

client = Client(sys.argv[1], key="forking", credential=sys.argv[2])

def in_child():
    if os.fork():
        os.wait()
        return
    try:
        client.connect()
        print([n for rows in client.notifications(idle_s=0.3) for n in rows["n"].to_pylist()], flush=True)
        client.disconnect()
    except LocalProtocolError as error:
        print(error, flush=True)
    os._exit(0)

in_child()
client.connect()
print(client.profiles, flush=True)
in_child()
"""


def test_a_forked_child_uses_the_client_or_is_refused(served: Served) -> None:
    client = created(served, "forking")
    client.subscribe("forking")
    client.disconnect()
    publish(served, "forking", 0, 3)
    command = [sys.executable, "-c", FORKING, served.addresses[0], SECRET]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    before, parent, after = done.stdout.splitlines()
    assert (before, parent) == ("[0, 1, 2]", "{'default': ('forking', None)}")
    assert "forked after its parent had used a channel: fork before that" in after


def test_who_is_where(served: Served) -> None:
    client, other = created(served, "finger-a"), created(served, "finger-b", at=1)
    until_known(served, "finger-a")
    until_known(served, "finger-b")
    found = Client([served.addresses[1]], key="finger-a", credential=SECRET).finger("finger-b")
    assert found is not None and (found["node"], found["online"]) == ("n1", True)
    assert client.finger("finger-nobody") is None
    other.disconnect()
    assert next(Channel([served.addresses[1]]).clients("finger-b"))["online"] is False
    keys = [row["key"] for row in Channel([served.addresses[2]]).clients()]
    assert keys == sorted(keys)
    assert {"finger-a", "finger-b"} <= set(keys)
    assert Channel([served.addresses[1]]).remove_client("finger-b")
    assert not Channel([served.addresses[1]]).remove_client("finger-b")
    client.disconnect()


def test_who_has_not_called_for_a_while_is_not_online(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client = created(served, "killed")
    assert client.online("killed")
    monkeypatch.setattr(attachments, "ONLINE_S", 0.0)
    assert client.online("killed") is False
    client.save()  # the connection lives all the same
    client.disconnect()


def test_a_client_without_profiles_cannot_read(served: Served) -> None:
    client = created(served, "silent")
    with pytest.raises(LocalProtocolError, match="has no profiles"):
        next(client.notifications(idle_s=1))
    client.disconnect()
    with pytest.raises(LocalProtocolError, match="needs key and credential"):
        Client(served.addresses)


def test_rows_that_the_new_node_removed_are_read_where_they_are(served: Served) -> None:
    client = created(served, "late")
    client.subscribe("lacking", "n < 5")
    client.disconnect()
    publish(served, "lacking", 0, 10)
    publish(served, "lacking", 10, 10)
    for at in (1, 2):  # nothing holds them there
        trim(served, at, "lacking")
    assert trim(served, 0, "lacking") == 1
    back = client_of(served, "late", at=1)
    back.connect()
    until_known(served, "late", session=1)  # that of the former access point: the new one is not covered
    assert trim(served, 0, "lacking") == 1
    assert got(back) == [0, 1, 2, 3, 4]
    assert back.dropped == []
    until_gone(served, 0, "late")
    back.disconnect()


def test_a_library_with_an_older_state_begins_a_session_where_rows_of_it_are_lacking(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its access point says that it has all rows that the client needs: former ones would let go of what they hold."""
    monkeypatch.setattr(client_lease, "HOLD_S", 0.1)
    client = created(served, "older")
    client.subscribe("older")
    older = pickle.dumps(client)
    publish(served, "older", 0, 5)
    publish(served, "older", 5, 5)
    assert len(got(client)) == 10
    client.disconnect()
    until(lambda: trim(served, 0, "older") > 1, True)
    again = pickle.loads(older)
    again.connect()
    assert again.memory.session == 2
    assert (again.finger("older") or {})["covered"] is False
    assert got(again) == list(range(10))
    assert again.dropped == []
    until_known(served, "older", session=2)
    again.disconnect()


def test_expired_rows_are_reported_as_dropped(served: Served) -> None:
    told: list[Any] = []
    client = created(served, "poor", on_dropped=told.extend)
    client.subscribe("poor")
    client.disconnect()
    publish(served, "poor", 0, 10)
    assert Channel([served.addresses[0]]).delete_topic("poor")["topic"] == "poor"
    for at in (1, 2):
        trim(served, at, "poor")
    publish(served, "poor", 10, 2)
    client.connect()
    assert got(client) == [10, 11]
    assert [(each.topic, each.first, each.next, each.rows_max) for each in told] == [("poor", 1, 11, 10)]
    assert {each.reason for each in told} == {"not-retained"}
    assert client.dropped == told
    client.disconnect()


def test_only_the_application_gives_up_rows(served: Served) -> None:
    """A node that does not answer may retain them: only the application decides."""
    client = Client([*served.addresses, "127.0.0.1:9"], key="hasty", credential=SECRET, timeout_s=5)
    client.connect(create=True)
    client.subscribe("hasty")
    publish(served, "hasty", 0, 10)
    Channel([served.addresses[0]]).delete_topic("hasty")
    for at in (1, 2):
        trim(served, at, "hasty")
    publish(served, "hasty", 10, 1)
    notifications = client.notifications(idle_s=IDLE_S)
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9"):
        next(notifications)
    assert client.dropped == []
    notifications.drop()
    assert got(client) == [10]
    assert [(each.rows_max, each.reason) for each in client.dropped] == [(10, "given-up")]
    client.disconnect()


@pytest.mark.parametrize("quota", ["bytes", "age"])
def test_rows_past_the_quota_are_dropped_and_reported(served: Served, quota: str) -> None:
    """An absent client holds rows at its access point up to `hold_bytes_max`, and until `hold_ms_max`."""
    topic, told = f"quota-{quota}", list[Any]()
    client = created(served, topic, on_dropped=told.extend)
    client.subscribe(topic)
    client.disconnect()
    for first in range(0, 50, 10):
        publish(served, topic, first, 10)
    for at in (1, 2):
        trim(served, at, topic)
    assert trim(served, 0, topic) == 1, "held for the client"
    if quota == "bytes":
        half = Channel([served.addresses[0]]).describe(topic)["bytes"] // 2
        low = trim(served, 0, topic, hold_bytes_max=half)
        assert low == 31
    else:
        assert trim(served, 0, topic, hold_ms_max=3_600_000) == 1
        low = trim(served, 0, topic, hold_ms_max=0)
        assert low == 51
    publish(served, topic, 50, 10)
    client.connect()
    assert got(client) == list(range(low - 1, 60))
    assert [(each.first, each.next, each.rows_max, each.reason) for each in told] == [(1, low, low - 1, "not-retained")]
    client.disconnect()


def trim(served: Served, at: int, topic: str, **holds: int) -> int:
    """Remove what nothing holds; the first sequence that is left."""
    keep = Keep(**{"bytes_max": 0, "age_ms_max": None, "hold_bytes_max": None, "hold_ms_max": None, **holds})
    store = served.nodes[at].store
    store.set_keep(topic, keep).result(30)
    store.trim(served.nodes[at].driver.clock.now_ms()).result(30)
    return next(low for stream, (low, _) in store.streams().items() if stream.topic == topic)


def test_a_client_of_a_selective_topic_gets_what_it_wants_once(served: Served) -> None:
    origin = Channel([served.addresses[0]])
    origin.create_topic("chosen", keepers=0, route_by=["kind"])
    client = created(served, "chooser", at=1)
    client.subscribe("chosen", "kind = 'odd'", name="odd", start="earliest")
    for n in range(6):
        publish_one(origin, "chosen", n)
    assert got_at_last(client, 3) == [1, 3, 5]
    client.subscribe("chosen", "n >= 4", name="late", start="earliest")
    assert got_at_last(client, 1) == [4]
    assert got(client) == []
    client.disconnect()


def publish_one(channel: Channel, topic: str, n: int) -> None:
    row = {"n": n, "kind": "even" if n % 2 == 0 else "odd"}
    while True:
        try:
            channel.publish(topic, [row], acks=0)
            return
        except RefusedError as error:
            if error.code != "not-ready":
                raise


def got_at_last(client: Client, count: int) -> list[int]:
    """Wait for so many rows: an origin that is slow to report what it has is not known at first."""
    taken: list[int] = []
    for _ in range(20):
        taken += got(client)
        if len(taken) >= count:
            break
    return taken


def test_an_access_point_that_dies_is_left_and_rows_come_once(tmp_path: Path) -> None:
    with serving(tmp_path, 3) as served:
        client = created(served, "survivor")
        client.subscribe("dying")
        publish(served, "dying", 0, 5)
        notifications = client.notifications(idle_s=5)
        found = next(notifications).column("n").to_pylist()
        publish_at = Channel([served.addresses[1]])
        served.run(served.stop_door(0))
        publish_at.publish("dying", [{"n": n, "kind": ""} for n in range(5, 8)], acks=1)
        found += next(notifications).column("n").to_pylist()
        assert found == list(range(8))
        assert client.node == served.addresses[1]
        assert client.memory.session == 2
        assert got(client) == []
        client.disconnect()


def test_what_a_client_carries_outlives_its_access_point_and_its_disk(tmp_path: Path) -> None:
    """Nobody knows the client any longer. With its file, or a position that was kept, it goes on; with key and
    credential alone it cannot, and is told who may have its state."""
    file = tmp_path / "client.json"
    with serving(tmp_path, 3) as served:
        nodes = served.addresses
        client = created(served, "carrier", file=str(file))
        client.subscribe("carried", "n >= 1", start="earliest")
        publish(served, "carried", 0, 3)
        assert got(client) == [1, 2]
        client.acknowledge()
        position = json.loads(json.dumps(client.position))
        client.disconnect()
        served.run(served.lose(0))
        until(lambda: [row["key"] for node in nodes[1:] for row in Channel([node]).clients("carrier")], list[str]())
        Channel(nodes[1:]).publish("carried", [{"n": 3}], acks=1)
        with pytest.raises(UnreachableError, match=rf"has its state, and these do not answer: {nodes[0]}"):
            Client(nodes, key="carrier", credential=SECRET).connect()
        with pytest.raises(RefusedError, match="knows no client 'carrier'") as unknown:
            client_of(served, "carrier").connect()  # of the nodes that are left
        assert unknown.value.code == "unknown-client"
        by_position = Client(nodes, key="carrier", credential=SECRET)
        by_position.position = position
        by_file = Client(nodes, file=str(file))
        for back in (by_position, by_file):
            back.connect()
            assert (back.profiles, back.memory.session) == ({"default": ("carried", "n >= 1")}, 2)
            assert got(back) == [3]


def test_an_invalid_position_is_explained(served: Served) -> None:
    client = client_of(served, "wrong")
    with pytest.raises(LocalProtocolError, match="the session of a position is 'x'"):
        client.position = {**client.position, "session": "x"}
    with pytest.raises(LocalProtocolError, match="frontier"):
        client.position = {"session": 1}


def test_an_access_point_that_restarts_has_its_clients(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as served:
        client = created(served, "patient")
        client.subscribe("patience", "n >= 1")
    with serving(tmp_path, 1) as served:
        trim_all(served)
        back = client_of(served, "patient")
        back.connect()
        assert back.profiles == {"default": ("patience", "n >= 1")}
        Channel(served.addresses).publish("patience", [{"n": n} for n in range(3)])
        assert got(back) == [1, 2]
        assert served.nodes[0].store.readers()["_clients"].topics == {"patience"}
        back.disconnect()


def trim_all(served: Served) -> None:
    for node in served.nodes:
        node.store.trim(node.driver.clock.now_ms()).result(30)


def test_a_token_is_limited_to_keys(tmp_path: Path) -> None:
    secret = "the secret of the shops"
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "shops"\nsecret = "{secret}"\nread = ["o*"]\nclient = ["shop-*"]\n')
    with serving(tmp_path, 1, tokens=f"file:{tokens}") as served:
        shop = Client(served.addresses, key="shop-1", credential=SECRET, token=secret)
        shop.connect(create=True)
        shop.subscribe("orders")
        with pytest.raises(RefusedError, match="no right 'read' on topic 'secrets'"):
            shop.subscribe("secrets", name="more")
        other = Client(served.addresses, key="bank-1", credential=SECRET, token=secret)
        with pytest.raises(RefusedError, match="no right 'client' on key 'bank-1'"):
            other.connect(create=True)
        assert [row["key"] for row in Channel(served.addresses, token=secret).clients()] == ["shop-1"]
        shop.disconnect()
