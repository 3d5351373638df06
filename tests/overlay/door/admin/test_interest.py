"""Interest at real doors: registered at one node, shown at all, by rights."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.client.interest import Activity, InterestTail, UnitLevels
from m4cast.overlay.door.admin import interest
from m4cast.overlay.errors import RefusedError
from m4cast.overlay.protocol.interest.confirmations import Confirmations
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
    both_see(nodes, 1)  # the narrow one is below the first, and not announced
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
    assert wanted(ann) == [("orders", "id = 1 AND price > 7")]  # what nodes tell each other is canonical
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


PATIENCE_S = 20


def followed(tail: InterestTail, *kinds: str) -> list[dict[str, Any]]:
    """The next changes, as many as kinds are given, which are asserted."""
    found = list(islice(tail, len(kinds)))
    assert tuple(each["kind"] for each in found) == kinds
    return found


def test_changes_are_followed_at_any_node_by_those_who_may_see_them(nodes: Served) -> None:
    ann, boss = at(nodes, 0, "ann"), at(nodes, 1, "boss")
    both_see(nodes, 0)
    ann.register("orders", "price > 1")
    both_see(nodes, 1)
    mine, far = ann.interest_changes("orders", idle_s=PATIENCE_S), boss.interest_changes(idle_s=PATIENCE_S)
    (joined,) = followed(mine, "joined")
    assert (joined["where"], joined["node"]) == ("price > 1", "n0")
    assert followed(far, "joined") == [{**joined, "topic": None}], "node 1 has never met the topic"
    ann.unregister("orders", "price > 1")
    (left,) = followed(far, "left")
    assert left["where"] == "price > 1", "the follower still has what the node has forgotten"
    ann.register("orders", "price > 1")
    ann.register("orders", "price < 9")
    both = {each["where"]: each["epoch"] for each in followed(far, "joined", "joined")}
    assert both.keys() == {"price > 1", "price < 9"}
    assert both["price > 1"] > joined["epoch"]
    followed(mine, "left", "joined", "joined")
    assert list(at(nodes, 0, "ann").interest_changes("stock.b", idle_s=0)) == []
    bob = at(nodes, 0, "bob").interest_changes(idle_s=0)
    assert {each["topic"] for each in bob} == {"orders"}
    for where in ("price > 1", "price < 9"):
        ann.unregister("orders", where)
    with pytest.raises(RefusedError, match="after has 200 characters"):
        ann._doors.ask("subscription-changes", {"after": "x" * 200})


def test_a_follower_that_lags_or_moves_gets_everything_and_gives_each_change_once(
    nodes: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interest, "REMEMBERED_ITEMS_MAX", 4)
    ann = at(nodes, 0, "ann")
    for number in range(3):
        ann.register("orders", f"price = {number}")
    tail = ann.interest_changes("orders", idle_s=PATIENCE_S)
    followed(tail, "joined", "joined", "joined")
    for number in range(2, 9):  # more than the door remembers
        ann.register("orders", f"price = {number}")
    ann.unregister("orders", "price = 0")
    ann.unregister("orders", "price = 1")
    ann.register("orders", "price = 1")
    assert not any(change.revision == 1 for change in nodes.doors[0].services.interest._latest)
    changes = followed(tail, "left", *("joined",) * 6, "rejoined")
    assert (changes[0]["where"], changes[-1]["where"]) == ("price = 0", "price = 1")
    both_see(nodes, 8)
    (key,) = (key for key, known in tail._known.items() if known["where"] == "price = 1")
    tail._known[key] = {**tail._known[key], "epoch": changes[-1]["epoch"] + 1}  # node 1 lags behind what was given
    tail._doors = at(nodes, 1, "boss")._doors  # as a channel does when its node is lost
    tail._topic = None
    tail._idle_s = 0
    assert list(tail) == []
    for number in range(1, 9):
        ann.unregister("orders", f"price = {number}")


def both_see(nodes: Served, count: int) -> None:
    """Wait until both nodes know so many registrations, and the same."""
    views = [node.driver.node.interest.view for node in nodes.nodes]

    def agree() -> bool:
        counts = {sum(len(entry.items) for entry in view.used()) for view in views}
        return counts == {count} and views[0].digests() == views[1].digests()

    for node in nodes.nodes:
        nodes.run(node.until(agree))


def test_the_history_is_read_by_those_who_may_see_it(nodes: Served) -> None:
    ann, bob = at(nodes, 0, "ann"), at(nodes, 0, "bob")
    before = max(ann.interest()["revision"].to_pylist(), default=0)
    epoch = ann.register("orders", "price > 3", start="earliest")["epoch"]
    bob.register("stock.c")
    ann.unregister("orders", "price > 3")
    (mine, other) = ann.interest(before + 1).to_pylist()
    assert (mine["topic"], mine["condition"], mine["owner"], mine["epoch"]) == ("orders", "price > 3", "ann", epoch)
    assert (mine["start"], mine["node"], mine["language"]) == ("earliest", "n0", "sql")
    assert mine["from_at"] <= mine["until_at"] and mine["until_ts"] > mine["ts"] - 1
    assert (other["topic"], other["condition"], other["until_at"], other["until_ts"]) == ("stock.c", None, None, None)
    assert ann.interest(mine["revision"]).to_pylist() == [mine]
    assert at(nodes, 1, "boss").interest().num_rows == 0, "of its own registrations"
    assert at(nodes, 0, "boss").interest().num_rows == 0, "an administrator without the right to read"
    bob.unregister("stock.c")


def test_following_on_the_command_line(nodes: Served) -> None:
    ann = at(nodes, 0, "ann")
    ann.register("orders", "price > 5")
    access = ["--node", nodes.addresses[0], "--token", SECRETS["ann"]]
    shown = CliRunner().invoke(main, ["subscriptions", "--follow", "--idle-s", "0", *access])
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("joined    orders  price > 5  at n0, epoch ")
    as_json = CliRunner().invoke(main, ["subscriptions", "--follow", "--idle-s", "0", "--json", *access])
    assert json.loads(as_json.output)["kind"] == "joined"
    refused = CliRunner().invoke(main, ["subscriptions", "--idle-s", "0", *access])
    assert refused.exit_code == 2 and "--idle-s needs --follow" in refused.output
    ann.unregister("orders", "price > 5")


def test_active_names_the_nodes_that_know_of_a_registration(nodes: Served) -> None:
    ann = at(nodes, 0, "ann")
    epoch = ann.register("orders", "price > 8")["epoch"]
    found = ann.active("orders", "price > 8", timeout_s=PATIENCE_S)
    alone = UnitLevels(seen=1, confirmed=1, system=1)  # a channel without gatekeepers
    assert found == Activity(epoch, is_active=True, confirmed=("n1",), missing=(), effective_from={}, levels=alone)
    assert nodes.nodes[1].driver.node.interest.view.revision
    with pytest.raises(RefusedError, match="'orders' is not registered here by this client"):
        ann.active("orders", "price > 9", timeout_s=0)
    access = ["--node", nodes.addresses[0], "--token", SECRETS["ann"]]
    done = CliRunner().invoke(main, ["subscribe", "orders", "--where", "price > 8", "--wait", "active", *access])
    assert done.exit_code == 0, done.output
    assert "active: confirmed by n1" in done.output
    as_json = CliRunner().invoke(
        main, ["subscribe", "orders", "--where", "price > 8", "--wait", "active", "--json", *access]
    )
    assert json.loads(as_json.output)["confirmed"] == ["n1"]
    ann.unregister("orders", "price > 8")


def test_active_names_those_who_have_not_confirmed_when_the_time_is_over(
    nodes: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Confirmations, "on_call", lambda *_: None)  # as a node of an older version
    ann = at(nodes, 0, "ann")
    ann.register("orders", "price > 8")
    assert ann.active("orders", "price > 8", timeout_s=0).missing == ("n1",)
    access = ["--node", nodes.addresses[0], "--token", SECRETS["ann"]]
    wanted = ["subscribe", "orders", "--where", "price > 8", "--wait", "active", "--wait-s", "0"]
    done = CliRunner().invoke(main, [*wanted, *access])
    assert done.exit_code == 1, done.output
    assert "not active yet: confirmed by no other node; not by n1" in done.output
    ann.unregister("orders", "price > 8")
