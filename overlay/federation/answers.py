"""Answers to publishers: that nobody wants a topic anywhere (quenching), and that nobody knows an addressee (A14).

A gatekeeper that matched a batch and found nobody who wants anything of its topic says so to the node where it was
published. When it is quiet at every level, that node sends nothing of the topic any more. The gatekeeper remembers whom
it told. As soon as somebody wants something of the topic, or may, it tells them, and confirms no want of the topic
before they have answered: so a want that is confirmed misses nothing (guarantee 14). A publisher trusts a gatekeeper
only while it sees it, as a gatekeeper, in reach.

Nothing of it is kept: who restarts sends, or is sent, a batch too many.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from m4cast.overlay.federation.contract import MailUnknown, TopicQuenched
from m4cast.overlay.federation.gateways import Gateways
from m4cast.overlay.federation.interest import UnitInterest
from m4cast.overlay.federation.messages import (
    AddresseesUnknown,
    GateId,
    TopicHeard,
    TopicQuiet,
    TopicWanted,
    UnitEvent,
)
from m4cast.overlay.federation.units import Chain, Unit, UnitId
from m4cast.overlay.federation.vertex import Vertex
from m4cast.overlay.federation.wants import names_client

TOLD_MAX = 4_096
"""Publishers and topics that a gatekeeper remembers, and topics that a publisher does. Beyond it batches are sent that
nobody wants. More: memory. Guess."""
TELL_AGAIN_MS = 10_000
"""A publisher that still sends is told again after this: it may have restarted. Guess."""

TopicKey = tuple[int, str]


@dataclass(slots=True)
class ToldPublisher:
    """A publishing node that was told that nobody wants a topic."""

    origin: Chain
    at_ms: int
    wanted_ms: int | None = None
    """Since when it has been told that somebody does, and has not answered."""


class Answers:
    def __init__(self, vertex: Vertex, gateways: Gateways, interest: UnitInterest) -> None:
        self._vertex = vertex
        self._gateways = gateways
        self._interest = interest
        self.told: dict[TopicKey, dict[UnitId, ToldPublisher]] = {}
        """Gatekeeper: level and topic -> publishing nodes that were told that it is quiet."""
        self.quiet: dict[str, dict[int, tuple[GateId, ...]]] = {}
        """Publisher: topic -> levels at which nobody wants it -> the gatekeeper that said so."""
        self._quenched: dict[str, None] = {}

    # ---- as gatekeeper

    def matched(self, event: UnitEvent, level: int, hits: Iterable[Unit]) -> None:
        """A batch was matched for the own unit of this level."""
        if level > self._vertex.top and event.to:
            self._tell_unknown(event)
        if any(True for _ in hits) or not event.origin or (level > self._vertex.top and not self._filters_top):
            return
        key, now_ms = (level, event.topic), self._vertex.now_ms
        nodes = self.told.get(key, {})
        before = nodes.get(event.origin[0])
        if before is not None and now_ms - before.at_ms < TELL_AGAIN_MS:
            return
        if before is None and sum(map(len, self.told.values())) >= TOLD_MAX:
            return
        if self._interest.tables.is_wanted(level, event.topic, event.origin[level - 1]):
            return
        self.told.setdefault(key, {})[event.origin[0]] = ToldPublisher(event.origin, now_ms)
        gates = self._gateways.own_gates(level)
        self._gateways.send_note(TopicQuiet(event.origin, level, event.topic, gates))

    @property
    def _filters_top(self) -> bool:
        return self._vertex.settings.top_filter

    def review(self) -> None:
        """Tell publishers of topics that are wanted by now; again at each check until they answer, at most for
        `absent_ms`: one that never does is gone, and does not keep a want from being confirmed for ever. One that is
        out of reach may not have noticed, and those who want something cannot always see that it is."""
        withheld: dict[int, dict[str, None]] = {}
        now_ms = self._vertex.now_ms
        for (level, topic), nodes in list(self.told.items()):
            is_holder = self._gateways.holds(level)
            for node, told in list(nodes.items()):
                origin = told.origin
                if is_holder and not self._interest.tables.is_wanted(level, topic, origin[level - 1]):
                    told.wanted_ms = None
                    continue
                if told.wanted_ms is None:
                    told.wanted_ms = now_ms
                self._gateways.send_note(TopicWanted(origin, level, topic, self._vertex.chain))
                if not is_holder or now_ms - told.wanted_ms >= self._vertex.settings.absent_ms:
                    del nodes[node]  # it does not trust this node any more, or is not there
                else:
                    withheld.setdefault(level, {})[topic] = None
            if not nodes:
                del self.told[level, topic]
        self._interest.withheld = withheld

    def heard(self, note: TopicHeard) -> None:
        nodes = self.told.get((note.level, note.topic), {})
        if nodes.pop(note.origin, None) is not None:
            self.review_soon()

    def review_soon(self) -> None:
        self._interest.changed_soon()

    def _tell_unknown(self, event: UnitEvent) -> None:
        unknown = tuple(name for name in event.to if not self._interest.tables.is_known(names_client(event, name)))
        if unknown and event.origin:
            self._gateways.send_note(AddresseesUnknown(event.origin, event.id, unknown))

    # ---- as publisher

    def is_quenched(self, topic: str) -> bool:
        return topic in self._quenched

    def quiet_told(self, note: TopicQuiet) -> None:
        if note.topic in self.quiet or len(self.quiet) < TOLD_MAX:
            self.quiet.setdefault(note.topic, {})[note.level] = note.gates
            self.table_changed()

    def wanted_told(self, note: TopicWanted) -> None:
        self.quiet.get(note.topic, {}).pop(note.level, None)
        self.table_changed()
        self._gateways.send_note(TopicHeard(note.by, note.level, note.topic, self._vertex.me.id))

    def unknown_told(self, note: AddresseesUnknown) -> None:
        self._vertex.out.append(MailUnknown(note.event, note.clients))

    def table_changed(self) -> None:
        """Forget the word of gatekeepers that are none any more, or out of reach; see which topics are quenched."""
        for topic, levels in list(self.quiet.items()):
            for level in [level for level, gates in levels.items() if not self._is_trusted(level, gates)]:
                del levels[level]
            is_quenched = len(levels) == self._vertex.top + 1
            if is_quenched != (topic in self._quenched):
                if is_quenched:
                    self._quenched[topic] = None
                else:
                    del self._quenched[topic]
                self._vertex.out.append(TopicQuenched(topic, is_quenched))
            if not levels:
                del self.quiet[topic]

    def _is_trusted(self, level: int, gates: tuple[GateId, ...]) -> bool:
        holders = self._gateways.gates(level)
        if not gates:
            return not holders  # the word of this node, which is alone
        for gate in gates:
            unit = self._gateways.unit_of(gate)
            if gate in holders and unit is not None and self._gateways.is_reached(unit):
                return True
        return False
