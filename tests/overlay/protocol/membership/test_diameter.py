"""The estimated diameter: it rises by what is seen, within what the number of nodes allows."""

import pytest

from m4cast.overlay.protocol.membership.diameter import DIAMETER_MAX, Diameter


def diameter(population: int, degree: int = 4) -> Diameter:
    made = Diameter(degree)
    made.population = population
    return made


@pytest.mark.parametrize(
    ("degree", "population", "cap"),
    [
        (4, 1, 4),
        (4, 2, 4),
        (4, 3, 4),
        (4, 4, 6),
        (4, 9, 6),
        (4, 10, 8),
        (4, 100, 12),
        (3, 8, 8),
        (3, 9, 10),
        (64, 64, 6),
    ],
)
def test_the_cap_is_about_twice_what_a_random_graph_of_that_size_has(degree: int, population: int, cap: int) -> None:
    assert diameter(population, degree).cap() == cap


@pytest.mark.parametrize(("population", "true_diameter"), [(9, 2), (20, 5), (50, 6), (100, 6), (200, 7), (1_000, 9)])
def test_the_cap_is_never_below_the_diameters_that_were_measured(population: int, true_diameter: int) -> None:
    """Diameters that were seen in simulated channels."""
    assert diameter(population).cap() > true_diameter


def test_the_estimate_rises_to_the_cap_and_not_beyond() -> None:
    estimate = diameter(9)
    assert not estimate.rises_to(1)
    assert estimate.rises_to(3)
    assert estimate.estimate == 3
    assert not estimate.rises_to(3)
    assert not estimate.rises_to(2)
    assert estimate.rises_to(6)
    assert not estimate.rises_to(7)
    assert estimate.estimate == 6


def test_no_channel_is_so_large_that_walks_have_no_end() -> None:
    huge = diameter(2**200)
    assert huge.rises_to(DIAMETER_MAX)
    assert not huge.rises_to(DIAMETER_MAX + 1)


def test_the_estimate_falls_with_the_number_of_nodes() -> None:
    made = Diameter(4)
    made.resize(1_000)
    assert made.rises_to(15)
    made.resize(2_000)
    assert made.estimate == 15
    made.resize(30)
    assert made.estimate == made.cap() < 15


def test_what_was_taken_over_stays_while_the_roster_only_grows() -> None:
    made = Diameter(4)
    made.take_over(12)
    for population in (2, 5, 20):
        made.resize(population)
    assert made.estimate == 12


@pytest.mark.parametrize(("told", "taken"), [(-5, 1), (0, 1), (1, 1), (7, 7), (DIAMETER_MAX, 64), (10**9, 64)])
def test_a_newcomer_takes_over_what_it_is_told_within_bounds(told: int, taken: int) -> None:
    estimate = diameter(1)
    estimate.take_over(told)
    assert estimate.estimate == taken
