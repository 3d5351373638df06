"""The channel's side of a gatekeeper: what its node has, and how rows are handed to it."""

import asyncio
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId, is_of_lineage
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.net.gateways.wire.messages import StreamHead
from m4cast.overlay.protocol.effects import CameAcross, ImportBatch, ImportBegin, OpenGates, ReadSelected
from m4cast.overlay.protocol.selective.contract import keep_id
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How
from m4cast.overlay.protocol.wire.selective import RoutedFrame

HOPS_MAX = 255


class HeldStream(NamedTuple):
    """The part of a stream that the node has; `next` may be ahead of the disk."""

    low: int
    next: int
    durable_next: int


class ChannelSide:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def is_own(self, origin: NodeId) -> bool:
        """True if this is, or was, a node of this channel. Statements of other channels about such a node are dropped
        (H44)."""
        node = self._driver.node
        return node.roster.get(origin) is not None or is_of_lineage(origin, node.me.node_id)

    def held(self, stream: StreamId) -> HeldStream | None:
        found = self._driver.node.dissemination.holdings.get(stream)
        if found is not None:
            return HeldStream(found.low, found.next, found.durable_next)
        end = self.selective_end(stream) if self.is_own(stream.origin) else 1
        return HeldStream(1, end, end) if end > 1 else None

    def selective_end(self, stream: StreamId) -> int:
        """The end of a selective stream of its channel that this node has whole; 1: it has none of it, or not all."""
        selective = self._driver.node.selection.selective
        if stream in selective.speaking.streams and stream.origin == self._driver.node.me.node_id:
            return selective.speaking.streams[stream].next
        return selective.receiving.coverage(keep_id(stream.origin), stream) or 1

    def is_selective(self, stream: StreamId) -> bool:
        selective = self._driver.node.selection.selective
        return stream in selective.receiving.streams or stream in selective.speaking.streams

    def speaks_for(self, stream: StreamId) -> bool:
        """True if this node can answer calls about a selective stream of its channel."""
        return self.is_own(stream.origin) and self.selective_end(stream) > 1

    def streams(self) -> list[StreamId]:
        """All streams that the node has rows of."""
        node = self._driver.node
        held = [each for each, stream in node.dissemination.holdings.streams.items() if stream.next > 1]
        selective = node.selection.selective
        return [*held, *selective.receiving.streams, *(each for each in selective.speaking.streams)]

    def origins(self) -> tuple[NodeId, ...]:
        """The other nodes of the channel."""
        node = self._driver.node
        return tuple(entry.node_id for entry in node.roster.members() if entry.node_id != node.me.node_id)

    def across(self, frame: RoutedFrame) -> None:
        """A frame about a selective stream came across."""
        self._driver.feed(CameAcross(frame))

    def keep(self, origins: tuple[NodeId, ...]) -> None:
        """Be a gatekeeper, and have every row of the selective streams of these nodes."""
        self._driver.feed(OpenGates(origins))

    def drop(self, origins: tuple[NodeId, ...]) -> None:
        """Have them no longer."""
        self._driver.feed(OpenGates(drop=origins))

    def head(self, stream: StreamId) -> StreamHead | None:
        held = self.held(stream)
        if held is None or held.durable_next <= 1:
            return None
        return StreamHead(stream.origin, stream.topic, held.low, held.durable_next)

    def first_kept(self, stream: StreamId, first: int) -> tuple[int, int]:
        """The first row from there on that is kept as data, and the end of what is; (0, 0): none is."""
        found = self._driver.node.dissemination.holdings.get(stream)
        if found is None:
            return 0, 0
        low = found.first_held_from(first)
        return (low, found.durable_next) if low < found.durable_next else (0, 0)

    def sequence_at(self, stream: StreamId, at_ms: int) -> int | None:
        return self._driver.store_side.store.sequence_at(stream, at_ms)

    async def read(self, stream: StreamId, first: int, until: int, bytes_max: int) -> tuple[tuple[Batch, ...], int]:
        """The batches that the log has there, and up to where it was read."""
        asked = ReadSelected(0, stream, first, until, bytes_max)
        found = await asyncio.to_thread(self._driver.store_side.store.selected.read, asked)
        return found.batches, found.read_next

    def hand_over(self, batch: Batch, hops: int, sender: NodeId) -> bool:
        """Spread a batch of another channel here; whether the node took it, or has it."""
        frame = BatchFrame(batch, min(hops, HOPS_MAX), How.PULLED if hops < 0 else How.PUSHED)
        self._driver.feed(ImportBatch(frame, sender))
        held = self.held(batch.stream)
        return held is not None and held.next >= batch.next_sequence

    def begin_at(self, stream: StreamId, first: int, upto: int) -> None:
        """Rows below are kept by nobody."""
        self._driver.feed(ImportBegin(stream, first, upto))
