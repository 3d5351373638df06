"""Wants of units: what is announced of them, what is held of them, and which wants cover which."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from m4cast.overlay.federation.gateways import Gateways
from m4cast.overlay.federation.messages import NO_WANTS, GateId, GatewayStatus, UnitEvent, UnitWant, WantsVersion
from m4cast.overlay.federation.units import Unit, UnitId, members
from m4cast.overlay.federation.vertex import Vertex
from m4cast.overlay.profiles.boxes import covers
from m4cast.overlay.profiles.condition import Kind
from m4cast.overlay.profiles.summary import ColumnSummary, Summary, may_match

WANTS_PER_TOPIC_MAX = 1_024
"""A unit with more wants announces that it wants all rows of the topic: too much is safe."""
MAIL_COLUMN = ("to",)
"""The column by which clients want their mail (A14)."""
WantKey = tuple[str, bytes]


@dataclass(slots=True)
class AnnouncedWants:
    """The wants that this node announces for its own unit of one level."""

    level: int
    version: WantsVersion = NO_WANTS
    wants: dict[WantKey, UnitWant] = field(default_factory=dict)
    is_all: bool = False
    gates: tuple[GateId, ...] = ()
    before: tuple[WantsVersion, dict[WantKey, UnitWant]] = (NO_WANTS, {})
    """The version before this one: whoever has it is sent the difference."""
    active: dict[GateId, dict[int, WantsVersion]] = field(default_factory=dict)
    """Gatekeeper -> level -> the latest version that it reported as active there."""
    sent: dict[GateId, None] = field(default_factory=dict)
    """The gatekeepers that were sent this version."""
    told: dict[GateId, None] = field(default_factory=dict)
    """The gatekeepers that were sent any version, and have not reported that they hold none: they may match by what
    they were sent last."""
    retry_at_ms: int = 0
    wait_ms: int = 0


@dataclass(slots=True)
class HeldWants:
    """The wants of a sub-unit, from one of its announcers, as this gatekeeper holds them."""

    unit: Unit
    announcer: tuple[UnitId, ...]
    version: WantsVersion
    gates: tuple[GateId, ...]
    wants: dict[WantKey, UnitWant]
    is_all: bool = False
    """It may want anything: its announcer does not know yet."""
    announced_as: WantsVersion = NO_WANTS
    """The version of the own announcement that has it."""
    active: int = 0
    """The level up to which it is active, as far as this gatekeeper knows."""
    told_level: int = 0
    unheard_ms: int | None = None
    """The time since which its announcer has had no connection, or has not known that this node is a gatekeeper."""
    via: tuple[GateId, ...] = ()
    """The gates by which this node was a gatekeeper when it was told: while it has them, it is told of changes, too."""
    by_topic: dict[str, list[UnitWant]] = field(init=False, default_factory=dict)
    """The same wants: a batch meets those of its topic alone."""

    def __post_init__(self) -> None:
        for (topic, _), want in self.wants.items():
            self.by_topic.setdefault(topic, []).append(want)

    def may_want(self, event: UnitEvent, matched: dict[bytes, bool]) -> bool:
        return self.is_all or any(may_want(want, event, matched) for want in self.by_topic.get(event.topic, ()))


def level_reached(level: int, confirmed: dict[int, WantsVersion], version: WantsVersion) -> int:
    """The highest level at which a version, or a later one, is active."""
    return max((upper for upper, latest in confirmed.items() if NO_WANTS < version <= latest), default=level)


def maximal(wants: Iterable[UnitWant]) -> list[UnitWant]:
    """The wants that no other one covers, each once."""
    topics: dict[str, dict[bytes, UnitWant]] = {}
    for want in wants:
        topics.setdefault(want.topic, {})[want.key[1]] = want
    found: list[UnitWant] = []
    for topic, by_profile in topics.items():
        if b"" in by_profile or len(by_profile) > WANTS_PER_TOPIC_MAX:
            found.append(UnitWant(topic))
            continue
        kept: list[UnitWant] = []
        for want in by_profile.values():
            if not any(_covers(other, want) for other in kept):
                kept = [other for other in kept if not _covers(want, other)]
                kept.append(want)
        found += kept
    return sorted(found, key=lambda want: want.key)


def _covers(wide: UnitWant, narrow: UnitWant) -> bool:
    if wide.profile is None or narrow.profile is None:
        return wide.profile is None
    return covers(wide.profile.condition, narrow.profile.condition)


def may_want(want: UnitWant, event: UnitEvent, matched: dict[bytes, bool]) -> bool:
    if want.topic != event.topic:
        return False
    if want.profile is None or event.summary is None:
        return True
    key = want.profile.id
    if key not in matched:
        matched[key] = may_match(want.profile.condition, event.summary)
    return matched[key]


HeldKey = tuple[Unit, UnitId]


class HeldTables:
    """The wants of the sub-units of the own units, as far as this node holds them, and whose announcements count."""

    def __init__(self, vertex: Vertex, gateways: Gateways) -> None:
        self._vertex = vertex
        self._gateways = gateways
        self.held: dict[int, dict[HeldKey, HeldWants]] = {level: {} for level in range(1, vertex.top + 2)}
        """P^l by level: what the sub-units of the own unit want. At top + 1: what units of the top level want."""
        self.holder_since: dict[int, int] = {}
        """Level -> since when this node holds what the sub-units of its unit want."""
        self._announcing: dict[int, tuple[int, dict[GateId, None]]] = {}
        """Level -> the revision of the connections below it, and by it the gates."""

    def hits(self, level: int, event: UnitEvent) -> list[Unit]:
        """The sub-units of the own unit of this level that may want the batch. Silent ones may want anything: for those
        that are away it is kept here, which costs others nothing."""
        matched: dict[bytes, bool] = {}
        found: dict[Unit, None] = dict.fromkeys(self.silent(level))
        for entry in self.held[level].values():
            is_new = entry.unit not in found and entry.unheard_ms is None
            if is_new and entry.may_want(event, matched):
                found[entry.unit] = None
        return sorted(found)

    def is_wanted(self, level: int, topic: str, beside: UnitId) -> bool:
        """True if a sub-unit of the own unit, other than `beside`, wants or may want anything of the topic."""
        if any(unit.id != beside for unit in self.silent(level)):
            return True
        return any(
            entry.unit.id != beside and (entry.is_all or topic in entry.by_topic)
            for entry in self.held[level].values()
            if entry.unheard_ms is None
        )

    def is_known(self, mail: UnitEvent) -> bool:
        """True if anybody in the federation may want the mail, as far as this gatekeeper of the top level knows."""
        return not self._vertex.settings.top_filter or bool(self.hits(self._vertex.top + 1, mail))

    def silent(self, level: int) -> list[Unit]:
        """Sub-units none of whose announcers is heard."""
        heard = self._heard_units(level)
        away = {entry.unit: None for entry in self.held[level].values() if entry.unit not in heard}
        return list({**away, **dict.fromkeys(self.unknown(level))})

    def counts(self, level: int, entry: HeldWants) -> bool:
        """True if the announcement is included in the sum: its announcer has a connection, or no other one of its unit
        has."""
        return entry.unheard_ms is None or entry.unit not in self._heard_units(level)

    def _heard_units(self, level: int) -> dict[Unit, None]:
        return {entry.unit: None for entry in self.held[level].values() if entry.unheard_ms is None}

    def mark_heard(self) -> bool:
        """An announcer that cannot be heard may say something else meanwhile: from then on its unit is silent, until it
        speaks again. What it said counts for `absent_ms` if nobody else speaks for its unit, and is then forgotten
        (H50). Whether anything changed."""
        now_ms, is_changed = self._vertex.now_ms, False
        for level, table in self.held.items():
            for key, entry in list(table.items()):
                if entry.unheard_ms is None:
                    if not self.can_hear(level, entry):
                        is_changed = True
                        entry.unheard_ms = now_ms
                elif now_ms - entry.unheard_ms >= self._vertex.settings.absent_ms:
                    del table[key]
                    is_changed = True
        return is_changed

    def can_hear(self, level: int, entry: HeldWants) -> bool:
        """True if the announcer would tell this node of changes: it has a gate, knows one of this node, and there is a
        route."""
        if entry.announcer[0] == self._vertex.me.id:
            return True
        announcing = self._announcing_gates(level)
        is_told = any(self._gateways.is_own(gate) for gate in entry.via)
        is_there = is_told and any(gate in announcing for gate in entry.gates)
        return is_there and self._gateways.is_reached(entry.unit)

    def _announcing_gates(self, level: int) -> dict[GateId, None]:
        """Those who announce to the holders of the own unit of this level: what their sub-unit wants."""
        revision = self._gateways.revisions[level - 1]
        found = self._announcing.get(level)
        if found is None or found[0] != revision:
            found = self._announcing[level] = (revision, self._find_announcing(level - 1))
        return found[1]

    def _find_announcing(self, below: int) -> dict[GateId, None]:
        gates = dict.fromkeys(self._gateways.gates(below))
        for connection in self._gateways.of_level(below):
            for side, end in enumerate(connection.ends):
                if end.level == below and connection.status is not GatewayStatus.REMOVED:
                    gates[GateId(connection.id, side)] = None
        return gates

    def unknown(self, level: int) -> list[Unit]:
        """Sub-units of which nothing has been heard since this node began to hold what they want; not for ever."""
        since_ms = self.holder_since.get(level, self._vertex.now_ms)
        if self._vertex.now_ms - since_ms >= self._vertex.settings.absent_ms:
            return []
        heard = {entry.unit: None for entry in self.held[level].values()}
        units = members(self._vertex.records.values(), level - 1, self._vertex.unit(level).id)
        return [record.unit for record in units if record.unit not in heard]

    def is_unsure(self, level: int) -> bool:
        """Some sub-unit may want more than is known: then so may the own unit. One that is away is counted by what it
        said last: while it cannot be reached, it is confirmed nothing new."""
        if not self._vertex.is_synced or self.unknown(level):
            return True
        heard = self._heard_units(level)
        return any(
            entry.is_all if entry.unit in heard else self._gateways.is_reached(entry.unit)
            for entry in self.held[level].values()
            if self.counts(level, entry)
        )

    def summed(self, level: int) -> Iterator[UnitWant]:
        for entry in self.held[level].values():
            if self.counts(level, entry):
                yield from entry.wants.values()

    def is_sure(self) -> bool:
        """True if all sub-units have announced themselves, and are still heard."""
        return not any(
            self.unknown(level) or any(entry.unheard_ms is not None for entry in table.values())
            for level, table in self.held.items()
            if table
        )

    def let_go(self, level: int) -> None:
        """Others hold what the sub-units want, and nobody tells this node of changes: should it become a holder again,
        it begins with nothing."""
        self.held[level].clear()
        self.holder_since.pop(level, None)


def names_client(event: UnitEvent, client: str) -> UnitEvent:
    """The part of a mail that is for one client."""
    named = ColumnSummary(Kind.TEXT, 0, client, client, frozenset((client,)))
    columns = {} if event.summary is None else event.summary.columns
    return replace(event, summary=Summary(1, {**columns, MAIL_COLUMN: named}))
