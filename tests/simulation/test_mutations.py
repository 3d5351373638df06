"""The simulator finds bugs: deliberate ones, each put into a machine for a while, are caught. Each mutation is what a
plausible mistake would be; the checkers know nothing of it.

Each mutation is pinned to the first seed that finds it (`mutations.json`), so that a test run does not have to search;
the search runs in `make soak`. After a change of behaviour a pinned seed may find its bug no more: then

python -m tests.simulation.test_mutations       searches, and prints the new seeds for `mutations.json`
"""

import json
from collections.abc import Iterator
from typing import Any

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, Delivered, Published
from m4cast.overlay.protocol.holdings import Stream
from m4cast.overlay.protocol.membership.holes import Holes
from m4cast.overlay.protocol.membership.links import Links
from m4cast.overlay.protocol.membership.merging import Merging
from m4cast.overlay.protocol.publishing.acks import Acks
from m4cast.overlay.protocol.publishing.commit import CommitMachine, Outcome
from m4cast.overlay.protocol.publishing.publishing import Publishing
from m4cast.overlay.protocol.streams.dissemination import Dissemination
from m4cast.overlay.protocol.streams.inquiries import Inquiries
from m4cast.overlay.protocol.streams.ordering import Ordering, Persisted, Receipt
from m4cast.overlay.protocol.streams.past import Past
from m4cast.overlay.protocol.streams.pulling import Pulling
from m4cast.overlay.protocol.streams.repair import Repair
from m4cast.overlay.protocol.wire.batch import BatchFrame, How
from m4cast.overlay.sim.campaign import run_seed
from m4cast.overlay.sim.disk import Disk
from tests.overlay.protocol.append_parts import batches_of, deliveries_of, publishers_of
from tests.simulation.mutations import Mutations
from tests.simulation.pinned import caught, found, passing, pinned

SEEDS = 4_000
"""That a search goes through. The first thousand find all bugs but one, which takes a rare schedule."""

mutation = Mutations("mutations.json", run_seed, range(SEEDS))


@mutation
def no_dedup() -> Iterator[tuple[type, str, Any]]:
    """A batch that is here already is accepted again."""
    receive = Ordering.receive

    def mutated(self: Ordering, frame: BatchFrame, sender: NodeId, now_ms: int) -> Receipt:
        stream = self._holdings.open(frame.batch.stream)
        if frame.batch.next_sequence <= stream.next:
            stream.last_checksum = 0
            return self._accept(stream, frame, sender, now_ms)
        return receive(self, frame, sender, now_ms)

    yield Ordering, "receive", mutated


@mutation
def no_hold_back() -> Iterator[tuple[type, str, Any]]:
    """A batch that came too early is accepted as if it were the next."""

    receive = Ordering.receive

    def mutated(self: Ordering, frame: BatchFrame, sender: NodeId, now_ms: int) -> Receipt:
        stream = self._holdings.open(frame.batch.stream)
        if frame.batch.first_sequence > stream.next:
            stream.last_checksum = 0
            return self._accept(stream, frame, sender, now_ms)
        return receive(self, frame, sender, now_ms)

    yield Ordering, "receive", mutated


@mutation
def ack_before_fsync() -> Iterator[tuple[type, str, Any]]:
    accept = Ordering._accept

    def mutated(self: Ordering, stream: Stream, frame: BatchFrame, sender: NodeId, received_at_ms: int) -> Receipt:
        receipt = accept(self, stream, frame, sender, received_at_ms)
        on_disk = stream.durable_next
        stream.durable_next = stream.next
        self._emit(Persisted(stream))
        stream.durable_next = on_disk
        return receipt

    persisted = Dissemination.persisted

    def told(self: Dissemination, stream: Stream) -> None:
        on_disk = stream.durable_next
        stream.durable_next = stream.next
        persisted(self, stream)
        stream.durable_next = on_disk

    yield Ordering, "_accept", mutated
    yield Dissemination, "persisted", told


@mutation
def deliver_before_fsync() -> Iterator[tuple[type, str, Any]]:
    accept = Ordering._accept

    def mutated(self: Ordering, stream: Stream, frame: BatchFrame, sender: NodeId, received_at_ms: int) -> Receipt:
        receipt = accept(self, stream, frame, sender, received_at_ms)
        for output in reversed(self._out):
            if isinstance(output, Append) and deliveries_of(output):
                self._out.append(Delivered(deliveries_of(output)[0]))
                break
        return receipt

    yield Ordering, "_accept", mutated


@mutation
def origin_sends_before_fsync() -> Iterator[tuple[type, str, Any]]:
    perform = Publishing._perform

    def mutated(self: Publishing, outcomes: list[Outcome], now_ms: int) -> None:
        perform(self, outcomes, now_ms)
        for outcome in outcomes:
            if isinstance(outcome, Append):
                for batch in batches_of(outcome):
                    stream = self._holdings.open(batch.stream)
                    self._spread(stream, BatchFrame(batch, 0, How.PUBLISHED), now_ms)

    yield Publishing, "_perform", mutated


@mutation
def answer_before_fsync() -> Iterator[tuple[type, str, Any]]:
    perform = Publishing._perform

    def mutated(self: Publishing, outcomes: list[Outcome], now_ms: int) -> None:
        perform(self, outcomes, now_ms)
        for outcome in outcomes:
            if isinstance(outcome, Append) and publishers_of(outcome):
                answers = self.commits._outstanding[outcome.token].answers
                for answer in answers:
                    self._out.append(Published(answer.request, answer.ranges))

    yield Publishing, "_perform", mutated


@mutation
def acks_not_waited_for() -> Iterator[tuple[type, str, Any]]:
    def mutated(self: Any, request: int, acks: int, ranges: Any) -> None:
        self._out.append(Published(request, ranges))

    yield Acks, "answer_when_acked", mutated


@mutation
def retry_is_a_new_commit() -> Iterator[tuple[type, str, Any]]:
    """A key that is already at its next position is not recognised."""
    yield CommitMachine, "_arrived", lambda self, moves: False
    yield CommitMachine, "_refuse_moves", lambda self, request: None


@mutation
def no_rollback_rule() -> Iterator[tuple[type, str, Any]]:
    """A node does not believe others that have more of its streams than it remembers."""
    yield Past, "rolled_back", property(lambda self: "", lambda self, detail: None)


@mutation
def gaps_are_not_asked_for() -> Iterator[tuple[type, str, Any]]:
    yield Pulling, "want", lambda self, stream, shown_by, now_ms: None


@mutation
def not_yet_is_taken_for_expired() -> Iterator[tuple[type, str, Any]]:
    def mutated(self: Pulling, stream: Stream, now_ms: int) -> None:
        if stream.claimed_next > stream.next:
            self._ordering.skip(stream, self._backlogs.of(stream.id), stream.claimed_next, now_ms)

    def answered(self: Pulling, resp: Any, sender: NodeId, now_ms: int) -> None:
        stream = self._holdings.get(StreamId(resp.origin, resp.topic))
        if stream is not None and resp.served_next <= resp.first_sequence == stream.next:
            mutated(self, stream, now_ms)

    yield Pulling, "answered", answered


@mutation
def failed_appends_are_forgotten() -> Iterator[tuple[type, str, Any]]:
    yield Ordering, "failed", lambda self, token, now_ms: None


@mutation
def holes_stay() -> Iterator[tuple[type, str, Any]]:
    yield Holes, "fill", lambda self, now_ms: None


@mutation
def silence_is_not_noticed() -> Iterator[tuple[type, str, Any]]:
    yield Links, "silent", lambda self, neighbour, now_ms: None


@mutation
def parts_never_meet() -> Iterator[tuple[type, str, Any]]:
    """Components that do not hear each other are left alone."""
    yield Merging, "merge_with", lambda self, address, now_ms, **_: None


@mutation
def a_search_without_an_answer_makes_a_skip() -> Iterator[tuple[type, str, Any]]:
    """A node that is away for a moment is not asked."""
    yield Inquiries, "look_again_at", lambda self, stream_id, sequence, candidates, now_ms: None


@mutation
def overlapping_batches_are_never_served() -> Iterator[tuple[type, str, Any]]:
    """A pull from within a batch is answered as if nothing were kept there: two histories never meet."""

    def mutated(self: Disk, stream: StreamId, first: int, next_sequence: int, bytes_max: int) -> Any:
        return tuple(
            batch for batch in read(self, stream, first, next_sequence, bytes_max)[:1] if batch.first_sequence == first
        )

    read = Disk.read
    yield Disk, "read", mutated


@mutation
def acks_of_former_rows_are_not_waited_for() -> Iterator[tuple[type, str, Any]]:
    yield Acks, "_count_former", lambda self, ranges: 99


@mutation
def the_last_time_is_forgotten() -> Iterator[tuple[type, str, Any]]:
    """A node that was restarted does not know when the last rows of its streams were published."""
    publish = CommitMachine.publish

    def mutated(self: CommitMachine, request: Any, now_ms: int) -> list[Outcome]:
        tails = self._view.tails
        tails.update({stream: tail._replace(published_at_ms=0) for stream, tail in tails.items()})
        return publish(self, request, now_ms)

    yield CommitMachine, "publish", mutated


@mutation
def damage_is_not_repaired() -> Iterator[tuple[type, str, Any]]:
    yield Repair, "found", lambda self, damaged, now_ms: None


test_every_mutation_is_pinned_to_a_seed = pinned(mutation)
test_the_bug_is_caught = caught(mutation)
test_without_a_bug_the_seed_passes = passing(mutation, run_seed)
test_every_bug_is_found_by_a_search = found(mutation)


if __name__ == "__main__":
    print(json.dumps(mutation.search(), indent=2))
