"""The plan of a read, as pure arithmetic: how much a micro-batch takes, and how ranges become partitions.

A limited micro-batch is fair: every stream gets the same share, what a short one leaves goes to the others, and when
there are fewer rows than streams the longest backlogs come first, so that none waits for ever.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import Frontier, Stream, position, rows_between

PARTITIONS_MAX = 100_000
"""Of one read. Each is a task, and is made here before the first one runs."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `first .. next - 1` of one stream."""

    topic: str
    origin: str
    first: int
    next: int

    @property
    def rows(self) -> int:
        return self.next - self.first


def fair_share(wanted: Mapping[Stream, int], limit: int) -> dict[Stream, int]:
    """At most `limit` in all, as equal as possible, none more than it wants. At least one row, if one is wanted."""
    limit = max(limit, 1)
    if sum(wanted.values()) <= limit:
        return dict(wanted)
    shares: dict[Stream, int] = {}
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


def rows_of_bytes(wanted: Mapping[Stream, int], row_bytes: Mapping[Stream, float], limit: int) -> dict[Stream, int]:
    """The same by bytes, as far as the mean sizes of rows tell. At least one row, so that a query never stands."""
    sizes = {stream: max(row_bytes.get(stream, 1.0), 1.0) for stream in wanted}
    shares = fair_share({stream: round(count * sizes[stream]) for stream, count in wanted.items()}, limit)
    rows = {stream: min(int(share / sizes[stream]), wanted[stream]) for stream, share in shares.items()}
    taken = {stream: count for stream, count in rows.items() if count}
    if not taken and wanted:
        longest = max(wanted, key=lambda stream: (wanted[stream], stream))
        return {longest: 1}
    return taken


def spans(start: Frontier, end: Frontier, *, min_partitions: int = 1, max_rows: int) -> list[Span]:
    """What lies between two frontiers, in partitions: by stream, in its order, each a contiguous piece of about equal
    size, none longer than `max_rows`. More than `PARTITIONS_MAX` are refused."""
    counts = rows_between(start, end)
    pieces = {stream: -(-count // max_rows) for stream, count in counts.items()}
    if sum(pieces.values()) > PARTITIONS_MAX:
        stream = max(counts, key=lambda stream: (counts[stream], stream))
        problem = (
            f"{sum(counts.values())} rows in {sum(pieces.values())} partitions of {max_rows} are more than the "
            f"{PARTITIONS_MAX} partitions that one read may have; {counts[stream]} of the rows are asked of topic "
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
            planned.append(Span(stream.topic, stream.origin, begin, until))
    return planned
