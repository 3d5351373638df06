"""Rows that were given up turn up again with a node that was away for long: every skip of them is filled."""

import pytest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.calls import ABSENT_PATIENCE_MS
from m4cast.overlay.protocol.effects import Publish, Staged
from m4cast.overlay.protocol.wire.batch import SkipReason
from m4cast.overlay.sim.checkers import Numbers, unsettled
from m4cast.overlay.sim.places import Network, Place
from m4cast.overlay.sim.world import World, node_config

BATCHES = 5


class Lost:
    """n0 published rows that only n2 keeps, which is away; the others have skipped them."""

    def __init__(self, newcomers: int, payload_bytes: int) -> None:
        self.world = World(1, ClusterConfig(beacon_interval_ms=3_000), Network())
        self.numbers = Numbers(self.world)
        self.world.watch(self.numbers)
        self.places = [self.world.add(node_config(index, (0, 1))) for index in range(3 + newcomers)]
        self.start(0, 1, 2)
        for request in range(1, BATCHES + 1):
            self.publish(request, payload_bytes)
        self.stream = StreamId(self.places[0].disk.content.node_id, "t")
        for place in self.places[:2]:
            self.world.trim(place, 0, 0)
        self.publish(BATCHES + 1, 10)
        self.holder = self.places[2]
        self.world.crash(self.holder, silent=False)
        self.start(*range(3, 3 + newcomers))
        assert self.world.run_until(lambda: all(map(self.has_last, self.places[3:])), 3 * ABSENT_PATIENCE_MS)

    def start(self, *indexes: int) -> None:
        for index in indexes:
            self.world.start(self.places[index])
        self.world.run(self.world.now_ms + 5_000)

    def publish(self, request: int, payload_bytes: int) -> None:
        self.world.feed(self.places[0], Publish(request, (Staged("t", 2, 1, bytes([request]) * payload_bytes),)))
        self.world.run(self.world.now_ms + 500)

    def skips(self, place: Place) -> list[tuple[int, int, SkipReason]]:
        log = place.disk.content.logs.get(self.stream)
        return [(skip.first_sequence, skip.last_sequence, skip.reason) for skip in log.skips] if log else []

    def has_last(self, place: Place) -> bool:
        log = place.disk.content.logs.get(self.stream)
        return log is not None and log.next == 2 * BATCHES + 3

    def firsts(self, place: Place) -> list[int]:
        return [batch.first_sequence for batch in place.disk.content.logs[self.stream].batches]


@pytest.mark.parametrize("payload_bytes", [10, 100_000])
@pytest.mark.parametrize("newcomers", [1, 4])
def test_a_node_that_comes_back_fills_the_skips_of_all(newcomers: int, payload_bytes: int) -> None:
    lost = Lost(newcomers, payload_bytes)
    for place in lost.places[3:]:
        assert lost.skips(place) == [(1, 2 * BATCHES, SkipReason.EXPIRED)]
        assert lost.firsts(place) == [2 * BATCHES + 1]
    lost.world.start(lost.holder)
    assert lost.world.run_until(
        lambda: not any(map(lost.skips, lost.places[3:])) and not unsettled(lost.world, lost.numbers), 60_000
    )
    for place in lost.places[3:]:
        assert lost.firsts(place) == [1 + 2 * number for number in range(BATCHES + 1)]
        assert place.node is not None and place.node.holdings.streams[lost.stream].skips == []


def test_what_was_filled_is_there_after_a_restart_and_served_to_others() -> None:
    lost = Lost(1, 10)
    lost.world.start(lost.holder)
    filled = lost.places[3]
    assert lost.world.run_until(lambda: not lost.skips(filled), 60_000)
    lost.world.crash(lost.holder, silent=False)
    lost.world.crash(filled, silent=False)
    late = lost.world.add(node_config(9, (0, 1)))
    lost.world.start(filled)
    lost.world.start(late)
    wanted = lost.firsts(filled)
    assert lost.world.run_until(
        lambda: lost.stream in late.disk.content.logs and lost.firsts(late) == wanted, 60_000
    ), "nothing is skipped any more"
