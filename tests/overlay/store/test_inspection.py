"""A sound store is reported as sound, and each kind of damage by its place. And the command that shows it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
from click.testing import CliRunner, Result

from m4cast.cli import main
from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Staged
from m4cast.overlay.protocol.wire.batch import Skip, SkipReason
from m4cast.overlay.store import inspection
from m4cast.overlay.store.folder import DATA_FILE
from m4cast.overlay.store.inspection import check, stats
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import StoreLimits
from m4cast.overlay.store.table import Tables, WriteTxn, number_key, place_key, sequence_key
from m4cast.overlay.store.tables import FORMAT_VERSION, open_tables
from m4cast.overlay.store.tables.log import LOG, PAYLOADS, entry_value
from m4cast.overlay.store.tables.skips import SKIPS
from m4cast.overlay.store.tables.stage import STAGE, stage_value
from m4cast.overlay.store.tables.streams import NAMES, STREAMS, record_of, stream_key
from m4cast.overlay.store.tables.topics import Keep
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, node_id, stream_id
from tests.overlay.store.store_parts import MIB, from_stage, opened, received, synced

SMALL, LARGE = chain(4, size=500, mark=b"s"), chain(3, stream=stream_id("p", "large"), size=30_000, mark=b"l")
SKIPPED = stream_id("q", "skipped")


def fill(path: Path) -> None:
    with opened(path, limits=StoreLimits(map_bytes=16 * MIB)) as store:
        [own] = chain(1, stream=StreamId(store.recovered.node_id, "own"), size=40_000, mark=b"o")
        synced(
            store,
            received(1, *SMALL),
            received(2, *LARGE),
            append_of(3, skips=(Skip(SKIPPED, 1, 5, SkipReason.LOST, node_id("n")),)),
            append_of(4, stage=(("c", Staged("own", 1, 1, own.payload)), ("waits", Staged("own", 1, 1, b"w" * 5_000)))),
            append_of(5, batches=(from_stage(own),), unstage=("c",)),
        )
        store.set_reader("r", {SMALL[0].stream: 3}, 7).result()


@contextmanager
def changing(path: Path) -> Iterator[tuple[Tables, WriteTxn]]:
    with lmdb.open(str(path), max_dbs=32, map_size=16 * MIB) as env:
        tables = open_tables(env, FORMAT_VERSION)
        with env.begin(write=True) as txn:
            yield tables, txn


def test_a_sound_store_is_sound(tmp_path: Path) -> None:
    fill(tmp_path)
    report = check(tmp_path)
    assert report.problems == []
    assert (report.streams, report.batches, report.rows, report.skips) == (4, 8, 8, 1)
    assert (report.staged, report.payloads, report.in_use) == (1, 5, False)


@pytest.mark.parametrize("mark", [b"s" * 400, b"l" * 20_000, b"o" * 30_000, b"w" * 4_000])
def test_a_flipped_byte_is_found(tmp_path: Path, mark: bytes) -> None:
    fill(tmp_path)
    file = tmp_path / DATA_FILE
    data = bytearray(file.read_bytes())
    at = data.index(mark) + 100
    data[at] ^= 1
    file.write_bytes(data)
    problems = check(tmp_path).problems
    assert len(problems) == 1 and "damaged" in problems[0]


def test_what_is_sound_around_a_damaged_batch_is_read(tmp_path: Path) -> None:
    fill(tmp_path)
    file, stream = tmp_path / DATA_FILE, LARGE[1].stream
    data = bytearray(file.read_bytes())
    first = data.index(b"l" * 20_000)
    data[data.index(b"l" * 20_000, first + 30_000) + 100] ^= 1
    file.write_bytes(data)
    with opened(tmp_path, limits=StoreLimits(map_bytes=16 * MIB)) as store:
        assert store.read_range(stream, 1, 4, MIB) == (LARGE[0],)
        with pytest.raises(StoreError, match="damaged"):
            store.read_range(stream, 2, 4, MIB)
        assert [store.following(stream, first) for first in (1, 2, 3)] == [2, 3, 4]
        assert store.following(stream_id("nobody"), 1) == 0
        assert store.read_range(stream, 3, 4, MIB) == (LARGE[2],)


def lose_entry(tables: Tables, txn: WriteTxn) -> None:
    txn.delete(place_key(1, 2), db=tables[LOG])


def lose_last_entry(tables: Tables, txn: WriteTxn) -> None:
    txn.delete(place_key(1, 4), db=tables[LOG])


def lose_payload(tables: Tables, txn: WriteTxn) -> None:
    txn.delete(sequence_key(2), db=tables[PAYLOADS])


def lose_staged_payload(tables: Tables, txn: WriteTxn) -> None:
    txn.delete(sequence_key(5), db=tables[PAYLOADS])


def lose_skip(tables: Tables, txn: WriteTxn) -> None:
    txn.delete(place_key(3, 1), db=tables[SKIPS])


def lose_stage_id(tables: Tables, txn: WriteTxn) -> None:
    txn.delete(b"waits", db=tables[STAGE])


def swap_entries(tables: Tables, txn: WriteTxn) -> None:
    first, second = (txn.get(place_key(1, at), db=tables[LOG]) or b"" for at in (1, 2))
    txn.put(place_key(1, 1), second, db=tables[LOG])
    txn.put(place_key(1, 2), first, db=tables[LOG])


def another_history(tables: Tables, txn: WriteTxn) -> None:
    [_, other] = chain(2, size=500, mark=b"x")
    txn.put(place_key(1, 2), entry_value(other, 0, 0, 0), db=tables[LOG])


def wrong_holdings(field: str, value: int) -> Callable[[Tables, WriteTxn], None]:
    def change(tables: Tables, txn: WriteTxn) -> None:
        key = stream_key(SMALL[0].stream)
        held = record_of(txn.get(key, db=tables[STREAMS]) or b"")
        setattr(held, field, value)
        txn.put(key, held.to_bytes(), db=tables[STREAMS])

    return change


def lose_name(tables: Tables, txn: WriteTxn) -> None:
    txn.delete(number_key(1), db=tables[NAMES])


def lose_stream(tables: Tables, txn: WriteTxn) -> None:
    txn.delete(stream_key(SMALL[0].stream), db=tables[STREAMS])


def staged_and_committed(tables: Tables, txn: WriteTxn) -> None:
    staged = stage_value(Staged("own", 1, 1, LARGE[0].payload), 1)
    txn.put(b"twice", staged, db=tables[STAGE])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lose_entry, "2 to 2 are missing, and no skip accounts for them"),
        (lose_last_entry, "ends at 4, but its record has 5"),
        (lose_payload, "batch 2: its payload 2 is missing"),
        (lose_staged_payload, "stage id 'waits': its payload 5 is missing"),
        (lose_skip, "ends at 1, but its record has 6"),
        (lose_stage_id, "payload 5 belongs to no batch and no stage id"),
        (swap_entries, "the entry at 1 is batch 2 of"),
        (another_history, "batch 2 does not follow the batch before it"),
        (wrong_holdings("next", 6), "ends at 5, but its record has 6"),
        (wrong_holdings("low", 2), "an entry at 1 is below low, which is 2"),
        (wrong_holdings("last_checksum", 7), "but its record has 0x7"),
        (wrong_holdings("batches", 7), "but its record has (7, "),
        (wrong_holdings("log_bytes", 7), "but its record has (4, 7)"),
        (wrong_holdings("number", 2), "its number 2 is that of another stream"),
        (lose_name, "its number 1 is that of another stream, or of none"),
        (lose_stream, "log: has entries of stream number 1, which does not exist"),
        (staged_and_committed, "batch 1 has payload 1, which is in use elsewhere"),
    ],
)
def test_each_disagreement_is_found(tmp_path: Path, damage: Callable[[Tables, WriteTxn], None], problem: str) -> None:
    fill(tmp_path)
    with changing(tmp_path) as (tables, txn):
        damage(tables, txn)
    problems = check(tmp_path).problems
    assert any(problem in found for found in problems), problems


def test_garbled_pages_are_reported_without_touching_them(tmp_path: Path) -> None:
    """LMDB would follow wild page numbers into the dark: the pages are walked before it is let loose."""
    fill(tmp_path)
    file = tmp_path / DATA_FILE
    data = bytearray(file.read_bytes())
    page = data.index(SMALL[0].content) // 4096
    data[page * 4096 + 16 : page * 4096 + 32] = b"\xff" * 16
    file.write_bytes(data)
    assert any("page" in problem for problem in check(tmp_path).problems)


def test_a_check_in_steps_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    whole = check(tmp_path)
    monkeypatch.setattr(inspection, "STEP_BYTES", 1)
    assert check(tmp_path) == whole


def test_a_store_is_checked_while_it_is_written_and_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the steps of the check, batches come, a staged payload is committed, and the beginning is removed."""
    monkeypatch.setattr(inspection, "STEP_BYTES", 1)
    kept = Retention(Keep(bytes_max=300_000, age_ms_max=None))
    batches = chain(60, size=30_000)
    with opened(tmp_path, retention=kept) as store:
        own = chain(2, stream=StreamId(store.recovered.node_id, "own"), size=40_000)
        synced(store, received(1, own[0], *batches[:10]))
        synced(store, append_of(2, stage=(("s", Staged("own", 1, 1, own[1].payload)),)))
        late = chain(100, stream=stream_id("late", "late"), size=20_000)
        coming = iter(batches[10:])
        appended = 0
        read = store._read

        @contextmanager
        def read_and_write() -> Iterator[Any]:
            nonlocal appended
            if appended == 1:
                synced(store, append_of(99, batches=(from_stage(own[1]),), unstage=("s",)))
            if appended:
                synced(store, received(200 + len(late), late.pop(0)))
            if appended < 50:
                synced(store, received(100 + appended, next(coming)))
                store.trim(7).result()
                appended += 1
            with read() as txn:
                yield txn

        report = inspection.inspect(read_and_write, store._tables)
        assert report.problems == []
        assert appended > 20
        assert store.check().problems == []


# ---- the command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["store", *arguments])


def test_check_passes_a_sound_store(tmp_path: Path) -> None:
    fill(tmp_path)
    result = run("check", str(tmp_path))
    assert result.exit_code == 0
    assert "The store is sound." in result.stdout
    report = json.loads(run("check", str(tmp_path), "--json").stdout)
    assert report["sound"] is True and report["batches"] == 8 and report["problems"] == []


def test_check_reports_damage_and_exits_with_1(tmp_path: Path) -> None:
    fill(tmp_path)
    with changing(tmp_path) as (tables, txn):
        lose_entry(tables, txn)
    result = run("check", str(tmp_path))
    assert result.exit_code == 1
    assert "DAMAGED" in result.stdout
    as_json = run("check", str(tmp_path), "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["sound"] is False


def test_stats_count_the_contents(tmp_path: Path) -> None:
    fill(tmp_path)
    found = json.loads(run("stats", str(tmp_path), "--json").stdout)
    assert found["channel_instance"] == "test" and found["batches"] == 8 and found["staged"] == 1
    assert found["readers"] == [{"name": "r", "lease_until_ms": 7, "lag_rows": 2, "cut_rows": 0}]
    assert {stream["topic"] for stream in found["streams"]} == {"t", "large", "skipped", "own"}
    assert found["log_bytes"] == sum(stream["bytes"] for stream in found["streams"])
    text = run("stats", str(tmp_path))
    assert text.exit_code == 0 and "large" in text.stdout and found["node_id"] in text.stdout
    assert stats(tmp_path).owner.origin_batch == 1


@pytest.mark.parametrize("command", ["check", "stats"])
def test_a_folder_without_a_store_is_an_error_of_one_line(tmp_path: Path, command: str) -> None:
    result = run(command, str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == f"m4cast: {tmp_path}: there is no store here: name the folder of a node\n"
    assert list(tmp_path.iterdir()) == []
