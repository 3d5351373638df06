"""Damaged batches: which nodes are asked, and what is done with their answers."""

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, Damaged, StoredStream
from m4cast.overlay.protocol.holdings import Holdings
from m4cast.overlay.protocol.streams.repair import REPAIRS_MAX, Repair
from m4cast.overlay.protocol.streams.timers import RepairDue
from m4cast.overlay.protocol.wire.batch import Batch
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, context_of_m, node_id, of, stream_id, take

S = stream_id()
A, B = node_id("a"), node_id("b")


class Bench:
    """A repair machine with two sources, and what it asked of them."""

    def __init__(self) -> None:
        context = context_of_m()
        self.out, self.timers = context.out, context.timers
        self.sources = [A, B]
        self.busy: list[NodeId] = []
        self.pulls: list[tuple[NodeId, int, int]] = []
        self.searches: list[int] = []
        self.holdings = Holdings({S: StoredStream(1, 200, 0)})
        self.repair = Repair(
            context,
            self.holdings,
            lambda: list(self.sources),
            self._ask,
            lambda stream_id, first: self.searches.append(first),
        )

    def _ask(self, source: NodeId, stream: StreamId, first: int, next_sequence: int) -> bool:
        if source not in self.busy:
            self.pulls.append((source, first, next_sequence))
        return source not in self.busy

    def found(self, first: int, following: int, *, stream: StreamId = S, now_ms: int = 0) -> None:
        self.repair.found(Damaged(stream, first, following, (chain(3)[2].checksum,)), now_ms)

    def fire(self) -> None:
        """The time of the only timer has come."""
        at_ms = self.timers.next_at()
        assert at_ms is not None
        assert self.timers.pop_due(at_ms) == RepairDue(S, 3)
        self.repair.timer(S, 3, at_ms)


def damaged() -> tuple[Bench, Batch]:
    bench = Bench()
    bench.found(3, 4)
    return bench, chain(3)[2]


def test_sources_are_asked_in_turn_and_then_a_holder_is_searched_for() -> None:
    bench, _ = damaged()
    assert bench.pulls == [(A, 3, 4)]
    bench.repair.answered(S, 3, A, 3, 5)
    assert bench.pulls[1:] == [(B, 3, 4)]
    bench.fire()  # no answer
    assert (len(bench.pulls), bench.searches) == (2, [3])
    bench.fire()  # all over again
    assert bench.pulls[2:] == [(A, 3, 4)]


def test_searches_become_rarer() -> None:
    bench = Bench()
    bench.sources.clear()
    bench.found(3, 4)
    times = []
    for _ in range(9):
        times.append(bench.timers.next_at() or 0)
        bench.fire()
    waits = [later - earlier for earlier, later in zip([0, *times], times, strict=False)]
    assert waits == sorted(waits) and waits[0] < waits[-1] <= 60_000


def test_a_holder_that_was_found_is_asked_at_once() -> None:
    bench = Bench()
    bench.sources.clear()
    bench.found(3, 4)
    assert bench.repair.wants(S) and not bench.repair.wants(stream_id("p"))
    bench.sources.append(B)
    bench.repair.holder_found(S, 1)
    bench.repair.holder_found(S, 1)
    assert bench.pulls == [(B, 3, 4)]


def test_a_source_that_has_too_much_to_answer_is_passed_over() -> None:
    bench = Bench()
    bench.busy = [A]
    bench.found(3, 4)
    assert bench.pulls == [(B, 3, 4)]


def test_what_comes_is_written_once_and_forgotten_when_it_is_durable() -> None:
    bench, batch = damaged()
    take(bench.out)
    bench.repair.received(batch, A, 0)
    bench.repair.received(batch, A, 0)
    assert of(take(bench.out), Append) == [append_of(1, repairs=(batch,))]
    assert bench.timers.next_at() is None
    assert bench.repair.is_damaged(S, 3) and not bench.repair.is_damaged(S, 4)
    assert bench.repair.durable(7) is None
    assert bench.repair.durable(1) == (S, 3)
    assert (bench.repair.damaged, bench.repair.repaired) == ({}, 1)


def test_other_batches_are_none_of_its_business() -> None:
    bench, _ = damaged()
    take(bench.out)
    for other in (chain(2)[1], chain(2, rows=2)[1], chain(3, stream=stream_id("p"))[2]):
        bench.repair.received(other, A, 0)
    assert bench.out == []


def test_a_batch_of_another_history_is_not_taken_and_the_next_source_is_asked() -> None:
    bench, batch = damaged()
    take(bench.out)
    other = chain(3, mark=b"?")[2]
    bench.repair.received(other, B, 0)
    assert bench.pulls == [(A, 3, 4)], "nobody has asked that node"
    bench.repair.received(other, A, 0)
    assert (bench.pulls[1:], bench.out) == ([(B, 3, 4)], [])
    bench.repair.received(batch, B, 0)
    assert of(bench.out, Append) == [append_of(1, repairs=(batch,))]


def test_a_repair_that_the_store_did_not_keep_is_made_again() -> None:
    bench, batch = damaged()
    bench.repair.received(batch, A, 0)
    bench.repair.failed(1, 0)
    bench.fire()
    bench.repair.received(batch, A, 0)
    assert [append.token for append in of(bench.out, Append)] == [1, 2]


def test_what_is_reported_again_or_is_not_kept_is_not_fetched() -> None:
    bench, _ = damaged()
    bench.found(3, 4, now_ms=1)
    bench.found(200, 201, now_ms=1)
    bench.found(1, 2, stream=stream_id("unknown"), now_ms=1)
    assert bench.pulls == [(A, 3, 4)]
    bench.holdings.open(S).low = 4
    bench.fire()
    assert (bench.repair.damaged, bench.timers.next_at()) == ({}, None)


def test_a_limited_number_is_fetched_at_a_time() -> None:
    bench = Bench()
    for first in range(1, REPAIRS_MAX + 3):
        bench.found(first, first + 1)
    assert len(bench.repair.damaged) == len(bench.pulls) == REPAIRS_MAX
