"""Registrations in a simulated channel: clients that come and go, and the checkers of guarantee 9.

Every version of a node's interest entry that ever was on its disk is remembered, with how often each item had been
registered by then. A change that a node reports about another must be exactly the difference between two of these
versions: nothing before it is durable, no hidden leave missed and none invented.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import NodeId, short_id
from m4cast.overlay.profiles.boxes import covers
from m4cast.overlay.profiles.condition import Condition
from m4cast.overlay.profiles.profile import EVERYTHING, Profile, parse
from m4cast.overlay.protocol.effects import (
    Append,
    InterestChanged,
    InterestState,
    InterestStateRecord,
    Output,
    Refused,
    Registration,
    RegistrationRecord,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Wish,
)
from m4cast.overlay.protocol.interest.entry import key_of
from m4cast.overlay.protocol.wire.interest import InterestKey
from m4cast.overlay.sim.checkers import Violation
from m4cast.overlay.sim.disk import Content, Disk
from m4cast.overlay.sim.places import Observer, Place
from m4cast.overlay.sim.world import World

FIRST_REQUEST = 1 << 40
"""Requests of publishers have smaller numbers."""
NAMES_PER_PLACE = 6
TOPICS = ("t0", "t1", "t2")
PROFILES: tuple[Profile | None, ...] = (
    None,
    parse("country = 'PL'"),
    parse("country = 'PL' AND amount > 10"),
    parse("country = 'DE'"),
    parse("amount > 5"),
)
"""Some of these cover others."""

Rows = dict[str, Registration]


class EntryNumber(NamedTuple):
    """A version of an entry, as the node that made it numbers it."""

    incarnation: int
    ts: int


def rows_of(content: Content) -> Rows:
    return content.records.get(RegistrationRecord, {})


def state_of(content: Content) -> InterestState | None:
    """The state of the entry. One that was written under a former id has an incarnation of that one."""
    state: InterestState | None = content.records.get(InterestStateRecord, {}).get("")
    if state is None or state.incarnation <= content.incarnation:
        return state
    return replace(state, incarnation=content.incarnation)


def _begin_of(row: Registration) -> tuple[object, ...]:
    return row.earliest, row.from_ms, row.positions


def row_key(row: Registration) -> InterestKey:
    topic = xxh3_64_intdigest(row.topic.encode())
    return InterestKey(topic, xxh3_64_intdigest(row.canonical.encode()) if row.canonical else 0)


@dataclass
class InterestLoad(Observer):
    """Clients that register and unregister at random places. What is answered is on the disk."""

    outputs = (Subscribed, Refused)
    world: World
    random: Random
    answered: int = 0
    _request: int = FIRST_REQUEST
    _asked: dict[int, tuple[str, int, str, bool]] = field(default_factory=dict)
    """Request -> address, life of the node there, id, whether it is wanted."""

    def act(self) -> None:
        """One client at a place that is up registers something, or gives it up; sometimes both at once."""
        up = [place for place in self.world.up() if not place.paused]
        if not up:
            return
        place = self.random.choice(up)
        name = f"r{self.random.randrange(NAMES_PER_PLACE)}"
        if self.random.random() < 0.35:
            self._ask(place, name, wanted=False)
            if self.random.random() < 0.5:
                return
        self._ask(place, name, wanted=True)

    def _ask(self, place: Place, name: str, *, wanted: bool) -> None:
        self._request += 1
        self._asked[self._request] = (place.address, place.started, name, wanted)
        if wanted:
            wish = Wish(name, self.random.choice(TOPICS), self.random.choice(PROFILES))
            self.world.feed(place, Subscribe(self._request, (wish,)))
        else:
            self.world.feed(place, Unsubscribe(self._request, (name,)))

    def output(self, place: Place, output: Output) -> None:
        if isinstance(output, Subscribed) and output.request in self._asked:
            self.answered += 1
            _, started, name, wanted = self._asked[output.request]
            later = [
                request
                for request, asked in self._asked.items()
                if request > output.request and asked[:3] == (place.address, started, name)
            ]
            if not later and (name in rows_of(place.disk.content)) is not wanted:
                raise Violation("interest", f"{place.name} answered {name} {wanted=} before it is on its disk")


@dataclass
class InterestSafety(Observer):
    """Guarantee 9, always: a change that is reported is the difference between two versions that were durable."""

    outputs = (InterestChanged,)
    versions: dict[NodeId, dict[EntryNumber, dict[InterestKey, int]]] = field(default_factory=dict)
    """Node -> version -> announced key -> how often it had been registered."""
    lives: dict[tuple[NodeId, InterestKey], int] = field(default_factory=dict)
    rows: dict[NodeId, Rows] = field(default_factory=dict)
    """Registrations as they are on the disk of each node."""
    disks: dict[NodeId, Disk] = field(default_factory=dict)
    restored: dict[NodeId, None] = field(default_factory=dict)
    """Nodes that ran on a copy of their store: their versions may not be unique."""
    seen: dict[tuple[str, int, NodeId], EntryNumber] = field(default_factory=dict)
    """(address, life of the node there, whose entry) -> version that it reported last."""

    def started(self, place: Place) -> None:
        content = place.disk.content
        node_id = content.node_id
        if self.disks.setdefault(node_id, place.disk) is not place.disk:
            self.restored[node_id] = None
        self.disks[node_id] = place.disk
        self.rows[node_id] = {}
        for each, row in rows_of(content).items():
            self._set(node_id, each, row, is_new=False)
        state = state_of(content)
        self._remember(node_id, state)
        if state is not None and state.ts:  # its own entry is in its view from the start
            self.seen[place.address, place.started, node_id] = EntryNumber(state.incarnation, state.ts)

    def synced(self, place: Place, append: Append) -> None:
        node_id = place.disk.content.node_id
        for record in append.of(RegistrationRecord):
            self._set(node_id, record.key, record.content)
        for state in append.of(InterestStateRecord):
            self._remember(node_id, state.content)

    def _set(self, node_id: NodeId, each: str, row: Registration | None, *, is_new: bool = True) -> None:
        rows = self.rows.setdefault(node_id, {})
        before = rows.pop(each, None)
        if row is None:
            return
        key = row_key(row)
        held = [*rows.values(), *([before] if before is not None and _begin_of(before) == _begin_of(row) else [])]
        is_held = any(row_key(other) == key for other in held)
        if not is_held and (is_new or (node_id, key) not in self.lives):
            self.lives[node_id, key] = self.lives.get((node_id, key), 0) + 1
        rows[each] = row

    def _remember(self, node_id: NodeId, state: InterestState | None) -> None:
        if state is None:
            return
        announced = [row_key(row) for row in self.rows[node_id].values() if not row.under]
        number = EntryNumber(state.incarnation, state.ts)
        lives = {key: self.lives[node_id, key] for key in announced}
        self.versions.setdefault(node_id, {}).setdefault(number, lives)

    def output(self, place: Place, output: Output) -> None:
        assert isinstance(output, InterestChanged)
        whose = (place.address, place.started, output.node_id)
        number = EntryNumber(output.incarnation, output.ts)
        if number not in self.versions.get(output.node_id, {}):
            raise self._wrong(place, output, "was never on its disk")
        before = self.seen.pop(whose, None)
        if not output.present:
            return
        self.seen[whose] = number
        if before is not None and number <= before:
            raise self._wrong(place, output, f"comes after {before}")
        if output.node_id in self.restored:
            return
        then = self.versions[output.node_id][before] if before is not None else {}
        now = self.versions[output.node_id][number]
        expected = (
            sorted(key for key in now if key not in then),
            sorted(key for key in then if key not in now),
            sorted(key for key in now if key in then and now[key] != then[key]),
        )
        reported = (
            sorted(key_of(item) for item in output.joined),
            sorted(output.left),
            sorted(key_of(item) for item in output.rejoined),
        )
        for what, wanted, found in zip(("joined", "left", "rejoined"), expected, reported, strict=True):
            if wanted != found:
                raise self._wrong(place, output, f"has {what} {wanted}, reported are {found}")

    def _wrong(self, place: Place, change: InterestChanged, how: str) -> Violation:
        version = f"{change.incarnation}.{change.ts}"
        return Violation("interest", f"{place.name}: version {version} of {short_id(change.node_id)} {how}")


def unsettled_interest(world: World) -> list[str]:
    """Return where a view differs from what all nodes that are up announce, and where a node announces less than it
    wants."""
    complaints = []
    expected: dict[NodeId, tuple[EntryNumber, list[InterestKey]]] = {}
    for place in world.up():
        content = place.disk.content
        state = state_of(content)
        if state is not None and state.ts:
            announced = sorted({row_key(row) for row in rows_of(content).values() if not row.under})
            expected[content.node_id] = (EntryNumber(state.incarnation, state.ts), announced)
        complaints += [f"{place.name} {missed}" for missed in _not_announced(rows_of(content))]
    for place in world.up():
        assert place.node is not None
        view = {
            entry.node_id: (EntryNumber(*entry.version[:2]), sorted(entry.items))
            for entry in place.node.interest.view.used()
        }
        complaints += [
            f"{place.name} has {view.get(node_id)} of {short_id(node_id)}, which announces {expected.get(node_id)}"
            for node_id in dict.fromkeys([*expected, *view])
            if view.get(node_id) != expected.get(node_id)
        ]
    return complaints


def known_fraction(world: World) -> float:
    """Return, of all pairs of a node that is up and another one that announced something, the fraction in which it
    knows that."""
    announced = {
        place.disk.content.node_id: EntryNumber(state.incarnation, state.ts)
        for place in world.up()
        if (state := state_of(place.disk.content)) is not None and state.ts
    }
    known = sum(
        EntryNumber(*entry.version[:2]) == announced.get(entry.node_id)
        for place in world.up()
        if place.node is not None
        for entry in place.node.interest.view.used()
    )
    return known / (len(announced) * len(world.up())) if announced else 1.0


def _not_announced(rows: Rows) -> list[str]:
    announced = [row for row in rows.values() if not row.under]
    return [
        f"wants {row.topic} {row.text!r}, which nothing announced covers"
        for row in rows.values()
        if not any(each.topic == row.topic and covers(_condition(each), _condition(row)) for each in announced)
    ]


def _condition(row: Registration) -> Condition:
    return _parsed(row.text).condition if row.text else EVERYTHING.condition


@lru_cache(maxsize=1_024)
def _parsed(text: str) -> Profile:
    return parse(text)
