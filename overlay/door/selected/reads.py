"""Reads of selective topics: each reader sees the streams up to where its own registration is covered at this node.

A read names its `where`, or means every row. If no registration of this node covers that, it is registered first, for
that reader (`reader_registrations`), and the read waits until the registration is active, so that every origin has
reported what it has, and then for the fill. A read from a position can use a registration that begins there or before;
others need one that begins with the earliest rows. Between the batches of a selective stream there is nothing that was
wanted here, so reads pass over it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from xxhash import xxh3_64_intdigest

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.fields import Fields, Frontier
from m4cast.overlay.door.frontiers import CoveredFrontiers, Frontiers
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.requests import Get, parse_filter
from m4cast.overlay.door.rows.summaries import ColumnPath, Summaries
from m4cast.overlay.door.selected.activity import activity, broadcast_levels
from m4cast.overlay.door.selected.reader_registrations import ReaderRegistrations
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import FilterError, Profile, UnknownLanguageError, columns_of, read
from m4cast.overlay.profiles.summary import COLUMNS_MAX
from m4cast.overlay.protocol.effects import Covered, InterestChanged, TopicSpread
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.store.store import Store

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
    earliest: bool
    wait_ms: int
    system: bool = False
    """Active in the whole federation."""


def parse_read_question(fields: Fields) -> ReadQuestion:
    start = fields.text("start", "latest")
    if start not in ("earliest", "latest"):
        raise bad_request(f"start must be earliest or latest, not {start!r}")
    wait_ms = fields.whole("wait_ms", 0, WAIT_MS_MAX) or 0
    return ReadQuestion(fields.topic(), parse_filter(fields), start == "earliest", wait_ms, fields.flag("system"))


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
        for topic, route_by in node.now(_known).items():
            self.watch(TopicSpread(topic, route_by))

    def watch(self, output: object) -> None:
        """A driver's watcher."""
        if isinstance(output, Covered):
            self._cover(output.topic, output.registration, output.next)
            self.covered(output.topic)
        elif isinstance(output, TopicSpread):
            self.topics[output.topic] = output.route_by
            self._summarise()
        elif isinstance(output, InterestChanged) and self.topics:
            self._summarise()

    def _cover(self, topic: str, registration: str, ends: Mapping[NodeId, int]) -> None:
        """On the loop."""
        begins: dict[NodeId, int] = {}
        if not all(self._frontiers.is_covered(topic, registration, origin) for origin in ends):
            found = self._node.now(lambda node: node.selection.begins(registration))
            begins = {stream.origin: begin for stream, begin in found.items()}
        self._frontiers.cover(topic, registration, ends, begins)

    def drop(self, topic: str, registration: str) -> None:
        """On the loop: the registration is given up."""
        self._frontiers.uncover(topic, registration)
        self._active.pop(registration, None)
        self._filled.pop(registration, None)

    def _leased(self) -> set[str]:
        """Topics on which a reader has a lease."""
        now_ms = self._node.clock_ms()
        readers = self._store.readers().values()
        return {topic for reader in readers if reader.lease_until_ms > now_ms for topic in reader.topics}

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
        start: Frontier | str | int,
    ) -> CoveredFrontiers:
        """The frontiers that a reader sees that starts there, as far as they are known now."""
        named: set[StreamId] | None = None if start == "latest" else set()
        names = {topic: self._name(topic, profiles.get(topic), caller, start, named) for topic in topics}
        return CoveredFrontiers(self._frontiers, names, self.readers.touch, named)

    def _name(
        self,
        topic: str,
        profile: Profile | None,
        caller: Caller,
        start: Frontier | str | int,
        named: set[StreamId] | None,
    ) -> str:
        """A registration for such a read, filled. Streams in which it begins early enough join `named`."""
        is_late = start == "latest" or isinstance(start, dict)
        if is_late and self.readers.find(topic, profile, earliest=True, timeout_s=self._timeout_s) is None:
            name = self._registered(topic, profile, caller, earliest=False)
            begins = self._settled(topic, name, caller)
            if named is None:
                return name
            if all(begin <= _position(start, stream) for stream, begin in begins.items()):
                named.update(begins)
                return name
        name = self._registered(topic, profile, caller, earliest=True)
        self._settled(topic, name, caller)
        return name

    def _registered(self, topic: str, profile: Profile | None, caller: Caller, *, earliest: bool) -> str:
        found = self.readers.find(topic, profile, earliest=earliest, timeout_s=self._timeout_s)
        if found is not None:
            return found
        return self.readers.make(topic, profile, caller, earliest=earliest, timeout_s=self._timeout_s)

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
            self._cover(topic, name, {stream.origin: end for stream, end in covered.items() if stream.topic == topic})
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
        name = self._registered(asked.topic, profile, caller, earliest=asked.earliest)
        found = activity(self._node, name, asked.wait_ms, self._timeout_s, caller, system=asked.system)
        return {"is_selective": True, **(found or {})}

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


def _epoch(node: Node, registration: str) -> int | None:
    row = node.interest.registrations.rows.get(registration)
    return None if row is None else row.epoch


def _position(start: Frontier | str | int, stream: StreamId) -> int:
    """Return the position at which a reader begins in a stream: its first row, unless its frontier names it."""
    return start.get(stream, 1) if isinstance(start, dict) else 1


def _named(node: Node, topic: str) -> tuple[ColumnPath, ...]:
    """The columns that registrations of the topic name, anywhere on the channel."""
    wanted = xxh3_64_intdigest(topic.encode())
    columns: dict[ColumnPath, None] = {}
    for entry in node.interest.view.used():
        for item in entry.items.values():
            if item.topic_hash == wanted and item.text:
                try:
                    condition = read(item.text, item.language, item.version).condition
                except (FilterError, UnknownLanguageError):
                    continue
                columns.update(dict.fromkeys(columns_of(condition)))
    return tuple(columns)[:COLUMNS_MAX]
