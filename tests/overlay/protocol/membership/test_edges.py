"""Edges: how far a walk goes, which edge it may end on, and what proposer, requester and far end make of it.

Letters: the walk is for z (and its partner, z itself in a join); m is this node; n is the neighbour it came from.
"""

from collections import Counter
from itertools import pairwise

import pytest

from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.effects import Close, Dial, Send, Trace
from m4cast.overlay.protocol.membership.edges import WALK_SLACK_STEPS, Propose
from m4cast.overlay.protocol.membership.timers import HoleSearchDue, PendingTimeout, ReservationTimeout
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.messages import EdgeProposalCall, EdgeProposalResp, EdgeSearchCall, EdgeSearchResp
from tests.overlay.protocol.member_parts import Member
from tests.overlay.protocol.stream_parts import contact, node_id, of, take

SEARCH = 17
WALK_MS = 3_000


def walk(distance: int, requester: str = "z", partner: str = "z", steps_left: int = 20) -> EdgeSearchCall:
    return EdgeSearchCall(contact(requester), contact(partner), SEARCH, distance, steps_left)


def ended_at(neighbours: str = "nopq", partner: str = "z", seed: int = 1) -> Member:
    """A walk for z has come to its end here, from n; none of the neighbours is linked to z or the partner."""
    member = Member(neighbours, seed=seed)
    for name in neighbours:
        member.neighbour(name).its_neighbours = (node_id("m"),)
    member.membership.edges.on_search(member.neighbour("n"), walk(0, partner=partner), 0)
    return member


def proposed(member: Member) -> Call:
    """The requester answered the call, and has the proposal."""
    call = member.answered("z")
    assert isinstance(call.purpose, Propose)
    return call


# ---- walking


def test_a_walk_starts_at_twice_the_estimated_diameter() -> None:
    member = Member("a")
    member.membership.diameter.estimate = 3
    member.membership.edges.start_walk(contact("z"), contact("y"), 0)
    member.membership.edges.start_walk(contact("z"), contact("z"), 0)
    (_, first), (_, second) = member.told(EdgeSearchCall)
    assert first == EdgeSearchCall(contact("z"), contact("y"), first.search, 6, 6 + WALK_SLACK_STEPS - 1)
    assert second.search != first.search


@pytest.mark.parametrize("diameter", [1, 2, 5])
def test_a_walk_takes_two_diameters_and_one_steps(diameter: int) -> None:
    """Each node passes it on with a distance of one less; who receives 0 is at the end."""
    start, middle = Member("a"), Member("ab")
    start.membership.diameter.estimate = diameter
    start.membership.edges.start_walk(contact("z"), contact("z"), 0)
    ((_, message),) = start.told(EdgeSearchCall)
    messages = [message]
    while messages[-1].distance > 0:
        middle.forget()
        middle.table.reserved.clear()
        middle.membership.edges.on_search(middle.neighbour("a"), messages[-1], 0)
        ((_, message),) = middle.told(EdgeSearchCall)
        messages.append(message)
    assert len(messages) == 2 * diameter + 1
    assert all(after.distance == before.distance - 1 for before, after in pairwise(messages))
    assert all(after.steps_left == before.steps_left - 1 for before, after in pairwise(messages))


def test_each_step_goes_to_a_random_neighbour_also_back() -> None:
    member = Member("abcd")
    for _ in range(400):
        member.membership.edges.on_search(member.neighbour("a"), walk(5), 0)
    counts = Counter(name for name, _ in member.told(EdgeSearchCall))
    assert sorted(counts) == list("abcd")
    assert min(counts.values()) > 60


def test_a_walk_that_was_long_enough_ends() -> None:
    member = Member("a")
    member.membership.edges.on_search(member.neighbour("a"), walk(5, steps_left=1), 0)
    assert len(member.told(EdgeSearchCall)) == 1
    member.forget()
    member.membership.edges.on_search(member.neighbour("a"), walk(5, steps_left=0), 0)
    assert take(member.out) == [Trace("walk-ended", (("search", SEARCH),))]


def test_without_neighbours_a_walk_ends_where_it_began() -> None:
    member = Member()
    member.membership.edges.start_walk(contact("z"), contact("z"), 0)
    assert [trace.name for trace in of(member.out, Trace)] == ["walk-ended"]


def test_who_sends_the_last_step_reserves_the_edge_for_a_while() -> None:
    member = Member("a", walk_timeout_ms=WALK_MS)
    member.membership.edges.on_search(member.neighbour("a"), walk(2), 0)
    assert member.table.reserved == {}
    member.forget()
    member.membership.edges.on_search(member.neighbour("a"), walk(1), 0)
    ((_, last),) = member.told(EdgeSearchCall)
    assert last.distance == 0
    assert member.told(EdgeSearchResp) == [], "one before the last is not the last"
    assert member.table.reserved == {node_id("a"): SEARCH}
    assert member.due_in(ReservationTimeout(node_id("a"))) == 2 * WALK_MS
    member.fire(ReservationTimeout(node_id("a")))
    assert member.table.reserved == {}


@pytest.mark.parametrize("why", ["reserved", "requester", "partner"])
def test_a_last_step_on_an_edge_that_cannot_be_taken_becomes_one_before_the_last(why: str) -> None:
    """The toggle of routine 2805: 0 becomes 1, and the next node tries again."""
    member = Member("a")
    if why == "reserved":
        member.table.reserved[node_id("a")] = 99
    step = walk(1, requester="a" if why == "requester" else "z", partner="a" if why == "partner" else "z")
    member.membership.edges.on_search(member.neighbour("a"), step, 0)
    ((_, onward),) = member.told(EdgeSearchCall)
    assert onward.distance == 1
    assert member.table.reserved == ({node_id("a"): 99} if why == "reserved" else {})


def test_only_the_last_step_has_to_keep_off_edges_that_are_reserved() -> None:
    member = Member("a")
    member.table.reserved[node_id("a")] = 99
    member.membership.edges.on_search(member.neighbour("a"), walk(5), 0)
    ((_, onward),) = member.told(EdgeSearchCall)
    assert onward.distance == 4


# ---- the end of a walk


def test_the_end_of_a_walk_offers_the_edge_it_came_on() -> None:
    member = ended_at(partner="y")
    (dial,) = of(member.out, Dial)
    assert dial.address == contact("z").address
    assert member.table.proposing == {node_id("z"): dial.conn}
    assert member.table.reserved == {node_id("n"): SEARCH}
    call = proposed(member)
    assert member.answer(call, EdgeProposalCall) == EdgeProposalCall(SEARCH, contact("n"), node_id("y"))


@pytest.mark.parametrize(
    "case",
    [
        "for me",
        "with me",
        "for the other end",
        "with the other end",
        "reserved",
        "neighbour",
        "courting",
        "pending",
        "proposing",
        "no word",
        "far end has the partner",
        "leaving",
    ],
)
def test_an_edge_that_cannot_be_offered_is_given_back_and_the_walk_goes_on(case: str) -> None:
    member = Member("nopq")
    requester, partner = "z", "y"
    other = member.neighbour("n")
    other.its_neighbours = (node_id("m"), node_id("o"))
    match case:
        case "for me":
            requester = "m"
        case "with me":
            partner = "m"
        case "for the other end":
            requester = "n"
        case "with the other end":
            partner = "n"
        case "reserved":
            member.table.reserved[node_id("n")] = 99
        case "neighbour":
            requester = "p"
        case "courting":
            member.table.courting[node_id("z")] = 99
        case "pending":
            member.table.pending[node_id("z")] = node_id("p")
        case "proposing":
            member.table.proposing[node_id("z")] = 99
        case "no word":
            other.its_neighbours = None
        case "far end has the partner":
            other.its_neighbours = (node_id("m"), node_id("y"))
        case "leaving":
            member.links.leaving = True
    member.membership.edges.on_search(other, walk(0, requester, partner), 0)
    assert of(member.out, Dial) == []
    assert member.told(EdgeSearchResp) == [("n", EdgeSearchResp(SEARCH, False, contact(partner)))]
    assert len(member.told(EdgeSearchCall)) == 1


@pytest.mark.parametrize(("steps_left", "distance"), [(20, 0), (19, 1), (18, 0), (17, 1)])
def test_the_distance_of_a_walk_that_goes_on_toggles(steps_left: int, distance: int) -> None:
    """The toggling prevents it from swinging for ever between the two sides of a bipartite graph."""
    member = Member("nopq")
    member.membership.edges.on_search(member.neighbour("n"), walk(0, steps_left=steps_left), 0)
    ((_, onward),) = member.told(EdgeSearchCall)
    assert (onward.distance, onward.steps_left) == (distance, steps_left - 1)


def test_an_edge_is_not_offered_twice() -> None:
    member = ended_at()
    member.forget()
    member.membership.edges.on_search(member.neighbour("n"), walk(0, requester="x", partner="x"), 0)
    assert of(member.out, Dial) == []
    assert member.told(EdgeSearchResp) == [("n", EdgeSearchResp(SEARCH, False, contact("x")))]


def test_an_edge_that_was_offered_is_free_again_when_the_offer_came_to_nothing() -> None:
    member = ended_at()
    (dial,) = of(member.out, Dial)
    call = member.calls.lost(dial.conn)
    assert call is not None
    member.forget()
    member.membership.call_failed(call, 0)
    assert (member.table.reserved, member.table.proposing) == ({}, {})
    assert member.told(EdgeSearchResp) == [("n", EdgeSearchResp(SEARCH, False, contact("z")))]
    assert member.told(EdgeSearchCall) == [], "the requester is not there: no reason to go on"


def test_the_end_of_an_old_call_does_not_end_a_newer_offer() -> None:
    member = ended_at()
    (dial,) = of(member.out, Dial)
    call = member.calls.get(dial.conn)
    assert call is not None
    member.table.proposing[node_id("z")] = 99
    member.membership.call_failed(call, 0)
    assert member.table.proposing == {node_id("z"): 99}
    assert member.table.reserved == {node_id("n"): SEARCH}


def test_an_offer_whose_other_end_went_away_before_it_was_made_is_not_made() -> None:
    member = ended_at()
    dial = of(member.out, Dial)[-1]
    member.links.drop(member.neighbour("n"), "x", 0)
    member.out.append(dial)
    call = member.answered("z")
    assert take(member.out) == [Close(call.conn)]
    assert member.table.proposing == {}


# ---- what the requester makes of it


def newcomer(degree: int = 4) -> Member:
    return Member(degree=degree, state=State.SEEKING)


def offer(member: Member, near: str = "u", far: str = "v", partner: str = "m", incarnation: int = 1) -> Call:
    call = member.called(near, incarnation)
    proposal = EdgeProposalCall(SEARCH, contact(far), node_id(partner))
    member.membership.edges.on_proposal(call, proposal, 0)
    return call


def test_a_newcomer_takes_the_edge_and_waits_for_its_far_end() -> None:
    member = newcomer()
    call = offer(member)
    assert member.answer(call, EdgeProposalResp) == EdgeProposalResp(accepted=True, search_on=False)
    assert member.names() == "u"
    assert member.table.pending == {node_id("v"): node_id("u")}
    assert member.table.free_holes() == 2
    assert member.due_in(PendingTimeout(node_id("v"))) == member.config.walk_timeout_ms


def test_a_far_end_that_does_not_come_is_not_waited_for_longer() -> None:
    member = newcomer()
    offer(member)
    member.fire(PendingTimeout(node_id("v")))
    assert member.table.pending == {}
    assert member.timers.is_set(HoleSearchDue())


def test_for_a_pair_each_takes_one_end() -> None:
    """m asked for itself and its neighbour p: it takes the near end only, the far end will court p."""
    member = Member("pqr")
    call = offer(member, partner="p")
    assert member.answer(call, EdgeProposalResp).accepted
    assert member.names() == "pqru"
    assert member.table.pending == {}


@pytest.mark.parametrize(
    ("case", "search_on"),
    [
        ("no holes", False),
        ("one hole for two", False),
        ("leaving", False),
        ("near is a neighbour", True),
        ("near is courted", True),
        ("near is expected", True),
        ("far is a neighbour", True),
        ("far is courted", True),
        ("far is expected", True),
        ("far is me", True),
        ("near is far", True),
        ("no holes, and near is a neighbour", False),
    ],
)
def test_an_edge_that_does_not_serve_is_refused_and_changes_nothing(case: str, search_on: bool) -> None:
    member = Member("a")
    near, far = "u", "v"
    match case:
        case "no holes" | "no holes, and near is a neighbour":
            for name in "bcd":
                member.link(name)
            near = "u" if case == "no holes" else "a"
        case "one hole for two":
            for name in "bc":
                member.link(name)
        case "leaving":
            member.links.leaving = True
        case "near is a neighbour":
            near = "a"
        case "near is courted":
            member.table.courting[node_id("u")] = 99
        case "near is expected":
            member.table.pending[node_id("u")] = node_id("a")
        case "far is a neighbour":
            far = "a"
        case "far is courted":
            member.table.courting[node_id("v")] = 99
        case "far is expected":
            member.table.pending[node_id("v")] = node_id("a")
        case "far is me":
            far = "m"
        case "near is far":
            far = "u"
    before = (member.names(), dict(member.table.courting), dict(member.table.pending))
    call = offer(member, near, far)
    assert member.answer(call, EdgeProposalResp) == EdgeProposalResp(False, search_on)
    assert member.closed(call)
    assert (member.names(), member.table.courting, member.table.pending) == before


def test_for_a_pair_the_far_end_does_not_matter() -> None:
    member = Member("apq")
    call = offer(member, far="a", partner="p")
    assert member.answer(call, EdgeProposalResp).accepted


def test_a_restarted_neighbour_may_propose() -> None:
    member = Member("a")
    call = offer(member, near="a", incarnation=2)
    assert member.answer(call, EdgeProposalResp).accepted
    assert member.downs() == [("a", "restarted")]
    assert member.neighbour("a").conn == call.conn


# ---- what the proposer makes of the answer


def answer(member: Member, call: Call, accepted: bool, search_on: bool = False) -> None:
    member.membership.edges.on_answer(call, EdgeProposalResp(accepted, search_on), 0)


def test_an_accepted_edge_is_replaced_and_its_other_end_is_told_whom_to_court() -> None:
    member = ended_at(partner="y")
    far = member.neighbour("n")
    call = proposed(member)
    take(member.out)
    answer(member, call, accepted=True)
    assert member.names() == "opqz"
    assert member.downs() == [("n", "pinned")]
    told = Send(far.conn, EdgeSearchResp(SEARCH, True, contact("y")))
    assert member.out.index(told) < member.out.index(Close(far.conn)), "it is told before it is hung up on"
    assert (member.table.proposing, member.table.reserved) == ({}, {})


@pytest.mark.parametrize("search_on", [True, False])
def test_a_refused_edge_is_kept_and_the_walk_goes_on_if_another_is_wanted(search_on: bool) -> None:
    member = ended_at()
    call = proposed(member)
    member.forget()
    answer(member, call, accepted=False, search_on=search_on)
    assert member.names() == "nopq"
    assert member.closed(call)
    assert member.table.proposing == {}
    assert len(member.table.reserved) == (1 if search_on else 0), "only what the next step reserves"
    assert len(member.told(EdgeSearchCall)) == (1 if search_on else 0)
    assert member.told(EdgeSearchResp) == [("n", EdgeSearchResp(SEARCH, False, contact("z")))]


@pytest.mark.parametrize("case", ["leaving", "neighbour by now", "courted by now"])
def test_an_accepted_edge_that_cannot_be_given_any_more_is_kept(case: str) -> None:
    member = ended_at("nop")
    call = proposed(member)
    member.forget()
    match case:
        case "leaving":
            member.links.leaving = True
        case "neighbour by now":
            member.link("z")
        case "courted by now":
            member.table.courting[node_id("z")] = 99
    answer(member, call, accepted=True, search_on=True)
    assert "n" in member.names()
    assert member.closed(call)
    assert member.table.proposing == {}
    assert member.told(EdgeSearchCall) == []


@pytest.mark.parametrize(("neighbours", "taken"), [("nopq", True), ("nopqr", False)])
def test_when_the_other_end_is_gone_the_requester_fills_the_hole(neighbours: str, taken: bool) -> None:
    member = ended_at("nopq")
    call = proposed(member)
    member.links.drop(member.neighbour("n"), "x", 0)
    if not taken:
        member.link("r")
    member.forget()
    answer(member, call, accepted=True)
    assert ("z" in member.names()) is taken
    assert member.closed(call) is not taken
    assert member.told(EdgeSearchResp) == []


def test_an_answer_that_was_not_asked_for_is_hung_up_on() -> None:
    member = Member("nopq")
    call = member.called("z")
    answer(member, call, accepted=True)
    assert member.closed(call)
    assert member.names() == "nopq"


def test_an_answer_on_another_call_than_the_offers_is_hung_up_on_and_the_offer_stands() -> None:
    member = ended_at()
    offered = proposed(member)
    other = member.called("z")
    answer(member, other, accepted=True)
    assert member.closed(other)
    assert member.table.proposing == {node_id("z"): offered.conn}
    member.table.proposing[node_id("z")] = 99
    answer(member, offered, accepted=True)
    assert member.closed(offered)
    assert member.table.proposing == {node_id("z"): 99}
    assert member.names() == "nopq"


# ---- what the far end makes of it


def respond(member: Member, accepted: bool, partner: str = "z") -> None:
    member.membership.edges.on_response(member.neighbour("n"), EdgeSearchResp(SEARCH, accepted, contact(partner)), 0)


def test_the_far_end_courts_the_partner_and_gives_up_the_edge() -> None:
    member = Member("nopq")
    member.table.reserved[node_id("n")] = SEARCH
    respond(member, accepted=True)
    assert member.names() == "opq"
    assert member.downs() == [("n", "pinned")]
    assert member.dialled() == ["z"]
    assert list(member.table.courting) == [node_id("z")]
    assert member.table.free_holes() == 0, "the hole is promised"
    assert member.table.reserved == {}


@pytest.mark.parametrize("case", ["partner is me", "partner is known"])
def test_the_far_end_does_not_court_itself_nor_whom_it_knows(case: str) -> None:
    member = Member("nopq")
    respond(member, accepted=True, partner="m" if case == "partner is me" else "o")
    assert member.names() == "opq"
    assert member.dialled() == []


@pytest.mark.parametrize(("search", "still_reserved"), [(SEARCH, False), (99, True)])
def test_a_refused_edge_is_free_again_unless_another_walk_has_it(search: int, still_reserved: bool) -> None:
    member = Member("nopq")
    member.table.reserved[node_id("n")] = search
    respond(member, accepted=False)
    assert (node_id("n") in member.table.reserved) is still_reserved
    assert member.names() == "nopq"
