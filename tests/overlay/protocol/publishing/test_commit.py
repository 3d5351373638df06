"""Each rule of the commit primitive by itself. Crashes, failures and races in all places: test_commit_crashes.py."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from m4cast.overlay.ids import NodeId, StreamId, heir_of
from m4cast.overlay.protocol.effects import (
    Abort,
    Append,
    AppendBatch,
    Commit,
    KeyMove,
    Publish,
    Range,
    Refused,
    Stage,
    Staged,
    StageDone,
)
from m4cast.overlay.protocol.publishing.commit import Answer, Committed
from m4cast.overlay.protocol.publishing.commit_limits import (
    INT_MAX,
    KEY_BYTES_MAX,
    POSITION_BYTES_MAX,
    SCHEMA_ID_MAX,
    CommitLimits,
)
from m4cast.overlay.protocol.publishing.ledger import kept
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, Extension, How
from tests.overlay.protocol.append_parts import (
    append_of,
    batches_of,
    deliveries_of,
    publishers_of,
    staged_of,
    unstaged_of,
)
from tests.overlay.protocol.commit_world import ME, Disk, Request, World, move, payload

T, U = StreamId(ME, "t"), StreamId(ME, "u")


def stage(request: int, stage_id: str, topic: str = "t", rows: int = 1) -> Stage:
    return Stage(request, stage_id, payload(stage_id, topic, rows))


def refusal(world: World, request: Request) -> Refused:
    """The refusal of a request, which changes nothing: the next commit gets what it would have got without it."""
    before = (len(world.asked), len(world.staged), len(world.committed))
    (outcome,) = world.ask(request)
    assert isinstance(outcome, Refused)
    assert (len(world.asked), len(world.staged), len(world.committed)) == before
    return outcome


# ---- stage


def test_stage_is_answered_when_it_is_durable() -> None:
    world = World()
    (append,) = world.ask(stage(1, "a"))
    assert isinstance(append, Append)
    assert staged_of(append) == (("a", payload("a")),)
    assert world.staged == []
    world.sync()
    assert world.staged == [1]


def test_a_stage_that_the_store_could_not_keep_is_refused() -> None:
    world = World()
    world.ask(stage(1, "a"))
    world.ask(stage(2, "a"))
    world.break_at(0)
    world.report_failure()
    assert [world.refused[1].code, world.refused[2].code] == ["store", "store"]
    assert refusal(world, Commit(3, ("a",), (move("k", None, 1),))).code == "missing-stage"


def test_stage_again_with_the_same_content_is_the_same_stage() -> None:
    world = World()
    world.ask(stage(1, "a"))
    assert world.ask(stage(2, "a")) == []
    world.sync()
    assert world.staged == [1, 2]
    assert world.ask(stage(3, "a")) == [StageDone(3)]


def test_stage_again_with_other_content_is_refused() -> None:
    world = World()
    world.ask(stage(1, "a"))
    refused = refusal(world, stage(2, "a", rows=2))
    assert refused.code == "stage-conflict"
    assert "'a'" in refused.detail


def test_an_empty_payload_is_a_payload() -> None:
    world = World()
    empty = Staged("t", 1, 0, b"")
    world.ask(Stage(1, "a", empty))
    world.sync()
    assert world.ask(Stage(2, "a", empty)) == [StageDone(2)]


# ---- what one request may look like: each limit at its maximum and one beyond


@pytest.mark.parametrize(
    ("staged", "code"),
    [
        (payload("x", topic="t" * 200), None),
        (payload("x", topic="t" * 201), "bad-request"),
        (payload("x", topic="\u017c" * 100), None),
        (payload("x", topic="\u017c" * 100 + "t"), "bad-request"),
        (payload("x", topic=""), "bad-request"),
        (payload("x", topic="\ud800"), "bad-request"),
        (payload("x", topic="_beacon"), "bad-request"),
        (payload("x", rows=1), None),
        (payload("x", rows=0), "bad-request"),
        (payload("x", rows=-1), "bad-request"),
        (payload("x", rows=INT_MAX), None),
        (payload("x", rows=INT_MAX + 1), "bad-request"),
        (Staged("t", 1, SCHEMA_ID_MAX, b""), None),
        (Staged("t", 1, SCHEMA_ID_MAX + 1, b""), "bad-request"),
        (Staged("t", 1, -1, b""), "bad-request"),
        (payload("x" * 10), None),
        (payload("x" * 11), "too-large"),
    ],
)
def test_limits_of_a_payload_hold_for_stage_and_publish(staged: Staged, code: str | None) -> None:
    world = World(CommitLimits(batch_bytes_max=10))
    for request in (Stage(1, "a", staged), Publish(2, (payload("ok"), staged))):
        if code is None:
            assert not isinstance(world.ask(request)[-1], Refused)
        else:
            assert refusal(world, request).code == code


def test_system_topics_are_for_those_who_may() -> None:
    world = World(CommitLimits(system_topics=True))
    world.ask(Publish(1, (payload("x", topic="_beacon"),)))
    world.sync()
    assert 1 in world.answers


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Stage(1, "i" * KEY_BYTES_MAX, payload("x")), None),
        (Stage(1, "i" * (KEY_BYTES_MAX + 1), payload("x")), "bad-request"),
        (Stage(1, "", payload("x")), "bad-request"),
        (Commit(1, (), ()), "bad-request"),
        (Publish(1, ()), "bad-request"),
        (Publish(1, (), (move("k", None, 1),)), None),
        (Commit(1, (), (KeyMove("k" * KEY_BYTES_MAX, None, "p" * POSITION_BYTES_MAX),)), None),
        (Commit(1, (), (KeyMove("k" * (KEY_BYTES_MAX + 1), None, "p"),)), "bad-request"),
        (Commit(1, (), (KeyMove("k", None, "p" * (POSITION_BYTES_MAX + 1)),)), "bad-request"),
        (Commit(1, (), (KeyMove("", None, "p"),)), "bad-request"),
        (Commit(1, (), (KeyMove("k", None, ""),)), "bad-request"),
        (Commit(1, (), (KeyMove("k", "p", "p"),)), "bad-request"),
        (Commit(1, (), (move("k", None, 1), move("k", 1, 2))), "bad-request"),
        (Commit(1, ("staged", "staged"), ()), "bad-request"),
        (Commit(1, ("staged",), (), acks=INT_MAX), None),
        (Commit(1, ("staged",), (), acks=-1), "bad-request"),
        (Publish(1, (payload("x"),) * 4), None),
        (Publish(1, (payload("x"),) * 5), "too-large"),
        (Commit(1, (), tuple(move(f"k{i}", None, 1) for i in range(3))), None),
        (Commit(1, (), tuple(move(f"k{i}", None, 1) for i in range(4))), "too-large"),
    ],
)
def test_limits_of_a_request(request_: Request, code: str | None) -> None:
    world = World(CommitLimits(staged_max=4, moves_max=3))
    world.ask(stage(0, "staged"))
    if code is None:
        assert not isinstance(world.ask(request_)[-1], Refused)
    else:
        assert refusal(world, request_).code == code


# ---- numbering


def test_numbers_run_on_over_commits_topics_and_restarts() -> None:
    world = World()
    world.ask(stage(1, "a", "t", 3), stage(2, "b", "u", 2), stage(3, "c", "t", 4), Commit(4, ("a", "b", "c"), ()))
    world.ask(Publish(5, (payload("d", "t", 1),)))
    world.sync()
    assert world.answers == {4: (Range(T, 1, 8), Range(U, 1, 3)), 5: (Range(T, 8, 9),)}
    world.crash(0)
    world.ask(Publish(6, (payload("e", "u", 5), payload("f", "t", 1))))
    world.sync()
    assert world.answers[6] == (Range(U, 3, 8), Range(T, 9, 10))
    batches = [batch for append in world.kept for batch in batches_of(append)]
    assert [batch.origin_batch for batch in batches] == [1, 2, 3, 4, 5, 6]
    assert [(batch.part, batch.parts) for batch in batches] == [(0, 3), (1, 3), (2, 3), (0, 1), (0, 2), (1, 2)]
    assert [batch.incarnation for batch in batches] == [1, 1, 1, 1, 2, 2]
    assert [batch.publisher for batch in batches] == [""] * 6


def test_only_own_streams_count() -> None:
    other = StreamId(NodeId(b"o" * 16), "t")
    disk = Disk()
    donor = World(disk=Disk(node_id=other.origin))
    donor.ask(Publish(1, (payload("x"),)))
    donor.sync()
    disk.log[other] = donor.disk.log[other]
    world = World(CommitLimits(topics_max=1), disk)
    world.ask(Publish(1, (payload("y"),)))
    world.sync()
    assert world.answers == {1: (Range(T, 1, 2),)}


def test_the_delivery_is_written_with_the_batch_and_told_when_durable() -> None:
    world = World()
    (append,) = world.ask(Publish(1, (payload("a", rows=3),), acks=2))
    assert isinstance(append, Append)
    delivery = Delivery(T, 1, 3, 1_000, 1_000, 0, How.PUBLISHED, None)
    assert deliveries_of(append) == (delivery,)
    world.sync()
    assert world.committed == [Committed(tuple(append.of(AppendBatch)), (Answer(1, 2, (Range(T, 1, 4),)),))]


def test_published_at_never_goes_back_within_a_stream() -> None:
    world = World()
    for number, now_ms in enumerate((5_000, 4_000, 6_000)):
        world.now_ms = now_ms
        world.ask(Publish(number, (payload("a", "t"),)))
    world.now_ms = 1
    world.ask(Publish(9, (payload("a", "u"),)))
    world.sync()
    assert [batch.published_at_ms for batch in world.disk.log[T]] == [5_000, 5_000, 6_000]
    assert [batch.published_at_ms for batch in world.disk.log[U]] == [1]


def test_published_at_never_goes_back_over_a_restart_and_the_delivery_has_the_clock_as_it_is() -> None:
    world = World()
    world.now_ms = 5_000
    world.ask(Publish(1, (payload("a", "t"),)))
    world.sync()
    world.now_ms = 4_000
    world.crash(0)
    (append,) = world.ask(Publish(2, (payload("a", "t"),)))
    world.sync()
    assert [batch.published_at_ms for batch in world.disk.log[T]] == [5_000, 5_000]
    assert isinstance(append, Append)
    assert deliveries_of(append) == (Delivery(T, 2, 2, 5_000, 4_000, 0, How.PUBLISHED, None),)


def test_a_batch_carries_the_extensions_of_its_payload() -> None:
    world = World()
    extensions = (Extension(1, False, b"summary"),)
    world.ask(Stage(1, "a", replace(payload("a"), extensions=extensions)))
    world.ask(stage(2, "b"))
    world.sync()
    assert world.ask(Stage(3, "a", payload("a"))) == [StageDone(3)], "extensions do not make it another content"
    (committed,) = world.ask(Commit(4, ("a", "b"), ()))
    (published,) = world.ask(Publish(5, (replace(payload("c"), extensions=extensions), payload("d"))))
    assert isinstance(committed, Append) and isinstance(published, Append)
    for append in (committed, published):
        assert [batch.extensions for batch in batches_of(append)] == [extensions, ()]


# ---- commit


def test_a_commit_moves_keys_and_consumes_its_stage_ids_in_one_append() -> None:
    world = World()
    world.ask(stage(1, "a"), stage(2, "b"))
    (append,) = world.ask(Commit(3, ("b", "a"), (move("k", None, 1),)))
    assert isinstance(append, Append)
    assert unstaged_of(append) == ("b", "a")
    assert [batch.payload for batch in batches_of(append)] == [kept(payload(tag)).payload for tag in ("b", "a")]
    assert [(key, state.position) for key, state in publishers_of(append)] == [("k", "1")]
    world.sync()
    assert world.disk.staged == {}
    assert world.answers == {3: (Range(T, 1, 3),)}


def test_nothing_is_answered_and_nothing_leaves_before_it_is_durable() -> None:
    world = World()
    world.ask(Publish(1, (payload("a"),), (move("k", None, 1),)), Publish(2, (payload("b"),), (move("k", 1, 2),)))
    assert (world.answers, world.sent) == ({}, {})
    world.sync(1)
    assert list(world.answers) == [1]
    world.sync(1)
    assert list(world.answers) == [1, 2]


def test_a_missing_stage_id_fails_all_of_it_by_name() -> None:
    world = World()
    world.ask(stage(1, "a"))
    refused = refusal(world, Commit(2, ("a", "b", "c", "d", "e"), (move("k", None, 1),)))
    assert refused.code == "missing-stage"
    assert "['b', 'c', 'd'] and 1 more" in refused.detail
    world.ask(Commit(3, ("a",), (move("k", None, 1),)))
    world.sync()
    assert world.answers == {3: (Range(T, 1, 2),)}


@pytest.mark.parametrize(
    ("expect", "next", "words"),
    [
        (None, 9, "key 'k': expected none (a new key), actual '2', next '9'"),
        (1, 9, "key 'k': expected '1', actual '2', next '9'"),
        (3, 9, "key 'k': expected '3', actual '2', next '9'"),
        (None, 1, "key 'k': expected none (a new key), actual '2', next '1'"),
    ],
)
def test_a_wrong_position_fails_all_of_it_by_name(expect: int | None, next: int, words: str) -> None:
    world = World()
    world.ask(Publish(1, (payload("a"),), (move("k", None, 1),)), Publish(2, (payload("b"),), (move("k", 1, 2),)))
    world.ask(stage(3, "c"))
    refused = refusal(world, Commit(4, ("c",), (move("other", None, 1), move("k", expect, next))))
    assert refused.code == "wrong-position"
    assert words in refused.detail
    world.ask(Commit(5, ("c",), (move("other", None, 1), move("k", 2, 3))))
    world.sync()
    assert world.answers[5] == (Range(T, 3, 4),)


def test_a_new_key_with_an_expectation_is_a_wrong_position() -> None:
    refused = refusal(World(), Commit(1, (), (move("k", 1, 2),)))
    assert refused.code == "wrong-position"
    assert "actual none (a new key)" in refused.detail


def test_keys_alone_can_move() -> None:
    world = World()
    world.ask(Commit(1, (), (move("k", None, 1), move("l", None, 5))))
    world.sync()
    assert world.answers == {1: ()}
    world.crash(0)
    assert refusal(world, Commit(2, (), (move("k", None, 2),))).code == "wrong-position"
    world.ask(Commit(3, (), (move("k", None, 1), move("l", None, 5))))
    assert world.answers[3] == ()


def test_an_unkeyed_commit_is_not_protected_and_its_repeat_misses_its_stage() -> None:
    world = World()
    world.ask(stage(1, "a"), Commit(2, ("a",), ()))
    assert refusal(world, Commit(3, ("a",), ())).code == "missing-stage"
    world.sync()
    assert refusal(world, Commit(4, ("a",), ())).code == "missing-stage"


# ---- repeats


def test_a_repeat_of_a_finished_commit_has_its_result_and_its_own_acks() -> None:
    world = World()
    world.ask(stage(1, "a", rows=2), Commit(2, ("a",), (move("k", None, 1),)))
    world.sync()
    world.crash(0)
    world.ask(stage(3, "a2", rows=2), stage(4, "else"))
    release, committed = world.ask(Commit(5, ("a2", "gone"), (move("k", None, 1),), acks=3))
    assert isinstance(release, Append)
    assert release == append_of(release.token, unstage=("a2",))
    assert committed == Committed((), (Answer(5, 3, (Range(T, 1, 3),)),))
    assert world.ask(Publish(6, (payload("a"),), (move("k", None, 1),), acks=1)) == [
        Committed((), (Answer(6, 1, (Range(T, 1, 3),)),))
    ]
    world.sync()
    assert list(world.disk.staged) == ["else"]
    assert world.disk.payloads() == ["a"]


def test_a_repeat_of_a_commit_under_way_waits_with_it() -> None:
    world = World()
    world.ask(stage(1, "a"), Commit(2, ("a",), (move("k", None, 1),)), stage(3, "a2"))
    (release,) = world.ask(Commit(4, ("a2",), (move("k", None, 1),), acks=2))
    assert isinstance(release, Append)
    assert unstaged_of(release) == ("a2",)
    world.sync(1)
    assert world.answers == {}
    world.sync(1)
    assert world.committed[-1].answers == (Answer(2, 0, (Range(T, 1, 2),)), Answer(4, 2, (Range(T, 1, 2),)))


def test_a_repeat_of_keys_from_two_commits_waits_for_the_later_one_and_has_both_results() -> None:
    world = World()
    world.ask(Publish(1, (payload("a"),), (move("k", None, 1),)), Publish(2, (payload("b"),), (move("l", None, 1),)))
    world.ask(Commit(3, (), (move("l", None, 1), move("k", None, 1))))
    world.sync(1)
    assert list(world.answers) == [1]
    world.sync(1)
    assert world.answers[3] == (Range(T, 2, 3), Range(T, 1, 2))


def test_keys_that_were_moved_together_answer_together() -> None:
    world = World()
    moves = (move("k", None, 1), move("l", None, 1))
    world.ask(Publish(1, (payload("a"), payload("b", "u")), moves))
    world.sync()
    world.ask(Commit(2, (), moves))
    assert world.answers[2] == world.answers[1] == (Range(T, 1, 2), Range(U, 1, 2))


def test_some_keys_moved_and_others_not_is_refused_by_name() -> None:
    world = World()
    world.ask(Publish(1, (payload("a"),), (move("k", None, 1),)), stage(2, "b"))
    refused = refusal(world, Commit(3, ("b",), (move("k", None, 1), move("l", None, 1))))
    assert refused.code == "partly-moved"
    assert "['k']" in refused.detail
    world.ask(Commit(4, ("b",), (move("l", None, 1),)))
    world.sync()
    assert world.answers[4] == (Range(T, 2, 3),)


def test_a_stale_twin_is_refused() -> None:
    world = World()
    world.ask(stage(1, "new"), stage(2, "old"))
    world.ask(Publish(3, (payload("a"),), (move("k", None, 1),)), Commit(4, ("new",), (move("k", 1, 2),)))
    assert refusal(world, Commit(5, ("old",), (move("k", None, 1),))).code == "wrong-position"
    world.sync()
    assert refusal(world, Commit(6, ("old",), (move("k", None, 1),))).code == "wrong-position"
    assert world.disk.payloads() == ["a", "new"]


# ---- abort and expiry


def test_abort_removes_what_it_lists_and_nothing_else() -> None:
    world = World()
    world.ask(stage(1, "a"), stage(2, "b"))
    (append,) = world.ask(Abort(("a", "never", "a")))
    assert isinstance(append, Append)
    assert unstaged_of(append) == ("a",)
    assert world.ask(Abort(("a",))) == []
    assert refusal(world, Commit(3, ("a", "b"), ())).code == "missing-stage"
    world.ask(Commit(4, ("b",), ()))
    world.sync()
    assert world.disk.payloads() == ["b"]


def test_abort_of_what_a_commit_has_taken_does_nothing() -> None:
    world = World()
    world.ask(stage(1, "a"), Commit(2, ("a",), (move("k", None, 1),)))
    assert world.ask(Abort(("a",))) == []
    world.sync()
    assert world.ask(Abort(("a",))) == []
    assert world.disk.payloads() == ["a"]
    assert 2 in world.answers


def test_leftovers_expire_and_a_repeated_stage_counts_anew() -> None:
    world = World(CommitLimits(stage_expire_ms=100))
    world.ask(stage(1, "a"), stage(2, "b"))
    world.now_ms += 99
    assert world.expire() == []
    world.ask(stage(3, "b"))
    world.now_ms += 1
    (append,) = world.expire()
    assert isinstance(append, Append)
    assert unstaged_of(append) == ("a",)
    world.now_ms += 99
    world.expire()
    world.sync()
    assert world.disk.staged == {}


def test_what_a_restart_found_expires_from_then_on() -> None:
    world = World(CommitLimits(stage_expire_ms=100))
    world.ask(stage(1, "a"))
    world.sync()
    world.crash(0)
    world.now_ms += 1_000
    assert world.expire() == []
    world.now_ms += 100
    assert len(world.expire()) == 1


# ---- bounds


def test_the_number_of_staged_payloads_is_bounded() -> None:
    world = World(CommitLimits(staged_max=2))
    world.ask(stage(1, "a"), stage(2, "b"))
    assert refusal(world, stage(3, "c")).code == "busy"
    world.ask(stage(4, "b"), Abort(("a",)), stage(5, "c"))
    world.sync()
    assert world.staged == [1, 2, 4, 5]


def test_the_bytes_of_staged_payloads_are_bounded() -> None:
    world = World(CommitLimits(staged_bytes_max=10))
    world.ask(Stage(1, "a", payload("x" * 6)))
    world.sync()
    assert "commit or abort" in refusal(world, Stage(2, "b", payload("x" * 5))).detail
    world.ask(Stage(3, "c", payload("x" * 4)), Abort(("a",)), Stage(4, "d", payload("x" * 6)))
    world.sync()
    assert world.staged == [1, 3, 4]


def test_payload_is_counted_until_it_is_durable() -> None:
    world = World(CommitLimits(payload_bytes_max=10))
    world.ask(Stage(1, "a", payload("x" * 6)))
    assert refusal(world, Stage(2, "b", payload("x" * 5))).code == "busy"
    assert refusal(world, Publish(3, (payload("x" * 5),))).code == "busy"
    world.ask(Stage(4, "c", payload("x" * 4)))
    assert refusal(world, Publish(5, (payload("x"),))).code == "busy"
    world.sync()
    world.ask(Commit(6, ("a", "c"), (move("k", None, 1),)))
    world.ask(Publish(7, (payload("x" * 10),)))
    assert refusal(world, Publish(8, (payload("x"),))).code == "busy"
    world.break_at(0)
    world.report_failure()
    assert [world.refused[6].code, world.refused[7].code] == ["store", "store"]
    world.ask(Stage(9, "e", payload("x" * 10)))
    assert refusal(world, Stage(10, "f", payload("x"))).code == "busy"
    world.crash(1)
    world.ask(Stage(11, "f", payload("x" * 10)))
    assert world.staged == [1, 4]


def test_a_commit_numbers_what_was_staged_without_its_bytes() -> None:
    world = World()
    world.ask(Stage(1, "a", payload("x" * 6)))
    world.sync()
    (append,) = world.ask(Commit(2, ("a",), (move("k", None, 1),)))
    assert isinstance(append, Append)
    assert batches_of(append)[0].payload == kept(payload("x" * 6)).payload
    world.sync()
    assert world.disk.payloads() == ["x" * 6]


def test_an_oversized_publish_is_refused() -> None:
    world = World(CommitLimits(payload_bytes_max=10))
    assert refusal(world, Publish(1, (payload("x" * 6), payload("x" * 5)))).code == "too-large"


def test_requests_that_wait_for_the_disk_are_bounded_repeats_too() -> None:
    world = World(CommitLimits(outstanding_max=2))
    world.ask(Publish(1, (payload("a"),), (move("k", None, 1),)), Commit(2, (), (move("k", None, 1),)), stage(3, "b"))
    assert refusal(world, Commit(4, (), (move("k", None, 1),))).code == "busy"
    assert refusal(world, Commit(5, ("b",), ())).code == "busy"
    assert refusal(world, Publish(6, (payload("c"),))).code == "busy"
    world.sync()
    world.ask(Commit(7, ("b",), ()), Publish(8, (payload("c"),)))
    world.sync()
    assert list(world.answers) == [1, 2, 7, 8]


def test_topics_are_bounded() -> None:
    world = World(CommitLimits(topics_max=2))
    world.ask(Publish(1, (payload("a", "t"), payload("b", "u"), payload("c", "u"))))
    refused = refusal(world, Publish(2, (payload("d", "t"), payload("d", "v"))))
    assert (refused.code, "this node has 2 topics, of at most 2" in refused.detail) == ("too-many", True)
    world.ask(Publish(4, (payload("d", "t"),)))
    world.sync()
    assert list(world.answers) == [1, 4]


# ---- the store fails


def test_a_failure_in_the_middle_of_three_undoes_it_and_the_later_one() -> None:
    world = World()
    world.ask(Publish(1, (payload("a"),), (move("k", None, 1),)))
    world.ask(stage(2, "b"), Commit(3, ("b",), (move("k", 1, 2),)), Publish(4, (payload("c"),), (move("l", None, 1),)))
    world.ask(Commit(5, (), (move("k", 1, 2),)))
    world.break_at(2)  # the commit; its stage is durable
    world.sync()
    assert list(world.answers) == [1]
    world.report_failure()
    assert {number: refused.code for number, refused in world.refused.items()} == {3: "store", 4: "store", 5: "store"}
    assert "disk full" in world.refused[3].detail
    world.ask(Commit(6, ("b",), (move("k", 1, 2),)))
    world.report_failure()  # of the publish: an echo, which must not undo the retry
    world.ask(Publish(7, (payload("c"),), (move("l", None, 1),)))
    world.sync()
    assert {6: world.answers[6], 7: world.answers[7]} == {6: (Range(T, 2, 3),), 7: (Range(T, 3, 4),)}
    assert world.disk.payloads() == ["a", "b", "c"]


def test_the_failure_of_anothers_append_undoes_what_was_asked_for_after_it() -> None:
    world = World()
    world.ask(Publish(1, (payload("a"),), (move("k", None, 1),)))
    world.foreign_append()
    world.ask(Publish(2, (payload("b"),), (move("k", 1, 2),)))
    world.break_at(1)
    world.ask(Publish(3, (payload("c"),), (move("k", 2, 3),)))  # asked for before the report: fails, too
    world.report_failure()
    assert list(world.refused) == [2, 3]
    world.ask(Publish(4, (payload("b"),), (move("k", 1, 2),)))
    world.report_failure()
    world.report_failure()
    world.sync()
    assert world.answers == {1: (Range(T, 1, 2),), 4: (Range(T, 2, 3),)}


def test_a_failure_that_is_told_before_earlier_appends_are_durable_keeps_them() -> None:
    world = World()
    world.ask(Publish(1, (payload("a"),), (move("k", None, 1),)), Publish(2, (payload("b"),), (move("k", 1, 2),)))
    world.break_at(1)
    world.report_failure()
    world.ask(Publish(3, (payload("b"),), (move("k", 1, 2),)))
    world.sync()
    assert world.answers == {1: (Range(T, 1, 2),), 3: (Range(T, 2, 3),)}


def test_a_failed_stage_is_missing_and_a_failed_abort_leaves_it() -> None:
    world = World()
    world.ask(stage(1, "a"), Abort(("a",)))
    world.break_at(1)
    world.report_failure()
    world.ask(stage(2, "b"))
    world.break_at(1)
    world.report_failure()
    assert refusal(world, Commit(3, ("a", "b"), ())).code == "missing-stage"
    world.ask(Commit(4, ("a",), ()))
    world.sync()
    assert 4 in world.answers


def test_stale_tokens_are_harmless() -> None:
    world = World()
    world.ask(Publish(1, (payload("a"),)))
    assert world.machine.durable(99) == []
    world.sync()
    assert world.machine.durable(1) == []
    assert world.machine.failed(1, "late") == []


# ---- a rolled-back store

OLD, NEW = ME, NodeId(b"n" * 16)
Fill = Callable[[World], object]


def rolled_back(fill: Fill, *, keep: int = 0) -> tuple[World, list[Append]]:
    """A node whose store fell back to its first `keep` appends and opened as NEW, and what peers have of OLD's rest."""
    old = World()
    fill(old)
    old.sync()
    disk = Disk()
    for append in old.kept[:keep]:
        disk.apply(append)
    world = World(disk=replace(disk, node_id=NEW, former_ids=(OLD,), origin_batch=0, staged={}))
    return world, [append_of(0, batches=batches_of(append)) for append in old.kept[keep:] if batches_of(append)]


def receive(world: World, *lost: Append) -> Append:
    """One append of all these batches, by another machine of the node."""
    batches = tuple(batch for append in lost for batch in batches_of(append))
    append = world.machine.recover(append_of(world.next_token(), batches=batches))
    world.perform([append])
    return append


def positions(world: World) -> dict[str, str]:
    return {key: state.position for key, state in world.disk.publishers.items()}


def fill_three(world: World) -> None:
    world.ask(Publish(1, (payload("a"),), (move("k", None, 1),)))
    world.ask(Publish(2, (payload("b", "u"), payload("c")), (move("k", 1, 2),)))
    world.ask(Publish(3, (payload("d", "u"),), (move("l", None, 1),)), Publish(4, (payload("e"),)))


def test_keys_come_back_with_the_batches_of_a_former_identity() -> None:
    world, lost = rolled_back(fill_three, keep=1)
    assert positions(world) == {"k": "1"}
    receive(world, *lost)
    world.ask(Commit(5, (), (move("k", 1, 2),)))
    assert 5 not in world.answers, "the key is recovered, but not durable yet"
    world.sync()
    assert positions(world) == {"k": "2", "l": "1"}
    assert world.answers[5] == (Range(StreamId(OLD, "u"), 1, 2), Range(StreamId(OLD, "t"), 2, 3))
    world.ask(Publish(6, (payload("f"),), (move("k", 2, 3),)))
    world.sync()
    assert world.answers[6] == (Range(StreamId(NEW, "t"), 1, 2),)


def test_any_part_of_a_commit_moves_its_key_and_later_ones_add_their_rows() -> None:
    world, (lost,) = rolled_back(
        lambda old: old.ask(Publish(1, tuple(map(payload, "abc")), (move("k", None, 1),))) and None
    )
    first, second, third = (append_of(0, batches=(batch,)) for batch in batches_of(lost))
    for part, next_sequence in ((first, 2), (second, 3), (third, 4)):
        ((key, state),) = publishers_of(receive(world, part))
        assert (key, state.position, state.ranges) == ("k", "1", (Range(StreamId(OLD, "t"), 1, next_sequence),))
    assert publishers_of(world.machine.recover(append_of(world.next_token(), batches=batches_of(third)))) == ()


@pytest.mark.parametrize("topics", ["ttt", "tut"])
@pytest.mark.parametrize("crashes", [(1,), (2,), (1, 2)])
def test_parts_that_came_back_before_a_crash_are_counted_after_it(topics: str, crashes: tuple[int, ...]) -> None:
    """Else the publisher's repeat of its last move would be numbered a second time."""
    rows = tuple(payload(tag, topic) for tag, topic in zip("abc", topics, strict=True))
    world, (lost,) = rolled_back(lambda old: old.ask(Publish(1, rows, (move("k", None, 1),))))
    for count, batch in enumerate(batches_of(lost), start=1):
        receive(world, append_of(0, batches=(batch,)))
        world.sync()
        if count in crashes:
            world = World(disk=world.disk)
    assert positions(world) == {"k": "1"} and world.disk.former_parts == {}
    world.ask(Publish(2, rows, (move("k", None, 1),)))
    world.sync()
    assert {rows.stream.origin for rows in world.answers[2]} == {OLD}, "it is the commit of before"
    assert [batch.stream.origin for batches in world.disk.log.values() for batch in batches] == [OLD] * 3


def test_what_was_published_under_an_id_that_the_store_never_heard_of_counts_too() -> None:
    """The same old copy was restored twice: the life in between took an id of its own, of the same lineage."""
    between = heir_of(OLD, 5_000, b"....")
    later = World(disk=Disk(node_id=between, former_ids=(OLD,)))
    later.ask(Publish(1, (payload("a"),), (move("k", None, 1),)))
    later.sync()
    now = heir_of(OLD, 9_000, b",,,,")
    world = World(disk=Disk(node_id=now, former_ids=(OLD,)))
    receive(world, *(append_of(0, batches=batches_of(append)) for append in later.kept))
    world.sync()
    assert positions(world) == {"k": "1"}


def test_of_lives_that_the_store_never_heard_of_the_later_counts() -> None:
    lives = [heir_of(OLD, at_ms, b"....") for at_ms in (5_000, 9_000)]
    appends = []
    for position, life in enumerate(lives, start=1):
        world = World(disk=Disk(node_id=life, former_ids=(OLD,)))
        world.ask(Publish(1, (payload("a"),), (move("k", None, position),)))
        world.sync()
        appends += [append_of(0, batches=batches_of(append)) for append in world.kept]
    for order in (appends, appends[::-1]):
        world = World(disk=Disk(node_id=heir_of(OLD, 12_000, b"...."), former_ids=(OLD,)))
        for append in order:
            receive(world, append)
        world.sync()
        assert positions(world) == {"k": "2"}


def test_parts_in_any_order_give_the_ranges_of_the_first_answer() -> None:
    pair = (payload("a", "t"), payload("b", "u"))
    world, (lost,) = rolled_back(lambda old: old.ask(Publish(1, pair, (move("k", None, 1),))))
    receive(world, append_of(0, batches=batches_of(lost)[::-1]))
    world.sync()
    world.ask(Commit(1, (), (move("k", None, 1),)))
    assert world.answers[1] == (Range(StreamId(OLD, "t"), 1, 2), Range(StreamId(OLD, "u"), 1, 2))


def test_an_older_commit_that_comes_later_does_not_move_a_key_back_even_after_a_restart() -> None:
    def fill(old: World) -> None:
        old.ask(Publish(1, (payload("a", "t"),), (move("k", None, 1),)))
        old.ask(Publish(2, (payload("b", "u"),), (move("k", 1, 2),)))
        old.ask(Publish(3, (payload("c", "v"),), (move("k", 2, 3),)))

    one_go, (first, second, third) = rolled_back(fill)
    receive(one_go, third, first, second)
    one_go.sync()
    assert positions(one_go) == {"k": "3"}
    world, _ = rolled_back(fill)
    receive(world, second)
    world.sync()
    world.crash(0)
    receive(world, first)
    world.sync()
    assert positions(world) == {"k": "2"}
    receive(world, third)
    world.sync()
    assert positions(world) == {"k": "3"}


@pytest.mark.parametrize("restart", [False, True])
def test_a_key_that_moved_on_in_this_life_stays(restart: bool) -> None:
    world, lost = rolled_back(fill_three, keep=1)
    world.ask(Commit(5, (), (move("k", 1, 7),)))
    world.sync()
    if restart:
        world.crash(0)
    receive(world, *lost)
    world.sync()
    assert positions(world) == {"k": "7", "l": "1"}


def test_each_batch_names_one_key_in_turn_so_that_several_come_back() -> None:
    def fill(old: World) -> None:
        moves = tuple(move(key, None, at) for at, key in enumerate("klm"))
        old.ask(Publish(1, tuple(map(payload, "abcd")), moves))
        old.ask(Publish(2, (payload("e"),), (move("n", None, 1), move("o", None, 1))))

    world, lost = rolled_back(fill)
    assert [batch.publisher for append in lost for batch in batches_of(append)] == ["k", "l", "m", "k", "n"]
    receive(world, *lost)
    world.sync()
    assert positions(world) == {"k": "0", "l": "1", "m": "2", "n": "1"}
    world.ask(Commit(9, (), tuple(move(key, None, at) for at, key in enumerate("klm"))))
    assert world.answers[9] == (Range(StreamId(OLD, "t"), 1, 5),)


def test_a_recovery_that_failed_is_made_again() -> None:
    world, (lost,) = rolled_back(
        lambda old: old.ask(Publish(1, tuple(map(payload, "ab")), (move("k", None, 1),))) and None
    )
    first, second = (append_of(0, batches=(batch,)) for batch in batches_of(lost))
    receive(world, first)
    world.sync()
    receive(world, second)
    world.ask(Commit(1, (), (move("k", None, 1),)))
    world.break_at(0)
    world.report_failure()
    assert world.refused[1].code == "store"
    receive(world, second)
    world.sync()
    assert positions(world) == {"k": "1"}


def test_batches_of_others_and_own_ones_recover_nothing() -> None:
    world, (lost,) = rolled_back(lambda old: old.ask(Publish(1, (payload("a"),), (move("k", None, 1),))))
    for origin in (NEW, NodeId(b"s" * 16)):
        batch = replace(batches_of(lost)[0], stream=StreamId(origin, "t"))
        append = append_of(world.next_token(), batches=(batch,))
        assert world.machine.recover(append) is append


def test_a_commit_with_a_part_that_nobody_has_any_more_is_not_made_again() -> None:
    rows = (payload("a", "t"), payload("b", "u"))
    world, (lost,) = rolled_back(lambda old: old.ask(Publish(1, rows, (move("k", None, 1),))))
    receive(world, append_of(0, batches=batches_of(lost)[1:]))
    world.sync()
    world.ask(Publish(2, rows, (move("k", None, 1),)))
    world.sync()
    assert world.answers[2] == (Range(StreamId(OLD, "u"), 1, 2),), "what is left of the commit of before"


def test_remembered_parts_are_bounded_and_the_oldest_go_first() -> None:
    def fill(old: World) -> None:
        for number in range(10):
            pair = (payload(f"a{number}", "t"), payload(f"b{number}", "u"))
            old.ask(Publish(number, pair, (move(f"k{number}", None, 1),)))

    world, lost = rolled_back(fill)
    world.limits = CommitLimits(recovering_max=4)
    world.machine = world.open()
    for part in (0, 1):
        receive(world, *(append_of(0, batches=(batches_of(append)[part],)) for append in lost))
    world.sync()
    assert list(positions(world)) == [f"k{number}" for number in range(10)]
    whole = [key for key, state in world.disk.publishers.items() if len(state.ranges) == 2]
    assert whole == ["k6", "k7", "k8", "k9"], "of the others the rows of one part are forgotten"


@pytest.mark.parametrize("seed", range(50))
def test_keys_come_back_whatever_the_order_of_the_streams(seed: int) -> None:
    """Peers hand each stream over in its order, but the streams side by side; now and then the disk fails."""
    random = Random(seed)
    last: dict[str, str] = {}

    def fill(old: World) -> None:
        for number in range(12):
            key = random.choice("kl")
            payloads = tuple(payload(f"{number}.{i}", random.choice("tuv")) for i in range(random.randint(1, 3)))
            old.ask(Publish(number, payloads, (KeyMove(key, last.get(key), str(number)),)))
            last[key] = str(number)

    world, lost = rolled_back(fill, keep=random.randint(0, 12))
    waiting: dict[StreamId, list[Batch]] = {}
    for append in lost:
        for batch in batches_of(append):
            waiting.setdefault(batch.stream, []).append(batch)
    while any(waiting.values()):
        stream = random.choice([stream for stream, batches in waiting.items() if batches])
        count = random.randint(1, 2)
        receive(world, append_of(0, batches=tuple(waiting[stream][:count])))
        if random.random() < 0.2:
            world.break_at(0)
            world.report_failure()
        else:
            del waiting[stream][:count]
            world.sync()
    assert positions(world) == last
