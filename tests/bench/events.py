"""Simulator events per second, in a settled channel of 50 nodes with 500 batches in 20 s, heartbeats and beacons,
against a bare loop over a heap of as many entries: what the machines cost on top."""

import itertools
from heapq import heappop, heappush

from m4cast.overlay.sim.run import ScenarioPlan, ScenarioRun
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch

NODES = 50
MESSAGES = 500
RUN_MS = 20_000


def measure(bench: Bench) -> None:
    seeds, events = itertools.count(), 0

    def simulate(watch: Watch) -> float:
        nonlocal events
        run = ScenarioRun(ScenarioPlan("grow", NODES, seed=next(seeds), messages=MESSAGES))
        assert run.join(NODES)
        run.publish_during(RUN_MS)
        before = run.world.events
        with watch:
            run.run_for(RUN_MS)
        events = run.world.events - before
        return events / watch.seconds

    def bare(watch: Watch) -> float:
        with watch:
            _bare_loop(events)
        return events / watch.seconds

    bench.compare("simulator", "events/s", Side("m4cast", simulate), Side("heap push, pop, call", bare))


def _bare_loop(events: int) -> None:
    """Drive a bare heap with as many entries of the shape that the world uses, and as many waiting as a world has."""

    def nothing(*arguments: object) -> None:
        pass

    heap: list[tuple[int, int, object, tuple[object, ...]]] = []
    for count in range(events):
        heappush(heap, (count % 997 + count, count, nothing, (None, None)))
        if len(heap) > 4 * NODES:
            _, _, action, arguments = heappop(heap)
            nothing(action, *arguments)
    while heap:
        _, _, action, arguments = heappop(heap)
        nothing(action, *arguments)
