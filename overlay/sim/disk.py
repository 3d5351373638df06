"""A simulated store: appends are applied in order, become durable at a sync, and are lost by a crash before it.

It keeps what a real store keeps and answers as one does (see the storage contract in `protocol/effects.py`). One
sync covers everything that waited when it began: group commit. A copy of the durable part is a backup, from which a
node can be restarted with an older store.
"""

from dataclasses import dataclass, field, replace
from random import Random

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.batch import Batch, Skip, StoredPayload
from m4cast.overlay.protocol.effects import Append, PublisherState, Recovered, Staged, StoredStream
from m4cast.overlay.protocol.ledger import kept
from m4cast.overlay.protocol.messages import RosterEntry


@dataclass(slots=True)
class StreamLog:
    """One stream on disk. `batches` starts at `low`, apart from skips."""

    low: int = 1
    next: int = 1
    last_checksum: int = 0
    batches: list[Batch] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)


@dataclass(slots=True)
class Content:
    """What is durable."""

    node_id: NodeId
    incarnation: int = 0
    former_ids: tuple[NodeId, ...] = ()
    origin_batch: int = 0
    logs: dict[StreamId, StreamLog] = field(default_factory=dict)
    publishers: dict[str, PublisherState] = field(default_factory=dict)
    staged: dict[str, Staged] = field(default_factory=dict)
    roster: dict[NodeId, RosterEntry] = field(default_factory=dict)

    def copy(self) -> "Content":
        return Content(
            self.node_id,
            self.incarnation,
            self.former_ids,
            self.origin_batch,
            {
                key: StreamLog(log.low, log.next, log.last_checksum, list(log.batches), list(log.skips))
                for key, log in self.logs.items()
            },
            dict(self.publishers),
            dict(self.staged),
            dict(self.roster),
        )


class StoreError(AssertionError):
    """The node asked its store for something that would break it: a hole or a repeat in a log."""


class Disk:
    def __init__(self, node_id: NodeId) -> None:
        self.content = Content(node_id)
        self.waiting: list[Append] = []
        self.syncing = 0
        """How many of the waiting ones the sync under way covers."""

    def open(self) -> Recovered:
        """Open the store: the incarnation goes up, durably."""
        content = self.content
        content.incarnation += 1
        return Recovered(
            node_id=content.node_id,
            incarnation=content.incarnation,
            former_ids=content.former_ids,
            streams={
                key: StoredStream(log.low, log.next, log.last_checksum, tuple(log.skips))
                for key, log in content.logs.items()
            },
            publishers=dict(content.publishers),
            staged={stage_id: kept(staged) for stage_id, staged in content.staged.items()},
            origin_batch=content.origin_batch,
            roster=tuple(content.roster.values()),
        )

    def take_new_identity(self, node_id: NodeId) -> None:
        """The store was found to be rolled back: its old streams become somebody else's."""
        content = self.content
        content.former_ids = (*content.former_ids, content.node_id)
        content.node_id = node_id
        content.incarnation = 0
        content.origin_batch = 0

    def crash(self, random: Random) -> list[Append]:
        """Lose what was not synced; the disk may have got to some of it. Returns what it got to."""
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
            if batch.first_sequence == first < next_sequence:
                size += len(batch.payload)
                if found and size > bytes_max:
                    break
                found.append(batch)
                first = batch.next_sequence
        return tuple(found)

    def trim(self, stream: StreamId, low: int) -> int:
        """Retention: forget whole batches below `low`; the new low."""
        log = self.content.logs[stream]
        log.batches = [batch for batch in log.batches if batch.next_sequence > low]
        log.low = log.batches[0].first_sequence if log.batches else log.next
        log.skips = [skip for skip in log.skips if skip.last_sequence >= log.low]
        return log.low

    def _apply(self, append: Append) -> None:
        content = self.content
        for stream, start in append.starts:
            content.logs.setdefault(stream, StreamLog(low=start, next=start))
        released = [content.staged.pop(stage_id) for stage_id in append.unstage if stage_id in content.staged]
        content.staged.update(append.stage)
        for batch in append.batches:
            if isinstance(batch.payload, StoredPayload):
                batch = replace(batch, payload=released.pop(0).payload)  # noqa: PLW2901 - the same batch
            log = content.logs.setdefault(batch.stream, StreamLog())
            if batch.first_sequence != log.next:
                raise StoreError(f"append of {batch.stream.topic} {batch.first_sequence} at {log.next}")
            log.batches.append(batch)
            log.next = batch.next_sequence
            log.last_checksum = batch.checksum
            if batch.stream.origin == content.node_id:
                content.origin_batch = batch.origin_batch
        for skip in append.skips:
            log = content.logs.setdefault(skip.stream, StreamLog())
            if skip.first_sequence != log.next:
                raise StoreError(f"skip of {skip.stream.topic} {skip.first_sequence} at {log.next}")
            log.skips.append(skip)
            log.next = skip.last_sequence + 1
            log.last_checksum = 0
        content.publishers.update(append.publishers)
