"""Counts what selection saves: copies of this node's own selective batches that were sent, and those that were not."""

from dataclasses import dataclass, field

from m4cast.overlay.protocol.wire.batch import Batch, Traffic


@dataclass(slots=True)
class CopyCounts:
    sent: Traffic = field(default_factory=Traffic)
    """One for each node that a batch was sent to."""
    spared: Traffic = field(default_factory=Traffic)
    """One for each other node that is present."""

    def count(self, batch: Batch, sent: int, others: int) -> None:
        for traffic, copies in ((self.sent, sent), (self.spared, max(others - sent, 0))):
            traffic.batches += copies
            traffic.rows += copies * batch.row_count
            traffic.bytes += copies * len(batch.payload)
