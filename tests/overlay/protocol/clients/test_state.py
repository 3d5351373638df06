"""The state of a client: positions, fills, and what a fill leaves out; and as JSON from strangers."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.clients.memory import ClientMemory, Dropped
from m4cast.overlay.protocol.clients.state import (
    CONDITIONS_MAX,
    FILLS_MAX,
    OTHERS_MAX,
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
    """A state with the position of stream A, and the profiles in force from there on."""
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


def test_a_profile_from_now_on_has_no_fill_where_the_access_point_is_behind_the_client() -> None:
    memory = ClientMemory(at(10, profile("p", a=10)))
    here = {A: 5}
    memory.subscribe(replace(profile("q"), begin=memory.latest("t", here)), here)
    memory.subscribe(replace(profile("r"), begin=memory.latest("t", {A: 20})), {A: 20})
    assert (memory.ahead.fills, memory.ahead.frontier) == ((), {"t": {A: 10}})
    assert [each.begin for each in memory.ahead.profiles] == [{A: 10}] * 3


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


def test_a_new_profile_acknowledges_nothing() -> None:
    """H36: what was handed out and not acknowledged is due again, after a loss, by the new profile, too."""
    memory = ClientMemory(at(10, profile("p", a=10)))
    read = memory.next_read()
    assert read is not None
    memory.hand(read, "t", A, 15)
    memory.subscribe(profile("q", a=3), {A: 20})
    assert [fill.ranges for fill in (*memory.ahead.fills, *memory.state.fills)] == [{A: (3, 15)}, {A: (3, 10)}]
    assert (memory.state.position("t", A), memory.ahead.position("t", A)) == (10, 15)
    memory.unsubscribe("q")
    assert (memory.state.position("t", A), memory.ahead.position("t", A)) == (10, 15)
    memory.subscribe(ClientProfile("_mail", "_mail", "m", None, {}), {A: 3})
    memory.subscribe(profile("r", a=20), {A: 20})
    memory.acknowledge(mail=True)
    assert [each.begin for each in memory.state.profiles if each.name == "r"] == [{A: 10}]
    memory.acknowledge()
    assert memory.state == memory.ahead


def test_a_replaced_profile_gives_nothing_again() -> None:
    state = at(10, profile("p", "x", a=2))
    state = state.passed("t", A, 20).subscribed(profile("p", "y", a=1), {A: 20})
    (fill,) = state.fills
    assert [each.name for each in state.profiles] == ["p"]
    assert fill.ranges == {A: (1, 20)}
    assert [fill.others[0].gave(A, sequence) for sequence in (1, 2, 19)] == [False, True, True]


def test_what_an_unfinished_fill_did_not_give_is_left_to_later_ones() -> None:
    state = at(10, profile("p", "x", a=10)).subscribed(profile("q", "y", a=1), {A: 10})
    state = state.shortened(0, A, 4).subscribed(profile("r", "z", a=1), {A: 10}).unsubscribed("q")
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


def test_unretained_rows_are_passed_over_and_reported() -> None:
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


@pytest.mark.parametrize(
    ("where", "most"),
    [
        (("profiles",), PROFILES_MAX),
        (("fills",), FILLS_MAX),
        (("fills", 0, "others"), OTHERS_MAX),
        (("fills", 0, "others", 0, "conditions"), CONDITIONS_MAX),
    ],
)
def test_a_state_has_a_greatest_number_of_each(where: tuple[Any, ...], most: int) -> None:
    """P76."""
    state = written()
    place: Any = state
    for step in where:
        place = place[step]
    each = place[0]
    place[:] = [{**each, "name": f"p{at}"} if "name" in each else each for at in range(most)]
    assert json_of(state_of(state)) == state
    place.append({**each, "name": "one more"} if "name" in each else each)
    with pytest.raises(LocalProtocolError, match=f"at most {most}"):
        state_of(state)


# ---- profiles that were changed elsewhere meanwhile


def given(state: ClientState, until: int) -> tuple[list[int], ClientState]:
    """The rows that a reader of stream A gets up to `until`, whose conditions are sets of numbers, and its state."""
    memory, rows = ClientMemory(state), []

    def matches(condition: tuple[str | None, str | None], sequence: int) -> bool:
        return condition[0] is None or sequence % int(condition[0]) == 0

    while (read := memory.next_read()) is not None:
        first = read.start.get("t", {}).get(A, 1)
        end = until if read.end is None else read.end["t"][A]
        for sequence in range(first, end):
            if read.fill is None:
                wanted = any(matches((each.where, None), sequence) for each in memory.ahead.profiles)
            else:
                left = any(
                    other.gave(A, sequence) and all(matches(each, sequence) for each in other.conditions)
                    for other in read.fill.others
                )
                wanted = matches((read.fill.profile.where, None), sequence) and not left
            if wanted:
                rows.append(sequence)
        memory.hand(read, "t", A, end)
        if read.fill is None:
            break
    return rows, memory.ahead


@pytest.mark.parametrize("seed", range(100))
def test_profiles_changed_elsewhere_are_adopted_and_each_row_is_given_once(seed: int) -> None:
    rng = Random(seed)
    saved = at(rng.randrange(1, 9), profile("p", "2", a=1), *([profile("q", "3", a=1)] if rng.random() < 0.5 else []))
    before, own = given(saved, rng.randrange(10, 30))  # what was read since the position was saved
    begins: dict[str, int] = {}
    here = rng.randrange(30, 40)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice("pqrs")
        if rng.random() < 0.4:
            saved = saved.unsubscribed(name)
            continue
        saved = saved.subscribed(profile(name, str(rng.randrange(2, 6)), a=rng.choice((1, here))), {A: here})
    begins = {each.name: each.begins(A) for each in saved.profiles}
    merged = own.with_profiles_of(saved)
    assert {each.identity for each in merged.profiles} == {each.identity for each in saved.profiles}
    assert merged == own.with_profiles_of(merged), "it is the same after another start"
    after, _ = given(merged, 60)
    assert len({*before, *after}) == len(before) + len(after), "given twice"
    for each in saved.profiles:
        assert each.where is not None
        wanted = {row for row in range(begins[each.name], 60) if row % int(each.where) == 0}
        assert wanted <= {*before, *after}, each
    conditions = {int(each.where or 1) for each in saved.profiles}
    assert all(any(row % each == 0 for each in conditions) for row in after)


def test_a_profile_of_a_table_begins_with_what_stands() -> None:
    wanted = ClientProfile("p", "t", "x", None, {A: 2}, standing=True)
    state = ClientState().subscribed(wanted, {A: 10})
    (fill,) = state.fills
    assert (fill.ranges, fill.standing, fill.others) == ({A: (2, 10)}, {A: 10}, ())
    assert state.frontier == {"t": {A: 10}}
    assert state.needs("t", A) == 10, "nothing is retained for it: what goes is replaced by what comes"
    assert state_of(json.loads(json.dumps(json_of(state)))) == state
    later = (
        state.shortened(0, A, 10)
        .passed("t", A, 20)
        .subscribed(ClientProfile("q", "t", "y", None, {A: 1}, standing=True), {A: 25})
    )
    (fill,) = later.fills
    assert (fill.ranges, fill.standing) == ({A: (1, 20)}, {A: 20})
    assert [fill.others[0].gave(A, sequence) for sequence in (1, 2, 19)] == [False, True, True]
    with pytest.raises(LocalProtocolError, match="began with what stood"):
        later.subscribed(profile("r", "z", a=3), {A: 25})
    assert later.subscribed(profile("r", "z", a=25), {A: 25}).fills == later.fills


def test_mail_has_a_line_of_its_own() -> None:
    state = at(10, profile("p", a=10)).subscribed(ClientProfile("_mail", "_mail", "m", None, {}), {A: 3})
    memory = ClientMemory(state)
    rows, mail = memory.next_read(), memory.next_read(mail=True)
    assert rows is not None and mail is not None
    assert (rows.topics, mail.topics, mail.start) == (("t",), ("_mail",), {"_mail": {A: 1}})
    memory.hand(rows, "t", A, 12)
    memory.hand(mail, "_mail", A, 5)
    memory.acknowledge()
    assert memory.state.frontier == {"t": {A: 12}, "_mail": {A: 1}}
    memory.acknowledge(mail=True)
    assert memory.state.frontier == {"t": {A: 12}, "_mail": {A: 5}}


def test_mail_is_acknowledged_up_to_the_first_message_that_was_not_handed_out() -> None:
    memory = ClientMemory(ClientState().subscribed(ClientProfile("_mail", "_mail", "m", None, {}), {A: 3, B: 1}))
    mail = memory.next_read(mail=True)
    assert mail is not None
    memory.hand(mail, "_mail", A, 9)
    memory.hand(mail, "_mail", B, 5)
    memory.acknowledge(mail=True, unread={A: 7})
    assert memory.state.frontier == {"_mail": {A: 7, B: 5}}
    memory.acknowledge(mail=True, unread={A: 6})
    assert memory.state.frontier == {"_mail": {A: 7, B: 5}}, "it never goes back"
    memory.acknowledge(mail=True)
    assert memory.state == memory.ahead


def test_what_was_not_acknowledged_is_handed_out_again_after_an_error() -> None:
    state = at(10, profile("p", a=10)).subscribed(ClientProfile("_mail", "_mail", "m", None, {}), {A: 3})
    memory = ClientMemory(state.subscribed(profile("q", a=3), {A: 20}))
    before = memory.ahead
    for mail in (False, False, True):  # the fill, then the main line
        read = memory.next_read(mail=mail)
        assert read is not None
        memory.hand(read, read.topics[0], A, 12)
    assert memory.ahead.fills == ()
    memory.rewind()
    assert (memory.ahead.fills, memory.ahead.position("t", A)) == (before.fills, 10)
    assert memory.ahead.position("_mail", A) == 12, "mail is not concerned"
