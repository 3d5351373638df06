"""The one thread that writes: takes what waits, commits it as one transaction, and reports the outcome.

LMDB allows one writer at a time and ties a write transaction to its thread, so there is one thread, and everything that
changes the file is requested from it: appends, and jobs (small pieces of work with an answer, such as a reader's
lease). LMDB releases the interpreter's lock while it copies and syncs, so the node's own thread runs on.

Group commit: the writer takes appends until `group_bytes_max` or until none waits, applies them in order in one
transaction and commits with fsync; then one `on_durable` for the last token covers them all. While it syncs, the next
group gathers by itself. `linger_ms` lets a small group wait for more: fewer syncs, later acknowledgements.

Failures. No space, in the map or on the disk: the transaction is rolled back, and every append of the group, every one
that waits and every one that is requested until the owner calls `heard` is reported by `on_failed`, in order. Appends
after that are new; they fail in the same way until there is space. Part of the space is reserved for deletes, since
they need pages, too. Any other failure (a failed fsync, a commit of unknown outcome, an append that would make a hole)
breaks the store: `on_broken` is called once, nothing more is written or reported, and the store has to be opened again.

Callbacks are called on the writer's thread, one at a time; they must not wait for the writer.

Guarantees
3. `on_durable(token)` is called only after the sync of a transaction that contains this append and all before it.
7. The writer queues no more than it was given: the node limits what is not durable yet (`undurable_bytes_max`).
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import lmdb
from lmdb import Environment

from m4cast.overlay.errors import StoreError
from m4cast.overlay.histogram import Histogram
from m4cast.overlay.protocol.effects import Append, Damaged
from m4cast.overlay.store.free_space import FreeSpace
from m4cast.overlay.store.log import Log
from m4cast.overlay.store.table import WriteTxn

T = TypeVar("T")
Work = Callable[[WriteTxn, Log], T]

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_APPEND_BYTES = 512
"""About what an append takes besides its payloads."""
_TRANSACTION_BYTES = 64 << 10
"""About the size of the pages of the trees that a transaction rewrites."""
_LOOKS = 16
"""One part in this many of the reserve may be written between two measurements of the free space. Measured: 64 cost a
relay 5 % of its CPU at full speed."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The limits of a store. Each default says where it comes from."""

    map_bytes: int = 64 << 30
    """The file never grows past this. Higher: address space only, until it is used. Guess."""
    reserve_bytes: int | None = None
    """Publishing stops when less is left; None: see `free_space.default_reserve`. Higher: less use of the disk."""
    group_bytes_max: int = 12_000_000
    """Payload of one commit, about. Higher: more memory and longer waits, and no more speed. At 4 MB a node alone at
    full speed took 15 % more CPU and was a seventh slower; five nodes on two cores never fill it. Measured."""
    linger_ms: int = 0
    """Wait of a small group for more. 5 saves 40 % of the CPU at 1,000 messages/s, for 3 ms more. Measured."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Callbacks to the owner of a store, on the writer's thread unless stated otherwise."""

    on_durable: Callable[[int], None]
    on_failed: Callable[[int, str], None]
    on_broken: Callable[[str], None]
    on_damaged: Callable[[Damaged], None] = lambda damaged: None
    """A batch cannot be read. Called on the reader's own thread."""


@dataclass(frozen=True, slots=True)
class _Job:
    work: Work[Any]
    done: Future[Any]


class _NoSpace(Exception):
    """The transaction was rolled back for lack of space: nothing of it was kept."""


class Writer:
    """Started by its construction. `free_space` measures the space that is left, within a transaction."""

    def __init__(
        self,
        env: Environment,
        log: Log,
        callbacks: Callbacks,
        free_space: Callable[[WriteTxn], FreeSpace],
        limits: StoreLimits,
    ) -> None:
        self._env = env
        self._log = log
        self._callbacks = callbacks
        self._free_space = free_space
        self._group_bytes_max = limits.group_bytes_max
        self._linger_s = limits.linger_ms / 1_000
        self._changed = threading.Condition()
        self._queue: deque[tuple[Append | _Job, int]] = deque()
        """Each with about the bytes that it adds to a group."""
        self._queued_bytes = 0
        self._failure: tuple[int, str] | None = None
        """The first token of a failure that the owner has not acknowledged by `heard`, and the reason."""
        self._refused: deque[tuple[int, str]] = deque()
        self._closing = False
        self.broken: str | None = None
        self._unseen_bytes = 0
        """About what was written since the free space was last measured."""
        self._look_after_bytes = 0
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        """Durations of successful commits, including their sync."""
        self.committing: Callable[[], object] | None = None
        """Called before each commit, whatever it has: while the disk syncs, the processor is free for other work."""
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    # ---- from any thread

    def append(self, append: Append) -> None:
        size = _APPEND_BYTES + append.payload_bytes()
        with self._changed:
            self._check_usable()
            if self._failure is not None:
                self._refused.append((append.token, self._failure[1]))
            else:
                self._queue.append((append, size))
                self._queued_bytes += size
            self._changed.notify()

    def ask(self, work: Work[T]) -> Future[T]:
        """Do this in a transaction, after everything that was requested before it."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # It cannot be cancelled.
        with self._changed:
            self._check_usable()
            self._queue.append((_Job(work, done), 0))
            self._changed.notify()
        return done

    @property
    def queued_bytes(self) -> int:
        """About how many bytes of appends wait for their transaction."""
        return self._queued_bytes

    def heard(self, token: int) -> None:
        """The owner has taken the report about `token`: what it requests from now on takes the failure into account."""
        with self._changed:
            if self._failure is not None and token >= self._failure[0]:
                self._failure = None

    def forget_failure(self) -> None:
        """The owner begins again, with new tokens."""
        with self._changed:
            self._failure = None
            self._refused.clear()

    def close(self) -> None:
        """Write what waits, then end the thread. Harmless when repeated."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _check_usable(self) -> None:
        if self.broken is not None:
            raise StoreError(f"the store is broken ({self.broken}): open it again")
        if self._closing:
            raise StoreError("the store is closed")

    # ---- the thread

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None:
                refused, group = taken
                for token, reason in refused:
                    self._callbacks.on_failed(token, reason)
                if group:
                    self._write(group)
        except Exception as error:  # Whatever it is, nothing more may be written: file and memory may disagree.
            self._break(f"{type(error).__name__}: {error}")

    def _take(self) -> tuple[list[tuple[int, str]], list[Append | _Job]] | None:
        """Take what to report and what to write next; None when nothing more will follow."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._refused or self._closing)
            if self._linger_s and self._queue and not self._refused:
                self._changed.wait_for(
                    lambda: self._queued_bytes >= self._group_bytes_max or self._closing, self._linger_s
                )
            refused = list(self._refused)
            self._refused.clear()
            group: list[Append | _Job] = []
            group_bytes = 0
            while self._queue and group_bytes < self._group_bytes_max:
                item, size = self._queue.popleft()
                group.append(item)
                group_bytes += size
            self._queued_bytes -= group_bytes
            return (refused, group) if refused or group else None

    def _write(self, group: list[Append | _Job]) -> None:
        appends = [item for item in group if isinstance(item, Append)]
        try:
            answers = self._transact(group, appends)
        except _NoSpace as error:
            self._fail(group, appends, str(error))
            return
        except BaseException as error:
            for item in group:
                if isinstance(item, _Job):
                    item.done.set_exception(StoreError(f"the store broke: {error}"))
            raise
        if appends:
            self._callbacks.on_durable(appends[-1].token)
        for job, answer in answers:
            job.done.set_result(answer)

    def _transact(self, group: list[Append | _Job], appends: list[Append]) -> list[tuple[_Job, Any]]:
        """Do all of the group in one transaction. `_NoSpace` when it is known that nothing was kept."""
        answers: list[tuple[_Job, Any]] = []
        payload_bytes = sum(append.payload_bytes() for append in appends)
        txn = self._env.begin(write=True)
        before = txn.id() - 1
        try:
            if payload_bytes:
                self._check_space(txn, payload_bytes)
            for item in group:
                if isinstance(item, Append):
                    self._log.apply(item, txn)
                else:
                    answers.append((item, item.work(txn, self._log)))
            self._log.flush(txn)
            if self.committing is not None:
                self.committing()
            started_s = time.perf_counter()
            txn.commit()
            self.commit_seconds.add(time.perf_counter() - started_s)
        except BaseException as error:
            txn.abort()  # harmless when the commit has ended the transaction
            if isinstance(error, lmdb.Error) and self._is_lack_of_space(error, before, payload_bytes):
                error = _NoSpace(str(error))
            if isinstance(error, _NoSpace):
                self._reload()
            raise error
        return answers

    def _check_space(self, txn: WriteTxn, payload_bytes: int) -> None:
        """Measures only now and then while there is plenty: for a few rows, measuring costs as much as writing."""
        self._unseen_bytes += payload_bytes + _TRANSACTION_BYTES
        if self._unseen_bytes < self._look_after_bytes:
            return
        space = self._free_space(txn)
        self._unseen_bytes = 0
        self._look_after_bytes = 0 if space.is_nearly_full else space.reserve_bytes // _LOOKS
        if space.available_bytes - payload_bytes < space.reserve_bytes // 2:
            raise _NoSpace(
                f"the store is full: {space.available_bytes} bytes are left, {space.reserve_bytes // 2} of them for "
                "retention's own work: keep less, or raise `store_bytes_max` or the disk's size"
            )

    def _is_lack_of_space(self, error: lmdb.Error, before: int, payload_bytes: int) -> bool:
        """True if the error means a lack of space, and the file is as it was before the transaction.

        LMDB reports a write that was cut short by a full disk as an I/O error, so an I/O error counts if the disk has
        less left than the group needs. A commit whose last page, the one that makes it valid, could neither be written
        nor taken back leaves LMDB unusable; reading its state shows that.
        """
        code = getattr(error, "code", 0)
        no_space = isinstance(error, lmdb.MapFullError | lmdb.DiskError) or code in _NO_SPACE
        with self._env.begin() as txn:
            unchanged = txn.id() == before
            if code == errno.EIO:
                no_space = self._free_space(txn).disk_bytes < 2 * payload_bytes
        return no_space and unchanged

    def _reload(self) -> None:
        with self._env.begin() as txn:
            self._log.reload(txn)

    def _fail(self, group: list[Append | _Job], appends: list[Append], reason: str) -> None:
        """Fail a group that was not kept and everything requested after it: none of that may be kept until the owner
        acknowledges.

        Jobs that shared the group are done again, without the appends: one of them may be what frees space.
        """
        jobs = [item for item in group if isinstance(item, _Job)]
        if not appends:
            for job in jobs:
                job.done.set_exception(StoreError(reason))
            return
        with self._changed:
            self._failure = (appends[0].token, reason)
            appends += [item for item, _ in self._queue if isinstance(item, Append)]
            jobs += [item for item, _ in self._queue if isinstance(item, _Job)]
            self._queue = deque((job, 0) for job in jobs)
            self._queued_bytes = 0
        for append in appends:
            self._callbacks.on_failed(append.token, reason)

    def _break(self, reason: str) -> None:
        with self._changed:
            self.broken = reason
            left = [item for item, _ in self._queue if isinstance(item, _Job)]
            self._queue.clear()
            self._refused.clear()
        for job in left:
            job.done.set_exception(StoreError(f"the store is broken ({reason}): open it again"))
        self._callbacks.on_broken(reason)
