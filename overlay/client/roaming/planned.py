"""Notifications in planned ranges, for readers that keep the position themselves, such as a Spark query.

A `ClientPosition` is a value: profiles, fills and position of a client, as JSON wherever its owner stores it. It tells
what comes next (`ahead`), where a reader is afterwards (`after`), and what lies between two positions (`between`): the
same rows whenever it is read again. Rows are read in any number of calls, at any node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from m4cast.overlay.client.ranges import RangeReader
from m4cast.overlay.client.roaming.wanted import ProfileRows
from m4cast.overlay.client.tail import Frontier
from m4cast.overlay.protocol.clients.memory import ClientMemory
from m4cast.overlay.protocol.clients.packed_state import state_from
from m4cast.overlay.protocol.clients.state import MAIL, ClientState, json_of

if TYPE_CHECKING:
    from m4cast.overlay.client.channel import Channel


@dataclass(frozen=True, slots=True)
class WantedRange:
    """Rows of some streams that a client wants: from `start` on, below `end`."""

    start: Frontier
    end: Frontier
    wanted: Mapping[str, ProfileRows]
    """The wanted rows, by topic."""


NOTHING = WantedRange({}, {}, {})


@dataclass(frozen=True, slots=True)
class ClientPosition:
    state: ClientState
    session: int
    """The last that was known: the client's connection will have this one, or a later."""

    @staticmethod
    def of(written: Mapping[str, Any]) -> "ClientPosition":
        """Read a state from JSON, as `json` writes it and an access point returns it; `LocalProtocolError` if it is not
        one."""
        return ClientPosition(state_from(written["state"]), int(written["session"]))

    def json(self) -> dict[str, Any]:
        return {"session": self.session, "state": json_of(self.state)}

    @property
    def topics(self) -> tuple[str, ...]:
        """Those of its profiles, without its mail."""
        return tuple(topic for topic in self.state.topics if topic != MAIL)

    @property
    def frontier(self) -> Frontier:
        return self.state.frontier

    def conditions(self, topic: str) -> list[tuple[str | None, str | None]]:
        """Each with its language."""
        return [(each.where, each.language) for each in self.state.profiles if each.topic == topic]

    def with_profiles_of(self, saved: "ClientPosition") -> "ClientPosition":
        """This position with the profiles that are saved, as if they had been changed here."""
        session = max(self.session, saved.session)
        return ClientPosition(self.state.with_profiles_of(saved.state), session)

    def has_profiles_of(self, other: "ClientPosition") -> bool:
        return {each.identity for each in self.state.profiles} == {each.identity for each in other.state.profiles}

    # ---- ranges

    def ahead(self, latest: Frontier) -> WantedRange:
        """Return the range that comes next: the first fill, or else the rows up to `latest`."""
        read = ClientMemory(self.state).next_read()
        if read is None:
            return NOTHING
        if read.fill is not None:
            assert read.end is not None
            topic = read.fill.profile.topic
            return WantedRange(read.start, read.end, {topic: ProfileRows.of_fill(read.fill)})
        end = {topic: dict(latest[topic]) for topic in read.topics if topic in latest}
        return WantedRange(read.start, end, self._wanted())

    def after(self, given: WantedRange) -> "ClientPosition":
        """Return the position after these rows have been given; `given` is what is ahead, or a first part of it."""
        memory = ClientMemory(self.state)
        read = memory.next_read()
        assert read is not None, "there are profiles: something was given"
        for topic, origins in given.end.items():
            for origin, until in origins.items():
                memory.hand(read, topic, origin, until)
        return ClientPosition(memory.ahead, self.session)

    def between(self, later: "ClientPosition") -> WantedRange:
        """Return the rows that were given on the way to a later position; none if it has other profiles."""
        if not self.has_profiles_of(later):
            return NOTHING
        read = ClientMemory(self.state).next_read()
        if read is None or read.fill is None:
            end = {topic: later.frontier.get(topic, {}) for topic in self.topics}
            return WantedRange(self.frontier, end, self._wanted())
        fill = read.fill
        topic, number = fill.profile.topic, fill.profile.number
        left = next((each.ranges for each in later.state.fills if each.profile.number == number), {})
        ends = {origin: left[origin][0] if origin in left else until for origin, (_, until) in fill.ranges.items()}
        starts = {origin: first for origin, (first, _) in fill.ranges.items()}
        return WantedRange({topic: starts}, {topic: ends}, {topic: ProfileRows.of_fill(fill)})

    def _wanted(self) -> dict[str, ProfileRows]:
        profiles = self.state.profiles
        return {topic: ProfileRows.of(each for each in profiles if each.topic == topic) for topic in self.topics}


def read_wanted(
    channel: "Channel", topic: str, start: Frontier, end: Frontier, wanted: ProfileRows, *, skips: bool = False
) -> RangeReader:
    """The rows of a range that are wanted, from whichever node has them; `skips`: pass over what none retains."""
    if skips and wanted.retained is not None:
        wanted = replace(wanted, retained=None)
    on_missing: Literal["fail", "skip"] = "skip" if skips else "fail"
    return RangeReader(channel, topic, start, end, on_missing, row_filter=wanted)
