"""Nodes do what they did: the canonical traces of the first seeds are the ones that were written down."""

import json

import pytest

from tests.simulation.canonical import FIXTURE, SEEDS, digest

DIGESTS: dict[str, str] = json.loads(FIXTURE.read_text(encoding="utf-8"))


def test_every_seed_is_written_down() -> None:
    assert list(DIGESTS) == [str(seed) for seed in SEEDS]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_is_the_one_that_was_written_down(seed: int) -> None:
    """If the change is meant, `python -m tests.simulation.canonical` prints the new ones: in a commit that says which
    order or output it changes, and does nothing else."""
    assert digest(seed) == DIGESTS[str(seed)]
