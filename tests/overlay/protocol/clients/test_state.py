"""The state of a client: positions, fills, and what a fill leaves out; and as JSON from strangers."""

import json
from typing import Any

import pytest

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.clients.memory import ClientMemory, Dropped
from m4cast.overlay.protocol.clients.state import (
    PROFILES_MAX,
    ClientProfile,
    ClientState,
    floor_of,
    json_of,
    state_of,
)

A, B = "a" * 32, "b" * 32


def profile(name: str, where: str | None = None, **begin: int) -> ClientProfile:
    return ClientProfile(name, "t", where, None, {each * 32: first for each, first in begin.items()})


def at(position: int, *profiles: ClientProfile) -> ClientState:
    """With the position of stream A, and the profiles in force from there on."""
    state = ClientState()
    for each in profiles:
        state = state.subscribed(each, {A: position})
    return state


def test_the_first_profile_of_a_topic_sets_the_position() -> None:
    assert at(10, profile("p", a=10)).frontier == {"t": {A: 10}}
    assert at(10, profile("p", a=4)).frontier == {"t": {A: 4}}
    assert at(10, profile("p", a=99)).frontier == {"t": {A: 10}}, "not past what is there"


def test_an_earlier_profile_is_filled_up_to_the_position() -> None:
    state = at(10, profile("p", "x", a=10)).subscribed(profile("q", "y", a=3), {A: 12})
    (fill,) = state.fills
    assert (fill.profile.name, fill.ranges) == ("q", {A: (3, 10)})
    assert state.frontier == {"t": {A: 10}}
    assert [other.conditions for other in fill.others] == [(("x", None),)]
    assert [fill.others[0].gave(A, sequence) for sequence in (9, 10)] == [False, True]
    assert fill.others[0].gave(B, 1), "in a stream that nobody named everybody began at 1"


def test_a_profile_from_now_on_has_no_fill() -> None:
    assert at(10, profile("p", a=10)).subscribed(profile("q", a=12), {A: 12}).fills == ()


def test_fills_come_first_and_in_order() -> None:
    state = at(10, profile("p", a=10)).subscribed(profile("q", a=3), {A: 10}).subscribed(profile("r", a=5), {A: 10})
    memory = ClientMemory(state)
    reads = []
    for until in (10, 10):
        read = memory.next_read()
        assert read is not None and read.fill is not None
        reads.append((read.fill.profile.name, read.start, read.end))
        memory.hand(read, "t", A, until)
    assert reads == [("q", {"t": {A: 3}}, {"t": {A: 10}}), ("r", {"t": {A: 5}}, {"t": {A: 10}})]
    main = memory.next_read()
    assert main is not None and (main.fill, main.start, main.end) == (None, {"t": {A: 10}}, None)


def test_the_saved_position_moves_with_the_acknowledgement() -> None:
    memory = ClientMemory(at(10, profile("p", a=10)))
    read = memory.next_read()
    assert read is not None
    memory.hand(read, "t", A, 15)
    assert (memory.state.frontier, memory.ahead.frontier) == ({"t": {A: 10}}, {"t": {A: 15}})
    memory.acknowledge()
    assert memory.state.frontier == {"t": {A: 15}}
    memory.hand(read, "t", A, 12)
    assert memory.ahead.frontier == {"t": {A: 15}}, "it never goes back"


def test_a_replaced_profile_gives_nothing_again() -> None:
    state = at(10, profile("p", "x", a=2))
    state = state.passed("t", A, 20).subscribed(profile("p", "y", a=1), {A: 20})
    (fill,) = state.fills
    assert [each.name for each in state.profiles] == ["p"]
    assert fill.ranges == {A: (1, 20)}
    assert [fill.others[0].gave(A, sequence) for sequence in (1, 2, 19)] == [False, True, True]


def test_what_an_unfinished_fill_did_not_give_is_left_to_later_ones() -> None:
    state = at(10, profile("p", "x", a=10)).subscribed(profile("q", "y", a=1), {A: 10})
    state = state.filled(A, 4).subscribed(profile("r", "z", a=1), {A: 10}).unsubscribed("q")
    (fill,) = state.fills
    of_q = [other for other in fill.others if other.conditions[0] == ("y", None)]
    assert [any(other.gave(A, sequence) for other in of_q) for sequence in (1, 3, 4, 9, 10)] == [
        True,
        True,
        False,
        False,
        True,
    ]


def test_what_an_ended_fill_had_left_to_others_stays_left_to_them() -> None:
    state = at(10, profile("p", "x", a=1)).passed("t", A, 10)
    state = state.subscribed(profile("q", "y", a=1), {A: 10}).unsubscribed("p")
    state = state.subscribed(profile("r", "z", a=1), {A: 10}).unsubscribed("q")
    (fill,) = state.fills
    assert [(other.conditions, other.gave(A, 5)) for other in fill.others] == [
        ((("y", None),), False),
        ((("y", None), ("x", None)), True),
    ], "q gave nothing, but had left to p what p gave"


def test_a_topic_goes_with_its_last_profile() -> None:
    state = at(10, profile("p", a=10), profile("q", a=10))
    assert state.unsubscribed("p").frontier == {"t": {A: 10}}
    assert state.unsubscribed("p").unsubscribed("q") == ClientState(last_number=2)


def test_what_no_node_retains_is_passed_over_and_told() -> None:
    memory = ClientMemory(at(10, profile("p", a=10)).subscribed(profile("q", a=3), {A: 10}))
    assert memory.drop({"t": {A: 6, B: 1}, "u": {A: 99}}) == [Dropped("t", A, 3, 6)]
    assert memory.ahead.fills[0].ranges == {A: (6, 10)}
    assert memory.drop({"t": {A: 14}}) == [Dropped("t", A, 6, 14)]
    assert (memory.ahead.fills, memory.ahead.frontier) == ((), {"t": {A: 14}})
    assert memory.drop({"t": {A: 14}}) == []


def test_the_floor_is_the_least_of_all_clients() -> None:
    far, near = at(50, profile("p", a=50)), at(10, profile("p", a=10))
    assert floor_of([far, near]) == {"t": {A: 10}}
    filling = far.subscribed(profile("q", a=3), {A: 50})
    assert floor_of([filling, near]) == {"t": {A: 3}}
    newcomer = ClientState().subscribed(profile("p", b=7), {B: 7})
    assert floor_of([far, newcomer]) == {"t": {A: 1, B: 1}}, "to one of them the other stream is new"
    assert floor_of([]) == {}


def written() -> dict[str, Any]:
    state = at(10, profile("p", "x", a=10)).subscribed(profile("q", None, a=3), {A: 10})
    found: dict[str, Any] = json.loads(json.dumps(json_of(state)))
    return found


def test_a_state_survives_json() -> None:
    assert json.loads(json.dumps(json_of(state_of(written())))) == written()


@pytest.mark.parametrize(
    ("where", "value", "problem"),
    [
        (("frontier",), [], "where an object must be"),
        (("frontier", "t"), {"a": 1}, "an origin must be 32 hex digits"),
        (("frontier", "t"), {A: 0}, "a sequence must be a whole number from 1 on"),
        (("frontier", "t"), {A: True}, "a sequence must be a whole number"),
        (("profiles", 0, "name"), "", "name must be printable text"),
        (("profiles", 0, "name"), "q", "two profiles of a client have one name"),
        (("profiles", 0, "where"), 7, "must be text or null"),
        (("profiles", 0), {}, "a profile must have name, topic"),
        (("profiles",), [None] * (PROFILES_MAX + 1), f"at most {PROFILES_MAX}"),
        (("fills", 0, "ranges"), {A: [1]}, "a range must be"),
        (("fills", 0, "others", 0, "conditions"), [["x"]], "must be text or null"),
        (("last_number",), -1, "must be a whole number"),
    ],
)
def test_a_state_from_a_stranger_is_checked(where: tuple[Any, ...], value: object, problem: str) -> None:
    state = written()
    place: Any = state
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    with pytest.raises(LocalProtocolError, match=problem):
        state_of(state)
