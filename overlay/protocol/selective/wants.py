"""Wants: this node's registrations with their joins, and where each begins in each stream (rules R3 and R7).

A registration's *join* is the version of this node's entry with which it joined; one that a wider registration of the
node covers takes the join of that one. Joins, begins and the registrations themselves are one transaction. What is not
durable yet is planned: later plans build on it, and all plans fall back when an append fails.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles.boxes import covers
from m4cast.overlay.profiles.condition import ALWAYS, Condition
from m4cast.overlay.protocol.effects import BeginKey, BeginRecord, StoredWant, Want, WantRecord
from m4cast.overlay.protocol.selective.contract import SelectiveRecovered, SelectiveWrite, keep_id
from m4cast.overlay.protocol.selective.demand import condition_of, is_known
from m4cast.overlay.protocol.wire.selective import ProfileText


@dataclass(slots=True)
class _Planned:
    token: int
    version: int
    wants: dict[str, StoredWant]
    begins: dict[BeginKey, int]


class BegunWants(NamedTuple):
    """Registrations that begin at the same position of a stream, and joined with the same version: what is here of the
    stream is the same for all of them."""

    begin: int | None
    join: int
    wants: tuple[StoredWant, ...]


def want_condition(want: Want) -> Condition:
    return ALWAYS if want.profile is None else condition_of(want.profile)


def covers_profile(want: Want, asked: ProfileText | None) -> bool:
    """True if every row that is requested is wanted."""
    if want.profile is None:
        return True
    if asked is None or not is_known(want.profile) or not is_known(asked):
        return asked == want.profile
    return covers(condition_of(want.profile), condition_of(asked))


class Wants:
    def __init__(self, recovered: SelectiveRecovered) -> None:
        self.version = recovered.version
        """The version of this node's entry on disk: the latest that others can know."""
        self._stored_version = recovered.version
        self._first_version: int | None = None
        """The first version of this life that is on disk."""
        self.durable = dict(recovered.wants)
        self._begins = dict(recovered.begins)
        self.planned = dict(recovered.wants)
        """Including what is not durable yet."""
        self._planned_begins = dict(recovered.begins)
        self._plans: list[_Planned] = []
        self._of_topic = _by_topic(self.durable.values())
        self._alike = _alike(self.planned)
        """The planned ones that want the same: many clients of a node do."""
        self._begun: dict[StreamId, tuple[BegunWants, ...]] = {}
        """Found since the durable ones changed."""
        self._joins: dict[StreamId, frozenset[int]] = {}
        """Found since the planned ones changed."""

    # ---- questions

    def has_announced(self, version: int) -> bool:
        """True if the version may be one of this store's. Between the latest that was stored at the start and the first
        of this life lie those of a life that an older copy of the store knows nothing of."""
        is_of_this_life = self._first_version is not None and self._first_version <= version <= self.version
        return 0 < version <= self._stored_version or is_of_this_life

    def of(self, stream_id: StreamId) -> list[StoredWant]:
        """The registrations that want rows of this stream."""
        kept = self.durable.get(keep_id(stream_id.origin))
        wanted = self._of_topic.get(stream_id.topic, [])
        return wanted if kept is None else [*wanted, kept]

    def of_topic(self, topic: str) -> list[StoredWant]:
        """The registrations on a topic."""
        return self._of_topic.get(topic, [])

    def begin(self, stored: StoredWant, stream_id: StreamId) -> int | None:
        """Return the position at which the registration begins; None if it is not known yet."""
        return _begin(stored.want, stream_id, self._begins)

    def join(self, stored: StoredWant, stream_id: StreamId) -> int:
        """The version from which on statements about this stream count for the registration. To a keeper of the stream
        everything is sent, whatever else it wants: there a registration counts from when the keeping joined."""
        kept = self.durable.get(keep_id(stream_id.origin))
        return stored.join if kept is None else min(kept.join, stored.join)

    def begun(self, stream_id: StreamId) -> tuple[BegunWants, ...]:
        """The registrations that want rows of this stream, those together for which the same is here."""
        known = self._begun.get(stream_id)
        if known is None:
            found: dict[tuple[int | None, int], list[StoredWant]] = {}
            for stored in self.of(stream_id):
                found.setdefault((self.begin(stored, stream_id), self.join(stored, stream_id)), []).append(stored)
            known = self._begun[stream_id] = tuple(BegunWants(*key, tuple(wants)) for key, wants in found.items())
        return known

    def joins(self, stream_id: StreamId) -> frozenset[int]:
        known = self._joins.get(stream_id)
        if known is None:
            known = frozenset(stored.join for stored in self.planned.values() if _is_for(stored.want, stream_id))
            self._joins[stream_id] = known
        return known

    def keeps(self) -> list[NodeId]:
        return [stored.want.keeps for stored in self.durable.values() if stored.want.keeps is not None]

    def lacks_begin(self, stream_id: StreamId) -> list[StoredWant]:
        return [
            stored
            for begun in self.begun(stream_id)
            if begun.begin is None
            for stored in begun.wants
            if BeginKey(stored.want.id, stream_id) not in self._planned_begins
        ]

    def beyond(self, stream_id: StreamId, position: int, version: int) -> dict[BeginKey, int]:
        """The registrations of this version that begin later than this position, although their origin sends them what
        it publishes from there on: a position may lie beyond the end of the stream. They begin there."""
        return {
            BeginKey(stored.want.id, stream_id): position
            for begun in self.begun(stream_id)
            if begun.begin is not None and begun.begin > position and begun.join <= version
            for stored in begun.wants
            if stored.want.positions is not None
        }

    # ---- changing

    def plan(
        self,
        token: int,
        version: int,
        added: Iterable[Want],
        removed: Iterable[str],
        ends: dict[StreamId, int],
        heard: dict[StreamId, int],
    ) -> tuple[SelectiveWrite, ...]:
        """A new version of this node's entry: what has to be written with it. `ends`: how far marks of each stream
        reach here; `heard`: how far it is known to reach. One that replaces another of the same id is a new one."""
        writes: list[SelectiveWrite] = []
        added = list(added)
        self._joins.clear()
        for each in dict.fromkeys((*removed, *(want.id for want in added))):
            gone = self.planned.pop(each, None)
            if gone is not None:
                self._unlike(gone.want)
                writes.append(WantRecord(each, None))
                for key in [key for key in self._planned_begins if key.want == each]:
                    del self._planned_begins[key]
                    writes.append(BeginRecord(key, None))
        before = list(self.planned.values())
        for want in added:
            stored = StoredWant(want, self._join(want, version))
            self.planned[want.id] = stored
            self._alike.setdefault(_kind(want), {}).setdefault(want.profile, {})[want.id] = None
            writes.append(WantRecord(want.id, stored))
            for stream_id, end in ends.items():
                if _is_for(want, stream_id) and _begins_now(want) and self._follows(before, stream_id):
                    writes.append(self._begin_at(want, stream_id, end))
            named = want.positions or {}
            for stream_id, end in heard.items() if named else ():
                if _is_for(want, stream_id) and named.get(stream_id.origin, 1) > end:
                    writes.append(self._begin_at(want, stream_id, end))
        self._plans.append(_Planned(token, version, dict(self.planned), dict(self._planned_begins)))
        return tuple(writes)

    def _begin_at(self, want: Want, stream_id: StreamId, position: int) -> BeginRecord:
        key = BeginKey(want.id, stream_id)
        self._planned_begins[key] = position
        return BeginRecord(key, position)

    def plan_begins(self, token: int, begins: dict[BeginKey, int]) -> tuple[SelectiveWrite, ...]:
        # One that replaces another of its id is on its way to the disk, and begins elsewhere.
        planned, durable = self.planned, self.durable
        known = {
            key: at for key, at in begins.items() if key.want in planned and planned[key.want] == durable.get(key.want)
        }
        self._planned_begins.update(known)
        version = self._plans[-1].version if self._plans else self.version
        self._plans.append(_Planned(token, version, dict(self.planned), dict(self._planned_begins)))
        return tuple(BeginRecord(key, begin) for key, begin in known.items())

    def persisted(self, token: int) -> bool:
        """The append with this token is on the disk; whether that changed anything here."""
        done = [plan for plan in self._plans if plan.token <= token]
        if not done:
            return False
        self._plans = self._plans[len(done) :]
        self.version, self.durable, self._begins = done[-1].version, done[-1].wants, done[-1].begins
        if self._first_version is None:
            self._first_version = next((plan.version for plan in done if plan.version > self._stored_version), None)
        self._of_topic = _by_topic(self.durable.values())
        self._begun.clear()
        return True

    def failed(self, token: int) -> None:
        self._plans = [plan for plan in self._plans if plan.token < token]
        last = self._plans[-1] if self._plans else None
        self.planned = dict(last.wants if last else self.durable)
        self._alike = _alike(self.planned)
        self._joins.clear()
        self._planned_begins = dict(last.begins if last else self._begins)

    def _join(self, want: Want, version: int) -> int:
        alike = self._alike.get(_kind(want), {})
        if want.profile in alike:
            return self.planned[next(iter(alike[want.profile]))].join
        firsts = [self.planned[next(iter(ids))] for ids in alike.values()]
        joins = [stored.join for stored in firsts if covers_profile(stored.want, want.profile)]
        return min(joins, default=version)

    def _unlike(self, gone: Want) -> None:
        alike = self._alike[_kind(gone)]
        del alike[gone.profile][gone.id]
        if not alike[gone.profile]:
            del alike[gone.profile]

    def _follows(self, before: list[StoredWant], stream_id: StreamId) -> bool:
        return any(
            _is_for(stored.want, stream_id)
            and stored.want.keeps is None
            and _begin(stored.want, stream_id, self._planned_begins) is not None
            for stored in before
        )


def _by_topic(stored: Iterable[StoredWant]) -> dict[str, list[StoredWant]]:
    found: dict[str, list[StoredWant]] = {}
    for each in stored:
        if each.want.keeps is None:
            found.setdefault(each.want.topic, []).append(each)
    return found


def _kind(want: Want) -> tuple[str, NodeId | None]:
    return want.topic, want.keeps


def _alike(
    wants: dict[str, StoredWant],
) -> dict[tuple[str, NodeId | None], dict[ProfileText | None, dict[str, None]]]:
    found: dict[tuple[str, NodeId | None], dict[ProfileText | None, dict[str, None]]] = {}
    for each, stored in wants.items():
        found.setdefault(_kind(stored.want), {}).setdefault(stored.want.profile, {})[each] = None
    return found


def _is_for(want: Want, stream_id: StreamId) -> bool:
    return want.keeps == stream_id.origin if want.keeps is not None else want.topic == stream_id.topic


def _begins_now(want: Want) -> bool:
    """True if it begins with the rows that are published from now on."""
    return not want.earliest and want.from_ms is None and want.positions is None


def _begin(want: Want, stream_id: StreamId, begins: dict[BeginKey, int]) -> int | None:
    found = begins.get(BeginKey(want.id, stream_id))
    if want.positions is not None and found is None:  # else it named one beyond the end
        return want.positions.get(stream_id.origin, 1)
    return 1 if want.earliest else found
