"""The table of neighbours: holes and promises, the exact regime, and the pairs of a planned leave."""

from itertools import combinations, permutations
from random import Random

import pytest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.neighbours import PAIRING_EXACT_MAX, Neighbour, NeighbourTable
from tests.overlay.protocol.stream_parts import contact, node_id

ME = "m"


def table_of(lists: dict[str, str | None], degree: int = 4) -> NeighbourTable:
    """My table: each neighbour with its own neighbours, one letter each, or None when it has not said them yet."""
    table = NeighbourTable(node_id(ME), degree)
    for conn, (name, its_neighbours) in enumerate(lists.items()):
        neighbour = Neighbour(contact(name), conn, incarnation=1, heard_at_ms=0)
        if its_neighbours is not None:
            neighbour.its_neighbours = tuple(map(node_id, its_neighbours))
        table.neighbours[node_id(name)] = neighbour
    return table


def linked(names: str, *edges: str) -> dict[str, str | None]:
    """Neighbours of mine with these edges among them."""
    return {name: ME + "".join(edge.replace(name, "") for edge in edges if name in edge) for name in names}


def pairs_of(table: NeighbourTable) -> list[str]:
    """The pairs that a planned leave makes of the list, as the neighbours will: first with second, ..."""
    names = [str(listed.address[0]) for listed in table.pairing()]
    return ["".join(sorted(names[at : at + 2])) for at in range(0, len(names) - 1, 2)]


def new_pairs_of(table: NeighbourTable) -> list[str]:
    """Those of the pairs that are not linked yet: the links that the leave will make."""
    return [pair for pair in pairs_of(table) if not table.are_linked(node_id(pair[0]), node_id(pair[1]))]


# ---- holes


def test_holes_are_free_until_they_are_promised() -> None:
    table = table_of({"a": None})
    assert (table.holes(), table.free_holes()) == (3, 3)
    table.courting[node_id("b")] = 1
    assert (table.holes(), table.free_holes()) == (3, 2)
    table.pending[node_id("c")] = node_id("a")
    assert (table.holes(), table.free_holes()) == (3, 1)
    table.reserved[node_id("a")] = 1
    assert (table.holes(), table.free_holes()) == (3, 1)


@pytest.mark.parametrize(
    ("neighbours", "courting", "pending", "room_for_p", "room_for_x"),
    [
        ("", "", "", True, True),
        ("abc", "", "", True, True),
        ("abc", "", "p", True, False),
        ("ab", "c", "p", True, False),
        ("abc", "d", "", False, False),
        ("abcd", "", "", False, False),
        ("abcd", "", "p", False, False),  # a merge took what was promised
    ],
)
def test_a_promised_hole_is_for_the_one_it_was_promised_to(
    neighbours: str, courting: str, pending: str, room_for_p: bool, room_for_x: bool
) -> None:
    table = table_of(dict.fromkeys(neighbours))
    table.courting = {node_id(name): 1 for name in courting}
    table.pending = {node_id(name): node_id("a") for name in pending}
    assert table.has_room_for(node_id("p")) is room_for_p
    assert table.has_room_for(node_id("x")) is room_for_x


@pytest.mark.parametrize(("name", "known"), [("a", True), ("b", True), ("c", True), ("d", False), (ME, False)])
def test_it_knows_whom_it_is_linked_to_or_about_to_be(name: str, known: bool) -> None:
    table = table_of({"a": None})
    table.courting[node_id("b")] = 1
    table.pending[node_id("c")] = node_id("a")
    table.reserved[node_id("d")] = 1
    assert table.knows(node_id(name)) is known


def test_a_neighbour_with_a_hole_is_one_that_said_so() -> None:
    full, holed = "mxyz", "mx"
    assert table_of({}).with_hole() is None
    assert table_of({"a": full, "b": None}).with_hole() is None
    found = table_of({"a": full, "b": None, "c": holed}).with_hole()
    assert found is not None
    assert found.contact == contact("c")


# ---- the regime


@pytest.mark.parametrize(
    ("lists", "complete"),
    [
        ({}, True),
        ({"a": "m"}, True),
        ({"a": "mb", "b": "ma"}, True),
        ({"a": "mbcd", "b": "macd", "c": "mabd", "d": "mabc"}, True),
        ({"a": None}, False),
        ({"a": "mb", "b": None}, False),
        ({"a": ""}, False),  # it does not count me as its neighbour (yet)
        ({"a": "mx"}, False),  # it has one more
        ({"a": "mb"}, False),
        ({"a": "mb", "b": "m"}, False),  # not linked by the word of b
        ({"a": "mb", "b": "mx"}, False),  # as many as I have, but another one
        ({"a": "mb", "b": "max"}, False),
        ({"a": "mbcd", "b": "macd", "c": "mabd", "d": "mabx"}, False),
        ({"a": "bx", "b": "ma"}, False),  # it has somebody else instead of me
    ],
)
def test_the_graph_is_complete_exactly_when_all_closed_neighbourhoods_are_equal(
    lists: dict[str, str | None], complete: bool
) -> None:
    assert table_of(lists).complete() is complete


def test_the_order_of_the_lists_does_not_matter_for_completeness() -> None:
    for order in permutations("mbc"):
        assert table_of({"c": "mab", "a": "".join(order), "b": "cma"}).complete()


# ---- the pairs of a planned leave


def test_one_word_is_enough_for_a_link() -> None:
    table = table_of({"a": "mb", "b": "m", "c": None, "d": "mc"})
    assert table.are_linked(node_id("a"), node_id("b"))
    assert table.are_linked(node_id("b"), node_id("a"))
    assert table.are_linked(node_id("c"), node_id("d"))
    assert not table.are_linked(node_id("a"), node_id("c"))


@pytest.mark.parametrize("order", ["".join(order) for order in permutations("AEFI")])
def test_figure_5a_has_one_pairing_whatever_the_order_of_the_neighbours(order: str) -> None:
    """H leaves. A-E and A-F are edges already, so A can only take I, which leaves E and F to each other."""
    table = table_of({name: {"A": "EFGm", "E": "ACDm", "F": "ABGm", "I": "BCGm"}[name] for name in order})
    assert sorted(pairs_of(table)) == ["AI", "EF"]


@pytest.mark.parametrize("order", ["".join(order) for order in permutations("abcd")])
def test_when_one_pair_is_possible_it_comes_first(order: str) -> None:
    """All are linked but b and d: that pair is made, the other two search."""
    table = table_of(linked(order, "ab", "ac", "ad", "bc", "cd"))
    assert pairs_of(table)[0] == "bd"
    assert sorted(listed.address[0] for listed in table.pairing()) == list("abcd")


def test_when_no_pair_is_possible_everybody_is_still_listed() -> None:
    table = table_of(linked("abcd", *map("".join, combinations("abcd", 2))))
    assert new_pairs_of(table) == []
    assert sorted(listed.address[0] for listed in table.pairing()) == list("abcd")


@pytest.mark.parametrize(
    ("names", "edges", "pairs"),
    [
        ("", [], 0),
        ("a", [], 0),
        ("ab", [], 1),
        ("ab", ["ab"], 0),
        ("abc", [], 1),
        ("abc", ["ab", "ac"], 1),
        ("abcde", ["ab", "bc", "cd", "de"], 2),
        ("abcdef", ["ab", "bc", "ca", "de", "ef", "fd"], 3),
        ("abcdef", ["ab", "ac", "ad", "ae", "af"], 2),
    ],
)
def test_as_many_pairs_as_possible(names: str, edges: list[str], pairs: int) -> None:
    table = table_of(linked(names, *edges), degree=8)
    assert len(new_pairs_of(table)) == pairs
    assert sorted(listed.address[0] for listed in table.pairing()) == list(names)


@pytest.mark.parametrize("seed", range(30))
def test_up_to_ten_neighbours_the_pairing_is_the_best_there_is(seed: int) -> None:
    random = Random(seed)
    names = "abcdefghij"[: random.randint(2, PAIRING_EXACT_MAX)]
    edges = ["".join(pair) for pair in combinations(names, 2) if random.random() < 0.7]
    possible = [pair for pair in map("".join, combinations(names, 2)) if pair not in edges]

    def best(left: list[str]) -> int:
        return max((1 + best([p for p in left if not set(p) & set(pair)]) for pair in left), default=0)

    assert len(new_pairs_of(table_of(linked(names, *edges), degree=10))) == best(possible)


@pytest.mark.parametrize("count", [PAIRING_EXACT_MAX + 1, 64])
def test_with_more_neighbours_the_pairing_is_quick_and_pairs_those_it_can(count: int) -> None:
    table = NeighbourTable(node_id(ME), 64)
    ids = [node_id(f"n{number:02}") for number in range(count)]
    for number, peer in enumerate(ids):
        # Everybody is linked to the one before and the one after.
        neighbour = Neighbour(contact(f"n{number:02}"), number, 1, 0)
        neighbour.its_neighbours = tuple(ids[max(0, number - 1) : number] + ids[number + 1 : number + 2])
        table.neighbours[peer] = neighbour
    listed: list[NodeId] = [each.node_id for each in table.pairing()]
    assert sorted(listed) == ids
    pairs = list(zip(listed[::2], listed[1::2], strict=False))
    assert sum(not table.are_linked(a, b) for a, b in pairs) >= count // 2 - 1
