"""Publishing: from a client's request to its answer, through the commit primitive, the window and the acks.

Requests wait in a bounded queue while the window is full (guarantee 7). A commit is numbered, written and synced
before its first byte leaves the node (guarantee 3); then its batches spread, and the answer waits for as many other
disks as it asked for.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import (
    Abort,
    Commit,
    Delivered,
    Disown,
    Publish,
    Range,
    Recovered,
    Refused,
    RemoveKey,
    Stage,
    Staged,
)
from m4cast.overlay.protocol.holdings import Holdings, Stream
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.publishing.acks import Acks
from m4cast.overlay.protocol.publishing.commit import CommitMachine, Committed, Outcome
from m4cast.overlay.protocol.publishing.commit_limits import CommitLimits
from m4cast.overlay.protocol.publishing.window import DestinationWindow
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How, Traffic
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.protocol.wire.messages import AckStmt
from m4cast.overlay.value import value

STORE_FULL = ("store-full", "this node's store is nearly full: keep less, give it more room, or publish elsewhere")
STAGE_SWEEP_MS = 60_000
KEY_SWEEP_MS = 3_600_000
"""The interval at which publisher keys are checked for expiry, and the node's up time is recorded. Higher: a node that
restarts often loses more of its up time, so its keys live longer."""
KEY_STEP_MS = 100
"""The pause between the steps of such a check. Lower: more is written at a time."""
WINDOW_LOOK_MS = 100
"""The interval at which a full window is checked when nothing else happens."""


@value
class StageSweepDue(Timer):
    """Discard payloads whose commit never came."""


@value
class KeySweepDue(Timer):
    """Take the next step through the publisher keys, to find those that have expired."""


@value
class WindowDue(Timer):
    """Look at the window again: a neighbour that does not move leaves it."""


PublishingTimer = StageSweepDue | KeySweepDue | WindowDue


class Publishing:
    def __init__(
        self,
        context: Context,
        recovered: Recovered,
        holdings: Holdings,
        spread: Callable[[Stream, BatchFrame, int], None],
    ) -> None:
        """`spread`: passes an own batch on to the neighbours."""
        cluster, config = context.cluster, context.config
        limits = CommitLimits(
            batch_bytes_max=cluster.batch_bytes_max,
            stage_expire_ms=config.stage_expire_ms,
            topics_max=config.topics_max,
            client_topics_max=config.client_topics_max,
            publisher_bytes_max=config.publisher_bytes_max,
            client_publisher_bytes_max=config.client_publisher_bytes_max,
            publisher_expire_ms=config.publisher_expire_ms,
        )
        self.commits = CommitMachine(recovered, limits, seal=seal, next_token=context.next_token)
        topics = (stream_id.topic for stream_id in recovered.streams if stream_id.origin == recovered.node_id)
        self.far = DestinationWindow(config.publish_window_bytes)
        self.acks = Acks(recovered.node_id, topics, config.publish_window_bytes, context.out)
        self.origin_batch = recovered.origin_batch
        """The number of batches that this node has numbered and made durable."""
        self.published = Traffic()
        """The same since it was started."""
        self.queue: deque[Publish | Commit] = deque()
        """Requests that wait for the window."""
        self.store_full = False
        """The store keeps the room that is left for what others send and for retention."""
        self.selected: Callable[[Batch, int], None] = lambda batch, now_ms: None
        """Sends an own batch of a selective stream."""
        self.answer_selected: Callable[[int, int, tuple[Range, ...], list[Batch], Mapping[str, object]], None]
        """Answers a publish on selective topics when it is acknowledged; set by the composer."""
        self.neighbour_acked: Callable[[], None] = lambda: None
        """Looks at answers that wait for neighbours and for others."""
        self._me = recovered.node_id
        self._config = config
        self._holdings = holdings
        self._timers = context.timers
        self._spread = spread
        self._out = context.out
        self._clocks = context.clocks

    def start(self, now_ms: int) -> None:
        self._timers.set(StageSweepDue(), now_ms + STAGE_SWEEP_MS)
        self._timers.set(KeySweepDue(), now_ms + STAGE_SWEEP_MS)
        self.commits.up_ms(now_ms)

    # ---- requests

    def take(self, request: Publish | Commit) -> None:
        if len(self.queue) >= self._config.publish_queue_max:
            detail = "too many publishes wait for the neighbours' disks: slow down, try again"
            self._out.append(Refused(request.request, "busy", detail))
        else:
            self.queue.append(request)

    def queued(self) -> int:
        """Publishes that wait for the window."""
        return len(self.queue)

    def run_queue(self, now_ms: int) -> None:
        """Start what waits, as far as the window has room."""
        while self.queue:
            if not self.acks.window.has_room(now_ms) or (self.commits.spreads and not self._has_far_room(now_ms)):
                self._timers.set_sooner(WindowDue(), now_ms + WINDOW_LOOK_MS)
                return
            request = self.queue.popleft()
            clock_ms = now_ms + self._clocks.offset_ms
            if isinstance(request, Publish):
                self._perform(self.commits.publish(request, clock_ms), now_ms)
            else:
                self._perform(self.commits.commit(request, clock_ms), now_ms)

    def topics_of(self, request: Publish | Commit) -> Iterable[str]:
        return (staged.topic for staged in self.payloads_of(request))

    def payloads_of(self, request: Publish | Commit) -> Iterable[Staged]:
        return request.payloads if isinstance(request, Publish) else self.commits.staged(request.stage_ids)

    def _has_far_room(self, now_ms: int) -> bool:
        """True if the first waiting request need not wait for destinations of selective topics."""
        is_selective = any(topic in self.commits.spreads for topic in self.topics_of(self.queue[0]))
        return not is_selective or self.far.window.has_room(now_ms)

    def broadcast(self, topic: str) -> dict[StreamId, int]:
        """The streams of a topic that went to every node, as far as they are here, with the next sequence of each."""
        streams = (stream for stream in self._holdings.streams.values() if stream.id.topic == topic)
        return {stream.id: stream.durable_next for stream in streams if stream.durable_next > 1}

    def has_begun(self, topic: str) -> bool:
        """True if this node has numbered rows of a topic that go to every node."""
        return self.commits.has_stream(StreamId(self._me, topic)) and topic not in self.commits.spreads

    def why_full(self) -> tuple[str, str] | None:
        """Code and detail of the refusal that whatever fills the store meets now; None when there is room."""
        return STORE_FULL if self.store_full else None

    def stage(self, request: Stage, now_ms: int) -> None:
        if self.store_full:
            self._out.append(Refused(request.request, *STORE_FULL))
            return
        self._perform(self.commits.stage(request, now_ms), now_ms)

    def abort(self, request: Abort, now_ms: int) -> None:
        self._perform(self.commits.abort(request), now_ms)

    def remove_key(self, request: RemoveKey, now_ms: int) -> None:
        self._perform(self.commits.remove_key(request), now_ms)

    def disown(self, request: Disown, now_ms: int) -> None:
        self._perform(self.commits.disown(request), now_ms)

    def forget(self, request: int) -> None:
        """The client is gone: a request that can never be acknowledged often enough must not be kept for ever."""
        waiting = len(self.queue)
        self.queue = deque(queued for queued in self.queue if queued.request != request)
        if len(self.queue) == waiting and not self.acks.forget(request):
            self.commits.forget(request)

    def sweep(self, now_ms: int) -> None:
        self._timers.set(StageSweepDue(), now_ms + STAGE_SWEEP_MS)
        self._perform(self.commits.expire(now_ms), now_ms)

    def sweep_keys(self, now_ms: int) -> None:
        outcomes, goes_on = self.commits.sweep_keys(now_ms)
        self._timers.set(KeySweepDue(), now_ms + (KEY_STEP_MS if goes_on else KEY_SWEEP_MS))
        self._perform(outcomes, now_ms)

    def timer(self, timer: PublishingTimer, now_ms: int) -> None:
        match timer:
            case StageSweepDue():
                self.sweep(now_ms)
            case KeySweepDue():
                self.sweep_keys(now_ms)
            case WindowDue():
                pass  # the queue is looked at after every input
            case _:
                assert_never(timer)

    def on_ack(self, sender: Neighbour, ack: AckStmt, now_ms: int) -> None:
        self.acks.acked(sender.contact.node_id, ack.entries, now_ms)
        if self.commits.spreads:
            self.neighbour_acked()

    # ---- the store's word

    def durable(self, token: int, now_ms: int) -> None:
        self._perform(self.commits.durable(token), now_ms)

    def failed(self, token: int, reason: str, now_ms: int) -> None:
        self._perform(self.commits.failed(token, reason), now_ms)

    def _perform(self, outcomes: list[Outcome], now_ms: int) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Committed):
                self._committed(outcome, now_ms)
            else:
                self._out.append(outcome)

    def _committed(self, committed: Committed, now_ms: int) -> None:
        """Own batches are on this disk: only now may they leave."""
        for write in committed.batches:
            batch, delivery = write.batch, write.delivery
            assert delivery is not None, "own batches are delivered here"
            if self.commits.spreads and batch.stream.topic in self.commits.spreads:
                self.origin_batch = batch.origin_batch
                self.published.count(batch)
                self._out.append(Delivered(delivery))
                self.selected(batch, now_ms)
                continue
            stream = self._holdings.open(batch.stream)
            self._holdings.advance(stream, batch.next_sequence, batch.checksum)
            stream.durable_next = batch.next_sequence
            stream.durable_checksum = batch.checksum
            self.origin_batch = batch.origin_batch
            self.published.count(batch)
            self._out.append(Delivered(delivery))
            self.acks.published(batch, now_ms)
            self._spread(stream, BatchFrame(batch, 0, How.PUBLISHED), now_ms)
        for answer in committed.answers:
            if self.commits.spreads and any(rows.stream.topic in self.commits.spreads for rows in answer.ranges):
                batches = [each.batch for each in committed.batches if each.batch.stream.topic in self.commits.spreads]
                self.answer_selected(answer.request, answer.acks, answer.ranges, batches, self.commits.spreads)
            else:
                self.acks.answer_when_acked(answer.request, answer.acks, answer.ranges)

    # ---- leaving

    def handed_over(self) -> bool:
        """Some neighbour has all own rows on disk, and nobody waits for an answer."""
        return self.copies() != 0 and self.is_idle()

    def is_idle(self) -> bool:
        """True if no client waits for an answer."""
        return not self.acks.waiting() and not self.queue

    def copies(self) -> int | None:
        """The number of neighbours that have all of this node's own rows on disk; None if it has none."""
        own = tuple(
            Range(stream.id, stream.low, stream.next)
            for stream in self._holdings.streams.values()
            if stream.id.origin == self._me and stream.next > stream.low
        )
        return self.acks.count_neighbours(own) if own else None
