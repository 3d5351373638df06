"""The reach and the cost of a change of interest in random graphs (I2 to I6), in sizes that take little time;
`tests/bench/interest.py` goes on to 8,192 nodes and 100,000 registrations."""

from random import Random

import pytest

from tests.overlay.protocol.interest.mesh import Mesh
from tests.overlay.protocol.interest.spread import (
    DEGREE,
    bytes_of_change,
    eccentricity,
    filled,
    hops_after_crashes,
    hops_of_change,
    regular,
)


@pytest.mark.parametrize("count", [8, 16, 32, 64])
def test_a_change_is_known_everywhere_after_as_many_hops_as_the_farthest_node_is_away(count: int) -> None:
    random = Random(count)
    edges = regular(count, random)
    mesh = Mesh(edges)
    for number in range(10):
        origin = random.randrange(count)
        assert hops_of_change(mesh, origin, f"t{number}") <= eccentricity(edges, origin)


@pytest.mark.parametrize("count", [8, 64])
def test_crashes_of_one_node_less_than_the_degree_do_not_keep_a_change_from_the_others(count: int) -> None:
    random = Random(count)
    edges = regular(count, random)
    for _ in range(5):
        origin = random.randrange(count)
        crashed = frozenset(random.sample([each for each in range(count) if each != origin], DEGREE - 1))
        mesh = Mesh(edges)
        assert hops_after_crashes(mesh, origin, crashed) <= eccentricity(edges, origin, crashed)
        assert mesh.agree()


def test_a_change_costs_the_same_however_many_registrations_there_are() -> None:
    costs = [bytes_of_change(filled(total)) for total in (10, 100, 1_000)]
    assert min(costs) > 0 and max(costs) <= 1.1 * min(costs), costs
