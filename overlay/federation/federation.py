"""One node's part in a federation of units: the machine. `handle` is its only verb.

    Vertex        its units and links
    Addition      how it comes in, and lets others in
    Gateways      what it knows of links between units, and the graph made of it
    UnitInterest  what units want
    EventRouting  batches and what is left to do for them
    Answers       what publishers are told: that nobody wants a topic, that an addressee is unknown
    Roaming       clients that connect at another node

Guarantee 14. After a quiet time, a unit is sent a batch only if someone inside may want it. A batch that matches a want
that was confirmed at a level, published inside the unit of that level, reaches whoever wants it, once, whatever fails
meanwhile, as soon as there is a way. What is inside a unit is known to nobody outside it, but for its gateways.
"""

from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.federation.addition import Addition
from m4cast.overlay.federation.answers import Answers
from m4cast.overlay.federation.contract import (
    AdditionFailed,
    AddressHeard,
    ClientArrived,
    CloseLink,
    ConnectFailed,
    FederationInput,
    FederationOutput,
    FederationRecovered,
    FederationSettings,
    HandOver,
    JoinUnit,
    KeptClient,
    KeptEvent,
    LeaveUnit,
    LinkClosed,
    LinkDelay,
    LinkHeard,
    LinkOpened,
    MergeUnit,
    PublishEvent,
    TimeCame,
    UnwantRows,
    WantRows,
)
from m4cast.overlay.federation.gateways import Gateways
from m4cast.overlay.federation.interest import RETRY_MS_MAX, UnitInterest
from m4cast.overlay.federation.messages import (
    AddresseesUnknown,
    ClientMoved,
    ClientReleased,
    EventAck,
    EventCopy,
    GatewayNews,
    GatewayStatus,
    LinkMessage,
    LinkProbe,
    NoteBody,
    RoutedNote,
    TopicHeard,
    TopicQuiet,
    TopicWanted,
    UnitHello,
    UnitWant,
    WantsAck,
    WantsNews,
)
from m4cast.overlay.federation.roaming import Roaming
from m4cast.overlay.federation.routing import EventRouting
from m4cast.overlay.federation.units import GONE, UnitRecord
from m4cast.overlay.federation.vertex import (
    AdditionDue,
    AnnounceDue,
    CheckDue,
    NewsDue,
    StuckDue,
    UnitLink,
    Vertex,
)

NONCE_BYTES = 8
CONNECTION_ID_BYTES = 16


class Federation:
    def __init__(
        self, recovered: FederationRecovered, settings: FederationSettings, random: Random, now_ms: int
    ) -> None:
        self.vertex = Vertex(recovered, settings, random, now_ms)
        self.gateways = Gateways(self.vertex)
        clients = {
            str(name): kept
            for (kind, name), kept in recovered.kept.items()
            if kind == "want" and isinstance(kept, UnitWant)
        }
        self.interest = UnitInterest(self.vertex, self.gateways, clients)
        roamers = {
            str(name): kept
            for (kind, name), kept in recovered.kept.items()
            if kind == "client" and isinstance(kept, KeptClient)
        }
        self.roaming = Roaming(self.vertex, self.gateways, self.interest, roamers)
        self.answers = Answers(self.vertex, self.gateways, self.interest)
        self.routing = EventRouting(self.vertex, self.gateways, self.interest, self.answers, self.roaming)
        self.addition = Addition(self.vertex, self.gateways)
        self.routing.recover(
            (name, kept)  # type: ignore[misc]  # the key of a kept event is its id
            for (kind, name), kept in recovered.kept.items()
            if kind == "event" and isinstance(kept, KeptEvent)
        )
        self._revision = self._burials = 0
        self._remind_at_ms = now_ms + RETRY_MS_MAX
        self._inputs: dict[type[FederationInput], Callable[[Any], None]] = {
            LinkOpened: self._link_opened,
            LinkClosed: lambda each: self._link_closed(each.conn),
            LinkHeard: self._link_heard,
            LinkDelay: self._link_load,
            AddressHeard: lambda each: self.addition.hear(each.sender, each.message),
            ConnectFailed: lambda each: self.addition.unreachable(each.address),
            TimeCame: lambda each: self._time_came(),
            JoinUnit: lambda each: self.addition.join(each.bits, each.address),
            MergeUnit: lambda each: self.addition.merge(each.level, each.address),
            LeaveUnit: lambda each: self._leave(),
            WantRows: lambda each: self.interest.want(each.name, each.want),
            UnwantRows: lambda each: self._unwant(each.name),
            PublishEvent: lambda each: self.routing.publish(each.event),
            ClientArrived: self.roaming.arrive,
            HandOver: lambda each: self.routing.hand_over(each.name, each.event),
        }
        self._notes: dict[type[NoteBody], Callable[[Any], None]] = {
            WantsAck: self.interest.acknowledged,
            TopicQuiet: self.answers.quiet_told,
            TopicWanted: self.answers.wanted_told,
            TopicHeard: self.answers.heard,
            AddresseesUnknown: self.answers.unknown_told,
            ClientMoved: self.roaming.moved,
            ClientReleased: self.roaming.released,
        }
        self._messages: dict[type[LinkMessage], Callable[[UnitLink, Any], None]] = {
            UnitHello: self._hello,
            GatewayNews: self._news,
            RoutedNote: self._note,
            EventCopy: self._copy,
            EventAck: self._ack,
            LinkProbe: self._probe,
        }
        self.interest.changed()
        self.vertex.timers.set(CheckDue(), now_ms + settings.check_ms)

    def start(self) -> list[FederationOutput]:
        """The first outputs."""
        self.vertex.flush()
        outputs = list(self.vertex.out)
        self.vertex.out.clear()
        return outputs

    def handle(self, event: FederationInput, now_ms: int) -> list[FederationOutput]:
        """The outputs of one input, in order. What they keep is durable before anything that they send leaves."""
        self.vertex.now_ms = now_ms
        place = self.vertex.place
        self._inputs[type(event)](event)
        self._hear_notes()
        if self.vertex.place is not place:
            moved = [level for level, unit in enumerate(place) if self.vertex.place[level] != unit]
            self.interest.place_changed(moved[0])
        if self.gateways.revisions[-1] != self._revision:
            self._revision = self.gateways.revisions[-1]
            self.interest.table_changed()
            self.answers.table_changed()
            self.routing.sync_retry()
        if self.gateways.burials != self._burials:
            self._burials = self.gateways.burials
            self.interest.buried()
            self.routing.buried()
        self.routing.flush()
        return self.start()

    def next_at(self) -> int | None:
        """Return the time at which it needs the input `TimeCame`."""
        return self.vertex.timers.next_at()

    # ---- time

    def _time_came(self) -> None:
        vertex = self.vertex
        while (timer := vertex.timers.pop_due(vertex.now_ms)) is not None:
            match timer:
                case NewsDue():
                    self.gateways.send_news()
                case AnnounceDue():
                    self.interest.renew()
                    self.answers.review()
                    self.interest.announce()
                    self.roaming.tell_previous()
                case CheckDue():
                    self._check()
                case StuckDue():
                    self.routing.retry()
                case AdditionDue(call):
                    self.addition.overdue(call)

    def _unwant(self, name: str) -> None:
        self.interest.unwant(name)
        self.roaming.drop(name)

    def _check(self) -> None:
        vertex, settings = self.vertex, self.vertex.settings
        vertex.timers.set(CheckDue(), vertex.now_ms + settings.check_ms)
        self.gateways.check_loads()
        self.gateways.check_reach()
        self.gateways.partitions.check_apart()
        self.routing.settle()
        if not vertex.is_synced and self._is_whole():
            self._synced()
        for link in vertex.ready_links():
            if link.is_suspected:
                vertex.send(link, LinkProbe())
            oldest = next(iter(link.unacked.values()), None)
            if oldest is None or link.is_suspected:
                continue
            if vertex.now_ms - max(oldest.at_ms, link.moved_ms) >= settings.suspect_ms:
                self.gateways.suspect(link)
                self.routing.withdraw(link)
        self.interest.ask_again()
        self.roaming.forget()
        self.roaming.tell_previous()
        if self.gateways.is_troubled() or self.answers.told or not self.interest.tables.is_sure():
            self.interest.changed_soon()  # time alone may change something
        if vertex.now_ms >= self._remind_at_ms:
            self._remind_at_ms = vertex.now_ms + RETRY_MS_MAX
            self.interest.remind()
            self.interest.changed_soon()

    def _is_whole(self) -> bool:
        """True if everything that this node knew of can be reached: if all restarted, they know together what there
        is."""
        if self.addition.is_moving or not self.vertex.ready_links():
            return False
        return not any(self.gateways.is_parted(level) for level in range(self.vertex.top + 1))

    def _hear_notes(self) -> None:
        """Handle the notes for this node, and those that it sends itself meanwhile."""
        notes = self.gateways.notes
        while notes:
            body, via = notes.pop(0)
            if isinstance(body, WantsNews):
                self.interest.hear(body, via)
            else:
                self._notes[type(body)](body)

    # ---- links

    def _link_opened(self, opened: LinkOpened) -> None:
        vertex = self.vertex
        link = vertex.links[opened.conn] = UnitLink(opened.conn, vertex.random.randbytes(NONCE_BYTES))
        vertex.send(link, UnitHello(vertex.own_records(), link.nonce))

    def _hello(self, link: UnitLink, hello: UnitHello) -> None:
        vertex = self.vertex
        levels = [record.unit.level for record in hello.records]
        if link.peer or levels != list(range(vertex.top + 1)):
            raise RemoteProtocolError(f"UnitHello with levels {levels}: once, with levels 0 to {vertex.top}")
        chain = tuple(record.unit.id for record in hello.records)
        for other in vertex.ready_links():
            if other.peer[0] == chain[0]:
                self._link_closed(other.conn)  # the other end restarted, or both called each other
                vertex.out.append(CloseLink(other.conn))
        link.peer, link.address = chain, hello.records[0].address
        if not vertex.has_joined:
            vertex.has_joined = vertex.is_place_new = True
        nonces = (link.nonce, hello.nonce) if vertex.me.id < chain[0] else (hello.nonce, link.nonce)
        connection = blake2b(b"".join((*nonces, *sorted((vertex.me.id, chain[0])))), digest_size=CONNECTION_ID_BYTES)
        self.gateways.link_up(link, connection.digest())
        self.addition.linked(link)

    def _link_closed(self, conn: int) -> None:
        link = self.vertex.links.pop(conn, None)
        if link is not None and link.peer:
            self.gateways.link_down(link)
            self.routing.withdraw(link)

    def _link_heard(self, heard: LinkHeard) -> None:
        link = self.vertex.links.get(heard.conn)
        if link is None:
            return  # it was closed, and this was on its way
        if not link.peer and not isinstance(heard.message, UnitHello):
            raise RemoteProtocolError(f"{type(heard.message).__name__} before UnitHello")
        self._messages[type(heard.message)](link, heard.message)

    def _link_load(self, load: LinkDelay) -> None:
        link = self.vertex.links.get(load.conn)
        if link is not None:
            self.gateways.load(link, load.delay_ms)
            if load.waits_from and next(iter(link.unacked), 0) >= load.waits_from:
                link.moved_ms = self.vertex.now_ms

    # ---- messages

    def _news(self, link: UnitLink, news: GatewayNews) -> None:
        records = sorted(news.records, key=lambda each: each.unit.level)
        learned = [record for record in records if self.vertex.learn_record(record)]
        if learned:  # again: those of units beside make sense when the own ones are there
            learned += [record for record in records if self.vertex.learn_record(record)]
        for record in learned:
            self.gateways.tell_record(record, link)
        if learned:
            for record in self.vertex.clashing():
                self._renumber(record)
        for connection in news.connections:
            if connection.level >= link.level:
                self.gateways.learn(connection, link)
        if news.is_whole and not self.vertex.is_synced:
            self._synced()
        if news.is_whole:
            self.addition.place_is_sure()
            self.addition.ask_rest()

    def _synced(self) -> None:
        """This node knows as much as its neighbours: it may match batches, and others may rely on it."""
        self.vertex.is_synced, self.vertex.synced_ms = True, self.vertex.now_ms
        for link in self.vertex.ready_links():
            self.vertex.send(link, GatewayNews((), (), is_whole=True))
        self.interest.changed()
        self.routing.sync_retry()

    def _renumber(self, record: UnitRecord) -> None:
        if self.vertex.learn_record(record):
            self.gateways.tell_record(record, None)

    def _note(self, link: UnitLink, note: RoutedNote) -> None:
        """Pass a note on. That a topic is quiet may have been overtaken where an end suspects the link, or did of late;
        whoever still sends is told again."""
        connection = self.gateways.connections.get(link.connection)
        is_in_order = connection is not None and connection.status is GatewayStatus.UP and not link.is_behind
        if is_in_order or not isinstance(note.body, TopicQuiet):
            self.gateways.pass_on(note)

    def _copy(self, link: UnitLink, copy: EventCopy) -> None:
        self.routing.receive(copy)
        self.vertex.send(link, EventAck(copy.number))

    def _ack(self, link: UnitLink, ack: EventAck) -> None:
        self._works(link)
        link.moved_ms = self.vertex.now_ms
        self.routing.acknowledged(link, ack.number)

    def _probe(self, link: UnitLink, probe: LinkProbe) -> None:
        if probe.is_answer:
            self._works(link)
            link.is_behind = False
        else:
            self.vertex.send(link, LinkProbe(is_answer=True))

    def _works(self, link: UnitLink) -> None:
        if link.is_suspected:
            self.gateways.restore(link)
            self.vertex.send(link, LinkProbe())

    # ---- leaving

    def _leave(self) -> None:
        """Tell the cluster, and close all links: the machine is done. Not while it has batches to see through."""
        routing = self.routing
        left = sum(bool(state.open) or event_id in routing.doubted for event_id, state in routing.events.items())
        if left:
            self.vertex.out.append(AdditionFailed(0, f"{left} batches are not handed over yet: leave later"))
            return
        record = self.vertex.own_records()[0]
        gone = UnitRecord(record.unit, record.parent, GONE, record.epoch + 1, record.address)
        self.vertex.records[record.unit] = gone
        self.gateways.tell_record(gone, None)
        self.gateways.send_news()
        for link in list(self.vertex.links.values()):
            self.vertex.out.append(CloseLink(link.conn, is_final=True))
