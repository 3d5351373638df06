"""Interest at real doors: registered at one node, shown at all, by rights."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.served import Served, serving

SECRETS = {name: f"the secret of {name} is long" for name in ("ann", "bob", "boss")}
TOKENS = f"""
[[token]]
name = "ann"
secret = "{SECRETS["ann"]}"
subscribe = ["orders", "stock.*"]

[[token]]
name = "bob"
secret = "{SECRETS["bob"]}"
read = ["orders"]
subscribe = ["stock.*"]

[[token]]
name = "boss"
secret = "{SECRETS["boss"]}"
admin = true
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("interest")
    (folder / "tokens.toml").write_text(TOKENS)
    with serving(folder, 2, tokens=f"file:{folder / 'tokens.toml'}") as served:
        yield served


def at(nodes: Served, number: int, who: str) -> Channel:
    return Channel(nodes.addresses[number], token=SECRETS[who])


def wanted(channel: Channel, topic: str | None = None) -> list[tuple[str | None, str]]:
    return sorted((each["topic"], each["where"]) for each in channel.subscriptions(topic)["registrations"])


def test_a_registration_is_shown_everywhere_to_those_who_may_see_it(nodes: Served) -> None:
    ann, bob, boss = (at(nodes, 0, "ann"), at(nodes, 1, "bob"), at(nodes, 1, "boss"))
    before = boss.subscriptions()["revision"]
    first = ann.register("orders", "price > 5")
    assert ann.register("orders", "price > 5") == first
    narrow = ann.register("orders", "price > 7 AND id = 1")
    assert narrow["id"] != first["id"]
    view = boss.subscriptions(seen=before, wait_s=10)
    assert view["revision"] > before
    assert [(each["topic"], each["where"]) for each in view["registrations"]] == [(None, "price > 5")]
    assert wanted(ann) == [("orders", "price > 5")]
    own = ann.subscriptions("orders")["own"]
    assert [(each["where"], each["owner"], each["is_announced"]) for each in own] == [
        ("price > 5", "ann", True),
        ("price > 7 AND id = 1", "ann", False),
    ]
    assert wanted(bob) == []  # node 1 has never met the topic: its name is not known there
    assert ann.unregister("orders", "price > 5")
    assert wanted(ann) == [("orders", "price > 7 AND id = 1")]
    assert ann.unregister("orders", "price > 7 AND id = 1")
    assert not ann.unregister("orders", "price > 7 AND id = 1")
    assert wanted(ann) == []


def test_rights_and_filters_are_checked(nodes: Served) -> None:
    bob = at(nodes, 0, "bob")
    for topic in ("orders", "other"):
        with pytest.raises(RefusedError, match=f"no right 'subscribe' on topic '{topic}'"):
            bob.register(topic)
    with pytest.raises(RefusedError, match="no right 'subscribe'"):
        at(nodes, 0, "boss").register("stock.a")
    with pytest.raises(RefusedError, match="where: "):
        bob.register("stock.a", "price >")
    with pytest.raises(RefusedError, match="where: filter language 'zzz'"):
        bob.register("stock.a", "price > 1", language="zzz")
    bob.register("stock.a")
    ann = at(nodes, 0, "ann")
    assert ("stock.a", "") in wanted(ann)
    assert not ann.unregister("stock.a")  # not ann's
    assert bob.unregister("stock.a")


def test_the_commands(nodes: Served) -> None:
    runner = CliRunner()
    access = ["--node", nodes.addresses[0], "--token", SECRETS["ann"]]
    done = runner.invoke(main, ["subscribe", "orders", "--where", "price > 5", *access])
    assert done.exit_code == 0, done.output
    assert f"orders at {nodes.addresses[0]}: registered as ann/" in done.output
    shown = runner.invoke(main, ["subscriptions", *access])
    assert "price > 5" in shown.output and "orders" in shown.output
    assert runner.invoke(main, ["subscriptions", "--json", *access]).output.startswith("{")
    given_up = runner.invoke(main, ["unsubscribe", "orders", "--where", "price > 5", *access])
    assert "given up" in given_up.output
    again = runner.invoke(main, ["unsubscribe", "orders", "--where", "price > 5", *access])
    assert "was not registered" in again.output
    assert "nobody has registered anything" in runner.invoke(main, ["subscriptions", *access]).output
