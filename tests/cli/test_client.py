"""`m4cast client` at real nodes: made, subscribed, away, back at another node."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.client import Channel, Client
from tests.overlay.client.roaming.test_client import until_known
from tests.overlay.client.roaming.waiting import until
from tests.overlay.door.served import Served, serving, told_doors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), 2, settings=told_doors(2)) as served:
        yield served


def run(*words: str, code: int = 0) -> str:
    said = CliRunner().invoke(main, ["client", *words])
    assert said.exit_code == code, said.output
    return said.output


def test_a_client_leaves_and_returns_elsewhere(served: Served, tmp_path: Path) -> None:
    first, second = served.addresses
    file = str(tmp_path / "shop.json")
    assert "shop-7: created at" in run("new", file, "--name", "shop-7", "--node", first)
    assert "exists: choose another name" in run("new", file, "--node", first, code=2)
    run("subscribe", file, "orders", "--where", "n > 2", "--name", "large")
    Channel([first]).publish("orders", [{"n": n} for n in range(5)], acks=1)
    answer = json.loads(run("connect", file, "--node", second, "--json"))
    assert (answer["node"], answer["session"], answer["waiting_max"]) == (second, 2, 5)
    lines = run("tail", file, "--idle-s", "0.5", "--node", second).splitlines()
    assert [json.loads(line)["n"] for line in lines] == [3, 4]
    assert run("tail", file, "--idle-s", "0.3", "--node", second) == ""
    assert "shop-7: offline; attached to n1" in run("finger", "shop-7", "--node", second)
    assert "no node knows this client" in run("finger", "shop-8", "--node", second)
    assert "shop-7" in run("list", "--node", second)
    assert "large: given up" in run("unsubscribe", file, "--name", "large", "--node", second)
    assert "its rows wait" in run("disconnect", file, "--node", second)
    assert "shop-7 at" in run("remove", "shop-7", "--yes", "--node", second)
    assert json.loads(run("list", "--node", second, "--json"))["clients"] == []


def test_rows_that_were_not_printed_come_next(served: Served, tmp_path: Path) -> None:
    first, file = served.addresses[0], str(tmp_path / "few.json")

    def printed(*words: str) -> list[int]:
        return [json.loads(line)["n"] for line in run("tail", file, *words).splitlines()]

    Channel([first]).publish("few", [{"n": n} for n in range(5)], acks=1)
    run("new", file, "--name", "takes-few", "--node", first)
    run("subscribe", file, "few", "--where", "n < 0", "--name", "none")
    run("subscribe", file, "few", "--from", "earliest")  # filled first
    assert printed("--max-rows", "2") == [0, 1]
    assert printed("--max-rows", "2") == [2, 3]
    Channel([first]).publish("few", [{"n": n} for n in range(5, 8)], acks=1)
    assert printed("--max-rows", "2") == [4, 5]
    assert printed("--idle-s", "0.3") == [6, 7]


def test_a_profile_begins_with_what_stands(served: Served, tmp_path: Path) -> None:
    first, file = served.addresses[0], str(tmp_path / "reader.json")
    writer = Channel([first]).table_writer("offers", "ann")
    writer.put({"lamp": {"price": 20}, "chair": {"price": 75}})
    writer.put({"lamp": {"price": 25}})
    run("new", file, "--name", "reads-tables", "--node", first)
    assert "earliest|latest|standing|TIME" in run("subscribe", "--help")
    run("subscribe", file, "offers", "--from", "standing")
    writer.put({"chair": {"price": 70}})
    lines = run("tail", file, "--idle-s", "0.5").splitlines()
    assert sorted(json.loads(line)["price"] for line in lines[:2]) == [25, 75]
    assert [json.loads(line)["price"] for line in lines[2:]] == [70]


def test_access_points_are_the_doors_of_the_roster(served: Served) -> None:
    doors = json.loads(run("access-points", "--node", served.addresses[0], "--json"))["access_points"]
    assert doors == sorted(node.driver.node.roster.own.door for node in served.nodes)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "there is no such file" in run("tail", str(tmp_path / "nothing.json"), code=2)
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    assert "cannot be read as a client's file" in run("tail", str(tmp_path / "broken.json"), code=2)


def test_mail_chat_and_files(served: Served, tmp_path: Path) -> None:
    first, second = served.addresses
    ann, bob = str(tmp_path / "ann.json"), str(tmp_path / "bob.json")
    run("new", ann, "--name", "cli-ann", "--node", first, "--node", second)
    run("new", bob, "--name", "cli-bob", "--node", second, "--node", first)
    until_known(served, "cli-bob")
    until_known(served, "cli-ann")
    assert "cli-ann: sent to cli-bob" in run("send", ann, "cli-bob", "the lamps are here")
    (message,) = run("inbox", bob, "--max-messages", "1", "--idle-s", "20").splitlines()
    assert {**json.loads(message), "id": "", "sent_ms": 0} == {
        "from": "cli-ann",
        "kind": "text",
        "text": "the lamps are here",
        "name": "",
        "id": "",
        "sent_ms": 0,
    }
    assert "no client is known under the key 'cli-x'" in run("send", ann, "cli-x", "hello", code=2)
    song = tmp_path / "song.mp3"
    song.write_bytes(b"la" * 1_000)
    assert "offers song.mp3 in resources" in run("offer", ann, str(song), "--title", "a song")
    until(lambda: "resources" in Channel([second]).topics(), True)
    answer = json.loads(run("query", bob, "resources", "--where", "type = mp3", "--language", "diet"))
    assert (answer["_owner"], answer["name"], answer["size"], answer["title"]) == ("cli-ann", "song", 2_000, "a song")
    assert "arrange a rendezvous" in run("fetch", bob, "cli-ann", "song.mp3", "--yes", code=2)
    (tmp_path / "there").mkdir()
    asked = json.loads(run("rendezvous", bob, "cli-ann", "song.mp3", "--folder", str(tmp_path / "there"), "--json"))
    assert f"{asked['id']} song.mp3 of cli-ann: waiting" in run("transfers", bob)
    run("serve", ann, "--idle-s", "2")
    assert f"{asked['id']} song.mp3 of cli-ann: received" in run("transfers", bob, "--idle-s", "2")
    assert (tmp_path / "there" / "song.mp3").read_bytes() == song.read_bytes()
    assert "does not answer" in run("chat", ann, "cli-bob")
    assert "offered no longer" in run("offer", ann, str(song), "--withdraw")


def test_a_chat(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = served.addresses
    ann = str(tmp_path / "ann.json")
    run("new", ann, "--name", "chat-ann", "--node", first)
    partner = Client.new([second], key="chat-bob")
    until_known(served, "chat-bob")
    until_known(served, "chat-ann")
    (tmp_path / "tune.mp3").write_bytes(b"tune")
    partner.offer(str(tmp_path / "tune.mp3"), acks=1)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    heard: list[str] = []

    def answer() -> None:
        for message in partner.inbox(idle_s=5):
            if message.kind == "chat-text":
                heard.append(message.text)
                partner.say(f"you said {message.text}")
                partner.end_chat()
                return

    thread = threading.Thread(target=answer)
    thread.start()
    said = CliRunner().invoke(
        main, ["client", "chat", ann, "chat-bob", "--idle-s", "10"], input="get tune.mp3\nhello\n"
    )
    thread.join()
    assert said.exit_code == 0, said.output
    assert heard == ["hello"]
    assert "chat-bob: you said hello" in said.output
    assert (tmp_path / "here" / "tune.mp3").read_bytes() == b"tune"
    partner.disconnect()
