"""Inspection of a store: whether it is sound, and what is in it. Only reads; a node may run on the store meanwhile.

`check` reads every batch and compares it with its checksum, its place and its stream's record. While a node runs, it
reads in short transactions, stream by stream, and continues where it stopped: what retention removes meanwhile is not
reported as missing, and what is appended meanwhile is read up to the stream's end at that moment. If no node runs, it
also walks the pages of the file.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lmdb import Environment
from xxhash import xxh3_64_intdigest

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.store import folder
from m4cast.overlay.store.free_space import default_reserve, measure
from m4cast.overlay.store.table import ReadTxn, Tables, number_of, place_key, place_of, sequence_key
from m4cast.overlay.store.tables.deliveries import DELIVERIES
from m4cast.overlay.store.tables.log import LOG, PAYLOADS, batch_of, entry_of, kept_bytes
from m4cast.overlay.store.tables.meta import (
    COUNTERS,
    FORMAT,
    IDENTITY,
    counters_of,
    format_of,
    identity_of,
    read_fact,
)
from m4cast.overlay.store.tables.publishers import PUBLISHERS
from m4cast.overlay.store.tables.readers import Reader, read_readers
from m4cast.overlay.store.tables.roster import ROSTER
from m4cast.overlay.store.tables.schemas import SCHEMAS
from m4cast.overlay.store.tables.selective import is_marked
from m4cast.overlay.store.tables.skips import SKIPS, last_sequence_of
from m4cast.overlay.store.tables.stage import read_stage
from m4cast.overlay.store.tables.streams import StreamRecord, read_names, read_stream, read_streams

Read = Callable[[], AbstractContextManager[ReadTxn]]

STEP_BYTES = 64 << 20
"""Read in one transaction. Higher: pages of what is removed meanwhile are freed later."""
PROBLEMS_MAX = 1_000


@dataclass(slots=True)
class CheckReport:
    """The result of a check: what it read, and its problems, each with its place."""

    streams: int = 0
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    skips: int = 0
    staged: int = 0
    payloads: int = 0
    in_use: bool = False
    """A node had the store open; the pages of the file were not walked."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


@dataclass(frozen=True, slots=True)
class StreamStats:
    origin: str
    topic: str
    low: int
    next: int
    batches: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReaderStats:
    name: str
    lease_until_ms: int
    lag_rows: int
    """Rows kept of its topics that it has not read."""
    cut_rows: int


@dataclass(frozen=True, slots=True)
class StoreOwner:
    """The node and the channel that a store belongs to."""

    channel_type: str
    channel_instance: str
    format_version: int
    node_id: str
    incarnation: int
    former_ids: list[str]
    origin_batch: int


@dataclass(frozen=True, slots=True)
class SpaceStats:
    """The size of the store, and its limits."""

    file_bytes: int
    live_bytes: int
    map_bytes: int
    available_bytes: int
    is_nearly_full: bool


@dataclass(frozen=True, slots=True)
class ContentStats:
    """The amount of content in the store."""

    batches: int
    log_bytes: int
    deliveries: int
    publishers: int
    staged: int
    staged_bytes: int
    schemas: int
    roster: int


@dataclass(frozen=True, slots=True)
class Stats:
    owner: StoreOwner
    space: SpaceStats
    content: ContentStats
    streams: list[StreamStats]
    readers: list[ReaderStats]

    def as_fields(self) -> dict[str, Any]:
        """All facts in one flat object, as `m4cast store stats --json` prints it."""
        fields = asdict(self)
        return {**fields.pop("owner"), **fields.pop("space"), **fields.pop("content"), **fields}


def check(path: Path | str) -> CheckReport:
    path = Path(path)
    with _opened(path) as (env, tables):
        in_use = folder.is_in_use(path)
        problems = [] if in_use else folder.structure_problems(path)
        if problems:  # LMDB could crash on these pages.
            return CheckReport(problems=[f"page structure: {problem}" for problem in problems[:PROBLEMS_MAX]])
        report = inspect(lambda: env.begin(buffers=True), tables)
        report.in_use = in_use
        return report


def stats(path: Path | str) -> Stats:
    path = Path(path)
    with _opened(path) as (env, tables), env.begin(buffers=True) as txn:
        return measure_stats(path, env, tables, txn, default_reserve(env.info()["map_size"]))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Environment, Tables]]:
    env, tables = folder.open_to_read(path)
    try:
        yield env, tables
    finally:
        env.close()


# ---- check


def inspect(read: Read, tables: Tables) -> CheckReport:
    report = CheckReport()
    with read() as txn:
        # Payloads from this number on are younger than the check, which ignores them.
        payload_limit = counters_of(read_fact(COUNTERS, tables, txn)).payload
        streams = list(read_streams(tables, txn).items())
        used = _check_stage(txn, tables, report)
        _check_names(txn, tables, streams, report)
    report.streams = len(streams)
    for stream, _ in streams:
        _StreamCheck(tables, stream, report, used).run(read)
    _check_payloads(read, tables, payload_limit, used, report)
    return report


def _check_stage(txn: ReadTxn, tables: Tables, report: CheckReport) -> set[int]:
    used: set[int] = set()
    for stage_id, entry in read_stage(tables, txn).items():
        payload = txn.get(sequence_key(entry.payload_number), db=tables[PAYLOADS])
        name = f"stage id {stage_id!r}"
        if payload is None:
            report.problem(f"{name}: its payload {entry.payload_number} is missing")
        elif xxh3_64_intdigest(payload) != entry.payload_checksum:
            report.problem(f"{name}: its payload is damaged")
        used.add(entry.payload_number)
        report.staged += 1
    return used


def _check_names(
    txn: ReadTxn, tables: Tables, streams: list[tuple[StreamId, StreamRecord]], report: CheckReport
) -> None:
    named = read_names(tables, txn)
    for stream, held in streams:
        if named.pop(held.number, None) != stream:
            report.problem(f"{_name(stream)}: its number {held.number} is that of another stream, or of none")
    for number, stream in named.items():
        report.problem(f"{_name(stream)}: has number {number}, but no record")
    numbers = {held.number for _, held in streams}
    for table, name in ((tables[LOG], "log"), (tables[SKIPS], "skips")):
        with txn.cursor(table) as cursor:
            number = 0
            while cursor.set_range(place_key(number, 0)):
                found, _ = place_of(cursor.key())
                if found not in numbers:
                    report.problem(f"{name}: has entries of stream number {found}, which does not exist")
                number = found + 1


class _StreamCheck:
    """One stream, from its low to its end, in short transactions."""

    def __init__(self, tables: Tables, stream: StreamId, report: CheckReport, used: set[int]) -> None:
        self._tables = tables
        self._stream = stream
        self._report = report
        self._used = used
        self._position = 0
        self._checksum: int | None = None
        """The checksum of the batch before `_position`; None when it is unknown."""
        self._batches = 0
        self._bytes = 0
        self._low = 0
        """The place at which the check began."""

    def run(self, read: Read) -> None:
        done = False
        while not done:
            with read() as txn:
                record = read_stream(self._stream, self._tables, txn)
                if record is None:
                    return
                done = self._step(txn, record)

    def _step(self, txn: ReadTxn, held: StreamRecord) -> bool:
        self._low = self._low or held.low
        is_selective = is_marked(held.number, self._tables, txn)
        if self._position < held.low:
            self._position, self._checksum = held.low, None
        if not self._batches and not is_selective:
            self._check_beginning(txn, held)
        step_bytes = 0
        with txn.cursor(self._tables[LOG]) as cursor:
            is_there = cursor.set_range(place_key(held.number, self._position))
            while step_bytes < STEP_BYTES:
                number, first = place_of(cursor.key()) if is_there else (0, 0)
                if number != held.number and is_selective:
                    return True
                if number != held.number:
                    self._pass_skips(txn, held, held.next)
                    self._check_end(held)
                    return True
                self._pass_skips(txn, held, first)
                if first != self._position and is_selective:
                    self._checksum = None
                elif first != self._position:
                    self._problem(f"{self._position} to {first - 1} are missing, and no skip accounts for them")
                step_bytes += self._check_entry(txn, first, cursor.value())
                is_there = cursor.next()
        return False

    def _check_beginning(self, txn: ReadTxn, held: StreamRecord) -> None:
        with txn.cursor(self._tables[LOG]) as cursor:
            if cursor.set_range(place_key(held.number, 0)):
                number, first = place_of(cursor.key())
                if number == held.number and first < held.low:
                    self._problem(f"an entry at {first} is below low, which is {held.low}")

    def _pass_skips(self, txn: ReadTxn, held: StreamRecord, until: int) -> None:
        while self._position < until:
            value = txn.get(place_key(held.number, self._position), db=self._tables[SKIPS])
            if value is None:
                return
            self._position = last_sequence_of(value) + 1
            self._checksum = 0
            self._report.skips += 1

    def _check_entry(self, txn: ReadTxn, first: int, value: memoryview) -> int:
        entry = entry_of(value)
        size = kept_bytes(entry, value)
        self._position = first + entry.row_count
        self._batches += 1
        self._bytes += size
        self._report.batches += 1
        self._report.rows += entry.row_count
        self._report.bytes += size
        payload = None
        if entry.payload_number:
            if entry.payload_number in self._used and self._is_used_twice(txn, entry.payload_number):
                self._problem(f"batch {first} has payload {entry.payload_number}, which is in use elsewhere")
            self._used.add(entry.payload_number)
            payload = txn.get(sequence_key(entry.payload_number), db=self._tables[PAYLOADS])
            if payload is None:
                self._problem(f"batch {first}: its payload {entry.payload_number} is missing")
                self._checksum = None
                return size
        try:
            batch = batch_of(value, payload)
        except RemoteProtocolError as error:
            self._problem(f"batch {first} is damaged: {error}")
            self._checksum = None
            return size
        if (batch.stream, batch.first_sequence, batch.row_count, batch.published_at_ms) != (
            self._stream,
            first,
            entry.row_count,
            entry.published_at_ms,
        ):
            self._problem(f"the entry at {first} is batch {batch.first_sequence} of {_name(batch.stream)}")
        # After a skip or a start in the middle the previous checksum is unknown.
        if self._checksum and batch.previous_checksum != self._checksum:
            self._problem(f"batch {first} does not follow the batch before it: the chain of checksums is broken")
        self._checksum = batch.checksum
        return size

    def _is_used_twice(self, txn: ReadTxn, number: int) -> bool:
        """A payload that was staged when the check began may have been committed meanwhile."""
        return any(entry.payload_number == number for entry in read_stage(self._tables, txn).values())

    def _check_end(self, held: StreamRecord) -> None:
        if self._position != held.next:
            self._problem(f"ends at {self._position}, but its record has {held.next}")
        if self._checksum is not None and self._checksum != held.last_checksum:
            self._problem(f"its last checksum is {self._checksum:#x}, but its record has {held.last_checksum:#x}")
        counted = (self._batches, self._bytes)
        if held.low == self._low and counted != (held.batches, held.log_bytes):
            self._problem(f"has {counted} batches and bytes, but its record has {(held.batches, held.log_bytes)}")

    def _problem(self, text: str) -> None:
        self._report.problem(f"{_name(self._stream)}: {text}")


def _check_payloads(read: Read, tables: Tables, limit: int, used: set[int], report: CheckReport) -> None:
    """Payloads that no batch and no stage id uses would stay for ever."""
    with read() as txn, txn.cursor(tables[PAYLOADS]) as cursor:
        for key in cursor.iternext(keys=True, values=False):
            number = number_of(key)
            if number >= limit:
                return
            report.payloads += 1
            if number not in used:
                report.problem(f"payload {number} belongs to no batch and no stage id")


# ---- stats


def measure_stats(path: Path, env: Environment, tables: Tables, txn: ReadTxn, reserve_bytes: int) -> Stats:
    form = format_of(read_fact(FORMAT, tables, txn))
    identity = identity_of(read_fact(IDENTITY, tables, txn))
    space = measure(path, env, tables, txn, reserve_bytes)
    streams = read_streams(tables, txn)
    staged = read_stage(tables, txn).values()
    return Stats(
        owner=StoreOwner(
            channel_type=form.channel_type,
            channel_instance=form.channel_instance,
            format_version=form.version,
            node_id=identity.node_id.hex(),
            incarnation=identity.incarnation,
            former_ids=[former.hex() for former in identity.former_ids],
            origin_batch=counters_of(read_fact(COUNTERS, tables, txn)).origin_batch,
        ),
        space=SpaceStats(
            file_bytes=space.file_bytes,
            live_bytes=space.live_bytes,
            map_bytes=space.map_bytes,
            available_bytes=space.available_bytes,
            is_nearly_full=space.is_nearly_full,
        ),
        content=ContentStats(
            batches=sum(record.batches for record in streams.values()),
            log_bytes=sum(record.log_bytes for record in streams.values()),
            deliveries=txn.stat(tables[DELIVERIES])["entries"],
            publishers=txn.stat(tables[PUBLISHERS])["entries"],
            staged=len(staged),
            staged_bytes=sum(entry.payload_bytes for entry in staged),
            schemas=txn.stat(tables[SCHEMAS])["entries"],
            roster=txn.stat(tables[ROSTER])["entries"],
        ),
        streams=[_stream_stats(stream, record) for stream, record in streams.items()],
        readers=[_reader_stats(reader, streams) for reader in read_readers(tables, txn).values()],
    )


def _stream_stats(stream: StreamId, record: StreamRecord) -> StreamStats:
    return StreamStats(
        origin=stream.origin.hex(),
        topic=stream.topic,
        low=record.low,
        next=record.next,
        batches=record.batches,
        bytes=record.log_bytes,
    )


def _reader_stats(reader: Reader, streams: dict[StreamId, StreamRecord]) -> ReaderStats:
    lags = (
        max(0, record.next - max(wanted, record.low))
        for stream, record in streams.items()
        if (wanted := reader.holds(stream)) is not None
    )
    return ReaderStats(
        name=reader.name,
        lease_until_ms=reader.lease_until_ms,
        lag_rows=sum(lags),
        cut_rows=sum(cut.next_sequence - cut.first_sequence for cut in reader.cuts),
    )


def _name(stream: StreamId) -> str:
    return f"topic {stream.topic!r} of {stream.origin.hex()}"
