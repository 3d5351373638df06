"""Snippets that no test runs are read as the program would read them: configuration by its loaders, commands by click.

What is left out needs something else: pip, docker, a virtual environment. `test_reference.py` counts the snippets.
"""

import configparser
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import pytest

from m4cast.cli import main
from m4cast.cluster.federation import read_spec
from m4cast.overlay.bridge.brokers import Brokers
from m4cast.overlay.bridge.settings import Direction, load_settings
from m4cast.overlay.config import NodeConfig
from m4cast.overlay.config.files import load_cluster, load_federation, load_node
from m4cast.overlay.door.access.tokens import Tokens
from m4cast.overlay.profiles import parse as filter_of
from tests.bench.__main__ import BENCHMARKS
from tests.bench.__main__ import main as bench
from tests.docs.pages import DOCS, PAGES, ROOT, Snippet, snippets_of

SECRET_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def snippets_in(language: str) -> list[Snippet]:
    return [each for page in PAGES for each in snippets_of(page) if each.language == language]


# ---- configuration


def load_wishes(path: Path) -> None:
    for wish in load_node(path).subscribe:
        if wish.where:
            filter_of(wish.where)


def load_bridge(direction: Direction, path: Path) -> None:
    settings, kafka = load_settings(direction, path, {}, {})
    Brokers(settings.brokers, settings.name, kafka)  # refuses what is no setting of kafka-python


LOADERS: dict[str, Callable[[Path], object]] = {
    "cluster": load_cluster,
    "node": load_node,
    "subscribe": load_wishes,
    "federation": load_federation,
    "gateway": load_federation,
    "token": lambda path: Tokens(f"file:{path}"),
    "kafka-in": partial(load_bridge, "kafka-in"),
    "kafka-out": partial(load_bridge, "kafka-out"),
    "kafka": lambda path: None,  # read with the table beside it
}
"""Table at the top of a file -> what reads it."""


@pytest.mark.parametrize("snippet", snippets_in("toml"), ids=lambda snippet: snippet.place)
def test_configuration_is_what_the_programs_read(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "of the broker")
    path = tmp_path / "snippet.toml"
    path.write_text(snippet.text.replace('sha256 = "..."', f'sha256 = "{SECRET_DIGEST}"'), encoding="utf-8")
    tables = tomllib.loads(snippet.text)
    if "channel" in tables:  # the specification of a local federation
        assert len(read_spec(path).channels) == len(tables["channel"])
        return
    for table in tables:
        LOADERS[table](path)


def test_prometheus_scrapes_the_port_of_the_http_door() -> None:
    (snippet,) = snippets_in("yaml")
    pattern = r"scrape_configs:\n  - job_name: m4cast\n    static_configs:\n      - targets: (\[.*\])\n"
    found = re.fullmatch(pattern, snippet.text)
    assert found is not None
    targets = json.loads(found[1])
    assert targets
    for target in targets:
        assert NodeConfig(http=target).http.rpartition(":")[2] == NodeConfig().http.rpartition(":")[2]


def test_the_unit_file_starts_a_node() -> None:
    (unit,) = [each for each in snippets_of(DOCS / "OPERATIONS.md") if each.language == "ini"]
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.text)
    started = parser["Service"]["ExecStart"]
    words = shlex.split(re.sub(r"\S*%i\S*", str(ROOT / "conf" / "node.toml"), started))
    assert words[0].endswith("/m4cast")
    parse(main, "m4cast", words[1:])


# ---- commands


def lines_of(beginning: str) -> list[tuple[str, str]]:
    """Place and line, of snippets marked `text`; a line that ends with a backslash continues on the next one."""
    found = [
        (snippet.place, line)
        for snippet in snippets_in("text")
        for line in snippet.text.replace("\\\n", "").splitlines()
        if line.strip().startswith(beginning)
    ]
    assert found, beginning
    return found


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """Has click parse the words as this command would, and nothing more."""
    context = command.make_context(name, list(words), parent)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        chosen_name, chosen, left = command.resolve_command(context, rest)
        assert chosen is not None and chosen_name is not None
        parse(chosen, chosen_name, left, context)


@pytest.mark.parametrize(("place", "line"), lines_of("m4cast "))
def test_commands_that_are_not_run_are_understood(place: str, line: str) -> None:
    parse(main, "m4cast", shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize(("place", "line"), lines_of("spark-submit "))
def test_jobs_for_spark_submit_have_these_options(place: str, line: str) -> None:
    words = shlex.split(line)
    (script,) = [word for word in words if word.endswith(".py")]
    assert (ROOT / script).exists()
    name = Path(script).stem
    job = importlib.import_module(f"m4cast.jobs.{name}")
    (command,) = [each for each in vars(job).values() if isinstance(each, click.Command)]
    parse(command, name, words[words.index(script) + 1 :])


@pytest.mark.parametrize(("place", "line"), lines_of("make "))
def test_targets_of_make_exist(place: str, line: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):.* ## ", makefile, re.MULTILINE)
    assert shlex.split(line, comments=True)[1] in targets


@pytest.mark.parametrize(("place", "line"), lines_of("python -m tests.bench "))
def test_benchmarks_exist(place: str, line: str) -> None:
    context = bench.make_context("tests.bench", shlex.split(line, comments=True)[3:])
    assert set(context.params["names"]) <= BENCHMARKS.keys()


@pytest.mark.parametrize(("place", "line"), lines_of(".ci/"))
def test_scripts_of_ci_exist(place: str, line: str) -> None:
    assert (ROOT / shlex.split(line, comments=True)[0]).exists()
