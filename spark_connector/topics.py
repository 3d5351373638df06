"""Topics: what is read, as the nodes have it now. Frontiers of it, by edge, by time, and as they move on.

It remembers what the nodes have told, so that the next question is for news only; it is used by one process, the one
that plans.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from m4cast.overlay.errors import M4castError
from m4cast.spark_connector import offsets
from m4cast.spark_connector.access import channel_of, patiently
from m4cast.spark_connector.offsets import Frontier, Stream
from m4cast.spark_connector.options import Edge, ReadOptions

if TYPE_CHECKING:
    from m4cast.overlay.client import Channel


class Topics:
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._told: Frontier | None = None
        """What the nodes have told, also of topics that do not match."""

    def channel(self) -> "Channel":
        return channel_of(self._options.access)

    def names(self) -> tuple[str, ...]:
        """Also those that are not there yet, if they are named; of a pattern those that match now."""
        if self._options.topic_pattern is None:
            return self._options.topics
        known = patiently(lambda: self.channel().topics(), self._options.access.timeout_s)
        return self._matching(known)

    def _matching(self, names: Iterable[str]) -> tuple[str, ...]:
        if self._options.topic_pattern is None:
            return tuple(sorted(set(names) & set(self._options.topics)))
        pattern = re.compile(self._options.topic_pattern)
        return tuple(sorted(name for name in names if pattern.fullmatch(name) and not name.startswith("_")))

    def frontier(self, edge: Edge | int = "latest") -> Frontier:
        """The edge as a frontier; an int is a time."""
        names = self.names()
        if not names:
            return {}
        if isinstance(edge, dict):
            return offsets.of_topics(edge, names)
        channel = self.channel()
        if edge == "earliest":
            return patiently(lambda: channel.earliest(names), self._options.access.timeout_s)
        at_ms = None if isinstance(edge, str) else edge
        return patiently(lambda: channel.frontier(names, at_ms=at_ms), self._options.access.timeout_s)

    def newest(self, wait_s: float) -> Frontier:
        """The frontier, once more and only by what is new; with patience for news, if there are none."""
        channel, timeout_s = self.channel(), self._options.access.timeout_s
        topics = self._options.topics or None
        if self._told is None:
            self._told = patiently(lambda: channel.frontier(topics), timeout_s)
        else:
            told = self._told
            news = patiently(lambda: channel.news(told, topics, wait_s=wait_s), timeout_s)
            moved = {topic: {origin: ends[1] for origin, ends in origins.items()} for topic, origins in news.items()}
            self._told = offsets.maximum(told, moved)
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

    def published(
        self, start: Frontier, end: Frontier, from_ms: int | None, before_ms: int | None
    ) -> tuple[Frontier, Frontier]:
        """What is left between two frontiers of rows published in that time, as far as one node can tell.

        Times rise within a stream. A row that a node has and that is too early, or not early enough, decides for all on
        its other side; where the node has no such row, nothing is narrowed.
        """
        if (from_ms is None and before_ms is None) or not end:
            return start, end
        channel = next(iter(self._answering()), None)
        if channel is None:
            return start, end
        topics = sorted(end)
        begins, ends = dict(offsets.streams_of(start)), dict(offsets.streams_of(end))
        if from_ms is not None:
            for stream, (low, first) in _flat(channel.extents(topics, at_ms=from_ms)):
                if first > low:
                    begins[stream] = max(begins.get(stream, offsets.FIRST), first)
        if before_ms is not None:
            latest = dict(_flat(channel.extents(topics)))
            for stream, (_, first) in _flat(channel.extents(topics, at_ms=before_ms)):
                if first < latest[stream][1] and stream in ends:
                    ends[stream] = min(ends[stream], first)
        return offsets.frontier_of(begins), offsets.frontier_of(ends)

    def _answering(self) -> Iterable["Channel"]:
        """The listed nodes that answer, each by itself."""
        channel = self.channel()
        for node in channel.nodes:
            alone = channel.at(node)
            try:
                alone.topics()
            except M4castError:
                continue
            yield alone


def _flat(extents: dict[str, dict[str, list[int]]]) -> list[tuple[Stream, tuple[int, int]]]:
    return [
        (Stream(topic, origin), (low, until))
        for topic, origins in extents.items()
        for origin, (low, until) in origins.items()
    ]
