"""Federations in which everything goes wrong at once: guarantee 14 holds, and the checkers find what would break it.

Each mutation is pinned to the first seed that finds it (`units_mutations.json`);

python -m tests.simulation.test_units       searches, and prints the new seeds
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from m4cast.overlay.federation.contract import FederationSettings
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.gateways import Gateways
from m4cast.overlay.federation.interest import UnitInterest
from m4cast.overlay.federation.messages import CarriedCharge, Turn
from m4cast.overlay.federation.routing import EventRouting, EventState
from m4cast.overlay.federation.vertex import Vertex
from m4cast.overlay.sim.federation.campaign import run_federation_seed
from m4cast.overlay.sim.federation.hierarchies import build, random_plan
from tests.overlay.federation.federations import PLENTY, Clients
from tests.simulation.mutations import Mutations

SEEDS = range(int(os.environ.get("M4CAST_SEEDS", "1000")) // 20)
SEARCHED = range(500)
SHAPES = ((4,), (8,), (3, 3), (4, 5), (2, 3, 2), (2, 2, 2, 2), (3, 4, 3))

mutation = Mutations("units_mutations.json", run_federation_seed, SEARCHED)


def test_guarantee_14_holds_while_everything_goes_wrong() -> None:
    outcomes = [run_federation_seed(seed) for seed in SEEDS]
    assert sum(outcome.published for outcome in outcomes) > 20 * len(SEEDS)
    assert sum(outcome.expected for outcome in outcomes) > 3 * len(SEEDS)
    for count in ("crashes", "cuts", "merges"):
        assert sum(getattr(outcome, count) for outcome in outcomes) > len(SEEDS) // 4, count


def test_a_seed_runs_the_same_way_twice() -> None:
    assert run_federation_seed(5) == run_federation_seed(5)


@pytest.mark.parametrize("seed", range(5))
def test_random_hierarchies_both_ways(seed: int) -> None:
    both_ways(seed, publishes=100)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_hierarchies_both_ways(seed: int) -> None:
    both_ways(seed, publishes=200)


def both_ways(seed: int, publishes: int) -> None:
    """Each taker gets each batch, once; the checkers raise if anybody else does, or if a unit without a taker is
    charged with one (G40, G41, G46, G47, G54)."""
    random = Random(seed)
    plan = random_plan(random, random.choice(SHAPES), random.randint(1, 3), extra=random.randint(0, 3))
    world = build(plan, FederationSettings(top=plan.top, links_max=PLENTY), seed)
    clients = Clients(world)
    sites = sorted(world.sites)
    takers = {number: random.sample(sites, random.randint(0, min(12, len(sites)))) for number in range(publishes)}
    for number, chosen in takers.items():
        for site in chosen:
            clients.want(site, f"t{number}", name=f"w{number}")
    clients.confirm()
    world.run(5_000)
    events = {number: clients.publish(random.choice(sites), f"t{number}") for number in takers}
    world.run(10_000)
    assert {number: clients.takers(event) for number, event in events.items()} == {
        number: sorted(chosen) for number, chosen in takers.items()
    }
    assert not clients.checks.leaks()
    for event in events.values():
        matched = [unit for _, unit, _ in clients.checks.matchings[event]]
        assert len(matched) == len(set(matched)), "no unit is matched twice"


# ---- deliberate bugs


@mutation
def a_second_copy_is_always_a_duplicate() -> Iterator[tuple[Any, str, Any]]:
    """The letter of the paper (X17)."""
    receive = EventRouting.receive

    def mutated(self: EventRouting, copy: Any) -> None:
        if copy.event.id not in self.events:
            receive(self, copy)

    yield EventRouting, "receive", mutated


@mutation
def another_way_is_no_new_turn() -> Iterator[tuple[Any, str, Any]]:
    yield EventRouting, "_later", lambda self, state, carried: carried.turn


@mutation
def what_is_unacknowledged_is_not_sent_again() -> Iterator[tuple[Any, str, Any]]:
    yield EventRouting, "withdraw", lambda self, link: link.unacked.clear()


@mutation
def stuck_charges_are_dropped() -> Iterator[tuple[Any, str, Any]]:
    yield EventRouting, "_keep_stuck", lambda self, state, charge: state.open.pop(charge)


@mutation
def batches_are_acknowledged_before_they_are_kept() -> Iterator[tuple[Any, str, Any]]:
    yield EventRouting, "flush", lambda self: self._touched.clear()


@mutation
def what_was_delivered_is_forgotten_in_a_restart() -> Iterator[tuple[Any, str, Any]]:
    recover = EventRouting.recover

    def mutated(self: EventRouting, kept: Any) -> None:
        recover(self, ((event, replace(each, is_delivered=False)) for event, each in kept))

    yield EventRouting, "recover", mutated


@mutation
def who_restarted_matches_at_once() -> Iterator[tuple[Any, str, Any]]:
    yield Vertex, "is_synced", property(lambda self: True, lambda self, synced: None)


@mutation
def who_is_cut_off_matches_for_all() -> Iterator[tuple[Any, str, Any]]:
    yield Gateways, "may_match", Gateways.holds


@mutation
def units_that_are_silent_want_nothing() -> Iterator[tuple[Any, str, Any]]:
    """A new gatekeeper knows nothing yet (G42)."""
    yield UnitInterest, "_unknown", lambda self, level: []


@mutation
def announcers_are_forgotten_at_once() -> Iterator[tuple[Any, str, Any]]:
    """With its last connection, as if nobody came back."""
    yield UnitInterest, "_counts", lambda self, level, entry: entry.unheard_ms is None


@mutation
def one_gatekeeper_confirms_for_all() -> Iterator[tuple[Any, str, Any]]:
    """The first that acknowledges is an indication that all know (X20)."""
    required = UnitInterest._required

    def mutated(self: UnitInterest, level: int) -> Any:
        return required(self, level)[:1]

    yield UnitInterest, "_required", mutated


@mutation
def gateways_of_the_dead_stay() -> Iterator[tuple[Any, str, Any]]:
    yield Gateways, "check_reach", lambda self: self._check_partitions()


@mutation
def suspected_links_are_never_used_again() -> Iterator[tuple[Any, str, Any]]:
    yield Federation, "_works", lambda self, link: None


@mutation
def batches_are_delivered_by_copy() -> Iterator[tuple[Any, str, Any]]:
    deliver = EventRouting._deliver

    def mutated(self: EventRouting, state: EventState) -> None:
        state.is_delivered = False
        deliver(self, state)

    yield EventRouting, "_deliver", mutated


def test_every_mutation_is_pinned_to_a_seed() -> None:
    assert list(mutation.seeds) == mutation.names


@pytest.mark.parametrize("name", mutation.names)
def test_the_bug_is_caught(name: str) -> None:
    mutation.check(name)


def test_a_turn_is_unique_to_its_node() -> None:
    """What the rule about duplicates rests on."""
    one, other = (CarriedCharge(None, Turn(1, node)) for node in (b"a", b"b"))  # type: ignore[arg-type]
    assert one.turn < other.turn and one.turn > Turn(0, b"z")  # type: ignore[arg-type]


@pytest.mark.soak
def test_every_bug_is_found_by_a_search() -> None:
    assert [name for name, seed in mutation.search().items() if seed is None] == []


if __name__ == "__main__":
    print(json.dumps(mutation.search(), indent=2))
