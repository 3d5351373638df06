"""Selective topics while registrations come and go and everything goes wrong: guarantees 10 and 11 hold, and the
checkers find what would break them. The mutations are the broken variants of the rules (PROTOCOL.md, section 18).

Each mutation is pinned to the first seed that finds it (`selective_mutations.json`);

python -m tests.simulation.test_selective       searches, and prints the new seeds
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from m4cast.overlay.protocol.effects import BeginKey, BeginRecord, SelectedRead, Want
from m4cast.overlay.protocol.selective import fetching, speaking, wants
from m4cast.overlay.protocol.selective.answering import Answering
from m4cast.overlay.protocol.selective.contract import SelectiveRecovered, keep_id
from m4cast.overlay.protocol.selective.fetching import Fetching
from m4cast.overlay.protocol.selective.marks import HELD
from m4cast.overlay.protocol.selective.receiving import Authority, Receiving, SelectedStream
from m4cast.overlay.protocol.selective.selective import Selective
from m4cast.overlay.protocol.selective.speaking import DestinationRun, Speaking
from m4cast.overlay.protocol.selective.wants import Wants
from m4cast.overlay.sim.selective.campaign import SelectiveOutcome, run_selective_seed
from tests.simulation.mutations import Mutations
from tests.simulation.pinned import caught, found, passing, pinned

SEEDS = range(int(os.environ.get("M4CAST_SEEDS", "1000")) // 10)
SEARCHED = range(400)

mutation = Mutations("selective_mutations.json", run_selective_seed, SEARCHED)


def test_what_is_wanted_arrives_and_coverage_is_true() -> None:
    outcomes: list[SelectiveOutcome] = [run_selective_seed(seed) for seed in SEEDS]
    assert sum(outcome.batches for outcome in outcomes) > 10 * len(SEEDS)
    assert sum(outcome.registrations for outcome in outcomes) > 10 * len(SEEDS)
    kinds = {kind for outcome in outcomes for kind in outcome.frames}
    assert kinds >= {"Batch", "CoverStmt", "SelectAckStmt", "SelectPullResp", "BeginResp", "KeepCall", "KeptResp"}


def test_a_seed_runs_the_same_way_twice() -> None:
    assert run_selective_seed(5) == run_selective_seed(5)


# ---- deliberate bugs


@mutation
def statements_have_no_version() -> Iterator[tuple[Any, str, Any]]:
    """No R1, R3: a statement counts for whatever is registered when it arrives."""
    state = Receiving.state

    def mutated(self: Receiving, stream: SelectedStream, first: int, following: int, version: int) -> bool:
        return state(self, stream, first, following, HELD)

    yield Receiving, "state", mutated


@mutation
def runs_are_not_begun_anew() -> Iterator[tuple[Any, str, Any]]:
    """No R2: a registration joined, and the run goes on."""
    begin = Speaking._begin

    def mutated(self: Speaking, stream_id: Any, nodes: Any, now_ms: int) -> None:
        runs = dict(self.streams[stream_id].runs)
        begin(self, stream_id, nodes, now_ms)
        self.streams[stream_id].runs.update(runs)

    yield Speaking, "_begin", mutated


@mutation
def runs_begin_at_the_first_row() -> Iterator[tuple[Any, str, Any]]:
    """No R2: after a restart everything counts as stated."""

    class Guess(DestinationRun):
        def __init__(self, sent: int) -> None:
            super().__init__(1)

    yield speaking, "DestinationRun", Guess


@mutation
def the_end_of_a_run_is_durable_and_lags_behind() -> Iterator[tuple[Any, str, Any]]:
    """No R2: after a restart a run goes on from what was written of it, before the last batch was sent."""
    begin, published = Speaking._begin, Speaking.published
    written: dict[tuple[Any, Any, Any], int] = {}

    def mutated_begin(self: Speaking, stream_id: Any, nodes: Any, now_ms: int) -> None:
        nodes, runs = list(nodes), self.streams[stream_id].runs
        new = [node_id for node_id in nodes if node_id not in runs and node_id != self._me]
        begin(self, stream_id, nodes, now_ms)
        for node_id in new:
            runs[node_id].sent = written.get((self._me, stream_id, node_id), runs[node_id].sent)

    def mutated_published(self: Speaking, batch: Any, now_ms: int) -> Any:
        stream = self.streams.get(batch.stream)
        for node_id, run in stream.runs.items() if stream is not None else ():
            written[self._me, batch.stream, node_id] = run.sent
        return published(self, batch, now_ms)

    yield Speaking, "_begin", mutated_begin
    yield Speaking, "published", mutated_published


@mutation
def neither_versions_nor_new_runs() -> Iterator[tuple[Any, str, Any]]:
    """No R1, R2, R3."""
    yield from statements_have_no_version()
    yield from runs_are_not_begun_anew()


@mutation
def answers_count_for_the_version_at_arrival() -> Iterator[tuple[Any, str, Any]]:
    """No R4."""
    answered = Fetching._answered

    def mutated(self: Fetching, sender: Any, resp: Any) -> Any:
        found = answered(self, sender, resp)
        if found is not None:
            found[1].version = self._wants.version
        return found

    yield Fetching, "_answered", mutated


@mutation
def answers_settle_the_batches_that_they_list() -> Iterator[tuple[Any, str, Any]]:
    """No R4: the answer arrives, a batch does not."""

    def mutated(batches: Any, first: int, following: int) -> Iterator[tuple[int, int]]:
        if first < following:
            yield first, following

    yield fetching, "_gaps", mutated


@mutation
def partial_holders_answer_with_their_skips() -> Iterator[tuple[Any, str, Any]]:
    """No R5: another node's filter is taken for one's own."""
    authority = Receiving.authority

    def mutated(self: Receiving, stream_id: Any, first: int, profiles: Any) -> Authority:
        stream = self.streams.get(stream_id)
        found = authority(self, stream_id, first, profiles)
        return found if stream is None else found._replace(next=max(first, stream.durable.end))

    yield Receiving, "authority", mutated


@mutation
def keepers_speak_up_to_the_last_row_that_they_have() -> Iterator[tuple[Any, str, Any]]:
    """No R5: and not up to their first hole."""
    authority = Receiving.authority

    def mutated(self: Receiving, stream_id: Any, first: int, profiles: Any) -> Authority:
        found, stream = authority(self, stream_id, first, profiles), self.streams.get(stream_id)
        if stream is None or keep_id(stream_id.origin) not in self._wants.durable:
            return found
        return found._replace(next=max(first, stream.durable.end))

    yield Receiving, "authority", mutated


@mutation
def what_is_not_durable_counts_as_covered() -> Iterator[tuple[Any, str, Any]]:
    """No R5: a holder speaks of what it may lose in a crash."""
    append = Receiving._append

    def mutated(self: Receiving, stream: SelectedStream, *rest: Any) -> None:
        append(self, stream, *rest)
        stream.durable = stream.accepted.copy()

    yield Receiving, "_append", mutated


@mutation
def skips_are_not_told() -> Iterator[tuple[Any, str, Any]]:
    """No R5: whoever skipped rows that it wanted speaks as if it had them."""
    read = Answering.read

    def mutated(self: Answering, found: SelectedRead) -> None:
        read(self, replace(found, low=1))

    yield Answering, "read", mutated


@mutation
def covers_are_sent_once() -> Iterator[tuple[Any, str, Any]]:
    """No R6."""
    covers_due = Speaking.covers_due

    def mutated(self: Speaking, now_ms: int) -> None:
        covers_due(self, now_ms)
        for stream in self.streams.values():
            stream.unlevel = {each: None for each in stream.unlevel if stream.runs[each].due_ms <= now_ms}

    yield Speaking, "covers_due", mutated


@mutation
def every_registration_begins_at_the_end() -> Iterator[tuple[Any, str, Any]]:
    """No R7: a stream that was not followed begins with what is heard first."""
    begin = Wants.begin
    yield Wants, "begin", lambda self, stored, stream_id: begin(self, stored, stream_id) or 9


@mutation
def begins_are_not_written_with_their_registration() -> Iterator[tuple[Any, str, Any]]:
    """No R7: after a crash in between, a registration begins where the log of its node ends."""
    init, plan = Wants.__init__, Wants.plan

    def mutated_init(self: Wants, recovered: SelectiveRecovered) -> None:
        begins = dict(recovered.begins)
        for stored in recovered.wants.values():
            for stream_id, runs in recovered.marks.items():
                if stored.want.topic == stream_id.topic:
                    begins.setdefault(BeginKey(stored.want.id, stream_id), runs[-1][0])
        init(self, replace(recovered, begins=begins))

    def mutated_plan(self: Wants, *rest: Any) -> Any:
        return tuple(write for write in plan(self, *rest) if not isinstance(write, BeginRecord))

    yield Wants, "__init__", mutated_init
    yield Wants, "plan", mutated_plan


@mutation
def rows_before_the_first_that_is_known_are_not_filled() -> Iterator[tuple[Any, str, Any]]:
    """No R7: a begin below the first row that the node heard of."""
    hole = Receiving.hole

    def mutated(self: Receiving, stream: SelectedStream) -> Any:
        found = hole(self, stream)
        low = next((start for start, version in stream.accepted.runs() if version), 1)
        return None if found is not None and found.first < low else found

    yield Receiving, "hole", mutated


@mutation
def a_time_counts_for_streams_that_are_new_here() -> Iterator[tuple[Any, str, Any]]:
    """No R7: where the node follows the stream, a registration from a time begins with the next row."""
    yield wants, "_begins_now", lambda want: not want.earliest and want.positions is None


@mutation
def a_time_is_taken_for_now() -> Iterator[tuple[Any, str, Any]]:
    """No R7: whoever is asked is told when the registration was made."""
    yield Want, "begins_at_ms", property(lambda self: self.since_ms)


@mutation
def positions_are_not_written_with_their_registration() -> Iterator[tuple[Any, str, Any]]:
    """No R7: after a crash, it begins with the latest rows."""
    init = Wants.__init__

    def mutated(self: Wants, recovered: SelectiveRecovered) -> None:
        forgotten = {
            name: replace(stored, want=replace(stored.want, positions=None)) for name, stored in recovered.wants.items()
        }
        init(self, replace(recovered, wants=forgotten))

    yield Wants, "__init__", mutated


@mutation
def a_wider_registration_takes_the_join_of_a_narrower_one() -> Iterator[tuple[Any, str, Any]]:
    """No R3: covered the wrong way round."""

    def mutated(self: Wants, want: Want, version: int) -> int:
        joins = [stored.join for stored in self.planned.values() if stored.want.topic == want.topic]
        return min(joins, default=version)

    yield Wants, "_join", mutated


@mutation
def absent_origins_are_nobodys_business() -> Iterator[tuple[Any, str, Any]]:
    """Keepers do not speak for an origin that is gone."""
    yield Selective, "_speak_for", lambda self, origin, now_ms: None


test_every_mutation_is_pinned_to_a_seed = pinned(mutation)
test_the_bug_is_caught = caught(mutation)
test_without_a_bug_the_seed_passes = passing(mutation, run_selective_seed)
test_every_bug_is_found_by_a_search = found(mutation)


if __name__ == "__main__":
    print(json.dumps(mutation.search(), indent=2))
