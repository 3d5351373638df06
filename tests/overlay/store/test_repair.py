"""A damaged batch is written anew in its place, if it proves to be the same; whoever reads it reports the damage."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Damaged
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store.store import Store, StoreLimits
from m4cast.overlay.store.table import place_key, sequence_key
from m4cast.overlay.store.tables import FORMAT_VERSION, open_tables
from m4cast.overlay.store.tables.log import ENTRY_BYTES, LOG, PAYLOADS, entry_of
from m4cast.overlay.store.writer import Callbacks
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain
from tests.overlay.store.store_parts import CHANNEL, MIB, opened, received, synced

LIMITS = StoreLimits(map_bytes=16 * MIB)


@contextmanager
def with_damage(path: Path, batches: list[Batch], *, at: slice, first: int) -> Iterator[tuple[Store, list[Damaged]]]:
    """A store with these batches, of which one has other bytes at this place of its log entry, or of its payload."""
    with opened(path, limits=LIMITS) as store:
        synced(store, received(1, *batches))
    with lmdb.open(str(path), max_dbs=32, map_size=16 * MIB) as env:
        tables = open_tables(env, FORMAT_VERSION)
        with env.begin(write=True) as txn:
            place = place_key(1, first)
            value = bytearray(txn.get(place, db=tables[LOG]) or b"")
            number = entry_of(bytes(value)).payload_number
            if number:
                place, value = (
                    sequence_key(number),
                    bytearray(txn.get(sequence_key(number), db=tables[PAYLOADS]) or b""),
                )
            value[at] = bytes(byte ^ 0xFF for byte in value[at])
            txn.put(place, bytes(value), db=tables[PAYLOADS] if number else tables[LOG])
    reported: list[Damaged] = []
    callbacks = Callbacks(lambda _: None, lambda *_: None, lambda _: None, reported.append)
    store = Store.open(path, CHANNEL, callbacks, limits=LIMITS)
    try:
        yield store, reported
    finally:
        store.close()


PAYLOAD, CHECKSUM, PREFIX = slice(-5, -1), slice(ENTRY_BYTES, ENTRY_BYTES + 8), slice(0, 8)


@pytest.mark.parametrize("first", [1, 2, 3], ids=["first", "middle", "last"])
@pytest.mark.parametrize(("size", "at"), [(500, PAYLOAD), (500, CHECKSUM), (30_000, PAYLOAD)])
def test_a_damaged_batch_is_reported_and_repaired_in_place(tmp_path: Path, first: int, size: int, at: slice) -> None:
    batches = chain(3, size=size)
    stream = batches[0].stream
    with with_damage(tmp_path, batches, at=at, first=first) as (store, reported):
        deliveries = store.delivery_range()
        with pytest.raises(StoreError, match="damaged"):
            store.read_range(stream, first, 4, MIB)
        (damage,) = reported
        assert (damage.stream, damage.first_sequence, damage.next_sequence) == (stream, first, first + 1)
        assert batches[first - 1].checksum in damage.checksums
        before = store.held()
        synced(store, append_of(9, repairs=(batches[first - 1],)))
        assert store.read_range(stream, 1, 4, MIB) == tuple(batches)
        assert store.held() == before
        assert store.delivery_range() == deliveries
        assert store.check().problems == []
    with opened(tmp_path, limits=LIMITS) as store:
        assert store.read_range(stream, 1, 4, MIB) == tuple(batches)


def test_an_entry_whose_own_numbers_are_damaged_is_repaired(tmp_path: Path) -> None:
    batches = chain(3)
    with with_damage(tmp_path, batches, at=PREFIX, first=2) as (store, _):
        synced(store, append_of(9, repairs=(batches[1],)))
        assert store.sequence_at(batches[0].stream, 8) is None
        assert store.check().problems == []


def test_a_batch_that_proves_to_be_another_is_not_written(tmp_path: Path) -> None:
    batches = chain(3)
    with with_damage(tmp_path, batches, at=PAYLOAD, first=2) as (store, _):
        synced(store, append_of(9, repairs=(seal(replace(batches[1], payload=b"other rows", checksum=0)),)))
        with pytest.raises(StoreError, match="damaged"):
            store.read_range(batches[0].stream, 2, 4, MIB)


def test_what_is_kept_no_more_is_not_written_again(tmp_path: Path) -> None:
    batches = chain(3)
    with with_damage(tmp_path, batches, at=PAYLOAD, first=2) as (store, _):
        store.empty("t", 1).result()
        synced(
            store,
            append_of(9, repairs=(batches[1],)),
            append_of(10, repairs=tuple(chain(1, stream=StreamId(batches[0].stream.origin, "x")))),
        )
        assert store.streams() == {batches[0].stream: (4, 4)}
        assert store.check().problems == []


def test_what_is_sound_before_a_damaged_batch_is_read_and_the_damage_is_reported(tmp_path: Path) -> None:
    batches = chain(3)
    with with_damage(tmp_path, batches, at=PAYLOAD, first=2) as (store, reported):
        assert store.read_range(batches[0].stream, 1, 4, MIB) == (batches[0],)
        assert [(damage.first_sequence, damage.next_sequence) for damage in reported] == [(2, 3)]
