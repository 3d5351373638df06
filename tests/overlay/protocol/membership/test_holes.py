"""Holes: how far and how often a node searches for a neighbour, and who answers."""

import pytest

from m4cast.overlay.protocol.effects import Dial
from m4cast.overlay.protocol.membership.holes import BACKOFF_MS_MAX, SEARCH_RINGS
from m4cast.overlay.protocol.membership.timers import HoleSearchDue
from m4cast.overlay.protocol.wire.control import to_avro
from m4cast.overlay.protocol.wire.messages import DiameterEstimateStmt, EdgeSearchCall, PortSearchStmt
from tests.overlay.protocol.member_parts import ME, Member
from tests.overlay.protocol.stream_parts import contact, node_id, of

WAIT_MS, WALK_MS = 300, 3_000


def with_holes(neighbours: str, degree: int = 4) -> Member:
    """A node that misses neighbours and is about to search for them."""
    member = Member(neighbours, degree, search_wait_ms=WAIT_MS, walk_timeout_ms=WALK_MS)
    member.links.search_soon(0)
    return member


def step(member: Member) -> tuple[list[PortSearchStmt], list[EdgeSearchCall], int]:
    """The next step of the search: port searches, walks, and how long it waits afterwards."""
    member.forget()
    member.fire(HoleSearchDue())
    searches = [message for _, message in member.told(PortSearchStmt)]
    walks = [message for _, message in member.told(EdgeSearchCall)]
    return searches, walks, member.due_in(HoleSearchDue()) if member.timers.is_set(HoleSearchDue()) else 0


def search(requester: str = "z", number: int = 1, hops: int = 1, hops_max: int = 5) -> PortSearchStmt:
    return PortSearchStmt(contact(requester), number, hops, hops_max)


# ---- searching


def test_a_hole_is_searched_for_in_wider_and_wider_rings_and_then_by_a_walk() -> None:
    member = with_holes("ab")
    numbers = []
    for ring, hops_max in enumerate(SEARCH_RINGS, start=1):
        searches, walks, wait_ms = step(member)
        assert searches == [PortSearchStmt(ME, searches[0].search, 1, hops_max)] * 2
        assert walks == []
        assert ring * WAIT_MS <= wait_ms <= ring * WAIT_MS * 3 // 2
        numbers.append(searches[0].search)
    assert len(set(numbers)) == len(SEARCH_RINGS)
    searches, walks, wait_ms = step(member)
    assert searches == []
    assert [(walk.requester, walk.partner) for walk in walks] == [(ME, ME)]
    assert WALK_MS <= wait_ms <= WALK_MS * 3 // 2
    assert step(member)[0][0].hops_max == SEARCH_RINGS[0], "and from the beginning"


def test_rounds_come_more_and_more_rarely_up_to_a_bound() -> None:
    member = with_holes("abc")
    waits = []
    for _ in range(10):
        for _ in SEARCH_RINGS:
            step(member)
        waits.append(step(member)[2])
    for round_number, wait_ms in enumerate(waits):
        full_ms = min(WALK_MS << round_number, BACKOFF_MS_MAX)
        assert full_ms <= wait_ms <= full_ms * 3 // 2


def test_a_new_loss_starts_the_search_over() -> None:
    member = with_holes("abc")
    for _ in range(4 * 5 + 2):
        step(member)
    member.links.drop(member.neighbour("c"), "x", member.now_ms)
    searches, _, _ = step(member)
    assert searches[0].hops_max == SEARCH_RINGS[0]
    assert [step(member)[0][0].hops_max for _ in SEARCH_RINGS[1:]] == list(SEARCH_RINGS[1:])
    _, walks, wait_ms = step(member)
    assert walks
    assert wait_ms <= WALK_MS * 3 // 2


@pytest.mark.parametrize(
    ("degree", "neighbours", "walks"),
    [(4, "abc", 0), (4, "ab", 1), (4, "a", 1), (6, "ab", 2), (6, "abc", 1), (7, "a", 3)],
)
def test_every_two_holes_are_filled_by_a_walk(degree: int, neighbours: str, walks: int) -> None:
    member = with_holes(neighbours, degree)
    for _ in SEARCH_RINGS:
        step(member)
    assert len(step(member)[1]) == walks


@pytest.mark.parametrize(
    ("partner", "walks"),
    [
        ("z", 1),  # both have one hole; the one with the smaller id walks for the pair
        ("a", 0),
    ],
)
def test_one_hole_each_of_two_neighbours_is_filled_by_a_walk_for_the_pair(partner: str, walks: int) -> None:
    member = with_holes(partner + "op")
    member.say_lists(**{partner: "mxy", "o": "mwxy", "p": "mwxy"})
    for _ in SEARCH_RINGS:
        step(member)
    found = step(member)[1]
    assert [(walk.requester, walk.partner) for walk in found] == [(ME, contact(partner))] * walks


def test_with_more_holes_than_one_a_node_walks_for_itself_only() -> None:
    member = with_holes("z")
    member.say_lists(z="mx")
    for _ in SEARCH_RINGS:
        step(member)
    assert [(walk.requester, walk.partner) for walk in step(member)[1]] == [(ME, ME)]


def test_one_hole_that_is_alone_starts_no_walk() -> None:
    member = with_holes("zop")
    member.say_lists(z="mwxy", o="mwxy", p="mwxy")
    for _ in SEARCH_RINGS:
        step(member)
    assert step(member)[1] == []


@pytest.mark.parametrize("case", ["no hole", "hole is promised", "complete graph", "no neighbour", "leaving"])
def test_nothing_is_searched_when_there_is_nothing_to_find(case: str) -> None:
    member = with_holes({"no hole": "abcd", "no neighbour": ""}.get(case, "abc"))
    match case:
        case "hole is promised":
            member.table.courting[node_id("x")] = 99
        case "complete graph":
            member.say_lists(a="mbc", b="mac", c="mab")
        case "leaving":
            member.links.leaving = True
    assert step(member) == ([], [], 0)


def test_when_all_holes_were_filled_the_next_search_begins_near() -> None:
    member = with_holes("abc")
    for _ in range(4 * 3 + 1):
        step(member)
    member.link("d")
    member.links.search_soon(member.now_ms)
    assert step(member) == ([], [], 0)
    member.table.neighbours.pop(node_id("d"))
    member.links.search_soon(member.now_ms)
    assert step(member)[0][0].hops_max == SEARCH_RINGS[0]
    for _ in SEARCH_RINGS[1:]:
        step(member)
    assert step(member)[2] <= WALK_MS * 3 // 2


# ---- being asked


def heard(member: Member, statement: PortSearchStmt, sender: str = "a") -> None:
    member.membership.on_port_search(member.neighbour(sender), statement, 0)


@pytest.mark.parametrize(("hops", "passed_on"), [(1, True), (4, True), (5, False), (6, False)])
def test_a_search_is_passed_on_to_all_others_within_its_reach(hops: int, passed_on: bool) -> None:
    member = Member("abcd")
    heard(member, search(hops=hops), sender="b")
    expected = [(name, search(hops=hops + 1)) for name in "acd"] if passed_on else []
    assert member.told(PortSearchStmt) == expected


def test_a_further_copy_is_dropped() -> None:
    member = Member("abcd")
    heard(member, search())
    member.forget()
    heard(member, search(hops=2), sender="b")
    assert member.out == []
    heard(member, search(number=2))
    heard(member, search(requester="y"))
    assert len(member.told(PortSearchStmt)) == 6


def test_my_own_search_is_not_news() -> None:
    member = Member("abc")
    heard(member, search(requester="m", number=12345))
    assert member.out == []


def test_who_has_a_free_hole_courts_the_searcher() -> None:
    member = Member("abc")
    heard(member, search())
    assert [dial.address for dial in of(member.out, Dial)] == [contact("z").address]
    assert list(member.table.courting) == [node_id("z")]


@pytest.mark.parametrize("case", ["no hole", "promised", "neighbour", "courting", "pending", "proposing", "leaving"])
def test_who_cannot_be_its_neighbour_does_not_court_the_searcher_but_passes_it_on(case: str) -> None:
    member = Member("abcd" if case == "no hole" else "ab")
    match case:
        case "promised":
            member.table.courting = {node_id("x"): 97, node_id("y"): 99}
        case "neighbour":
            member.link("z")
            member.forget()
        case "courting":
            member.table.courting[node_id("z")] = 99
        case "pending":
            member.table.pending[node_id("z")] = node_id("a")
        case "proposing":
            member.table.proposing[node_id("z")] = 99
        case "leaving":
            member.links.leaving = True
    heard(member, search())
    assert of(member.out, Dial) == []
    assert member.told(PortSearchStmt)


def test_the_first_copy_of_a_search_shows_a_distance_and_later_ones_do_not() -> None:
    member = Member("abcd")
    member.membership.diameter.population = 100
    heard(member, search(hops=3))
    assert member.membership.diameter.estimate == 3
    assert [name for name, _ in member.told(DiameterEstimateStmt)] == list("abcd")
    heard(member, search(hops=4), sender="b")
    assert member.membership.diameter.estimate == 3


# ---- after a restart


def test_searches_of_another_life_have_other_numbers() -> None:
    """Others remember those of the last one, and would not pass on what looks the same."""
    numbers = []
    for incarnation in (1, 2, 3):
        member = Member("abc", incarnation=incarnation)
        member.say_lists(a="mxy", b="mxy", c="mxy")
        member.membership.holes.fill(0)
        ((_, search), *_) = member.told(PortSearchStmt)
        to_avro(search)
        numbers.append(search.search)
    assert numbers == [(1 << 32) + 1, (2 << 32) + 1, (3 << 32) + 1]
