"""Small actions, repeated until a round of them is long enough to time."""

from collections.abc import Callable
from time import perf_counter

from tests.bench.comparison import Side
from tests.bench.processes import Watch

ROUND_SECONDS = 0.2


def repeated(name: str, action: Callable[[], object]) -> Side:
    """Its figure is times per second."""
    times = _times_per_round(action)

    def work(watch: Watch) -> float:
        with watch:
            for _ in range(times):
                action()
        return times / watch.seconds

    return Side(name, work)


def _times_per_round(action: Callable[[], object]) -> int:
    times, seconds = 1, 0.0
    while seconds < ROUND_SECONDS / 2:
        times *= 2
        started = perf_counter()
        for _ in range(times):
            action()
        seconds = perf_counter() - started
    return max(1, int(times * ROUND_SECONDS / seconds))
