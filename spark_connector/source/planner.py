"""The plan of a read, as pure arithmetic: how much a micro-batch takes, and how ranges become partitions.

A limited micro-batch is fair: every stream gets the same share, the unused part of a short one goes to the others, and
if the limit is lower than the number of streams, the longest backlogs come first, so that none waits for ever.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import Frontier, StreamName, position, rows_between

PARTITIONS_MAX = 100_000
"""Limit for one read. Each partition is a task, and all are created before the first one runs."""


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """Rows `first .. next - 1` of one stream."""

    topic: str
    origin: str
    first: int
    next: int

    @property
    def rows(self) -> int:
        return self.next - self.first


def fair_share(wanted: Mapping[StreamName, int], limit: int) -> dict[StreamName, int]:
    """Share at most `limit` rows as equally as possible, none more than wanted. At least one row if any is wanted."""
    limit = max(limit, 1)
    if sum(wanted.values()) <= limit:
        return dict(wanted)
    shares: dict[StreamName, int] = {}
    left = limit
    waiting = sorted(wanted, key=lambda stream: (wanted[stream], stream))
    while waiting and wanted[waiting[0]] <= left // len(waiting):
        stream = waiting.pop(0)
        shares[stream] = wanted[stream]
        left -= shares[stream]
    if waiting:
        share, over = divmod(left, len(waiting))
        for at, stream in enumerate(reversed(waiting)):  # the longest first
            shares[stream] = share + (1 if at < over else 0)
    return {stream: count for stream, count in shares.items() if count}


def rows_of_bytes(
    wanted: Mapping[StreamName, int], row_bytes: Mapping[StreamName, float], limit: int
) -> dict[StreamName, int]:
    """The same with a limit in bytes, by mean row sizes. At least one row, so that a query always advances."""
    sizes = {stream: max(row_bytes.get(stream, 1.0), 1.0) for stream in wanted}
    shares = fair_share({stream: round(count * sizes[stream]) for stream, count in wanted.items()}, limit)
    rows = {stream: min(int(share / sizes[stream]), wanted[stream]) for stream, share in shares.items()}
    taken = {stream: count for stream, count in rows.items() if count}
    if not taken and wanted:
        longest = max(wanted, key=lambda stream: (wanted[stream], stream))
        return {longest: 1}
    return taken


def spans(start: Frontier, end: Frontier, *, min_partitions: int = 1, max_rows: int) -> list[SequenceSpan]:
    """The partitions between two frontiers: contiguous pieces of each stream, in its order, of about equal size,
    none longer than `max_rows`. More than `PARTITIONS_MAX` are refused."""
    counts = rows_between(start, end)
    pieces = {stream: -(-count // max_rows) for stream, count in counts.items()}
    if sum(pieces.values()) > PARTITIONS_MAX:
        stream = max(counts, key=lambda stream: (counts[stream], stream))
        problem = (
            f"{sum(counts.values())} rows in partitions of {max_rows} need {sum(pieces.values())} partitions, more "
            f"than the limit of {PARTITIONS_MAX} for one read; {counts[stream]} of the rows are from topic "
            f"{stream.topic!r}, origin {stream.origin}"
        )
        fix = "correct endingOffsets, raise maxRowsPerPartition, or read fewer rows at a time"
        raise ConnectorError("M4CAST_TOO_MANY_PARTITIONS", problem, fix)
    longest = [(-count / pieces[stream], stream) for stream, count in counts.items()]
    heapq.heapify(longest)
    for _ in range(min(min_partitions, sum(counts.values())) - sum(pieces.values())):
        _, stream = longest[0]
        pieces[stream] += 1
        heapq.heapreplace(longest, (-counts[stream] / pieces[stream], stream))
    planned = []
    for stream in sorted(counts):
        first = position(start, stream)
        for at in range(pieces[stream]):
            begin = first + counts[stream] * at // pieces[stream]
            until = first + counts[stream] * (at + 1) // pieces[stream]
            planned.append(SequenceSpan(stream.topic, stream.origin, begin, until))
    return planned
