"""A node's clock beside its neighbours', and the stamps that it gives to rows."""

import pytest

from m4cast.overlay.protocol.clocks import AGREED_SPEED, ALONE_PATIENCE_MS, Clocks, RetentionClock
from tests.overlay.protocol.stream_parts import node_id

NOW_MS = 1_000


def clocks(offset_ms: int, *others: int) -> Clocks:
    """A node with neighbours whose clocks show so much beyond `now_ms`."""
    found = Clocks(offset_ms)
    for index, other_ms in enumerate(others):
        found.heard(node_id(f"n{index}"), NOW_MS + other_ms, NOW_MS)
    return found


@pytest.mark.parametrize(
    ("offset_ms", "others", "ahead_ms"),
    [
        (9, (), None),
        (9, (9,), 0),
        (9, (4,), 5),
        (4, (9,), -5),
        (9, (9, 9, 1), 0),
        (9, (9, 1, 1), 8),
        (9, (9, 1), 8),  # of two the earlier one: what is removed too early is lost
        (9, (9, 100), 0),
    ],
)
def test_a_clock_is_held_against_the_median_of_the_neighbours(
    offset_ms: int, others: tuple[int, ...], ahead_ms: int | None
) -> None:
    assert clocks(offset_ms, *others).ahead_ms() == ahead_ms


def test_a_neighbour_that_says_nothing_of_its_clock_or_is_gone_does_not_count() -> None:
    found = clocks(0, 50)
    found.heard(node_id("old"), 0, NOW_MS)
    assert found.ahead_ms() == -50
    found.forget(node_id("n0"))
    assert found.ahead_ms() is None


def test_the_last_heartbeat_of_a_neighbour_counts_however_long_ago_it_was() -> None:
    found = clocks(0, 50)
    found.heard(node_id("n0"), 9_003, 9_000)
    found.offset_ms = 5
    assert found.ahead_ms() == 2


# ---- the retention clock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS
ROUND_MS = 2_000


def reached(clock: RetentionClock, run_ms: int, wrong_ms: int, ahead_ms: int | None, since_ms: int = 0) -> int:
    """The distance of the ages from the true time after rounds of retention for so long, with a clock that is wrong by
    `wrong_ms`. The node has run for `since_ms`, and the true time is the node's own."""
    at_ms = 0
    for now_ms in range(since_ms + ROUND_MS, since_ms + run_ms + 1, ROUND_MS):
        at_ms = clock.advance(now_ms + wrong_ms, now_ms, ahead_ms)
    return at_ms - (since_ms + run_ms)


def test_a_clock_that_is_right_is_followed() -> None:
    for ahead_ms in (None, 0, -50, 1_000):
        assert reached(RetentionClock(0, 0), HOUR_MS, 0, ahead_ms) == 0


@pytest.mark.parametrize("wrong_ms", [61_000, HOUR_MS, YEAR_MS])
def test_a_clock_that_is_ahead_of_the_neighbours_makes_nothing_older(wrong_ms: int) -> None:
    assert reached(RetentionClock(0, 0), HOUR_MS, wrong_ms, wrong_ms) == 0


def test_a_jump_that_nobody_confirms_makes_rows_grow_old_at_twice_the_speed() -> None:
    assert reached(RetentionClock(0, 0), HOUR_MS, YEAR_MS, None) == HOUR_MS


def test_a_jump_that_the_neighbours_confirm_is_followed_by_a_limit_a_round() -> None:
    clock = RetentionClock(0, 0)
    assert clock.advance(DAY_MS, ROUND_MS, 0) == AGREED_SPEED * ROUND_MS
    assert reached(clock, HOUR_MS, DAY_MS, 0, since_ms=ROUND_MS) == DAY_MS, "the node was off for a day"


def test_after_a_while_alone_the_time_that_a_node_was_off_is_made_up_for() -> None:
    """Or that its host was suspended: its own time stood still."""
    clock = RetentionClock(0, 0)
    assert reached(clock, HOUR_MS, 3 * HOUR_MS, None) == HOUR_MS
    assert reached(clock, 2 * HOUR_MS, 3 * HOUR_MS, None, since_ms=HOUR_MS) == 3 * HOUR_MS


def test_a_clock_that_is_behind_removes_nothing_and_takes_nothing_back() -> None:
    clock = RetentionClock(YEAR_MS, 0)
    assert clock.advance(5, ROUND_MS, None) == 5
    assert clock.advance(5, 2 * ROUND_MS, -YEAR_MS) == 5
    assert clock.advance(YEAR_MS + 3 * ROUND_MS, 3 * ROUND_MS, 0) == YEAR_MS + 3 * ROUND_MS


def test_what_the_neighbours_agree_on_can_take_it_back() -> None:
    clock = RetentionClock(YEAR_MS, 0)
    assert clock.advance(HOUR_MS, ROUND_MS, 0) == clock.at_ms == HOUR_MS


def test_a_store_without_a_past_takes_the_time_from_a_clock_that_is_confirmed_or_that_nobody_disputes_for_a_while() -> (
    None
):
    clock = RetentionClock(None, 0)
    assert clock.advance(5, ROUND_MS, None) == 0
    assert clock.advance(5, ALONE_PATIENCE_MS, -YEAR_MS) == 0, "a clock that was not set after a boot"
    assert clock.advance(YEAR_MS, ALONE_PATIENCE_MS + 1, 3) == YEAR_MS
    alone = RetentionClock(None, 0)
    assert alone.advance(YEAR_MS, ALONE_PATIENCE_MS, None) == YEAR_MS
