"""A store in which a batch takes the place of a skip, or of a part of one."""

from dataclasses import replace
from pathlib import Path

import pytest

from m4cast.overlay.protocol.effects import Append, PrependBatch
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, Extension, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal, split_extensions
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import Keep, Store
from m4cast.overlay.store.tables.topics import DAY_MS
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, node_id, stream_id
from tests.overlay.store.store_parts import WAIT_S, opened, received, synced

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


# ---- before the first row that is kept


def trimmed(store: Store, number: int) -> None:
    """The four batches came; retention has left only the last `number`."""
    synced(store, received(1, *BATCHES))
    store.set_keep(S.topic, Keep(0, None)).result(WAIT_S)
    until = {S: BATCHES[4 - number].first_sequence if number else BATCHES[3].next_sequence}
    store.compact(until, 10).result(WAIT_S)
    store.set_keep(S.topic, None).result(WAIT_S)
    assert store.held()[S].batches == number


def prepending(token: int, batch: Batch, at_ms: int = 9) -> Append:
    return Append(token, (PrependBatch(batch, at_ms),))


@pytest.mark.parametrize("number", [0, 1, 3])
def test_batches_are_put_back_before_those_that_are_kept(tmp_path: Path, number: int) -> None:
    with opened(tmp_path) as store:
        trimmed(store, number)
        before = len(store.read_deliveries(0, 100))
        for token, batch in enumerate(reversed(BATCHES[: 4 - number]), start=5):
            assert store.before_low(S) == (batch.next_sequence, batch.checksum)
            synced(store, prepending(token, batch))
        assert store.read_range(S, 1, 99, 10**9) == tuple(BATCHES)
        assert store.held()[S].batches == 4
        assert len(store.read_deliveries(0, 100)) == before, "they were delivered once"
        assert store.check().problems == []
    with opened(tmp_path) as store:
        assert (store.recovered.streams[S].low, store.recovered.streams[S].next) == (1, 9)
        assert store.recovered.streams[S].last_checksum == BATCHES[3].checksum


def test_a_batch_that_does_not_end_there_or_has_another_history_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        trimmed(store, 2)
        synced(store, prepending(5, BATCHES[0]), prepending(6, chain(4, rows=2, mark=b"x")[1]))
        synced(store, prepending(7, chain(1, stream=stream_id("x"))[0]))
        assert store.streams() == {S: (5, 9)}
        assert store.before_low(stream_id("x")) is None
    with opened(tmp_path / "none") as store:
        trimmed(store, 0)
        synced(store, prepending(5, chain(4, rows=2, mark=b"x")[3]))
        assert store.streams() == {S: (9, 9)}


def test_what_was_put_back_is_kept_for_a_day(tmp_path: Path) -> None:
    """Its age counts from then on, where rows are kept for a day or longer."""
    now_ms = 100 * DAY_MS
    with opened(tmp_path, retention=Retention(Keep(None, 7 * DAY_MS))) as store:
        trimmed(store, 1)
        synced(store, prepending(5, BATCHES[2], now_ms), prepending(6, BATCHES[1], now_ms))
        store.trim(now_ms + DAY_MS - 1).result(WAIT_S)
        assert store.streams() == {S: (3, 9)}
        store.trim(now_ms + DAY_MS + 1).result(WAIT_S)
        assert store.streams() == {S: (9, 9)}


def test_a_record_has_what_else_the_checksum_covers_while_its_batch_is_kept(tmp_path: Path) -> None:
    extensions = (Extension(1, must_understand=False, value=b"about"), Extension(9, must_understand=False, value=b""))
    batch = seal(replace(BATCHES[0], publisher="shop", position="7", parts=3, part=1, extensions=extensions))
    with opened(tmp_path) as store:
        synced(store, received(1, batch))
        (record,) = store.read_deliveries(0, 10)
        facts = record.facts
        assert facts is not None
        assert facts[:7] == (1, 1, "shop", "7", 1, 3, 0)
        assert split_extensions(facts.extensions, 0, len(facts.extensions)) == extensions
        store.empty(S.topic, 10).result(WAIT_S)
        assert [each.facts for each in store.read_deliveries(0, 10)] == [None]
