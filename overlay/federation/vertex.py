"""The vertex: what the machines of one node's federation share. Its units, its links, and the outputs of the input that
is being handled."""

from dataclasses import dataclass, field
from random import Random

from m4cast.overlay.federation.contract import (
    FederationOutput,
    FederationRecovered,
    FederationSettings,
    KeepValue,
    KeptPlace,
    PlaceChanged,
    SendLink,
)
from m4cast.overlay.federation.messages import CarriedCharge, EventId, LinkMessage
from m4cast.overlay.federation.units import (
    GONE,
    Chain,
    Unit,
    UnitId,
    UnitRecord,
    founding_records,
    free_number,
)
from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.value import value


@value
class NewsDue(Timer):
    """News of connections and units waits for this."""


@value
class CheckDue(Timer):
    """Loads, overdue acknowledgements and lost gatekeepers are looked at."""


@value
class AnnounceDue(Timer):
    """Wants of units are announced, or announced again."""


@value
class StuckDue(Timer):
    """Batches without a way are tried again."""


@value
class AdditionDue(Timer):
    """An answer to an addition call is overdue."""

    call: int


@value
class SentCopy:
    event: EventId
    charges: tuple[CarriedCharge, ...]
    at_ms: int


@dataclass(slots=True)
class UnitLink:
    """A link to another node, of the own cluster or of another unit."""

    conn: int
    nonce: bytes
    peer: Chain = ()
    """Empty until its hello has come."""
    address: str = ""
    level: int = 0
    connection: bytes = b""
    side: int = 0
    is_suspected: bool = False
    is_behind: bool = False
    """It was suspected, and the other end has not answered a probe since: what it sent before may still come, after
    what took another way."""
    buried: int = 0
    """The generation in which others last declared this end gone, as far as this node has heard; 0: never."""
    last_number: int = 0
    """The number of the last copy that was sent."""
    unacked: dict[int, SentCopy] = field(default_factory=dict)
    news: dict[bytes, None] = field(default_factory=dict)
    """Connections that the next news tells of."""
    news_of_units: dict[Unit, None] = field(default_factory=dict)
    moved_ms: int = 0
    """The last time at which a copy was acknowledged, or the oldest one was still unsent: one is overdue since then."""
    delay_ms: float = 0.0
    """Smoothed."""
    extra: int = 0
    extra_seen: int = 0
    """The value that the last check found: it is announced if the next one finds a change, too."""


class Vertex:
    def __init__(
        self, recovered: FederationRecovered, settings: FederationSettings, random: Random, now_ms: int
    ) -> None:
        self.me = Unit(0, recovered.node)
        self.incarnation = recovered.incarnation
        self.address = recovered.address
        self.settings = settings
        self.top = settings.top
        self.random = random
        self.now_ms = now_ms
        self.timers = Timers()
        self.out: list[FederationOutput] = []
        self.links: dict[int, UnitLink] = {}
        place = recovered.kept.get(("place", None))
        self.has_joined = isinstance(place, KeptPlace) and place.has_joined
        first = place.records if isinstance(place, KeptPlace) else self._founding()
        self.records: dict[Unit, UnitRecord] = {record.unit: record for record in first}
        """The records of the own units and of those beside them."""
        self.place: Chain = ()
        """The own units by level, and at last the federation."""
        self._own_units: list[Unit] = []
        self._settle(self._walk())
        self.is_synced = not self.has_joined
        """It has heard all that a neighbour knows: until then it matches nothing."""
        self.synced_ms = now_ms
        """The time since which that has been so."""
        self.revision = 0
        """Counts records that were learned."""
        self.is_place_new = True
        """The place is to be kept, and told, when the input has been handled."""

    def _founding(self) -> tuple[UnitRecord, ...]:
        return founding_records(self.me.id, self.top, self.address, self.random)

    # ---- units

    @property
    def chain(self) -> Chain:
        """The own units by level."""
        return self.place[:-1]

    def unit(self, level: int) -> Unit:
        """The own unit of this level; above the top, the whole federation."""
        return self._own_units[level]

    def units(self) -> list[Unit]:
        """The own units, from the node itself up to the whole federation."""
        return list(self._own_units)

    def is_mine(self, unit: Unit) -> bool:
        return self.place[unit.level] == unit.id

    def own_records(self) -> tuple[UnitRecord, ...]:
        return tuple(self.records[self.unit(level)] for level in range(self.top + 1))

    def numbers(self) -> tuple[int, ...]:
        return tuple(record.number for record in reversed(self.own_records()))

    def found_anew(self) -> None:
        """Be alone again, in units of its own."""
        self.records = {record.unit: record for record in self._founding()}
        self.has_joined, self.is_synced = False, True
        self.renew_chain()

    def learn_record(self, record: UnitRecord) -> bool:
        """Take a record that is newer than what is held; False: it is not, or is none of this node's business.

        Records of one message come from below: a unit that moved names a parent whose own record comes next."""
        if not record.beats(self.records.get(record.unit)):
            return False
        walk = self._walk()
        level = record.unit.level
        is_own = level < len(walk) and walk[level] == record.unit.id
        is_beside = level + 1 < len(walk) and walk[level + 1] == record.parent
        if not (is_own or is_beside) or (record.unit == self.me and record.number == GONE):
            return False
        self.records[record.unit] = record
        self.revision += 1
        self.is_place_new = True
        if is_own:
            self.renew_chain()
        return True

    def _walk(self) -> list[UnitId]:
        """The own units as far up as records are known, and what the last one belongs to."""
        walk = [self.me.id]
        while len(walk) <= self.top + 1:
            record = self.records.get(Unit(len(walk) - 1, walk[-1]))
            if record is None:
                break
            walk.append(record.parent)
        return walk

    def _settle(self, walk: list[UnitId]) -> None:
        self.place = tuple(walk)
        self._own_units = [Unit(level, unit) for level, unit in enumerate(walk)]

    def renew_chain(self) -> None:
        """Follow the records. Those of upper units may come a moment later: until then the old context stands."""
        walk = self._walk()
        if len(walk) < self.top + 2:
            return
        if tuple(walk) != self.place:
            self._settle(walk)
            beside = {(level, self.unit(level + 1).id) for level in range(self.top + 1)}
            self.records = {
                unit: record for unit, record in self.records.items() if (unit.level, record.parent) in beside
            }
        self.is_place_new = True

    def flush(self) -> None:
        """Keep the place if it changed: also what is known of units beside, so that a node that restarts knows whom it
        has to hear of."""
        if self.is_place_new:
            self.is_place_new = False
            self.out.append(KeepValue(("place", None), KeptPlace(tuple(self.records.values()), self.has_joined)))
            self.out.append(PlaceChanged(self.chain, self.numbers()))

    def clashing(self) -> list[UnitRecord]:
        """New records for own units whose number another unit with a smaller id has (H47)."""
        taken: dict[tuple[UnitId, int], UnitRecord] = {}
        for record in self.records.values():
            if record.number != GONE and not self.is_mine(record.unit):
                taken[record.parent, record.number] = record
        renumbered = []
        for record in self.own_records():
            other = taken.get((record.parent, record.number))
            if other is not None and other.unit.id < record.unit.id:
                number = free_number(self.records.values(), record.parent)
                renumbered.append(UnitRecord(record.unit, record.parent, number, record.epoch + 1, record.address))
        return renumbered

    # ---- links

    def ready_links(self) -> list[UnitLink]:
        """Links whose other end is known."""
        return [link for link in self.links.values() if link.peer]

    def links_of(self, level: int) -> list[UnitLink]:
        return [link for link in self.links.values() if link.peer and link.level == level]

    def link_to(self, unit: UnitId) -> UnitLink | None:
        """The best of the own links to a node of the cluster, or into another unit."""
        found = [
            link
            for link in self.links.values()
            if link.peer and not link.is_suspected and link.peer[link.level] == unit
        ]
        return min(found, key=lambda link: (link.extra, link.conn), default=None)

    def send(self, link: UnitLink, message: LinkMessage) -> None:
        self.out.append(SendLink(link.conn, message))
