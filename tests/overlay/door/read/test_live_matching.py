"""Filtered tails at the end of their topic: matched together, each exactly, and nobody held up."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.door.access.rights import EVERYTHING, Caller
from m4cast.overlay.door.clients.group_shares import SharedFrontiers
from m4cast.overlay.door.frontiers import CoveredFrontiers, Frontiers
from m4cast.overlay.door.read import inboxes, stream_answer
from m4cast.overlay.door.read.inboxes import Inbox, Letter, Turns
from m4cast.overlay.door.read.live_matching import CollectedMatches, LiveMatching, TopicMatcher
from m4cast.overlay.door.read.matching import Slice
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import Get, LeftOut
from m4cast.overlay.door.rows.catalogue import Catalogue
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import Profile, parse
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.frame import seal
from tests.overlay.door.read.filtered_parts import FilteredStore, filtered_store, sequences_of, where_of
from tests.overlay.protocol.stream_parts import chain, stream_id

A, B, KNOWN = stream_id("o", "t"), stream_id("p", "t"), stream_id("q", "t")
WAIT_S = 30


def numbers(first: int, count: int = 10) -> pa.RecordBatch:
    """Rows of a stream that begins with them: row n has sequence n + 1."""
    return pa.record_batch({"n": list(range(first, first + count)), "s": ["x" * 20] * count})


class Reader:
    """A tail on a thread of its own."""

    def __init__(self, here: FilteredStore, text: str, start: dict[StreamId, int] | None = None, **more: Any) -> None:
        self.profile = parse(text)
        view: Frontiers | None = more.pop("view", None)
        self._changed = threading.Condition()
        self._is_stopped = False
        self.sequences: dict[tuple[str, str], list[int]] = {}
        self.next: dict[tuple[str, str], int] = {}
        self.refusal: Refusal | None = None
        self.is_held = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()
        topics: tuple[str, ...] = more.pop("topics", ("t",))
        get = Get(topics=topics, start={KNOWN: 2, **(start or {})}, end=None, profile=self.profile, **more)
        caller = Caller(f"reader {text}", EVERYTHING, lambda: self._is_stopped)
        filtered = here.filtered if view is None else here.filtered.under(view, here.reading.under(view))
        _, pieces = filtered.read(get, dict.fromkeys(topics, self.profile), caller, {})
        self._thread = threading.Thread(target=self._run, args=(pieces,))
        self._thread.start()

    def _run(self, pieces: Iterator[Any]) -> None:
        try:
            for piece in pieces:
                where = where_of(piece)
                with self._changed:
                    stream = (where["topic"], where["origin"])
                    self.sequences.setdefault(stream, []).extend(sequences_of([piece]))
                    self.next[stream] = where["next"]
                    self._changed.notify_all()
                self.is_held.set()
                assert self.goes_on.wait(WAIT_S)
        except Refusal as refusal:
            self.refusal = refusal

    def until(self, stream: StreamId, sequence: int) -> None:
        """Wait until everything below it was given."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.next.get(_named(stream), 1) >= sequence, WAIT_S)

    def of(self, stream: StreamId) -> list[int]:
        return self.sequences.get(_named(stream), [])

    def stop(self) -> None:
        self._is_stopped = True
        self.goes_on.set()

    def join(self) -> None:
        self._thread.join(WAIT_S)


def _named(stream: StreamId) -> tuple[str, str]:
    return stream.topic, stream.origin.hex()


def stop_all(following: list[Reader]) -> None:
    for reader in following:
        reader.stop()
    for reader in following:
        reader.join()


@contextmanager
def known_store(path: Path) -> Iterator[FilteredStore]:
    """The columns of its topic are known: a tail ends before columns that are new."""
    with filtered_store(path) as here:
        here.publish(KNOWN, numbers(0, 1))
        yield here


class Opened:
    """Counts inboxes that were opened, and what was decoded and matched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self.decoded: Counter[int] = Counter()
        self.matched = 0
        original_open, original_decoded = LiveMatching.open, Catalogue.decoded
        original_match = TopicMatcher._match

        def counted_open(live: LiveMatching, inbox: Inbox, seen: Any) -> Any:
            opened = original_open(live, inbox, seen)
            with self._changed:
                self._count += 1
                self._changed.notify_all()
            return opened

        def counted_decoded(catalogue: Catalogue, batch: Batch, *, to_cut: bool) -> pa.RecordBatch:
            self.decoded[batch.first_sequence] += 1
            return original_decoded(catalogue, batch, to_cut=to_cut)

        def counted_match(matcher: TopicMatcher, rows: Slice) -> Any:
            self.matched += 1
            return original_match(matcher, rows)

        monkeypatch.setattr(LiveMatching, "open", counted_open)
        monkeypatch.setattr(Catalogue, "decoded", counted_decoded)
        monkeypatch.setattr(TopicMatcher, "_match", counted_match)

    def until(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._count >= count, WAIT_S)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


@pytest.fixture(autouse=True)
def certified_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_answer, "CERTIFY_S", 0)


@contextmanager
def readers(here: FilteredStore, texts: list[str], **more: Any) -> Iterator[list[Reader]]:
    following = [Reader(here, text, **more) for text in texts]
    try:
        yield following
    finally:
        stop_all(following)


def expected(here: FilteredStore, reader: Reader, stream: StreamId) -> list[int]:
    return here.matching(stream, reader.profile)


def test_tails_share_one_decode_and_one_match_of_each_batch(tmp_path: Path, opened: Opened) -> None:
    texts = [f"n = {number}" for number in range(0, 200, 7)] + ["n > 150", "s LIKE '%x%'", "n = 7", "absent = 1"]
    with known_store(tmp_path) as here, readers(here, texts) as following:
        opened.until(len(texts))
        for first in range(0, 200, 10):
            here.publish(A, numbers(first))
        for reader in following:
            reader.until(A, 201)
        assert all(reader.of(A) == expected(here, reader, A) for reader in following)
        assert opened.decoded == Counter(range(1, 201, 10)), "each batch once, for all"
        assert 1 <= opened.matched <= 20


def test_tails_that_come_while_rows_do_get_each_match_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "INBOX_LETTERS", 4)  # so that some lose their inbox
    texts = ["n < 1000000", "n = 17", "n = 317 OR n = 990", "s IS NULL"]
    with known_store(tmp_path) as here:
        following: list[Reader] = []
        try:
            for first in range(0, 1_000, 10):
                if first % 100 == 0:
                    following += [Reader(here, text) for text in texts]
                here.publish(A if first % 20 else B, numbers(first))
            for reader in following:
                reader.until(A, 501)
                reader.until(B, 501)
                assert reader.of(A) == expected(here, reader, A)
                assert reader.of(B) == expected(here, reader, B)
        finally:
            stop_all(following)


def test_a_tail_gets_nothing_below_its_position_of_what_is_matched_for_all(tmp_path: Path, opened: Opened) -> None:
    with (
        known_store(tmp_path) as here,
        readers(here, ["TRUE"], start={A: 6}) as (ahead,),
        readers(here, ["n < 8"]) as (other,),
    ):
        opened.until(2)
        here.publish(A, numbers(0))
        ahead.until(A, 11)
        other.until(A, 11)
        assert ahead.of(A) == list(range(6, 11))
        assert other.of(A) == list(range(1, 9))


def test_a_slow_tail_loses_its_inbox_and_no_row(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "INBOX_LETTERS", 2)
    monkeypatch.setattr(stream_answer, "EARLY_S", 0)
    lost = threading.Event()
    original = Inbox._lose

    def noted(inbox: Inbox) -> None:
        original(inbox)
        lost.set()

    monkeypatch.setattr(Inbox, "_lose", noted)
    with known_store(tmp_path) as here, readers(here, ["TRUE", "n = 95"]) as (slow, quick):
        opened.until(2)
        slow.goes_on.clear()
        here.publish(A, numbers(0))
        assert slow.is_held.wait(WAIT_S)
        for first in range(10, 100, 10):
            here.publish(A, numbers(first))
            quick.until(A, first + 11)  # so each batch is handed out by itself
        assert quick.of(A) == [96], "it does not wait for the slow one"
        assert lost.wait(WAIT_S)
        slow.goes_on.set()
        slow.until(A, 101)
        assert slow.of(A) == list(range(1, 101))
        opened.until(3)


@pytest.mark.parametrize("skips", [False, True])
def test_rows_that_are_missing_are_each_tails_own_matter(tmp_path: Path, opened: Opened, skips: bool) -> None:
    with known_store(tmp_path) as here, readers(here, ["n = 3", "n = 33"], skip_missing=skips) as following:
        opened.until(2)
        here.publish(A, numbers(0), 10, numbers(20), numbers(30))
        for reader in following:
            if skips:
                reader.until(A, 41)
            else:
                reader.join()
                assert reader.refusal is not None and reader.refusal.code == "missing"
        if skips:
            assert [reader.of(A) for reader in following] == [[4], [34]]


def test_a_batch_that_cannot_be_read_is_refused_to_each_tail_after_what_precedes_it(
    tmp_path: Path, opened: Opened
) -> None:
    with known_store(tmp_path) as here, readers(here, ["n = 3", "n = 4"]) as following:
        opened.until(2)
        here.publish(A, numbers(0), is_seen=False)
        here.append(seal(replace(chain(1, stream=A)[0], first_sequence=11, row_count=4, payload=b"not Arrow")))
        here.frontiers.advance({A: 15})
        for reader, found in zip(following, ([4], [5]), strict=True):
            reader.join()
            assert reader.refusal is not None and reader.refusal.code == "not-arrow"
            assert reader.of(A) == found


def test_a_tail_ends_before_matching_rows_with_new_columns(tmp_path: Path, opened: Opened) -> None:
    with known_store(tmp_path) as here:
        here.publish(A, numbers(0))
        with readers(here, ["n = 3 OR n = 25", "n = 100"]) as (ending, staying):
            opened.until(2)
            wider = pa.record_batch({"n": [20, 25], "s": ["", ""], "more": [1, 2]})
            here.publish(A, wider)
            ending.join()
            assert ending.refusal is None
            assert (ending.of(A), ending.next[_named(A)]) == ([4], 11), "it continues before the new columns"
            staying.until(A, 13)
            assert staying.of(A) == [], "rows that it does not want do not matter to it"


def test_a_topic_without_tails_has_no_matcher(tmp_path: Path, opened: Opened) -> None:
    with known_store(tmp_path) as here:
        with readers(here, ["n = 3"]):
            opened.until(1)
            assert "t" in here.filtered._live._matchers
        assert not here.filtered._live._matchers
        here.frontiers.close()
        for thread in threading.enumerate():
            if thread.name == "door-filters":
                thread.join(WAIT_S)
                assert not thread.is_alive()


def test_the_cost_of_shared_matching_is_divided_among_clients(tmp_path: Path, opened: Opened) -> None:
    with known_store(tmp_path) as here, readers(here, ["n = 3", "n = 4"]) as following:
        opened.until(2)
        here.publish(A, numbers(0))
        for reader in following:
            reader.until(A, 11)
    spent = here.cpu.so_far()
    assert spent["reader n = 3"] > 0 and spent["reader n = 4"] > 0


# ---- tails that see less than others


def test_tails_that_see_other_streams_share_the_matching(tmp_path: Path, opened: Opened) -> None:
    """Members of a group are such tails."""
    owned = {KNOWN, A}
    with known_store(tmp_path) as here:
        view = SharedFrontiers(here.frontiers, lambda stream: stream in owned)
        with readers(here, ["n > 1"]) as (whole,), readers(here, ["n > 1"], view=view) as (part,):
            opened.until(2)
            here.publish(A, numbers(0))
            here.publish(B, numbers(0))
            whole.until(B, 11)
            part.until(A, 11)
            assert opened.decoded == Counter({1: 2}), "once in each stream"
            assert (part.of(A), part.of(B)) == (whole.of(A), [])
            owned.add(B)
            here.publish(A, numbers(10))
            part.until(B, 11)
            assert part.of(B) == whole.of(B), "what was not kept for it, it reads by itself"


def test_a_tail_that_does_not_see_as_far_as_others_reads_by_itself(tmp_path: Path, opened: Opened) -> None:
    with known_store(tmp_path) as here:
        here.publish(A, numbers(0), numbers(10))
        here.frontiers.cover("t", {"r": {}}, {KNOWN.origin: 2, A.origin: 11})
        view = CoveredFrontiers(here.frontiers, {"t": "r"}, lambda name: None, None)
        behind = CoveredFrontiers(here.frontiers, {"t": "r"}, lambda name: None, None)
        with readers(here, ["n > 1"], view=view) as (first,):
            opened.until(1)
            here.frontiers.cover("t", {"r": {}}, {A.origin: 21})
            first.until(A, 21)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(behind, "_positions", lambda topics: {KNOWN: 2, A: 11})
                with readers(here, ["n > 2"], view=behind) as (second,):
                    opened.until(3)  # it asks again
                    second.until(A, 11)
                    assert second.of(A) == [4, 5, 6, 7, 8, 9, 10]
                    patch.undo()
                    second.until(A, 21)
                    assert second.of(A) == list(range(4, 21))


def test_rows_of_other_profiles_are_left_out_of_a_tail(tmp_path: Path, opened: Opened) -> None:
    """They are not matched for all."""
    left_out = LeftOut(profile=parse("n < 5"), begin={}, hole={}, within=None)
    with known_store(tmp_path) as here, readers(here, ["n > 1"], left_out=(left_out,)) as (reader,):
        here.publish(A, numbers(0))
        reader.until(A, 11)
        assert reader.of(A) == [6, 7, 8, 9, 10]


# ---- the inbox


def test_an_inbox_is_bounded_and_takes_one_letter_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "INBOX_BYTES", 10)
    profile: Profile = parse("n = 1")
    letter: Callable[[], Any] = object
    inbox = Inbox({"t": profile})
    assert inbox.put(letter(), 100)
    assert not inbox.put(letter(), 1)
    assert inbox.take() is None, "what it had is dropped: the tail reads it by itself"
    inbox = Inbox({"t": profile})
    assert inbox.put(letter(), 5) and inbox.put(letter(), 5)
    letters = inbox.take()
    assert letters is not None and len(letters) == 2
    assert inbox.put(letter(), 10)


def test_an_inbox_has_at_most_so_many_letters() -> None:
    letter: Callable[[], Any] = object
    inbox = Inbox({"t": parse("n = 1")})
    assert all(inbox.put(letter(), 1) for _ in range(inboxes.INBOX_LETTERS))
    assert not inbox.put(letter(), 1)
    assert inbox.take() is None


def test_a_tail_of_several_topics_has_one_inbox(tmp_path: Path, opened: Opened) -> None:
    other = stream_id("o", "u")
    with known_store(tmp_path) as here:
        here.publish(other, numbers(0, 1))
        with readers(here, ["n = 3 OR n = 13"], topics=("t", "u")) as (both,):
            opened.until(1)
            here.publish(A, numbers(0))
            here.publish(B, numbers(0, 4))
            here.publish(other, numbers(10))
            for stream, until in ((A, 11), (B, 5), (other, 12)):
                both.until(stream, until)
            assert (both.of(A), both.of(B), both.of(other)) == ([4], [4], [5])


# ---- summaries


def test_batches_that_no_tail_wants_by_their_summary_are_not_decoded(tmp_path: Path, opened: Opened) -> None:
    with known_store(tmp_path) as here, readers(here, ["n = 35", "n > 70"]) as (one, two):
        opened.until(2)
        here.publish(A, *(numbers(first) for first in range(0, 100, 10)), summarised=["n"])
        for reader in (one, two):
            reader.until(A, 101)
            assert reader.of(A) == expected(here, reader, A)
        assert opened.decoded == Counter({31: 1, 71: 1, 81: 1, 91: 1}), "only those that may match"


def test_a_batch_with_a_summary_of_something_else_is_matched(tmp_path: Path, opened: Opened) -> None:
    with known_store(tmp_path) as here, readers(here, ["n = 5"]) as (reader,):
        opened.until(1)
        here.publish(A, numbers(0), summarised=["n"], damaged=True)
        reader.until(A, 11)
        assert reader.of(A) == [6]


def test_a_tail_that_comes_while_batches_are_passed_over_gets_its_rows(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summaries are asked for many batches at once, and a profile may come between the question and the passing."""
    asked, goes_on = threading.Event(), threading.Event()
    original = TopicMatcher._pass_over

    def held(matcher: TopicMatcher, *args: Any) -> bool:
        asked.set()
        assert goes_on.wait(WAIT_S)
        return original(matcher, *args)

    monkeypatch.setattr(TopicMatcher, "_pass_over", held)
    with known_store(tmp_path) as here, readers(here, ["n > 1000"]) as (first,):
        opened.until(1)
        here.publish(A, numbers(0), numbers(10), summarised=["n"])
        assert asked.wait(WAIT_S)
        # It is level with where the matcher is, and waits for it.
        with monkeypatch.context() as patch:
            patch.setattr(here.frontiers, "positions", lambda topics: {KNOWN: 2, A: 1})
            with readers(here, ["n = 15"]) as (second,):
                opened.until(2)
                goes_on.set()
                second.until(A, 21)
                assert second.of(A) == [16]
        first.until(A, 21)
        assert first.of(A) == []


# ---- handing out


def test_a_tail_that_nothing_matches_is_certified_and_not_woken(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    original = Inbox.wake

    def noted(inbox: Inbox) -> bool:
        woken.append(inbox.profiles["t"].text)
        return original(inbox)

    monkeypatch.setattr(Inbox, "wake", noted)
    with known_store(tmp_path) as here, readers(here, ["n >= 0", "n = -1"]) as (all_rows, nothing):
        opened.until(2)
        for first in range(0, 50, 10):
            here.publish(A, numbers(first))
            all_rows.until(A, first + 11)
        nothing.until(A, 51)
        assert nothing.of(A) == []
        assert set(woken) == {all_rows.profile.text}


def waiting(inbox: Inbox) -> tuple[threading.Thread, threading.Event]:
    """A thread that waits at an inbox, and whether it was woken."""
    waits, woken = threading.Event(), threading.Event()
    original = inbox._changed.wait

    def noted(timeout: float | None = None) -> bool:
        waits.set()  # with the lock, which only the wait gives up
        return original(timeout)

    inbox._changed.wait = noted  # type: ignore[method-assign]

    def wait() -> None:
        inbox.wait(time.monotonic() + WAIT_S)
        woken.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waits.wait(WAIT_S)
    return thread, woken


def test_tails_are_woken_one_after_another() -> None:
    profile = parse("n = 1")
    turns, boxes = Turns(), [Inbox({"t": profile}) for _ in range(4)]
    threads = {inbox: waiting(inbox) for inbox in (boxes[0], boxes[2], boxes[3])}  # the second is busy
    turns.wake(boxes)
    assert threads[boxes[0]][1].wait(WAIT_S)
    assert boxes[2]._is_waiting and boxes[3]._is_waiting
    turns.end(boxes[3])  # one that was not woken changes nothing
    assert boxes[2]._is_waiting
    turns.end(boxes[0])
    assert threads[boxes[2]][1].wait(WAIT_S), "the one that is busy is passed over"
    assert boxes[3]._is_waiting
    turns.end(boxes[2])
    assert threads[boxes[3]][1].wait(WAIT_S)
    turns.end(boxes[3])
    turns.wake(boxes)  # nobody waits
    assert turns._at_work is None
    for thread, _ in threads.values():
        thread.join(WAIT_S)


def test_a_tail_that_fails_gives_its_turn_to_the_next(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Letter.rows_from

    def failing(letter: Letter, first: int) -> Any:
        if letter.found.rows.num_rows == 5:
            raise Refusal("not-arrow", "as if the rows of one tail were damaged")
        return original(letter, first)

    monkeypatch.setattr(Letter, "rows_from", failing)
    with known_store(tmp_path) as here, readers(here, [f"n < {number}" for number in range(5, 11)]) as following:
        opened.until(6)
        here.publish(A, numbers(0))
        for reader in following[1:]:
            reader.until(A, 11)
        following[0].join()
        assert following[0].refusal is not None
        turns = here.filtered._live._turns
        with turns._lock:
            assert not turns._waiting


def test_a_letter_keeps_no_rows_of_other_tails(tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[int, int] = {}
    original = Inbox.put

    def measured(inbox: Inbox, letter: Letter, size: int) -> bool:
        sizes[letter.found.rows.num_rows] = letter.found.rows.get_total_buffer_size()
        return original(inbox, letter, size)

    monkeypatch.setattr(Inbox, "put", measured)
    texts = ["n = 7", "n < 6000", "n >= 6000 AND n <> 6001"]
    with known_store(tmp_path) as here, readers(here, texts) as following:
        opened.until(3)
        here.publish(A, numbers(0, 10_000))
        for reader in following:
            reader.until(A, 10_001)
            assert reader.of(A) == expected(here, reader, A)
    assert sorted(sizes) == [1, 3_999, 6_000]
    assert sizes[1] < 1_000


@pytest.mark.parametrize(("inboxes", "limit"), [(1, 1 << 20), (200, 200 * (32 << 10)), (100_000, 16 << 20)])
def test_matches_are_collected_up_to_a_limit(inboxes: int, limit: int) -> None:
    rows = CollectedMatches(pa.schema([]))
    rows._bytes = limit - 1
    assert not rows.is_large(inboxes)
    rows._bytes = limit
    assert rows.is_large(inboxes)
