"""Coverage as it is reported to readers: up to where every row that a registration wants is on this node's disk."""

from collections.abc import Container, Iterable

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles.profile import SQL, SQL_VERSION, Profile
from m4cast.overlay.protocol.effects import Covered, Output, StoredWant
from m4cast.overlay.protocol.selective.selective import Selective
from m4cast.overlay.protocol.selective.wants import covers_profile
from m4cast.overlay.protocol.wire.selective import ProfileText


class CoverageReports:
    def __init__(self, me: NodeId, selective: Selective, out: list[Output]) -> None:
        self._me = me
        self._selective = selective
        self._out = out
        self._covered: dict[tuple[str, StreamId], tuple[StoredWant, int]] = {}
        """As it was last reported, and of which registration of that id."""

    def of(self, registration: str) -> dict[StreamId, int]:
        """Up to where all that a registration wants is here, by stream."""
        stored = self._selective.wants.durable.get(registration)
        if stored is None:
            return {}
        found = {
            stream: end
            for stream in self._selective.receiving.streams
            if (end := self._selective.receiving.coverage(registration, stream)) is not None
        }
        own = StreamId(self._me, stored.want.topic)
        if own in self._selective.speaking.streams:
            found[own] = self._selective.speaking.streams[own].next
        return found

    def begins(self, registration: str) -> dict[StreamId, int]:
        """Return the positions at which a registration begins, by stream, as far as they are known."""
        stored = self._selective.wants.durable.get(registration)
        if stored is None:
            return {}
        topic, wants = stored.want.topic, self._selective.wants
        streams = (stream for stream in self._selective.receiving.streams if stream.topic == topic)
        found = {stream: begin for stream in streams if (begin := wants.begin(stored, stream)) is not None}
        own = StreamId(self._me, topic)
        return {**found, own: 1} if own in self._selective.speaking.streams else found

    def covering(self, topic: str, profile: Profile | None, *, earliest: bool, but: Container[str] = ()) -> str | None:
        """A registration that covers this profile (None: every row), and begins with the earliest rows if asked; none
        of those in `but`."""
        asked = None if profile is None else ProfileText(SQL, SQL_VERSION, profile.text)
        wants = [stored.want for stored in self._selective.wants.of_topic(topic)]
        able = [want for want in wants if (want.earliest or not earliest) and want.id not in but]
        equal = next((want.id for want in able if want.profile == asked), None)  # of many mailboxes, soon found
        return equal or next((want.id for want in able if covers_profile(want, asked)), None)

    def is_settled(self, registration: str) -> bool:
        """True if all rows that are known to exist and that the registration wants are here."""
        stored = self._selective.wants.durable.get(registration)
        receiving = self._selective.receiving
        return stored is not None and all(
            (receiving.coverage(registration, stream.id) or 0) >= stream.end
            for stream in receiving.streams.values()
            if stream.id.topic == stored.want.topic
        )

    # ---- reports

    def own(self, stream: StreamId) -> None:
        """Rows of an own stream are here, whoever wants them."""
        end = self._selective.speaking.streams[stream].next
        for stored in self._selective.wants.durable.values():
            if stored.want.topic == stream.topic and stored.want.keeps is None:
                self._out.append(Covered(stored.want.id, stream.topic, {self._me: end}))

    def take_back(self) -> None:
        """Take back the coverage of registrations that have gone or were replaced."""
        durable = self._selective.wants.durable
        for (name, stream), (stored, _) in list(self._covered.items()):
            if durable.get(name) != stored:
                del self._covered[name, stream]
                self._out.append(Covered(name, stream.topic, {stream.origin: 1}))

    def report(self, streams: Iterable[StreamId]) -> None:
        """Coverage of these streams may have changed."""
        for stream in streams:
            for stored in self._selective.wants.of(stream):
                key, end = (stored.want.id, stream), self._selective.receiving.coverage(stored.want.id, stream)
                if stored.want.keeps is None and end is not None and self._covered.get(key) != (stored, end):
                    self._covered[key] = (stored, end)
                    self._out.append(Covered(stored.want.id, stream.topic, {stream.origin: end}))
