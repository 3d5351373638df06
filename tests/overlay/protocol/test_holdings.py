"""Holdings: digests that find differences, claims, and where data begins among skips."""

from random import Random

import pytest

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import StoredStream
from m4cast.overlay.protocol.holdings import BUCKETS, Claim, Holdings, Stream
from m4cast.overlay.protocol.wire.batch import Skip, SkipReason
from m4cast.overlay.protocol.wire.messages import HoldingEntry
from tests.overlay.protocol.stream_parts import node_id, stream_id

A, B, C = node_id("a"), node_id("b"), node_id("c")


def held(frontier: dict[StreamId, int]) -> Holdings:
    holdings = Holdings({})
    for stream, next_sequence in frontier.items():
        holdings.advance(holdings.open(stream), next_sequence, 0)
    return holdings


def stream_with(low: int, next_sequence: int, *skipped: tuple[int, int]) -> Stream:
    stream = Stream(stream_id(), key=0, low=low, next=next_sequence)
    stream.skips = [Skip(stream.id, first, last, SkipReason.EXPIRED, A) for first, last in skipped]
    return stream


def differing(one: Holdings, other: Holdings) -> set[int]:
    return {bucket for bucket in range(BUCKETS) if one.digests[bucket] != other.digests[bucket]}


FRONTIER = {stream_id(f"o{number}", topic): number + 2 for number in range(100) for topic in ("t", "u")}


# ---- digests


def test_digests_are_equal_for_equal_frontiers_whatever_the_order_and_the_steps() -> None:
    expected = held(FRONTIER)
    for seed in range(5):
        random = Random(seed)
        streams = list(FRONTIER)
        random.shuffle(streams)
        holdings = Holdings({})
        for stream in streams:
            holdings.advance(holdings.open(stream), random.randrange(1, FRONTIER[stream]), 0)
        random.shuffle(streams)
        for stream in streams:
            holdings.advance(holdings.open(stream), FRONTIER[stream], 0)
        assert (holdings.digest, holdings.digests) == (expected.digest, expected.digests)


def test_what_comes_from_a_store_has_the_digest_of_what_was_received() -> None:
    stored = {stream: StoredStream(1, next_sequence, 9) for stream, next_sequence in FRONTIER.items()}
    assert Holdings(stored).digests == held(FRONTIER).digests
    assert Holdings(stored).digest == held(FRONTIER).digest


def test_only_next_counts_in_a_digest() -> None:
    """Peers with other retention, or with a slower disk, have the same digest."""
    kept = Holdings({stream_id(): StoredStream(1, 10, 1)})
    trimmed = Holdings({stream_id(): StoredStream(7, 10, 2)})
    assert kept.digests == trimmed.digests


def test_a_stream_of_which_nothing_is_held_is_as_if_it_were_not_known() -> None:
    holdings = Holdings({})
    stream = holdings.open(stream_id())
    assert holdings.digest == 0
    holdings.advance(stream, 5, 0)
    assert holdings.digest != 0
    holdings.advance(stream, 1, 0)
    assert holdings.digest == 0
    assert holdings.digests == [0] * BUCKETS


@pytest.mark.parametrize("next_sequence", [1, 2, 3, 4, 1_000, 2**40])
def test_one_stream_that_differs_shows_in_its_bucket_and_nowhere_else(next_sequence: int) -> None:
    mine = held(FRONTIER | {stream_id("x"): 3})
    theirs = held(FRONTIER | {stream_id("x"): next_sequence})
    bucket = mine.streams[stream_id("x")].key % BUCKETS
    if next_sequence == 3:
        assert differing(mine, theirs) == set()
        assert mine.digest == theirs.digest
    else:
        assert differing(mine, theirs) == {bucket}
        assert mine.digest != theirs.digest


def test_differences_in_two_streams_do_not_cancel_out() -> None:
    """Two streams that swap their frontiers, and all streams that move by one."""
    frontier = {stream_id("x"): 3, stream_id("y"): 8}
    assert held(frontier).digest != held({stream_id("x"): 8, stream_id("y"): 3}).digest
    assert held(FRONTIER).digest != held({stream: upto + 1 for stream, upto in FRONTIER.items()}).digest


def test_streams_are_apart_by_origin_and_by_topic() -> None:
    digests = {
        held({stream: 2}).digest
        for stream in (stream_id("a", "t"), stream_id("b", "t"), stream_id("a", "u"), stream_id("a", "ü"))
    }
    assert len(digests) == 4


def test_streams_spread_over_all_buckets() -> None:
    holdings = held({stream_id(f"o{number}"): 2 for number in range(2_000)})
    sizes = [len(holdings.entries({bucket})) for bucket in range(BUCKETS)]
    assert sum(sizes) == 2_000
    assert min(sizes) > 0


def test_entries_of_some_buckets_are_the_streams_that_fall_into_them() -> None:
    holdings = held(FRONTIER)
    buckets = {0, 1, 40}
    expected = [
        HoldingEntry(stream.origin, stream.topic, 1, upto)
        for stream, upto in FRONTIER.items()
        if holdings.streams[stream].key % BUCKETS in buckets
    ]
    assert expected
    assert holdings.entries(buckets) == expected
    assert holdings.entries(set()) == []
    assert len(holdings.entries(set(range(BUCKETS)))) == len(FRONTIER)


# ---- streams


def test_a_stored_stream_comes_back_as_it_was() -> None:
    skip = Skip(stream_id(), 4, 6, SkipReason.LOST, A)
    stream = Holdings({stream_id(): StoredStream(2, 9, 77, (skip,))}).streams[stream_id()]
    assert (stream.low, stream.next, stream.durable_next) == (2, 9, 9)
    assert (stream.last_checksum, stream.durable_checksum) == (77, 77)
    assert stream.skips == [skip]


def test_a_stream_is_opened_once() -> None:
    holdings = Holdings({})
    assert holdings.get(stream_id()) is None
    stream = holdings.open(stream_id())
    assert (stream.low, stream.next, stream.durable_next) == (1, 1, 1)
    assert holdings.open(stream_id()) is stream
    assert holdings.get(stream_id()) is stream


# ---- claims


def test_claims_of_one_peer_only_grow() -> None:
    """Pushes, announcements and frontiers come late and say nothing about `low`."""
    stream = stream_with(1, 1)
    stream.claim(A, 3, 10)
    stream.claim(A, 1, 8)
    assert stream.claims == {A: Claim(3, 10)}
    stream.claim(A, 5, 12)
    assert stream.claims == {A: Claim(5, 12)}
    assert stream.claimed_next == 12


def test_the_farthest_claim_of_all_peers_counts() -> None:
    stream = stream_with(1, 1)
    for peer, upto in ((A, 5), (B, 9), (C, 7)):
        stream.claim(peer, 1, upto)
    assert stream.claimed_next == 9


def test_the_peers_own_answer_replaces_its_claim_even_downwards() -> None:
    stream = stream_with(1, 1)
    stream.claim(A, 4, 20)
    stream.claim(B, 1, 15)
    stream.correct_claim(A, 2, 10)
    assert stream.claims[A] == Claim(2, 10)
    assert stream.claimed_next == 15
    stream.correct_claim(B, 1, 3)
    assert stream.claimed_next == 10


def test_a_forgotten_claim_does_not_count() -> None:
    stream = stream_with(1, 1)
    for peer, upto in ((A, 20), (B, 15), (C, 18)):
        stream.claim(peer, 1, upto)
    stream.forget_claim(A)
    assert stream.claimed_next == 18
    stream.forget_claim(A)
    assert stream.claimed_next == 18
    stream.forget_claim(C)
    stream.forget_claim(B)
    assert stream.claimed_next == 1
    assert stream.claims == {}


# ---- where data begins


@pytest.mark.parametrize(
    ("low", "skipped", "sequence", "first_held"),
    [
        (1, [], 1, 1),
        (1, [], 7, 7),
        (5, [], 1, 5),
        (5, [], 4, 5),
        (5, [], 5, 5),
        (1, [(3, 4)], 2, 2),
        (1, [(3, 4)], 3, 5),
        (1, [(3, 4)], 4, 5),
        (1, [(3, 4)], 5, 5),
        (1, [(3, 4), (5, 6)], 3, 7),
        (1, [(3, 4), (6, 7)], 3, 5),
        (1, [(3, 4), (6, 7)], 6, 8),
        (4, [(3, 4), (5, 9)], 1, 10),
        (8, [(3, 4)], 3, 8),
    ],
)
def test_first_held_from(low: int, skipped: list[tuple[int, int]], sequence: int, first_held: int) -> None:
    assert stream_with(low, 20, *skipped).first_held_from(sequence) == first_held


@pytest.mark.parametrize(
    ("low", "skipped", "held_from"),
    [(1, [], 1), (5, [], 5), (1, [(3, 4)], 5), (1, [(3, 4), (8, 9)], 10), (8, [(3, 4)], 8), (4, [(3, 4)], 5)],
)
def test_held_from_is_where_the_last_run_without_a_skip_begins(
    low: int, skipped: list[tuple[int, int]], held_from: int
) -> None:
    assert stream_with(low, 20, *skipped).held_from() == held_from


def test_a_stream_of_which_nothing_is_held_is_not_told_of() -> None:
    holdings = Holdings({})
    held, phantom = holdings.open(stream_id("o", "held")), holdings.open(stream_id("o", "phantom"))
    holdings.advance(held, 2, 7)
    assert phantom.next == 1
    assert [entry.topic for entry in holdings.entries(set(range(BUCKETS)))] == ["held"]
