"""The driver: runs one node on an asyncio loop, with TCP or TLS connections, one timer and a store.

It performs a node's outputs in order and feeds it one input at a time; everything that happens while an input is
handled waits its turn. All of it is on the loop's thread; the store's writer and readers are on their own and come
back by `call_soon_threadsafe`.

There are two times. The node runs on `now_ms`, the clock on the wall at the start plus what a clock has counted since
that nobody can set; it never goes back, and stands still while the host is suspended. Rows, records and leases are
stamped by the clock on the wall (`clock_ms`); the node hears when that is set. Rows grow old by a third, the retention
clock, which no jump of the clock moves at once (`protocol/clocks.py`).
"""

import asyncio
import logging
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from random import Random, SystemRandom
from typing import Any, Protocol

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.errors import M4castError, RemoteProtocolError, StoreError
from m4cast.overlay.ids import StreamId, short_id
from m4cast.overlay.net.connection import CLOSE_TIMEOUT_S, READ_BYTES, Connection
from m4cast.overlay.net.listener import Listener
from m4cast.overlay.net.tls import peer_name, tls_of
from m4cast.overlay.protocol.clocks import RetentionClock
from m4cast.overlay.protocol.effects import (
    Append,
    AppendFailed,
    ClockSet,
    Close,
    Commit,
    Connected,
    Damaged,
    Delivered,
    Dial,
    DialFailed,
    Disconnected,
    Durable,
    Forget,
    FrameProgress,
    Input,
    KeyRemoved,
    Leave,
    Left,
    LinkBlocked,
    LinkReady,
    Output,
    Publish,
    Published,
    RangeRead,
    ReadRange,
    Received,
    Recovered,
    Refused,
    RemoveKey,
    RolledBack,
    RosterChanged,
    Send,
    Stage,
    StageDone,
    Start,
    StoreFull,
    Trace,
    Trimmed,
    Wake,
    WakeAt,
)
from m4cast.overlay.protocol.finding.port_order import LISTEN_TRIES, port_order
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, Payload
from m4cast.overlay.protocol.wire.frame import (
    BATCH_OVERHEAD_BYTES,
    CONTROL_FRAME_BYTES_MAX,
    EXTENSIONS_BYTES_MAX,
    encode,
    encode_parts,
)
from m4cast.overlay.protocol.wire.messages import Message, RosterEntry

log = logging.getLogger("m4cast.node")

REFUSED_LOG_S = 1.0
"""Refusals for one reason are logged at most this often: whoever is refused must not fill the log."""

TRIM_BYTES = 64 << 20
"""Retention looks at the store at the latest when so much was added. At full speed no more than this is over its limit,
the file keeps its size, and its pages stay in memory (measured: 640 MB/s instead of 530). Lower: more looks, each at
all streams."""

CLOCK_STEP_MS = 100
"""A clock on the wall that moved by less against the node's own time was not set. Guess."""
CLOCK_SAVE_MS = 60_000
"""The retention clock is written down when it has gone so far. Lower: more commits of an idle node; higher: a restart
takes it back further. Guess."""

Answer = Published | Refused | StageDone | KeyRemoved


class NodeStore(Protocol):
    """What the driver needs of a store."""

    @property
    def recovered(self) -> Recovered: ...
    def append(self, append: Append) -> None: ...
    def heard(self, token: int) -> None: ...
    def read_range(self, stream: StreamId, first: int, next_sequence: int, bytes_max: int) -> tuple[Batch, ...]: ...
    def following(self, stream: StreamId, first: int) -> int: ...
    def save_roster(self, entry: RosterEntry, at_ms: int) -> object: ...
    def take_new_identity(self) -> Recovered: ...
    def is_nearly_full(self) -> bool: ...
    def trim(self, now_ms: int) -> "Future[list[tuple[StreamId, int]]]": ...
    def retention_clock_ms(self) -> int | None: ...
    def save_retention_clock(self, at_ms: int) -> object: ...


class Driver:
    """One node, from `start` to `stopped`. `open_store` gets the driver, whose `on_...` methods the store calls."""

    def __init__(
        self,
        open_store: Callable[["Driver"], NodeStore],
        cluster: ClusterConfig,
        config: NodeConfig,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """What comes from other threads is handled in it too: a log line says which node it is about."""
        self.tls = tls_of(config)
        """The node's certificates; None for a node without."""
        self._store = open_store(self)
        self._cluster = cluster
        self._config = config
        self._random = Random(SystemRandom().randbytes(32))
        self.node: Node
        """There once it is known where it listens, see `start`."""
        self._clock = clock
        self._started_at = clock() - time.monotonic()
        self._offset_ms = 0
        """Of the clock on the wall, as the node knows it."""
        saved_ms = self._store.retention_clock_ms()
        self._retention_clock = RetentionClock(saved_ms, self.now_ms())
        self._clock_saved_ms = saved_ms or 0
        self._clocks_agree: bool | None = None
        self._connections: dict[int, Connection] = {}
        self._open: dict[Connection, None] = {}  # also those that the node has closed already
        self._accepted = 0
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._inputs: deque[Input] = deque()
        self._busy = False
        self._dirty: list[Connection] = []
        self._wake: asyncio.TimerHandle | None = None
        self._untrimmed_bytes = 0
        self._trim_soon = asyncio.Event()
        self._requests = 0
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._listener = Listener(
            self._new_connection, self._cut_off, self.refuse, self.tls, config.call_timeout_ms / 1000
        )
        self._read_buffer = memoryview(bytearray(READ_BYTES))
        self._frame_bytes_max = max(
            CONTROL_FRAME_BYTES_MAX, cluster.batch_bytes_max + BATCH_OVERHEAD_BYTES + EXTENSIONS_BYTES_MAX
        )
        self.watchers: list[Callable[[Delivered | Trace | RosterChanged], None]] = []
        """Called, on the loop, for what is delivered here and for what becomes known of the channel."""
        self.refused: Counter[str] = Counter()
        """Peers and clients that were turned away, by reason; docs/SECURITY.md lists them."""
        self._refusal_logged_s: dict[str, float] = {}
        self.broken = False
        self._store_full = False
        self.stopping = False
        self._is_started = False
        self._leaves_at_once = False
        self._stopping: asyncio.Task[None] | None = None
        self.stopped = asyncio.Event()

    @property
    def channel_name(self) -> str:
        return f"{self._cluster.channel_type}/{self._cluster.channel_instance}"

    # ---- life

    async def start(self) -> None:
        host, _, port = self._config.listen.rpartition(":")
        ports = [int(port)]
        if port == "0" and self._config.portal_hosts:
            ports = list(port_order(self._cluster, LISTEN_TRIES))
        try:
            bound = await self._listener.open_first(host.strip("[]"), ports)
        except OSError as error:
            raise M4castError(f"cannot listen on {self._config.listen}: {error.strerror or error}") from error
        if port == "0":  # one that was free: others hear which
            self._config = replace(self._config, listen=f"{host}:{bound}")
        self.node = Node(self._store.recovered, self._cluster, self._config, self._random)
        self._store.save_roster(self.node.roster.own, self.clock_ms())
        log.info("%s listens on %s", short_id(self.node.me.node_id), self._config.advertised)
        self._is_started = True
        self._look_at_clock()
        self.feed(Start())
        if self._leaves_at_once:
            self.feed(Leave())

    def leave(self) -> None:
        """Leave the channel in order; `stopped` is set when that is done."""
        if self._is_started:
            self.feed(Leave())
        else:
            self._leaves_at_once = True

    async def stop(self) -> None:
        """Close everything, and wait until it is closed."""
        self._inputs.clear()
        self.stopping = True
        await self._listener.close()
        if self._wake is not None:
            self._wake.cancel()
        dialling = list(self._dialling.values())
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        for connection in list(self._open):
            connection.close()
        if self._open:  # each is gone after CLOSE_TIMEOUT_S; a node ends even if the loop never says so
            await asyncio.wait([connection.gone for connection in self._open], timeout=2 * CLOSE_TIMEOUT_S)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.cancel()
        self.stopped.set()

    def stop_soon(self) -> None:
        self._stopping = self._loop.create_task(self.stop())

    def now_ms(self) -> int:
        """The node's own time, for timers. It never goes back."""
        return int((self._started_at + time.monotonic()) * 1000)

    def clock_ms(self) -> int:
        """What the clock on the wall shows, for whatever is stamped. May be asked from any thread."""
        return int(self._clock() * 1000)

    def retention_lag_ms(self) -> int:
        """By how much rows are kept for longer than they should be, because it is not certain that the clock is right.
        May be asked from any thread."""
        at_ms = self._retention_clock.at_ms
        return 0 if at_ms is None else max(self.clock_ms() - at_ms, 0)

    def _look_at_clock(self) -> None:
        offset_ms = self.clock_ms() - self.now_ms()
        if abs(offset_ms - self._offset_ms) >= CLOCK_STEP_MS:
            if self._is_started:
                log.warning("the clock was set by %+.1f s", (offset_ms - self._offset_ms) / 1000)
            self._offset_ms = offset_ms
            self.feed(ClockSet(offset_ms))

    # ---- inputs

    def feed(self, event: Input) -> None:
        self._inputs.append(event)
        if not self._busy:
            self._work()

    @property
    def inputs_waiting(self) -> int:
        """May be asked from any thread."""
        return len(self._inputs)

    def _work(self) -> None:
        self._busy = True
        try:
            while self._inputs and not self.stopping:
                event = self._inputs.popleft()
                outputs = self.node.handle(event, self.now_ms())
                if isinstance(event, AppendFailed):
                    self._store.heard(event.token)
                for output in outputs:
                    self._perform(output)
        finally:
            self._busy = False
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                connection.flush()

    def request(self, make: Callable[[int], Publish | Commit | Stage | RemoveKey]) -> asyncio.Future[Answer]:
        """Feed a client's request, made from its number; the future is its answer. Cancel it to give up."""
        self._requests += 1
        answer: asyncio.Future[Answer] = self._loop.create_future()
        request = self._requests
        self._answers[request] = answer
        answer.add_done_callback(lambda _: self._given_up(request))
        self.feed(make(request))
        return answer

    def _given_up(self, request: int) -> None:
        """Its answer was cancelled before it came, if it is still there."""
        if self._answers.pop(request, None) is not None:
            self.feed(Forget(request))

    # ---- outputs

    def _perform(self, output: Output) -> None:
        match output:
            case Send(conn, message):
                connection = self._connections.get(conn)
                if connection is not None:
                    connection.send(self._encoded(message), self._dirty.append)
            case Append():
                self._append(output)
            case Delivered():
                self._show(output)
            case WakeAt(at_ms):
                self._set_wake(at_ms)
            case Dial(conn, address):
                self._dialling[conn] = self._loop.create_task(self._dial(conn, address))
            case Close(conn):
                self._close(conn)
            case ReadRange():
                self._loop.run_in_executor(None, self._read, self.node, output)
            case Published(request, _) | Refused(request, _, _) | StageDone(request) | KeyRemoved(request, _):
                answer = self._answers.pop(request, None)
                if answer is not None and not answer.done():
                    answer.set_result(output)
            case RosterChanged(entry):
                self._store.save_roster(entry, self.clock_ms())
                self._show(output)
            case Trace(name, detail):
                log.debug("%s %s", name, dict(detail))
                if name == "refused":
                    facts = dict(detail)
                    self.refuse(str(facts["reason"]), str(facts["detail"]))
                self._show(output)
            case RolledBack(detail):
                self._rolled_back(detail)
            case Left():
                log.info("left the channel")
                self._store.save_roster(self.node.roster.own, self.clock_ms())
                self.stop_soon()

    def _append(self, append: Append) -> None:
        self._store.append(append)
        self._untrimmed_bytes += append.payload_bytes()
        if self._untrimmed_bytes >= TRIM_BYTES:
            self._untrimmed_bytes = 0
            self._trim_soon.set()

    def _show(self, output: Delivered | Trace | RosterChanged) -> None:
        for watcher in self.watchers:
            watcher(output)

    _last: tuple[Message | BatchFrame | None, tuple[Payload, ...]] = (None, ())

    def _encoded(self, message: Message | BatchFrame) -> tuple[Payload, ...]:
        """A message that goes to several connections is encoded once: it is the same object each time."""
        if self._last[0] is not message:
            pieces = encode_parts(message) if isinstance(message, BatchFrame) else (encode(message),)
            self._last = (message, pieces)
        return self._last[1]

    def _set_wake(self, at_ms: int) -> None:
        if self._wake is not None:
            self._wake.cancel()
        # Timers of the loop are whole milliseconds; one that is due already still waits for its turn.
        delay_s = max(at_ms - self.now_ms(), 0) / 1000
        self._wake = self._loop.call_later(delay_s, self._woken)

    def _woken(self) -> None:
        self._look_at_clock()
        self.feed(Wake())

    # ---- connections

    def _new_connection(self) -> Connection:
        self._accepted += 2
        return self._connection(self._accepted)

    def _connection(self, number: int) -> Connection:
        queue_bytes_max = self._config.link_queue_bytes_max
        return Connection(self, self._read_buffer, self._frame_bytes_max, queue_bytes_max, number)

    async def _dial(self, conn: int, address: str) -> None:
        host, _, port = address.rpartition(":")
        connection = self._connection(conn)
        tls: dict[str, Any] = {}
        if self.tls is not None:
            tls = {"ssl": self.tls.client(), "ssl_shutdown_timeout": CLOSE_TIMEOUT_S}
        dialled = False
        try:
            async with asyncio.timeout(self._config.call_timeout_ms / 1000):
                await self._loop.create_connection(lambda: connection, host.strip("[]"), int(port), **tls)
            dialled = True
        except (OSError, TimeoutError) as error:
            log.debug("cannot reach %s: %s", address, error)
            if isinstance(error, ssl.SSLError):
                self.refuse("tls", f"{address}, which was called: {error}")
            self.feed(DialFailed(conn))
        finally:
            if self._dialling.get(conn) is asyncio.current_task():
                del self._dialling[conn]
            if not dialled:
                connection.given_up()

    def _close(self, conn: int) -> None:
        task = self._dialling.pop(conn, None)
        if task is not None:
            task.cancel()
        connection = self._connections.pop(conn, None)
        if connection is not None:
            if self._listener.known(connection):
                self.refuse("no-hello", f"{connection.peer_address} said nothing in time, or there are too many calls")
            connection.close()

    def connection_made(self, connection: Connection) -> None:
        self._open[connection] = None
        if self.stopping:
            connection.abort()
            return
        name = peer_name(connection.certificate)
        if self.tls is not None and not name:
            self.refuse("not-a-node", f"the certificate of {connection.peer_address} is not a node's")
            self._listener.known(connection)
            connection.abort()
            if connection.number in self._dialling:
                self.feed(DialFailed(connection.number))
            return
        self._connections[connection.number] = connection
        self.feed(Connected(connection.number, name))

    def messages_received(self, connection: Connection, messages: list[Message | BatchFrame]) -> None:
        number = connection.number
        self._listener.known(connection)  # the first message is a hello, or costs it the connection
        self._inputs.extend(Received(number, message) for message in messages)
        if not self._busy:
            self._work()

    def progress(self, connection: Connection) -> None:
        self.feed(FrameProgress(connection.number))

    def malformed(self, connection: Connection, error: RemoteProtocolError) -> None:
        self.refuse("malformed", f"{connection.peer_address} is cut off: {error}")
        self._listener.known(connection)
        self._cut_off(connection)

    def refuse(self, reason: str, detail: str) -> None:
        """Count somebody who is turned away, and say so from time to time."""
        self.refused[reason] += 1
        now_s = time.monotonic()
        if now_s - self._refusal_logged_s.get(reason, -REFUSED_LOG_S) >= REFUSED_LOG_S:
            self._refusal_logged_s[reason] = now_s
            log.warning("refused (%s, %d so far): %s", reason, self.refused[reason], detail)

    def queued_bytes(self, conn: int) -> int:
        """What waits to be sent on a connection."""
        connection = self._connections.get(conn)
        return 0 if connection is None else connection.queued_bytes

    def blocked(self, connection: Connection) -> None:
        self.feed(LinkBlocked(connection.number))

    def ready(self, connection: Connection) -> None:
        self.feed(LinkReady(connection.number))

    def connection_lost(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        self._listener.known(connection)
        if not connection.closed:
            if isinstance(connection.error, ssl.SSLError):  # in TLS 1.3 the dialler hears late that it is refused
                log.warning("%s ended the link: %s", connection.peer_address, connection.error)
            self._forget(connection)

    def _cut_off(self, connection: Connection) -> None:
        connection.abort()
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is not None:
            self.feed(Disconnected(connection.number))

    # ---- store; these may be called from any thread

    def on_durable(self, token: int) -> None:
        self._report(self.node, Durable(token))

    def on_failed(self, token: int, reason: str) -> None:
        self._report(self.node, AppendFailed(token, reason))

    def _report(self, node: Node, event: Input) -> None:
        """Tell the node that asked. If another has taken its place meanwhile, the token means something else there."""

        def tell() -> None:
            if node is self.node:
                self.feed(event)

        self._loop.call_soon_threadsafe(tell, context=self._context)

    def on_broken(self, reason: str) -> None:
        """The store cannot tell any more what is on disk: only a restart can."""
        log.critical("the store is broken, the node stops: %s", reason)
        self.broken = True
        self._loop.call_soon_threadsafe(self.stop_soon)

    def on_damaged(self, damaged: Damaged) -> None:
        """A batch in the store cannot be read, whoever reads it: the node fetches it again."""
        self._report(self.node, damaged)

    def _read(self, node: Node, read: ReadRange) -> None:
        batches: tuple[Batch, ...] = ()
        following = 0
        try:
            batches = self._store.read_range(read.stream, read.first_sequence, read.next_sequence, read.bytes_max)
        except StoreError as error:  # damaged, or closed meanwhile: others may have what was asked for
            log.error("a range cannot be read for a neighbour: %s", error)
            with suppress(StoreError):
                following = self._store.following(read.stream, read.first_sequence)
        self._report(node, RangeRead(read.token, batches, following))

    async def trim_every(self, interval_s: float) -> None:
        """Retention, from time to time and after every `TRIM_BYTES`, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._trim_soon.wait()
            self._trim_soon.clear()
            try:
                trimmed = await asyncio.wrap_future(self._store.trim(self._retention_time_ms()))
            except StoreError as error:
                log.error("retention removed nothing this time: %s", error)
                continue
            for stream, low in trimmed:
                self.feed(Trimmed(stream, low))
            self._look_at_room()

    def _retention_time_ms(self) -> int:
        """The time by which ages are measured in this round. Logs when the clock turns out wrong, or right again."""
        clocks = self.node.clocks
        ahead_ms, agree = clocks.ahead_ms(), clocks.agree()
        at_ms = self._retention_clock.advance(self.clock_ms(), self.now_ms(), ahead_ms)
        if agree is False and self._clocks_agree is not False:
            assert ahead_ms is not None
            how = "ahead of" if ahead_ms > 0 else "behind"
            log.error(
                "this node's clock is %.0f s %s its neighbours': set whichever is wrong. Until they agree, rows are "
                "removed by age no sooner than they would be without the difference",
                abs(ahead_ms) / 1000,
                how,
            )
        elif agree and self._clocks_agree is False:
            log.info("this node's clock agrees with its neighbours' again")
        self._clocks_agree = self._clocks_agree if agree is None else agree
        reached_ms = self._retention_clock.at_ms
        if reached_ms is not None and abs(reached_ms - self._clock_saved_ms) >= CLOCK_SAVE_MS:
            self._clock_saved_ms = reached_ms
            self._store.save_retention_clock(reached_ms)
        return at_ms

    async def watch_room(self, interval_s: float) -> None:
        """Whether the store is nearly full, from time to time, until cancelled."""
        while True:
            self._look_at_room()
            await asyncio.sleep(interval_s)

    def _look_at_room(self) -> None:
        is_full = self._store.is_nearly_full()
        if is_full != self._store_full:
            self._store_full = is_full
            if is_full:
                log.error("the store is nearly full: publishes are refused until there is room again")
            else:
                log.info("the store has room again: publishes are taken")
            self.feed(StoreFull(is_full))

    def _rolled_back(self, detail: str) -> None:
        """Do as the node says: a new identity over the same store."""
        log.error("this store is older than the channel: %s. The node takes a new id and catches up.", detail)
        for conn in (*self._connections, *self._dialling):  # the new node counts from 1 again
            self._close(conn)
        self.node = Node(self._store.take_new_identity(), self._cluster, self._config, self._random)
        self._store.save_roster(self.node.roster.own, self.clock_ms())
        self._inputs.clear()
        self._inputs += (ClockSet(self._offset_ms), Start(), StoreFull(self._store_full))
