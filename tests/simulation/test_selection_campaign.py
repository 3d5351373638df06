"""Selective topics on whole nodes in the main campaign: registrations come and go and selective topics are published
beside broadcast ones, while nodes crash, roll back, lose each other, pause and run out of disk. Guarantees 9 to 11
hold, and the checkers find what would break them.

The bugs are those of `test_selective.py`, the broken variants of the rules, and some that need whole nodes. Each is
pinned to the first seed that finds it (`selection_mutations.json`);

python -m tests.simulation.test_selection_campaign      searches, and prints the new seeds
"""

import json
import os
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import pytest

from m4cast.overlay.protocol.selection.answers import SelectiveAnswers
from m4cast.overlay.protocol.selection.coverage import CoverageReports
from m4cast.overlay.protocol.selective.fetching import Fetching
from m4cast.overlay.protocol.selective.keeping import Keeping
from m4cast.overlay.protocol.selective.mending import Mending
from m4cast.overlay.protocol.selective.speaking import Speaking
from m4cast.overlay.sim.campaign import has_selective_topics, run_seed
from tests.simulation import test_selective as broken_rules
from tests.simulation.mutations import Mutations
from tests.simulation.soak import Attempt, attempt

FIRST = 1_000
SEEDS = range(FIRST, FIRST + int(os.environ.get("M4CAST_SEEDS", "1000")) // 32)
SEARCHED = [seed for seed in range(FIRST, 3_000) if has_selective_topics(seed)]

mutation = Mutations("selection_mutations.json", run_seed, SEARCHED)


@pytest.fixture(scope="module")
def attempts() -> list[Attempt]:
    with get_context("spawn").Pool(2) as pool:
        return list(pool.imap_unordered(attempt, SEEDS, chunksize=2))


def test_what_is_wanted_arrives_after_faults(attempts: list[Attempt]) -> None:
    broken = [each.broken for each in attempts if each.broken]
    assert not broken, "\n".join(broken[:10])
    outcomes = [each.outcome for each in attempts if each.outcome is not None]
    assert sum(outcome.registered for outcome in outcomes) > 20 * len(SEEDS)
    assert sum(outcome.answered for outcome in outcomes) > 20 * len(SEEDS)
    assert sum(outcome.rollbacks for outcome in outcomes) > 0


def test_half_of_the_seeds_from_a_thousand_on_have_selective_topics() -> None:
    assert [seed for seed in range(FIRST) if has_selective_topics(seed)] == []
    assert sum(map(has_selective_topics, range(100_000, 102_000))) == 1_000


# ---- deliberate bugs

ELSEWHERE = (broken_rules.answers_settle_the_batches_that_they_list, broken_rules.skips_are_not_told)
"""The machine's own simulator is the place for these: links of whole nodes keep the order of an answer and its batches,
and skips are rare."""

for each in broken_rules.mutation.makers:
    if each not in ELSEWHERE:
        mutation(each)


@mutation
def acks_of_those_who_begin_later_count() -> Iterator[tuple[Any, str, Any]]:
    """H19: who has everything that it wants is taken for one who has the batch."""
    holders = Speaking.holders

    def mutated(self: Speaking, batch: Any) -> Any:
        stream = self.streams.get(batch.stream)
        for run in stream.runs.values() if stream is not None else ():
            run.begun = 1
        return holders(self, batch)

    yield Speaking, "holders", mutated


@mutation
def answers_do_not_wait_for_disks() -> Iterator[tuple[Any, str, Any]]:
    yield SelectiveAnswers, "_is_enough", lambda self, waiting: True


@mutation
def what_was_covered_is_never_taken_back() -> Iterator[tuple[Any, str, Any]]:
    """A registration replaces another of its name, whose coverage goes on counting."""
    yield CoverageReports, "take_back", lambda self: None


@mutation
def rows_that_nobody_has_are_waited_for() -> Iterator[tuple[Any, str, Any]]:
    """No `lost`."""
    yield Fetching, "_give_up", lambda self, stream, fetch, hole, now_ms: None


@mutation
def damage_is_not_mended() -> Iterator[tuple[Any, str, Any]]:
    yield Mending, "received", lambda self, batch: False


@mutation
def a_new_identity_numbers_at_once() -> Iterator[tuple[Any, str, Any]]:
    """H9: before its former rows are back, so that keyed commits repeat."""

    def mutated(self: Keeping, now_ms: int) -> str | None:
        return None

    yield Keeping, "why_not_ready", mutated


def test_every_mutation_is_pinned_to_a_seed() -> None:
    assert list(mutation.seeds) == mutation.names


SLOW = ("covers_are_sent_once", "absent_origins_are_nobodys_business", "rows_that_nobody_has_are_waited_for")
"""Nothing breaks, something never comes: that shows after minutes of the run's time."""


@pytest.mark.parametrize("name", [name for name in mutation.names if name not in SLOW])
def test_the_bug_is_caught(name: str) -> None:
    mutation.check(name)


@pytest.mark.soak
@pytest.mark.parametrize("name", SLOW)
def test_what_never_comes_is_missed(name: str) -> None:
    mutation.check(name)


@pytest.mark.soak
@pytest.mark.parametrize("seed", sorted(set(mutation.seeds.values())))
def test_without_a_bug_the_seed_passes(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak
def test_every_bug_is_found_by_a_search() -> None:
    assert [name for name, seed in mutation.search().items() if seed is None] == []


@pytest.mark.soak
def test_ten_thousand_seeds() -> None:
    seeds = [seed for seed in range(100_000, 120_000) if has_selective_topics(seed)]
    with get_context("spawn").Pool(2) as pool:
        broken = [each.broken for each in pool.imap_unordered(attempt, seeds, chunksize=4) if each.broken]
    assert not broken, "\n".join(broken[:10])


if __name__ == "__main__":
    print(json.dumps(mutation.search(), indent=2))
