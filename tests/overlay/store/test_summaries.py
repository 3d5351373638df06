"""Summaries of batches are read without their payloads, whole or damaged, in every store that there is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Staged
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION, Batch, Delivery, Extension, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store.inspection import stats
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import SummarisedBatch
from m4cast.overlay.store.table import Tables, WriteTxn, place_key
from m4cast.overlay.store.tables import FORMAT_VERSION, open_tables
from m4cast.overlay.store.tables.log import INLINE_BYTES_MAX, LOG, PAYLOADS
from m4cast.overlay.store.tables.meta import FORMAT, META, format_of
from m4cast.overlay.store.tables.topics import Keep
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, node_id, stream_id
from tests.overlay.store import kept_store
from tests.overlay.store.store_parts import MIB, WAIT_S, from_stage, opened, received, synced

STREAM = stream_id()
LARGE = INLINE_BYTES_MAX + 1
SIZES = pytest.mark.parametrize("size", [10, LARGE], ids=["payload in the entry", "payload in a place of its own"])


def summary(value: bytes) -> Extension:
    return Extension(SUMMARY_EXTENSION, False, value)


def summarised(
    *extensions: Sequence[Extension], size: int = 10, stream: StreamId = STREAM, after: Batch | None = None
) -> list[Batch]:
    """Batches of ten rows with these extensions."""
    batches: list[Batch] = []
    for each in extensions:
        (batch,) = chain(1, stream=stream, rows=10, size=size, after=after)
        after = seal(replace(batch, extensions=tuple(each)))
        batches.append(after)
    return batches


@contextmanager
def writing(path: Path) -> Iterator[tuple[Tables, WriteTxn]]:
    """The file of a store that nobody has open, to change it by hand."""
    with lmdb.open(str(path), max_dbs=32, map_size=16 * MIB) as env:
        tables = open_tables(env, FORMAT_VERSION)
        with env.begin(write=True) as txn:
            yield tables, txn


def change_entry(path: Path, first: int, change: Callable[[bytes], bytes]) -> None:
    """Change the log entry of the batch that begins here, in the first stream of the store."""
    with writing(path) as (tables, txn):
        value = txn.get(place_key(1, first), db=tables[LOG])
        assert value is not None
        txn.put(place_key(1, first), change(value), db=tables[LOG])


@SIZES
def test_batches_are_listed_with_their_summaries(tmp_path: Path, size: int) -> None:
    batches = summarised([summary(b"one")], [], [Extension(7, False, b"other"), summary(b"three")], size=size)
    others = [*chain(1, stream=stream_id("a"), rows=25), *chain(1, stream=stream_id("z"), rows=25)]
    with opened(tmp_path) as store:
        synced(store, received(1, others[0]), received(2, *batches), received(3, others[1]))
        listed = [
            SummarisedBatch(1, 11, size, b"one"),
            SummarisedBatch(11, 21, size, None),
            SummarisedBatch(21, 31, size, b"three"),
        ]
        assert store.summaries(STREAM, 1, 31, 100) == listed
        assert store.summaries(STREAM, 1, 10_000, 2) == listed[:2]
        assert store.summaries(STREAM, 10, 11, 100) == listed[:1]
        assert store.summaries(STREAM, 10, 12, 100) == listed[:2]
        assert store.summaries(STREAM, 11, 21, 100) == listed[1:2]
        assert store.summaries(STREAM, 30, 99, 100) == listed[2:]
        assert store.summaries(STREAM, 31, 99, 100) == []
        assert store.summaries(stream_id("a"), 26, 99, 100) == []
        assert store.summaries(stream_id("z"), 5, 6, 100) == [SummarisedBatch(1, 26, 10, None)]
        assert store.summaries(stream_id("nobody"), 1, 99, 100) == []


def test_a_skip_is_a_hole_between_batches(tmp_path: Path) -> None:
    before, skipped, after = summarised([summary(b"1")], [], [summary(b"3")])
    skip = Skip(STREAM, skipped.first_sequence, skipped.last_sequence, SkipReason.EXPIRED, node_id("m"))
    with opened(tmp_path) as store:
        synced(store, received(1, before), append_of(2, skips=(skip,)), received(3, after))
        assert [batch[:2] for batch in store.summaries(STREAM, 1, 99, 100)] == [(1, 11), (21, 31)]
        assert [batch[:2] for batch in store.summaries(STREAM, 15, 99, 100)] == [(21, 31)]
        rows = skipped.first_sequence, skipped.last_sequence
        delivery = Delivery(STREAM, *rows, 7, 8, 1, How.FILLED, node_id("n"))
        synced(store, append_of(4, fills=(skipped,), deliveries=(delivery,)))
        assert [batch.summary for batch in store.summaries(STREAM, 1, 99, 100)] == [b"1", None, b"3"]


@SIZES
def test_no_payload_is_read(tmp_path: Path, size: int) -> None:
    """The payloads are cut off the file, and nobody notices."""
    with opened(tmp_path) as store:
        synced(store, received(1, *summarised([summary(b"one")], [], size=size)))
        listed = store.summaries(STREAM, 1, 99, 100)
    with writing(tmp_path) as (tables, txn):
        txn.drop(tables[PAYLOADS], delete=False)
    for first in (1, 11) if size < LARGE else ():
        change_entry(tmp_path, first, lambda value: value[:-size])
    with opened(tmp_path) as store:
        assert store.summaries(STREAM, 1, 99, 100) == listed


def test_extensions_that_cannot_be_told_apart_are_no_summary(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        synced(store, received(1, *summarised([summary(b"one"), summary(b"two")], [summary(b"")])))
        assert [batch.summary for batch in store.summaries(STREAM, 1, 99, 100)] == [None, b""]
    # The length of the second one's summary, which lies before a payload of ten bytes.
    change_entry(tmp_path, 11, lambda value: value[:-12] + b"\xff\xff" + value[-10:])
    with opened(tmp_path) as store:
        assert [batch.summary for batch in store.summaries(STREAM, 1, 99, 100)] == [None, None]


@SIZES
def test_retention_removes_summaries_with_their_batches(tmp_path: Path, size: int) -> None:
    retention = Retention(Keep(bytes_max=2 * size + 1_000, age_ms_max=None))
    with opened(tmp_path, retention=retention) as store:
        synced(store, received(1, *summarised(*[[summary(b"x" * 400)]] * 4, size=size)))
        before = store.stats().content.log_bytes
        store.trim(1_000).result(WAIT_S)
        left = store.summaries(STREAM, 1, 99, 100)
        assert [batch.first_sequence for batch in left] == [31], "two would fit without their summaries"
        assert store.stats().content.log_bytes == before * len(left) // 4
        store.empty(STREAM.topic, 1_000).result(WAIT_S)
        assert store.summaries(STREAM, 1, 99, 100) == []
        assert store.check().problems == []
    assert stats(tmp_path).content.log_bytes == 0


def test_what_was_staged_keeps_its_summary(tmp_path: Path) -> None:
    (batch,) = summarised([summary(b"staged")], size=100)
    staged = Staged(batch.stream.topic, batch.row_count, batch.schema_id, batch.payload, extensions=batch.extensions)
    with opened(tmp_path) as store:
        synced(store, append_of(1, stage=(("s", staged),)))
        synced(store, append_of(2, batches=(from_stage(batch),), unstage=("s",)))
        assert store.summaries(STREAM, 1, 99, 100) == [SummarisedBatch(1, 11, 100, b"staged")]
        assert store.read_range(STREAM, 1, 11, MIB) == (batch,)


def test_a_repaired_batch_has_its_summary_again(tmp_path: Path) -> None:
    (batch,) = summarised([summary(b"damaged soon")], size=LARGE)
    with opened(tmp_path) as store:
        synced(store, received(1, batch))
    change_entry(tmp_path, 1, lambda value: value[:-4] + b"!!!!")
    with opened(tmp_path) as store:
        assert [found.summary for found in store.summaries(STREAM, 1, 99, 1)] == [b"damaged !!!!"]
        assert store.check().problems
        synced(store, append_of(2, repairs=(batch,)))
        assert [found.summary for found in store.summaries(STREAM, 1, 99, 1)] == [b"damaged soon"]
        assert store.check().problems == []


@pytest.mark.parametrize("version", [3, 4])
def test_a_store_from_before_summaries_has_none_and_takes_them(tmp_path: Path, version: int) -> None:
    kept_store.unpack(tmp_path)
    with writing(tmp_path) as (tables, txn):
        form = format_of(txn.get(FORMAT, db=tables[META]) or b"")
        txn.put(FORMAT, replace(form, version=version).to_bytes(), db=tables[META])
    with opened(tmp_path) as store:
        for stream, (low, until) in store.streams().items():
            assert all(batch.summary is None for batch in store.summaries(stream, low, until, 100))
        (last,) = store.read_range(kept_store.LATE, 42, 43, MIB)
        (batch,) = summarised([summary(b"new")], stream=kept_store.LATE, after=last)
        synced(store, received(100, batch))
        found = store.summaries(kept_store.LATE, 41, 99, 100)
        assert [each.summary for each in found] == [None, None, b"new"]
        assert store.check().problems == []
    assert stats(tmp_path).owner.format_version == FORMAT_VERSION
