"""How a speed is measured here: beside a plain reference, in the same run, as the best of several rounds.

A machine's mood changes from minute to minute; the ratio of two things timed in turns changes little. The best round is
the one that was disturbed least.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

ROUNDS = 5
ROUND_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Speed:
    """Times per second that something was done, and the same for its reference."""

    what: str
    per_second: float
    reference: str
    reference_per_second: float

    @property
    def ratio(self) -> float:
        return self.per_second / self.reference_per_second

    def as_row(self) -> dict[str, object]:
        return {
            "what": self.what,
            "per second": round(self.per_second),
            "reference": self.reference,
            "reference per second": round(self.reference_per_second),
            "ratio": round(self.ratio, 4),
        }


def compare(what: str, action: Callable[[], object], reference: str, plain: Callable[[], object]) -> Speed:
    """Both actions in turns, each repeated until a round is long enough to time."""
    times = [_times_per_round(each) for each in (action, plain)]
    best = [0.0, 0.0]
    for _ in range(ROUNDS):
        for index, each in enumerate((action, plain)):
            best[index] = max(best[index], _per_second(each, times[index]))
    return Speed(what, best[0], reference, best[1])


def _per_second(action: Callable[[], object], times: int) -> float:
    started = perf_counter()
    for _ in range(times):
        action()
    return times / (perf_counter() - started)


def _times_per_round(action: Callable[[], object]) -> int:
    times = 1
    while (per_second := _per_second(action, times)) * ROUND_SECONDS > 2 * times:
        times *= 2
    return max(1, int(per_second * ROUND_SECONDS))
