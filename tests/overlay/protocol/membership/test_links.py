"""Links: how neighbours come and go, what state that makes, and who gives way when two ask each other."""

import pytest

from m4cast.overlay.protocol.calls import CallTimeout
from m4cast.overlay.protocol.effects import Close, Trace
from m4cast.overlay.protocol.membership.links import LOSS_PAUSE_MS, BecameFull, Isolated, NeighbourDown, NeighbourUp
from m4cast.overlay.protocol.membership.timers import FullTimeout, HoleSearchDue
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.protocol.wire.messages import DropStmt, NeighboursStmt
from tests.overlay.protocol.member_parts import Member
from tests.overlay.protocol.stream_parts import contact, node_id, of, take

# ---- coming


def test_a_call_becomes_a_link() -> None:
    member = Member("a")
    member.now_ms = 70
    call = member.called("b", incarnation=9)
    member.links.add(call, 70)
    neighbour = member.neighbour("b")
    assert (neighbour.contact, neighbour.conn, neighbour.incarnation) == (contact("b"), call.conn, 9)
    assert neighbour.heard_at_ms == 70
    assert neighbour.its_neighbours is None
    assert call.is_link
    assert not member.timers.is_set(CallTimeout(call.conn)), "heartbeats watch it from now on"
    assert member.events == [NeighbourUp(neighbour)]


def test_a_link_fulfils_the_promise_that_was_made_for_it() -> None:
    member = Member("a")
    member.table.courting[node_id("b")] = 99
    member.table.pending[node_id("c")] = node_id("a")
    assert member.table.free_holes() == 1
    member.link("b")
    member.link("c")
    assert (member.table.courting, member.table.pending) == ({}, {})
    assert member.table.free_holes() == 1


def test_one_who_still_has_a_free_hole_searches_soon() -> None:
    member = Member("ab", search_wait_ms=300)
    member.link("c")
    assert 150 <= member.due_in(HoleSearchDue()) <= 300
    member.timers.cancel(HoleSearchDue())
    member.link("d")
    assert not member.timers.is_set(HoleSearchDue())


# ---- state


def test_the_first_neighbour_makes_it_partial_and_the_last_one_full() -> None:
    member = Member(state=State.SEEKING)
    for name in "abc":
        member.link(name)
        assert member.state == "partial"
        assert BecameFull() not in member.events
    member.link("d")
    assert member.state == "full"
    assert member.events[-1] == BecameFull()
    assert not member.timers.is_set(FullTimeout())


def test_in_the_small_regime_fewer_are_enough() -> None:
    member = Member(state=State.SEEKING)
    member.links.expected_holes = 2
    member.link("a")
    assert member.state == "partial"
    member.link("b")
    assert member.state == "full"


def test_a_complete_graph_is_enough_whatever_was_expected() -> None:
    member = Member(state=State.SEEKING)
    member.link("a", its_neighbours="m")
    member.links.check_full()
    assert member.state == "full"


def test_after_a_while_it_takes_what_it_has_for_all_there_are() -> None:
    """Routines 2208, 2209: more neighbours were expected than there are."""
    member = Member(state=State.SEEKING, walk_timeout_ms=1_000)
    member.link("a")
    assert member.due_in(FullTimeout()) == 2_000
    member.fire(FullTimeout())
    assert member.state == "full"
    assert member.events.count(BecameFull()) == 1


def test_full_is_told_once_and_stays_when_a_neighbour_is_lost() -> None:
    member = Member("abcd")
    member.links.drop(member.neighbour("a"), "dropped", 0)
    member.link("e")
    assert member.state == "full"
    assert BecameFull() not in member.events


def test_a_node_without_neighbours_is_full_only_when_it_founds() -> None:
    member = Member(state=State.SEEKING)
    member.links.check_full()
    assert member.state == "seeking"
    member.links.become_full()
    member.links.become_full()
    assert member.state == "full"
    assert member.events == [BecameFull()]


# ---- going


def test_a_dropped_link_is_closed_and_leaves_a_hole() -> None:
    member = Member("abcd")
    neighbour = member.neighbour("b")
    member.links.drop(neighbour, "because", 0)
    assert member.names() == "acd"
    assert member.events == [NeighbourDown(neighbour, "because")]
    assert Close(neighbour.conn) in member.out
    assert LOSS_PAUSE_MS // 2 <= member.due_in(HoleSearchDue()) <= LOSS_PAUSE_MS
    assert member.links.losses == 1


def test_a_lost_link_is_not_closed_again() -> None:
    member = Member("ab")
    neighbour = member.neighbour("b")
    member.calls.lost(neighbour.conn)
    member.links.lost(neighbour, "broken", 0)
    assert take(member.out) == [Trace("link-lost", (("peer", "b:7400"), ("why", "broken")))]
    assert member.downs() == [("b", "broken")]


def test_a_silent_neighbour_is_hung_up_on() -> None:
    member = Member("ab")
    neighbour = member.neighbour("b")
    member.links.silent(neighbour, 0)
    assert of(member.out, Close) == [Close(neighbour.conn)]
    assert member.downs() == [("b", "silent")]


def test_who_loses_its_last_neighbour_seeks_again() -> None:
    member = Member("ab")
    member.links.drop(member.neighbour("a"), "x", 0)
    assert member.state == "full"
    member.timers.cancel(HoleSearchDue())
    member.links.drop(member.neighbour("b"), "x", 0)
    assert member.state == "seeking"
    assert member.events[-1] == Isolated()
    assert not member.timers.is_set(HoleSearchDue()), "there is nobody to ask"


def test_with_a_link_goes_what_was_reserved_or_promised_because_of_it() -> None:
    member = Member("ab")
    member.table.reserved = {node_id("a"): 1, node_id("b"): 2}
    member.table.pending = {node_id("x"): node_id("a"), node_id("y"): node_id("b")}
    member.links.drop(member.neighbour("a"), "x", 0)
    assert member.table.reserved == {node_id("b"): 2}
    assert member.table.pending == {node_id("y"): node_id("b")}


def test_a_link_is_replaced_in_one_step() -> None:
    """The only neighbour may be the one that is replaced: the node is never isolated."""
    member = Member("a", degree=3)
    old = member.neighbour("a")
    member.table.reserved[node_id("a")] = 5
    call = member.called("z")
    member.links.replace(old, call, "pinned", 0)
    assert member.names() == "z"
    assert member.events == [NeighbourDown(old, "pinned"), NeighbourUp(member.neighbour("z"))]
    assert member.state == "full"
    assert of(member.out, Close) == [Close(old.conn)]
    assert member.table.reserved == {}
    assert member.links.losses == 0, "nothing was lost: searches do not start over"


def test_who_leaves_drops_all_and_does_not_seek() -> None:
    member = Member("a")
    member.link("b")
    member.forget()
    conns = [neighbour.conn for neighbour in member.table.neighbours.values()]
    member.links.leaving = True
    member.links.drop_all()
    assert member.downs() == [("a", "left"), ("b", "left")]
    assert of(member.out, Close) == [Close(conn) for conn in conns]
    assert Isolated() not in member.events
    assert member.names() == ""
    assert not member.links.flush(), "nobody is left to be told"


def test_a_leaver_that_loses_its_last_neighbour_does_not_seek() -> None:
    member = Member("a")
    member.links.leaving = True
    member.links.drop(member.neighbour("a"), "x", 0)
    assert Isolated() not in member.events


# ---- telling


def test_changes_of_a_list_are_announced_together() -> None:
    member = Member("abc")
    assert not member.links.flush()
    member.links.drop(member.neighbour("b"), "x", 0)
    member.link("d")
    member.link("e")
    take(member.out)
    assert member.links.flush()
    statement = NeighboursStmt(tuple(map(node_id, "acde")))
    assert member.told(NeighboursStmt) == [(name, statement) for name in "acde"]
    member.forget()
    assert not member.links.flush()
    assert member.out == []


def test_each_coming_and_each_going_changes_the_list() -> None:
    member = Member("a")
    member.link("b")
    assert member.links.flush()
    member.links.replace(member.neighbour("b"), member.called("c"), "pinned", 0)
    assert member.links.flush()
    member.links.drop(member.neighbour("c"), "x", 0)
    assert member.links.flush()
    assert not member.links.flush()


def test_a_message_goes_to_all_but_one() -> None:
    member = Member("abc")
    member.links.send_all(DropStmt(), but=member.neighbour("b"))
    assert [name for name, _ in member.told(DropStmt)] == ["a", "c"]
    member.forget()
    member.links.send_all(DropStmt())
    assert [name for name, _ in member.told(DropStmt)] == ["a", "b", "c"]


# ---- two who ask each other


@pytest.mark.parametrize(("peer", "gives_way"), [("a", True), ("z", False)])
def test_the_question_of_the_smaller_id_stands(peer: str, gives_way: bool) -> None:
    member = Member()
    member.links.court(contact(peer), 0)
    (mine,) = member.table.courting.values()
    take(member.out)
    assert member.links.gives_way(node_id(peer)) is gives_way
    assert (node_id(peer) in member.table.courting) is not gives_way
    assert of(member.out, Close) == ([Close(mine)] if gives_way else [])


def test_who_did_not_ask_gives_way() -> None:
    member = Member()
    assert member.links.gives_way(node_id("z"))
    assert member.out == []


def test_a_question_that_came_to_nothing_frees_its_hole_and_the_search_goes_on() -> None:
    member = Member("ab")
    member.links.court(contact("x"), 0)
    member.links.court(contact("y"), 0)
    assert member.table.free_holes() == 0
    call = member.calls.get(member.table.courting[node_id("x")])
    assert call is not None
    member.links.court_over(call, 0)
    assert list(member.table.courting) == [node_id("y")]
    assert member.timers.is_set(HoleSearchDue())


def test_a_call_that_promised_nothing_changes_nothing_when_it_ends() -> None:
    member = Member("ab")
    member.links.court(contact("x"), 0)
    member.links.court_over(member.called("x"), 0)
    assert list(member.table.courting) == [node_id("x")]
    assert not member.timers.is_set(HoleSearchDue())


# ---- a neighbour that calls as a stranger


@pytest.mark.parametrize(
    ("incarnation", "forgotten"),
    [(2, True), (1, False), (0, False)],
)
def test_a_later_incarnation_replaces_the_link_of_the_earlier(incarnation: int, forgotten: bool) -> None:
    member = Member()
    old = member.link("a", incarnation=1)
    member.forget()
    assert member.links.forget_stale(member.called("a", incarnation), 0) is forgotten
    assert member.names() == ("" if forgotten else "a")
    assert member.downs() == ([("a", "restarted")] if forgotten else [])
    assert (Close(old.conn) in member.out) is forgotten


def test_a_stranger_is_no_stale_neighbour() -> None:
    member = Member("a")
    assert member.links.forget_stale(member.called("b"), 0)
    assert member.names() == "a"
