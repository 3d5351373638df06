"""The topics of a source, as they are at the nodes now: their names, columns and frontiers.

All listed nodes are asked where a read begins and ends (`edges`), since each keeps its own part of a stream. One node
is asked for new rows. The last frontier is remembered, so that the next request only returns changes. Only the planning
process uses this class.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError
from m4cast.spark_connector import offsets
from m4cast.spark_connector.access import channel_of, patiently
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.offsets import Frontier, StreamName
from m4cast.spark_connector.option_values import Edge
from m4cast.spark_connector.options import ReadOptions
from m4cast.spark_connector.source import edges
from m4cast.spark_connector.source.edges import Holding

if TYPE_CHECKING:
    import pyarrow as pa

    from m4cast.overlay.client import Channel
    from m4cast.overlay.client.interest import ActiveLevel

log = logging.getLogger("m4cast.spark")
T = TypeVar("T")

ANSWER_S = 5.0
"""Time to wait for one of several nodes before it counts as unreachable. Guess."""
ASKED_AT_ONCE = 16
_AWAY: set[str] = set()
"""Listed nodes that did not answer when they were last asked by this process."""


class SourceTopics:
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._known: Frontier | None = None
        """The last frontier from the nodes, including topics that do not match."""

        found = options.row_filter
        self._where: dict[str, Any] = {} if found is None else {"where": found.text, "language": found.language}
        """The filter, sent with every question: a node fetches only the matching rows of selective topics."""

    def channel(self) -> "Channel":
        return channel_of(self._options.access)

    def names(self) -> tuple[str, ...]:
        """The named topics, whether they exist or not; for a pattern, those that match now."""
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
        """The columns of a topic at each node that knows it: a node that removed rows has lost their columns, too."""

        def ask(channel: "Channel") -> "pa.Schema | None":
            try:
                return channel.schema(topic)
            except RefusedError as error:
                if error.code != "unknown-topic":
                    raise
                return None

        known = [schema for schema in self._ask_all(ask) if schema is not None]
        return known or [patiently(lambda: self.channel().schema(topic), self._options.access.timeout_s)]

    def wait_active(self, level: "ActiveLevel") -> None:
        """Wait until what the stream wants is known on this level; ConnectorError if it is not in time."""
        from m4cast.overlay.client.interest import read_activity

        timeout_s, start = self._options.access.timeout_s, self._options.starting
        channel = self.channel()
        doors = channel.at(channel.nodes[0]).doors
        for topic in self.names():
            ask = partial(read_activity, doors, topic, dict(self._where), start, timeout_s, level)
            found = patiently(ask, timeout_s)
            if not found.is_reached(level):
                missing = f"nodes {', '.join(found.missing)} have not" if found.missing else "gatekeepers have not"
                problem = f"topic {topic!r}: what the stream wants is not active ({level}): {missing} confirmed it"
                fix = "raise timeoutMs, set waitActive to channel, or have the topic imported (docs/FEDERATION.md)"
                raise ConnectorError("M4CAST_NOT_ACTIVE", problem, fix)

    def frontier(self, edge: Edge | int = "latest") -> Frontier:
        """The edge as a frontier; an int is a time."""
        (frontier,) = self._edges(edge)
        return frontier

    def range(self) -> tuple[Frontier, Frontier]:
        """Both edges of a batch read, from one round of questions."""
        start, end = self._edges(self._options.starting, self._options.ending)
        return start, end

    def _edges(self, *wanted: Edge | int) -> list[Frontier]:
        times = sorted({edge for edge in wanted if isinstance(edge, int)})
        holdings: list[Holding] = []
        if not all(isinstance(edge, dict) for edge in wanted):
            holdings = self._ask_all(
                lambda channel: _holding(channel, self._options.topics or None, times, self._where)
            )
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
        """The answers of the listed nodes that can be reached, at least one. A busy node is waited for: without it,
        rows that only it keeps would be omitted."""
        channel, timeout_s = self.channel(), self._options.access.timeout_s
        limit_s = timeout_s if len(channel.nodes) == 1 else min(timeout_s, ANSWER_S)

        def ask(node: str) -> T | M4castError:
            try:
                return patiently(lambda: _reached(channel.at(node, timeout_s=limit_s), question), timeout_s)
            except _UnreachableNodeError as unreachable:
                return unreachable.error

        def ask_once() -> list[T]:
            with ThreadPoolExecutor(min(len(channel.nodes), ASKED_AT_ONCE)) as pool:
                answers = list(pool.map(ask, channel.nodes))
            unreachable = [each for each in answers if isinstance(each, M4castError)]
            if len(unreachable) == len(answers):
                raise unreachable[0]
            _note_unreachable(channel.nodes, answers)
            return [each for each in answers if not isinstance(each, M4castError)]

        return patiently(ask_once, timeout_s)

    def newest(self, wait_s: float) -> Frontier:
        """The latest frontier, requested as changes; the node waits up to `wait_s` for new rows."""
        channel, timeout_s = self.channel(), self._options.access.timeout_s
        topics = self._options.topics or None
        if self._known is None:
            self._known = patiently(lambda: channel.frontier(topics, **self._where), timeout_s)
        else:
            seen = self._known
            news = patiently(lambda: channel.news(seen, topics, wait_s=wait_s, **self._where), timeout_s)
            moved = {topic: {origin: ends[1] for origin, ends in origins.items()} for topic, origins in news.items()}
            self._known = offsets.maximum(seen, moved)
        return offsets.of_topics(self._known, self._matching(self._known))

    def row_bytes(self, streams: Iterable[StreamName]) -> dict[StreamName, float]:
        """The mean row size of each stream, as the answering node stores it."""
        sizes: dict[StreamName, float] = {}
        for topic in sorted({stream.topic for stream in streams}):
            described = patiently(lambda topic=topic: self.channel().describe(topic), self._options.access.timeout_s)  # type: ignore[misc]
            for origin, held in described["streams"].items():
                if held["next"] > held["low"] and held["bytes"] is not None:
                    sizes[StreamName(topic, origin)] = held["bytes"] / (held["next"] - held["low"])
        return sizes

    def lows(self, at: Frontier, streams: Iterable[StreamName]) -> dict[StreamName, int]:
        """The first sequence that is retained, for each stream whose next rows no node retains. All listed nodes must
        confirm it: an unreachable one may have the rows."""
        channel = self.channel()
        lost: dict[StreamName, int] | None = None
        for node in channel.nodes:
            wanted = list(streams) if lost is None else list(lost)
            if not wanted:
                return {}
            try:
                extents = channel.at(node).extents(sorted({stream.topic for stream in wanted}), **self._where)
            except M4castError:
                return {}
            here = {stream: extents.get(stream.topic, {}).get(stream.origin) for stream in wanted}
            lows = {stream: ends[0] for stream, ends in here.items() if ends and ends[0] > offsets.position(at, stream)}
            lost = lows if lost is None else {stream: min(low, lost[stream]) for stream, low in lows.items()}
        return lost or {}


def _note_unreachable(nodes: Iterable[str], answers: Iterable[object]) -> None:
    """Warn once about a node that is away, however often it is asked meanwhile."""
    for node, answer in zip(nodes, answers, strict=True):
        if not isinstance(answer, M4castError):
            _AWAY.discard(node)
        elif node not in _AWAY:
            _AWAY.add(node)
            log.warning(
                "node %s cannot be reached: until it answers, reads go on without it, and without rows that only it "
                "retains (this is reported once): %s",
                node,
                answer,
            )


class _UnreachableNodeError(Exception):
    """A node cannot be reached; `patiently` does not retry it."""

    def __init__(self, error: M4castError) -> None:
        super().__init__(str(error))
        self.error = error


def _reached(channel: "Channel", question: Callable[["Channel"], T]) -> T:
    try:
        return question(channel)
    except UnreachableError as error:
        raise _UnreachableNodeError(error) from error
    except RefusedError as error:
        if error.code != "timeout":
            raise
        raise _UnreachableNodeError(UnreachableError(error.detail)) from error


def _holding(
    channel: "Channel", topics: tuple[str, ...] | None, times: Iterable[int], where: Mapping[str, Any]
) -> Holding:
    """The rows that one node holds. The ends are asked for first, as `edges.at_time` requires."""
    ends = _flat(channel.extents(topics, **where))
    return Holding(
        dict(ends),
        {
            time: {stream: first for stream, (_, first) in _flat(channel.extents(topics, at=time, **where))}
            for time in times
        },
    )


def _flat(extents: dict[str, dict[str, list[int]]]) -> list[tuple[StreamName, tuple[int, int]]]:
    return [
        (StreamName(topic, origin), (low, until))
        for topic, origins in extents.items()
        for origin, (low, until) in origins.items()
    ]
