"""Filtered reads at the door's reading machinery, without a network: one profile that 0.01 % or all of the rows match
(100 bytes and 4 columns), by rows and by summaries, beside an unfiltered read; 200 filtered tails of one topic beside
one; and what summaries cost those who publish."""

import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from m4cast.overlay import heap
from m4cast.overlay.client import Channel
from m4cast.overlay.door.access.rights import EVERYTHING, Caller
from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.quotas import ChunkQuota, FilterCpu
from m4cast.overlay.door.read.filtering import FilteredReading
from m4cast.overlay.door.read.inboxes import Inbox
from m4cast.overlay.door.read.live_matching import LiveMatching, TopicMatcher
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader
from m4cast.overlay.door.read.reading import Reading
from m4cast.overlay.door.read.stream_answer import Piece
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import Get
from m4cast.overlay.door.rows.catalogue import Catalogue
from m4cast.overlay.door.rows.summaries import FilteredColumns
from m4cast.overlay.profiles import Profile, parse, summarise
from m4cast.overlay.profiles.summary_bytes import encode
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Extension
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store.store import Store, StoreLimits
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch
from tests.overlay.door.read.test_reading import arrow_batch
from tests.overlay.door.served import serving
from tests.overlay.protocol.stream_parts import chain, stream_id
from tests.overlay.store.store_parts import opened, received

STREAM = stream_id("o", "t")
CHUNK_BYTES = 1 << 20
ROWS = 2_000_000
BATCH_ROWS = (10_000, 100)
TAILS = 200
TAIL_ROWS = 10_000_000
PUBLISHES = 30
WAIT_S = 600
FEW, ALL, NONE = parse("n BETWEEN 4708 AND 4715 AND kind = 'b'"), parse("n >= 0"), parse("n > 20000")
FEW_SHARE = (0.5e-4, 2e-4)
"""Of the rows; 1e-4 is expected: 8 of 10,000 numbers, 1 of 8 kinds."""
DIFFERENT_ROWS = 500_000
"""Rows that are made; more are the same once more."""


def measure(bench: Bench) -> None:
    heap.recycle()  # as nodes do
    for size in BATCH_ROWS:
        _one_profile(bench, size)
        _client(bench, size)
    _tails(bench)
    _publishing(bench)


class Door:
    """The reading machinery over a store."""

    def __init__(self, store: Store, until: int) -> None:
        self.frontiers = Frontiers()
        self.frontiers.advance({STREAM: until})
        catalogue, chunks = Catalogue(store), ChunkQuota(CHUNK_BYTES, 32 * CHUNK_BYTES)
        self.reading = Reading(store, catalogue, self.frontiers, chunks, timeout_s=1)
        portions = PortionReader(store, chunks)
        self.filtered = FilteredReading(
            portions, catalogue, self.frontiers, self.reading, Pacing(FilterCpu(), self.frontiers), FilteredColumns()
        )


@contextmanager
def _stored(rows: int, batch_rows: int) -> Iterator[Store]:
    """Rows on disk, with a summary of one column."""
    random = np.random.default_rng(1)
    contents = [_content(random, batch_rows) for _ in range(min(rows, DIFFERENT_ROWS) // batch_rows)]
    limits = StoreLimits(map_bytes=2 << 30)
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder), limits=limits) as store:
        for at in range(rows // batch_rows):
            content = contents[at % len(contents)]
            batch = arrow_batch(chain(1, stream=STREAM)[0], content, 1 + at * batch_rows)
            summary = Extension(SUMMARY_EXTENSION, must_understand=False, value=encode(summarise(content, [("n",)])))
            store.append(received(at + 1, seal(replace(batch, extensions=(summary,)))))
            if at % 1_000 == 0:
                store.sync().result(WAIT_S)
        store.sync().result(WAIT_S)
        yield store


def _content(random: np.random.Generator, count: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n": random.integers(0, 10_000, count),
            "amount": random.random(count) * 1_000,
            "kind": pa.array(["abcdefgh"[at] for at in random.integers(0, 8, count)]),
            "at": pa.array(random.integers(0, 10**15, count), pa.timestamp("us")),
            "payload": pa.array([bytes(100)] * count),
        }
    )


# ---- one profile


def _one_profile(bench: Bench, batch_rows: int) -> None:
    rows = bench.of(ROWS, 200_000)
    with _stored(rows, batch_rows) as store:
        door = Door(store, rows + 1)
        plain = Side("unfiltered", lambda watch: _read(door, None, rows, watch))
        what = f"batches of {batch_rows:,}"
        few = Side("where, 0.01 % match", lambda watch: _read(door, FEW, rows, watch))
        bench.compare(f"{what}: few rows match", "rows/s", few, plain, amount=rows)
        everything = Side("where, all match", lambda watch: _read(door, ALL, rows, watch))
        bench.compare(f"{what}: all rows match", "rows/s", everything, plain, amount=rows, bar=0.7)
        nothing = Side("where, summaries decide", lambda watch: _read(door, NONE, rows, watch))
        bench.compare(f"{what}: summaries decide", "rows/s", nothing, few, amount=rows)


def _read(door: Door, profile: Profile | None, rows: int, watch: Watch) -> None:
    get = Get(topics=("t",), start={}, end={STREAM: rows + 1}, profile=profile)
    caller = Caller("bench", EVERYTHING, lambda: False)
    with watch:
        if profile is None:
            _, pieces = door.reading.read(get, caller.is_cancelled)
        else:
            _, pieces = door.filtered.read(get, {"t": profile}, caller, {})
        count = sum(piece.num_rows for piece, _ in pieces)
    least, most = FEW_SHARE if profile is FEW else (0, 0) if profile is NONE else (1, 1)
    assert least <= count / rows <= most, f"{count} of {rows} rows"


def _client(bench: Bench, batch_rows: int) -> None:
    """Everything matches, through Flight, which costs both sides the same."""
    rows = bench.of(ROWS, 200_000)
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), 1) as served:
        channel = Channel(served.addresses)
        content = _content(random, batch_rows)
        for at in range(rows // batch_rows):  # with a key, small batches are not put together
            channel.publish("t", content, key="bench", expect=at or None, next=at + 1)
        end = channel.frontier("t")

        def read(where: str | None, watch: Watch) -> None:
            with watch:
                count = sum(batch.num_rows for batch in channel.read_batches("t", {}, end, where=where))
            assert count == rows

        bench.compare(
            f"batches of {batch_rows:,}: all rows match, by a client",
            "rows/s",
            Side("where, all match", lambda watch: read("n >= 0", watch)),
            Side("unfiltered", lambda watch: read(None, watch)),
            amount=rows,
            bar=0.7,
        )


# ---- publishing with summaries


def _publishing(bench: Bench) -> None:
    """10,000 rows at a time, which the client sends as two batches of at most 1 MiB, so that there are two summaries of
    two columns, a number and a text."""
    count = bench.of(PUBLISHES, 20)
    content = _content(np.random.default_rng(1), 10_000)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), 1) as served:
        channel = Channel(served.addresses)
        for topic in ("filtered", "plain"):
            channel.publish(topic, content)
        list(channel.read_batches("filtered", {}, channel.frontier("filtered"), where="n = 1 AND kind = 'a'"))

        def publish(topic: str, watch: Watch) -> float:
            with watch:
                began_s = time.process_time()
                for _ in range(count):
                    channel.publish(topic, content)
                return time.process_time() - began_s

        bench.compare(
            "publishing 10,000 rows at a time, client and node in one process",
            "CPU s",
            Side("with summaries", lambda watch: publish("filtered", watch)),
            Side("without", lambda watch: publish("plain", watch)),
            better="lower",
            bar=1.15,
        )


# ---- many tails


def _tails(bench: Bench) -> None:
    rows = bench.of(TAIL_ROWS, 1_000_000)
    with _stored(rows, 10_000) as store:
        bench.compare(
            f"{TAILS} filtered tails of one topic, 0.01 % match each",
            "CPU s",
            Side(f"{TAILS} tails", lambda watch: _followed(store, TAILS, rows, watch)),
            Side("one tail", lambda watch: _followed(store, 1, rows, watch)),
            better="lower",
            bar=3,
        )


def _followed(store: Store, tails: int, rows: int, watch: Watch) -> float:
    """CPU seconds until all tails have everything that matches of all rows but the first batch."""
    door = Door(store, 10_001)
    opened_count, level, is_over = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    live: LiveMatching = door.filtered._live
    original = live.open

    def counted(inbox: Inbox, seen: Frontiers) -> tuple[Mapping[str, TopicMatcher], Frontier]:
        found = original(inbox, seen)
        opened_count.release()
        return found

    live.open = counted  # type: ignore[method-assign]
    threads = []
    for number in range(tails):
        profile = parse(f"n = {4_900 + number}")  # in the middle, where summaries do not decide
        get = Get(topics=("t",), start="latest", end=None, profile=profile)
        _, pieces = door.filtered.read(get, {"t": profile}, Caller(f"{number}", EVERYTHING, is_over.is_set), {})
        threads.append(threading.Thread(target=_drain, args=(pieces, rows + 1, level)))
        threads[-1].start()
    for _ in range(tails):
        assert opened_count.acquire(timeout=WAIT_S)
    with watch:
        began_s = time.process_time()
        for until in range(20_001, rows + 2, 10_000):
            door.frontiers.advance({STREAM: until})
        for _ in range(tails):
            assert level.acquire(timeout=WAIT_S)
        cpu_s = time.process_time() - began_s
    is_over.set()
    for thread in threads:
        thread.join()
    return cpu_s


def _drain(pieces: Iterator[Piece], end: int, level: threading.Semaphore) -> None:
    with suppress(Refusal):  # it is cancelled in the end
        for _, where in pieces:
            if json.loads(where)["next"] == end:
                level.release()
