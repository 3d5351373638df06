"""The wants of units (A11) and their confirmations (A12): the interest of a channel, summed up level by level.

A node announces what its clients want to the gatekeepers of its cluster; each of these announces what the cluster wants
to the gatekeepers of level 2, and so on up. An announcement is a versioned set: (unit, announcer) -> its maximal wants.
A unit wants what any of its announcers says, so several gatekeepers need not agree on the order of changes, and nothing
is ever counted. Only sub-units of the own unit are summed, never what was learned of others (H42).

Gatekeepers acknowledge a version with the level up to which it is active, and again when that rises. A level counts as
*confirmed* when every gatekeeper concerned has said so: from then on no batch issued inside the unit of that level is
missed. A gatekeeper that hears nothing of a sub-unit takes it for one that wants everything, and, if the unit can be
reached, says so upwards: a new gatekeeper may err by sending too much, but not by missing (G42). After `absent_ms`
units that are away are forgotten.

Announcements are repeated until acknowledged. Connections that come back are new ones, so that after a partition
everything is announced anew.
"""

from collections.abc import Iterable
from dataclasses import replace

from m4cast.overlay.federation.contract import KeepValue, WantActive
from m4cast.overlay.federation.gateways import Gateways
from m4cast.overlay.federation.messages import (
    NO_WANTS,
    GateId,
    UnitEvent,
    UnitWant,
    WantsAck,
    WantsNews,
    WantsVersion,
)
from m4cast.overlay.federation.units import Unit
from m4cast.overlay.federation.vertex import AnnounceDue, Vertex
from m4cast.overlay.federation.wants import (
    AnnouncedWants,
    HeldTables,
    HeldWants,
    WantKey,
    level_reached,
    maximal,
    may_want,
)

RETRY_MS_MAX = 60_000
PACE = 10
"""After an announcement the next one waits so many times as long, so that several changes travel as one; guess."""


YIELDED = -1
"""Acknowledged by a node that does not hold the wants of that level, and has dropped what it held."""


class UnitInterest:
    def __init__(self, vertex: Vertex, gateways: Gateways, clients: dict[str, UnitWant]) -> None:
        self._vertex = vertex
        self._gateways = gateways
        self.clients = clients
        """The wants at this node, by name: P^0."""
        self._by_topic: dict[str, dict[str, UnitWant]] = {}
        """The same, by topic: a batch meets those of its own alone."""
        for name, want in clients.items():
            self._by_topic.setdefault(want.topic, {})[name] = want
        self._since: dict[str, WantsVersion] = {}
        """Name -> the announcement that has it first."""
        self._confirmed: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self.tables = HeldTables(vertex, gateways)
        self.held = self.tables.held
        self.announced: dict[int, AnnouncedWants] = {}
        self._announced_at_ms = -PACE * vertex.settings.news_delay_ms
        self._losses = 0
        """The connections that were lost when tables were last freed of their gates."""
        self._last_number = 0
        """The number of the latest announcement: one that is given up and made again has a higher number than
        before."""
        self._is_stale = True
        """Something changed that announcements are made of."""
        self.withheld: dict[int, dict[str, None]] = {}
        """Level -> topics of which no want is confirmed: publishers do not know yet that somebody wants them."""

    # ---- clients

    def want(self, name: str, want: UnitWant) -> None:
        before = self.clients.get(name)
        if before is not None and before.topic != want.topic:
            self._drop_topic(name, before)
        self.clients[name] = want
        self._by_topic.setdefault(want.topic, {})[name] = want
        self._vertex.out.append(KeepValue(("want", name), want))
        self._since.pop(name, None)
        self._confirmed.pop(name, None)
        self._seen.pop(name, None)
        self.changed()

    def unwant(self, name: str) -> None:
        want = self.clients.pop(name, None)
        if want is not None:
            self._drop_topic(name, want)
            self._vertex.out.append(KeepValue(("want", name), None))
            for table in (self._since, self._confirmed, self._seen):
                table.pop(name, None)
            self.changed()

    def _drop_topic(self, name: str, want: UnitWant) -> None:
        of_topic = self._by_topic[want.topic]
        del of_topic[name]
        if not of_topic:
            del self._by_topic[want.topic]

    def changed(self) -> None:
        self._is_stale = True
        self.changed_soon()

    def names_for(self, event: UnitEvent) -> tuple[str, ...]:
        matched: dict[bytes, bool] = {}
        wants = self._by_topic.get(event.topic, {})
        return tuple(name for name, want in wants.items() if may_want(want, event, matched))

    def saw(self, names: Iterable[str], level: int) -> None:
        """A batch that was issued in the own unit of this level came."""
        for name in names:
            if level > self._seen.get(name, -1):
                self._seen[name] = level
                self._vertex.out.append(WantActive(name, level, is_confirmed=False))

    def confirmed_level(self, name: str) -> int:
        return self._confirmed.get(name, -1)

    def seen_level(self, name: str) -> int:
        return self._seen.get(name, -1)

    # ---- announcing

    def place_changed(self, level: int) -> None:
        """The own units from this level up are others: what was active there is to be confirmed anew."""
        for announced in self.announced.values():
            for active in announced.active.values():
                for upper in [each for each in active if each >= level]:
                    del active[upper]
        for table in self.held.values():
            for entry in table.values():
                entry.told_level = 0
        for upper in range(level + 1, self._vertex.top + 2):
            self.held[upper] = {}
        for name in self._confirmed:
            self._confirmed[name] = min(self._confirmed[name], level - 1)
        self.changed()

    def table_changed(self) -> None:
        """Connections came or went: gatekeepers may be others, and what was active with those that went is not."""
        is_gate = self._gateways.is_gate
        if self._losses != self._gateways.losses:
            self._losses = self._gateways.losses
            for announced in self.announced.values():
                for table in (announced.active, announced.sent, announced.told):
                    for gate in [gate for gate in table if not is_gate(gate)]:
                        del table[gate]
        for level, held in self.held.items():
            if held and not self._gateways.holds(level):
                self.tables.let_go(level)
        self._is_stale |= self.tables.mark_heard()
        self.changed()

    def renew(self) -> None:
        """Bring announcements up to date, from below. Those to this node itself are held at once: what publishers are
        to be told by them (`Answers.review`) comes before anything is confirmed."""
        self._announced_at_ms = self._vertex.now_ms
        self._is_stale |= self.tables.mark_heard()
        if self._is_stale:
            self._is_stale = False
            for level in range(self._vertex.top + 2):
                self._renew(level)

    def announce(self) -> None:
        """Send what is not acknowledged, and report how far wants are active."""
        for announced in self.announced.values():
            self._send(announced)
        self._report()

    def _renew(self, level: int) -> None:
        if level and not self._gateways.holds(level):
            self.announced.pop(level, None)
            if level <= self._vertex.top:
                self.held[level + 1].pop((self._vertex.unit(level), self._vertex.me.id), None)
            self.tables.holder_since.pop(level, None)
            return
        self.tables.holder_since.setdefault(level, self._vertex.now_ms)
        if level > self._vertex.top:
            return  # there is nobody above
        announced = self.announced.setdefault(level, AnnouncedWants(level))
        source = self.clients.values() if level == 0 else self.tables.summed(level)
        wants = {want.key: want for want in maximal(source)}
        gates = self._gateways.own_gates(level)
        is_all = level > 0 and self.tables.is_unsure(level)
        if (wants, gates, is_all) != (
            announced.wants,
            announced.gates,
            announced.is_all,
        ) or not announced.version.number:
            announced.before = (announced.version, announced.wants)
            self._last_number += 1
            announced.version = WantsVersion(self._vertex.incarnation, self._last_number)
            announced.wants, announced.gates, announced.is_all = wants, gates, is_all
            announced.sent = {}
            announced.retry_at_ms, announced.wait_ms = 0, self._vertex.settings.retry_ms
        if level == 0:
            for name in self.clients:
                self._since.setdefault(name, announced.version)
        else:
            for entry in self.held[level].values():
                if entry.announced_as == NO_WANTS:
                    entry.announced_as = announced.version
        if self._is_told(level):
            self._apply_own(announced)

    def _apply_own(self, announced: AnnouncedWants) -> None:
        """This node may be among those that it announces to."""
        level = announced.level + 1
        if self._gateways.holds(level):
            self._hold(
                HeldWants(
                    unit=self._vertex.unit(announced.level),
                    announcer=self._vertex.chain,
                    version=announced.version,
                    gates=announced.gates,
                    wants=announced.wants,
                    is_all=announced.is_all,
                )
            )

    def _hold(self, entry: HeldWants) -> None:
        """Take an announcement; what changes by it is announced in turn."""
        level = entry.unit.level + 1
        key = (entry.unit, entry.announcer[0])
        before = self.held[level].get(key)
        if before is not None and before.version == entry.version and before.announcer == entry.announcer:
            return
        self.held[level][key] = entry
        if level <= self._vertex.top:
            self.changed()

    def _required(self, level: int) -> list[GateId]:
        """Return the gatekeepers, other than this node, that have to know the wants of the own unit of this level:
        those that hold them, and those that were told and have not given up holding them, though this node by now takes
        others for the holders."""
        gates = {**dict.fromkeys(self._gateways.gates(level + 1)), **self._told(level)}
        return [gate for gate in gates if not self._gateways.is_own(gate)]

    def _told(self, level: int) -> dict[GateId, None]:
        return self.announced[level].told if level in self.announced else {}

    def _send(self, announced: AnnouncedWants) -> None:
        if not self._is_told(announced.level) or self._is_early(announced):
            return
        required, applied, now_ms = self._required(announced.level), announced.level + 1, self._vertex.now_ms
        active = {gate: announced.active.get(gate, {}) for gate in required}
        behind = {gate: levels.get(applied, NO_WANTS) for gate, levels in active.items()}
        behind = {gate: version for gate, version in behind.items() if version < announced.version}
        whole = self._vertex.top + 1
        waiting = [gate for gate, levels in active.items() if levels.get(whole, NO_WANTS) < announced.version]
        if not waiting:
            return
        if announced.retry_at_ms <= now_ms:
            announced.retry_at_ms = now_ms + announced.wait_ms
            announced.wait_ms = min(2 * announced.wait_ms, RETRY_MS_MAX)
            asked = [gate for gate in waiting if gate not in behind and gate in announced.sent]
            if asked:  # how far it is active by now: an acknowledgement may have been lost
                self._send_news(announced, asked, announced.version, (), ())
        else:
            behind = {gate: version for gate, version in behind.items() if gate not in announced.sent}
        self._vertex.timers.set_sooner(AnnounceDue(), announced.retry_at_ms)
        announced.sent.update(dict.fromkeys(behind))
        announced.told.update(dict.fromkeys(behind))
        base, wants = announced.before
        level_with = [gate for gate, version in behind.items() if version == base != NO_WANTS]
        others = [gate for gate in behind if gate not in level_with]
        if level_with:
            joined = tuple(want for key, want in announced.wants.items() if key not in wants)
            left = tuple(key for key in wants if key not in announced.wants)
            self._send_news(announced, level_with, base, joined, left)
        if others:
            self._send_news(announced, others, NO_WANTS, tuple(announced.wants.values()), ())

    def _is_early(self, announced: AnnouncedWants) -> bool:
        """True if a holder that has just begun still waits for its sub-units: while it announces nothing, its unit may
        want anything, which is all that it could announce."""
        level, vertex = announced.level, self._vertex
        if level == 0 or announced.told or not announced.is_all:
            return False
        since_ms = max(vertex.synced_ms, self.tables.holder_since.get(level, 0))
        is_early = not vertex.is_synced or vertex.now_ms - since_ms < vertex.settings.check_ms
        if is_early:
            vertex.timers.set_sooner(AnnounceDue(), vertex.now_ms + vertex.settings.check_ms)
        return is_early

    def _is_told(self, level: int) -> bool:
        return level < self._vertex.top or self._vertex.settings.top_filter

    def _send_news(
        self,
        announced: AnnouncedWants,
        to: list[GateId],
        base: WantsVersion,
        joined: tuple[UnitWant, ...],
        left: tuple[WantKey, ...],
    ) -> None:
        news = WantsNews(
            to=tuple(to),
            level=announced.level,
            announcer=self._vertex.chain,
            version=announced.version,
            base=base,
            gates=announced.gates,
            is_all=announced.is_all,
            joined=joined,
            left=left,
        )
        self._gateways.send_note(news)

    def remind(self) -> None:
        """Name the current version to all that acknowledged it: whoever forgot it asks for it."""
        for announced in self.announced.values():
            required = self._required(announced.level) if self._is_told(announced.level) else []
            if required and not self._is_early(announced):
                self._send_news(announced, required, announced.version, (), ())

    # ---- announcements of others

    def ask_again(self) -> None:
        """Ask announcers that were not heard for a while, and can be reached again, for what they say now."""
        for level, table in self.held.items():
            gates = self._gateways.own_gates(level) if table else ()
            for entry in table.values():
                if entry.unheard_ms is not None and gates and self.tables.can_hear(level, entry):
                    ack = WantsAck(entry.announcer, level - 1, gates, entry.version, active=0)
                    self._gateways.send_note(ack)

    def buried(self) -> None:
        """This node had been declared gone, and announcers may not have told it what changed. They count as not heard,
        and are asked at the next check, unless they take it for a gatekeeper again before and tell it themselves."""
        for table in self.held.values():
            for entry in table.values():
                if entry.unheard_ms is None and entry.announcer[0] != self._vertex.me.id:
                    entry.unheard_ms = self._vertex.now_ms
        self.changed()

    def hear(self, news: WantsNews, via: tuple[GateId, ...]) -> None:
        """An announcement is for this gatekeeper."""
        level = news.level + 1
        is_beside = level > self._vertex.top or news.announcer[level] == self._vertex.chain[level]
        if not is_beside:
            return  # one of the two has not heard of a merge yet
        own = self._gateways.own_gates(level)
        lapsed = tuple(gate for gate in via if gate not in own)
        if lapsed:
            self._gateways.send_note(WantsAck(news.announcer, news.level, lapsed, news.version, active=YIELDED))
            via = tuple(gate for gate in via if gate in own)
        if not via:
            return
        unit = Unit(news.level, news.announcer[news.level])
        held = self.held[level].get((unit, news.announcer[0]))
        version = NO_WANTS if held is None else held.version
        if news.version < version:
            return
        if held is not None:  # it may come once for each gate
            via = tuple(dict.fromkeys(gate for gate in (*held.via, *via) if self._gateways.is_own(gate)))
        if news.version == version and held is not None:
            held.told_level = 0  # the acknowledgement was lost, or this node is gatekeeper by another link
            held.via, held.gates = via, news.gates
            if held.unheard_ms is not None:
                held.unheard_ms = None
                self.changed()
            self.changed_soon()
            return
        if news.base not in (NO_WANTS, version):
            gates = self._gateways.own_gates(level)
            self._gateways.send_note(WantsAck(news.announcer, news.level, gates, version, active=0))
            return
        wants = {} if held is None or news.base == NO_WANTS else dict(held.wants)
        for key in news.left:
            wants.pop(key, None)
        wants.update({want.key: want for want in news.joined})
        self._hold(HeldWants(unit, news.announcer, news.version, news.gates, wants, news.is_all, via=via))
        self.changed_soon()

    def changed_soon(self) -> None:
        """Something is to be acknowledged."""
        delay_ms, now_ms = self._vertex.settings.news_delay_ms, self._vertex.now_ms
        if now_ms - self._announced_at_ms < PACE * delay_ms:
            delay_ms *= PACE  # much is going on
        self._vertex.timers.set_sooner(AnnounceDue(), now_ms + delay_ms)

    def acknowledged(self, ack: WantsAck) -> None:
        announced = self.announced.get(ack.level)
        if announced is None or ack.version.incarnation > self._vertex.incarnation:
            return
        if ack.active == YIELDED:
            for gate in ack.gates:
                announced.active.pop(gate, None)
                announced.told.pop(gate, None)
            self.changed_soon()
            return
        if ack.active == 0:
            # an answer to a gatekeeper that counts as gone here would soon be out of date, and not be followed by news
            ack = replace(ack, gates=tuple(gate for gate in ack.gates if self._gateways.is_gate(gate)))
        for gate in ack.gates:
            active = announced.active.setdefault(gate, {})
            if ack.active == 0:
                active[ack.level + 1] = ack.version
                for level in range(ack.level + 2, self._vertex.top + 2):
                    active[level] = min(active.get(level, NO_WANTS), ack.version)
                announced.sent.pop(gate, None)
            for level in range(ack.level + 1, ack.active + 1):
                active[level] = max(active.get(level, NO_WANTS), ack.version)
        if ack.active == 0 and ack.gates and ack.version == announced.version:
            self._send_news(announced, list(ack.gates), announced.version, (), ())
        self.changed_soon()

    # ---- how far wants are active

    def _report(self) -> None:
        """Acknowledge what is held, and tell clients, where the level up to which it is active rose. From the top down:
        what this node announces to itself counts, too."""
        top = self._vertex.top + 1
        for level in range(top, 0, -1):
            confirmed = self._confirmed_versions(level) if level < top else {}
            gates = self._gateways.own_gates(level) if self.held[level] else ()
            for entry in self.held[level].values():
                entry.active = top if level == top else level_reached(level, confirmed, entry.announced_as)
                if self._is_withheld(level, entry):
                    entry.active = 0
                if entry.active > entry.told_level:
                    entry.told_level = entry.active
                    if entry.announcer[0] != self._vertex.me.id:
                        entry.via = tuple(dict.fromkeys((*entry.via, *gates)))  # it will be told by all of these
                        ack = WantsAck(entry.announcer, level - 1, gates, entry.version, entry.active)
                        self._gateways.send_note(ack)
        confirmed = self._confirmed_versions(0)
        for name in self.clients:
            active = level_reached(0, confirmed, self._since.get(name, NO_WANTS))
            for level in range(self._confirmed.get(name, -1) + 1, active + 1):
                self._vertex.out.append(WantActive(name, level, is_confirmed=True))
            self._confirmed[name] = max(active, self._confirmed.get(name, -1))

    def _is_withheld(self, level: int, entry: HeldWants) -> bool:
        topics = self.withheld.get(level, {})
        return bool(topics) and (entry.is_all or any(topic in topics for topic in entry.by_topic))

    def _confirmed_versions(self, level: int) -> dict[int, WantsVersion]:
        """Return the latest active version of what this node announces for its unit of this level, by level."""
        announced, top = self.announced.get(level), self._vertex.top + 1
        if announced is None or not self._vertex.is_synced or self._gateways.is_parted(level):
            return {}  # who cannot be reached now may have gatekeepers that know nothing of it
        if not self._is_told(level):
            return {top: announced.version}
        own = self.held[level + 1].get((self._vertex.unit(level), self._vertex.me.id))
        required = self._required(level)
        confirmed = {}
        for upper in range(level + 1, top + 1):
            versions = [announced.active.get(gate, {}).get(upper, NO_WANTS) for gate in required]
            if self._gateways.holds(level + 1):
                versions.append(own.version if own is not None and own.active >= upper else NO_WANTS)
            confirmed[upper] = min(versions)
        return confirmed
