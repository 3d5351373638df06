"""Holdings: what a node has of each stream, and digests by which two nodes find where they differ.

Per stream there are three frontiers: `low` (first sequence kept), `next` (next expected, what this node accepted
and passes on) and `durable_next` (what is on its disk, what it acknowledges and delivers). A crash takes `next`
back to `durable_next`, never further.

The digest of a set of streams is the exclusive-or of a mix of (stream, next), so it is updated in constant time
and does not depend on order. Streams fall into buckets; two nodes compare bucket digests and exchange only the
streams of buckets that differ.
"""

from collections import deque
from dataclasses import dataclass, field

import xxhash

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import StoredStream
from m4cast.overlay.protocol.wire.batch import BatchFrame, Skip
from m4cast.overlay.protocol.wire.messages import HoldingEntry

ORIGIN_PATIENCE_MS = 1_000
"""The time for which an origin is left to push its rows to its neighbours itself: these do not ask elsewhere for what
it has not announced yet, and others do not announce it to them. Raising it lets a slow link of the origin delay its
streams for longer; lowering it fetches large batches twice; guess."""
BUCKETS = 64
_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Claim:
    """The part of a stream that a peer claims to have: `low .. next - 1`."""

    low: int
    next: int


@dataclass(slots=True)
class Stream:
    id: StreamId
    key: int
    low: int = 1
    next: int = 1
    durable_next: int = 1
    last_checksum: int = 0
    """Checksum of the batch before `next`; 0 when it is not known (after a skip, or a start in the middle)."""
    durable_checksum: int = 0
    skips: list[Skip] = field(default_factory=list)
    claims: dict[NodeId, Claim] = field(default_factory=dict)
    claimed_next: int = 1
    """The farthest that any peer claims."""
    undurable: deque[BatchFrame] = field(default_factory=deque)
    """Accepted but not on disk yet, in order: served to others from memory."""
    start_unsaved: bool = False
    """The node began this stream at `low`, not at 1, and its store does not know yet."""
    forked: bool = False
    """Two histories of this stream were seen: nothing more of it is accepted."""

    def claim(self, node_id: NodeId, low: int, next_sequence: int) -> None:
        claim = self.claims.get(node_id)
        if claim is None:
            self.claims[node_id] = Claim(low, next_sequence)
        else:
            if claim.low < low:
                claim.low = low
            if claim.next < next_sequence:
                claim.next = next_sequence
        if self.claimed_next < next_sequence:
            self.claimed_next = next_sequence

    def correct_claim(self, node_id: NodeId, low: int, next_sequence: int) -> None:
        """The peer's own answer to a pull replaces whatever it seemed to have."""
        self.claims[node_id] = Claim(low, next_sequence)
        self.claimed_next = max((claim.next for claim in self.claims.values()), default=1)

    def forget_claim(self, node_id: NodeId) -> None:
        if self.claims.pop(node_id, None) is not None:
            self.claimed_next = max((claim.next for claim in self.claims.values()), default=1)

    def first_held_from(self, sequence: int) -> int:
        """The first sequence at or above the given one that is kept as data: past `low` and past skips."""
        held = max(sequence, self.low)
        for skip in self.skips:
            if skip.first_sequence <= held <= skip.last_sequence:
                held = skip.last_sequence + 1
        return held

    def fill(self, first_sequence: int, last_sequence: int) -> None:
        """Rows have taken the place of a skip, or of a part of one."""
        self.skips = [piece for skip in self.skips for piece in skip.without(first_sequence, last_sequence)]

    def held_from(self) -> int:
        """Return the first sequence of the data that reaches the durable end without a skip."""
        return max(self.low, self.skips[-1].last_sequence + 1) if self.skips else self.low

    def mix(self) -> int:
        """64 bits that change with `next`; 0 for a stream of which nothing is held, as if it were not known."""
        if self.next == 1:
            return 0
        mixed = (self.key ^ (self.next * 0x9E3779B97F4A7C15)) & _MASK
        mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
        return mixed ^ (mixed >> 32)


class Holdings:
    def __init__(self, stored: dict[StreamId, StoredStream]) -> None:
        self.streams: dict[StreamId, Stream] = {}
        self.digests = [0] * BUCKETS
        self.digest = 0
        """Digest of all buckets."""
        for stream_id, state in stored.items():
            stream = self.open(stream_id)
            stream.low = state.low
            stream.skips = list(state.skips)
            stream.durable_next = state.next
            stream.durable_checksum = state.last_checksum
            self.advance(stream, state.next, state.last_checksum)

    def get(self, stream_id: StreamId) -> Stream | None:
        return self.streams.get(stream_id)

    def open(self, stream_id: StreamId) -> Stream:
        stream = self.streams.get(stream_id)
        if stream is None:
            key = xxhash.xxh3_64_intdigest(stream_id.origin + stream_id.topic.encode())
            stream = self.streams[stream_id] = Stream(stream_id, key)
        return stream

    def trim(self, stream_id: StreamId, low: int) -> None:
        """Retention removed everything of the stream below `low`."""
        stream = self.open(stream_id)
        stream.low = max(stream.low, low)

    def advance(self, stream: Stream, next_sequence: int, last_checksum: int) -> None:
        bucket = stream.key % BUCKETS
        before = stream.mix()
        stream.next = next_sequence
        stream.last_checksum = last_checksum
        change = before ^ stream.mix()
        self.digests[bucket] ^= change
        self.digest ^= change

    def entries(self, buckets: set[int]) -> list[HoldingEntry]:
        """The holdings to send a peer. A stream of which nothing is held is left out, else names without rows would
        spread."""
        return [
            HoldingEntry(stream.id.origin, stream.id.topic, stream.low, stream.next)
            for stream in self.streams.values()
            if stream.next > 1 and stream.key % BUCKETS in buckets
        ]
