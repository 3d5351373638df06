"""The test network of the Grid Event Service (F15: 22 node processes, six channels, three groups) over the ranges of
its paper: events of 30 to 500 bytes, 1 to 1,000 a second, each taker wanting 100 to 5 % of them, all takers the same
ones (aligned) or each node others (spread). Published at node 22, metered at node 10, beside each sample the paper's
figure, where it has one. Then the same load in three other ways: every row to every node (flood), the same with the
filter in the client, and one channel of 22 nodes, where each node knows what all others want. All 60 samples take ten
minutes, and some for reading everything at every node. What has not begun after `--minutes` is left out, and named.

    python -m tests.bench.federation            all of it: prints the table of docs/FEDERATION.md, row by row
    python -m tests.bench.federation [--quick] [--samples N] [--seconds S] [--minutes M] [--foils/--no-foils]

An event is a row; those that are due within a burst are published together, with one value of the column that filters
name. Latency is from when an event was due until the meter's client has it. A sample counts only if each taker at each
of the 22 nodes has every event that it wants of it, and no other.
"""

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean, pvariance
from typing import Any, NamedTuple, Protocol

import click
import pyarrow as pa

from m4cast.cluster.federation import LocalFederation, read_spec
from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError, RefusedError
from tests.bench.comparison import Bench, Row
from tests.bench.processes import Watch
from tests.bench.references import pids
from tests.processes.clusters import until
from tests.processes.warm_nodes import WarmCluster

SPEC = Path(__file__).parents[2] / "conf" / "federation-f15.toml"
PUBLISHER, METER = ("q", "n1"), ("m", "n4")
"""Nodes 22 and 10 of the paper."""
RATES = (100, 50, 25, 10, 5)
MODES = ("aligned", "spread")
PARTS = 100
"""Values of the column that filters name: m of them are m %."""
TAKERS = 5
BURST_S = 0.05
SECONDS, SECONDS_QUICK = 10, 4
SAMPLES, SAMPLES_QUICK = 60, 10
PATIENCE_S = 120.0
FLOODED = "events"
ARRIVED = "of 952/s, 78/s arrived"
TABLE = (
    "how",
    "match %",
    "takers",
    "events/s",
    "bytes",
    "arrived",
    "mean ms",
    "variance",
    "most",
    "KB over gateways",
    "paper",
)
"""The columns of docs/FEDERATION.md."""
Takers = dict[tuple[tuple[str, str], int], dict[str, dict[str, int]]]
"""Node and taker -> where what it wants begins."""


class Load(NamedTuple):
    match: int
    mode: str
    per_s: int
    size: int
    paper: str = ""
    """What the paper has for it: mean latency in ms, or what arrived."""

    @property
    def topic(self) -> str:
        return f"quotes-{self.match}-{self.mode}"

    @property
    def takers(self) -> range:
        """The takers of each node."""
        return range(TAKERS if self.mode == "spread" else 1)


PAPER = {
    (100, 1, 50): "15.54 ms",
    (100, 492, 75): "480.76/s arrived",
    (100, 952, 450): f"391.85 ms; {ARRIVED}",
    (50, 20, 50): "13.02 ms",
    (50, 952, 350): "178.66 ms",
    (25, 20, 50): "14.40 ms",
    (25, 961, 400): "66.6 ms",
    (10, 20, 50): "14.40 ms",
    (10, 952, 400): "52.0 ms",
    (5, 877, 450): "variance 133.76",
}
HEAVY = {100: (952, 450), 50: (952, 350), 25: (961, 400), 10: (952, 400), 5: (877, 450)}
OTHERS = ((492, 75), (1_000, 500), (200, 30), (20, 50), (1, 50))
FOILED = (Load(100, "aligned", 952, 450), Load(10, "spread", 952, 450))


def loads(samples: int) -> list[Load]:
    """All 60, or so many of them: the heaviest of the paper first."""
    points = [
        Load(match, mode, *point, PAPER.get((match, *point), ""))
        for number in range(1 + len(OTHERS))
        for mode in MODES
        for match in RATES
        for point in [(HEAVY[match], *OTHERS)[number]]
    ]
    return points[:samples]


class Spread(Protocol):
    """A way to bring events to takers."""

    name: str
    nodes: list[tuple[str, str]]
    is_filtered: bool

    def channel(self, node: tuple[str, str]) -> Channel: ...
    def topic(self, load: Load) -> str: ...
    def prepare(self, load: Load) -> None: ...
    def crossed(self) -> tuple[int, int]: ...
    def processes(self) -> dict[str, int]: ...


def where(load: Load, node: int, taker: int = 0) -> str:
    """The filter of a taker at a node, which wants m of the values."""
    first = 0 if load.mode == "aligned" else (node * 37 + taker * 11) % PARTS
    last = first + load.match
    inside = f"part >= {first} and part < {min(last, PARTS)}"
    return inside if last <= PARTS else f"({inside}) or part < {last - PARTS}"


def is_wanted(load: Load, node: int, part: int, taker: int = 0) -> bool:
    first = 0 if load.mode == "aligned" else (node * 37 + taker * 11) % PARTS
    return (part - first) % PARTS < load.match


@dataclass
class Units:
    """F15 with its gateways. `flooded`: events are a broadcast topic that every channel imports; `is_filtered`: the
    door drops what the meter does not want."""

    federation: LocalFederation
    name: str = "m4cast"
    flooded: bool = False
    is_filtered: bool = True

    def __post_init__(self) -> None:
        self.nodes = [(name, node) for name, cluster in self.federation.clusters.items() for node in cluster.names()]

    def channel(self, node: tuple[str, str]) -> Channel:
        return self.federation.clusters[node[0]].channel(node[1], timeout_s=PATIENCE_S)

    def topic(self, load: Load) -> str:
        return FLOODED if self.flooded else load.topic

    def prepare(self, load: Load) -> None:
        if self.flooded:
            return
        want_everywhere(self, load)
        until(lambda: self._are_active(load), f"{load.topic} is wanted everywhere", PATIENCE_S)

    def _are_active(self, load: Load) -> bool:
        """True if every gatekeeper's channel wants it, up to the top."""
        for gatekeeper in self.federation.calls:
            view = self.federation.units(gatekeeper)
            levels = [want["active_level"] for want in view["wants"] if want["topic"] == load.topic]
            if gatekeeper.startswith(PUBLISHER[0]):
                continue
            if not levels or min(levels) <= view["top"]:
                return False
        return True

    def crossed(self) -> tuple[int, int]:
        """Rows and bytes that went over gateways."""
        links = [link for each in self.federation.calls for link in self.federation.units(each)["links"]]
        across = [link for link in links if link["level"]]
        return sum(link["sent_rows"] for link in across), sum(link["sent_bytes"] for link in across)

    def processes(self) -> dict[str, int]:
        return {
            f"{name}.{node}": pid
            for name, cluster in self.federation.clusters.items()
            for node, pid in pids(cluster).items()
        }


@dataclass
class OneChannel:
    """22 nodes in one channel: all subscriptions at every node."""

    cluster: LocalCluster
    name: str = "all subscriptions at every node"
    is_filtered: bool = True

    def __post_init__(self) -> None:
        self.nodes = [("", name) for name in self.cluster.names()]

    def channel(self, node: tuple[str, str]) -> Channel:
        name = {PUBLISHER: "n22", METER: "n10"}.get(node, node[1])
        return self.cluster.channel(name, timeout_s=PATIENCE_S)

    def topic(self, load: Load) -> str:
        return load.topic

    def prepare(self, load: Load) -> None:
        want_everywhere(self, load)

    def crossed(self) -> tuple[int, int]:
        return 0, 0

    def processes(self) -> dict[str, int]:
        return pids(self.cluster)


def want_everywhere(spread: Spread, load: Load) -> None:
    publisher = spread.channel(PUBLISHER)
    publisher.create_topic(load.topic, keepers=0, route_by=["part"])
    for number, node in enumerate(spread.nodes):
        channel = spread.channel(node)
        for taker in load.takers:
            channel.register(load.topic, where(load, number, taker))
    for number, node in enumerate(spread.nodes):
        for taker in load.takers:
            filter_ = where(load, number, taker)
            assert spread.channel(node).active(load.topic, filter_, timeout_s=PATIENCE_S).is_active


# ---- a sample


class Meter(threading.Thread):
    """Reads what the meter wants, until so many events have come. Without `is_filtered` it gets all, and drops the rest
    itself."""

    def __init__(
        self, spread: Spread, topic: str, load: Load, node: int, start: dict[str, dict[str, int]], *, is_filtered: bool
    ) -> None:
        super().__init__(name="meter", daemon=True)
        self.late_ms: list[float] = []
        self.received = 0
        self.last_s = 0.0
        self.done = threading.Event()
        self.expected: int | None = None
        self._load = load
        self._node = node
        condition = where(load, node) if is_filtered else None
        self._tail = spread.channel(METER).tail(topic, start, where=condition)

    def run(self) -> None:
        for batch in self._tail:
            now_ns = time.time_ns()
            self.received += batch.num_rows
            parts, due = batch.column("part").to_pylist(), batch.column("due_ns").to_pylist()
            wanted = [
                (now_ns - due_ns) / 1e6
                for part, due_ns in zip(parts, due, strict=True)
                if is_wanted(self._load, self._node, part)
            ]
            self.late_ms += wanted
            if wanted:
                self.last_s = time.monotonic()
            if self.expected is not None and len(self.late_ms) >= self.expected:
                break
        self.done.set()

    def close(self) -> None:
        self._tail.close()


def rows_of(parts: Sequence[int], due_ns: Sequence[int], size: int) -> pa.Table:
    filler = "x" * max(size - 20, 1)  # a number and a time take the rest
    return pa.table(
        {
            "due_ns": pa.array(due_ns, pa.int64()),
            "part": pa.array(parts, pa.int64()),
            "content": pa.array([filler] * len(parts)),
        }
    )


def warm(spread: Spread, load: Load) -> None:
    """Have the topic's stream begin everywhere: some rows of it, that all nodes get."""
    topic, parts = spread.topic(load), list(range(0, PARTS, 4))
    before = _frontiers(spread, topic, load)
    spread.channel(PUBLISHER).publish(topic, rows_of(parts, [0] * len(parts), 50))
    _all_arrived(spread, topic, load, parts, before)


def sample(spread: Spread, load: Load, seconds: float) -> Row:
    """One sample; fails unless each node has exactly what it wants of it."""
    topic, random = spread.topic(load), Random(load.per_s)
    meter_at = spread.nodes.index(METER) if METER in spread.nodes else 9
    publisher = spread.channel(PUBLISHER)
    before = _frontiers(spread, topic, load)
    meter = Meter(spread, topic, load, meter_at, before[spread.nodes[meter_at], 0], is_filtered=spread.is_filtered)
    meter.start()
    crossed = spread.crossed()
    parts: list[int] = []
    values = _evenly(random)
    watch = Watch(spread.processes())
    with watch:
        started_s, started_ns = time.monotonic(), time.time_ns()
        count = round(load.per_s * seconds)
        while len(parts) < count:
            due_s = (len(parts) + _burst(load) - 1) / load.per_s
            time.sleep(max(0.0, started_s + due_s - time.monotonic()))
            passed = time.monotonic() - started_s
            ready = min(count, max(len(parts) + 1, int(passed * load.per_s) + 1))  # all that are due
            part, due = next(values), range(len(parts), ready)
            due_ns = [started_ns + int(each / load.per_s * 1e9) for each in due]
            publisher.publish(topic, rows_of([part] * len(due), due_ns, load.size))
            parts += [part] * len(due)
        published_s = time.monotonic() - started_s
        meter.expected = sum(is_wanted(load, meter_at, part) for part in parts)
        if len(meter.late_ms) < meter.expected:
            assert meter.done.wait(PATIENCE_S), f"{load}: {len(meter.late_ms)} of {meter.expected} events came"
    meter.close()
    _all_arrived(spread, topic, load, parts, before)
    rows, size = spread.crossed()
    late = meter.late_ms or [0.0]
    return {
        "how": spread.name,
        "match %": load.match,
        "takers": load.mode,
        "events/s": round(len(parts) / published_s),
        "bytes": load.size,
        "arrived": f"{len(meter.late_ms):,} of {meter.expected:,}",
        "mean ms": round(fmean(late), 2),
        "variance": round(pvariance(late), 1),
        "least": round(min(late), 1),
        "most": round(max(late), 1),
        "to the client": f"{meter.received:,}",
        "at the meter /s": round(len(meter.late_ms) / max(meter.last_s - started_s, 0.001)),
        "paper": load.paper,
        "rows over gateways, of published": round((rows - crossed[0]) / len(parts), 2),
        "KB over gateways": round((size - crossed[1]) / 1e3),
        "node CPU ms/event": round(sum(watch.cpu_s.values()) * 1e3 / len(parts), 2),
    }


def _burst(load: Load) -> int:
    return max(1, round(load.per_s * BURST_S))


def _evenly(random: Random) -> Iterator[int]:
    """Values, so that a hundred bursts have each once, in an order of their own."""
    while True:
        yield from random.sample(range(PARTS), PARTS)


def _frontiers(spread: Spread, topic: str, load: Load) -> Takers:
    return {
        (node, taker): _frontier(spread, node, topic, where(load, number, taker))
        for number, node in enumerate(spread.nodes)
        for taker in load.takers
    }


def _frontier(spread: Spread, node: tuple[str, str], topic: str, condition: str) -> dict[str, dict[str, int]]:
    try:
        return dict(spread.channel(node).frontier(topic, where=condition))
    except RefusedError as error:
        if error.code != "unknown-topic":  # nothing was published yet
            raise
        return {}


def _all_arrived(spread: Spread, topic: str, load: Load, parts: Sequence[int], before: Takers) -> None:
    """Each taker has what it wants, and nothing else."""
    numbers = {node: number for number, node in enumerate(spread.nodes)}
    for (node, taker), begin in before.items():
        channel, number = spread.channel(node), numbers[node]
        expected = sum(is_wanted(load, number, part, taker) for part in parts)
        start, condition = begin if begin.get(topic) else "earliest", where(load, number, taker)

        def found(channel: Channel = channel, start: Any = start, condition: str = condition) -> int:
            try:
                return int(channel.read(topic, start, where=condition).num_rows)
            except RefusedError as error:
                if error.code != "unknown-topic":
                    raise
                return 0

        who = f"{load} at {node}, taker {taker}"
        until(lambda found=found, expected=expected: found() >= expected, who, PATIENCE_S)  # type: ignore[misc]
        assert found() == expected, f"{who}: {found()} in place of {expected}"


# ---- all of it


@contextmanager
def f15() -> Iterator[LocalFederation]:
    spec = read_spec(SPEC)
    topics = [Load(match, mode, 0, 0).topic for match in RATES for mode in MODES]
    rules = {"exports": ["*"], "transits": ["*"], "imports": [FLOODED], "on_demand": topics}
    spec = replace(spec, channels=tuple(replace(each, rules=rules) for each in spec.channels))
    with tempfile.TemporaryDirectory() as folder:
        federation = LocalFederation.make(Path(folder) / "f15", spec)
        for name, cluster in federation.clusters.items():
            federation.clusters[name] = WarmCluster(cluster.folder, cluster.plan)
        federation.up()
        try:
            yield federation
        finally:
            federation.down()


@contextmanager
def one_channel() -> Iterator[LocalCluster]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = WarmCluster.make(Path(folder) / "cluster", 22)
        cluster.up()
        try:
            yield cluster
        finally:
            cluster.down()


def samples(
    wanted: Sequence[Load], seconds: float, *, with_foils: bool, minutes: float | None = None, failed: list[str]
) -> Iterator[Row]:
    """`failed`: gains what did not arrive, and what there was no time for; the other samples go on."""
    until_s = time.monotonic() + 60 * minutes if minutes else None
    with f15() as federation:
        units = Units(federation)
        prepared: dict[str, None] = {}
        for load in wanted:
            if until_s and time.monotonic() > until_s:
                failed.append(f"{load}: no time was left")
                continue
            yield from _tried(units, load, seconds, prepared, failed)
        if with_foils:
            for name, is_filtered in (("flood", True), ("flood, filtered at the client", False)):
                flood = Units(federation, name, flooded=True, is_filtered=is_filtered)
                for load in FOILED:
                    yield from _tried(flood, load, seconds, prepared, failed)
    if with_foils:
        with ExitStack() as stack:
            single = OneChannel(stack.enter_context(one_channel()))
            prepared = {}
            for load in FOILED:
                yield from _tried(single, load, seconds, prepared, failed)


def _tried(spread: Spread, load: Load, seconds: float, prepared: dict[str, None], failed: list[str]) -> Iterator[Row]:
    """The row of a sample, or none if it fails."""
    try:
        topic = spread.topic(load)
        if topic not in prepared:
            prepared[topic] = None
            spread.prepare(load)
            warm(spread, load)
        row = sample(spread, load, seconds)
    except (AssertionError, M4castError, TimeoutError) as error:
        failed.append(f"{spread.name}, {load}: {error}")
    else:
        yield row


def measure(bench: Bench) -> None:
    failed: list[str] = []
    wanted = loads(6 if bench.quick else SAMPLES)
    for row in samples(wanted, bench.of(SECONDS, SECONDS_QUICK), with_foils=True, failed=failed):
        bench.fact(**row)
    assert not failed, "; ".join(failed)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help=f"The {SAMPLES_QUICK} heaviest samples, of {SECONDS_QUICK} s.")
@click.option("--samples", "count", type=click.IntRange(1, SAMPLES), help="So many samples, the heaviest first.")
@click.option("--seconds", type=click.FloatRange(0.5, 600), help="Of each sample.")
@click.option("--minutes", type=click.FloatRange(1), help="At most, for samples; without it, as long as they take.")
@click.option("--foils/--no-foils", default=True, help="With the flood, the client's filter, and one channel.")
def main(quick: bool, count: int | None, seconds: float | None, minutes: float | None, foils: bool) -> None:
    """Print the samples as they are made, as a table in Markdown."""
    failed = list[str]()
    wanted = loads(count or (SAMPLES_QUICK if quick else SAMPLES))
    each_s = seconds or (SECONDS_QUICK if quick else SECONDS)
    print("| " + " | ".join(TABLE) + " |\n|" + " --- |" * len(TABLE), flush=True)
    for row in samples(wanted, each_s, with_foils=foils, minutes=minutes, failed=failed):
        print("| " + " | ".join(str(row[column]) for column in TABLE) + " |", flush=True)
    if failed:
        raise click.ClickException("not measured: " + "; ".join(failed))


if __name__ == "__main__":
    main()
