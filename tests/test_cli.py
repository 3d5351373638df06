"""The command as a whole: what it lists, and how it says no."""

import os
import subprocess
import sys
from typing import NoReturn

import pytest
from click.testing import CliRunner

from m4cast import __version__
from m4cast.cli import SUBCOMMANDS, main
from m4cast.overlay.client import Channel
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


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"m4cast, version {__version__}\n")


def test_a_command_that_is_not_there_is_said() -> None:
    result = CliRunner().invoke(main, ["pubish"])
    assert result.exit_code == 2
    assert "No such command 'pubish'" in result.output


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
        (UnreachableError("n: certificate verify failed: self-signed"), "verify failed", "not of this --ca"),
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
    assert "from the end of the faults until the graph was whole and everything delivered" in ran.output


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "m4cast", "store", "stats", "nowhere"]
    ran = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("m4cast: nowhere") and ran.stderr.count("\n") == 1
