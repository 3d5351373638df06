"""A simulated store: appends are applied in order, become durable at a sync, and are lost by a crash before it.

It keeps what a real store keeps and behaves like one (see the storage contract in `protocol/effects.py`). One sync
covers everything that waited when it began: group commit. A copy of the durable part is a backup, from which a node can
be restarted with an older store.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, assert_never

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    AppendBatch,
    AppendSkip,
    Damaged,
    DropStaged,
    FillSkip,
    FindTimes,
    InsertBatch,
    MarksRecord,
    NoteSkip,
    PrependBatch,
    ReadSelected,
    Recovered,
    RepairBatch,
    SelectedRead,
    SetOwner,
    Staged,
    StagePayload,
    StartStream,
    StoredRecord,
    StoredStream,
    TimesFound,
)
from m4cast.overlay.protocol.publishing.ledger import kept
from m4cast.overlay.protocol.wire.batch import Batch, Skip
from m4cast.overlay.protocol.wire.messages import RosterEntry


@dataclass(slots=True)
class StreamLog:
    """One stream on disk. `batches` starts at `low`, apart from skips."""

    low: int = 1
    next: int = 1
    last_checksum: int = 0
    last_published_ms: int = 0
    batches: list[Batch] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    owner: str = ""
    damaged: dict[int, None] = field(default_factory=dict)
    """First sequences of batches that cannot be read."""


@dataclass(slots=True)
class Content:
    """The durable content of the disk."""

    node_id: NodeId
    incarnation: int = 0
    former_ids: tuple[NodeId, ...] = ()
    origin_batch: int = 0
    logs: dict[StreamId, StreamLog] = field(default_factory=dict)
    staged: dict[str, Staged] = field(default_factory=dict)
    roster: dict[NodeId, RosterEntry] = field(default_factory=dict)
    records: dict[type[StoredRecord[Any, Any]], dict[Any, Any]] = field(default_factory=dict)

    def copy(self) -> "Content":
        return Content(
            self.node_id,
            self.incarnation,
            self.former_ids,
            self.origin_batch,
            {
                key: replace(log, batches=list(log.batches), skips=list(log.skips), damaged=dict(log.damaged))
                for key, log in self.logs.items()
            },
            dict(self.staged),
            dict(self.roster),
            {kind: dict(rows) for kind, rows in self.records.items()},
        )


class DiskError(AssertionError):
    """The node asked its store for something that would break it: a hole or a repeat in a log."""


class Disk:
    def __init__(self, node_id: NodeId) -> None:
        self.content = Content(node_id)
        self.waiting: list[Append] = []
        self.syncing = 0
        """The number of waiting appends that the sync under way covers."""

    def open(self) -> Recovered:
        """Open the store: the incarnation goes up, durably."""
        content = self.content
        content.incarnation += 1
        return Recovered(
            node_id=content.node_id,
            incarnation=content.incarnation,
            former_ids=content.former_ids,
            streams={
                key: StoredStream(
                    log.low,
                    log.next,
                    log.last_checksum,
                    tuple(log.skips),
                    log.owner,
                    log.last_published_ms if key.origin == content.node_id else 0,
                    log.batches[-1].origin_batch if log.batches and key in content.records.get(MarksRecord, {}) else 0,
                )
                for key, log in content.logs.items()
            },
            staged={stage_id: kept(staged) for stage_id, staged in content.staged.items()},
            origin_batch=content.origin_batch,
            roster=tuple(content.roster.values()),
            records={kind: dict(rows) for kind, rows in content.records.items() if rows},
        )

    def take_new_identity(self, node_id: NodeId) -> None:
        """The store was found to be rolled back: its old streams become somebody else's."""
        content = self.content
        content.former_ids = (*content.former_ids, content.node_id)
        content.node_id = node_id
        content.incarnation = 0
        content.origin_batch = 0

    def crash(self, random: Random) -> list[Append]:
        """Lose what was not synced; the disk may have written some of it, which is returned."""
        kept = self.waiting[: random.randrange(len(self.waiting) + 1)] if self.waiting else []
        for append in kept:
            self._apply(append)
        self.waiting = []
        self.syncing = 0
        return kept

    def sync_done(self) -> list[Append]:
        synced = self.waiting[: self.syncing]
        del self.waiting[: self.syncing]
        self.syncing = 0
        for append in synced:
            self._apply(append)
        return synced

    def read(self, stream: StreamId, first: int, next_sequence: int, bytes_max: int) -> tuple[Batch, ...]:
        log = self.content.logs.get(stream)
        found: list[Batch] = []
        size = 0
        for batch in log.batches if log else ():
            if batch.first_sequence <= first < min(batch.next_sequence, next_sequence):
                assert log is not None
                if batch.first_sequence in log.damaged:
                    break
                size += len(batch.payload)
                if found and size > bytes_max:
                    break
                found.append(batch)
                first = batch.next_sequence
        return tuple(found)

    def read_selected(self, asked: ReadSelected) -> SelectedRead:
        log = self.content.logs.get(asked.stream, StreamLog())
        found: list[Batch] = []
        size, until = 0, asked.next_sequence
        before = [batch.checksum for batch in log.batches if batch.next_sequence == asked.first_sequence]
        for batch in log.batches:
            if batch.next_sequence <= asked.first_sequence or batch.first_sequence >= asked.next_sequence:
                continue
            size += len(batch.payload)
            if batch.first_sequence in log.damaged or (found and size > asked.bytes_max):
                until = max(batch.first_sequence, asked.first_sequence)
                break
            found.append(batch)
        low = max([log.low, *(skip.last_sequence + 1 for skip in log.skips)])
        return SelectedRead(asked.token, tuple(found), until, low, before[0] if before else 0)

    def find_times(self, asked: FindTimes) -> TimesFound:
        log = self.content.logs.get(asked.stream, StreamLog())
        found = []
        for time_ms in asked.times_ms:
            later = [batch.first_sequence for batch in log.batches if batch.published_at_ms >= time_ms]
            found.append(later[0] if later else 0)
        return TimesFound(asked.token, tuple(found))

    def following(self, stream: StreamId, first: int) -> int:
        """The first sequence behind the batch that begins there, if that cannot be read; else 0."""
        log = self.content.logs.get(stream)
        if log is None or first not in log.damaged:
            return 0
        return next(batch.next_sequence for batch in log.batches if batch.first_sequence == first)

    def damage(self, stream: StreamId, first: int) -> Damaged | None:
        """Return what a reader of this batch finds, if it is damaged. Its checksum can still be read."""
        following = self.following(stream, first)
        if not following:
            return None
        batches = self.content.logs[stream].batches
        checksums = tuple(batch.checksum for batch in batches if batch.first_sequence == first)
        return Damaged(stream, first, following, checksums)

    def trim(self, stream: StreamId, low: int) -> int:
        """Retention: forget whole batches below `low`; the new low."""
        log = self.content.logs[stream]
        removed = [batch.next_sequence for batch in log.batches if batch.next_sequence <= low]
        log.batches = [batch for batch in log.batches if batch.next_sequence > low]
        if stream in self.content.records.get(MarksRecord, {}):
            log.low = max([log.low, *removed])
            return log.low
        log.low = log.batches[0].first_sequence if log.batches else log.next
        log.skips = [skip for skip in log.skips if skip.last_sequence >= log.low]
        log.damaged = {first: None for first in log.damaged if first >= log.low}
        return log.low

    def _apply(self, append: Append) -> None:
        logs, staged = self.content.logs, self.content.staged
        for write in append.writes:
            match write:
                case AppendBatch(batch, _, stage_id):
                    self._append_batch(
                        batch if stage_id is None else replace(batch, payload=staged.pop(stage_id).payload)
                    )
                case AppendSkip(skip):
                    self._append_skip(skip)
                case FillSkip(batch):
                    self._fill(batch)
                case PrependBatch(batch):
                    self._prepend(batch)
                case RepairBatch(batch):
                    self._repair(batch)
                case InsertBatch(batch):
                    self._insert(batch)
                case NoteSkip(skip):
                    logs.setdefault(skip.stream, StreamLog()).skips.append(skip)
                case StagePayload(stage_id, content):
                    staged[stage_id] = content
                case DropStaged(stage_id):
                    staged.pop(stage_id, None)
                case StartStream(stream, first_sequence):
                    logs.setdefault(stream, StreamLog(low=first_sequence, next=first_sequence))
                case SetOwner(stream, owner):
                    logs.setdefault(stream, StreamLog()).owner = owner
                case StoredRecord(key, row):
                    rows = self.content.records.setdefault(type(write), {})
                    if row is None:
                        rows.pop(key, None)
                    else:
                        rows[key] = row
                case _:
                    assert_never(write)

    def _append_batch(self, batch: Batch) -> None:
        log = self.content.logs.setdefault(batch.stream, StreamLog())
        if batch.first_sequence != log.next:
            raise DiskError(f"append of {batch.stream.topic} {batch.first_sequence} at {log.next}")
        log.batches.append(batch)
        log.next = batch.next_sequence
        log.last_checksum = batch.checksum
        log.last_published_ms = batch.published_at_ms
        if batch.stream.origin == self.content.node_id:
            self.content.origin_batch = batch.origin_batch

    def _append_skip(self, skip: Skip) -> None:
        log = self.content.logs.setdefault(skip.stream, StreamLog())
        if skip.first_sequence != log.next:
            raise DiskError(f"skip of {skip.stream.topic} {skip.first_sequence} at {log.next}")
        log.skips.append(skip)
        log.next = skip.last_sequence + 1
        log.last_checksum = 0

    def _fill(self, batch: Batch) -> None:
        log = self.content.logs[batch.stream]
        inside = [
            skip
            for skip in log.skips
            if skip.first_sequence <= batch.first_sequence and batch.last_sequence <= skip.last_sequence
        ]
        before = [kept for kept in log.batches if kept.next_sequence == batch.first_sequence]
        after = [kept for kept in log.batches if kept.first_sequence == batch.next_sequence]
        fits = all(kept.checksum == batch.previous_checksum for kept in before) and all(
            kept.previous_checksum == batch.checksum for kept in after
        )
        if inside and fits and batch.first_sequence >= log.low:
            log.batches = sorted([*log.batches, batch], key=lambda kept: kept.first_sequence)
            log.skips = [
                piece for skip in log.skips for piece in skip.without(batch.first_sequence, batch.last_sequence)
            ]
            if batch.next_sequence == log.next:
                log.last_checksum = batch.checksum

    def _prepend(self, batch: Batch) -> None:
        log = self.content.logs[batch.stream]
        after = [kept.previous_checksum for kept in log.batches if kept.first_sequence == batch.next_sequence]
        known = after or ([log.last_checksum] if log.low == log.next and log.last_checksum else [batch.checksum])
        if batch.next_sequence == log.low and known == [batch.checksum]:
            log.batches.insert(0, batch)
            log.low = batch.first_sequence

    def _insert(self, batch: Batch) -> None:
        log = self.content.logs.setdefault(batch.stream, StreamLog())
        if any(
            kept.first_sequence < batch.next_sequence and batch.first_sequence < kept.next_sequence
            for kept in log.batches
        ):
            return
        log.batches = sorted([*log.batches, batch], key=lambda kept: kept.first_sequence)
        if batch.next_sequence >= log.next:
            log.next, log.last_checksum = batch.next_sequence, batch.checksum

    def _repair(self, batch: Batch) -> None:
        log = self.content.logs[batch.stream]
        for index, present in enumerate(log.batches):
            if present.first_sequence == batch.first_sequence and present.checksum == batch.checksum:
                log.batches[index] = batch
                log.damaged.pop(batch.first_sequence, None)
