"""Wants of units: what is announced of them, what is held of them, and which wants cover which."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from m4cast.overlay.federation.messages import NO_WANTS, GateId, UnitEvent, UnitWant, WantsVersion
from m4cast.overlay.federation.units import Unit, UnitId
from m4cast.overlay.profiles.boxes import covers
from m4cast.overlay.profiles.summary import may_match

WANTS_PER_TOPIC_MAX = 1_024
"""Beyond it a unit announces that it wants all rows of the topic: too much is safe."""
WantKey = tuple[str, bytes]


@dataclass(slots=True)
class AnnouncedWants:
    """What this node announces of its own unit of one level."""

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
    """Who was sent this version."""
    retry_at_ms: int = 0
    wait_ms: int = 0


@dataclass(slots=True)
class HeldWants:
    """What a sub-unit wants, by one of its announcers, as this gatekeeper holds it."""

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
    """Since when its announcer has had no connection, or does not know that this node is gatekeeper."""
    via: tuple[GateId, ...] = ()
    """What this node was gatekeeper by when it was told: while it is, changes are told, too."""


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
