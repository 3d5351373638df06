"""A commit to Delta's log without Kernel, for which this process writes one small file.

A table that is filled all the time gets most of its commits from one writer, one after the other, and Kernel takes long
for each: it describes the table anew, and Hadoop starts processes to set permissions. So Kernel makes the first commit,
which finds out whether the log has the micro-batch already and which features the table has. As long as the following
version is still free, nothing has changed since: the columns are the same, and the query's later micro-batch is new.
Then the version is taken by a hard link, which fails if it exists. If it does, or if the table needs more in its
commits than is written here, or if a checkpoint of the log is due, the commit is Kernel's.
"""

import errno
import json
import os
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from m4cast.jobs.direct.data_file import DataFile
from m4cast.jobs.direct.layout import FileLayout

FEATURES = frozenset(
    {"appendOnly", "changeDataFeed", "clustering", "columnMapping", "deletionVectors", "domainMetadata", "invariants"}
)
"""Delta's writer features that ask nothing of a commit that only adds files."""
CHECKPOINT_EVERY = "delta.checkpointInterval"
CHECKPOINT_EVERY_DEFAULT = "10"


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last commit of this process to a table that can get the next one without Kernel."""

    version: int
    query: str
    micro_batch: int
    layout: FileLayout
    checkpoint_every: int

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
        return cls(version, query, micro_batch, layout, every)

    def followed(
        self, files: Sequence[DataFile], layout: FileLayout, query: str, micro_batch: int, writer: str
    ) -> "LastCommit | None":
        """Commit these files as the next version. None if nothing was done, since Kernel has to do it."""
        version = self.version + 1
        is_next = layout is self.layout and query == self.query and micro_batch > self.micro_batch
        if not is_next or version % self.checkpoint_every == 0:
            return None
        if not _taken(Path(layout.folder) / "_delta_log", version, _commit(files, query, micro_batch, writer)):
            return None
        return replace(self, version=version, micro_batch=micro_batch)


def _commit(files: Sequence[DataFile], query: str, micro_batch: int, writer: str) -> str:
    now_ms = time.time_ns() // 1_000_000
    about = {
        "timestamp": now_ms,
        "engineInfo": writer,
        "operation": "STREAMING UPDATE",
        "operationParameters": {},
        "isBlindAppend": True,
        "txnId": str(uuid.uuid4()),
        "operationMetrics": {},
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
    """Write the version, unless it exists. False, too, if the file system has no hard links, or if the version before
    is gone, since the table was replaced by another."""
    if not _path(log, version - 1).exists():
        return False
    new = log / f".{version:020}.{uuid.uuid4()}"
    try:
        with new.open("x", encoding="utf-8") as file:
            file.write(commit)
            file.flush()
            os.fsync(file.fileno())  # a version whose content was lost with the power would spoil the table
        os.link(new, _path(log, version))
    except FileExistsError:
        return new.stat().st_nlink == 2  # on NFS, an answer can be lost, and the repeated request finds our own link
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        return False
    finally:
        new.unlink(missing_ok=True)
    return True


def _path(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"
