"""Copies of own selective batches: those that were sent, and those that other nodes were spared."""

from m4cast.overlay.protocol.selection.spared import CopyCounts
from m4cast.overlay.protocol.wire.batch import Traffic
from tests.overlay.protocol.stream_parts import chain


def test_each_other_node_counts_once_for_a_batch() -> None:
    first, second = chain(2, rows=3, size=10)
    copies = CopyCounts()
    copies.count(first, sent=2, others=5)
    assert copies.sent == Traffic(batches=2, rows=6, bytes=20)
    assert copies.spared == Traffic(batches=3, rows=9, bytes=30)
    copies.count(second, sent=0, others=5)
    assert (copies.sent.batches, copies.spared.batches) == (2, 8)


def test_a_batch_that_goes_to_nodes_that_are_away_spares_nobody() -> None:
    (batch,) = chain(1)
    copies = CopyCounts()
    copies.count(batch, sent=3, others=2)
    assert (copies.sent.batches, copies.spared.batches) == (3, 0)
