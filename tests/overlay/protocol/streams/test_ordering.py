"""Ordering: what is accepted and held back, forks, and what is durable. What is missing: test_pulling.py."""

from random import Random

import pytest

from m4cast.overlay.protocol.effects import Append, Delivered, StoredStream
from m4cast.overlay.protocol.streams.ordering import (
    Accepted,
    Duplicate,
    Forked,
    HeldBack,
    Persisted,
    Shed,
    ShedReason,
)
from m4cast.overlay.protocol.wire.batch import Delivery, How
from m4cast.overlay.protocol.wire.frame import seal
from tests.overlay.protocol.append_parts import append_of, batches_of, starts_of
from tests.overlay.protocol.receiver import PULL_MS, SEARCH_MS, Receiver, S
from tests.overlay.protocol.stream_parts import chain, node_id, of, pushed, stream_id, take

# ---- order


def test_the_next_batch_is_accepted_at_once() -> None:
    receiver = Receiver()
    (batch,) = chain(1, rows=3)
    receiver.now_ms = 50
    receiver.receive(batch)
    delivery = Delivery(S, 1, 3, batch.published_at_ms, 50, 1, How.PUSHED, node_id("a"))
    assert take(receiver.out) == [append_of(1, batches=(batch,), deliveries=(delivery,))]
    assert receiver.events == [Accepted(receiver.stream, pushed(batch))]
    assert (receiver.stream.next, receiver.stream.durable_next) == (4, 1)


def test_each_batch_has_a_receipt_that_says_what_became_of_it() -> None:
    receiver = Receiver(hold_back_bytes_max=1_024, undurable_bytes_max=4_096)
    one, two, three, four, _ = chain(5, size=600)
    assert receiver.receive(one, one, three, three) == [
        Accepted(receiver.stream, pushed(one)),
        Duplicate(),
        HeldBack(receiver.stream),
        Duplicate(),
    ]
    assert receiver.receive(four) == [Shed(receiver.stream, ShedReason.HOLD_BACK)]
    receiver.ordering.undurable_bytes += 4_096
    assert receiver.receive(two) == [Shed(receiver.stream, ShedReason.DISK_BEHIND)]
    receiver.ordering.undurable_bytes -= 4_096
    assert receiver.receive(*chain(1, rows=20, mark=b"x")) == [Forked()]
    assert receiver.receive(*chain(1, rows=30, mark=b"x")) == [Forked()]


def test_a_duplicate_is_counted_and_nothing_else() -> None:
    receiver = Receiver()
    one, two = chain(2)
    receiver.receive(one, two)
    take(receiver.out)
    receiver.receive(two, one, sender="b")
    assert receiver.ordering.duplicates == 2
    assert take(receiver.out) == []
    assert receiver.accepted() == [1, 2]


def test_a_duplicate_of_what_is_held_back_is_one_too() -> None:
    receiver = Receiver()
    _, two, _ = chain(3)
    receiver.receive(two)
    receiver.receive(two, sender="b")
    assert receiver.ordering.duplicates == 1
    assert receiver.backlogs.held_bytes == len(two.payload)


def test_four_five_three_comes_out_as_three_four_five() -> None:
    """The patents' example."""
    receiver = Receiver()
    batches = chain(5)
    receiver.receive(batches[0], batches[1])
    receiver.receive(batches[3], batches[4])
    assert receiver.accepted() == [1, 2]
    receiver.receive(batches[2])
    assert receiver.accepted() == [1, 2, 3, 4, 5]
    assert receiver.backlogs.held_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_order_each_batch_is_accepted_once_in_its_place(seed: int) -> None:
    random = Random(seed)
    receiver = Receiver()
    batches = chain(12, rows=random.randint(1, 3)) * 2
    random.shuffle(batches)
    for batch in batches:
        receiver.receive(batch, sender=random.choice("ab"))
    firsts = [batch.first_sequence for batch in chain(12, rows=batches[0].row_count)]
    assert receiver.accepted() == firsts
    assert receiver.ordering.duplicates == 12
    assert [batches_of(append)[0].first_sequence for append in of(receiver.out, Append)] == firsts


def test_streams_do_not_wait_for_each_other() -> None:
    receiver = Receiver()
    receiver.receive(chain(2)[1], *chain(2, stream=stream_id("o", "u")), *chain(1, stream=stream_id("p", "t")))
    assert receiver.accepted() == [1, 2, 1]


# ---- hold-back


def test_hold_back_takes_up_to_its_limit_and_no_more() -> None:
    receiver = Receiver(hold_back_bytes_max=1_024)
    batches = chain(4, size=512)
    receiver.receive(batches[1], batches[2])
    assert receiver.backlogs.held_bytes == 1_024
    assert receiver.traces("shed") == []
    receiver.receive(batches[3])
    assert receiver.backlogs.held_bytes == 1_024
    assert receiver.traces("shed") == [{"reason": "hold-back", "topic": "t"}]
    receiver.receive(batches[0])
    assert receiver.accepted() == [1, 2, 3]


def test_hold_back_gives_up_the_farthest_for_a_nearer_one() -> None:
    receiver = Receiver(hold_back_bytes_max=1_024)
    batches = chain(5, size=512)
    receiver.receive(batches[4], batches[3], batches[1])
    assert receiver.backlogs.held_bytes == 1_024
    assert len(receiver.traces("shed")) == 1
    receiver.receive(batches[0])
    assert receiver.accepted() == [1, 2]
    receiver.receive(batches[2])
    assert receiver.accepted() == [1, 2, 3, 4]


def test_hold_back_gives_up_the_farthest_even_when_it_has_nearer_ones() -> None:
    receiver = Receiver(hold_back_bytes_max=1_024)
    batches = chain(5, size=512)
    receiver.receive(batches[1], batches[4], batches[3])
    receiver.receive(batches[0], batches[2])
    assert receiver.accepted() == [1, 2, 3, 4]


def test_what_is_held_back_outlives_the_source_it_came_from() -> None:
    receiver = Receiver()
    one, two = chain(2)
    receiver.receive(two)
    receiver.pulling.source_down(node_id("a"), 0)
    receiver.receive(one, sender="b")
    assert receiver.accepted() == [1, 2]


def test_the_next_one_wanted_needs_no_place_in_hold_back() -> None:
    receiver = Receiver(hold_back_bytes_max=1_024)
    small = chain(1)
    rest = chain(2, after=small[0], size=1_024)
    receiver.receive(rest[1])
    receiver.receive(small[0])
    receiver.receive(rest[0])
    assert receiver.accepted() == [1, 2, 3]


def test_what_was_shed_is_asked_for_again() -> None:
    receiver = Receiver(hold_back_bytes_max=1_024)
    batches = chain(3, size=1_024)
    receiver.receive(batches[2])
    assert receiver.pulls() == [("a", 1, 3)]
    receiver.receive(batches[1])
    assert ("a", 3, 4) in receiver.pulls()


# ---- forks


def test_a_batch_that_does_not_follow_what_is_here_is_a_fork() -> None:
    receiver = Receiver()
    one, two = chain(2)
    other = chain(1, mark=b"x")[0]
    receiver.receive(one)
    receiver.receive(*chain(1, after=other))
    assert receiver.traces("fork") == [
        {"origin": S.origin.hex(), "topic": "t", "at": 2, "why": "does not follow what is here"}
    ]
    receiver.receive(two)
    assert receiver.accepted() == [1], "nothing more of it is accepted, not even the right one"
    assert receiver.stream.next == 2


def test_a_batch_that_overlaps_what_is_here_is_a_fork() -> None:
    receiver = Receiver()
    receiver.receive(*chain(3))
    receiver.receive(*chain(1, rows=5, mark=b"x"))
    assert [fork["why"] for fork in receiver.traces("fork")] == ["overlaps what is here"]
    receiver.receive(*chain(4)[3:])
    assert receiver.accepted() == [1, 2, 3]


def test_a_fork_among_what_was_held_back_stops_there() -> None:
    receiver = Receiver()
    one, two, three = chain(3)
    wrong = seal(chain(1, after=chain(2, mark=b"x")[1])[0])
    receiver.receive(wrong)
    receiver.receive(one, two)
    assert receiver.accepted() == [1, 2]
    assert [fork["at"] for fork in receiver.traces("fork")] == [3]
    receiver.pulls()
    receiver.receive(three)
    receiver.claim("b", 9)
    assert receiver.accepted() == [1, 2]
    assert receiver.pulls() == [], "nothing more of it is asked for"


def test_a_fork_of_one_stream_is_no_matter_to_another() -> None:
    receiver = Receiver()
    receiver.receive(*chain(1), *chain(1, after=chain(1, mark=b"x")[0]))
    receiver.receive(*chain(2, stream=stream_id("o", "u")))
    assert receiver.accepted() == [1, 1, 2]


def test_after_a_skip_or_a_start_in_the_middle_any_batch_may_follow() -> None:
    five = chain(5)[4]
    receiver = Receiver({S: StoredStream(1, 5, 0)})
    receiver.receive(five)
    assert receiver.accepted() == [5]
    receiver = Receiver({S: StoredStream(1, 5, 1234)})
    receiver.receive(five)
    assert receiver.accepted() == []


# ---- the disk


def test_deliveries_come_when_they_are_durable_and_in_order() -> None:
    receiver = Receiver()
    batches = chain(3, rows=2)
    receiver.receive(*batches)
    assert of(receiver.out, Delivered) == []
    receiver.events.clear()
    receiver.sync(upto=2)
    assert [delivered.delivery.first_sequence for delivered in of(receiver.out, Delivered)] == [1, 3]
    assert receiver.events == [Persisted(receiver.stream)] * 2
    assert (receiver.stream.durable_next, receiver.stream.next) == (5, 7)
    assert receiver.stream.durable_checksum == batches[1].checksum
    assert [frame.batch for frame in receiver.stream.undurable] == [batches[2]]
    assert receiver.ordering.undurable_bytes == len(batches[2].payload)
    receiver.sync()
    assert receiver.stream.durable_next == 7
    assert receiver.ordering.undurable_bytes == 0


def test_no_more_waits_for_the_disk_than_may() -> None:
    receiver = Receiver(undurable_bytes_max=1_024)
    batches = chain(4, size=512)
    receiver.receive(batches[0], batches[1])
    assert receiver.ordering.undurable_bytes == 1_024
    receiver.receive(batches[2])
    assert receiver.accepted() == [1, 2]
    assert receiver.traces("shed") == [{"reason": "disk-behind", "topic": "t"}]
    assert receiver.pulls() == []
    receiver.sync()
    receiver.pass_time(PULL_MS // 4)
    assert receiver.pulls() == [("a", 3, 4)], "asked for again when the disk has caught up"


def test_nothing_is_asked_for_while_the_disk_is_half_full_of_waiting() -> None:
    receiver = Receiver(undurable_bytes_max=1_024)
    receiver.receive(*chain(1, size=513))
    receiver.claim("b", 9)
    assert receiver.pulls() == []
    receiver.pass_time(PULL_MS // 4)
    assert receiver.pulls() == []
    receiver.sync()
    receiver.pass_time(PULL_MS // 4)
    assert receiver.pulls() == [("b", 2, 9)]


def test_what_is_held_back_waits_for_the_disk_too() -> None:
    receiver = Receiver(undurable_bytes_max=1_024)
    batches = chain(4, size=500)
    receiver.receive(batches[3], batches[2], batches[1], batches[0])
    assert receiver.accepted() == [1, 2]
    assert receiver.backlogs.held_bytes == 1_000
    receiver.sync()
    receiver.pass_time(PULL_MS // 4)
    assert receiver.accepted() == [1, 2, 3, 4]
    assert receiver.backlogs.held_bytes == 0


def test_a_failed_append_falls_back_to_what_is_durable_and_asks_again() -> None:
    receiver = Receiver()
    batches = chain(4)
    receiver.receive(*batches)
    receiver.sync(upto=1)
    before = receiver.stream.durable_checksum
    receiver.failed(3, 0)
    assert (receiver.stream.durable_next, receiver.stream.next) == (2, 3), "2 is still under way"
    assert receiver.stream.last_checksum == batches[1].checksum
    assert receiver.ordering.undurable_bytes == len(batches[1].payload)
    receiver.failed(2, 0)
    assert (receiver.stream.durable_next, receiver.stream.next) == (2, 2)
    assert receiver.stream.last_checksum == before == batches[0].checksum
    assert receiver.ordering.undurable_bytes == 0
    assert receiver.pulls() == []
    receiver.pass_time(PULL_MS)
    assert receiver.pulls() == [("a", 2, 5)]
    receiver.receive(*batches[1:])
    assert receiver.accepted() == [1, 2, 3, 4, 2, 3, 4]
    receiver.told_durable = 4
    receiver.sync()
    assert receiver.stream.durable_next == 5
    delivered = [each.delivery.first_sequence for each in of(receiver.out, Delivered)]
    assert delivered == [2, 3, 4]


def test_a_failed_append_takes_the_digest_back() -> None:
    receiver = Receiver()
    receiver.receive(*chain(1))
    before = receiver.holdings.digest
    receiver.receive(*chain(3)[1:])
    receiver.failed(2, 0)
    assert receiver.holdings.digest == before


def test_a_failed_skip_is_taken_back() -> None:
    receiver = Receiver(links="a")
    receiver.claim("a", 6, low=4)
    receiver.pass_time(3 * SEARCH_MS)
    assert receiver.stream.next == 4
    receiver.failed(1)
    assert receiver.stream.next == 1
    assert receiver.stream.skips == []


def test_tokens_that_are_not_known_are_harmless() -> None:
    receiver = Receiver()
    receiver.receive(*chain(2))
    take(receiver.out)
    for token in (0, 3, 99):
        receiver.durable(token)
        receiver.failed(token + 3, 0)
    assert receiver.out == []
    assert receiver.stream.next == 3


# ---- beginning in the middle


def test_a_stream_can_begin_in_the_middle_and_the_store_is_told() -> None:
    receiver = Receiver()
    receiver.ordering.start_at([(S, 4)])
    assert of(take(receiver.out), Append) == [append_of(1, starts=((S, 4),))]
    receiver.receive(*chain(3))
    assert receiver.ordering.duplicates == 3
    receiver.receive(*chain(4)[3:])
    (append,) = of(take(receiver.out), Append)
    assert starts_of(append) == ((S, 4),), "said again until it is known to be durable"
    receiver.sync()
    assert of(take(receiver.out), Delivered)[0].delivery.first_sequence == 4
    receiver.receive(*chain(5)[4:])
    (append,) = of(take(receiver.out), Append)
    assert starts_of(append) == ()


def test_a_durable_start_is_not_repeated() -> None:
    receiver = Receiver()
    receiver.ordering.start_at([(S, 4), (stream_id("p"), 1)])
    receiver.sync()
    take(receiver.out)
    receiver.receive(*chain(4)[3:])
    (append,) = of(receiver.out, Append)
    assert starts_of(append) == ()


def test_a_start_whose_append_failed_goes_with_the_first_batch() -> None:
    receiver = Receiver()
    receiver.ordering.start_at([(S, 4)])
    receiver.failed(1, 0)
    receiver.durable(1)
    take(receiver.out)
    receiver.receive(*chain(4)[3:])
    (append,) = of(take(receiver.out), Append)
    assert starts_of(append) == ((S, 4),)


def test_a_start_whose_append_failed_is_written_again_if_no_batch_comes() -> None:
    receiver = Receiver()
    receiver.ordering.start_at([(S, 4)])
    receiver.failed(1, 0)
    take(receiver.out)
    receiver.pass_time(PULL_MS)
    assert of(take(receiver.out), Append) == [append_of(2, starts=((S, 4),))]
    receiver.pulling.want_again(S, receiver.now_ms)
    assert of(take(receiver.out), Append) == [], "it is under way"
    receiver.told_durable = 1
    receiver.sync()
    receiver.pulling.want_again(S, receiver.now_ms)
    assert of(take(receiver.out), Append) == []
