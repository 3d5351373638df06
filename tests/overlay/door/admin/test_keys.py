"""Publisher keys and topics at a real door: each client has its share, sees its own keys, and can remove them."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.door.admin import keys
from m4cast.overlay.errors import RefusedError
from tests.overlay.door.served import Served, serving

SECRETS = {name: f"the secret of {name} is long" for name in ("greedy", "modest", "boss")}
TOKENS = f"""
[[token]]
name = "greedy"
secret = "{SECRETS["greedy"]}"
publish = ["*"]

[[token]]
name = "modest"
secret = "{SECRETS["modest"]}"
publish = ["*"]

[[token]]
name = "boss"
secret = "{SECRETS["boss"]}"
admin = true
"""
SHARE_BYTES = 4_096


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "tokens.toml").write_text(TOKENS)
    settings = {"client_publisher_bytes_max": SHARE_BYTES, "client_topics_max": 2}
    with serving(folder, 1, tokens=f"file:{folder / 'tokens.toml'}", settings=lambda _: settings) as served:
        yield served


def channel_of(node: Served, name: str) -> Channel:
    return Channel(node.addresses, token=SECRETS[name])


def removed(channel: Channel, prefix: str) -> list[str]:
    found = [each["key"] for each in channel.publishers(prefix)]
    for key in found:
        channel.remove_publisher(key)
    return found


def fill(channel: Channel, prefix: str) -> RefusedError:
    """New keys until one is refused."""
    for number in range(SHARE_BYTES):
        try:
            channel.commit([], key=f"{prefix}{number:03}", next=1)
        except RefusedError as error:
            return error
    raise AssertionError("no key was refused")


def test_the_client_that_makes_too_many_keys_is_refused_and_the_other_goes_on(node: Served) -> None:
    greedy, modest = channel_of(node, "greedy"), channel_of(node, "modest")
    refused = fill(greedy, "many-")
    assert refused.code == "too-many"
    assert "client 'greedy'" in refused.detail
    assert f"at most {SHARE_BYTES} (client_publisher_bytes_max)" in refused.detail
    assert "m4cast publishers remove" in refused.detail
    modest.publish("shared", [{"n": 1}], key="modest-0", next=1)
    greedy.commit([], key="many-000", expect=1, next=2)  # what is there works on
    assert len(removed(greedy, "many-")) > 2
    greedy.commit([], key="many-again", next=1)
    assert removed(greedy, "many-") == ["many-again"]
    assert modest.position("modest-0") == "1"


def test_a_client_sees_and_removes_its_own_keys_and_an_administrator_all(node: Served) -> None:
    greedy, modest, boss = (channel_of(node, name) for name in SECRETS)
    greedy.commit([], key="whose/a", next=5)
    modest.commit([], key="whose/b", next=6)
    assert [(each["key"], each["position"], each["owner"]) for each in greedy.publishers("whose/")] == [
        ("whose/a", "5", "greedy")
    ]
    assert [each["key"] for each in boss.publishers("whose/")] == ["whose/a", "whose/b"]
    assert all(0 <= each["unused_ms"] < 3_600_000 for each in boss.publishers("whose/"))
    with pytest.raises(RefusedError, match="was created by client 'greedy', not by 'modest'") as refused:
        modest.remove_publisher("whose/a")
    assert refused.value.code == "forbidden"
    assert modest.remove_publisher("whose/b") == "6"
    assert boss.remove_publisher("whose/a") == "5"
    assert boss.remove_publisher("whose/a") is None
    assert list(boss.publishers("whose/")) == []
    assert modest.position("whose/b") is None


def test_a_removed_key_that_goes_on_is_refused_with_the_reason(node: Served) -> None:
    modest = channel_of(node, "modest")
    modest.commit([], key="ended", next=1)
    modest.remove_publisher("ended")
    with pytest.raises(RefusedError, match=r"expected '1', actual none .*removed, or it expired") as refused:
        modest.commit([], key="ended", expect=1, next=2)
    assert refused.value.code == "wrong-position"


def test_keys_are_listed_in_pages(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy, modest, boss = (channel_of(node, name) for name in SECRETS)
    names = [f"page/{letter}" for letter in "abcde"]
    for at, name in enumerate(names):
        (modest if at % 4 else greedy).commit([], key=name, next=1)

    def asked(**question: object) -> dict[str, object]:
        page: dict[str, object] = boss._doors.ask_first("publishers", {"prefix": "page/", **question})
        listed = page["publishers"]
        assert isinstance(listed, list)
        return {"keys": [each["key"] for each in listed], "next": page["next"]}

    assert asked(limit=2) == {"keys": names[:2], "next": "page/b"}
    assert asked(limit=2, after="page/b") == {"keys": names[2:4], "next": "page/d"}
    assert asked(limit=2, after="page/d") == {"keys": names[4:], "next": None}
    assert asked(after="zzz") == {"keys": [], "next": None}
    monkeypatch.setattr(keys, "READ_AT_ONCE", 2)
    monkeypatch.setattr(keys, "LOOKED_AT_MAX", 2)
    assert [each["key"] for each in greedy.publishers("page/")] == ["page/a", "page/e"]
    for channel in (greedy, modest):
        removed(channel, "page/")


@pytest.mark.parametrize(
    ("action", "question"),
    [
        ("publishers", {"prefix": "p" * 201}),
        ("publishers", {"after": "\ud800"}),
        ("publishers", {"limit": 0}),
        ("publishers", {"limit": 1_001}),
        ("publishers", {"owner": "greedy"}),
        ("publisher-remove", {}),
        ("publisher-remove", {"key": 5}),
    ],
)
def test_a_malformed_question_is_refused(node: Served, action: str, question: object) -> None:
    with pytest.raises(RefusedError) as refused:
        channel_of(node, "boss")._doors.ask_first(action, question)
    assert refused.value.code == "bad-request"


def test_the_client_that_makes_too_many_topics_is_refused_and_the_other_goes_on(node: Served) -> None:
    greedy, modest, boss = (channel_of(node, name) for name in SECRETS)
    greedy.publish("one", [{"n": 1}])
    greedy.commit(greedy.stage("two", [{"n": 1}]))
    with pytest.raises(
        RefusedError, match=r"client 'greedy' created 2 topics .* at most 2 \(client_topics_max\)"
    ) as no:
        greedy.publish("three", [{"n": 1}])
    assert no.value.code == "too-many"
    greedy.publish("one", [{"n": 2}], key="topics", next=1)
    modest.publish("three", [{"n": 1}])
    boss.delete_topic("one")
    greedy.publish("four", [{"n": 1}])
    (rows,) = greedy.publish("one", [{"n": 3}])
    assert rows.first == 3, "the numbering of a deleted topic goes on"
    assert greedy.remove_publisher("topics") == "1"


def test_the_command_lists_and_removes_keys(node: Served) -> None:
    modest = channel_of(node, "modest")
    for key in ("cli/[red]a", "cli/b"):
        modest.commit([], key=key, next="at 7")

    def run(*arguments: str, answer: str = "") -> str:
        where = ["--node", node.addresses[0], "--token", SECRETS["modest"]]
        done = CliRunner().invoke(main, ["publishers", *arguments, *where], input=answer)
        assert done.exit_code == (2 if answer == "n\n" else 0), done.output
        return done.stdout

    listed = run("list", "--prefix", "cli/")
    assert "2 publisher keys" in listed
    assert all(text in listed for text in ("cli/[red]a", "cli/b", "at 7", "modest", "0 s"))
    said = json.loads(run("list", "--prefix", "cli/", "--limit", "1", "--json"))
    assert ([each["key"] for each in said["publishers"]], said["has_more"]) == (["cli/[red]a"], True)
    run("remove", "cli/b", answer="n\n")
    assert modest.position("cli/b") == "at 7"
    assert "cli/b at" in run("remove", "cli/b", "never", "--yes")
    assert json.loads(run("remove", "cli/[red]a", "cli/b", "--yes", "--json"))["removed"] == {
        "cli/[red]a": "at 7",
        "cli/b": None,
    }
    assert "no publisher keys" in run("list", "--prefix", "cli/")
