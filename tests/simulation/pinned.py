"""The tests that every campaign with deliberate bugs has, by the names that a module gives them."""

from collections.abc import Callable

import pytest

from tests.simulation.mutations import Mutations


def pinned(mutation: Mutations) -> Callable[[], None]:
    def every_mutation_is_pinned_to_a_seed() -> None:
        assert list(mutation.seeds) == mutation.names

    return every_mutation_is_pinned_to_a_seed


def caught(mutation: Mutations) -> Callable[[str], None]:
    """A test of each mutation; call it below the last one, since the names of all of them are parameters."""

    @pytest.mark.parametrize("name", mutation.names)
    def the_bug_is_caught(name: str) -> None:
        mutation.check(name)

    return the_bug_is_caught


def passing(mutation: Mutations, run: Callable[[int], object]) -> Callable[[int], None]:
    """Without a bug, no seed fails to which a bug is pinned."""

    @pytest.mark.parametrize("seed", sorted(set(mutation.seeds.values())))
    def the_seed_passes(seed: int) -> None:
        run(seed)

    return the_seed_passes


def found(mutation: Mutations) -> Callable[[], None]:
    @pytest.mark.soak
    def every_bug_is_found_by_a_search() -> None:
        assert [name for name, seed in mutation.search().items() if seed is None] == []

    return every_bug_is_found_by_a_search
