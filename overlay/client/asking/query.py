"""A query: a condition that does not stay, asked of one node or of all, and answered with what the answer is exact for.

The asker plans: each stream is asked of one node, so that no row comes twice. With the scope `channel` it learns the
nodes and their doors from the topology, asks all of them at once how far each stream reaches there, and gives a stream
to its origin, or, if that does not answer, to a node that has most of it. If a node is lost on the way, the read
continues at another one from its position: certificates say how far everything that matches was given.

An origin answers of its own stream whatever is registered. To be asked for the stream of another one, a node has to
want the rows of a selective topic: it registers the query's condition, and no more, for as long as a reader's
registration is kept.

Nodes do not call each other for a query: the asker reaches their doors itself, so rights, quotas and the filter of its
token apply as they do to any read, and a query costs a node nothing that a read does not.

Of a table, only rows that stand are given, and the condition chooses among these. Every node that is asked for a stream
is told the ends of all streams (`standing`), waits until it has them, and finds what stands below them: whatever
replaced a row counts, at whichever node it was written. If a table is compacted meanwhile, what stood at those ends is
no longer known, and the nodes refuse (`retained`).

Guarantee 13: the answer has exactly the rows that match of the ranges that it names, and names the nodes that did not
answer.
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from m4cast.overlay.client.asking.tables import NAME, OWNER, VERSION
from m4cast.overlay.client.ranges import RangeReader
from m4cast.overlay.client.roaming.wanted import ProfileRows
from m4cast.overlay.client.tail import Frontier, RowFilter
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError

if TYPE_CHECKING:
    from m4cast.overlay.client.channel import Channel

ASKED_AT_ONCE = 16
"""Nodes that are asked at the same time how far streams reach. Guess."""
ASK_S = 5.0
"""The longest time that a node may take to report that; less if the channel's time-out is less. Guess."""


@dataclass(frozen=True, slots=True)
class AnsweredRange:
    """Rows `first .. next - 1` of a stream, of which all that match were given, at first by `node`."""

    origin: str
    node: str
    first: int
    next: int


class TopicQuery(Iterator[pa.RecordBatch]):
    """The rows that match, as record batches; see `Channel.query`. `ranges` and `unanswered` are known before the first
    row; the ranges are exact once all rows were taken."""

    def __init__(
        self, channel: "Channel", topic: str, row_filter: RowFilter | None, scope: Literal["node", "channel"]
    ) -> None:
        if scope not in ("node", "channel"):
            raise LocalProtocolError(f"scope is {scope!r}: must be node or channel")
        self._channel = channel
        self._topic = topic
        self._filter = row_filter
        self.unanswered: dict[str, str] = {}
        """The reason why a node did not answer, by the node's name."""
        self.ranges: list[AnsweredRange] = []
        self.tested = 0
        """Rows that nodes have tested for this query so far."""
        self.doors = self._plan_node() if scope == "node" else self._plan_channel()
        """The address of each node that answered, by its name."""
        self.standing = self._standing()
        """The rows that are asked for, if the topic is a table; None otherwise."""
        self._batches = self._read()

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def close(self) -> None:
        """Cancel it."""
        self._batches.close()

    # ---- planning

    def _plan_node(self) -> dict[str, str]:
        """Returns the doors of the nodes by their names."""
        extents = self._wanted_at(self._channel)
        if not extents:
            raise _unknown(self._topic)
        nodes = ",".join(self._channel.nodes)
        self.ranges = planned({nodes: extents}, {})
        self._known = {nodes: extents}
        return {nodes: nodes}

    def _plan_channel(self) -> dict[str, str]:
        nodes = [each for each in self._channel.topology()["nodes"] if not each["leaving"]]
        names = {each["node_id"]: f"{each['name']} ({each['node_id'][:8]})" for each in nodes}
        doors = {names[each["node_id"]]: each["door"] for each in nodes if each["door"]}
        self.unanswered = {names[each["node_id"]]: "it has no door" for each in nodes if not each["door"]}
        known = self._asked(doors, self._stored_at)
        there = {origin for origin, name in names.items() if name in known}
        own = {name: {each: found for each, found in known[name].items() if each in there} for name in known}
        if any(extents.keys() - there for extents in known.values()):
            others = self._asked({name: doors[name] for name in known}, self._wanted_at)
            known = {
                name: own[name] | {each: found for each, found in others[name].items() if each not in there}
                for name in others
            }
        if not known:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.unanswered.items())
            raise M4castError(f"no node of the channel answers at its own door ({reasons}): ask with scope node")
        if not any(known.values()):
            raise _unknown(self._topic)
        self.ranges = planned(known, names)
        self._known = known
        return {name: doors[name] for name in known}

    def _asked(
        self, doors: dict[str, str], ask: Callable[["Channel"], dict[str, list[int]]]
    ) -> dict[str, dict[str, list[int]]]:
        """Ask all of these at once how far streams reach. Returns the answers by the nodes' names."""

        def asked(door: str) -> dict[str, list[int]]:
            return ask(self._channel.at(door, timeout_s=min(ASK_S, self._channel.timeout_s)))

        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            answers = {name: pool.submit(asked, door) for name, door in doors.items()}
        known = {}
        for name, answer in answers.items():
            try:
                known[name] = answer.result()
            except M4castError as error:
                self.unanswered[name] = str(error)
        return known

    def _stored_at(self, node: "Channel") -> dict[str, list[int]]:
        """The ends of the streams at a node. Of a selective topic, that is exact for the node's own stream alone."""
        return node.extents(self._topic, stored=True).get(self._topic, {})

    def _wanted_at(self, node: "Channel") -> dict[str, list[int]]:
        """The end of what the node has for the query, by stream; of a selective topic, it wants that from now on."""
        where, language = self._filter or ("", None)
        return node.news({}, self._topic, where=where, language=language or "sql").get(self._topic, {})

    def _standing(self) -> ProfileRows | None:
        name = next((each.node for each in self.ranges if each.first < each.next), None)
        columns = [] if name is None else self._channel.through(self.nodes_for(name)).schema(self._topic).names
        if not {OWNER, NAME, VERSION}.issubset(columns):
            return None
        lows, ends = both_ends(self._known)
        self.ranges = [replace(each, next=ends[each.origin]) for each in self.ranges]
        where, language = self._filter or (None, None)
        return ProfileRows(((self._topic, where, language),), (), ends, lows)

    # ---- reading

    def nodes_for(self, name: str) -> list[str]:
        """The doors to read a range of this node from: its own, then the others."""
        return [*self.doors[name].split(","), *(door for other, door in self.doors.items() if other != name)]

    def _read(self) -> Generator[pa.RecordBatch, None, None]:
        """Node after node; of each, all its streams in one call."""
        for name in dict.fromkeys(each.node for each in self.ranges):
            spans = [each for each in self.ranges if each.node == name and each.first < each.next]
            if not spans:
                continue
            start: Frontier = {self._topic: {each.origin: each.first for each in spans}}
            end: Frontier = {self._topic: {each.origin: each.next for each in spans}}
            channel = self._channel.through(self.nodes_for(name))
            reader = RangeReader(channel, self._topic, start, end, "fail", row_filter=self.standing or self._filter)
            try:
                yield from reader
            finally:
                self.tested += reader.tested
                reader.close()


def planned(known: dict[str, dict[str, list[int]]], names: dict[str, str]) -> list[AnsweredRange]:
    """The node that is asked for each stream, from what nodes have of it ([low, next]): its origin, if that answers,
    else the one that has most rows of it, and of these the first by name."""
    found = []
    for origin in sorted({origin for extents in known.values() for origin in extents}):
        holders = {name: extents[origin] for name, extents in known.items() if origin in extents}
        own = names.get(origin, "")
        node = own if own in holders else max(sorted(holders), key=lambda name: holders[name][1] - holders[name][0])
        found.append(AnsweredRange(origin, node, *holders[node]))
    return found


def both_ends(known: dict[str, dict[str, list[int]]]) -> tuple[dict[str, int], dict[str, int]]:
    """The first row of each stream that all these nodes have, and the end that one of them knows. Nodes compact a table
    by themselves: what one of them had removed by then was replaced, or removed, below those ends."""
    lows: dict[str, int] = {}
    ends: dict[str, int] = {}
    for extents in known.values():
        for origin, (low, until) in extents.items():
            lows[origin] = max(low, lows.get(origin, low))
            ends[origin] = max(until, ends.get(origin, until))
    return lows, ends


def _unknown(topic: str) -> RefusedError:
    detail = f"nothing was published under topic {topic!r}, as far as the nodes asked know: check the name"
    return RefusedError("unknown-topic", detail)
