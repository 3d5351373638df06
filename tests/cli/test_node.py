"""Real node processes, as an operator runs them."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import flight

from m4cast.cli import main
from m4cast.overlay.client import Channel
from m4cast.overlay.net.certificates import make_ca, make_node_certificate
from tests.processes.clusters import until

TIMEOUT_S = 60


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


class Process:
    def __init__(
        self, folder: Path, name: str, port: int, door: int, portal: int, protection: str = "insecure = true\n"
    ) -> None:
        self.door = f"127.0.0.1:{door}"
        conf = folder / f"{name}.toml"
        conf.write_text(
            "[cluster]\nheartbeat_interval_ms = 200\nheartbeat_timeout_ms = 2000\n"
            f'[node]\nname = "{name}"\nlisten = "127.0.0.1:{port}"\nportals = ["127.0.0.1:{portal}"]\n'
            f'{protection}seek_retry_ms = 100\ndoor = "{self.door}"\nhttp = "127.0.0.1:0"\n'
        )
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "m4cast", "node", "--conf", str(conf), "--dir", str(folder / name)],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def until(self, text: str) -> None:
        """Read its log until a line has the text."""
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError(f"{text!r} never came:\n{''.join(self.lines)}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        assert self.popen.stderr is not None
        self.lines += self.popen.stderr.readlines()
        self.popen.wait(timeout=TIMEOUT_S)
        return self.popen.returncode


def has_neighbours(door: str, count: int) -> bool:
    return len(Channel([door]).status()["neighbours"]) == count


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[list[Process]]:
    ports = free_ports(6)
    processes: list[Process] = []
    try:
        for index in range(3):
            processes.append(Process(tmp_path, f"n{index}", ports[index], ports[3 + index], ports[0]))
            processes[-1].until("on the channel")
            if not any("clients are answered" in line for line in processes[-1].lines):
                processes[-1].until("clients are answered")
        for process in processes:
            until(lambda door=process.door: has_neighbours(door, 2), f"{process.door} has both others")  # type: ignore[misc]
        yield processes
    finally:
        for process in processes:
            process.popen.kill()
            process.popen.communicate()


def test_nodes_find_each_other_and_leave_in_order(trio: list[Process]) -> None:
    assert any("founded the channel" in line for line in trio[0].lines)
    assert any("insecure = true: links and door are unencrypted TCP" in line for line in trio[0].lines)
    assert trio[2].stop() == 0
    assert any("left the channel" in line for line in trio[2].lines)
    trio[0].until("n2 at")
    assert trio[1].stop(signal.SIGINT) == 0
    assert trio[0].stop() == 0


def test_a_node_ends_though_a_client_neither_writes_nor_goes(trio: list[Process]) -> None:
    """Flight cannot end a call that waits for its client's next record batch."""
    rows = pa.record_batch({"n": [1]})
    with flight.connect(f"grpc://{trio[2].door}") as client:
        writer, acks = client.do_put(flight.FlightDescriptor.for_path("t"), rows.schema)
        writer.write_batch(rows)
        assert acks.read() is not None
        assert trio[2].stop() == 0
        assert any("left the channel" in line for line in trio[2].lines)
        with pytest.raises(pa.ArrowException):
            writer.close()


def told_by(process: Process, path: str) -> str:
    """The answer of a node to an HTTP request."""
    if not any("http://" in line for line in process.lines):
        process.until("http://")
    (address,) = re.findall(r"http://[0-9.:]+/", "".join(process.lines))
    with urllib.request.urlopen(address + path, timeout=TIMEOUT_S) as reply:
        return str(reply.read(), "utf-8")


def test_a_node_reports_its_state_by_http(trio: list[Process]) -> None:
    for process in trio:
        assert json.loads(told_by(process, "readyz")) == {"status": "ready"}
        assert "\nm4cast_node_ready 1.0\n" in told_by(process, "metrics")


def test_rows_published_at_one_node_are_read_at_another(trio: list[Process], tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"id": 1, "what": "tea"}\n{"id": 2, "what": null}\n')
    run = CliRunner().invoke
    published = run(main, ["publish", "--node", trio[1].door, "--topic", "orders", "--acks", "2", "--json", str(file)])
    assert published.exit_code == 0, published.output
    assert json.loads(published.stdout)["rows"] == 2
    more = run(main, ["publish", "--node", trio[1].door, "--topic", "orders"], input='{"id": 3, "what": "jam"}\n')
    assert "published 1 row: 3 to 3 of orders" in more.output
    tailed = run(main, ["tail", "--node", trio[2].door, "--topic", "orders", "--from", "earliest", "--max-rows", "3"])
    assert tailed.exit_code == 0, tailed.output
    rows = [json.loads(line) for line in tailed.stdout.splitlines()]
    assert [(row["id"], row["what"], row["_sequence"]) for row in rows] == [(1, "tea", 1), (2, None, 2), (3, "jam", 3)]
    assert {row["_topic"] for row in rows} == {"orders"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["publish", "--node", "127.0.0.1:1", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["tail", "--node", "127.0.0.1:1", "--from", "yesterday"], "neither earliest, latest nor a time"),
        (["tail", "--node", "nowhere"], "'nowhere' has no port"),
    ],
)
def test_mistakes_of_clients_are_reported(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert said in result.output


def test_invalid_json_is_reported() -> None:
    result = CliRunner().invoke(main, ["publish", "--node", "127.0.0.1:1"], input="not json")
    assert result.exit_code == 2
    assert "is not jsonl" in result.output


def test_a_store_or_port_in_use_is_reported(trio: list[Process], tmp_path: Path) -> None:
    conf = tmp_path / "n0.toml"
    taken = CliRunner().invoke(main, ["node", "--conf", str(conf), "--dir", str(tmp_path / "n0")])
    assert taken.exit_code == 2
    assert "in use" in taken.output
    port = CliRunner().invoke(main, ["node", "--conf", str(conf), "--dir", str(tmp_path / "other")])
    assert port.exit_code == 2
    assert "cannot listen on 127.0.0.1" in port.output


def test_an_invalid_setting_is_reported(tmp_path: Path) -> None:
    conf = tmp_path / "node.toml"
    conf.write_text("[cluster]\ndegre = 4\n[node]\ninsecure = true\n")
    result = CliRunner().invoke(main, ["node", "--conf", str(conf), "--dir", str(tmp_path / "n")])
    assert result.exit_code == 2
    assert "did you mean degree" in result.output
    assert not (tmp_path / "n").exists()


@pytest.fixture
def protected(tmp_path: Path) -> Iterator[list[Process]]:
    make_ca(tmp_path)
    (tmp_path / "tokens.toml").write_text(
        f'[[token]]\nname = "t"\nsecret = "{SECRET}"\npublish = ["*"]\nread = ["*"]\n'
    )
    ports = free_ports(4)
    processes: list[Process] = []
    try:
        for index in range(2):
            make_node_certificate(tmp_path, f"n{index}")
            # Relative paths begin at the folder of the configuration.
            protection = f'tls_ca = "ca.crt"\ntls_cert = "n{index}.crt"\ntls_key = "n{index}.key"\n'
            protection += 'tokens = "file:tokens.toml"\n'
            process = Process(tmp_path, f"n{index}", ports[index], ports[2 + index], ports[0], protection)
            processes.append(process)
            process.until("clients are answered")
        processes[1].until("n0 at")
        yield processes
    finally:
        for process in processes:
            process.popen.kill()
            process.popen.communicate()


SECRET = "not a real secret"


def test_nodes_with_certificates_and_tokens(
    protected: list[Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any("plain TCP" in line for process in protected for line in process.lines)
    run = CliRunner().invoke
    monkeypatch.setenv("M4CAST_CA", str(tmp_path / "ca.crt"))
    refused = run(main, ["publish", "--node", protected[0].door], input='{"id": 1}\n')
    assert refused.exit_code == 2 and "unauthenticated: no token" in refused.output
    monkeypatch.setenv("M4CAST_TOKEN", SECRET)
    published = run(main, ["publish", "--node", protected[0].door, "--acks", "1"], input='{"id": 1}\n')
    assert published.exit_code == 0, published.output
    tailed = run(main, ["tail", "--node", protected[1].door, "--from", "earliest", "--max-rows", "1"])
    assert json.loads(tailed.stdout)["id"] == 1
    metrics = told_by(protected[0], "metrics")
    assert '\nm4cast_refused_total{reason="unauthenticated"} 1.0\n' in metrics
    assert "\nm4cast_link_queued_bytes{" in metrics
    assert [process.stop() for process in protected] == [0, 0]
    lines = "".join(line for process in protected for line in process.lines)
    assert "refused (unauthenticated, 1 so far)" in lines
    assert SECRET not in lines


def test_a_node_without_certificates_names_the_missing_settings(tmp_path: Path) -> None:
    conf = tmp_path / "node.toml"
    conf.write_text("[cluster]\n[node]\n")
    result = CliRunner().invoke(main, ["node", "--conf", str(conf), "--dir", str(tmp_path / "n")])
    assert result.exit_code == 2
    assert "set tls_ca, tls_cert and tls_key" in result.output and "insecure = true" in result.output
    assert not (tmp_path / "n").exists()


def test_a_node_starts_without_pandas() -> None:
    """Arrow imports it at the first value that it converts from Python: a fifth of the time until a node is there."""
    program = "import sys, m4cast.cli.nodes.node; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_node_without_a_federation_loads_none_of_it() -> None:
    program = (
        "import sys, m4cast.cli.nodes.node, m4cast.overlay.door.flight, m4cast.overlay.door.web.door\n"
        "rooms = 'm4cast.overlay.federation', 'm4cast.overlay.net.gateways'\n"
        "sys.exit(' '.join(name for name in sys.modules if name.startswith(rooms)) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


# ---- several nodes in one process


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """One process with a node on each of two channels, and the doors of these."""
    doors, words = {}, []
    for name, port in zip(("orders", "prices"), free_ports(2), strict=True):
        doors[name] = f"127.0.0.1:{port}"
        conf = tmp_path / f"{name}.toml"
        conf.write_text(
            f'[cluster]\nchannel_instance = "{name}"\n'
            f'[node]\nname = "{name}"\nlisten = "127.0.0.1:0"\ninsecure = true\ndoor = "{doors[name]}"\nhttp = ""\n'
        )
        words += ["--conf", str(conf), "--dir", str(tmp_path / name)]
    popen = subprocess.Popen([sys.executable, "-m", "m4cast", "node", *words], stderr=subprocess.PIPE, text=True)
    try:
        assert popen.stderr is not None
        answered = 0
        while answered < 2:
            line = popen.stderr.readline()
            assert line, "it ended"
            answered += "clients are answered" in line
        yield popen, doors
    finally:
        popen.kill()
        popen.communicate()


def test_one_process_has_nodes_on_two_channels_that_do_not_know_each_other(
    pair: tuple[subprocess.Popen[str], dict[str, str]],
) -> None:
    popen, doors = pair
    for name, door in doors.items():
        assert Channel([door]).publish("t", [{"from": name}])[0].first == 1
    for name, door in doors.items():
        assert Channel([door]).read("t").column("from").to_pylist() == [name]
    gone = CliRunner().invoke(main, ["shutdown", "--node", doors["orders"], "--channel", "m4cast/orders"])
    assert gone.exit_code == 0, gone.output
    assert Channel([doors["prices"]]).publish("t", [{"from": "prices"}])[0].first == 2, "the other goes on"
    popen.send_signal(signal.SIGTERM)
    _, said = popen.communicate(timeout=TIMEOUT_S)
    assert popen.returncode == 0
    assert re.search(r" orders INFO left the channel\n(.*\n)* *.* prices INFO left the channel\n", said), said


def test_each_node_of_a_process_has_its_store(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["node", "--conf", "a.toml", "--conf", "b.toml", "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "2 --conf and 1 --dir: give one of each per node" in result.output


def test_when_one_node_of_a_process_cannot_start_none_runs(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    words = []
    for name in ("a", "b"):
        conf = tmp_path / f"{name}.toml"
        conf.write_text(
            f'[node]\nname = "{name}"\nlisten = "127.0.0.1:{port}"\ninsecure = true\ndoor = ""\nhttp = ""\n[cluster]\n'
        )
        words += ["--conf", str(conf), "--dir", str(tmp_path / name)]
    command = [sys.executable, "-m", "m4cast", "node", *words]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ran.returncode == 2
    assert f"m4cast: cannot listen on 127.0.0.1:{port}" in ran.stderr
