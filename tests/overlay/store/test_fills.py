"""A store in which a batch takes the place of a skip, or of a part of one."""

from pathlib import Path

import pytest

from m4cast.overlay.protocol.effects import Append
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Skip, SkipReason
from m4cast.overlay.store.store import Store
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, node_id, stream_id
from tests.overlay.store.store_parts import opened, received, synced

S = stream_id()
BATCHES = chain(4, rows=2)


def skipped(store: Store) -> None:
    """The first three batches were skipped, the fourth came."""
    skip = Skip(S, 1, 6, SkipReason.EXPIRED, node_id("m"))
    record = Delivery(S, 1, 6, 0, 5, 0, How.PULLED, None)
    synced(store, append_of(1, skips=(skip,), deliveries=(record,)), received(2, BATCHES[3]))


def filling(token: int, batch: Batch) -> Append:
    record = Delivery(
        S, batch.first_sequence, batch.last_sequence, batch.published_at_ms, 9, 1, How.FILLED, node_id("a")
    )
    return append_of(token, fills=(batch,), deliveries=(record,))


def skips(store: Store) -> list[tuple[int, int]]:
    return [(skip.first_sequence, skip.last_sequence) for skip in store.recovered.streams[S].skips]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("size", [10, 50_000])
def test_batches_take_the_place_of_a_skip_in_any_order(tmp_path: Path, order: tuple[int, ...], size: int) -> None:
    batches = chain(4, rows=2, size=size)
    with opened(tmp_path) as store:
        skip = Skip(S, 1, 6, SkipReason.LOST, node_id("m"))
        record = Delivery(S, 1, 6, 0, 5, 0, How.PULLED, None)
        synced(store, append_of(1, skips=(skip,), deliveries=(record,)), received(2, batches[3]))
        for token, at in enumerate(order, start=3):
            synced(store, filling(token, batches[at]))
        assert store.read_range(S, 1, 99, 10**9) == tuple(batches)
        records = store.read_deliveries(0, 100)
        assert [each.delivery.how for each in records][2:] == [How.FILLED] * 3
        assert store.check().problems == []
        assert store.held()[S].batches == 4
    with opened(tmp_path) as store:
        assert skips(store) == []
        assert store.recovered.streams[S].next == 9


def test_what_is_left_of_a_skip_stays_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        skipped(store)
        synced(store, filling(3, BATCHES[1]))
    with opened(tmp_path) as store:
        assert skips(store) == [(1, 2), (5, 6)]
        assert store.read_range(S, 3, 5, 10**9) == (BATCHES[1],)


@pytest.mark.parametrize("at", [2, 3])
def test_a_batch_of_another_history_or_without_a_skip_is_left_alone(tmp_path: Path, at: int) -> None:
    """The third does not lead to the fourth; where the fourth is, nothing was skipped."""
    other = chain(4, rows=2, mark=b"x")[at]
    with opened(tmp_path) as store:
        skipped(store)
        before = len(store.read_deliveries(0, 100))
        synced(store, filling(3, other))
        assert len(store.read_deliveries(0, 100)) == before
        assert store.read_range(S, 7, 99, 10**9) == (BATCHES[3],)
    with opened(tmp_path) as store:
        assert skips(store) == [(1, 6)]


def test_a_read_by_time_finds_what_was_filled_before_all_that_was_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        skipped(store)
        assert store.sequence_at(S, 0) == 7
        synced(store, filling(3, BATCHES[0]))
        assert store.sequence_at(S, 0) == 1
