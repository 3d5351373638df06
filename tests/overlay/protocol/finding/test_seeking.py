"""Seeking: who founds the channel, who waits, and how patiently."""

import pytest

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.effects import Close, Dial, Send
from m4cast.overlay.protocol.finding.port_order import port_order
from m4cast.overlay.protocol.finding.seeking import (
    CALLS_AT_ONCE,
    FELLOWS_MAX,
    RETRY_MS_MAX,
    STRIKES_WITH_PAST,
    Seek,
    SeekDue,
    Seeking,
)
from m4cast.overlay.protocol.wire.messages import ConnectedStmt, SeekingConnectionCall, SeekingConnectionResp
from tests.overlay.protocol.stream_parts import contact, context_of_m, node_id, of, take

SEEKING = SeekingConnectionResp(full=False, hears_you=False, depth=0)
FULL = SeekingConnectionResp(full=True, hears_you=False, depth=0)
RETRY_MS = 1_000


def addresses(names: str) -> tuple[str, ...]:
    return tuple(contact(name).address for name in names)


class Seeker:
    """Node m with these portals, and the calls it makes."""

    def __init__(self, portals: str, seed: int = 1, knew_others: bool = False, hosts: str = "", depth: int = 8) -> None:
        config = NodeConfig(
            listen="m:7400",
            portals=addresses(portals),
            portal_hosts=tuple(hosts),
            portal_depth=depth,
            seek_retry_ms=RETRY_MS,
        )
        self.knew_others = knew_others
        context = context_of_m(config, seed=seed)
        self.timers, self.out, self.calls = context.timers, context.out, context.calls
        self.seeking = Seeking(context)
        self.now_ms = 0
        self.open: dict[str, Call] = {}
        self.called: list[str] = []

    def begin(self, known: str = "") -> bool:
        founds = self.seeking.begin(list(addresses(known)), self.now_ms)
        self.see_dials()
        return founds

    def see_dials(self) -> None:
        for dial in of(take(self.out), Dial):
            call = self.calls.get(dial.conn)
            assert call is not None
            self.open[dial.address[0]] = call
            self.called.append(dial.address[0])

    def greet(self, name: str) -> Call:
        """The node answered the call and said hello."""
        call = self.open.pop(name)
        call.peer = contact(name)
        self.seeking.call_ready(call)
        return call

    def answer(self, name: str, resp: SeekingConnectionResp = SEEKING) -> tuple[bool, bool]:
        call = self.greet(name)
        result = self.seeking.answered(call, resp, self.now_ms, self.knew_others)
        self.see_dials()
        return result

    def fail(self, name: str) -> bool:
        """No node answered there."""
        call = self.open.pop(name)
        assert self.calls.lost(call.conn) is call
        founds = self.seeking.call_failed(call, self.now_ms, self.knew_others)
        self.see_dials()
        return founds

    def refuse(self, name: str) -> bool:
        """The node there said hello, and then that it does not want this one."""
        return self.seeking.call_failed(self.greet(name), self.now_ms, self.knew_others)

    def fail_all(self) -> bool:
        """A whole round without an answer."""
        founds = [self.fail(name) for name in iter(lambda: next(iter(self.open), None), None)]
        assert not any(founds[:-1]), "it founds when the last one failed, not before"
        return founds[-1]


def next_round_in(seeker: Seeker) -> int:
    due_ms = seeker.timers._due[SeekDue()]
    return due_ms - seeker.now_ms


# ---- founding


def test_a_node_without_portals_founds_at_once() -> None:
    assert Seeker("").begin()


def test_the_only_portal_founds_at_once() -> None:
    assert Seeker("m").begin()


def test_the_only_portal_first_asks_whom_it_knew() -> None:
    seeker = Seeker("m")
    assert not seeker.begin(known="ab")
    assert sorted(seeker.open) == ["a", "b"]
    assert seeker.fail_all()


def test_a_portal_founds_without_an_answer() -> None:
    seeker = Seeker("mab")
    assert not seeker.begin()
    assert not seeker.fail("a")
    assert seeker.fail("b")


def test_a_node_that_is_not_a_portal_never_founds() -> None:
    seeker = Seeker("ab")
    for _ in range(10):
        assert not seeker.begin()
        assert not seeker.fail_all()
        assert seeker.timers.is_set(SeekDue())


@pytest.mark.parametrize(
    ("portals", "fellow", "founds"),
    [
        ("ma", "a", False),  # a seeks too, and its address is smaller: it founds
        ("mz", "z", True),  # z seeks too, and waits for me
    ],
)
def test_of_portals_that_seek_the_one_with_the_smallest_address_founds(portals: str, fellow: str, founds: bool) -> None:
    seeker = Seeker(portals)
    seeker.begin()
    assert seeker.answer(fellow) == (False, founds)
    assert seeker.timers.is_set(SeekDue()) is not founds


def test_a_smaller_address_that_is_not_a_portal_does_not_count() -> None:
    seeker = Seeker("m")
    seeker.begin(known="a")
    assert seeker.answer("a") == (False, True)


def test_a_rival_counts_whatever_the_others_say_after_it() -> None:
    seeker = Seeker("mabz")
    seeker.begin()
    assert seeker.answer("a") == (False, False)
    assert not seeker.fail("b")
    assert seeker.answer("z") == (False, False)
    seeker.begin()
    assert seeker.fail_all(), "the rival of an earlier round is forgotten"


def test_a_portal_does_not_found_when_somebody_refused_it() -> None:
    seeker = Seeker("mab")
    seeker.begin()
    assert not seeker.refuse("a")
    assert not seeker.fail("b")
    assert seeker.timers.is_set(SeekDue())


# ---- a round


def test_every_address_is_called_once_but_not_the_own() -> None:
    seeker = Seeker("mabm")
    seeker.begin(known="bcmc")
    seeker.fail_all()
    assert sorted(seeker.called) == ["a", "b", "c"]


def test_a_few_are_called_at_a_time() -> None:
    seeker = Seeker("abcdefgh")
    seeker.begin()
    while seeker.open:
        assert len(seeker.open) == min(CALLS_AT_ONCE, 8 - len(seeker.called) + len(seeker.open))
        seeker.fail(next(iter(seeker.open)))
    assert len(seeker.called) == 8


def test_the_order_of_the_calls_differs_from_node_to_node() -> None:
    firsts = set()
    for seed in range(20):
        seeker = Seeker("abcdefgh", seed)
        seeker.begin()
        firsts.add(seeker.called[0])
    assert len(firsts) > 3


def test_it_asks_and_takes_the_first_that_is_on_the_channel() -> None:
    seeker = Seeker("ab")
    seeker.begin()
    call = seeker.open["a"]
    call.peer = contact("a")
    seeker.seeking.call_ready(call)
    assert take(seeker.out) == [Send(call.conn, SeekingConnectionCall(seeking=True, depth=0))]
    assert seeker.seeking.answered(call, FULL, 0, False) == (True, False)
    assert seeker.calls.get(call.conn) is call, "the call goes on: it is asked to bring us in"
    config = NodeConfig()
    assert config.walk_timeout_ms <= next_round_in(seeker) <= config.walk_timeout_ms + RETRY_MS


def test_a_second_yes_is_not_needed() -> None:
    seeker = Seeker("abcm")
    seeker.begin()
    assert seeker.answer("a", FULL) == (True, False)
    call = seeker.open.pop("b")
    call.peer = contact("b")
    assert seeker.seeking.answered(call, FULL, 0, False) == (False, False)
    assert take(seeker.out) == [Close(call.conn)]
    assert not seeker.fail("c"), "nor does a failure matter any more"


def test_a_seeker_that_is_met_is_not_held_on_to() -> None:
    seeker = Seeker("ab")
    seeker.begin()
    call = seeker.open["a"]
    seeker.answer("a")
    assert seeker.calls.get(call.conn) is None


def test_an_answer_of_an_earlier_round_is_not_taken() -> None:
    seeker = Seeker("a")
    seeker.begin()
    late = seeker.open["a"]
    seeker.begin()
    late.peer = contact("a")
    assert isinstance(late.purpose, Seek)
    assert seeker.seeking.answered(late, FULL, 0, False) == (False, False)
    assert seeker.calls.get(late.conn) is None
    assert not seeker.seeking.call_failed(late, 0, False)
    assert "a" in seeker.open, "the round that is on goes on"
    assert seeker.answer("a", FULL) == (True, False)


def test_a_new_round_does_not_wait_for_the_calls_of_the_last() -> None:
    seeker = Seeker("abc")
    seeker.begin()
    seeker.begin()
    assert sorted(seeker.called) == ["a", "a", "b", "b", "c", "c"]


def test_a_yes_that_comes_after_all_is_done_is_not_taken() -> None:
    seeker = Seeker("ab")
    seeker.begin()
    seeker.seeking.stop()
    assert seeker.answer("a", FULL) == (False, False)


def test_a_call_for_another_purpose_is_not_a_seekers() -> None:
    """A node that sends this answer unasked loses the call, and has no other effect."""
    seeker = Seeker("ma")
    seeker.begin()
    conn = seeker.calls.dial("x:7400", "another purpose", 0)
    call = seeker.calls.get(conn)
    take(seeker.out)
    assert call is not None
    assert not seeker.seeking.call_failed(call, 0, False)
    assert seeker.seeking.answered(call, FULL, 0, False) == (False, False)
    assert seeker.calls.get(conn) is None
    assert seeker.fail("a")


def test_a_yes_that_comes_to_nothing_is_followed_by_another_round_soon() -> None:
    seeker = Seeker("mab")
    seeker.begin()
    call = seeker.open["a"]
    assert seeker.answer("a", FULL) == (True, False)
    assert not seeker.seeking.call_failed(call, 0, False)
    assert next_round_in(seeker) <= RETRY_MS


# ---- patience


def test_rounds_come_more_and_more_rarely_up_to_a_bound() -> None:
    seeker = Seeker("a")
    waits = []
    for _ in range(12):
        seeker.begin()
        seeker.fail_all()
        waits.append(next_round_in(seeker))
    for doublings, wait_ms in enumerate(waits):
        full_ms = min(RETRY_MS << doublings, RETRY_MS_MAX)
        assert full_ms // 2 <= wait_ms <= full_ms
    assert len(set(waits)) > 6, "no two nodes that start together ask together for ever"


def test_after_success_patience_begins_anew() -> None:
    seeker = Seeker("a")
    for _ in range(5):
        seeker.begin()
        seeker.fail_all()
    seeker.seeking.stop()
    assert not seeker.timers.is_set(SeekDue())
    seeker.begin()
    seeker.fail_all()
    assert next_round_in(seeker) <= RETRY_MS


def test_a_portal_with_a_past_founds_only_after_three_rounds_without_an_answer() -> None:
    seeker = Seeker("ma", knew_others=True)
    for strike in range(1, STRIKES_WITH_PAST + 1):
        seeker.begin()
        assert seeker.fail_all() is (strike == STRIKES_WITH_PAST)


def test_strikes_are_counted_anew_after_success() -> None:
    seeker = Seeker("ma", knew_others=True)
    for _ in range(STRIKES_WITH_PAST - 1):
        seeker.begin()
        seeker.fail_all()
    seeker.seeking.stop()
    for _ in range(STRIKES_WITH_PAST - 1):
        seeker.begin()
        assert not seeker.fail_all()


# ---- ports


ORDER = port_order(ClusterConfig(), 8)


def dialled(seeker: Seeker) -> list[str]:
    """Addresses that were called since the last look; the calls are in `open` under these."""
    dials = of(take(seeker.out), Dial)
    for dial in dials:
        call = seeker.calls.get(dial.conn)
        assert call is not None
        seeker.open[dial.address] = call
    return [dial.address for dial in dials]


def begun(seeker: Seeker) -> list[str]:
    assert not seeker.seeking.begin([], 0)
    return dialled(seeker)


def nobody_at(seeker: Seeker, address: str) -> bool:
    call = seeker.calls.lost(seeker.open.pop(address).conn)
    assert call is not None
    return seeker.seeking.call_failed(call, seeker.now_ms, seeker.knew_others)


def fellow_at(seeker: Seeker, address: str, depth: int) -> None:
    """A fellow seeker answers there."""
    call = seeker.open.pop(address)
    call.peer = Contact(node_id("z"), address)
    seeker.seeking.answered(call, SeekingConnectionResp(full=False, hears_you=False, depth=depth), 0, False)


def test_known_addresses_are_called_before_ports_are_searched() -> None:
    seeker = Seeker("a", hosts="bc")
    assert begun(seeker) == ["a:7400"]
    nobody_at(seeker, "a:7400")
    assert dialled(seeker) == [f"b:{ORDER[0]}", f"c:{ORDER[0]}"]


def test_a_port_is_tried_at_all_hosts_before_the_next_one_is() -> None:
    seeker = Seeker("", hosts="bcde", depth=2)
    first = begun(seeker)
    assert first == [f"{host}:{ORDER[0]}" for host in "bcd"], "a few at a time"
    assert not nobody_at(seeker, first[0])
    assert dialled(seeker) == [f"e:{ORDER[0]}"]
    for address in list(seeker.open):
        assert dialled(seeker) == []
        nobody_at(seeker, address)
    assert dialled(seeker) == [f"{host}:{ORDER[1]}" for host in "bcd"]


def test_a_portal_that_went_through_its_depth_founds_and_another_node_tries_again() -> None:
    for hosts, founds in (("mb", True), ("b", False)):
        seeker = Seeker("", hosts=hosts, depth=2)
        calls = begun(seeker)
        founded = False
        while calls:
            founded = sum(nobody_at(seeker, address) for address in calls) == 1
            calls = dialled(seeker)
        assert founded is founds
        assert seeker.timers.is_set(SeekDue()) is not founds


def test_what_a_fellow_seeker_has_searched_is_passed_over() -> None:
    seeker = Seeker("", hosts="b")
    begun(seeker)
    fellow_at(seeker, f"b:{ORDER[0]}", depth=5)
    assert dialled(seeker) == [f"b:{ORDER[5]}"]
    assert seeker.seeking.depth == 5


def test_calls_carry_the_depth() -> None:
    seeker = Seeker("", hosts="b")
    begun(seeker)
    nobody_at(seeker, f"b:{ORDER[0]}")
    dialled(seeker)
    seeker.greet(f"b:{ORDER[1]}")
    (send,) = of(take(seeker.out), Send)
    assert send.message == SeekingConnectionCall(seeking=True, depth=1)


def test_a_portal_that_is_called_by_a_seeking_one_with_a_smaller_address_leaves_it_to_that_one() -> None:
    for caller, founds in (("a", False), ("z", True)):
        seeker = Seeker("", hosts="amz", depth=1)
        calls = begun(seeker)
        seeker.seeking.met(Contact(node_id(caller), f"{caller}:{ORDER[3]}"), depth=0)
        assert sum(nobody_at(seeker, address) for address in calls) == founds


# ---- fellow seekers


def test_fellows_are_told_once_when_this_node_is_on_the_channel() -> None:
    seeker = Seeker("ab")
    seeker.begin()
    seeker.answer("a")
    seeker.seeking.met(contact("z"), depth=0)
    seeker.seeking.notify_fellows(0)
    assert sorted(dialled(seeker)) == ["a:7400", "z:7400"]
    call = seeker.open["z:7400"]
    seeker.seeking.notify(call)
    assert take(seeker.out) == [Send(call.conn, ConnectedStmt()), Close(call.conn)]
    seeker.seeking.notify_fellows(0)
    assert dialled(seeker) == []


def test_only_the_latest_fellows_are_remembered() -> None:
    seeker = Seeker("a")
    for number in range(FELLOWS_MAX + 1):
        seeker.seeking.met(Contact(NodeId(number.to_bytes(16)), f"h{number}:1"), depth=0)
    seeker.seeking.met(Contact(NodeId((1).to_bytes(16)), "h1:1"), depth=0)  # again: it is the latest now
    seeker.seeking.notify_fellows(0)
    assert dialled(seeker) == [*(f"h{number}:1" for number in range(2, FELLOWS_MAX + 1)), "h1:1"]


def test_a_fellow_that_is_on_the_channel_is_asked_alone_and_no_channel_founded() -> None:
    seeker = Seeker("am")
    seeker.begin()
    seeker.answer("a")  # nobody is left to ask, and it waits
    take(seeker.out)
    seeker.seeking.fellow_connected(contact("a"), 0)
    assert dialled(seeker) == ["a:7400"]
    assert not nobody_at(seeker, "a:7400"), "there is a channel, even if it does not answer just now"


def test_the_word_of_a_stranger_and_of_a_fellow_that_comes_too_late_say_nothing() -> None:
    seeker = Seeker("ab")
    seeker.begin()
    seeker.seeking.fellow_connected(contact("z"), 0)
    assert dialled(seeker) == []
    seeker.seeking.met(contact("z"), depth=0)
    assert seeker.answer("a", FULL) == (True, False)
    seeker.seeking.fellow_connected(contact("z"), 0)
    assert dialled(seeker) == [], "it has asked a already"


# ---- those who are at odds


def at_odds(seeker: Seeker, name: str, *, is_at_odds: bool = True) -> bool:
    """The node there said hello, and one refused the other before either was content."""
    call = seeker.open.pop(name)
    call.is_at_odds = is_at_odds
    seeker.calls.close(call.conn)
    founds = seeker.seeking.call_failed(call, seeker.now_ms, seeker.knew_others)
    seeker.see_dials()
    return founds


def test_a_portal_does_not_found_while_a_node_of_the_channel_is_at_odds_with_it() -> None:
    seeker = Seeker("max")
    seeker.begin()
    assert not at_odds(seeker, "a")
    assert not seeker.fail("x")
    for _ in range(5):
        seeker.now_ms += next_round_in(seeker)
        assert not seeker.begin()
        assert not seeker.fail("x")
        assert not at_odds(seeker, "a")
    seeker.now_ms += next_round_in(seeker)
    seeker.begin()
    assert seeker.fail_all(), "that node is gone"


def test_a_node_of_another_channel_is_ignored() -> None:
    seeker = Seeker("ma")
    seeker.begin()
    assert at_odds(seeker, "a", is_at_odds=False)


def test_a_call_ends_once() -> None:
    seeker = Seeker("mab")
    seeker.begin()
    call = seeker.open["a"]
    assert not seeker.fail("a")
    assert not seeker.seeking.call_failed(call, 0, False)
    assert seeker.fail("b")


def test_an_answered_call_does_not_fail_afterwards() -> None:
    seeker = Seeker("maz")
    seeker.begin()
    call = seeker.open["z"]
    seeker.answer("z")
    assert not seeker.seeking.call_failed(call, 0, False)
    assert seeker.fail("a"), "z seeks too, but has a larger address"
