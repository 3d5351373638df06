"""Pulling: asking for what is missing (guarantee 4).

What a peer *claims* to have (by a push, an announcement, a frontier, its holdings) and this node has neither accepted,
held back nor asked for is missing, and is pulled at once: first from the peer that showed it, then from others that
claim it, then, if nobody near has it, from holders found by a flooded search. A range that is being pulled is not a
gap. What was evicted from hold-back, or refused because too much waits for the disk, is pulled again later.
"""

from collections.abc import Callable

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Trace
from m4cast.overlay.protocol.holdings import ORIGIN_PATIENCE_MS, Holdings, Stream
from m4cast.overlay.protocol.streams.hold_back import Backlog, Backlogs, Pull
from m4cast.overlay.protocol.streams.ordering import Accepted, HeldBack, Ordering, Receipt, Shed, ShedReason
from m4cast.overlay.protocol.streams.searching import Searching
from m4cast.overlay.protocol.streams.sources import Sources
from m4cast.overlay.protocol.streams.timers import PullTimeout, WantDue
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.messages import PullResp

PULLS_PER_STREAM_MAX = 8
"""Ranges of one stream asked for at the same time; guess. Raising it fills long links and costs hold-back."""


class Pulling:
    def __init__(
        self,
        context: Context,
        holdings: Holdings,
        backlogs: Backlogs,
        sources: Sources,
        ordering: Ordering,
        searching: Searching,
    ) -> None:
        self._config = context.config
        self._random = context.random
        self._timers = context.timers
        self._out = context.out
        self._holdings = holdings
        self._backlogs = backlogs
        self._sources = sources
        self._ordering = ordering
        self._searching = searching
        self._pulled: dict[StreamId, Backlog] = {}
        """Streams of which ranges are asked for."""

    # ---- what has come

    def received(self, receipt: Receipt, batch: Batch, sender: NodeId, now_ms: int) -> None:
        """A batch came: pulls that it belongs to go on, and what it shows to be missing is asked for."""
        if self._pulled and (backlog := self._pulled.get(batch.stream)) is not None:
            for pull in backlog.pulls.values():
                if pull.source == sender and pull.first <= batch.first_sequence < pull.next:
                    self._extend(batch.stream, pull, now_ms)
        match receipt:
            case Accepted(stream, _):
                if stream.claimed_next > stream.next:
                    self.want(stream, sender, now_ms)
            case HeldBack(stream) | Shed(stream, ShedReason.HOLD_BACK):
                self.want(stream, sender, now_ms)

    def progress(self, source: NodeId, now_ms: int) -> None:
        """Something large is on its way from there: whatever was asked of it comes behind."""
        for stream_id, backlog in self._pulled.items():
            for pull in backlog.pulls.values():
                if pull.source == source:
                    self._extend(stream_id, pull, now_ms)

    def _extend(self, stream_id: StreamId, pull: Pull, now_ms: int) -> None:
        self._timers.set(PullTimeout(stream_id, pull.first), now_ms + self._config.pull_timeout_ms)

    def answered(self, resp: PullResp, sender: NodeId, now_ms: int) -> None:
        """A source has sent all that it sends for a pull."""
        if self._sources.answered(sender):
            # Before this stream asks on, else it would keep its place to its end.
            while (stream_id := self._sources.next_turn(sender)) is not None:
                self.want(self._holdings.streams[stream_id], sender, now_ms)
        stream = self._holdings.get(StreamId(resp.origin, resp.topic))
        backlog = self._pulled.get(stream.id) if stream else None
        pull = backlog.pulls.get(resp.first_sequence) if backlog else None
        if stream is None or backlog is None or pull is None or pull.source != sender:
            return
        self._end(stream, backlog, pull)
        stream.correct_claim(sender, resp.low, resp.next)
        if resp.served_next <= resp.first_sequence:
            backlog.tried.append(sender)
            if resp.served_next == 0:
                backlog.damaged = resp.first_sequence
            if resp.low > resp.first_sequence and backlog.search is not None:
                backlog.search.has_found = False  # who was found does not keep it, or cannot read it
        self.want(stream, sender, now_ms)

    def expired(self, stream_id: StreamId, first: int, now_ms: int) -> None:
        stream = self._holdings.streams[stream_id]
        backlog = self._backlogs.get(stream_id)
        pull = backlog.pulls.get(first) if backlog else None
        if backlog is not None and pull is not None:
            self._end(stream, backlog, pull)
            backlog.tried.append(pull.source)
            self._out.append(Trace("pull-expired", (("topic", stream_id.topic), ("first", first))))
            self.want(stream, None, now_ms)

    def _end(self, stream: Stream, backlog: Backlog, pull: Pull) -> None:
        del backlog.pulls[pull.first]
        if not backlog.pulls:
            del self._pulled[stream.id]
        self._timers.cancel(PullTimeout(stream.id, pull.first))

    def source_down(self, node_id: NodeId, now_ms: int) -> None:
        """Request elsewhere what this source was asked for, or was to be asked for when its turn came."""
        if not self._sources.down(node_id):
            return
        for stream in self._holdings.streams.values():
            if node_id not in stream.claims:
                continue
            stream.forget_claim(node_id)
            backlog = self._backlogs.get(stream.id)
            if backlog is not None:
                for pull in [pull for pull in backlog.pulls.values() if pull.source == node_id]:
                    self._end(stream, backlog, pull)
            self.want(stream, None, now_ms)

    def disk_caught_up(self, now_ms: int) -> None:
        """Appends became durable: ask again for what waited for the disk, when enough of them did."""
        if self._backlogs.for_disk and self._ordering.undurable_bytes * 2 <= self._config.undurable_bytes_max:
            waiting, self._backlogs.for_disk = self._backlogs.for_disk, {}
            for stream_id in waiting:
                self.want(self._holdings.streams[stream_id], None, now_ms)

    def disk_failed(self, now_ms: int) -> None:
        for stream_id in self._backlogs.for_disk:
            self._timers.set_sooner(WantDue(stream_id), now_ms + self._config.pull_timeout_ms)
        self._backlogs.for_disk.clear()

    # ---- what is missing

    def want_again(self, stream_id: StreamId, now_ms: int) -> None:
        """Some time after something went wrong with the stream: see to it again."""
        stream = self._holdings.streams[stream_id]
        self._ordering.save_start_again(stream)
        self.want(stream, None, now_ms)

    def want(self, stream: Stream, shown_by: NodeId | None, now_ms: int) -> None:
        """Ask for every range that somebody claims and that is neither here, nor held back, nor asked for."""
        backlog = self._backlogs.get(stream.id)
        if backlog is not None:
            self._ordering.release(stream, backlog)
            if backlog.early:
                self._ordering.drop_overtaken(stream, backlog)
        early = backlog.early if backlog is not None else None
        target = max(stream.claimed_next, max(early) if early else 0)
        if stream.next >= target or stream.forked:
            return
        backlog = backlog or self._backlogs.of(stream.id)
        target = self._due(stream, backlog, target, now_ms)
        if stream.next >= target:
            return
        if self._ordering.undurable_bytes * 2 > self._config.undurable_bytes_max:
            self._backlogs.for_disk[stream.id] = None
            return
        pulls = backlog.pulls
        self._pulled.setdefault(stream.id, backlog)
        blocks = [(pull.first, pull.next) for pull in pulls.values()]
        blocks += [(first, entry.frame.batch.next_sequence) for first, entry in backlog.early.items()]
        blocks.sort()
        cursor = stream.next
        for first, next_sequence in [*blocks, (target, target)]:
            if first > cursor and len(pulls) < PULLS_PER_STREAM_MAX:
                self._ask(stream, backlog, (cursor, first), shown_by, now_ms)
            cursor = max(cursor, next_sequence)

    def _due(self, stream: Stream, backlog: Backlog, target: int, now_ms: int) -> int:
        """Return how far to ask: what an origin that is a neighbour has not announced yet is on its way from there, in
        order. It is not requested elsewhere, unless nothing arrived for a while."""
        origin = stream.id.origin
        claim = stream.claims.get(origin)
        claimed_next = claim.next if claim is not None else 1
        if origin not in self._sources or target <= claimed_next:
            backlog.waits_at = 0
            return target
        if backlog.waits_at != stream.next:
            backlog.waits_at, backlog.waits_since_ms = stream.next, now_ms
        if now_ms - backlog.waits_since_ms >= ORIGIN_PATIENCE_MS:
            return target
        self._timers.set_sooner(WantDue(stream.id), backlog.waits_since_ms + ORIGIN_PATIENCE_MS)
        return max(claimed_next, stream.next)

    def _ask(
        self, stream: Stream, backlog: Backlog, rows: tuple[int, int], shown_by: NodeId | None, now_ms: int
    ) -> None:
        """Ask one source for `rows` (first, next), or wait until one can be asked."""
        first, next_sequence = rows
        sources = self._sources
        able = [
            node_id
            for node_id, claim in stream.claims.items()
            if claim.low <= first < claim.next and node_id in sources
        ]
        fresh = [node_id for node_id in able if node_id not in backlog.tried]
        idle = [node_id for node_id in fresh if sources.is_idle(node_id)]
        if idle:
            source = shown_by if shown_by in idle else self._random.choice(idle)
            assert source is not None
            next_sequence = min(next_sequence, stream.claims[source].next)
            backlog.pulls[first] = Pull(first, next_sequence, source)
            self._timers.set(PullTimeout(stream.id, first), now_ms + self._config.pull_timeout_ms)
            sources.ask(source, stream.id, first, next_sequence)
        elif able:
            for node_id in fresh:  # whoever has answered enough first is asked
                sources.wait_for(node_id, stream.id)
            if len(fresh) < len(able):  # those that failed once: after a pause, all over again
                backlog.tried.clear()
                self._timers.set_sooner(WantDue(stream.id), now_ms + self._config.pull_timeout_ms // 2)
        elif first == stream.next:
            self._searching.begin(stream, backlog, now_ms)

    # ---- what nobody near has

    def search_over(self, stream: Stream, look_again_at: Callable[[Stream, int], int | None], now_ms: int) -> None:
        """A search for the next wanted row has had its time; see `Searching.over`."""
        backlog = self._backlogs.of(stream.id)
        upto = self._searching.over(stream, backlog, look_again_at, now_ms)
        if stream.next in backlog.pulls:
            return
        if upto is not None:
            self._ordering.skip(stream, backlog, upto, now_ms)
        for node_id in [node_id for node_id in stream.claims if node_id not in self._sources]:
            stream.forget_claim(node_id)  # a holder that there was no room for: the next search finds it again
        self.want(stream, None, now_ms)
