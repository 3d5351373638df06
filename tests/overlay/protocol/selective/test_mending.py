"""A batch that cannot be read and that nobody has: its rows are lost, and nobody acknowledges them any longer."""

import pytest

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Append, Damaged, NoteSkip, RepairBatch
from m4cast.overlay.protocol.selective.mending import MEND_MS
from m4cast.overlay.protocol.wire.batch import Batch, SkipReason
from tests.overlay.protocol.selective.test_memory import FilteringNode
from tests.overlay.protocol.stream_parts import chain, node_id


def after(node: FilteringNode, for_ms: int) -> list[object]:
    """Let this time pass; returns what is written meanwhile."""
    written: list[object] = []
    end_ms = node.now_ms + for_ms
    while node.now_ms < end_ms:
        node.now_ms += 1_000
        while (timer := node.timers.pop_due(node.now_ms)) is not None:
            node.machine.timer(timer, node.now_ms)
        for output in node.machine.take_outputs():
            if isinstance(output, Append):
                written += output.writes
                node.machine.durable(output.token, node.now_ms)
    return written


def own_batch(node: FilteringNode, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """A batch of the node itself that another one has acknowledged, and that cannot be read here any longer."""
    (batch,) = chain(1, stream=StreamId(node.me, "t"))
    node.machine.speaking.open(batch.stream, batch.next_sequence, batch.checksum, 0)
    monkeypatch.setattr(node.machine.speaking, "holders", lambda batch: [node_id("a")])
    assert node.machine.is_acked(batch, 1)
    node.machine.damaged(Damaged(batch.stream, 1, 2, (batch.checksum,)), 0)
    return batch


def test_who_passes_over_lost_rows_does_not_acknowledge_them(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FilteringNode()
    batch = own_batch(node, monkeypatch)
    assert node.machine.is_acked(batch, 1), "somebody may have it"
    (skip,) = (each.skip for each in after(node, 2 * MEND_MS) if isinstance(each, NoteSkip))
    assert (skip.first_sequence, skip.last_sequence, skip.reason) == (1, 1, SkipReason.LOST)
    assert not node.machine.is_acked(batch, 1)


def test_a_batch_that_comes_in_time_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FilteringNode()
    batch = own_batch(node, monkeypatch)
    after(node, MEND_MS // 2)
    assert node.machine.mending.received(batch)
    written = after(node, 2 * MEND_MS)
    assert [type(each) for each in written] == [RepairBatch]
    assert node.machine.is_acked(batch, 1)
