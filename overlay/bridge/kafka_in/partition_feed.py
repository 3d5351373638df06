"""The feed of one partition: records that were read and not yet written, and how far the partition is written."""

import time
from bisect import bisect_right
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from m4cast.overlay.bridge.kafka_in.positions import Position
from m4cast.overlay.bridge.kafka_in.writer import RecordBatch
from m4cast.overlay.bridge.records import sizes


@dataclass(slots=True)
class PartitionFeed:
    partition: Any
    key: str
    target: str
    expect: str | None = None
    """The position that the publisher key has at the access point."""
    position: Position | None = None
    """The next record to read; None until the access point was asked."""
    records: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    bytes: int = 0
    since: float = 0.0
    writing: "Future[None] | None" = None
    written: Position | None = None
    """The position once the batch that is being written is committed."""
    is_fresh: bool = True
    """Nothing was committed here yet: a predecessor's last commit may still move the key, once."""
    is_stalled: bool = False
    """The channel refused the last batch for a reason that is not in its records."""
    stalled_until: float = 0.0

    def add(self, records: list[Any]) -> None:
        if not self.records:
            self.since = time.monotonic()
        added = sizes(records)
        self.records.extend(records)
        self.sizes.extend(added)
        self.bytes += sum(added)

    def take(self, process: str, batch_bytes: int) -> RecordBatch:
        """Remove the first records, about `batch_bytes` of them and at least one, as a batch."""
        assert self.position is not None
        count = len(self.records)
        if self.bytes > batch_bytes:
            count = max(bisect_right(list(accumulate(self.sizes)), batch_bytes), 1)
        records, self.records = self.records[:count], self.records[count:]
        self.bytes -= sum(self.sizes[:count])
        del self.sizes[:count]
        self.written = replace(self.position, offset=records[-1].offset + 1, process=process)
        return RecordBatch(
            records=records, target=self.target, key=self.key, expect=self.expect, next=str(self.written)
        )

    def drop(self) -> None:
        self.records, self.sizes, self.bytes = [], [], 0
