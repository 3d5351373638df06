"""Filling: rows that a skip stands in place of turn up again, and take their place (PROTOCOL.md 5.4).

A skip records that no node that could be asked kept the rows. A node that was away for longer may still have them. So
when a link has exchanged holdings, the neighbour is asked for the ranges that are skipped here. A batch that lies
within one is written there, with a delivery record of its own (`How.FILLED`), and announced: neighbours with the same
skip ask for it in turn. Holdings, frontiers and what readers have received stay as they are; later readers of the range
get the rows.

A client may bring rows back as well, which it has rebuilt from what it kept of them (`restore`, PROTOCOL.md 5.8): into
a skip, or before the first row that is kept here.

Guarantees
4. Rows that a returning node still keeps are recovered.
7. At most `FILLS_MAX` ranges are asked for at a time; the others follow as these are answered.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from m4cast.overlay.errors import LocalProtocolError, RemoteProtocolError
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Append, FillSkip, PrependBatch, Refused, Restore, Restored, Trace
from m4cast.overlay.protocol.holdings import Holdings, Stream
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, Delivery, How, SkipReason
from m4cast.overlay.protocol.wire.frame import seal, split_extensions

FILLS_MAX = 4
"""Ranges that are asked for at a time; guess. Raising it fills sooner and costs memory for the batches that arrive."""
WAITING_MAX = 10_000
"""Ranges that wait to be asked for; more are asked for at the next link. Guess."""
FILLABLE = (SkipReason.EXPIRED, SkipReason.LOST)


@dataclass(slots=True)
class _Fill:
    stream: Stream
    batch: Batch
    request: int = 0
    """The request of the client that brought the rows; 0: a neighbour did."""
    is_before: bool = False
    """The rows go before the first one that is kept, not into a skip."""


class Filling:
    def __init__(self, context: Context, holdings: Holdings, ask: Callable[[NodeId, StreamId, int, int], bool]) -> None:
        """`ask`: pull the range from a source; False if it is no source any more, or has too much to answer."""
        self._holdings = holdings
        self._next_token = context.next_token
        self._clocks = context.clocks
        self._ask = ask
        self._out = context.out
        self.asked: dict[tuple[StreamId, int], NodeId] = {}
        """Stream and first sequence of a range -> who was asked for it."""
        self._waiting: dict[tuple[NodeId, StreamId, int, int], None] = {}
        self.appends: dict[int, _Fill] = {}
        """Rows on their way to the disk, by the token of their append."""
        self.filled = 0

    def exchanged(self, node_id: NodeId) -> None:
        """A neighbour has reported its holdings: it may keep what was skipped here."""
        for stream in self._holdings.streams.values():
            if stream.skips and not stream.forked:
                for skip in stream.skips:
                    if skip.reason in FILLABLE and skip.last_sequence >= stream.low:
                        first = max(skip.first_sequence, stream.low)
                        self._want(node_id, stream.id, first, skip.last_sequence + 1)
        self._ask_more()

    def offered(self, node_id: NodeId, stream_id: StreamId, first: int, next_sequence: int) -> None:
        """A neighbour announces rows that may have been skipped here."""
        stream = self._holdings.get(stream_id)
        if stream is not None and stream.skips and self._is_skipped(stream, first, next_sequence):
            self._want(node_id, stream_id, first, next_sequence)
            self._ask_more()

    def _is_skipped(self, stream: Stream, first: int, next_sequence: int) -> bool:
        return not stream.forked and any(
            skip.reason in FILLABLE and skip.first_sequence <= first and next_sequence - 1 <= skip.last_sequence
            for skip in stream.skips
        )

    def _want(self, node_id: NodeId, stream_id: StreamId, first: int, next_sequence: int) -> None:
        if len(self._waiting) < WAITING_MAX:
            self._waiting[node_id, stream_id, first, next_sequence] = None

    def _ask_more(self) -> None:
        while self._waiting and len(self.asked) < FILLS_MAX:
            node_id, stream_id, first, next_sequence = wanted = next(iter(self._waiting))
            del self._waiting[wanted]
            stream = self._holdings.streams[stream_id]
            if (stream_id, first) in self.asked or not self._is_skipped(stream, first, next_sequence):
                continue
            if self._ask(node_id, stream_id, first, next_sequence):
                self.asked[stream_id, first] = node_id

    def received(self, frame: BatchFrame, sender: NodeId, now_ms: int) -> None:
        """A batch arrived while ranges are asked for."""
        batch = frame.batch
        stream = self._holdings.get(batch.stream)
        if stream is None or batch.first_sequence < stream.low:
            return
        is_coming = any(fill.batch.checksum == batch.checksum for fill in self.appends.values())
        if is_coming or not self._is_skipped(stream, batch.first_sequence, batch.next_sequence):
            return
        self._fill(_Fill(stream, batch), frame.hops, sender, now_ms)

    def _fill(self, fill: _Fill, hops: int, sender: NodeId | None, now_ms: int) -> None:
        batch = fill.batch
        delivery = Delivery(
            batch.stream,
            batch.first_sequence,
            batch.last_sequence,
            batch.published_at_ms,
            now_ms + self._clocks.offset_ms,
            hops,
            How.FILLED,
            sender,
        )
        token = self._next_token()
        self.appends[token] = fill
        self._out.append(Append(token, (FillSkip(batch, delivery),)))

    # ---- rows that a client brings back

    def restore(self, asked: Restore, now_ms: int) -> None:
        """Take a batch that a client has rebuilt, if it is what its stream had and there is a place for it."""
        try:
            batch = replace(asked.batch, extensions=split_extensions(asked.extensions, 0, len(asked.extensions)))
            sealed = seal(batch)
        except (LocalProtocolError, RemoteProtocolError) as error:
            self._out.append(Refused(asked.request, "bad-request", f"{error}: give the batch as it was published"))
            return
        stream = self._holdings.get(batch.stream)
        if sealed.checksum != batch.checksum:
            self._refuse(
                asked, f"its checksum is {sealed.checksum:016x}, not {batch.checksum:016x}: rows or facts differ"
            )
        elif stream is None or stream.next == 1 or stream.forked:
            self._refuse(asked, "this node does not know its stream, or has two histories of it: ask another node")
        elif any(fill.batch.stream == batch.stream and fill.request for fill in self.appends.values()):
            self._out.append(
                Refused(asked.request, "busy", "a batch of this stream is being restored: repeat it later")
            )
        elif self._is_skipped(stream, batch.first_sequence, batch.next_sequence):
            self._fill(_Fill(stream, sealed, asked.request), 0, None, now_ms)
        elif batch.next_sequence == stream.low:
            token = self._next_token()
            self.appends[token] = _Fill(stream, sealed, asked.request, is_before=True)
            self._out.append(Append(token, (PrependBatch(sealed, now_ms + self._clocks.offset_ms),)))
        elif stream.low <= batch.first_sequence and batch.next_sequence <= stream.durable_next:
            self._out.append(Restored(asked.request, is_new=False))
        else:
            self._refuse(asked, f"rows from {stream.low} on are kept: restore those that end there first")

    def _refuse(self, asked: Restore, why: str) -> None:
        batch = asked.batch
        what = f"rows {batch.first_sequence} to {batch.last_sequence} of topic {batch.stream.topic!r}"
        self._out.append(Refused(asked.request, "not-restored", f"{what}: {why}"))

    def answered(self, stream_id: StreamId, first: int, sender: NodeId, served_next: int, next_sequence: int) -> None:
        """A pull was answered; the source may have more of the same skip."""
        if self.asked.get((stream_id, first)) != sender:
            return
        del self.asked[stream_id, first]
        if first < served_next < next_sequence:
            stream = self._holdings.streams[stream_id]
            for skip in stream.skips:
                if skip.first_sequence <= served_next <= skip.last_sequence:
                    self._want(sender, stream_id, served_next, skip.last_sequence + 1)
        self._ask_more()

    def source_down(self, node_id: NodeId) -> None:
        self.asked = {place: source for place, source in self.asked.items() if source != node_id}
        self._waiting = {wanted: None for wanted in self._waiting if wanted[0] != node_id}
        self._ask_more()

    def durable(self, token: int) -> tuple[Stream, Batch] | None:
        """Return what this append has filled, if it was a fill."""
        fill = self.appends.pop(token, None)
        if fill is None:
            return None
        if fill.request:
            self._out.append(Restored(fill.request, is_new=True))
        if not fill.is_before:
            fill.stream.fill(fill.batch.first_sequence, fill.batch.last_sequence)
        elif fill.stream.low == fill.batch.next_sequence:  # else retention was faster, and nothing was written
            fill.stream.low = fill.batch.first_sequence
        self.filled += 1
        place = (("origin", fill.batch.stream.origin.hex()), ("topic", fill.batch.stream.topic))
        self._out.append(Trace("filled", (*place, ("first", fill.batch.first_sequence))))
        return fill.stream, fill.batch

    def failed(self, token: int) -> None:
        """This append and all later ones were not kept: the next link asks again."""
        for at, fill in self.appends.items():
            if at >= token and fill.request:
                self._out.append(Refused(fill.request, "store", "the rows were not stored: repeat it later"))
        self.appends = {at: fill for at, fill in self.appends.items() if at < token}
