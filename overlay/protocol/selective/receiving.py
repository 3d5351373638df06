"""Receiving: batches and statements become log entries and marks; coverage follows from the marks (rules R1, R3, R5).

Nothing is held back. A batch goes to the log wherever it belongs, and settles its own range; a statement settles what
lies between, for the version that it names. What is not settled for a registration, from its begin on, is a hole; holes
below the known end are fetched. Only durable marks count for others: for acknowledgements and for authority.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, InsertBatch, MarksRecord, NoteSkip, Trace
from m4cast.overlay.protocol.selective.contract import SelectiveOutput, SelectiveRecovered, SelectiveWrite
from m4cast.overlay.protocol.selective.marks import ENDLESS, HELD, Marks
from m4cast.overlay.protocol.selective.wants import Wants, covers_profile
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.selective import ProfileText

RECENT_MAX = 1_024
"""Batches that are remembered as stored, so that duplicates do not reach the disk."""


class Hole(NamedTuple):
    first: int
    next: int


class Authority(NamedTuple):
    """The statement that this node may make about a stream: there is nothing else there, up to `next`."""

    next: int
    has_all: bool
    """It wants every row from the first on, and has it, but for what nobody had."""
    is_whole: bool
    """It had every row itself."""


@dataclass(slots=True)
class SelectedStream:
    id: StreamId
    accepted: Marks
    """Including what is on its way to the disk."""
    durable: Marks
    heard: int = 1
    """The farthest that the stream is known to reach."""
    known_at: int = 1
    known_checksum: int = 0
    """The checksum of the batch that ends at `known_at`; 0: unknown."""
    forked: bool = False
    lost: int = 1
    """The end of the last skip `lost`: what lies below it was never whole here."""
    speaker: NodeId | None = None
    """The node that sent the latest batch or statement of it."""

    @property
    def end(self) -> int:
        return max(self.heard, self.accepted.end)


class _Pending(NamedTuple):
    token: int
    stream: SelectedStream
    runs: tuple[tuple[int, int], ...]
    payload_bytes: int


class Receiving:
    def __init__(
        self,
        recovered: SelectiveRecovered,
        wants: Wants,
        undurable_bytes_max: int,
        next_token: Callable[[], int],
        out: list[SelectiveOutput],
    ) -> None:
        self.streams = {
            stream_id: SelectedStream(stream_id, Marks(runs), Marks(runs), lost=recovered.lost.get(stream_id, 1))
            for stream_id, runs in recovered.marks.items()
        }
        self.undurable_bytes = 0
        self._wants = wants
        self._undurable_bytes_max = undurable_bytes_max
        self._next_token = next_token
        self._out = out
        self._pending: deque[_Pending] = deque()
        self._recent: OrderedDict[tuple[StreamId, int], None] = OrderedDict()

    def open(self, stream_id: StreamId) -> SelectedStream | None:
        """The stream, if anything of it is wanted here."""
        stream = self.streams.get(stream_id)
        if stream is None and self._wants.of(stream_id):
            stream = self.streams[stream_id] = SelectedStream(stream_id, Marks(), Marks())
        return stream

    # ---- what arrives

    def batch(self, stream: SelectedStream, batch: Batch, sender: NodeId, now_ms: int, hops: int = 0) -> bool:
        """Store a batch; False if it was not taken."""
        stream.heard = max(stream.heard, batch.next_sequence)
        if stream.forked:
            return False
        if (stream.id, batch.first_sequence) in self._recent:
            return self._settle_again(stream, batch)
        ends = ((batch.first_sequence, batch.previous_checksum), (batch.next_sequence, batch.checksum))
        if any(position == stream.known_at and self._forks(stream, checksum) for position, checksum in ends):
            return False
        size = len(batch.payload)
        if self.undurable_bytes + size > self._undurable_bytes_max:
            self._out.append(Trace("shed", (("reason", "undurable"), ("topic", stream.id.topic))))
            return False
        self._remember(stream.id, batch.first_sequence)
        self._learn(stream, batch.next_sequence, batch.checksum)
        stream.accepted.raise_to(batch.first_sequence, batch.next_sequence, HELD)
        is_late = batch.next_sequence < stream.accepted.end
        delivery = Delivery(
            stream=stream.id,
            first_sequence=batch.first_sequence,
            last_sequence=batch.last_sequence,
            published_at_ms=batch.published_at_ms,
            received_at_ms=now_ms,
            hops=hops,
            how=How.FILLED if is_late else How.PUSHED,
            sender=sender,
        )
        self._append(stream, (InsertBatch(batch, delivery),), size)
        return True

    def _settle_again(self, stream: SelectedStream, batch: Batch) -> bool:
        """A duplicate. Its range may have become unsettled: for a later registration, or for lack of room."""
        latest = max(self._wants.joins(stream.id), default=0)
        if latest == 0 or stream.accepted.first_below(batch.first_sequence, latest) >= batch.next_sequence:
            return False
        stream.accepted.raise_to(batch.first_sequence, batch.next_sequence, HELD)
        self._append(stream, ())
        return True

    def state(self, stream: SelectedStream, first: int, following: int, version: int) -> bool:
        """Take a statement: nothing that this version wants lies in `first .. following - 1`."""
        stream.heard = max(stream.heard, following)
        if stream.forked or not stream.accepted.raise_to(first, following, version):
            return False
        self._append(stream, ())
        return True

    def expire(self, stream: SelectedStream, lacking: Hole, version: int, by: NodeId, reason: SkipReason) -> None:
        """Skip rows that no node retains any longer."""
        if stream.accepted.raise_to(*lacking, version):
            skip = Skip(stream.id, lacking.first, lacking.next - 1, reason, by)
            if reason is SkipReason.LOST:
                stream.lost = max(stream.lost, lacking.next)
            self._append(stream, (NoteSkip(skip),))

    def holds(self, stream: SelectedStream, batches: Iterable[Batch]) -> None:
        """These are in the log already."""
        for batch in batches:
            stream.accepted.raise_to(batch.first_sequence, batch.next_sequence, HELD)
        self._append(stream, ())

    def lose(self, stream_id: StreamId, lacking: Hole, by: NodeId) -> None:
        """Rows that are in the log cannot be read, and nobody else has them."""
        skip = NoteSkip(Skip(stream_id, lacking.first, lacking.next - 1, SkipReason.LOST, by))
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.lost = max(stream.lost, lacking.next)
            self._append(stream, (skip,))
        else:  # an own one
            self._out.append(Append(self._next_token(), (skip,)))

    def settle_kept(self, stream: SelectedStream, join: int, token: int) -> MarksRecord:
        """This node keeps the stream no longer. What it has whole stays settled, for everybody: it is in the log."""
        for start, following, version in stream.accepted.spans():
            if version >= join:
                stream.accepted.raise_to(start, following, HELD)
        runs = stream.accepted.runs()
        self._pending.append(_Pending(token, stream, runs, 0))
        return MarksRecord(stream.id, runs)

    def ends_with(self, stream: SelectedStream, position: int, checksum: int) -> None:
        """Apply a statement that the batch that ends at this position has this checksum."""
        if checksum and not (stream.known_at == position and self._forks(stream, checksum)):
            self._learn(stream, position, checksum)

    def fork(self, stream: SelectedStream) -> None:
        """Two histories of the stream exist: nothing more of it is taken."""
        if not stream.forked:
            stream.forked = True
            facts = (("origin", stream.id.origin.hex()), ("topic", stream.id.topic))
            self._out.append(Trace("fork", facts))

    def _forks(self, stream: SelectedStream, checksum: int) -> bool:
        if stream.known_checksum in (0, checksum) or not checksum:
            return False
        self.fork(stream)
        return True

    def _learn(self, stream: SelectedStream, position: int, checksum: int) -> None:
        if position >= stream.known_at:
            stream.known_at, stream.known_checksum = position, checksum

    def _remember(self, stream_id: StreamId, first: int) -> None:
        self._recent[stream_id, first] = None
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def _append(self, stream: SelectedStream, writes: tuple[SelectiveWrite, ...], payload_bytes: int = 0) -> None:
        stream.accepted.settle(self._wants.joins(stream.id))
        runs = stream.accepted.runs()
        token = self._next_token()
        self.undurable_bytes += payload_bytes
        self._pending.append(_Pending(token, stream, runs, payload_bytes))
        self._out.append(Append(token, (*writes, MarksRecord(stream.id, runs))))

    # ---- the store

    def persisted(self, token: int) -> list[SelectedStream]:
        """The append with this token, and all before it, are on the disk. Returns the streams that moved."""
        moved: dict[StreamId, SelectedStream] = {}
        while self._pending and self._pending[0].token <= token:
            done = self._pending.popleft()
            self.undurable_bytes -= done.payload_bytes
            done.stream.durable = Marks(done.runs)
            moved[done.stream.id] = done.stream
        return list(moved.values())

    def failed(self, token: int) -> list[SelectedStream]:
        """The append with this token, and all after it, were not kept."""
        lost = [pending for pending in self._pending if pending.token >= token]
        kept = [pending for pending in self._pending if pending.token < token]
        self._pending = deque(kept)
        self._recent.clear()
        streams = {pending.stream.id: pending.stream for pending in lost}
        for pending in lost:
            self.undurable_bytes -= pending.payload_bytes
        for stream in streams.values():
            last = [pending.runs for pending in kept if pending.stream is stream]
            stream.accepted = Marks(last[-1]) if last else stream.durable.copy()
        return list(streams.values())

    # ---- coverage

    def coverage(self, want: str, stream_id: StreamId) -> int | None:
        """The position below which all that a registration wants is on this disk; None: its begin is not known yet."""
        stored, stream = self._wants.durable.get(want), self.streams.get(stream_id)
        begin = self._wants.begin(stored, stream_id) if stored is not None else None
        if stored is None or stream is None or begin is None:
            return None
        return stream.durable.first_below(begin, self._wants.join(stored, stream_id))

    def level(self, stream: SelectedStream) -> int | None:
        """The position below which everything that is wanted here is on the disk; None while a begin is lacking. It is
        not beyond the stream's end, even if a registration begins there."""
        ends = []
        for begin, join, _ in self._wants.begun(stream.id):
            if begin is None:
                return None
            ends.append(stream.durable.first_below(begin, join))
        return min(*ends, stream.end) if ends else None

    def hole(self, stream: SelectedStream) -> Hole | None:
        """The first range that some registration lacks, as far as the stream is known to reach."""
        if stream.forked:
            return None
        begun = [(begin, join) for begin, join, _ in self._wants.begun(stream.id) if begin is not None]
        firsts = [stream.accepted.first_below(begin, join) for begin, join in begun]
        first = min(firsts, default=ENDLESS)
        if first >= stream.end:
            return None
        following = max(
            stream.accepted.settled_from(first, join)
            for begin, join in begun
            if stream.accepted.first_below(begin, join) == first
        )
        return Hole(first, min(following, stream.end))

    def authority(self, stream_id: StreamId, first: int, profiles: tuple[ProfileText, ...]) -> Authority:
        """The position below which this node may say that nothing else matches; `first` itself: it may say nothing."""
        stream = self.streams.get(stream_id)
        if stream is None or stream.forked:
            return Authority(first, has_all=False, is_whole=False)
        begun = [
            (stored.want, begin, stream.durable.first_below(first, self._wants.join(stored, stream_id)))
            for stored in self._wants.of(stream_id)
            if (begin := self._wants.begin(stored, stream_id)) is not None and begin <= first
        ]
        ends = [
            max((end for want, _, end in begun if covers_profile(want, asked)), default=first)
            for asked in profiles or (None,)
        ]
        has_all = any(begin == 1 and want.profile is None and end >= min(ends) for want, begin, end in begun)
        return Authority(min(ends), has_all, has_all and first >= stream.lost)
