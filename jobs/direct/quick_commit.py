"""A commit to Delta's log without Kernel, for which this process writes one small file.

A table that is filled all the time gets most of its commits from one writer, one after the other, and Kernel takes long
for each: it describes the table anew, and Hadoop starts processes to set permissions. So Kernel reads the table once:
which micro-batch of the query its log has, which columns and features it has. As long as the following version is still
free, nothing has changed since: the columns are the same, and the query's later micro-batch is new.
Then the version is taken by a hard link, which fails if it exists. If it does, or if the table needs more in its
commits than is written here, or if a checkpoint of the log is due, the commit is Kernel's. So it is if the known
version is another file than it was: the table may have been removed, and another one have as many versions by now.

Spark and Kernel write versions through Hadoop, which looks whether a version exists and then renames a file to it. On
a local disk that replaces a version that was made in between. So a version is looked at again later (`is_replaced`).
"""

import errno
import json
import os
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from m4cast.jobs.direct.data_file import DataFile
from m4cast.jobs.direct.durable import sync
from m4cast.jobs.direct.layout import FileLayout

FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "invariants",
        "timestampNtz",
    }
)
"""Delta's writer features that ask nothing of a commit that only adds files."""
CHECKPOINT_EVERY = "delta.checkpointInterval"
CHECKPOINT_EVERY_DEFAULT = "10"
IS_BLIND_APPEND = False
"""Kernel says the same of its commits: they depend on which micro-batches the log has."""


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last version of a table that this process knows: its own, or that with which it began. The table can get the
    next one without Kernel."""

    version: int
    query: str
    micro_batch: int
    layout: FileLayout
    checkpoint_every: int
    file: "VersionFile | None" = field(compare=False)
    """The version's."""

    @classmethod
    def noted(
        cls,
        version: int,
        query: str,
        micro_batch: int,
        layout: FileLayout,
        features: Collection[str],
        properties: Mapping[str, str],
    ) -> "LastCommit | None":
        """None if the next commit is Kernel's in any case."""
        if layout.partition is not None or not FEATURES.issuperset(features):
            return None
        every = int(properties.get(CHECKPOINT_EVERY, CHECKPOINT_EVERY_DEFAULT))
        return cls(version, query, micro_batch, layout, every, VersionFile.of(log_of(layout), version))

    def followed(
        self, files: Sequence[DataFile], layout: FileLayout, query: str, micro_batch: int, writer: str
    ) -> "LastCommit | None":
        """Commit these files as the next version. None if nothing was done, since Kernel has to do it."""
        version = self.version + 1
        is_next = layout is self.layout and query == self.query and micro_batch > self.micro_batch
        if not is_next or version % self.checkpoint_every == 0:
            return None
        log = log_of(layout)
        if self.file is None or self.file != VersionFile.of(log, self.version):
            return None
        if not _taken(log, version, _commit(files, query, micro_batch, writer)):
            return None
        return replace(self, version=version, micro_batch=micro_batch, file=VersionFile.of(log, version))


class VersionFile(NamedTuple):
    """Differs for a version in place of another one, or of another table."""

    inode: int
    written_at_ns: int

    @classmethod
    def of(cls, log: Path, version: int) -> "VersionFile | None":
        try:
            found = path_of(log, version).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(found.st_ino, found.st_mtime_ns)


def is_replaced(log: Path, version: int, query: str, micro_batch: int) -> bool:
    """True if the version, in which this micro-batch was committed, is another commit now. A version that is gone was
    not replaced: Delta removes those that a checkpoint contains."""
    try:
        actions = path_of(log, version).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return False
    ours = [json.loads(action)["txn"] for action in actions if action.startswith('{"txn"')]
    return all((txn["appId"], txn["version"]) != (query, micro_batch) for txn in ours)


def log_of(layout: FileLayout) -> Path:
    return Path(layout.folder) / "_delta_log"


def path_of(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def _commit(files: Sequence[DataFile], query: str, micro_batch: int, writer: str) -> str:
    """The commit info that Spark would write, with the same parameters and metrics in the table's history."""
    now_ms = time.time_ns() // 1_000_000
    about = {
        "timestamp": now_ms,
        "engineInfo": writer,
        "operation": "STREAMING UPDATE",
        "operationParameters": {"outputMode": "Append", "queryId": query, "epochId": str(micro_batch)},
        "isBlindAppend": IS_BLIND_APPEND,
        "txnId": str(uuid.uuid4()),
        "operationMetrics": {
            "numRemovedFiles": "0",
            "numAddedFiles": str(len(files)),
            "numOutputRows": str(sum(file.rows for file in files)),
            "numOutputBytes": str(sum(file.bytes for file in files)),
        },
    }
    actions: list[dict[str, dict[str, object]]] = [
        {"commitInfo": about},
        {"txn": {"appId": query, "version": micro_batch, "lastUpdated": now_ms}},
    ]
    for file in files:
        add: dict[str, object] = {
            "path": file.name,
            "partitionValues": {},
            "size": file.bytes,
            "modificationTime": file.modified_at_ms,
            "dataChange": True,
            "stats": file.statistics,
        }
        actions.append({"add": add})
    return "".join(f"{json.dumps(action, separators=(',', ':'))}\n" for action in actions)


def _taken(log: Path, version: int, commit: str) -> bool:
    """Write the version, unless it exists. False, too, if the file system has no hard links."""
    new = log / f".{version:020}.{uuid.uuid4()}"
    try:
        with new.open("x", encoding="utf-8") as file:
            file.write(commit)
            file.flush()
            os.fsync(file.fileno())  # a version whose content was lost with the power would spoil the table
        os.link(new, path_of(log, version))
    except FileExistsError:
        if new.stat().st_nlink != 2:  # on NFS, an answer can be lost, and the repeated request finds our own link
            return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        return False
    finally:
        new.unlink(missing_ok=True)
    sync(log)
    return True
