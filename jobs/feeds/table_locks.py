"""Locks that let only one ingest fill a table at a time, whatever its engine and its choice of topics.

Two ingests of one topic would each begin after the rows that its table has, and commit the rows that follow twice: the
numbers of their micro-batches are unrelated. So an ingest locks a table before it looks at it, until it
ends. The system releases the locks of a process that is killed.

All locks are bytes of one file among the checkpoints, chosen by a hash of what is locked, so that thousands of tables
need one open file. On Linux they belong to the open file, not to the process: two ingests in one process exclude each
other, too.
"""

import fcntl
import hashlib
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from m4cast.jobs.direct.engine import place_of
from m4cast.overlay.errors import M4castError

FILE = "in-use"
HASH_BYTES = 7
"""Positions in a file are less than 2 ** 63."""


class TableInUseError(M4castError):
    """Another ingest fills the table: the text names the table and the fix."""


class TableLocks:
    """The locks of one ingest. On storage that is not mounted, nothing is locked."""

    def __init__(self, spark: SparkSession, tables: str, checkpoints: str) -> None:
        self._tables = tables
        self._fd: int | None = None
        scheme, place = place_of(spark, checkpoints)
        if scheme == "file":
            Path(place).mkdir(parents=True, exist_ok=True)
            self._fd = os.open(Path(place) / FILE, os.O_RDWR | os.O_CREAT, 0o666)

    def take_table(self, name: str) -> None:
        """Take a lock; this can be repeated. Raises `TableInUseError` if another ingest has it."""
        if not self._taken(name):
            raise TableInUseError(
                f"[M4CAST_TABLE_IN_USE] another ingest is filling {name} in {self._tables}: stop it or wait for its "
                "end, or leave this table out (--topic, --topic-pattern, --only)"
            )

    def take_query(self, selection: str) -> None:
        """The checkpoint of the query for this choice of topics."""
        if not self._taken(f"query {selection}"):
            raise TableInUseError(
                f"[M4CAST_TABLE_IN_USE] another ingest with the same choice of topics is filling {self._tables}: stop "
                "it or wait for its end"
            )

    def _taken(self, what: str) -> bool:
        if self._fd is None:
            return True
        at = int.from_bytes(hashlib.sha256(what.encode()).digest()[:HASH_BYTES])
        with suppress(BlockingIOError, PermissionError):
            if sys.platform == "linux":
                wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)  # the system's struct flock
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, wanted)
            else:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
            return True
        return False

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
