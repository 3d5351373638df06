"""Memory and records by what a node wants, not by what it does not want (H26): ten million filtered batches."""

import gc
import tracemalloc
from itertools import count
from random import Random

import pytest

from m4cast.overlay.ids import NodeId, StreamId, new_node_id
from m4cast.overlay.protocol.effects import Append, MarksRecord, Want
from m4cast.overlay.protocol.selective.contract import SelectiveRecovered, SelectiveSettings
from m4cast.overlay.protocol.selective.selective import Selective
from m4cast.overlay.protocol.timers import Timers
from m4cast.overlay.protocol.wire.selective import CoverEntry, CoverStmt, Destination, ProfileText, RoutedFrame

COVERED = 100
"""Batches of one row that a statement covers: a hundred in a second."""
FLAT_BYTES = 20_000
"""What may be held more at the end: no more than a statement and what it makes."""


class FilteringNode:
    """One that follows a stream and gets nothing of it but statements, each of which is on its disk at once."""

    def __init__(self) -> None:
        ids = [new_node_id(Random(number)) for number in range(2)]
        self.me, origin = ids
        self.stream = StreamId(origin, "t")
        recovered = SelectiveRecovered(1, 0, {}, {}, {}, {})
        tokens = count(1)
        self.timers = Timers()
        self.machine = Selective((self.me,), recovered, SelectiveSettings(), self.timers, lambda: next(tokens))
        self.machine.set_present(lambda: [origin])
        self.machine.plan(next(tokens), 1, [Want("w", "t", ProfileText("sql", 1, "country = 'A'"), 0, True)], ())
        self.machine.durable(1, 0)
        self.now_ms = 0
        self.next = 1

    def cover(self) -> None:
        self.now_ms += 1_000
        stated = CoverEntry("t", self.next, self.next + COVERED, 0)
        self.next = stated.next
        self._receive(self.stream.origin, CoverStmt(self.stream.origin, (stated,)))
        while (timer := self.timers.pop_due(self.now_ms)) is not None:
            self.machine.timer(timer, self.now_ms)
        self.machine.take_outputs()

    def _receive(self, speaker: NodeId, cover: CoverStmt) -> None:
        self.machine.received(RoutedFrame(speaker, (Destination(self.me, 0, 1),), cover), self.now_ms)
        for output in self.machine.take_outputs():
            if isinstance(output, Append):
                (record,) = output.writes
                assert isinstance(record, MarksRecord) and len(record.content or ()) <= 2, "the next replaces it"
                self.machine.durable(output.token, self.now_ms)


def held_after(node: FilteringNode, covers: int) -> int:
    for _ in range(covers):
        node.cover()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def filtered_without_growing(batches: int) -> None:
    node = FilteringNode()
    tracemalloc.start()
    try:
        first = held_after(node, 200)
        last = held_after(node, batches // COVERED - 200)
    finally:
        tracemalloc.stop()
    assert node.next == batches + 1
    assert node.machine.receiving.coverage("w", node.stream) == node.next
    assert last - first < FLAT_BYTES, f"{last - first} bytes more after {batches} batches"


def test_filtered_batches_are_not_remembered() -> None:
    filtered_without_growing(200_000)


@pytest.mark.soak
def test_ten_million_filtered_batches_are_not_remembered() -> None:
    filtered_without_growing(10_000_000)
