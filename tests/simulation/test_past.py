"""A node on an older copy of its store, and who is there when it starts: what it may number, and who reports a fork."""

from dataclasses import replace

import pytest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.protocol.effects import KeyMove, Output, Publish, Published, Refused, Staged, Trace
from m4cast.overlay.sim.checkers import ExactlyOnce, Numbers, unsettled_graph
from m4cast.overlay.sim.disk import Disk
from m4cast.overlay.sim.places import Network, Observer, Place
from m4cast.overlay.sim.world import World, node_config

BOUND_MS = 60_000


class Answers(Observer):
    """The answers to clients, and the nodes that reported a fork."""

    outputs = (Published, Refused, Trace)

    def __init__(self) -> None:
        self.published: dict[int, Published] = {}
        self.refused: dict[int, Refused] = {}
        self.forks: list[str] = []

    def output(self, place: Place, output: Output) -> None:
        match output:
            case Published(request):
                self.published[request] = output
            case Refused(request):
                self.refused[request] = output
            case Trace("fork"):
                self.forks.append(place.name)
            case _:
                pass


class Past:
    """n0 publishes rows in batches of two that n1 has; n2 has not joined yet. The nodes are all portals."""

    def __init__(self, *, start_from: str = "earliest") -> None:
        self.world = World(1, ClusterConfig(beacon_interval_ms=3_000), Network())
        self.answers = Answers()
        numbers = Numbers(self.world)
        self.world.watch(numbers, ExactlyOnce(numbers), self.answers)
        self.places = [self.world.add(node_config(index, (0, 1, 2), start_from=start_from)) for index in range(3)]
        self.request = 0
        self.start(0, 1)
        self.copy = self.places[0].disk.content.copy()
        for position in (1, 2):
            assert self.publishes(position)
        self.world.run(self.world.now_ms + 1_000)

    def start(self, *indexes: int) -> None:
        for index in indexes:
            self.world.start(self.places[index])
        assert self.world.run_until(lambda: not unsettled_graph(self.world), BOUND_MS)
        self.world.run(self.world.now_ms + 4_000)

    def publishes(self, position: int, rows: int = 2) -> bool:
        """True if n0 takes the publish that moves its key there."""
        self.request += 1
        expect = str(position - 1) if position > 1 else None
        payloads = (Staged("t", rows, 1, b"a%d" % position), Staged("u", rows, 1, b"b%d" % position))
        move = KeyMove("k", expect, str(position))
        self.world.feed(self.places[0], Publish(self.request, payloads, (move,)))
        self.world.run(self.world.now_ms + 1_000)
        return self.request in self.answers.published

    def roll_back(self) -> None:
        """All nodes are down, and n0's store is the older copy."""
        for place in self.world.up():
            self.world.crash(place, silent=False)
        place = self.places[0]
        place.disk = Disk(self.copy.node_id)
        place.disk.content = self.copy.copy()

    def origins(self) -> set[str]:
        return {rows.stream.origin.hex() for rows in self.answers.published[self.request].ranges}


def test_a_newcomers_word_is_no_proof() -> None:
    past = Past()
    past.roll_back()
    past.start(0, 2)
    assert not past.publishes(3)
    refused = past.answers.refused[past.request]
    assert refused.code == "not-ready"
    assert refused.detail.startswith("no node that knew this one before can be reached")
    assert "n1 at h1:7400" in refused.detail and "--trust-store" in refused.detail
    past.start(1)
    assert past.places[0].rollbacks == 1
    assert past.publishes(2), "the last move once more"
    assert past.origins() == {past.copy.node_id.hex()}, "it is the commit of before"
    assert past.publishes(3)
    assert past.answers.forks == []


@pytest.mark.parametrize("start_from", ["earliest", "latest"])
@pytest.mark.parametrize("crash_after_ms", [None, *range(0, 60, 4)])
def test_the_last_move_is_never_numbered_twice(start_from: str, crash_after_ms: int | None) -> None:
    """The copy is from before the first row; the node is killed once more while its former rows come back."""
    past = Past(start_from=start_from)
    past.roll_back()
    past.world.start(past.places[1])
    past.world.run(past.world.now_ms + 5_000)
    past.world.start(past.places[0])
    assert past.world.run_until(lambda: past.places[0].rollbacks == 1, BOUND_MS, step_ms=1)
    if crash_after_ms is not None:
        past.world.run(past.world.now_ms + crash_after_ms)
        past.world.crash(past.places[0], silent=False)
        past.world.start(past.places[0])
    assert past.world.run_until(lambda: past.publishes(2), BOUND_MS)
    assert past.origins() == {past.copy.node_id.hex()}


@pytest.mark.parametrize(("rows", "who"), [(1, {"n0", "n2"}), (2, {"n1"}), (3, {"n1"}), (5, {"n1"})])
def test_who_sees_two_histories_reports_them_whatever_their_batches(rows: int, who: set[str]) -> None:
    """The operator vouches for the old copy, n0 numbers anew, and then n1 comes back with the former rows. Whoever has
    less asks the other, from within a batch or not. Histories of equal length show with the next batch."""
    past = Past()
    past.roll_back()
    place = past.places[0]
    place.config = replace(place.config, trust_store=True)
    past.start(0, 2)
    for position in (1, 2):
        assert past.publishes(position, rows)
    assert past.answers.forks == []
    past.start(1)
    past.world.run(past.world.now_ms + 20_000)
    assert past.publishes(3, rows), "nobody waits for rows of a history that cannot be had"
    past.world.run(past.world.now_ms + 5_000)
    assert set(past.answers.forks) == who
