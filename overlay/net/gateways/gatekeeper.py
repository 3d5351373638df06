"""The gatekeeper: runs the machine of `overlay.federation` beside a node, and composes exports, imports and links.

The machine's contract has one rule: what the outputs of a call keep is durable before anything that they send leaves.
Outputs therefore wait, in order, for a commit of the rows that they keep; while one commit is under way the next rows
gather. The machine sees batches by id, topic and summary only: their bytes have rows of their own (`kept`).

All of this is on the loop's thread. A node without a [federation] has none of it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from random import Random, SystemRandom
from typing import Any, Protocol

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.config.federation import FederationConfig
from m4cast.overlay.errors import StoreError
from m4cast.overlay.federation.contract import (
    ConnectFailed,
    DeliverEvent,
    FederationInput,
    FederationOutput,
    FederationRecovered,
    FederationSettings,
    KeepValue,
    LinkClosed,
    LinkDelay,
    LinkOpened,
    PublishEvent,
    SendLink,
    TimeCame,
    UnwantRows,
    WantRows,
)
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.messages import (
    EventAck,
    EventId,
    UnitWant,
)
from m4cast.overlay.federation.units import Unit, UnitId, members
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.driver import Driver, Shown
from m4cast.overlay.net.gateways.channel_side import ChannelSide
from m4cast.overlay.net.gateways.demand import Demanded
from m4cast.overlay.net.gateways.exports import Exports
from m4cast.overlay.net.gateways.finding import ASK_S_MAX, StreamFinding
from m4cast.overlay.net.gateways.hearing import LinkMessages
from m4cast.overlay.net.gateways.imports import PULL_BYTES, Imports
from m4cast.overlay.net.gateways.kept import KeptRows, RowStore
from m4cast.overlay.net.gateways.link import GatewayLink
from m4cast.overlay.net.gateways.links import GatewayLinks
from m4cast.overlay.net.gateways.outputs import MachineOutputs
from m4cast.overlay.net.gateways.places import GatewayPlaces
from m4cast.overlay.net.gateways.reports.reports import MachineReports
from m4cast.overlay.net.gateways.rules import GatewayRules
from m4cast.overlay.net.gateways.view import view_of_links, view_of_units, view_of_way
from m4cast.overlay.net.gateways.wire.frames import (
    event_of,
    head_event,
)
from m4cast.overlay.net.gateways.wire.messages import (
    PulledBatch,
    StreamHead,
    StreamPullCall,
    StreamPullResp,
)
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
PULLS_MAX = 1_024
"""Pulls by one link that wait for their turn; others are refused, and asked again. Guess."""
IMPORT_NAME = "import:"


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
        self._driver = driver
        self.side = ChannelSide(driver)
        self.kept = KeptRows(store.federation)
        self.rules = GatewayRules(config, driver.channel_name)
        self.links = GatewayLinks(self, self.rules, driver.tls, driver.refusals, (cluster, node, config))
        self._machine_outputs, self.messages = MachineOutputs(self), LinkMessages(self)
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
    def me(self) -> UnitId:
        return UnitId(self._driver.node.me.node_id)

    @property
    def counts(self) -> Counter[str]:
        """The number of drops, by reason."""
        return self._machine_outputs.counts

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
            kept=await asyncio.to_thread(self.kept.recovered),
        )
        settings = FederationSettings(
            top=self.config.top, links_max=(self.config.links_max,) * 8, hosts_refused=self.config.hosts_refused
        )
        self.machine = Federation(recovered, settings, Random(SystemRandom().randbytes(16)), self._now_ms())
        side = self.side
        side.keep(())
        self.finding = StreamFinding(side, self.me, self.links.links)
        self.imports = Imports(side, self.kept, self.finding, self.rules.imported(), self._is_parted, self._commit_soon)
        self.finding.pulled, self.finding.pull_over = self.imports.pulled, self.imports.pull_over
        self.demanded = Demanded(self._driver, side, self.finding, self.rules.on_demand(), self.feed, self._fellows)
        self.finding.frame_here = self.demanded.frame_here
        self.finding.is_final = self.kept.is_final
        self.finding.note_final = lambda stream, channel, is_final: self.kept.note_final(
            stream, channel, is_final=is_final
        )
        self.finding.serve = lambda link, call, stream: self._keep_task(self._serve(side, link, call, stream))
        self.exports = Exports(side, self.rules, self.kept, self.me, self._publish, self._fellows)
        self.exports.is_full = self._is_full
        self.places = GatewayPlaces(
            self.config, self.machine, self.feed, self.links.dial, lambda: list(self.links.links.values()), self.kept
        )
        self.reports = MachineReports(self._driver, self.machine, self.feed, self._fellows, self.links, self.rules)
        self._machine_outputs.perform(self.machine.start())
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
        log.info("gatekeeper of %s at %s", self.rules.channel, self.links.address)

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
        self._tasks[-1].add_done_callback(self._task_over)

    def _task_over(self, task: asyncio.Task[Any]) -> None:
        """A gatekeeper that no longer exports or looks must not seem to work: others take over."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._is_over:
            log.error("the gatekeeper cannot go on: %s", error, exc_info=error)
            self._driver.stop_soon()

    def _want(self) -> None:
        """Want what the configuration imports, and no longer what it does not."""
        wanted = {f"{IMPORT_NAME}{topic}": UnitWant(topic) for topic in self.rules.imported()}
        for name in list(self.machine.interest.clients):
            if (
                name not in wanted and name not in self.machine.roaming.clients
            ):  # what is wanted on demand is found anew
                self.feed(UnwantRows(name))
        for name, want in wanted.items():
            if self.machine.interest.clients.get(name) != want:
                self.feed(WantRows(name, want))

    async def _look_often(self) -> None:
        announced_s = 0.0
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
                    self.feed(LinkDelay(link.conn, int(link.delay_s * 1000), link.waits_from))
            if time.monotonic() - announced_s >= TELL_S:
                announced_s = time.monotonic()
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
            "channel": self.rules.channel,
            "name": self.config.name or self.rules.channel,
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
        if not self._is_committing and not self._is_over and (self._outputs or self.kept.rows):
            self._is_committing = True
            asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        """Keep what the outputs that wait keep, then perform them."""
        outputs, self._outputs = self._outputs, []
        exported_bytes = self._machine_outputs.awaited_bytes
        arrived: list[tuple[Batch | StreamHead, int]] = []
        for output in outputs:
            if isinstance(output, DeliverEvent):
                arrived += self._machine_outputs.arrived(output)
        for output in outputs:
            if isinstance(output, KeepValue):
                self.kept.keep(output)
        rows, events = self.kept.take(), self.kept.performed()
        if not rows:
            self._committed(outputs, arrived, events, exported_bytes)
            return
        done: asyncio.Future[Any] = asyncio.wrap_future(self.kept.put(rows))
        done.add_done_callback(lambda future: self._after_commit(future, outputs, arrived, events, exported_bytes))

    def _after_commit(
        self,
        done: "asyncio.Future[Any]",
        outputs: list[FederationOutput],
        arrived: list[tuple[Batch | StreamHead, int]],
        events: list[EventId],
        exported_bytes: int,
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
        self._committed(outputs, arrived, events, exported_bytes)

    def _committed(
        self,
        outputs: list[FederationOutput],
        arrived: list[tuple[Batch | StreamHead, int]],
        events: list[EventId],
        exported_bytes: int,
    ) -> None:
        self._is_committing = False
        self._machine_outputs.perform(outputs)
        self._machine_outputs.awaited_bytes -= exported_bytes
        self.kept.let_go(events)
        for body, hops in arrived:
            self._machine_outputs.hand_over(body, hops)
        self._commit_soon()

    # ---- batches

    def _publish(self, body: Batch | StreamHead) -> None:
        """Hand a batch of the log, or a head, to the machine."""
        event = head_event(body, self._driver.clock.wall_ms()) if isinstance(body, StreamHead) else event_of(body)
        self.kept.add_body(event.id, body, 0)
        if isinstance(body, Batch):
            self.reports.ways.began(event.id, body, 0, "issued")
            self._machine_outputs.awaited_bytes += len(body.payload)
        self.feed(PublishEvent(event))

    def _is_own(self, origin: NodeId) -> bool:
        return self.side.is_own(origin)

    def _is_full(self) -> bool:
        under_way = sum(len(link.unacked) for link in self.machine.vertex.links.values())
        if under_way >= self.config.in_flight_max:
            return True
        awaited_bytes = self._machine_outputs.awaited_bytes
        return any(
            link.gateway is not None and link.queued_bytes + awaited_bytes > link.gateway.queue_bytes_max
            for link in self.links.links.values()
        )

    async def _serve(self, side: ChannelSide, link: GatewayLink, call: StreamPullCall, stream: StreamId) -> None:
        if link.pulls >= PULLS_MAX:
            link.send(StreamPullResp(call.asker, call.ask, 0))
            return
        asked_s = time.monotonic()
        async with link.turn():
            if link.is_over or time.monotonic() - asked_s > ASK_S_MAX:
                return  # nobody waits for the answer any more
            bytes_max = min(call.bytes_max, PULL_BYTES)
            try:
                batches, read_next = await side.read(stream, call.first, call.next, bytes_max)
            except StoreError as error:  # somebody else may have what was asked for
                log.error("a range cannot be read for another channel: %s", error)
                batches, read_next = (), 0
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
        self.gone(link)

    def gone(self, link: GatewayLink) -> None:
        self.finding.link_down(link)
        self.reports.link_down(link)
        self.exports.again()

    def acknowledge(self, link: GatewayLink, number: int) -> None:
        """Acknowledge a copy that the machine does not see, after what it said before."""
        self._outputs.append(SendLink(link.conn, EventAck(number)))
        self._commit_soon()

    def unreachable(self, address: str) -> None:
        self.feed(ConnectFailed(address))
