"""Swaps: two edges exchange their ends. Node m asks c (its edge to b for c's to d), and is asked."""

import pytest

from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.effects import Dial
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.messages import DropStmt, EdgeSearchResp, SwapCall, SwapResp
from tests.overlay.protocol.member_parts import Member, contacts
from tests.overlay.protocol.stream_parts import contact, node_id, of, sends


def asking(neighbours: str = "abef") -> tuple[Member, Call]:
    member = Member(neighbours)
    member.membership.swaps.mend(contact("c"), node_id("b"), (node_id("d"),), 0)
    return member, member.answered("c")


def answer(member: Member, call: Call, resp: SwapResp) -> None:
    member.out.clear()
    member.membership.on_swap_answer(call, resp, 0)


YES = SwapResp(True, contacts("d"), contacts("xyz"))


# ---- asking


def test_the_edge_that_is_offered_is_on_hold_until_the_answer() -> None:
    member, call = asking()
    assert sends(member.out, SwapCall) == [(call.conn, SwapCall(contact("b"), (node_id("d"),), ()))]
    assert list(member.table.reserved) == [node_id("b")]
    answer(member, call, SwapResp(False, (), ()))
    assert not member.table.reserved and not member.table.courting
    assert member.names() == "abef"
    assert member.closed(call)


def test_a_swap_replaces_the_one_by_the_other_and_tells_the_one_whom_to_court() -> None:
    member, call = asking()
    conn = member.neighbour("b").conn
    answer(member, call, YES)
    assert sends(member.out, EdgeSearchResp) == [(conn, EdgeSearchResp(0, True, contact("d")))]
    assert member.names() == "aefc"
    assert member.downs() == [("b", "swapped")]


def test_a_swap_without_exchange_releases_the_neighbour() -> None:
    member, call = asking()
    conn = member.neighbour("b").conn
    answer(member, call, SwapResp(True, (), ()))
    assert sends(member.out, DropStmt) == [(conn, DropStmt())]
    assert member.names() == "aefc"


def test_a_neighbour_that_was_lost_meanwhile_left_a_hole_for_the_new_one() -> None:
    member, call = asking()
    member.links.lost(member.neighbour("b"), "broken", 0)
    answer(member, call, YES)
    assert member.names() == "aefc"


def test_a_hole_that_was_filled_meanwhile_is_gone() -> None:
    member, call = asking()
    member.links.lost(member.neighbour("b"), "broken", 0)
    member.link("g")
    answer(member, call, YES)
    assert member.names() == "aefg"
    assert member.closed(call)


def test_a_call_that_fails_frees_the_edge() -> None:
    member, call = asking()
    member.calls.lost(call.conn)
    member.membership.call_failed(call, 0)
    assert not member.table.reserved and not member.table.courting


@pytest.mark.parametrize("case", ["on hold", "gone", "leaving"])
def test_an_edge_that_cannot_be_offered_is_not(case: str) -> None:
    member = Member("abef")
    member.membership.swaps.mend(contact("c"), node_id("b"), (), 0)
    match case:
        case "on hold":
            member.table.reserved[node_id("b")] = 7
        case "gone":
            member.links.lost(member.neighbour("b"), "broken", 0)
            member.out[:] = [each for each in member.out if isinstance(each, Dial)]
        case "leaving":
            member.links.leaving = True
    call = member.answered("c")
    assert not sends(member.out, SwapCall)
    assert member.closed(call)
    assert node_id("c") not in member.table.courting


def test_a_neighbour_is_not_asked() -> None:
    member = Member("abcf")
    member.membership.swaps.mend(contact("c"), node_id("b"), (), 0)
    assert not of(member.out, Dial)


def test_an_unexpected_answer_ends_the_call() -> None:
    member = Member("abef")
    call = member.called("c")
    member.membership.on_swap_answer(call, YES, 0)
    assert member.names() == "abef"
    assert member.closed(call)


# ---- being asked


def asked(member: Member, swap: SwapCall, by: str = "z") -> Call:
    call = member.called(by)
    member.membership.swaps.on_swap(call, swap, 0)
    return call


def lists(member: Member, **its_neighbours: str) -> Member:
    for neighbour in member.table.neighbours.values():
        neighbour.its_neighbours = (node_id("m"),)
    member.say_lists(**its_neighbours)
    return member


def test_who_is_asked_gives_up_one_for_the_caller_and_tells_both() -> None:
    given = set()
    for seed in range(40):
        member = lists(Member("abcd", seed=seed))
        conns = {member.neighbour(name).conn: name for name in "abcd"}
        call = asked(member, SwapCall(contact("y"), (), (node_id("a"),)))
        resp = member.answer(call, SwapResp)
        (gone,) = [each.address[0] for each in resp.given_up]
        assert resp.accepted
        assert {each.address[0] for each in resp.others} == set("bcd") - {gone}
        ((conn, stmt),) = sends(member.out, EdgeSearchResp)
        assert (conns[conn], stmt) == (gone, EdgeSearchResp(0, True, contact("y")))
        assert sorted(member.names()) == sorted("abcdz".replace(gone, ""))
        given.add(gone)
    assert given == set("bcd")


def test_only_one_that_is_named_is_given_up() -> None:
    for seed in range(20):
        member = lists(Member("abcd", seed=seed))
        call = asked(member, SwapCall(contact("y"), (node_id("b"),), ()))
        assert member.answer(call, SwapResp).given_up == contacts("b")


def test_a_hole_is_given_for_nothing() -> None:
    member = lists(Member("abc"))
    call = asked(member, SwapCall(contact("y"), (), ()))
    assert member.answer(call, SwapResp) == SwapResp(True, (), contacts("abc"))
    assert member.names() == "abcz"


@pytest.mark.parametrize(
    "case", ["neighbour", "seeking", "leaving", "proposing", "on hold", "partner's neighbour", "is the partner", "mute"]
)
def test_what_cannot_be_swapped_is_refused(case: str) -> None:
    member = lists(Member("bcdz" if case == "neighbour" else "abcd"), d="my" if case == "partner's neighbour" else "m")
    partner = "d" if case == "is the partner" else "y"
    match case:
        case "seeking":
            member.links.state = State.SEEKING
        case "leaving":
            member.links.leaving = True
        case "proposing":
            member.table.proposing[node_id("z")] = 99
        case "on hold":
            member.table.reserved[node_id("d")] = 7
        case "mute":
            member.neighbour("d").its_neighbours = None
    before = member.names()
    call = asked(member, SwapCall(contact(partner), (node_id("d"),), ()))
    assert member.answer(call, SwapResp) == SwapResp(False, (), ())
    assert member.closed(call)
    assert member.names() == before
