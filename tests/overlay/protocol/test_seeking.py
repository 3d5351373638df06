"""Seeking: who founds the channel, who waits, and how patiently."""

from random import Random

import pytest

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.protocol.calls import Call, Calls
from m4cast.overlay.protocol.effects import Close, Dial, Output, Send
from m4cast.overlay.protocol.messages import SeekingConnectionCall, SeekingConnectionResp
from m4cast.overlay.protocol.seeking import CALLS_AT_ONCE, RETRY_MS_MAX, STRIKES_WITH_PAST, Seek, Seeking
from m4cast.overlay.protocol.timers import Timers
from tests.overlay.protocol.stream_parts import contact, of, take

SEEKING, FULL = SeekingConnectionResp(full=False, hears_you=False), SeekingConnectionResp(full=True, hears_you=False)
RETRY_MS = 1_000


def addresses(names: str) -> tuple[str, ...]:
    return tuple(contact(name).address for name in names)


class Seeker:
    """Node m with these portals, and the calls it makes."""

    def __init__(self, portals: str, seed: int = 1, knew_others: bool = False) -> None:
        config = NodeConfig(listen="m:7400", portals=addresses(portals), seek_retry_ms=RETRY_MS)
        self.knew_others = knew_others
        self.timers = Timers()
        self.out: list[Output] = []
        self.calls = Calls(contact("m"), 1, ClusterConfig(), config.call_timeout_ms, self.timers, self.out)
        self.seeking = Seeking("m:7400", config, Random(seed), self.calls, self.timers, self.out)
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
        """Nobody answered there."""
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
    due_ms = seeker.timers._due[("seek",)]
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


def test_a_portal_founds_when_nobody_answers() -> None:
    seeker = Seeker("mab")
    assert not seeker.begin()
    assert not seeker.fail("a")
    assert seeker.fail("b")


def test_a_node_that_is_not_a_portal_never_founds() -> None:
    seeker = Seeker("ab")
    for _ in range(10):
        assert not seeker.begin()
        assert not seeker.fail_all()
        assert seeker.timers.is_set(("seek",))


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
    assert seeker.timers.is_set(("seek",)) is not founds


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
    assert seeker.timers.is_set(("seek",))


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
    assert take(seeker.out) == [Send(call.conn, SeekingConnectionCall())]
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
    """Whoever sends this answer unasked loses the call; nothing else comes of it."""
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
    assert not seeker.timers.is_set(("seek",))
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
