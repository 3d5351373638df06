"""The free space of a store, in its map and on its disk.

LMDB never returns pages to the disk: what is deleted is free inside the file. So the free space is what is free in the
file plus what the file can still grow by, which is limited by the map's size, the disk's free space and the process's
limit on the size of files.

Deletes write new pages before they free old ones, so a store that was filled to the last page could not be emptied any
more. Therefore publishing stops at the reserve, the writer takes no payload past half of it, and the rest is for
retention.
"""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from lmdb import Environment

from m4cast.overlay.store.folder import DATA_FILE
from m4cast.overlay.store.table import Tables, Txn

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FreeSpace:
    live_bytes: int
    """Pages in use."""
    file_bytes: int
    map_bytes: int
    disk_bytes: int
    """The growth that the disk and the process's limit on the size of files still allow."""
    reserve_bytes: int

    @property
    def available_bytes(self) -> int:
        """Free bytes in the file, plus those that the file can grow by."""
        growth = max(0, min(self.map_bytes - self.file_bytes, self.disk_bytes))
        return max(0, self.file_bytes - self.live_bytes) + growth

    @property
    def is_nearly_full(self) -> bool:
        """Publishes should be refused: what is left is for what other nodes send, and for retention."""
        return self.available_bytes < self.reserve_bytes


def default_reserve(map_bytes: int) -> int:
    """5 % of the map, within 64 to 256 MiB, and never more than a quarter of it. Guess."""
    return min(max(64 * _MIB, min(map_bytes // 20, 256 * _MIB)), map_bytes // 4)


def measure(path: Path, env: Environment, tables: Tables, txn: Txn, reserve_bytes: int) -> FreeSpace:
    """Costs about 20 us. Pages that a reader pins count as free, though they are not reused before it ends."""
    stats = [txn.stat(database) for database in (None, *tables.values())]
    pages = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
    file_bytes = (path / DATA_FILE).stat().st_size
    disk = os.statvfs(path)
    disk_bytes = disk.f_bavail * disk.f_frsize
    file_bytes_max, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if file_bytes_max != resource.RLIM_INFINITY:
        disk_bytes = min(disk_bytes, max(0, file_bytes_max - file_bytes))
    return FreeSpace(
        live_bytes=pages * stats[0]["psize"],
        file_bytes=file_bytes,
        map_bytes=env.info()["map_size"],
        disk_bytes=disk_bytes,
        reserve_bytes=reserve_bytes,
    )
