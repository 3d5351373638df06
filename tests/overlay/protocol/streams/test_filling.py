"""Rows that were skipped: whom a node asks for them, and where those that arrive are stored."""

from dataclasses import replace

import pytest

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    FillSkip,
    Output,
    PrependBatch,
    Refused,
    Restore,
    Restored,
    StoredStream,
)
from m4cast.overlay.protocol.holdings import Holdings
from m4cast.overlay.protocol.streams.filling import FILLS_MAX, Filling
from m4cast.overlay.protocol.wire.batch import Batch, How, Skip, SkipReason
from tests.overlay.protocol.stream_parts import chain, context_of_m, node_id, of, pushed, stream_id, take

S = stream_id()
A, B = node_id("a"), node_id("b")


class Filler:
    """A node that skipped 1 to 6 of each of these streams and has 7 and 8."""

    def __init__(self, *streams: StreamId, reason: SkipReason = SkipReason.EXPIRED) -> None:
        stored = {
            stream: StoredStream(1, 9, 7, (Skip(stream, 1, 6, reason, node_id("m")),)) for stream in streams or (S,)
        }
        context = context_of_m()
        self.out = context.out
        self.holdings = Holdings(stored)
        self.pulls: list[tuple[NodeId, StreamId, int, int]] = []
        self.is_able = True
        self.filling = Filling(context, self.holdings, self.ask)

    def ask(self, *wanted: object) -> bool:
        if self.is_able:
            self.pulls.append(wanted)  # type: ignore[arg-type]  # as `Filling` calls it
        return self.is_able

    def skips(self) -> list[tuple[int, int]]:
        return [(skip.first_sequence, skip.last_sequence) for skip in self.holdings.streams[S].skips]


def test_a_neighbour_is_asked_for_what_was_skipped_and_fills_it() -> None:
    filler = Filler()
    filler.filling.exchanged(A)
    assert filler.pulls == [(A, S, 1, 7)]
    batches = chain(4, rows=2)
    for batch in batches[:2]:
        filler.filling.received(pushed(batch), A, 5)
    (first, second) = of(take(filler.out), Append)
    (fill,) = first.of(FillSkip)
    assert len(first.writes) == 1 and fill.batch == batches[0] and fill.delivery.how is How.FILLED
    filler.filling.received(pushed(batches[0]), A, 5)
    assert of(filler.out, Append) == [], "it is on its way to the disk"
    assert filler.skips() == [(1, 6)], "not on disk yet"
    found = filler.filling.durable(first.token)
    assert found is not None and found[1] == batches[0]
    filler.filling.durable(second.token)
    assert filler.skips() == [(5, 6)]
    filler.filling.answered(S, 1, A, 5, 9)
    assert filler.pulls[1:] == [(A, S, 5, 7)], "there is more where that came from"
    filler.filling.answered(S, 5, A, 5, 9)
    assert len(filler.pulls) == 2 and filler.filling.asked == {}


def test_what_was_declined_is_not_asked_for() -> None:
    filler = Filler(reason=SkipReason.FILTERED)
    filler.filling.exchanged(A)
    filler.filling.offered(A, S, 1, 3)
    assert filler.pulls == []


def test_an_announcement_of_skipped_rows_is_followed_and_no_other() -> None:
    filler = Filler()
    for first, next_sequence in ((7, 9), (5, 8), (9, 11)):
        filler.filling.offered(A, S, first, next_sequence)
    filler.filling.offered(A, stream_id("x"), 1, 3)
    assert filler.pulls == []
    filler.filling.offered(A, S, 3, 5)
    assert filler.pulls == [(A, S, 3, 5)]


def test_so_many_are_asked_for_at_a_time_and_who_is_gone_is_not() -> None:
    streams = [stream_id("o", f"t{number}") for number in range(FILLS_MAX + 2)]
    filler = Filler(*streams)
    filler.filling.exchanged(A)
    filler.filling.exchanged(B)
    assert len(filler.pulls) == FILLS_MAX
    filler.filling.source_down(A)
    assert {node for node, *_ in filler.pulls[FILLS_MAX:]} == {B}
    assert len(filler.pulls) == 2 * FILLS_MAX


def test_rows_that_the_disk_did_not_take_are_asked_for_again_at_the_next_link() -> None:
    filler = Filler()
    filler.filling.exchanged(A)
    filler.filling.received(pushed(chain(1, rows=2)[0]), A, 5)
    (append,) = of(take(filler.out), Append)
    filler.filling.failed(append.token)
    filler.filling.answered(S, 1, A, 3, 9)
    assert filler.filling.durable(append.token) is None and filler.skips() == [(1, 6)]
    filler.filling.exchanged(B)
    assert (B, S, 1, 7) in filler.pulls


def test_a_forked_stream_is_not_filled() -> None:
    filler = Filler()
    filler.holdings.streams[S].forked = True
    filler.filling.exchanged(A)
    filler.filling.received(pushed(chain(1, rows=2)[0]), A, 5)
    assert filler.pulls == [] and filler.out == []


# ---- rows that a client brings back


class Restorer(Filler):
    """A node that keeps the third and fourth of four batches of two rows; or none of them."""

    def __init__(self, low: int = 5, *skips: Skip) -> None:
        super().__init__()
        self.batches = chain(4, rows=2)
        self.stream = self.holdings.streams[S]
        self.stream.low, self.stream.skips = low, list(skips)
        self.requests = 0

    def restore(self, batch: Batch, extensions: bytes = b"") -> list[Output]:
        self.requests += 1
        self.filling.restore(Restore(self.requests, batch, extensions), 5)
        return take(self.out)


def refusal(outputs: list[Output]) -> tuple[str, str]:
    (refused,) = of(outputs, Refused)
    assert len(outputs) == 1, "it changed nothing"
    return refused.code, refused.detail


@pytest.mark.parametrize("low", [5, 9])
def test_a_client_puts_rows_back_before_those_that_are_kept(low: int) -> None:
    """The same holds where none is retained."""
    restorer = Restorer(low)
    number = (low - 1) // 2
    for batch in reversed(restorer.batches[:number]):
        (append,) = of(restorer.restore(batch), Append)
        (write,) = append.of(PrependBatch)
        assert (write.batch, restorer.stream.low) == (batch, batch.next_sequence), "not on disk yet"
        assert restorer.filling.durable(append.token) == (restorer.stream, batch)
        assert of(take(restorer.out), Restored) == [Restored(restorer.requests, is_new=True)]
        assert restorer.stream.low == batch.first_sequence


def test_a_client_puts_rows_back_into_a_skip_with_a_record_of_the_time() -> None:
    restorer = Restorer(1, Skip(S, 1, 4, SkipReason.LOST, node_id("m")))
    restorer.filling._clocks.offset_ms = 1_000
    (append,) = of(restorer.restore(restorer.batches[1]), Append)
    (fill,) = append.of(FillSkip)
    assert (fill.delivery.how, fill.delivery.sender, fill.delivery.received_at_ms) == (How.FILLED, None, 1_005)
    restorer.filling.durable(append.token)
    assert restorer.skips() == [(1, 2)] and restorer.stream.low == 1


def test_rows_that_are_kept_are_not_written_again() -> None:
    restorer = Restorer()
    assert restorer.restore(restorer.batches[2]) == [Restored(1, is_new=False)]


def test_only_what_was_published_is_put_back() -> None:
    restorer = Restorer()
    other = chain(4, rows=2, mark=b"x")[1]
    code, detail = refusal(restorer.restore(replace(other, checksum=restorer.batches[1].checksum)))
    assert code == "not-restored" and "rows 3 to 4 of topic 't': its checksum is" in detail
    for extensions in (b"\1", b"\5\0\1\0"):
        assert refusal(restorer.restore(restorer.batches[1], extensions))[0] == "bad-request"
    assert refusal(restorer.restore(replace(restorer.batches[1], row_count=0)))[0] == "bad-request"


def test_rows_without_a_place_here_are_refused() -> None:
    restorer = Restorer()
    assert "rows from 5 on are kept" in refusal(restorer.restore(restorer.batches[0]))[1]
    elsewhere = chain(1, stream=stream_id("x"))[0]
    assert "does not know its stream" in refusal(restorer.restore(elsewhere))[1]
    restorer.stream.forked = True
    assert "two histories" in refusal(restorer.restore(restorer.batches[1]))[1]


def test_one_batch_of_a_stream_is_put_back_at_a_time_and_a_failing_disk_is_reported() -> None:
    restorer = Restorer()
    (append,) = of(restorer.restore(restorer.batches[1]), Append)
    assert refusal(restorer.restore(restorer.batches[1]))[0] == "busy"
    restorer.filling.failed(append.token)
    assert refusal(take(restorer.out))[0] == "store"
    assert restorer.stream.low == 5
    assert of(restorer.restore(restorer.batches[1]), Append)


def test_rows_that_retention_overtook_are_not_claimed() -> None:
    restorer = Restorer()
    (append,) = of(restorer.restore(restorer.batches[1]), Append)
    restorer.holdings.trim(S, 7)
    restorer.filling.durable(append.token)
    assert restorer.stream.low == 7
