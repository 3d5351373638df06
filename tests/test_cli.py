"""The command as a whole: what it lists, and how it says no."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from m4cast import __version__
from m4cast.cli import SUBCOMMANDS, main

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
        (["status", "--node", "nowhere"], "nodes must be a list of host:port"),
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


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "m4cast", "store", "stats", "nowhere"]
    ran = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("m4cast: nowhere") and ran.stderr.count("\n") == 1
