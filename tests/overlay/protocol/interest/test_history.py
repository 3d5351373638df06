"""The history of registrations: each from when to when, as durable as the registration, bounded."""

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.effects import InterestSpan, InterestSpanRecord, InterestState, Refused, Registration
from m4cast.overlay.protocol.interest.history import HistoryChange, InterestHistory
from tests.overlay.protocol.interest.mesh import Member, wish


def spans(member: Member) -> list[tuple[int, str, str, int, int | None]]:
    """Number, id, condition, begin, end."""
    found = member.interest.history.spans.items()
    return [(number, span.id, span.text, span.from_ms, span.until_ms) for number, span in sorted(found)]


def test_a_registration_has_a_begin_and_an_end() -> None:
    one = Member(1, NodeConfig())
    one.subscribe(wish("a", where="x = 1"), now_ms=1_000)
    one.out()
    one.subscribe(wish("b"), now_ms=2_000)
    one.unsubscribe("a", now_ms=3_000)
    one.subscribe(wish("a", where="x = 2"), now_ms=4_000)
    one.subscribe(wish("a", where="x = 2"), now_ms=5_000)  # the same again: nothing changes
    one.out()
    offset = one.context.clocks.offset_ms
    assert spans(one) == [
        (1, "a", "x = 1", 1_000 + offset, 3_000 + offset),
        (2, "b", "", 2_000 + offset, None),
        (3, "a", "x = 2", 4_000 + offset, None),
    ]
    first, _, third = (span for _, span in sorted(one.interest.history.spans.items()))
    assert (first.incarnation, first.ts) == (1, 1)
    assert (first.until_incarnation, first.until_ts) == (1, 2), "covered by b, it was announced no longer since 2"
    assert third.epoch > first.epoch


def test_another_condition_under_the_same_id_ends_the_first() -> None:
    one = Member(1, NodeConfig())
    one.subscribe(wish("a", where="x = 1"), now_ms=1_000)
    one.subscribe(wish("a", where="x = 2"), now_ms=2_000)
    one.out()
    offset = one.context.clocks.offset_ms
    assert spans(one) == [(1, "a", "x = 1", 1_000 + offset, 2_000 + offset), (2, "a", "x = 2", 2_000 + offset, None)]


def test_another_condition_with_the_epoch_of_an_equal_one_ends_the_first() -> None:
    one = Member(1, NodeConfig())
    one.subscribe(wish("a", where="x = 1"), wish("b", where="x = 2"))
    one.subscribe(wish("a", where="x = 2"))
    one.out()
    assert [(each, text, until is None) for _, each, text, _, until in spans(one)] == [
        ("a", "x = 1", False),
        ("b", "x = 2", True),
        ("a", "x = 2", True),
    ]
    assert len({span.epoch for span in one.interest.history.spans.values()}) == 1


def test_it_is_shown_when_it_is_durable_and_comes_back_after_a_restart() -> None:
    one = Member(1, NodeConfig())
    one.is_disk_slow = True
    one.subscribe(wish("a"), now_ms=1_000)
    one.out()
    assert spans(one) == []
    one.write(one.appends.pop())
    assert [number for number, *_ in spans(one)] == [1]
    one.open(2)
    one.subscribe(wish("b", "u"), now_ms=2_000)
    one.out()
    one.write(one.appends.pop())
    assert [each[:2] for each in spans(one)] == [(1, "a"), (2, "b")]
    assert [span.incarnation for _, span in sorted(one.interest.history.spans.items())] == [1, 2]


def test_an_append_that_fails_leaves_no_trace() -> None:
    one = Member(1, NodeConfig())
    one.subscribe(wish("a"), now_ms=1_000)
    one.out()
    one.is_disk_slow = True
    one.unsubscribe("a", now_ms=2_000)
    one.subscribe(wish("b", "u"), now_ms=3_000)
    one.out()
    one.interest.failed(one.appends[0].token, "full")
    assert sum(isinstance(output, Refused) for output in one.context.out) == 2
    assert [each[:2] for each in spans(one)] == [(1, "a")]
    one.is_disk_slow = False
    one.unsubscribe("a", now_ms=4_000)
    one.subscribe(wish("c", "u"), now_ms=5_000)
    one.out()
    offset = one.context.clocks.offset_ms
    assert spans(one) == [(1, "a", "", 1_000 + offset, 4_000 + offset), (2, "c", "", 5_000 + offset, None)]


def row(number: int) -> Registration:
    return Registration("t", "", 0, "", "", "", number, number, earliest=False, under="")


def written(history: InterestHistory, disk: dict[int, InterestSpan], change: HistoryChange) -> None:
    for record in change.records:
        assert isinstance(record, InterestSpanRecord)
        if record.content is None:
            del disk[record.key]
        else:
            disk[record.key] = record.content
    history.durable(change)


def test_the_last_ended_ones_are_kept_and_all_that_last() -> None:
    history, disk = InterestHistory({}, ended_max=3), dict[int, InterestSpan]()
    state = InterestState(1, 1, 0)
    written(history, disk, history.record(["stays"], {"stays": row(0)}, state, 0))
    for number in range(1, 9):
        each = f"r{number}"
        written(history, disk, history.record([each], {each: row(number)}, state, number))
        written(history, disk, history.record([each], {}, state, number))
    written(history, disk, history.record(["last"], {"last": row(9)}, state, 9))
    assert [span.id for span in disk.values()] == ["stays", "r6", "r7", "r8", "last"]
    assert history.spans == disk
    again = InterestHistory(disk, ended_max=3)
    newest = max(span.revision for span in disk.values())
    assert [span.id for _, span in again.changed(newest)] == ["last"]
    change = again.record(["new"], {"new": row(10)}, state, 10)
    assert [record.key for record in change.records] == [max(disk) + 1], "numbers and revisions go on"


def test_what_was_dropped_with_an_append_that_failed_is_dropped_later() -> None:
    history, disk = InterestHistory({}, ended_max=1), dict[int, InterestSpan]()
    state = InterestState(1, 1, 0)
    for number in range(1, 4):
        written(history, disk, history.record(["a"], {"a": row(number)}, state, number))
        written(history, disk, history.record(["a"], {}, state, number))
    failed = history.record(["b"], {"b": row(9)}, state, 9)
    assert [record.key for record in failed.records if record.content is None] == [2]
    history.undo(failed)
    again = history.record(["c"], {"c": row(10)}, state, 10)
    assert [record.key for record in again.records] == [4, 2]
