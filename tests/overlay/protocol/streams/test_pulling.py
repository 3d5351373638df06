"""Pulling and searching: what is missing is asked for, searched for, and given up only when nobody has it."""

from itertools import pairwise

import pytest

from m4cast.overlay.protocol.effects import Append, Delivered
from m4cast.overlay.protocol.streams.pulling import PULLS_PER_STREAM_MAX
from m4cast.overlay.protocol.streams.searching import HOLDER_SEARCH_HOPS, HOLDER_SEARCH_MS_MAX
from m4cast.overlay.protocol.wire.batch import Delivery, How, Skip, SkipReason, Traffic
from m4cast.overlay.protocol.wire.messages import PullCall, PullResp
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.receiver import CONNS, PULL_MS, SEARCH_MS, Receiver, S
from tests.overlay.protocol.stream_parts import chain, node_id, of, sends, stream_id, take

# ---- asking


def test_a_gap_is_asked_for_at_once_from_the_one_that_showed_it() -> None:
    for sender in "ab":
        receiver = Receiver()
        batches = chain(4)
        for name in "ab":
            receiver.stream.claim(node_id(name), 1, 5)
        receiver.receive(batches[3], sender=sender)
        (call,) = sends(receiver.out, PullCall)
        assert call == (CONNS[sender], PullCall(S.origin, S.topic, 1, 4, receiver.config.pull_window_bytes))


def test_what_is_being_pulled_or_held_back_is_not_a_gap() -> None:
    receiver = Receiver()
    batches = chain(9)
    receiver.receive(batches[0], batches[3])
    assert receiver.pulls() == [("a", 2, 4)]
    receiver.receive(batches[4], sender="b")
    assert receiver.pulls() == []
    receiver.receive(batches[8], sender="b")
    assert receiver.pulls() == [("b", 6, 9)]


def test_what_is_announced_is_pulled_from_the_first_announcer() -> None:
    receiver = Receiver()
    receiver.claim("b", 4)
    assert receiver.pulls() == [("b", 1, 4)]
    receiver.claim("a", 4)
    assert receiver.pulls() == []
    receiver.claim("a", 6)
    assert receiver.pulls() == [("a", 4, 6)]


def test_no_more_is_asked_for_than_the_peer_claims() -> None:
    receiver = Receiver()
    receiver.stream.claim(node_id("a"), 1, 9)
    receiver.claim("b", 4)
    assert receiver.pulls() == [("b", 1, 4)]
    receiver.receive(*chain(3), sender="b")
    receiver.answer("b", 1, 4, 1, 4)
    assert receiver.pulls() == [("a", 4, 9)]


def test_ranges_asked_for_at_the_same_time_are_limited() -> None:
    receiver = Receiver()
    batches = chain(2 * PULLS_PER_STREAM_MAX + 4)
    receiver.receive(*batches[1::2])
    assert len(receiver.pulls()) == PULLS_PER_STREAM_MAX
    receiver.receive(batches[0])
    receiver.answer("a", 1, 2, 1, len(batches) + 1)
    assert len(receiver.pulls()) == 1, "the next when one is answered"


def test_a_pull_that_is_not_answered_goes_to_the_next_source() -> None:
    receiver = Receiver()
    receiver.claim("a", 4)
    receiver.stream.claim(node_id("b"), 1, 4)
    receiver.pulls()
    receiver.pass_time(PULL_MS - 1)
    assert receiver.pulls() == []
    receiver.pass_time(1)
    assert receiver.pulls() == [("b", 1, 4)]


def test_a_pull_that_makes_progress_is_given_time() -> None:
    receiver = Receiver()
    batches = chain(3)
    receiver.claim("a", 4)
    receiver.stream.claim(node_id("b"), 1, 4)
    receiver.pulls()
    receiver.pass_time(PULL_MS - 1)
    receiver.receive(batches[0])
    receiver.pass_time(PULL_MS - 1)
    assert receiver.pulls() == []
    receiver.receive(batches[1], sender="b")  # not the one that was asked
    receiver.pass_time(1)
    assert receiver.pulls() == [("b", 3, 4)]


def test_only_what_was_asked_for_counts_as_progress() -> None:
    receiver = Receiver()
    receiver.claim("a", 4)
    receiver.pulls()
    receiver.pass_time(PULL_MS - 1)
    receiver.receive(chain(4)[3])
    receiver.pass_time(1)
    assert len(receiver.traces("pull-expired")) == 1


def test_a_source_that_answers_without_a_batch_is_not_asked_next() -> None:
    receiver = Receiver()
    receiver.stream.claim(node_id("b"), 1, 4)
    receiver.claim("a", 4)
    assert receiver.pulls() == [("a", 1, 4)]
    receiver.answer("a", 1, 1, 1, 4)
    assert receiver.pulls() == [("b", 1, 4)]


def test_a_source_that_failed_once_is_asked_again_for_what_comes_later() -> None:
    receiver = Receiver(links="a")
    receiver.claim("a", 2)
    receiver.pass_time(PULL_MS)
    receiver.receive(*chain(1))
    receiver.pulls()
    receiver.claim("a", 3)
    assert receiver.pulls() == [("a", 2, 3)]


def test_a_large_frame_on_its_way_is_progress_for_all_that_was_asked_of_its_sender() -> None:
    receiver = Receiver()
    receiver.claim("a", 4)
    receiver.pass_time(PULL_MS - 1)
    receiver.pulling.progress(node_id("b"), receiver.now_ms)
    receiver.pulling.progress(node_id("a"), receiver.now_ms)
    receiver.pass_time(PULL_MS - 1)
    assert receiver.traces("pull-expired") == []
    receiver.pulling.progress(node_id("b"), receiver.now_ms)
    receiver.pass_time(1)
    assert len(receiver.traces("pull-expired")) == 1


def test_when_all_failed_it_begins_all_over_again_after_a_pause() -> None:
    receiver = Receiver()
    receiver.claim("a", 4)
    receiver.stream.claim(node_id("b"), 1, 4)
    asked = []
    for _ in range(40):
        asked += [(receiver.now_ms, name) for name, _, _ in receiver.pulls()]
        receiver.pass_time(PULL_MS // 4)
    assert [name for _, name in asked[:2]] == ["a", "b"]
    assert sorted(name for _, name in asked[2:4]) == ["a", "b"]
    assert [at_ms for at_ms, _ in asked[:4]] == [0, PULL_MS, PULL_MS * 5 // 2, PULL_MS * 7 // 2]


def test_what_a_source_that_goes_away_was_asked_is_asked_of_another_at_once() -> None:
    receiver = Receiver()
    receiver.claim("a", 4)
    receiver.stream.claim(node_id("b"), 1, 3)
    receiver.pulls()
    receiver.pulling.source_down(node_id("a"), 0)
    assert receiver.pulls() == [("b", 1, 3)]
    assert receiver.stream.claimed_next == 3, "its claim goes with it"
    assert receiver.sources.conn(node_id("a")) is None
    receiver.pulling.source_down(node_id("a"), 0)
    assert receiver.pulls() == []


def test_answers_that_were_not_asked_for_are_passed_over() -> None:
    receiver = Receiver()
    receiver.claim("a", 4)
    receiver.pulls()
    receiver.answer("b", 1, 4, 3, 9)
    receiver.answer("a", 2, 4, 3, 9)
    receiver.pulling.answered(PullResp(S.origin, "other", 1, 4, 1, 4), node_id("a"), 0)
    assert node_id("b") not in receiver.stream.claims
    assert receiver.holdings.get(stream_id("o", "other")) is None
    assert receiver.pulls() == []
    receiver.answer("a", 1, 1, 1, 4)
    receiver.pass_time(PULL_MS // 2)
    assert receiver.pulls() == [("a", 1, 4)], "the pull was still on"


def test_an_answer_that_serves_a_part_is_followed_by_the_rest() -> None:
    receiver = Receiver()
    receiver.claim("a", 6)
    receiver.pulls()
    receiver.receive(*chain(2))
    receiver.answer("a", 1, 3, 1, 6)
    assert receiver.pulls() == [("a", 3, 6)]


# ---- "not yet" and "below my low"


def test_not_yet_takes_the_claim_back_and_nothing_is_searched_for() -> None:
    receiver = Receiver()
    receiver.claim("a", 4)
    receiver.answer("a", 1, 1, 1, 1)
    receiver.pulls()
    receiver.pass_time(600_000)
    assert receiver.out == []
    assert receiver.stream.next == 1


def test_below_low_is_asked_of_others_then_searched_for_near_then_far_then_skipped() -> None:
    receiver = Receiver()
    receiver.stream.claim(node_id("b"), 1, 6)
    receiver.claim("a", 6)
    assert receiver.pulls() == [("a", 1, 6)]
    receiver.answer("a", 1, 1, 4, 6)
    # What a has is asked of it at once; what it has not, of b.
    assert receiver.pulls() == [("b", 1, 6)]
    receiver.answer("b", 1, 1, 5, 6)
    near, far = HOLDER_SEARCH_HOPS
    assert receiver.searches() == [("a", 1, near), ("b", 1, near)]
    receiver.claim("b", 6)
    assert receiver.out == [], "one search at a time"
    receiver.pass_time(SEARCH_MS)
    assert receiver.searches() == [("a", 1, far), ("b", 1, far)]
    receiver.pass_time(2 * SEARCH_MS - 1)
    assert receiver.out == []
    receiver.pass_time(1)
    skip = Skip(S, 1, 3, SkipReason.EXPIRED, node_id("m"))
    record = Delivery(S, 1, 3, 0, receiver.now_ms, 0, How.PULLED, None)
    assert of(receiver.out, Append) == [append_of(1, skips=(skip,), deliveries=(record,))]
    assert receiver.stream.skips == [skip]
    assert receiver.pulls() == [("a", 4, 6)]
    receiver.sync()
    assert of(take(receiver.out), Delivered) == [Delivered(skip)]
    assert receiver.stream.durable_next == 4
    receiver.receive(*chain(5)[3:])
    assert receiver.accepted() == [4, 5], "whatever the checksum of the one before"
    receiver.failed(2)
    receiver.receive(*chain(5)[3:])
    assert receiver.accepted() == [4, 5, 4, 5]


@pytest.mark.parametrize("answers", [["low", "not yet"], ["not yet", "low"], ["not yet", "not yet"]])
def test_not_yet_alone_never_makes_a_skip(answers: list[str]) -> None:
    """A newcomer says "not yet" to everything, so its word does not keep a skip from being made either: what counts
    is that somebody has later rows and keeps these no more."""
    receiver = Receiver()
    receiver.stream.claim(node_id("b"), 1, 6)
    receiver.claim("a", 6)
    for name, answer in zip("ab", answers, strict=True):
        receiver.answer(name, 1, 1, *((4, 6) if answer == "low" else (1, 1)))
    receiver.pass_time(600_000)
    assert receiver.stream.skips == ([Skip(S, 1, 3, SkipReason.EXPIRED, node_id("m"))] if "low" in answers else [])


def test_what_nobody_keeps_any_more_is_skipped_too() -> None:
    """Retention took all of the stream at a: it keeps nothing, but knows how far it went."""
    receiver = Receiver(links="a")
    receiver.claim("a", 6, low=6)
    receiver.pass_time(3 * SEARCH_MS)
    assert receiver.stream.skips == [Skip(S, 1, 5, SkipReason.EXPIRED, node_id("m"))]
    assert receiver.stream.next == 6


def test_a_skip_waits_until_nobody_may_keep_the_rows_and_not_longer() -> None:
    """The pull begins at once, and does not wait for the next search, which may be a minute away."""
    receiver = Receiver(links="a")
    receiver.give_up_at_ms = 60_000
    receiver.claim("a", 6, low=4)
    receiver.pass_time(60_000 - 1)
    assert receiver.stream.skips == []
    receiver.pass_time(1)
    assert receiver.stream.next == 4


def test_the_answer_of_somebody_who_was_asked_is_looked_at_at_once() -> None:
    receiver = Receiver(links="a")
    receiver.give_up_at_ms = 10**9
    receiver.claim("a", 6, low=4)
    receiver.pass_time(10 * SEARCH_MS)
    assert receiver.stream.skips == []
    receiver.give_up_at_ms = 0
    receiver.searching.look_soon(S, receiver.now_ms)
    receiver.pass_time(0)
    assert receiver.stream.next == 4
    receiver.searching.look_soon(S, receiver.now_ms)
    receiver.pass_time(0)
    assert receiver.stream.next == 4, "nothing is searched for any more"


def test_what_a_holder_has_and_cannot_read_is_lost_and_not_expired() -> None:
    receiver = Receiver(links="a")
    receiver.claim("a", 6)
    receiver.answer("a", 1, 0, 4, 6)
    receiver.pass_time(3 * SEARCH_MS)
    assert receiver.stream.skips == [Skip(S, 1, 3, SkipReason.LOST, node_id("m"))]


def test_a_row_that_came_from_elsewhere_after_damage_leaves_no_trace() -> None:
    receiver = Receiver()
    receiver.stream.claim(node_id("b"), 1, 3)
    receiver.claim("a", 6)
    receiver.answer("a", 1, 0, 4, 6)
    receiver.receive(*chain(2), sender="b")
    receiver.answer("b", 1, 3, 1, 3)
    receiver.pass_time(3 * SEARCH_MS)
    assert receiver.stream.skips == [Skip(S, 3, 3, SkipReason.EXPIRED, node_id("m"))]


def test_a_holder_for_which_there_was_no_room_keeps_a_skip_away_for_one_search() -> None:
    receiver = Receiver(links="a")
    receiver.claim("a", 6, low=4)
    receiver.pass_time(3 * SEARCH_MS - 1)
    receiver.stream.claim(node_id("c"), 1, 6)  # it called, but is no source
    receiver.pass_time(1)
    assert receiver.stream.skips == []
    assert node_id("c") not in receiver.stream.claims
    receiver.pass_time(4 * SEARCH_MS)
    assert receiver.stream.next == 4, "it did not call again"


def test_the_next_gap_is_searched_for_near_first_again() -> None:
    near, far = HOLDER_SEARCH_HOPS
    receiver = Receiver(links="a")
    receiver.claim("a", 6, low=4)
    receiver.pass_time(3 * SEARCH_MS)
    assert receiver.searches() == [("a", 1, near), ("a", 1, far)]
    receiver.answer("a", 4, 4, 5, 9)
    assert receiver.searches() == [("a", 4, near)], "after a skip"
    receiver.receive(*chain(4)[3:])
    receiver.answer("a", 5, 5, 7, 9)
    receiver.pass_time(SEARCH_MS)
    assert receiver.searches() == [("a", 5, near)], "after a batch that came after all"


def test_a_holder_that_is_found_is_asked_and_nothing_is_skipped() -> None:
    receiver = Receiver(links="a")
    receiver.claim("a", 6, low=4)
    assert receiver.searching.is_searched(S)
    assert not receiver.searching.is_searched(stream_id("x"))
    take(receiver.out)
    receiver.pass_time(SEARCH_MS)  # the near search found nobody
    take(receiver.out)
    receiver.sources.up(node_id("c"), CONNS["c"])
    receiver.claim("c", 5)
    assert receiver.pulls() == [("c", 1, 5)]
    receiver.pass_time(PULL_MS - 1)
    assert receiver.stream.skips == []
    receiver.receive(*chain(4), sender="c")
    receiver.answer("c", 1, 5, 1, 5)
    assert receiver.pulls() == [("a", 5, 6)]
    receiver.pass_time(1_900)
    assert receiver.accepted() == [1, 2, 3, 4]
    assert receiver.stream.skips == []


def test_a_far_search_that_ends_while_a_holder_is_asked_does_not_skip() -> None:
    receiver = Receiver(links="a")
    receiver.claim("a", 6, low=4)
    receiver.pass_time(3 * SEARCH_MS - 1)
    receiver.sources.up(node_id("c"), CONNS["c"])
    receiver.claim("c", 5)
    receiver.pass_time(1)
    assert receiver.stream.skips == []


def test_without_an_answer_searches_come_more_and_more_rarely() -> None:
    """No node retains anything: what was claimed is gone with the claimant, but a held-back batch shows that it
    existed."""
    receiver = Receiver(links="a")
    receiver.receive(chain(4)[3])
    receiver.answer("a", 1, 1, 1, 1)
    at_ms = []
    for _ in range(400):
        at_ms += [receiver.now_ms] * len(receiver.searches())
        receiver.pass_time(1_000)
    gaps = [later - earlier for earlier, later in pairwise(at_ms)]
    assert gaps == [SEARCH_MS << n for n in range(len(gaps))][:5] + [HOLDER_SEARCH_MS_MAX] * (len(gaps) - 5)
    assert receiver.stream.skips == []


# ---- counted


def test_a_gap_is_counted_when_it_opens_and_when_the_rows_come() -> None:
    receiver = Receiver()
    batches = chain(6)
    receiver.receive(batches[0], batches[2], batches[4])
    backlogs = receiver.backlogs
    assert (backlogs.gaps_open, backlogs.gaps_opened, backlogs.gaps_repaired) == (1, 1, 0)
    receiver.receive(batches[1])
    assert (backlogs.gaps_open, backlogs.gaps_repaired) == (1, 0), "the stream still misses a batch"
    receiver.receive(batches[3], batches[5])
    assert (backlogs.gaps_open, backlogs.gaps_opened, backlogs.gaps_repaired) == (0, 1, 1)


def test_a_gap_stays_open_when_what_showed_it_finds_no_place() -> None:
    receiver = Receiver(hold_back_bytes_max=1_024)
    batches = chain(3, size=2_000)
    receiver.receive(batches[2])
    backlogs = receiver.backlogs
    assert (receiver.backlogs.held_bytes, backlogs.gaps_open) == (0, 1)
    receiver.receive(batches[2], *batches)
    assert (backlogs.gaps_open, backlogs.gaps_opened, backlogs.gaps_repaired) == (0, 1, 1)


def test_a_gap_that_is_skipped_is_not_repaired() -> None:
    receiver = Receiver(links="a")
    receiver.receive(chain(4)[3])
    receiver.answer("a", 1, 1, 4, 5)
    receiver.pass_time(3 * SEARCH_MS)
    assert [skip.last_sequence for skip in receiver.stream.skips] == [3]
    assert receiver.stream.next == 5
    backlogs = receiver.backlogs
    assert (backlogs.gaps_open, backlogs.gaps_opened, backlogs.gaps_repaired) == (0, 1, 0)


def test_copies_are_counted_as_they_come_and_batches_when_they_are_on_disk() -> None:
    receiver = Receiver()
    first, second = chain(2)
    receiver.receive(first, first, second)
    assert (receiver.ordering.received.batches, receiver.ordering.duplicates) == (3, 1)
    assert receiver.ordering.delivered[How.PUSHED].batches == 0
    receiver.durable(1)
    assert receiver.ordering.delivered[How.PUSHED] == Traffic(1, first.row_count, len(first.payload))
    assert receiver.ordering.delivered[How.PULLED] == Traffic()


def test_pulling_goes_on_as_soon_as_the_disk_has_caught_up() -> None:
    receiver = Receiver(links="a", undurable_bytes_max=4_096)
    batches = chain(4, size=1_500)
    receiver.receive(*batches[:2])
    receiver.claim("a", 5)
    assert receiver.pulls() == [], "more than half of what may wait for the disk does"
    receiver.sync()
    assert receiver.pulls() == [("a", 3, 5)]


def test_what_waited_for_a_disk_that_failed_is_asked_for_later() -> None:
    receiver = Receiver(links="a", undurable_bytes_max=4_096)
    receiver.receive(*chain(2, size=1_500))
    receiver.claim("a", 5)
    receiver.failed(1)
    receiver.pass_time(PULL_MS)
    assert receiver.pulls() == [("a", 1, 5)]
