"""The interest view: every node's entry, as far as this node knows.

An entry is *used* while its node is present. The entry of a node that left or failed is kept for ten minutes and not
used: a node that returns finds its interest where it was. Then it is forgotten, so the view shrinks back after churn
(guarantee 9).

Two neighbours compare their views by digests of 64 buckets of nodes, over the entries that are used.
"""

from collections.abc import Iterator

from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.interest.entry import InterestEntry

VIEW_BUCKETS = 64
ABSENT_KEPT_MS = 600_000
"""The time for which the entry of a node that is gone is kept; guess. Raising it keeps memory after churn; lowering it
sends the entries of nodes that return once more."""
VIEW_ENTRIES_MAX = 20_000
"""Nodes whose interest is remembered: as many as a roster has."""


class InterestView:
    def __init__(self) -> None:
        self.entries: dict[NodeId, InterestEntry] = {}
        self.gone: dict[NodeId, int] = {}
        """Nodes of these that left or failed -> when this node heard of it."""
        self.revision = 0
        """Counts what changes for whoever uses the view."""

    def used(self) -> Iterator[InterestEntry]:
        return (entry for node_id, entry in self.entries.items() if node_id not in self.gone)

    def has_room(self) -> bool:
        return len(self.entries) < VIEW_ENTRIES_MAX

    def add(self, node_id: NodeId) -> InterestEntry:
        entry = self.entries[node_id] = InterestEntry(node_id)
        return entry

    def forget_gone(self, now_ms: int) -> list[NodeId]:
        """Forget entries of nodes that have been gone for too long; whose they were."""
        long_gone = [node_id for node_id, since_ms in self.gone.items() if now_ms - since_ms >= ABSENT_KEPT_MS]
        for node_id in long_gone:
            del self.entries[node_id], self.gone[node_id]
        return long_gone

    # ---- comparing

    def digests(self) -> tuple[int, ...]:
        digests = [0] * VIEW_BUCKETS
        for entry in self.used():
            digests[view_bucket(entry.node_id)] ^= entry.digest()
        return tuple(digests)

    def in_buckets(self, wanted: list[bool]) -> list[InterestEntry]:
        return [entry for entry in self.used() if wanted[view_bucket(entry.node_id)]]


def view_bucket(node_id: NodeId) -> int:
    return xxh3_64_intdigest(node_id) % VIEW_BUCKETS
