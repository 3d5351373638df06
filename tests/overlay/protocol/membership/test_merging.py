"""Merging: how a node finds that there are two components, joins them, and sends for further swaps."""

import pytest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.effects import Close, Dial, Send
from m4cast.overlay.protocol.membership.merging import Merge
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.messages import (
    ApartStmt,
    DropStmt,
    MergeCall,
    MergeResp,
    SeekingConnectionCall,
    SeekingConnectionResp,
    SwapCall,
    SwapResp,
)
from tests.overlay.protocol.member_parts import Member, contacts
from tests.overlay.protocol.stream_parts import contact, node_id, of, sends, take


def complete(neighbours: str) -> Member:
    """One of a complete graph."""
    member = Member(neighbours)
    for name in neighbours:
        member.neighbour(name).its_neighbours = tuple(map(node_id, "m" + neighbours.replace(name, "")))
    return member


def probing(neighbours: str = "abcd") -> tuple[Member, Call]:
    """It has called a silent node z, which answered."""
    member = Member(neighbours)
    member.membership.merging.merge_with(contact("z").address, 0)
    call = member.answered("z")
    assert isinstance(call.purpose, Merge)
    return member, call


def test_a_silent_node_is_asked_first_whether_it_is_on_the_channel() -> None:
    member, call = probing()
    assert take(member.out) == [Send(call.conn, SeekingConnectionCall(seeking=False, depth=0))]
    assert member.table.courting == {node_id("z"): call.conn}


def test_a_silent_node_that_is_known_is_left_alone() -> None:
    member = Member("az")
    member.membership.merging.merge_with(contact("z").address, 0)
    call = member.answered("z")
    assert take(member.out) == [Close(call.conn)]


@pytest.mark.parametrize(
    ("full", "hears_you", "leaving", "merges"),
    [(True, False, False, True), (False, False, False, False), (True, True, False, False), (True, False, True, False)],
)
def test_a_node_that_is_on_the_channel_and_does_not_hear_me_is_in_another_component(
    full: bool, hears_you: bool, leaving: bool, merges: bool
) -> None:
    member, call = probing("abc")
    member.links.leaving = leaving
    take(member.out)
    member.membership.merging.on_probe(call, SeekingConnectionResp(full, hears_you, depth=0), 0)
    assert (Send(call.conn, MergeCall()) in member.out) is merges
    assert member.closed(call) is not merges
    assert (node_id("z") in member.table.courting) is merges


@pytest.mark.parametrize(
    ("surely_apart", "whole", "merges"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_complete_component_that_knows_of_others_is_apart_though_it_was_heard_lately(
    surely_apart: bool, whole: bool, merges: bool
) -> None:
    member = complete("ab") if whole else Member("ab")
    member.membership.merging.merge_with(contact("z").address, 0, surely_apart=surely_apart)
    call = member.answered("z")
    member.membership.merging.on_probe(call, SeekingConnectionResp(full=True, hears_you=True, depth=0), 0)
    assert (Send(call.conn, MergeCall()) in member.out) is merges


@pytest.mark.parametrize("neighbours", ["abc", "abcd"])
def test_a_merge_takes_a_hole_or_the_place_of_a_neighbour(neighbours: str) -> None:
    for asked in (True, False):
        member = Member(neighbours)
        if asked:
            call = member.called("z")
            member.membership.merging.on_merge(call, MergeCall(), 0)
            assert member.answer(call, MergeResp).accepted
        else:
            member, call = probing(neighbours)
            member.membership.merging.on_answer(call, MergeResp(True), 0)
        assert "z" in member.names()
        assert len(member.names()) == 4
        assert [why for _, why in member.downs()] == ["merged"] * (len(neighbours) - 3)
        assert len(member.told(DropStmt)) == len(neighbours) - 3, "who is given up is told"


def test_a_merge_does_not_take_an_edge_that_is_on_hold() -> None:
    member = Member("abcd")
    member.table.reserved = {node_id(name): 1 for name in "abd"}
    member.membership.merging.on_merge(member.called("z"), MergeCall(), 0)
    assert member.names() == "abdz"
    member.table.reserved = {node_id(name): 1 for name in "abdz"}
    call = member.called("y")
    member.membership.merging.on_merge(call, MergeCall(), 0)
    assert not member.answer(call, MergeResp).accepted
    assert member.names() == "abdz"


@pytest.mark.parametrize("case", ["neighbour", "seeking", "partial", "leaving", "proposing", "my question stands"])
def test_a_merge_that_cannot_be_is_refused(case: str) -> None:
    member = Member("abcz" if case == "neighbour" else "abcd")
    match case:
        case "seeking":
            member.links.state = State.SEEKING
        case "partial":
            member.links.state = State.PARTIAL
        case "leaving":
            member.links.leaving = True
        case "proposing":
            member.table.proposing[node_id("z")] = 99
        case "my question stands":
            member.table.courting[node_id("z")] = 99
    before = member.names()
    call = member.called("z")
    member.membership.merging.on_merge(call, MergeCall(), 0)
    assert not member.answer(call, MergeResp).accepted
    assert member.closed(call)
    assert member.names() == before


def test_a_refused_merge_changes_nothing() -> None:
    member, call = probing()
    member.membership.merging.on_answer(call, MergeResp(False), 0)
    assert member.names() == "abcd"
    assert member.table.courting == {}
    assert member.closed(call)


def test_a_merge_for_which_no_room_can_be_made_any_more_is_left() -> None:
    member, call = probing()
    member.table.reserved = {node_id(name): 1 for name in "abcd"}
    member.membership.merging.on_answer(call, MergeResp(True), 0)
    assert member.names() == "abcd"
    assert member.closed(call)


# ---- swaps between components


def swapping(degree: int = 4) -> tuple[Member, Call, str]:
    """It has no hole and found z in another component: (it, the call, whom it offered)."""
    member = Member("abcdefgh"[:degree], degree)
    member.membership.merging.merge_with(contact("z").address, 0)
    call = member.answered("z")
    take(member.out)
    member.membership.merging.on_probe(call, SeekingConnectionResp(full=True, hears_you=False, depth=0), 0)
    ((conn, swap),) = sends(member.out, SwapCall)
    assert conn == call.conn and swap.give_up == swap.keep == ()
    return member, call, swap.partner.address[0]


def test_a_node_without_a_hole_swaps_an_edge() -> None:
    member, call, offered = swapping()
    member.out.clear()
    member.membership.on_swap_answer(call, SwapResp(True, contacts("y"), contacts("uvw")), 0)
    assert sorted(member.names()) == sorted("abcdz".replace(offered, ""))
    assert member.downs() == [(offered, "swapped")]


@pytest.mark.parametrize(("degree", "further"), [(3, 0), (4, 1), (5, 1), (6, 2), (8, 3)])
def test_after_a_swap_the_next_is_sent_for_until_there_are_half_as_many_as_neighbours(
    degree: int, further: int
) -> None:
    member, call, offered = swapping(degree)
    member.membership.on_swap_answer(call, SwapResp(True, contacts("y"), contacts("uvw")), 0)
    walks = member.told(ApartStmt)
    assert len(walks) == min(further, 1)
    for to, apart in walks:
        assert to != "z", "the next one is made on this side"
        assert apart.beyond == contacts("uvw")
        assert set(apart.taken) == {node_id(name) for name in "mzy" + offered}
        assert apart.swaps_left == further


@pytest.mark.parametrize("resp", [SwapResp(False, (), ()), SwapResp(True, (), contacts("uvw"))])
def test_nothing_follows_a_swap_that_was_refused_or_needed_no_other_end(resp: SwapResp) -> None:
    member, call, _ = swapping()
    member.membership.on_swap_answer(call, resp, 0)
    assert not member.told(ApartStmt)


def apart(taken: str = "", distance: int = 0, steps_left: int = 9) -> ApartStmt:
    return ApartStmt(contacts("xy"), tuple(map(node_id, taken)), 2, distance, steps_left)


class Hears:
    """The nodes whose beacons come."""

    def __init__(self, names: str) -> None:
        self._ids = {node_id(name) for name in names}

    def __call__(self, node: NodeId, now_ms: int) -> bool:
        return node in self._ids


def test_a_walk_goes_on_to_a_random_node() -> None:
    reached = set()
    for seed in range(40):
        member = Member("abcd", seed=seed)
        member.membership.merging.on_apart(apart(distance=5), Hears(""), 0)
        ((to, onward),) = member.told(ApartStmt)
        assert (onward.distance, onward.steps_left) == (4, 8)
        reached.add(to)
    assert reached == set("abcd")


def test_where_the_walk_ends_the_next_swap_begins_with_ends_that_are_new() -> None:
    for seed in range(20):
        member = Member("abcd", seed=seed)
        member.membership.merging.on_apart(apart(taken="abk"), Hears("x"), 0)
        (dial,) = of(member.out, Dial)
        assert dial.address == contact("y").address, "x is heard, so it is on this side"
        call = member.answered("y")
        assert call.purpose == Merge(known_apart=True, taken=tuple(map(node_id, "abk")), swaps_left=1)
        member.membership.merging.on_probe(call, SeekingConnectionResp(full=True, hears_you=True, depth=0), 0)
        ((_, swap),) = sends(member.out, SwapCall)
        assert swap.partner in contacts("cd")
        assert swap.keep == tuple(map(node_id, "abk"))


@pytest.mark.parametrize("case", ["all heard", "was an end", "no free edge", "hole", "leaving", "partial"])
def test_who_cannot_swap_passes_the_walk_on(case: str) -> None:
    member = Member("abc" if case == "hole" else "abcd")
    taken = {"was an end": "m", "no free edge": "abcd"}.get(case, "")
    member.links.leaving = case == "leaving"
    if case == "partial":
        member.links.state = State.PARTIAL
    member.membership.merging.on_apart(apart(taken), Hears("xy" if case == "all heard" else ""), 0)
    assert not of(member.out, Dial)
    ((_, onward),) = member.told(ApartStmt)
    assert (onward.distance, onward.steps_left) == (0, 8)


def test_a_walk_ends_when_its_steps_are_used_up() -> None:
    member = Member("abcd")
    member.membership.merging.on_apart(apart(taken="m", steps_left=0), Hears(""), 0)
    assert not member.out
