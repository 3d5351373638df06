"""The client's half: what a library remembers between calls, and what it reads next.

There are two states. `state` is what the application has acknowledged: it is saved at the access point, and a process
that has lost everything else continues from there. `ahead` is what was handed to the application: this process
continues from it, at whichever node, so that nothing is handed out twice. Neither moves when rows merely arrive.

    read = memory.next_read()              # the first fill, else the main line
    ... rows of the stream (topic, origin), whole up to `until`, are handed to the application
    memory.hand(read, topic, origin, until)
    memory.acknowledge()                   # the application is done with what it was handed
    memory.rewind()                        # or it failed, and is handed that again

Reference: PROTOCOL.md, 21.1 and 21.4; H33, H36 of the design.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from m4cast.overlay.protocol.clients.state import MAIL, Backfill, ClientProfile, ClientState, Frontier, Sequences
from m4cast.overlay.value import value


@value
class ClientRead:
    """The next read: the ranges of a fill, or the main line from its position on."""

    fill: Backfill | None
    topics: tuple[str, ...]
    start: Frontier
    end: Frontier | None
    """None: without end."""


DropReason = Literal["not-retained", "given-up"]
"""All nodes answered, and none retains the rows; or the application gave them up while some node did not answer."""


@value
class Dropped:
    """Rows that were still to be given, and are passed over: at most so many matched."""

    topic: str
    origin: str
    first: int
    next: int
    reason: DropReason = "not-retained"

    @property
    def rows_max(self) -> int:
        return self.next - self.first


class ClientMemory:
    def __init__(self, state: ClientState | None = None, session: int = 0) -> None:
        self.state = state or ClientState()
        self.ahead = self.state
        self.session = session

    # ---- profiles

    def subscribe(self, profile: ClientProfile, here: Sequences) -> None:
        """Subscribe to a profile. It acknowledges nothing: each state has it from its own position on."""
        ahead, state = self.ahead.subscribed(profile, here), self.state.subscribed(profile, here)
        self.ahead, self.state = ahead, state

    def latest(self, topic: str, here: Sequences) -> Sequences:
        """The begin of a profile that is new: behind the rows that are at the access point (`here`), and behind the
        client's position, which the access point may not have reached."""
        at = self.ahead.frontier.get(topic, {})
        return {origin: max(here.get(origin, 1), at.get(origin, 1)) for origin in dict.fromkeys((*here, *at))}

    def unsubscribe(self, name: str) -> None:
        """Give a profile up, and what it gave that is not acknowledged: that is not handed out again."""
        self.ahead, self.state = self.ahead.unsubscribed(name), self.state.unsubscribed(name)

    # ---- reading

    def next_read(self, *, mail: bool = False) -> ClientRead | None:
        """The next read of mail, or of everything else; None: there are no profiles."""
        ahead = self.ahead
        fills = [fill for fill in ahead.fills if (fill.profile.topic == MAIL) == mail]
        if fills:
            fill = fills[0]
            topic = fill.profile.topic
            return ClientRead(
                fill=fill,
                topics=(topic,),
                start={topic: {origin: first for origin, (first, _) in fill.ranges.items()}},
                end={topic: {origin: until for origin, (_, until) in fill.ranges.items()}},
            )
        topics = tuple(topic for topic in ahead.topics if (topic == MAIL) == mail)
        start = {topic: ahead.frontier.get(topic, {}) for topic in topics}
        return ClientRead(None, topics, start, None) if topics else None

    def hand(self, read: ClientRead, topic: str, origin: str, until: int) -> None:
        """The application got everything of this read in this stream below `until`."""
        if read.fill is None:
            self.ahead = self.ahead.passed(topic, origin, until)
            return
        number = read.fill.profile.number
        for at, fill in enumerate(self.ahead.fills):
            if fill.profile.number == number and origin in fill.ranges:
                self.ahead = self.ahead.shortened(at, origin, until)
                return

    def acknowledge(self, *, mail: bool = False, unread: Sequences | None = None) -> None:
        """The application is done with the mail that it was handed, or with everything else. `unread`: the first
        message of each stream that was read and not handed to it."""
        before, self.state = self.state, _joined(self.ahead, self.state, mail=mail)
        if unread and MAIL in self.state.frontier:
            origins = dict(self.state.frontier[MAIL])
            for origin, sequence in unread.items():
                origins[origin] = max(before.position(MAIL, origin), min(sequence, origins.get(origin, 1)))
            self.state = replace(self.state, frontier={**self.state.frontier, MAIL: origins})

    def rewind(self) -> None:
        """Go back: rows that the application was handed and has not acknowledged are handed to it again; not mail."""
        self.ahead = _joined(self.state, self.ahead, mail=False)

    def drop(self, lows: Mapping[str, Mapping[str, int]], reason: DropReason = "not-retained") -> list[Dropped]:
        """Move past what lies below these lows; what was dropped."""
        dropped = []
        for topic, origins in self.ahead.lacking(lows).items():
            for origin, low in origins.items():
                dropped.append(Dropped(topic, origin, self.ahead.needs(topic, origin), low, reason))
                while (at := self._fill_below(topic, origin, low)) is not None:
                    self.ahead = self.ahead.shortened(at, origin, low)
                self.ahead = self.ahead.passed(topic, origin, low)
        return dropped

    def _fill_below(self, topic: str, origin: str, low: int) -> int | None:
        for at, fill in enumerate(self.ahead.fills):
            if fill.profile.topic == topic and origin in fill.ranges and fill.ranges[origin][0] < low:
                return at
        return None


def _joined(done: ClientState, kept: ClientState, *, mail: bool) -> ClientState:
    """Mail, or everything else, as far as `done`; the other as far as `kept`. Both have the same profiles."""
    profiles = {each.name: each for each in kept.profiles if (each.topic == MAIL) != mail}
    merged = {topic: (done if (topic == MAIL) == mail else kept).frontier.get(topic, {}) for topic in done.frontier}
    fills = [fill for fill in done.fills if (fill.profile.topic == MAIL) == mail]
    others = [fill for fill in kept.fills if (fill.profile.topic == MAIL) != mail]
    return replace(
        done,
        profiles=tuple(profiles.get(each.name, each) for each in done.profiles),
        frontier=merged,
        fills=(*others, *fills),
    )
