"""Selective streams in the store: batches anywhere, marks, registrations with their joins, and the later format."""

from pathlib import Path

import pytest

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    BeginKey,
    BeginRecord,
    DescriptorRecord,
    InsertBatch,
    MarksRecord,
    NoteSkip,
    ReadSelected,
    SpreadRecord,
    StoredWant,
    TopicDescriptor,
    Want,
    WantRecord,
    Write,
)
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.protocol.wire.selective import ProfileText, spread_extension
from m4cast.overlay.store.inspection import check, stats
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import Store
from m4cast.overlay.store.tables.selective import SELECTIVE_FORMAT
from m4cast.overlay.store.tables.topics import Keep
from tests.overlay.protocol.stream_parts import node_id
from tests.overlay.store.store_parts import opened, synced

STREAM = StreamId(node_id("o"), "orders")
LARGE = b"x" * 100_000


def batch(first: int, rows: int = 1, payload: bytes = b"rows") -> Batch:
    return seal(
        Batch(
            stream=STREAM,
            incarnation=1,
            first_sequence=first,
            row_count=rows,
            origin_batch=first,
            schema_id=1,
            published_at_ms=1_000 + first,
            publisher="",
            position="",
            part=0,
            parts=1,
            previous_checksum=first,
            payload=payload,
            extensions=(spread_extension(2),),
        )
    )


def inserted(*batches: Batch) -> list[Write]:
    return [InsertBatch(each, _delivery(each)) for each in batches]


def _delivery(each: Batch) -> Delivery:
    rows = (each.first_sequence, each.last_sequence)
    return Delivery(STREAM, *rows, each.published_at_ms, 5_000, 1, How.PUSHED, node_id("o"))


def write(store: Store, *writes: Write) -> None:
    synced(store, Append(1, writes))


def read(store: Store, first: int, following: int, bytes_max: int = 1 << 20) -> tuple[list[int], int, int, int]:
    found = store.selected.read(ReadSelected(7, STREAM, first, following, bytes_max))
    firsts = [each.first_sequence for each in found.batches]
    return firsts, found.read_next, found.low, found.checksum_before


def test_batches_go_in_anywhere_once_and_are_read_in_order(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, *inserted(batch(20, 5, LARGE), batch(3), batch(10, 2)), MarksRecord(STREAM, ((1, 0),)))
        write(store, *inserted(batch(22), batch(9, 2), batch(10, 2)))  # rows are there already
        assert store.streams() == {STREAM: (1, 25)}
        assert store.delivery_range() == (1, 4), "what was not written was not delivered"
        assert read(store, 1, 100) == ([3, 10, 20], 100, 1, 0)
        assert read(store, 4, 100, bytes_max=1) == ([10], 20, 1, batch(3).checksum)
        assert read(store, 11, 20)[0] == [10], "a batch is read whole"
        assert store.read_kept(STREAM, 20, 25, 1)[0].batch == batch(20, 5, LARGE)
    assert check(tmp_path).problems == []


def test_retention_raises_low_over_what_it_removed_and_no_further(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(Keep(bytes_max=1_000, age_ms_max=None))) as store:
        write(store, *inserted(batch(3, 2, LARGE), batch(1_000)), MarksRecord(STREAM, ((1, 0),)))
        assert store.trim(10_000).result(30) == [(STREAM, 5)]
        assert store.streams() == {STREAM: (5, 1_001)}
        write(store, NoteSkip(Skip(STREAM, 7, 8, SkipReason.EXPIRED, node_id("o"))))
        assert read(store, 1, 2_000) == ([1_000], 2_000, 9, 0)
    assert check(tmp_path).problems == []


def test_what_is_wanted_comes_back_and_joins_anew_under_a_new_id(tmp_path: Path) -> None:
    want = Want("w", "orders", ProfileText("sql", 1, "country = 'PL'"), 5, earliest=True)
    keeper = Want("k", "_keeps", None, 0, keeps=node_id("o"))
    dated = Want("d", "orders", None, 5, from_ms=3)
    placed = Want("p", "orders", None, 5, positions={node_id("o"): 2**62})
    runs = ((1, 4), (9, 2**63 - 1), (12, 0))
    made = TopicDescriptor("orders", 2, ("country",), 3, node_id("o"))
    begin = BeginKey("w", STREAM)
    with opened(tmp_path) as store:
        write(store, WantRecord("w", StoredWant(want, 4)), WantRecord("k", StoredWant(keeper, 5)))
        write(store, WantRecord("d", StoredWant(dated, 6)), WantRecord("p", StoredWant(placed, 7)))
        write(store, WantRecord("gone", StoredWant(want, 4)), BeginRecord(BeginKey("gone", STREAM), 7))
        write(store, WantRecord("gone", None), BeginRecord(BeginKey("gone", STREAM), None))
        write(store, MarksRecord(STREAM, runs), BeginRecord(begin, 17), DescriptorRecord("orders", made))
        write(store, SpreadRecord("own", 3))
    with opened(tmp_path) as store:
        found = store.recovered
        begun = {"d": StoredWant(dated, 6), "p": StoredWant(placed, 7)}
        assert found.of(WantRecord) == {"w": StoredWant(want, 4), "k": StoredWant(keeper, 5), **begun}
        assert (found.of(MarksRecord), found.of(BeginRecord)) == ({STREAM: runs}, {begin: 17})
        assert (found.of(DescriptorRecord), found.of(SpreadRecord)) == ({"orders": made}, {"own": 3})
        joins = [stored.join for stored in store.take_new_identity().of(WantRecord).values()]
        assert joins == [0] * 4, "nobody has heard of this id's registrations"


@pytest.mark.parametrize("record", [MarksRecord(STREAM, ((1, 0),)), SpreadRecord("own", 0), None])
def test_only_a_store_with_selective_streams_is_of_the_later_format(tmp_path: Path, record: Write | None) -> None:
    with opened(tmp_path):
        pass
    before = stats(tmp_path).owner.format_version
    with opened(tmp_path) as store:
        if record is not None:
            write(store, record)
    with opened(tmp_path):
        pass
    assert stats(tmp_path).owner.format_version == (before if record is None else SELECTIVE_FORMAT)
    assert before < SELECTIVE_FORMAT
