"""The state of a client: named profiles, one position, and the fills of profiles that begin before it.

The library computes every change; the access point stores what it is sent. Both check it with `state_of`.

Theory. `frontier` is the position of the *main line*. From it on a row is given if any profile of its topic matches, so
one number per stream serves all profiles. A profile that begins below the position has a *fill*, a range per stream,
in which a row is given unless a profile that was in force before had given it: the fill lists those as `others`.

Fills are read in order, before the main line. So a profile's rows come in stream order, and while a fill is unfinished
no later fill has begun: when its profile is removed, a later fill can still take over what the removed one had not
given (`Other.unfinished`).

A profile on a table may begin with what *stands*: its fill gives, of the rows below the position, those that stood at
that moment. A row that stands now stood at any earlier moment since it came, so what an earlier profile of that kind
gave is known by its condition alone; of rows that no longer stand it is not, so later fills of the other kind are
refused.

Reference: PROTOCOL.md, section 21.1; H32, H36 of the design.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.wire.interest import MAIL_TOPIC
from m4cast.overlay.value import value

Frontier = dict[str, dict[str, int]]
"""Topic -> origin in hex -> next sequence."""
Sequences = dict[str, int]
"""Origin in hex -> sequence."""
Ranges = dict[str, tuple[int, int]]
"""Origin in hex -> first, and the one after the last."""

PROFILES_MAX = 100
FILLS_MAX = 100
OTHERS_MAX = 1_000
CONDITIONS_MAX = 100
"""A fill has one more for each time that its profile was replaced before it was finished."""
NAME_BYTES_MAX = 200
SEQUENCE_MAX = 2**62
_GONE = "\0gone"
"""No name of a client's profile ends so."""
MAIL = MAIL_TOPIC
"""The topic of mail, and the name of the profile of it that a client has once it has opened its inbox."""


@value
class ClientProfile:
    """A condition on the rows of a topic under a name that the client chose."""

    name: str
    topic: str
    where: str | None
    """None: every row."""
    language: str | None
    """None: sql."""
    begin: Sequences
    """The position at which it begins in each stream; 1 in those that are not named."""
    number: int = 0
    """Its own among all that the client ever had: a name may be used again."""
    standing: bool = False
    """It begins with what stood in a table."""

    @property
    def identity(self) -> tuple[object, ...]:
        return self.name, self.topic, self.where, self.language, self.number

    def begins(self, origin: str) -> int:
        return self.begin.get(origin, 1)


@value
class Other:
    """Rows that a fill leaves out, because a profile that was in force when the fill was made gives them: those that
    satisfy all conditions, in these ranges."""

    number: int
    """The number of the profile."""
    conditions: tuple[tuple[str | None, str | None], ...]
    """Each `where` and its language."""
    begin: Sequences
    hole: Ranges
    """The rows that it did not give although it began before them: its own fill ended unfinished."""
    within: Ranges | None
    """None: everywhere."""

    def gave(self, origin: str, sequence: int) -> bool:
        """True if it counts at this row."""
        return all(first <= sequence < until for first, until in self.spans(origin)) and not _is_in(
            self.hole, origin, sequence
        )

    def spans(self, origin: str) -> list[tuple[int, int]]:
        within = [] if self.within is None else [self.within.get(origin, (0, 0))]
        return [(self.begin.get(origin, 1), SEQUENCE_MAX), *within]

    def unfinished(self, fill: "Backfill") -> "Iterator[Other]":
        """Return what remains of it when its profile's own fill ends like this: the rows that the fill had not given
        are replaced by those that it had itself left to others."""
        yield replace(self, hole=fill.ranges)
        for other in fill.others:
            within = {
                origin: (max(first, low), min(until, high))
                for origin, (first, until) in fill.ranges.items()
                for low, high in [(0, SEQUENCE_MAX) if other.within is None else other.within.get(origin, (0, 0))]
                if max(first, low) < min(until, high)
            }
            if within:
                yield replace(other, conditions=(*self.conditions, *other.conditions), within=within)


@value
class Backfill:
    """The rows that a profile still has to give below the position that the client had when the profile was made."""

    profile: ClientProfile
    ranges: Ranges
    others: tuple[Other, ...]
    standing: Sequences | None = None
    """Only the rows of a table that stand below this position of its streams; None: all."""


@value
class ClientState:
    profiles: tuple[ClientProfile, ...] = ()
    frontier: Frontier = field(default_factory=dict)
    fills: tuple[Backfill, ...] = ()
    last_number: int = 0
    """The number of the last profile."""

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({profile.topic for profile in self.profiles}))

    def position(self, topic: str, origin: str) -> int:
        return self.frontier.get(topic, {}).get(origin, 1)

    # ---- profiles

    def subscribed(self, profile: ClientProfile, here: Sequences) -> "ClientState":
        """This state with the profile, in place of the one with its name. `here`: how far each known stream of its
        topic reaches at the access point; a topic that no profile had begins there or at the profile's begin, whichever
        is less."""
        in_force = [each for each in self.profiles if each.topic == profile.topic]
        if profile.standing and not in_force:
            return self._standing(profile, here)
        kept = tuple(each for each in self.profiles if each.name != profile.name)
        state = replace(self._without_fill(profile.name), last_number=self.last_number + 1)
        if not in_force:
            start = {origin: min(profile.begins(origin), until) for origin, until in here.items()}
            profile = replace(profile, begin=start, number=state.last_number)
            return replace(state, profiles=(*kept, profile), frontier={**state.frontier, profile.topic: start})
        at = self.frontier.get(profile.topic, {})
        ranges = {origin: (first, until) for origin, until in at.items() if (first := profile.begins(origin)) < until}
        if ranges and not profile.standing and any(each.standing for each in in_force):
            raise LocalProtocolError(
                f"a profile of table {profile.topic!r} began with what stood, so it is not known what else it gave: "
                "start at latest or standing, or unsubscribe that one first"
            )
        begin = {origin: min(profile.begins(origin), until) for origin, until in at.items()}
        profile = replace(profile, begin=begin, number=state.last_number)
        standing = dict(at) if profile.standing else None
        others = self._others(in_force, profile.name)
        fills = (*state.fills, Backfill(profile, ranges, others, standing)) if ranges else state.fills
        return replace(state, profiles=(*kept, profile), fills=fills)

    def _standing(self, profile: ClientProfile, here: Sequences) -> "ClientState":
        """The first profile of a table, which begins with what stands: its main line begins where that ends."""
        latest = replace(profile, begin=dict(here))
        state = self.subscribed(replace(latest, standing=False), here)
        begin = {origin: min(profile.begins(origin), until) for origin, until in here.items()}
        made = replace(profile, begin=begin, number=state.last_number)
        ranges = {origin: (first, here[origin]) for origin, first in begin.items() if first < here[origin]}
        fills = (*state.fills, Backfill(made, ranges, (), dict(here))) if ranges else state.fills
        return replace(state, profiles=(*state.profiles[:-1], made), fills=fills)

    def _others(self, in_force: Iterable[ClientProfile], replaced: str) -> tuple[Other, ...]:
        """Return what a new fill leaves to the profiles in force; to the replaced one, only what that has given."""
        others: list[Other] = []
        fills = {fill.profile.name: fill for fill in self.fills}
        for each in in_force:
            other = Other(each.number, ((each.where, each.language),), each.begin, {}, None)
            ends = each.name == replaced and replaced in fills
            others.extend(other.unfinished(fills[replaced]) if ends else (other,))
        return tuple(others)

    def unsubscribed(self, name: str) -> "ClientState":
        """Without the profile of this name. The position of a topic goes with its last profile."""
        state = self._without_fill(name)
        profiles = tuple(each for each in state.profiles if each.name != name)
        topics = {each.topic for each in profiles}
        frontier = {topic: origins for topic, origins in state.frontier.items() if topic in topics}
        return replace(state, profiles=profiles, frontier=frontier)

    def _without_fill(self, name: str) -> "ClientState":
        """The fill of this profile ends; later ones no longer rely on what it had not given."""
        at = next((at for at, fill in enumerate(self.fills) if fill.profile.name == name), None)
        if at is None:
            return self
        ended, later = self.fills[at], []
        for fill in self.fills[at + 1 :]:  # only these were made while that profile was in force
            others: list[Other] = []
            for each in fill.others:
                others.extend(each.unfinished(ended) if each.number == ended.profile.number else (each,))
            later.append(replace(fill, others=tuple(others)))
        return replace(self, fills=(*self.fills[:at], *later))

    def with_profiles_of(self, saved: "ClientState") -> "ClientState":
        """This state with the profiles of `saved` at this position: what was subscribed or given up there is repeated
        here, so that each row is still given once. `saved` descends from this state, or from an earlier one."""
        kept = {each.identity for each in self.profiles} & {each.identity for each in saved.profiles}
        new = [each for each in saved.profiles if each.identity not in kept]
        state = self
        continued = {each.topic for each in saved.profiles if each.identity in kept}
        for topic in sorted({each.topic for each in new} - continued):
            here = self.frontier.get(topic, {})
            if all(each.begins(origin) >= here[origin] for each in new if each.topic == topic for origin in here):
                for old in self.profiles:  # the topic was given up, and begins again later
                    state = state.unsubscribed(old.name) if old.topic == topic else state
        gone = [each.name for each in state.profiles if each.identity not in kept]
        for name in gone:  # they stay in force until the new ones are there, which leave to them what they gave
            state = state._renamed(name, name + _GONE)
        for each in sorted(new, key=lambda profile: profile.number):
            here = saved.frontier.get(each.topic, {}) if each.standing else each.begin
            state = replace(state, last_number=max(state.last_number, each.number - 1)).subscribed(each, here)
        for name in gone:
            state = state.unsubscribed(name + _GONE)
        return state

    def _renamed(self, name: str, to: str) -> "ClientState":
        def renamed(profile: ClientProfile) -> ClientProfile:
            return replace(profile, name=to) if profile.name == name else profile

        fills = tuple(replace(fill, profile=renamed(fill.profile)) for fill in self.fills)
        return replace(self, profiles=tuple(map(renamed, self.profiles)), fills=fills)

    # ---- positions

    def passed(self, topic: str, origin: str, until: int) -> "ClientState":
        """The main line of a stream was given up to `until`."""
        if until <= self.position(topic, origin):
            return self
        origins = {**self.frontier.get(topic, {}), origin: until}
        return replace(self, frontier={**self.frontier, topic: origins})

    def shortened(self, at: int, origin: str, until: int) -> "ClientState":
        """This state with nothing left of the fill below `until` in this stream."""
        fill = self.fills[at]
        first, end = fill.ranges[origin]
        ranges = {**fill.ranges, origin: (max(first, until), end)}
        if ranges[origin][0] >= end:
            del ranges[origin]
        left = (replace(fill, ranges=ranges),) if ranges else ()
        return replace(self, fills=(*self.fills[:at], *left, *self.fills[at + 1 :]))

    def lacking(self, lows: Mapping[str, Mapping[str, int]]) -> Frontier:
        """The streams in which these lows are past what is still to be given, with the lows."""
        lacking: Frontier = {}
        for topic in self.topics:
            for origin, low in lows.get(topic, {}).items():
                if self.needs(topic, origin) < low:
                    lacking.setdefault(topic, {})[origin] = low
        return lacking

    def needs(self, topic: str, origin: str) -> int:
        """The first sequence of a stream that the client may still be given. What stands in a table need not be
        retained for it: a row that goes is replaced by one that comes."""
        first = self.position(topic, origin)
        for fill in self.fills:
            if fill.profile.topic == topic and origin in fill.ranges and fill.standing is None:
                first = min(first, fill.ranges[origin][0])
        return first


def floor_of(states: Iterable[ClientState]) -> Frontier:
    """Return the floor of retention for all of these: the lowest position that any of them needs, for each stream that
    one of them names. The other streams of these topics are retained whole. Holds one state at a time."""
    floor: Frontier = {}
    followers: dict[str, int] = {}
    named: dict[tuple[str, str], int] = {}
    for state in states:
        for topic in state.topics:
            followers[topic] = followers.get(topic, 0) + 1
            least = floor.setdefault(topic, {})
            for origin in state.frontier.get(topic, {}):
                needs = state.needs(topic, origin)
                least[origin] = min(needs, least.get(origin, needs))
                named[topic, origin] = named.get((topic, origin), 0) + 1
    for (topic, origin), count in named.items():
        if count < followers[topic]:  # to somebody the stream is new
            floor[topic][origin] = 1
    return floor


def _is_in(ranges: Ranges, origin: str, sequence: int) -> bool:
    first, until = ranges.get(origin, (0, 0))
    return first <= sequence < until


# ---- as JSON


def json_of(state: ClientState) -> dict[str, Any]:
    return {
        "profiles": [_profile_json(each) for each in state.profiles],
        "frontier": state.frontier,
        "last_number": state.last_number,
        "fills": [
            {
                "profile": _profile_json(fill.profile),
                "ranges": ranges_json(fill.ranges),
                "others": [
                    {
                        "number": other.number,
                        "conditions": [list(each) for each in other.conditions],
                        "begin": other.begin,
                        "hole": ranges_json(other.hole),
                        "within": None if other.within is None else ranges_json(other.within),
                    }
                    for other in fill.others
                ],
                **({} if fill.standing is None else {"standing": fill.standing}),
            }
            for fill in state.fills
        ],
    }


def _profile_json(profile: ClientProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "topic": profile.topic,
        "where": profile.where,
        "language": profile.language,
        "begin": profile.begin,
        "number": profile.number,
        **({"standing": True} if profile.standing else {}),
    }


def ranges_json(ranges: Ranges) -> dict[str, list[int]]:
    return {origin: list(range_) for origin, range_ in ranges.items()}


def state_of(written: object) -> ClientState:
    """The state that this JSON means; `LocalProtocolError` says what is wrong with it."""
    fields = _fields(written, "the state of a client", ("profiles", "frontier", "fills", "last_number"))
    profiles = tuple(_profile(each) for each in _list(fields["profiles"], "profiles", PROFILES_MAX))
    if len({profile.name for profile in profiles}) < len(profiles):
        raise LocalProtocolError("two profiles of a client have one name: rename or remove one")
    frontier = {
        _text(topic, "a topic"): _sequences(origins, "frontier") for topic, origins in _dict(fields["frontier"]).items()
    }
    fills = tuple(_fill(each) for each in _list(fields["fills"], "fills", FILLS_MAX))
    return ClientState(profiles, frontier, fills, _number(fields["last_number"]))


def _profile(written: object) -> ClientProfile:
    names = ("name", "topic", "where", "language", "begin", "number")
    fields = _fields(written, "a profile", names, ("standing",))
    where, language = _condition([fields["where"], fields["language"]])
    return ClientProfile(
        name=_text(fields["name"], "name"),
        topic=_text(fields["topic"], "topic"),
        where=where,
        language=language,
        begin=_sequences(fields["begin"], "begin"),
        number=_number(fields["number"]),
        standing=fields.get("standing") is True,
    )


def _condition(written: object) -> tuple[str | None, str | None]:
    if not isinstance(written, list) or len(written) != 2 or not all(isinstance(each, str | None) for each in written):
        raise LocalProtocolError(f"where and language of a profile must be text or null, not {written!r:.100}")
    where, language = written
    return where, language


def _fill(written: object) -> Backfill:
    fields = _fields(written, "a fill", ("profile", "ranges", "others"), ("standing",))
    others = tuple(_other(each) for each in _list(fields["others"], "others", OTHERS_MAX))
    standing = fields.get("standing")
    return Backfill(
        profile=_profile(fields["profile"]),
        ranges=_ranges(fields["ranges"]),
        others=others,
        standing=None if standing is None else _sequences(standing, "standing"),
    )


def _other(written: object) -> Other:
    fields = _fields(written, "what a fill leaves out", ("number", "conditions", "begin", "hole", "within"))
    conditions = tuple(_condition(each) for each in _list(fields["conditions"], "conditions", CONDITIONS_MAX))
    within = fields["within"]
    return Other(
        number=_number(fields["number"]),
        conditions=conditions,
        begin=_sequences(fields["begin"], "begin"),
        hole=_ranges(fields["hole"]),
        within=None if within is None else _ranges(within),
    )


def _fields(written: object, what: str, names: Iterable[str], may_have: Iterable[str] = ()) -> dict[str, Any]:
    fields = _dict(written)
    if sorted(fields.keys() - set(may_have)) != sorted(names):
        raise LocalProtocolError(f"{what} must have {', '.join(names)}, not {', '.join(map(str, fields)) or 'nothing'}")
    return fields


def _dict(written: object) -> dict[str, Any]:
    if not isinstance(written, dict):
        raise LocalProtocolError(f"the state of a client has {str(written)[:100]!r} where an object must be")
    return written


def _list(written: object, what: str, limit: int) -> list[Any]:
    if not isinstance(written, list) or len(written) > limit:
        raise LocalProtocolError(f"{what} of a client must be a list of at most {limit}")
    return written


def _text(written: object, what: str) -> str:
    if not isinstance(written, str) or not written.isprintable() or not 1 <= len(written.encode()) <= NAME_BYTES_MAX:
        raise LocalProtocolError(f"{what} must be printable text of 1 to {NAME_BYTES_MAX} bytes, not {written!r:.100}")
    return written


def _sequence(written: object) -> int:
    if not isinstance(written, int) or isinstance(written, bool) or not 1 <= written <= SEQUENCE_MAX:
        raise LocalProtocolError(f"a sequence must be a whole number from 1 on, not {written!r:.100}")
    return written


def _number(written: object) -> int:
    if not isinstance(written, int) or isinstance(written, bool) or not 0 <= written <= SEQUENCE_MAX:
        raise LocalProtocolError(f"the number of a profile must be a whole number, not {written!r:.100}")
    return written


def _sequences(written: object, what: str) -> Sequences:
    return {_origin(origin, what): _sequence(each) for origin, each in _dict(written).items()}


def _ranges(written: object) -> Ranges:
    ranges: Ranges = {}
    for origin, pair in _dict(written).items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise LocalProtocolError(f"a range must be [first, next], not {pair!r:.100}")
        ranges[_origin(origin, "a range")] = _sequence(pair[0]), _sequence(pair[1])
    return ranges


def _origin(written: str, what: str) -> str:
    if len(written) != 32 or written.strip("0123456789abcdef"):
        raise LocalProtocolError(f"{what}: an origin must be 32 hex digits, not {written!r:.100}")
    return written
