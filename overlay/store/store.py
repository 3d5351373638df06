"""The store: opens a folder, takes appends, answers reads.

    store = Store.open(folder, ChannelName("m4cast", "default"), callbacks)
    node = Node(store.recovered, ...)
    store.append(append)            # then on_durable(token) or on_failed(token, reason), on the writer's thread
    store.heard(token)              # the driver has taken a failure; what it appends now is new

Appends and everything else that changes the file go to the writer's thread, in the order in which they were asked for.
Reads are short transactions in the caller's thread, whichever it is, and copy out what they found: a long one would
keep LMDB from using freed pages again. What answers later is a `concurrent.futures.Future`: wait for
`.result()`, or wrap it for asyncio.

The driver's part of the storage contract: when it takes the first report of a failure off its own queue, it calls
`heard(token)` before it hands `AppendFailed` to the node. All appends up to that moment have failed or will; the
outputs of the node's answer are the first that know better. Echoes (later tokens of the same failure) may
be told likewise.

Guarantees
3. What was reported durable is there after kill -9 and power loss: LMDB's default mode, fsync at every commit.
4. `read_range` gives whole batches, contiguous from the one that has the row asked for, as the origin sealed them.
5. After a crash the store holds a prefix of the appends.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lmdb import Environment

from m4cast.overlay.errors import RemoteProtocolError, StoreError
from m4cast.overlay.histogram import Histogram
from m4cast.overlay.ids import NodeId, StreamId, heir_of
from m4cast.overlay.protocol.effects import Append, Damaged, PublisherState, Recovered
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.messages import RosterEntry
from m4cast.overlay.store import folder, history, layout
from m4cast.overlay.store.folder import ChannelName, FolderLock
from m4cast.overlay.store.free_space import FreeSpace, default_reserve, measure
from m4cast.overlay.store.history import DeliveryRecord
from m4cast.overlay.store.inspection import CheckReport, Stats, inspect, measure_stats
from m4cast.overlay.store.layout import ReadTxn, RosterSpan, StreamRecord, Tables, WriteTxn
from m4cast.overlay.store.log import Log, checksums_left, last_entry, recover
from m4cast.overlay.store.retention import Keep, Reader, Retention, Step, Trim, lease, read_keeps, read_readers
from m4cast.overlay.store.time_index import TimeIndex
from m4cast.overlay.store.writer import Callbacks, Writer

__all__ = [
    "Callbacks",
    "ChannelName",
    "DeliveryRecord",
    "StreamRecord",
    "Keep",
    "Kept",
    "Limits",
    "RosterSpan",
    "Reader",
    "FreeSpace",
    "Store",
]

READER_NAME_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """Each number says where it comes from."""

    map_bytes: int = 64 << 30
    """The file never grows past this. Higher: address space only, until it is used. Guess."""
    reserve_bytes: int | None = None
    """Publishing stops when less is left; None: see `free_space.default_reserve`. Higher: less use of the disk."""
    group_bytes_max: int = 12_000_000
    """Payload of one commit, about. Higher: more memory and longer waits, and no more speed. At 4 MB a node alone at
    full speed took 15 % more CPU and was a seventh slower; five nodes on two cores never fill it. Measured."""
    linger_ms: int = 0
    """How long a small group waits for more. 5 saves 40 % of the CPU at 1,000 messages/s, for 3 ms more. Measured."""


class Kept(NamedTuple):
    """A batch, and how it came here."""

    batch: Batch
    received_at_ms: int
    hops: int


class Store:
    """Made by `open`. Any thread may use it; `close` waits for reads under way and writes what was asked for."""

    def __init__(
        self,
        path: Path,
        env: Environment,
        tables: Tables,
        lock: FolderLock,
        callbacks: Callbacks,
        limits: Limits,
        retention: Retention,
        node_id_file: Path | None,
    ) -> None:
        self.path = path
        self.retention = retention
        self._env = env
        self._tables = tables
        self._lock = lock
        self._node_id_file = node_id_file
        self._reserve_bytes = (
            default_reserve(limits.map_bytes) if limits.reserve_bytes is None else limits.reserve_bytes
        )
        self._reads = 0
        self._gate = threading.Condition()
        self._closed = False
        with env.begin() as txn:
            log = Log(tables, txn)
            self.recovered = recover(tables, txn)
        self._on_damaged = callbacks.on_damaged
        self._names: dict[int, StreamId] = {}
        self._time_index = TimeIndex(tables, self._read)
        self._writer = Writer(
            env,
            log,
            callbacks,
            lambda txn: measure(path, env, tables, txn, self._reserve_bytes),
            group_bytes_max=limits.group_bytes_max,
            linger_ms=limits.linger_ms,
        )

    @staticmethod
    def open(
        path: Path | str,
        channel: ChannelName,
        callbacks: Callbacks,
        *,
        limits: Limits | None = None,
        retention: Retention | None = None,
        node_id_file: Path | str | None = None,
    ) -> "Store":
        """Make the store or open it, raise its incarnation, and recover what it knows (`recovered`).

        `StoreError` if it is in use, of another channel, node or version, or damaged; then nothing was changed.
        """
        path = Path(path)
        limits = limits or Limits()
        id_file = None if node_id_file is None else Path(node_id_file)
        named = None if id_file is None else folder.check_node_id_file(id_file, path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(path)
        except OSError as error:
            raise StoreError(f"{path}: cannot be used: {error.strerror}") from error
        try:
            env, tables = folder.open_environment(path, channel, limits.map_bytes)
            try:
                folder.raise_incarnation(path, env, tables, id_file, named)
                return Store(path, env, tables, lock, callbacks, limits, retention or Retention(), id_file)
            except BaseException:
                env.close()
                raise
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        self._writer.close()
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: self._reads == 0)
        self._env.close()
        self._lock.release()

    # ---- writing

    def append(self, append: Append) -> None:
        """Queue it. Appends become durable in this order; `StoreError` if the store is closed or broken."""
        self._writer.append(append)

    def heard(self, token: int) -> None:
        """The report that `token` failed has been taken: appends from now on are not part of that failure."""
        self._writer.heard(token)

    def sync(self) -> Future[None]:
        """Done when all that was asked for before is on disk, or has failed."""
        return self._writer.ask(lambda txn, log: None)

    def save_roster(self, entry: RosterEntry, at_ms: int) -> Future[None]:
        """A node's word about itself, and when it came."""
        return self._writer.ask(lambda txn, log: history.remember(entry, at_ms, self._tables, txn))

    def save_schema(self, schema_id: int, schema: bytes) -> Future[None]:
        """Schemas are kept for ever: rows of them may come again."""

        def put(txn: WriteTxn, log: Log) -> None:
            txn.put(layout.sequence_key(schema_id), schema, db=self._tables.schemas)

        return self._writer.ask(put)

    def take_new_identity(self) -> Recovered:
        """After a rollback: the old streams become somebody else's, and this node begins as a new one.

        Waits for what was asked for before. The caller drops reports about the old node's tokens.
        """
        self._writer.forget_failure()

        def take(txn: WriteTxn, log: Log) -> NodeId:
            old = log.identity
            heir = heir_of(old.node_id, time.time_ns() // 1_000_000, os.urandom(4))
            log.take_identity(layout.Identity(heir, 1, (*old.former_ids, old.node_id)), txn)
            return log.identity.node_id

        node_id = self._writer.ask(take).result()
        self._writer.forget_failure()
        if self._node_id_file is not None:
            folder.write_node_id_file(self._node_id_file, node_id)
        with self._read() as txn:
            self.recovered = recover(self._tables, txn)
        return self.recovered

    # ---- retention

    def set_keep(self, topic: str, keep: Keep | None) -> Future[None]:
        """How much of a topic is kept from the next trim on, also after a restart; None: what `retention` says.

        A topic is emptied by keeping, and holding, nothing of it.
        """

        def put(txn: WriteTxn, log: Log) -> None:
            if keep is None:
                txn.delete(topic.encode(), db=self._tables.topics)
            else:
                txn.put(topic.encode(), layout.to_json(asdict(keep)), db=self._tables.topics)

        return self._writer.ask(put)

    def keeps(self) -> dict[str, Keep]:
        """What was set by `set_keep`."""
        with self._read() as txn:
            return read_keeps(self._tables, txn)

    def set_reader(
        self,
        name: str,
        frontier: Mapping[StreamId, int],
        lease_until_ms: int,
        topics: tuple[str, ...] = (),
        *,
        now_ms: int = 0,
    ) -> Future[Reader | None]:
        """Hold back what the reader has not read, while the lease lasts. `frontier`: the next sequence it wants.

        Answers with the reader's record. If that has cuts, the reader wants rows that were removed while it held them,
        and nothing was changed. None: there are too many readers, and none has expired.
        """
        if not 1 <= len(name.encode()) <= READER_NAME_BYTES_MAX:
            raise StoreError(f"a reader's name has 1 to {READER_NAME_BYTES_MAX} bytes, not {name!r}")
        wanted = dict(frontier)
        all_topics = frozenset((*topics, *(stream.topic for stream in wanted)))
        reader = Reader(name, wanted, all_topics, lease_until_ms)
        return self._writer.ask(lambda txn, log: lease(reader, now_ms, self._tables, txn, log))

    def drop_reader(self, name: str) -> Future[bool]:
        """Forget the reader and what it was cut; whether it was there."""
        return self._writer.ask(lambda txn, log: txn.delete(name.encode(), db=self._tables.readers))

    def readers(self) -> dict[str, Reader]:
        with self._read() as txn:
            return read_readers(self._tables, txn)

    def trim(self, now_ms: int) -> Future[list[tuple[StreamId, int]]]:
        """Remove what is too much, in steps between appends. Answers with the streams' new lows, for `Trimmed`.

        A step that finds no room ends the round; what the earlier ones removed is answered.
        """
        self._env.reader_check()  # a process that was killed while it read would pin pages for ever
        return self._in_steps(Trim(self._tables, self.retention, now_ms).step)

    def retention_clock_ms(self) -> int | None:
        """The time by which ages were last measured, by what was saved; else when the latest batch came here: ages were
        measured then, too. None for a store without rows."""
        with self._read() as txn:
            value = txn.get(layout.RETENTION_CLOCK, db=self._tables.meta)
            if value is not None:
                return layout.time_of(value)
            numbers = [layout.held_of(held).number for _, held in txn.cursor(self._tables.streams)]
            entries = (last_entry(self._tables, txn, number) for number in numbers)
            return max((entry.received_at_ms for entry in entries if entry is not None), default=None)

    def save_retention_clock(self, at_ms: int) -> Future[None]:
        def put(txn: WriteTxn, log: Log) -> None:
            txn.put(layout.RETENTION_CLOCK, layout.time_value(at_ms), db=self._tables.meta)

        return self._writer.ask(put)

    def empty(self, topic: str, now_ms: int) -> Future[list[tuple[StreamId, int]]]:
        """Remove all that is here of a topic now; readers that want it are cut. Answers like `trim`."""
        upto = {stream: until for stream, (_, until) in self.streams().items() if stream.topic == topic}
        trim = Trim(self._tables, self.retention, now_ms)
        return self._in_steps(lambda _, txn, log: trim.empty(upto, txn, log))

    def _in_steps(self, work: Callable[[list[str] | None, WriteTxn, Log], Step]) -> Future[list[tuple[StreamId, int]]]:
        answer: Future[list[tuple[StreamId, int]]] = Future()
        answer.set_running_or_notify_cancel()
        lows: dict[StreamId, int] = {}

        def ask_step(topics: list[str] | None) -> None:
            self._writer.ask(lambda txn, log: work(topics, txn, log)).add_done_callback(stepped)

        def stepped(done: Future[Step]) -> None:
            error = done.exception()
            if error is None:
                step = done.result()
                lows.update(step.lows)
                if not step.is_last:
                    with suppress(StoreError):  # closed meanwhile
                        ask_step(step.topics)
                        return
            if error is not None and not lows:
                answer.set_exception(error)
            else:
                answer.set_result(list(lows.items()))

        ask_step(None)
        return answer

    # ---- reading

    def read_range(self, stream: StreamId, first: int, next_sequence: int, bytes_max: int) -> tuple[Batch, ...]:
        """Whole batches from the one that has `first` on, below `next_sequence`: at least one if it is there, then to
        `bytes_max`. `StoreError` if that one is damaged."""
        found = self.read_kept(stream, first, next_sequence, bytes_max)
        if not found and (extent := self.locate(stream, first)) is not None and extent[0] < first:
            found = self.read_kept(stream, extent[0], next_sequence, bytes_max)
        return tuple(kept.batch for kept in found)

    def read_kept(self, stream: StreamId, first: int, next_sequence: int, bytes_max: int) -> tuple[Kept, ...]:
        """Whole batches from the one that begins at `first` on, each with how it came here."""
        found: list[Kept] = []
        size = 0
        damage: StoreError | None = None
        with self._read() as txn, txn.cursor(self._tables.log) as cursor:
            value = txn.get(layout.stream_key(stream), db=self._tables.streams)
            if value is None:
                return ()
            number = layout.held_of(value).number
            is_there = cursor.set_key(layout.place_key(number, first))
            while is_there and first < next_sequence and layout.place_of(cursor.key()) == (number, first):
                entry = layout.entry_of(cursor.value())
                size += entry.payload_bytes
                if found and size > bytes_max:
                    break
                try:
                    batch = self._batch(cursor.value(), entry.payload_number, txn)
                except StoreError as error:
                    damage = error
                    break
                found.append(Kept(batch, entry.received_at_ms, entry.hops))
                first = batch.next_sequence
                is_there = cursor.next()
        if damage is not None:
            self._on_damaged(self._damage(stream, first))
            if not found:
                raise damage
        return tuple(found)

    def following(self, stream: StreamId, first: int) -> int:
        """The first sequence behind the batch that begins at `first`, without reading the batch: it may be damaged."""
        with self._read() as txn, txn.cursor(self._tables.log) as cursor:
            value = txn.get(layout.stream_key(stream), db=self._tables.streams)
            if value is None:
                return 0
            held = layout.held_of(value)
            if cursor.set_range(layout.place_key(held.number, first + 1)):
                number, following = layout.place_of(cursor.key())
                if number == held.number:
                    return following
            return held.next

    def _damage(self, stream: StreamId, first: int) -> Damaged:
        following = self.following(stream, first)
        with self._read() as txn:
            value = txn.get(layout.stream_key(stream), db=self._tables.streams)
            checksums = (
                () if value is None else checksums_left(layout.held_of(value), first, following, txn, self._tables)
            )
        return Damaged(stream, first, following, checksums)

    def _batch(self, value: memoryview, payload_number: int, txn: ReadTxn) -> Batch:
        payload = None
        if payload_number:
            payload = txn.get(layout.sequence_key(payload_number), db=self._tables.payloads)
        try:
            return layout.batch_of(value, payload)
        except RemoteProtocolError as error:
            raise StoreError(
                f"{self.path}: a batch is damaged ({error}): it is fetched again if another node has it"
            ) from error

    def streams(self) -> dict[StreamId, tuple[int, int]]:
        """Low and next of every stream, as they are on disk."""
        return {stream: (held.low, held.next) for stream, held in self.held().items()}

    def stream_count(self) -> int:
        """How many streams there are, without looking at them."""
        with self._read() as txn:
            count: int = txn.stat(self._tables.streams)["entries"]
            return count

    def lows(self, streams: Iterable[StreamId]) -> dict[StreamId, int]:
        """The first sequence that is kept of each of these, as far as they are here. Looks at no others: a channel may
        have thousands of times as many."""
        with self._read() as txn:
            found = ((stream, txn.get(layout.stream_key(stream), db=self._tables.streams)) for stream in streams)
            return {stream: layout.held_of(value).low for stream, value in found if value is not None}

    def held(self) -> dict[StreamId, StreamRecord]:
        """Every stream, with what it takes of the log."""
        with self._read() as txn:
            return {layout.stream_of(key): layout.held_of(value) for key, value in txn.cursor(self._tables.streams)}

    def locate(self, stream: StreamId, sequence: int) -> tuple[int, int] | None:
        """First and next sequence of the batch that holds `sequence`, else of the first one after it; None: neither."""
        with self._read() as txn, txn.cursor(self._tables.log) as cursor:
            value = txn.get(layout.stream_key(stream), db=self._tables.streams)
            if value is None:
                return None
            number = layout.held_of(value).number
            after: tuple[int, int] | None = None
            if cursor.set_range(layout.place_key(number, sequence)):
                after = _extent(cursor.key(), cursor.value(), number)
                if after is not None and after[0] == sequence:
                    return after
                is_there = cursor.prev()
            else:
                is_there = cursor.last()
            before = _extent(cursor.key(), cursor.value(), number) if is_there else None
            return before if before is not None and sequence < before[1] else after

    def schema_runs(self, stream: StreamId, first: int, next_sequence: int) -> list[tuple[int, int]]:
        """Where the schema changes among the batches that begin in `first .. next_sequence - 1`: (first sequence,
        schema
        id) of each run. Reads heads only, about 2 us each."""
        runs: list[tuple[int, int]] = []
        with self._read() as txn, txn.cursor(self._tables.log) as cursor:
            value = txn.get(layout.stream_key(stream), db=self._tables.streams)
            if value is None:
                return runs
            number = layout.held_of(value).number
            is_there = cursor.set_range(layout.place_key(number, first))
            while is_there:
                of, begins = layout.place_of(cursor.key())
                if of != number or begins >= next_sequence:
                    break
                schema_id = layout.schema_id_of(cursor.value())
                if not runs or runs[-1][1] != schema_id:
                    runs.append((begins, schema_id))
                is_there = cursor.next()
        return runs

    def sequence_at(self, stream: StreamId, at_ms: int) -> int | None:
        """The first sequence of the first batch published at `at_ms` or later; None if there is none (yet)."""
        return self._time_index.sequence_at(stream, at_ms)

    def read_deliveries(self, after: int, limit: int) -> tuple[DeliveryRecord, ...]:
        """Deliveries in the order in which they came, from the one after number `after`."""
        with self._read() as txn:
            names = partial(self._stream, txn=txn)
            return history.read_deliveries(self._tables, txn, after, limit, names)

    def delivery_range(self) -> tuple[int, int]:
        """The first delivery that is kept, and the next to come."""
        with self._read() as txn:
            return history.delivery_range(self._tables, txn)

    def roster_spans(self) -> tuple[RosterSpan, ...]:
        """Who was on the channel, as far as this node has heard, itself included."""
        with self._read() as txn:
            return history.read_roster_spans(self._tables, txn)

    def _stream(self, number: int, txn: ReadTxn) -> StreamId:
        # What a reader has seen of the names is durable, and a name never changes.
        stream = self._names.get(number)
        if stream is None:
            key = txn.get(layout.number_key(number), db=self._tables.names)
            assert key is not None, f"stream {number} has no name"
            stream = self._names[number] = layout.stream_of(key)
        return stream

    def schema(self, schema_id: int) -> bytes | None:
        with self._read() as txn:
            schema = txn.get(layout.sequence_key(schema_id), db=self._tables.schemas)
            return None if schema is None else bytes(schema)

    def publishers(self, start: str, limit: int) -> list[tuple[str, PublisherState]]:
        """Publisher keys from `start` on, in the order of their bytes."""
        found: list[tuple[str, PublisherState]] = []
        with self._read() as txn, txn.cursor(self._tables.publishers) as cursor:
            state_of = layout.PublisherValues(partial(self._stream, txn=txn)).state_of
            is_there = cursor.set_range(start.encode()) if start else cursor.first()
            while is_there and len(found) < limit:
                found.append((str(cursor.key(), "utf-8"), state_of(cursor.value())))
                is_there = cursor.next()
        return found

    def free_space(self) -> FreeSpace:
        """What is left; refuse publishes when `is_nearly_full`."""
        with self._read() as txn:
            return measure(self.path, self._env, self._tables, txn, self._reserve_bytes)

    @property
    def commit_seconds(self) -> Histogram:
        return self._writer.commit_seconds

    @property
    def queued_bytes(self) -> int:
        """Of appends that the writer has not begun to write, about."""
        return self._writer.queued_bytes

    def oldest_ms(self) -> int | None:
        """When the oldest row that is kept was published; None if there is none. About 3 us for each stream."""
        found: list[int] = []
        with self._read() as txn, txn.cursor(self._tables.log) as cursor:
            for _, value in txn.cursor(self._tables.streams):
                number = layout.held_of(value).number
                if cursor.set_range(layout.place_key(number, 0)) and layout.place_of(cursor.key())[0] == number:
                    found.append(layout.entry_of(cursor.value()).published_at_ms)
        return min(found, default=None)

    def is_nearly_full(self) -> bool:
        """Whether publishes should be refused."""
        return self.free_space().is_nearly_full

    def check(self) -> CheckReport:
        return inspect(self._read, self._tables)

    def stats(self) -> Stats:
        with self._read() as txn:
            return measure_stats(self.path, self._env, self._tables, txn, self._reserve_bytes)

    @contextmanager
    def _read(self) -> Iterator[ReadTxn]:
        with self._gate:
            if self._closed:
                raise StoreError(f"{self.path}: the store is closed")
            self._reads += 1
        try:
            with self._env.begin(buffers=True) as txn:
                yield txn
        finally:
            with self._gate:
                self._reads -= 1
                self._gate.notify_all()


def _extent(key: memoryview, value: memoryview, number: int) -> tuple[int, int] | None:
    """First and next sequence of the log entry, if it is of stream `number`."""
    of, first = layout.place_of(key)
    return (first, first + layout.entry_of(value).row_count) if of == number else None
