"""Edges: where a read begins and ends, as pure arithmetic on the nodes' answers.

Every node keeps its own part of a stream: it may have removed rows that another still has, and may not have received
the latest. So an edge is computed over all nodes that answered:

    earliest   the first row that any of them keeps
    latest     the end of what any of them has
    a time     the first row published at or after it that any of them keeps; if there is none, latest

A time cuts between two rows: reading up to it and from it returns every row once. Nothing is inferred from the times of
other rows, which go back when the clock of an origin does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from m4cast.spark_connector.offsets import Frontier, StreamName, frontier_of


@dataclass(frozen=True, slots=True)
class Holding:
    """The extent of some streams at one node."""

    ends: Mapping[StreamName, tuple[int, int]]
    """The first sequence that it keeps, and the next one to arrive."""
    at: Mapping[int, Mapping[StreamName, int]] = field(default_factory=dict)
    """The first sequence published at or after each time (in milliseconds); if there is none, the next to arrive.
    It was asked for after the ends: streams and rows may have arrived in between."""


def earliest(holdings: Iterable[Holding]) -> Frontier:
    lows: dict[StreamName, int] = {}
    for holding in holdings:
        for stream, (low, _) in holding.ends.items():
            lows[stream] = min(low, lows.get(stream, low))
    return frontier_of(lows)


def latest(holdings: Iterable[Holding]) -> Frontier:
    ends: dict[StreamName, int] = {}
    for holding in holdings:
        for stream, (_, until) in holding.ends.items():
            ends[stream] = max(until, ends.get(stream, until))
    return frontier_of(ends)


def at_time(holdings: Iterable[Holding], time_ms: int) -> Frontier:
    """Only for streams that a node had when its ends were asked for."""
    found: dict[StreamName, int] = {}
    none: dict[StreamName, int] = {}
    for holding in holdings:
        for stream, (_, until) in holding.ends.items():
            first = holding.at[time_ms].get(stream, until)
            if first < until:
                found[stream] = min(first, found.get(stream, first))
            else:
                none[stream] = max(first, none.get(stream, first))
    return frontier_of({**none, **found})
