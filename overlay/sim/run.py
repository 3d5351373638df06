"""A run: a channel under a plan, and the steps that scenarios are made of.

A channel grows by a node every 50 ms, through three portals, and no node waits for another. Waiting has a bound: a run
always ends, and what did not come true within the bound shows in its report.

Up to 100 nodes the cluster settings are the defaults. Larger channels beat every 5 s, give up a silent neighbour after
20 s and send beacons a minute per node apart, as seldom as is allowed, which keeps a run cheap; those of scenarios
that are about finding each other again have the defaults at any size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Leave, Publish, Staged
from m4cast.overlay.protocol.neighbours import State
from m4cast.overlay.sim.graph import edges_when_settled
from m4cast.overlay.sim.metrics import Join, Metrics
from m4cast.overlay.sim.places import End, Network, Place
from m4cast.overlay.sim.world import World, node_config

PORTALS = (0, 1, 2)
JOIN_GAP_MS = 50
LARGE_NODES = 100
"""Above this many nodes the settings are those of a large channel."""
WITH_BEACONS = ("partition", "rejoin", "interest", "selective", "keepers")
"""Scenarios that need beacons at any size."""
LIVENESS_MS = 300_000
"""Without faults, the graph is whole, and then everything delivered, within this. Holes that nobody could fill are
tried again after at most a minute, so this is a few tries."""
FAULTS_MS = 60_000
"""Duration of the faults in scenarios whose faults go on for a while."""
FLOOD_MS = 1_000
"""Longer than a flood takes when no link is broken (20 hops of 23 ms)."""
PUBLISH_RETRY_MS = 1_000
PUBLISH_TRIES_MAX = 60
ROWS_PER_BATCH = 3
PAYLOAD_BYTES = 100

ShowProgress = Callable[[str, int, int], None]
"""(phase, done, total)"""


@dataclass(frozen=True, slots=True)
class ScenarioPlan:
    scenario: str
    nodes: int
    degree: int = 4
    seed: int = 1
    messages: int = 20


def cluster_for(plan: ScenarioPlan) -> ClusterConfig:
    if plan.nodes <= LARGE_NODES or plan.scenario in WITH_BEACONS:
        return ClusterConfig(degree=plan.degree)
    return ClusterConfig(
        degree=plan.degree, heartbeat_interval_ms=5_000, heartbeat_timeout_ms=20_000, beacon_ms_per_node=60_000
    )


def settled(world: World) -> bool:
    """Every node is on the channel and the graph has every edge it can have."""
    places = world.up()
    edges = edges_when_settled(len(places), world.cluster.degree)
    ends = 0
    for place in places:
        assert place.node is not None
        if place.node.membership.state is not State.FULL:
            return False
        ends += len(place.node.membership.table.neighbours)
    return ends == 2 * edges and len(world.edges()) == edges


class ScenarioRun:
    """A channel under a plan: the steps that scenarios are made of."""

    def __init__(
        self,
        plan: ScenarioPlan,
        progress: ShowProgress | None = None,
        trace: Callable[[str], None] | None = None,
        network: Network | None = None,
        **settings: object,
    ) -> None:
        """`settings` are those of every node."""
        self.plan = plan
        self.world = World(plan.seed, cluster_for(plan), network, trace=trace)
        self.metrics = Metrics(self.world)
        self.world.watch(self.metrics)
        self.random = Random(self.world.random.randrange(1 << 62))
        self.joins: list[Join] = []
        self.join_messages = 0
        self.faults_over_ms: int | None = None
        """The time from which on everything must come true."""
        self.configure: Callable[[int], NodeConfig] = lambda index: node_config(index, PORTALS, **settings)
        """The node of each number."""
        self.special: Callable[[Place], Staged | None] = lambda place: None
        """The rows that a place publishes in place of those of the broadcast topic."""
        self.acks = 0
        """The other nodes that a publish waits for."""
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

    def pass_faults(self) -> None:
        """Let the time of the faults pass."""
        end_ms = self.world.now_ms + FAULTS_MS
        self.wait("faults", lambda: FAULTS_MS - max(0, end_ms - self.world.now_ms), FAULTS_MS)
        self.faults_over_ms = self.world.now_ms

    # ---- members

    def join(self, count: int, gap_ms: int = JOIN_GAP_MS) -> bool:
        """Start this many more nodes and wait until the graph is whole; these are the joins that are reported."""
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
        self.world.start(self.world.add(self.configure(len(self.world.places))))

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
        live = self.links_of(self.random.choice(self.world.up()))
        return self.random.choice(live) if live else None

    def break_a_link(self) -> None:
        end = self.a_link()
        if end is not None:
            self.world.cables.break_connection(end)

    def links_of(self, place: Place) -> list[End]:
        """The ends that this node has of live links."""
        assert place.node is not None
        ends = [place.ends.get(each.conn) for each in place.node.membership.table.neighbours.values()]
        return [end for end in ends if end is not None]

    # ---- batches

    def ready(self) -> list[Place]:
        """Return the places at which a client would publish: those that are fully connected, and not about to leave."""
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
            place = self.random.choice(places)
            self.world.feed(place, Publish(request, (self.special(place) or payload,), acks=self.acks))
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
        """The fraction of pairs of a batch accepted at one of the origins (None: anywhere) and a receiver. A batch that
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
