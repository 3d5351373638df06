"""Searching: who keeps a row that no neighbour has, and when is it given up? (PROTOCOL.md 5.4)

A search floods the channel, over few hops first. Whoever keeps the row calls back and serves it. When every claimant
has said that it keeps the range no more, the last search has found nobody, and everybody who may keep it has been asked
(`inquiries.py`), the range becomes a skip; "not yet" never does.
"""

from collections.abc import Callable

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.floods import first_search
from m4cast.overlay.protocol.holdings import Stream
from m4cast.overlay.protocol.streams.hold_back import Backlog, Backlogs, Search
from m4cast.overlay.protocol.streams.sources import Sources
from m4cast.overlay.protocol.streams.timers import HolderSearchDue
from m4cast.overlay.protocol.wire.messages import HolderSearchStmt

HOLDER_SEARCH_HOPS = (3, 255)
"""Reach of the successive searches for a holder; a skip needs an answerless search of the last one."""
HOLDER_SEARCH_MS_MAX = 60_000


class Searching:
    def __init__(self, context: Context, backlogs: Backlogs, sources: Sources) -> None:
        self._me = context.me
        self._search_ms = context.config.holder_search_ms
        self._timers = context.timers
        self._backlogs = backlogs
        self._sources = sources
        self._number = first_search(context.incarnation)

    def is_searched(self, stream_id: StreamId) -> bool:
        """A search for a holder of this stream is under way."""
        return self._timers.is_set(HolderSearchDue(stream_id))

    def look_soon(self, stream_id: StreamId, now_ms: int) -> None:
        """Search again at once: a node that was asked has answered, or will not."""
        if self.is_searched(stream_id):
            self._timers.set(HolderSearchDue(stream_id), now_ms)

    def begin(self, stream: Stream, backlog: Backlog, now_ms: int) -> None:
        """Search for the next wanted row, unless a search is under way."""
        due = HolderSearchDue(stream.id)
        if self._timers.is_set(due):
            return
        search = _search_of(backlog)
        if now_ms >= search.flood_at_ms:
            self._flood(stream, search, now_ms)
        self._timers.set(due, max(now_ms + 1, min(search.flood_at_ms, search.look_at_ms or search.flood_at_ms)))

    def _flood(self, stream: Stream, search: Search, now_ms: int) -> None:
        hops_max = HOLDER_SEARCH_HOPS[min(search.attempts, len(HOLDER_SEARCH_HOPS) - 1)]
        search.flood_at_ms = now_ms + min(self._search_ms << min(search.attempts, 8), HOLDER_SEARCH_MS_MAX)
        search.attempts += 1
        search.has_found = False
        self.flood(stream.id, stream.next, hops_max)

    def flood(self, stream_id: StreamId, sequence: int, hops_max: int = HOLDER_SEARCH_HOPS[-1]) -> None:
        """Flood one search for whoever keeps this sequence."""
        self._number += 1
        self._sources.flood(
            HolderSearchStmt(
                requester=self._me,
                search=self._number,
                origin=stream_id.origin,
                topic=stream_id.topic,
                sequence=sequence,
                hops=1,
                hops_max=hops_max,
            )
        )

    def holder_found(self, stream: Stream, low: int, next_sequence: int) -> None:
        """The search brought somebody who keeps this range."""
        backlog = self._backlogs.get(stream.id)
        if backlog is not None and backlog.search is not None and low <= stream.next < next_sequence:
            backlog.search.has_found = True

    def over(
        self, stream: Stream, backlog: Backlog, look_again_at: Callable[[Stream, int], int | None], now_ms: int
    ) -> int | None:
        """The search has had its time: up to where rows are given up now, None when they are not. `look_again_at`: when
        the next row may be given up, as far as that is known; None: now."""
        search = _search_of(backlog)
        is_claimed = any(claim.low <= stream.next < claim.next for claim in stream.claims.values())
        search.look_at_ms = now_ms + self._search_ms if is_claimed else None
        if stream.next in backlog.pulls:
            return None  # a holder was found and is being asked
        lows = [claim.low for claim in stream.claims.values() if stream.next < claim.low <= claim.next]
        # A holder that was lost again is searched for again: only a search that brings nobody makes a skip.
        has_failed = not search.has_found and search.attempts >= len(HOLDER_SEARCH_HOPS)
        if lows and not is_claimed and has_failed and not stream.forked:
            search.look_at_ms = look_again_at(stream, now_ms)
            if search.look_at_ms is None:
                return min(lows)
        return None


def _search_of(backlog: Backlog) -> Search:
    if backlog.search is None:
        backlog.search = Search()
    return backlog.search
