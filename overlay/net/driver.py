"""The driver: runs one node on an asyncio loop, with TCP or TLS connections, one timer and a store.

It feeds the node one input at a time and performs its outputs in order; everything that happens while an input is
handled waits its turn. All of this is on the loop's thread. What the outputs are performed on has nouns of its own:
`network`, `clock` (the times and the timer), `store_side` (the store and its threads), `upkeep` (retention and free
space), `refusals`.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random, SystemRandom

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.errors import M4castError
from m4cast.overlay.ids import short_id
from m4cast.overlay.net.connection import Connection
from m4cast.overlay.net.network import NodeNetwork
from m4cast.overlay.net.node_clock import NodeClock
from m4cast.overlay.net.refusals import Refusals
from m4cast.overlay.net.store_side import NodeStore, StoreSide
from m4cast.overlay.net.tls import Tls
from m4cast.overlay.net.upkeep import Upkeep
from m4cast.overlay.protocol.effects import (
    Active,
    AnnounceClients,
    Append,
    AppendFailed,
    ClockSet,
    Close,
    Commit,
    Covered,
    CreateTopic,
    Delivered,
    Dial,
    FindTimes,
    Forget,
    Input,
    InterestChanged,
    KeyRemoved,
    Leave,
    Left,
    Output,
    Publish,
    Published,
    ReadRange,
    ReadSelected,
    Recovered,
    Refused,
    RemoveKey,
    Restore,
    Restored,
    RolledBack,
    RosterChanged,
    Send,
    SendAcross,
    ShownOutput,
    Stage,
    StageDone,
    Start,
    StoreFull,
    Subscribe,
    Subscribed,
    TopicSpread,
    Trace,
    Unsubscribe,
    WaitActive,
    WakeAt,
)
from m4cast.overlay.protocol.finding.port_order import LISTEN_TRIES, port_order
from m4cast.overlay.protocol.interest.registrations import config_wishes
from m4cast.overlay.protocol.node import Node

log = logging.getLogger("m4cast.node")

Answer = Published | Refused | StageDone | KeyRemoved | Subscribed | Active | Restored
Request = (
    Publish
    | Commit
    | Stage
    | RemoveKey
    | Subscribe
    | Unsubscribe
    | CreateTopic
    | AnnounceClients
    | WaitActive
    | Restore
)
Shown = ShownOutput | Trace


class Driver:
    """One node, from `start` to `stopped`. `wall_s` is the wall clock, in seconds."""

    def __init__(
        self,
        open_store: Callable[[StoreSide], NodeStore],
        cluster: ClusterConfig,
        config: NodeConfig,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.node: Node
        """Set by `start`, once it is known where the node listens; replaced after a rollback."""
        self._cluster = cluster
        self._config = config
        self._random = Random(SystemRandom().randbytes(32))
        self._inputs: deque[Input] = deque()
        self._busy = False
        self._dirty: list[Connection] = []
        """NodeNetwork to flush when the inputs that wait are handled."""
        self._requests = 0
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self.watchers: list[Callable[[Shown], None]] = []
        """Called, on the loop, for what is delivered here and for what becomes known of the channel."""
        self.stopping = False
        self.stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._is_started = False
        self._leaves_at_start = False
        self.refusals = Refusals()
        self.network = NodeNetwork(self, self._dirty.append, self.refusals, cluster, config)
        self.clock = NodeClock(self.feed, wall_s)
        self.store_side = StoreSide(open_store, self.feed, self.stop_soon)
        self.upkeep = Upkeep(self.store_side, self.clock, self.feed)

    @property
    def channel_name(self) -> str:
        return f"{self._cluster.channel_type}/{self._cluster.channel_instance}"

    @property
    def tls(self) -> Tls | None:
        """The node's certificates; None for a node without."""
        return self.network.tls

    @property
    def refused(self) -> Counter[str]:
        """Peers and clients that were turned away, by reason."""
        return self.refusals.counts

    @property
    def inputs_waiting(self) -> int:
        """May be read from any thread."""
        return len(self._inputs)

    # ---- life

    async def start(self) -> None:
        host, _, port = self._config.listen.rpartition(":")
        ports = [int(port)]
        if port == "0" and self._config.portal_hosts:
            ports = list(port_order(self._cluster, LISTEN_TRIES))
        try:
            bound = await self.network.listen(host.strip("[]"), ports)
        except OSError as error:
            raise M4castError(f"cannot listen on {self._config.listen}: {error.strerror or error}") from error
        if port == "0":  # A free port was chosen: the node advertises that one.
            self._config = replace(self._config, listen=f"{host}:{bound}")
        if self._config.subscribe:
            await asyncio.to_thread(config_wishes, self._config.subscribe)
        self._use_node(self.store_side.store.recovered)
        log.info("%s listens on %s", short_id(self.node.me.node_id), self._config.advertised)
        self._is_started = True
        self.clock.check()
        self.feed(Start())
        if self._leaves_at_start:
            self.feed(Leave())

    def leave(self) -> None:
        """Leave the channel in order; `stopped` is set when that is done."""
        if self._is_started:
            self.feed(Leave())
        else:
            self._leaves_at_start = True

    async def stop(self) -> None:
        """Close everything, and wait until it is closed."""
        self._inputs.clear()
        self.stopping = True
        self.clock.cancel_wake()
        await self.network.stop()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.cancel()
        self.stopped.set()

    def stop_soon(self) -> None:
        self._stopping = asyncio.get_running_loop().create_task(self.stop())

    def _use_node(self, recovered: Recovered) -> None:
        self.node = self.store_side.node = Node(recovered, self._cluster, self._config, self._random)
        self.store_side.store.save_roster(self.node.roster.own, self.clock.wall_ms())

    # ---- inputs

    def feed(self, event: Input) -> None:
        self._inputs.append(event)
        if not self._busy:
            self._work()

    def feed_all(self, events: Sequence[Input]) -> None:
        self._inputs.extend(events)
        if not self._busy:
            self._work()

    def _work(self) -> None:
        self._busy = True
        try:
            while self._inputs and not self.stopping:
                event = self._inputs.popleft()
                outputs = self.node.handle(event, self.clock.now_ms())
                if isinstance(event, AppendFailed):
                    self.store_side.store.heard(event.token)
                for output in outputs:
                    self._perform(output)
        finally:
            self._busy = False
        if self._dirty:
            dirty = self._dirty[:]
            self._dirty.clear()
            for connection in dirty:
                connection.flush()

    def request(self, make: Callable[[int], Request]) -> asyncio.Future[Answer]:
        """Feed a client's request, made from its number; the future is its answer. Cancel it to give up."""
        self._requests += 1
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        request = self._requests
        self._answers[request] = answer
        answer.add_done_callback(lambda _: self._given_up(request))
        self.feed(make(request))
        return answer

    def _given_up(self, request: int) -> None:
        """The answer's future is done. If no answer was given, the client has cancelled it."""
        if self._answers.pop(request, None) is not None:
            self.feed(Forget(request))

    # ---- outputs

    def _perform(self, output: Output) -> None:
        match output:
            case Send(conn, message):
                self.network.send(conn, message)
            case Append():
                self.store_side.append(output)
            case Delivered():
                self._show(output)
            case WakeAt(at_ms):
                self.clock.wake_at(at_ms)
            case Dial(conn, address):
                self.network.dial(conn, address)
            case Close(conn):
                self.network.close(conn)
            case ReadRange():
                self.store_side.read(output)
            case ReadSelected() | FindTimes():
                self.store_side.read_selected(output)
            case (
                Published(request, _)
                | Refused(request, _, _)
                | StageDone(request)
                | KeyRemoved(request, _)
                | Subscribed(request, _)
                | Active(request, _, _)
                | Restored(request, _)
            ):
                answer = self._answers.pop(request, None)
                if answer is not None and not answer.done():
                    answer.set_result(output)
            case RosterChanged(entry):
                self.store_side.store.save_roster(entry, self.clock.wall_ms())
                self._show(output)
            case InterestChanged() | Covered() | TopicSpread() | SendAcross():
                self._show(output)
            case Trace(name, detail):
                log.debug("%s %s", name, dict(detail))
                if name == "refused":
                    facts = dict(detail)
                    self.refusals.add(str(facts["reason"]), str(facts["detail"]))
                self._show(output)
            case RolledBack(detail):
                self._rolled_back(detail)
            case Left():
                log.info("left the channel")
                self.store_side.store.save_roster(self.node.roster.own, self.clock.wall_ms())
                self.stop_soon()

    def _show(self, output: Shown) -> None:
        for watcher in self.watchers:
            watcher(output)

    def _rolled_back(self, detail: str) -> None:
        """Put a node with a new identity over the same store."""
        log.error("this store is older than the channel: %s. The node takes a new id and catches up.", detail)
        self.network.close_all()
        self._use_node(self.store_side.store.take_new_identity())
        self._inputs.clear()
        self._inputs += (ClockSet(self.clock.offset_ms), Start(), StoreFull(self.upkeep.is_full))
