"""Filters of a batch read, as bounds of what is read at all: topics, origins, sequences and times of publication.

A filter only narrows what nodes are asked for; Spark evaluates all of them again, so that one which is not understood
here costs time and nothing else. Spark hands them over if `spark.sql.python.filterPushdown.enabled` is true.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from m4cast.spark_connector.offsets import SEQUENCE_MAX, Frontier, Stream, frontier_of, position, streams_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What rows that pass the filters have."""

    streams: tuple[Callable[[Stream], bool], ...] = field(default=())
    """All of these hold."""
    first: int = 1
    next: int = SEQUENCE_MAX
    from_ms: int | None = None
    """Published then or later."""
    before_ms: int | None = None

    def narrowed(self, start: Frontier, end: Frontier) -> tuple[Frontier, Frontier]:
        """What is left between two frontiers of streams and sequences; times are the nodes' to look up."""
        left = {
            stream: (max(position(start, stream), self.first), min(until, self.next))
            for stream, until in streams_of(end)
            if all(holds(stream) for holds in self.streams)
        }
        return (
            frontier_of({stream: first for stream, (first, _) in left.items()}),
            frontier_of({stream: until for stream, (_, until) in left.items()}),
        )


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """All of the filters together."""
    bounds = Bounds()
    for each in filters:
        match getattr(each, "attribute", None):
            case ("_topic",):
                bounds = _named(bounds, each, lambda stream: stream.topic)
            case ("_origin",):
                bounds = _named(bounds, each, lambda stream: stream.origin)
            case ("_sequence",):
                bounds = _numbered(bounds, each)
            case ("_published_at",):
                bounds = _published(bounds, each)
    return bounds


def _named(bounds: Bounds, each: Filter, name: Callable[[Stream], str]) -> Bounds:
    match each:
        case EqualTo(_, value):
            holds = _is_one((value,), name)
        case In(_, values):
            holds = _is_one(tuple(values), name)
        case StringStartsWith(_, value):
            holds = _begins(value, name)
        case _:
            return bounds
    return replace(bounds, streams=(*bounds.streams, holds))


def _is_one(values: tuple[Any, ...], name: Callable[[Stream], str]) -> Callable[[Stream], bool]:
    return lambda stream: name(stream) in values


def _begins(value: str, name: Callable[[Stream], str]) -> Callable[[Stream], bool]:
    return lambda stream: name(stream).startswith(value)


def _numbered(bounds: Bounds, each: Filter) -> Bounds:
    low, high = bounds.first, bounds.next
    match each:
        case EqualTo(_, int(value)):
            low, high = max(low, value), min(high, value + 1)
        case GreaterThan(_, int(value)):
            low = max(low, value + 1)
        case GreaterThanOrEqual(_, int(value)):
            low = max(low, value)
        case LessThan(_, int(value)):
            high = min(high, value)
        case LessThanOrEqual(_, int(value)):
            high = min(high, value + 1)
    return replace(bounds, first=low, next=max(high, 1))


def _published(bounds: Bounds, each: Filter) -> Bounds:
    """Rows have whole milliseconds; what they are compared with need not."""
    if not isinstance(each, _COMPARISONS) or not isinstance(each.value, datetime) or each.value.tzinfo is None:
        return bounds
    since = each.value - _EPOCH
    reached_ms, passed_ms = -(-since // _MILLISECOND), since // _MILLISECOND + 1
    from_ms = {EqualTo: reached_ms, GreaterThan: passed_ms, GreaterThanOrEqual: reached_ms}.get(type(each))
    before_ms = {EqualTo: passed_ms, LessThan: reached_ms, LessThanOrEqual: passed_ms}.get(type(each))
    if from_ms is not None:
        bounds = replace(bounds, from_ms=max(from_ms, bounds.from_ms or 0, 0))
    if before_ms is not None:
        known = bounds.before_ms
        bounds = replace(bounds, before_ms=max(before_ms if known is None else min(before_ms, known), 0))
    return bounds
