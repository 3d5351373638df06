"""Coverage as it is reported to readers: up to where every row that a registration wants is on this node's disk."""

from collections.abc import Callable, Container, Iterable, Mapping

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles.profile import SQL, SQL_VERSION, Profile
from m4cast.overlay.protocol.effects import Covered, Output, StoredWant, Want
from m4cast.overlay.protocol.selective.selective import Selective
from m4cast.overlay.protocol.selective.wants import covers_profile
from m4cast.overlay.protocol.wire.selective import ProfileText

Fits = Callable[[Want, Mapping[StreamId, int], Mapping[StreamId, int]], bool]


class CoverageReports:
    def __init__(self, me: NodeId, selective: Selective, out: list[Output]) -> None:
        self._me = me
        self._selective = selective
        self._out = out
        self._covered: dict[tuple[str, StreamId], tuple[StoredWant, int]] = {}
        """The coverage that was last reported, and which registration of that id it was of."""

    def of(self, registration: str) -> dict[StreamId, int]:
        """The end of a registration's coverage here, by stream."""
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

    def covering(self, topic: str, profile: Profile | None, fits: Fits, but: Container[str] = ()) -> str | None:
        """A registration that covers this profile (None: every row) and begins early enough, which `fits` decides by
        the begins that are known and the ends of the streams of the topic. None of those in `but`."""
        asked = None if profile is None else ProfileText(SQL, SQL_VERSION, profile.text)
        selective = self._selective
        streams = [stream for stream in selective.receiving.streams.values() if stream.id.topic == topic]
        ends = {stream.id: stream.end for stream in streams}
        stored = [each for each in selective.wants.of_topic(topic) if each.want.id not in but]

        def is_able(each: StoredWant) -> bool:
            found = ((stream, selective.wants.begin(each, stream)) for stream in ends)
            return fits(each.want, {stream: begin for stream, begin in found if begin is not None}, ends)

        # Of many mailboxes, an equal one is soon found.
        equal = (each.want.id for each in stored if each.want.profile == asked and is_able(each))
        wider = (each.want.id for each in stored if covers_profile(each.want, asked) and is_able(each))
        return next(equal, None) or next(wider, None)

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
        ids = tuple(stored.want.id for stored in self._selective.wants.of_topic(stream.topic))
        if ids:
            self._out.append(Covered(ids, stream.topic, {self._me: end}))

    def take_back(self) -> None:
        """Take back the coverage of registrations that have gone or were replaced."""
        durable = self._selective.wants.durable
        for (name, stream), (stored, _) in list(self._covered.items()):
            if durable.get(name) != stored:
                del self._covered[name, stream]
                self._out.append(Covered((name,), stream.topic, {stream.origin: 1}))

    def report(self, streams: Iterable[StreamId]) -> None:
        """Coverage of these streams may have changed."""
        for stream in streams:
            received = self._selective.receiving.streams.get(stream)
            for begin, join, wants in self._selective.wants.begun(stream):
                if begin is None or received is None:
                    continue
                end = received.durable.first_below(begin, join)
                moved = [
                    stored
                    for stored in wants
                    if stored.want.keeps is None and self._covered.get((stored.want.id, stream)) != (stored, end)
                ]
                for stored in moved:
                    self._covered[stored.want.id, stream] = (stored, end)
                if moved:
                    ids = tuple(stored.want.id for stored in moved)
                    self._out.append(Covered(ids, stream.topic, {stream.origin: end}))
