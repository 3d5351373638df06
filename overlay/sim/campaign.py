"""Fault campaigns: many seeds, each a small channel that lives through a random mixture of faults under load.

A run has three phases: nodes join; faults and publishing go on for a while with every safety checker watching; then
the faults stop and everything that is promised must come true within a bound. Each seed draws its own faults; every
fourth one is a channel of two to five nodes that all go down at once, some of which come back with older stores. In
half of the seeds registrations come and go as well, and the network is split for a while in some of them: in the second
half of the first thousand, in every other hundred from there on, and in all from `INTEREST_SEEDS` on. Those of the
hundreds, and some of the thousand, have selective topics: half of what is published is theirs. A seed that fails is
replayed, with a trace, by the command that the failure prints.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.sim.checkers import (
    Durability,
    ExactlyOnce,
    GraphSafety,
    Memory,
    Numbers,
    Order,
    PublishTimes,
    Violation,
    is_selected,
    unsettled,
)
from m4cast.overlay.sim.faults import Faults
from m4cast.overlay.sim.interest import InterestLoad, InterestSafety, unsettled_interest
from m4cast.overlay.sim.places import Network, Observer, Place
from m4cast.overlay.sim.selective.nodes import CLOCK_MS_MAX, SelectiveLoad, SelectiveSafety
from m4cast.overlay.sim.workload import Workload
from m4cast.overlay.sim.world import World, node_config

SETTLE_MS = 180_000
"""Liveness bound: within this the channel is whole again and every node has everything. Whoever may have rows is waited
for for a minute, and searches for them are up to a minute apart."""

SELECTIVE_SETTLE_MS = 1_380_000
"""The same for selective topics: rows that nobody has are given up when their origin has been away for ten minutes. Who
hears of an origin that it never met only when others give up its rows waits for it as long again."""

GAPS_MS = (20, 100, 400)
"""Between two changes of registrations."""
SLOW_GAPS_MS = (100, 400, 1_000)
"""The same in the seeds of every test run."""

MORE = 1 << 62
"""Added to a seed for kinds of faults that were added later: the faults that a seed had before stay as they were."""


REGISTERED_SEEDS = range(500, 1_000)
"""Seeds of the first thousand in which registrations come and go; earlier ones are written down or pinned without."""
INTEREST_SEEDS = 1_000_000
"""The first of the seeds in which registrations come and go quickly, and no topic is selective."""


PLAIN_SEEDS = (612, 935, 1_611, 2_539, 2_903)
"""Seeds that are written down for what once broke there, in a load with fewer kinds of registrations."""


def has_registrations(seed: int) -> bool:
    return seed in REGISTERED_SEEDS or seed >= INTEREST_SEEDS or has_selective_topics(seed)


def has_selective_topics(seed: int) -> bool:
    """One in 17 of the first thousand that have registrations, since such a run takes four times as long; every other
    hundred of later ones."""
    if seed in REGISTERED_SEEDS:
        return seed % 17 == 0
    return 1_000 <= seed < INTEREST_SEEDS and seed // 100 % 2 == 0


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    seed: int
    nodes: int
    events: int
    answered: int
    refused: int
    rollbacks: int
    settle_ms: int
    registered: int = 0


def run_seed(seed: int, trace: Callable[[str], None] | None = None, observers: Iterable[Observer] = ()) -> SeedOutcome:
    """One run; raises `Violation` (or any error of a machine) when a guarantee is broken."""
    random = Random(seed)
    has_blackouts = seed % 4 == 3
    nodes = 5 + int(21 * random.random() ** 2)  # 5 to 25, more often few: small graphs have the odd cases
    if has_blackouts:
        nodes = random.randint(2, 5)
    degree = random.choice((3, 4, 4, 4, 5, 6))
    cluster = ClusterConfig(degree=degree, beacon_interval_ms=3_000, beacon_ms_per_node=200)
    network = Network(
        latency_ms=random.choice(((1, 3), (5, 20), (5, 80))),
        jitter_ms=random.choice((0, 3, 20)),
        bytes_per_ms=random.choice((0, 0, 50)),
    )
    world = World(random.randrange(1 << 62), cluster, network, wire=seed % 20 == 0, trace=trace)
    portals = tuple(range(min(random.randint(1, 3), nodes)))
    for index in range(nodes + 4):
        world.add(
            node_config(
                index,
                portals,
                push_bytes_max=1_024,
                hold_back_bytes_max=20_000,
                undurable_bytes_max=40_000,
                publish_window_bytes=20_000,
                pull_window_bytes=8_000,
                link_queue_bytes_max=16_384,
                start_from=random.choice(("earliest", "earliest", "latest")),
            )
        )
    places = list(world.places.values())
    trims = random.random() < 0.2
    fates: tuple[tuple[str, ...], ...] = (("same",), ("same", "same", "empty"), ("same", "same", "empty", "older"))
    if has_blackouts:
        fates = (("same",), ("same", "older"), ("same", "older", "older"))
    stores = random.choice(fates)
    faults = Faults(world, stores=stores, spare=places[nodes:], trims=trims, more=Random(seed + MORE))
    numbers = Numbers(world)
    exactly_once = ExactlyOnce(numbers)
    durability = Durability()
    workload = Workload(world, durability)
    interest: InterestLoad | SelectiveLoad | None = None
    selective: SelectiveSafety | None = None
    if has_selective_topics(seed):
        interest = SelectiveLoad(world, Random(seed + MORE), is_plain=seed in PLAIN_SEEDS)
        selective = SelectiveSafety(world, interest, numbers, durability.acks)
        workload.special, faults.clock_ms_max = interest.payload, CLOCK_MS_MAX
        world.watch(selective)
    elif has_registrations(seed):
        interest = InterestLoad(world, Random(seed + MORE))
    world.watch(
        GraphSafety(),
        numbers,
        PublishTimes(numbers),
        Order(world, numbers),
        durability,
        Memory(),
        exactly_once,
        workload,
        *((interest, InterestSafety()) if interest is not None else ()),
        *observers,
    )
    try:
        _grow(world, places[:nodes], random)
        if has_blackouts and random.random() < 0.5:
            faults.backup_all()  # from before the first row
        if interest is not None:
            _interest(world, interest, faults, SLOW_GAPS_MS if seed in REGISTERED_SEEDS else GAPS_MS)
        _trouble(world, faults, workload, random, has_blackouts=has_blackouts)
        settle_ms = _settle(world, faults, workload, exactly_once, numbers)
        if interest is not None:
            _settle_interest(world)
        if selective is not None:
            _settle_selective(world, selective)
    except Exception as error:
        error.add_note(f"replay with: .venv/bin/python -m tests.simulation.soak --seed {seed} --trace")
        raise
    rollbacks = sum(place.rollbacks for place in places)
    return SeedOutcome(
        seed=seed,
        nodes=nodes,
        events=world.events,
        answered=len(workload.answered),
        refused=sum(workload.refused.values()),
        rollbacks=rollbacks,
        settle_ms=settle_ms,
        registered=interest.answered if interest is not None else 0,
    )


def _grow(world: World, places: list[Place], random: Random) -> None:
    gap_ms = random.choice((0, 30, 200))
    for place in places:
        world.start(place)
        world.run(world.now_ms + gap_ms)
    world.run(world.now_ms + random.randint(500, 3_000))


def _interest(world: World, load: InterestLoad | SelectiveLoad, faults: Faults, gaps_ms: tuple[int, ...]) -> None:
    """Registrations come and go for as long as there are faults; a third of the seeds have a split network."""
    random = load.random
    gap_ms = random.choice(gaps_ms)

    def again() -> None:
        if faults.active:
            load.act()
            world.after(random.randint(1, 2 * gap_ms), again)

    again()
    if random.random() < 0.33:
        places = world.up()
        world.after(random.randint(1, 3_000), world.split, random.sample(places, len(places) // 2))
        world.after(random.randint(6_000, 9_000), world.mend)


def _settle_interest(world: World) -> None:
    complaints: list[str] = []

    def settled() -> bool:
        nonlocal complaints
        complaints = unsettled_interest(world)
        return not complaints

    if not world.run_until(settled, SETTLE_MS, step_ms=500):
        raise Violation("interest", "; ".join(complaints[:8]))


def _settle_selective(world: World, selective: SelectiveSafety) -> None:
    complaints: list[str] = []

    def settled() -> bool:
        nonlocal complaints
        complaints = selective.unsettled()
        return not complaints

    if not world.run_until(settled, SELECTIVE_SETTLE_MS, step_ms=1_000):
        raise Violation("selection", "; ".join(complaints[:8]))


def _trouble(world: World, faults: Faults, workload: Workload, random: Random, *, has_blackouts: bool) -> None:
    end_ms = world.now_ms + random.randint(5_000, 12_000)
    fault_gap_ms = random.choice((200, 500, 1_500))
    publish_gap_ms = random.choice((60, 150, 300))
    next_fault = next_publish = world.now_ms
    if has_blackouts:
        if not faults.backups:
            world.after(random.randint(1, 1_000), faults.backup_all)
        world.after(random.randint(1_000, 5_000), faults.blackout, random.choice((500, 5_000, 20_000)))
        end_ms += 20_000
    while world.now_ms < end_ms:
        world.run(min(next_fault, next_publish))
        if next_publish <= next_fault:
            workload.publish_somewhere()
            next_publish += random.randint(1, 2 * publish_gap_ms)
        else:
            faults.one()
            faults.one_more()
            next_fault += random.randint(1, 2 * fault_gap_ms)


def _settle(world: World, faults: Faults, workload: Workload, exactly_once: ExactlyOnce, numbers: Numbers) -> int:
    faults.stop()
    began_ms = world.now_ms
    complaints: list[str] = []

    def settled() -> bool:
        nonlocal complaints
        for place in world.up():
            world.read_damaged(place)
        complaints = unsettled(world, numbers)
        return not complaints and not workload.owed()

    if not world.run_until(settled, SETTLE_MS, step_ms=500):
        busy = [f"{pending.key} {pending.position} is not answered" for pending in workload.owed()]
        raise Violation("liveness", "; ".join((complaints + busy)[:8]))
    settle_ms = world.now_ms - began_ms
    _check_answers(world, faults, workload, exactly_once, numbers)
    return settle_ms


def _check_answers(
    world: World, faults: Faults, workload: Workload, exactly_once: ExactlyOnce, numbers: Numbers
) -> None:
    """Check that what was answered by a node whose store survived is at every node, except where another history is."""
    for pending, ranges, started in workload.answered:
        lost = any(place is pending.place and lost_at >= started for place, lost_at in faults.lost_stores)
        if lost or pending.place in faults.gone:  # a leaver hands its rows over, if there is anybody in reach
            continue
        if pending.key:
            exactly_once.check_whole(pending.key, str(pending.position))
        for rows in (each for each in ranges if each.stream not in numbers.forked):
            if is_selected(pending.place.disk.content, rows.stream):
                continue
            for place in world.up():
                log = place.disk.content.logs.get(rows.stream)
                if log is None or log.next < rows.next_sequence:
                    raise Violation("delivery", f"{place.name} never got {rows} of {pending.place.name}")
