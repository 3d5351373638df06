"""A commit machine with a store that can lose its tail, fail and be opened again; and what must hold all the while.

The store is written apart from the code it checks: it folds appends into plain dictionaries and asserts, for each,
what a store may rely on (no number twice, no hole, the chain of checksums, stage ids that exist).
"""

import zlib
from dataclasses import dataclass, field, replace
from itertools import pairwise

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import (
    Abort,
    Append,
    Commit,
    Disown,
    FormerPart,
    FormerPartRecord,
    KeyMove,
    KeyRemoved,
    Publish,
    PublisherRecord,
    PublisherState,
    Range,
    Recovered,
    Refused,
    RemoveKey,
    SetOwner,
    Stage,
    Staged,
    StageDone,
    StoredStream,
    UpTimeRecord,
)
from m4cast.overlay.protocol.publishing.commit import CommitMachine, Committed, Outcome
from m4cast.overlay.protocol.publishing.commit_limits import CommitLimits
from m4cast.overlay.protocol.publishing.ledger import kept
from m4cast.overlay.protocol.wire.batch import Batch, StoredPayload
from m4cast.overlay.protocol.wire.frame import payload_checksum
from tests.overlay.protocol.append_parts import (
    append_of,
    batches_of,
    deliveries_of,
    publishers_of,
    removed_keys_of,
    staged_of,
    unstaged_of,
)

ME = NodeId(b"m" * 16)
Request = Stage | Commit | Publish | Abort | RemoveKey | Disown


class Killed(Exception):
    """The process died here."""


def seal(batch: Batch, hashed: int | None = None) -> Batch:
    assert batch.checksum == 0
    assert hashed is None or hashed == payload_checksum(batch.payload)
    content = replace(batch, payload=StoredPayload(len(batch.payload), payload_checksum(batch.payload)))
    return replace(batch, checksum=zlib.crc32(repr(content).encode()))


def payload(tag: str, topic: str = "t", rows: int = 1) -> Staged:
    return Staged(topic=topic, row_count=rows, schema_id=7, payload=tag.encode())


def move(key: str, expect: int | None, next: int) -> KeyMove:
    return KeyMove(key, None if expect is None else str(expect), str(next))


@dataclass
class Disk:
    """The state that a run of appends makes, checked append by append."""

    node_id: NodeId = ME
    former_ids: tuple[NodeId, ...] = ()
    log: dict[StreamId, list[Batch]] = field(default_factory=dict)
    publishers: dict[str, PublisherState] = field(default_factory=dict)
    staged: dict[str, Staged] = field(default_factory=dict)
    origin_batch: int = 0
    owners: dict[StreamId, str] = field(default_factory=dict)
    up_ms: int = 0
    former_parts: dict[tuple[NodeId, int, int], FormerPart] = field(default_factory=dict)

    def apply(self, append: Append) -> None:
        self._check_whole(append)
        released = [self.staged.pop(stage_id) for stage_id in unstaged_of(append)]
        for stage_id, staged in staged_of(append):
            assert stage_id not in self.staged, f"{stage_id} staged twice"
            self.staged[stage_id] = staged
        for at, batch in enumerate(batches_of(append)):
            is_staged = isinstance(batch.payload, StoredPayload)
            self._apply_batch(replace(batch, payload=released[at].payload) if is_staged else batch)
        for owned in append.of(SetOwner):
            assert owned.stream in self.log, "a stream that is not there has no owner"
            self.owners[owned.stream] = owned.owner
        for key in removed_keys_of(append):
            del self.publishers[key]
        for key, state in publishers_of(append):
            self.publishers[key] = state
        for part in append.of(FormerPartRecord):
            if part.content is None:
                self.former_parts.pop(part.key, None)
            else:
                self.former_parts[part.key] = part.content
        for up in append.of(UpTimeRecord):
            assert up.content is not None and up.content >= self.up_ms, "up time does not go back"
            self.up_ms = up.content

    def _check_whole(self, append: Append) -> None:
        """An append of own batches is one commit: all its parts in order, and the payloads that it unstages."""
        own = [batch for batch in batches_of(append) if batch.stream.origin == self.node_id]
        assert [(batch.part, batch.parts) for batch in own] == [(part, len(own)) for part in range(len(own))]
        assert len(deliveries_of(append)) == len(own)
        if own and unstaged_of(append):
            assert [kept(self.staged[i]).payload for i in unstaged_of(append)] == [batch.payload for batch in own]

    def _apply_batch(self, batch: Batch) -> None:
        history = self.log.setdefault(batch.stream, [])
        assert batch.first_sequence == (history[-1].next_sequence if history else 1), "a hole, or a number used twice"
        assert batch.previous_checksum == (history[-1].checksum if history else 0), "the chain is broken"
        assert batch == seal(replace(batch, checksum=0))
        if history:
            assert batch.published_at_ms >= history[-1].published_at_ms
        if batch.stream.origin == self.node_id:
            assert batch.origin_batch == self.origin_batch + 1
            self.origin_batch += 1
        history.append(batch)

    def recovered(self, incarnation: int) -> Recovered:
        streams = {
            stream: StoredStream(
                low=1,
                next=batches[-1].next_sequence,
                last_checksum=batches[-1].checksum,
                owner=self.owners.get(stream, ""),
                last_published_ms=batches[-1].published_at_ms,
            )
            for stream, batches in self.log.items()
        }
        return Recovered(
            node_id=self.node_id,
            incarnation=incarnation,
            former_ids=self.former_ids,
            streams=streams,
            staged={stage_id: kept(staged) for stage_id, staged in self.staged.items()},
            origin_batch=self.origin_batch,
            records={
                PublisherRecord: dict(self.publishers),
                FormerPartRecord: dict(self.former_parts),
                UpTimeRecord: {"": self.up_ms},
            },
        )

    def payloads(self) -> list[str]:
        """Every payload of the log, stream by stream."""
        return [bytes(batch.content).decode() for batches in self.log.values() for batch in batches]

    def ranges_of(self, tags: list[str]) -> tuple[Range, ...]:
        """The ranges where the log has these payloads, one per stream, in the order in which the streams come up."""
        found: dict[StreamId, list[Batch]] = {}
        for tag in tags:
            for batches in self.log.values():
                for batch in batches:
                    if batch.payload == tag.encode():
                        found.setdefault(batch.stream, []).append(batch)
        for batches in found.values():
            assert all(one.next_sequence == two.first_sequence for one, two in pairwise(batches))
        return tuple(Range(s, batches[0].first_sequence, batches[-1].next_sequence) for s, batches in found.items())

    def has(self, batch: Batch) -> bool:
        """The batch, with its payload or without it."""
        return any(each.checksum == batch.checksum for each in self.log[batch.stream])

    def holds(self, rows: Range) -> bool:
        history = self.log.get(rows.stream, [])
        return bool(history) and rows.next_sequence <= history[-1].next_sequence


class World:
    """One node's commit machine, its store and its clients' mail. `kill_at` dies before that step is done."""

    def __init__(
        self, limits: CommitLimits | None = None, disk: Disk | None = None, kill_at: int | None = None
    ) -> None:
        self.limits = limits or CommitLimits()
        self.disk = disk or Disk()
        self.base = replace_disk(self.disk)
        self.kept: list[Append] = []  # durable, in order
        self.asked: list[Append] = []  # not durable yet
        self.failing: list[int] = []  # failed, not told yet
        self.broken = False
        self.sent: dict[tuple[StreamId, int], Batch] = {}
        self.answers: dict[int, tuple[Range, ...]] = {}
        self.refused: dict[int, Refused] = {}
        self.staged: list[int] = []
        self.removed: dict[int, str | None] = {}
        self.committed: list[Committed] = []
        self.kill_at = kill_at
        self.steps = 0
        self.now_ms = 1_000
        self.token = 0
        self.incarnation = 1
        self.machine = self.open()

    def open(self) -> CommitMachine:
        recovered = self.disk.recovered(self.incarnation)
        return CommitMachine(recovered, self.limits, seal=seal, next_token=self.next_token)

    def next_token(self) -> int:
        self.token += 1
        return self.token

    # ---- inputs

    def ask(self, *requests: Request) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for request in requests:
            outcomes += self.perform(self._handle(request))
        return outcomes

    def _handle(self, request: Request) -> list[Outcome]:
        match request:
            case Stage():
                return self.machine.stage(request, self.now_ms)
            case Commit():
                return self.machine.commit(request, self.now_ms)
            case Publish():
                return self.machine.publish(request, self.now_ms)
            case Abort():
                return self.machine.abort(request)
            case RemoveKey():
                return self.machine.remove_key(request)
            case Disown():
                return self.machine.disown(request)

    def sweep_keys(self) -> int:
        """Look at all keys, and sync; in how many steps it was done."""
        steps, goes_on = 0, True
        while goes_on:
            outcomes, goes_on = self.machine.sweep_keys(self.now_ms)
            self.perform(outcomes)
            steps += 1
        self.sync()
        return steps

    def expire(self) -> list[Outcome]:
        return self.perform(self.machine.expire(self.now_ms))

    def foreign_append(self) -> None:
        """Another machine of the node asks for an append: it shares tokens and order."""
        self.perform([append_of(self.next_token())])

    def sync(self, count: int | None = None) -> None:
        """Make the oldest appends durable, and say so."""
        for _ in range(len(self.asked) if count is None else min(count, len(self.asked))):
            self._step()
            if not self.asked:
                return
            append = self.asked.pop(0)
            self.disk.apply(append)
            self.kept.append(append)
            self._step()
            self.perform(self.machine.durable(append.token))

    def break_at(self, position: int) -> None:
        """The store fails: this append and all after it, also those asked for until the first report arrives."""
        self.failing += [append.token for append in self.asked[position:]]
        self.asked = self.asked[:position]
        self.broken = bool(self.failing)

    def report_failure(self) -> None:
        self.broken = False
        self.perform(self.machine.failed(self.failing.pop(0), "disk full"))

    def crash(self, survivors: int) -> None:
        """Die, with this many of the appends under way on disk, and open the store again."""
        for append in self.asked[:survivors]:
            self.disk.apply(append)
            self.kept.append(append)
        self.asked, self.failing, self.broken = [], [], False
        self.incarnation += 1
        for batch in self.sent.values():
            assert self.disk.has(batch), "a batch that left the node is not in its log"
        self.machine = self.open()

    def fork(self, survivors: int) -> "World":
        """The same past, crashed here, without touching this one."""
        world = World(self.limits, replace_disk(self.base))
        for append in self.kept:
            world.disk.apply(append)
        world.kept, world.asked = list(self.kept), list(self.asked)
        world.sent, world.answers = dict(self.sent), dict(self.answers)
        world.token, world.now_ms, world.incarnation = self.token, self.now_ms, self.incarnation
        world.crash(survivors)
        return world

    # ---- outputs

    def perform(self, outcomes: list[Outcome]) -> list[Outcome]:
        for outcome in outcomes:
            self._step()
            match outcome:
                case Append(token=token) if self.broken:
                    self.failing.append(token)
                case Append():
                    self.asked.append(outcome)
                case StageDone(request=request):
                    self.staged.append(request)
                case KeyRemoved(request=request, position=position):
                    self.removed[request] = position
                case Refused(request=request):
                    self.refused[request] = outcome
                case Committed():
                    self._commit_done(outcome)
        return outcomes

    def _commit_done(self, done: Committed) -> None:
        self.committed.append(done)
        for batch in (write.batch for write in done.batches):
            assert self.disk.has(batch), "a batch leaves the node before it is on disk"
            at = (batch.stream, batch.first_sequence)
            assert at not in self.sent, "a number used twice"
            self.sent[at] = batch
        for answer in done.answers:
            assert all(self.disk.holds(rows) for rows in answer.ranges), "answered before it is on disk"
            assert answer.request not in self.answers, "answered twice"
            self.answers[answer.request] = answer.ranges

    def _step(self) -> None:
        if self.steps == self.kill_at:
            raise Killed
        self.steps += 1


def replace_disk(disk: Disk) -> Disk:
    """A copy that can be changed alone."""
    log = {stream: list(batches) for stream, batches in disk.log.items()}
    return replace(
        disk,
        log=log,
        publishers=dict(disk.publishers),
        staged=dict(disk.staged),
        owners=dict(disk.owners),
        former_parts=dict(disk.former_parts),
    )
