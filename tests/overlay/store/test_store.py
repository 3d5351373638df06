"""Everything that goes in comes out: after appends, after reopening, and as the simulated disk has it."""

import struct
import threading
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    PublisherRecord,
    PublisherState,
    Range,
    Recovered,
    Staged,
    StoredStream,
)
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.store.inspection import check
from m4cast.overlay.store.store import RosterSpan, Store, StoreLimits
from m4cast.overlay.store.tables import roster
from m4cast.overlay.store.tables.log import INLINE_BYTES_MAX
from m4cast.overlay.store.tables.meta import FORMAT
from tests.overlay.protocol.append_parts import append_of, deliveries_of
from tests.overlay.protocol.stream_parts import chain, entry, node_id, stream_id
from tests.overlay.store.store_parts import MIB, WAIT_S, Witness, from_stage, opened, received, synced


def own(store_id: NodeId, count: int, *, topic: str = "t", size: int = 10, after: Batch | None = None) -> list[Batch]:
    return chain(count, stream=StreamId(store_id, topic), size=size, after=after)


# ---- opening


def test_a_new_store_knows_nothing_and_has_an_id_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path / "a" / "b") as first, opened(tmp_path / "c") as second:
        assert first.recovered == Recovered(first.recovered.node_id, incarnation=1)
        assert len(first.recovered.node_id) == 16
        assert first.recovered.node_id != second.recovered.node_id


def test_every_opening_raises_the_incarnation(tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        with opened(tmp_path) as store:
            seen.append((store.recovered.node_id, store.recovered.incarnation))
    assert [incarnation for _, incarnation in seen] == [1, 2, 3]
    assert len({store_id for store_id, _ in seen}) == 1


def test_a_new_identity_follows_the_old_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        old = store.recovered.node_id
        batches = own(old, 3)
        synced(store, received(1, *batches))
        again = store.take_new_identity()
        assert again.node_id != old and again.former_ids == (old,)
        assert again.incarnation == 1 and again.origin_batch == 0
        assert again.streams == {batches[0].stream: StoredStream(1, 4, batches[-1].checksum)}
        later = own(again.node_id, 2)
        synced(store, received(2, *later))
    with opened(tmp_path) as store:
        assert store.recovered.node_id == again.node_id and store.recovered.former_ids == (old,)
        assert store.recovered.incarnation == 2 and store.recovered.origin_batch == 2


# ---- the same as the simulated disk


def appends_of_every_kind(me: NodeId) -> list[Append]:
    """A life of a store: own commits, received batches, skips, starts, stages taken, replaced and aborted, keys moved,
    used and removed, owners."""
    mine = own(me, 4)
    staged = [Staged("t", 1, 1, batch.payload) for batch in mine]
    other = chain(3, stream=stream_id("o", "u"), size=INLINE_BYTES_MAX + 1)
    skipped = stream_id("p", "t")
    after_skip = [seal(replace(b, first_sequence=b.first_sequence + 9)) for b in chain(1, stream=skipped)]
    started = stream_id("q", "t")
    state = PublisherState("17", (Range(mine[0].stream, 1, 2),), me, 1)
    return [
        received(1, mine[0]),
        append_of(2, batches=(mine[1],), publishers=(("key", state), ("other", PublisherState("x", ())))),
        append_of(3, stage=(("s3", staged[2]), ("s4", staged[3]), ("gone", Staged("t", 2, 1, b"abc")))),
        append_of(4, unstage=("gone",)),
        append_of(5, stage=(("s5", Staged("v", 2, 1, b"old")),)),
        append_of(6, stage=(("s5", Staged("v", 3, 1, b"new")),)),
        received(7, *other[:2]),
        append_of(8, batches=(from_stage(mine[2]), from_stage(mine[3])), unstage=("s3", "s4")),
        append_of(9, skips=(Skip(skipped, 1, 9, SkipReason.LOST, node_id("n")),)),
        append_of(10, batches=tuple(after_skip)),
        append_of(11, starts=((started, 100), (skipped, 5))),
        append_of(12, skips=(Skip(started, 100, 120, SkipReason.EXPIRED, node_id("n")),)),
        append_of(13, publishers=(("key", replace(state, position="18")),), batches=(other[2],)),
        append_of(14, skips=(Skip(other[0].stream, 4, 4, SkipReason.LOST, node_id("n")),)),
        append_of(
            15, owners=((mine[0].stream, "reports \u00e4"),), publishers=(("key", replace(state, owner="\u00f6")),)
        ),
        append_of(16, drop=("other", "never there"), publishers=(("key", replace(state, used_ms=7)),), up_ms=2**40),
        append_of(17, owners=((mine[0].stream, ""),), drop=("key",)),
    ]


@pytest.mark.parametrize("count", [0, 1, 3, 5, 6, 8, 9, 12, 13, 14, 15, 16, 17])
def test_the_store_recovers_what_the_simulated_disk_recovers(tmp_path: Path, count: int) -> None:
    with opened(tmp_path) as store:
        disk = Disk(store.recovered.node_id)
        disk.open()
        appends = appends_of_every_kind(store.recovered.node_id)[:count]
        disk.waiting = list(appends)
        disk.syncing = count
        disk.sync_done()
        disk.content.roster = {node_id("a"): entry("a"), node_id("b"): entry("b", leaving=True)}
        for append in appends:
            store.append(append)
        for told in disk.content.roster.values():
            store.save_roster(told, 5)
        synced(store)
        for stream in disk.content.logs:
            for first in (1, 2, 10, 100):
                for next_, bytes_max in ((2, 1), (99, 1), (99, INLINE_BYTES_MAX + 20), (99, 10**9)):
                    asked = (stream, first, next_, bytes_max)
                    assert store.read_range(*asked) == disk.read(*asked)
    with opened(tmp_path) as store:
        assert store.recovered == disk.open()
        assert store.check().problems == []


def test_publisher_keys_are_read_in_order_from_any_of_them_on(tmp_path: Path) -> None:
    states = {f"k{number}": PublisherState(str(number), (Range(stream_id(), 1, 2),), owner="a") for number in range(9)}
    with opened(tmp_path) as store:
        assert store.publishers("", 5) == []
        synced(store, received(1, *chain(1)), append_of(2, publishers=tuple(states.items())))
        assert dict(store.publishers("", 100)) == states
        assert [key for key, _ in store.publishers("k3", 2)] == ["k3", "k4"]
        assert [key for key, _ in store.publishers("k77", 2)] == ["k8"]
        assert store.publishers("l", 2) == []


def test_a_store_of_the_version_before_is_read_and_becomes_one_of_this_version(tmp_path: Path) -> None:
    """Version 3 wrote streams without an owner and publishers without owner and last use, as is done here by hand."""
    batch, key = chain(1)[0], b"a key"
    with opened(tmp_path) as store:
        me = store.recovered.node_id
        synced(store, received(1, batch), append_of(2, owners=((batch.stream, "new"),)))
    with lmdb.open(str(tmp_path), max_dbs=32, map_size=256 * MIB) as env, env.begin(write=True) as txn:
        meta, streams, publishers = (env.open_db(name, txn=txn) for name in (b"meta", b"streams", b"publishers"))
        txn.put(FORMAT, (txn.get(FORMAT, db=meta) or b"").replace(b'"version":4', b'"version":3'), db=meta)
        stream_key = batch.stream.origin + b"t"
        held = txn.get(stream_key, db=streams) or b""
        assert held.endswith(b"new")
        txn.put(stream_key, held.removesuffix(b"new"), db=streams)
        value = (
            struct.pack("<H16sQ", 4, me, 17) + b"at 5" + struct.pack("<IQQ", struct.unpack_from("<I", held)[0], 1, 2)
        )
        txn.put(key, value, db=publishers)
    state = PublisherState("at 5", (Range(batch.stream, 1, 2),), me, 17)
    assert check(tmp_path).problems == []
    with opened(tmp_path) as store:
        assert store.recovered.of(PublisherRecord) == {"a key": state}
        assert store.recovered.streams == {batch.stream: StoredStream(1, 2, batch.checksum)}
        assert store.stats().owner.format_version == 4
        assert store.publishers("", 1) == [("a key", state)]
        moved = replace(state, position="at 6", owner="b", used_ms=9)
        synced(store, append_of(3, publishers=(("a key", moved),)))
    with opened(tmp_path) as store:
        assert store.recovered.of(PublisherRecord) == {"a key": moved}


def test_a_stream_that_only_a_range_names_is_not_held(tmp_path: Path) -> None:
    state = PublisherState("1", (Range(stream_id(), 1, 2),), node_id("a"), 1)
    with opened(tmp_path) as store:
        synced(store, append_of(1, publishers=(("key", state),)))
    with opened(tmp_path) as store:
        assert store.recovered.of(PublisherRecord) == {"key": state}
        assert store.recovered.streams == {}
        synced(store, received(2, *chain(1)))
        assert store.check().problems == []


def test_a_roster_entry_is_replaced_by_a_later_one(tmp_path: Path) -> None:
    later = entry("a", 2)._replace(neighbours=(node_id("b"), node_id("c")))
    with opened(tmp_path) as store:
        store.save_roster(entry("a", 1), 10)
        store.save_roster(later, 20)
    with opened(tmp_path) as store:
        assert store.recovered.roster == (later,)
        assert store.roster_spans() == (
            RosterSpan(entry("a", 1), 10, 20, "restarted"),
            RosterSpan(later, 20),
        )


def test_an_incarnation_lasts_until_its_node_leaves(tmp_path: Path) -> None:
    moved = entry("a", 3)._replace(address="h:2")
    with opened(tmp_path) as store:
        store.save_roster(entry("a", 3), 10)
        store.save_roster(moved, 20)
        store.save_roster(moved._replace(leaving=True), 30)
        store.save_roster(entry("a", 4), 40)
        synced(store)
        assert store.roster_spans() == (
            RosterSpan(moved._replace(leaving=True), 10, 30, "left"),
            RosterSpan(entry("a", 4), 40),
        )


def test_a_node_is_not_among_the_others_under_any_of_its_identities(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = store.recovered.node_id
        store.save_roster(entry("a")._replace(node_id=first), 10)
        second = store.take_new_identity().node_id
        store.save_roster(entry("a")._replace(node_id=second), 20)
        store.save_roster(entry("b"), 20)
    with opened(tmp_path) as store:
        assert store.recovered.roster == (entry("b"),)
        assert {each.entry.node_id for each in store.roster_spans()} == {first, second, node_id("b")}


def test_incarnations_of_a_node_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "INCARNATIONS_MAX", 3)
    with opened(tmp_path) as store:
        for incarnation in range(1, 6):
            store.save_roster(entry("a", incarnation), incarnation)
        store.save_roster(entry("b", 1), 9)
        synced(store)
        kept = [(each.entry.name, each.entry.incarnation) for each in store.roster_spans()]
        assert sorted(kept) == [("a", 3), ("a", 4), ("a", 5), ("b", 1)]


def test_schemas_are_kept_by_their_id(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.save_schema(2**64 - 1, b"schema")
    with opened(tmp_path) as store:
        assert store.schema(2**64 - 1) == b"schema"
        assert store.schema(1) is None


# ---- reading


@pytest.mark.parametrize("size", [0, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, MIB])
def test_a_batch_comes_back_as_it_was_sealed(tmp_path: Path, size: int) -> None:
    batches = chain(3, size=size, rows=5)
    with opened(tmp_path) as store:
        synced(store, received(1, *batches))
        assert store.read_range(stream_id(), 1, 100, 10**9) == tuple(batches)
        assert store.read_range(stream_id(), 6, 7, 10**9) == tuple(batches[1:2])


def test_the_lows_of_some_streams_are_found_without_the_others(tmp_path: Path) -> None:
    one, other, absent = (stream_id(name) for name in "opq")
    with opened(tmp_path) as store:
        starts = append_of(1, starts=((one, 5), (other, 7)))
        synced(store, starts)
        assert store.lows([one, absent]) == {one: 5}
        assert store.lows([]) == {}


def test_a_range_that_is_not_there_is_empty(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        synced(store, received(1, *chain(2, rows=5)), received(2, *chain(1, stream=stream_id("p"))))
        assert store.read_range(stream_id("x"), 1, 9, 10**9) == ()
        assert store.read_range(stream_id(), 11, 99, 10**9) == (), "not yet"
        assert store.read_range(stream_id(), 1, 1, 10**9) == ()


def test_a_range_begins_with_the_batch_that_has_its_first_row(tmp_path: Path) -> None:
    batches = chain(2, rows=5)
    with opened(tmp_path) as store:
        synced(store, received(1, *batches))
        for first, expected in ((1, batches), (2, batches), (5, batches), (6, batches[1:]), (10, batches[1:])):
            assert store.read_range(stream_id(), first, 99, 10**9) == tuple(expected)


def test_a_delivery_is_recorded_with_facts_of_its_batch_and_a_skip_with_its_reason(tmp_path: Path) -> None:
    (batch,) = chain(1, rows=2, size=7)
    skip = Skip(batch.stream, 3, 9, SkipReason.LOST, node_id("n"))
    record = Delivery(batch.stream, 3, 9, 0, 50, 0, How.PULLED, None)
    with opened(tmp_path) as store:
        assert store.delivery_range() == (1, 1)
        synced(store, received(1, batch), append_of(2, skips=(skip,), deliveries=(record,)))
        of_batch, of_skip = store.read_deliveries(0, 9)
        assert (of_batch.reason, of_batch.payload_bytes, of_batch.checksum) == (None, 7, batch.checksum)
        assert of_batch.origin_batch == batch.origin_batch > 0
        assert (of_skip.delivery, of_skip.reason) == (record, SkipReason.LOST)
        assert store.delivery_range() == (1, 3)


def test_deliveries_are_read_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    first, second = chain(3, rows=2), chain(2, stream=stream_id("p", "u"))
    own_delivery = Delivery(second[1].stream, 2, 2, 7, 7, 0, How.PUBLISHED, None)
    with opened(tmp_path) as store:
        synced(store, received(1, first[0], second[0]), received(2, first[1]))
    with opened(tmp_path) as store:
        synced(store, append_of(3, batches=(second[1],), deliveries=(own_delivery,)))
        records = store.read_deliveries(0, 100)
        assert [record.number for record in records] == [1, 2, 3, 4]
        assert [record.incarnation for record in records] == [1, 1, 1, 2]
        assert tuple(record.delivery for record in records[:3]) == (
            *deliveries_of(received(1, first[0], second[0])),
            *deliveries_of(received(2, first[1])),
        )
        assert records[3].delivery == own_delivery
        assert store.read_deliveries(1, 2) == records[1:3]
        assert store.read_deliveries(4, 10) == ()


def test_a_sequence_is_found_by_time(tmp_path: Path) -> None:
    batches = [
        seal(replace(batch, published_at_ms=at))
        for batch, at in zip(chain(6, rows=10), (5, 5, 8, 9, 9, 20), strict=True)
    ]
    with opened(tmp_path) as store:
        synced(store, received(1, *chain(3, stream=stream_id("a"))), received(2, *batches))
        synced(store, received(3, *chain(3, stream=stream_id("z"))))
        found = {at: store.sequence_at(stream_id(), at) for at in (0, 5, 6, 9, 10, 20, 21)}
        assert found == {0: 1, 5: 1, 6: 21, 9: 31, 10: 51, 20: 51, 21: None}
        assert store.sequence_at(stream_id("x"), 0) is None


def test_others_read_while_the_writer_writes(tmp_path: Path) -> None:
    batches = chain(200, size=30_000)
    seen: list[int] = []
    errors: list[Exception] = []
    done = threading.Event()

    def read(store: Store) -> None:
        try:
            while not done.is_set() or not seen or seen[-1] < len(batches):
                found = store.read_range(stream_id(), 1, 1_000, 10**9)
                assert list(found) == batches[: len(found)]
                seen.append(len(found))
                store.read_deliveries(0, 1_000)
        except Exception as error:
            errors.append(error)

    with opened(tmp_path, limits=StoreLimits(map_bytes=64 * MIB, group_bytes_max=100_000)) as store:
        readers = [threading.Thread(target=read, args=(store,)) for _ in range(3)]
        for reader in readers:
            reader.start()
        for token, batch in enumerate(batches):
            store.append(received(token, batch))
        store.sync().result(WAIT_S)
        done.set()
        for reader in readers:
            reader.join(WAIT_S)
        assert not errors
        assert max(seen) == len(batches)


def test_a_closed_store_refuses_calls(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        pass
    with pytest.raises(StoreError, match="closed"):
        store.append(append_of(1))
    with pytest.raises(StoreError, match="closed"):
        store.read_range(stream_id(), 1, 2, 3)


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    witness = Witness()
    batches = chain(50, size=20_000)
    with opened(tmp_path, witness) as store:
        for token, batch in enumerate(batches):
            store.append(received(token, batch))
    assert witness.all()[-1] == ("durable", 49)
    with opened(tmp_path) as store:
        assert store.recovered.streams[stream_id()].next == 51


# ---- stage


def test_a_staged_payload_is_written_once(tmp_path: Path) -> None:
    """8 MB staged and committed take 8 MB of pages; a copy would take 16, and the file shows what was ever written."""
    size = 8 * MIB
    with opened(tmp_path) as store:
        [batch] = own(store.recovered.node_id, 1, size=size)
        synced(store, append_of(1, stage=(("s", Staged("t", 1, 1, batch.payload)),)))
        before = store.free_space()
        synced(store, append_of(2, batches=(from_stage(batch),), unstage=("s",)))
        after = store.free_space()
        assert after.live_bytes - before.live_bytes <= 8 * 4096
        assert after.file_bytes < size + MIB
        assert store.read_range(batch.stream, 1, 2, 1) == (batch,)
    with opened(tmp_path) as store:
        assert store.recovered.staged == {}
        assert store.read_range(batch.stream, 1, 2, 1) == (batch,)
        assert store.check().problems == []


def test_aborted_payload_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        empty = store.free_space().live_bytes
        synced(store, append_of(1, stage=(("s", Staged("t", 1, 1, b"x" * MIB)),)))
        assert store.free_space().live_bytes > empty + MIB
        synced(store, append_of(2, unstage=("s", "unknown")))
        assert store.free_space().live_bytes <= empty
        assert store.check().problems == []


def test_of_a_commit_only_what_was_staged_is_taken_from_the_stage(tmp_path: Path) -> None:
    """Ids stand for batches in order; a batch between them that was not staged brings its payload along."""
    with opened(tmp_path) as store:
        batches = own(store.recovered.node_id, 3, size=20_000)
        payloads = [replace_payload(batch, bytes([i]) * 20_000) for i, batch in enumerate(batches)]
        stage = tuple((f"s{i}", Staged("t", 1, 1, payloads[i].payload)) for i in (0, 2))
        numbered = (from_stage(payloads[0]), payloads[1], from_stage(payloads[2]))
        synced(store, append_of(1, stage=stage), append_of(2, batches=numbered, unstage=("s0", "s2")))
        assert store.read_range(batches[0].stream, 1, 9, 10**9) == tuple(payloads)
        assert store.stats().content.staged == 0
        assert [p for p in store.check().problems if "chain" not in p] == []


def replace_payload(batch: Batch, payload: bytes) -> Batch:
    return seal(replace(batch, payload=payload, checksum=0))


# ---- looking around


def test_a_batch_is_located_by_any_of_its_rows_or_the_gap_before_it(tmp_path: Path) -> None:
    first, second = stream_id("o", "t"), stream_id("p", "t")
    with opened(tmp_path) as store:
        assert store.locate(first, 1) is None
        before = chain(2, stream=first, rows=10)
        skip = Skip(first, 21, 30, SkipReason.LOST, node_id("n"))
        after = [seal(replace(batch, first_sequence=31)) for batch in chain(1, stream=first, rows=5)]
        others = chain(1, stream=second, rows=10)
        synced(store, received(1, *before), append_of(2, skips=(skip,)), received(3, *after), received(4, *others))
        found = {sequence: store.locate(first, sequence) for sequence in (1, 10, 11, 15, 20, 21, 30, 31, 35, 36)}
        assert found == {
            1: (1, 11),
            10: (1, 11),
            11: (11, 21),
            15: (11, 21),
            20: (11, 21),
            21: (31, 36),
            30: (31, 36),
            31: (31, 36),
            35: (31, 36),
            36: None,
        }
        assert store.locate(second, 10) == (1, 11)
        assert store.locate(second, 11) is None
        assert store.streams() == {first: (1, 36), second: (1, 11)}
        assert store.stream_count() == 2


def test_the_runs_of_a_schema_are_found_without_reading_payloads(tmp_path: Path) -> None:
    stream = stream_id()
    sizes = (10, INLINE_BYTES_MAX + 1)  # in the entry, and in a place of its own
    schemas = [5, 5, 2**64 - 1, 2**64 - 1, 5]
    batches: list[Batch] = []
    for number, schema_id in enumerate(schemas):
        (batch,) = chain(1, stream=stream, rows=2, size=sizes[number % 2], after=batches[-1] if batches else None)
        batches.append(seal(replace(batch, schema_id=schema_id)))
    with opened(tmp_path) as store:
        synced(store, received(1, *batches), received(2, *chain(1, stream=stream_id("z"))))
        assert store.schema_runs(stream, 1, 100) == [(1, 5), (5, 2**64 - 1), (9, 5)]
        assert store.schema_runs(stream, 4, 9) == [(5, 2**64 - 1)]
        assert store.schema_runs(stream_id("nobody"), 1, 100) == []
