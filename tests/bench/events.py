"""Simulator events per second, against a bare loop over a heap of as many entries: what the machines cost on top."""

from heapq import heappop, heappush
from time import perf_counter

from m4cast.overlay.sim.run import Plan, Run
from tests.bench.speed import ROUNDS, Speed

NODES = 50
MESSAGES = 500
RUN_MS = 20_000


def measure() -> list[dict[str, object]]:
    """A settled channel of 50 nodes under load: 500 batches in 20 s, heartbeats and beacons."""
    simulated = plain = 0.0
    for seed in range(ROUNDS):
        run = Run(Plan("grow", NODES, seed=seed, messages=MESSAGES))
        assert run.join(NODES)
        run.publish_during(RUN_MS)
        events, started = run.world.events, perf_counter()
        run.run_for(RUN_MS)
        events, seconds = run.world.events - events, perf_counter() - started
        simulated = max(simulated, events / seconds)
        plain = max(plain, events / _bare_loop(events))
    return [Speed("simulator events", simulated, "heap push, pop, call", plain).as_row()]


def _bare_loop(events: int) -> float:
    """Seconds for as many entries of the shape the world uses, with as many waiting as a world has."""

    def nothing(*arguments: object) -> None:
        pass

    started = perf_counter()
    heap: list[tuple[int, int, object, tuple[object, ...]]] = []
    for count in range(events):
        heappush(heap, (count % 997 + count, count, nothing, (None, None)))
        if len(heap) > 4 * NODES:
            _, _, action, arguments = heappop(heap)
            nothing(action, *arguments)
    while heap:
        _, _, action, arguments = heappop(heap)
        nothing(action, *arguments)
    return perf_counter() - started
