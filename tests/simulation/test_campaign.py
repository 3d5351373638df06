"""A thousand small channels, each with its own mixture of faults, all guarantees watched."""

import os
import subprocess
import sys
from multiprocessing import get_context

import pytest

from m4cast.overlay.sim.campaign import Outcome
from tests.simulation.soak import attempt

SEEDS = int(os.environ.get("M4CAST_SEEDS", "1000"))

REGRESSIONS: dict[int, str] = {}
"""Seed beyond the thousand -> what broke there once."""


def test_mixed_faults() -> None:
    """Safety after every event, then liveness without faults; a failure names the command that replays it."""
    seeds = [*range(SEEDS), *REGRESSIONS]
    outcomes: list[Outcome] = []
    broken: list[str] = []
    # Spawned, so that no state of the test process is in a run; as many at once as a small machine has cores.
    with get_context("spawn").Pool(2) as pool:
        for _, outcome, failure in pool.imap_unordered(attempt, seeds, chunksize=4):
            if outcome is not None:
                outcomes.append(outcome)
            else:
                broken.append(failure)
    assert not broken, "\n".join(broken[:10])
    # The campaign does what it says: rows were published, refused and recovered from old stores.
    assert sum(outcome.answered for outcome in outcomes) > 20 * SEEDS
    assert sum(outcome.refused for outcome in outcomes) > 0
    assert sum(outcome.rollbacks for outcome in outcomes) > 0
    assert max(outcome.nodes for outcome in outcomes) == 25


@pytest.mark.parametrize("seed", [0, 3])
def test_a_seed_is_a_run_whatever_the_hash_seed(seed: int) -> None:
    """Byte-equal traces from two processes that hash differently (seed 0 goes through the wire codec)."""
    digests = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation.soak", "--seed", str(seed), "--digest"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert digests[0] == digests[1]
    assert int(digests[0].split()[1]) > 1_000
