"""MB/s that the store makes durable (fsync on, groups of 4 MB) and reads back, against bare loops that write as many
bytes in as large transactions: LMDB, SQLite (WAL, synchronous=FULL), and a plain file with fdatasync. "Kept": only
the last 128 MB are, so that freed pages are used again; otherwise the file grows."""

import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import lmdb

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import Append, Staged
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Payload, StoredPayload
from m4cast.overlay.protocol.wire.frame import payload_checksum, seal
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import Callbacks, ChannelName, Store, StoreLimits
from m4cast.overlay.store.tables.topics import Keep
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch
from tests.overlay.protocol.append_parts import append_of

ROUNDS = 3
SIZES = (("1 MB", 1_000_000, 400_000_000), ("10 KB", 10_000, 100_000_000), ("1 KB", 1_000, 40_000_000))
GROUP_BYTES = 4_000_000
MAP_BYTES = 4 << 30
KEPT_BYTES = 128_000_000
STREAM = StreamId(NodeId(b"o" * 16), "default")
WAITING_BYTES = 32_000_000
"""What the node would have under way at most: the store is fed as a node feeds it."""
Work = Callable[[list[Batch], Watch], None]


def measure(bench: Bench) -> None:
    for name, size, total in SIZES[: bench.of(3, 1)]:
        batches = _chain(size, total // size)
        references = {"bare LMDB": _bare, "SQLite, WAL": _sqlite, "plain file": _plain}
        _compare(bench, f"append, {name}, growing", batches, _store, references)
        if total > KEPT_BYTES:
            _compare(bench, f"append, {name}, kept", batches, _store_kept, {"bare LMDB": _bare_kept}, share=0.5)
            _compare(bench, f"stage and commit, {name}", batches, _staged, {"bare LMDB": _bare})
        references = {"bare LMDB": _bare_read, "SQLite, WAL": _sqlite_read, "plain file": _plain_read}
        _compare(bench, f"read, {name}", batches, _read, references)


def _compare(
    bench: Bench, what: str, batches: list[Batch], ours: Work, references: Mapping[str, Work], share: float = 1.0
) -> None:
    """`share` of the bytes is written while the watch runs."""
    mb = len(batches) * len(batches[0].payload) * share / 1e6

    def side(name: str, work: Work) -> Side:
        return Side(name, lambda watch: work(batches, watch))

    references_sides = (side(name, work) for name, work in references.items())
    bench.compare(what, "MB/s", side("m4cast", ours), *references_sides, amount=mb, gb=mb / 1e3, rounds=ROUNDS)


def _chain(size: int, count: int) -> list[Batch]:
    payload = bytes(size)
    batches: list[Batch] = []
    checksum = 0
    for number in range(1, count + 1):
        batch = Batch(STREAM, 1, number, 1, number, 1, number, "", "", 0, 1, checksum, payload)
        batches.append(seal(batch))
        checksum = batches[-1].checksum
    return batches


def _append(token: int, batch: Batch) -> Append:
    at = batch.first_sequence
    return append_of(
        token, batches=(batch,), deliveries=(Delivery(STREAM, at, at, at, at, 1, How.PUSHED, STREAM.origin),)
    )


# ---- the store


class _Feed:
    """Appends as a node does: as long as not too much is under way."""

    def __init__(self, folder: str, kept_bytes: int | None) -> None:
        self._changed = threading.Condition()
        self._durable = 0
        callbacks = Callbacks(self._on_durable, self._on_trouble, lambda reason: self._on_trouble(0, reason))
        retention = Retention(Keep(bytes_max=kept_bytes, age_ms_max=None))
        limits = StoreLimits(map_bytes=MAP_BYTES, group_bytes_max=GROUP_BYTES)
        self.store = Store.open(folder, ChannelName("m4cast", "bench"), callbacks, limits=limits, retention=retention)

    def _on_durable(self, token: int) -> None:
        with self._changed:
            self._durable = token
            self._changed.notify()

    def _on_trouble(self, token: int, reason: str) -> None:
        raise AssertionError(reason)

    def wait(self, token: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._durable >= token)


@contextmanager
def _feed(kept_bytes: int | None) -> Iterator[_Feed]:
    with tempfile.TemporaryDirectory() as folder:
        feed = _Feed(folder, kept_bytes)
        yield feed
        feed.store.close()


def _store(batches: list[Batch], watch: Watch) -> None:
    window = max(1, WAITING_BYTES // len(batches[0].payload))
    with _feed(None) as feed, watch:
        for token, batch in enumerate(batches, start=1):
            feed.wait(token - window)
            feed.store.append(_append(token, batch))
        feed.wait(len(batches))


def _store_kept(batches: list[Batch], watch: Watch) -> None:
    window = max(1, WAITING_BYTES // len(batches[0].payload))
    trim_every = max(1, GROUP_BYTES * 4 // len(batches[0].payload))
    with _feed(KEPT_BYTES) as feed:

        def write(first: int, last: int) -> None:
            for token in range(first, last + 1):
                feed.wait(token - window)
                feed.store.append(_append(token, batches[token - 1]))
                if token % trim_every == 0:
                    feed.store.trim(0)
            feed.wait(last)

        write(1, len(batches) // 2)
        with watch:
            write(len(batches) // 2 + 1, len(batches))


def _staged(batches: list[Batch], watch: Watch) -> None:
    """Every batch is staged first; a commit numbers eight of them."""
    with _feed(None) as feed, watch:
        token = 0
        for at in range(0, len(batches), 8):
            commit = tuple(batches[at : at + 8])
            for batch in commit:
                token += 1
                stage = Staged(STREAM.topic, 1, 1, batch.payload)
                feed.store.append(append_of(token, stage=((str(batch.first_sequence), stage),)))
            token += 1
            unstage = tuple(str(batch.first_sequence) for batch in commit)
            feed.wait(token - 32)
            feed.store.append(append_of(token, batches=tuple(map(_from_stage, commit)), unstage=unstage))
        feed.wait(token)


def _from_stage(batch: Batch) -> Batch:
    """A batch as a commit gives it to the store: without the payload's bytes."""
    return replace(batch, payload=StoredPayload(len(batch.payload), payload_checksum(batch.payload)))


def _read(batches: list[Batch], watch: Watch) -> None:
    with _feed(None) as feed:
        for token, batch in enumerate(batches, start=1):
            feed.store.append(_append(token, batch))
        feed.wait(len(batches))
        with watch:
            first = 1
            while found := feed.store.read_range(STREAM, first, 1 << 40, GROUP_BYTES):
                first = found[-1].next_sequence
        assert first == len(batches) + 1


# ---- the references: the payloads alone, under rising keys


def _groups(batches: list[Batch]) -> Iterator[list[tuple[int, Payload]]]:
    size = max(1, GROUP_BYTES // len(batches[0].payload))
    for at in range(0, len(batches), size):
        yield [(number, batches[number].content) for number in range(at, min(at + size, len(batches)))]


def _write_bare(env: lmdb.Environment, group: list[tuple[int, Payload]], kept: int) -> None:
    """Expired keys are removed in the same transaction."""
    with env.begin(write=True) as txn:
        for number, content in group:
            txn.put(number.to_bytes(8, "big"), content)
            if number >= kept:
                txn.delete((number - kept).to_bytes(8, "big"))


def _bare(batches: list[Batch], watch: Watch) -> None:
    with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, map_size=MAP_BYTES) as env, watch:
        for group in _groups(batches):
            _write_bare(env, group, len(batches))


def _bare_kept(batches: list[Batch], watch: Watch) -> None:
    kept, half = KEPT_BYTES // len(batches[0].payload), len(batches) // 2
    with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, map_size=MAP_BYTES) as env:
        groups = list(_groups(batches))
        for group in (group for group in groups if group[0][0] < half):
            _write_bare(env, group, kept)
        with watch:
            for group in (group for group in groups if group[0][0] >= half):
                _write_bare(env, group, kept)


def _bare_read(batches: list[Batch], watch: Watch) -> None:
    with tempfile.TemporaryDirectory() as folder, lmdb.open(folder, map_size=MAP_BYTES) as env:
        for group in _groups(batches):
            _write_bare(env, group, len(batches))
        with watch, env.begin() as txn:
            for _, value in txn.cursor():
                assert len(value) == len(batches[0].payload)


@contextmanager
def _database() -> Iterator[sqlite3.Connection]:
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(Path(folder) / "log.db", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, content BLOB)")
        yield database
        database.close()


def _write_rows(database: sqlite3.Connection, batches: list[Batch]) -> None:
    for group in _groups(batches):
        database.execute("BEGIN")
        database.executemany("INSERT INTO log VALUES (?, ?)", group)
        database.execute("COMMIT")


def _sqlite(batches: list[Batch], watch: Watch) -> None:
    with _database() as database, watch:
        _write_rows(database, batches)


def _sqlite_read(batches: list[Batch], watch: Watch) -> None:
    with _database() as database:
        _write_rows(database, batches)
        with watch:
            for (content,) in database.execute("SELECT content FROM log ORDER BY number"):
                assert len(content) == len(batches[0].payload)


def _write_file(file: int, batches: list[Batch]) -> None:
    for group in _groups(batches):
        os.write(file, b"".join(content for _, content in group))
        os.fdatasync(file)


def _plain(batches: list[Batch], watch: Watch) -> None:
    with tempfile.TemporaryFile() as file, watch:
        _write_file(file.fileno(), batches)


def _plain_read(batches: list[Batch], watch: Watch) -> None:
    with tempfile.TemporaryFile() as file:
        _write_file(file.fileno(), batches)
        file.seek(0)
        with watch:
            while file.read(len(batches[0].payload)):
                pass
