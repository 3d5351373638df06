"""Rows are found by the time at which they were published, also where that time went back; and the times of own streams
are known after a restart, so that new rows never make it go back."""

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from m4cast.cli import main
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.store import time_index
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import Store
from m4cast.overlay.store.tables.topics import Keep
from tests.overlay.protocol.stream_parts import chain, stream_id
from tests.overlay.store.store_parts import WAIT_S, opened, received, synced

ONE = stream_id()


def published(at: Iterable[int], stream: StreamId = ONE, after: Batch | None = None) -> list[Batch]:
    """A stream with a batch of two rows at each of these times."""
    batches: list[Batch] = []
    for at_ms in at:
        [batch] = chain(1, stream=stream, rows=2, after=after)
        after = seal(replace(batch, published_at_ms=at_ms, checksum=0))
        batches.append(after)
    return batches


def first_at(batches: list[Batch], at_ms: int) -> int | None:
    return next((batch.first_sequence for batch in batches if batch.published_at_ms >= at_ms), None)


@pytest.mark.parametrize(("runs_max", "scan_max"), [(1, 1_000), (3, 2), (1_000, 2)])
@pytest.mark.parametrize("seed", range(2))
def test_rows_are_found_by_time_wherever_the_clock_of_their_origin_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, runs_max: int, scan_max: int
) -> None:
    """The entries of stores that were written when the time could go back across a restart."""
    monkeypatch.setattr(time_index, "RUNS_MAX", runs_max)
    monkeypatch.setattr(time_index, "SCAN_BATCHES_MAX", scan_max)
    random = Random(seed)
    at = [random.randrange(50) if random.random() < 0.3 else 60 + i for i in range(30)]
    batches = published(at)
    with opened(tmp_path) as store:
        synced(store, received(1, *chain(3, stream=stream_id("a"))), received(2, *chain(3, stream=stream_id("z"))))
        for token, batch in enumerate(batches, start=3):  # asked in between: what is known of the times grows
            synced(store, received(token, batch))
            here = batches[: token - 2]
            asked_ms = random.randrange(100)
            assert store.sequence_at(ONE, asked_ms) == first_at(here, asked_ms)
        assert [store.sequence_at(ONE, t) for t in range(100)] == [first_at(batches, t) for t in range(100)]
    with opened(tmp_path) as store:
        assert [store.sequence_at(ONE, t) for t in range(100)] == [first_at(batches, t) for t in range(100)]


def test_what_retention_removed_is_not_found_by_time(tmp_path: Path) -> None:
    batches = published((90, 95, 10, 20, 30))
    with opened(tmp_path, retention=Retention(Keep(age_ms_max=None))) as store:
        synced(store, received(1, *batches))
        assert store.sequence_at(ONE, 91) == 3
        store.set_keep(ONE.topic, Keep(bytes_max=3 * 150, age_ms_max=None)).result(WAIT_S)
        store.trim(1).result(WAIT_S)
        assert store.streams() == {ONE: (5, 11)}
        assert [store.sequence_at(ONE, at_ms) for at_ms in (0, 15, 30, 31, 91)] == [5, 7, 9, None, None]


def test_nothing_is_found_by_time_in_a_stream_without_rows(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        synced(store, received(1, *published((90, 95))))
        store.empty(ONE.topic, 1_000).result(WAIT_S)
        assert store.streams() == {ONE: (5, 5)}
        assert store.sequence_at(ONE, 0) is None


# ---- own streams, over restarts


def own(store: Store, topic: str = "t") -> StreamId:
    return StreamId(store.recovered.node_id, topic)


def test_the_last_time_of_own_streams_is_known_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        mine = own(store)
        synced(store, received(1, *published((5, 9), mine)), received(2, *published((99,), stream_id("z"))))
    with opened(tmp_path) as store:
        assert {stream: kept.last_published_ms for stream, kept in store.recovered.streams.items()} == {
            mine: 9,
            stream_id("z"): 0,
        }


def test_the_last_time_of_an_own_stream_outlives_its_rows(tmp_path: Path) -> None:
    """The others may have them still, and so may readers."""
    with opened(tmp_path, retention=Retention(Keep(age_ms_max=10))) as store:
        mine, deleted = own(store), own(store, "deleted")
        synced(store, received(1, *published((5, 9), mine)), received(2, *published((7,), deleted)))
        store.empty("deleted", 1_000).result(WAIT_S)
        store.trim(1_000).result(WAIT_S)
        assert store.streams() == {mine: (5, 5), deleted: (3, 3)}
    with opened(tmp_path) as store:
        emptied = store.recovered.streams[mine]
        assert (emptied.low, emptied.next, emptied.last_published_ms) == (5, 5, 9)
        assert store.recovered.streams[deleted].last_published_ms == 7
        synced(store, received(1, *published((12,), mine, after=published((5, 9), mine)[-1])))
    with opened(tmp_path) as store:
        assert store.recovered.streams[mine].last_published_ms == 12
        assert store.check().problems == []


# ---- the time by which rows grow old


def test_an_operator_can_have_the_clock_trusted(tmp_path: Path) -> None:
    trust = ["store", "trust-clock", str(tmp_path)]
    assert "there is no store here" in CliRunner().invoke(main, trust).output
    with opened(tmp_path) as store:
        synced(store, received(1, *published((5, 9))))
        assert store.retention_clock_ms() == 9
        assert "in use" in CliRunner().invoke(main, trust).output
    before_ms = time.time() * 1000
    assert CliRunner().invoke(main, trust).exit_code == 0
    with opened(tmp_path) as store:
        assert store.retention_clock_ms() == pytest.approx(before_ms, abs=60_000)
        assert store.check().problems == []
