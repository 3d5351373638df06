"""Reads of selective topics: each reader sees the streams up to where its own registration is covered at this node.

A read names its `where`, or means every row. If no registration of this node covers that, it is registered first, for
that reader (`reader_registrations`), and the read waits until the registration is active, so that every origin has
reported what it has, and then for the fill. A read from a position needs a registration that begins there or before;
one from a time, one that begins then or before; others need one that begins with the earliest rows. Between the batches
of a selective stream there is nothing that was wanted here, so reads pass over it.

Ranges of the node's own streams are whole here: they are read like those of a broadcast topic.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from xxhash import xxh3_64_intdigest

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.fields import Fields
from m4cast.overlay.door.frontiers import CoveredFrontiers, Frontiers
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.requests import Get, parse_filter, parsed_start
from m4cast.overlay.door.rows.summaries import ColumnPath, Summaries
from m4cast.overlay.door.selected.activity import activity, broadcast_levels
from m4cast.overlay.door.selected.begins import Start, position_in
from m4cast.overlay.door.selected.reader_registrations import ReaderRegistrations
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import Profile, canonical_condition, columns_of
from m4cast.overlay.profiles.summary import COLUMNS_MAX
from m4cast.overlay.protocol.effects import Covered, InterestChanged, TopicSpread
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.interest import InterestItem
from m4cast.overlay.store.store import Reader, Store

ACTIVE_WAIT_S = 5.0
"""The time for which a first read waits for nodes that do not confirm its registration: as long as a node that failed
may count as present. Guess."""
GRACE_S = 0.05
"""Origins state what they have before they confirm. A statement that is overtaken has this long. Guess."""
AGAIN_S = 1.0
"""The time for which reads after the first wait for rows that are known to exist and have not arrived: a hole that
nobody can fill holds up only new readers. Guess."""
LOOK_S = 0.1
WAIT_MS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class ReadQuestion:
    """Asks how reads of a topic are registered here, and waits until that is active."""

    topic: str
    profile: Profile | None
    start: Start
    wait_ms: int
    system: bool = False
    """Active in the whole federation."""


def parse_read_question(fields: Fields) -> ReadQuestion:
    start = parsed_start(fields.get("start", "latest"), "start")
    wait_ms = fields.whole("wait_ms", 0, WAIT_MS_MAX) or 0
    return ReadQuestion(fields.topic(), parse_filter(fields), start, wait_ms, fields.flag("system"))


Lows = Callable[[Mapping[StreamId, int]], Mapping[StreamId, int]]
"""The first sequences that are retained of these streams."""


def _unheard(topic: str) -> None: ...


class SelectiveReads:
    """Any thread may use it; it is made, and watches, on the node's loop."""

    def __init__(
        self, node: NodeHandle, frontiers: Frontiers, summaries: Summaries, store: Store, timeout_s: float
    ) -> None:
        self._node = node
        self._frontiers = frontiers
        self._summaries = summaries
        self._store = store
        self.timeout_s = self._timeout_s = timeout_s
        self._active: dict[str, int] = {}
        """Registrations that all nodes were asked about, with their epochs."""
        self._filled: dict[str, int] = {}
        """Those whose fill was waited for, likewise."""
        self.covered: Callable[[str], None] = _unheard
        """Called on the loop with a topic of which some reader sees more now."""
        self.topics: dict[str, tuple[str, ...]] = {}
        """Selective topics, and the columns that they are routed by."""
        self.readers = ReaderRegistrations(node, self._leased, self.drop)
        frontiers.began = self._began
        for node_id, items in node.now(_announced).items():
            summaries.registered.changed(node_id, items, ())
        for topic, route_by in node.now(_known).items():
            self.watch(TopicSpread(topic, route_by))

    def watch(self, output: object) -> None:
        """A driver's watcher."""
        if isinstance(output, Covered):
            self._cover(output.topic, output.registrations, output.next)
            self.covered(output.topic)
        elif isinstance(output, TopicSpread):
            self.topics[output.topic] = output.route_by
            self._began(output.topic)
            self._summarise()
        elif isinstance(output, InterestChanged):
            registered = self._summaries.registered
            registered.changed(output.node_id, (*output.joined, *output.rejoined), output.left)
            if self.topics:
                self._summarise()

    def _began(self, topic: str) -> None:
        """Runs on the loop: a stream of the topic is new here, or it is known now that the topic is selective."""
        if topic in self.topics:
            found = self._node.now(lambda node: node.publishing.broadcast(topic))
            self._frontiers.show_everywhere(topic, (stream.origin for stream in found))

    def _cover(self, topic: str, registrations: Iterable[str], ends: Mapping[NodeId, int]) -> None:
        """Runs on the loop."""
        begins: dict[str, Mapping[NodeId, int]] = {}
        for each in registrations:
            begins[each] = {}
            if not all(self._frontiers.is_covered(topic, each, origin) for origin in ends):
                found = self._node.now(partial(_begins, registration=each))
                begins[each] = {stream.origin: begin for stream, begin in found.items() if stream.origin in ends}
        self._frontiers.cover(topic, begins, ends)

    def drop(self, topic: str, registration: str) -> None:
        """Runs on the loop: gives up the registration."""
        self._frontiers.uncover(topic, registration)
        self._active.pop(registration, None)
        self._filled.pop(registration, None)

    def _leased(self) -> list[Reader]:
        """Readers that have a lease."""
        now_ms = self._node.clock_ms()
        return [reader for reader in self._store.readers().values() if reader.lease_until_ms > now_ms]

    def _summarise(self) -> None:
        """Batches carry summaries of the columns that their topic is routed by, or that registrations name."""
        for topic, route_by in self.topics.items():
            columns: tuple[ColumnPath, ...] = tuple((column,) for column in route_by)
            if route_by:
                self._summaries.route_by[topic] = route_by
            self._summaries.selective[topic] = columns or self._node.now(partial(_named, topic=topic))

    def pause(self, for_s: float) -> None:
        """Wait for something to happen, or for this long."""
        self._frontiers.wait_for_news(self._frontiers.news, time.monotonic() + for_s)

    # ---- reading

    def among(self, topics: tuple[str, ...]) -> bool:
        """True if these are selective topics. They cannot be read together with broadcast ones."""
        found = [topic for topic in topics if topic in self.topics]
        if found and len(found) < len(topics):
            raise bad_request(f"topic {found[0]!r} is selective, others are not: read them in separate calls")
        return bool(found)

    def view(
        self,
        topics: tuple[str, ...],
        profiles: Mapping[str, Profile],
        caller: Caller,
        start: Start,
    ) -> CoveredFrontiers:
        """The frontiers that a reader sees that starts there, as far as they are known now."""
        named: set[StreamId] | None = set() if isinstance(start, dict) else None
        names = {topic: self._name(topic, profiles.get(topic), caller, start, named) for topic in topics}
        return CoveredFrontiers(self._frontiers, names, self.readers.touch, named)

    def _name(
        self,
        topic: str,
        profile: Profile | None,
        caller: Caller,
        start: Start,
        named: set[StreamId] | None,
    ) -> str:
        """A registration for such a read, filled. Streams in which it begins early enough join `named`."""
        name = self._registered(topic, profile, caller, start)
        begins = self._settled(topic, name, caller)
        if isinstance(start, dict) and named is not None:
            if any(begin > position_in(start, stream) for stream, begin in begins.items()):  # which is known only now
                name = self._registered(topic, profile, caller, start)
                begins = self._settled(topic, name, caller)
            named.update(begins)
        return name

    def _registered(self, topic: str, profile: Profile | None, caller: Caller, start: Start) -> str:
        found = self.readers.find(topic, profile, start, self._timeout_s)
        return found or self.readers.make(topic, profile, caller, start, self._timeout_s)

    def _settled(self, topic: str, name: str, caller: Caller) -> dict[StreamId, int]:
        """Wait for the fill of a registration: what is known to exist is here. Returns where it begins."""
        epoch = self._node.look(lambda node: _epoch(node, name), self._timeout_s)
        wait_until = self._activated(name, epoch, caller)
        is_first = self._filled.get(name) != epoch
        deadline = time.monotonic() + (self._timeout_s if is_first else AGAIN_S)
        while time.monotonic() < deadline and not self._frontiers.closed and not caller.is_cancelled():
            news = self._frontiers.news
            is_known = time.monotonic() >= wait_until
            if is_known and self._node.look(lambda node: node.selection.is_settled(name), self._timeout_s):
                break
            self._frontiers.wait_for_news(news, min(deadline, time.monotonic() + LOOK_S))
        if epoch is not None:
            self._filled[name] = epoch

        def look(node: Node) -> dict[StreamId, int]:
            covered = node.selection.coverage(name)
            self._cover(
                topic, (name,), {stream.origin: end for stream, end in covered.items() if stream.topic == topic}
            )
            return node.selection.begins(name)

        return self._node.look(look, self._timeout_s)

    def _activated(self, name: str, epoch: int | None, caller: Caller) -> float:
        """Wait, before its first read, until all nodes that are present know the registration. Returns the moment from
        which on all origins may be taken to have stated what they have."""
        if epoch is None or self._active.get(name) == epoch:
            return 0.0
        activity(self._node, name, int(ACTIVE_WAIT_S * 1000), self._timeout_s, caller)
        self._active[name] = epoch  # if some have not confirmed, later reads do not wait for them again
        return time.monotonic() + GRACE_S

    def registration(self, asked: ReadQuestion, caller: Caller) -> dict[str, object]:
        """Return the registration of this client's reads, which is made now if none covers them."""
        if asked.topic not in self.topics:
            nobody: list[object] = []
            wait_ms = asked.wait_ms if asked.system else 0
            return {
                "is_selective": False,
                "epoch": None,
                "is_active": True,
                "confirmed": nobody,
                "missing": nobody,
                "effective_from": {},
                "levels": broadcast_levels(self._node, asked.topic, wait_ms, self._timeout_s, caller),
            }
        profile = caller.rights.filters((asked.topic,), asked.profile).get(asked.topic)
        name = self._registered(asked.topic, profile, caller, asked.start)
        found = activity(self._node, name, asked.wait_ms, self._timeout_s, caller, system=asked.system)
        return {"is_selective": True, **(found or {})}

    def is_own(self, get: Get) -> bool:
        """True if these are ranges of this node's own streams, which are whole here whatever is registered."""
        if get.is_table or not isinstance(get.start, dict) or not isinstance(get.end, dict) or not get.end:
            return False
        me = self._node.look(lambda node: node.me.node_id, self._timeout_s)
        return all(stream.origin == me for stream in get.end)

    def chosen(self, topics: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these topics that are selective."""
        return tuple(topic for topic in topics if topic in self.topics) if self.topics else ()

    def sparse(self, get: Get, topics: tuple[str, ...], lows: Lows) -> Get:
        """The same read of several topics: of these, selective ones, what lies between batches is passed over, but not
        what was removed."""
        assert isinstance(get.start, dict)
        start = {stream: first for stream, first in get.start.items() if stream.topic in topics}
        removed = {stream.topic for stream, low in lows(start).items() if start[stream] < low}
        return replace(get, sparse=tuple(topic for topic in topics if topic not in removed))

    def positioned(self, get: Get, lows: Lows) -> Get:
        """The same read of selective topics: what lies between batches is passed over, but not what was removed."""
        if isinstance(get.start, dict) and not get.skip_missing:
            for stream, low in lows(get.start).items():
                if get.start[stream] < low:
                    return get  # it is refused where the rows are missing
        start = {} if get.start == "earliest" else get.start
        return replace(get, skip_missing=True, start=start)


def _known(node: Node) -> dict[str, tuple[str, ...]]:
    return {topic: made.route_by for topic, made in node.selection.descriptors.items()}


def _announced(node: Node) -> dict[NodeId, tuple[InterestItem, ...]]:
    return {entry.node_id: tuple(entry.items.values()) for entry in node.interest.view.used()}


def _begins(node: Node, registration: str) -> dict[StreamId, int]:
    return node.selection.begins(registration)


def _epoch(node: Node, registration: str) -> int | None:
    row = node.interest.registrations.rows.get(registration)
    return None if row is None else row.epoch


def _named(node: Node, topic: str) -> tuple[ColumnPath, ...]:
    """The columns that registrations of the topic name, anywhere on the channel."""
    wanted = xxh3_64_intdigest(topic.encode())
    columns: dict[ColumnPath, None] = {}
    for entry in node.interest.view.used():
        for item in entry.items.values():
            if item.topic_hash == wanted and item.text:
                condition = canonical_condition(item.text, item.language, item.version)
                columns.update(dict.fromkeys(columns_of(condition)))
    return tuple(columns)[:COLUMNS_MAX]
