"""Reads of selective topics: each reader sees the streams up to where its own registration is covered at this node.

A read names its `where`, or means every row. If no registration of this node covers that, it is registered first, for
that reader, and the read waits for the fill. Reads that begin elsewhere than at the end need a registration that begins
with the earliest rows: whatever their position, everything from there on is here. Between the batches of a selective
stream there is nothing that was wanted here, so reads pass over it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.frontiers import CoveredFrontiers, Frontiers, covered_key
from m4cast.overlay.door.node_handle import NodeHandle, waited
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.requests import Get
from m4cast.overlay.door.rows.summaries import ColumnPath, Summaries
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import FilterError, Profile, UnknownLanguageError, columns_of, parse
from m4cast.overlay.profiles.summary import COLUMNS_MAX
from m4cast.overlay.protocol.effects import Covered, InterestChanged, Subscribe, TopicSpread, Wish
from m4cast.overlay.protocol.node import Node

SETTLE_S = 1.0
"""After a registration so long is waited for origins to report what they have; guess. Higher: first reads are later;
lower: a slow origin's rows are missing in the first of them."""


class SelectiveReads:
    """Any thread may use it; it is made, and watches, on the node's loop."""

    def __init__(self, node: NodeHandle, frontiers: Frontiers, summaries: Summaries, timeout_s: float) -> None:
        self._node = node
        self._frontiers = frontiers
        self._summaries = summaries
        self.timeout_s = self._timeout_s = timeout_s
        self._made_at: dict[str, float] = {}
        """Registrations made here for readers, and when."""
        self.topics: dict[str, tuple[str, ...]] = {}
        """Selective topics, and the columns that they are routed by."""
        for topic, route_by in node.now(_known).items():
            self.watch(TopicSpread(topic, route_by))

    def watch(self, output: object) -> None:
        """A driver's watcher."""
        if isinstance(output, Covered):
            self._frontiers.cover(output.topic, output.registration, output.next)
        elif isinstance(output, TopicSpread):
            self.topics[output.topic] = output.route_by
            self._summarise()
        elif isinstance(output, InterestChanged) and self.topics:
            self._summarise()

    def _summarise(self) -> None:
        """Batches carry summaries of the columns that their topic is routed by, or that registrations name."""
        for topic, route_by in self.topics.items():
            columns: tuple[ColumnPath, ...] = tuple((column,) for column in route_by)
            self._summaries.selective[topic] = columns or self._node.now(partial(_named, topic=topic))

    def pause(self, for_s: float) -> None:
        """Wait for something to happen, or for this long."""
        self._frontiers.wait_for_news(self._frontiers.news, time.monotonic() + for_s)

    # ---- reading

    def among(self, topics: tuple[str, ...]) -> bool:
        """Whether these are selective topics. They cannot be read together with broadcast ones."""
        found = [topic for topic in topics if topic in self.topics]
        if found and len(found) < len(topics):
            raise bad_request(f"topic {found[0]!r} is selective, others are not: read them apart")
        return bool(found)

    def view(
        self, topics: tuple[str, ...], profiles: Mapping[str, Profile], caller: Caller, *, from_start: bool
    ) -> CoveredFrontiers:
        """The frontiers that this reader sees, as far as they are known now."""
        keys: dict[str, str] = {}
        for topic in topics:
            name = self._registration(topic, profiles.get(topic), caller, from_start=from_start)
            found = self._node.look(partial(_coverage, registration=name), self._timeout_s)
            ends = {stream.origin: end for stream, end in found.items() if stream.topic == topic}
            self._frontiers.cover(topic, name, ends)
            keys[topic] = covered_key(topic, name)
            self._settle(name, caller)
        return CoveredFrontiers(self._frontiers, keys)

    def _registration(self, topic: str, profile: Profile | None, caller: Caller, *, from_start: bool) -> str:
        found = self._node.look(
            lambda node: node.selection.covering(topic, profile, earliest=from_start), self._timeout_s
        )
        if found is not None:
            return found
        digest = xxh3_64_hexdigest(f"{topic}\0{profile.text if profile else ''}\0{from_start}".encode())
        wish = Wish(f"{caller.name}/read/{digest}", topic, profile, from_start)
        request = self._node.request(lambda number: Subscribe(number, (wish,), owner=caller.name))
        waited(request, self._timeout_s, caller.is_cancelled)
        self._made_at[wish.id] = time.monotonic()
        return wish.id

    def _settle(self, name: str, caller: Caller) -> None:
        """Wait for the fill of a registration: what is known to exist is here."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline and not self._frontiers.closed and not caller.is_cancelled():
            news = self._frontiers.news
            is_new = time.monotonic() - self._made_at.get(name, 0.0) < SETTLE_S
            if not is_new and self._node.look(lambda node: node.selection.is_settled(name), self._timeout_s):
                return
            self._frontiers.wait_for_news(news, min(deadline, time.monotonic() + SETTLE_S / 10))

    def positioned(self, get: Get, lows: Callable[[Mapping[StreamId, int]], Mapping[StreamId, int]]) -> Get:
        """The same read of selective topics: what lies between batches is passed over, but not what was removed."""
        if isinstance(get.start, dict) and not get.skip_missing:
            for stream, low in lows(get.start).items():
                if get.start[stream] < low:
                    return get  # it is refused where the rows are missing
        start = {} if get.start == "earliest" else get.start
        return replace(get, skip_missing=True, start=start)


def _known(node: Node) -> dict[str, tuple[str, ...]]:
    return {topic: made.route_by for topic, made in node.selection.descriptors.items()}


def _coverage(node: Node, registration: str) -> dict[StreamId, int]:
    return node.selection.coverage(registration)


def _covering(node: Node, topic: str, profile: Profile | None, earliest: bool) -> str | None:
    return node.selection.covering(topic, profile, earliest=earliest)


def _named(node: Node, topic: str) -> tuple[ColumnPath, ...]:
    """The columns that registrations of the topic name, anywhere on the channel."""
    wanted = xxh3_64_intdigest(topic.encode())
    columns: dict[ColumnPath, None] = {}
    for entry in node.interest.view.used():
        for item in entry.items.values():
            if item.topic_hash == wanted and item.text:
                try:
                    condition = parse(item.text, item.language, item.version).condition
                except (FilterError, UnknownLanguageError):
                    continue
                columns.update(dict.fromkeys(columns_of(condition)))
    return tuple(columns)[:COLUMNS_MAX]
