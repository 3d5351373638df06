"""Matched rows: what the shared matching of a topic (`live_matching`) has for one follower with a filter.

The matching is shared with all filtered tails of the topic, whatever their transport: a batch is read, decoded and
tested once for all of them. The follower gets its rows in pieces that fit into messages.
"""

from collections import deque
from collections.abc import Iterator

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.read.live_matching import SharedMatches
from m4cast.overlay.door.read.matching import Found
from m4cast.overlay.door.read.stream_answer import TestedSpan, seen, split
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.web.following.fresh import FollowedRows, SeenRows
from m4cast.overlay.ids import StreamId


class MatchedRows:
    """Used by the loop, or by the thread that works for its follower, which waits meanwhile."""

    def __init__(self, rows: SharedMatches, caller: Caller) -> None:
        self._rows = rows
        self._caller = caller
        self._pieces: deque[tuple[StreamId, int, SeenRows | None]] = deque()
        """Pieces from the inbox: rows, or nothing, up to a position of a stream."""

    def gap(self, at: Frontier) -> Frontier:
        """The positions up to which a follower that is at `at` has to read by itself first."""
        return {stream: begin for stream, begin in self._rows.begins.items() if begin > at.get(stream, 1)}

    @property
    def has_news(self) -> bool:
        return bool(self._pieces) or self._rows.inbox.has_news

    def take(self, at: Frontier, size_max: int) -> tuple[list[FollowedRows], Frontier] | None:
        """Some rows from `at` on, and where they end. None: the follower has to read by itself. On a thread: a caller
        that exceeds its budget waits here."""
        self._rows.pay(self._caller)
        self._rows.report_columns()
        if not self._fill(at):
            return None
        found: list[FollowedRows] = []
        after, size = dict(at), 0
        while self._pieces and size < size_max:
            stream, until, rows = self._pieces.popleft()
            after[stream] = until
            if rows is not None:
                found.append(FollowedRows(rows, stream, until))
                size += rows.arrow.nbytes
        return found, after

    def _fill(self, at: Frontier) -> bool:
        """False: there is nothing more, since the inbox is lost."""
        if self._pieces:
            return True
        ahead = dict(at)
        steps = self._rows.take(lambda stream: ahead.get(stream, 1))
        if steps is None:
            return False
        for stream, step in steps:
            ahead[stream] = step.until
            self._pieces.extend((stream, until, rows) for until, rows in _pieces(stream, step))
        return True

    def look_again(self, at: Frontier, seen: Frontiers) -> bool:
        """Pass over what did not match. False: these rows are not all that the follower sees now. On a thread."""
        self._fill(at)
        return self._rows.look_again(seen)

    def close(self) -> None:
        """Stop taking matches. On a thread, because it may wait for the matching of a batch."""
        self._rows.close()


def _pieces(stream: StreamId, step: TestedSpan) -> Iterator[tuple[int, SeenRows | None]]:
    found = step.found
    if not isinstance(found, Found):
        yield step.until, None
        return
    schema = payload.seen_schema(found.rows.schema)
    rows = seen(stream, found, found.rows.schema, schema)
    for piece, until in split(rows, found.sequences, step.until, payload.rows_at_once(schema)):
        yield until, SeenRows(piece)
