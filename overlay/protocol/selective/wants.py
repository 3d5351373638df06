"""Wants: this node's registrations with their joins, and where each begins in each stream (rules R3 and R7).

A registration's *join* is the version of this node's entry with which it joined; one that a wider registration of the
node covers takes the join of that one. Joins, begins and the registrations themselves are one transaction. What is not
durable yet is planned: later plans build on it, and all plans fall back when an append fails.
"""

from collections.abc import Iterable
from dataclasses import dataclass

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
        self.durable = dict(recovered.wants)
        self._begins = dict(recovered.begins)
        self.planned = dict(recovered.wants)
        """Including what is not durable yet."""
        self._planned_begins = dict(recovered.begins)
        self._plans: list[_Planned] = []
        self._of_topic = _by_topic(self.durable.values())

    # ---- questions

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

    def joins(self, stream_id: StreamId) -> list[int]:
        return [stored.join for stored in self.planned.values() if _is_for(stored.want, stream_id)]

    def keeps(self) -> list[NodeId]:
        return [stored.want.keeps for stored in self.durable.values() if stored.want.keeps is not None]

    def lacks_begin(self, stream_id: StreamId) -> list[StoredWant]:
        return [
            stored
            for stored in self.of(stream_id)
            if self.begin(stored, stream_id) is None and BeginKey(stored.want.id, stream_id) not in self._planned_begins
        ]

    # ---- changing

    def plan(
        self,
        token: int,
        version: int,
        added: Iterable[Want],
        removed: Iterable[str],
        ends: dict[StreamId, int],
    ) -> tuple[SelectiveWrite, ...]:
        """A new version of this node's entry: what has to be written with it. `ends`: how far each stream is known
        here. One that replaces another of the same id is a new one."""
        writes: list[SelectiveWrite] = []
        added = list(added)
        for each in dict.fromkeys((*removed, *(want.id for want in added))):
            if self.planned.pop(each, None) is not None:
                writes.append(WantRecord(each, None))
                for key in [key for key in self._planned_begins if key.want == each]:
                    del self._planned_begins[key]
                    writes.append(BeginRecord(key, None))
        before = list(self.planned.values())
        for want in added:
            stored = StoredWant(want, self._join(want, before, version))
            self.planned[want.id] = stored
            writes.append(WantRecord(want.id, stored))
            for stream_id, end in ends.items():
                if _is_for(want, stream_id) and not want.earliest and self._follows(before, stream_id):
                    key = BeginKey(want.id, stream_id)
                    self._planned_begins[key] = end
                    writes.append(BeginRecord(key, end))
        self._plans.append(_Planned(token, version, dict(self.planned), dict(self._planned_begins)))
        return tuple(writes)

    def plan_begins(self, token: int, begins: dict[BeginKey, int]) -> tuple[SelectiveWrite, ...]:
        known = {key: begin for key, begin in begins.items() if key.want in self.planned}
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
        self._of_topic = _by_topic(self.durable.values())
        return True

    def failed(self, token: int) -> None:
        self._plans = [plan for plan in self._plans if plan.token < token]
        last = self._plans[-1] if self._plans else None
        self.planned = dict(last.wants if last else self.durable)
        self._planned_begins = dict(last.begins if last else self._begins)

    def _join(self, want: Want, before: list[StoredWant], version: int) -> int:
        joins = [
            stored.join
            for stored in before
            if (stored.want.topic, stored.want.keeps) == (want.topic, want.keeps)
            and covers_profile(stored.want, want.profile)
        ]
        return min(joins, default=version)

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


def _is_for(want: Want, stream_id: StreamId) -> bool:
    return want.keeps == stream_id.origin if want.keeps is not None else want.topic == stream_id.topic


def _begin(want: Want, stream_id: StreamId, begins: dict[BeginKey, int]) -> int | None:
    return 1 if want.earliest else begins.get(BeginKey(want.id, stream_id))
