"""Ordering: batches come in any order and more than once; they are accepted in sequence order, exactly once
(guarantees 2, 7).

A batch is accepted when it is the next of its stream. An earlier one is a duplicate; a later one is held back
(`hold_back.py`). What is accepted goes to the disk; `next` is how far the stream was accepted, `durable_next` how far
it is on disk. What the disk did not keep is taken back, as if it had never come. A batch that overlaps what is here, or
does not follow it by its checksum, shows that the stream has two histories: it is forked, and nothing more of it is
accepted.

Cost: a duplicate takes a dictionary look-up and two comparisons, an accepted batch one `Append` and one event; watched
by `tests/bench/hot_path.py`.
"""

from collections.abc import Callable
from enum import Enum

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Append, AppendBatch, AppendSkip, Delivered, StartStream, Trace
from m4cast.overlay.protocol.holdings import Holdings, Stream
from m4cast.overlay.protocol.streams.hold_back import Backlog, Backlogs, EarlyBatch
from m4cast.overlay.protocol.streams.timers import WantDue
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, Delivery, How, Skip, SkipReason, Traffic
from m4cast.overlay.value import value

# ---- what becomes of a batch that comes


@value
class Accepted:
    """The frame is the next of its stream; it may go on to the others. Also an event."""

    stream: Stream
    frame: BatchFrame


@value
class Duplicate:
    """It is here already."""


@value
class HeldBack:
    """It came before those that it follows, and waits for them."""

    stream: Stream


class ShedReason(Enum):
    DISK_BEHIND = "disk-behind"
    HOLD_BACK = "hold-back"


@value
class Shed:
    """There is no room for it now; it is asked for again later."""

    stream: Stream
    reason: ShedReason


@value
class Forked:
    """The stream has two histories: nothing more of it is accepted."""


Receipt = Accepted | Duplicate | HeldBack | Shed | Forked
DUPLICATE, FORKED = Duplicate(), Forked()


@value
class Persisted:
    """One more entry of the stream is on disk."""

    stream: Stream


OrderingEvent = Accepted | Persisted


class Ordering:
    def __init__(
        self,
        context: Context,
        holdings: Holdings,
        backlogs: Backlogs,
        recover: Callable[[Append], Append],
        emit: Callable[[OrderingEvent], None],
    ) -> None:
        """`recover`: adds to an append of received batches what their commits moved (`CommitMachine.recover`)."""
        self._context = context
        self._config = context.config
        self._out = context.out
        self._holdings = holdings
        self._backlogs = backlogs
        self._recover = recover
        self._emit = emit
        self._appends: dict[int, tuple[Stream, BatchFrame | Skip, Delivery | Skip]] = {}
        self._starts: dict[int, tuple[StreamId, ...]] = {}
        self.undurable_bytes = 0
        """Payload that was accepted and is not on disk yet."""
        self.received = Traffic()
        """All copies that came, duplicates included."""
        self.duplicates = 0
        self.delivered = {how: Traffic() for how in How}
        self.forks: dict[StreamId, None] = {}
        """Streams with two histories, noticed since the start."""

    # ---- receiving

    def receive(self, frame: BatchFrame, sender: NodeId, now_ms: int) -> Receipt:
        batch = frame.batch
        first, following = batch.first_sequence, batch.next_sequence
        self.received.count(batch)
        stream = self._holdings.open(batch.stream)
        stream.claim(sender, 1, following)
        if following <= stream.next:
            self.duplicates += 1
            return DUPLICATE
        if stream.forked:
            return FORKED
        if first < stream.next:
            return self._fork(stream, batch, "overlaps what is here")
        backlog = self._backlogs.get(stream.id)
        if backlog is not None and first in backlog.early:
            self.duplicates += 1
            return DUPLICATE
        if self.undurable_bytes + len(batch.payload) > self._config.undurable_bytes_max:
            self._out.append(Trace("shed", (("reason", "disk-behind"), ("topic", batch.stream.topic))))
            self._want_later(stream.id, now_ms + self._config.pull_timeout_ms // 4)
            return Shed(stream, ShedReason.DISK_BEHIND)
        received_at_ms = now_ms + self._context.clocks.offset_ms
        if first == stream.next:
            receipt = self._accept(stream, frame, sender, received_at_ms)
            if backlog is not None:
                self.release(stream, backlog)
            return receipt
        self._backlogs.open_gap(stream.id, first)
        if self._backlogs.hold_back(stream.id, EarlyBatch(frame, sender, received_at_ms)):
            return HeldBack(stream)
        return Shed(stream, ShedReason.HOLD_BACK)

    def _want_later(self, stream_id: StreamId, at_ms: int) -> None:
        self._context.timers.set_sooner(WantDue(stream_id), at_ms)

    def _accept(self, stream: Stream, frame: BatchFrame, sender: NodeId, received_at_ms: int) -> Receipt:
        batch = frame.batch
        if stream.last_checksum and batch.previous_checksum != stream.last_checksum:
            return self._fork(stream, batch, "does not follow what is here")
        self._holdings.advance(stream, batch.next_sequence, batch.checksum)
        backlog = self._backlogs.get(stream.id)
        if backlog is not None:
            backlog.advanced()
        delivery = Delivery(
            stream=batch.stream,
            first_sequence=batch.first_sequence,
            last_sequence=batch.last_sequence,
            published_at_ms=batch.published_at_ms,
            received_at_ms=received_at_ms,
            hops=frame.hops,
            how=frame.how,
            sender=sender,
        )
        token = self._context.next_token()
        self._appends[token] = (stream, frame, delivery)
        stream.undurable.append(frame)
        self.undurable_bytes += len(batch.payload)
        write = AppendBatch(batch, delivery)
        writes = (StartStream(stream.id, stream.low), write) if stream.start_unsaved else (write,)
        self._out.append(self._recover(Append(token, writes)))
        accepted = Accepted(stream, frame)
        self._emit(accepted)
        return accepted

    def release(self, stream: Stream, backlog: Backlog) -> None:
        """Accept batches that were held back and are next now, as far as the disk keeps up."""
        early = backlog.early
        while early and (entry := early.get(stream.next)) is not None and not stream.forked:
            if self.undurable_bytes + len(entry.frame.batch.payload) > self._config.undurable_bytes_max:
                self._backlogs.for_disk[stream.id] = None
                break
            self._backlogs.take(backlog, stream.next)
            self._accept(stream, entry.frame, entry.sender, entry.received_at_ms)
        if backlog.gap:
            self._backlogs.close_gap(backlog, stream.next, repaired=True)

    def drop_overtaken(self, stream: Stream, backlog: Backlog) -> None:
        """A batch that was held back and lies below `next` now, wholly or in part, is of another history."""
        for entry in self._backlogs.take_overtaken(backlog, stream.next):
            if entry.frame.batch.next_sequence > stream.next:
                self._fork(stream, entry.frame.batch, "overlaps what is here")
                return

    def _fork(self, stream: Stream, batch: Batch, why: str) -> Forked:
        stream.forked = True
        self.forks[stream.id] = None
        self._backlogs.drop_all(stream.id)
        detail = (("origin", stream.id.origin.hex()), ("topic", stream.id.topic), ("at", batch.first_sequence))
        self._out.append(Trace("fork", (*detail, ("why", why))))
        return FORKED

    # ---- streams that begin in the middle, and holes that stay

    def start_at(self, starts: list[tuple[StreamId, int]]) -> None:
        """Begin these streams, of which nothing is here, in the middle."""
        for stream_id, next_sequence in starts:
            stream = self._holdings.open(stream_id)
            stream.low = stream.durable_next = next_sequence
            stream.start_unsaved = next_sequence > 1
            self._holdings.advance(stream, next_sequence, 0)
        self._save_starts(starts)

    def save_start_again(self, stream: Stream) -> None:
        """Save where the stream begins once more, if the store failed to, and is not saving it now."""
        if stream.start_unsaved and not any(stream.id in saved for saved in self._starts.values()):
            self._save_starts([(stream.id, stream.low)])

    def _save_starts(self, starts: list[tuple[StreamId, int]]) -> None:
        token = self._context.next_token()
        self._starts[token] = tuple(stream_id for stream_id, _ in starts)
        self._out.append(Append(token, tuple([StartStream(*start) for start in starts])))

    def skip(self, stream: Stream, backlog: Backlog, upto: int, now_ms: int) -> None:
        """Give up the rows from `next` to before `upto`: an entry without rows takes their place."""
        was_damaged = backlog.damaged == stream.next
        backlog.damaged = 0
        reason = SkipReason.LOST if was_damaged else SkipReason.EXPIRED
        skip = Skip(stream.id, stream.next, upto - 1, reason, self._context.me.node_id)
        stream.skips.append(skip)
        self._holdings.advance(stream, upto, 0)
        backlog.advanced()
        token = self._context.next_token()
        self._appends[token] = (stream, skip, skip)
        record = Delivery(
            stream=stream.id,
            first_sequence=skip.first_sequence,
            last_sequence=skip.last_sequence,
            published_at_ms=0,
            received_at_ms=now_ms + self._context.clocks.offset_ms,
            hops=0,
            how=How.PULLED,
            sender=None,
        )
        write = AppendSkip(skip, record)
        writes = (StartStream(stream.id, stream.low), write) if stream.start_unsaved else (write,)
        self._out.append(Append(token, writes))
        self._backlogs.close_gap(backlog, stream.next, repaired=False)
        self.release(stream, backlog)

    # ---- durability

    def durable(self, token: int) -> bool:
        """True if this append was one of received rows, or of a skip; then these are delivered."""
        for stream_id in self._starts.pop(token, ()):
            self._holdings.streams[stream_id].start_unsaved = False
        entry = self._appends.pop(token, None)
        if entry is None:
            return False
        stream, what, record = entry
        stream.start_unsaved = False
        if isinstance(what, Skip):
            stream.durable_next = what.last_sequence + 1
            stream.durable_checksum = 0
        else:
            assert stream.undurable[0] is what
            stream.undurable.popleft()
            stream.durable_next = what.batch.next_sequence
            stream.durable_checksum = what.batch.checksum
            self.undurable_bytes -= len(what.batch.payload)
            self.delivered[what.how].count(what.batch)
        self._out.append(Delivered(record))
        self._emit(Persisted(stream))
        return True

    def failed(self, token: int, now_ms: int) -> None:
        """This append and all later ones are not on disk: fall back to what is, and ask for the rest again."""
        again_at_ms = now_ms + self._config.pull_timeout_ms
        for at in [at for at in self._starts if at >= token]:
            for stream_id in self._starts.pop(at):
                self._want_later(stream_id, again_at_ms)
        for at in [at for at in reversed(self._appends) if at >= token]:
            stream, what, _ = self._appends.pop(at)
            if isinstance(what, Skip):
                stream.skips.remove(what)
                first = what.first_sequence
            else:
                frame = stream.undurable.pop()
                assert frame is what
                self.undurable_bytes -= len(frame.batch.payload)
                first = frame.batch.first_sequence
            before = stream.undurable[-1].batch.checksum if stream.undurable else stream.durable_checksum
            self._holdings.advance(stream, first, before)
            self._want_later(stream.id, again_at_ms)
