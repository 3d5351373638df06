"""Real nodes in network namespaces, under the faults of real networks; needs root (see `hosts.why_not`)."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes.hosts import why_not

BESIDES_S = 240
"""What a run takes at most besides its faults: starting, healing, looking at everything."""


def run(folder: Path, scenario: str, length: tuple[str, float], faults_s: float) -> dict[str, Any]:
    """In a process of its own, which moves to another network."""
    lack = why_not()
    if lack:
        pytest.skip(lack)
    words = [scenario, "--seed", str(random.randrange(1 << 30)), f"--{length[0]}", f"{length[1]:g}"]
    words = [sys.executable, "-m", "tests.processes.netns_campaign", *words]
    print(*words)
    done = subprocess.run(
        [*words, "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=faults_s + BESIDES_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-2_000:]
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


@pytest.mark.parametrize("minutes", [2, pytest.param(30, marks=pytest.mark.soak)])
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, minutes: float) -> None:
    outcome = run(tmp_path / "cluster", "mixed", ("minutes", minutes), 60 * minutes)
    assert all(outcome["rows"].values()) and sum(outcome["faults"].values()) >= 20 * minutes


@pytest.mark.parametrize("seconds", [15, pytest.param(60, marks=pytest.mark.soak)])
def test_halves_that_both_published_are_one_channel_again(tmp_path: Path, seconds: float) -> None:
    outcome = run(tmp_path / "cluster", "partition", ("seconds", seconds), seconds)
    assert all(outcome["rows"].values()) and outcome["restarts"] == 0
