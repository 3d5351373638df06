"""Former commits: what this node committed before its store was rolled back, put together from batches that come back.

A batch of a former identity that comes back from a peer was committed in a life which this store has forgotten. A
commit is made as a whole, so one part of it proves all of it: the keys that the parts name move to where it left them,
unless a later commit, of that life or of this one, has moved them already. Parts that come later add their rows; those
that are lost for good stay out. Parts are durable with their batches until the commit is whole (`FormerPart`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from m4cast.overlay.ids import NodeId, StreamId, is_of_lineage, taken_at_s
from m4cast.overlay.protocol.effects import FormerPart, FormerPartRecord, PublisherState, Range, Recovered
from m4cast.overlay.protocol.wire.batch import Batch

Rank = tuple[int, int, int]
"""Orders batches of this node's identities: the later of two has the higher rank."""


@dataclass(slots=True)
class Recovery:
    """The keys and positions that the batches of one append restore."""

    states: dict[str, PublisherState] = field(default_factory=dict)
    """Keys that their commits have moved."""
    parts: list[FormerPart] = field(default_factory=list)
    """Parts of commits that are not whole yet."""
    done: list[tuple[NodeId, int, int]] = field(default_factory=list)
    """Parts (identity, first batch, part) that need not be kept any more."""


class FormerCommits:
    def __init__(self, recovered: Recovered, commits_max: int) -> None:
        self._node_id = recovered.node_id
        self._former_ids = recovered.former_ids
        self._max = commits_max
        self._parts: dict[tuple[NodeId, int], dict[int, FormerPart]] = {}
        """(origin, first batch) of a former commit -> its parts that have come back so far."""
        for part in recovered.of(FormerPartRecord).values():
            self._parts.setdefault((part.origin, part.first_batch), {})[part.part] = part
        self._from: Rank | None = None
        """Parts of commits before it are not counted any more."""

    def is_former(self, origin: NodeId) -> bool:
        """True if this node had that id before; also if its store, an older copy, has never heard of it."""
        return origin in self._former_ids or (origin != self._node_id and is_of_lineage(origin, self._node_id))

    def collect(self, batch: Batch, recovery: Recovery, key_state: Callable[[str], PublisherState | None]) -> None:
        """Count one part of a former commit: its keys, and, while others are missing, the part. `key_state`: where a
        key is now."""
        origin = batch.stream.origin
        # The batches of a commit have consecutive numbers, so the first one's number names the commit.
        first_batch = batch.origin_batch - batch.part
        if self._from is not None and self._rank(origin, first_batch) < self._from:
            return
        known = self._parts.setdefault((origin, first_batch), {})
        known[batch.part] = FormerPart(
            origin=origin,
            first_batch=first_batch,
            part=batch.part,
            key=batch.publisher,
            position=batch.position,
            rows=rows_of(batch),
        )
        ordered = [known[part] for part in sorted(known)]
        ranges = joined(part.rows for part in ordered)
        for part in ordered:
            state = PublisherState(part.position, ranges, origin, first_batch + batch.parts - 1)
            present = recovery.states.get(part.key, key_state(part.key))
            is_more = present is not None and self._age(state) == self._age(present) and ranges != present.ranges
            if is_more or self._age(state) > self._age(present):
                recovery.states[part.key] = state
        if len(known) < batch.parts:
            recovery.parts.append(known[batch.part])
        elif batch.parts > 1:
            recovery.done += [(origin, first_batch, part) for part in known]
        # Complete ones stay in memory: if this append fails, its batches come again alone.
        if len(self._parts) > self._max:
            recovery.done += self._forget_older_half()

    def _forget_older_half(self) -> list[tuple[NodeId, int, int]]:
        commits = sorted(self._parts, key=lambda commit: self._rank(*commit))
        kept_from = len(commits) // 2
        self._from = self._rank(*commits[kept_from])
        return [(*commit, part) for commit in commits[:kept_from] for part in self._parts.pop(commit)]

    def _rank(self, origin: NodeId, origin_batch: int) -> Rank:
        """Ids that the store has never heard of were taken after those that it has."""
        if origin == self._node_id:
            return (3, 0, origin_batch)
        if origin in self._former_ids:
            return (1, self._former_ids.index(origin), origin_batch)
        return (2, taken_at_s(origin), origin_batch) if self.is_former(origin) else (0, 0, origin_batch)

    def _age(self, state: PublisherState | None) -> Rank:
        return (-1, 0, 0) if state is None else self._rank(state.origin, state.origin_batch)


def rows_of(batch: Batch) -> Range:
    return Range(batch.stream, batch.first_sequence, batch.next_sequence)


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """One range per stream: the batches of one commit follow each other in each stream."""
    by_stream: dict[StreamId, Range] = {}
    for rows in ranges:
        first = by_stream.setdefault(rows.stream, rows)
        by_stream[rows.stream] = Range(rows.stream, first.first_sequence, rows.next_sequence)
    return tuple(by_stream.values())
