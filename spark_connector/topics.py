"""Topics: what is read, as the nodes have it now. Frontiers of it, by edge, by time, and as they move on.

Where a read begins and ends is asked of all listed nodes (`edges`), since each keeps its own part of a stream. News are
asked of one. What the nodes have told is remembered, so that the next question is for news only; one process uses it,
the one that plans.
"""

import logging
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError
from m4cast.spark_connector import edges, offsets
from m4cast.spark_connector.access import channel_of, patiently
from m4cast.spark_connector.edges import Holding
from m4cast.spark_connector.offsets import Frontier, Stream
from m4cast.spark_connector.options import Edge, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import Channel

log = logging.getLogger("m4cast.spark")
T = TypeVar("T")

ANSWER_S = 5.0
"""How long one of several nodes is waited for when all are asked, before it counts as away. Guess."""
ASKED_AT_ONCE = 16


class Topics:
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._told: Frontier | None = None
        """What the nodes have told, also of topics that do not match."""

    def channel(self) -> "Channel":
        return channel_of(self._options.access)

    def names(self) -> tuple[str, ...]:
        """The topics that are named, whether they are there yet or not; of a pattern those that match now."""
        if self._options.topic_pattern is None:
            return self._options.topics
        known = self._ask_all(lambda channel: channel.topics())
        return self._matching({topic for topics in known for topic in topics})

    def _matching(self, names: Iterable[str]) -> tuple[str, ...]:
        if self._options.topic_pattern is None:
            return tuple(sorted(set(names) & set(self._options.topics)))
        pattern = re.compile(self._options.topic_pattern)
        return tuple(sorted(name for name in names if pattern.fullmatch(name) and not name.startswith("_")))

    def schemas(self, topic: str) -> list["pa.Schema"]:
        """The columns of a topic, by each node that knows it: one that has removed rows has also lost their columns."""

        def ask(channel: "Channel") -> "pa.Schema | None":
            try:
                return channel.schema(topic)
            except RefusedError as error:
                if error.code != "unknown-topic":
                    raise
                return None

        known = [schema for schema in self._ask_all(ask) if schema is not None]
        return known or [patiently(lambda: self.channel().schema(topic), self._options.access.timeout_s)]

    def frontier(self, edge: Edge | int = "latest") -> Frontier:
        """The edge as a frontier; an int is a time."""
        (frontier,) = self._edges(edge)
        return frontier

    def range(self) -> tuple[Frontier, Frontier]:
        """What a batch read has: both of its edges, from one look at the nodes."""
        start, end = self._edges(self._options.starting, self._options.ending)
        return start, end

    def _edges(self, *wanted: Edge | int) -> list[Frontier]:
        times = sorted({edge for edge in wanted if isinstance(edge, int)})
        holdings: list[Holding] = []
        if not all(isinstance(edge, dict) for edge in wanted):
            holdings = self._ask_all(lambda channel: _holding(channel, self._options.topics or None, times))
        found = []
        for edge in wanted:
            if isinstance(edge, dict):
                frontier = edge
            elif isinstance(edge, int):
                frontier = edges.at_time(holdings, edge)
            else:
                frontier = edges.earliest(holdings) if edge == "earliest" else edges.latest(holdings)
            found.append(offsets.of_topics(frontier, self._matching(frontier)))
        return found

    def _ask_all(self, question: Callable[["Channel"], T]) -> list[T]:
        """The answers of the listed nodes that can be reached, at least one. A node that is only busy is waited for:
        without it, rows that only it keeps would be left out."""
        channel, timeout_s = self.channel(), self._options.access.timeout_s
        limit_s = timeout_s if len(channel.nodes) == 1 else min(timeout_s, ANSWER_S)

        def ask(node: str) -> T | M4castError:
            try:
                return patiently(lambda: _reached(channel.at(node, timeout_s=limit_s), question), timeout_s)
            except _AwayError as away:
                return away.error

        def ask_once() -> list[T]:
            with ThreadPoolExecutor(min(len(channel.nodes), ASKED_AT_ONCE)) as pool:
                said = list(pool.map(ask, channel.nodes))
            away = [each for each in said if isinstance(each, M4castError)]
            if len(away) == len(said):
                raise away[0]
            for error in away:
                log.warning("rows that only this node keeps are not planned: %s", error)
            return [each for each in said if not isinstance(each, M4castError)]

        return patiently(ask_once, timeout_s)

    def newest(self, wait_s: float) -> Frontier:
        """The frontier, once more and only by what is new; with patience for news, if there are none."""
        channel, timeout_s = self.channel(), self._options.access.timeout_s
        topics = self._options.topics or None
        if self._told is None:
            self._told = patiently(lambda: channel.frontier(topics), timeout_s)
        else:
            seen = self._told
            news = patiently(lambda: channel.news(seen, topics, wait_s=wait_s), timeout_s)
            moved = {topic: {origin: ends[1] for origin, ends in origins.items()} for topic, origins in news.items()}
            self._told = offsets.maximum(seen, moved)
        return offsets.of_topics(self._told, self._matching(self._told))

    def row_bytes(self, streams: Iterable[Stream]) -> dict[Stream, float]:
        """The mean size of a row of each stream, as the answering node stores it."""
        sizes: dict[Stream, float] = {}
        for topic in sorted({stream.topic for stream in streams}):
            described = patiently(lambda topic=topic: self.channel().describe(topic), self._options.access.timeout_s)  # type: ignore[misc]
            for origin, held in described["streams"].items():
                if held["next"] > held["low"]:
                    sizes[Stream(topic, origin)] = held["bytes"] / (held["next"] - held["low"])
        return sizes

    def lows(self, at: Frontier, streams: Iterable[Stream]) -> dict[Stream, int]:
        """Of those streams whose next rows no node keeps, the first sequence that one does. All listed nodes must say
        so: one that is away may have the rows."""
        channel = self.channel()
        lost: dict[Stream, int] | None = None
        for node in channel.nodes:
            wanted = list(streams) if lost is None else list(lost)
            if not wanted:
                return {}
            try:
                extents = channel.at(node).extents(sorted({stream.topic for stream in wanted}))
            except M4castError:
                return {}
            here = {stream: extents.get(stream.topic, {}).get(stream.origin) for stream in wanted}
            lows = {stream: ends[0] for stream, ends in here.items() if ends and ends[0] > offsets.position(at, stream)}
            lost = lows if lost is None else {stream: min(low, lost[stream]) for stream, low in lows.items()}
        return lost or {}


class _AwayError(Exception):
    """A node cannot be reached; `patiently` lets it through at once."""

    def __init__(self, error: M4castError) -> None:
        super().__init__(str(error))
        self.error = error


def _reached(channel: "Channel", question: Callable[["Channel"], T]) -> T:
    try:
        return question(channel)
    except UnreachableError as error:
        raise _AwayError(error) from error
    except RefusedError as error:
        if error.code != "timeout":
            raise
        raise _AwayError(UnreachableError(error.detail)) from error


def _holding(channel: "Channel", topics: tuple[str, ...] | None, times: Iterable[int]) -> Holding:
    """What one node has, in one look. The ends are asked for first: `edges.at_time` counts on it."""
    ends = _flat(channel.extents(topics))
    return Holding(
        dict(ends),
        {time: {stream: first for stream, (_, first) in _flat(channel.extents(topics, at=time))} for time in times},
    )


def _flat(extents: dict[str, dict[str, list[int]]]) -> list[tuple[Stream, tuple[int, int]]]:
    return [
        (Stream(topic, origin), (low, until))
        for topic, origins in extents.items()
        for origin, (low, until) in origins.items()
    ]
