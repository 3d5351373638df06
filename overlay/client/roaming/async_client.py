"""A client for asyncio: the calls of `Client`, each in a thread of its own, and notifications as an async iterator.

    async with AsyncClient(nodes, key="shop-7", credential="env:SHOP") as client:
        await client.subscribe("prices", "price > 100")
        async for rows in client.notifications():
            ...

It is the blocking client below, through the Flight doors: fills, migration and both languages are the same. Rows that
arrive for a task that was cancelled meanwhile are given to whoever asks next; they are not acknowledged before that.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

from m4cast.overlay.client.channel import Channel
from m4cast.overlay.client.put_call import RowRange
from m4cast.overlay.client.roaming.client import Client
from m4cast.overlay.client.roaming.notifications import Notifications
from m4cast.overlay.errors import LocalProtocolError

T = TypeVar("T")


class AsyncClient:
    """The client `key`; the settings are those of `Client`. For one task at a time, except `disconnect`.

    With `acknowledge="auto"`, rows are acknowledged when the next ones are requested; with "manual", by `acknowledge`.
    """

    def __init__(
        self, nodes: str | Sequence[str] | Channel, *, create: bool = False, acknowledge: str = "auto", **settings: Any
    ) -> None:
        """`create`: `async with` makes the client, if nobody knows its key."""
        if acknowledge not in ("auto", "manual"):
            raise LocalProtocolError(f"acknowledge is {acknowledge!r}: must be auto or manual")
        self._client = Client(nodes, acknowledge="manual", **settings)
        self._create = create
        self._is_auto = acknowledge == "auto"
        self._thread = ThreadPoolExecutor(1, f"m4cast-{self._client.key}")
        self._followed: Notifications | None = None
        self._coming: Future[pa.RecordBatch | None] | None = None
        """The rows that were asked for and that nobody has been given yet."""

    async def __aenter__(self) -> "AsyncClient":
        await self.connect(create=self._create)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        await self.disconnect()
        if kind is not None:  # what was not acknowledged is handed out again
            self._coming = None
            self._client.memory.rewind()

    @property
    def key(self) -> str:
        """The key of the client, by which every node knows it."""
        return self._client.key

    @property
    def node(self) -> str | None:
        """The access point that it is connected to; None: it is not."""
        return self._client.node

    @property
    def profiles(self) -> dict[str, tuple[str, str | None]]:
        """Topic and condition of each profile, by its name."""
        return self._client.profiles

    async def connect(self, *, create: bool = False, at: str | None = None) -> int:
        """Like `Client.connect`."""
        return await self._call(lambda: self._client.connect(create=create, at=at))

    async def subscribe(self, topic: str, where: str | None = None, **settings: Any) -> None:
        """Like `Client.subscribe`."""
        await self._call(lambda: self._client.subscribe(topic, where, **settings))

    async def unsubscribe(self, name: str = "default") -> bool:
        """Like `Client.unsubscribe`."""
        return await self._call(lambda: self._client.unsubscribe(name))

    async def publish(self, topic: str, rows: Any, **settings: Any) -> list[RowRange]:
        """Like `Client.publish`."""
        return await self._call(lambda: self._client.publish(topic, rows, **settings))

    async def notifications(self, idle_s: float | None = None) -> AsyncIterator[pa.RecordBatch]:
        """The rows that its profiles match, as record batches. Ends after `idle_s` without any."""
        if self._followed is not None and self._coming is None:
            followed, self._followed = self._followed, None
            await self._call(followed.close)  # it is an earlier call's, which has ended
        elif self._followed is not None:
            self._followed.wait_for(idle_s)
        while (rows := await self._next(idle_s)) is not None:
            yield rows

    async def acknowledge(self) -> None:
        """The application is done with everything that it was given, and the position is saved."""
        await self._call(self._acknowledge)

    def _acknowledge(self) -> None:
        """Runs in the thread."""
        self._client.acknowledge()
        self._client.save()

    async def disconnect(self) -> None:
        """Save the position, and end the connection. What was asked for and did not arrive is asked for no longer."""
        coming, followed = self._coming, self._followed
        if coming is not None and followed is not None:
            followed.stop()
            await asyncio.wait([asyncio.wrap_future(coming)])
            if coming.exception() is not None or coming.result() is None:
                self._coming = None
        self._followed = None
        await asyncio.wrap_future(self._thread.submit(self._client.disconnect))

    async def _next(self, idle_s: float | None) -> pa.RecordBatch | None:
        if self._coming is None:
            self._followed = self._followed or self._client.notifications(idle_s)
            self._coming = self._thread.submit(self._take, self._followed)
        coming = asyncio.wrap_future(self._coming)
        try:
            rows = await asyncio.shield(coming)
        except asyncio.CancelledError:
            raise  # the rows are kept for the next one
        except BaseException:
            self._coming = self._followed = None
            raise
        self._coming = None
        self._followed = None if rows is None else self._followed
        return rows

    def _take(self, followed: Notifications) -> pa.RecordBatch | None:
        """Runs in the thread."""
        if self._is_auto:
            self._client.memory.acknowledge()
        return next(followed, None)

    async def _call(self, call: Callable[[], T]) -> T:
        if self._coming is not None:
            raise LocalProtocolError(
                f"client {self.key!r} waits for rows: take them, or let another task wait, before the next call"
            )
        return await asyncio.wrap_future(self._thread.submit(call))
