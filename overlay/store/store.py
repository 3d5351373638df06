"""The store: opens a folder, takes appends, answers reads.

Reason: it is the whole interface of a store, a few lines for each of its verbs.

    store = Store.open(folder, ChannelName("m4cast", "default"), callbacks)
    node = Node(store.recovered, ...)
    store.append(append)            # then on_durable(token) or on_failed(token, reason), on the writer's thread
    store.heard(token)              # the driver has taken a failure; what it appends now is new

Appends and everything else that changes the file go to the writer's thread, in the order in which they were requested.
Reads are short transactions in the caller's thread, and copy out what they found: a long one would keep LMDB from
reusing freed pages. What answers later is a `concurrent.futures.Future`: wait for `.result()`, or wrap it for asyncio.

The driver's part of the storage contract: it takes a report of failure off its own queue, hands `AppendFailed` to the
node, and calls `heard(token)` before it performs the node's outputs. All appends up to that moment have failed or will
fail; the outputs of the node's answer are the first that take the failure into account. Echoes (later tokens of the
same failure) may be acknowledged in the same way.

Guarantees
3. What was reported durable survives kill -9 and power loss: LMDB's default mode, fsync at every commit.
4. `read_range` returns whole batches, contiguous from the one that has the row asked for, as the origin sealed them.
5. After a crash the store holds a prefix of the appends.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from m4cast.overlay.errors import RemoteProtocolError, StoreError
from m4cast.overlay.histogram import Histogram
from m4cast.overlay.ids import NodeId, StreamId, heir_of
from m4cast.overlay.protocol.effects import Append, Damaged, PublisherState, Recovered
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.messages import RosterEntry
from m4cast.overlay.store.client_states import ClientStates
from m4cast.overlay.store.federation_rows import FederationRows
from m4cast.overlay.store.folder import ChannelName, OpenFolder, open_folder, write_node_id_file
from m4cast.overlay.store.free_space import FreeSpace, default_reserve, measure
from m4cast.overlay.store.inspection import CheckReport, Stats, inspect, measure_stats
from m4cast.overlay.store.log import Log, recover
from m4cast.overlay.store.retention import Retention, Trim, in_steps, lease
from m4cast.overlay.store.selected import SelectedReads
from m4cast.overlay.store.table import ReadTxn, WriteTxn, place_key, place_of, sequence_key
from m4cast.overlay.store.tables import topics
from m4cast.overlay.store.tables.deliveries import DeliveryRecord, delivery_range, read_deliveries
from m4cast.overlay.store.tables.log import (
    LOG,
    PAYLOADS,
    Kept,
    SummarisedBatch,
    batch_of,
    checksums_left,
    entry_of,
    latest_received_ms,
    oldest_published_ms,
    read_before_low,
    read_summaries,
    schema_id_of,
)
from m4cast.overlay.store.tables.meta import Identity, read_retention_clock, write_retention_clock
from m4cast.overlay.store.tables.publishers import read_publishers
from m4cast.overlay.store.tables.readers import Reader, read_readers, remove_reader
from m4cast.overlay.store.tables.roster import RosterSpan, read_roster_spans, write_roster_entry
from m4cast.overlay.store.tables.schemas import read_schema, write_schema
from m4cast.overlay.store.tables.skips import expired_until
from m4cast.overlay.store.tables.streams import (
    STREAMS,
    StreamRecord,
    read_name,
    read_stream,
    read_streams,
    record_of,
    stream_key,
)
from m4cast.overlay.store.tables.topics import ColumnPaths, Keep
from m4cast.overlay.store.time_index import TimeIndex
from m4cast.overlay.store.writer import Callbacks, StoreLimits, Writer

__all__ = ["Callbacks", "ChannelName", "DeliveryRecord", "StreamRecord", "Keep", "Kept", "StoreLimits", "RosterSpan"]
__all__ += ["Reader", "FreeSpace", "Store", "SummarisedBatch"]

READER_NAME_BYTES_MAX = 200


class Store:
    """Made by `open`. Any thread may use it. `close` waits for reads under way and writes what was requested."""

    def __init__(self, folder: OpenFolder, callbacks: Callbacks, limits: StoreLimits, retention: Retention) -> None:
        self.path = folder.path
        self.retention = retention
        self._folder = folder
        self._env = folder.env
        self._tables = folder.tables
        self._reserve_bytes = (
            default_reserve(limits.map_bytes) if limits.reserve_bytes is None else limits.reserve_bytes
        )
        self._reads = 0
        self._gate = threading.Condition()
        self._closed = False
        with self._env.begin() as txn:
            log = Log(self._tables, txn)
            self.recovered = recover(self._tables, txn)
        self._on_damaged = callbacks.on_damaged
        self._names: dict[int, StreamId] = {}
        self._time_index = TimeIndex(self._tables, self._read)
        self.selected = SelectedReads(self._tables, self._read, self._batch, self._damage, self._on_damaged)
        self._writer = Writer(
            self._env,
            log,
            callbacks,
            lambda txn: measure(self.path, self._env, self._tables, txn, self._reserve_bytes),
            limits,
        )
        self.clients = ClientStates(self._read, self._writer.ask, self._tables)
        self.federation = FederationRows(self._read, self._writer.ask, self._tables)

    @staticmethod
    def open(
        path: Path | str,
        channel: ChannelName,
        callbacks: Callbacks,
        *,
        limits: StoreLimits | None = None,
        retention: Retention | None = None,
        node_id_file: Path | str | None = None,
    ) -> "Store":
        """Create the store or open it, raise its incarnation, and recover what it knows (`recovered`).

        `StoreError` if it is in use, of another channel, node or version, or damaged; then nothing was changed.
        """
        limits = limits or StoreLimits()
        id_file = None if node_id_file is None else Path(node_id_file)
        folder = open_folder(Path(path), channel, limits.map_bytes, id_file)
        try:
            return Store(folder, callbacks, limits, retention or Retention())
        except BaseException:
            folder.close()
            raise

    def close(self) -> None:
        self._writer.close()
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: self._reads == 0)
        self._folder.close()

    # ---- writing

    def append(self, append: Append) -> None:
        """Queue it. Appends become durable in this order; `StoreError` if the store is closed or broken."""
        self._writer.append(append)

    def heard(self, token: int) -> None:
        """The report that `token` failed has been taken: appends from now on are not part of that failure."""
        self._writer.heard(token)

    def before_commits(self, call: Callable[[], object]) -> None:
        """Call this on the writer's thread before each commit from now on. It must not fail, nor wait."""
        self._writer.committing = call

    def sync(self) -> Future[None]:
        """Done when everything requested before it is on disk, or has failed."""
        return self._writer.ask(lambda txn, log: None)

    def save_roster(self, entry: RosterEntry, at_ms: int) -> Future[None]:
        """Record a node's roster entry, received at `at_ms`."""
        return self._writer.ask(lambda txn, log: write_roster_entry(entry, at_ms, self._tables, txn))

    def save_schema(self, schema_id: int, schema: bytes) -> Future[None]:
        return self._writer.ask(lambda txn, log: write_schema(schema_id, schema, self._tables, txn))

    def take_new_identity(self) -> Recovered:
        """Begin as a new node after a rollback; the old streams become those of a former identity.

        Waits for what was requested before. The caller drops reports about the old node's tokens.
        """
        self._writer.forget_failure()

        def take(txn: WriteTxn, log: Log) -> NodeId:
            old = log.identity
            heir = heir_of(old.node_id, time.time_ns() // 1_000_000, os.urandom(4))
            log.take_identity(Identity(heir, 1, (*old.former_ids, old.node_id)), txn)
            return log.identity.node_id

        node_id = self._writer.ask(take).result()
        self._writer.forget_failure()
        if self._folder.node_id_file is not None:
            write_node_id_file(self._folder.node_id_file, node_id)
        with self._read() as txn:
            self.recovered = recover(self._tables, txn)
        return self.recovered

    # ---- retention

    def set_keep(self, topic: str, keep: Keep | None) -> Future[None]:
        """Set how much of a topic is kept from the next trim on, also after a restart; None: as `retention` has it."""
        return self._writer.ask(lambda txn, log: topics.write_keep(topic, keep, self._tables, txn))

    def keeps(self) -> dict[str, Keep]:
        """Retention set by `set_keep`, by topic."""
        with self._read() as txn:
            return topics.read_keeps(self._tables, txn)

    def set_summarised(self, topic: str, columns: ColumnPaths | None) -> Future[None]:
        """Set of which columns of a topic publishers here make summaries, also after a restart; None: unset."""
        return self._writer.ask(lambda txn, log: topics.write_summarised(topic, columns, self._tables, txn))

    def summarised(self) -> dict[str, ColumnPaths]:
        """Columns set by `set_summarised`, by topic."""
        with self._read() as txn:
            return topics.read_summarised(self._tables, txn)

    def set_reader(
        self,
        name: str,
        frontier: Mapping[StreamId, int],
        lease_until_ms: int,
        topics: tuple[str, ...] = (),
        *,
        now_ms: int = 0,
        profiles: Mapping[str, str] | None = None,
    ) -> Future[Reader | None]:
        """Hold back what the reader has not read, while the lease lasts. `frontier` has the next sequence it wants.
        `profiles`: by topic, the condition that it reads rows by; what is held does not depend on it.

        Answers with the reader's record. If that has cuts, the reader wants rows that were removed while it held them,
        and nothing was changed. None: there are too many readers, and none has expired.
        """
        size, limit = len(name.encode()), READER_NAME_BYTES_MAX
        if not 1 <= size <= limit:
            raise StoreError(f"a reader's name has 1 to {limit} bytes, not {size} ({name!r}): rename it")
        all_topics = frozenset((*topics, *(stream.topic for stream in frontier)))
        reader = Reader(name, dict(frontier), all_topics, lease_until_ms, profiles=dict(profiles or {}))
        return self._writer.ask(lambda txn, log: lease(reader, now_ms, self._tables, txn, log))

    def drop_reader(self, name: str) -> Future[bool]:
        """Remove the reader, and the record of what it lost. Answers whether there was one of this name."""
        return self._writer.ask(lambda txn, log: remove_reader(name, self._tables, txn))

    def readers(self) -> dict[str, Reader]:
        with self._read() as txn:
            return read_readers(self._tables, txn)

    def trim(self, now_ms: int) -> Future[list[tuple[StreamId, int]]]:
        """Remove what is over its limits, in steps between appends. Answers with the streams' new lows (`Trimmed`). A
        step that finds no room ends the round; the answer then has what the earlier steps removed."""
        self._env.reader_check()  # A process that was killed while it read would pin pages for ever.
        return in_steps(self._writer.ask, Trim(self._tables, self.retention, now_ms).step)

    def retention_clock_ms(self) -> int | None:
        """The time by which ages were last measured, as saved; else the arrival of the latest batch, since ages were
        measured then, too. None for a store without rows."""
        with self._read() as txn:
            saved_ms = read_retention_clock(self._tables, txn)
            return latest_received_ms(self._tables, txn) if saved_ms is None else saved_ms

    def save_retention_clock(self, at_ms: int) -> Future[None]:
        return self._writer.ask(lambda txn, log: write_retention_clock(at_ms, self._tables, txn))

    def empty(self, topic: str, now_ms: int) -> Future[list[tuple[StreamId, int]]]:
        """Remove everything of a topic that is here now; readers that want it are cut. Answers as `trim` does."""
        upto = {stream: until for stream, (_, until) in self.streams().items() if stream.topic == topic}
        trim = Trim(self._tables, self.retention, now_ms)
        return in_steps(self._writer.ask, lambda _, txn, log: trim.empty(upto, txn, log))

    def compact(self, upto: dict[StreamId, int], now_ms: int) -> Future[list[tuple[StreamId, int]]]:
        """Remove whole batches that precede these positions, as far as no reader holds them. Answers as `trim` does."""
        trim = Trim(self._tables, self.retention, now_ms)
        return in_steps(self._writer.ask, lambda _, txn, log: trim.compact(upto, txn, log))

    def expired_until(self, stream: StreamId) -> int:
        """The end of the last range of a stream that had expired elsewhere before it came here; 1: there is none."""
        with self._read() as txn:
            record = read_stream(stream, self._tables, txn)
            return 1 if record is None else expired_until(record.number, self._tables, txn)

    # ---- reading

    def read_range(self, stream: StreamId, first: int, next_sequence: int, bytes_max: int) -> tuple[Batch, ...]:
        """Whole batches from the one that has `first` on, below `next_sequence`: at least one if there is one, then up
        to `bytes_max`. `StoreError` if the first is damaged."""
        found = self.read_kept(stream, first, next_sequence, bytes_max)
        if not found and (extent := self.locate(stream, first)) is not None and extent[0] < first:
            found = self.read_kept(stream, extent[0], next_sequence, bytes_max)
        return tuple(kept.batch for kept in found)

    def read_kept(self, stream: StreamId, first: int, next_sequence: int, bytes_max: int) -> tuple[Kept, ...]:
        """Whole batches from the one that begins at `first` on, each with how it arrived."""
        found: list[Kept] = []
        size = 0
        damage: StoreError | None = None
        with self._read() as txn, txn.cursor(self._tables[LOG]) as cursor:
            value = txn.get(stream_key(stream), db=self._tables[STREAMS])
            if value is None:
                return ()
            number = record_of(value).number
            is_there = cursor.set_key(place_key(number, first))
            while is_there and first < next_sequence and place_of(cursor.key()) == (number, first):
                entry = entry_of(cursor.value())
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
        """The first sequence after the batch that begins at `first`, without reading the batch: it may be damaged."""
        with self._read() as txn, txn.cursor(self._tables[LOG]) as cursor:
            value = txn.get(stream_key(stream), db=self._tables[STREAMS])
            if value is None:
                return 0
            held = record_of(value)
            if cursor.set_range(place_key(held.number, first + 1)):
                number, following = place_of(cursor.key())
                if number == held.number:
                    return following
            return held.next

    def _damage(self, stream: StreamId, first: int) -> Damaged:
        following = self.following(stream, first)
        with self._read() as txn:
            record = read_stream(stream, self._tables, txn)
            checksums = () if record is None else checksums_left(record, first, following, self._tables, txn)
        return Damaged(stream, first, following, checksums)

    def _batch(self, value: memoryview, payload_number: int, txn: ReadTxn) -> Batch:
        payload = None
        if payload_number:
            payload = txn.get(sequence_key(payload_number), db=self._tables[PAYLOADS])
        try:
            return batch_of(value, payload)
        except RemoteProtocolError as error:
            raise StoreError(
                f"{self.path}: a batch is damaged ({error}): it is fetched again if another node has it"
            ) from error

    def streams(self) -> dict[StreamId, tuple[int, int]]:
        """Low and next of every stream, as they are on disk."""
        return {stream: (held.low, held.next) for stream, held in self.held().items()}

    def stream_count(self) -> int:
        """The number of streams, without reading them."""
        with self._read() as txn:
            return int(txn.stat(self._tables[STREAMS])["entries"])

    def lows(self, streams: Iterable[StreamId]) -> dict[StreamId, int]:
        """The first sequence that is kept of each of these streams that the store has. Reads no others: a channel may
        have thousands of times as many."""
        with self._read() as txn:
            found = ((stream, txn.get(stream_key(stream), db=self._tables[STREAMS])) for stream in streams)
            return {stream: record_of(value).low for stream, value in found if value is not None}

    def before_low(self, stream: StreamId) -> tuple[int, int] | None:
        """The first sequence that is kept of a stream, and the checksum of the batch that ended there; 0: not known."""
        with self._read() as txn:
            return read_before_low(stream, self._tables, txn)

    def held(self) -> dict[StreamId, StreamRecord]:
        """Every stream, with what the store holds of it."""
        with self._read() as txn:
            return read_streams(self._tables, txn)

    def locate(self, stream: StreamId, sequence: int) -> tuple[int, int] | None:
        """First and next sequence of the batch that has `sequence`, else of the first one after it; None: neither."""
        with self._read() as txn, txn.cursor(self._tables[LOG]) as cursor:
            value = txn.get(stream_key(stream), db=self._tables[STREAMS])
            if value is None:
                return None
            number = record_of(value).number
            after: tuple[int, int] | None = None
            if cursor.set_range(place_key(number, sequence)):
                after = _extent(cursor.key(), cursor.value(), number)
                if after is not None and after[0] == sequence:
                    return after
                is_there = cursor.prev()
            else:
                is_there = cursor.last()
            before = _extent(cursor.key(), cursor.value(), number) if is_there else None
            return before if before is not None and sequence < before[1] else after

    def schema_runs(self, stream: StreamId, first: int, next_sequence: int) -> list[tuple[int, int]]:
        """Find the places at which the schema changes among the batches that begin in `first .. next_sequence - 1`:
        first sequence and schema id of each run. Reads heads only, about 2 us each."""
        runs: list[tuple[int, int]] = []
        with self._read() as txn, txn.cursor(self._tables[LOG]) as cursor:
            value = txn.get(stream_key(stream), db=self._tables[STREAMS])
            if value is None:
                return runs
            number = record_of(value).number
            is_there = cursor.set_range(place_key(number, first))
            while is_there:
                of, begins = place_of(cursor.key())
                if of != number or begins >= next_sequence:
                    break
                schema_id = schema_id_of(cursor.value())
                if not runs or runs[-1][1] != schema_id:
                    runs.append((begins, schema_id))
                is_there = cursor.next()
        return runs

    def summaries(self, stream: StreamId, first: int, until: int, limit: int) -> list[SummarisedBatch]:
        """The batches that have rows in `first .. until - 1`, in order, at most `limit`, each with its summary. Where
        one does not begin at the end of the one before it, the store has a skip. Reads no payload."""
        with self._read() as txn:
            record = read_stream(stream, self._tables, txn)
            return [] if record is None else read_summaries(record.number, first, until, limit, self._tables, txn)

    def sequence_at(self, stream: StreamId, at_ms: int) -> int | None:
        """The first sequence of the first batch published at `at_ms` or later; None if there is none yet."""
        return self._time_index.sequence_at(stream, at_ms)

    def read_deliveries(self, after: int, limit: int) -> tuple[DeliveryRecord, ...]:
        """Deliveries in the order of arrival, from the one after number `after` on."""
        with self._read() as txn:
            return read_deliveries(after, limit, partial(self._stream, txn=txn), self._tables, txn)

    def delivery_range(self) -> tuple[int, int]:
        """The number of the first delivery that is kept, and of the next one."""
        with self._read() as txn:
            return delivery_range(self._tables, txn)

    def roster_spans(self) -> tuple[RosterSpan, ...]:
        """The nodes that were on the channel, as far as this node knows, itself included."""
        with self._read() as txn:
            return read_roster_spans(self._tables, txn)

    def _stream(self, number: int, txn: ReadTxn) -> StreamId:
        # A name that a reader has seen is durable, and never changes.
        stream = self._names.get(number)
        if stream is None:
            stream = self._names[number] = read_name(number, self._tables, txn)
        return stream

    def schema(self, schema_id: int) -> bytes | None:
        with self._read() as txn:
            return read_schema(schema_id, self._tables, txn)

    def publishers(self, start: str, limit: int) -> list[tuple[str, PublisherState]]:
        """Publisher keys from `start` on, in the order of their bytes."""
        with self._read() as txn:
            return read_publishers(start, limit, partial(self._stream, txn=txn), self._tables, txn)

    def free_space(self) -> FreeSpace:
        """The space that is left. Publishes should be refused when it `is_nearly_full`."""
        with self._read() as txn:
            return measure(self.path, self._env, self._tables, txn, self._reserve_bytes)

    @property
    def commit_seconds(self) -> Histogram:
        return self._writer.commit_seconds

    @property
    def queued_bytes(self) -> int:
        return self._writer.queued_bytes

    def oldest_ms(self) -> int | None:
        """Return when the oldest kept row was published; None if there is none. About 3 us for each stream."""
        with self._read() as txn:
            return oldest_published_ms(self._tables, txn)

    def is_nearly_full(self) -> bool:
        """True if publishes should be refused."""
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
    of, first = place_of(key)
    return (first, first + entry_of(value).row_count) if of == number else None
