"""The scenario `units` of `m4cast sim`: a federation of three levels of units that publishes while gateways are cut and
gatekeepers killed, and the report about it."""

from dataclasses import asdict, dataclass
from math import isqrt
from random import Random
from time import perf_counter

from m4cast.overlay.federation.contract import FederationSettings, PublishEvent, WantRows
from m4cast.overlay.federation.messages import EventId, UnitEvent, UnitWant
from m4cast.overlay.federation.units import UNITS_MAX
from m4cast.overlay.sim.federation.checks import FederationChecks
from m4cast.overlay.sim.federation.hierarchies import place, random_plan
from m4cast.overlay.sim.federation.world import FederationSite, uncollected
from m4cast.overlay.sim.metrics import percentile
from m4cast.overlay.sim.run import ShowProgress

UNITS_SCENARIO = "units"
CLUSTER_NODES_MIN = 4
SUPER_CLUSTERS = 4
TAKERS_SHARE = 0.1
"""The share of the nodes that want the batches."""
TAKERS_MAX = 64
FAULT_EVERY = 4
"""Before every so-many-th batch a gateway is cut, or a gatekeeper killed, and what was broken before is mended."""
SETTLE_MS = 120_000


@dataclass(frozen=True, slots=True)
class UnitsReport:
    """The result of a run. Per batch: means over all batches."""

    scenario: str
    seed: int
    nodes: int
    clusters: int
    super_clusters: int
    gateways: int
    takers: int
    published: int
    expected: int
    """Batches times those whose want was confirmed for the publisher's unit."""
    delivered_fraction: float
    duplicates_delivered: int
    unconfirmed: int
    """Wants that are not active everywhere at the end."""
    active_ms_p50: int | None
    active_ms_p99: int | None
    copies_per_batch: float
    gateway_copies_per_batch: float
    matchings_per_batch: float
    connections_max: int
    """The largest number of links that any node knows."""
    crashes: int
    cuts: int
    virtual_seconds: float
    wall_seconds: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def broken_unit_promises(report: UnitsReport) -> list[str]:
    """Return the promises of guarantee 14 that the run did not keep."""
    broken = []
    if report.delivered_fraction < 1:
        broken.append(f"only {report.delivered_fraction:.3%} of what was expected was delivered")
    if report.duplicates_delivered:
        broken.append(f"{report.duplicates_delivered} batches were delivered twice")
    if report.unconfirmed:
        broken.append(f"{report.unconfirmed} wants are not active everywhere")
    return broken


class UnitsRun:
    def __init__(self, nodes: int, seed: int, progress: ShowProgress | None) -> None:
        self.random = Random(seed)
        self.seed = seed
        self._progress = progress
        in_cluster = min(UNITS_MAX, max(CLUSTER_NODES_MIN, isqrt(nodes)))
        clusters = max(1, round(nodes / in_cluster))
        supers = min(SUPER_CLUSTERS, clusters)
        shape = (supers, max(1, clusters // supers))
        inside = max(1, nodes // (shape[0] * shape[1]))
        self.plan = random_plan(self.random, shape, inside, extra=2, inner_extra=inside)
        self.settings = FederationSettings(top=2, links_max=(64,) * 8)
        self.world = place(self.plan, self.settings, seed)
        self.checks = FederationChecks(self.world)
        self.world.watchers.append(self.checks)
        self.active_ms: list[int] = []
        self.crashes = self.cuts = 0

    def show(self, phase: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(phase, done, total)

    def want(self) -> int:
        """Clients come one after another; each waits until its want is active everywhere."""
        sites = sorted(self.world.sites)
        chosen = self.random.sample(sites, min(TAKERS_MAX, max(1, round(TAKERS_SHARE * len(sites)))))
        for number, name in enumerate(chosen, start=1):
            site, want = self.world.sites[name], UnitWant("t")
            began_ms = self.world.now_ms
            self.checks.want(site, "w", want)
            self.world.feed(site, WantRows("w", want))
            if self.world.run_until(lambda: not self.checks.unconfirmed(), SETTLE_MS, look_every_ms=5):
                self.active_ms.append(self.world.now_ms - began_ms)
            self.show("wants", number, len(chosen))
        return len(chosen)

    def publish(self, batches: int) -> None:
        """Publish, while gateways are cut and gatekeepers killed."""
        broken: FederationSite | None = None
        for number in range(1, batches + 1):
            if number % FAULT_EVERY == 0:
                self._mend(broken)
                broken = self._break()
            origin = self.random.choice([site for _, site in sorted(self.world.sites.items()) if site.up])
            event = UnitEvent(EventId(origin.unit.id, 1, 1, number), "t", None, b"row")
            self.checks.publish(origin, event)
            self.world.feed(origin, PublishEvent(event))
            self.world.run(self.random.randint(50, 1_500))
            self.show("publish", number, batches)
        self._mend(broken)
        self.world.run_until(lambda: not self.checks.missing() and not self.checks.unconfirmed(), SETTLE_MS, 500)

    def _break(self) -> FederationSite | None:
        gateways = [link for link in self.plan.links if self.plan.level(*link)]
        if not gateways:
            return None
        near, far = self.random.choice(gateways)
        if self.random.random() < 0.5:
            self.cuts += 1
            self.world.cut_between(near, far)
            return None
        self.crashes += 1
        self.world.crash(self.world.sites[near])
        return self.world.sites[near]

    def _mend(self, crashed: FederationSite | None) -> None:
        self.world.cut.clear()
        if crashed is not None:
            self.world.start(crashed)


def simulate_units(nodes: int, seed: int, batches: int, progress: ShowProgress | None = None) -> UnitsReport:
    """Run the scenario. The same arguments give the same report, apart from `wall_seconds`."""
    started = perf_counter()
    with uncollected():
        run = UnitsRun(nodes, seed, progress)
        takers = run.want()
        run.publish(batches)
    checks, world = run.checks, run.world
    expected = [(name, event) for event, each in checks.published.items() for name, _ in each.expected]
    delivered = sum((name, event) in checks.delivered for name, event in expected)
    published = max(1, len(checks.published))
    return UnitsReport(
        scenario=UNITS_SCENARIO,
        seed=seed,
        nodes=len(world.sites),
        clusters=len({run.plan.unit(node, 1) for node in run.plan.units}),
        super_clusters=len({run.plan.unit(node, 2) for node in run.plan.units}),
        gateways=sum(run.plan.level(*link) > 0 for link in run.plan.links),
        takers=takers,
        published=len(checks.published),
        expected=len(expected),
        delivered_fraction=delivered / len(expected) if expected else 1.0,
        duplicates_delivered=sum(count > 1 for count in checks.delivered.values()),
        unconfirmed=len(checks.unconfirmed()),
        active_ms_p50=percentile(run.active_ms, 50),
        active_ms_p99=percentile(run.active_ms, 99),
        copies_per_batch=round(checks.copies.total() / published, 2),
        gateway_copies_per_batch=round(checks.gateway_copies.total() / published, 2),
        matchings_per_batch=round(sum(map(len, checks.matchings.values())) / published, 2),
        connections_max=max(len(site.running().gateways.connections) for site in world.sites.values()),
        crashes=run.crashes,
        cuts=run.cuts,
        virtual_seconds=round(world.now_ms / 1_000, 1),
        wall_seconds=round(perf_counter() - started, 2),
    )
