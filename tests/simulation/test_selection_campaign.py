"""Selective topics on whole nodes in the main campaign: registrations come and go and selective topics are published
beside broadcast ones, while nodes crash, roll back, lose each other, pause and run out of disk. Guarantees 9 to 11
hold (`test_campaign.py` runs some of the seeds), and the checkers find what would break them.

The bugs are those of `test_selective.py`, the broken variants of the rules, and some that need whole nodes. Each is
pinned to the first seed that finds it (`selection_mutations.json`);

python -m tests.simulation.test_selection_campaign      searches, and prints the new seeds
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.interest.confirmations import Confirmations
from m4cast.overlay.protocol.selection.answers import SelectiveAnswers
from m4cast.overlay.protocol.selection.coverage import CoverageReports
from m4cast.overlay.protocol.selective.fetching import Fetching
from m4cast.overlay.protocol.selective.keeping import Keeping
from m4cast.overlay.protocol.selective.mending import Mending
from m4cast.overlay.protocol.wire.selective import ActiveCall, Confirmation
from m4cast.overlay.sim.campaign import has_selective_topics, run_seed
from tests.simulation import test_selective as broken_rules
from tests.simulation.mutations import Mutations
from tests.simulation.soak import broken_of

FIRST = 1_002
"""The two before are large channels, and a run without a bug takes as long as ten others."""
SEARCHED = [seed for seed in range(FIRST, 3_000) if has_selective_topics(seed)]

mutation = Mutations("selection_mutations.json", run_seed, SEARCHED)


# ---- deliberate bugs

ELSEWHERE = (
    broken_rules.answers_settle_the_batches_that_they_list,
    broken_rules.skips_are_not_told,
    broken_rules.the_end_of_a_run_is_durable_and_lags_behind,
    broken_rules.begins_are_not_written_with_their_registration,
    broken_rules.rows_before_the_first_that_is_known_are_not_filled,
    broken_rules.a_time_counts_for_streams_that_are_new_here,
    broken_rules.a_time_is_taken_for_now,
    broken_rules.positions_are_not_written_with_their_registration,
)
"""The machine's own simulator is the place for these: links of whole nodes keep the order of frames, skips and crashes
between two writes are rare, and what is never filled shows after minutes of the run's time."""

for each in broken_rules.mutation.makers:
    if each not in ELSEWHERE:
        mutation(each)


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


@mutation
def nodes_confirm_what_they_are_asked_for() -> Iterator[tuple[Any, str, Any]]:
    """They do so whether they have heard of it or not."""

    def mutated(self: Confirmations, subscriber: NodeId, call: ActiveCall, now_ms: int) -> None:
        said = Confirmation(self._me, self._context.incarnation, call.incarnation, call.ts)
        self._gather(subscriber, said, 0)
        self._set_merge(now_ms)

    yield Confirmations, "on_call", mutated


@mutation
def a_confirmation_counts_for_later_registrations() -> Iterator[tuple[Any, str, Any]]:
    """It does not matter of which version of the entry it is."""

    def mutated(self: Confirmations, node_id: NodeId, incarnation: int, version: Any) -> bool:
        said = self._confirmed.get(node_id)
        return said is not None and said.incarnation == incarnation

    yield Confirmations, "_has", mutated


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


@pytest.mark.parametrize("seed", sorted(set(mutation.seeds.values())))
def test_without_a_bug_the_seed_passes(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak
def test_every_bug_is_found_by_a_search() -> None:
    assert [name for name, seed in mutation.search().items() if seed is None] == []


@pytest.mark.soak
def test_ten_thousand_seeds() -> None:
    broken = broken_of(seed for seed in range(100_000, 120_000) if has_selective_topics(seed))
    assert not broken, "\n".join(broken[:10])


if __name__ == "__main__":
    print(json.dumps(mutation.search(), indent=2))
