"""The ledger: a node's own streams, publisher keys and staged payloads, as its store has them after a run of appends.

`commit.py` keeps two of these: one for what is durable, one that is ahead of it by the appends under way. Applying
an append here has the effect that it has in the store, so both give the same answers after a restart.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    AppendBatch,
    DropStaged,
    PublisherRecord,
    PublisherState,
    Recovered,
    SetOwner,
    Staged,
    StagePayload,
)
from m4cast.overlay.protocol.publishing.keys import Keys
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, StoredPayload
from m4cast.overlay.protocol.wire.frame import payload_checksum


class StreamTail(NamedTuple):
    """The end of one own stream, where its next batch is chained on."""

    next_sequence: int
    checksum: int
    published_at_ms: int


NEW_STREAM = StreamTail(next_sequence=1, checksum=0, published_at_ms=0)


@dataclass(slots=True)
class Ledger:
    origin_batch: int
    tails: dict[StreamId, StreamTail]
    owners: dict[StreamId, str]
    """Owners of own streams; absent for streams without one."""
    publishers: Keys
    staged: dict[str, Staged]
    staged_bytes: int

    def apply(self, append: Append) -> None:
        for write in append.writes:
            match write:
                case AppendBatch(batch, _, stage_id):
                    self.tails[batch.stream] = tail_after(batch)
                    self.origin_batch = batch.origin_batch
                    if stage_id is not None:
                        self._drop_staged(stage_id)
                case StagePayload(stage_id, staged):
                    self.staged[stage_id] = kept(staged)
                    self.staged_bytes += len(staged.payload)
                case DropStaged(stage_id):
                    self._drop_staged(stage_id)
                case SetOwner(stream, owner):
                    self._own(stream, owner)
                case PublisherRecord(key, state):
                    self.publishers.put(key, state)

    def settle(self, append: Append) -> None:
        """The append has been applied to the durable ledger as well, which this one is ahead of."""
        for record in append.of(PublisherRecord):
            self.publishers.settle(record.key, record.content)

    def ahead(self) -> "Ledger":
        """A ledger that begins as this one is now. Publisher keys are shared: it must not outlive a change here that
        it was not told of."""
        return replace(
            self,
            tails=dict(self.tails),
            owners=dict(self.owners),
            publishers=self.publishers.ahead(),
            staged=dict(self.staged),
        )

    def _drop_staged(self, stage_id: str) -> None:
        self.staged_bytes -= len(self.staged.pop(stage_id).payload)

    def _own(self, stream: StreamId, owner: str) -> None:
        if owner:
            self.owners[stream] = owner
        else:
            self.owners.pop(stream, None)


def ledger_of(recovered: Recovered) -> Ledger:
    tails = {
        stream: StreamTail(stored.next, stored.last_checksum, stored.last_published_ms)
        for stream, stored in recovered.streams.items()
        if stream.origin == recovered.node_id
    }
    states = recovered.of(PublisherRecord)
    publishers = Keys(cast(dict[str, PublisherState | None], states))
    for key, state in states.items():
        publishers.count(key, state, 1)
    return Ledger(
        origin_batch=recovered.origin_batch,
        tails=tails,
        owners={stream: recovered.streams[stream].owner for stream in tails if recovered.streams[stream].owner},
        publishers=publishers,
        staged=dict(recovered.staged),
        staged_bytes=sum(len(staged.payload) for staged in recovered.staged.values()),
    )


def kept(staged: Staged) -> Staged:
    """Return the part of a payload that a node keeps in memory after it gave it to its store."""
    if isinstance(staged.payload, StoredPayload):
        return staged
    checksum = payload_checksum(staged.payload, staged.checksum)
    return replace(staged, payload=StoredPayload(len(staged.payload), checksum))


def tail_after(batch: Batch) -> StreamTail:
    return StreamTail(batch.next_sequence, batch.checksum, batch.published_at_ms)


def own_delivery(batch: Batch, received_at_ms: int) -> Delivery:
    """Delivered at the current time, so that the age of rows counts from now even if `published_at_ms` is ahead."""
    rows = (batch.first_sequence, batch.last_sequence)
    return Delivery(batch.stream, *rows, batch.published_at_ms, received_at_ms, 0, How.PUBLISHED, None)
