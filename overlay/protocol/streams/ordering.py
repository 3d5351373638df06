"""Ordering: the receiving half of dissemination. Batches come in any order and more than once; they are accepted
in sequence order, exactly once, and whatever is missing is asked for (guarantees 2, 4, 7).

A batch is accepted when it is the next of its stream. An earlier one is a duplicate; a later one is held back.
What a peer *claims* to have (by a push, an announcement, a frontier, its holdings) and this node has neither
accepted, held back nor asked for is missing, and is pulled at once: first from the peer that showed it, then from
others that claim it, then, if nobody near has it, from holders found by a flooded search. A range that is being
pulled is not a gap. When every claimant says that it keeps the range no more, a search finds no holder, and everybody
who may keep it has been asked (`inquiries.py`), the range becomes a skip; "not yet" never does. One peer has a limited
number of pulls to answer at a time; streams beyond it wait for their turn, at each peer that could serve them.

Hold-back is bounded: it evicts the farthest first, and the next one wanted needs no place in it. What was evicted,
or refused because too much waits for the disk, is pulled again later. A duplicate costs a dictionary look-up and
two comparisons; an accepted batch one `Append` and one event.
"""

from collections.abc import Callable
from dataclasses import dataclass

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Append, Delivered, Send, Trace
from m4cast.overlay.protocol.floods import first_search
from m4cast.overlay.protocol.holdings import ORIGIN_PATIENCE_MS, Holdings, Stream
from m4cast.overlay.protocol.streams.timers import HolderSearchDue, PullTimeout, WantDue
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, Delivery, How, Skip, SkipReason, Traffic
from m4cast.overlay.protocol.wire.messages import HolderSearchStmt, PullCall, PullResp
from m4cast.overlay.value import value

PULLS_PER_STREAM_MAX = 8
"""Ranges of one stream asked for at the same time; guess. Raising it fills long links and costs hold-back."""
PULLS_PER_SOURCE_MAX = 32
"""Pulls that one source has not answered yet, of all streams. Half of what it keeps waiting (`PULLS_WAITING_MAX` in
spreading), so that a node which is asked on a link and on a call at the same time refuses neither. It serves one at a
time: raising it saves no round trips, and the last of them waits longer for its first batch; guess."""
HOLDER_SEARCH_HOPS = (3, 255)
"""Reach of the successive searches for a holder; a skip needs an answerless search of the last one."""
HOLDER_SEARCH_MS_MAX = 60_000


@dataclass(slots=True)
class Held:
    frame: BatchFrame
    sender: NodeId
    received_at_ms: int


@dataclass(slots=True)
class Pull:
    first: int
    next: int
    source: NodeId


@dataclass(slots=True)
class Search:
    """A search for whoever keeps the next wanted row of a stream."""

    attempts: int = 0
    flood_at_ms: int = 0
    """When the channel is searched again."""
    look_at_ms: int | None = None
    """When to look whether the row may be given up, as far as that is known."""


@value
class Accepted:
    """The frame is the next of its stream; it may go on to the others."""

    stream: Stream
    frame: BatchFrame


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
        recover: Callable[[Append], Append],
        emit: Callable[[OrderingEvent], None],
    ) -> None:
        """`recover`: adds to an append of received batches what their commits moved (`CommitMachine.recover`)."""
        self._me = context.me
        self._holdings = holdings
        self._config = context.config
        self._random = context.random
        self._timers = context.timers
        self._next_token = context.next_token
        self._recover = recover
        self._out = context.out
        self._emit = emit
        self._clocks = context.clocks
        self._sources: dict[NodeId, int] = {}
        self._helpers: dict[NodeId, None] = {}  # sources that are no neighbours
        self._unanswered: dict[NodeId, int] = {}  # pulls at each source, those that expired as well: it has them still
        self._turns: dict[NodeId, dict[StreamId, None]] = {}  # streams that wait until a source has answered enough
        self._held: dict[StreamId, dict[int, Held]] = {}
        self._pulls: dict[StreamId, dict[int, Pull]] = {}
        self._for_disk: dict[StreamId, None] = {}  # not asked for until the disk has caught up
        self._coming: dict[StreamId, tuple[int, int]] = {}  # `next`, and since when it waits there for its origin
        self._tried: dict[StreamId, list[NodeId]] = {}  # sources that failed the next wanted sequence
        self._searches: dict[StreamId, Search] = {}  # for the next wanted sequence
        self._damaged: dict[StreamId, int] = {}  # the row that a holder has and cannot read
        self._found: dict[StreamId, None] = {}  # the latest search for the stream brought a holder
        self._appends: dict[int, tuple[Stream, BatchFrame | Skip, Delivery | Skip]] = {}
        self._starts: dict[int, tuple[StreamId, ...]] = {}
        self._search = first_search(context.incarnation)
        self.held_bytes = 0
        self.undurable_bytes = 0
        self.received = Traffic()
        """All copies that came, duplicates too."""
        self.duplicates = 0
        self.delivered = {how: Traffic() for how in How}
        self.forks: dict[StreamId, None] = {}
        """Streams with two histories, noticed since the start."""
        self.gaps_opened = 0
        self.gaps_repaired = 0
        self._gaps: dict[StreamId, int] = {}  # the farthest batch that came before those that it follows

    # ---- sources

    def source_up(self, node_id: NodeId, conn: int, *, is_neighbour: bool = True) -> None:
        self._sources[node_id] = conn
        self._unanswered[node_id] = 0  # on this connection
        if is_neighbour:
            self._helpers.pop(node_id, None)
        else:
            self._helpers[node_id] = None

    def source_down(self, node_id: NodeId, now_ms: int) -> None:
        """What it was asked for, or was to be asked for when its turn came, is asked for elsewhere."""
        if self._sources.pop(node_id, None) is None:
            return
        del self._unanswered[node_id]
        self._helpers.pop(node_id, None)
        self._turns.pop(node_id, None)
        for stream in self._holdings.streams.values():
            if node_id not in stream.claims:
                continue
            stream.forget_claim(node_id)
            pulls = self._pulls.get(stream.id, {})
            for pull in [pull for pull in pulls.values() if pull.source == node_id]:
                self._end_pull(stream, pull)
            self.want(stream, None, now_ms)

    def source_conn(self, node_id: NodeId) -> int | None:
        return self._sources.get(node_id)

    def wants(self, stream_id: StreamId) -> bool:
        """A search for a holder of this stream is under way."""
        return self._timers.is_set(HolderSearchDue(stream_id))

    def look_soon(self, stream_id: StreamId, now_ms: int) -> None:
        """Somebody who was asked for what is searched for has answered, or will not."""
        if self.wants(stream_id):
            self._timers.set(HolderSearchDue(stream_id), now_ms)

    def holder_found(self, stream: Stream, low: int, next_sequence: int) -> None:
        """A search for the stream brought somebody who keeps this: whatever becomes of that, it is not lost."""
        if low <= stream.next < next_sequence:
            self._found[stream.id] = None

    def source_ids(self) -> list[NodeId]:
        return list(self._sources)

    def pull_again(self, source: NodeId, stream_id: StreamId, first: int, next_sequence: int) -> bool:
        """Ask for what was accepted once; False while the source has enough to answer. Nothing here waits for it."""
        if self._unanswered[source] >= PULLS_PER_SOURCE_MAX:
            return False
        self._unanswered[source] += 1
        pull = PullCall(stream_id.origin, stream_id.topic, first, next_sequence, self._config.pull_window_bytes)
        self._out.append(Send(self._sources[source], pull))
        return True

    def source_count(self) -> int:
        return len(self._sources)

    def busy_helpers(self) -> list[int]:
        """Connections of sources that are no neighbours and have pulls to answer."""
        return [self._sources[node_id] for node_id in self._helpers if self._unanswered[node_id]]

    # ---- receiving

    def receive(self, frame: BatchFrame, sender: NodeId, now_ms: int) -> None:
        batch = frame.batch
        self.received.count(batch)
        stream = self._holdings.open(batch.stream)
        stream.claim(sender, 1, batch.next_sequence)
        self._pull_progress(stream, batch, sender, now_ms)
        if batch.next_sequence <= stream.next:
            self.duplicates += 1
        elif stream.forked:
            return
        elif batch.first_sequence < stream.next:
            self._fork(stream, batch, "overlaps what is here")
        elif batch.first_sequence in self._held.get(stream.id, ()):
            self.duplicates += 1
        elif self.undurable_bytes + len(batch.payload) > self._config.undurable_bytes_max:
            self._out.append(Trace("shed", (("reason", "disk-behind"), ("topic", batch.stream.topic))))
            self._timers.set_sooner(WantDue(stream.id), now_ms + self._config.pull_timeout_ms // 4)
        elif batch.first_sequence == stream.next:
            self._accept(stream, frame, sender, now_ms + self._clocks.offset_ms)
            self._release(stream)
            if stream.claimed_next > stream.next:
                self.want(stream, sender, now_ms)
        else:
            self._open_gap(stream, batch.first_sequence)
            self._hold_back(stream, Held(frame, sender, now_ms + self._clocks.offset_ms))
            self.want(stream, sender, now_ms)

    def _accept(self, stream: Stream, frame: BatchFrame, sender: NodeId, received_at_ms: int) -> None:
        batch = frame.batch
        if stream.last_checksum and batch.previous_checksum != stream.last_checksum:
            self._fork(stream, batch, "does not follow what is here")
            return
        self._holdings.advance(stream, batch.next_sequence, batch.checksum)
        self._tried.pop(stream.id, None)
        self._searches.pop(stream.id, None)
        delivery = Delivery(
            batch.stream,
            batch.first_sequence,
            batch.last_sequence,
            batch.published_at_ms,
            received_at_ms,
            frame.hops,
            frame.how,
            sender,
        )
        token = self._next_token()
        self._appends[token] = (stream, frame, delivery)
        stream.undurable.append(frame)
        self.undurable_bytes += len(batch.payload)
        append = Append(token, batches=(batch,), deliveries=(delivery,), starts=self._unsaved_start(stream))
        self._out.append(self._recover(append))
        self._emit(Accepted(stream, frame))

    def start_at(self, starts: list[tuple[StreamId, int]]) -> None:
        """Begin these streams, of which nothing is here, in the middle."""
        for stream_id, next_sequence in starts:
            stream = self._holdings.open(stream_id)
            stream.low = stream.durable_next = next_sequence
            stream.start_unsaved = next_sequence > 1
            self._holdings.advance(stream, next_sequence, 0)
        self._save_starts(starts)

    def _save_starts(self, starts: list[tuple[StreamId, int]]) -> None:
        token = self._next_token()
        self._starts[token] = tuple(stream_id for stream_id, _ in starts)
        self._out.append(Append(token, starts=tuple(starts)))

    def _unsaved_start(self, stream: Stream) -> tuple[tuple[StreamId, int], ...]:
        return ((stream.id, stream.low),) if stream.start_unsaved else ()

    def _release(self, stream: Stream) -> None:
        """Accept held-back batches that are next now, as far as the disk keeps up."""
        held = self._held.get(stream.id)
        while held and (entry := held.get(stream.next)) is not None and not stream.forked:
            size = len(entry.frame.batch.payload)
            if self.undurable_bytes + size > self._config.undurable_bytes_max:
                self._for_disk[stream.id] = None
                break
            del held[stream.next]
            self.held_bytes -= size
            self._accept(stream, entry.frame, entry.sender, entry.received_at_ms)
        if held is not None and not held:
            self._held.pop(stream.id, None)
        if self._gaps and self._close_gap(stream):
            self.gaps_repaired += 1

    def _drop_overtaken(self, stream: Stream, held: dict[int, Held]) -> None:
        """A batch that was held back and lies below `next` now, wholly or in part, is of another history."""
        for first in [first for first in held if first < stream.next]:
            entry = held.pop(first, None)
            if entry is not None:
                self.held_bytes -= len(entry.frame.batch.payload)
                if entry.frame.batch.next_sequence > stream.next:
                    self._fork(stream, entry.frame.batch, "overlaps what is here")

    def _open_gap(self, stream: Stream, sequence: int) -> None:
        if stream.id not in self._gaps:
            self.gaps_opened += 1
        self._gaps[stream.id] = max(sequence, self._gaps.get(stream.id, 1))

    def _close_gap(self, stream: Stream) -> bool:
        """Whether there was a gap, and all that was missing is here or skipped now."""
        if self._gaps.get(stream.id, stream.next + 1) > stream.next:
            return False
        del self._gaps[stream.id]
        return True

    def gaps_open(self) -> int:
        """Streams of which a batch came and rows before it have not."""
        return len(self._gaps)

    def _hold_back(self, stream: Stream, entry: Held) -> None:
        held = self._held.setdefault(stream.id, {})
        first = entry.frame.batch.first_sequence
        size = len(entry.frame.batch.payload)
        while held and self.held_bytes + size > self._config.hold_back_bytes_max and max(held) > first:
            evicted = held.pop(max(held))
            self.held_bytes -= len(evicted.frame.batch.payload)
            self._out.append(Trace("shed", (("reason", "hold-back"), ("topic", stream.id.topic))))
        if self.held_bytes + size <= self._config.hold_back_bytes_max:
            held[first] = entry
            self.held_bytes += size
        else:
            self._out.append(Trace("shed", (("reason", "hold-back"), ("topic", stream.id.topic))))

    def _fork(self, stream: Stream, batch: Batch, why: str) -> None:
        stream.forked = True
        self.forks[stream.id] = None
        held = self._held.pop(stream.id, {})
        while held:
            self.held_bytes -= len(held.popitem()[1].frame.batch.payload)
        detail = (("origin", stream.id.origin.hex()), ("topic", stream.id.topic), ("at", batch.first_sequence))
        self._out.append(Trace("fork", (*detail, ("why", why))))

    # ---- durability

    def durable(self, token: int, now_ms: int) -> None:
        for stream_id in self._starts.pop(token, ()):
            self._holdings.streams[stream_id].start_unsaved = False
        entry = self._appends.pop(token, None)
        if entry is None:
            return
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
        if self._for_disk and self.undurable_bytes * 2 <= self._config.undurable_bytes_max:
            waiting, self._for_disk = self._for_disk, {}
            for stream_id in waiting:
                self.want(self._holdings.streams[stream_id], None, now_ms)

    def failed(self, token: int, now_ms: int) -> None:
        """This append and all later ones are not on disk: fall back to what is, and ask for the rest again."""
        for stream_id in self._for_disk:
            self._timers.set_sooner(WantDue(stream_id), now_ms + self._config.pull_timeout_ms)
        self._for_disk.clear()
        for at in [at for at in self._starts if at >= token]:
            for stream_id in self._starts.pop(at):
                self._timers.set_sooner(WantDue(stream_id), now_ms + self._config.pull_timeout_ms)
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
            self._timers.set_sooner(WantDue(stream.id), now_ms + self._config.pull_timeout_ms)

    # ---- asking for what is missing

    def want(self, stream: Stream, shown_by: NodeId | None, now_ms: int) -> None:
        """Ask for every range that somebody claims and that is neither here, nor held back, nor asked for."""
        self._release(stream)
        held = self._held.get(stream.id)
        if held:
            self._drop_overtaken(stream, held)
        target = max(stream.claimed_next, max(held) if held else 0)
        if stream.next >= target or stream.forked:
            return
        target = self._due(stream, target, now_ms)
        if stream.next >= target:
            return
        if self.undurable_bytes * 2 > self._config.undurable_bytes_max:
            self._for_disk[stream.id] = None
            return
        pulls = self._pulls.setdefault(stream.id, {})
        blocks = [(pull.first, pull.next) for pull in pulls.values()]
        if held:
            blocks += [(first, entry.frame.batch.next_sequence) for first, entry in held.items()]
        blocks.sort()
        cursor = stream.next
        for first, next_sequence in [*blocks, (target, target)]:
            if first > cursor and len(pulls) < PULLS_PER_STREAM_MAX:
                self._ask(stream, pulls, cursor, first, shown_by, now_ms)
            cursor = max(cursor, next_sequence)

    def _due(self, stream: Stream, target: int, now_ms: int) -> int:
        """How far to ask: what an origin that is a neighbour has not told yet is on its way from there, in order. It is
        not asked for elsewhere, unless nothing came for a while."""
        origin = stream.id.origin
        if origin not in self._sources:
            self._coming.pop(stream.id, None)
            return target
        claim = stream.claims.get(origin)
        told = claim.next if claim is not None else 1
        if target <= told:
            self._coming.pop(stream.id, None)
            return target
        seen = self._coming.get(stream.id)
        if seen is None or seen[0] != stream.next:
            seen = self._coming[stream.id] = (stream.next, now_ms)
        if now_ms - seen[1] >= ORIGIN_PATIENCE_MS:
            return target
        self._timers.set_sooner(WantDue(stream.id), seen[1] + ORIGIN_PATIENCE_MS)
        return max(told, stream.next)

    def _ask(
        self,
        stream: Stream,
        pulls: dict[int, Pull],
        first: int,
        next_sequence: int,
        shown_by: NodeId | None,
        now_ms: int,
    ) -> None:
        able = [
            node_id
            for node_id, claim in stream.claims.items()
            if claim.low <= first < claim.next and node_id in self._sources
        ]
        tried = self._tried.get(stream.id, [])
        fresh = [node_id for node_id in able if node_id not in tried]
        idle = [node_id for node_id in fresh if self._unanswered[node_id] < PULLS_PER_SOURCE_MAX]
        if shown_by in idle:
            source = shown_by
        elif idle:
            source = self._random.choice(idle)
        elif able:
            for node_id in fresh:  # whoever has answered enough first is asked
                self._turns.setdefault(node_id, {})[stream.id] = None
            if len(fresh) < len(able):  # those that failed once: after a pause, all over again
                self._tried.pop(stream.id, None)
                self._timers.set_sooner(WantDue(stream.id), now_ms + self._config.pull_timeout_ms // 2)
            return
        else:
            if first == stream.next:
                self._seek_holder(stream, now_ms)
            return
        assert source is not None
        next_sequence = min(next_sequence, stream.claims[source].next)
        pulls[first] = Pull(first, next_sequence, source)
        self._unanswered[source] += 1
        self._timers.set(PullTimeout(stream.id, first), now_ms + self._config.pull_timeout_ms)
        self._out.append(
            Send(
                self._sources[source],
                PullCall(stream.id.origin, stream.id.topic, first, next_sequence, self._config.pull_window_bytes),
            )
        )

    def _pull_progress(self, stream: Stream, batch: Batch, sender: NodeId, now_ms: int) -> None:
        pulls = self._pulls.get(stream.id)
        if pulls:
            for pull in pulls.values():
                if pull.source == sender and pull.first <= batch.first_sequence < pull.next:
                    self._timers.set(PullTimeout(stream.id, pull.first), now_ms + self._config.pull_timeout_ms)

    def progress(self, source: NodeId, now_ms: int) -> None:
        """Something large is on its way from there: whatever was asked of it comes behind."""
        for stream_id, pulls in self._pulls.items():
            for pull in pulls.values():
                if pull.source == source:
                    self._timers.set(PullTimeout(stream_id, pull.first), now_ms + self._config.pull_timeout_ms)

    def _end_pull(self, stream: Stream, pull: Pull) -> None:
        pulls = self._pulls[stream.id]
        del pulls[pull.first]
        if not pulls:
            del self._pulls[stream.id]
        self._timers.cancel(PullTimeout(stream.id, pull.first))

    def _next_turns(self, source: NodeId, now_ms: int) -> None:
        """The source has answered: those that waited the longest are asked for now."""
        turns = self._turns.get(source)
        while turns and self._unanswered[source] < PULLS_PER_SOURCE_MAX:
            stream_id = next(iter(turns))
            del turns[stream_id]
            self.want(self._holdings.streams[stream_id], source, now_ms)
        if turns is not None and not turns:
            del self._turns[source]

    def pull_answered(self, resp: PullResp, sender: NodeId, now_ms: int) -> None:
        if self._unanswered.get(sender):
            self._unanswered[sender] -= 1
            self._next_turns(sender, now_ms)  # before this stream asks on, else it would keep its place to its end
        stream = self._holdings.get(StreamId(resp.origin, resp.topic))
        pull = self._pulls.get(stream.id, {}).get(resp.first_sequence) if stream else None
        if stream is None or pull is None or pull.source != sender:
            return
        self._end_pull(stream, pull)
        stream.correct_claim(sender, resp.low, resp.next)
        if resp.served_next <= resp.first_sequence:
            self._tried.setdefault(stream.id, []).append(sender)
            if resp.served_next == 0:
                self._damaged[stream.id] = resp.first_sequence
            if resp.low > resp.first_sequence:
                self._found.pop(stream.id, None)  # who was found does not keep it, or cannot read it
        self.want(stream, sender, now_ms)

    def pull_expired(self, stream_id: StreamId, first: int, now_ms: int) -> None:
        stream = self._holdings.streams[stream_id]
        pull = self._pulls.get(stream_id, {}).get(first)
        if pull is not None:
            self._end_pull(stream, pull)
            self._tried.setdefault(stream_id, []).append(pull.source)
            self._out.append(Trace("pull-expired", (("topic", stream_id.topic), ("first", first))))
            self.want(stream, None, now_ms)

    def wanted(self, stream_id: StreamId, now_ms: int) -> None:
        """Some time after something went wrong with the stream: see to it again."""
        stream = self._holdings.streams[stream_id]
        if stream.start_unsaved and not any(stream_id in ids for ids in self._starts.values()):
            self._save_starts([(stream_id, stream.low)])
        self.want(stream, None, now_ms)

    # ---- holders beyond the neighbours, and skips

    def _seek_holder(self, stream: Stream, now_ms: int) -> None:
        key = HolderSearchDue(stream.id)
        if self._timers.is_set(key):
            return
        search = self._searches.setdefault(stream.id, Search())
        if now_ms >= search.flood_at_ms:
            self._flood(stream, search, now_ms)
        self._timers.set(key, max(now_ms + 1, min(search.flood_at_ms, search.look_at_ms or search.flood_at_ms)))

    def _flood(self, stream: Stream, search: Search, now_ms: int) -> None:
        hops_max = HOLDER_SEARCH_HOPS[min(search.attempts, len(HOLDER_SEARCH_HOPS) - 1)]
        search.flood_at_ms = now_ms + min(
            self._config.holder_search_ms << min(search.attempts, 8), HOLDER_SEARCH_MS_MAX
        )
        search.attempts += 1
        self._found.pop(stream.id, None)
        self.search_holder(stream.id, stream.next, hops_max)

    def search_holder(self, stream_id: StreamId, sequence: int, hops_max: int = HOLDER_SEARCH_HOPS[-1]) -> None:
        """Flood a search for whoever keeps this sequence."""
        self._search += 1
        statement = HolderSearchStmt(self._me, self._search, stream_id.origin, stream_id.topic, sequence, 1, hops_max)
        for node_id, conn in self._sources.items():
            if node_id not in self._helpers:
                self._out.append(Send(conn, statement))

    def holder_search_over(
        self, stream_id: StreamId, look_again_at: Callable[[Stream, int], int | None], now_ms: int
    ) -> None:
        """A search for the next wanted row has had its time. `look_again_at`: when the row may be given up, as far as
        that is known; None: now."""
        stream = self._holdings.streams[stream_id]
        search = self._searches.setdefault(stream_id, Search())
        held = any(claim.low <= stream.next < claim.next for claim in stream.claims.values())
        search.look_at_ms = now_ms + self._config.holder_search_ms if held else None
        if self._pulls.get(stream_id, {}).get(stream.next) is not None:
            return  # a holder was found and is being asked
        lows = [claim.low for claim in stream.claims.values() if stream.next < claim.low <= claim.next]
        # A holder that was lost again is searched for again: only a search that brings nobody makes a skip.
        found = stream_id in self._found
        searched = not found and search.attempts >= len(HOLDER_SEARCH_HOPS)
        if lows and not held and searched and not stream.forked:
            search.look_at_ms = look_again_at(stream, now_ms)
            if search.look_at_ms is None:
                self._skip(stream, min(lows), now_ms)
        for node_id in [node_id for node_id in stream.claims if node_id not in self._sources]:
            stream.forget_claim(node_id)  # a holder that there was no room for: the next search finds it again
        self.want(stream, None, now_ms)

    def _skip(self, stream: Stream, upto: int, now_ms: int) -> None:
        was_damaged = self._damaged.pop(stream.id, 0) == stream.next
        reason = SkipReason.LOST if was_damaged else SkipReason.EXPIRED
        skip = Skip(stream.id, stream.next, upto - 1, reason, self._me.node_id)
        stream.skips.append(skip)
        self._holdings.advance(stream, upto, 0)
        self._tried.pop(stream.id, None)
        self._searches.pop(stream.id, None)
        token = self._next_token()
        self._appends[token] = (stream, skip, skip)
        at_ms = now_ms + self._clocks.offset_ms
        record = Delivery(stream.id, skip.first_sequence, skip.last_sequence, 0, at_ms, 0, How.PULLED, None)
        append = Append(token, skips=(skip,), deliveries=(record,), starts=self._unsaved_start(stream))
        self._out.append(append)
        self._close_gap(stream)  # not repaired: what closes it is the skip
        self._release(stream)
