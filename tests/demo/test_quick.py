"""The demo, with fewer nodes and less time: what it shows, and that it cleans up."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.demo.quick import Follower, FollowerOutcome
from m4cast.overlay.client import Channel

TIMEOUT_S = 120


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place in which the demo makes its folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes that work in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if str(folder) in words and path.parent.name != str(os.getpid()):
            found.append(words)
    return found


def test_every_row_arrives_and_only_the_picture_stays(scratch: Path) -> None:
    result = CliRunner().invoke(main, ["demo", "--no-spark", "--nodes", "4", "--seconds", "0.3", "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["whole"] is True and said["published"] > 0
    assert [node["name"] for node in said["nodes"]] == ["n1", "n2", "n3", "n4"]
    for node in said["nodes"]:
        assert (node["rows"], node["missing"], node["duplicates"], node["in_order"], node["error"]) == (
            said["published"],
            0,
            0,
            True,
            None,
        )
        assert (node["catch_up_s"] is not None) is (node["name"] == "n3")
    assert said["client"]["left_with"] > 0 and said["client"]["missed"] > 0, "a client returned elsewhere"
    assert [path for path in scratch.rglob("*") if path.is_file()] == [Path(said["svg"])]
    assert Xml.parse(said["svg"]).getroot().tag.endswith("svg")
    assert processes_in(scratch) == []


def test_an_interrupted_demo_leaves_nothing_behind(scratch: Path) -> None:
    words = [sys.executable, "-m", "m4cast", "demo", "--no-spark", "--nodes", "3", "--seconds", "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "receives:" in line:
                break
        assert processes_in(scratch)
        demo.send_signal(signal.SIGINT)
        _, complaints = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 130
    assert complaints == "m4cast: interrupted; nothing is left running\n"
    assert processes_in(scratch) == []
    assert [path.name for path in scratch.rglob("*") if path.is_file()] == ["topology.svg"]


@pytest.mark.parametrize(
    ("came", "counted"),
    [
        ([1, 2, 3], (0, 0, True, True)),
        ([1, 2], (1, 0, True, False)),
        ([1, 2, 2, 3], (0, 1, False, False)),
        ([2, 1, 3], (0, 0, False, False)),
        ([], (3, 0, True, False)),
    ],
)
def test_what_came_is_counted(came: list[int], counted: tuple[int, int, bool, bool]) -> None:
    follower = Follower("n1", Channel(["127.0.0.1:1"]))
    follower.sequences = came
    outcome = follower.outcome(3, None)
    assert (outcome.missing, outcome.duplicates, outcome.in_order, outcome.is_whole) == counted


def test_a_follower_that_failed_is_not_whole() -> None:
    assert not FollowerOutcome("n1", 3, 0, 0, True, None, "gone").is_whole


def test_an_undrawable_picture_leaves_no_file(scratch: Path) -> None:
    result = CliRunner().invoke(
        main, ["demo", "--no-spark", "--nodes", "3", "--svg", str(scratch / "nowhere" / "x.svg")]
    )
    assert result.exit_code == 2
    assert "x.svg: cannot be written" in result.output
    assert list(scratch.iterdir()) == []
