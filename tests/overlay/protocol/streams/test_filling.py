"""Who is asked for rows that were skipped, and what becomes of those that come."""

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, FillSkip, StoredStream
from m4cast.overlay.protocol.holdings import Holdings
from m4cast.overlay.protocol.streams.filling import FILLS_MAX, Filling
from m4cast.overlay.protocol.wire.batch import How, Skip, SkipReason
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
