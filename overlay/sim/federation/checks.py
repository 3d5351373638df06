"""Checkers of guarantee 14, and what a run is measured by.

Safety, always: nobody is given a batch twice, or one that it does not want. Liveness, when faults are over: every batch
reached everybody whose want was confirmed, when it was published, for a unit that it was published in. After a quiet
time: no unit is charged with a batch that nobody inside wants, and no connection is known outside the unit it belongs
to.
"""

from collections import Counter
from dataclasses import dataclass, field

from m4cast.overlay.federation.contract import DeliverEvent, KeptPlace, MatchedUnits, WantActive
from m4cast.overlay.federation.messages import (
    EventCopy,
    EventId,
    GatewayNews,
    LinkMessage,
    RoutedNote,
    UnitEvent,
    UnitWant,
)
from m4cast.overlay.federation.units import Chain, Unit, level_between
from m4cast.overlay.profiles.summary import may_match
from m4cast.overlay.sim.checkers import Violation
from m4cast.overlay.sim.federation.world import FederationSite, FederationWatcher, FederationWorld


@dataclass(slots=True)
class PublishedEvent:
    event: UnitEvent
    origin: Chain
    expected: dict[tuple[str, str], None] = field(default_factory=dict)
    """(site, want) that were confirmed for the origin's unit, and are still wanted."""
    hits: dict[Unit, str] = field(default_factory=dict)
    """Sub-units that were charged with it, with the site that matched."""
    is_quiet: bool = False
    """True if nothing had changed for a while when it was published."""


@dataclass(slots=True)
class FederationChecks(FederationWatcher):
    world: FederationWorld
    published: dict[EventId, PublishedEvent] = field(default_factory=dict)
    wants: dict[tuple[str, str], UnitWant] = field(default_factory=dict)
    confirmed: dict[tuple[str, str], dict[Unit, None]] = field(default_factory=dict)
    """(site, want) -> the units inside which nothing may be missed. One that is merged into another unit has to be
    confirmed there anew."""
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    delivered: dict[tuple[str, EventId], int] = field(default_factory=dict)
    order: dict[str, list[EventId]] = field(default_factory=dict)
    """Site -> batches as they came."""
    copies: Counter[EventId] = field(default_factory=Counter)
    gateway_copies: Counter[EventId] = field(default_factory=Counter)
    touched: dict[EventId, dict[str, int]] = field(default_factory=dict)
    """Batch -> sites that had it -> the number of links that it came over."""
    matchings: dict[EventId, list[tuple[str, Unit, tuple[Unit, ...]]]] = field(default_factory=dict)
    messages: Counter[str] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)
    """The number of connections, records and wants in messages, by kind of message."""

    # ---- what clients do

    def want(self, site: FederationSite, name: str, want: UnitWant) -> None:
        self.wants[site.name, name] = want
        self.confirmed.pop((site.name, name), None)
        self.seen.pop((site.name, name), None)

    def unwant(self, site: FederationSite, name: str) -> None:
        self.wants.pop((site.name, name), None)
        for each in self.published.values():
            each.expected.pop((site.name, name), None)

    def publish(self, site: FederationSite, event: UnitEvent, *, is_quiet: bool = False) -> PublishedEvent:
        """A site publishes: whoever is confirmed for its unit has to get it. A node that has been granted a place, and
        is not linked to it yet, is in no unit but itself: it may have to go back."""
        machine = site.running()
        origin = machine.vertex.chain
        inside = [site.unit] if machine.addition.is_moving else machine.vertex.units()
        published = self.published[event.id] = PublishedEvent(event, origin, is_quiet=is_quiet)
        self.touched[event.id] = {site.name: 0}
        for (name, want_name), want in self.wants.items():
            units = self.confirmed.get((name, want_name), {})
            is_inside = any(unit in units for unit in inside)
            if matches(want, event) and is_inside:
                published.expected[name, want_name] = None
        return published

    def level(self, origin: Chain, name: str) -> int:
        return level_between(origin, self.chain(name))

    def chain(self, name: str) -> Chain:
        """The units of a site, though it may be down."""
        site = self.world.sites[name]
        if site.machine is not None:
            return site.machine.vertex.chain
        place = site.kept["place", None]
        assert isinstance(place, KeptPlace)
        parents = {record.unit: record.parent for record in place.records}
        chain = [site.unit.id]
        for level in range(self.world.settings.top):
            chain.append(parents[Unit(level, chain[level])])
        return tuple(chain)

    # ---- what the machines do

    def delivered_to(self, site: FederationSite, delivery: DeliverEvent) -> None:
        event = delivery.event
        if delivery.is_handed_over:
            return  # to a client that may have had it where it was
        key = (site.name, event.id)
        self.delivered[key] = self.delivered.get(key, 0) + 1
        self.order.setdefault(site.name, []).append(event.id)
        if self.delivered[key] > 1:
            raise Violation("units", f"{site.name} was given {event.id} twice")
        for name in delivery.names:
            want = self.wants.get((site.name, name))
            if want is not None and not matches(want, event):
                raise Violation("units", f"{site.name}: {name} was given {event.id}, which it does not want")

    def matched(self, site: FederationSite, matched: MatchedUnits) -> None:
        self.matchings.setdefault(matched.event, []).append((site.name, matched.unit, matched.hits))
        published = self.published[matched.event]
        for unit in matched.hits:
            published.hits[unit] = site.name
            if published.is_quiet and self.world.settings.top_filter and not self._has_taker(unit, published.event):
                raise Violation("units", f"{site.name} charges unit {unit} with {matched.event}, nobody there wants it")

    def _has_taker(self, unit: Unit, event: UnitEvent) -> bool:
        return any(
            matches(want, event) and self.chain(name)[unit.level] == unit.id for (name, _), want in self.wants.items()
        )

    def active(self, site: FederationSite, active: WantActive) -> None:
        key = (site.name, active.name)
        if active.is_confirmed:
            self.confirmed.setdefault(key, {})[site.running().vertex.unit(active.level)] = None
        else:
            self.seen[key] = max(active.level, self.seen.get(key, -1))

    def sent(self, site: FederationSite, other: FederationSite, message: LinkMessage) -> None:
        kind = type(message).__name__
        if isinstance(message, RoutedNote):
            kind = type(message.body).__name__
            self.items[kind] += len(getattr(message.body, "joined", ())) + len(getattr(message.body, "left", ()))
        self.messages[kind] += 1
        if isinstance(message, GatewayNews):
            self.items[kind] += len(message.connections) + len(message.records)
        if isinstance(message, EventCopy):
            event_id = message.event.id
            self.copies[event_id] += 1
            touched = self.touched.setdefault(event_id, {})
            touched.setdefault(other.name, touched.get(site.name, 0) + 1)
            if self.level(self.chain(site.name), other.name):
                self.gateway_copies[event_id] += 1

    # ---- at the end

    def missing(self) -> list[str]:
        """Return who still lacks which batch."""
        return [
            f"{name} ({want}) lacks {event_id}"
            for event_id, each in self.published.items()
            for name, want in each.expected
            if (name, event_id) not in self.delivered and self.world.sites[name].up
        ]

    def unconfirmed(self) -> list[str]:
        """Wants that are not active everywhere."""
        return [
            f"{site} ({name}) is not active everywhere" for site, name in self.wants if not self._is_active(site, name)
        ]

    def _is_active(self, site: str, name: str) -> bool:
        machine = self.world.sites[site].machine
        whole = self.world.settings.top + 1
        return machine is not None and machine.vertex.unit(whole) in self.confirmed.get((site, name), {})

    def leaks(self) -> list[str]:
        """Connections that are known outside the unit that both their ends are in (G18)."""
        found = []
        owners: dict[bytes, Chain] = {}
        sites = [site for site in self.world.sites.values() if site.machine is not None]
        for site in sites:
            vertex = site.running().vertex
            for link in vertex.ready_links():
                owners[link.connection] = vertex.chain
        for site in sites:
            machine = site.running()
            for each in machine.gateways.connections.values():
                owner = owners.get(each.id)
                level = each.level + 1
                if owner is not None and level < len(owner) and owner[level] != machine.vertex.chain[level]:
                    found.append(f"{site.name} knows a connection of level {each.level} of another unit")
        return found


def matches(want: UnitWant, event: UnitEvent) -> bool:
    if want.topic != event.topic:
        return False
    return want.profile is None or event.summary is None or may_match(want.profile.condition, event.summary)
