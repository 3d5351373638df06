"""Campaigns in network namespaces (`netns_campaign.py`) as processes of their own, several at the same time."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.processes.hosts import why_not

BESIDES_S = 240
"""Time that a run takes at most besides its faults: starting, healing, looking at everything."""


class Campaigns:
    """Runs by scenario and length; each in its folder, with what it printed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[tuple[str, str], tuple[subprocess.Popen[bytes], float]] = {}

    def begin(self, scenario: str, length: str, faults_s: float) -> None:
        """`length`: the option that says how long its faults last."""
        if why_not():
            return
        words = [sys.executable, "-m", "tests.processes.netns_campaign", scenario, *length.split()]
        words += ["--seed", str(random.randrange(1 << 30))]
        with self._output(scenario, length).open("wb") as output:
            output.write(" ".join(words).encode() + b"\n")
            output.flush()
            words += ["--folder", str(self._output(scenario, length).with_suffix(".cluster"))]
            process = subprocess.Popen(words, stdout=output, stderr=output, start_new_session=True)
        self._runs[scenario, length] = (process, time.monotonic() + faults_s + BESIDES_S)

    def _output(self, scenario: str, length: str) -> Path:
        return self._folder / f"{scenario}{length.replace(' ', '-')}.log"

    def outcome(self, scenario: str, length: str) -> dict[str, Any]:
        """The report of the run when it has ended; fails as the run did."""
        process, until_s = self._runs[scenario, length]
        output = self._output(scenario, length)
        try:
            code = process.wait(max(until_s - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            code = None
        text = output.read_text()
        print(text)
        assert code == 0, text[-2_000:]
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def end(self) -> None:
        for process, _ in self._runs.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
