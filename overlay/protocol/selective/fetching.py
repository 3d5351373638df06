"""Fetching: pulls by content of what this node lacks, and of where its registrations begin (rules R4, R7).

One call per stream is under way at a time. The answer counts for the version that was asked with. It settles the range
that it speaks for, except the batches that it lists: these settle their own ranges when they arrive, since each of them
may be lost. Sources are asked in turn: the origin, its keepers, then whoever has a registration on the topic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, BeginKey, StoredWant
from m4cast.overlay.protocol.selective.contract import SelectiveOutput, SelectiveSettings
from m4cast.overlay.protocol.selective.receiving import Hole, Receiving, SelectedStream
from m4cast.overlay.protocol.selective.speaking import route
from m4cast.overlay.protocol.selective.wants import Wants
from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.protocol.wire.selective import (
    BeginCall,
    BeginResp,
    Destination,
    ProfileText,
    SelectPullCall,
    SelectPullResp,
    SentBatch,
)
from m4cast.overlay.value import value

PROFILES_MAX = 64
"""Of one pull; a node with more asks for every row."""
TIMES_MAX = 64
ROUND_WAIT_MAX_MS = 60_000
LISTED_SHARE = 4
"""Batches that an answer lists and that have not arrived are waited for, for this part of `pull_timeout_ms`."""


@value
class FetchDue(Timer):
    """Look for what is lacking of this stream, or give up on the source that was asked."""

    stream: StreamId


class Expired(NamedTuple):
    """By a node that had every row, `first .. next - 1` is kept there no longer."""

    first: int
    next: int
    by: NodeId


@dataclass(slots=True)
class _Fetch:
    """A call under way, and how often this stream was asked for in vain."""

    call: int = 0
    """0: none."""
    hole: Hole | None = None
    version: int = 0
    source: NodeId | None = None
    begins: tuple[StoredWant, ...] = ()
    """Not empty: the call asks where these begin."""
    attempts: int = 0
    wait_ms: int = 0
    awaited: tuple[SentBatch, ...] = ()
    """Listed by the last answer."""
    expired: Expired | None = None
    """Counts when no other source has the rows."""


class Fetching:
    def __init__(
        self,
        me: NodeId,
        wants: Wants,
        receiving: Receiving,
        settings: SelectiveSettings,
        timers: Timers,
        out: list[SelectiveOutput],
    ) -> None:
        self._me = me
        self._wants = wants
        self._receiving = receiving
        self._settings = settings
        self._timers = timers
        self._out = out
        self._fetches: dict[StreamId, _Fetch] = {}
        self.last_call = 0
        self.sources: Callable[[StreamId], list[NodeId]] = lambda stream_id: []
        """Whom to ask, the best first."""
        self.find_here: Callable[[NodeId, BeginCall], None] = lambda me, call: None
        """Whoever has all of a stream answers itself where a registration begins."""
        self.next_token: Callable[[], int] = lambda: 0

    # ---- asking

    def look(self, stream: SelectedStream, now_ms: int) -> None:
        """Ask for what is lacking, unless a call is under way."""
        fetch = self._fetches.setdefault(stream.id, _Fetch())
        if fetch.call or stream.forked:
            return
        lacking = self._wants.lacks_begin(stream.id)
        hole = self._receiving.hole(stream) if not lacking else None
        if not lacking and hole is None:
            del self._fetches[stream.id]
            self._timers.cancel(FetchDue(stream.id))
            return
        if hole is not None and any(sent.first <= hole.first < sent.next for sent in fetch.awaited):
            fetch.awaited = ()
            self._timers.set_sooner(FetchDue(stream.id), now_ms + self._settings.pull_timeout_ms // LISTED_SHARE)
            return
        if self._timers.is_set(FetchDue(stream.id)):
            return  # it waits for its turn
        is_whole = bool(lacking) and self._receiving.authority(stream.id, 1, ()).is_whole
        sources = [self._me] if is_whole else self.sources(stream.id)
        if not sources or fetch.attempts >= len(sources):
            self._end_round(stream.id, fetch, now_ms)
            return
        self._ask(stream, fetch, sources[fetch.attempts], now_ms, hole, lacking)

    def look_anew(self, stream: SelectedStream, now_ms: int) -> None:
        """Somebody to ask may have come: do not wait any longer."""
        fetch = self._fetches.get(stream.id)
        if fetch is not None and not fetch.call:
            fetch.attempts, fetch.wait_ms = 0, 0
            self._timers.cancel(FetchDue(stream.id))
        self.look(stream, now_ms)

    def _end_round(self, stream_id: StreamId, fetch: _Fetch, now_ms: int) -> None:
        fetch.attempts = 0
        fetch.wait_ms = min(max(2 * fetch.wait_ms, self._settings.pull_timeout_ms // 2), ROUND_WAIT_MAX_MS)
        self._timers.set(FetchDue(stream_id), now_ms + fetch.wait_ms)

    def _ask(
        self,
        stream: SelectedStream,
        fetch: _Fetch,
        source: NodeId,
        now_ms: int,
        hole: Hole | None,
        lacking: list[StoredWant],
    ) -> None:
        self.last_call += 1
        fetch.call, fetch.source, fetch.version = self.last_call, source, self._wants.version
        fetch.begins = tuple(lacking[:TIMES_MAX])
        fetch.awaited = ()
        if hole is None:
            times = tuple(stored.want.since_ms for stored in fetch.begins)
            call = BeginCall(fetch.call, *stream.id, times)
            if source == self._me:
                self.find_here(source, call)
            else:
                self._send(source, call)
        else:
            fetch.hole = hole
            self._send(source, self.pull_call(stream, fetch.call, hole))
        self._timers.set(FetchDue(stream.id), now_ms + self._settings.pull_timeout_ms)

    def pull_call(self, stream: SelectedStream, call: int, hole: Hole) -> SelectPullCall:
        return SelectPullCall(
            call=call,
            origin=stream.id.origin,
            topic=stream.id.topic,
            first_sequence=hole.first,
            next_sequence=hole.next,
            version=self._wants.version,
            checksum=stream.known_checksum if stream.known_at == hole.first else 0,
            profiles=self._profiles(stream.id),
            bytes_max=self._settings.pull_bytes,
        )

    def _profiles(self, stream_id: StreamId) -> tuple[ProfileText, ...]:
        """All that is wanted of the stream, whatever this hole lacks; none: every row."""
        profiles = [stored.want.profile for stored in self._wants.of(stream_id)]
        named = tuple(profile for profile in profiles if profile is not None)
        return named if len(named) == len(profiles) <= PROFILES_MAX else ()

    def _send(self, to: NodeId, message: SelectPullCall | BeginCall) -> None:
        route(self._out, self._me, [Destination(to, 0, 0)], message)

    # ---- answers

    def due(self, stream_id: StreamId, now_ms: int) -> None:
        """The source did not answer, or the time to ask again has come."""
        fetch, stream = self._fetches.get(stream_id), self._receiving.streams.get(stream_id)
        if fetch is None or stream is None:
            return
        if fetch.call:
            fetch.call = 0
            fetch.attempts += 1
            fetch.expired = None  # who does not answer may keep it
        self.look(stream, now_ms)

    def _answered(self, sender: NodeId, resp: SelectPullResp | BeginResp) -> tuple[SelectedStream, _Fetch] | None:
        stream_id = StreamId(resp.origin, resp.topic)
        fetch, stream = self._fetches.get(stream_id), self._receiving.streams.get(stream_id)
        if fetch is None or stream is None or not resp.call or (fetch.call, fetch.source) != (resp.call, sender):
            return None
        if bool(fetch.begins) is not isinstance(resp, BeginResp):
            return None  # it answers another question
        fetch.call = 0
        self._timers.cancel(FetchDue(stream_id))
        return stream, fetch

    def on_pull_answer(self, sender: NodeId, resp: SelectPullResp, now_ms: int) -> None:
        answered = self._answered(sender, resp)
        if answered is None:
            return
        stream, fetch = answered
        if resp.is_fork:
            self._receiving.fork(stream)
            return
        stream.heard = max(stream.heard, resp.next)
        assert fetch.hole is not None, "a pull asks for a hole"
        hole, following = fetch.hole, min(resp.covered_next, fetch.hole.next)
        fetch.awaited = resp.batches
        has_moved = bool(resp.batches)
        for first, behind in _gaps(resp.batches, max(hole.first, resp.low), following):
            has_moved |= self._receiving.state(stream, first, behind, fetch.version)
        if resp.is_whole and resp.low > hole.first:
            fetch.expired = Expired(hole.first, max(resp.low, _end_of(fetch.expired, hole)), sender)
        if has_moved or self._receiving.hole(stream) != hole:
            fetch.attempts, fetch.wait_ms = 0, 0
        else:
            fetch.attempts += 1
            if fetch.attempts >= len(self.sources(stream.id)):
                self._expire(stream, fetch, hole)
        self.look(stream, now_ms)

    def _expire(self, stream: SelectedStream, fetch: _Fetch, hole: Hole) -> None:
        """Nobody who was asked keeps the beginning of this hole, and one who had every row has removed it."""
        expired, fetch.expired = fetch.expired, None
        if expired is not None and expired.first == hole.first:
            following = min(expired.next, hole.next)
            self._receiving.expire(stream, hole.first, following, fetch.version, expired.by)
            fetch.attempts, fetch.wait_ms = 0, 0

    def on_begin_answer(self, sender: NodeId, resp: BeginResp, now_ms: int) -> None:
        answered = self._answered(sender, resp)
        if answered is None:
            return
        stream, fetch = answered
        if len(resp.begins) == len(fetch.begins):
            begins = {
                BeginKey(stored.want.id, stream.id): max(begin, 1)
                for stored, begin in zip(fetch.begins, resp.begins, strict=True)
                if self._wants.durable.get(stored.want.id) == stored
            }
            if begins:
                token = self.next_token()
                self._out.append(Append(token, self._wants.plan_begins(token, begins)))
            fetch.attempts = 0
        else:
            fetch.attempts += 1
        self.look(stream, now_ms)


def _gaps(batches: tuple[SentBatch, ...], first: int, following: int) -> Iterator[tuple[int, int]]:
    """What lies between these batches within `first .. following - 1`."""
    for sent in sorted(batches):
        if first < min(sent.first, following):
            yield first, min(sent.first, following)
        first = max(first, sent.next)
    if first < following:
        yield first, following


def _end_of(expired: Expired | None, hole: Hole) -> int:
    return expired.next if expired is not None and expired.first == hole.first else 1
