"""A follower: the rows of topics from a position on, as they arrive, for one client. No thread waits for them.

It waits on the loop (`Bell`) until a stream is past its position. If the next rows are few and in memory (`fresh`), it
has them at once; else they are read as a range, on a thread: so rights, filters, order and refusals are those of every
read. A range ends where the streams are now, and the follower continues from there; rows that are left out (skipped, or
by a filter) are passed over.
"""

import asyncio
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.read.extents import StreamExtents
from m4cast.overlay.door.refusals import stopping
from m4cast.overlay.door.requests import Get
from m4cast.overlay.door.web.calls import WebCall
from m4cast.overlay.door.web.following.fresh import FollowedRows, FreshBatches, SeenRows
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Delivered

T = TypeVar("T")


class Bell:
    """Wakes followers when rows of their topics are on disk, or have arrived. Used on the loop. `own`: this node's
    id."""

    def __init__(self, frontiers: Frontiers, own: Callable[[], NodeId]) -> None:
        self.frontiers = frontiers
        self.fresh = FreshBatches(own, self.ring)
        self.closed = asyncio.Event()
        self._waiting: dict[str, set[asyncio.Future[bool]]] = {}

    def watch(self, output: object) -> None:
        """A driver's watcher. It has to be added after that of the frontiers."""
        if isinstance(output, Delivered):
            self.ring(output.delivery.stream.topic)

    def ring(self, topic: str) -> None:
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

    async def wait(self, topics: Iterable[str], until_s: float) -> bool:
        """Until something is delivered under one of the topics, or until this time of the loop: then it is False."""
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
    """`get` is a tail of one topic: without an end. Early: it may take rows that are not on this node's disk yet.
    Whoever has begun it closes it."""

    def __init__(self, call: WebCall, bell: Bell, get: Get, chunk_bytes: int, *, early: bool = False) -> None:
        self._call = call
        self._bell = bell
        self._get = get
        self._chunk_bytes = chunk_bytes
        (self._topic,) = get.topics
        self._is_early = early
        is_filtered = bool(call.caller.rights.filters(get.topics, get.profile))
        self._fresh = None if is_filtered else bell.fresh
        """None: each read is filtered, or its topic selective."""
        self._has_begun = False
        self._frontiers = bell.frontiers
        """As this reader sees them."""
        self.at: Frontier = {}
        """The position at which it continues."""

    async def begin(self) -> None:
        """Find out where to begin. Refused if the topics may not be read."""
        self.at = await self._call.run(self._start)
        if self._is_selective:
            self._fresh = None
        if self._fresh is not None:
            self._fresh.follow(self._topic, early=self._is_early)
            self._has_begun = True

    def close(self) -> None:
        if self._has_begun and self._fresh is not None:
            self._fresh.leave(self._topic, early=self._is_early)
            self._has_begun = False

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
    def _is_selective(self) -> bool:
        return self._frontiers is not self._bell.frontiers

    def look_again(self) -> None:
        """On a thread. The registration that a reader of a selective topic sees by may have been given up."""
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
        while not self._has_early() and not self.beyond():
            if self._bell.closed.is_set():
                raise stopping()
            if not await self._bell.wait(self._get.topics, until_s):
                await self._call.run(self.look_again) if self._is_selective else None
                return False
        return True

    def _has_early(self) -> bool:
        return self._is_early and self._fresh is not None and self._fresh.has_early(self._topic, self.at)

    async def take(self, render: Callable[[list[FollowedRows], Frontier], T]) -> T:
        """The next rows, rendered: here, if they are few and in memory, or on the thread that reads them; none if a
        filter leaves out what is there. `render` gets them with the position before them."""
        if self._bell.closed.is_set():
            raise stopping()
        until = self.beyond()
        found = self._fresh.take(self._topic, self.at, until, early=self._is_early) if self._fresh is not None else None
        if found:
            rendered = render(found, self.at)
            self.at = {**self.at, **{stream: next_sequence for _, stream, next_sequence in found}}
            return rendered
        rendered, self.at = await self._call.run(lambda: self._read(until, render))
        return rendered

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
        with closing(_closable(pieces)) as taken:
            for rows, metadata in taken:
                where = json.loads(metadata)
                stream = StreamId(NodeId(bytes.fromhex(where["origin"])), where["topic"])
                if rows.num_rows:
                    found.append(FollowedRows(SeenRows(rows), stream, where["next"]))
                at[stream] = where["next"]
                size += rows.nbytes
                if size >= self._chunk_bytes:
                    return at
        return until


def _let_go(waiter: "asyncio.Future[bool]") -> None:
    if not waiter.done():
        waiter.set_result(False)


def _closable(pieces: Iterator[Any]) -> Generator[Any, None, None]:
    yield from pieces
