"""Group commit, and what becomes of appends when there is no room or the disk fails."""

import errno
import resource
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from m4cast.overlay.errors import StoreError
from m4cast.overlay.protocol.effects import Staged
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import Store, StoreLimits
from m4cast.overlay.store.tables.topics import Keep
from tests.overlay.protocol.append_parts import append_of, batches_of
from tests.overlay.protocol.stream_parts import chain, stream_id
from tests.overlay.store.store_parts import MIB, WAIT_S, Witness, opened, received, synced


@contextmanager
def writer_held(store: Store) -> Iterator[None]:
    """The writer is kept in a job until the block ends; what is asked for meanwhile waits together."""
    entered, leave = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        entered.set()
        assert leave.wait(WAIT_S)

    held: Future[None] = store._writer.ask(hold)
    assert entered.wait(WAIT_S)
    try:
        yield
    finally:
        leave.set()
    held.result(WAIT_S)


# ---- group commit


def test_what_waits_together_is_one_commit_with_one_report(tmp_path: Path) -> None:
    witness = Witness()
    with opened(tmp_path, witness) as store:
        before = store._env.info()["last_txnid"]
        with writer_held(store):
            for token, batch in enumerate(chain(20), start=1):
                store.append(received(token, batch))
        store.sync().result(WAIT_S)
        assert witness.all() == [("durable", 20)]
        assert store._env.info()["last_txnid"] == before + 1


def test_a_group_ends_at_its_limit(tmp_path: Path) -> None:
    witness = Witness()
    with opened(tmp_path, witness, limits=StoreLimits(map_bytes=64 * MIB, group_bytes_max=100_000)) as store:
        with writer_held(store):
            for token, batch in enumerate(chain(5, size=60_000), start=1):
                store.append(received(token, batch))
        store.sync().result(WAIT_S)
        assert witness.all() == [("durable", 2), ("durable", 4), ("durable", 5)]


def test_one_append_larger_than_a_group_is_written_whole(tmp_path: Path) -> None:
    witness = Witness()
    with opened(tmp_path, witness, limits=StoreLimits(map_bytes=64 * MIB, group_bytes_max=1_000)) as store:
        synced(store, received(7, *chain(10, size=60_000)))
        assert witness.all() == [("durable", 7)]
        assert store.recovered.streams == {}
        assert len(store.read_range(stream_id(), 1, 99, 10**9)) == 10


def test_a_lingering_group_does_not_wait_when_it_is_large_enough_or_the_store_closes(tmp_path: Path) -> None:
    witness = Witness()
    limits = StoreLimits(map_bytes=64 * MIB, group_bytes_max=100_000, linger_ms=3_600_000)
    batches = chain(4, size=60_000)
    with opened(tmp_path, witness, limits=limits) as store:
        store.append(received(1, batches[0]))
        store.append(received(2, batches[1]))
        assert witness.next()[:2] == ("durable", 2)
        store.append(received(3, batches[2]))
    assert witness.all() == [("durable", 3)]


def test_an_append_is_not_durable_while_its_group_is_under_way(tmp_path: Path) -> None:
    witness = Witness()
    with opened(tmp_path, witness) as store:
        store.append(received(1, *chain(1)))
        assert witness.next()[:2] == ("durable", 1)
        with writer_held(store):
            store.append(received(2, *chain(1, stream=stream_id("p"))))
            assert witness.all() == []
            assert store.read_range(stream_id("p"), 1, 9, 9) == ()


# ---- no room


SMALL = StoreLimits(map_bytes=16 * MIB, reserve_bytes=0)


def fill(store: Store, witness: Witness) -> tuple[int, int]:
    """Append until one fails: the token that failed, and the next sequence of what was kept."""
    last = None
    for token in range(1, 1_000):
        [batch] = chain(1, size=MIB, after=last)
        store.append(received(token, batch))
        word, told, reason = witness.next()
        assert told == token
        if word == "failed":
            assert reason
            return token, batch.first_sequence
        assert word == "durable"
        last = batch
    raise AssertionError("it never filled")


def test_a_full_map_fails_the_group_and_all_that_is_asked_for_until_it_is_heard(tmp_path: Path) -> None:
    witness = Witness()
    with opened(tmp_path, witness, limits=SMALL) as store:
        token, next_ = fill(store, witness)
        # The owner has not heard yet: even what would fit fails, in order.
        small = chain(3, stream=stream_id("small"))
        store.append(received(token + 1, small[0]))
        store.append(received(token + 2, small[1]))
        store.sync().result(WAIT_S)
        assert witness.all() == [("failed", token + 1), ("failed", token + 2)]
        assert store.read_range(small[0].stream, 1, 9, 9) == ()
        assert len(store.read_range(stream_id(), 1, 999, 10**9)) == next_ - 1, "reads go on"
        store.heard(token)
        synced(store, received(token + 3, *small))
        assert witness.all() == [("durable", token + 3)]
        assert store.check().problems == []
    with opened(tmp_path, limits=SMALL) as store:
        assert store.recovered.streams[stream_id()].next == next_
        assert store.recovered.streams[small[0].stream].next == 4


def test_a_failure_takes_along_what_waits_behind_it(tmp_path: Path) -> None:
    witness = Witness()
    batches = chain(1, size=20 * MIB) + chain(1, stream=stream_id("p")) + chain(1, stream=stream_id("q"))
    with opened(
        tmp_path, witness, limits=StoreLimits(map_bytes=16 * MIB, reserve_bytes=0, group_bytes_max=1_000)
    ) as store:
        with writer_held(store):
            for token, batch in enumerate(batches, start=1):
                store.append(received(token, batch))
        store.sync().result(WAIT_S)
        assert witness.all() == [("failed", 1), ("failed", 2), ("failed", 3)]
        assert store.stats().streams == []


def test_work_that_waits_with_a_failing_append_is_done_without_it(tmp_path: Path) -> None:
    """A trim that shares its group with what does not fit is what makes room for it."""
    witness = Witness()
    with opened(tmp_path, witness, limits=SMALL, retention=Retention(Keep(bytes_max=0))) as store:
        token, next_ = fill(store, witness)
        store.heard(token)
        with writer_held(store):
            store.append(received(token + 1, *chain(1, stream=stream_id("p"), size=4 * MIB)))
            trim = store.trim(7)
            synced_later = store.sync()
        assert dict(trim.result(WAIT_S)) == {stream_id(): next_}
        synced_later.result(WAIT_S)
        assert witness.all() == [("failed", token + 1)]


def test_a_trim_that_was_rolled_back_with_an_append_is_done_again(tmp_path: Path) -> None:
    witness = Witness()
    with opened(tmp_path, witness, limits=SMALL, retention=Retention(Keep(bytes_max=0))) as store:
        store._writer._check_space = lambda *_: None  # type: ignore[method-assign] # so that the append fails after it
        synced(store, received(1, *chain(3, size=MIB)))
        with writer_held(store):
            trim = store.trim(7)
            store.append(received(2, *chain(1, stream=stream_id("p"), size=20 * MIB)))
        assert dict(trim.result(WAIT_S)) == {stream_id(): 4}
        assert store.stats().content.batches == 0
        assert witness.all() == [("durable", 1), ("failed", 2)]


def test_an_echo_of_a_failure_does_not_hide_the_next_one(tmp_path: Path) -> None:
    witness = Witness()
    large = received(1, *chain(1, size=20 * MIB))
    small = received(2, *chain(1))
    with opened(tmp_path, witness, limits=SMALL) as store:
        synced(store, large, small)
        assert witness.all() == [("failed", 1), ("failed", 2)]
        store.heard(1)
        synced(store, append_of(3, batches=batches_of(large)))
        assert witness.all() == [("failed", 3)]
        store.heard(2)
        synced(store, append_of(4, batches=batches_of(small)))
        assert witness.all() == [("failed", 4)], "the failure of 3 has not been heard"
        store.heard(3)
        synced(store, append_of(5, batches=batches_of(small)))
        assert witness.all() == [("durable", 5)]


def test_the_writer_stops_before_deletes_have_no_room(tmp_path: Path) -> None:
    witness = Witness()
    limits = StoreLimits(map_bytes=16 * MIB, reserve_bytes=4 * MIB)
    with opened(tmp_path, witness, limits=limits, retention=Retention(Keep(bytes_max=2 * MIB))) as store:
        assert not store.free_space().is_nearly_full
        token, next_ = fill(store, witness)
        assert store.free_space().is_nearly_full
        assert 2 * MIB <= store.free_space().available_bytes < 4 * MIB
        assert dict(store.trim(7).result(WAIT_S)) == {stream_id(): next_ - 1}
        assert not store.free_space().is_nearly_full
        store.heard(token)
        last = store.read_range(stream_id(), next_ - 1, next_, 1)[0]
        synced(store, received(token + 1, *chain(1, size=MIB, after=last)))
        assert witness.all() == [("durable", token + 1)]
        assert store.check().problems == []


def test_an_abort_is_taken_by_a_full_store(tmp_path: Path) -> None:
    witness = Witness()
    with opened(tmp_path, limits=SMALL) as store:
        synced(store, append_of(1, stage=(("s", Staged("t", 1, 1, bytes(15 * MIB))),)))
    with opened(tmp_path, witness, limits=StoreLimits(map_bytes=16 * MIB, reserve_bytes=4 * MIB)) as store:
        assert store.free_space().available_bytes < MIB
        synced(store, append_of(2, stage=(("t", Staged("t", 1, 1, b"x")),)))
        store.heard(2)
        synced(store, append_of(3, unstage=("s",)))
        assert witness.all() == [("failed", 2), ("durable", 3)]


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    """The process's limit on files stands for the disk: writes fail in LMDB's commit, part of them done."""
    witness = Witness()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path, witness, limits=StoreLimits(map_bytes=256 * MIB, reserve_bytes=0)) as store:
        store._writer._check_space = lambda *_: None  # type: ignore[method-assign] # past the first line of defence
        synced(store, received(0, *chain(1, stream=stream_id("p"), size=MIB)))
        assert witness.next()[0] == "durable"
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 * MIB + 1_000, limit[1]))
        try:
            token, next_ = fill(store, witness)
            assert len(store.read_range(stream_id(), 1, 999, 10**9)) == next_ - 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        store.heard(token)
        last = store.read_range(stream_id(), next_ - 1, next_, 1)
        synced(store, received(token + 1, *chain(3, size=MIB, after=last[0] if last else None)))
        assert witness.all() == [("durable", token + 1)]
        assert store.check().problems == []
    with opened(tmp_path) as store:
        assert store.recovered.streams[stream_id()].next == next_ + 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_full_disk_fails_appends_until_there_is_room(small_disk: Path, guarded: bool) -> None:
    witness = Witness()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4 * MIB))
    with opened(small_disk / "store", witness, limits=StoreLimits(map_bytes=256 * MIB, reserve_bytes=100_000)) as store:
        if not guarded:
            store._writer._check_space = lambda *_: None  # type: ignore[method-assign] # past the first line of defence
        token, next_ = fill(store, witness)
        assert len(store.read_range(stream_id(), 1, 999, 10**9)) == next_ - 1
        store.heard(token)
        ballast.unlink()
        last = store.read_range(stream_id(), next_ - 1, next_, 1)[0]
        synced(store, received(token + 1, *chain(2, size=MIB, after=last)))
        assert witness.all() == [("durable", token + 1)]
        assert store.check().problems == []


# ---- worse


class FailingCommit:
    """An environment whose next write transaction fails in its commit, before or after it was kept."""

    def __init__(self, env: lmdb.Environment, code: int, kept: bool) -> None:
        self._env = env
        self._code = code
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, **arguments: Any) -> Any:
        txn = self._env.begin(**arguments)
        return FailingTxn(txn, self._code, self._kept) if arguments.get("write") else txn


class FailingTxn:
    def __init__(self, txn: Any, code: int, kept: bool) -> None:
        self._txn = txn
        self._code = code
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        if self._kept:
            self._txn.commit()
        else:
            self._txn.abort()
        raise lmdb.DiskError("commit", errno.ENOSPC) if self._code == errno.ENOSPC else io_error(self._code)


def io_error(code: int) -> lmdb.Error:
    return lmdb.Error("commit", code)


@pytest.mark.parametrize(
    ("code", "kept"), [(errno.EIO, False), (errno.EIO, True), (errno.ENOSPC, True)], ids=["fsync", "meta", "unclear"]
)
def test_a_commit_of_unknown_outcome_breaks_the_store(tmp_path: Path, code: int, kept: bool) -> None:
    witness = Witness()
    batches = chain(3)
    with opened(tmp_path, witness) as store:
        synced(store, received(1, batches[0]))
        store._writer._env = FailingCommit(store._env, code, kept)  # type: ignore[assignment]
        store.append(received(2, batches[1]))
        assert witness.next()[:2] == ("durable", 1)
        assert witness.next()[0] == "broken", "never a failed append"
        with pytest.raises(StoreError, match="open it again"):
            store.append(received(3, batches[2]))
        with pytest.raises(StoreError, match="open it again"):
            store.sync()
        assert witness.all() == []
        assert store.read_range(stream_id(), 1, 2, 9) == (batches[0],)
    with opened(tmp_path) as store:
        assert store.recovered.streams[stream_id()].next == (3 if kept else 2)


def test_an_append_that_would_make_a_hole_breaks_the_store_and_writes_nothing(tmp_path: Path) -> None:
    witness = Witness()
    batches = chain(3)
    with opened(tmp_path, witness) as store:
        store.append(received(1, batches[0]))
        assert witness.next()[:2] == ("durable", 1)
        store.append(received(2, batches[2]))
        assert witness.next()[0] == "broken"
    with opened(tmp_path) as store:
        assert store.recovered.streams[stream_id()].next == 2
        assert store.check().problems == []
