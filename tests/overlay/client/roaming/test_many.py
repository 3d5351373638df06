"""Profiles of many clients at once: done in few calls, repeatable, and each row that is wrong is named."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.door.clients.attachments import ClientAdmin
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError
from tests.overlay.client.roaming.test_client import SECRET, client_of, created, got, publish, until_known
from tests.overlay.door.served import Served, serving, told_doors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("many"), 3, settings=told_doors(3)) as served:
        yield served


def wish(key: str, topic: str, where: str | None = None, **more: Any) -> dict[str, Any]:
    return {"key": key, "credential": SECRET, "topic": topic, "where": where, **more}


def test_many_clients_get_profiles_in_few_calls_and_a_repeat_changes_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(served, "many", 0, 4)
    channel, rows = Channel(served.addresses), []
    for number in range(1_200):
        rows += [wish(f"c{number}", "many", f"n >= {number}"), wish(f"c{number}", "others")]
    announced: list[int] = []
    clients = served.doors[0].services.clients
    keep_all = clients._keep_all

    def keep_counted(*given: Any) -> None:
        announced.append(len(given[1]))
        keep_all(*given)

    monkeypatch.setattr(clients, "_keep_all", keep_counted)
    done = channel.subscribe_all(rows)
    assert (done.clients, done.created, done.changed) == (1_200, 1_200, 1_200)
    assert announced == [500, 500, 200]
    again = channel.subscribe_all(rows[::-1])
    assert (again.created, again.changed) == (0, 0)
    publish(served, "many", 4, 6)
    one = client_of(served, "c7")
    one.connect()
    assert sorted(one.profiles.values()) == [("many", "n >= 7"), ("others", None)]
    assert got(one) == [7, 8, 9], "from now on, not from before"
    one.disconnect()
    assert channel.subscribe_all([wish("c7", "many", "n < 2", name="few")], start="earliest").changed == 1
    again_elsewhere = client_of(served, "c7", at=1)  # another process
    again_elsewhere.connect()
    assert got(again_elsewhere) == [0, 1]


def test_a_client_at_another_node_is_subscribed_there(served: Served) -> None:
    client = created(served, "there", at=2)
    client.disconnect()
    until_known(served, "there")
    done = Channel(served.addresses[:1]).subscribe_all([wish("there", "many-there", name="p")])
    assert (done.created, done.changed) == (0, 1)
    assert [each.name for each in client.saved().state.profiles] == ["p"]
    row = Channel(served.addresses[1:2]).finger("there")
    assert row is not None and row["node"] == "n2"


def test_rows_that_are_wrong_are_named_and_the_others_done(served: Served) -> None:
    busy = created(served, "many-busy")
    created(served, "many-other").disconnect()
    rows = [
        wish("many-good", "t"),
        wish("many-bad", "t", "price >"),
        wish("", "t"),
        wish("many-busy", "t"),
        {**wish("many-other", "t"), "credential": "another secret of 16"},
        {**wish("many-good", "t"), "credential": "another secret of 16"},
        wish("many-good", "u", name="n"),
        wish("many-good", "v", name="n"),
        wish("many spaced", "t"),
        {**wish("many-number", "t"), "where": 5},
    ]
    with pytest.raises(M4castError) as refused:
        Channel(served.addresses).subscribe_all(rows)
    said = str(refused.value)
    assert "8 rows were not subscribed, the others were" in said
    for expected in (
        "row 1 (key 'many-bad', topic 't'): where:",
        "row 2 (key '', topic 't'): key is missing",
        "row 3 (key 'many-busy', topic 't'): client 'many-busy' is connected",
        "row 4 (key 'many-other', topic 't'): the credential is not that of client",
        "row 5 (key 'many-good', topic 't'): another row of this key has another credential",
        "row 7 (key 'many-good', topic 'v'): another row of this key has another profile 'n'",
        "row 8 (key 'many spaced', topic 't'): key must be printable text without spaces",
        "row 9 (key 'many-number', topic 't'): where is not text",
    ):
        assert expected in said
    assert SECRET not in said and "another secret of 16" not in said
    good = client_of(served, "many-good").saved().state
    assert sorted(each.topic for each in good.profiles) == ["t", "u"]
    busy.disconnect()
    with pytest.raises(LocalProtocolError, match="a row has column 'price': columns are key, credential"):
        Channel(served.addresses).subscribe_all([wish("x", "t", price=5)])


def test_requests_of_strangers_are_refused(served: Served) -> None:
    doors = Channel(served.addresses).doors
    for asked, said in (
        ({"clients": []}, "a list of 1 to 500"),
        ({"clients": [{"key": 1}]}, "a key of its own"),
        ({"clients": [{"key": "a"}, {"key": "a"}]}, "a key of its own"),
        ({"clients": [{"key": "a"}], "start": "now"}, "start is 'now'"),
    ):
        with pytest.raises(RefusedError, match=said):
            doors.ask("clients-subscribe", asked)
    for wrong, said in (
        ({"key": "a", "credential": SECRET}, "profiles must be a list"),
        ({"key": "a", "credential": SECRET, "profiles": [5]}, "a profile must be"),
        ({"key": "a", "credential": SECRET, "profiles": [{"name": "n"}]}, "topic is missing"),
        ({"key": "a", "credential": "short", "profiles": [{"name": "n", "topic": "t"}]}, "credential must have"),
        ({"key": "a", "secret": "x"}, "unknown field"),
    ):
        (answer,) = doors.ask("clients-subscribe", {"clients": [wrong]})["clients"]
        assert answer["code"] == "bad-request" and said in answer["detail"]


def test_a_node_stops_while_it_looks_at_its_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work for clients needs the node's loop, which must not wait for it."""
    begun, closing = threading.Event(), threading.Event()
    seen: list[int] = []
    own: list[ClientAdmin] = []
    close = ClientAdmin.close

    def look_when_it_closes(admin: ClientAdmin) -> None:
        if admin not in own:
            return  # another node of this process
        begun.set()
        assert closing.wait(30)
        seen.append(admin._node.look(lambda node: len(node.interest.clients.rows), 10))

    def closed(admin: ClientAdmin) -> None:
        closing.set()
        close(admin)

    monkeypatch.setattr(ClientAdmin, "_settle", look_when_it_closes)
    monkeypatch.setattr(ClientAdmin, "close", closed)
    with serving(tmp_path, 1) as served:
        own.append(served.doors[0].services.clients)
        Channel(served.addresses).subscribe_all([{"key": "one", "credential": SECRET, "topic": "any"}])
        assert begun.wait(30)
    assert set(seen) == {1}, "it may look more than once"
