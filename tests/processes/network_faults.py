"""Faults of networks and hosts, drawn from a seed: what happens to whom, and for how long.

Every fault begins, lasts for some seconds and is taken back. Those of lines add up where they meet; those of a node (a
crash, another address) do not: a node has one of them at a time. Host 0 is the clients', so they have their faults too.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from random import Random

from tests.processes.hosted_cluster import HostedCluster
from tests.processes.wire import FINE, Weather

LASTS_S = (2.0, 12.0)
PAUSE_S = (0.3, 2.5)
"""Between the beginnings of two faults."""
CUTS_MAX = 2
"""At a time: what is cut off meets no other fault."""
Lines = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    until_s: float
    lines: Lines
    weather: Weather
    node: str = ""
    """Whose host or process it is about."""


class NetworkFaults:
    """Draws faults for a cluster and applies them; time comes in as an argument."""

    def __init__(self, cluster: HostedCluster, random: Random, told: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._random = random
        self._told = told
        self._active: list[Fault] = []
        self._next_s = 0.0
        self._hosts = [cluster.host(name) for name in cluster.names()]

    def go_on(self, now_s: float) -> None:
        """End what is over, and perhaps begin something."""
        for fault in [each for each in self._active if each.until_s <= now_s]:
            self._end(fault)
        if now_s >= self._next_s:
            self._next_s = now_s + self._random.uniform(*PAUSE_S)
            self._begin(self._draw(now_s + self._random.uniform(*LASTS_S)))

    def clear(self) -> None:
        """Take everything back."""
        for fault in list(self._active):
            self._end(fault)

    # ---- drawing

    def _draw(self, until_s: float) -> Fault:
        draws = [self._delayed, self._lossy, self._reordered, self._narrow]
        if sum(fault.weather.cut for fault in self._active) < CUTS_MAX:
            draws += [self._split, self._one_way, self._client_cut]
        busy = [fault.node for fault in self._active if fault.node]
        free = [name for name in self._cluster.names() if name not in busy]
        if 2 * len(free) > len(self._cluster.names()) + 1:  # most nodes are there at any time
            draws += 2 * [lambda until_s: self._of_a_node(self._random.choice(free), until_s)]
        return self._random.choice(draws)(until_s)

    def _some_lines(self) -> Lines:
        """All lines of a host, all from it, or those between two."""
        a, b = self._random.sample(self._hosts, 2)
        others = [host for host in (0, *self._hosts) if host != a]
        here: Lines = [(a, other) for other in others]
        return self._random.choice([here, here + [(other, a) for other in others], [(a, b)], [(a, b), (b, a)]])

    def _delayed(self, until_s: float) -> Fault:
        delay_ms = self._random.uniform(50, 200)
        weather = Weather(delay_ms=delay_ms, jitter_ms=self._random.uniform(0, delay_ms / 2))
        return Fault("delay", until_s, self._some_lines(), weather)

    def _lossy(self, until_s: float) -> Fault:
        return Fault("loss", until_s, self._some_lines(), Weather(loss=self._random.uniform(0.005, 0.1)))

    def _reordered(self, until_s: float) -> Fault:
        weather = Weather(delay_ms=self._random.uniform(5, 50), reorder=self._random.uniform(0.05, 0.5))
        return Fault("reordering", until_s, self._some_lines(), weather)

    def _narrow(self, until_s: float) -> Fault:
        weather = Weather(bytes_per_s=10 ** self._random.uniform(4, 6))
        return Fault("bandwidth", until_s, self._some_lines(), weather)

    def _halves(self) -> tuple[list[int], list[int]]:
        shuffled = self._random.sample(self._hosts, len(self._hosts))
        size = self._random.randint(1, len(shuffled) // 2)
        return shuffled[:size], shuffled[size:]

    def _split(self, until_s: float) -> Fault:
        some, others = self._halves()
        lines = [*product(some, others), *product(others, some)]
        return Fault("partition", until_s, lines, Weather(cut=True))

    def _one_way(self, until_s: float) -> Fault:
        some, others = self._halves()
        lines = list(self._random.choice([product(some, others), product(others, some)]))
        return Fault("one-way partition", until_s, lines, Weather(cut=True))

    def _client_cut(self, until_s: float) -> Fault:
        host = self._random.choice(self._hosts)
        lines = self._random.choice([[(0, host)], [(host, 0)], [(0, host), (host, 0)]])
        return Fault("client cut off", until_s, lines, Weather(cut=True))

    def _of_a_node(self, name: str, until_s: float) -> Fault:
        kind = self._random.choice(["killed", "killed", "moved", "renumbered"])
        if kind == "renumbered" and not self._cluster.answers(name):
            kind = "killed"  # one that has just been started would not find the address that it is to listen on
        return Fault(kind, until_s, [], FINE, name)

    # ---- applying

    def _begin(self, fault: Fault) -> None:
        self._told(f"{fault.name} {fault.node or describe(fault)}")
        self.counts[fault.name] += 1
        self._active.append(fault)
        self._set_lines(fault.lines)
        match fault.name:
            case "killed":
                self._cluster.kill(fault.node)
            case "moved":
                self._cluster.kill(fault.node)
                self._cluster.change_address(fault.node)
                self._cluster.advertise_new_address(fault.node)
            case "renumbered":
                self._cluster.change_address(fault.node)

    def _end(self, fault: Fault) -> None:
        self._active.remove(fault)
        self._set_lines(fault.lines)
        match fault.name:
            case "killed" | "moved":
                self._cluster.come_back(fault.node)
            case "renumbered":
                self._cluster.change_address_back(fault.node)

    def _set_lines(self, lines: Lines) -> None:
        """Change the line to the effect of all faults together."""
        by_weather: dict[Weather, Lines] = {}
        for line in lines:
            weather = FINE
            for fault in self._active:
                if line in fault.lines:
                    weather = weather.and_also(fault.weather)
            by_weather.setdefault(weather, []).append(line)
        for weather, alike in by_weather.items():
            self._cluster.hosts.set_weather(alike, weather)


def describe(fault: Fault) -> str:
    weather = fault.weather
    facts = [
        f"{weather.delay_ms:.0f} ms" if weather.delay_ms else "",
        f"+-{weather.jitter_ms:.0f} ms" if weather.jitter_ms else "",
        f"{weather.loss:.1%}" if weather.loss else "",
        f"{weather.reorder:.0%} overtake" if weather.reorder else "",
        f"{weather.bytes_per_s / 1000:.0f} KB/s" if weather.bytes_per_s else "",
    ]
    return " ".join([*filter(None, facts), ",".join(f"{a}>{b}" for a, b in fault.lines)])
