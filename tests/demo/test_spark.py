"""The demo with Spark, with fewer nodes and less time: what it shows, what it leaves, and what it replaces."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from rich.console import Console

from m4cast.cli import main
from m4cast.cli.trials.demo import next_commands
from m4cast.demo.display import Narrator
from m4cast.demo.outcome import DemoOutcome, NodeOutcome
from m4cast.demo.spark import MARK, NODES_MIN, Cast, SparkDemo, make_folder
from m4cast.overlay.errors import M4castError
from tests.demo.test_quick import processes_in

WHOLE = DemoOutcome((NodeOutcome("n1", 9, 0, 0, 1.5), NodeOutcome("n2", 9, 0, 0, None)), 9, 9, 9, 9, "OK")


@pytest.mark.soak  # minutes of Spark
def test_every_row_is_everywhere_and_only_tables_report_and_picture_stay(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / MARK).touch()
    (folder / "left by another").touch()
    words = ["demo", "--nodes", str(NODES_MIN), "--seconds", "1", "--rows-per-s", "200", "--dir", str(folder), "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["whole"] is True and said["verdict"] == "OK"
    assert said["generated"] == said["published"] == said["events"] == said["different_events"] > 0
    assert [node["name"] for node in said["nodes"]] == [f"n{number + 1}" for number in range(NODES_MIN)]
    for node in said["nodes"]:
        assert (node["delivered"], node["missing"], node["duplicates"]) == (said["published"], 0, 0)
    assert "<svg" in Path(said["report"]).read_text()
    left = {path.name for path in folder.iterdir()}
    assert {"tables", "report.html", "topology.svg"} < left and not left & {"cluster", "left by another"}
    assert processes_in(folder / "cluster") == []


@pytest.mark.parametrize(
    "broken",
    [
        {"generated": 10},
        {"published": 10},
        {"events": 8},
        {"different_events": 8},
        {"nodes": (NodeOutcome("n1", 8, 0, 0, None),)},
        {"nodes": (NodeOutcome("n1", 9, 1, 0, None),)},
        {"nodes": (NodeOutcome("n1", 9, 0, 1, None),)},
        {"generated": 0, "published": 0, "events": 0, "different_events": 0, "nodes": ()},
    ],
)
def test_anything_that_is_not_everywhere_once_is_not_whole(broken: dict[str, object]) -> None:
    assert WHOLE.is_whole
    assert not replace(WHOLE, **broken).is_whole  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [NODES_MIN, 9, 16])
def test_every_part_has_a_node_of_its_own(count: int) -> None:
    names = [f"n{number + 1}" for number in range(count)]
    cast = Cast.of(names, ["Warsaw", "Lisbon"])
    assert len({*cast.publishing, cast.ingesting, cast.killed, cast.paused}) == 5


class EndedSession:
    """A session whose JVM was ended by the signal that ended the demo."""

    def stop(self) -> None:
        raise ConnectionRefusedError("the JVM is gone")


def test_no_node_is_left_when_spark_cannot_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("m4cast.jobs.session.job_session", lambda *_, **__: EndedSession())
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    demo = SparkDemo(tmp_path, 1, 1, 1, 7, Narrator(Console(quiet=True)))
    with pytest.raises(ConnectionRefusedError), demo._units() as (cluster, partner, _):
        assert len(cluster.running()) == 1 and len(partner.running()) == 2
    assert processes_in(tmp_path) == []


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(M4castError, match="is not empty and not from an earlier demo: choose another --dir"):
        make_folder(tmp_path)
    assert (tmp_path / "mine").exists()


def test_what_to_try_next_are_commands_of_ours() -> None:
    said = [line.partition("#")[0] for line in next_commands(Path("m4cast-demo"))]
    commands = [shlex.split(line.removeprefix('eval "$(').partition(" | ")[0]) for line in said]
    assert {words[1] for words in commands} >= {"audit", "tail", "client", "federation", "cluster"}
    for words in commands:
        assert words[0] == "m4cast"
        named = words[1:3] if words[1] in ("client", "federation", "cluster") else words[1:2]
        result = CliRunner().invoke(main, [*named, "--help"])
        assert result.exit_code == 0, result.output
        assert all(word in result.output for word in words if word.startswith("--"))
