"""Registrations that come and go while nodes crash, roll back and lose each other: guarantee 9 holds, and the checkers
find what would break it. Every test run has 500 seeds with registrations (`test_campaign.py`); those of here change
them faster.

Each mutation is pinned to the first seed that finds it (`interest_mutations.json`);

python -m tests.simulation.test_interest        searches, and prints the new seeds
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from m4cast.overlay.protocol.interest.entry import EntryVersion
from m4cast.overlay.protocol.interest.exchange import Exchange, InterestLink
from m4cast.overlay.protocol.interest.interest import Interest
from m4cast.overlay.protocol.interest.registrations import Registrations
from m4cast.overlay.protocol.wire.interest import InterestNewsStmt
from m4cast.overlay.sim.campaign import INTEREST_SEEDS, run_seed
from tests.simulation.mutations import Mutations
from tests.simulation.pinned import caught, found, passing, pinned
from tests.simulation.soak import broken_of

SEARCHED = range(INTEREST_SEEDS, INTEREST_SEEDS + 1_000)

mutation = Mutations("interest_mutations.json", run_seed, SEARCHED)


# ---- deliberate bugs


@mutation
def hidden_leaves_are_not_counted() -> Iterator[tuple[type, str, Any]]:
    """A registration that is made again has the epoch that it had."""
    yield Interest, "_count_leave", lambda self: None


@mutation
def news_leaves_before_it_is_durable() -> Iterator[tuple[type, str, Any]]:
    write = Interest._write

    def mutated(self: Interest, request: int, epochs: tuple[int, ...], now_ms: int) -> None:
        write(self, request, epochs, now_ms)
        for token in list(self.undurable):
            self.durable(token, now_ms)

    yield Interest, "_write", mutated


@mutation
def a_difference_is_applied_to_any_version() -> Iterator[tuple[type, str, Any]]:
    """Seed-interest X3: a difference without a base."""
    take = Interest._take

    def mutated(self: Interest, link: InterestLink, parts: list[InterestNewsStmt], now_ms: int) -> None:
        stmt = parts[0]
        entry = self.view.entries.get(stmt.node_id)
        version = EntryVersion(stmt.incarnation, stmt.ts, stmt.digest)
        if entry is None or stmt.buckets or version <= entry.version:
            take(self, link, parts, now_ms)
        else:
            self._changed(entry, entry.change(version, stmt.joined, stmt.left), now_ms)

    yield Interest, "_take", mutated


@mutation
def views_are_not_compared_at_link_up() -> Iterator[tuple[type, str, Any]]:
    yield Exchange, "_send_digest", lambda self, link: None


@mutation
def entries_of_those_who_left_stay_in_use() -> Iterator[tuple[type, str, Any]]:
    yield Interest, "departed", lambda self, node_id, now_ms: None


@mutation
def a_gravestone_is_never_lifted() -> Iterator[tuple[type, str, Any]]:
    """H11: the node gets nothing until it restarts."""
    yield Interest, "returned", lambda self, node_id, now_ms: None


@mutation
def who_returns_is_not_mentioned() -> Iterator[tuple[type, str, Any]]:
    """A node that joined while another was away never hears of its entry."""
    mark = Exchange.mark

    def mutated(self: Exchange, node_id: Any, *, mention: bool = False) -> None:
        if not mention:
            mark(self, node_id)

    yield Exchange, "mark", mutated


@mutation
def what_hung_below_is_forgotten() -> Iterator[tuple[type, str, Any]]:
    """A wide registration goes, and those that it covered are not announced."""
    yield Registrations, "_uncover", lambda self, gone: None


@mutation
def failed_appends_are_not_undone() -> Iterator[tuple[type, str, Any]]:
    yield Interest, "failed", lambda self, token, reason: self.undurable.clear()


@mutation
def a_newer_own_entry_is_ignored() -> Iterator[tuple[type, str, Any]]:
    """The store was rolled back, and the channel keeps what the node wanted in its former life."""
    yield Interest, "_heard_own", lambda self, version: None


test_every_mutation_is_pinned_to_a_seed = pinned(mutation)
test_the_bug_is_caught = caught(mutation)
test_without_a_bug_the_seed_passes = passing(mutation, run_seed)
test_every_bug_is_found_by_a_search = found(mutation)


@pytest.mark.soak
def test_views_agree_after_faults_in_a_thousand_seeds() -> None:
    broken = broken_of(SEARCHED)
    assert not broken, "\n".join(broken[:10])


if __name__ == "__main__":
    print(json.dumps(mutation.search(), indent=2))
