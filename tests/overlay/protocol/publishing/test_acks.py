"""Acks: when a publish is answered, and how the window paces the publisher."""

import pytest

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Output, Published, Range
from m4cast.overlay.protocol.publishing.acks import REMEMBERED_MAX, Acks
from m4cast.overlay.protocol.publishing.window import PATIENCE_MS
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.messages import AckEntry, HeldEntry
from tests.overlay.protocol.stream_parts import chain, node_id, of, stream_id, take

T, U = stream_id("m", "t"), stream_id("m", "u")
WINDOW = 1_000


class Waiter:
    """The acks of node m, with these neighbours."""

    def __init__(self, neighbours: str = "abc") -> None:
        self.out: list[Output] = []
        self.acks = Acks(node_id("m"), "tu", WINDOW, self.out)
        for name in neighbours:
            self.acks.neighbour_up(node_id(name), 0)

    def acked(self, name: str, durable_next: int, held_from: int = 1, topic: str = "t", now_ms: int = 0) -> None:
        self.acks.acked(node_id(name), (AckEntry(topic, held_from, durable_next),), now_ms)

    def publish(self, *batches: Batch, now_ms: int = 0) -> None:
        for batch in batches:
            self.acks.published(batch, now_ms)

    def answered(self) -> list[int]:
        return [published.request for published in of(take(self.out), Published)]


def rows(first: int, next_sequence: int, stream: StreamId = T) -> Range:
    return Range(stream, first, next_sequence)


# ---- answers


@pytest.mark.parametrize("acks", [0, 1, 2, 3])
def test_a_request_is_answered_at_exactly_as_many_acks_as_it_asked_for(acks: int) -> None:
    waiter = Waiter()
    waiter.acks.answer_when_acked(7, acks, (rows(1, 5),))
    for number, name in enumerate(["", "a", "b", "c"]):
        if name:
            waiter.acked(name, 5)
        assert waiter.answered() == ([7] if number == acks else [])
    assert waiter.acks.waiting() == []


def test_the_answer_names_the_ranges() -> None:
    waiter = Waiter()
    waiter.acks.answer_when_acked(7, 0, (rows(1, 5), rows(3, 4, U)))
    assert take(waiter.out) == [Published(7, (rows(1, 5), rows(3, 4, U)))]


@pytest.mark.parametrize(
    ("held_from", "durable_next", "counts"),
    [(1, 10, True), (4, 10, True), (5, 10, False), (1, 9, False), (1, 11, True), (9, 12, False), (1, 1, False)],
)
def test_an_ack_counts_when_it_covers_all_rows(held_from: int, durable_next: int, counts: bool) -> None:
    """A node that skipped rows, or began in the middle, does not have them; nor one that is not that far."""
    waiter = Waiter()
    waiter.acks.answer_when_acked(7, 1, (rows(4, 10),))
    waiter.acked("a", durable_next, held_from)
    assert waiter.answered() == ([7] if counts else [])
    assert bool(waiter.acks.count((rows(4, 10),))) is counts


def test_all_ranges_must_be_at_the_same_node() -> None:
    waiter = Waiter()
    waiter.acks.answer_when_acked(7, 1, (rows(1, 5), rows(1, 3, U)))
    waiter.acked("a", 5)
    waiter.acked("b", 3, topic="u")
    assert waiter.answered() == []
    waiter.acked("a", 3, topic="u")
    assert waiter.answered() == [7]


def test_one_node_counts_once_however_often_it_speaks() -> None:
    waiter = Waiter()
    waiter.acks.answer_when_acked(7, 2, (rows(1, 5),))
    waiter.acked("a", 5)
    waiter.acked("a", 6)
    assert waiter.answered() == []
    assert len(waiter.acks.waiting()) == 1


def test_acks_that_came_before_the_question_count() -> None:
    waiter = Waiter()
    waiter.acked("a", 9)
    waiter.acks.answer_when_acked(7, 1, (rows(1, 5),))
    assert waiter.answered() == [7]


def test_what_was_acknowledged_counts_after_the_link_is_gone() -> None:
    waiter = Waiter()
    waiter.acks.answer_when_acked(7, 2, (rows(1, 5),))
    waiter.acked("a", 5)
    waiter.acks.neighbour_down(node_id("a"), is_gone=False)
    waiter.acked("b", 5)
    assert waiter.answered() == [7]


def test_a_late_word_of_a_former_neighbour_counts_too() -> None:
    waiter = Waiter("b")
    waiter.acks.answer_when_acked(7, 1, (rows(1, 5),))
    waiter.acked("x", 5)
    assert waiter.answered() == [7]


@pytest.mark.parametrize("acks", [0, 3])
def test_what_wrote_no_rows_is_answered_at_once(acks: int) -> None:
    waiter = Waiter()
    waiter.acks.answer_when_acked(7, acks, ())
    assert waiter.answered() == [7]


def test_rows_of_a_former_identity_are_acknowledged_by_neighbours_that_are_asked() -> None:
    """The repeat of a commit from before a rollback."""
    waiter = Waiter()
    old = stream_id("old", "t")
    assert waiter.acks.former_origins() == ()
    waiter.acks.answer_when_acked(7, 2, (rows(1, 5, old),))
    assert waiter.answered() == [] and waiter.acks.former_origins() == (old.origin,)
    waiter.acked("a", 5)
    waiter.acked("b", 5)
    assert waiter.answered() == [], "that is what they have of this node's present stream"
    waiter.acks.held(node_id("a"), (HeldEntry(*old, 1, 5, 5),))
    waiter.acks.held(node_id("b"), (HeldEntry(*old, 2, 5, 5),))
    assert waiter.answered() == [], "b does not have the first row"
    waiter.acks.held(node_id("x"), (HeldEntry(*old, 1, 5, 5),))
    assert waiter.answered() == [], "x is no neighbour"
    waiter.acks.held(node_id("b"), (HeldEntry(*old, 1, 5, 5),))
    assert waiter.answered() == [7]
    waiter.acks.answer_when_acked(8, 0, (rows(1, 5, old),))
    assert waiter.answered() == [8]
    waiter.acks.answer_when_acked(9, 2, (rows(1, 5, old),))
    assert waiter.answered() == [9], "what they said is remembered"
    waiter.acks.neighbour_down(node_id("a"), is_gone=False)
    waiter.acks.answer_when_acked(10, 2, (rows(1, 5, old),))
    assert waiter.answered() == []


def test_answers_come_in_the_order_of_the_requests() -> None:
    waiter = Waiter()
    for request, next_sequence in ((1, 9), (2, 5), (3, 9)):
        waiter.acks.answer_when_acked(request, 1, (rows(1, next_sequence),))
    waiter.acked("a", 5)
    assert waiter.answered() == [2]
    waiter.acked("a", 9)
    assert waiter.answered() == [1, 3]


def test_nobody_has_what_nobody_acknowledged() -> None:
    waiter = Waiter()
    assert waiter.acks.count((rows(1, 2),)) == 0


# ---- the window


def test_the_window_is_open_below_its_limit_and_closed_at_it() -> None:
    waiter = Waiter("a")
    batches = chain(3, stream=T, size=WINDOW - 1)
    assert waiter.acks.window.has_room(0)
    waiter.publish(batches[0])
    assert waiter.acks.window.has_room(0)
    waiter.publish(*chain(1, size=1, after=batches[0]))
    assert not waiter.acks.window.has_room(0)
    waiter.acked("a", 2)
    assert waiter.acks.window.has_room(0)


def test_the_slowest_neighbour_closes_the_window() -> None:
    waiter = Waiter("ab")
    waiter.publish(*chain(2, stream=T, size=WINDOW // 2))
    waiter.acked("a", 3)
    assert not waiter.acks.window.has_room(0)
    waiter.acked("b", 2)
    assert waiter.acks.window.has_room(0)


def test_without_neighbours_there_is_always_room() -> None:
    waiter = Waiter("")
    waiter.publish(*chain(5, stream=T, size=WINDOW))
    assert waiter.acks.window.has_room(0)


def test_a_new_neighbour_owes_only_what_is_published_from_then_on() -> None:
    waiter = Waiter("")
    waiter.publish(*chain(2, stream=T, size=WINDOW))
    waiter.acks.neighbour_up(node_id("a"), 0)
    assert waiter.acks.window.has_room(0)
    waiter.publish(*chain(1, stream=U, size=WINDOW))
    assert not waiter.acks.window.has_room(0)


def test_a_neighbour_that_goes_away_takes_its_debt_with_it() -> None:
    waiter = Waiter("a")
    waiter.publish(*chain(1, stream=T, size=WINDOW))
    assert not waiter.acks.window.has_room(0)
    waiter.acks.neighbour_down(node_id("a"), is_gone=False)
    assert waiter.acks.window.has_room(0)
    waiter.acks.neighbour_up(node_id("a"), 0)
    assert waiter.acks.window.has_room(0)


def test_topics_are_acknowledged_apart_and_counted_in_the_order_of_publishing() -> None:
    waiter = Waiter("a")
    waiter.publish(*chain(1, stream=T, size=WINDOW), *chain(1, stream=U, size=WINDOW))
    waiter.acked("a", 2, topic="u")
    assert not waiter.acks.window.has_room(0)
    waiter.acked("a", 2, topic="t")
    assert waiter.acks.window.has_room(0)


def test_a_neighbour_that_does_not_move_leaves_the_window_when_patience_ends() -> None:
    waiter = Waiter("a")
    waiter.publish(*chain(1, stream=T, size=WINDOW), now_ms=5_000)
    assert not waiter.acks.window.has_room(5_000 + PATIENCE_MS)
    assert waiter.acks.window.has_room(5_001 + PATIENCE_MS)
    waiter.publish(*chain(3, stream=T, size=WINDOW)[1:], now_ms=9_000)
    assert waiter.acks.window.has_room(9_000), "while it is out, it does not count"


def test_patience_is_counted_from_the_last_move() -> None:
    waiter = Waiter("a")
    waiter.publish(*chain(5, stream=T, size=WINDOW), now_ms=0)
    for step in range(1, 5):
        now_ms = step * PATIENCE_MS
        assert not waiter.acks.window.has_room(now_ms)
        waiter.acked("a", step + 1, now_ms=now_ms)
    waiter.acked("a", 5, now_ms=5 * PATIENCE_MS)  # again the same: no move
    assert waiter.acks.window.has_room(5 * PATIENCE_MS + 1)


def test_time_without_debt_is_not_held_against_a_neighbour() -> None:
    waiter = Waiter("a")
    waiter.publish(*chain(1, stream=T, size=WINDOW), now_ms=100_000)
    assert not waiter.acks.window.has_room(100_000 + PATIENCE_MS)


def test_a_neighbour_is_back_in_the_window_when_it_has_caught_up_with_all() -> None:
    waiter = Waiter("a")
    batches = chain(4, stream=T, size=WINDOW)
    others = chain(2, stream=U, size=WINDOW)
    waiter.publish(batches[0], others[0])
    now_ms = PATIENCE_MS + 1
    assert waiter.acks.window.has_room(now_ms)
    assert waiter.acks.window.has_room(now_ms)
    waiter.publish(batches[1], now_ms=now_ms)
    waiter.acked("a", 2)  # what it owed when it left, but not all of what came since
    waiter.acked("a", 2, topic="u")
    waiter.publish(batches[2], now_ms=now_ms)
    assert waiter.acks.window.has_room(now_ms), "still out"
    waiter.acked("a", 4)
    waiter.publish(batches[3], now_ms=now_ms)
    assert not waiter.acks.window.has_room(now_ms)
    waiter.acked("a", 5)
    assert waiter.acks.window.has_room(now_ms)


def test_acks_of_one_who_left_the_window_still_answer_requests() -> None:
    waiter = Waiter("a")
    waiter.publish(*chain(1, stream=T, size=WINDOW))
    assert waiter.acks.window.has_room(PATIENCE_MS + 1)
    waiter.acks.answer_when_acked(7, 1, (rows(1, 2),))
    waiter.acked("a", 2)
    assert waiter.answered() == [7]


# ---- who is there


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_a_node_that_is_gone_from_the_channel_had_does_not_count(is_gone: bool) -> None:
    waiter = Waiter()
    waiter.acked("a", 5)
    waiter.acks.neighbour_down(node_id("a"), is_gone=is_gone)
    assert waiter.acks.count((rows(1, 5),)) == (0 if is_gone else 1)
    waiter.acks.gone(node_id("a"))
    assert waiter.acks.count((rows(1, 5),)) == 0


def test_a_neighbour_is_not_gone_whatever_others_say() -> None:
    waiter = Waiter()
    waiter.acked("a", 5)
    waiter.acks.gone(node_id("a"))
    assert waiter.acks.count((rows(1, 5),)) == 1


def test_only_neighbours_have_rows_now() -> None:
    waiter = Waiter()
    for name in "ab":
        waiter.acked(name, 5)
    assert waiter.acks.count_neighbours((rows(1, 5),)) == 2
    waiter.acks.neighbour_down(node_id("a"), is_gone=False)
    assert waiter.acks.count_neighbours((rows(1, 5),)) == 1
    waiter.acks.neighbour_up(node_id("a"), 0)
    assert waiter.acks.count_neighbours((rows(1, 5),)) == 1, "not before it says so again"
    waiter.acked("a", 5)
    assert waiter.acks.count_neighbours((rows(1, 5),)) == 2


def test_acks_of_topics_that_are_not_mine_are_not_kept() -> None:
    waiter = Waiter()
    waiter.acked("a", 5, topic="bogus")
    waiter.acked("a", 5, topic="u")
    assert waiter.acks._stored == {node_id("a"): {"u": (1, 5)}}
    (batch,) = chain(1, stream=stream_id("m", "new"))
    waiter.publish(batch)
    waiter.acked("a", 2, topic="new")
    assert waiter.acks.count((Range(batch.stream, 1, 2),)) == 1


def test_so_many_former_neighbours_are_remembered_the_latest_ones() -> None:
    waiter = Waiter("n")
    waiter.acked("n", 5)
    for number in range(REMEMBERED_MAX + 2):
        name = f"x{number}"
        waiter.acks.neighbour_up(node_id(name), 0)
        waiter.acked(name, 5)
        waiter.acks.neighbour_down(node_id(name), is_gone=False)
    kept = [node_id("n"), *(node_id(f"x{number}") for number in range(2, REMEMBERED_MAX + 2))]
    assert list(waiter.acks._stored) == kept
