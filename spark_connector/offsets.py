"""Offsets: a Spark offset is a frontier, `{topic: {origin: next}}`, the next sequence of every stream.

It is valid on every node that holds the topics. A stream that a frontier does not name stands at its first row, 1.
Beside the topics an offset may say which rows before it were passed over because nobody keeps them, so that this is in
the checkpoint and in the progress of the query: `{"": {topic: {origin: [first, next]}}}`.
All functions are pure; what they return is sorted by topic and origin, so that equal frontiers are equal text.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

Frontier = dict[str, dict[str, int]]
"""The client's own type; written out, so that Spark's look-up of sources does not import Flight."""
FIRST = 1
SEQUENCE_MAX = 2**62 - 1
"""As the nodes have it."""


SKIPS = ""
"""In place of a topic; no topic has this name."""


class Stream(NamedTuple):
    topic: str
    origin: str


def parse_frontier(said: Any) -> Frontier:
    """A frontier that came from outside; ValueError if it is none."""
    if not isinstance(said, dict):
        raise ValueError("a frontier is an object")
    for topic, origins in said.items():
        if not topic or not isinstance(origins, dict):
            raise ValueError(f"topic {topic!r} needs an object of origins")
        for origin, sequence in origins.items():
            if len(origin) != 32 or not set(origin) <= set("0123456789abcdef"):
                raise ValueError(f"origin {origin!r} is not 32 hex digits")
            if type(sequence) is not int or not FIRST <= sequence <= SEQUENCE_MAX:
                raise ValueError(f"{sequence!r} is not a sequence")
    return frontier_of(dict(streams_of(said)))


def streams_of(frontier: Frontier) -> Iterator[tuple[Stream, int]]:
    for topic in sorted(frontier):
        for origin in sorted(frontier[topic]):
            yield Stream(topic, origin), frontier[topic][origin]


def frontier_of(positions: dict[Stream, int]) -> Frontier:
    frontier: Frontier = {}
    for stream in sorted(positions):
        frontier.setdefault(stream.topic, {})[stream.origin] = positions[stream]
    return frontier


def position(frontier: Frontier, stream: Stream) -> int:
    return frontier.get(stream.topic, {}).get(stream.origin, FIRST)


def maximum(one: Frontier, other: Frontier) -> Frontier:
    """Of each stream the later; those that only one names are in it."""
    named = {stream for frontier in (one, other) for stream, _ in streams_of(frontier)}
    return frontier_of({stream: max(position(one, stream), position(other, stream)) for stream in named})


def rows_between(start: Frontier, end: Frontier) -> dict[Stream, int]:
    """How many rows of each stream lie between, for streams that have some."""
    counts = {stream: until - position(start, stream) for stream, until in streams_of(end)}
    return {stream: count for stream, count in counts.items() if count > 0}


def advanced(start: Frontier, rows: dict[Stream, int]) -> Frontier:
    """So many rows later in each stream."""
    positions = dict(streams_of(start))
    for stream, count in rows.items():
        positions[stream] = position(start, stream) + count
    return frontier_of(positions)


def of_topics(frontier: Frontier, topics: tuple[str, ...]) -> Frontier:
    return {topic: origins for topic, origins in frontier.items() if topic in topics}


# ---- what was passed over


def without_skips(offset: dict[str, Any]) -> Frontier:
    return {topic: origins for topic, origins in offset.items() if topic != SKIPS}


def with_skips(frontier: Frontier, skips: dict[Stream, tuple[int, int]]) -> dict[str, Any]:
    said: dict[str, dict[str, list[int]]] = {}
    for stream in sorted(skips):
        said.setdefault(stream.topic, {})[stream.origin] = list(skips[stream])
    return {**frontier, SKIPS: said} if said else dict(frontier)


def skips_of(offset: dict[str, Any]) -> dict[Stream, tuple[int, int]]:
    return {
        Stream(topic, origin): (first, until)
        for topic, origins in offset.get(SKIPS, {}).items()
        for origin, (first, until) in origins.items()
    }


def behind_skips(start: Frontier, skips: dict[Stream, tuple[int, int]]) -> Frontier:
    """Where reading begins, past what is passed over."""
    positions = dict(streams_of(start))
    for stream, (_, until) in skips.items():
        positions[stream] = max(position(start, stream), until)
    return frontier_of(positions)
