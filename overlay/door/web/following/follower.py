"""A follower: the rows of topics from a position on, as they arrive, for one client. No thread waits for them.

It waits on the loop (`Bell`) until a stream is past its position. If the next rows are few and in memory (`fresh`), it
has them at once; else they are read as a range, on a thread: so rights, filters, order and refusals are those of every
read. A range ends where the streams are now, and the follower continues from there; rows that are left out (skipped, or
by a filter) are passed over.

A follower with a filter that is level with its topic shares the matching of new rows with all such tails, also by
Flight (`matched`). When it has been too slow for that, it reads ranges until it is level again.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, TypeVar

from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.read.extents import StreamExtents
from m4cast.overlay.door.refusals import stopping
from m4cast.overlay.door.requests import Get
from m4cast.overlay.door.web.calls import WebCall
from m4cast.overlay.door.web.following.fresh import FollowedRows, Form, FreshBatches, SeenRows
from m4cast.overlay.door.web.following.matched import MatchedRows
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Delivered

T = TypeVar("T")
EVENT_STREAMS_MAX = 16
"""Events of a topic with more streams are written by threads: each has a position, with 40 bytes for each stream."""
POSITION_BYTES = 42
POSITIONS_BYTES_MAX = 4 << 20
"""The positions of the events that are written at a time: so many rows, one at least."""


class Bell:
    """Wakes followers when rows of their topics are on disk, or have arrived. Used on the loop. `own`: this node's
    id."""

    def __init__(self, frontiers: Frontiers, own: Callable[[], NodeId]) -> None:
        self.frontiers = frontiers
        self.fresh = FreshBatches(own, self.ring)
        self.closed = asyncio.Event()
        self._waiting: dict[object, set[asyncio.Future[bool]]] = {}
        """Followers that wait, by topic; one that shares the matching, by itself."""

    def watch(self, output: object) -> None:
        """A driver's watcher. It has to be added after that of the frontiers."""
        if isinstance(output, Delivered):
            self.ring(output.delivery.stream.topic)

    def ring(self, topic: object) -> None:
        for waiter in self._waiting.pop(topic, ()):
            if not waiter.done():
                waiter.set_result(True)

    def close(self) -> None:
        """Wake everybody, for good."""
        self.closed.set()
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(True)
        self._waiting.clear()

    async def wait(self, topics: Iterable[object], until_s: float) -> bool:
        """Wait until something is delivered under one of the topics: True; or until this time of the loop: False."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        for topic in topics:
            self._waiting.setdefault(topic, set()).add(waiter)
        late = loop.call_at(until_s, _let_go, waiter)  # `asyncio.timeout` takes several times as long
        try:
            return await waiter
        finally:
            late.cancel()
            for topic in topics:
                waiters = self._waiting.get(topic)
                if waiters is not None:
                    waiters.discard(waiter)
                    if not waiters:
                        del self._waiting[topic]


class RowFollower:
    """`get` is a tail of one topic: without an end. `form` is what will be made of its rows. Early: it may take rows
    that are not on this node's disk yet. Whoever has begun it closes it."""

    def __init__(
        self, call: WebCall, bell: Bell, get: Get, chunk_bytes: int, *, form: Form, early: bool = False
    ) -> None:
        self._call = call
        self._bell = bell
        self._get = get
        self._chunk_bytes = chunk_bytes
        (self._topic,) = get.topics
        self._is_early = early
        self._form: Form = form
        self._is_filtered = bool(call.caller.rights.filters(get.topics, get.profile))
        self._matched: MatchedRows | None = None
        """While a follower with a filter is level with its topic."""
        self._fresh = None if self._is_filtered else bell.fresh
        """None: each read is filtered, or its topic selective."""
        self._has_begun = False
        self._frontiers = bell.frontiers
        """The frontiers as this reader sees them."""
        self.at: Frontier = {}
        """The position at which it continues."""
        self._is_level = False
        """It has read up to where its topic was."""
        self._is_closed = False
        self._joining = threading.RLock()

    async def begin(self) -> None:
        """Find out where to begin. Refused if the topics may not be read."""
        self.at = await self._call.run(self._start)
        if self._is_selective:
            self._fresh = None
        if self._fresh is not None:
            self._fresh.follow(self._topic, self._form, early=self._is_early)
            self._has_begun = True
        self._loop = asyncio.get_running_loop()
        self._is_level = not self.beyond()

    def close(self) -> None:
        if self._has_begun and self._fresh is not None:
            self._fresh.leave(self._topic, self._form, early=self._is_early)
            self._has_begun = False
        if self._is_filtered:
            self._call.workers.later(self._leave_for_good)

    def _start(self) -> Frontier:
        services, get = self._call.services, self._get
        topics = services.readable(get.topics, self._call.caller.rights)
        self._frontiers = services.seen_by(topics, get.profile, self._call.caller, get.start)
        if isinstance(get.start, dict):
            return dict(get.start)
        extents = services.extents
        if self._is_selective:
            extents = StreamExtents(services.store, self._frontiers)
        found = extents.now(topics, get.start if isinstance(get.start, int) else None)
        edge = 0 if get.start == "earliest" else 1
        return {
            StreamId(NodeId(bytes.fromhex(origin)), topic): ends[edge]
            for topic, origins in found.items()
            for origin, ends in origins.items()
        }

    @property
    def has_every_row(self) -> bool:
        """Valid once it has begun: neither a filter nor the registrations of a selective topic leave out rows."""
        return not self._is_filtered and not self._is_selective

    @property
    def _is_selective(self) -> bool:
        return self._frontiers is not self._bell.frontiers

    def look_again(self) -> None:
        """Runs on a thread. The registration through which a reader of a selective topic reads may have been given
        up."""
        if self._is_selective:
            services, get = self._call.services, self._get
            self._frontiers = services.seen_by(get.topics, get.profile, self._call.caller, self.at)

    def beyond(self) -> Frontier:
        """The streams that are past the position."""
        now = self._frontiers.positions(self._get.topics)
        return {stream: until for stream, until in now.items() if until > self.at.get(stream, 1)}

    async def ready(self, timeout_s: float) -> bool:
        """Wait until there are rows, at most this long."""
        until_s = asyncio.get_running_loop().time() + timeout_s
        if self._is_filtered and self._is_level and self._matched is None:
            await self._call.run(self._join)
        while not self._has_news():
            if self._bell.closed.is_set():
                raise stopping()
            if not await self._bell.wait(self._get.topics if self._matched is None else (self,), until_s):
                if self._is_selective or self._matched is not None:
                    await self._call.run(self._look_again)
                return False
        return True

    def _has_news(self) -> bool:
        if self._matched is not None:
            return self._matched.has_news or bool(self._matched.gap(self.at))
        return self._has_early() or bool(self.beyond())

    def _join(self) -> None:
        """Share the matching of new rows from now on, unless more is matched than this follower sees. On a thread."""
        call, get = self._call, self._get
        with self._joining:
            self._is_level = False
            if not self._is_closed:
                opened = call.services.shared_matches(get, call.caller, self._frontiers, self._rung)
                self._matched = MatchedRows(opened, call.caller)
                if not opened.is_level:
                    self._leave()

    def _leave(self) -> None:
        with self._joining:
            matched, self._matched = self._matched, None
            if matched is not None:
                matched.close()

    def _leave_for_good(self) -> None:
        """Leave the matching and stay out of it: `_join` may be under way for a call that has ended. On a thread."""
        with self._joining:
            self._is_closed = True
            self._leave()

    def _rung(self) -> None:
        """Ring the bell; any thread may call it."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._bell.ring, self)

    def _look_again(self) -> None:
        """Look for rows, and for changes of what is seen, after a time without rows. On a thread."""
        self.look_again()
        if self._matched is not None and not self._matched.look_again(self.at, self._frontiers):
            self._leave()

    def _has_early(self) -> bool:
        memory = self._memory
        return self._is_early and memory is not None and memory.has_early(self._topic, self.at)

    @property
    def _memory(self) -> FreshBatches | None:
        """The rows in memory that it may take on the loop."""
        return None if self._form == "objects" and len(self.at) > EVENT_STREAMS_MAX else self._fresh

    async def take(self, render: Callable[[list[FollowedRows], Frontier], T]) -> T:
        """The next rows, rendered: here, if they are few and in memory, or on the thread that reads them; none if a
        filter leaves out what is there. `render` gets them with the position before them."""
        if self._bell.closed.is_set():
            raise stopping()
        if self._matched is not None and not self._matched.gap(self.at):
            taken = await self._call.run(lambda: self._take_matched(render))
            if taken is not None:
                rendered, self.at = taken
                return rendered
        until = self.beyond() if self._matched is None else self._matched.gap(self.at)
        memory = self._memory
        found = memory.take(self._topic, self.at, until, early=self._is_early) if memory is not None else None
        if found:
            rendered = render(found, self.at)
            self.at = {**self.at, **{stream: next_sequence for _, stream, next_sequence in found}}
            return rendered
        rendered, self.at = await self._call.run(lambda: self._read(until, render))
        self._is_level = all(self.at.get(stream, 1) >= end for stream, end in until.items())
        return rendered

    def _take_matched(self, render: Callable[[list[FollowedRows], Frontier], T]) -> tuple[T, Frontier] | None:
        """Rows that were matched for this follower; None: it was too slow, and reads by itself. On a thread."""
        assert self._matched is not None
        taken = self._matched.take(self.at, self._chunk_bytes)
        if taken is None:
            self._leave()
            return None
        found, at = taken
        return render(found, self.at), at

    @property
    def _rows_max(self) -> int:
        if self._form != "objects":
            return sys.maxsize
        return max(POSITIONS_BYTES_MAX // (POSITION_BYTES * max(len(self.at), 1)), 1)

    def _read(self, until: Frontier, render: Callable[[list[FollowedRows], Frontier], T]) -> tuple[T, Frontier]:
        """Some rows, and where they end."""
        found: list[FollowedRows] = []
        at = dict(self.at)
        if until:
            at.update(self._read_some(until, found))
        return render(found, self.at), at

    def _read_some(self, until: Frontier, found: list[FollowedRows]) -> Frontier:
        start = {stream: self.at.get(stream, 1) for stream in until}
        _, pieces = self._call.services.read(replace(self._get, start=start, end=until), self._call.caller)
        at: Frontier = {}
        size = 0
        left = self._rows_max
        with closing(_closable(pieces)) as taken:
            for piece, metadata in taken:
                where = json.loads(metadata)
                stream = StreamId(NodeId(bytes.fromhex(where["origin"])), where["topic"])
                rows = piece.slice(0, left)
                after = where["next"] if rows.num_rows == piece.num_rows else rows["_sequence"][-1].as_py() + 1
                if rows.num_rows:
                    found.append(FollowedRows(SeenRows(rows), stream, after))
                at[stream] = after
                left -= rows.num_rows
                size += rows.nbytes
                if size >= self._chunk_bytes or not left:
                    return at
        return until


def _let_go(waiter: "asyncio.Future[bool]") -> None:
    if not waiter.done():
        waiter.set_result(False)


def _closable(pieces: Iterator[Any]) -> Generator[Any, None, None]:
    yield from pieces
