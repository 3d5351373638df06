"""What a store holds of a node's own streams, publisher keys and staged payloads, after a run of appends.

`commit.py` keeps two of these: one for what is durable, one that is ahead of it by the appends under way. Applying
an append here has the effect that it has in the store, so both give the same answers after a restart.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.batch import Batch, StoredPayload
from m4cast.overlay.protocol.effects import Append, PublisherState, Recovered, Staged
from m4cast.overlay.protocol.frame import payload_checksum


class Tail(NamedTuple):
    """The end of one own stream, where its next batch is chained on."""

    next_sequence: int
    checksum: int
    published_at_ms: int


NEW_STREAM = Tail(next_sequence=1, checksum=0, published_at_ms=0)


@dataclass(slots=True)
class Ledger:
    origin_batch: int
    tails: dict[StreamId, Tail]
    publishers: dict[str, PublisherState]
    staged: dict[str, Staged]
    staged_bytes: int

    def apply(self, append: Append) -> None:
        for stage_id in append.unstage:
            self.staged_bytes -= len(self.staged.pop(stage_id).payload)
        for stage_id, staged in append.stage:
            self.staged[stage_id] = kept(staged)
            self.staged_bytes += len(staged.payload)
        for batch in append.batches:
            self.tails[batch.stream] = tail_after(batch)
            self.origin_batch = batch.origin_batch
        self.publishers.update(append.publishers)

    def copy(self) -> "Ledger":
        return replace(self, tails=dict(self.tails), publishers=dict(self.publishers), staged=dict(self.staged))


def ledger_of(recovered: Recovered) -> Ledger:
    tails = {
        stream: Tail(stored.next, stored.last_checksum, published_at_ms=0)
        for stream, stored in recovered.streams.items()
        if stream.origin == recovered.node_id
    }
    staged_bytes = sum(len(staged.payload) for staged in recovered.staged.values())
    return Ledger(recovered.origin_batch, tails, dict(recovered.publishers), dict(recovered.staged), staged_bytes)


def kept(staged: Staged) -> Staged:
    """What a node keeps in memory of a payload that it gave to its store."""
    if isinstance(staged.payload, StoredPayload):
        return staged
    checksum = payload_checksum(staged.payload, staged.checksum)
    return replace(staged, payload=StoredPayload(len(staged.payload), checksum))


def tail_after(batch: Batch) -> Tail:
    return Tail(batch.next_sequence, batch.checksum, batch.published_at_ms)
