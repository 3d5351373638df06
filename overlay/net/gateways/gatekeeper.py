"""The gatekeeper: runs the machine of `overlay.federation` beside a node, and composes exports, imports and links.

The machine's contract has one rule: what the outputs of a call keep is durable before anything that they send leaves.
Outputs therefore wait, in order, for a commit of the rows that they keep; while one commit is under way the next rows
gather. The machine sees batches by id, topic and summary only: their bytes have rows of their own (`kept`).

All of this is on the loop's thread. A node without a [federation] has none of it.

Reason: it is the one place where the parts meet; most of its lines are the tables of outputs and of messages.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from random import Random, SystemRandom
from typing import Any, Protocol, get_args

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.config.federation import FederationConfig
from m4cast.overlay.errors import RemoteProtocolError, StoreError
from m4cast.overlay.federation.contract import (
    AdditionDone,
    AdditionFailed,
    AddressHeard,
    CloseLink,
    ConnectFailed,
    ConnectTo,
    DeliverEvent,
    FederationInput,
    FederationOutput,
    FederationRecovered,
    FederationSettings,
    KeepValue,
    LinkClosed,
    LinkDelay,
    LinkHeard,
    LinkOpened,
    PartitionChanged,
    PlaceChanged,
    PublishEvent,
    SendAddress,
    SendLink,
    TimeCame,
    UnsendCopies,
    UnwantRows,
    WantRows,
)
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.messages import (
    AdditionCall,
    AdditionMessage,
    AdditionRefused,
    EventAck,
    EventCopy,
    EventId,
    RoutedNote,
    UnitWant,
)
from m4cast.overlay.federation.units import Unit, UnitId, members
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.driver import Driver, Shown
from m4cast.overlay.net.gateways.channel_side import ChannelSide
from m4cast.overlay.net.gateways.demand import Demanded
from m4cast.overlay.net.gateways.exports import Exports
from m4cast.overlay.net.gateways.finding import StreamFinding
from m4cast.overlay.net.gateways.frames import (
    batch_in,
    copy_of,
    event_of,
    head_event,
    hop_part,
    inward,
    origin_of,
    outward,
)
from m4cast.overlay.net.gateways.imports import Imports
from m4cast.overlay.net.gateways.kept import KeptRows, RowStore
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.links import GatewayLinks
from m4cast.overlay.net.gateways.messages import (
    AcrossFrame,
    CarriedCopy,
    ExportedStmt,
    FindMessage,
    GatewayHello,
    GatewayRefused,
    PulledBatch,
    StreamHead,
    StreamPullCall,
    StreamPullResp,
    WantsNewsNote,
    WithheldCopy,
)
from m4cast.overlay.net.gateways.places import GatewayPlaces
from m4cast.overlay.net.gateways.reports.reports import CLIENT_FINDS, TRACES, MachineReports
from m4cast.overlay.net.gateways.rules import GatewayRules, is_banned, may_enter, may_leave
from m4cast.overlay.net.gateways.view import view_of_links, view_of_units, view_of_way
from m4cast.overlay.profiles.languages.canonical import readable
from m4cast.overlay.protocol.effects import Covered, Delivered, SendAcross
from m4cast.overlay.protocol.wire.batch import Batch

log = logging.getLogger("m4cast.gateway")

LOOK_S = 0.25
"""The interval at which links, gaps and heads are checked."""
TELL_S = 1.0
"""The interval at which other gatekeepers of the channel hear how far streams were exported."""
UNSYNCED_S = 5.0
"""The time for which a gatekeeper may lack its neighbours' confirmation that it knows everything before its links are
made anew. Guess."""
IMPORT_NAME = "import:"
_FIND = get_args(FindMessage)


class GatekeeperStore(Protocol):
    """The interface of a store that a gatekeeper needs."""

    @property
    def federation(self) -> RowStore: ...


class Gatekeeper:
    """Made for a node that has started; `start` makes the links, `stop` ends them."""

    def __init__(
        self,
        driver: Driver,
        store: GatekeeperStore,
        cluster: ClusterConfig,
        node: NodeConfig,
        config: FederationConfig,
    ) -> None:
        self.config = config
        self.me = UnitId(driver.node.me.node_id)
        self.counts: Counter[str] = Counter()
        self._driver = driver
        self._side = ChannelSide(driver)
        self._kept = KeptRows(store.federation)
        self._rules = GatewayRules(config, driver.channel_name)
        self.links = GatewayLinks(self, self._rules, driver.tls, driver.refusals, (cluster, node, config))
        self._outputs: list[FederationOutput] = []
        self._is_committing = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._is_over = False
        self.machine: Federation
        self.places: GatewayPlaces
        self.exports: Exports
        self.imports: Imports
        self.reports: MachineReports

    @property
    def active(self) -> dict[str, int]:
        """Want -> the level up to which it is confirmed."""
        return self.reports.levels.active

    # ---- life

    async def start(self) -> None:
        await self.links.listen(self.me)
        recovered = FederationRecovered(
            node=self.me,
            incarnation=int(time.time() * 1000),  # rises with each start, even if a store was restored
            address=self.links.address,
            kept=await asyncio.to_thread(self._kept.recovered),
        )
        settings = FederationSettings(top=self.config.top, links_max=(self.config.links_max,) * 8)
        self.machine = Federation(recovered, settings, Random(SystemRandom().randbytes(16)), self._now_ms())
        side = self._side
        side.keep(())
        self.finding = StreamFinding(side, self.me, self.links.links)
        self.imports = Imports(
            side, self._kept, self.finding, self._rules.imported(), self._is_parted, self._commit_soon
        )
        self.finding.pulled, self.finding.pull_over = self.imports.pulled, self.imports.pull_over
        self.demanded = Demanded(self._driver, side, self.finding, self._rules.on_demand(), self.feed, self._fellows)
        self.finding.frame_here = self.demanded.frame_here
        self.finding.is_final = self._kept.is_final
        self.finding.note_final = lambda stream, channel, is_final: self._kept.note_final(
            stream, channel, is_final=is_final
        )
        self.finding.serve = lambda link, call, stream: self._keep_task(self._serve(side, link, call, stream))
        self.exports = Exports(side, self._rules, self._kept, self.me, self._publish, self._fellows)
        self.exports.is_full = self._is_full
        self.places = GatewayPlaces(
            self.config, self.machine, self.feed, self.links.dial, lambda: list(self.links.links.values()), self._kept
        )
        self.reports = MachineReports(self._driver, self.machine, self.feed, self._fellows, self.links, self._rules)
        self._perform(self.machine.start())
        self._want()
        self.reports.levels.look()
        self.imports.start(self._driver.node.me.node_id)
        self.exports.start()
        self.places.start()
        self._driver.watchers.append(self._shown)
        self._driver.network.federation = self.view
        self._driver.network.trace = self.trace
        self._keep_task(self.exports.run())
        self._keep_task(self._look_often())
        log.info("gatekeeper of %s at %s", self._rules.channel, self.links.address)

    async def stop(self) -> None:
        self._is_over = True
        self._driver.network.federation = dict
        self._driver.network.trace = None
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.links.stop()

    def _keep_task(self, work: Any) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def _want(self) -> None:
        """Want what the configuration imports, and no longer what it does not."""
        wanted = {f"{IMPORT_NAME}{topic}": UnitWant(topic) for topic in self._rules.imported()}
        for name in list(self.machine.interest.clients):
            if (
                name not in wanted and name not in self.machine.roaming.clients
            ):  # what is wanted on demand is found anew
                self.feed(UnwantRows(name))
        for name, want in wanted.items():
            if self.machine.interest.clients.get(name) != want:
                self.feed(WantRows(name, want))

    async def _look_often(self) -> None:
        told_s = 0.0
        while True:
            await asyncio.sleep(LOOK_S)
            self.demanded.look()
            self.reports.look()
            self._greet_again()
            self.places.look()
            self.imports.look()
            self.finding.look()
            self.exports.look()
            for link in list(self.links.links.values()):
                if link.conn in self.machine.vertex.links:
                    self.feed(LinkDelay(link.conn, int(link.delay_s * 1000)))
            if time.monotonic() - told_s >= TELL_S:
                told_s = time.monotonic()
                self._tell_fellows()
            self._commit_soon()

    def _greet_again(self) -> None:
        """A node that was added while its neighbours moved may have missed their word that it knows everything: new
        links tell it."""
        vertex, now_s = self.machine.vertex, time.monotonic()
        if vertex.is_synced or not vertex.ready_links():
            self.places.unsynced_s = now_s
        elif now_s - self.places.unsynced_s > UNSYNCED_S:
            self.places.unsynced_s = now_s
            for link in list(self.links.links.values()):
                self.links.close(link.conn)
                self.link_down(link)

    def view(self) -> dict[str, Any]:
        """Return the report for the door; called on the loop."""
        return {
            "is_gatekeeper": True,
            "channel": self._rules.channel,
            "name": self.config.name or self._rules.channel,
            "address": self.links.address,
            **view_of_units(self.machine),
            "links": view_of_links(list(self.links.links.values()), self.machine),
            "wants": [
                {
                    "name": name,
                    "topic": want.topic,
                    "where": "" if want.profile is None else readable(want.profile.text),
                    "active_level": self.machine.interest.confirmed_level(name),
                    "seen_level": self.machine.interest.seen_level(name),
                }
                for name, want in self.machine.interest.clients.items()
            ],
            "exported_batches": self.exports.batches,
            "quiet": self.reports.quiet.topics(),
            "counts": {**self.counts, **self.imports.counts},
            "failure": self.places.failure,
        }

    def trace(self, stream: StreamId, sequence: int, answer: Callable[[dict[str, Any]], None]) -> None:
        """Find the way of a row, for the door; called on the loop."""
        self.reports.ways.trace(
            stream, sequence, lambda steps, is_cut: answer(view_of_way(steps, self.machine, is_cut=is_cut))
        )

    # ---- the machine

    def _now_ms(self) -> int:
        return self._driver.clock.now_ms()

    def feed(self, event: FederationInput) -> None:
        if self._is_over:
            return
        self._outputs += self.machine.handle(event, self._now_ms())
        self._commit_soon()
        at_ms = self.machine.next_at()
        if self._timer is not None:
            self._timer.cancel()
        if at_ms is not None:
            delay_s = max(at_ms - self._now_ms(), 1) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.feed, TimeCame())

    def _commit_soon(self) -> None:
        if not self._is_committing and not self._is_over and (self._outputs or self._kept.rows):
            self._is_committing = True
            asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        """Keep what the outputs that wait keep, then perform them."""
        outputs, self._outputs = self._outputs, []
        arrived: list[tuple[Batch | StreamHead, int]] = []
        for output in outputs:
            if isinstance(output, DeliverEvent):
                arrived += self._arrived(output)
        for output in outputs:
            if isinstance(output, KeepValue):
                self._kept.keep(output)
        rows, events = self._kept.take(), self._kept.performed()
        if not rows:
            self._committed(outputs, arrived, events)
            return
        done: asyncio.Future[Any] = asyncio.wrap_future(self._kept.put(rows))
        done.add_done_callback(lambda future: self._after_commit(future, outputs, arrived, events))

    def _arrived(self, output: DeliverEvent) -> list[tuple[Batch | StreamHead, int]]:
        found = self._kept.body(output.event.id)
        if found is None:
            self.counts["lost-body"] += 1
            return []
        body, hops = found
        self.reports.ways.delivered(output)
        if isinstance(body, Batch) and body.stream.topic not in self.demanded:
            self.imports.delivered(body, hops, NodeId(self.me))
        return [found]

    def _after_commit(
        self,
        done: "asyncio.Future[Any]",
        outputs: list[FederationOutput],
        arrived: list[tuple[Batch | StreamHead, int]],
        events: list[EventId],
    ) -> None:
        if self._is_over or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            # Nothing left, so nothing is lost: links are made anew, and what was not acknowledged comes again.
            log.error("the gatekeeper's rows were not kept, its links are made anew: %s", error)
            assert isinstance(error, StoreError | OSError), error
            self._driver.stop_soon()
            return
        self._committed(outputs, arrived, events)

    def _committed(
        self, outputs: list[FederationOutput], arrived: list[tuple[Batch | StreamHead, int]], events: list[EventId]
    ) -> None:
        self._is_committing = False
        self._perform(outputs)
        self._kept.let_go(events)
        for body, hops in arrived:
            self._hand_over(body, hops)
        self._commit_soon()

    def _hand_over(self, body: Batch | StreamHead, hops: int) -> None:
        """Hand what has arrived over to the channel."""
        is_head = isinstance(body, StreamHead)
        topic, origin = (body.topic, body.origin) if is_head else (body.stream.topic, body.stream.origin)  # type: ignore[union-attr]
        if topic in self.demanded:
            if self._is_own(origin):
                self.counts["own-origin"] += 1
            elif isinstance(body, StreamHead):
                self.demanded.head(body)
            else:
                self.demanded.delivered(body, hops)
        elif isinstance(body, StreamHead):
            self.imports.head(body)
        else:
            self.imports.push(body.stream)

    def _perform(self, outputs: list[FederationOutput]) -> None:
        for output in outputs:
            match output:
                case SendLink(conn, EventCopy() as copy):
                    self._send_copy(conn, copy)
                case SendLink(conn, message):
                    link = self.links.links.get(conn)
                    if link is not None:
                        link.send(outward(message))
                case SendAddress(address, message):
                    self.links.call(address, message)
                case ConnectTo(address):
                    self.places.connect(address)
                case CloseLink(conn, is_final):
                    link = self.links.links.get(conn)
                    if link is not None:
                        if is_final:
                            self.places.forget(link.hello.address)
                        self.links.close(conn)
                        self._gone(link)
                case UnsendCopies(conn, numbers):
                    link = self.links.links.get(conn)
                    if link is not None:
                        link.unsend(numbers)
                case AdditionDone():
                    self.places.done(output)
                case AdditionFailed():
                    self.places.failed(output)
                case PartitionChanged(level, units):
                    log.info("level %d: %d units cannot be reached", level, len(units))
                case KeepValue() | DeliverEvent() | PlaceChanged():
                    pass
                case _:
                    self.reports.perform(output)

    # ---- batches

    def _publish(self, body: Batch | StreamHead) -> None:
        """Hand a batch of the log, or a head, to the machine."""
        event = head_event(body, self._driver.clock.wall_ms()) if isinstance(body, StreamHead) else event_of(body)
        self._kept.add_body(event.id, body, 0)
        if isinstance(body, Batch):
            self.reports.ways.began(event.id, body, 0, "issued")
        self.feed(PublishEvent(event))

    def _send_copy(self, conn: int, copy: EventCopy) -> None:
        link = self.links.links.get(conn)
        if link is None:
            return
        found = self._kept.body(copy.event.id)
        topic, origin = copy.event.topic, origin_of(copy.event.id)
        is_own = self._is_own(origin)
        is_final = is_banned(link.gateway, topic) if is_own else self._kept.is_final(StreamId(origin, topic))
        is_barred = is_final and not is_own and link.gateway is not None
        if found is None or is_barred or not may_leave(link.gateway, topic, is_own=is_own):
            link.withheld += 1
            self.counts["withheld" if found else "lost-body"] += 1
            self.reports.ways.sent(copy.event.id, "withheld", link.peer)
            link.send(WithheldCopy(copy.number))
            return
        body, hops = found
        if isinstance(body, StreamHead):
            link.send(hop_part(copy, hops + 1, body, is_final=is_final))
        else:
            link.sent_batches += 1
            link.sent_rows += body.row_count
            self.reports.ways.sent(copy.event.id, "sent", link.peer)
            link.send(hop_part(copy, hops + 1, None, is_final=is_final), body)

    def _is_own(self, origin: NodeId) -> bool:
        return self._side.is_own(origin)

    def _is_full(self) -> bool:
        under_way = sum(len(link.unacked) for link in self.machine.vertex.links.values())
        if under_way >= self.config.in_flight_max:
            return True
        return any(
            link.gateway is not None and link.queued_bytes > link.gateway.queue_bytes_max
            for link in self.links.links.values()
        )

    async def _serve(self, side: ChannelSide, link: GatewayLink, call: StreamPullCall, stream: StreamId) -> None:
        batches, read_next = await side.read(stream, call.first, call.next, call.bytes_max)
        for batch in batches:
            link.sent_batches += 1
            link.sent_rows += batch.row_count
            link.send(PulledBatch(call.asker, call.ask), batch)
        link.send(StreamPullResp(call.asker, call.ask, read_next if batches else 0))

    # ---- the channel

    def _shown(self, shown: Shown) -> None:
        self.reports.shown(shown)
        if isinstance(shown, Delivered):
            stream = shown.delivery.stream
            self.exports.delivered(stream)
            self.imports.durable(stream)
        elif isinstance(shown, Covered):
            for origin in shown.next:
                self.exports.delivered(StreamId(origin, shown.topic))
        elif isinstance(shown, SendAcross):
            self.demanded.send(shown.frame)

    def _is_parted(self) -> bool:
        return any(self.machine.gateways.is_parted(level) for level in range(self.config.top + 1))

    def _fellows(self) -> list[UnitId]:
        vertex = self.machine.vertex
        inside = members(vertex.records.values(), 0, vertex.unit(1).id)
        return [
            record.unit.id
            for record in inside
            if record.unit.id != self.me and self.machine.gateways.is_reached(Unit(0, record.unit.id))
        ]

    def _tell_fellows(self) -> None:
        statements = self.exports.statements()
        for link in self.links.links.values():
            if link.gateway is None:
                for statement in statements:
                    link.send(statement)

    # ---- links

    def link_up(self, link: GatewayLink) -> None:
        if link.gateway is not None and not self.places.is_in:
            self.links.close(link.conn)
            return
        log.info("linked with %s of %s", link.hello.address, link.hello.channel)
        link.changed = self.exports.again
        self.feed(LinkOpened(link.conn))
        if link.gateway is None:
            for statement in self.exports.statements(all_of_them=True):
                link.send(statement)

    def link_down(self, link: GatewayLink) -> None:
        log.info("the link with %s of %s ended", link.hello.address, link.hello.channel)
        self.feed(LinkClosed(link.conn))
        self._gone(link)

    def _gone(self, link: GatewayLink) -> None:
        self.finding.link_down(link)
        self.reports.link_down(link)
        self.exports.again()

    def unreachable(self, address: str) -> None:
        self.feed(ConnectFailed(address))

    def called(self, sender: GatewayHello, message: AdditionMessage) -> None:
        if isinstance(message, AdditionCall) and message.bits & 1 and sender.channel != self._rules.channel:
            reason = f"a node of {sender.channel} cannot be a member of {self._rules.channel}: a unit is a channel"
            self.links.call(sender.address, AdditionRefused(message.call, reason))
            return
        if isinstance(message, AdditionCall) and sender.channel != self._rules.channel and not self.places.is_in:
            reason = f"{self.links.address} is not in the unit of its own channel yet"
            self.links.call(sender.address, AdditionRefused(message.call, reason))
            return
        if isinstance(message, AdditionCall):
            is_fellow = sender.channel == self._rules.channel
            if reason := self.places.refusal(message.bits, is_fellow=is_fellow):
                self.links.call(sender.address, AdditionRefused(message.call, f"{self.links.address} {reason}"))
                return
        self.feed(AddressHeard(sender.address, message))

    def heard(self, link: GatewayLink, message: Any, body: memoryview) -> None:
        """A message came on a link; `RemoteProtocolError` ends the link."""
        match message:
            case CarriedCopy():
                self._copy_came(link, message, body)
            case WithheldCopy(number):
                self._outputs.append(SendLink(link.conn, EventAck(number)))
                self._commit_soon()
            case ExportedStmt():
                if link.gateway is not None:
                    raise RemoteProtocolError("ExportedStmt is for gatekeepers of one channel")
                self.exports.heard(link.hello.node, message)
            case GatewayRefused(reason, detail):
                raise RemoteProtocolError(f"refused ({reason}): {detail}")
            case AcrossFrame():
                self.finding.across(link, message, bytes(body))
            case _ if isinstance(message, _FIND):
                batch = batch_in(body) if isinstance(message, PulledBatch) else None
                self.finding.heard(link, message, batch)
            case _ if isinstance(message, CLIENT_FINDS + TRACES):
                self.reports.heard(link, message)
            case _:
                self._machine_message(link, message)

    def _machine_message(self, link: GatewayLink, message: Any) -> None:
        inner = inward(message)
        if inner is None:
            raise RemoteProtocolError(f"{type(message).__name__} on a link")
        if isinstance(message, WantsNewsNote) and message.joined:
            self.exports.wanted({each.topic for each in message.joined})
        self._feed_heard(link, LinkHeard(link.conn, inner))
        if isinstance(inner, EventAck):
            self.exports.again()
        elif isinstance(inner, RoutedNote):
            self.reports.note_came(inner)

    def _copy_came(self, link: GatewayLink, part: CarriedCopy, body: memoryview) -> None:
        batch = batch_in(body) if part.head is None else None
        copy = copy_of(part, batch)
        link.received_batches += batch is not None
        is_own = link.gateway is not None and self._is_own(origin_of(part.id))
        if is_own or not may_enter(link.gateway, part.topic):
            self.counts["own-origin" if is_own else "not-allowed"] += 1
            self._outputs.append(SendLink(link.conn, EventAck(part.number)))
            self._commit_soon()
            return
        content = part.head if batch is None else batch
        assert content is not None
        stream = StreamId(origin_of(part.id), part.topic)
        self._kept.note_final(stream, link.hello.channel, is_final=part.is_final)
        self._kept.add_body(part.id, content, part.hops)
        if batch is not None:
            self.reports.ways.began(part.id, batch, part.hops, "came", link.peer)
        self._feed_heard(link, LinkHeard(link.conn, copy))

    def _feed_heard(self, link: GatewayLink, heard: LinkHeard) -> None:
        try:
            self.feed(heard)
        except (KeyError, IndexError, ValueError, AssertionError) as error:  # what its sender made up
            log.exception("a message of %s cannot be handled", link.hello.address)
            raise RemoteProtocolError(f"{type(heard.message).__name__} makes no sense here") from error
