"""The command as a whole: what it lists, and how it says no."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner

from m4cast import __version__
from m4cast.cli import CLIENTS, SUBCOMMANDS, main
from m4cast.overlay.client import Channel
from m4cast.overlay.client.doors import Doors
from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

COMMANDS = {
    "cluster",
    "demo",
    "doctor",
    "drain",
    "node",
    "publish",
    "shutdown",
    "sim",
    "status",
    "store",
    "tail",
    "topics",
    "topology",
}


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    listed = {line.split()[0] for line in result.output.partition("Commands:")[2].splitlines() if line.strip()}
    assert set(SUBCOMMANDS) >= COMMANDS
    assert set(SUBCOMMANDS) <= listed


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_every_command_has_help_and_its_commands_too(name: str) -> None:
    result = CliRunner().invoke(main, [name, "-h"])
    assert result.exit_code == 0, result.output
    assert "--help" in result.output
    command = main.get_command(None, name)  # type: ignore[arg-type]  # our group does not look at the context
    for part in getattr(command, "commands", {}):
        assert CliRunner().invoke(main, [name, part, "--help"]).exit_code == 0


def test_help_shows_a_pattern_as_a_shell_takes_it() -> None:
    shown = CliRunner().invoke(main, ["bridge", "kafka-in", "--help"]).output
    assert "(with \\1)" in " ".join(shown.split()) and "\\\\" not in shown


def test_listing_imports_nothing_heavy() -> None:
    script = (
        "import sys; from m4cast.cli import main; main(['--help'], standalone_mode=False);"
        "sys.exit(any(name in sys.modules for name in ('pyarrow', 'lmdb', 'rich', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_version_is_printed() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"m4cast, version {__version__}\n")


def test_an_unknown_command_is_reported() -> None:
    result = CliRunner().invoke(main, ["pubish"])
    assert result.exit_code == 2
    assert "No such command 'pubish'. Did you mean one of: 'publish', 'publishers'?" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topcs"], "Did you mean one of: 'topic', 'topics'?"),
        (["cluster", "stat"], "'start'"),
        (["topic", "descrbe"], "Did you mean 'describe'?"),
        (["topics", "--jsn"], "Did you mean '--json'?"),
        (["publish", "--topics", "x"], "'--topic'"),
    ],
)
def test_a_slip_of_the_keys_is_answered_with_what_was_meant(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert said in result.output


# ---- exit codes: 0 done; 1 what was looked at is not as it should be; 2 an error; 130 Ctrl-C


def leaves(name: str, command: click.Command | None = None) -> Iterator[list[str]]:
    command = command or main.get_command(None, name)  # type: ignore[arg-type]  # our group does not look at it
    parts = getattr(command, "commands", {})
    for part in parts:
        yield [name, part]
    if not parts:
        yield [name]


ARGUMENTS = {
    "kill": ["n1"],
    "start": ["n1"],
    "describe": ["orders"],
    "retention": ["orders"],
    "summaries": ["orders"],
    "compact": ["orders"],
    "create": ["orders"],
    "table": ["orders"],
    "query": ["orders"],
    "delete": ["orders", "--yes"],
    "remove": ["orders-import", "--yes"],
    "publish": ["EXAMPLE"],
    "explain": ["--where", "n = 1"],
    "route": ["--from", "n1", "--to", "n2"],
    "subscribe": ["orders"],
    "unsubscribe": ["orders"],
    "client new": ["NEW"],
    "client connect": ["CLIENT"],
    "client disconnect": ["CLIENT"],
    "client subscribe": ["CLIENT", "orders"],
    "client unsubscribe": ["CLIENT"],
    "client tail": ["CLIENT"],
    "client finger": ["shop-7"],
    "client query": ["CLIENT", "orders"],
    "client send": ["CLIENT", "shop-8", "hello"],
    "client inbox": ["CLIENT"],
    "client chat": ["CLIENT", "shop-8"],
    "client serve": ["CLIENT"],
    "client offer": ["CLIENT", "EXAMPLE"],
    "client fetch": ["CLIENT", "shop-8", "rows.csv"],
    "client rendezvous": ["CLIENT", "shop-8", "rows.csv"],
    "client transfers": ["CLIENT"],
}
"""What a command of a client or of a cluster needs besides."""
OWN = [*CLIENTS, "certs", "cluster", "demo", "node", "sim", "store"]


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_unknown_options_exit_with_2(name: str) -> None:
    for words in leaves(name):
        result = CliRunner().invoke(main, [*words, "--nonsense"])
        assert (result.exit_code, result.stdout) == (2, ""), words
        assert "--nonsense" in result.stderr


@pytest.mark.parametrize("name", sorted(CLIENTS - {"doctor"}))
def test_a_client_exits_with_2_without_a_node_and_with_130_on_ctrl_c(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"EXAMPLE": "rows.jsonl", "CLIENT": "client.json", "NEW": "new.json"}
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "client.json").write_text('{"key": "shop-7", "credential": "a secret of sixteen"}\n')
    for words in leaves(name):
        needed = ARGUMENTS.get(" ".join(words), ARGUMENTS.get(words[-1], []))
        more = [str(tmp_path / files[word]) if word in files else word for word in needed]
        asked = [*words, *more, "--node", "127.0.0.1:1"]
        away = CliRunner().invoke(main, asked)
        assert (away.exit_code, away.stdout) == (2, ""), words
        assert "127.0.0.1:1 cannot be reached: Connection refused" in away.stderr
        with monkeypatch.context() as patch:
            patch.setattr(Doors, "at", _pressed)
            interrupted = CliRunner().invoke(main, asked)
        assert interrupted.exit_code == (0 if words == ["tail"] else 130), words


def _pressed(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def test_a_doctor_who_finds_a_node_away_exits_with_1() -> None:
    assert CliRunner().invoke(main, ["doctor", "--node", "127.0.0.1:1"]).exit_code == 1


@pytest.mark.parametrize("part", ["add", "down", "kill", "start", "status"])
def test_a_cluster_that_is_not_there_exits_with_2(part: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cluster", part, *ARGUMENTS.get(part, []), "--dir", str(tmp_path / "none")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no cluster here" in result.stderr


@pytest.mark.parametrize("words", [["topics"], ["status"], ["topology"], ["topic", "describe", "t"], ["drain"]])
def test_ctrl_c_is_heard_while_a_node_hangs(words: list[str]) -> None:
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from m4cast.cli import main; main(prog_name='m4cast')"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        command = [sys.executable, "-c", script, *words, "--node", f"127.0.0.1:{listener.getsockname()[1]}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as popen:
            try:
                connected, _ = listener.accept()  # the call is under way, and is not answered
                with connected:
                    popen.send_signal(signal.SIGINT)
                    out, said = popen.communicate(timeout=20)  # less than a node has to answer
            finally:
                popen.kill()
    assert (popen.returncode, out, said) == (130, "", "m4cast: interrupted\n")


def test_a_deletion_that_is_not_confirmed_is_not_done_and_exits_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "delete_topic", _pressed)
    for answer in ("n\n", "", "what\n"):
        result = CliRunner().invoke(main, ["topic", "delete", "orders", "--node", "127.0.0.1:1"], input=answer)
        assert (result.exit_code, result.stdout) == (2, ""), answer
        assert "nothing was deleted: answer y, or give --yes" in result.stderr


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_command_that_prints_results_takes_json(name: str) -> None:
    for words in leaves(name):
        if words not in (["node"], ["store", "trust-clock"], ["client", "chat"], ["client", "serve"]):  # no results
            assert "--json" in CliRunner().invoke(main, [*words, "--help"]).output, words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "--node", "127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["topics", "--node", "127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["topology", "--node", "127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["drain", "--node", "127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["shutdown", "--node", "127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["node", "--conf", "nowhere.toml", "--dir", "nowhere"], "nowhere.toml: cannot be read"),
        (["store", "stats", "nowhere"], "nowhere"),
    ],
)
def test_an_error_is_one_line_without_a_traceback(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("m4cast: ") and said in line


@pytest.mark.parametrize(
    ("error", "said", "hint"),
    [
        (UnreachableError("n: Socket closed"), "n: Socket closed", "give --ca"),
        (UnreachableError("n: SSL routines::wrong version number"), "wrong version", "does not speak TLS"),
        (UnreachableError("n: certificate verify failed: self-signed"), "verify failed", "not issued by this --ca"),
        (UnreachableError("n: Failed parsing HTTP/2 (Expected SETTINGS)"), "HTTP/2", "`door`, not its `listen`"),
        (UnreachableError("n: missing selected ALPN property."), "ALPN", "`door`, not its `listen`"),
        (RefusedError("unauthenticated", "no token: send the header `x`"), "unauthenticated: no token", "--token"),
    ],
)
def test_an_error_that_new_users_meet_has_a_hint(
    monkeypatch: pytest.MonkeyPatch, error: M4castError, said: str, hint: str
) -> None:
    def status(self: Channel) -> NoReturn:
        raise error

    monkeypatch.setattr(Channel, "status", status)
    result = CliRunner().invoke(main, ["status", "--node", "127.0.0.1:1"])
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first.startswith("m4cast: ") and said in first and "send the header" not in first
    assert second.startswith("m4cast: hint: ") and hint in second


def test_ctrl_c_is_no_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    def topics(self: Channel) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Channel, "earliest", topics)
    result = CliRunner().invoke(main, ["topics", "--node", "127.0.0.1:1"])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "m4cast: interrupted\n")


def test_grpc_is_silent_in_commands_of_clients_and_in_no_others() -> None:
    script = (
        "import os, sys; from m4cast.cli import main; main.get_command(None, sys.argv[1]);"
        "print(os.environ.get('GRPC_VERBOSITY'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    for name, said in (("status", "NONE"), ("node", "None"), ("cluster", "None")):
        words = [sys.executable, "-c", script, name]
        ran = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
        assert ran.stdout == f"{said}\n", name


@pytest.mark.parametrize("words", [["sim", "--nodes", "3"], ["sim", "--nodes", "3", "--json"], ["doctor"]])
def test_a_reader_who_has_gone_is_no_broken_promise(words: list[str]) -> None:
    """Both by rich and by click."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        ran = subprocess.run([sys.executable, "-m", "m4cast", *words], stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_a_table_in_a_pipe_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # by which a user chooses another width
    ran = CliRunner().invoke(main, ["sim", "--nodes", "3"])
    assert "from the end of the faults until the graph was complete and everything delivered" in ran.output


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "m4cast", "store", "stats", "nowhere"]
    ran = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("m4cast: nowhere") and ran.stderr.count("\n") == 1
