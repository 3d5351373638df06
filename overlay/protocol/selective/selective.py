"""The machine of selective topics: composes what this room has (guarantees 10 and 11; PROTOCOL.md, section 18).

    Demand      what other nodes want
    Speaking    batches and statements to them, until they acknowledge
    Wants       what this node wants, since which version, from where on
    Receiving   batches and statements from others: the log, the marks, coverage
    Fetching    pulls of what is lacking
    Answering   others' pulls
    Keeping     who keeps this node's streams
    Across      streams of other channels, at a gatekeeper
    Mending     batches that cannot be read

Frames may be lost, repeated and reordered. Each rule stands by itself: a statement is true whatever became of the
batches around it, and what is not settled by a statement, a batch or an answer is asked for until it is.

Guarantees
10. A row that matches a registration is stored once at its node, and readers of the registration see it in order, from
    its begin on; what nobody at a node wants is not sent there, but for keepers, changes on their way and summaries
    that could not tell.
11. From the time of subscribing on, rows of an origin that has not confirmed are filled in when it is met.
"""

from collections.abc import Callable, Iterable

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Damaged, RolledBack, SelectedRead, Staged, TimesFound, Trace, Want
from m4cast.overlay.protocol.selective.across import Across
from m4cast.overlay.protocol.selective.answering import Answering
from m4cast.overlay.protocol.selective.contract import (
    AnnouncedItem,
    ItemKey,
    KeepWish,
    SelectiveOutput,
    SelectiveRecovered,
    SelectiveSettings,
    SelectiveWrite,
    keep_id,
)
from m4cast.overlay.protocol.selective.demand import Demand, topic_hash
from m4cast.overlay.protocol.selective.fetching import FetchDue, Fetching
from m4cast.overlay.protocol.selective.keeping import KeepDue, Keeping
from m4cast.overlay.protocol.selective.marks import ENDLESS
from m4cast.overlay.protocol.selective.mending import MendDue, Mending
from m4cast.overlay.protocol.selective.receiving import Hole, Receiving, SelectedStream
from m4cast.overlay.protocol.selective.speaking import (
    COVER_WAIT_MAX_MS,
    ENTRIES_MAX,
    JOIN_DELAY_MS,
    CoverDue,
    Speaking,
    route,
)
from m4cast.overlay.protocol.selective.wants import Wants
from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.protocol.wire.batch import Batch, How
from m4cast.overlay.protocol.wire.selective import (
    BeginCall,
    BeginResp,
    CoverStmt,
    Destination,
    KeepCall,
    KeptCall,
    KeptResp,
    RoutedFrame,
    SelectAckEntry,
    SelectAckStmt,
    SelectPullCall,
    SelectPullResp,
)
from m4cast.overlay.value import value

CALL_SHIFT = 32
"""Calls are numbered from the incarnation on, so that no answer to a call from before a restart counts."""


@value
class SelectAckDue(Timer):
    """Acknowledge what has become durable."""


@value
class GatherDue(Timer):
    """Ask whoever may have rows of an absent origin beyond what its keeper has."""

    origin: NodeId


SelectiveTimer = CoverDue | FetchDue | SelectAckDue | KeepDue | GatherDue | MendDue


class Selective:
    def __init__(
        self,
        ids: tuple[NodeId, ...],
        recovered: SelectiveRecovered,
        settings: SelectiveSettings,
        timers: Timers,
        next_token: Callable[[], int],
    ) -> None:
        """`ids`: of this node, the present one first."""
        self._me = ids[0]
        self._settings = settings
        self._timers = timers
        self.out: list[SelectiveOutput] = []
        """Outputs of the input that is being handled, in order."""
        self.demand = Demand()
        self.wants = Wants(recovered)
        self.speaking = Speaking(self._me, self.demand, settings, timers, self.out)
        self.receiving = Receiving(recovered, self.wants, settings.undurable_bytes_max, next_token, self.out)
        self.fetching = Fetching(self._me, self.wants, self.receiving, settings, timers, self.out)
        self.fetching.last_call = recovered.incarnation << CALL_SHIFT
        self.fetching.sources, self.fetching.next_token = self._sources, next_token
        self.fetching.has_keeper = lambda origin: bool(self.demand.keepers(origin))
        self.answering = Answering(self._me, self.receiving, self.speaking, settings, next_token, self.out)
        self.fetching.find_here = self.answering.on_begin
        self.keeping = Keeping(ids, self.demand, self.speaking, timers, self.out)
        self.keeping.coverage = self._kept
        self.across = Across(
            self._me,
            self.demand,
            self.receiving,
            self.speaking,
            self.fetching,
            self.out,
            self._answer_beyond,
            self.answering.on_pull,
        )
        self.fetching.has_view = lambda: self.keeping.has_view
        self.mending = Mending(self._me, settings, timers, next_token, self.out)
        self.mending.sources = self._sources
        self.mending.lose = lambda stream_id, *lacking: self.receiving.lose(stream_id, Hole(*lacking), self._me)
        self._acks: dict[tuple[NodeId, NodeId], dict[str, None]] = {}
        """(whom to tell, origin) -> topics."""
        self._gather_wait_ms: dict[NodeId, int] = {}
        for topic, (next_sequence, checksum) in recovered.own.items():
            self.speaking.open(StreamId(self._me, topic), next_sequence, checksum, 0)

    def take_outputs(self) -> list[SelectiveOutput]:
        outputs = list(self.out)
        self.out.clear()
        return outputs

    # ---- who is there, and who wants what

    def set_present(self, present: Callable[[], list[NodeId]]) -> None:
        self.keeping.present = present

    def _is_present(self, node_id: NodeId) -> bool:
        return node_id in self.keeping.present()

    def interest_changed(
        self,
        node_id: NodeId,
        version: int,
        joined: Iterable[AnnouncedItem],
        left: Iterable[ItemKey],
        now_ms: int,
    ) -> None:
        """Another node's entry has changed in this node's view. `joined`: also what rejoined."""
        if node_id == self._me:
            return
        before = self.demand.versions.get(node_id)
        topics, origins = self.demand.change(node_id, version, joined, left)
        streams = [each for each in self.speaking.streams if each.origin in origins or topic_hash(each.topic) in topics]
        self.speaking.entry_changed(node_id, before, version, streams)
        self.speaking.joined(node_id, streams, now_ms)
        self.speaking.left(node_id)
        if origins:
            for stream in self.receiving.streams.values():
                if stream.id.origin in origins:
                    self.fetching.look_anew(stream, now_ms)
        self.keeping.changed(now_ms)

    def departed(self, node_id: NodeId, now_ms: int) -> None:
        """The node is absent: its entry is not used, and its keepers speak for it."""
        self.demand.remove(node_id)
        self.speaking.left(node_id)
        self._speak_for(node_id, now_ms)
        self.keeping.changed(now_ms)

    def returned(self, node_id: NodeId, now_ms: int) -> None:
        """The node is present again: it speaks for itself."""
        for stream_id in [each for each in self.speaking.streams if each.origin == node_id]:
            self.speaking.close(stream_id)
        self._gather_wait_ms.pop(node_id, None)
        self._timers.cancel(GatherDue(node_id))
        for stream in self.receiving.streams.values():
            if stream.id.origin == node_id:
                self.fetching.look_anew(stream, now_ms)
        self.keeping.changed(now_ms)

    def _sources(self, stream_id: StreamId) -> list[NodeId]:
        keepers = self.demand.keepers(stream_id.origin)
        others = self.demand.interested(*stream_id)
        present = self.keeping.present()
        foreign = self.across.foreign
        stream = self.receiving.streams.get(stream_id)
        # Of a foreign stream the gatekeeper speaks: others who want it lack what this node lacks.
        speakers = () if stream is None or stream.speaker is None else (stream.speaker,)
        return [
            each
            for each in dict.fromkeys((stream_id.origin, *keepers, *speakers, *others, *present))
            if (each in present or each in foreign) and each != self._me
        ]

    def _answer_beyond(self, asker: NodeId, call: SelectPullCall | BeginCall) -> None:
        if isinstance(call, SelectPullCall):
            self.answering.on_pull(asker, call)
        else:
            self.answering.on_begin(asker, call)

    # ---- own registrations

    def plan(
        self, token: int, version: int, added: Iterable[Want], removed: Iterable[str]
    ) -> tuple[SelectiveWrite, ...]:
        """A new version of this node's entry is written with this token: what has to be written with it."""
        removed, added = tuple(removed), tuple(added)
        writes: list[SelectiveWrite] = []
        for stream in self.receiving.streams.values():
            kept = self.wants.durable.get(keep_id(stream.id.origin))
            if kept is not None and (kept.want.id in removed or any(want.id == kept.want.id for want in added)):
                writes.append(self.receiving.settle_kept(stream, kept.join, token))
        ends = {stream_id: stream.accepted.end for stream_id, stream in self.receiving.streams.items()}
        heard = {stream_id: stream.end for stream_id, stream in self.receiving.streams.items()}
        return (*writes, *self.wants.plan(token, version, added, removed, ends, heard))

    def durable(self, token: int, now_ms: int) -> list[StreamId]:
        """The append with this token is on the disk. Returns the streams whose coverage may have changed."""
        changed = self.wants.persisted(token)
        moved = self.receiving.persisted(token)
        self.mending.durable(token)
        if changed:
            self._open_former(now_ms)
            for origin in self.wants.keeps():
                if not self._is_present(origin):
                    self._speak_for(origin, now_ms)
        looked_at = list(self.receiving.streams.values()) if changed else moved
        for stream in looked_at:
            self._ack(stream.id.origin, stream, now_ms)
            self.fetching.look(stream, now_ms)
        for stream in moved:
            if self.across.foreign:
                self.across.moved(stream, now_ms)
            if keep_id(stream.id.origin) in self.wants.durable:
                self._speak_for(stream.id.origin, now_ms)
        return [stream.id for stream in looked_at]

    def failed(self, token: int, now_ms: int) -> None:
        self.wants.failed(token)
        self.mending.failed(token, now_ms)
        for stream in self.receiving.failed(token):
            self.fetching.look(stream, now_ms)

    # ---- own rows

    def published(self, batch: Batch, keepers: int, now_ms: int) -> list[NodeId]:
        """An own batch of a selective stream is durable here. Returns the nodes that it goes to."""
        self.keeping.want(keepers, now_ms)
        return self.speaking.published(batch, now_ms)

    def unreadable(self, batch: Batch, now_ms: int) -> None:
        """An own batch is durable and cannot be sent: all runs begin anew behind it, and whoever wants it asks."""
        self.speaking.passed(batch, now_ms)

    def is_acked(self, batch: Batch, acks: int) -> bool:
        """True if `acks` nodes have the batch on disk, keepers first."""
        if (batch.stream, batch.first_sequence) in self.mending.lost:
            return False
        holders = self.speaking.holders(batch)
        if len(holders) < acks or batch.stream.origin != self._me:
            return len(holders) >= acks  # rows of a former identity have the keepers that they have
        keepers = self.demand.keepers(self._me)
        return sum(1 for node_id in holders if node_id in keepers) >= min(acks, self.keeping.wanted)

    def is_handed_over(self, copies: int) -> bool:
        """True if each own stream is whole at `copies` keepers, or at as many as there can be; without keepers, if it
        is level at all nodes that want some of it."""
        keepers = self.demand.keepers(self._me)
        needed = min(copies, self.keeping.wanted, len(self.keeping.present()))
        for stream_id, stream in self.speaking.streams.items():
            if stream_id.origin != self._me or stream.next == 1:
                continue
            level = self.speaking.level_at(stream_id, stream.next)
            held = sum(1 for node_id in keepers if node_id in level)
            if held < needed or (not self.keeping.wanted and stream.unlevel):
                return False
        return True

    def why_too_few(self, acks: int) -> str | None:
        """The reason why so many acknowledgements cannot be had; None when they can."""
        able = len(self.keeping.present())
        if acks <= able:
            return None
        return f"acks = {acks}, but only {able} other nodes are present: ask for fewer, or start more nodes"

    def why_too_few_takers(self, acks: int, rows: Staged, keepers: int) -> str | None:
        """The reason that so many of the nodes that these rows go to cannot acknowledge them; None if they can.
        `keepers`: those that the topic asks for, chosen or not. Whoever wants the rows later does not count."""
        present = self.keeping.present()
        takers = [each for each in self.demand.takers_of(StreamId(self._me, rows.topic), rows) if each in present]
        chosen = [each for each in self.demand.keepers(self._me) if each in present]
        able = min(len(takers) + max(max(keepers, self.keeping.wanted) - len(chosen), 0), len(present))
        if acks <= able:
            return None
        return (
            f"acks = {acks}, but these rows of topic {rows.topic!r} go to {able} other nodes, which keep or want them: "
            "ask for fewer, make the topic with more keepers, or subscribe elsewhere first"
        )

    # ---- frames

    def received(self, frame: RoutedFrame, now_ms: int) -> None:
        """A routed frame of which this node is a destination."""
        mine = next((each for each in frame.destinations if each.node_id == self._me), None)
        if mine is None or frame.speaker == self._me:
            return
        speaker = frame.speaker
        match frame.content:
            case Batch() as batch:
                self._on_batch(frame, batch, mine, now_ms)
            case CoverStmt() as cover:
                self._on_cover(speaker, cover, mine.version, now_ms)
            case SelectAckStmt() as ack:
                self.speaking.on_ack(speaker, ack)
            case (SelectPullCall() | BeginCall()) as call if self.across.asks_beyond(speaker, call):
                pass
            case SelectPullCall() as call:
                self.answering.on_pull(speaker, call)
            case SelectPullResp() as resp:
                self.fetching.on_pull_answer(speaker, resp, now_ms)
            case BeginCall() as call:
                self._open_unheard(StreamId(call.origin, call.topic), now_ms)
                self.answering.on_begin(speaker, call)
            case BeginResp() as resp:
                self.fetching.on_begin_answer(speaker, resp, now_ms)
            case KeepCall(keep):
                self.out.append(KeepWish(speaker, keep))
            case KeptCall() as call:
                self.answering.on_kept(speaker, call)
            case KeptResp() as kept:
                self.keeping.on_kept(speaker, kept)
                self._open_former(now_ms)

    def _on_batch(self, frame: RoutedFrame, batch: Batch, mine: Destination, now_ms: int) -> None:
        if self.mending.received(batch):
            return
        if batch.stream.origin == self._me:
            own = self.speaking.streams.get(batch.stream)
            if batch.next_sequence > (own.next if own else 1):
                self.out.append(RolledBack(f"{batch.stream.topic!r} of this node came back beyond its store"))
            return
        stream = self.receiving.open(batch.stream)
        if stream is None:
            self.out.append(Trace("unwanted", (("topic", batch.stream.topic),)))
            return
        if self._may_state(frame.speaker, batch.stream.origin, mine.version):
            self._begin_by(stream, mine.first, mine.version)
            if mine.first < batch.first_sequence:
                self.receiving.state(stream, mine.first, batch.first_sequence, mine.version)
        if frame.how is How.PUSHED:
            stream.speaker = frame.speaker
        self.receiving.batch(stream, batch, frame.speaker, now_ms, frame.hops)
        self.fetching.look(stream, now_ms)

    def _may_state(self, speaker: NodeId, origin: NodeId, version: int) -> bool:
        """Only the origin knows what it did not send; and of a version that was never announced nobody knows."""
        return speaker == origin and self.wants.has_announced(version)

    def _begin_by(self, stream: SelectedStream, first: int, version: int) -> None:
        """The origin knows this version, and sends what it wants at least from here on."""
        begins = self.wants.beyond(stream.id, first, version)
        if begins:
            self.fetching.plan_begins(begins)

    def _on_cover(self, speaker: NodeId, cover: CoverStmt, version: int, now_ms: int) -> None:
        for entry in cover.entries if cover.origin != self._me else ():
            stream = self.receiving.open(StreamId(cover.origin, entry.topic))
            if stream is None:
                continue
            self.receiving.ends_with(stream, entry.next, entry.checksum)
            stream.speaker = speaker
            stream.heard = max(stream.heard, entry.next)
            if self._may_state(speaker, cover.origin, version):
                self._begin_by(stream, entry.first, version)
                self.receiving.state(stream, entry.first, entry.next, version)
            self._ack(speaker, stream, now_ms)
            self.fetching.look(stream, now_ms)

    def _open_unheard(self, stream_id: StreamId, now_ms: int) -> None:
        """A keeper that nothing of a stream came to is asked where registrations begin. Once the origin cannot return,
        nobody knows more: what it has is all, from the first row on."""
        if stream_id.origin in self.wants.keeps() and not self.fetching.is_awaited(stream_id.origin, now_ms):
            self.receiving.open(stream_id)

    # ---- acknowledging

    def _ack(self, to: NodeId, stream: SelectedStream, now_ms: int) -> None:
        self._acks.setdefault((to, stream.id.origin), {})[stream.id.topic] = None
        self._timers.set_sooner(SelectAckDue(), now_ms + JOIN_DELAY_MS)

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, {}
        for (to, origin), topics in acks.items():
            entries = []
            for topic in topics:
                stream = self.receiving.streams[StreamId(origin, topic)]
                level = self.receiving.level(stream) if not stream.forked else None
                if level is not None:
                    entries.append(SelectAckEntry(topic, level))
            for start in range(0, len(entries), ENTRIES_MAX):
                part = tuple(entries[start : start + ENTRIES_MAX])
                route(self.out, self._me, [Destination(to, 0, 0)], SelectAckStmt(origin, self.wants.version, part))

    # ---- keeping

    def _kept(self, stream_id: StreamId) -> int:
        return self.receiving.coverage(keep_id(stream_id.origin), stream_id) or 1

    def _open_former(self, now_ms: int) -> None:
        """Fetch what others have of this node's former streams: it may be that nobody states these."""
        for stream_id, end in self.keeping.former_ends.items():
            stream = self.receiving.open(stream_id)
            if stream is not None and stream.heard < end:
                stream.heard = end
                self.fetching.look(stream, now_ms)

    def _speak_for(self, origin: NodeId, now_ms: int) -> None:
        """State what this node keeps of an absent origin, as far as it has it without a hole."""
        if origin not in self.wants.keeps() or self._is_present(origin):
            return
        for stream in self.receiving.streams.values():
            end = self._kept(stream.id)
            if stream.id.origin == origin and end > 1:
                checksum = stream.known_checksum if stream.known_at == end else 0
                self.speaking.open(stream.id, end, checksum, now_ms)
        if origin not in self._gather_wait_ms:
            self._gather_wait_ms[origin] = self._settings.cover_ms
            self._timers.set_sooner(GatherDue(origin), now_ms + self._settings.cover_ms)

    def _gather(self, origin: NodeId, now_ms: int) -> None:
        """Receivers may have rows that no keeper got before the origin went."""
        if origin not in self.wants.keeps() or self._is_present(origin):
            self._gather_wait_ms.pop(origin, None)
            return
        for stream in self.receiving.streams.values():
            if stream.id.origin == origin:
                call = self.fetching.pull_call(stream, 0, Hole(self._kept(stream.id), ENDLESS))
                asked = [Destination(each, 0, 0) for each in self._sources(stream.id)]
                route(self.out, self._me, asked, call)
        wait_ms = self._gather_wait_ms[origin] = min(2 * self._gather_wait_ms[origin], COVER_WAIT_MAX_MS)
        self._timers.set(GatherDue(origin), now_ms + wait_ms)

    # ---- the rest

    def damaged(self, damaged: Damaged, now_ms: int) -> bool:
        """A batch cannot be read; False if its stream is none of these."""
        if damaged.stream not in self.receiving.streams and damaged.stream not in self.speaking.streams:
            return False
        self.mending.found(damaged, now_ms)
        return True

    def read(self, read: SelectedRead, now_ms: int) -> None:
        if not self.fetching.read(read, now_ms):
            self.answering.read(read)

    def found(self, found: TimesFound, now_ms: int) -> None:
        here = self.answering.found(found)
        if here is not None:
            self.fetching.on_begin_answer(self._me, here, now_ms)

    def end_mark(self, now_ms: int) -> None:
        """The first interest exchange is complete: it is known whom to ask, and who is absent."""
        self.keeping.end_mark(now_ms)
        for stream in self.receiving.streams.values():
            self.fetching.look_anew(stream, now_ms)
        for origin in self.wants.keeps():
            self._speak_for(origin, now_ms)

    def timer(self, timer: Timer, now_ms: int) -> None:
        match timer:
            case CoverDue():
                self.speaking.covers_due(now_ms)
            case FetchDue(stream_id):
                self.fetching.due(stream_id, now_ms)
            case SelectAckDue():
                self._send_acks()
            case KeepDue():
                self.keeping.due(now_ms)
            case GatherDue(origin):
                self._gather(origin, now_ms)
            case MendDue(stream_id, first):
                self.mending.due(stream_id, first, now_ms)
            case _:
                raise AssertionError(f"{timer} is not a timer of this room")
