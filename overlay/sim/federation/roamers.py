"""Simulated clients that roam between the sites of a federation, and what they have to have got in the end.

A client takes what its node delivers while it is attached, and what the node has stored for it when it comes. It drops
what it had, by id. What a site has for a client that it was told is gone, it hands over.
"""

from dataclasses import dataclass, field

from m4cast.overlay.federation.contract import ClientArrived, ClientGone, DeliverEvent, HandOver
from m4cast.overlay.federation.messages import EventId, UnitEvent, UnitWant
from m4cast.overlay.federation.units import Chain
from m4cast.overlay.sim.federation.checks import FederationChecks, PublishedEvent
from m4cast.overlay.sim.federation.world import FederationSite, FederationWatcher, FederationWorld


@dataclass(slots=True)
class Roamer:
    name: str
    want: UnitWant
    incarnation: int = 0
    at: str = ""
    """The site that it is attached to."""
    was_at: Chain = ()
    """The units of the node where it was last."""
    had: dict[EventId, None] = field(default_factory=dict)
    expected: dict[EventId, None] = field(default_factory=dict)
    dropped: int = 0
    """Batches that came again."""
    moves: int = 0

    def take(self, event: EventId) -> None:
        if event in self.had:
            self.dropped += 1
        self.had[event] = None


class Roamers(FederationWatcher):
    def __init__(self, world: FederationWorld, checks: FederationChecks) -> None:
        self.world = world
        self.checks = checks
        self.clients: dict[str, Roamer] = {}
        world.watchers.append(self)

    def add(self, name: str, want: UnitWant) -> Roamer:
        client = self.clients[name] = Roamer(name, want)
        return client

    # ---- what clients do

    def arrive(self, client: Roamer, site: FederationSite) -> None:
        """The client connects at a site, which may be where it was."""
        client.incarnation += 1
        client.moves += 1
        if client.name not in site.running().interest.clients:
            self.checks.want(site, client.name, client.want)
        self.checks.wants[site.name, client.name] = client.want
        self.leave(client)
        client.at = site.name
        arrived = ClientArrived(client.name, client.incarnation, client.want, client.was_at)
        self.world.feed(site, arrived)
        for event in site.stored.pop(client.name, {}):
            client.take(event)

    def leave(self, client: Roamer) -> None:
        """The client is away; its want stays. While it was attached, it was told when its node's units changed."""
        if client.at:
            client.was_at = self.checks.chain(client.at)
        client.at = ""

    def published(self, each: PublishedEvent) -> None:
        """Expect the batch at each client whose want was confirmed for the publisher's unit, where the client is or
        was."""
        for _, name in each.expected:
            if name in self.clients:
                self.clients[name].expected[each.event.id] = None

    # ---- what sites do

    def delivered_to(self, site: FederationSite, delivery: DeliverEvent) -> None:
        for name in delivery.names:
            client = self.clients.get(name)
            if client is None:
                continue
            if client.at == site.name:
                client.take(delivery.event.id)
            else:
                site.stored.setdefault(name, {})[delivery.event.id] = delivery.event

    def gone(self, site: FederationSite, gone: ClientGone) -> None:
        self.checks.unwant(site, gone.name)
        self.world.after(0, lambda: self._hand_over(site, gone.name))

    def _hand_over(self, site: FederationSite, name: str) -> None:
        """A crash loses nothing: it is stored until it was fed, and asked for again after a restart."""
        for event in list(site.stored.get(name, {}).values()):
            if site.up:
                self._feed(site, name, event)

    def _feed(self, site: FederationSite, name: str, event: UnitEvent) -> None:
        self.world.feed(site, HandOver(name, event))
        site.stored.get(name, {}).pop(event.id, None)

    # ---- at the end

    def missing(self) -> list[str]:
        return [
            f"client {client.name}, at {client.at or 'no site'} after {client.moves} moves, lacks {event}"
            for client in self.clients.values()
            for event in client.expected
            if event not in client.had
        ]

    def unreleased(self) -> list[str]:
        """Sites that have a want of a client that is elsewhere."""
        return [
            f"{site.name} has not released {name}"
            for site in self.world.sites.values()
            if site.up
            for name, kept in site.running().roaming.clients.items()
            if kept.previous or (name in site.running().interest.clients and self.clients[name].at != site.name)
        ]
