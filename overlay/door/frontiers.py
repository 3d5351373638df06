"""The frontiers of all streams at this node, on which the door's threads can wait for new rows.

They are advanced on the loop, by a driver's watcher, once rows are on disk: whoever reads up to a frontier finds the
rows in the store. A publisher that got its answer finds its rows below it.
"""

import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping

from m4cast.overlay.door.refusals import gone, stopping
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Delivered

LOOK_S = 0.5
"""The interval at which a wait checks whether its client is still connected."""


class Frontiers:
    hides_streams = False
    """True if some readers of the same rows see other streams."""
    has_gaps = False
    """True if what lies between batches is not missing."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._topics: dict[str, dict[NodeId, int]] = {}
        self._late: dict[str, set[NodeId]] = {}
        """Origins in whose streams a registration does not begin with the first row, by the key of the registration."""
        self._everywhere: dict[str, frozenset[NodeId]] = {}
        """Origins whose streams of a selective topic are broadcast: they began before their nodes knew of its
        spread."""
        self.began: Callable[[str], None] = lambda topic: None
        """Called on the loop with the topic of each stream that is new here."""
        self.closed = False
        self.news = 0
        """Rises with every delivery."""

    def watch(self, output: object) -> None:
        """A driver's watcher."""
        if isinstance(output, Delivered):
            self.advance({output.delivery.stream: output.delivery.last_sequence + 1})

    def advance(self, positions: Mapping[StreamId, int]) -> None:
        with self._changed:
            for stream, next_sequence in positions.items():
                origins = self._topics.setdefault(stream.topic, {})
                known = origins.get(stream.origin)
                origins[stream.origin] = max(next_sequence, known or 1)
                if known is None:
                    self.began(stream.topic)
            self.news += 1
            self._changed.notify_all()

    def show_everywhere(self, topic: str, origins: Iterable[NodeId]) -> None:
        """Readers of this selective topic see the streams of these origins up to where they are here, whatever is
        registered."""
        with self._changed:
            self._everywhere[topic] = frozenset(origins)
            self.news += 1
            self._changed.notify_all()

    def cover(self, topic: str, begins: Mapping[str, Mapping[NodeId, int]], ends: Mapping[NodeId, int]) -> None:
        """Registrations of a selective topic are covered up to these ends, by origin; `begins`: where each of them
        begins, by origin. On the loop."""
        with self._changed:
            for registration, begun in begins.items():
                key = covered_key(topic, registration)
                self._topics.setdefault(key, {}).update(ends)
                self._late.setdefault(key, set()).update(origin for origin in begun if begun[origin] > 1)
            self.news += 1
            self._changed.notify_all()

    def is_covered(self, topic: str, registration: str, origin: NodeId) -> bool:
        """True if it is known how far a registration is covered in the stream of this origin."""
        return origin in self._topics.get(covered_key(topic, registration), ())

    def uncover(self, topic: str, registration: str) -> None:
        """The registration was given up."""
        with self._changed:
            key = covered_key(topic, registration)
            self._topics.pop(key, None)
            self._late.pop(key, None)

    def shared(self, topic: str) -> tuple[str, "Frontiers"]:
        """The frontiers of a topic that all readers share which see its rows up to the same positions, and their
        key."""
        return topic, self

    def refuse_ended(self, is_cancelled: Callable[[], bool]) -> None:
        """Refuse a call that goes on although the node stops or its client has disconnected."""
        if self.closed:
            raise stopping()
        if is_cancelled():
            raise gone()

    def close(self) -> None:
        """End every wait."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def topics(self) -> list[str]:
        with self._changed:
            return sorted(topic for topic in self._topics if "\0" not in topic)

    def positions(self, topics: Iterable[str]) -> dict[StreamId, int]:
        """The next sequence of each stream of these topics, sorted by topic and origin: the order of every read."""
        with self._changed:
            return self._positions(topics)

    def _positions(self, topics: Iterable[str]) -> dict[StreamId, int]:
        return {
            StreamId(origin, topic): origins[origin]
            for topic in sorted(topics)
            if (origins := self._topics.get(topic))
            for origin in sorted(origins)
        }

    def wait_for(self, positions: Mapping[StreamId, int], timeout_s: float, is_cancelled: Callable[[], bool]) -> bool:
        """True if all these streams reach these positions in time, and while the client waits."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self.closed and not self._reached(positions) and not is_cancelled():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, LOOK_S))
            return self._reached(positions)

    def _reached(self, positions: Mapping[StreamId, int]) -> bool:
        return all(
            self._topics.get(stream.topic, {}).get(stream.origin, 1) >= next_sequence
            for stream, next_sequence in positions.items()
        )

    def wait_for_news(self, seen: int, deadline: float) -> None:
        """Wait until something past `seen` is delivered, for `LOOK_S`, or until the deadline."""
        with self._changed:
            if not self.closed and self.news == seen:
                self._changed.wait(max(min(LOOK_S, deadline - time.monotonic()), 0))

    def wait_closed(self, timeout_s: float) -> None:
        """Wait for this long, or until it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed, timeout_s)

    def wait_beyond(self, seen: Mapping[StreamId, int], topics: Iterable[str], deadline: float) -> dict[StreamId, int]:
        """The positions of the topics once one of them is past `seen`, or after `LOOK_S`, or at the deadline (of
        `time.monotonic`), whichever is first."""
        with self._changed:
            now = self._positions(topics)
            if not self.closed and not _news(now, seen):
                self._changed.wait(max(min(LOOK_S, deadline - time.monotonic()), 0))
                now = self._positions(topics)
            return now


def _news(now: Mapping[StreamId, int], seen: Mapping[StreamId, int]) -> bool:
    return any(next_sequence > seen.get(stream, 1) for stream, next_sequence in now.items())


def covered_key(topic: str, registration: str) -> str:
    """The key of the positions of a registration, which are kept beside those of topics."""
    return f"{topic}\0{registration}"


class CoveredFrontiers(Frontiers):
    """The frontiers of selective topics as one reader sees them: up to where its registrations are covered."""

    hides_streams = has_gaps = True

    def __init__(
        self,
        base: Frontiers,
        registrations: Mapping[str, str],
        touch: Callable[[str], None],
        named: Container[StreamId] | None,
    ) -> None:
        """`registrations`: by topic. `touch` is called with each when the reader looks. `named`: streams whose begin
        fits where the reader starts; others are hidden if the registration does not begin with their first row, until
        the reader calls again. None: whatever the begin."""
        super().__init__()
        self._base = base
        self._registrations = registrations
        self._touch = touch
        self._named = named
        self._changed, self._topics, self._late = base._changed, base._topics, base._late
        self._everywhere = base._everywhere

    @property
    def closed(self) -> bool:
        return self._base.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        """Only the base is closed."""

    def shared(self, topic: str) -> tuple[str, Frontiers]:
        registration = self._registrations.get(topic)
        if registration is None:
            return self._base.shared(topic)
        key = covered_key(topic, registration)
        return key, CoveredFrontiers(self._base, {topic: registration}, self._touch, None)

    def _origins(self, topic: str) -> dict[NodeId, int]:
        registration = self._registrations.get(topic)
        if registration is None:
            return self._topics.get(topic, {})
        self._touch(registration)
        key = covered_key(topic, registration)
        found, late = self._topics.get(key, {}), self._late.get(key)
        if late and self._named is not None:
            found = {
                origin: end
                for origin, end in found.items()
                if origin not in late or StreamId(origin, topic) in self._named
            }
        if everywhere := self._everywhere.get(topic):
            here = self._topics[topic]
            return found | {origin: here[origin] for origin in everywhere if origin in here}
        return found

    def _positions(self, topics: Iterable[str]) -> dict[StreamId, int]:
        return {
            StreamId(origin, topic): origins[origin]
            for topic in sorted(topics)
            if (origins := self._origins(topic))
            for origin in sorted(origins)
        }

    def _reached(self, positions: Mapping[StreamId, int]) -> bool:
        return all(
            self._origins(stream.topic).get(stream.origin, 1) >= next_sequence
            for stream, next_sequence in positions.items()
        )
