"""The simulator's checkers see in real stores what is wrong there."""

from dataclasses import replace
from pathlib import Path

import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Append
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Skip, SkipReason
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.sim.checkers import Violation
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, node_id, stream_id
from tests.overlay.store.store_parts import received, synced
from tests.processes.histories import check_histories
from tests.processes.load import KeyedPublisher
from tests.processes.reading import open_store


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Two nodes that never run."""
    return LocalCluster.make(tmp_path / "cluster", 2)


def stored(cluster: LocalCluster, name: str, *appends: Append) -> None:
    store = open_store(cluster, name)
    try:
        synced(store, *appends)
    finally:
        store.close()


def keyed(batch: Batch, position: int) -> Batch:
    return seal(replace(batch, publisher="k", position=str(position)))


def publisher_of(cluster: LocalCluster, *positions: int) -> KeyedPublisher:
    publisher = KeyedPublisher("k", cluster.channel("n1"))
    publisher.positions = list(positions)
    return publisher


def test_equal_histories_are_as_promised(cluster: LocalCluster) -> None:
    first = keyed(chain(1)[0], 3)
    rest = chain(2, after=first)
    stored(cluster, "n1", received(1, first, rest[0]), received(2, rest[1]))
    stored(cluster, "n2", received(1, first), received(2, *rest))
    assert check_histories(cluster, publisher_of(cluster, 3)) == 6


def test_what_was_acknowledged_and_is_nowhere_is_seen(cluster: LocalCluster) -> None:
    for name in cluster.names():
        stored(cluster, name, received(1, keyed(chain(1)[0], 3)))
    with pytest.raises(Violation, match="k 4 was answered, parts all are missing"):
        check_histories(cluster, publisher_of(cluster, 3, 4))


def test_a_commit_that_was_made_twice_is_seen(cluster: LocalCluster) -> None:
    store = open_store(cluster, "n1")
    store.close()
    first = keyed(chain(1, stream=StreamId(store.recovered.node_id, "t"))[0], 3)
    again = keyed(chain(1, after=first)[0], 3)
    for name in cluster.names():
        stored(cluster, name, received(1, first, again))
    with pytest.raises(Violation, match="part 0 of k 3 is at 1 and at 2"):
        check_histories(cluster)


def test_another_batch_under_the_same_number_is_seen(cluster: LocalCluster) -> None:
    stored(cluster, "n1", received(1, *chain(1)))
    stored(cluster, "n2", received(1, *chain(1, mark=b"!")))
    with pytest.raises(Violation, match="n2 stores another"):
        check_histories(cluster)


def test_rows_that_one_node_lacks_are_seen(cluster: LocalCluster) -> None:
    batches = chain(2)
    stored(cluster, "n1", received(1, *batches))
    stored(cluster, "n2", received(1, batches[0]))
    with pytest.raises(Violation, match=r"n2 has .* to 2, others to 3"):
        check_histories(cluster)


def test_a_skip_is_seen(cluster: LocalCluster) -> None:
    skip = Skip(stream_id(), 1, 5, SkipReason.LOST, node_id("o"))
    stored(
        cluster, "n1", append_of(1, skips=(skip,), deliveries=(Delivery(skip.stream, 1, 5, 0, 9, 0, How.PULLED, None),))
    )
    with pytest.raises(Violation, match=r"n1 skipped .* LOST"):
        check_histories(cluster)


def test_rows_without_a_record_of_their_delivery_are_seen(cluster: LocalCluster) -> None:
    first, second = chain(2)
    stored(cluster, "n1", received(1, first), append_of(2, batches=(second,)))
    with pytest.raises(Violation, match=r"n1 has .* to 3, and recorded deliveries to 2"):
        check_histories(cluster)
