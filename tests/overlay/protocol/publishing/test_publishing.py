"""Publishing: nothing leaves or is answered before it is durable, requests wait their turn, and a leaver hands over."""

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    Abort,
    Append,
    Commit,
    Delivered,
    KeyMove,
    Output,
    Publish,
    Published,
    PublisherRecord,
    PublisherState,
    Range,
    Recovered,
    Refused,
    Stage,
    Staged,
    StageDone,
    StoredStream,
)
from m4cast.overlay.protocol.holdings import Holdings, Stream
from m4cast.overlay.protocol.publishing.publishing import (
    KEY_STEP_MS,
    KEY_SWEEP_MS,
    STAGE_SWEEP_MS,
    WINDOW_LOOK_MS,
    KeySweepDue,
    Publishing,
    StageSweepDue,
)
from m4cast.overlay.protocol.publishing.window import PATIENCE_MS
from m4cast.overlay.protocol.wire.batch import BatchFrame, How
from m4cast.overlay.protocol.wire.messages import AckEntry
from tests.overlay.protocol.append_parts import batches_of, deliveries_of, publishers_of, unstaged_of
from tests.overlay.protocol.stream_parts import context_of_m, node_id, of, stream_id, take

T, U = stream_id("m", "t"), stream_id("m", "u")
WINDOW = 1_024


class Press:
    """The publishing of node m, with these neighbours."""

    def __init__(
        self,
        neighbours: str = "",
        queue_max: int = 3,
        streams: dict[StreamId, StoredStream] | None = None,
        publishers: dict[str, PublisherState] | None = None,
    ) -> None:
        config = NodeConfig(
            listen="m:7400", publish_window_bytes=WINDOW, publish_queue_max=queue_max, stage_expire_ms=1_000
        )
        recovered = Recovered(
            node_id("m"),
            1,
            streams=streams or {},
            origin_batch=40 if streams else 0,
            records={PublisherRecord: publishers or {}},
        )
        self.context = context = context_of_m(config)
        self.out, self.timers = context.out, context.timers
        self.holdings = Holdings(recovered.streams)
        self.spread: list[tuple[StreamId, BatchFrame]] = []
        self.press = Publishing(context, recovered, self.holdings, self.see_spread)
        for name in neighbours:
            self.press.acks.neighbour_up(node_id(name), 0)

    @property
    def tokens(self) -> int:
        return self.context.last_token

    def see_spread(self, stream: Stream, frame: BatchFrame, now_ms: int) -> None:
        assert stream.next == frame.batch.next_sequence, "it is in the holdings before it is told"
        self.spread.append((stream.id, frame))

    def ask(self, *requests: Publish | Commit, now_ms: int = 0) -> list[Output]:
        for request in requests:
            self.press.take(request)
        self.press.run_queue(now_ms)
        return take(self.out)

    def durable(self) -> list[Output]:
        for token in range(1, self.tokens + 1):
            self.press.durable(token, 0)
        return take(self.out)

    def acked(self, name: str, next_sequence: int, topic: str = "t", held_from: int = 1) -> None:
        self.press.acks.acked(node_id(name), (AckEntry(topic, held_from, next_sequence),), 0)


def payload(topic: str = "t", size: int = 10, rows: int = 1) -> Staged:
    return Staged(topic, rows, 1, b"." * size)


# ---- one request


def test_nothing_leaves_and_nothing_is_answered_before_it_is_durable() -> None:
    press = Press()
    (append,) = press.ask(Publish(1, (payload(rows=2), payload("u"))))
    assert isinstance(append, Append)
    assert press.spread == []
    assert press.holdings.streams == {}
    assert press.press.origin_batch == 0
    outputs = press.durable()
    one, two = batches_of(append)
    assert [(stream, frame) for stream, frame in press.spread] == [
        (T, BatchFrame(one, 0, How.PUBLISHED)),
        (U, BatchFrame(two, 0, How.PUBLISHED)),
    ]
    assert outputs == [
        *(Delivered(delivery) for delivery in deliveries_of(append)),
        Published(1, (Range(T, 1, 3), Range(U, 1, 2))),
    ]
    stream = press.holdings.open(T)
    assert (stream.next, stream.durable_next) == (3, 3)
    assert stream.last_checksum == stream.durable_checksum == one.checksum
    assert press.press.origin_batch == 2


def test_keys_are_looked_at_once_an_hour_in_steps() -> None:
    states = {f"k{number}": PublisherState("1", ()) for number in range(1_500)}
    press = Press(publishers=states)
    press.press.sweep_keys(0)
    (first,) = of(take(press.out), Append)
    assert (len(publishers_of(first)), press.timers.next_at()) == (1_000, KEY_STEP_MS)
    press.press.sweep_keys(KEY_STEP_MS)
    (second,) = of(take(press.out), Append)
    assert (len(publishers_of(second)), press.timers.next_at()) == (500, KEY_STEP_MS + KEY_SWEEP_MS)


def test_numbers_go_on_where_the_store_ends() -> None:
    press = Press(streams={T: StoredStream(1, 8, 77)})
    assert press.press.origin_batch == 40
    press.ask(Publish(1, (payload(),)))
    assert of(press.durable(), Published) == [Published(1, (Range(T, 8, 9),))]
    assert press.press.origin_batch == 41


def test_the_answer_waits_for_as_many_disks_as_it_asked_for() -> None:
    press = Press("ab")
    press.ask(Publish(1, (payload(),), acks=1))
    assert of(press.durable(), Published) == []
    press.acked("a", 2)
    assert of(take(press.out), Published) == [Published(1, (Range(T, 1, 2),))]


def test_staged_payloads_are_committed_aborted_or_expire() -> None:
    press = Press()
    for number, name in enumerate("xyz"):
        press.press.stage(Stage(number, name, payload()), 0)
    assert of(press.durable(), StageDone) == [StageDone(0), StageDone(1), StageDone(2)]
    press.press.abort(Abort(("x",)), 0)
    (append,) = of(press.ask(Commit(4, ("y",), (KeyMove("k", None, "1"),))), Append)[-1:]
    assert unstaged_of(append) == ("y",)
    press.press.start(0)
    assert press.timers.next_at() == STAGE_SWEEP_MS
    assert press.timers.pop_due(STAGE_SWEEP_MS) == StageSweepDue()
    assert press.timers.pop_due(STAGE_SWEEP_MS) == KeySweepDue()
    press.press.sweep(STAGE_SWEEP_MS)
    assert press.timers.next_at() == 2 * STAGE_SWEEP_MS
    (append,) = of(take(press.out), Append)
    assert unstaged_of(append) == ("z",)
    for name in "xz":
        assert of(press.ask(Commit(5, (name,), ())), Refused)[0].code == "missing-stage"


def test_a_disk_that_fails_refuses_and_gives_the_number_to_the_next() -> None:
    press = Press()
    press.ask(Publish(1, (payload(),)))
    press.press.failed(1, "disk full", 0)
    (refused,) = of(take(press.out), Refused)
    assert (refused.request, refused.code) == (1, "store")
    assert "disk full" in refused.detail
    assert press.spread == []
    press.ask(Publish(2, (payload(),)))
    assert of(press.durable(), Published) == [Published(2, (Range(T, 1, 2),))]


# ---- many requests


def test_requests_wait_for_the_window_and_go_on_in_their_order() -> None:
    press = Press("a")
    press.press.stage(Stage(0, "s", payload()), 0)
    press.ask(Publish(1, (payload(size=WINDOW),)))
    press.durable()
    assert press.ask(Publish(2, (payload(),)), Commit(3, ("s",), ()), Publish(4, (payload(),))) == []
    assert press.timers.next_at() == WINDOW_LOOK_MS
    press.acked("a", 2)
    press.press.run_queue(0)
    appends = of(take(press.out), Append)
    assert [batches_of(append)[0].first_sequence for append in appends] == [2, 3, 4]
    assert [unstaged_of(append) for append in appends] == [(), ("s",), ()]
    assert [published.request for published in of(press.durable(), Published)] == [2, 3, 4]


def test_a_full_window_is_looked_at_again_until_patience_ends() -> None:
    press = Press("a")
    press.ask(Publish(1, (payload(size=WINDOW),)))
    press.durable()
    assert press.ask(Publish(2, (payload(),)), now_ms=PATIENCE_MS) == []
    press.press.run_queue(PATIENCE_MS + 1)
    assert len(of(press.out, Append)) == 1


def test_so_many_requests_may_wait_and_one_more_is_refused() -> None:
    press = Press("a", queue_max=3)
    press.ask(Publish(1, (payload(size=WINDOW),)))
    press.durable()
    outputs = press.ask(*(Publish(number, (payload(),)) for number in range(2, 6)))
    (refused,) = of(outputs, Refused)
    assert (refused.request, refused.code) == (5, "busy")
    press.acked("a", 2)
    press.press.run_queue(0)
    assert len(of(take(press.out), Append)) == 3
    assert of(press.ask(Publish(6, (payload(),))), Refused) == []


# ---- leaving


@pytest.mark.parametrize(
    ("acked", "handed_over"),
    [
        ([], False),
        ([("a", 3, "t")], False),  # not all topics
        ([("a", 3, "t"), ("b", 2, "u")], False),  # not at one node
        ([("a", 3, "t"), ("a", 2, "u")], True),
        ([("a", 2, "t"), ("a", 2, "u")], False),  # not all rows
    ],
)
def test_rows_are_handed_over_when_one_other_node_has_them_all(
    acked: list[tuple[str, int, str]], handed_over: bool
) -> None:
    press = Press("ab")
    press.ask(Publish(1, (payload(rows=2), payload("u"))))
    press.durable()
    for name, next_sequence, topic in acked:
        press.acked(name, next_sequence, topic)
    assert press.press.handed_over() is handed_over


def test_rows_are_not_handed_over_to_a_node_that_is_no_neighbour_any_more() -> None:
    press = Press("ab")
    press.ask(Publish(1, (payload(),)))
    press.durable()
    press.acked("a", 2)
    assert (press.press.copies(), press.press.handed_over()) == (1, True)
    press.press.acks.neighbour_down(node_id("a"), is_gone=False)
    assert (press.press.copies(), press.press.handed_over()) == (0, False)


def test_who_published_nothing_has_nothing_to_hand_over() -> None:
    assert Press("ab").press.handed_over()
    assert Press("ab", streams={stream_id("o"): StoredStream(1, 5, 0)}).press.handed_over()
    assert not Press("ab", streams={T: StoredStream(1, 5, 0)}).press.handed_over()


def test_who_is_owed_an_answer_is_waited_for() -> None:
    press = Press("ab")
    press.ask(Publish(1, (payload(),), acks=2))
    press.durable()
    press.acked("a", 2)
    assert not press.press.handed_over()
    press.acked("b", 2)
    assert press.press.handed_over()


def test_who_waits_in_the_queue_is_waited_for() -> None:
    press = Press("ab")
    press.ask(Publish(1, (payload(size=WINDOW),)))
    press.durable()
    press.ask(Publish(2, (payload(),)))
    press.acked("a", 2)
    assert not press.press.handed_over()


# ---- clients that are gone


def test_a_request_that_nobody_waits_for_does_not_wait_for_acks() -> None:
    press = Press("a")
    press.ask(Publish(1, (payload(),), acks=9), Publish(2, (payload(),), acks=1))
    press.durable()
    press.press.forget(1)
    assert press.press.acks.waiting() == [(2, Range(T, 2, 3))]
    press.press.forget(1)
    press.acked("a", 3)
    assert of(take(press.out), Published) == [Published(2, (Range(T, 2, 3),))]


def test_a_request_that_is_forgotten_on_its_way_to_the_disk_spreads_and_waits_for_nobody() -> None:
    press = Press("a")
    press.ask(Publish(1, (payload(),), acks=9))
    press.press.forget(1)
    press.durable()
    assert [frame.batch.first_sequence for _, frame in press.spread] == [1]
    assert press.press.acks.waiting() == []


def test_a_request_that_is_forgotten_in_the_queue_is_not_done() -> None:
    press = Press("a")
    press.ask(Publish(1, (payload(size=WINDOW),)))
    press.durable()
    assert press.ask(Publish(2, (payload(),)), Publish(3, (payload("u"),))) == [], "the window is full"
    press.press.forget(2)
    press.acked("a", 2)
    (append,) = press.ask()
    assert isinstance(append, Append)
    assert [batch.stream for batch in batches_of(append)] == [U]
