"""Clients at the web door: where they are, how many rows wait for them, and who may see that."""

from pathlib import Path
from typing import Any

from m4cast.overlay.client.channel import Channel
from m4cast.overlay.client.roaming.client import Client
from tests.overlay.client.roaming.test_client import until_known
from tests.overlay.door.web.doors import WebServed, web_serving

SECRET = "correct horse battery staple"


def shown(web: WebServed, key: str, at: int = 0) -> Any:
    (row,) = (each for each in web.ask("GET", "/clients", at=at).json["clients"] if each["key"] == key)
    return row


def waiting(web: WebServed, key: str) -> dict[str, int]:
    return {each["profile"]: each["waiting_max"] for each in shown(web, key)["waiting"]}


def test_rows_wait_for_a_client_that_has_left(pair: WebServed) -> None:
    address = pair.served.addresses[0]
    channel = Channel([address])
    channel.publish("missed", [{"n": n} for n in range(10)])
    client = Client([address], key="away", credential=SECRET)
    client.connect(create=True)
    client.subscribe("missed", "n >= 10", name="new")
    client.subscribe("missed", "n < 3", name="old", start="earliest")
    assert waiting(pair, "away") == {"old": 10, "new": 0}, "old ones are to be given, whether they match or not"
    assert [len(rows) for rows in client.notifications(idle_s=0.5)] == [3]
    assert waiting(pair, "away") == {"old": 0, "new": 0} and shown(pair, "away")["online"]
    client.disconnect()
    channel.publish("missed", [{"n": n} for n in range(10, 14)])
    assert waiting(pair, "away") == {"old": 4, "new": 4} and not shown(pair, "away")["online"]
    with Client([address], key="away", credential=SECRET) as back:
        assert [len(rows) for rows in back.notifications(idle_s=0.5)] == [4]
        assert waiting(pair, "away") == {"old": 0, "new": 0}


def test_mail_waits_too(pair: WebServed) -> None:
    address, node = pair.served.addresses[0], pair.served.nodes[0]
    client, writer = (Client([address], key=key, credential=SECRET) for key in ("mailed", "writer"))
    for each in (client, writer):
        each.connect(create=True)
    assert list(client.inbox(idle_s=0.1)) == []
    client.disconnect()
    writer.send("mailed", "hello")

    def is_covered() -> bool:
        machine = node.driver.node
        mine = [each for each in machine.interest.registrations.rows if each.endswith("/mailed")]
        return any(until > 1 for each in mine for until in machine.selection.coverage(each).values())

    pair.served.run(node.until(is_covered))
    assert list(waiting(pair, "mailed").values()) == [1]


def test_pages_go_on_behind_a_key(pair: WebServed) -> None:
    channel = Channel([pair.served.addresses[0]])
    channel.subscribe_all({"key": f"page-{n:03}", "credential": SECRET, "topic": "paged"} for n in range(101))
    first = pair.get("/clients?after=page-").json
    assert [each["key"] for each in first["clients"]] == [f"page-{n:03}" for n in range(100)]
    rest = pair.get(f"/clients?after={first['next']}").json["clients"]
    assert "page-100" in [each["key"] for each in rest]


def test_another_node_knows_where_a_client_is_and_not_what_waits(pair: WebServed) -> None:
    client = Client([pair.served.addresses[0]], key="here", credential=SECRET)
    client.connect(create=True)
    client.subscribe("here")
    until_known(pair.served, "here")
    row = shown(pair, "here", 1)
    assert (row["node"], row["online"], row["waiting"]) == (pair.served.nodes[0].name, None, None)


def test_a_token_sees_its_own_clients(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        '[[token]]\nname = "shops"\nsecret = "shops-shops-shops-shops"\nread = ["*"]\nclient = ["shop-*"]\n'
        '[[token]]\nname = "none"\nsecret = "nobody-nobody-nobody"\nread = ["*"]\n'
        '[[token]]\nname = "all"\nsecret = "everybody-everybody"\nread = ["*"]\nclient = ["*"]\n',
        encoding="utf-8",
    )
    with web_serving(tmp_path, 1, tokens=f"file:{tokens}") as web:
        for key in ("shop-1", "depot-1"):
            client = Client([web.served.addresses[0]], key=key, credential=SECRET, token="everybody-everybody")
            client.connect(create=True)
        seen = web.get("/clients", Authorization="Bearer shops-shops-shops-shops").json["clients"]
        assert [each["key"] for each in seen] == ["shop-1"]
        assert web.get("/clients", Authorization="Bearer nobody-nobody-nobody").status == 403
