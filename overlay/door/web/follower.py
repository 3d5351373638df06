"""A follower: the rows of topics from a position on, as they arrive, for one client. No thread waits for them.

It waits on the loop (`Bell`) until a stream is past its position, then has the rows read as a range, on a thread: so
rights, filters, order and refusals are those of every read. A range ends where the streams are now, and the follower
continues from there; rows that are left out (skipped, or by a filter) are passed over.
"""

import asyncio
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.refusals import stopping
from m4cast.overlay.door.requests import Get
from m4cast.overlay.door.web.calls import WebCall
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Delivered

T = TypeVar("T")


class FollowedRows(NamedTuple):
    """Rows of one stream, which continues at `next`."""

    rows: pa.RecordBatch
    stream: StreamId
    next: int


class Bell:
    """Wakes followers when rows of their topics are on disk. Used on the loop."""

    def __init__(self, frontiers: Frontiers) -> None:
        self.frontiers = frontiers
        self.closed = asyncio.Event()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def watch(self, output: object) -> None:
        """A driver's watcher. It has to be added after that of the frontiers."""
        if isinstance(output, Delivered):
            for waiter in self._waiting.pop(output.delivery.stream.topic, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def close(self) -> None:
        """Wake everybody, for good."""
        self.closed.set()
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._waiting.clear()

    async def wait(self, topics: Iterable[str]) -> None:
        """Until something is delivered under one of the topics."""
        waiter = asyncio.get_running_loop().create_future()
        for topic in topics:
            self._waiting.setdefault(topic, set()).add(waiter)
        try:
            await waiter
        finally:
            for topic in topics:
                waiters = self._waiting.get(topic)
                if waiters is not None:
                    waiters.discard(waiter)
                    if not waiters:
                        del self._waiting[topic]


class RowFollower:
    """`get` is a tail: without an end."""

    def __init__(self, call: WebCall, bell: Bell, get: Get, chunk_bytes: int) -> None:
        self._call = call
        self._bell = bell
        self._get = get
        self._chunk_bytes = chunk_bytes
        self.at: Frontier = {}
        """Where it continues."""

    async def begin(self) -> None:
        """Find out where to begin. Refused if the topics may not be read."""
        self.at = await self._call.run(self._start)

    def _start(self) -> Frontier:
        services, get = self._call.services, self._get
        topics = services.readable(get.topics, self._call.caller.rights)
        if isinstance(get.start, dict):
            return dict(get.start)
        extents = services.extents.now(topics, get.start if isinstance(get.start, int) else None)
        edge = 0 if get.start == "earliest" else 1
        return {
            StreamId(NodeId(bytes.fromhex(origin)), topic): ends[edge]
            for topic, origins in extents.items()
            for origin, ends in origins.items()
        }

    def beyond(self) -> Frontier:
        """The streams that are past the position."""
        now = self._bell.frontiers.positions(self._get.topics)
        return {stream: until for stream, until in now.items() if until > self.at.get(stream, 1)}

    async def ready(self, timeout_s: float) -> bool:
        """Wait until there are rows, at most this long."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.beyond():
                    if self._bell.closed.is_set():
                        raise stopping()
                    await self._bell.wait(self._get.topics)
        except TimeoutError:
            return False
        return True

    async def take(self, render: Callable[[list[FollowedRows], Frontier], T]) -> T:
        """The next rows, rendered on the thread that reads them; none if a filter leaves out what is there. `render`
        gets them with the position before them."""
        if self._bell.closed.is_set():
            raise stopping()
        until = self.beyond()
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
                    found.append(FollowedRows(rows, stream, where["next"]))
                at[stream] = where["next"]
                size += rows.nbytes
                if size >= self._chunk_bytes:
                    return at
        return until


def _closable(pieces: Iterator[Any]) -> Generator[Any, None, None]:
    yield from pieces
