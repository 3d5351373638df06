"""Fetching: pulls by content of what this node lacks, and of where its registrations begin (rules R4, R7).

One call per stream is under way at a time. The answer counts for the version that was asked with. It settles the range
that it speaks for, except the batches that it lists: these settle their own ranges when they arrive, since each of them
may be lost. Sources are asked in turn: the origin, its keepers, whoever has a registration on the topic, then all
others. What nobody has becomes a skip: `expired` by the word of one who had every row, `lost` when nobody is left to
wait for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, BeginKey, ReadSelected, SelectedRead, StoredWant
from m4cast.overlay.protocol.selective.contract import SelectiveOutput, SelectiveSettings
from m4cast.overlay.protocol.selective.receiving import Hole, Receiving, SelectedStream
from m4cast.overlay.protocol.selective.speaking import route
from m4cast.overlay.protocol.selective.wants import Wants
from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.protocol.wire.batch import SkipReason
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
"""The maximum number of profiles of one pull; a node with more asks for every row."""
TIMES_MAX = 64
ROUND_WAIT_MAX_MS = 60_000
LISTED_SHARE = 4
"""Batches that an answer lists and that have not arrived are waited for, for this part of `pull_timeout_ms`."""


@value
class FetchDue(Timer):
    """Look for what is lacking of this stream, or give up on the source that was asked."""

    stream: StreamId


class Expired(NamedTuple):
    """A report by a node that had every row: it no longer keeps `first .. next - 1`."""

    first: int
    next: int
    by: NodeId


class GivenUp(NamedTuple):
    """A range that nobody else has."""

    stream: SelectedStream
    lacking: Hole
    version: int
    by: NodeId
    reason: SkipReason


@dataclass(slots=True)
class _Fetch:
    """A call under way, and how often this stream was asked for in vain."""

    call: int = 0
    """0: none."""
    hole: Hole | None = None
    version: int = 0
    source: NodeId | None = None
    begins: tuple[StoredWant, ...] = ()
    """Registrations whose begin the call asks for; empty: it asks for rows."""
    attempts: int = 0
    wait_ms: int = 0
    awaited: tuple[SentBatch, ...] = ()
    """Listed by the last answer."""
    expired: Expired | None = None
    """Counts when no other source has the rows."""
    is_unheard: bool = False
    """A source of this round has not answered."""
    is_for_holes: bool = False
    """Nobody could tell where some registrations begin: this round is for those that do."""
    round_version: int = 0
    """The version of this node's entry when the first source of this round was asked."""


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
        self._read_here: dict[int, SelectedStream] = {}
        """Reads of what is here of a range that nobody hands over, by token."""
        self._given_up: dict[int, GivenUp] = {}
        """The ranges to be given up, by the token of the read of the rows that are here."""
        self.last_call = 0
        self.sources: Callable[[StreamId], list[NodeId]] = lambda stream_id: []
        """Whom to ask, the best first."""
        self.find_here: Callable[[NodeId, BeginCall], None] = lambda me, call: None
        """Whoever has all of a stream answers itself where a registration begins."""
        self.is_awaited: Callable[[NodeId, int], bool] = lambda origin, now_ms: True
        """Returns whether this origin, or a node that kept it, may come back."""
        self.has_view: Callable[[], bool] = lambda: True
        """Returns whether this node knows who wants what, and so who is present."""
        self.has_keeper: Callable[[NodeId], bool] = lambda origin: True
        """Returns whether a keeper of this origin is present."""
        self.next_token: Callable[[], int] = lambda: 0

    # ---- asking

    def look(self, stream: SelectedStream, now_ms: int) -> None:
        """Ask for what is lacking, unless a call is under way."""
        fetch = self._fetches.setdefault(stream.id, _Fetch())
        if fetch.call or stream.forked:
            return
        lacking, hole = self._wants.lacks_begin(stream.id), self._receiving.hole(stream)
        if lacking and (hole is None or not fetch.is_for_holes):
            hole = None
        else:
            lacking = []
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
        is_whole = bool(lacking) and self._receiving.authority(stream.id, 1, ()).has_all
        sources = [self._me] if is_whole else self.sources(stream.id)
        if not sources or fetch.attempts >= len(sources):
            fetch.is_for_holes = bool(lacking)  # those whose begins are known go on, whoever can tell of the others
            if lacking:
                self._begin_anyhow(stream, lacking, now_ms)
            elif hole is not None and not sources and self.has_view():
                self._give_up(stream, fetch, hole, now_ms)
            if hole is not None:
                self._look_here(stream, hole)
            self._end_round(stream.id, fetch, now_ms)
            return
        self._ask(stream, fetch, sources[fetch.attempts], now_ms, hole, lacking)

    def is_asking(self, stream_id: StreamId) -> bool:
        """True if a pull of the stream is under way."""
        fetch = self._fetches.get(stream_id)
        return fetch is not None and fetch.call > 0 and not fetch.begins

    def look_anew(self, stream: SelectedStream, now_ms: int) -> None:
        """Ask at once: there may be a new node to ask."""
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
        if fetch.attempts == 0:
            fetch.is_unheard, fetch.round_version = False, self._wants.version
        fetch.call, fetch.source, fetch.version = self.last_call, source, self._wants.version
        are_named = bool(lacking) and lacking[0].want.from_ms is not None
        alike = [stored for stored in lacking if (stored.want.from_ms is not None) is are_named]
        fetch.begins = tuple(alike[:TIMES_MAX])
        fetch.awaited = ()
        if hole is None:
            times = tuple(stored.want.begins_at_ms for stored in fetch.begins)
            call = BeginCall(fetch.call, *stream.id, times, are_named)
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
        profiles = list(dict.fromkeys(stored.want.profile for stored in self._wants.of(stream_id)))
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
            fetch.expired, fetch.is_unheard = None, True  # who does not answer may keep it
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

    def on_pull_answer(
        self, sender: NodeId, resp: SelectPullResp, now_ms: int, *, is_from_beyond: bool = False
    ) -> None:
        """`is_from_beyond`: from another channel, where the end of the stream is ahead of what is on its way here, and
        would be asked for before it can come."""
        answered = self._answered(sender, resp)
        if answered is None:
            return
        stream, fetch = answered
        if resp.is_fork:
            self._receiving.fork(stream)
            return
        if not is_from_beyond:
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
                self._give_up(stream, fetch, hole, now_ms)
        self.look(stream, now_ms)

    def _give_up(self, stream: SelectedStream, fetch: _Fetch, hole: Hole, now_ms: int) -> None:
        """Give up the beginning of this hole, which no node that was asked retains. If one that had every row has
        removed it, it expired. If every node answered, and neither the origin nor a node that kept it can return, all
        of it is lost."""
        expired, fetch.expired = fetch.expired, None
        if fetch.is_unheard:
            return
        if expired is not None and expired.first == hole.first:
            lacking, by, reason = Hole(hole.first, min(expired.next, hole.next)), expired.by, SkipReason.EXPIRED
        elif not self.is_awaited(stream.id.origin, now_ms):
            lacking, by, reason = hole, self._me, SkipReason.LOST
        else:
            return
        token, version = self.next_token(), fetch.round_version or self._wants.version
        self._given_up[token] = GivenUp(stream, lacking, version, by, reason)
        self._out.append(ReadSelected(token, stream.id, *lacking, self._settings.pull_bytes))
        fetch.attempts, fetch.wait_ms = 0, 0

    def _look_here(self, stream: SelectedStream, hole: Hole) -> None:
        """Nobody brought the rows of this hole: an older registration may have wanted the first of them."""
        token = self.next_token()
        self._read_here[token] = stream
        self._out.append(ReadSelected(token, stream.id, *hole, self._settings.pull_bytes))

    def _found_here(self, stream: SelectedStream, read: SelectedRead, now_ms: int) -> None:
        hole = self._receiving.hole(stream)
        if hole is not None and any(each.first_sequence <= hole.first < each.next_sequence for each in read.batches):
            self._receiving.holds(stream, read.batches)
            self.look_anew(stream, now_ms)

    def read(self, read: SelectedRead, now_ms: int) -> bool:
        """Handle the read of what this node has itself in a range that nobody hands over, or that is to be given up: an
        older registration may have wanted it. False if the read was not for this."""
        if (here := self._read_here.pop(read.token, None)) is not None:
            self._found_here(here, read, now_ms)
            return True
        found = self._given_up.pop(read.token, None)
        if found is None:
            return False
        if read.batches:
            self._receiving.holds(found.stream, read.batches)
        elif self._receiving.hole(found.stream) == found.lacking or found.reason is SkipReason.EXPIRED:
            lacking = Hole(found.lacking.first, min(found.lacking.next, max(read.read_next, found.lacking.first + 1)))
            self._receiving.expire(found.stream, lacking, found.version, found.by, found.reason)
        self.look(found.stream, now_ms)
        return True

    def _begin_anyhow(self, stream: SelectedStream, lacking: list[StoredWant], now_ms: int) -> None:
        """Begin these with the first row, since no node is left that can tell where they begin. No more arrives than
        other nodes have."""
        if not self.is_awaited(stream.id.origin, now_ms) and not self.has_keeper(stream.id.origin):
            self.plan_begins({BeginKey(stored.want.id, stream.id): 1 for stored in lacking})

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
                self.plan_begins(begins)
            fetch.attempts = 0
        else:
            fetch.attempts += 1
        self.look(stream, now_ms)

    def plan_begins(self, begins: dict[BeginKey, int]) -> None:
        token = self.next_token()
        self._out.append(Append(token, self._wants.plan_begins(token, begins)))


def _gaps(batches: tuple[SentBatch, ...], first: int, following: int) -> Iterator[tuple[int, int]]:
    """Return the gaps between these batches within `first .. following - 1`."""
    for sent in sorted(batches):
        if first < min(sent.first, following):
            yield first, min(sent.first, following)
        first = max(first, sent.next)
    if first < following:
        yield first, following


def _end_of(expired: Expired | None, hole: Hole) -> int:
    return expired.next if expired is not None and expired.first == hole.first else 1
