"""Offsets: a Spark offset is a frontier, `{topic: {origin: next}}`, the next sequence of every stream.

It is valid on every node that holds the topics. A stream that a frontier does not name is at its first row, 1.
Besides topics, an offset may list the rows that were skipped because no node keeps them, which records the loss in the
checkpoint and in the query's progress: `{"": {topic: {origin: [first, next]}}}`. It also contains the filter of the
query, if it has one, so that a replayed micro-batch is filtered as it was planned: `{"": {"": {"where": "a > 1"}}}`.
Beside the filter, an offset of ingest has the number of each topic's join: `{"": {"": {"joins": {topic: number}}}}`,
and that of a client its key, session and state without the frontier: `{"": {"": {"client": ...}}}`.
All functions are pure. Their results are sorted by topic and origin, so that equal frontiers have equal text.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from m4cast.spark_connector.source_filter import SourceFilter

Frontier = dict[str, dict[str, int]]
"""The client's type, repeated here so that Spark's look-up of data sources does not import Flight."""
FIRST = 1
SEQUENCE_MAX = 2**62 - 1
"""The limit of the nodes."""
SKIPS = FILTER = ""
"""Used in place of a topic; no topic has this name. The filter is among the skips."""
JOINS = "joins"
CLIENT = "client"


class StreamName(NamedTuple):
    topic: str
    origin: str


def parse_frontier(value: Any) -> Frontier:
    """A frontier from untrusted input. Raises ValueError if it is not one."""
    if not isinstance(value, dict):
        raise ValueError(f"a frontier must be an object with one entry for each topic, not {value!r:.100}")
    for topic, origins in value.items():
        if not topic or not isinstance(origins, dict):
            raise ValueError(f"topic {topic!r} must be an object with a sequence for each origin, not {origins!r:.60}")
        for origin, sequence in origins.items():
            if len(origin) != 32 or not set(origin) <= set("0123456789abcdef"):
                raise ValueError(f"origin {origin!r} is not 32 hex digits")
            if type(sequence) is not int or not FIRST <= sequence <= SEQUENCE_MAX:
                raise ValueError(f"{sequence!r} is not a sequence: write a whole number from 1 on")
    return frontier_of(dict(streams_of(value)))


def streams_of(frontier: Frontier) -> Iterator[tuple[StreamName, int]]:
    for topic in sorted(frontier):
        for origin in sorted(frontier[topic]):
            yield StreamName(topic, origin), frontier[topic][origin]


def frontier_of(positions: dict[StreamName, int]) -> Frontier:
    frontier: Frontier = {}
    for stream in sorted(positions):
        frontier.setdefault(stream.topic, {})[stream.origin] = positions[stream]
    return frontier


def position(frontier: Frontier, stream: StreamName) -> int:
    return frontier.get(stream.topic, {}).get(stream.origin, FIRST)


def maximum(one: Frontier, other: Frontier) -> Frontier:
    """The later position of each stream that either names."""
    named = {stream for frontier in (one, other) for stream, _ in streams_of(frontier)}
    return frontier_of({stream: max(position(one, stream), position(other, stream)) for stream in named})


def rows_between(start: Frontier, end: Frontier) -> dict[StreamName, int]:
    """The number of rows between the two, for each stream that has any."""
    counts = {stream: until - position(start, stream) for stream, until in streams_of(end)}
    return {stream: count for stream, count in counts.items() if count > 0}


def advanced(start: Frontier, rows: dict[StreamName, int]) -> Frontier:
    """The frontier after this many rows of each stream."""
    positions = dict(streams_of(start))
    for stream, count in rows.items():
        positions[stream] = position(start, stream) + count
    return frontier_of(positions)


def of_topics(frontier: Frontier, topics: tuple[str, ...]) -> Frontier:
    return {topic: origins for topic, origins in frontier.items() if topic in topics}


# ---- skipped rows


def without_skips(offset: dict[str, Any]) -> Frontier:
    return {topic: origins for topic, origins in offset.items() if topic != SKIPS}


def with_skips(frontier: Frontier, skips: dict[StreamName, tuple[int, int]]) -> dict[str, Any]:
    listed: dict[str, dict[str, list[int]]] = {}
    for stream in sorted(skips):
        listed.setdefault(stream.topic, {})[stream.origin] = list(skips[stream])
    return {**frontier, SKIPS: listed} if listed else dict(frontier)


def skips_of(offset: dict[str, Any]) -> dict[StreamName, tuple[int, int]]:
    return {
        StreamName(topic, origin): (first, until)
        for topic, origins in offset.get(SKIPS, {}).items()
        if topic != FILTER
        for origin, (first, until) in origins.items()
    }


def after_skips(start: Frontier, skips: dict[StreamName, tuple[int, int]]) -> Frontier:
    """The position at which reading begins, after the skipped rows."""
    positions = dict(streams_of(start))
    for stream, (_, until) in skips.items():
        positions[stream] = max(position(start, stream), until)
    return frontier_of(positions)


# ---- the filter


def with_filter(offset: dict[str, Any], row_filter: SourceFilter | None) -> dict[str, Any]:
    if row_filter is None:
        return offset
    written = {"where": row_filter.text, "whereLanguage": row_filter.language}
    others = offset.get(SKIPS, {})
    return {**offset, SKIPS: {**others, FILTER: {**others.get(FILTER, {}), **written}}}


def filter_of(offset: dict[str, Any]) -> SourceFilter | None:
    written = offset.get(SKIPS, {}).get(FILTER, {})
    return SourceFilter(written["where"], written["whereLanguage"]) if "where" in written else None


# ---- joins


def with_joins(offset: dict[str, Any], joins: dict[str, int]) -> dict[str, Any]:
    """The offset with the number of each topic's join (see `m4cast.jobs.direct.joins`)."""
    others = offset.get(SKIPS, {})
    return {**offset, SKIPS: {**others, FILTER: {**others.get(FILTER, {}), JOINS: joins}}}


def joins_of(offset: dict[str, Any]) -> dict[str, int]:
    joins: dict[str, int] = offset.get(SKIPS, {}).get(FILTER, {}).get(JOINS, {})
    return joins


# ---- clients


def with_client(frontier: Frontier, client: dict[str, Any]) -> dict[str, Any]:
    return {**frontier, SKIPS: {FILTER: {CLIENT: client}}}


def client_of(offset: dict[str, Any]) -> dict[str, Any] | None:
    found: dict[str, Any] | None = offset.get(SKIPS, {}).get(FILTER, {}).get(CLIENT)
    return found
