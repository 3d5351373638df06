"""Scenarios: what a channel lives through in one seeded run, and the report about it.

Every scenario grows a channel (a node every 50 ms, through three portals, nobody waits for anybody), lets something
happen to it, publishes `messages` small batches at random nodes, and then, with no more faults, waits until the graph
is whole and everything is delivered. The wait has a bound: a run always ends, and what did not come true within the
bound shows in the report's numbers and in `broken_promises`.

Up to 100 nodes the cluster settings are the defaults. Larger channels beat every 5 s, give up a silent neighbour after
20 s and send beacons ten thousand milliseconds per node apart (about none in a run), which keeps a run cheap; so a
part that a mass failure cut off is found again later there than with the defaults.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from time import perf_counter

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.errors import M4castError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Leave, Publish, Staged
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.sim.graph import edges_when_settled, graph_facts, need_networkx
from m4cast.overlay.sim.metrics import Join, Metrics, percentile
from m4cast.overlay.sim.world import End, Network, Place, World, node_config

PORTALS = (0, 1, 2)
JOIN_GAP_MS = 50
LARGE_NODES = 100
"""Above this many nodes the settings are those of a large channel."""
LIVENESS_MS = 300_000
"""Without faults, the graph is whole, and then everything delivered, within this. Holes that nobody could fill are
tried again after at most a minute, so this is a few tries."""
FLOOD_MS = 1_000
"""Longer than a flood takes when no link is broken (20 hops of 23 ms)."""
PUBLISH_RETRY_MS = 1_000
PUBLISH_TRIES_MAX = 60
LEAVE_MS_MAX = 10_000
FAULTS_MS = 60_000
"""How long `churn` and `loss` go on."""
ROWS_PER_BATCH = 3
PAYLOAD_BYTES = 100

Progress = Callable[[str, int, int], None]
"""(phase, done, total)"""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run showed. The graph is that of the nodes on the channel at the end; None: not computed, or there was
    nothing to compute it from."""

    scenario: str
    seed: int
    degree: int
    nodes: int
    edges: int
    degree_min: int
    degree_max: int
    connected: bool
    edge_connectivity: int | None
    vertex_connectivity: int | None
    eccentricity_max: int
    sends_per_delivery: float | None
    """Payload copies sent per *remote* delivery."""
    hops_mean: float | None
    hops_max: int
    delivered_fraction_before_repair: float
    """Of all (batch, receiver) pairs, when the faults ended; in `crash`, before anybody can have noticed it."""
    delivered_fraction: float
    duplicates_delivered: int
    out_of_order: int
    join_messages_mean: float | None
    """Control messages (no heartbeats, no beacons) of all nodes while the measured ones joined, per join."""
    join_ms_p50: int | None
    join_ms_p99: int | None
    gap_repair_ms_p99: int | None
    virtual_seconds: float
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    scenario: str
    nodes: int
    degree: int = 4
    seed: int = 1
    messages: int = 20


def cluster_for(nodes: int, degree: int) -> ClusterConfig:
    if nodes <= LARGE_NODES:
        return ClusterConfig(degree=degree)
    return ClusterConfig(
        degree=degree, heartbeat_interval_ms=5_000, heartbeat_timeout_ms=20_000, beacon_ms_per_node=10_000
    )


def settled(world: World) -> bool:
    """Everybody is on the channel and the graph has every edge it can have."""
    places = world.up()
    edges = edges_when_settled(len(places), world.cluster.degree)
    ends = 0
    for place in places:
        assert place.node is not None
        if place.node.membership.state is not State.FULL:
            return False
        ends += len(place.node.membership.table.neighbours)
    return ends == 2 * edges and len(world.edges()) == edges


class Run:
    """A channel under a plan: the steps that scenarios are made of."""

    def __init__(
        self,
        plan: Plan,
        progress: Progress | None = None,
        trace: Callable[[str], None] | None = None,
        network: Network | None = None,
    ) -> None:
        self.plan = plan
        self.world = World(plan.seed, cluster_for(plan.nodes, plan.degree), network, trace=trace)
        self.metrics = Metrics(self.world)
        self.world.watch(self.metrics)
        self.random = Random(self.world.random.randrange(1 << 62))
        self.joins: list[Join] = []
        self.join_messages = 0
        self._progress = progress or (lambda phase, done, total: None)
        self._requests = 0
        self._leaving: set[str] = set()
        self._step_ms = 100 if plan.nodes <= LARGE_NODES else 500

    # ---- time

    def wait(self, phase: str, done: Callable[[], int], total: int, bound_ms: int = LIVENESS_MS) -> bool:
        """Let time pass until all is done; False when the bound came first."""
        end_ms = self.world.now_ms + bound_ms
        while (count := done()) < total:
            self._progress(phase, count, total)
            if self.world.now_ms >= end_ms:
                return False
            self.world.run(self.world.now_ms + self._step_ms)
        self._progress(phase, total, total)
        return True

    def run_for(self, ms: int) -> None:
        self.world.run(self.world.now_ms + ms)

    # ---- members

    def join(self, count: int, gap_ms: int = JOIN_GAP_MS) -> bool:
        """Start so many nodes more and wait until the graph is whole; these are the joins that are reported."""
        joins, messages = len(self.metrics.joins), self.metrics.control_total()
        for done in range(count):
            self.start_another()
            self.run_for(gap_ms)
            self._progress("join", done + 1, count)
        ok = self.settle()
        self.joins = self.metrics.joins[joins:]
        self.join_messages = self.metrics.control_total() - messages
        return ok

    def start_another(self) -> None:
        self.world.start(self.world.add(node_config(len(self.world.places), PORTALS)))

    def settle(self) -> bool:
        """Wait until the graph is whole and stays so while walks that are still under way end."""
        total = edges_when_settled(len(self.world.up()), self.plan.degree)
        end_ms = self.world.now_ms + LIVENESS_MS

        def done() -> int:
            return total if settled(self.world) else min(len(self.world.edges()), total - 1)

        while self.wait("settle", done, total, end_ms - self.world.now_ms):
            self.run_for(FLOOD_MS)
            if settled(self.world):
                return True
        return False

    def leave(self, place: Place) -> None:
        self._leaving.add(place.address)
        self.world.feed(place, Leave())

    def a_link(self) -> End | None:
        """One end of a random live link."""
        place = self.random.choice(self.world.up())
        assert place.node is not None
        ends = [place.ends.get(each.conn) for each in place.node.membership.table.neighbours.values()]
        live = [end for end in ends if end is not None]
        return self.random.choice(live) if live else None

    # ---- batches

    def ready(self) -> list[Place]:
        """Where a client would publish: fully connected, and not about to leave."""
        return [
            place
            for place in self.world.up()
            if place.node is not None
            and place.node.membership.state is State.FULL
            and place.address not in self._leaving
        ]

    def publish(self, tries: int = PUBLISH_TRIES_MAX) -> None:
        """A batch at a random node, and again at another one if it is not accepted (not ready, or died)."""
        places = self.ready()
        self._requests += 1
        request = self._requests
        if places:
            payload = Staged("default", ROWS_PER_BATCH, 1, self.random.randbytes(PAYLOAD_BYTES))
            self.world.feed(self.random.choice(places), Publish(request, (payload,)))
        self.world.after(PUBLISH_RETRY_MS, self._look_again, request, tries - 1)

    def _look_again(self, request: int, tries: int) -> None:
        if request not in self.metrics.accepted and tries > 0:
            self.publish(tries)

    def publish_all(self, gap_ms: int = 20) -> None:
        for done in range(self.plan.messages):
            self.publish()
            self.run_for(gap_ms)
            self._progress("publish", done + 1, self.plan.messages)

    def publish_during(self, ms: int) -> None:
        for _ in range(self.plan.messages):
            self.world.after(self.random.randrange(ms), self.publish)

    # ---- deliveries

    def delivered_fraction(self, receivers: list[Place], origins: set[str] | None = None) -> float:
        """Of all pairs of a batch accepted at one of the origins (None: anywhere) and another receiver. A batch that
        nobody accepted counts as delivered nowhere."""
        missing = max(0, self.plan.messages - len(self.metrics.accepted))
        had, wanted = 0, missing * max(0, len(receivers) - 1)
        for address, ranges in self.metrics.accepted.values():
            if origins is not None and address not in origins:
                continue
            for rows in ranges:
                for place in receivers:
                    if place.address != address:
                        wanted += 1
                        had += self.metrics.has(place.address, rows)
        return had / wanted if wanted else 1.0

    def deliver(self, receivers: list[Place], origins: set[str] | None = None) -> float:
        """Wait until everything is delivered, or the bound; the fraction that is."""
        accepted = self.metrics.accepted
        self.wait("accept", lambda: len(accepted), self.plan.messages)
        needed: dict[StreamId, int] = {}
        for address, ranges in accepted.values():
            for rows in ranges:
                if origins is None or address in origins:
                    needed[rows.stream] = max(needed.get(rows.stream, 1), rows.next_sequence)
        behind = list(receivers)

        def done() -> int:
            behind[:] = [place for place in behind if not self._level(place, needed)]
            return len(receivers) - len(behind)

        self.wait("deliver", done, len(receivers))
        return self.delivered_fraction(receivers, origins)

    def _level(self, place: Place, needed: dict[StreamId, int]) -> bool:
        frontier = self.metrics.frontier(place.address)
        return all(frontier.get(stream, 1) >= next_sequence for stream, next_sequence in needed.items())


# ---- the scenarios: each returns (delivered before repair, delivered)

Fractions = tuple[float, float]


def grow(run: Run) -> Fractions:
    """Nodes join one after another; then batches are published in a settled graph."""
    run.join(run.plan.nodes)
    return _publish_and_deliver(run)


def flash(run: Run) -> Fractions:
    """Half of the nodes grow a channel, the other half joins at the same instant."""
    crowd = run.plan.nodes // 2
    run.join(run.plan.nodes - crowd)
    run.join(crowd, gap_ms=0)
    return _publish_and_deliver(run)


def _publish_and_deliver(run: Run) -> Fractions:
    receivers = run.world.up()
    run.publish_all()
    run.run_for(FLOOD_MS)
    return run.delivered_fraction(receivers), run.deliver(receivers)


def leave(run: Run) -> Fractions:
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


def crash(run: Run) -> Fractions:
    """A fifth of the nodes crash at once and say nothing; at once all batches are published at survivors."""
    run.join(run.plan.nodes)
    return crash_a_fifth(run)


def crash_a_fifth(run: Run) -> Fractions:
    for place in run.random.sample(run.world.up(), run.plan.nodes // 5):
        run.world.crash(place, silent=True)
    survivors = run.world.up()
    for _ in range(run.plan.messages):
        run.publish()
    # A neighbour was heard at most one interval ago, so before this nobody can have missed one.
    unnoticed_ms = run.world.cluster.heartbeat_timeout_ms - run.world.cluster.heartbeat_interval_ms
    run.run_for(unnoticed_ms - 100)
    before = run.delivered_fraction(survivors)
    run.settle()
    return before, run.deliver(survivors)


def churn(run: Run) -> Fractions:
    """Nodes join, leave, crash (silently or not), come back with their store, and links break, throughout."""
    run.join(run.plan.nodes)
    Churn(run).go()
    origins = {place.address for place in run.world.up()}
    receivers = [place for place in run.world.up() if place.started == 1 and int(place.name[1:]) < run.plan.nodes]
    before = run.delivered_fraction(receivers, origins)
    run.settle()
    return before, run.deliver(receivers, origins)


def loss(run: Run) -> Fractions:
    """Links break, and send queues are full for a while, throughout."""
    run.join(run.plan.nodes)
    receivers = run.world.up()
    run.publish_during(FAULTS_MS)
    for _ in range(run.plan.nodes):
        run.world.after(run.random.randrange(FAULTS_MS), _break_link, run)
    for _ in range(2 * run.plan.nodes):
        run.world.after(run.random.randrange(FAULTS_MS), _fill_queue, run)
    _pass_faults(run)
    before = run.delivered_fraction(receivers)
    run.settle()
    return before, run.deliver(receivers)


def _pass_faults(run: Run) -> None:
    end_ms = run.world.now_ms + FAULTS_MS
    run.wait("faults", lambda: FAULTS_MS - max(0, end_ms - run.world.now_ms), FAULTS_MS)


def _break_link(run: Run) -> None:
    end = run.a_link()
    if end is not None:
        run.world.break_connection(end)


def _fill_queue(run: Run) -> None:
    end = run.a_link()
    if end is not None:
        run.world.block(end, run.random.randrange(100, 2_000))


class Churn:
    """Half of the nodes, the portals among them, stay; the others and newcomers come and go. Who crashes comes back."""

    def __init__(self, run: Run) -> None:
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
        _pass_faults(run)
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
        _break_link(self._run)


SCENARIOS: dict[str, Callable[[Run], Fractions]] = {
    "grow": grow,
    "leave": leave,
    "crash": crash,
    "churn": churn,
    "flash": flash,
    "loss": loss,
}


def simulate(plan: Plan, progress: Progress | None = None, trace: Callable[[str], None] | None = None) -> Report:
    """Run the plan's scenario. The same plan gives the same report, apart from `wall_seconds`."""
    scenario = SCENARIOS.get(plan.scenario)
    if scenario is None:
        raise M4castError(f"unknown scenario {plan.scenario!r}; known are {', '.join(SCENARIOS)}")
    need_networkx()
    started = perf_counter()
    run = Run(plan, progress, trace)
    before, after = scenario(run)
    if not settled(run.world):
        run.settle()
    return report(run, before, after, perf_counter() - started)


def report(run: Run, before: float, after: float, wall_seconds: float) -> Report:
    metrics = run.metrics
    facts = graph_facts([place.address for place in run.world.up()], run.world.edges())
    remote = metrics.remote_deliveries
    join_ms = [join.ms for join in run.joins]
    return Report(
        scenario=run.plan.scenario,
        seed=run.plan.seed,
        degree=run.plan.degree,
        nodes=facts.nodes,
        edges=facts.edges,
        degree_min=facts.degree_min,
        degree_max=facts.degree_max,
        connected=facts.connected,
        edge_connectivity=facts.edge_connectivity,
        vertex_connectivity=facts.vertex_connectivity,
        eccentricity_max=facts.eccentricity_max,
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
        virtual_seconds=run.world.now_ms / 1_000,
        wall_seconds=round(wall_seconds, 3),
    )


def broken_promises(report: Report) -> list[str]:
    """What the scenario promises and the report does not show, in words; empty when all is well."""
    broken = []
    if not report.connected:
        broken.append("the graph is in pieces")
    edges = edges_when_settled(report.nodes, report.degree)
    if report.edges != edges:
        broken.append(f"the graph has {report.edges} links, a whole one has {edges}")
    if report.degree_max > report.degree:
        broken.append(f"a node has {report.degree_max} neighbours, more than {report.degree}")
    # Odd: newcomers that join at the same time can fill their last holes among themselves, which leaves one link less.
    connectivity = min(report.nodes - 1, report.degree - report.degree % 2)
    if (
        report.scenario in ("grow", "flash")
        and report.edge_connectivity is not None
        and report.edge_connectivity < connectivity
    ):
        broken.append(
            f"the loss of {report.edge_connectivity} links can split the graph, it should take {connectivity}"
        )
    if report.delivered_fraction < 1:
        broken.append(f"only {report.delivered_fraction:.4%} of the deliveries came")
    if report.duplicates_delivered:
        broken.append(f"{report.duplicates_delivered} deliveries came twice")
    if report.out_of_order:
        broken.append(f"{report.out_of_order} deliveries came out of order")
    return broken
