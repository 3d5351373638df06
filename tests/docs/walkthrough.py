"""Runs the snippets of one page in order, as a reader would who types them in.

    ```console    lines after `$ ` are run by bash (`> ` continues a line); what follows is the output, in which `...`
                  stands for anything. Variables and the working folder last for the page.
    ```python     runs in one namespace per page.
    ```sql        runs in the shared Spark session.
    ```toml       is parsed; with a file name as its first comment (`# n1.toml`) it is written to that file.

Everything happens in a folder of its own. Jobs (`m4cast ingest` and so on) run in this process, since each would start
a Spark of its own otherwise. Addresses that a page uses are replaced by those of the nodes that the test runs.
"""

import doctest
import io
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from m4cast.cli import main
from tests.docs.pages import Snippet, snippets_of

JOBS = ("ingest", "gaps", "audit", "maintain", "snapshot")
TIMEOUT_S = 60
MATCHING = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Walkthrough:
    """`names` are available to the Python snippets; `replace` maps texts of the page to what is used instead; commands
    run in `working`, or in a new folder, with the m4cast of `python`."""

    def __init__(
        self,
        folder: Path,
        names: Mapping[str, Any] | None = None,
        replace: Mapping[str, str] | None = None,
        working: Path | None = None,
        python: Path = Path(sys.executable),
    ) -> None:
        self.folder = folder
        self.names: dict[str, Any] = dict(names or {})
        self.ran: list[Snippet] = []
        self._replace = dict(replace or {})
        self._environment = {
            **os.environ,
            "PATH": f"{_commands(folder, python)}:{os.environ['PATH']}",
            "COLUMNS": "160",
            "TERM": "dumb",
        }
        self._working = working or folder / "work"
        self._working.mkdir(exist_ok=True)

    def run(self, page: Path) -> None:
        for snippet in snippets_of(page):
            self.run_one(snippet)

    def run_one(self, snippet: Snippet) -> None:
        text = snippet.text
        for old, new in self._replace.items():
            text = text.replace(old, new)
        if snippet.language == "console":
            for command, expected in _commands_of(text):
                self._run_command(command, expected, snippet.place)
        elif snippet.language == "python":
            with self._here():
                exec(compile("\n" * snippet.line + text, str(snippet.page), "exec"), self.names)
        elif snippet.language == "sql":
            self.names["rows"] = self.names["spark"].sql(text.format(**self.names)).collect()
            self.names.setdefault("results", []).append(self.names["rows"])
        elif snippet.language == "toml":
            tomllib.loads(text)
            first, _, _ = text.partition("\n")
            if first.startswith("# ") and first.endswith(".toml"):
                (self._working / first.removeprefix("# ")).write_text(text, encoding="utf-8")
        else:
            return
        self.ran.append(snippet)

    def _run_command(self, command: str, expected: str, place: str) -> None:
        words = shlex.split(command)
        run = self._run_job if words[0] == "m4cast" and words[1] in JOBS else self._run_bash
        code, output = run(command)
        assert code == 0, f"{place}: $ {command}\nexit code {code}\n{output}"
        if expected and not doctest.OutputChecker().check_output(expected, output, MATCHING):
            raise AssertionError(f"{place}: $ {command}\n---- the page has\n{expected}---- it prints\n{output}")

    def _run_bash(self, command: str) -> tuple[int, str]:
        """Into a file and not through a pipe: a process that goes on in the background would keep that open."""
        state = self.folder / "state"
        output = self.folder / "output"
        script = f"{command}\ncode=$?; {{ pwd; env -0; }} > {shlex.quote(str(state))}; exit $code\n"
        with output.open("wb") as file:
            finished = subprocess.run(
                ["bash", "-c", script],
                cwd=self._working,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
        if state.exists():
            working, _, variables = state.read_text(encoding="utf-8").partition("\n")
            self._working = Path(working)
            self._environment = dict(each.split("=", 1) for each in variables.split("\0") if each)
        return finished.returncode, output.read_text(encoding="utf-8")

    def _run_job(self, command: str) -> tuple[int, str]:
        with self._here():
            words = [os.path.expandvars(word) for word in shlex.split(command)]
            result = CliRunner().invoke(main, words[1:])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    @contextmanager
    def _here(self) -> Iterator[None]:
        """This process has the folder and the variables that the page's shell has, for a while."""
        kept, kept_folder = dict(os.environ), Path.cwd()
        os.environ.update(self._environment)
        os.chdir(self._working)
        try:
            yield
        finally:
            os.chdir(kept_folder)
            for name in set(os.environ) - set(kept):
                del os.environ[name]
            os.environ.update(kept)


def _commands(folder: Path, python: Path) -> Path:
    """A folder with this Python and its `m4cast`, whatever else is installed."""
    commands = folder / "bin"
    commands.mkdir(parents=True)
    for name, words in {"m4cast": "-m m4cast", "python": ""}.items():
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(str(python))} {words} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return commands


def _commands_of(text: str) -> Iterator[tuple[str, str]]:
    command: list[str] = []
    expected = io.StringIO()
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield "\n".join(command), expected.getvalue()
            command, expected = [line.removeprefix("$ ")], io.StringIO()
        elif line.startswith("> ") and not expected.getvalue():
            command.append(line.removeprefix("> "))
        else:
            assert command, f"a console snippet begins with a command ($ ...), not with {line!r}"
            print(line, file=expected)
    yield "\n".join(command), expected.getvalue()
