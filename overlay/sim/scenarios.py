"""Scenarios: what a channel lives through in one seeded run, and the report about it.

Every scenario grows a channel, lets something happen to it, publishes `messages` small batches at random nodes, and
then, with no more faults, waits until the graph is whole and everything is delivered. The wait has a bound: what did
not come true within it shows in the report's numbers and in `broken_promises`.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from random import Random
from time import perf_counter

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.errors import M4castError
from m4cast.overlay.sim.graph import GraphFacts, edges_when_settled, graph_facts, need_networkx
from m4cast.overlay.sim.interest import InterestLoad, InterestSafety, known_fraction, unsettled_interest
from m4cast.overlay.sim.metrics import percentile
from m4cast.overlay.sim.places import Place
from m4cast.overlay.sim.run import (
    FAULTS_MS,
    FLOOD_MS,
    JOIN_GAP_MS,
    PORTALS,
    ScenarioPlan,
    ScenarioRun,
    ShowProgress,
    settled,
)
from m4cast.overlay.sim.selective.scenarios import keepers, selective

LEAVE_MS_MAX = 10_000
SPLIT_MS = 600_000
"""Duration of the split in `partition`."""
HEAL_MS = 60_000
"""After that, one channel with everything everywhere is promised within this."""
REJOIN_SHARE = 0.6
"""The share of the nodes that crash in `rejoin`, all portals included."""
AWAY_MS = 120_000
"""The time after which those of `rejoin` that are not portals come back."""
PORTAL_HOSTS = ("p0", "p1", "p2")
NODES_PER_PORTAL_HOST = 2


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The results of a run. The graph is that of the nodes on the channel at the end; None: not computed, or there was
    nothing to compute it from."""

    scenario: str
    seed: int
    degree: int
    graph: GraphFacts
    sends_per_delivery: float | None
    """Payload copies sent per *remote* delivery."""
    hops_mean: float | None
    hops_max: int
    delivered_fraction_before_repair: float
    """Share of all (batch, receiver) pairs when the faults ended; in `crash`, before any node can have noticed it."""
    delivered_fraction: float
    duplicates_delivered: int
    out_of_order: int
    join_messages_mean: float | None
    """Control messages (no heartbeats, no beacons) of all nodes while the measured ones joined, per join."""
    join_ms_p50: int | None
    join_ms_p99: int | None
    gap_repair_ms_p99: int | None
    whole_again_ms: int | None
    """The time from the end of the faults until the graph was whole and everything was delivered."""
    virtual_seconds: float
    wall_seconds: float

    def as_dict(self) -> dict[str, object]:
        """All numbers by name, those of the graph beside the others."""
        numbers: dict[str, object] = {}
        for name, number in asdict(self).items():
            numbers.update(number if name == "graph" else {name: number})
        return numbers


# ---- the scenarios: each returns (delivered before repair, delivered)

Fractions = tuple[float, float]


def grow(run: ScenarioRun) -> Fractions:
    """Nodes join one after another; then batches are published in a settled graph."""
    run.join(run.plan.nodes)
    return _publish_and_deliver(run)


def flash(run: ScenarioRun) -> Fractions:
    """Half of the nodes grow a channel, the other half joins at the same instant."""
    crowd = run.plan.nodes // 2
    run.join(run.plan.nodes - crowd)
    run.join(crowd, gap_ms=0)
    return _publish_and_deliver(run)


def _publish_and_deliver(run: ScenarioRun) -> Fractions:
    receivers = run.world.up()
    run.publish_all()
    run.run_for(FLOOD_MS)
    return run.delivered_fraction(receivers), run.deliver(receivers)


def leave(run: ScenarioRun) -> Fractions:
    """A third of the nodes leave in order, one after another, while batches are published."""
    run.join(run.plan.nodes)
    leavers = run.random.sample(run.world.up(), run.plan.nodes // 3)
    receivers = [place for place in run.world.up() if place not in leavers]
    messages = run.plan.messages
    for done, place in enumerate(leavers):
        for _ in range(messages * (done + 1) // len(leavers) - messages * done // len(leavers)):
            run.publish()
        run.leave(place)
        run.world.run_until(lambda place=place: not place.up, LEAVE_MS_MAX)  # type: ignore[misc]
        run.run_for(JOIN_GAP_MS)
    if not leavers:
        run.publish_all()
    run.run_for(FLOOD_MS)
    before = run.delivered_fraction(receivers)
    run.settle()
    return before, run.deliver(receivers)


def crash(run: ScenarioRun) -> Fractions:
    """A fifth of the nodes crash silently at once, and all batches are published at survivors right then."""
    run.join(run.plan.nodes)
    return crash_a_fifth(run)


def crash_a_fifth(run: ScenarioRun) -> Fractions:
    return crash_share(run, 0.2)


def crash_share(run: ScenarioRun, share: float) -> Fractions:
    for place in run.random.sample(run.world.up(), int(run.plan.nodes * share)):
        run.world.crash(place, silent=True)
    run.faults_over_ms = run.world.now_ms
    survivors = run.world.up()
    for _ in range(run.plan.messages):
        run.publish()
    # A neighbour was heard at most one interval ago, so no node can have missed one before this.
    unnoticed_ms = run.world.cluster.heartbeat_timeout_ms - run.world.cluster.heartbeat_interval_ms
    run.run_for(unnoticed_ms - 100)
    before = run.delivered_fraction(survivors)
    run.settle()
    return before, run.deliver(survivors)


def churn(run: ScenarioRun) -> Fractions:
    """Nodes join, leave, crash (silently or not), come back with their store, and links break, throughout."""
    run.join(run.plan.nodes)
    Churn(run).go()
    origins = {place.address for place in run.world.up()}
    receivers = [place for place in run.world.up() if place.started == 1 and int(place.name[1:]) < run.plan.nodes]
    before = run.delivered_fraction(receivers, origins)
    run.settle()
    return before, run.deliver(receivers, origins)


def loss(run: ScenarioRun) -> Fractions:
    """Links break, and send queues are full for a while, throughout."""
    run.join(run.plan.nodes)
    receivers = run.world.up()
    run.publish_during(FAULTS_MS)
    for _ in range(run.plan.nodes):
        run.world.after(run.random.randrange(FAULTS_MS), run.break_a_link)
    for _ in range(2 * run.plan.nodes):
        run.world.after(run.random.randrange(FAULTS_MS), _fill_queue, run)
    run.pass_faults()
    before = run.delivered_fraction(receivers)
    run.settle()
    return before, run.deliver(receivers)


def partition(run: ScenarioRun) -> Fractions:
    """The network is split into two halves for ten minutes, while both of them publish; then it is whole again."""
    run.join(run.plan.nodes)
    places = run.world.up()
    run.world.split(run.random.sample(places, len(places) // 2))
    run.publish_during(SPLIT_MS * 9 // 10)
    run.run_for(SPLIT_MS)
    before = run.delivered_fraction(places)
    run.world.mend()
    run.faults_over_ms = run.world.now_ms
    after = run.deliver(places)
    run.settle()
    return before, after


def rejoin(run: ScenarioRun) -> Fractions:
    """Most nodes crash at once, all portals among them. Those that are left find each other by their passive lists, and
    so do those, portals apart, that come back later with their stores."""
    run.join(run.plan.nodes)
    places = run.world.up()
    portals, others = places[: len(PORTALS)], places[len(PORTALS) :]
    away = run.random.sample(others, max(0, int(run.plan.nodes * REJOIN_SHARE) - len(portals)))
    for place in portals + away:
        run.world.crash(place, silent=True)
    survivors = run.world.up()
    run.publish_during(AWAY_MS)
    run.run_for(AWAY_MS)
    before = run.delivered_fraction(survivors)
    for place in away:
        run.world.start(place)
    run.faults_over_ms = run.world.now_ms
    after = run.deliver(survivors + away)
    run.settle()
    return before, after


def portals(run: ScenarioRun) -> Fractions:
    """Nodes find the channel by the order of its ports alone, all starting at the same instant: two on each of three
    portal hosts, the others on hosts of their own."""
    run.configure = by_ports
    run.join(run.plan.nodes, gap_ms=0)
    return _publish_and_deliver(run)


def by_ports(index: int, hosts: tuple[str, ...] = PORTAL_HOSTS, **settings: object) -> NodeConfig:
    """The node of this number knows these portal hosts; the first ones are on them."""
    host = hosts[index % len(hosts)] if index < NODES_PER_PORTAL_HOST * len(hosts) else f"h{index}"
    base = NodeConfig(name=f"n{index}", listen=f"{host}:0", portal_hosts=hosts)
    return replace(base, **settings)  # type: ignore[arg-type]  # checked by the dataclass itself


def empty_ports(run: ScenarioRun) -> Fractions:
    """Two linked nodes lose another neighbour each, over and over. Where those two find each other, the first are
    neighbours with empty ports, whom no search can help."""
    run.join(run.plan.nodes)
    receivers = run.world.up()
    run.publish_during(FAULTS_MS)
    for _ in range(2 * run.plan.nodes):
        run.world.after(run.random.randrange(FAULTS_MS), _break_beside, run)
    run.pass_faults()
    before = run.delivered_fraction(receivers)
    run.settle()
    return before, run.deliver(receivers)


def _break_beside(run: ScenarioRun) -> None:
    """The link stays; each of its ends loses another one."""
    link = run.a_link()
    for end in () if link is None else (link, link.other):
        others = [each for each in run.links_of(end.place) if each is not end]
        if others:
            run.world.cables.break_connection(run.random.choice(others))


def _fill_queue(run: ScenarioRun) -> None:
    end = run.a_link()
    if end is not None:
        run.world.cables.block(end, run.random.randrange(100, 2_000))


def interest(run: ScenarioRun) -> Fractions:
    """Clients register what they want, and give it up, at random nodes, while links break, the network is split for a
    while, and nodes crash silently: one less than a node has neighbours. The fractions are those of the nodes that know
    what each node wants; batches are published as well."""
    run.join(run.plan.nodes)
    load, checker = InterestLoad(run.world, Random(run.plan.seed)), InterestSafety()
    for place in run.world.up():
        checker.started(place)
    run.world.watch(load, checker)
    places = run.world.up()
    run.publish_during(FAULTS_MS)
    for _ in range(10 * run.plan.nodes):
        run.world.after(run.random.randrange(FAULTS_MS), load.act)
    for _ in range(run.plan.nodes):
        run.world.after(run.random.randrange(FAULTS_MS), run.break_a_link)
    run.world.after(FAULTS_MS // 4, run.world.split, run.random.sample(places, len(places) // 2))
    run.world.after(FAULTS_MS // 2, run.world.mend)
    run.pass_faults()
    others = places[len(PORTALS) :]
    for place in run.random.sample(others, min(run.plan.degree - 1, len(others))):
        run.world.crash(place, silent=True)
        load.act()
    run.faults_over_ms = run.world.now_ms
    before = known_fraction(run.world)
    run.settle()
    run.wait("interest", lambda: int(not unsettled_interest(run.world)), 1)
    run.deliver(run.world.up())
    return before, known_fraction(run.world)


class Churn:
    """Half of the nodes, the portals included, stay; the others and newcomers join and leave. Crashed nodes return."""

    def __init__(self, run: ScenarioRun) -> None:
        self._run = run
        places = run.world.up()
        self._stay = {place.address for place in places[: max(len(PORTALS), len(places) // 2)]}
        self._away: list[Place] = []

    def go(self) -> None:
        run = self._run
        run.publish_during(FAULTS_MS)
        for _ in range(2 * run.plan.nodes):
            act = run.random.choice((run.start_another, self._leave, self._crash, self._crash) + 4 * (self._break,))
            run.world.after(run.random.randrange(FAULTS_MS), act)
        run.pass_faults()
        for place in list(self._away):
            self._return(place)
        run.run_for(LEAVE_MS_MAX)

    def _mover(self) -> Place | None:
        movers = [place for place in self._run.ready() if place.address not in self._stay]
        return self._run.random.choice(movers) if movers else None

    def _leave(self) -> None:
        place = self._mover()
        if place is not None:
            self._run.leave(place)

    def _crash(self) -> None:
        place = self._mover()
        if place is not None:
            self._run.world.crash(place, silent=self._run.random.random() < 0.5)
            self._away.append(place)
            self._run.world.after(self._run.random.randrange(1_000, 10_000), self._return, place)

    def _return(self, place: Place) -> None:
        if place in self._away:
            self._away.remove(place)
            self._run.world.start(place)

    def _break(self) -> None:
        self._run.break_a_link()


SCENARIOS: dict[str, Callable[[ScenarioRun], Fractions]] = {
    "grow": grow,
    "leave": leave,
    "crash": crash,
    "churn": churn,
    "flash": flash,
    "loss": loss,
    "partition": partition,
    "rejoin": rejoin,
    "portals": portals,
    "empty-ports": empty_ports,
    "interest": interest,
    "selective": selective,
    "keepers": keepers,
}


def simulate(
    plan: ScenarioPlan, progress: ShowProgress | None = None, trace: Callable[[str], None] | None = None
) -> SimulationReport:
    """Run the plan's scenario. The same plan gives the same report, apart from `wall_seconds`."""
    scenario = SCENARIOS.get(plan.scenario)
    if scenario is None:
        raise M4castError(f"unknown scenario {plan.scenario!r}; known are {', '.join(SCENARIOS)}")
    need_networkx()
    started = perf_counter()
    run = ScenarioRun(plan, progress, trace)
    before, after = scenario(run)
    if not settled(run.world):
        run.settle()
    return report(run, before, after, perf_counter() - started)


def report(run: ScenarioRun, before: float, after: float, wall_seconds: float) -> SimulationReport:
    metrics = run.metrics
    facts = graph_facts([place.address for place in run.world.up()], run.world.edges())
    remote = metrics.remote_deliveries
    join_ms = [join.ms for join in run.joins]
    return SimulationReport(
        scenario=run.plan.scenario,
        seed=run.plan.seed,
        degree=run.plan.degree,
        graph=facts,
        sends_per_delivery=round(metrics.payload_copies / remote, 4) if remote else None,
        hops_mean=round(metrics.hops_total / remote, 4) if remote else None,
        hops_max=metrics.hops_max,
        delivered_fraction_before_repair=before,
        delivered_fraction=after,
        duplicates_delivered=metrics.duplicates,
        out_of_order=metrics.out_of_order,
        join_messages_mean=round(run.join_messages / len(join_ms), 2) if join_ms else None,
        join_ms_p50=percentile(join_ms, 50),
        join_ms_p99=percentile(join_ms, 99),
        gap_repair_ms_p99=percentile((repair.ms for repair in metrics.repairs), 99),
        whole_again_ms=None if run.faults_over_ms is None else run.world.now_ms - run.faults_over_ms,
        virtual_seconds=run.world.now_ms / 1_000,
        wall_seconds=round(wall_seconds, 3),
    )


def broken_promises(report: SimulationReport) -> list[str]:
    """Promises of the scenario that the report does not bear out, in words; empty when all is well."""
    broken = []
    if not report.graph.connected:
        broken.append("the graph is in pieces")
    edges = edges_when_settled(report.graph.nodes, report.degree)
    if report.graph.edges != edges:
        broken.append(f"the graph has {report.graph.edges} links, a whole one has {edges}")
    if report.graph.degree_max > report.degree:
        broken.append(f"a node has {report.graph.degree_max} neighbours, more than {report.degree}")
    # Odd: newcomers that join at the same time can fill their last holes among themselves, which leaves one link less.
    connectivity = min(report.graph.nodes - 1, report.degree - report.degree % 2)
    if (
        report.scenario in ("grow", "flash", "portals")
        and report.graph.edge_connectivity is not None
        and report.graph.edge_connectivity < connectivity
    ):
        broken.append(
            f"the loss of {report.graph.edge_connectivity} links can split the graph, it should take {connectivity}"
        )
    if report.scenario == "partition" and (report.whole_again_ms or 0) > HEAL_MS:
        broken.append(f"it took {report.whole_again_ms} ms to be whole again, {HEAL_MS} are promised")
    if report.delivered_fraction < 1:
        broken.append(f"only {report.delivered_fraction:.4%} of the deliveries came")
    if report.duplicates_delivered:
        broken.append(f"{report.duplicates_delivered} deliveries came twice")
    if report.out_of_order:
        broken.append(f"{report.out_of_order} deliveries came out of order")
    return broken
