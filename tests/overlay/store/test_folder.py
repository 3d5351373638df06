"""A folder that is not this node's store, or is damaged, is refused by name and left as it was."""

import os
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.store.folder import DATA_FILE
from m4cast.overlay.store.inspection import check
from m4cast.overlay.store.store import ChannelName, StoreLimits
from m4cast.overlay.store.table import FORMAT_VERSION_MIN, of_json, to_json
from m4cast.overlay.store.tables import FORMAT_VERSION
from m4cast.overlay.store.tables.meta import FORMAT
from tests.overlay.protocol.stream_parts import chain
from tests.overlay.store.store_parts import MIB, opened, received, synced

HOLD = """
import sys
from m4cast.overlay.store.store import *
nothing = Callbacks(lambda t: None, lambda t, r: None, lambda r: None)
store = Store.open(sys.argv[1], ChannelName("m4cast", "test"), nothing, limits=StoreLimits(map_bytes=1 << 24))
print("open", flush=True)
sys.stdin.read()
"""


def filled(path: Path) -> bytes:
    """A store with something in it, closed; the bytes of its file."""
    with opened(path, limits=StoreLimits(map_bytes=16 * MIB)) as store:
        synced(
            store,
            received(1, *chain(100, size=1_000)),
            received(2, *chain(5, stream=None, size=50_000, after=chain(100, size=1_000)[-1])),
        )
    return (path / DATA_FILE).read_bytes()


def refused(path: Path, match: str, **arguments: object) -> None:
    before = {file: file.read_bytes() for file in path.rglob("*.mdb") if file.name == DATA_FILE}
    with pytest.raises(StoreError, match=match), opened(path, **arguments):  # type: ignore[arg-type]
        pass
    assert {file: file.read_bytes() for file in before} == before, "the file was changed"


def test_a_store_in_use_names_its_holder(tmp_path: Path) -> None:
    with opened(tmp_path):
        refused(tmp_path, f"in use by pid {os.getpid()} on ")
    with opened(tmp_path):
        pass


def test_a_store_in_use_by_another_process_names_it_and_is_free_after_its_death(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout and holder.stdout.readline() == b"open\n"
        refused(tmp_path, f"in use by pid {holder.pid} on ")
        assert check(tmp_path).in_use
    finally:
        holder.kill()
        holder.communicate()
    assert not check(tmp_path).in_use
    with opened(tmp_path) as store:
        assert store.recovered.incarnation == 2


@pytest.mark.parametrize("version", [99, FORMAT_VERSION_MIN - 1, "4"])
def test_another_version_is_refused(tmp_path: Path, version: object) -> None:
    filled(tmp_path)
    with lmdb.open(str(tmp_path), max_dbs=32, map_size=16 * MIB) as env:
        meta = env.open_db(b"meta", create=False)
        with env.begin(write=True, db=meta) as txn:
            form = of_json(txn.get(FORMAT) or b"")
            txn.put(FORMAT, to_json(form | {"version": version}))
    refused(
        tmp_path,
        f"format version {version}, this m4cast has version {FORMAT_VERSION} and reads "
        f"{FORMAT_VERSION_MIN} and later: use the m4cast that wrote it",
    )


@pytest.mark.parametrize("channel", [ChannelName("m4cast", "other"), ChannelName("other", "test")])
def test_another_channel_is_refused(tmp_path: Path, channel: ChannelName) -> None:
    filled(tmp_path)
    refused(tmp_path, f"of channel m4cast/test, not of {channel.type}/{channel.instance}", channel=channel)


def test_an_lmdb_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=2) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"b")
    refused(tmp_path, "not a store of m4cast")


def test_a_store_larger_than_allowed_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, limits=StoreLimits(map_bytes=16 * MIB, reserve_bytes=0)) as store:
        synced(store, received(1, *chain(4, size=MIB)))
    refused(tmp_path, "more than the 1048576 allowed", limits=StoreLimits(map_bytes=MIB))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"garbage" * 10_000, id="garbage"),
        pytest.param(lambda data: data[:100], id="100 bytes"),
        pytest.param(lambda data: data[:4096], id="one page"),
        pytest.param(lambda data: data[:8192], id="two pages"),
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: data[: len(data) - 8 * 4096], id="end"),
        pytest.param(lambda data: bytes(4096) + data[4096:], id="first page zero"),
        pytest.param(lambda data: data[:4096] + bytes(4096) + data[8192:], id="second page zero"),
    ],
)
def test_a_truncated_or_garbled_file_is_refused(tmp_path: Path, damage: object) -> None:
    data = filled(tmp_path)
    assert callable(damage)
    (tmp_path / DATA_FILE).write_bytes(damage(data))
    refused(tmp_path, "damaged|cannot be opened")
    with pytest.raises(StoreError):
        check(tmp_path)


def test_a_making_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    (tmp_path / DATA_FILE).touch()
    with opened(tmp_path) as store:
        assert store.recovered.incarnation == 1
    with lmdb.open(str(tmp_path / "b"), max_dbs=2):
        pass
    with opened(tmp_path / "b") as store:
        assert store.recovered.incarnation == 1


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be used"), opened(tmp_path / "file" / "store"):
        pass


# ---- the node id file


def test_the_node_id_file_is_made_with_the_store_and_fits_it(tmp_path: Path) -> None:
    file = tmp_path / "node-id"
    for _ in range(2):
        with opened(tmp_path / "store", node_id_file=file) as store:
            assert file.read_text() == store.recovered.node_id.hex() + "\n"


def test_a_store_of_another_node_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node-id"
    with opened(tmp_path / "mine", node_id_file=file):
        pass
    with opened(tmp_path / "others"):
        pass
    refused(tmp_path / "others", "is the store of node .* but .*node-id names", node_id_file=file)


def test_a_named_node_without_its_store_is_not_a_new_node(tmp_path: Path) -> None:
    file = tmp_path / "node-id"
    file.write_text("ab" * 16)
    refused(tmp_path / "gone", "mount or restore it, or remove .*node-id", node_id_file=file)
    assert not (tmp_path / "gone").exists()
    file.write_text("no id")
    refused(tmp_path / "gone", "not the hexadecimal id", node_id_file=file)


def test_a_new_identity_reaches_the_node_id_file_even_after_a_crash_in_between(tmp_path: Path) -> None:
    file = tmp_path / "node-id"
    with opened(tmp_path / "store", node_id_file=file) as store:
        old = store.recovered.node_id
        new = store.take_new_identity().node_id
        assert file.read_text() == new.hex() + "\n"
    file.write_text(NodeId(old).hex())
    with opened(tmp_path / "store", node_id_file=file) as store:
        assert store.recovered.node_id == new
        assert file.read_text() == new.hex() + "\n"
