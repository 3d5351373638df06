"""A local cluster of real processes, as somebody who tries things runs it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from m4cast.aio import Channel as AsyncChannel
from m4cast.cli import main
from m4cast.cluster.detached_process import DetachedProcess
from m4cast.cluster.local import LocalCluster, NodeFailedError
from m4cast.overlay.errors import M4castError


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["cluster", *words])


def done(*words: str) -> list[dict[str, Any]]:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert list(said) == ["nodes"]
    nodes: list[dict[str, Any]] = said["nodes"]
    contract = ["name", "address", "http", "pid", "state"]
    assert all(list(node) == [*contract, "door", "listen", "neighbours", "web"] for node in nodes)
    assert all(node["door"] == node["address"] != node["listen"] for node in nodes)
    return nodes


def states(nodes: list[dict[str, Any]]) -> dict[str, str]:
    return {node["name"]: node["state"] for node in nodes}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of four nodes that the command brought up."""
    folder = tmp_path_factory.mktemp("up") / "cluster"
    try:
        nodes = done("up", "--nodes", "4", "--dir", str(folder))
        assert states(nodes) == dict.fromkeys(("n1", "n2", "n3", "n4"), "full")
        yield folder
    finally:
        with suppress(M4castError):
            LocalCluster.open(folder).down()


def test_a_node_is_killed_comes_back_and_has_what_was_published_meanwhile(folder: Path) -> None:
    local = LocalCluster.open(folder)
    pids = {node["name"]: node["pid"] for node in done("status", "--dir", str(folder))}
    after_kill = done("kill", "n3", "--dir", str(folder))
    assert after_kill[2]["neighbours"] == []
    assert states(after_kill) == {"n1": "full", "n2": "full", "n3": "down", "n4": "full"}
    assert after_kill[2]["pid"] is None
    assert not Path(f"/proc/{pids['n3']}/cmdline").exists()
    local.channel("n1").publish("while-away", [{"id": number} for number in range(10)], acks=2)

    assert "n3 is not running" in run("kill", "n3", "--dir", str(folder)).output
    back = done("start", "n3", "--dir", str(folder))
    assert states(back)["n3"] == "full"
    assert back[2]["pid"] not in (None, pids["n3"])
    assert f"is already running, as process {back[2]['pid']}" in run("start", "n3", "--dir", str(folder)).output
    tail = local.channel("n3").tail("while-away", "earliest", idle_s=30)
    ids = [row for batch in tail for row in _ids(batch, tail)]
    assert ids == list(range(10))


def _ids(batch: Any, tail: Any) -> list[int]:
    ids: list[int] = batch.column("id").to_pylist()
    if ids[-1] == 9:
        tail.close()
    return ids


def test_a_tail_by_websocket_outlives_its_nodes_and_gets_every_row_once(folder: Path) -> None:
    """Its nodes are killed in turns, while rows are published elsewhere."""
    local = LocalCluster.open(folder)
    published = 0

    async def follow(webs: list[str]) -> list[int]:
        nonlocal published
        seen: list[int] = []
        async with AsyncChannel(webs) as channel, AsyncChannel(local.node("n1").web) as publisher:

            async def tail() -> None:
                async for rows in channel.tail("killed", "earliest"):
                    seen.extend(rows.column("id").to_pylist())
                    if len(seen) >= 40:
                        return

            following = asyncio.get_running_loop().create_task(tail())
            for name in ("n4", "n2"):
                for _ in range(10):
                    await publisher.publish("killed", [{"id": published}, {"id": published + 1}])
                    published += 2
                await asyncio.to_thread(local.kill, name)
                await publisher.publish("after-a-kill", [{"id": published}])
                await asyncio.to_thread(local.start, name)
            async with asyncio.timeout(60):
                await following
        return seen

    assert asyncio.run(follow([local.node("n4").web, local.node("n2").web])) == list(range(40))
    status = json.loads(urllib.request.urlopen(f"http://{local.node('n1').web}/status", timeout=30).read())
    assert status["name"] == "n1"


def test_a_node_more_finds_its_place(folder: Path) -> None:
    before = done("status", "--dir", str(folder))
    after = done("add", "--dir", str(folder))
    assert [{**node, "neighbours": None} for node in after[: len(before)]] == [
        {**node, "neighbours": None} for node in before
    ]
    (new,) = after[len(before) :]
    assert (new["name"], new["state"]) == (f"n{len(after)}", "full")
    sights = LocalCluster.open(folder).look()
    assert {len(sight.status["neighbours"]) for sight in sights} == {4}


def test_topology_asks_every_node_of_a_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = LocalCluster.open(folder)
    monkeypatch.setenv("M4CAST_CLUSTER_DIR", str(folder))
    found = f"m4cast: using the cluster in {folder}: {', '.join(local.names())}\n"
    for words, said in ((["--node", local.node("n1").door], ""), ([], found)):
        result = CliRunner().invoke(main, ["topology", *words, "--json"])
        assert result.exit_code == 0, result.output
        assert result.stderr == said
        graph = json.loads(result.stdout)
        assert {node["state"] for node in graph["nodes"]} == {"full"}, "each was asked"
        assert graph["half_links"] == []
        assert len(graph["nodes"]) == len(local.names())


def test_retention_is_set_at_every_node_of_the_channel(folder: Path) -> None:
    cluster = LocalCluster.open(folder)
    *rest, last = cluster.running()
    words = ["topic", "retention", "--all-nodes", "--node", cluster.node("n1").door, "--json", "everywhere"]

    def set_to(size: int) -> tuple[int, dict[str, int]]:
        result = CliRunner().invoke(main, [*words, "--max-bytes", str(size)])
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert (result.exit_code == 0) == (f"not set at {last}" not in result.stderr), result.stderr
        return result.exit_code, {line["node"]: line["max_bytes"] for line in lines}

    assert set_to(77) == (0, {cluster.node(name).door: 77 for name in (*rest, last)})
    cluster.kill(last)
    try:
        assert set_to(78) == (1, {cluster.node(name).door: 78 for name in rest}), "the others are set"
    finally:
        cluster.start(last)


def test_a_stopped_process_is_silent(folder: Path) -> None:
    pid = done("status", "--dir", str(folder))[1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert states(done("status", "--dir", str(folder)))["n2"] == "silent"
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_cluster_that_is_up_or_half_up_is_left_alone(folder: Path) -> None:
    is_up = run("up", "--dir", str(folder))
    assert is_up.exit_code == 2 and "already up" in is_up.output
    done("kill", "n4", "--dir", str(folder))
    half_up = run("up", "--dir", str(folder))
    assert half_up.exit_code == 2 and "down: n4): run `cluster start n4`" in half_up.output
    done("start", "n4", "--dir", str(folder))
    other = run("up", "--nodes", "3", "--dir", str(folder))
    assert other.exit_code == 2 and "omit --nodes, --degree, --tls and --tokens" in other.output


def test_a_node_is_drained_or_shut_down_from_the_command_line(folder: Path) -> None:
    local = LocalCluster.open(folder)
    local.channel("n4").publish("left-behind", [{"id": 1}])
    for name, words, said in (
        ("n4", ("drain", "--copies", "2"), "other nodes have all its rows on disk"),
        ("n3", ("shutdown",), "n3 has left"),
    ):
        result = CliRunner().invoke(main, [*words, "--node", local.node(name).door])
        assert result.exit_code == 0, result.output
        assert said in result.output
        assert ("which no other node has: ingest first" in result.stderr) == (words[0] == "drain")
        process = local.process(name)
        assert process is None or process.wait(30)
    assert local.channel("n1").read("left-behind").num_rows == 1
    done("start", "n3", "n4", "--dir", str(folder))


def test_a_table_is_for_people(folder: Path) -> None:
    shown = run("status", "--dir", str(folder)).output
    assert shown.splitlines()[0].split() == ["name", "state", "neighbours", "door", "web", "http", "listen", "pid"]
    assert "n1" in shown and "full" in shown


def test_one_command_at_a_time(folder: Path) -> None:
    local = LocalCluster.open(folder)
    with local._locked():
        busy = run("add", "--dir", str(folder))
    assert busy.exit_code == 2 and "another command is changing this cluster" in busy.output


def test_it_goes_down_in_order_and_up_again(folder: Path) -> None:
    LocalCluster.open(folder).channel("n1").publish("kept", [{"id": 1}])
    before = done("status", "--dir", str(folder))
    assert f"stopped {len(before)} nodes" in run("down", "--dir", str(folder)).output
    assert set(states(done("status", "--dir", str(folder))).values()) == {"down"}
    for node in before:
        assert "left the channel" in (folder / node["name"] / "log").read_text(encoding="utf-8")
        assert not (folder / node["name"] / "pid").exists()
    again = done("up", "--dir", str(folder))
    assert set(states(again).values()) == {"full"}
    assert [node["address"] for node in again] == [node["address"] for node in before]
    assert LocalCluster.open(folder).channel("n2").read("kept").column("id").to_pylist() == [1]


def test_the_whole_channel_is_shut_down_through_one_node(folder: Path) -> None:
    local = LocalCluster.open(folder)
    words = ["shutdown", "--node", local.node("n2").door, "--channel"]
    wrong = CliRunner().invoke(main, [*words, "m4cast/other"])
    assert wrong.exit_code == 2 and "name the one to shut down" in wrong.stderr
    result = CliRunner().invoke(main, [*words, "m4cast/default", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"channel": "m4cast/default", "nodes": sorted(local.names())}
    for name in local.names():
        process = local.process(name)
        assert process is None or process.wait(30)
    assert set(states(done("status", "--dir", str(folder))).values()) == {"down"}


def test_with_tls_only_clients_with_a_certificate_are_answered(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    try:
        shown = run("up", "--nodes", "1", "--tls", "--dir", str(folder)).output
        line = shown.splitlines()[-1]
        assert line.startswith(
            f"export M4CAST_NODE={LocalCluster.open(folder).node('n1').door} M4CAST_CA={folder}/certs/ca.crt"
        )
        assert states(done("add", "--dir", str(folder))) == {"n1": "full", "n2": "full"}
        door = LocalCluster.open(folder).node("n2").door
        words = [word for name, path in LocalCluster.open(folder).credentials().items() for word in (f"--{name}", path)]
        answered = CliRunner().invoke(main, ["status", "--node", door, "--json", *words])
        assert (json.loads(answered.stdout)["name"], json.loads(answered.stdout)["door"]) == ("n2", door)
        found = CliRunner().invoke(main, ["status", "--json"], env={"M4CAST_CLUSTER_DIR": str(folder)})
        assert json.loads(found.stdout)["name"] == "n1", "with the certificates of the cluster"
        healthy = CliRunner().invoke(main, ["doctor", "--node", door, *words])
        assert "n2 answers" in healthy.output
        refused = CliRunner().invoke(main, ["status", "--node", door])
        assert refused.exit_code == 2 and "cannot be reached" in refused.output
        assert "hint: the door may speak TLS: give --ca" in refused.stderr
        link = CliRunner().invoke(main, ["status", "--node", LocalCluster.open(folder).node("n2").listen, *words])
        assert link.exit_code == 2 and "not its `listen`" in link.stderr
    finally:
        LocalCluster.open(folder).down()


def test_a_cluster_with_tokens_comes_up_and_answers_those_who_have_one(tmp_path: Path) -> None:
    folder, tokens = tmp_path / "c", tmp_path / "tokens.toml"
    tokens.write_text('[[token]]\nname = "me"\nsecret = "sixteen-letters-or-more"\nread = ["*"]\n', encoding="utf-8")
    try:
        result = run("up", "--nodes", "2", "--tls", "--tokens", str(tokens), "--dir", str(folder))
        assert result.exit_code == 0, result.output
        assert "export M4CAST_NODE=127.0.0.1:" in result.output
        assert f"M4CAST_CA={folder}/certs/ca.crt M4CAST_TOKEN=" in result.output
        nodes = done("status", "--dir", str(folder))
        assert {node["name"]: node["neighbours"] for node in nodes} == {"n1": ["n2"], "n2": ["n1"]}
        assert states(nodes) == {"n1": "full", "n2": "full"}
        local = LocalCluster.open(folder)
        with pytest.raises(M4castError, match="no token"):
            local.channel("n1").topics()
        assert local.channel("n1", token="sixteen-letters-or-more").topics() == []
    finally:
        LocalCluster.open(folder).down()


def test_a_node_that_does_not_come_shows_its_log_and_nothing_is_left_running(tmp_path: Path) -> None:
    local = LocalCluster.make(tmp_path / "c", 2)
    conf = tmp_path / "c" / "n2" / "node.toml"
    conf.write_text(conf.read_text(encoding="utf-8") + "colour = 1\n", encoding="utf-8")
    with pytest.raises(NodeFailedError, match="n2 stopped: see") as failed:
        local.up()
    assert "colour = 1: unknown setting" in failed.value.log_tail
    assert local.running() == []
    said = run("up", "--dir", str(tmp_path / "c"))
    assert said.exit_code == 2
    assert "colour = 1: unknown setting" in said.output and "Traceback" not in said.output


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    first = LocalCluster.make(tmp_path / "first", 1)
    second = LocalCluster.make(tmp_path / "second", 1)
    conf = tmp_path / "second" / "n1" / "node.toml"
    taken = first.node("n1").door
    conf.write_text(conf.read_text(encoding="utf-8").replace(second.node("n1").door, taken), encoding="utf-8")
    try:
        first.up()
        second.up()
        assert second.look()[0].state == "full"
        assert LocalCluster.open(second.folder).node("n1").door != taken
        assert "cannot open a door" in second.log("n1").read_text(encoding="utf-8")
    finally:
        first.down()
        second.down()


def test_a_port_of_the_web_door_that_was_taken_is_replaced(tmp_path: Path) -> None:
    cluster = LocalCluster.make(tmp_path / "cluster", 1)
    taken = cluster.node("n1").web
    host, _, port = taken.rpartition(":")
    try:
        with socket.create_server((host, int(port))):
            cluster.up()
        assert LocalCluster.open(cluster.folder).node("n1").web != taken
        assert "cannot serve HTTP" in cluster.log("n1").read_text(encoding="utf-8")
    finally:
        cluster.down()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"version": 99}', "has format version 99, but this m4cast reads version 1"),
        ("[]", "has format version None"),
        ("not json", "cannot be read"),
        (
            '{"version": 1, "nodes": [], "cluster": {"degree": 4}, "node": {}, "tls": false}',
            "is not the plan of a cluster",
        ),
        ('{"version": 1, "nodes": [{"name": 1}], "cluster": {}, "node": {}}', "is not the plan of a cluster"),
    ],
)
def test_a_plan_of_something_else_is_left_alone(tmp_path: Path, content: str, said: str) -> None:
    plan = tmp_path / "cluster.json"
    plan.write_text(content, encoding="utf-8")
    for words in (("up",), ("status",), ("add",), ("down",), ("kill", "n1"), ("start", "n1")):
        result = run(*words, "--dir", str(tmp_path))
        assert result.exit_code == 2
        assert said in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]
    assert plan.read_text(encoding="utf-8") == content


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    full = run("up", "--dir", str(tmp_path))
    assert full.exit_code == 2 and "is not empty" in full.output
    nowhere = run("status", "--dir", str(tmp_path))
    assert nowhere.exit_code == 2 and "there is no cluster here" in nowhere.output
    file = run("up", "--dir", str(tmp_path / "letter.txt"))
    assert file.exit_code == 2 and "cannot hold a cluster" in file.output
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--nodes", "0"), "0 is not in the range"),
        (("up", "--nodes", "65"), "65 is not in the range"),
        (("up", "--degree", "2"), "2 is not in the range"),
        (("kill",), "Missing argument"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    result = run(*words, "--dir", str(tmp_path))
    assert result.exit_code == 2
    assert said in result.output


def test_an_unplanned_node_is_refused(tmp_path: Path) -> None:
    LocalCluster.make(tmp_path / "c", 2)
    for words in (("kill", "n3"), ("start", "../n1")):
        result = run(*words, "--dir", str(tmp_path / "c"))
        assert result.exit_code == 2
        assert "there is no node" in result.output and "the nodes are n1, n2" in result.output


def test_a_process_that_got_the_number_of_another_is_not_touched(tmp_path: Path) -> None:
    local = LocalCluster.make(tmp_path / "c", 1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        start_ticks = int(Path(f"/proc/{stranger.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        assert DetachedProcess(stranger.pid, start_ticks, boot_id).is_running()
        for other in (
            DetachedProcess(stranger.pid, start_ticks - 1, boot_id),
            DetachedProcess(stranger.pid, start_ticks, "another-boot"),
        ):
            (tmp_path / "c" / "n1" / "pid").write_text(str(other), encoding="ascii")
            assert DetachedProcess.parse(str(other)) == other
            assert local.running() == []
            assert not other.send(signal.SIGKILL)
            assert other.wait(0)
        assert stranger.poll() is None
        stranger.communicate(b"\n")
    assert stranger.returncode == 0
    assert DetachedProcess.parse("12 x y") is None
