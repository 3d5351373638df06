"""The simulated store: a crash keeps a prefix, a log has no holes and no repeats, and what was durable comes back."""

from random import Random

import pytest

from m4cast.overlay.protocol.effects import Append, PublisherRecord, PublisherState, Range, Staged, StoredStream
from m4cast.overlay.protocol.publishing.ledger import kept
from m4cast.overlay.protocol.wire.batch import Batch, Skip, SkipReason
from m4cast.overlay.sim.disk import Disk, DiskError
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, entry, node_id, stream_id

S, MINE = stream_id(), stream_id("m")


def disk_with(*appends: Append) -> Disk:
    """A disk of node m on which these are durable."""
    disk = Disk(node_id("m"))
    write(disk, *appends)
    return disk


def write(disk: Disk, *appends: Append) -> None:
    disk.waiting += appends
    disk.syncing = len(disk.waiting)
    disk.sync_done()


def put(*batches: Batch) -> Append:
    return append_of(1, batches=batches)


def skip(first: int, last: int) -> Skip:
    return Skip(S, first, last, SkipReason.EXPIRED, node_id("m"))


def firsts(disk: Disk) -> list[int]:
    log = disk.content.logs.get(S)
    return [batch.first_sequence for batch in log.batches] if log else []


# ---- syncing and crashing


def test_a_sync_covers_what_waited_when_it_began() -> None:
    disk = Disk(node_id("m"))
    appends = [put(batch) for batch in chain(3)]
    disk.waiting += appends[:2]
    disk.syncing = 2
    disk.waiting.append(appends[2])
    assert firsts(disk) == []
    assert disk.sync_done() == appends[:2]
    assert firsts(disk) == [1, 2]
    assert (disk.waiting, disk.syncing) == (appends[2:], 0)


def test_a_crash_keeps_a_prefix_of_what_was_asked_for_and_any_is_possible() -> None:
    kept_counts = set()
    for seed in range(60):
        disk = disk_with(put(*chain(1)))
        appends = [put(batch) for batch in chain(5)[1:]]
        disk.waiting += appends
        disk.syncing = 2
        kept = disk.crash(Random(seed))
        assert kept == appends[: len(kept)]
        assert firsts(disk) == list(range(1, 2 + len(kept)))
        assert (disk.waiting, disk.syncing) == ([], 0)
        kept_counts.add(len(kept))
    assert kept_counts == {0, 1, 2, 3, 4}


def test_what_is_durable_survives_any_crash() -> None:
    disk = disk_with(put(*chain(3)))
    for seed in range(10):
        assert disk.crash(Random(seed)) == []
    assert firsts(disk) == [1, 2, 3]


# ---- opening


def test_what_was_durable_comes_back_when_the_store_is_opened() -> None:
    batches = chain(2)
    state = PublisherState("5", (Range(MINE, 1, 2),))
    staged = Staged("t", 1, 1, b"x")
    disk = disk_with(
        append_of(1, batches=tuple(batches), skips=(skip(3, 4),)),
        append_of(2, batches=tuple(chain(1, stream=MINE)), publishers=(("k", state),)),
        append_of(3, stage=(("s", staged), ("gone", staged))),
        append_of(4, unstage=("gone",), starts=((stream_id("late"), 7),)),
    )
    disk.content.roster[node_id("x")] = entry("x")
    recovered = disk.open()
    assert recovered.node_id == node_id("m")
    assert recovered.streams[S] == StoredStream(1, 5, 0, (skip(3, 4),))
    assert recovered.streams[MINE] == StoredStream(1, 2, chain(1, stream=MINE)[0].checksum, last_published_ms=7)
    assert recovered.streams[stream_id("late")] == StoredStream(7, 7, 0)
    assert recovered.of(PublisherRecord) == {"k": state}
    assert recovered.staged == {"s": kept(staged)}
    assert recovered.origin_batch == 1
    assert recovered.roster == (entry("x"),)


def test_the_incarnation_goes_up_each_time() -> None:
    disk = Disk(node_id("m"))
    assert [disk.open().incarnation for _ in range(3)] == [1, 2, 3]


def test_what_was_handed_out_does_not_change_with_the_disk() -> None:
    disk = disk_with(put(*chain(1)))
    recovered = disk.open()
    write(disk, put(chain(2)[1]), append_of(2, stage=(("s", Staged("t", 1, 1, b"")),)))
    assert recovered.streams[S].next == 2
    assert recovered.staged == {}


def test_only_own_batches_count_as_own() -> None:
    disk = disk_with(put(*chain(3)))
    assert disk.content.origin_batch == 0


def test_a_new_identity_keeps_the_rows_and_remembers_the_old_one() -> None:
    disk = disk_with(put(*chain(2, stream=MINE)))
    disk.open()
    disk.take_new_identity(node_id("n"))
    recovered = disk.open()
    assert (recovered.node_id, recovered.incarnation, recovered.origin_batch) == (node_id("n"), 1, 0)
    assert recovered.former_ids == (node_id("m"),)
    assert recovered.streams[MINE].next == 3


def test_a_backup_is_apart_from_the_disk() -> None:
    disk = disk_with(put(*chain(1)))
    backup = disk.content.copy()
    assert backup == disk.content
    write(disk, append_of(2, batches=(chain(2)[1],), stage=(("s", Staged("t", 1, 1, b"")),)))
    disk.content.roster[node_id("x")] = entry("x")
    assert backup.logs[S].next == 2
    assert len(backup.logs[S].batches) == 1
    assert (backup.staged, backup.roster) == ({}, {})


# ---- the log


@pytest.mark.parametrize("wrong", [1, 2, 4])
def test_a_hole_or_a_repeat_breaks_the_store(wrong: int) -> None:
    batches = chain(4)
    disk = disk_with(put(*batches[:2]))
    with pytest.raises(DiskError, match=f"append of t {wrong} at 3"):
        write(disk, put(batches[wrong - 1]))


@pytest.mark.parametrize("wrong", [1, 2, 4])
def test_a_skip_in_the_wrong_place_breaks_the_store(wrong: int) -> None:
    disk = disk_with(put(*chain(2)))
    with pytest.raises(DiskError, match=f"skip of t {wrong} at 3"):
        write(disk, append_of(2, skips=(skip(wrong, wrong + 1),)))


def test_after_a_skip_the_log_goes_on_behind_it() -> None:
    batches = chain(6)
    disk = disk_with(put(*batches[:2]), append_of(2, skips=(skip(3, 5),)), put(batches[5]))
    assert firsts(disk) == [1, 2, 6]
    assert disk.content.logs[S].next == 7


def test_a_stream_that_is_there_keeps_its_beginning() -> None:
    disk = disk_with(put(*chain(2)))
    write(disk, append_of(2, starts=((S, 9),)))
    assert (disk.content.logs[S].low, disk.content.logs[S].next) == (1, 3)


def test_a_stream_that_begins_in_the_middle() -> None:
    disk = disk_with(append_of(1, starts=((S, 4),), batches=(chain(4)[3],)))
    assert (disk.content.logs[S].low, disk.content.logs[S].next) == (4, 5)


# ---- reading and retention


@pytest.mark.parametrize(
    ("first", "next_sequence", "bytes_max", "read"),
    [
        (1, 9, 10**6, [1, 3, 5]),
        (3, 9, 10**6, [3, 5]),
        (3, 5, 10**6, [3]),
        (3, 4, 10**6, [3]),  # batches are not sliced
        (1, 9, 20, [1, 3]),
        (1, 9, 19, [1]),
        (1, 9, 0, [1]),  # at least one
        (2, 9, 10**6, [1, 3, 5]),  # in the middle of a batch
        (2, 9, 0, [1]),
        (2, 2, 10**6, []),
        (7, 9, 10**6, []),
        (3, 3, 10**6, []),
    ],
)
def test_a_range_is_read_in_whole_batches_up_to_its_limit(
    first: int, next_sequence: int, bytes_max: int, read: list[int]
) -> None:
    disk = disk_with(put(*chain(3, rows=2, size=10)))
    assert [batch.first_sequence for batch in disk.read(S, first, next_sequence, bytes_max)] == read


def test_nothing_is_read_of_what_is_not_known_or_not_synced() -> None:
    disk = disk_with()
    disk.waiting.append(put(*chain(1)))
    assert disk.read(S, 1, 9, 100) == ()


def test_a_read_stops_at_a_skip() -> None:
    batches = chain(4)
    disk = disk_with(put(batches[0]), append_of(2, skips=(skip(2, 3),)), put(batches[3]))
    assert [batch.first_sequence for batch in disk.read(S, 1, 9, 100)] == [1]
    assert [batch.first_sequence for batch in disk.read(S, 4, 9, 100)] == [4]


@pytest.mark.parametrize(
    ("low", "new_low", "kept"), [(1, 1, [1, 3, 5]), (2, 1, [1, 3, 5]), (3, 3, [3, 5]), (4, 3, [3, 5]), (99, 7, [])]
)
def test_retention_forgets_whole_batches_below(low: int, new_low: int, kept: list[int]) -> None:
    disk = disk_with(put(*chain(3, rows=2)))
    assert disk.trim(S, low) == new_low
    assert firsts(disk) == kept
    assert (disk.content.logs[S].low, disk.content.logs[S].next) == (new_low, 7)


def test_retention_forgets_skips_with_the_data_around_them() -> None:
    batches = chain(6)
    disk = disk_with(put(*batches[:2]), append_of(2, skips=(skip(3, 4),)), put(*batches[4:]))
    disk.trim(S, 2)
    assert disk.content.logs[S].skips == [skip(3, 4)]
    disk.trim(S, 5)
    assert disk.content.logs[S].skips == []
