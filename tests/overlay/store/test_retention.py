"""Retention: what is removed, what readers hold and for how long; and that the file stops growing."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Staged, StoredStream
from m4cast.overlay.protocol.wire.batch import TABLE_EXTENSION, Batch, Extension, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.store import retention
from m4cast.overlay.store.log import Log
from m4cast.overlay.store.retention import Retention, Trim
from m4cast.overlay.store.store import Store, StoreLimits
from m4cast.overlay.store.table import WriteTxn
from m4cast.overlay.store.tables.log import INLINE_BYTES_MAX
from m4cast.overlay.store.tables.readers import CUTS_MAX, Cut, Reader
from m4cast.overlay.store.tables.topics import DAY_MS, Keep
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, node_id, stream_id
from tests.overlay.store.store_parts import MIB, WAIT_S, from_stage, opened, received, synced

SIZE = 1_000
BODY = len(chain(1, size=SIZE)[0].payload) + 105
"""About the bytes that a batch of these tests counts: a little more than it has."""
ONE, TWO = stream_id("o"), stream_id("p")


def dated(times: Iterable[int], stream: StreamId = ONE, size: int = SIZE) -> list[Batch]:
    """A stream with one batch of one row at each of these times."""
    batches: list[Batch] = []
    for at_ms in times:
        [batch] = chain(1, stream=stream, size=size, after=batches[-1] if batches else None)
        batches.append(seal(replace(batch, published_at_ms=at_ms, checksum=0)))
    return batches


def trimmed(store: Store, now_ms: int) -> dict[StreamId, int]:
    return dict(store.trim(now_ms).result(WAIT_S))


def lows(store: Store) -> list[int]:
    return [stream.low for stream in sorted(store.stats().streams, key=lambda stream: stream.origin)]


# ---- limits


def test_nothing_is_removed_within_the_limits(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(Keep(bytes_max=10 * BODY, age_ms_max=100))) as store:
        synced(store, received(1, *dated(range(10))))
        assert trimmed(store, 100) == {}
        assert lows(store) == [1]


def test_rows_of_a_clock_that_is_far_behind_are_kept_for_a_day(tmp_path: Path) -> None:
    """The rows were too old by that clock when they arrived."""
    with opened(tmp_path, retention=Retention(Keep(age_ms_max=7 * DAY_MS))) as store:
        came_ms = 100 * DAY_MS
        synced(store, received(1, *dated((1, 2)), at_ms=came_ms))
        assert trimmed(store, came_ms + DAY_MS) == {}
        assert trimmed(store, came_ms + DAY_MS + 1) == {ONE: 3}


def test_rows_of_a_clock_that_is_ahead_are_as_old_as_their_arrival(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(Keep(age_ms_max=7 * DAY_MS))) as store:
        synced(store, received(1, *dated((1000 * DAY_MS, 1001 * DAY_MS)), at_ms=DAY_MS))
        assert trimmed(store, 8 * DAY_MS) == {}
        assert trimmed(store, 8 * DAY_MS + 1) == {ONE: 3}


def test_rows_that_came_while_the_clock_here_was_ahead_are_as_old_as_they_say(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(Keep(age_ms_max=7 * DAY_MS))) as store:
        synced(store, received(1, *dated((DAY_MS, 2 * DAY_MS)), at_ms=400 * DAY_MS))
        assert trimmed(store, 8 * DAY_MS) == {}
        assert trimmed(store, 9 * DAY_MS) == {ONE: 2}


def test_rows_older_than_the_age_are_removed(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(Keep(age_ms_max=100))) as store:
        batches = dated(range(0, 100, 10))
        synced(store, received(1, *batches))
        assert trimmed(store, 150) == {ONE: 6}
        assert store.read_range(ONE, 1, 99, 10**9) == ()
        assert store.read_range(ONE, 6, 99, 10**9) == tuple(batches[5:])
        assert trimmed(store, 150) == {}
        assert trimmed(store, 1_000) == {ONE: 11}
        assert store.check().problems == []
        synced(store, received(2, *chain(1, after=batches[-1])))
    with opened(tmp_path) as store:
        assert (store.recovered.streams[ONE].low, store.recovered.streams[ONE].next) == (11, 12)


def test_the_oldest_of_a_topic_go_first_whichever_stream_they_are_in(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(Keep(bytes_max=7 * BODY, age_ms_max=None))) as store:
        synced(store, received(1, *dated((2, 3, 7, 8), ONE)), received(2, *dated((1, 4, 5, 6), TWO)))
        assert trimmed(store, 9) == {TWO: 2}
        store.retention = Retention(Keep(bytes_max=4 * BODY, age_ms_max=None))
        assert trimmed(store, 9) == {ONE: 3, TWO: 3}
        assert lows(store) == [3, 3]


def test_topics_have_limits_of_their_own(tmp_path: Path) -> None:
    kept = Retention(Keep(age_ms_max=100), {"u": Keep(age_ms_max=10), "v": Keep(age_ms_max=None)})
    streams = [stream_id("o", topic) for topic in "tuv"]
    with opened(tmp_path, retention=kept) as store:
        for token, stream in enumerate(streams):
            synced(store, received(token, *dated((0, 50, 95), stream)))
        assert trimmed(store, 101) == {streams[0]: 2, streams[1]: 3}


def test_a_topic_keeps_what_was_set_for_it_also_after_a_restart(tmp_path: Path) -> None:
    nothing = Keep(bytes_max=0, age_ms_max=0, hold_bytes_max=0, hold_ms_max=0)
    other = stream_id("o", "u")
    with opened(tmp_path) as store:
        synced(store, received(1, *dated(range(3))), received(2, *dated(range(3), other)))
        store.set_keep("u", nothing).result(WAIT_S)
    with opened(tmp_path) as store:
        assert store.keeps() == {"u": nothing}
        store.set_reader("r", {other: 1}, lease_until_ms=100).result(WAIT_S)
        assert trimmed(store, 5) == {other: 4}
        store.set_keep("u", None).result(WAIT_S)
        assert store.keeps() == {}


def test_many_streams_are_looked_at_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP_STREAMS", 2)
    streams = [stream_id("o", f"t{i}") for i in range(10)]
    with opened(tmp_path, retention=Retention(Keep(bytes_max=0))) as store:
        for token, stream in enumerate(streams):
            synced(store, received(token, *dated((1, 2), stream)))
        before = store._env.info()["last_txnid"]
        assert trimmed(store, 5) == dict.fromkeys(streams, 3)
        assert store._env.info()["last_txnid"] == before + 5


def test_a_round_reads_nothing_of_streams_that_are_within_their_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[StreamId] = []
    first = Trim._first

    def counted(self: Trim, stream: StreamId, txn: WriteTxn, log: Log, *age: int | None) -> object:
        read.append(stream)
        return first(self, stream, txn, log, *age)

    monkeypatch.setattr(Trim, "_first", counted)

    def read_by_a_trim(store: Store, now_ms: int, lows: dict[StreamId, int]) -> set[StreamId]:
        read.clear()
        assert trimmed(store, now_ms) == lows
        return set(read)

    with opened(tmp_path, retention=Retention(Keep(age_ms_max=100))) as store:
        ones = dated((50, 60), ONE)
        synced(store, received(1, *ones), received(2, *dated((70,), TWO)))
        assert read_by_a_trim(store, 100, {}) == {ONE, TWO}
        assert read_by_a_trim(store, 120, {}) == set()
        assert read_by_a_trim(store, 155, {ONE: 2}) == {ONE, TWO}
        assert read_by_a_trim(store, 156, {}) == {ONE}, "its first batch is another one now"
        assert read_by_a_trim(store, 1_000, {ONE: 3, TWO: 2}) == {ONE, TWO}
        assert read_by_a_trim(store, 1_001, {}) == set(), "they are empty"
        [later] = chain(1, stream=ONE, size=SIZE, after=ones[-1])
        synced(store, received(3, seal(replace(later, published_at_ms=1_000, checksum=0))))
        assert read_by_a_trim(store, 1_100, {}) == {ONE}
        assert read_by_a_trim(store, 1_101, {ONE: 4}) == {ONE, TWO}


def test_a_reader_process_that_was_killed_pins_nothing(tmp_path: Path) -> None:
    """Its place in LMDB's table of readers would keep pages from being used again."""
    code = (
        f"import lmdb; e = lmdb.open({str(tmp_path)!r}, readonly=True); t = e.begin(); print('in', flush=True); input()"
    )
    with opened(tmp_path) as store:
        reader = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert reader.stdout and reader.stdout.readline() == b"in\n"
        assert str(reader.pid) in store._env.readers()
        reader.kill()
        reader.communicate()
        assert str(reader.pid) in store._env.readers()
        trimmed(store, 1)
        assert str(reader.pid) not in store._env.readers()


@pytest.mark.parametrize("size", [10, INLINE_BYTES_MAX + 1])
def test_removed_batches_leave_nothing_behind(tmp_path: Path, size: int) -> None:
    with opened(tmp_path, retention=Retention(Keep(bytes_max=0, age_ms_max=None))) as store:
        me = store.recovered.node_id
        synced(store, received(1, *dated(range(50), size=size)))
        [own] = chain(1, stream=StreamId(me, "t"), size=size)
        synced(store, append_of(2, stage=(("s", Staged("t", 1, 1, own.payload)),)))
        synced(store, append_of(3, batches=(from_stage(own),), unstage=("s",)))
        assert trimmed(store, 1) == {ONE: 51, own.stream: 2}
        stats = store.stats().content
        assert (stats.batches, stats.log_bytes) == (0, 0)
        report = store.check()
        assert report.problems == [] and report.payloads == 0


def test_a_trim_goes_over_skips_as_the_simulated_disk_does(tmp_path: Path) -> None:
    before = dated((1, 2))
    skip = Skip(ONE, 3, 9, SkipReason.LOST, node_id("n"))
    after = [seal(replace(batch, first_sequence=10 + i, published_at_ms=5)) for i, batch in enumerate(chain(2))]
    end = Skip(ONE, 12, 20, SkipReason.LOST, node_id("n"))
    appends = [append_of(1, batches=tuple(before)), append_of(2, skips=(skip,)), append_of(3, batches=tuple(after))]
    appends.append(append_of(4, skips=(end,)))
    with opened(tmp_path, retention=Retention(Keep(age_ms_max=0))) as store:
        disk = Disk(store.recovered.node_id)
        disk.waiting, disk.syncing = list(appends), len(appends)
        disk.sync_done()
        synced(store, *appends)
        for now_ms, low in ((2, 2), (3, 3), (6, 12)):
            assert trimmed(store, now_ms) == {ONE: disk.trim(ONE, low)}
        assert store.check().problems == []
    disk.open()
    with opened(tmp_path) as store:
        assert store.recovered.streams == {ONE: StoredStream(21, 21, 0)} == disk.open().streams


def test_a_long_trim_is_done_in_steps_with_appends_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP_ENTRIES", 7)
    monkeypatch.setattr(retention, "STEP_DELIVERIES", 9)
    batches = dated(range(100))
    kept = Retention(Keep(age_ms_max=0), deliveries_max=10)
    with opened(tmp_path, retention=kept) as store:
        synced(store, received(1, *batches), received(2, *dated(range(50), TWO)))
        before = store._env.info()["last_txnid"]
        assert trimmed(store, 95) == {ONE: 96, TWO: 51}
        steps = store._env.info()["last_txnid"] - before
        assert steps >= 145 // 7
        assert store.check().problems == []
        assert [record.number for record in store.read_deliveries(0, 100)] == list(range(141, 151))


def test_delivery_records_go_by_their_own_age(tmp_path: Path) -> None:
    kept = Retention(Keep(None, None), deliveries_ms_max=100)
    batches = dated(range(4))
    with opened(tmp_path, retention=kept) as store:
        for token, (batch, at_ms) in enumerate(zip(batches, (10, 20, 30, 40), strict=True)):
            synced(store, received(token, batch, at_ms=at_ms))
        assert trimmed(store, 125) == {}
        assert [record.number for record in store.read_deliveries(0, 9)] == [3, 4]


def test_all_delivery_records_may_be_too_old(tmp_path: Path) -> None:
    *batches, last = dated(range(4))
    with opened(tmp_path, retention=Retention(Keep(None, None), deliveries_ms_max=100)) as store:
        synced(store, received(1, *batches, at_ms=10))
        for _ in range(2):
            assert trimmed(store, 1_000) == {}
        assert list(store.read_deliveries(0, 9)) == []
        synced(store, received(2, last, at_ms=1_000))
        assert [record.number for record in store.read_deliveries(0, 9)] == [4]


def test_the_file_stops_growing_under_steady_load(tmp_path: Path) -> None:
    """Some 16 times what is kept goes through; the file stays near twice of it, since freed pages are used again."""
    kept_bytes = 4 * MIB
    batches: list[Batch] = []
    sizes = []
    with opened(tmp_path, retention=Retention(Keep(bytes_max=kept_bytes)), limits=StoreLimits(64 * MIB)) as store:
        for token in range(64):
            batches = chain(8, size=MIB // 8, after=batches[-1] if batches else None)
            synced(store, received(token, *batches))
            trimmed(store, 7)
            sizes.append(store.free_space().file_bytes)
        assert store.stats().content.log_bytes <= kept_bytes
    assert sizes[-1] == sizes[20], "it grew after it had settled"
    assert sizes[-1] <= 2.5 * kept_bytes


# ---- readers


HOLD_6 = Keep(bytes_max=3 * BODY, age_ms_max=None, hold_bytes_max=6 * BODY, hold_ms_max=None)


def test_a_reader_holds_back_what_it_has_not_read(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(HOLD_6)) as store:
        synced(store, received(1, *dated(range(5))))
        store.set_reader("r", {ONE: 2}, lease_until_ms=100).result(WAIT_S)
        assert trimmed(store, 99) == {ONE: 2}, "what it has read goes"
        store.set_reader("r", {ONE: 3}, lease_until_ms=200).result(WAIT_S)
        assert trimmed(store, 100) == {ONE: 3}
        assert store.readers()["r"].cuts == ()


def test_a_lease_that_ended_holds_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(HOLD_6)) as store:
        synced(store, received(1, *dated(range(5))))
        store.set_reader("r", {ONE: 1}, lease_until_ms=100).result(WAIT_S)
        assert trimmed(store, 99) == {}
        assert trimmed(store, 100) == {ONE: 3}


def test_a_dropped_reader_holds_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(HOLD_6)) as store:
        synced(store, received(1, *dated(range(5))))
        store.set_reader("r", {ONE: 1}, lease_until_ms=100).result(WAIT_S)
        assert store.drop_reader("r").result(WAIT_S)
        assert not store.drop_reader("r").result(WAIT_S)
        assert trimmed(store, 99) == {ONE: 3}


def test_a_reader_past_the_cap_is_cut_and_that_is_recorded(tmp_path: Path) -> None:
    batches = dated(range(12))
    with opened(tmp_path, retention=Retention(HOLD_6)) as store:
        synced(store, received(1, *batches[:10]))
        store.set_reader("slow", {ONE: 2}, lease_until_ms=1_000).result(WAIT_S)
        store.set_reader("quick", {ONE: 9}, lease_until_ms=1_000).result(WAIT_S)
        assert trimmed(store, 50) == {ONE: 5}
        assert store.readers()["slow"].cuts == (Cut(ONE, 2, 5, 50),)
        assert store.readers()["slow"].frontier == {ONE: 5}
        assert store.readers()["quick"].cuts == ()
        synced(store, received(2, *batches[10:]))
        assert trimmed(store, 60) == {ONE: 7}
        assert store.readers()["slow"].cuts == (Cut(ONE, 2, 7, 60),)
    with opened(tmp_path) as store:
        cut = store.readers()["slow"]
        assert cut.cuts == (Cut(ONE, 2, 7, 60),)
        told = store.set_reader("slow", {ONE: 6}, lease_until_ms=2_000).result(WAIT_S)
        assert told is not None and told.cuts == cut.cuts
        assert store.readers()["slow"] == cut, "it was not renewed"
        told = store.set_reader("slow", {ONE: 7}, lease_until_ms=2_000).result(WAIT_S)
        assert told is not None and told.cuts == ()
        assert store.readers()["slow"] == told


def test_a_reader_too_many_takes_the_place_of_one_that_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "READERS_MAX", 2)
    with opened(tmp_path) as store:
        for name, until_ms in (("a", 20), ("b", 10)):
            store.set_reader(name, {}, until_ms, now_ms=5).result(WAIT_S)
        assert store.set_reader("c", {}, 30, now_ms=5).result(WAIT_S) is None
        assert store.set_reader("a", {}, 20, now_ms=5).result(WAIT_S) is not None, "it has a place"
        assert store.set_reader("c", {}, 30, now_ms=15).result(WAIT_S) is not None
        assert set(store.readers()) == {"a", "c"}


def test_a_reader_holds_rows_up_to_an_age(tmp_path: Path) -> None:
    keep = Keep(age_ms_max=10, hold_bytes_max=None, hold_ms_max=50)
    with opened(tmp_path, retention=Retention(keep)) as store:
        synced(store, received(1, *dated((0, 10, 20, 30))))
        store.set_reader("r", {ONE: 1}, lease_until_ms=1_000).result(WAIT_S)
        assert trimmed(store, 50) == {}
        assert trimmed(store, 61) == {ONE: 3}
        assert store.readers()["r"].cuts == (Cut(ONE, 1, 3, 61),)


def test_a_reader_holds_all_streams_of_its_topics_and_no_others(tmp_path: Path) -> None:
    other = stream_id("o", "u")
    with opened(tmp_path, retention=Retention(Keep(bytes_max=0, age_ms_max=None))) as store:
        synced(
            store, received(1, *dated((1, 2), ONE)), received(2, *dated((1, 2), TWO)), received(3, *dated((1,), other))
        )
        store.set_reader("by frontier", {ONE: 2}, lease_until_ms=100).result(WAIT_S)
        assert trimmed(store, 50) == {ONE: 2, other: 2}
        store.set_reader("by frontier", {ONE: 3, TWO: 3}, lease_until_ms=100).result(WAIT_S)
        store.set_reader("by topic", {}, lease_until_ms=100, topics=("t",)).result(WAIT_S)
        assert trimmed(store, 50) == {}
        store.drop_reader("by topic").result(WAIT_S)
        assert trimmed(store, 50) == {ONE: 3, TWO: 3}


def test_no_stream_keeps_less_because_a_reader_holds_another_of_its_topic(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(HOLD_6)) as store:
        synced(store, received(1, *dated((1, 2, 3), ONE)), received(2, *dated((4, 5), TWO)))
        store.set_reader("r", {ONE: 1, TWO: 3}, lease_until_ms=100).result(WAIT_S)
        assert trimmed(store, 50) == {}, "without the reader, two of the first stream would go and none of the other"


def test_a_reader_of_one_stream_does_not_protect_the_others_of_its_topic_from_the_limit(tmp_path: Path) -> None:
    """The held stream is passed over, and the others keep to the limit by themselves."""
    with opened(tmp_path, retention=Retention(replace(HOLD_6, hold_bytes_max=10 * BODY))) as store:
        synced(store, received(1, *dated((1, 2, 3), ONE)), received(2, *dated(range(4, 9), TWO)))
        store.set_reader("r", {ONE: 1, TWO: 6}, lease_until_ms=100).result(WAIT_S)
        assert trimmed(store, 50) == {TWO: 3}


def test_a_reader_is_remembered_with_the_streams_that_are_here(tmp_path: Path) -> None:
    """Any other name costs nothing, and holds nothing: its topic does."""
    with opened(tmp_path) as store:
        synced(store, received(1, *dated((1, 2))))
        made_up = {stream_id(f"o{number}", "made-up"): 7 for number in range(100)}
        store.set_reader("r", {ONE: 2, **made_up}, lease_until_ms=100).result(WAIT_S)
        assert store.readers()["r"].frontier == {ONE: 2}
        assert store.readers()["r"].topics == {"t", "made-up"}


def test_what_is_remembered_of_cuts_is_limited() -> None:
    reader = Reader("r", {}, frozenset("t"), 10)
    for i in range(CUTS_MAX + 1):
        reader = reader.cut(stream_id(f"o{i}"), 5, at_ms=i)
    assert len(reader.cuts) == CUTS_MAX
    assert reader.cuts[0].stream == stream_id("o1")


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_reader_has_a_name_that_fits(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as store:
        with pytest.raises(StoreError, match="1 to 200 bytes"):
            store.set_reader(name, {}, 1)
        store.set_reader("x" * 200, {}, 1).result(WAIT_S)


# ---- tables


def of_table(batches: Iterable[Batch]) -> list[Batch]:
    mark = Extension(TABLE_EXTENSION, must_understand=False, value=b"")
    return [seal(replace(batch, extensions=(mark,), checksum=0)) for batch in batches]


def test_limits_remove_nothing_of_a_table(tmp_path: Path) -> None:
    retained = Retention(Keep(bytes_max=1, age_ms_max=DAY_MS))
    with opened(tmp_path, retention=retained) as store:
        synced(store, received(1, *of_table(dated([0, 1, 2]))))
        synced(store, received(2, *dated([0, 1, 2], TWO)))
        assert trimmed(store, 100 * DAY_MS) == {TWO: 4}
        assert [batch.first_sequence for batch in store.read_range(ONE, 1, 4, MIB)] == [1, 2, 3]


def test_a_compaction_removes_whole_batches_below_what_is_needed(tmp_path: Path) -> None:
    batches = of_table(chain(4, rows=10))
    with opened(tmp_path) as store:
        stream = batches[0].stream
        synced(store, received(1, *batches))
        assert dict(store.compact({stream: 15}, 0).result(WAIT_S)) == {stream: 11}, "row 15 is in the second"
        assert dict(store.compact({stream: 31}, 0).result(WAIT_S)) == {stream: 31}
        assert dict(store.compact({stream: 41}, 0).result(WAIT_S)) == {stream: 41}, "nothing is needed"


def test_a_compaction_stops_where_a_reader_holds_rows(tmp_path: Path) -> None:
    batches = of_table(chain(4, rows=10))
    with opened(tmp_path) as store:
        stream = batches[0].stream
        synced(store, received(1, *batches))
        store.set_reader("report", {stream: 12}, lease_until_ms=100).result(WAIT_S)
        assert dict(store.compact({stream: 41}, 50).result(WAIT_S)) == {stream: 11}
        reader = store.readers()["report"]
        assert not reader.cuts
        assert dict(store.compact({stream: 41}, 101).result(WAIT_S)) == {stream: 41}, "its lease is over"


def test_the_end_of_what_had_expired_elsewhere_is_known(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.expired_until(ONE) == 1
        reasons = [SkipReason.EXPIRED, SkipReason.LOST]
        skips = [Skip(ONE, 1 + 5 * at, 5 + 5 * at, reason, node_id("n")) for at, reason in enumerate(reasons)]
        synced(store, append_of(1, skips=tuple(skips)))
        assert store.expired_until(ONE) == 6, "lost rows may stand"
        synced(store, append_of(2, skips=(Skip(TWO, 1, 3, SkipReason.EXPIRED, node_id("n")),)))
        assert (store.expired_until(ONE), store.expired_until(TWO)) == (6, 4)
