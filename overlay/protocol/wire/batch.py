"""Batches, skips and deliveries: what travels on a channel and what a node records about it.

A batch is a contiguous run of one stream's rows, encoded once when it is numbered and never opened, sliced or
changed afterwards. Relays change only the hop part, which is apart (`BatchFrame`).
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.value import value

Payload = bytes | memoryview
"""A view is of memory that no longer changes: the buffer of a large frame, in which its payload stays in place."""


class How(IntEnum):
    """The way in which a batch reached a node."""

    PUBLISHED = 0
    PUSHED = 1
    PULLED = 2
    FILLED = 3
    """Pulled, into a skip: in delivery records alone, never on a link."""


class SkipReason(IntEnum):
    """The reason why a node has an entry in place of data."""

    EXPIRED = 0
    LOST = 1
    FILTERED = 2
    NOT_SUBSCRIBED = 3


@value
class StoredPayload:
    """A payload that is in the store and not in memory: its length and its XXH3-64, all that numbering needs."""

    size: int
    checksum: int

    def __len__(self) -> int:
        return self.size


class Extension(NamedTuple):
    """A typed addition by the origin; a node that does not know a must-understand type refuses the batch."""

    type: int
    must_understand: bool
    value: bytes


SUMMARY_EXTENSION = 1
"""The extension of a batch with a summary of some of its columns, for readers that filter. Optional: readers that
ignore it can still open the batch."""
TABLE_EXTENSION = 3
"""The extension of a batch whose rows are those of a table, so that retention leaves it alone. Without a value."""


@value
class Batch:
    """Rows `first_sequence .. last_sequence` of one stream, sealed by its origin."""

    stream: StreamId
    incarnation: int
    first_sequence: int
    row_count: int
    origin_batch: int
    """The origin's own batch counter over all topics: per-origin completeness in one number."""
    schema_id: int
    published_at_ms: int
    publisher: str
    """The key of the publisher, empty for an unkeyed publish; `position` is where its commit moved that key."""
    position: str
    part: int
    parts: int
    previous_checksum: int
    """Checksum of the stream's previous batch (0 for the first): two histories of one stream cannot be mixed."""
    payload: Payload | StoredPayload
    """Bytes, except in a node's own batch between its commit from the stage and its being read from the store."""
    extensions: tuple[Extension, ...] = ()
    checksum: int = 0
    """Over everything above; set by `frame.seal`."""
    head: bytes = field(default=b"", init=False, compare=False, repr=False)
    """All of a sealed batch's body but the payload, kept by `frame` for senders and stores; a changed copy (`replace`)
    has none."""

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.row_count - 1

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.row_count

    @property
    def content(self) -> Payload:
        """The payload's bytes, for whoever got the batch from a peer or from a store."""
        assert not isinstance(self.payload, StoredPayload), "this payload is in the store"
        return self.payload


class BatchFacts(NamedTuple):
    """The facts that the checksum of a batch covers besides its place and its payload: with these and the rows, the
    batch can be made again."""

    incarnation: int
    schema_id: int
    publisher: str
    position: str
    part: int
    parts: int
    previous_checksum: int
    extensions: bytes
    """The extensions' bytes, as in the head."""


@value
class BatchFrame:
    """A batch on a link: the batch, and the hop part that every forwarder rewrites."""

    batch: Batch
    hops: int
    how: How


@dataclass(slots=True)
class Traffic:
    """Batches counted, with their rows and the bytes of their payload."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0

    def count(self, batch: Batch) -> None:
        self.batches += 1
        self.rows += batch.row_count
        self.bytes += len(batch.payload)


class Skip(NamedTuple):
    """An entry in place of data: `first .. last` of a stream, why, and which node decided it."""

    stream: StreamId
    first_sequence: int
    last_sequence: int
    reason: SkipReason
    by: NodeId

    def without(self, first_sequence: int, last_sequence: int) -> "list[Skip]":
        """Return what remains of the skip when these rows are available."""
        if last_sequence < self.first_sequence or self.last_sequence < first_sequence:
            return [self]
        before = self._replace(last_sequence=first_sequence - 1)
        after = self._replace(first_sequence=last_sequence + 1)
        return [piece for piece in (before, after) if piece.first_sequence <= piece.last_sequence]


class Delivery(NamedTuple):
    """The record of a batch (or skip) handed over, in order, at a node; written in one transaction with it. Of a skip
    only the range and `received_at_ms` mean something."""

    stream: StreamId
    first_sequence: int
    last_sequence: int
    published_at_ms: int
    received_at_ms: int
    hops: int
    how: How
    sender: NodeId | None
    """The neighbour it came from; None for the node's own."""
