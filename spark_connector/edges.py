"""Edges: where a read begins and ends, as pure arithmetic on what the nodes say.

Every node keeps its own part of a stream: one may have removed rows that another still has, and one may not have
received the latest. So an edge is taken over all nodes that answered:

    earliest   the first row that one of them keeps
    latest     the end of what one of them has
    a time     the first row published then or later that one of them keeps; without such a row, latest

A time is a cut between two rows: reads up to it and from it on give every row once. Nothing is concluded from the times
of other rows, which go back when the clock of an origin does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from m4cast.spark_connector.offsets import Frontier, Stream, frontier_of


@dataclass(frozen=True, slots=True)
class Holding:
    """What one node has of some streams, in one look."""

    ends: Mapping[Stream, tuple[int, int]]
    """The first sequence that it keeps, and the next to come."""
    at: Mapping[int, Mapping[Stream, int]] = field(default_factory=dict)
    """By time in milliseconds, the first sequence published then or later; without such a row, the next to come.
    It was asked after the ends: streams and rows may have come in between."""


def earliest(holdings: Iterable[Holding]) -> Frontier:
    lows: dict[Stream, int] = {}
    for holding in holdings:
        for stream, (low, _) in holding.ends.items():
            lows[stream] = min(low, lows.get(stream, low))
    return frontier_of(lows)


def latest(holdings: Iterable[Holding]) -> Frontier:
    ends: dict[Stream, int] = {}
    for holding in holdings:
        for stream, (_, until) in holding.ends.items():
            ends[stream] = max(until, ends.get(stream, until))
    return frontier_of(ends)


def at_time(holdings: Iterable[Holding], time_ms: int) -> Frontier:
    """Only of streams that a node had when its ends were asked for."""
    found: dict[Stream, int] = {}
    none: dict[Stream, int] = {}
    for holding in holdings:
        for stream, (_, until) in holding.ends.items():
            first = holding.at[time_ms].get(stream, until)
            if first < until:
                found[stream] = min(first, found.get(stream, first))
            else:
                none[stream] = max(first, none.get(stream, first))
    return frontier_of({**none, **found})
