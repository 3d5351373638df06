"""The store's side of a node: what the node asks of its store, and what the store's threads report back.

The store's writer and readers run on their own threads. Their reports come to the loop by `call_soon_threadsafe`, and
reach the node that asked: after a rollback another node takes its place, to which the old tokens mean something else.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Protocol

from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    AppendFailed,
    Damaged,
    Durable,
    FindTimes,
    Input,
    RangeRead,
    ReadRange,
    ReadSelected,
    Recovered,
    SelectedRead,
    TimesFound,
)
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.messages import RosterEntry

log = logging.getLogger("m4cast.node")

TRIM_BYTES = 64 << 20
"""Retention runs at the latest when this much was added. At full speed no more than this is over its limit, the file
keeps its size, and its pages stay in memory (measured: 640 MB/s instead of 530). Lower: more rounds, each of which
looks at all streams."""


class SelectiveReader(Protocol):
    def read(self, asked: ReadSelected) -> SelectedRead: ...


class NodeStore(Protocol):
    """The interface of a store that a node needs."""

    @property
    def recovered(self) -> Recovered: ...
    def append(self, append: Append) -> None: ...
    def heard(self, token: int) -> None: ...
    def read_range(self, stream: StreamId, first: int, next_sequence: int, bytes_max: int) -> tuple[Batch, ...]: ...
    def following(self, stream: StreamId, first: int) -> int: ...
    def sequence_at(self, stream: StreamId, at_ms: int) -> int | None: ...
    @property
    def selected(self) -> SelectiveReader: ...
    def save_roster(self, entry: RosterEntry, at_ms: int) -> object: ...
    def take_new_identity(self) -> Recovered: ...
    def is_nearly_full(self) -> bool: ...
    def trim(self, now_ms: int) -> "Future[list[tuple[StreamId, int]]]": ...
    def retention_clock_ms(self) -> int | None: ...
    def save_retention_clock(self, at_ms: int) -> object: ...


class StoreSide:
    """`open_store` is given this object, whose `on_...` methods the store calls; `stop_soon` ends the node."""

    def __init__(
        self,
        open_store: Callable[["StoreSide"], NodeStore],
        feed: Callable[[Input], None],
        stop_soon: Callable[[], None],
    ) -> None:
        self.node: Node
        """The node that asks; set by the driver."""
        self.broken = False
        self.trim_soon = asyncio.Event()
        """Set when enough was added for a round of retention."""
        self.appended: Callable[[Append], None] | None = None
        """Called with what the store is asked to append."""
        self._feed = feed
        self._stop_soon = stop_soon
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """The context in which reports of other threads are handled, so that a log line names the node it is about."""
        self._untrimmed_bytes = 0
        self.store = open_store(self)

    # ---- called by the driver, on the loop

    def append(self, append: Append) -> None:
        self.store.append(append)
        if self.appended is not None:
            self.appended(append)
        self._untrimmed_bytes += append.payload_bytes()
        if self._untrimmed_bytes >= TRIM_BYTES:
            self._untrimmed_bytes = 0
            self.trim_soon.set()

    def read(self, read: ReadRange) -> None:
        """Read in a thread of the loop's executor; a `RangeRead` follows."""
        self._loop.run_in_executor(None, self._read, self.node, read)

    def read_selected(self, asked: ReadSelected | FindTimes) -> None:
        """The same for selective streams; a `SelectedRead` or `TimesFound` follows."""
        self._loop.run_in_executor(None, self._read_selected, self.node, asked)

    # ---- called by the store, from any thread

    def on_durable(self, token: int) -> None:
        self._report(self.node, Durable(token))

    def on_failed(self, token: int, reason: str) -> None:
        self._report(self.node, AppendFailed(token, reason))

    def on_broken(self, reason: str) -> None:
        """The store no longer knows what is on disk: only a restart can tell."""
        log.critical("the store is broken, the node stops: %s", reason)
        self.broken = True
        self._loop.call_soon_threadsafe(self._stop_soon)

    def on_damaged(self, damaged: Damaged) -> None:
        """A batch in the store cannot be read, whoever reads it: the node fetches it again."""
        self._report(self.node, damaged)

    # ---- inside

    def _report(self, node: Node, event: Input) -> None:
        def report() -> None:
            if node is self.node:
                self._feed(event)

        self._loop.call_soon_threadsafe(report, context=self._context)

    def _read(self, node: Node, read: ReadRange) -> None:
        batches: tuple[Batch, ...] = ()
        following = 0
        try:
            batches = self.store.read_range(read.stream, read.first_sequence, read.next_sequence, read.bytes_max)
        except StoreError as error:  # Damaged, or closed meanwhile: other nodes may have what was asked for.
            log.error("a range cannot be read for a neighbour: %s", error)
            with suppress(StoreError):
                following = self.store.following(read.stream, read.first_sequence)
        self._report(node, RangeRead(read.token, batches, following))

    def _read_selected(self, node: Node, asked: ReadSelected | FindTimes) -> None:
        try:
            if isinstance(asked, ReadSelected):
                self._report(node, self.store.selected.read(asked))
            else:
                found = (self.store.sequence_at(asked.stream, time_ms) for time_ms in asked.times_ms)
                self._report(node, TimesFound(asked.token, tuple(sequence or 0 for sequence in found)))
        except StoreError as error:  # closed meanwhile; whoever asked asks again, or somebody else
            log.error("a selective stream cannot be read for another node: %s", error)
