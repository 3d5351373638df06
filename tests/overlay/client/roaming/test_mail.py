"""Mail between clients, chat and files: at real doors."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m4cast.overlay.client import Channel, Client
from m4cast.overlay.client.roaming.mail import table_of_messages
from m4cast.overlay.errors import LocalProtocolError, RefusedError
from m4cast.overlay.protocol.clients.letters import MailMessage
from m4cast.overlay.protocol.clients.transfers import CHUNK_BYTES
from tests.overlay.client.roaming.test_client import SECRET, client_of, created, got, publish, until_known
from tests.overlay.client.roaming.waiting import until
from tests.overlay.door.served import Served, serving, told_doors

IDLE_S = 1.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mail"), 3, settings=told_doors(3)) as served:
        yield served


def pair(served: Served, name: str, **settings: Any) -> tuple[Client, Client]:
    """Two clients at different nodes, which know of each other."""
    one, other = created(served, f"{name}-a", **settings), created(served, f"{name}-b", at=1, **settings)
    until_known(served, one.key)
    until_known(served, other.key)
    return one, other


def texts(client: Client, count: int) -> list[str]:
    found: list[str] = []
    for message in client.inbox(idle_s=10):
        found.append(message.text)
        if len(found) == count:
            break
    return found


def test_mail_reaches_its_client_alone_and_once(served: Served) -> None:
    ann, bob = pair(served, "letter")
    carl = created(served, "letter-c", at=2)
    until_known(served, carl.key)
    assert list(carl.inbox(idle_s=IDLE_S)) == []
    ann.send(bob.key, "first")
    ann.send([bob.key, carl.key], "second", content=b"\0\1")
    assert texts(bob, 2) == ["first", "second"]
    assert [(each.sender, each.text, each.content) for each in carl.inbox(idle_s=IDLE_S)] == [
        (ann.key, "second", b"\0\1")
    ]
    assert list(bob.inbox(idle_s=IDLE_S)) == []
    bob.send(ann.key, "back")
    assert texts(ann, 1) == ["back"]


def test_mail_waits_for_a_client_that_is_away_and_comes_wherever_it_connects(served: Served) -> None:
    ann, bob = pair(served, "away")
    bob.disconnect()  # it has never looked for mail
    ann.send(bob.key, "one")
    back = client_of(served, bob.key, at=2)
    back.connect()
    assert texts(back, 1) == ["one"]
    back.disconnect()
    ann.send(bob.key, "two")
    third = client_of(served, bob.key, at=0)
    third.connect()
    assert texts(third, 1) == ["two"]
    assert list(third.inbox(idle_s=IDLE_S)) == []

    def mailboxes() -> list[str]:
        ids = [each for node in served.nodes for each in list(node.driver.node.interest.registrations.rows)]
        return [each for each in ids if each.startswith("_mailbox/") and each.endswith(f"/{bob.key}")]

    until(mailboxes, [f"_mailbox/3/{bob.key}"])  # former access points have let go


def test_a_message_is_read_though_others_that_came_with_it_are_not(served: Served) -> None:
    ann, bob = pair(served, "few")
    ann.send(bob.key, "one")
    batch = [MailMessage(bob.key, ann.key, "text", f"{text}-{ann.key}", text=text) for text in ("two", "three", "four")]
    ann.channel.publish("_mail", table_of_messages(batch), acks=1)
    assert texts(bob, 2) == ["one", "two"]
    bob.disconnect()
    back = client_of(served, bob.key, at=2)
    back.connect()
    assert texts(back, 2) == ["three", "four"]
    assert list(back.inbox(idle_s=IDLE_S)) == []
    back.disconnect()


def test_mail_is_announced_by_the_rows_of_clients_alone(served: Served) -> None:
    ann, bob = pair(served, "row")
    ann.send(bob.key, "hello")
    assert texts(bob, 1) == ["hello"]
    registrations = Channel([served.addresses[0]]).subscriptions("_mail")["registrations"]
    assert registrations == []


def test_mail_to_an_unknown_client_sends_nothing(served: Served) -> None:
    ann, bob = pair(served, "nobody")
    with pytest.raises(RefusedError, match="no client is known under the key 'nobody-x'") as refused:
        ann.send([bob.key, "nobody-x"], "lost")
    assert refused.value.code == "unknown-client"
    assert list(bob.inbox(idle_s=IDLE_S)) == []
    with pytest.raises(LocalProtocolError, match="read it with inbox"):
        ann.subscribe("_mail")


def test_profiles_and_mail_have_positions_of_their_own(served: Served, tmp_path: Path) -> None:
    ann, bob = pair(served, "both")
    bob.subscribe("both")
    ann.publish("both", [{"n": 1}], acks=2)
    ann.send(bob.key, "letter")
    assert texts(bob, 1) == ["letter"]
    assert [rows.column("n").to_pylist() for rows in bob.notifications(idle_s=IDLE_S)] == [[1]]
    assert bob.profiles == {"default": ("both", None)}


def in_background(client: Client, seconds: float) -> threading.Thread:
    thread = threading.Thread(target=client.serve, args=(seconds,))
    thread.start()
    return thread


def test_chat(served: Served) -> None:
    ann, bob = pair(served, "chat")
    carl = created(served, "chat-c", at=2)
    until_known(served, carl.key)
    thread = in_background(bob, 3)
    assert ann.chat(bob.key)
    ann.say("hello")
    assert not carl.chat(bob.key, timeout_s=10)  # busy
    thread.join()
    assert [(each.kind, each.text) for each in bob.inbox(idle_s=IDLE_S)] == [("chat-ask", ""), ("chat-text", "hello")]
    bob.say("hello yourself")
    bob.end_chat()
    assert [(each.kind, each.text) for each in ann.inbox(idle_s=IDLE_S)] == [
        ("chat-accept", ""),
        ("chat-text", "hello yourself"),
        ("chat-end", ""),
    ]
    with pytest.raises(LocalProtocolError, match="there is no chat"):
        ann.say("more")
    bob.disconnect()
    assert not ann.chat(bob.key)  # offline


def test_a_file_is_fetched_from_its_owner(served: Served, tmp_path: Path) -> None:
    ann, bob = pair(served, "file")
    file = tmp_path / "thesis.pdf"
    file.write_bytes(bytes(range(256)) * 5_000)  # three chunks
    assert ann.offer(str(file), "files", title="P2P-DIET", acks=2) == "thesis.pdf"
    asked: list[Any] = []
    (tmp_path / "there").mkdir()
    folder = str(tmp_path / "there")

    def confirm(resource: dict[str, Any]) -> bool:
        asked.append((resource["name"], resource["type"], resource["size"], resource["title"]))
        return len(asked) > 1

    with pytest.raises(RefusedError, match="was not requested"):
        bob.fetch(ann.key, "thesis.pdf", "files", folder=folder, confirm=confirm)
    thread = in_background(ann, 3)
    found = bob.fetch(ann.key, "thesis.pdf", "files", folder=folder, confirm=confirm)
    assert found.read_bytes() == file.read_bytes()
    assert asked == [("thesis", "pdf", 1_280_000, "P2P-DIET")] * 2
    with pytest.raises(LocalProtocolError, match="exists"):
        bob.fetch(ann.key, "thesis.pdf", "files", folder=folder)
    thread.join()
    assert ann.withdraw("thesis.pdf", "files", acks=2)
    with pytest.raises(RefusedError, match="does not exist, or not any more"):
        bob.fetch(ann.key, "thesis.pdf", "files", folder=folder)
    assert file.exists()


def test_a_rendezvous_with_an_owner_that_is_away(served: Served, tmp_path: Path) -> None:
    ann, bob = pair(served, "meeting")
    content = b"x" * (2 * CHUNK_BYTES) + b"y"
    (tmp_path / "song.mp3").write_bytes(content)
    (tmp_path / "large.mp3").write_bytes(content)
    folder = tmp_path / "there"
    folder.mkdir()
    owner = created(served, "meeting-o", file=str(tmp_path / "owner.json"))
    until_known(served, owner.key)
    owner.offer(str(tmp_path / "song.mp3"), "songs", acks=2)
    owner.offer(str(tmp_path / "large.mp3"), "songs", acks=2)
    owner.disconnect()
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(RefusedError, match="arrange a rendezvous"):
        bob.fetch(owner.key, "song.mp3", "songs", folder=str(folder))
    bob.rendezvous(owner.key, "song.mp3", folder=str(folder))
    bob.rendezvous(owner.key, "large.mp3", folder=str(folder), accepts_bytes=len(content) - 1)
    bob.rendezvous(owner.key, "gone.mp3", folder=str(folder))
    cancelled = bob.rendezvous(owner.key, "song.mp3", folder=str(tmp_path / "elsewhere"))
    assert bob.cancel_transfer(cancelled)
    assert [each["state"] for each in bob.transfers()] == ["waiting"] * 3 + ["cancelled"]
    bob.disconnect()
    back = Client(served.addresses[2:], file=str(tmp_path / "owner.json"))  # elsewhere
    back.connect()
    back.serve(idle_s=3)
    back.disconnect()
    bob.connect(at=served.addresses[2])  # the owner is gone again, and the requester elsewhere
    bob.serve(idle_s=2)
    states = {each["name"]: (each["state"], each["detail"]) for each in bob.transfers()[:3]}
    assert states == {
        "song.mp3": ("received", ""),
        "large.mp3": ("refused", f"it has {len(content)} bytes, and at most {len(content) - 1} are accepted"),
        "gone.mp3": ("refused", "it is not offered any more"),
    }
    assert (folder / "song.mp3").read_bytes() == content
    assert [each.name for each in folder.iterdir()] == ["song.mp3"]
    assert ann.online(owner.key) is False


def test_requests_of_one_file_and_files_of_one_name_are_told_apart(served: Served, tmp_path: Path) -> None:
    """P57: two owners have a file of the same name, and two clients ask both of them for it."""
    owners, askers = pair(served, "same-name"), pair(served, "same-request")
    wanted: dict[Path, bytes] = {}
    for owner in owners:
        path = tmp_path / owner.key / "list.txt"
        path.parent.mkdir()
        path.write_bytes(owner.key.encode() * 1_000)
        owner.offer(str(path), "lists", acks=2)
        for asker in askers:
            folder = tmp_path / f"{asker.key} of {owner.key}"
            folder.mkdir()
            asker.rendezvous(owner.key, "list.txt", folder=str(folder))
            wanted[folder / "list.txt"] = path.read_bytes()
    with pytest.raises(LocalProtocolError, match="is under way"):  # it would take the place of the other owner's
        askers[0].rendezvous(owners[1].key, "list.txt", folder=str(next(iter(wanted)).parent))
    for owner in owners:
        owner.serve(idle_s=2)

    def arrived() -> dict[Path, bytes]:
        for asker in askers:
            asker.serve(idle_s=0.5)
        return {path: path.read_bytes() for path in wanted if path.exists()}

    until(arrived, wanted)


def test_a_token_sends_mail_in_the_names_of_its_keys_alone(tmp_path: Path) -> None:
    secret = "the secret of the shops"
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "shops"\nsecret = "{secret}"\nclient = ["shop-*"]\n')
    with serving(tmp_path, 1, tokens=f"file:{tokens}") as served:
        shop = Client(served.addresses, key="shop-1", credential=SECRET, token=secret)
        shop.connect(create=True)
        shop.send("shop-1", "a note")
        assert texts(shop, 1) == ["a note"]
        with pytest.raises(RefusedError, match="no right 'client' on key 'bank-1'"):
            Channel(served.addresses, token=secret).publish("_mail", [{"_to": "shop-1", "_from": "bank-1"}])
        with pytest.raises(RefusedError, match="no right 'read' on topic '_mail'"):
            Channel(served.addresses, token=secret).read("_mail")


@pytest.mark.parametrize("acknowledge", ["manual", "auto"])
def test_whoever_writes_and_reads_mail_acknowledges_no_rows_by_it(served: Served, acknowledge: str) -> None:
    topic = f"writing-{acknowledge}"
    client = created(served, topic, acknowledge=acknowledge)
    client.subscribe(topic, start="earliest")
    publish(served, topic, 0, 3)
    given: list[int] = []

    def in_hand(rows: Any) -> None:
        given.extend(rows.column("n").to_pylist())
        client.send(topic, "I am at it")
        assert [message.text for message in client.inbox(idle_s=2)] == ["I am at it"]
        client.subscribe(topic, "n < 0", name="more")
        client.unsubscribe("more")
        raise InterruptedError

    with pytest.raises(InterruptedError):
        client.run(in_hand)
    back = client_of(served, topic)
    back.connect()
    assert (given, got(back)) == ([0, 1, 2], [0, 1, 2])
    assert list(back.inbox(idle_s=IDLE_S)) == []
    back.disconnect()
