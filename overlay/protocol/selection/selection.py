"""The composer of what goes to some nodes and not to all: who wants what, the ways to them, and selective topics.

    Interest         who wants what
    Routing          frames to some nodes
    Selective        rows of selective topics to those who want them, statements about the rest
    descriptors      which topics are selective
    SelectiveAnswers publishes that wait for the disks of those nodes

A channel in which nobody ever registered anything and no selective topic was made pays nothing: nothing here is asked
before `Interest` becomes active, and publishing looks at one empty table (`CommitMachine.spreads`).
"""

from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from typing import Any

from m4cast.overlay.ids import NodeId, StreamId, is_of_lineage
from m4cast.overlay.profiles.profile import Profile, read
from m4cast.overlay.protocol.clients.holds import HOLDS_TOPIC
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import (
    Append,
    CameAcross,
    Commit,
    CreateTopic,
    Damaged,
    Delivered,
    DescriptorRecord,
    InsertBatch,
    InterestChanged,
    OpenGates,
    Publish,
    ReadSelected,
    Recovered,
    Refused,
    Registration,
    RolledBack,
    SelectedRead,
    SendAcross,
    SpreadRecord,
    TimesFound,
    TopicDescriptor,
    TopicSpread,
    Wish,
    Write,
)
from m4cast.overlay.protocol.interest.confirmations import Confirmations
from m4cast.overlay.protocol.interest.interest import Interest
from m4cast.overlay.protocol.interest.registrations import RowChange
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.publishing.publishing import Publishing
from m4cast.overlay.protocol.roster.roster import Roster
from m4cast.overlay.protocol.routes.routing import Routing
from m4cast.overlay.protocol.selection.answers import SelectiveAnswers
from m4cast.overlay.protocol.selection.coverage import CoverageReports, Fits
from m4cast.overlay.protocol.selection.descriptors import (
    TOPICS_TOPIC,
    descriptor_id,
    descriptor_of,
    descriptor_text,
    is_newer,
)
from m4cast.overlay.protocol.selection.presence import Presence
from m4cast.overlay.protocol.selection.recovery import selective_part, want_of
from m4cast.overlay.protocol.selection.spared import CopyCounts
from m4cast.overlay.protocol.selective.contract import (
    KEEPS_TOPIC,
    KeepWish,
    SelectiveSettings,
    keep_id,
    keep_text,
)
from m4cast.overlay.protocol.selective.demand import topic_hash
from m4cast.overlay.protocol.selective.selective import Selective
from m4cast.overlay.protocol.timers import Timer
from m4cast.overlay.protocol.wire.batch import Batch, StoredPayload
from m4cast.overlay.protocol.wire.selective import (
    ROUTED_VERSION,
    ActiveCall,
    ActiveStmt,
    Destination,
    RoutedFrame,
    SelectAckStmt,
    spread_extension,
)

TOPICS_HASH = topic_hash(TOPICS_TOPIC)
TOLD_TOPICS = (TOPICS_TOPIC, HOLDS_TOPIC)
"""Items of these say something, and want no rows."""
NAMES_SHOWN_MAX = 5


class Selection:
    def __init__(
        self,
        context: Context,
        recovered: Recovered,
        roster: Roster,
        publishing: Publishing,
        rolled_back: Callable[[str], None],
    ) -> None:
        """`rolled_back` is called when the channel has something newer of this node than its store."""
        self._context = context
        self._me = context.me.node_id
        self._roster = roster
        self._publishing = publishing
        self._rolled_back = rolled_back
        self.interest = Interest(context, recovered, rolled_back, roster.is_known_gone)
        self.routing = Routing(context, roster, self._arrived)
        self.selective = Selective(
            (self._me, *reversed(recovered.former_ids)),
            selective_part(recovered, self.interest.version),
            SelectiveSettings(clock_skew_ms=context.config.clock_skew_ms),
            context.timers,
            context.next_token,
        )
        self._presence = Presence(roster, self.interest.view)
        self.selective.set_present(self._presence.nodes)
        self.selective.fetching.is_awaited = self._presence.is_awaited
        self.selective.keeping.expected = lambda now_ms: list(self._presence.others(now_ms))
        self.routing.saw_batch = roster.saw_batch
        self.descriptors: dict[str, TopicDescriptor] = dict(recovered.of(DescriptorRecord))
        self.answers = SelectiveAnswers(self.selective.is_acked, publishing.acks.count, context.next_token, context.out)
        self.confirmations = Confirmations(
            context,
            self.interest.view,
            self._presence.others,
            self._next_hop,
            self._send_control,
            self._state,
        )
        self.contents: dict[type, Callable[[RoutedFrame, Any, int], None]] = {
            ActiveCall: lambda frame, call, now_ms: self.confirmations.on_call(frame.speaker, call, now_ms),
            ActiveStmt: lambda frame, stmt, now_ms: self.confirmations.on_stmt(stmt, now_ms),
        }
        """The handlers of routed frames that have arrived, by the kind of their content (frame, content, time), if they
        are not about selective topics."""
        self._unsent: dict[StreamId, deque[Batch]] = {}
        """Own batches that are durable and wait for their turn: the first is being read from the store."""
        self._reading: dict[int, StreamId] = {}
        """Reads of such batches, by token."""
        self._inserted: dict[int, list[Delivered]] = {}
        """Inserted deliveries, by the token of their append."""
        self.copies = CopyCounts()
        self.reports = CoverageReports(self._me, self.selective, context.out)
        hooks = self.interest.hooks
        hooks.planned, hooks.shown, hooks.end_marked = self._plan, self._shown, self._end_mark
        publishing.selected, publishing.answer_selected = self._published, self.answers.add
        publishing.neighbour_acked = self.answers.look
        self._recover(recovered)

    def _recover(self, recovered: Recovered) -> None:
        for stream, stored in recovered.streams.items():
            if stored.origin_batch:
                self._roster.saw_batch(stream.origin, stored.origin_batch)
        for topic, keepers in recovered.of(SpreadRecord).items():
            if StreamId(self._me, topic) in recovered.streams:
                self._publishing.commits.spreads[topic] = spread_extension(keepers)
                self.selective.keeping.wanted = max(self.selective.keeping.wanted, keepers)
        for made in self.descriptors.values():
            self._use(made)

    def start(self, now_ms: int) -> None:
        self.interest.start(now_ms)
        unplanned = [
            each
            for each, row in self.interest.registrations.rows.items()
            if row.topic not in TOLD_TOPICS and each not in self.selective.wants.planned
        ]
        if unplanned:  # registered by a program from before selective topics, or under a former id
            self.interest.register(0, (), (), now_ms, tuple(unplanned))
        for stream in list(self.selective.receiving.streams):
            if stream.origin != self._me and is_of_lineage(stream.origin, self._me):
                self._keep(stream.origin, True, now_ms)

    # ---- nodes

    def _next_hop(self, to: NodeId, now_ms: int) -> NodeId | None:
        """The neighbour that is one step nearer to the root of this tree."""
        return self.routing.graph(now_ms).tree(to).parent.get(self._roster.own.node_id)

    def _send_control(self, content: ActiveCall | ActiveStmt, to: Iterable[NodeId], now_ms: int) -> None:
        self.routing.send(content, [Destination(node_id, 0, 0) for node_id in to], now_ms)

    def departed(self, node_id: NodeId, now_ms: int) -> None:
        self.interest.departed(node_id, now_ms)
        if self.interest.is_active:
            self._presence.departed(node_id)
            self._publishing.far.gone(node_id)
            self.selective.departed(node_id, now_ms)
            self._perform(now_ms)

    def heard(self, node_id: NodeId, now_ms: int) -> None:
        """A beacon of the node has arrived, and somebody wants something."""
        is_there_again, has_restarted = self._presence.heard(node_id)
        if node_id in self.interest.view.gone:
            self.interest.returned(node_id, now_ms)
        if is_there_again:
            self.selective.returned(node_id, now_ms)
            self._perform(now_ms)
        elif has_restarted:
            self.selective.speaking.restarted(node_id, now_ms)

    def sweep(self, now_ms: int) -> None:
        """Look for nodes that went without a word."""
        for node_id in self._presence.sweep(now_ms, self.selective.demand.versions):
            self.departed(node_id, now_ms)

    def link_down(self, neighbour: Neighbour) -> None:
        self.interest.link_down(neighbour)
        self.routing.link_down(neighbour)

    def blocked(self, conn: int) -> None:
        self.interest.blocked(conn, True)
        self.routing.blocked(conn)

    def ready(self, conn: int) -> None:
        self.interest.blocked(conn, False)
        self.routing.ready(conn)

    def _arrived(self, frame: RoutedFrame, now_ms: int) -> None:
        handle = self.contents.get(type(frame.content))
        if frame.speaker == self._me:
            return
        if handle is not None:
            handle(frame, frame.content, now_ms)
        else:
            self.selective.received(frame, now_ms)
            if isinstance(frame.content, SelectAckStmt) and frame.content.origin == self._me:
                ends = self.selective.speaking.acked_by(frame.speaker)
                self._publishing.far.acked(frame.speaker, ends, now_ms)
            self._perform(now_ms)

    # ---- interest

    def _plan(self, token: int, version: int, changes: list[RowChange]) -> tuple[Write, ...]:
        """This node's entry changes: what the machine of selective topics has to write with it."""
        before: dict[str, Registration | None] = {}
        for change in changes:
            before.setdefault(change.id, change.before)
        rows = self.interest.registrations.rows
        planned = self.selective.wants.planned
        added, removed = [], []
        for each, old in before.items():
            new = rows.get(each)
            if new is None or new.topic in TOLD_TOPICS:
                removed.append(each)
            elif old is None or each not in planned or replace(old, under="") != replace(new, under=""):
                added.append(want_of(each, new))
        return self.selective.plan(token, version, added, removed)

    def _shown(self, change: InterestChanged, now_ms: int) -> None:
        """An entry of the view has changed."""
        items = (*change.joined, *change.rejoined)
        for item in items:
            if item.topic_hash == TOPICS_HASH and (made := descriptor_of(item.text)) is not None:
                self._learn(made)
        if change.present:
            self.selective.interest_changed(change.node_id, change.ts, items, change.left, now_ms)
            self._publishing.far.wants(change.node_id, self.selective.speaking.acked_by(change.node_id))
            self._perform(now_ms)
            self.confirmations.applied(change.node_id, now_ms)

    def _state(self, subscriber: NodeId, now_ms: int) -> None:
        """Before this node confirms a registration it states what it has of what is wanted."""
        self.selective.speaking.hurry(subscriber, now_ms)
        self._perform(now_ms)

    def _end_mark(self, now_ms: int) -> None:
        self.selective.end_mark(now_ms)
        self._perform(now_ms)

    # ---- topics

    def create_topic(self, asked: CreateTopic, now_ms: int) -> None:
        # A gatekeeper (request 0) makes topics of which selective streams come from other channels, in any case.
        is_new = asked.request > 0 and asked.topic not in self.descriptors
        if (refusal := self._why_no_topic(asked.topic, now_ms, is_new=is_new)) is not None:
            self._context.out.append(Refused(asked.request, *refusal))
            return
        known = self.descriptors.get(asked.topic)
        if known is not None and (known.keepers, known.route_by) == (asked.keepers, asked.route_by):
            made = known
        else:
            counter = known.counter + 1 if known is not None else 1
            made = TopicDescriptor(asked.topic, asked.keepers, asked.route_by, counter, self._me)
        self._learn(made)
        self._announce(made, now_ms, asked.request)

    def _why_no_topic(self, topic: str, now_ms: int, *, is_new: bool) -> tuple[str, str] | None:
        if self._publishing.has_begun(topic) or (is_new and self._publishing.broadcast(topic)):
            detail = f"topic {topic!r} has rows that went to every node: a stream keeps its spread"
            return "wrong-spread", f"{detail}; choose another name"
        if not self.interest.is_active:
            self.interest.activate(now_ms)
        if names := self._roster.unable(ROUTED_VERSION):
            shown = ", ".join(names[:NAMES_SHOWN_MAX])
            detail = f"{len(names)} nodes have not reported protocol version {ROUTED_VERSION} ({shown})"
            return "old-nodes", f"{detail}: upgrade them, or try again in a few seconds if they have it"
        return None

    def _learn(self, made: TopicDescriptor) -> None:
        if is_newer(made, self.descriptors.get(made.topic)):
            self.descriptors[made.topic] = made
            self._context.out.append(Append(self._context.next_token(), (DescriptorRecord(made.topic, made),)))
            self._use(made)
            self.interest.exchange.compare()
            self._context.out.append(TopicSpread(made.topic, made.route_by))

    def _use(self, made: TopicDescriptor) -> None:
        """Make own streams of the topic that begin from now on selective, and refuse nodes of older versions."""
        self._context.calls.require(ROUTED_VERSION)
        commits = self._publishing.commits
        if made.topic not in commits.spreads and not commits.has_stream(StreamId(self._me, made.topic)):
            commits.spreads[made.topic] = spread_extension(made.keepers)

    def _announce(self, made: TopicDescriptor, now_ms: int, request: int = 0) -> None:
        wish = Wish(descriptor_id(made.topic), TOPICS_TOPIC, read(descriptor_text(made)))
        self.interest.register(request, (wish,), (), now_ms)

    # ---- publishing

    def why_no_publish(self, request: Publish | Commit, now_ms: int) -> tuple[str, str] | None:
        """Code and detail of the refusal of a publish on a selective topic; None: it is taken."""
        spreads = self._publishing.commits.spreads
        payloads = [each for each in self._publishing.payloads_of(request) if each.topic in spreads] if spreads else ()
        if not payloads:
            return None
        keeping = self.selective.keeping
        if not self._context.table.neighbours and not self._roster.able(ROUTED_VERSION):
            self.selective.end_mark(now_ms)  # nobody is there to hear from
        if (why := keeping.why_not_ready(now_ms)) is not None:
            return "not-ready", why
        if (why := self.selective.why_too_few(request.acks)) is not None:
            known = sum(not entry.leaving for entry in self._roster.members())  # absent ones, and itself, as well
            if known > request.acks:
                return "not-ready", f"{why}, or repeat the request when others are back"
            return "too-few-nodes", why
        for staged in payloads if request.acks else ():
            made = self.descriptors.get(staged.topic)
            why = self.selective.why_too_few_takers(request.acks, staged, made.keepers if made is not None else 0)
            if why is not None:  # of those who are absent, some may want it
                return "not-ready" if self.interest.view.gone else "too-few-nodes", why
        return None

    def _published(self, batch: Batch, now_ms: int) -> None:
        """An own batch of a selective stream is durable: send it, when those before it are sent."""
        waiting = self._unsent.setdefault(batch.stream, deque())
        waiting.append(batch)
        if len(waiting) == 1:
            self._send_own(batch.stream, now_ms)
        made = self.descriptors.get(batch.stream.topic)
        if made is not None and descriptor_id(made.topic) not in self.interest.registrations.rows:
            self._announce(made, now_ms)

    def _send_own(self, stream: StreamId, now_ms: int) -> None:
        waiting = self._unsent[stream]
        while waiting:
            batch = waiting[0]
            if isinstance(batch.payload, StoredPayload):  # it was staged: its rows are in the store alone
                token = self._context.next_token()
                self._reading[token] = stream
                rows = (batch.first_sequence, batch.next_sequence)
                self._context.out.append(ReadSelected(token, stream, *rows, len(batch.payload)))
                return
            waiting.popleft()
            extension = self._publishing.commits.spreads[stream.topic]
            destinations = self.selective.published(batch, extension.value[1], now_ms)
            self._publishing.far.sent(batch, destinations, now_ms)
            self.copies.count(batch, len(destinations), len(self._roster.able(ROUTED_VERSION)))
            self.reports.own(stream)
        del self._unsent[stream]
        self._perform(now_ms)

    def is_handed_over(self, keepers: int) -> bool:
        """True if no client waits for an answer, and own streams are whole at so many keepers, or at all takers."""
        return not self.answers.waiting and not self._unsent and self.selective.is_handed_over(keepers)

    # ---- the store

    def read(self, read: SelectedRead, now_ms: int) -> None:
        stream = self._reading.pop(read.token, None)
        if stream is None:
            if not self.answers.read(read):
                self.selective.read(read, now_ms)
        else:
            batch = self._unsent[stream][0]
            found = [each for each in read.batches if each.first_sequence == batch.first_sequence]
            if found:
                self._unsent[stream][0] = found[0]
                self._send_own(stream, now_ms)
            else:  # retention was faster, or it cannot be read: whoever misses it asks
                self._unsent[stream].popleft()
                self.selective.unreadable(batch, now_ms)
                self._send_own(stream, now_ms)
        self._perform(now_ms)

    def damaged(self, damaged: Damaged, now_ms: int) -> bool:
        """A batch cannot be read; False if it is of a broadcast topic."""
        is_selective = self.selective.damaged(damaged, now_ms)
        self._perform(now_ms)
        return is_selective

    def found(self, found: TimesFound, now_ms: int) -> None:
        self.selective.found(found, now_ms)
        self._perform(now_ms)

    def durable(self, token: int, now_ms: int) -> None:
        if self.interest.undurable:
            self.interest.durable(token, now_ms)
        self._context.out.extend(self._inserted.pop(token, ()))
        before = self.selective.wants.durable
        looked_at = self.selective.durable(token, now_ms)
        if self.selective.wants.durable is not before:
            self.reports.take_back()
        self.reports.report(looked_at)
        self.answers.read_again()
        self._perform(now_ms)

    def failed(self, token: int, reason: str, now_ms: int) -> None:
        self.interest.failed(token, reason)
        self._inserted = {each: held for each, held in self._inserted.items() if each < token}
        self.selective.failed(token, now_ms)
        self._perform(now_ms)

    def timer(self, timer: Timer, now_ms: int) -> None:
        self.selective.timer(timer, now_ms)
        self._perform(now_ms)

    # ---- coverage, for readers

    def coverage(self, registration: str) -> dict[StreamId, int]:
        return self.reports.of(registration)

    def begins(self, registration: str) -> dict[StreamId, int]:
        return self.reports.begins(registration)

    def covering(self, topic: str, profile: Profile | None, fits: Fits, but: Container[str] = ()) -> str | None:
        return self.reports.covering(topic, profile, fits, but)

    def is_settled(self, registration: str) -> bool:
        return self.reports.is_settled(registration)

    # ---- outputs of the machine

    def _perform(self, now_ms: int) -> None:
        wishes = []
        for output in self.selective.take_outputs():
            match output:
                case RoutedFrame() if self.selective.across.is_gatekeeper:
                    self._send_both_ways(output, now_ms)
                case RoutedFrame():
                    self.routing.send_frame(output, now_ms)
                case Append():
                    self._inserted[output.token] = [Delivered(each.delivery) for each in output.of(InsertBatch)]
                    self._context.out.append(self._publishing.commits.recover(output))
                case KeepWish():
                    wishes.append(output)
                case RolledBack(detail):
                    self._rolled_back(detail)
                case _:
                    self._context.out.append(output)
        for wish in wishes:  # their appends have later tokens than those of the machine
            self.selective.across.ask(wish.origin, keep=wish.keep)
            self._keep(wish.origin, wish.keep, now_ms)
        if self.answers.waiting:
            self.answers.look_since(self.selective.speaking.acks_taken)

    # ---- other channels

    def open_gates(self, gates: OpenGates, now_ms: int) -> None:
        self.selective.across.is_gatekeeper = True
        for origin in gates.keep:
            self.selective.across.kept[origin] = None
            self._keep(origin, True, now_ms)
        for origin in gates.drop:
            self.selective.across.kept.pop(origin, None)
            self._keep(origin, origin in self.selective.across.asked, now_ms)

    def came_across(self, came: CameAcross, now_ms: int) -> None:
        self.selective.across.came(came.frame, now_ms)
        self._perform(now_ms)

    def _send_both_ways(self, frame: RoutedFrame, now_ms: int) -> None:
        """Nodes that are on no roster are of other channels."""
        here = tuple(each for each in frame.destinations if self._roster.get(each.node_id) is not None)
        if here:
            self.routing.send_frame(replace(frame, destinations=here), now_ms)
        for each in frame.destinations:
            if each not in here:
                self._context.out.append(SendAcross(replace(frame, destinations=(each,))))

    def _keep(self, origin: NodeId, keep: bool, now_ms: int) -> None:
        name, rows = keep_id(origin), self.interest.registrations.rows
        if keep and name not in rows:
            wish = Wish(name, KEEPS_TOPIC, read(keep_text(origin)), earliest=True)
            self.interest.register(0, (wish,), (), now_ms)
        elif not keep and name in rows and origin not in self.selective.across.kept:
            self.interest.register(0, (), (name,), now_ms)
