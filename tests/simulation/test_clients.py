"""Clients that come, go, migrate and change their profiles while everything goes wrong: guarantee 12 holds, and the
checker finds what would break it.

Each mutation is pinned to the first seed that finds it (`client_mutations.json`);

python -m tests.simulation.test_clients       searches, and prints the new seeds
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.clients import access_point, state
from m4cast.overlay.protocol.clients.access_point import Attachment, AttachRefusal, AttachRequest, SeenRow
from m4cast.overlay.protocol.clients.memory import ClientMemory
from m4cast.overlay.protocol.clients.state import (
    Backfill,
    ClientProfile,
    ClientState,
    Frontier,
    Other,
    Ranges,
    Sequences,
)
from m4cast.overlay.sim.clients import world
from m4cast.overlay.sim.clients.campaign import ClientOutcome, run_clients_seed
from m4cast.overlay.sim.clients.world import ClientPlace, ClientPortion, SimClient
from tests.simulation.mutations import Mutations

SEEDS = range(int(os.environ.get("M4CAST_SEEDS", "1000")) // 2)
SEARCHED = range(3_000)


def run_table_seed(seed: int) -> ClientOutcome:
    return run_clients_seed(seed, partitions=seed % 2 == 0, has_table=True)


mutation = Mutations("client_mutations.json", run_clients_seed, SEARCHED)
table_mutation = Mutations("client_table_mutations.json", run_table_seed, SEARCHED)


def test_every_client_gets_what_it_is_owed_once() -> None:
    outcomes = [run_clients_seed(seed) for seed in SEEDS]
    assert sum(outcome.taken for outcome in outcomes) > 30 * len(SEEDS)
    assert sum(outcome.migrations for outcome in outcomes) > 3 * len(SEEDS)


def test_partitions_in_any_order_change_nothing_of_it() -> None:
    seeds = range(len(SEEDS) // 4)
    outcomes = [run_clients_seed(seed, partitions=True) for seed in seeds]
    assert outcomes[:10] != [run_clients_seed(seed) for seed in seeds[:10]]
    assert sum(outcome.migrations for outcome in outcomes) > 3 * len(seeds)


def test_places_that_freeze_and_go_on_with_what_they_knew_change_nothing_of_it() -> None:
    """P67: an access point that was stopped knows nothing of where its clients went meanwhile."""
    seeds = range(len(SEEDS) // 4)
    outcomes = [run_clients_seed(seed, partitions=seed % 2 == 0, freezes=True) for seed in seeds]
    assert outcomes[:10] != [run_clients_seed(seed) for seed in seeds[:10]]
    assert sum(outcome.migrations for outcome in outcomes) > 3 * len(seeds)


def test_profiles_that_begin_with_what_stands_in_a_table_change_nothing_of_it() -> None:
    seeds = range(len(SEEDS) // 2)
    outcomes = [run_table_seed(seed) for seed in seeds]
    assert sum(outcome.taken for outcome in outcomes) > 20 * len(seeds)
    assert sum(outcome.migrations for outcome in outcomes) > 3 * len(seeds)


REGRESSIONS = {
    7001721: "who came back with an older state was covered as before, and a former place let go of its rows",
}


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_broke_a_long_run_of_everything_at_once_is_mended(seed: int) -> None:
    run_clients_seed(seed, steps=1_000, partitions=True, freezes=True, has_table=True)


def test_a_seed_runs_the_same_way_twice() -> None:
    assert run_clients_seed(5) == run_clients_seed(5)


# ---- deliberate bugs

Replaced = Iterator[tuple[Any, str, Any]]


@mutation
def no_ghost() -> Replaced:
    """A former access point lets go as soon as it sees a greater row."""
    yield access_point, "lets_go", access_point.is_superseded


@mutation
def sessions_are_ignored() -> Replaced:
    """The row of the greatest node id is the client's."""

    def mutated(seen: SeenRow) -> tuple[int, NodeId]:
        return 0, seen.node_id

    yield access_point, "rank", mutated


@mutation
def the_position_moves_before_delivery() -> Replaced:
    """Rows that arrived count as handed over."""
    receive = SimClient.receive

    def mutated(self: SimClient, portion: ClientPortion) -> None:
        receive(self, portion)
        assert self.memory is not None
        self.memory.hand(portion.read, portion.topic, portion.origin, portion.until)

    yield SimClient, "receive", mutated


@mutation
def a_backfill_walks_down() -> Replaced:
    """A fill gives what other profiles gave."""

    def mutated(self: Other, origin: str, sequence: int) -> bool:
        return False

    yield Other, "gave", mutated


@mutation
def one_position_for_two_profiles() -> Replaced:
    """A new profile has no fill of its own: it begins at the position."""
    subscribed = ClientState.subscribed

    def mutated(self: ClientState, profile: ClientProfile, here: Sequences) -> ClientState:
        return replace(subscribed(self, profile, here), fills=self.fills)

    yield ClientState, "subscribed", mutated


@mutation
def the_position_goes_back_to_a_new_profiles_begin() -> Replaced:
    """The other way to have one position for two profiles."""
    subscribed = ClientState.subscribed

    def mutated(self: ClientState, profile: ClientProfile, here: Sequences) -> ClientState:
        found = subscribed(self, profile, here)
        back = {topic: dict(origins) for topic, origins in found.frontier.items()}
        for origin, at in back[profile.topic].items():
            back[profile.topic][origin] = min(at, profile.begins(origin))
        return replace(found, frontier=back, fills=self.fills)

    yield ClientState, "subscribed", mutated


@mutation
def every_row_is_covered() -> Replaced:
    """A new access point claims to have everything."""

    def mutated(self: ClientState, lows: Frontier) -> Frontier:
        return {}

    yield ClientState, "lacking", mutated


@mutation
def the_lease_is_that_of_the_first_client() -> Replaced:
    def mutated(states: Iterable[ClientState]) -> Frontier:
        return state.floor_of(list(states)[:1])

    yield world, "floor_of", mutated


@mutation
def fills_are_not_held() -> Replaced:
    """The lease forgets what a fill still needs."""
    yield ClientState, "needs", ClientState.position


@mutation
def an_unfinished_fill_is_forgotten_by_later_ones() -> Replaced:
    """The rows that later fills had left to a profile are given by none of them when it goes."""

    def mutated(self: Other, fill: Backfill) -> Iterator[Other]:
        yield self

    yield Other, "unfinished", mutated


@mutation
def the_nodes_position_counts() -> Replaced:
    """An access point ignores what the library brings when it has a state itself."""
    attach = access_point.attach

    def mutated(
        asked: AttachRequest, me: NodeId, rows: Iterable[SeenRow], here: ClientState | None
    ) -> Attachment | AttachRefusal:
        return attach(replace(asked, state=here or asked.state), me, rows, here)

    store = world.ClientWorld._store

    def stored(self: world.ClientWorld, client: SimClient, place: ClientPlace, found: Attachment) -> None:
        client.memory = ClientMemory(found.state, found.session)
        store(self, client, place, found)

    yield access_point, "attach", mutated
    yield world.ClientWorld, "_store", stored


@mutation
def what_was_handed_out_counts_as_acknowledged() -> Replaced:
    """A client that connects anew saves what the application has not acknowledged."""
    connect = world.ClientWorld.connect

    def mutated(self: world.ClientWorld, client: SimClient, place: ClientPlace) -> None:
        if client.memory is not None:
            client.memory.acknowledge()
        connect(self, client, place)

    yield world.ClientWorld, "connect", mutated


@mutation
def a_new_profile_acknowledges_what_was_handed_out() -> Replaced:
    def mutated(self: ClientMemory, profile: ClientProfile, here: Sequences) -> None:
        self.state = self.ahead = self.ahead.subscribed(profile, here)

    yield ClientMemory, "subscribe", mutated


@table_mutation
def what_stood_is_every_row() -> Replaced:
    """The fill does not say that it is of rows that stand."""

    def mutated(profile: ClientProfile, ranges: Ranges, others: tuple[Other, ...], standing: object = None) -> Backfill:
        return Backfill(profile, ranges, others)

    yield state, "Backfill", mutated


@table_mutation
def the_main_line_begins_with_what_stood() -> Replaced:
    """Rows that come later than what stood are given from the beginning."""

    def mutated(self: ClientState, profile: ClientProfile, here: Sequences) -> ClientState:
        return self.subscribed(replace(profile, standing=False), here)

    yield ClientState, "_standing", mutated


@table_mutation
def what_stood_is_given_by_every_profile() -> Replaced:
    subscribed = ClientState.subscribed

    def mutated(self: ClientState, profile: ClientProfile, here: Sequences) -> ClientState:
        found = subscribed(self, profile, here)
        fills = tuple(replace(fill, others=()) if fill.standing is not None else fill for fill in found.fills)
        return replace(found, fills=fills)

    yield ClientState, "subscribed", mutated


@pytest.mark.parametrize("name", mutation.names)
def test_a_deliberate_bug_is_found(name: str) -> None:
    mutation.check(name)


@pytest.mark.parametrize("name", table_mutation.names)
def test_a_deliberate_bug_of_what_stands_is_found(name: str) -> None:
    table_mutation.check(name)


if __name__ == "__main__":
    print(json.dumps(mutation.search(), indent=2))
    print(json.dumps(table_mutation.search(), indent=2))
