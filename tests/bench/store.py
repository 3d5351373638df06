"""MB/s that the store makes durable (fsync on, groups of 4 MB) and reads back, against a bare LMDB loop that writes as
many bytes in as large transactions, in the same run. Rounds alternate; each number is the median. "Kept": only the last
128 MB are, so that freed pages are used again; otherwise the file grows."""

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import lmdb

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.batch import Batch, Delivery, How, StoredPayload
from m4cast.overlay.protocol.effects import Append, Staged
from m4cast.overlay.protocol.frame import payload_checksum, seal
from m4cast.overlay.store.retention import Keep, Retention
from m4cast.overlay.store.store import Callbacks, Channel, Limits, Store

ROUNDS = 3
SIZES = (("1 MB", 1_000_000, 400_000_000), ("10 KB", 10_000, 100_000_000), ("1 KB", 1_000, 40_000_000))
GROUP_BYTES = 4_000_000
MAP_BYTES = 4 << 30
KEPT_BYTES = 128_000_000
STREAM = StreamId(NodeId(b"o" * 16), "default")
WAITING_BYTES = 32_000_000
"""What the node would have under way at most: the store is fed as a node feeds it."""


def measure() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, size, total in SIZES:
        rows += _compare_all(name, _chain(size, total // size), total)
    return rows


def _compare_all(name: str, batches: list[Batch], total: int) -> list[dict[str, object]]:
    growing = (lambda: _store(batches, None), lambda: _bare(batches, None))
    kept = (lambda: _store(batches, KEPT_BYTES), lambda: _bare(batches, KEPT_BYTES))
    staged = (lambda: _staged(batches), lambda: _bare(batches, None))
    rows = [_compare(f"append, {name}, growing", total, *growing)]
    if total > KEPT_BYTES:
        rows.append(_compare(f"append, {name}, kept", total, *kept))
        rows.append(_compare(f"stage and commit, {name}", total, *staged))
    return [*rows, _compare(f"read, {name}", total, lambda: _read(batches), lambda: _bare_read(batches))]


def _compare(what: str, total: int, ours: Callable[[], float], bare: Callable[[], float]) -> dict[str, object]:
    our_s, bare_s = [], []
    for _ in range(ROUNDS):
        bare_s.append(bare())
        our_s.append(ours())
    speed, reference = total / median(our_s) / 1e6, total / median(bare_s) / 1e6
    spread = f"{total / max(our_s) / 1e6:,.0f} .. {total / min(our_s) / 1e6:,.0f}"
    return {
        "what": what,
        "MB/s": f"{speed:,.0f}",
        "of rounds": spread,
        "bare LMDB MB/s": f"{reference:,.0f}",
        "ratio": f"{speed / reference:.2f}",
    }


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
    return Append(token, batches=(batch,), deliveries=(Delivery(STREAM, at, at, at, at, 1, How.PUSHED, STREAM.origin),))


# ---- the store


class _Feed:
    """Appends as a node does: as long as not too much is under way."""

    def __init__(self, folder: str, kept_bytes: int | None) -> None:
        self._changed = threading.Condition()
        self._durable = 0
        callbacks = Callbacks(self._on_durable, self._on_trouble, lambda reason: self._on_trouble(0, reason))
        retention = Retention(Keep(bytes_max=kept_bytes, age_ms_max=None))
        limits = Limits(map_bytes=MAP_BYTES, group_bytes_max=GROUP_BYTES)
        self.store = Store.open(folder, Channel("m4cast", "bench"), callbacks, limits=limits, retention=retention)

    def _on_durable(self, token: int) -> None:
        with self._changed:
            self._durable = token
            self._changed.notify()

    def _on_trouble(self, token: int, reason: str) -> None:
        raise AssertionError(reason)

    def wait(self, token: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._durable >= token)


def _store(batches: list[Batch], kept_bytes: int | None) -> float:
    window = max(1, WAITING_BYTES // len(batches[0].payload))
    trim_every = max(1, GROUP_BYTES * 4 // len(batches[0].payload))
    with tempfile.TemporaryDirectory() as folder:
        feed = _Feed(folder, kept_bytes)
        warm = len(batches) // 2 if kept_bytes else 0
        started = time.perf_counter()
        for token, batch in enumerate(batches, start=1):
            if token == warm:
                feed.wait(token - 1)
                started = time.perf_counter()
            feed.wait(token - window)
            feed.store.append(_append(token, batch))
            if kept_bytes and token % trim_every == 0:
                feed.store.trim(0)
        feed.wait(len(batches))
        elapsed = time.perf_counter() - started
        feed.store.close()
        return elapsed * len(batches) / (len(batches) - warm)


def _staged(batches: list[Batch]) -> float:
    """Every batch is staged first; a commit numbers eight of them."""
    with tempfile.TemporaryDirectory() as folder:
        feed = _Feed(folder, None)
        started = time.perf_counter()
        token = 0
        for at in range(0, len(batches), 8):
            commit = tuple(batches[at : at + 8])
            for batch in commit:
                token += 1
                stage = Staged(STREAM.topic, 1, 1, batch.payload)
                feed.store.append(Append(token, stage=((str(batch.first_sequence), stage),)))
            token += 1
            unstage = tuple(str(batch.first_sequence) for batch in commit)
            feed.wait(token - 32)
            feed.store.append(Append(token, batches=tuple(map(_from_stage, commit)), unstage=unstage))
        feed.wait(token)
        elapsed = time.perf_counter() - started
        feed.store.close()
        return elapsed


def _from_stage(batch: Batch) -> Batch:
    """As a commit gives it to the store: without the payload's bytes."""
    return replace(batch, payload=StoredPayload(len(batch.payload), payload_checksum(batch.payload)))


def _read(batches: list[Batch]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        feed = _Feed(folder, None)
        for token, batch in enumerate(batches, start=1):
            feed.store.append(_append(token, batch))
        feed.wait(len(batches))
        started = time.perf_counter()
        first = 1
        while found := feed.store.read_range(STREAM, first, 1 << 40, GROUP_BYTES):
            first = found[-1].next_sequence
        elapsed = time.perf_counter() - started
        feed.store.close()
        return elapsed


# ---- the reference


def _bare(
    batches: list[Batch], kept_bytes: int | None, read: Callable[[lmdb.Environment], None] | None = None
) -> float:
    """The payloads alone, as values under rising keys; what is expired goes in the same transaction."""
    size = len(batches[0].payload)
    group, kept = max(1, GROUP_BYTES // size), kept_bytes // size if kept_bytes else len(batches)
    with tempfile.TemporaryDirectory() as folder:
        env = lmdb.open(folder, map_size=MAP_BYTES)
        warm = len(batches) // 2 // group * group if kept_bytes else 0
        started = time.perf_counter()
        for at in range(0, len(batches), group):
            if at == warm:
                started = time.perf_counter()
            with env.begin(write=True) as txn:
                for number in range(at, min(at + group, len(batches))):
                    txn.put(number.to_bytes(8, "big"), batches[number].content)
                    if number >= kept:
                        txn.delete((number - kept).to_bytes(8, "big"))
        if read is not None:
            started = time.perf_counter()
            read(env)
        elapsed = time.perf_counter() - started
        env.close()
        return elapsed * len(batches) / (len(batches) - warm)


def _bare_read(batches: list[Batch]) -> float:
    def read(env: lmdb.Environment) -> None:
        with env.begin() as txn:
            for _, value in txn.cursor():
                assert len(value) == len(batches[0].payload)

    return _bare(batches, None, read)
