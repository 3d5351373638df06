"""Deadlines: their order, and that what was moved or cancelled does not fire."""

from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.value import value


@value
class Plain(Timer):
    pass


@value
class Numbered(Timer):
    number: int


@value
class Other(Timer):
    number: int


A, B, C = Plain(), Numbered(1), Numbered(2)


def fire_all(timers: Timers, now_ms: int) -> list[Timer]:
    fired = []
    while (timer := timers.pop_due(now_ms)) is not None:
        fired.append(timer)
    return fired


def test_nothing_set_nothing_due() -> None:
    timers = Timers()
    assert timers.next_at() is None
    assert timers.pop_due(10**9) is None


def test_timers_fire_in_the_order_of_their_deadlines() -> None:
    timers = Timers()
    timers.set(A, 30)
    timers.set(B, 10)
    timers.set(C, 20)
    assert timers.next_at() == 10
    assert fire_all(timers, 100) == [B, C, A]


def test_equal_deadlines_fire_in_the_order_they_were_set() -> None:
    timers = Timers()
    for timer in (C, A, B):
        timers.set(timer, 10)
    assert fire_all(timers, 10) == [C, A, B]


def test_a_timer_fires_at_its_time_and_not_before() -> None:
    timers = Timers()
    timers.set(A, 10)
    assert timers.pop_due(9) is None
    assert timers.is_set(A)
    assert timers.pop_due(10) == A


def test_a_timer_fires_once() -> None:
    timers = Timers()
    timers.set(A, 10)
    assert fire_all(timers, 10) == [A]
    assert not timers.is_set(A)
    assert timers.next_at() is None
    assert timers.pop_due(100) is None


def test_setting_again_moves_a_timer_later() -> None:
    timers = Timers()
    timers.set(A, 10)
    timers.set(A, 20)
    assert timers.next_at() == 20
    assert timers.pop_due(19) is None
    assert fire_all(timers, 20) == [A]


def test_setting_again_moves_a_timer_sooner() -> None:
    timers = Timers()
    timers.set(A, 20)
    timers.set(A, 10)
    assert fire_all(timers, 10) == [A]
    assert fire_all(timers, 20) == []


def test_moving_there_and_back_fires_once() -> None:
    timers = Timers()
    for at_ms in (10, 20, 10):
        timers.set(A, at_ms)
    assert fire_all(timers, 30) == [A]


def test_setting_to_the_same_time_costs_nothing() -> None:
    timers = Timers()
    for _ in range(1_000):
        timers.set(A, 10)
    assert len(timers._heap) == 1


def test_a_cancelled_timer_does_not_fire() -> None:
    timers = Timers()
    timers.set(A, 10)
    timers.set(B, 20)
    timers.cancel(A)
    assert not timers.is_set(A)
    assert timers.next_at() == 20
    assert fire_all(timers, 100) == [B]


def test_cancelling_what_is_not_set_is_harmless() -> None:
    timers = Timers()
    timers.cancel(A)
    timers.set(A, 10)
    timers.cancel(B)
    assert fire_all(timers, 10) == [A]


def test_a_cancelled_timer_can_be_set_again() -> None:
    timers = Timers()
    timers.set(A, 10)
    timers.cancel(A)
    timers.set(A, 30)
    assert fire_all(timers, 29) == []
    assert fire_all(timers, 30) == [A]


def test_a_timer_that_is_set_while_it_fires_fires_again_later() -> None:
    timers = Timers()
    timers.set(A, 10)
    assert timers.pop_due(10) == A
    timers.set(A, 20)
    assert timers.pop_due(10) is None
    assert timers.pop_due(20) == A


def test_set_sooner_only_moves_a_timer_forward() -> None:
    timers = Timers()
    timers.set_sooner(A, 20)
    assert timers.next_at() == 20
    timers.set_sooner(A, 30)
    assert timers.next_at() == 20
    timers.set_sooner(A, 10)
    assert timers.next_at() == 10
    assert fire_all(timers, 100) == [A]


def test_timers_differ_by_kind_and_by_every_field() -> None:
    timers = Timers()
    other = Other(1)
    for timer in (B, C, other):
        timers.set(timer, 10)
    timers.cancel(B)
    assert fire_all(timers, 10) == [C, other]


def test_stale_entries_do_not_pile_up_behind_a_timer_that_moves() -> None:
    """Each move leaves one entry behind; looking at the next deadline removes those that have surfaced."""
    timers = Timers()
    timers.set(B, 5_000)
    for at_ms in range(1_000):
        timers.set(A, at_ms)
    timers.cancel(A)
    assert timers.next_at() == 5_000
    assert len(timers._heap) == 1
