"""The way of measuring: m4cast and its references do the same work in turns, after a warm-up.

A machine's mood changes from minute to minute; the ratio of two things that were done right after each other changes
little. So each round runs all sides, what is reported is the median of the rounds' ratios with the least and the
greatest, and speeds are there to say what was compared.

    def measure(bench: Bench) -> None:
        with bench_cluster(1) as cluster, discarding_server() as null:
            bench.compare(
                "publish", "MB/s",
                Side("m4cast", lambda watch: put(cluster, watch), pids(cluster)),
                Side("null Flight server", lambda watch: put(null, watch)),
                amount=600, gb=0.6, bar=0.8,
            )
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from tests.bench.processes import Watch

ROUNDS = 5
WARM_ROUNDS = 1
Better = Literal["higher", "lower"]
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Side:
    """One way to do the work. `work` does one round of it, with the part that counts inside `with watch:`, and returns
    its figure; None stands for the comparison's `amount` by the seconds."""

    name: str
    work: Callable[[Watch], float | None]
    processes: Mapping[str, int] = field(default_factory=dict)
    """By name, those that run all the time; `watch.add` tells of others."""
    gb: float | None = None
    """Payload of one round, if it is not that of the comparison."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A reference that is not to be had here."""

    name: str
    why: str


@dataclass(slots=True)
class Measured:
    """The results of one side's rounds."""

    name: str
    gb: float
    """Payload of one round."""
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    """Of all rounds, by process."""
    peak_mb: dict[str, float] = field(default_factory=dict)

    def add(self, value: float, watch: Watch) -> None:
        self.values.append(value)
        self.seconds.append(watch.seconds)
        for name, cpu in watch.cpu_s.items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + cpu
        for name, peak in watch.peak_mb.items():
            self.peak_mb[name] = max(self.peak_mb.get(name, 0.0), peak)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The first of `sides` is ours."""

    what: str
    unit: str
    better: Better
    bar: float | None
    sides: tuple[Measured, ...]
    missing: tuple[Missing, ...]

    def ratios(self, side: Measured) -> list[float]:
        """Ours by the side's, round by round: above 1 is more, which is better or worse as `better` says."""
        return [ours / theirs for ours, theirs in zip(self.sides[0].values, side.values, strict=True)]

    def is_met(self, side: Measured) -> bool:
        assert self.bar is not None
        ratio = median(self.ratios(side))
        return ratio >= self.bar if self.better == "higher" else ratio <= self.bar

    def cpu(self, side: Measured) -> dict[str, float]:
        """CPU seconds per GB of payload, or, where bytes are not the point, cores that were busy."""
        whole = side.gb * len(side.values) if side.gb else sum(side.seconds)
        return {name: cpu / whole for name, cpu in side.cpu_s.items()}

    @property
    def cpu_unit(self) -> str:
        return "CPU s/GB" if self.sides[0].gb else "busy cores"


class Bench:
    """The place that a benchmark reports to. `quick`: as little as still shows something, in one round; `rounds`: so
    many of each, whatever the benchmark would choose."""

    def __init__(
        self,
        *,
        quick: bool = False,
        rounds: int | None = None,
        report: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.quick = quick
        self._rounds = rounds or (1 if quick else None)
        self.comparisons: list[Comparison] = []
        self.facts: list[Row] = []
        self._report = report

    def of(self, full: int, quick: int) -> int:
        """An amount of something."""
        return quick if self.quick else full

    def compare(
        self,
        what: str,
        unit: str,
        ours: Side,
        *references: Side | Missing,
        amount: float = 0.0,
        gb: float = 0.0,
        better: Better = "higher",
        bar: float | None = None,
        rounds: int = ROUNDS,
        warm_rounds: int = WARM_ROUNDS,
    ) -> Comparison:
        """The result of one round: `amount` in units, `gb` of payload. `bar`: the ratio to the first reference that is
        to be reached."""
        sides = [ours, *(side for side in references if isinstance(side, Side))]
        measured = tuple(Measured(side.name, gb if side.gb is None else side.gb) for side in sides)
        rounds = self._rounds or rounds
        warm_rounds = min(warm_rounds, 1) if self.quick else warm_rounds
        for number in range(warm_rounds + rounds):
            for side, seen in zip(sides, measured, strict=True):
                self._report(f"{what}: round {number + 1} of {warm_rounds + rounds}, {side.name}")
                gc.collect()
                watch = Watch(side.processes)
                value = side.work(watch)
                assert watch.seconds > 0, f"{side.name} measured nothing: `with watch:` goes around what counts"
                if number >= warm_rounds:
                    seen.add(amount / watch.seconds if value is None else value, watch)
        missing = tuple(side for side in references if isinstance(side, Missing))
        self.comparisons.append(Comparison(what, unit, better, bar, measured, missing))
        return self.comparisons[-1]

    def fact(self, **row: object) -> None:
        """A line of a table without rounds: counts, and figures of virtual time."""
        self.facts.append(row)
