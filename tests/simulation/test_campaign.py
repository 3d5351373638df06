"""A thousand small channels, each with its own mixture of faults, all guarantees watched; in half of them registrations
come and go, and 29 have selective topics. Of the first hundred the canonical trace is compared as well: nodes do what
they did (`M4CAST_SEEDS=100` runs no more than these)."""

import json
import os
import subprocess
import sys
from multiprocessing import get_context

import pytest

from m4cast.overlay.sim.campaign import has_registrations, has_selective_topics
from tests.simulation.canonical import FIXTURE
from tests.simulation.canonical import SEEDS as CANONICAL_SEEDS
from tests.simulation.soak import Attempt, attempt

SEEDS = int(os.environ.get("M4CAST_SEEDS", "1000"))

REGRESSIONS: dict[int, str] = {
    1611: "a repeated commit whose own batch was damaged was answered before a keeper had it",
    2539: "a neighbour with another history of the stream kept a damaged batch from being repaired",
    2903: "rows were given up that only a node kept which the others had never heard of",
}
"""Seed beyond the thousand -> what broke there once."""


@pytest.fixture(scope="module")
def attempts() -> list[Attempt]:
    # Spawned, so that no state of the test process is in a run; as many at once as a small machine has cores.
    with get_context("spawn").Pool(2) as pool:
        return list(pool.imap_unordered(attempt, [*range(SEEDS), *REGRESSIONS], chunksize=4))


def test_mixed_faults(attempts: list[Attempt]) -> None:
    """Safety after every event, then liveness without faults; a failure names the command that replays it."""
    broken = [each.broken for each in attempts if each.broken]
    assert not broken, "\n".join(broken[:10])
    outcomes = [each.outcome for each in attempts if each.outcome is not None]
    # The campaign does what it says: rows were published, refused and recovered from old stores.
    assert sum(outcome.answered for outcome in outcomes) > 20 * SEEDS
    assert sum(outcome.refused for outcome in outcomes) > 0
    assert sum(outcome.rollbacks for outcome in outcomes) > 0
    assert max(outcome.nodes for outcome in outcomes) == 25
    registered = [outcome.registered for outcome in outcomes if has_registrations(outcome.seed)]
    assert sum(registered) > 20 * len(registered)
    assert sum(outcome.registered for outcome in outcomes) == sum(registered)


def test_half_of_the_seeds_have_registrations() -> None:
    assert sum(map(has_registrations, range(1_000))) == 500
    assert sum(map(has_selective_topics, range(1_000))) == 29
    assert not any(map(has_registrations, CANONICAL_SEEDS))
    assert sum(map(has_registrations, range(100_000, 102_000))) == 1_000
    assert sum(map(has_selective_topics, range(100_000, 102_000))) == 1_000


def test_canonical_traces_are_those_that_were_written_down(attempts: list[Attempt]) -> None:
    """If a change is meant, `python -m tests.simulation.canonical` prints the new ones: for a commit that says which
    order or output it changes, and does nothing else."""
    written: dict[str, str] = json.loads(FIXTURE.read_text(encoding="utf-8"))
    assert list(written) == [str(seed) for seed in CANONICAL_SEEDS]
    found = {each.seed: each.canonical for each in attempts if each.seed in CANONICAL_SEEDS}
    assert [seed for seed, digest in sorted(found.items()) if digest != written[str(seed)]] == []


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
