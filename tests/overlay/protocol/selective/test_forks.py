"""Forks of selective streams (H8): an origin whose disk was restored numbers rows anew, over a range of which a
receiver has nothing, since it wanted nothing of it. The receiver takes nothing of the other history, and says so."""

from m4cast.overlay.protocol.effects import Append, InsertBatch, MarksRecord, Trace
from m4cast.overlay.protocol.selective.contract import SelectiveOutput
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.selective import (
    CoverEntry,
    CoverStmt,
    Destination,
    RoutedFrame,
    SelectPullCall,
    SelectPullResp,
)
from tests.overlay.protocol.selective.test_memory import FilteringNode
from tests.overlay.protocol.stream_parts import chain


class Receiver(FilteringNode):
    """It has the first batch, and knows of the second that it holds nothing for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.filtered = chain(2, stream=self.stream)
        assert [type(each) for each in self.hear(self.first, 1)] == [InsertBatch, MarksRecord]
        self.hear(self.stated(self.filtered))
        assert self.is_covered_to() == 3

    def stated(self, batch: Batch) -> CoverStmt:
        """The statement that nothing up to the end of this batch is wanted."""
        stated = CoverEntry("t", batch.first_sequence, batch.next_sequence, batch.checksum)
        return CoverStmt(self.stream.origin, (stated,))

    def hear(self, content: Batch | CoverStmt | SelectPullResp, stated_from: int = 0) -> list[object]:
        """Take a frame of the origin; what is written, each at once on the disk, and traced."""
        self.now_ms += 1_000
        frame = RoutedFrame(self.stream.origin, (Destination(self.me, stated_from, 1),), content)
        self.machine.received(frame, self.now_ms)
        seen: list[object] = []
        for output in self.outputs():
            if isinstance(output, Append):
                seen += output.writes
                self.machine.durable(output.token, self.now_ms)
            elif isinstance(output, Trace):
                seen.append(output.name)
        return seen

    def outputs(self) -> list[SelectiveOutput]:
        while (timer := self.timers.pop_due(self.now_ms)) is not None:
            self.machine.timer(timer, self.now_ms)
        return self.machine.take_outputs()

    def is_covered_to(self) -> int | None:
        return self.machine.receiving.coverage("w", self.stream)


def test_what_follows_another_batch_than_the_filtered_one_is_not_taken() -> None:
    node = Receiver()
    (anew,) = chain(1, after=node.first, mark=b"x")
    (after,) = chain(1, after=anew)
    assert node.hear(after, 3) == ["fork"]
    assert node.hear(chain(1, after=after)[0], 4) == [], "nor anything later"
    assert node.is_covered_to() == 3


def test_a_batch_in_place_of_the_filtered_one_is_not_taken() -> None:
    node = Receiver()
    (anew,) = chain(1, after=node.first, mark=b"x")
    assert node.hear(anew, 2) == ["fork"]
    assert node.hear(node.filtered, 2) == []


def test_a_statement_about_another_batch_than_the_filtered_one_settles_nothing() -> None:
    node = Receiver()
    (anew,) = chain(1, after=node.first, mark=b"x")
    (after,) = chain(1, after=anew)
    both = CoverStmt(node.stream.origin, (CoverEntry("t", 2, anew.next_sequence, anew.checksum),))
    assert node.hear(both) == ["fork"]
    assert node.hear(node.stated(after)) == []
    assert node.is_covered_to() == 3


def test_an_answer_of_another_history_ends_the_fetching() -> None:
    node = Receiver()
    ahead = chain(2, after=node.filtered)[1]
    node.hear(ahead, 4)
    calls: list[SelectPullCall] = []
    while not calls:
        node.now_ms += 1_000
        frames = [each for each in node.outputs() if isinstance(each, RoutedFrame)]
        calls += [each.content for each in frames if isinstance(each.content, SelectPullCall)]
    (call,) = calls
    assert (call.first_sequence, call.next_sequence) == (3, 4)
    answer = SelectPullResp(call.call, call.origin, call.topic, 3, 3, 1, 5, is_whole=False, is_fork=True, batches=())
    assert node.hear(answer) == ["fork"]
    assert node.hear(chain(1, after=ahead)[0], 5) == []
