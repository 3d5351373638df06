"""The identity of a store's folder: lock, format, channel and node, settled before anything is written.

A store is a folder with LMDB's two files, a `lock` that the process which opened it holds (the kernel releases it when
the process ends, however it ends) and nothing else. A problem is reported as a `StoreError` with what to do; nothing is
overwritten, repaired or guessed.

LMDB maps its file into memory, where a truncated file kills the process (SIGBUS) when a lost page is touched. Therefore
the length of the file is compared with its own header before LMDB opens it, and a file that is shorter is walked page
by page: LMDB may leave its last pages unwritten, if the transaction that allocated them also freed them.

A node id file, if there is one, is kept apart from the store, with the node's settings. It distinguishes the node's own
store from another node's, and a disk that is not mounted from a new node.
"""

import fcntl
import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import lmdb
from lmdb import Environment
from lmdb.verify import VerifyError, verify

from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import NODE_ID_BYTES, NodeId, is_of_lineage
from m4cast.overlay.store.table import FORMAT_VERSION_MIN, Tables
from m4cast.overlay.store.tables import FORMAT_VERSION, FORMAT_VERSION_MAX, TABLES, create_tables, open_tables
from m4cast.overlay.store.tables.meta import (
    COUNTERS,
    FORMAT,
    IDENTITY,
    META,
    Counters,
    Format,
    Identity,
    format_of,
    identity_of,
    read_fact,
    write_retention_clock,
)

DATA_FILE = "data.mdb"
LOCK_FILE = "lock"
READERS_MAX = 510
"""Concurrent read transactions, of all processes."""
_TABLES_MAX = 32
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_META = struct.Struct("<16xIIQQI92x2Q")
_MAGIC = 0xBEEFC0DE


@dataclass(frozen=True, slots=True)
class ChannelName:
    """The two parts of a channel's name."""

    type: str
    instance: str


class FolderLock:
    """Held by the one process that may write. Its file names that process, for the error message of a second one."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        if not self._taken():
            holder = os.pread(self._fd, 200, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise StoreError(
                f"{path}: in use by {holder or 'another process'}: stop it first, or give this node a folder of its own"
            )
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _taken(self) -> bool:
        # A process that checks whether the store is in use (`is_in_use`) holds the lock for a moment.
        for pause_s in (0.0, 0.01, 0.05):
            time.sleep(pause_s)
            with suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def is_in_use(path: Path) -> bool:
    """True if a process has the store open to write."""
    try:
        fd = os.open(path / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


@dataclass(frozen=True, slots=True)
class OpenFolder:
    """A store's folder, open to write, and locked until it is closed."""

    path: Path
    env: Environment
    tables: Tables
    lock: FolderLock
    node_id_file: Path | None

    def close(self) -> None:
        self.env.close()
        self.lock.release()


def open_folder(path: Path, channel: ChannelName, map_bytes: int, node_id_file: Path | None) -> OpenFolder:
    """Create the store or open it, and raise its incarnation. After a `StoreError` nothing has changed."""
    named = None if node_id_file is None else check_node_id_file(node_id_file, path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be used: {error.strerror}") from error
    try:
        env, tables = open_environment(path, channel, map_bytes)
        try:
            _raise_incarnation(path, env, tables, node_id_file, named)
        except BaseException:
            env.close()
            raise
    except BaseException:
        lock.release()
        raise
    return OpenFolder(path=path, env=env, tables=tables, lock=lock, node_id_file=node_id_file)


def open_environment(path: Path, channel: ChannelName, map_bytes: int) -> tuple[Environment, Tables]:
    """Create the store, or open it if its format and channel are right. The caller holds the lock."""
    check_file(path)
    is_new = not (path / DATA_FILE).exists()
    try:
        env = lmdb.open(
            str(path), map_size=map_bytes, max_dbs=_TABLES_MAX, max_readers=READERS_MAX, max_spare_txns=8, mode=0o600
        )
    except lmdb.Error as error:
        raise unusable(path, error) from error
    try:
        if env.stat()["entries"] == 0:  # new, or its creation was interrupted
            tables = _create(env, channel)
            _sync_folder(path)
        else:
            tables = check_format(path, env, channel)
        map_bytes_now = env.info()["map_size"]
        if map_bytes_now > map_bytes:
            raise StoreError(
                f"{path}: has {map_bytes_now} bytes, more than the {map_bytes} allowed: raise `store_bytes_max`"
            )
    except BaseException:
        env.close()
        if is_new:
            (path / DATA_FILE).unlink()
        raise
    return env, tables


def open_to_read(path: Path) -> tuple[Environment, Tables]:
    """Open the store to read, while a node runs on it or not."""
    if not (path / DATA_FILE).exists():
        raise StoreError(f"{path}: there is no store here: name the folder of a node")
    check_file(path)
    try:
        env = lmdb.open(str(path), map_size=0, readonly=True, max_dbs=_TABLES_MAX, max_readers=READERS_MAX)
    except lmdb.Error as error:
        raise unusable(path, error) from error
    try:
        return env, check_format(path, env, None)
    except BaseException:
        env.close()
        raise


def _create(env: Environment, channel: ChannelName) -> Tables:
    with env.begin(write=True) as txn:
        tables = create_tables(env, TABLES, txn)
        form = Format(FORMAT_VERSION, channel.type, channel.instance)
        txn.put(FORMAT, form.to_bytes(), db=tables[META])
        txn.put(IDENTITY, Identity(new_id(), 0, ()).to_bytes(), db=tables[META])
        txn.put(COUNTERS, Counters().to_bytes(), db=tables[META])
    return tables


def new_id() -> NodeId:
    return NodeId(os.urandom(NODE_ID_BYTES))


def check_format(path: Path, env: Environment, channel: ChannelName | None) -> Tables:
    """The tables, if this is a store of a known version and of the given channel."""
    try:
        meta = env.open_db(b"meta", create=False)
        with env.begin() as txn:
            value = txn.get(FORMAT, db=meta)
    except lmdb.NotFoundError:
        value = None
    except lmdb.Error as error:
        raise unusable(path, error) from error
    if value is None:
        raise StoreError(f"{path}: has an LMDB file that is not a store of m4cast: give the node another folder")
    try:
        form = format_of(value)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: its format cannot be read ({error!r}): {_CURE}") from error
    if form.version not in range(FORMAT_VERSION_MIN, FORMAT_VERSION_MAX + 1):
        raise StoreError(
            f"{path}: is a store of format version {form.version}, this m4cast has version {FORMAT_VERSION} and "
            f"reads {FORMAT_VERSION_MIN} and later: use the m4cast that wrote it, or give the node another folder and "
            "let it catch up"
        )
    found = ChannelName(form.channel_type, form.channel_instance)
    if channel is not None and found != channel:
        raise StoreError(
            f"{path}: is a store of channel {found.type}/{found.instance}, not of {channel.type}/{channel.instance}: "
            "correct the channel's name, or give the node another folder"
        )
    try:
        return open_tables(env, form.version)
    except lmdb.Error as error:
        raise unusable(path, error) from error


def set_retention_clock(path: Path, at_ms: int) -> None:
    """Set the time from which the next node on this store measures ages. Refused while a node runs on it."""
    if not (path / DATA_FILE).exists():
        raise StoreError(f"{path}: there is no store here: name the folder of a node")
    lock = FolderLock(path)
    try:
        check_file(path)
        env = lmdb.open(str(path), map_size=0, max_dbs=_TABLES_MAX, max_readers=READERS_MAX)
        try:
            tables = check_format(path, env, None)
            with env.begin(write=True) as txn:
                write_retention_clock(at_ms, tables, txn)
        finally:
            env.close()
    except lmdb.Error as error:
        raise unusable(path, error) from error
    finally:
        lock.release()


# ---- the file, before LMDB opens it

_CURE = "keep a copy, then restore a backup, or start the node in an empty folder and let it catch up"


def unusable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path}: the store cannot be opened ({error}): {_CURE}")


def check_file(path: Path) -> None:
    """`StoreError` for a file that LMDB could not open, or that would kill the process."""
    data = path / DATA_FILE
    if not data.exists():
        return
    if data.stat().st_size == 0:
        return  # created, and nothing written yet
    with data.open("rb") as file:
        heads = [os.pread(file.fileno(), _META.size, page * _PAGE_BYTES) for page in range(2)]
        size = os.fstat(file.fileno()).st_size  # Read after the heads: the file of a running node only grows.
    metas = [_META.unpack(head) for head in heads if len(head) == _META.size]
    if len(metas) < 2 or any(magic != _MAGIC for magic, *_ in metas):
        raise StoreError(f"{data}: is damaged, or not an LMDB file: {_CURE}")
    *_, last_page, _ = max(metas, key=lambda meta: meta[-1])
    if size < (last_page + 1) * _PAGE_BYTES and (problems := structure_problems(path)):
        raise StoreError(f"{data}: is damaged ({problems[0]}): {_CURE}")


def structure_problems(path: Path) -> list[str]:
    """Find damaged pages of a file that no node uses. Reads the whole tree, without LMDB."""
    try:
        return [str(problem) for problem in verify(str(path))]  # type: ignore[no-untyped-call] # its module has no types
    except (VerifyError, OSError) as error:
        return [str(error)]


def _sync_folder(path: Path) -> None:
    """A new file survives power loss only if its folder has been synced, too."""
    for folder in (path, path.parent):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# ---- the node id file


def check_node_id_file(file: Path, path: Path) -> NodeId | None:
    """The id in the file, None if there is no file. `StoreError` if the node has an id but no store: it is not new."""
    if not file.exists():
        return None
    try:
        node_id = NodeId(bytes.fromhex(file.read_text(encoding="ascii").strip()))
    except ValueError as error:
        raise StoreError(f"{file}: is not the hexadecimal id of a node: restore the file, or remove it") from error
    if not (path / DATA_FILE).exists():
        raise StoreError(
            f"{path}: the store of node {node_id.hex()} is missing: mount or restore it, or remove {file} to start as "
            "a new node"
        )
    return node_id


def check_owner(path: Path, file: Path, named: NodeId | None, identity: Identity) -> None:
    """`StoreError` unless the file names this store's node: by its id, by a former one (a new identity may not have
    reached the file), or by an id that it took after this copy of its store was made."""
    own = (identity.node_id, *identity.former_ids)
    if named is not None and named not in own and not is_of_lineage(named, identity.node_id):
        raise StoreError(
            f"{path}: is the store of node {identity.node_id.hex()}, but {file} names {named.hex()}: give this node "
            "its own folder"
        )


def write_node_id_file(file: Path, node_id: NodeId) -> None:
    new = file.with_name(file.name + ".new")
    with new.open("w", encoding="ascii") as out:
        out.write(node_id.hex() + "\n")
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)
    _sync_folder(file.absolute().parent)


def _raise_incarnation(
    path: Path, env: Environment, tables: Tables, id_file: Path | None, named: NodeId | None
) -> None:
    """Durable before the node speaks to anybody: no incarnation is used twice. From here on the store is one of this
    format version."""
    with env.begin() as txn:
        form = format_of(read_fact(FORMAT, tables, txn))
        identity = identity_of(read_fact(IDENTITY, tables, txn))
    if id_file is not None:
        check_owner(path, id_file, named, identity)
    with env.begin(write=True) as txn:
        raised = replace(identity, incarnation=identity.incarnation + 1)
        txn.put(IDENTITY, raised.to_bytes(), db=tables[META])
        if form.version < FORMAT_VERSION:
            tables.update(create_tables(env, (table for table in TABLES if table not in tables), txn))
            txn.put(FORMAT, replace(form, version=FORMAT_VERSION).to_bytes(), db=tables[META])
    if id_file is not None and named != identity.node_id:
        write_node_id_file(id_file, identity.node_id)
