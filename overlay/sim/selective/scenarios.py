"""The scenarios of `m4cast sim` about selective topics. Their fractions count pairs of an accepted batch and a node
that wanted it before it was published; other nodes are sent nothing, which the checker watches."""

from random import Random

from m4cast.overlay.protocol.effects import Output, Published
from m4cast.overlay.sim.checkers import Numbers
from m4cast.overlay.sim.places import Observer, Place
from m4cast.overlay.sim.run import FAULTS_MS, PORTALS, ScenarioRun
from m4cast.overlay.sim.selective.nodes import TOPICS, SelectiveLoad, SelectiveSafety

GIVE_UP_MS = 780_000
"""Rows that nobody has any longer are given up when their origin has been away for ten minutes."""
AWAY_MS = 10_000
LOST_MAX = 8
"""At most so many nodes are lost in `keepers`: between two of them there is time to choose new keepers."""


def selective(run: ScenarioRun) -> tuple[float, float]:
    """Nodes register for rows of two selective topics by their content, and give up registrations, while batches are
    published, links break, and nodes crash silently and return. The fractions are those of the wanted batches."""
    load, safety = _begin(run, keepers=0)
    for _ in range(run.plan.nodes):
        run.world.after(run.random.randrange(FAULTS_MS), run.break_a_link)
    for place in run.random.sample(run.world.up(), run.plan.nodes // 5):
        run.world.after(run.random.randrange(FAULTS_MS - AWAY_MS), _crash_for_a_while, run, place)
    return _end(run, load, safety)


def keepers(run: ScenarioRun) -> tuple[float, float]:
    """Each batch of two selective topics is acknowledged by one of its two keepers. Again and again, the node that was
    just acknowledged is lost for good, with its disk. The fractions are those of the wanted batches."""
    load, safety = _begin(run, keepers=2)
    run.acks = min(1, run.plan.nodes - 1)
    run.world.watch(LossAfterAck(run, min(run.plan.nodes // 4, LOST_MAX)))
    return _end(run, load, safety)


class LossAfterAck(Observer):
    """Crashes the publishing node right after an acknowledgement, at most once in each of equal parts of the faults.
    It never returns."""

    outputs = (Published,)

    def __init__(self, run: ScenarioRun, count: int) -> None:
        self._run = run
        self._gap_ms = FAULTS_MS // (count + 1)
        self._left = count
        self._next_ms = run.world.now_ms + self._gap_ms

    def output(self, place: Place, output: Output) -> None:
        is_due = self._left > 0 and self._run.world.now_ms >= self._next_ms
        if is_due and place not in self._run.world.up()[: len(PORTALS)]:
            self._left -= 1
            self._next_ms = self._run.world.now_ms + self._gap_ms
            self._run.world.after(0, self._lose, place)

    def _lose(self, place: Place) -> None:
        if place.up:
            place.will_return = False
            self._run.world.crash(place, silent=True)


def _begin(run: ScenarioRun, keepers: int) -> tuple[SelectiveLoad, SelectiveSafety]:
    """Grow the channel, create the topics, and plan registrations and publishes for the time of the faults."""
    run.join(run.plan.nodes)
    load, numbers = SelectiveLoad(run.world, Random(run.plan.seed)), Numbers(run.world)
    load.keepers, load.share = dict.fromkeys(TOPICS, keepers), 1.0
    safety = SelectiveSafety(run.world, load, numbers, {})
    for place in run.world.up():
        numbers.started(place)
        safety.started(place)
    run.world.watch(load, numbers, safety)
    places = run.world.up()
    load.act()
    run.wait("topics", lambda: sum(load.is_known_at(place) for place in places), len(places))
    run.special = load.payload
    run.publish_during(FAULTS_MS)
    for _ in range(4 * run.plan.nodes):
        run.world.after(run.random.randrange(FAULTS_MS), load.act)
    return load, safety


def _end(run: ScenarioRun, load: SelectiveLoad, safety: SelectiveSafety) -> tuple[float, float]:
    run.pass_faults()
    accepted = run.metrics.accepted
    before = safety.arrived(each.ranges for each in accepted.values())
    run.settle()
    run.wait("accept", lambda: len(accepted), run.plan.messages)
    run.wait("select", lambda: int(not safety.unsettled()), 1, GIVE_UP_MS)
    return before, safety.arrived(each.ranges for each in accepted.values())


def _crash_for_a_while(run: ScenarioRun, place: Place) -> None:
    if place.up:
        run.world.crash(place, silent=True)
        run.world.after(AWAY_MS, run.world.start, place)
