"""Joining and leaving: what a portal does in each regime, who is accepted as a neighbour, how a leaver's neighbours
pair up."""

from itertools import combinations

import pytest

from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.effects import Close, Dial, Send
from m4cast.overlay.protocol.membership.timers import HoleSearchDue, PendingTimeout
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.messages import (
    ConnectionRequestCall,
    ConnectionRequestResp,
    DisconnectStmt,
    EdgeSearchCall,
    MergeResp,
    PortConnectionCall,
    PortConnectionResp,
    RefusedStmt,
)
from tests.overlay.protocol.member_parts import Member, contacts
from tests.overlay.protocol.stream_parts import contact, entry, node_id, of, take

ROSTER = (entry("m"), entry("x"))


def request(member: Member, name: str = "z", holes: int = 4) -> Call:
    """A newcomer asks to be brought in."""
    call = member.called(name)
    member.membership.joining.on_request(call, holes, ROSTER, member.now_ms)
    return call


def complete(neighbours: str, degree: int = 4) -> Member:
    """One of a complete graph."""
    member = Member(neighbours, degree)
    for name in neighbours:
        member.neighbour(name).its_neighbours = tuple(map(node_id, "m" + neighbours.replace(name, "")))
    return member


def large(neighbours: str = "abcd", degree: int = 4) -> Member:
    """One of a graph that is not complete."""
    member = Member(neighbours, degree)
    for name in neighbours:
        member.neighbour(name).its_neighbours = tuple(map(node_id, ["m", f"{name}1", f"{name}2", f"{name}3"]))
    return member


# ---- the portal


@pytest.mark.parametrize(("neighbours", "expected_holes"), [("", 3), ("a", 2), ("ab", 1), ("abc", 0)])
def test_in_the_small_regime_the_portal_takes_the_newcomer_itself(neighbours: str, expected_holes: int) -> None:
    """Expected holes of the second to fifth node: 3, 2, 1, 0. No walks, not even at the last hole."""
    member = complete(neighbours)
    call = request(member)
    assert member.answer(call, ConnectionRequestResp) == ConnectionRequestResp(expected_holes, 1, True, ROSTER)
    assert member.names() == neighbours + "z"
    assert member.told(EdgeSearchCall) == []


def test_in_the_large_regime_the_portal_only_starts_walks() -> None:
    member = large()
    member.membership.diameter.estimate = 5
    call = request(member)
    assert member.answer(call, ConnectionRequestResp) == ConnectionRequestResp(0, 5, False, ROSTER)
    assert member.names() == "abcd"
    walks = [walk for _, walk in member.told(EdgeSearchCall)]
    assert [(walk.requester, walk.partner) for walk in walks] == [(contact("z"), contact("z"))] * 2
    assert not member.closed(call), "the caller hangs up"


def test_five_nodes_are_a_complete_graph_but_have_no_room() -> None:
    member = complete("abcd")
    call = request(member)
    assert member.answer(call, ConnectionRequestResp) == ConnectionRequestResp(0, 1, False, ROSTER)
    assert len(member.told(EdgeSearchCall)) == 2


def test_in_the_small_regime_a_portal_whose_last_hole_is_promised_starts_walks() -> None:
    member = complete("abc")
    member.table.pending[node_id("x")] = node_id("a")
    assert not member.answer(request(member), ConnectionRequestResp).ready
    assert len(member.told(EdgeSearchCall)) == 2


@pytest.mark.parametrize(
    ("degree", "holes", "walks"), [(4, 4, 2), (4, 2, 1), (4, 1, 0), (6, 6, 3), (4, 99, 2), (4, -3, 0)]
)
def test_there_is_one_walk_per_pair_of_holes(degree: int, holes: int, walks: int) -> None:
    member = large("abcdef"[:degree], degree)
    request(member, holes=holes)
    assert len(member.told(EdgeSearchCall)) == walks


@pytest.mark.parametrize(("degree", "expected_holes"), [(3, 1), (4, 0), (5, 1), (6, 0)])
def test_with_an_odd_degree_one_hole_is_left_to_a_port_search(degree: int, expected_holes: int) -> None:
    member = large("abcdef"[:degree], degree)
    call = request(member, holes=degree)
    assert member.answer(call, ConnectionRequestResp).expected_holes == expected_holes
    assert len(member.told(EdgeSearchCall)) == degree // 2


@pytest.mark.parametrize(("holes", "walks"), [(4, 1), (3, 1), (2, 0)])
def test_in_the_large_regime_a_portal_with_a_hole_takes_the_newcomer_and_walks_for_the_rest(
    holes: int, walks: int
) -> None:
    member = large("abc")
    call = request(member, holes=holes)
    assert member.answer(call, ConnectionRequestResp).ready
    assert member.names() == "abcz"
    assert len(member.told(EdgeSearchCall)) == walks


@pytest.mark.parametrize(("for_whom", "ready"), [("z", True), ("x", False)])
def test_a_hole_that_is_promised_is_for_the_one_it_was_promised_to(for_whom: str, ready: bool) -> None:
    member = large("abc")
    member.table.pending[node_id(for_whom)] = node_id("a")
    assert member.answer(request(member), ConnectionRequestResp).ready is ready


@pytest.mark.parametrize("case", ["seeking", "partial", "leaving", "asks it itself"])
def test_a_portal_off_the_channel_reports_it(case: str) -> None:
    member = complete("ab")
    match case:
        case "seeking":
            member.links.state = State.SEEKING
        case "partial":
            member.links.state = State.PARTIAL
        case "leaving":
            member.links.leaving = True
        case "asks it itself":
            member.links.court(contact("z"), 0)
    call = request(member)
    assert member.answer(call, RefusedStmt).reason == "busy"
    assert member.closed(call)
    assert member.names() == "ab"


def test_a_neighbour_that_asks_to_be_brought_in_has_lost_its_link() -> None:
    member = complete("ab")
    old = member.neighbour("a")
    call = request(member, "a")
    assert member.downs() == [("a", "asks again")]
    assert Close(old.conn) in member.out
    assert member.neighbour("a").conn == call.conn


# ---- the newcomer


def asking() -> tuple[Member, Call]:
    """A newcomer that has asked portal p to bring it in."""
    member = Member(state=State.SEEKING, walk_timeout_ms=3_000)
    call = member.called("p")
    member.membership.joining.request(call)
    return member, call


def respond(member: Member, call: Call, *, expected_holes: int = 0, diameter: int = 3, ready: bool = False) -> None:
    message = ConnectionRequestResp(expected_holes, diameter, ready, ())
    member.membership.joining.on_response(call, message, member.now_ms)


def test_it_asks_for_as_many_as_it_lacks_and_keeps_a_hole_for_the_portal() -> None:
    member, call = asking()
    assert take(member.out) == [Send(call.conn, ConnectionRequestCall(4))]
    assert member.table.courting == {node_id("p"): call.conn}


def test_it_does_not_ask_whom_it_knows_already() -> None:
    member = Member("p")
    call = member.called("p")
    member.membership.joining.request(call)
    assert take(member.out) == [Close(call.conn)]


def test_a_portal_that_is_ready_is_the_first_neighbour_and_the_others_are_searched_for_at_once() -> None:
    member, call = asking()
    respond(member, call, expected_holes=2, diameter=7, ready=True)
    assert member.names() == "p"
    assert member.table.courting == {}
    assert member.links.expected_holes == 2
    assert member.membership.diameter.estimate == 7
    assert member.due_in(HoleSearchDue()) == 0


def test_a_portal_that_is_not_ready_is_left_and_the_walks_are_given_time() -> None:
    member, call = asking()
    respond(member, call, ready=False)
    assert member.names() == ""
    assert member.closed(call)
    assert member.table.courting == {}
    assert member.due_in(HoleSearchDue()) == 3_000


@pytest.mark.parametrize(("told", "taken"), [(-1, 0), (0, 0), (3, 3), (4, 3), (10**9, 3)])
def test_what_the_portal_expects_is_taken_within_bounds(told: int, taken: int) -> None:
    member, call = asking()
    respond(member, call, expected_holes=told, ready=True)
    assert member.links.expected_holes == taken


def test_a_portal_for_which_there_is_no_hole_any_more_is_left() -> None:
    member, call = asking()
    for name in "abc":
        member.link(name)
    member.table.pending[node_id("d")] = node_id("a")
    respond(member, call, ready=True)
    assert "p" not in member.names()
    assert member.closed(call)


def test_an_answer_that_was_not_asked_for_is_hung_up_on_and_changes_nothing() -> None:
    member, call = asking()
    other = member.called("p")
    respond(member, other, expected_holes=3, diameter=9, ready=True)
    assert member.closed(other)
    assert member.table.courting == {node_id("p"): call.conn}
    assert (member.links.expected_holes, member.membership.diameter.estimate) == (0, 1)


# ---- courting


def court(member: Member, name: str = "z", incarnation: int = 1) -> Call:
    """A node with a hole proposes to be a neighbour."""
    call = member.called(name, incarnation)
    member.membership.joining.on_port_connection(call, PortConnectionCall(), member.now_ms)
    return call


def test_who_has_a_hole_accepts() -> None:
    member = Member("abc")
    call = court(member)
    assert member.answer(call, PortConnectionResp).accepted
    assert member.names() == "abcz"


def test_a_partial_node_accepts_too() -> None:
    member = Member("a", state=State.PARTIAL)
    assert member.answer(court(member), PortConnectionResp).accepted


@pytest.mark.parametrize(
    "case", ["no hole", "promised", "neighbour", "seeking", "leaving", "proposing", "my question stands"]
)
def test_who_cannot_says_no_and_hangs_up(case: str) -> None:
    member = Member("abcd" if case == "no hole" else "abc")
    match case:
        case "promised":
            member.table.pending[node_id("x")] = node_id("a")
        case "neighbour":
            member.table.neighbours[node_id("z")] = member.table.neighbours.pop(node_id("c"))
        case "seeking":
            member.links.state = State.SEEKING
        case "leaving":
            member.links.leaving = True
        case "proposing":
            member.table.proposing[node_id("z")] = 99
        case "my question stands":
            member.links.court(contact("z"), 0)
    links, courting = set(member.table.neighbours), dict(member.table.courting)
    call = court(member)
    assert not member.answer(call, PortConnectionResp).accepted
    assert member.closed(call)
    assert set(member.table.neighbours) == links
    assert member.table.courting == courting


def test_the_one_it_waits_for_is_let_in() -> None:
    member = Member("abc")
    member.table.pending[node_id("z")] = node_id("a")
    assert member.answer(court(member), PortConnectionResp).accepted
    assert member.table.pending == {}


def test_of_two_questions_the_one_of_the_smaller_id_is_answered() -> None:
    member = Member("abc")
    member.links.court(contact("c1"), 0)
    (mine,) = member.table.courting.values()
    call = court(member, "c1")
    assert member.answer(call, PortConnectionResp).accepted
    assert Close(mine) in member.out
    assert member.table.courting == {}


def test_a_restarted_neighbour_gets_its_place_back() -> None:
    member = Member("abcd")
    call = court(member, "a", incarnation=2)
    assert member.answer(call, PortConnectionResp).accepted
    assert member.names() == "bcda"
    assert member.neighbour("a").conn == call.conn


def courting(neighbours: str = "abc") -> tuple[Member, Call]:
    """It has asked z to be its neighbour."""
    member = Member(neighbours)
    member.links.court(contact("z"), 0)
    call = member.answered("z")
    assert take(member.out) == [Send(call.conn, PortConnectionCall())]
    return member, call


@pytest.mark.parametrize(
    ("accepted", "leaving", "linked"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_the_answer_to_my_question(accepted: bool, leaving: bool, linked: bool) -> None:
    member, call = courting()
    member.links.leaving = leaving
    member.membership.joining.on_answer(call, PortConnectionResp(accepted), 0)
    assert ("z" in member.names()) is linked
    assert member.closed(call) is not linked
    assert member.table.courting == {}


def test_a_yes_for_a_hole_that_a_merge_took_is_declined() -> None:
    member, call = courting()
    member.link("x")
    member.membership.joining.on_answer(call, PortConnectionResp(True), 0)
    assert member.names() == "abcx"
    assert member.closed(call)


def test_a_late_yes_to_a_question_that_was_withdrawn_is_hung_up_on() -> None:
    member, call = courting()
    member.table.courting[node_id("z")] = 99
    member.membership.joining.on_answer(call, PortConnectionResp(True), 0)
    assert member.closed(call)
    assert member.names() == "abc"
    assert member.table.courting == {node_id("z"): 99}


@pytest.mark.parametrize("message", [PortConnectionResp(True), MergeResp(True)])
def test_an_answer_to_another_question_is_hung_up_on(message: PortConnectionResp | MergeResp) -> None:
    member, call = courting()
    wrong = member.called("z") if isinstance(message, PortConnectionResp) else call
    if isinstance(message, PortConnectionResp):
        member.membership.joining.on_answer(wrong, message, 0)
    else:
        member.membership.merging.on_answer(wrong, message, 0)
    assert member.closed(wrong)
    assert member.names() == "abc"


# ---- leaving


def test_a_leaver_tells_all_its_neighbours_the_same_list_and_hangs_up() -> None:
    member = Member("abcd")
    conns = [neighbour.conn for neighbour in member.table.neighbours.values()]
    member.say_lists(a="mb", b="ma", c="m", d="m")
    member.membership.joining.leave()
    listed = of(member.out, Send)
    assert [send.conn for send in listed] == conns
    assert len({send.message for send in listed}) == 1
    assert isinstance(listed[0].message, DisconnectStmt)
    order = [each.address[0] for each in listed[0].message.neighbours]
    assert sorted(order) == list("abcd")
    assert {*order[:2]} != {*"ab"} and {*order[2:]} != {*"ab"}
    assert of(member.out, Close) == [Close(conn) for conn in conns]
    assert member.links.leaving


@pytest.mark.parametrize(
    ("listed", "calls", "waits"),
    [
        ("mabc", "a", ""),
        ("amcb", "", "a"),
        ("abmc", "c", ""),
        ("abcm", "", "c"),
        ("abm", "", ""),  # an odd one: its partner is missing
        ("abc", "", ""),  # not listed
        ("", "", ""),
    ],
)
def test_neighbours_of_a_leaver_pair_up_first_with_second_third_with_fourth(
    listed: str, calls: str, waits: str
) -> None:
    member = Member("lno")
    member.membership.joining.on_disconnect(member.neighbour("l"), DisconnectStmt(contacts(listed)), 0)
    assert member.names() == "no"
    assert member.downs() == [("l", "left")]
    assert list(member.table.courting) == [node_id(name) for name in calls]
    assert list(member.table.pending) == [node_id(name) for name in waits]
    assert [dial.address[0] for dial in of(member.out, Dial)] == list(calls)
    for name in waits:
        assert member.due_in(PendingTimeout(node_id(name))) == member.config.walk_timeout_ms


@pytest.mark.parametrize("case", ["neighbour", "courting", "pending", "proposing", "leaving"])
@pytest.mark.parametrize("listed", ["mx", "xm"])
def test_a_pair_that_is_linked_already_or_about_to_be_is_left_as_it_is(case: str, listed: str) -> None:
    member = Member("ln")
    match case:
        case "neighbour":
            member.link("x")
        case "courting":
            member.table.courting[node_id("x")] = 99
        case "pending":
            member.table.pending[node_id("x")] = node_id("n")
        case "proposing":
            member.table.proposing[node_id("x")] = 99
        case "leaving":
            member.links.leaving = True
    before = (dict(member.table.courting), dict(member.table.pending))
    member.membership.joining.on_disconnect(member.neighbour("l"), DisconnectStmt(contacts(listed)), 0)
    assert (member.table.courting, member.table.pending) == before
    assert "l" not in member.names()


def test_every_pair_of_a_list_finds_each_other() -> None:
    """The callers and those who wait fit together for every list of a leave."""
    for size in range(1, 6):
        for names in combinations("abcde", size):
            promised = {}
            for name in names:
                member = Member("l")
                member.links.me = contact(name)
                listed = DisconnectStmt(tuple(map(contact, names)))
                member.membership.joining.on_disconnect(member.neighbour("l"), listed, 0)
                promised[name] = (list(member.table.courting), list(member.table.pending))
            for first, second in zip(names[::2], names[1::2], strict=False):
                assert promised[first] == ([node_id(second)], [])
                assert promised[second] == ([], [node_id(first)])
