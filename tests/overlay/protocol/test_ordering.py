"""Ordering: what is accepted, held back, asked for, given up, and what of it is durable."""

from itertools import pairwise
from random import Random

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.batch import Batch, Delivery, How, Skip, SkipReason
from m4cast.overlay.protocol.effects import Append, Delivered, Output, StoredStream, Trace
from m4cast.overlay.protocol.frame import seal
from m4cast.overlay.protocol.holdings import Holdings, Stream
from m4cast.overlay.protocol.messages import HolderSearchStmt, PullCall, PullResp
from m4cast.overlay.protocol.ordering import (
    ABSENT_PATIENCE_MS,
    HOLDER_SEARCH_HOPS,
    HOLDER_SEARCH_MS_MAX,
    PULLS_PER_STREAM_MAX,
    Accepted,
    Ordering,
    OrderingEvent,
    Persisted,
)
from m4cast.overlay.protocol.timers import Timers
from tests.overlay.protocol.stream_parts import chain, contact, node_id, of, pushed, sends, stream_id, take

S = stream_id()
CONNS = {"a": 2, "b": 4, "c": 6}
NAMES = {conn: name for name, conn in CONNS.items()}
PULL_MS, SEARCH_MS = 2_000, 2_000


class Receiver:
    """The receiving half of node m, linked to a and b."""

    def __init__(self, stored: dict[StreamId, StoredStream] | None = None, links: str = "ab", **limits: int) -> None:
        self.config = NodeConfig(listen="m:7400", **limits)  # type: ignore[arg-type]  # limits are whole numbers
        self.holdings = Holdings(stored or {})
        self.timers = Timers()
        self.out: list[Output] = []
        self.events: list[OrderingEvent] = []
        self.tokens = 0
        self.told_durable = 0
        self.now_ms = 0
        self.search_numbers: list[int] = []
        self.everybody_heard = True
        self.ordering = Ordering(
            contact("m"),
            self.holdings,
            self.config,
            Random(1),
            self.timers,
            self.next_token,
            lambda append: append,
            self.out,
            self.events.append,
        )
        for name in links:
            self.ordering.source_up(node_id(name), CONNS[name])

    def next_token(self) -> int:
        self.tokens += 1
        return self.tokens

    @property
    def stream(self) -> Stream:
        return self.holdings.open(S)

    def receive(self, *batches: Batch, sender: str = "a") -> None:
        for batch in batches:
            self.ordering.receive(pushed(batch), node_id(sender), self.now_ms)

    def claim(self, sender: str, next_sequence: int, low: int = 1) -> None:
        """The sender announces what it has."""
        self.stream.claim(node_id(sender), low, next_sequence)
        self.ordering.want(self.stream, node_id(sender), self.now_ms)

    def answer(self, sender: str, first: int, served_next: int, low: int, next_sequence: int) -> None:
        resp = PullResp(S.origin, S.topic, first, served_next, low, next_sequence)
        self.ordering.pull_answered(resp, node_id(sender), self.now_ms)

    def pass_time(self, for_ms: int) -> None:
        """Let timers fire as they come due."""
        end_ms = self.now_ms + for_ms
        while (at_ms := self.timers.next_at()) is not None and at_ms <= end_ms:
            self.now_ms = at_ms
            match self.timers.pop_due(at_ms):
                case ("pull", StreamId() as stream, int(first)):
                    self.ordering.pull_expired(stream, first, at_ms)
                case ("want", StreamId() as stream):
                    self.ordering.wanted(stream, at_ms)
                case ("holder", StreamId() as stream):
                    self.ordering.holder_search_over(stream, self.everybody_heard, at_ms)
                case other:
                    raise AssertionError(other)
        self.now_ms = end_ms

    def sync(self, upto: int | None = None) -> None:
        """All appends (or those up to this token) are on disk."""
        for token in range(self.told_durable + 1, (upto or self.tokens) + 1):
            self.ordering.durable(token)
            self.told_durable = token

    def accepted(self) -> list[int]:
        return [event.frame.batch.first_sequence for event in self.events if isinstance(event, Accepted)]

    def pulls(self) -> list[tuple[str, int, int]]:
        """The pulls sent since the last look: (from whom, first, next)."""
        calls = sends(take(self.out), PullCall)
        return [(NAMES[conn], call.first_sequence, call.next_sequence) for conn, call in calls]

    def searches(self) -> list[tuple[str, int, int]]:
        """The holder searches sent since the last look: (to whom, sequence, hops)."""
        found = sends(take(self.out), HolderSearchStmt)
        for _, search in found:
            assert (search.requester, search.origin, search.topic, search.hops) == (contact("m"), *S, 1)
        self.search_numbers += dict.fromkeys(search.search for _, search in found)
        assert len(set(self.search_numbers)) == len(self.search_numbers), "each search has a number of its own"
        return [(NAMES[conn], search.sequence, search.hops_max) for conn, search in found]

    def traces(self, name: str) -> list[dict[str, object]]:
        return [dict(trace.detail) for trace in of(self.out, Trace) if trace.name == name]


# ---- order


def test_the_next_batch_is_accepted_at_once() -> None:
    receiver = Receiver()
    (batch,) = chain(1, rows=3)
    receiver.now_ms = 50
    receiver.receive(batch)
    delivery = Delivery(S, 1, 3, batch.published_at_ms, 50, 1, How.PUSHED, node_id("a"))
    assert take(receiver.out) == [Append(1, batches=(batch,), deliveries=(delivery,))]
    assert receiver.events == [Accepted(receiver.stream, pushed(batch))]
    assert (receiver.stream.next, receiver.stream.durable_next) == (4, 1)


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
    assert receiver.ordering.held_bytes == len(two.payload)


def test_four_five_three_comes_out_as_three_four_five() -> None:
    """The seeds' example (seed-swan 1.9)."""
    receiver = Receiver()
    batches = chain(5)
    receiver.receive(batches[0], batches[1])
    receiver.receive(batches[3], batches[4])
    assert receiver.accepted() == [1, 2]
    receiver.receive(batches[2])
    assert receiver.accepted() == [1, 2, 3, 4, 5]
    assert receiver.ordering.held_bytes == 0


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
    assert [append.batches[0].first_sequence for append in of(receiver.out, Append)] == firsts


def test_streams_do_not_wait_for_each_other() -> None:
    receiver = Receiver()
    receiver.receive(chain(2)[1], *chain(2, stream=stream_id("o", "u")), *chain(1, stream=stream_id("p", "t")))
    assert receiver.accepted() == [1, 2, 1]


# ---- hold-back


def test_hold_back_takes_up_to_its_limit_and_no_more() -> None:
    receiver = Receiver(hold_back_bytes_max=1_024)
    batches = chain(4, size=512)
    receiver.receive(batches[1], batches[2])
    assert receiver.ordering.held_bytes == 1_024
    assert receiver.traces("shed") == []
    receiver.receive(batches[3])
    assert receiver.ordering.held_bytes == 1_024
    assert receiver.traces("shed") == [{"reason": "hold-back", "topic": "t"}]
    receiver.receive(batches[0])
    assert receiver.accepted() == [1, 2, 3]


def test_hold_back_gives_up_the_farthest_for_a_nearer_one() -> None:
    receiver = Receiver(hold_back_bytes_max=1_024)
    batches = chain(5, size=512)
    receiver.receive(batches[4], batches[3], batches[1])
    assert receiver.ordering.held_bytes == 1_024
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
    receiver.ordering.source_down(node_id("a"), 0)
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
    receiver.ordering.progress(node_id("b"), receiver.now_ms)
    receiver.ordering.progress(node_id("a"), receiver.now_ms)
    receiver.pass_time(PULL_MS - 1)
    assert receiver.traces("pull-expired") == []
    receiver.ordering.progress(node_id("b"), receiver.now_ms)
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
    receiver.ordering.source_down(node_id("a"), 0)
    assert receiver.pulls() == [("b", 1, 3)]
    assert receiver.stream.claimed_next == 3, "its claim goes with it"
    assert receiver.ordering.source_conn(node_id("a")) is None
    receiver.ordering.source_down(node_id("a"), 0)
    assert receiver.pulls() == []


def test_answers_that_were_not_asked_for_are_passed_over() -> None:
    receiver = Receiver()
    receiver.claim("a", 4)
    receiver.pulls()
    receiver.answer("b", 1, 4, 3, 9)
    receiver.answer("a", 2, 4, 3, 9)
    receiver.ordering.pull_answered(PullResp(S.origin, "other", 1, 4, 1, 4), node_id("a"), 0)
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
    assert of(receiver.out, Append) == [Append(1, skips=(skip,))]
    assert receiver.stream.skips == [skip]
    assert receiver.pulls() == [("a", 4, 6)]
    receiver.sync()
    assert of(take(receiver.out), Delivered) == [Delivered(skip)]
    assert receiver.stream.durable_next == 4
    receiver.receive(*chain(5)[3:])
    assert receiver.accepted() == [4, 5], "whatever the checksum of the one before"
    receiver.ordering.failed(2, receiver.now_ms)
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


def test_while_somebody_is_silent_a_skip_waits_but_not_for_ever() -> None:
    """The one that is away may keep what is missing."""
    receiver = Receiver(links="a")
    receiver.everybody_heard = False
    receiver.claim("a", 6, low=4)
    receiver.pass_time(ABSENT_PATIENCE_MS - 1)
    assert receiver.stream.skips == []
    receiver.pass_time(2 * HOLDER_SEARCH_MS_MAX)
    assert receiver.stream.next == 4


def test_a_skip_comes_with_the_next_search_after_the_silent_one_was_heard() -> None:
    receiver = Receiver(links="a")
    receiver.everybody_heard = False
    receiver.claim("a", 6, low=4)
    receiver.pass_time(10 * SEARCH_MS)
    assert receiver.stream.skips == []
    receiver.everybody_heard = True
    receiver.pass_time(20 * SEARCH_MS)
    assert receiver.stream.next == 4


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
    assert receiver.ordering.wants(S)
    assert not receiver.ordering.wants(stream_id("x"))
    take(receiver.out)
    receiver.pass_time(SEARCH_MS)  # the near search found nobody
    take(receiver.out)
    receiver.ordering.source_up(node_id("c"), CONNS["c"])
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
    receiver.ordering.source_up(node_id("c"), CONNS["c"])
    receiver.claim("c", 5)
    receiver.pass_time(1)
    assert receiver.stream.skips == []


def test_without_an_answer_searches_come_more_and_more_rarely() -> None:
    """Nobody keeps anything: what was claimed is gone with the claimant, but a held-back batch shows that it was."""
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
    assert receiver.ordering.held_bytes == 1_000
    receiver.sync()
    receiver.pass_time(PULL_MS // 4)
    assert receiver.accepted() == [1, 2, 3, 4]
    assert receiver.ordering.held_bytes == 0


def test_a_failed_append_falls_back_to_what_is_durable_and_asks_again() -> None:
    receiver = Receiver()
    batches = chain(4)
    receiver.receive(*batches)
    receiver.sync(upto=1)
    before = receiver.stream.durable_checksum
    receiver.ordering.failed(3, 0)
    assert (receiver.stream.durable_next, receiver.stream.next) == (2, 3), "2 is still under way"
    assert receiver.stream.last_checksum == batches[1].checksum
    assert receiver.ordering.undurable_bytes == len(batches[1].payload)
    receiver.ordering.failed(2, 0)
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
    receiver.ordering.failed(2, 0)
    assert receiver.holdings.digest == before


def test_a_failed_skip_is_taken_back() -> None:
    receiver = Receiver(links="a")
    receiver.claim("a", 6, low=4)
    receiver.pass_time(3 * SEARCH_MS)
    assert receiver.stream.next == 4
    receiver.ordering.failed(1, receiver.now_ms)
    assert receiver.stream.next == 1
    assert receiver.stream.skips == []


def test_tokens_that_are_not_known_are_harmless() -> None:
    receiver = Receiver()
    receiver.receive(*chain(2))
    take(receiver.out)
    for token in (0, 3, 99):
        receiver.ordering.durable(token)
        receiver.ordering.failed(token + 3, 0)
    assert receiver.out == []
    assert receiver.stream.next == 3


# ---- beginning in the middle


def test_a_stream_can_begin_in_the_middle_and_the_store_is_told() -> None:
    receiver = Receiver()
    receiver.ordering.start_at([(S, 4)])
    assert of(take(receiver.out), Append) == [Append(1, starts=((S, 4),))]
    receiver.receive(*chain(3))
    assert receiver.ordering.duplicates == 3
    receiver.receive(*chain(4)[3:])
    (append,) = of(take(receiver.out), Append)
    assert append.starts == ((S, 4),), "said again until it is known to be durable"
    receiver.sync()
    assert of(take(receiver.out), Delivered)[0].delivery.first_sequence == 4
    receiver.receive(*chain(5)[4:])
    (append,) = of(take(receiver.out), Append)
    assert append.starts == ()


def test_a_start_that_is_durable_is_not_said_again() -> None:
    receiver = Receiver()
    receiver.ordering.start_at([(S, 4), (stream_id("p"), 1)])
    receiver.sync()
    take(receiver.out)
    receiver.receive(*chain(4)[3:])
    (append,) = of(receiver.out, Append)
    assert append.starts == ()


def test_a_start_whose_append_failed_goes_with_the_first_batch() -> None:
    receiver = Receiver()
    receiver.ordering.start_at([(S, 4)])
    receiver.ordering.failed(1, 0)
    receiver.ordering.durable(1)
    take(receiver.out)
    receiver.receive(*chain(4)[3:])
    (append,) = of(take(receiver.out), Append)
    assert append.starts == ((S, 4),)


def test_a_start_whose_append_failed_is_written_again_if_no_batch_comes() -> None:
    receiver = Receiver()
    receiver.ordering.start_at([(S, 4)])
    receiver.ordering.failed(1, 0)
    take(receiver.out)
    receiver.pass_time(PULL_MS)
    assert of(take(receiver.out), Append) == [Append(2, starts=((S, 4),))]
    receiver.ordering.wanted(S, receiver.now_ms)
    assert of(take(receiver.out), Append) == [], "it is under way"
    receiver.told_durable = 1
    receiver.sync()
    receiver.ordering.wanted(S, receiver.now_ms)
    assert of(take(receiver.out), Append) == []
